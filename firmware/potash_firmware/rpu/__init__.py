"""The RPU: the firmware that serves NVMe, in the role of the board's real-time processor."""

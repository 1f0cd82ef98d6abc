"""The Subsystem Local Memory command set (CSI 03h): bytes."""

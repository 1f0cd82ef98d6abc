"""What the firmware keeps for its log pages: errors and health.

Source: NVM Express Base Specification 2.0, section 5.16.1.2 (Error Information) and 5.16.1.3
(SMART / Health Information).
"""

import time
from collections import deque

from nvme_spec.logs import (
    NO_COMMAND,
    NO_PARAMETER_ERROR_LOCATION,
    SMART_DATA_UNIT,
    ErrorLogEntry,
    SmartLog,
)
from nvme_spec.status import NvmeError
from potash_firmware.rpu.command import Command

ERROR_LOG_ENTRIES = 64
"""Entries kept; ELPE in Identify Controller is one less, being 0's based."""

TEMPERATURE = 313
"""Kelvin: what a device without a sensor says of a comfortable room inside a machine."""

SPARE_THRESHOLD = 10
"""Per cent."""

HOUR = 3600.0


class ErrorLog:
    """The newest errors, and how many there have been."""

    def __init__(self) -> None:
        self.count = 0
        self._entries: deque[ErrorLogEntry] = deque(maxlen=ERROR_LOG_ENTRIES)

    def add(self, command: Command, error: NvmeError, lba: int = 0) -> None:
        """A command has ended with `error`."""
        self._add(
            sqid=command.queue.qid,
            cid=command.entry.cid,
            status=error.status,
            dnr=int(error.dnr),
            lba=lba,
            nsid=command.entry.nsid,
        )

    def add_event(self, status: int) -> None:
        """Something went wrong that is no command's; `status` is the most applicable one."""
        self._add(sqid=NO_COMMAND, cid=NO_COMMAND, status=status)

    def _add(self, **fields: int) -> None:
        self.count += 1
        location = NO_PARAMETER_ERROR_LOCATION
        self._entries.appendleft(
            ErrorLogEntry(error_count=self.count, parameter_error_location=location, **fields)
        )

    def encode(self) -> bytes:
        """The log page: the newest entry first, unused ones zero."""
        entries = b"".join(map(bytes, self._entries))
        return entries.ljust(ERROR_LOG_ENTRIES * ErrorLogEntry.SIZE, b"\0")


class Health:
    """Counters since the device was started."""

    def __init__(self) -> None:
        self.bytes_read = 0
        self.bytes_written = 0
        self.reads = 0
        self.writes = 0
        self.media_errors = 0
        self._started = time.monotonic()

    def count_read(self, size: int) -> None:
        """A host has read `size` bytes."""
        self.reads += 1
        self.bytes_read += size

    def count_write(self, size: int) -> None:
        """A host has written `size` bytes."""
        self.writes += 1
        self.bytes_written += size

    def encode(self, errors: ErrorLog) -> bytes:
        """The log page."""
        return bytes(
            SmartLog(
                composite_temperature=TEMPERATURE,
                available_spare=100,
                available_spare_threshold=SPARE_THRESHOLD,
                data_units_read=-(-self.bytes_read // SMART_DATA_UNIT),
                data_units_written=-(-self.bytes_written // SMART_DATA_UNIT),
                host_read_commands=self.reads,
                host_write_commands=self.writes,
                power_cycles=1,
                power_on_hours=int((time.monotonic() - self._started) / HOUR),
                media_errors=self.media_errors,
                error_log_entries=errors.count,
            )
        )

"""What the firmware keeps for its log pages: errors and health.

Source: NVM Express Base Specification 2.0, section 5.16.1.2 (Error Information) and 5.16.1.3
(SMART / Health Information).
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from nvme_spec.logs import (
    NO_COMMAND,
    NO_PARAMETER_ERROR_LOCATION,
    SMART_DATA_UNIT,
    CriticalWarning,
    ErrorLogEntry,
    SmartLog,
)
from nvme_spec.status import NvmeError
from potash_firmware.rpu.command import Command
from potash_firmware.rpu.media_work import MediaFailure

ERROR_LOG_ENTRIES = 64
"""Entries kept; ELPE in Identify Controller is one less, being 0's based."""

TEMPERATURE = 313
"""Kelvin: what a device without a sensor says of a comfortable room inside a machine."""

SPARE_THRESHOLD = 10
"""Per cent."""

HOUR = 3600.0

COUNTER_LIMIT = 1 << 63
"""Of what is believed: more than any drive does in its life, and far below what a field holds."""


class ErrorLog:
    """The newest errors, and how many there have been in the drive's life."""

    def __init__(self) -> None:
        self.count = 0
        self._entries: deque[ErrorLogEntry] = deque(maxlen=ERROR_LOG_ENTRIES)

    def add(self, command: Command, error: NvmeError) -> None:
        """A command has ended with `error`."""
        self._add(
            sqid=command.queue.qid,
            cid=command.entry.cid,
            status=error.status,
            dnr=int(error.dnr),
            lba=error.lba if isinstance(error, MediaFailure) else 0,
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
    """Counters of the drive's life, as far as it is remembered."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.bytes_read = 0
        self.bytes_written = 0
        self.reads = 0
        self.writes = 0
        self.media_errors = 0
        self.power_cycles = 0
        self.unsafe_shutdowns = 0
        self._clock = clock
        self._started = clock()
        self._seconds_before = 0

    def count_read(self, size: int, commands: int = 1) -> None:
        """A host has read `size` bytes."""
        self.reads += commands
        self.bytes_read += size

    def count_write(self, size: int, commands: int = 1) -> None:
        """A host has written `size` bytes."""
        self.writes += commands
        self.bytes_written += size

    @property
    def power_on_seconds(self) -> int:
        """For how long the drive has been on, all power cycles together."""
        return self._seconds_before + int(self._clock() - self._started)

    def state(self, errors: ErrorLog) -> dict[str, int]:
        """What is to be remembered."""
        counters = {name: getattr(self, name) for name in _REMEMBERED}
        return {**counters, "power_on_seconds": self.power_on_seconds, "errors": errors.count}

    def restore(self, state: Any, errors: ErrorLog) -> None:
        """Go on from what was remembered; what is no counter there begins at zero."""
        if not isinstance(state, Mapping):
            return
        for name in _REMEMBERED:
            setattr(self, name, _counter(state, name))
        self._seconds_before = _counter(state, "power_on_seconds")
        errors.count = _counter(state, "errors")

    def encode(self, errors: ErrorLog, warning: CriticalWarning) -> bytes:
        """The log page."""
        return bytes(
            SmartLog(
                critical_warning=warning,
                composite_temperature=TEMPERATURE,
                available_spare=100,
                available_spare_threshold=SPARE_THRESHOLD,
                data_units_read=-(-self.bytes_read // SMART_DATA_UNIT),
                data_units_written=-(-self.bytes_written // SMART_DATA_UNIT),
                host_read_commands=self.reads,
                host_write_commands=self.writes,
                power_cycles=self.power_cycles,
                power_on_hours=int(self.power_on_seconds / HOUR),
                unsafe_shutdowns=self.unsafe_shutdowns,
                media_errors=self.media_errors,
                error_log_entries=errors.count,
            )
        )


_REMEMBERED = (
    "bytes_read",
    "bytes_written",
    "reads",
    "writes",
    "media_errors",
    "power_cycles",
    "unsafe_shutdowns",
)


def _counter(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name)
    return value if isinstance(value, int) and 0 <= value < COUNTER_LIMIT else 0

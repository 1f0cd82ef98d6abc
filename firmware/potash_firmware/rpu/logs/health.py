"""The SMART / Health Information log.

Source: NVM Express Base Specification 2.0, section 5.16.1.3.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from nvme_spec.logs import (
    SMART_DATA_UNIT,
    CriticalWarning,
    SmartLog,
)
from potash_firmware.rpu.logs.errors import ErrorLog

TEMPERATURE = 313
"""Kelvin: what a device without a sensor says of a comfortable room inside a machine."""

SPARE_THRESHOLD = 10
"""Per cent."""

MINUTE = 60.0
HOUR = 3600.0

SAMPLE = 1e-3
"""Seconds between two samples of how busy a working drive is."""

COUNTER_LIMIT = 1 << 63
"""Of what is believed: more than any drive does in its life, and far below what a field holds."""


@dataclass(eq=False, repr=False)
class _Counters:
    """What is remembered over power cycles; times in seconds."""

    bytes_read: int = 0
    bytes_written: int = 0
    reads: int = 0
    writes: int = 0
    media_errors: int = 0
    power_cycles: int = 0
    unsafe_shutdowns: int = 0
    busy_seconds: float = 0.0
    warning_temperature_time: float = 0.0
    critical_temperature_time: float = 0.0
    thermal_transitions_1: int = 0
    thermal_transitions_2: int = 0
    thermal_time_1: float = 0.0
    thermal_time_2: float = 0.0


class Health(_Counters):
    """Counters of the drive's life, as far as it is remembered.

    `waiting` says whether an I/O command is outstanding.
    """

    def __init__(self, clock: Callable[[], float], waiting: Callable[[], bool]) -> None:
        super().__init__()
        self.temperature = TEMPERATURE
        self._clock = clock
        self._waiting = waiting
        self._started = clock()
        self._seconds_before = 0
        self._sampled = self._started
        self.waited = False
        """A command was waited for at the last sample, so that the next one is due when it ends."""
        self._commands = 0

    def count_read(self, size: int, commands: int = 1) -> None:
        """A host has read `size` bytes."""
        self.reads += commands
        self.bytes_read += size

    def count_write(self, size: int, commands: int = 1) -> None:
        """A host has written `size` bytes."""
        self.writes += commands
        self.bytes_written += size

    def sample(self) -> None:
        """Sample what has happened since the last time, `SAMPLE` seconds ago or longer.

        A time in which a command was waited for was a busy one. Commands that began and ended
        between two samples count for no more than the shortest such time: a drive that does nothing
        is not sampled.
        """
        now = self._clock()
        elapsed, commands = now - self._sampled, self.reads + self.writes
        busy = elapsed if self.waited else 0.0
        if commands != self._commands:
            busy = max(busy, min(elapsed, SAMPLE))
        self.busy_seconds += busy
        self._sampled, self._commands, self.waited = now, commands, self._waiting()

    @property
    def power_on_seconds(self) -> int:
        """For how long the drive has been on, all power cycles together."""
        return self._seconds_before + int(self._clock() - self._started)

    @property
    def power_on_hours(self) -> int:
        return int(self.power_on_seconds / HOUR)

    def state(self, errors: ErrorLog) -> dict[str, int]:
        counters = {name: int(getattr(self, name)) for name in _REMEMBERED}
        return {**counters, "power_on_seconds": self.power_on_seconds, "errors": errors.count}

    def restore(self, state: Any, errors: ErrorLog) -> None:
        """Go on from what was remembered; what is no counter there begins at zero."""
        if not isinstance(state, Mapping):
            return
        for name in _REMEMBERED:
            setattr(self, name, _counter(state, name))
        self._seconds_before = _counter(state, "power_on_seconds")
        errors.count = _counter(state, "errors")

    def log(
        self,
        errors: ErrorLog,
        warning: CriticalWarning,
        available_spare: int = 100,
        percentage_used: int = 0,
    ) -> SmartLog:
        """The page; spare and use are those of the modelled flash, or that of none."""
        return SmartLog(
            critical_warning=warning,
            composite_temperature=self.temperature,
            available_spare=available_spare,
            available_spare_threshold=SPARE_THRESHOLD,
            percentage_used=percentage_used,
            data_units_read=-(-self.bytes_read // SMART_DATA_UNIT),
            data_units_written=-(-self.bytes_written // SMART_DATA_UNIT),
            host_read_commands=self.reads,
            host_write_commands=self.writes,
            controller_busy_time=int(self.busy_seconds / MINUTE),
            power_cycles=self.power_cycles,
            power_on_hours=self.power_on_hours,
            unsafe_shutdowns=self.unsafe_shutdowns,
            media_errors=self.media_errors,
            error_log_entries=errors.count,
            warning_temperature_time=int(self.warning_temperature_time / MINUTE),
            critical_temperature_time=int(self.critical_temperature_time / MINUTE),
            thermal_transitions_1=self.thermal_transitions_1,
            thermal_transitions_2=self.thermal_transitions_2,
            thermal_time_1=int(self.thermal_time_1),
            thermal_time_2=int(self.thermal_time_2),
        )


_REMEMBERED = tuple(one.name for one in fields(_Counters))


def _counter(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name)
    return value if isinstance(value, int) and 0 <= value < COUNTER_LIMIT else 0

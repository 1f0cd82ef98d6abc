"""The SMART / Health Information log.

Source: NVM Express Base Specification 2.0, section 5.16.1.3.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, TypedDict

from nvme_spec.logs import SMART_DATA_UNIT, CriticalWarning, ErrorLogEntry, SmartLog
from nvme_spec.persistent_events import PowerOnOrReset
from potash_device.media.sidecar import Sidecar
from potash_device.saved import LARGEST_NUMBER, Section, counts, limited
from potash_firmware.rpu.outstanding import Outstanding
from potash_firmware.rpu.part import Part
from potash_wire.records import Range

TEMPERATURE = 313
"""Kelvin: what a device without a sensor says of a comfortable room inside a machine."""

SPARE_THRESHOLD = 10
"""Per cent."""

MINUTE = 60
HOUR = 3600

SAMPLE = 1e-3
"""Seconds between two samples of how busy a working drive is."""


class SavedHealth(TypedDict, total=False):
    """The counters that outlive power cycles; times in seconds."""

    bytes_read: Annotated[int, counts(SmartLog.data_units_read, SMART_DATA_UNIT)]
    bytes_written: Annotated[int, counts(SmartLog.data_units_written, SMART_DATA_UNIT)]
    reads: Annotated[int, counts(SmartLog.host_read_commands)]
    writes: Annotated[int, counts(SmartLog.host_write_commands)]
    media_errors: Annotated[int, counts(SmartLog.media_errors)]
    power_cycles: Annotated[int, counts(PowerOnOrReset.power_cycle)]
    unsafe_shutdowns: Annotated[int, counts(SmartLog.unsafe_shutdowns)]
    busy_seconds: Annotated[int, counts(SmartLog.controller_busy_time, MINUTE)]
    warning_temperature_time: Annotated[int, counts(SmartLog.warning_temperature_time, MINUTE)]
    critical_temperature_time: Annotated[int, counts(SmartLog.critical_temperature_time, MINUTE)]
    thermal_transitions_1: Annotated[int, counts(SmartLog.thermal_transitions_1)]
    thermal_transitions_2: Annotated[int, counts(SmartLog.thermal_transitions_2)]
    thermal_time_1: Annotated[int, counts(SmartLog.thermal_time_1)]
    thermal_time_2: Annotated[int, counts(SmartLog.thermal_time_2)]
    power_on_seconds: Annotated[int, Range(0, LARGEST_NUMBER // 1000)]
    errors: Annotated[int, counts(ErrorLogEntry.error_count)]


SECTION: Section[SavedHealth] = Section("health", SavedHealth)
"""The section of the sidecar with the saved counters."""


class Health(Part):
    """Counters of the drive's life, as far as it is remembered."""

    def __init__(
        self, sidecar: Sidecar, clock: Callable[[], float], outstanding: Sequence[Outstanding]
    ) -> None:
        """`outstanding` are the waiting commands of each controller."""
        self._sidecar = sidecar
        self.errors = 0
        """Entries of error logs."""
        self.bytes_read = self.bytes_written = 0
        self.reads = self.writes = 0
        self.media_errors = 0
        self.power_cycles = self.unsafe_shutdowns = 0
        self.busy_seconds = 0.0
        self.warning_temperature_time = self.critical_temperature_time = 0.0
        self.thermal_transitions_1 = self.thermal_transitions_2 = 0
        self.thermal_time_1 = self.thermal_time_2 = 0.0
        self.temperature = TEMPERATURE
        self._clock = clock
        self._outstanding = outstanding
        self._started = clock()
        self._seconds_before = 0
        self._sampled = self._started
        self.waited = False
        """A command was waited for at the last sample, so that the next one is due when it ends."""
        self._commands = 0

    def count_read(self, size: int) -> None:
        """A host has read `size` bytes."""
        self.reads += 1
        self.bytes_read += size

    def count_write(self, size: int) -> None:
        """A host has written `size` bytes."""
        self.writes += 1
        self.bytes_written += size

    def count(self, reads: int, read: int, writes: int, written: int) -> None:
        """A host has read and written so many bytes by so many commands."""
        self.reads += reads
        self.bytes_read += read
        self.writes += writes
        self.bytes_written += written

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
        self._sampled, self._commands = now, commands
        self.waited = False
        for each in self._outstanding:  # in each pass
            if each.any_io:
                self.waited = True

    @property
    def power_on_seconds(self) -> int:
        """For how long the drive has been on, all power cycles together."""
        return self._seconds_before + int(self._clock() - self._started)

    @property
    def power_on_hours(self) -> int:
        return int(self.power_on_seconds / HOUR)

    @property
    def changes(self) -> int:
        return self.reads + self.writes + self.errors

    def save(self) -> dict[str, int]:
        counters = {name: int(getattr(self, name)) for name in _COUNTERS}
        return {**counters, "power_on_seconds": self.power_on_seconds, "errors": self.errors}

    def load(self, saved: SavedHealth) -> None:
        """Go on from saved counters; those that are missing begin at zero."""
        for name in _COUNTERS:
            setattr(self, name, saved.get(name, 0))
        self._seconds_before = saved.get("power_on_seconds", 0)
        self.errors = saved.get("errors", 0)

    def restore(self, *, clean: bool | None = None) -> None:
        if (saved := self._sidecar.get(SECTION)) is not None:
            self.load(saved)

    def record(self) -> None:
        self._sidecar.put(SECTION, self.save())

    def log(
        self, warning: CriticalWarning, available_spare: int = 100, percentage_used: int = 0
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
            error_log_entries=self.errors,
            # These do not wrap.
            warning_temperature_time=limited(
                SmartLog.warning_temperature_time, int(self.warning_temperature_time / MINUTE)
            ),
            critical_temperature_time=limited(
                SmartLog.critical_temperature_time, int(self.critical_temperature_time / MINUTE)
            ),
            thermal_transitions_1=limited(
                SmartLog.thermal_transitions_1, self.thermal_transitions_1
            ),
            thermal_transitions_2=limited(
                SmartLog.thermal_transitions_2, self.thermal_transitions_2
            ),
            thermal_time_1=limited(SmartLog.thermal_time_1, int(self.thermal_time_1)),
            thermal_time_2=limited(SmartLog.thermal_time_2, int(self.thermal_time_2)),
        )


_COUNTERS = tuple(SavedHealth.__annotations__)[:-2]
"""The counters that attributes of `Health` are, and that are remembered."""

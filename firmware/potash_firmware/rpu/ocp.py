"""The Open Compute Project's log pages: extended health, and the latency monitor.

Both are about the modelled drive. The monitor counts commands by their modelled durations.

Source: OCP Datacenter NVMe SSD Specification 2.0, sections 4.8 and 4.15, and appendix C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, TypedDict

from csd_spec.traffic import CompletionKind, TimedCompletion
from nvme_spec.features import Select
from nvme_spec.ocp import (
    BUCKETS,
    LATENCY_MONITOR_FEATURE,
    NO_TIME,
    LatencyMonitorLog,
    LatencyMonitorSettings,
    SmartExtended,
)
from nvme_spec.opcodes import IoOpcode
from potash_device.flash.rates import PAGE
from potash_device.media.sidecar import Sidecar
from potash_device.saved import Section, counts
from potash_firmware.rpu.features.table import OCP_FEATURES
from potash_firmware.rpu.features.values import Features
from potash_firmware.rpu.logs.health import Health
from potash_firmware.rpu.part import Part

if TYPE_CHECKING:  # it takes NumPy, as in the times
    from potash_firmware.rpu.timing.modelled import ModelledTime

MILLISECOND = 1_000_000
THRESHOLD_UNIT, WINDOW_UNIT = 5 * MILLISECOND, 100 * MILLISECOND
TIMER_UNIT = 5 * 60 * 1000 * MILLISECOND
"""Nanoseconds of a unit of thresholds, of the minimum window, and of the bucket timer."""

OPERATIONS = {IoOpcode.DATASET_MANAGEMENT: 0, IoOpcode.WRITE: 1, IoOpcode.READ: 2}
_COUNTER_LIMIT, _LATENCY_LIMIT = (1 << 32) - 1, (1 << 16) - 1
_NO_CAPACITOR = 0xFFFF
"""Capacitor Health of a drive without power loss protection."""


class SavedOcp(TypedDict, total=False):
    """Counters of the flash before this start."""

    written: Annotated[int, counts(SmartExtended.physical_media_units_written)]
    read: Annotated[int, counts(SmartExtended.physical_media_units_read)]
    retries: Annotated[int, counts(SmartExtended.soft_ecc_errors)]
    uncorrectable: Annotated[int, counts(SmartExtended.uncorrectable_read_errors)]
    refreshed: Annotated[int, counts(SmartExtended.refresh_count)]


SECTION: Section[SavedOcp] = Section("ocp", SavedOcp)
"""The sidecar's section."""


class OcpLogs(Part):
    """The pages of one drive."""

    def __init__(
        self, sidecar: Sidecar, health: Health, timing: ModelledTime, features: Features
    ) -> None:
        self._sidecar, self._health, self._timing = sidecar, health, timing
        self._features = features
        features.rows = dict(features.rows) | OCP_FEATURES
        self._before: SavedOcp = {}
        self.monitor = LatencyMonitor(timing.clock.now, features.timestamp_value)
        timing.monitor = self.monitor.observe

    def _counters(self) -> SavedOcp:
        """The counters of the flash in its life."""
        drive, before = self._timing.drive, self._before
        now, profile = drive.counters, drive.profile
        read = now.senses * profile.row_pages * PAGE
        refreshed = -(-now.refreshed // profile.superblock_pages)
        return {
            "written": before.get("written", 0) + self._timing.programmed,
            "read": before.get("read", 0) + read,
            "retries": before.get("retries", 0) + now.retries,
            "uncorrectable": before.get("uncorrectable", 0) + now.uncorrectable,
            "refreshed": before.get("refreshed", 0) + refreshed,
        }

    def smart(self, used: int, transitions: int) -> SmartExtended:
        """Log C0h of a drive whose namespaces have so many logical blocks in use, and that has been
        in so many other power states."""
        drive, count = self._timing.drive, self._counters()
        wear, erases = drive.wear, drive.spread
        return SmartExtended(
            physical_media_units_written=count["written"],
            physical_media_units_read=count["read"],
            bad_user_blocks=wear.retired,
            bad_user_blocks_normalized=wear.available_spare,
            bad_system_blocks_normalized=100,
            uncorrectable_read_errors=count["uncorrectable"],
            soft_ecc_errors=count["retries"],
            system_data_used=min(wear.percentage_used, 255),
            refresh_count=count["refreshed"],
            most_erases=erases.max,
            least_erases=erases.min,
            throttling_events=min(self._health.thermal_transitions_2, 255),
            dssd_major_version=2,
            free_blocks=wear.free * 100 // drive.profile.superblocks,
            capacitor_health=_NO_CAPACITOR,
            total_nuse=used,
            power_state_changes=transitions,
            version=SmartExtended.VERSION,
            guid=SmartExtended.GUID,
        )

    def configure(self) -> None:
        """Begin to monitor anew, as the feature says."""
        value = self._features.read(Select.CURRENT, LATENCY_MONITOR_FEATURE)
        self.monitor.configure(LatencyMonitorSettings(value.data))

    def record(self) -> None:
        self._sidecar.put(SECTION, self._counters())

    def restore(self, *, clean: bool | None = None) -> None:
        self._before = self._sidecar.get(SECTION) or {}
        self.configure()


class LatencyMonitor:
    """Counters of slow commands; `now` gives guest time in nanoseconds, `timestamp` the value of
    the Timestamp feature."""

    def __init__(self, now: Callable[[], int], timestamp: Callable[[], int]) -> None:
        self._now, self._timestamp = now, timestamp
        self.configure(LatencyMonitorSettings())

    def configure(self, settings: LatencyMonitorSettings) -> None:
        """Begin anew with other settings. Nothing is counted while it is not enabled."""
        self.settings = settings
        self._bounds = [(step + 1) * THRESHOLD_UNIT for step in settings.thresholds]
        self.log = LatencyMonitorLog(
            status=settings.enable & 1,
            timer_threshold=settings.timer_threshold,
            thresholds=settings.thresholds,
            configuration=settings.configuration,
            minimum_window=settings.minimum_window,
            static_times=[NO_TIME] * 12,
            debug_time=NO_TIME,
            version=LatencyMonitorLog.VERSION,
            guid=LatencyMonitorLog.GUID,
        )
        self._clear()

    def _clear(self) -> None:
        self._began = self._now()
        self._counters, self._latencies = [0] * 16, [0] * 12
        self._times = [NO_TIME] * 12
        self._updated: dict[int, int] = {}
        """The time of the last update of a latency."""

    def observe(self, completions: Iterable[TimedCompletion]) -> None:
        """Count commands that have been completed."""
        if not self.settings.enable & 1:
            return
        self._end_window()
        for each in completions:
            if each.kind == CompletionKind.COMMAND and not each.csi and each.opcode in OPERATIONS:
                took = each.completed - each.arrived
                if took >= self._bounds[0]:
                    self._count(OPERATIONS[IoOpcode(each.opcode)], took, each.completed)

    def _count(self, operation: int, took: int, at: int) -> None:
        bucket = max(index for index in range(BUCKETS) if took >= self._bounds[index] or not index)
        counter, place = 4 * bucket + operation + 1, 3 * (BUCKETS - 1 - bucket) + operation
        self._counters[counter] = min(self._counters[counter] + 1, _COUNTER_LIMIT)
        milliseconds = min(took // MILLISECOND, _LATENCY_LIMIT)
        # In the order of the bits: read, write and TRIM of the first bucket, then of the next one.
        if not self.settings.configuration >> (3 * bucket + 2 - operation) & 1:
            if self._times[place] != NO_TIME:
                return  # The first latency is kept.
        elif milliseconds <= self._latencies[place] or at - self._updated.get(place, -(1 << 63)) < (
            self.settings.minimum_window * WINDOW_UNIT
        ):
            return
        self._latencies[place], self._times[place] = milliseconds, self._timestamp()
        self._updated[place] = at

    def _end_window(self) -> None:
        """Move the active counters to the static ones, if the bucket timer has expired."""
        threshold = self.settings.timer_threshold * TIMER_UNIT
        if threshold and self._now() - self._began >= threshold:
            self.log.static_counters = tuple(self._counters)
            self.log.static_times = tuple(self._times)
            self.log.static_latencies = tuple(self._latencies)
            self._clear()

    def page(self) -> bytes:
        """Log C3h."""
        if self.settings.enable & 1:
            self._end_window()
            self.log.timer = min((self._now() - self._began) // TIMER_UNIT, 0xFFFF)
        self.log.counters = tuple(self._counters)
        self.log.times, self.log.latencies = tuple(self._times), tuple(self._latencies)
        return bytes(self.log)

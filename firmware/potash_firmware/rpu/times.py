"""The times of a drive: guest time with its deadlines, and the modelled time of its drive."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nvme_spec.status import NvmeError, Status
from potash_device.storage import Storage
from potash_firmware.rpu.accelerators.apu_link import ApuLink
from potash_firmware.rpu.deadlines import Deadlines, GuestClock, SteppedClock
from potash_firmware.rpu.namespaces.inventory import Inventory, NamespaceTable
from potash_firmware.rpu.scheduler import Scheduler
from potash_firmware.rpu.settings import RpuSettings

if TYPE_CHECKING:
    from potash_device.flash.scaling import ZoneShape
    from potash_device.units import UnitScheduler
    from potash_firmware.rpu.timing.jobs import JobTime
    from potash_firmware.rpu.timing.modelled import ModelledTime
    from potash_firmware.rpu.timing.values import ValueTime


class Times:
    """The times of one drive; without `settings.time`, commands end as soon as they can."""

    def __init__(
        self,
        storage: Storage,
        settings: RpuSettings,
        namespaces: Inventory,
        apu: ApuLink,
        clock: Callable[[], float],
    ) -> None:
        time = settings.time
        stepped = time is not None and time.stepped
        self.deadlines = Deadlines(SteppedClock() if stepped else GuestClock(clock))
        """Deadlines of commands, jobs and operations, in guest time."""
        self.scheduler = Scheduler(self.deadlines, storage.executor.submit)
        self.timing: ModelledTime | None = None
        """The modelled time of the drive."""
        self.job_time: JobTime | None = None
        """The modelled time of jobs and executions."""
        self.value_time: ValueTime | None = None
        """The modelled time of key value namespaces."""
        if time is not None:
            # Only here, as it takes NumPy, for which a drive without a model would start later.
            from potash_firmware.rpu.timing.jobs import JobTime
            from potash_firmware.rpu.timing.modelled import ModelledTime
            from potash_firmware.rpu.timing.values import ValueTime

            sizes, zones, logs = namespace_sizes(namespaces)
            self.timing = timing = ModelledTime(
                time,
                sizes,
                zones,
                self.deadlines.clock,
                self.deadlines.lateness,
                storage.trace,
                logs,
            )
            namespaces.on_change = lambda: timing.place(*namespace_sizes(namespaces))
            self.value_time = ValueTime(timing, namespaces, index_on_flash=time.index_on_flash)
            self.job_time = JobTime(
                timing, self.scheduler, apu, settings.compute.units, partial(_scheduler, settings)
            )

    def fail_programs(self, count: int) -> None:
        """Have so many of the next programs of the modelled flash fail. Raises NvmeError."""
        if self.timing is None:
            raise NvmeError(Status.INVALID_FIELD, "programs fail with modelled time alone")
        self.timing.fail_programs(count)


def _scheduler(settings: RpuSettings) -> UnitScheduler:
    """A new scheduler of compute units."""
    from potash_firmware.rpu.timing import schedulers

    registered = {} if settings.extensions is None else settings.extensions.schedulers
    compute = settings.compute
    return schedulers.named(compute.scheduler, compute.units, registered)


def namespace_sizes(
    namespaces: NamespaceTable,
) -> tuple[dict[int, int], dict[int, ZoneShape], set[int]]:
    """Bytes of flash of the durable namespaces, the zones of those that have some, and the
    namespaces with values."""
    from potash_device.flash.scaling import ZoneShape  # which is for modelled drives

    shapes = {nsid: ns.shape for nsid, ns in namespaces.stored.items()}
    zones = {
        nsid: ZoneShape(shape.zones, shape.zone_size, shape.zone_capacity)
        for nsid, shape in shapes.items()
        if shape.zones
    }
    logs = {nsid for nsid, shape in shapes.items() if shape.has_values}
    return {nsid: shape.flash_size for nsid, shape in shapes.items()}, zones, logs

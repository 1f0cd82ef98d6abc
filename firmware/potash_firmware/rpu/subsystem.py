"""An NVM subsystem: the parts that its controllers share.

Source: NVM Express Base Specification 2.0, section 1.5 (NVM subsystem) and 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from csd_spec.faults import Fault, FaultKind
from nvme_spec.logs import NoticeEvent
from nvme_spec.persistent_events import PowerOnOrReset
from potash_device.board import Board
from potash_device.saved import limited
from potash_firmware.mailbox import SharedBuffers
from potash_firmware.rpu.accelerators.apu_link import ApuLink
from potash_firmware.rpu.accelerators.write_back import WriteBacks
from potash_firmware.rpu.compute.engine import ProgramEngine
from potash_firmware.rpu.compute.memories import Memories
from potash_firmware.rpu.compute.state import Compute
from potash_firmware.rpu.deadlines import Deadlines, GuestClock
from potash_firmware.rpu.extension_state import States
from potash_firmware.rpu.faults import Faults
from potash_firmware.rpu.media_work import MediaFailures, MediaWork
from potash_firmware.rpu.namespaces.inventory import Inventory, Namespaces
from potash_firmware.rpu.namespaces.memory import ComputeNamespace
from potash_firmware.rpu.namespaces.reachability import Reachability
from potash_firmware.rpu.namespaces.uncorrectable_record import UncorrectableRecord
from potash_firmware.rpu.namespaces.zone_ages import INTERVAL
from potash_firmware.rpu.operations.firmware_slots import FirmwareSlots
from potash_firmware.rpu.operations.operations import Operations
from potash_firmware.rpu.operations.sanitize import Sanitizing
from potash_firmware.rpu.operations.self_tests import SelfTests
from potash_firmware.rpu.operations.thermal import Thermal
from potash_firmware.rpu.outstanding import Outstanding
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.persistence import Persistence
from potash_firmware.rpu.placement import Placement
from potash_firmware.rpu.reports import DriveReports
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.times import Times
from potash_firmware.rpu.timing.upcalls import Upcalls

if TYPE_CHECKING:  # it takes NumPy, or is of drives that have it
    from potash_firmware.rpu.host_memory import HostMemory
    from potash_firmware.rpu.namespaces.asymmetric_access import AsymmetricAccess
    from potash_firmware.rpu.ocp import OcpLogs


class Member(Protocol):
    """A controller, as far as its subsystem knows it."""

    identifier: int
    namespaces: Namespaces
    reachability: Reachability
    write_backs: WriteBacks
    parts: tuple[Part, ...]


Controller = TypeVar("Controller", bound=Member)
"""The type of the controllers, which this module does not import: they know it."""


class Subsystem(Generic[Controller]):
    """The parts of one NVM subsystem, put together; `boards` are its controllers', and `clock`
    gives seconds."""

    def __init__(
        self,
        boards: Sequence[Board],
        settings: RpuSettings,
        buffers: SharedBuffers,
        engine: ProgramEngine | None,
        clock: Callable[[], float],
    ) -> None:
        self.controllers: list[Controller] = []
        """All controllers; the index of each is its identifier."""
        self.storage = storage = boards[0].storage
        self.settings, self.clock = settings, clock
        self.outstanding: list[Outstanding] = []
        """The waiting commands of each controller."""
        self.computes: list[Compute] = []
        self.memories: list[Memories] = []
        self.host_memories: list[HostMemory] = []
        """The host memory buffer of each controller, of a drive that has them."""
        self.accesses: list[AsymmetricAccess] = []
        """The asymmetric access of each controller, of a drive that has it."""
        self.media_work = MediaWork(storage.executor, storage.trace)
        """The media work of no single controller."""
        handles = settings.placement.handles if settings.placement else 0
        self.inventory = inventory = Inventory(boards, handles, clock)
        inventory.with_accelerators |= {*settings.accelerators.values()}
        self.uncorrectable = UncorrectableRecord(storage.sidecar, inventory)
        self.timers = Deadlines(GuestClock(clock))
        """Timers of the firmware itself, in host time."""
        self.apu = apu = ApuLink(buffers, self.timers)
        self.engine = engine or apu.engine
        if settings.extensions is not None:
            self.engine.device_defined += tuple(
                program.run_time.priority for program in settings.extensions.programs.values()
            )
        times = Times(storage, settings, inventory, apu, clock)
        self.deadlines, self.scheduler = times.deadlines, times.scheduler
        self.timing, self.job_time = times.timing, times.job_time
        self.value_time = times.value_time
        for zoned in inventory.zoned:
            zoned.clock = self.deadlines.clock.now
        self.reports = reports = DriveReports(
            storage, inventory, self.outstanding, self.timing, clock
        )
        self.health = reports.health
        self.failures = failures = MediaFailures(clock, reports.media_failed, reports.media_lost)
        if self.timing is not None:
            self.timing.on_unreadable = lambda nsid, offset: failures.unreadable(
                nsid, inventory.lba_at(nsid, offset)
            )
        self.faults = Faults(
            inventory,
            self.deadlines,
            apu.kill,
            self._lasting_faults,
            times.fail_programs,
            self.accesses,
        )
        self.placement = (
            Placement(settings.placement, self.timing, storage.sidecar, inventory)
            if settings.placement is not None
            else None
        )
        """The reclaim unit handles of a drive with flexible data placement."""
        self.ocp: OcpLogs | None = None
        """The log pages of the Open Compute Project."""
        if settings.ocp and self.timing is not None:
            from potash_firmware.rpu.ocp import OcpLogs

            self.ocp = OcpLogs(storage.sidecar, self.health, self.timing, inventory.features)
        self.upcalls: Upcalls | None = None
        """The calls of a translation layer that an extension has."""
        if self.timing is not None and self.timing.drive.calls:
            self.upcalls = Upcalls(
                self.timing,
                inventory,
                self.media_work,
                failures,
                reports.vendor,
                self.scheduler,
                storage.sidecar,
            )
        self.operations = Operations(self.media_work, self.scheduler)
        self.firmware = FirmwareSlots(storage.flash, settings.identity.firmware_revision)
        self.self_tests = SelfTests(
            storage, inventory, self.operations, reports, self.deadlines.clock
        )
        self.sanitizing = Sanitizing(
            storage,
            inventory,
            self.uncorrectable,
            self.operations,
            self.self_tests,
            reports,
            self.firmware,
            self.memories,
            boards,
            self.timing,
            apu.erase,
        )
        self.thermal = Thermal(self.health, clock, inventory)
        states = States(settings.extensions.states if settings.extensions else {}, storage.drive)
        parts = (
            self.health,
            reports.persistent_events,
            reports.lba_status,
            self.value_time,
            self.placement,
            self.ocp,
            self.upcalls,
            states,
            self.thermal,
            inventory.reservations,
            inventory,
            self.self_tests,
            self.sanitizing,
            self.uncorrectable,
        )
        self.parts: tuple[Part, ...] = tuple(part for part in parts if part is not None)
        """The shared parts, in the order in which a power cycle reaches them."""
        self.persistence = Persistence(
            storage.sidecar, self.scheduler, reports, states, self.began, self.timers, clock
        )
        reports.persistent_events.on_add = self.persistence.hurry
        if self.upcalls is not None:
            self.upcalls.on_notice = self.persistence.hurry
        self._unreported = True
        """There was a reset, or power has come, since a controller was last ready."""
        self._activated = False

    def complete(self) -> None:
        """All controllers are there."""
        parts = [part for controller in self.controllers for part in controller.parts]
        self.persistence.add(*parts, *self.parts)
        for fault in self.settings.faults:
            self.faults.add(fault)
        if any(zoned.zones.ages.used for zoned in self.inventory.zoned):
            self.timers.after(INTERVAL, self._watch_zones)

    # Power and resets.

    def began(self) -> None:
        """Power has come, or a reset is over: an event, but for the first use after power came."""
        if self._unreported:
            self.reports.persistent_events.add(
                PowerOnOrReset(
                    revision=self.firmware.revision,
                    firmware_activation=self._activated,
                    power_cycle=limited(PowerOnOrReset.power_cycle, self.health.power_cycles),
                    power_on_milliseconds=self.health.power_on_seconds * 1000,
                    timestamp=self.inventory.features.timestamp_value(),
                )
            )
        self._unreported = self._activated = False

    @property
    def unreported(self) -> tuple[bool, bool]:
        """Flags: a reset, and an activation of firmware, are still to be recorded."""
        return self._unreported, self._activated

    @unreported.setter
    def unreported(self, flags: tuple[bool, bool]) -> None:
        self._unreported, self._activated = flags

    def session_ended(self, controller: Controller, *, next_host: bool) -> None:
        """A controller was reset, whose own parts have forgotten the session of its host."""
        active = self.firmware.active
        if len(self.controllers) == 1:
            if self.job_time is not None:
                self.job_time.reset()
            self.apu.reset(next_host=next_host)
        else:
            self._reset_accelerators(controller, next_host=next_host)
        self.thermal.update()
        self.firmware.reset()
        self.self_tests.session_ended(controller.namespaces)
        self._unreported = True
        self._activated |= self.firmware.active != active

    # Accelerators, of which each belongs to one controller.

    def owner(self, accelerator: int) -> Controller:
        """The controller that has an accelerator."""
        return self.controllers[self._owner(accelerator)]

    def _owner(self, accelerator: int) -> int:
        return self.settings.accelerators.get(accelerator, 0)

    def accelerators_of(self, controller: int) -> set[int]:
        """The accelerators that a controller has."""
        every = self.apu.buffers.arenas
        return {key for key in every if self._owner(key) == controller}

    def _reset_accelerators(self, controller: Controller, *, next_host: bool) -> None:
        """Reset the accelerators and the compute namespaces that one of several controllers has."""
        number = controller.identifier
        accelerators = self.accelerators_of(number)
        if self.job_time is not None:
            self.job_time.drop(accelerators)
        engines = self.inventory.owned_by(number, ComputeNamespace)
        if accelerators or engines:
            self.apu.reset(next_host=next_host, controller=number, engines=engines)

    # What happens without a host.

    def _lasting_faults(self, faults: list[Fault]) -> None:
        """These are the faults that last: whether namespaces reach each other, and what the drive
        recommends to do with zones."""
        reachable = not any(fault.kind is FaultKind.UNREACHABLE for fault in faults)
        changed = [each.reachability.associate(reachable) for each in self.controllers]
        if any(changed) and len(self.inventory.supported) > 1:
            self.reports.notice(NoticeEvent.REACHABILITY_ASSOCIATION_CHANGE)
        for namespace in self.inventory.zoned:
            namespace.recommend(fault for fault in faults if fault.nsid in (0, namespace.nsid))
        self.reports.zones_changed()

    def _watch_zones(self) -> None:
        """Recommend to finish or to reset zones that were left alone for long enough."""
        found = [namespace.zones.grow_old() for namespace in self.inventory.zoned]
        if any(found):
            self.reports.zones_changed()
        self.timers.after(INTERVAL, self._watch_zones)

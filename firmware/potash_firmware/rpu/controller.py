"""An NVMe controller: the board, and the firmware's state of it and of its host.

The handlers of commands get this object and the command. They change this state; they never access
a queue's entries, never post a completion, and never wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from csd_spec.faults import Fault, FaultKind
from nvme_spec import features
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.logs import CommandEffectsLog, CriticalWarning, NoticeEvent, SmartLog
from nvme_spec.persistent_events import HardwareError, HardwareErrorCode, PowerOnOrReset
from nvme_spec.registers import CommandSetSelected, ControllerConfiguration, Register
from potash_device.board import Board
from potash_device.saved import limited
from potash_device.timing.profile import ZoneShape
from potash_firmware.mailbox import SharedBuffers
from potash_firmware.rpu.accelerators.apu_link import AcceleratorCommands, ApuLink
from potash_firmware.rpu.accelerators.write_back import WriteBacks
from potash_firmware.rpu.compute.engine import ProgramEngine, Shared
from potash_firmware.rpu.compute.state import Compute
from potash_firmware.rpu.deadlines import Deadlines, GuestClock, SteppedClock
from potash_firmware.rpu.extension_state import States
from potash_firmware.rpu.faults import Faults
from potash_firmware.rpu.features.persistence import Persistence
from potash_firmware.rpu.features.table import Limits
from potash_firmware.rpu.features.values import Features
from potash_firmware.rpu.logs.alerts import Alerts, AsyncEvents
from potash_firmware.rpu.logs.errors import ErrorLog
from potash_firmware.rpu.logs.health import SPARE_THRESHOLD, Health
from potash_firmware.rpu.logs.namespaces import ChangedNamespaces, LbaStatus
from potash_firmware.rpu.logs.persistent_events import PersistentEvents
from potash_firmware.rpu.logs.telemetry import Telemetry
from potash_firmware.rpu.media_work import MediaFailures, MediaWork
from potash_firmware.rpu.namespaces.inventory import Namespaces
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from potash_firmware.rpu.namespaces.reachability import Reachability
from potash_firmware.rpu.namespaces.uncorrectable_record import UncorrectableRecord
from potash_firmware.rpu.operations.firmware_slots import FirmwareSlots
from potash_firmware.rpu.operations.format import Formatting
from potash_firmware.rpu.operations.keep_alive import KeepAlive
from potash_firmware.rpu.operations.namespace_management import Management
from potash_firmware.rpu.operations.operations import Operations
from potash_firmware.rpu.operations.sanitize import Sanitizing
from potash_firmware.rpu.operations.self_tests import SelfTests
from potash_firmware.rpu.operations.thermal import Thermal
from potash_firmware.rpu.outstanding import Outstanding
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.placement import Placement
from potash_firmware.rpu.scheduler import Scheduler, Signal
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.statistics import Statistics
from potash_firmware.rpu.telemetry_areas import collect
from potash_firmware.rpu.transfer import Transfer

if TYPE_CHECKING:
    from potash_firmware.rpu.timing.jobs import JobTime
    from potash_firmware.rpu.timing.modelled import ModelledTime


@dataclass(frozen=True)
class CommandSupport:
    """The supported commands, from the dispatch tables."""

    oacs: int
    oncs: int
    effects: Callable[[int, frozenset[CommandSet]], CommandEffectsLog]
    """The log page for a command set identifier, where those of the set are enabled."""


class Controller:
    """The parts of one controller, put together; `clock` gives seconds."""

    def __init__(
        self,
        board: Board,
        settings: RpuSettings,
        buffers: SharedBuffers,
        engine: ProgramEngine | None,
        support: CommandSupport,
        clock: Callable[[], float],
    ) -> None:
        self.board = board
        self.settings = settings
        self.support = support
        self.statistics = Statistics()
        self.outstanding = Outstanding()
        self.transfer = Transfer(board.dma, board.trace)
        self.timers = Deadlines(GuestClock(clock))
        """Timers of the firmware itself, in host time."""
        guest_clock = GuestClock(clock)
        if settings.time is not None and settings.time.stepped:
            guest_clock = SteppedClock()
        self.deadlines = Deadlines(guest_clock)
        """Deadlines of commands, jobs and operations, in guest time."""
        self.apu = apu = ApuLink(buffers, self.timers)
        self.engine = engine or apu.engines
        if settings.extensions is not None:
            self.engine.device_defined += len(settings.extensions.programs)
        self.scheduler = Scheduler(self.deadlines, board.executor.submit)
        self.media_work = MediaWork(board.executor, board.trace)
        self.failures = MediaFailures(clock, self._media_failed, self._media_lost)

        self.features = Features(
            Limits(
                io_queue_pairs=board.settings.queue_pairs,
                vectors=board.interrupts.vectors,
                io_queues_exist=lambda: len(board.queues.completions) > 1,
                blocks=lambda nsid: self.namespaces.block_count(nsid),
                knows_deallocated=lambda nsid: self.namespaces.knows_deallocated(nsid),
                combinations=lambda: self.namespaces.combinations,
                in_use=lambda: {
                    ns.csi for ns in self.namespaces.every.values() if ns.shape.attached
                },
            ),
            board.sidecar,
            clock,
        )
        handles = settings.placement.handles if settings.placement else 0
        self.namespaces = Namespaces(board, self.features, handles)
        self.reachability = Reachability(self.namespaces)
        self.uncorrectable = UncorrectableRecord(board.sidecar, self.namespaces, self.media_work)

        self.events = AsyncEvents()
        self.errors = ErrorLog()
        self.health = Health(board.sidecar, self.errors, clock, lambda: self.outstanding.any_io)
        self.persistent_events = PersistentEvents(board.sidecar, clock, self.timestamp)
        self.changed_namespaces = ChangedNamespaces()
        self.lba_status = LbaStatus(board.sidecar)
        self.alerts = Alerts(
            self.events,
            self.errors,
            lambda: self.features.get(features.FeatureId.ASYNCHRONOUS_EVENT_CONFIGURATION),
            self.critical_warning,
        )

        self.operations = Operations(self.media_work, self.scheduler)
        self.timing: ModelledTime | None = None
        """The modelled time of the drive; None where commands end as soon as they can."""
        if settings.time is not None:
            # Only here, as it takes NumPy, for which a drive without a model would start later.
            from potash_firmware.rpu.timing.modelled import ModelledTime

            self.timing = ModelledTime(
                settings.time,
                *self._namespace_sizes(),
                guest_clock,
                self.deadlines.lateness,
                board.trace,
                self.alerts.health,
            )
            self.namespaces.on_change = self._place_namespaces
        self.placement: Placement | None = None
        """The reclaim unit handles of a drive with flexible data placement."""
        if settings.placement is not None:
            self.placement = Placement(
                settings.placement,
                self.timing,
                board.sidecar,
                self.namespaces.handles,
                self.timestamp,
            )
        self.faults = Faults(
            settings.faults,
            lambda: self.namespaces.blocks.values(),
            self.deadlines,
            apu.end,
            self._lasting_faults,
        )
        self.firmware = FirmwareSlots(board.flash, settings.identity.firmware_revision)
        self.keep_alive = KeepAlive(self.timers)
        self.thermal = Thermal(self.health, clock, self._throttling_thresholds)
        self.self_tests = SelfTests(
            board, self.namespaces, self.operations, self.health, self.critical_warning, guest_clock
        )
        self.sanitizing = Sanitizing(
            board.sidecar,
            self.namespaces,
            self.uncorrectable,
            self.operations,
            self.self_tests,
            self.firmware,
            self.health,
            self.events,
            self.persistent_events,
            self._erase_copies,
        )

        self.job_time: JobTime | None = None
        """The modelled time of jobs and executions, likewise."""
        if self.timing is not None:
            from potash_firmware.rpu.timing.jobs import JobTime

            self.job_time = JobTime(self.timing, self.scheduler, apu)
        self.compute = Compute(
            settings.compute,
            self.engine,
            self.transfer,
            self.scheduler,
            self._memory,
            self.job_time,
        )
        self.accelerators = AcceleratorCommands(apu, self.transfer, board.trace)
        self.write_backs = WriteBacks(
            apu,
            self.namespaces,
            self.uncorrectable,
            self.media_work,
            self.failures,
            self.faults,
            self.sanitizing,
            self.scheduler,
            self.job_time,
            self.statistics,
        )

        self.telemetry = Telemetry(board.sidecar, lambda: collect(self))
        states = States(settings.extensions.states if settings.extensions else {}, board.drive)
        optional = (self.job_time, self.placement)
        self.parts: tuple[Part, ...] = (
            self.outstanding,
            self.write_backs,
            self.operations,
            self.errors,
            self.health,
            self.features,
            self.events,
            self.alerts,
            self.persistent_events,
            self.telemetry,
            self.lba_status,
            *(part for part in optional if part is not None),
            states,
            self.keep_alive,
            self.thermal,
            self.firmware,
            self.compute,
            self.apu,
            self.namespaces,
            self.self_tests,
            self.sanitizing,
            self.uncorrectable,
        )
        """All parts, in the order in which a reset and a power cycle reach them."""
        self.persistence = Persistence(
            board.sidecar,
            self.scheduler,
            self.parts,
            self.health,
            self.persistent_events,
            states,
            self.smart_log,
            self.began,
            self.timers,
            clock,
        )
        self.persistent_events.on_add = self.persistence.hurry
        self.formatting = Formatting(
            board,
            self.namespaces,
            self.features,
            self.uncorrectable,
            self.failures,
            self.operations,
            self.self_tests,
            self.sanitizing,
            self.persistent_events,
            apu.erase,
            self.namespace_changed,
        )
        self.management = Management(
            board,
            self.namespaces,
            self.features,
            self.uncorrectable,
            self.operations,
            self.self_tests,
            self.sanitizing,
            self.faults.arrange,
            self.compute,
            self.persistent_events,
            self.namespace_changed,
        )
        self._unreported = True
        """There was a reset, or power has come, since the controller was last ready."""
        self._activated = False
        self._memory_is_new = True
        """No host has been served since memory namespaces have begun with zeroes."""
        self._memory_may_change = False
        """Work that was begun before a reset may still write to memory that a host has mapped."""

    # Power and resets.

    def began(self) -> None:
        """Power has come, or a reset is over: an event, but for the first use after power came."""
        if self._unreported:
            self.persistent_events.add(
                PowerOnOrReset(
                    revision=self.firmware.revision,
                    firmware_activation=self._activated,
                    power_cycle=limited(PowerOnOrReset.power_cycle, self.health.power_cycles),
                    power_on_milliseconds=self.health.power_on_seconds * 1000,
                    timestamp=self.timestamp(),
                )
            )
        self._unreported = self._activated = False

    @property
    def unreported(self) -> tuple[bool, bool]:
        """Flags: a reset, and an activation of firmware, are still to be recorded."""
        return self._unreported, self._activated

    def go_on(self, unreported: bool, activated: bool) -> None:
        """Go on with a session that began elsewhere."""
        self._unreported, self._activated = unreported, activated
        self.select_command_sets()

    def reset(self, *, next_host: bool) -> None:
        """Forget the host's session; what the media still does is waited for by the lifecycle.

        The `next_host`, where it may be another one, is to find nothing of this one's.
        """
        active = self.firmware.active
        self.statistics.resets += 1
        self.scheduler.held.clear()
        for part in self.parts:
            part.reset(next_host=next_host)
        if next_host:
            # A host may reset as often as it likes; what is in a BAR it changes without a command.
            self._renew_memory(bar_alone=self._memory_is_new)
            self._memory_is_new = True
            self._memory_may_change = bool(self.compute.executions or self.media_work.unfinished)
            self.board.trace.recent.clear()
        self._unreported = True
        self._activated |= self.firmware.active != active

    def _renew_memory(self, *, bar_alone: bool = False) -> None:
        """Give memory namespaces other memory; that of before is freed where it may take time."""
        for namespace in self._memory_namespaces():
            if (namespace.bar or not bar_alone) and (before := namespace.renew()):
                self.compute.forget(before.serial)
                self.board.executor.submit(partial(len, before.bytes))

    def _memory_namespaces(self) -> list[MemoryNamespace]:
        every = self.namespaces.every.values()
        return [namespace for namespace in every if isinstance(namespace, MemoryNamespace)]

    def _lasting_faults(self, faults: list[Fault]) -> None:
        """These are the faults that last: whether namespaces reach each other, and what the drive
        recommends to do with zones."""
        reachable = not any(fault.kind is FaultKind.UNREACHABLE for fault in faults)
        if self.reachability.associate(reachable) and len(self.namespaces.supported) > 1:
            self.alerts.notice(NoticeEvent.REACHABILITY_ASSOCIATION_CHANGE)
        for namespace in self.namespaces.zoned:
            namespace.recommend(fault for fault in faults if fault.nsid in (0, namespace.nsid))
        self.zones_changed()

    def _namespace_sizes(self) -> tuple[dict[int, int], dict[int, ZoneShape]]:
        """Bytes of the namespaces with blocks, and the zones of those that have some."""
        shapes = {nsid: ns.shape for nsid, ns in self.namespaces.blocks.items()}
        zones = {
            nsid: ZoneShape(shape.zones, shape.zone_size, shape.zone_capacity)
            for nsid, shape in shapes.items()
            if shape.zones
        }
        return {nsid: shape.data_size for nsid, shape in shapes.items()}, zones

    def _place_namespaces(self) -> None:
        if self.timing is not None:
            self.timing.place(*self._namespace_sizes())

    def _erase_copies(self) -> Signal:
        """Have user data be in no memory of the device; sent when it is in none."""
        if self.timing is not None:
            self.timing.erase(self.namespaces.blocks)
        self._renew_memory()
        return self.apu.erase()

    def select_command_sets(self) -> None:
        """The host has enabled command sets: by CC, or by its profile."""
        self._memory_is_new = False
        if self._memory_may_change:  # no more: nothing of before is still at work
            self._memory_may_change = False
            for namespace in self._memory_namespaces():
                if namespace.bar:
                    namespace.clear()
        configuration = ControllerConfiguration(self.board.registers.read(Register.CC))
        self.namespaces.select(
            by_identifier=configuration.css == CommandSetSelected.ALL_SUPPORTED,
            profile=features.IoCommandSetProfile(
                self.features.get(features.FeatureId.IO_COMMAND_SET_PROFILE)
            ).iocsci,
        )

    # Reports.

    def timestamp(self) -> int:
        """The Timestamp feature's value, as its structure is laid out in memory."""
        return int.from_bytes(bytes(self.features.timestamp), "little")

    def critical_warning(self) -> CriticalWarning:
        """The critical warnings about the media and the temperature."""
        warning = CriticalWarning(0)
        if (
            not self._threshold(features.ThresholdType.UNDER)
            < self.health.temperature
            < self._threshold(features.ThresholdType.OVER)
        ):
            warning |= CriticalWarning.TEMPERATURE
        media = [namespace.media for namespace in self.namespaces.blocks.values()]
        if any(one.lost is not None for one in media):
            warning |= CriticalWarning.RELIABILITY_DEGRADED
        if media and not any(one.writable or one.protected for one in media):
            warning |= CriticalWarning.READ_ONLY
        if self.timing is not None:
            wear = self.timing.drive.wear
            if wear.available_spare < SPARE_THRESHOLD:
                warning |= CriticalWarning.SPARE_BELOW_THRESHOLD
            if wear.worn:
                warning |= CriticalWarning.READ_ONLY
        return warning

    def smart_log(self) -> SmartLog:
        warning = self.critical_warning()
        if self.timing is None:
            return self.health.log(warning)
        wear = self.timing.drive.wear
        return self.health.log(warning, wear.available_spare, wear.percentage_used)

    def _memory(self, nsid: int) -> Shared | None:
        """The memory namespaces that programs of compute namespaces can reach."""
        namespace = self.namespaces.attached.get(nsid)
        if not isinstance(namespace, MemoryNamespace) or not self.reachability.associated:
            return None
        return Shared(namespace.memory.serial, namespace.memory.fd, namespace.size)

    def namespace_changed(self, nsid: int) -> None:
        """A namespace has come, gone, or changed: note it for the host, and notify it."""
        self.changed_namespaces.add(nsid)
        self.alerts.notice(NoticeEvent.NAMESPACE_ATTRIBUTE_CHANGED)

    def zones_changed(self) -> None:
        """Notify the host of the zones that it has not read of."""
        for namespace in self.namespaces.zoned:
            if namespace.zones.changed and namespace.nsid in self.namespaces.attached:
                self.alerts.notice(NoticeEvent.ZONE_DESCRIPTOR_CHANGED, namespace.nsid)

    def internal_fault(self, reason: str) -> None:
        """The firmware has failed: capture its state for whoever looks for the mistake."""
        if self.telemetry.capture(reason):
            self.persistence.hurry()
            self.alerts.notice(NoticeEvent.TELEMETRY_LOG_CHANGED)

    def failed(self) -> None:
        self.persistent_events.add(HardwareError(code=HardwareErrorCode.CONTROLLER_FATAL_STATUS))
        self.internal_fault("controller fatal status")

    def _media_failed(self) -> None:
        self.health.media_errors += 1
        self.persistent_events.add(HardwareError(code=HardwareErrorCode.MEDIA_AND_DATA_INTEGRITY))

    def _media_lost(self) -> None:
        self.persistent_events.add(HardwareError(code=HardwareErrorCode.CRITICAL_WARNING))
        self.alerts.health()
        for namespace in self.namespaces.zoned:
            if namespace.media.lost is not None:
                namespace.lost()
        self.zones_changed()

    def _threshold(self, kind: features.ThresholdType) -> int:
        choice = features.TemperatureThreshold(thsel=kind).encode()
        return features.TemperatureThreshold(
            self.features.get(features.FeatureId.TEMPERATURE_THRESHOLD, choice)
        ).tmpth

    def _throttling_thresholds(self) -> features.HostControlledThermalManagement:
        return features.HostControlledThermalManagement(
            self.features.get(features.FeatureId.HOST_CONTROLLED_THERMAL_MANAGEMENT)
        )

"""An NVMe controller: the board, and the firmware's state of it and of its host.

The handlers of commands get this object and the command. They change this state; they never access
a queue's entries, never post a completion, and never wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from csd_spec.faults import Fault, FaultKind
from nvme_spec import features
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.logs import CommandEffectsLog, NoticeEvent
from nvme_spec.persistent_events import HardwareError, HardwareErrorCode, PowerOnOrReset
from nvme_spec.registers import CommandSetSelected, ControllerConfiguration, Register
from potash_device.board import Board
from potash_device.controller.dma import PAGE_SIZE
from potash_device.saved import limited
from potash_firmware.mailbox import SharedBuffers
from potash_firmware.rpu.accelerators.apu_link import AcceleratorCommands, ApuLink
from potash_firmware.rpu.accelerators.value_reads import ValueReads
from potash_firmware.rpu.accelerators.write_back import WriteBacks
from potash_firmware.rpu.compute.engine import ProgramEngine
from potash_firmware.rpu.compute.memories import Memories
from potash_firmware.rpu.compute.state import Compute
from potash_firmware.rpu.deadlines import Deadlines, GuestClock
from potash_firmware.rpu.extension_state import States
from potash_firmware.rpu.faults import Faults
from potash_firmware.rpu.logs.telemetry import Telemetry
from potash_firmware.rpu.media_work import MediaFailures, MediaWork
from potash_firmware.rpu.namespaces.inventory import Namespaces
from potash_firmware.rpu.namespaces.reachability import Reachability
from potash_firmware.rpu.namespaces.uncorrectable_record import UncorrectableRecord
from potash_firmware.rpu.namespaces.zone_ages import INTERVAL
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
from potash_firmware.rpu.persistence import Persistence
from potash_firmware.rpu.placement import Placement
from potash_firmware.rpu.reports import Reports
from potash_firmware.rpu.reservations import HostReservations
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.statistics import Statistics
from potash_firmware.rpu.subsystem import Subsystem
from potash_firmware.rpu.telemetry_areas import collect
from potash_firmware.rpu.times import Times
from potash_firmware.rpu.timing.upcalls import Upcalls
from potash_firmware.rpu.transfer import Transfer


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
        subsystem: Subsystem[Controller],
    ) -> None:
        self.board, self.settings, self.support = board, settings, support
        self.subsystem, self.identifier = subsystem, len(subsystem.controllers)
        """The subsystem that it belongs to, and CNTLID."""
        subsystem.controllers.append(self)
        self.statistics, self.outstanding = Statistics(), Outstanding()
        self.transfer = Transfer(board.dma, board.trace)
        self.media_work = MediaWork(board.executor, board.trace)
        handles = settings.placement.handles if settings.placement else 0
        self.namespaces = namespaces = Namespaces(board, handles, clock)
        self.features = namespaces.features
        self.reachability = Reachability(namespaces)
        self.uncorrectable = uncorrectable = UncorrectableRecord(
            board.sidecar, namespaces, self.media_work
        )
        self.timers = Deadlines(GuestClock(clock))
        """Timers of the firmware itself, in host time."""
        self.apu = apu = ApuLink(buffers, self.timers)
        self.engine = engine or apu.engine
        if settings.extensions is not None:
            self.engine.device_defined += tuple(
                program.run_time.priority for program in settings.extensions.programs.values()
            )
        times = Times(board, settings, namespaces, apu, clock)
        self.deadlines, self.scheduler = times.deadlines, times.scheduler
        self.timing, self.job_time = times.timing, times.job_time
        self.value_time = times.value_time
        for zoned in namespaces.zoned:
            zoned.clock = self.deadlines.clock.now
        self.reports = reports = Reports(board, namespaces, self.outstanding, self.timing, clock)
        self.health, self.alerts = reports.health, reports.alerts
        self.reservations = HostReservations(
            namespaces.reservations,
            self.identifier,
            self.features,
            reports.events,
            self.outstanding,
        )
        self.failures = failures = MediaFailures(clock, reports.media_failed, reports.media_lost)
        if self.timing is not None:
            self.timing.on_unreadable = lambda nsid, offset: failures.unreadable(
                nsid, namespaces.lba_at(nsid, offset)
            )
        self.ana: AsymmetricAccess | None = None
        if settings.ana:
            from potash_firmware.rpu.namespaces.asymmetric_access import AsymmetricAccess

            self.ana = AsymmetricAccess(namespaces, self.alerts, self.deadlines)
        self.faults = Faults(
            settings.faults,
            namespaces,
            self.deadlines,
            apu.kill,
            self._lasting_faults,
            times.fail_programs,
            self.ana,
        )
        self.placement = (
            Placement(settings.placement, self.timing, board.sidecar, namespaces)
            if settings.placement is not None
            else None
        )
        """The reclaim unit handles of a drive with flexible data placement."""
        self.ocp: OcpLogs | None = None
        """The log pages of the Open Compute Project."""
        if settings.ocp and self.timing is not None:
            from potash_firmware.rpu.ocp import OcpLogs

            self.ocp = OcpLogs(board.sidecar, self.health, self.timing, self.features)
        self.power: PowerStates | None = None
        if settings.power_states and self.timing is not None:
            from potash_firmware.rpu.power import PowerStates

            self.power = PowerStates(self.timing, self.features, self.deadlines)
        self.host_memory: HostMemory | None = None
        if settings.host_memory and self.timing is not None:
            from potash_firmware.rpu.host_memory import HostMemory

            pages = settings.host_memory // PAGE_SIZE
            self.host_memory = HostMemory(pages, self.timing, self.features)
        scheduler, job_time = self.scheduler, self.job_time
        self.compute = Compute(
            settings.compute,
            self.engine,
            self.transfer,
            scheduler,
            namespaces,
            self.reachability,
            job_time,
        )
        self.upcalls: Upcalls | None = None
        """The calls of a translation layer that an extension has."""
        if self.timing is not None and self.timing.drive.calls:
            self.upcalls = Upcalls(
                self.timing,
                namespaces,
                self.media_work,
                self.failures,
                self.alerts,
                scheduler,
                board.sidecar,
            )
        self.memories = Memories(namespaces, self.compute, self.media_work, board.executor)
        self.accelerators = AcceleratorCommands(apu, self.transfer, board.trace)
        self.operations = operations = Operations(self.media_work, self.scheduler)
        self.firmware = FirmwareSlots(board.flash, settings.identity.firmware_revision)
        self.self_tests = tests = SelfTests(
            board, namespaces, operations, reports, self.deadlines.clock
        )
        common = (board, namespaces, uncorrectable, operations, tests, reports)
        self.sanitizing = sanitizing = Sanitizing(
            *common, self.firmware, self.memories, self.timing, apu.erase
        )
        self.formatting = Formatting(*common, sanitizing, self.failures, apu.erase)
        self.management = Management(*common, sanitizing, self.faults, self.compute)
        self.keep_alive = KeepAlive(self.timers)
        self.thermal = Thermal(self.health, clock, self.features)
        self.write_backs = WriteBacks(
            apu,
            namespaces,
            uncorrectable,
            self.media_work,
            self.failures,
            self.faults,
            sanitizing,
            scheduler,
            job_time,
            self.statistics,
            self.reservations,
        )
        self.value_reads = ValueReads(
            apu,
            self.compute,
            namespaces,
            self.reachability,
            self.media_work,
            self.failures,
            scheduler,
            self.statistics,
            self.value_time,
            job_time,
            self.reservations,
        )
        self.telemetry = Telemetry(board.sidecar, partial(collect, self))
        states = States(settings.extensions.states if settings.extensions else {}, board.drive)
        parts = (
            self.outstanding,
            self.write_backs,
            self.operations,
            self.features,
            namespaces.reservations,
            self.reservations,
            *reports.parts,
            self.telemetry,
            self.job_time,
            self.value_time,
            self.placement,
            self.ocp,
            self.power,
            self.host_memory,
            self.upcalls,
            states,
            self.keep_alive,
            self.thermal,
            self.firmware,
            self.compute,
            self.apu,
            namespaces,
            tests,
            sanitizing,
            uncorrectable,
            self.memories,
        )
        self.parts: tuple[Part, ...] = tuple(part for part in parts if part is not None)
        """All parts, in the order in which a reset and a power cycle reach them."""
        self.persistence = Persistence(
            board.sidecar, scheduler, self.parts, reports, states, self.began, self.timers, clock
        )
        reports.persistent_events.on_add = self.persistence.hurry
        if self.upcalls is not None:
            self.upcalls.on_notice = self.persistence.hurry
        if any(zoned.zones.ages.used for zoned in namespaces.zoned):
            self.timers.after(INTERVAL, self._watch_zones)
        self._unreported = True
        """There was a reset, or power has come, since the controller was last ready."""
        self._activated = False

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
                    timestamp=self.features.timestamp_value(),
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
            self.board.trace.recent.clear()
        self._unreported = True
        self._activated |= self.firmware.active != active

    def _lasting_faults(self, faults: list[Fault]) -> None:
        """These are the faults that last: whether namespaces reach each other, and what the drive
        recommends to do with zones."""
        reachable = not any(fault.kind is FaultKind.UNREACHABLE for fault in faults)
        if self.reachability.associate(reachable) and len(self.namespaces.supported) > 1:
            self.alerts.notice(NoticeEvent.REACHABILITY_ASSOCIATION_CHANGE)
        for namespace in self.namespaces.zoned:
            namespace.recommend(fault for fault in faults if fault.nsid in (0, namespace.nsid))
        self.reports.zones_changed()

    def _watch_zones(self) -> None:
        """Recommend to finish or to reset zones that were left alone for long enough."""
        found = [namespace.zones.grow_old() for namespace in self.namespaces.zoned]
        if any(found):
            self.reports.zones_changed()
        self.timers.after(INTERVAL, self._watch_zones)

    def select_command_sets(self) -> None:
        """The host has enabled command sets: by CC, or by its profile."""
        self.memories.begin_session()
        configuration = ControllerConfiguration(self.board.registers.read(Register.CC))
        self.namespaces.select(
            by_identifier=configuration.css == CommandSetSelected.ALL_SUPPORTED,
            profile=features.IoCommandSetProfile(
                self.features.get(features.FeatureId.IO_COMMAND_SET_PROFILE)
            ).iocsci,
        )

    # Reports.

    def internal_fault(self, reason: str) -> None:
        """The firmware has failed: capture its state for whoever looks for the mistake."""
        if self.telemetry.capture(reason):
            self.persistence.hurry()
            self.alerts.notice(NoticeEvent.TELEMETRY_LOG_CHANGED)

    def failed(self) -> None:
        self.reports.persistent_events.add(
            HardwareError(code=HardwareErrorCode.CONTROLLER_FATAL_STATUS)
        )
        self.internal_fault("controller fatal status")

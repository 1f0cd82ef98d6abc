"""An NVMe controller: the board, and the firmware's state of it and of its host. What it shares
with others is its subsystem's.

The handlers of commands get this object and the command. They change this state; they never access
a queue's entries, never post a completion, and never wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nvme_spec import features
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.logs import CommandEffectsLog, NoticeEvent, SanitizeState
from nvme_spec.persistent_events import HardwareError, HardwareErrorCode
from nvme_spec.registers import CommandSetSelected, ControllerConfiguration, Register
from potash_device.board import Board
from potash_device.controller.dma import PAGE_SIZE
from potash_firmware.rpu.accelerators.commands import AcceleratorCommands
from potash_firmware.rpu.accelerators.value_reads import ValueReads
from potash_firmware.rpu.accelerators.write_back import WriteBacks
from potash_firmware.rpu.compute.memories import Memories
from potash_firmware.rpu.compute.state import Compute
from potash_firmware.rpu.host_reservations import HostReservations
from potash_firmware.rpu.logs.telemetry import Telemetry
from potash_firmware.rpu.media_work import MediaWork
from potash_firmware.rpu.namespaces.inventory import Namespaces
from potash_firmware.rpu.namespaces.reachability import Reachability
from potash_firmware.rpu.operations.firmware_slots import Download
from potash_firmware.rpu.operations.format import Formatting
from potash_firmware.rpu.operations.keep_alive import KeepAlive
from potash_firmware.rpu.operations.namespace_management import Management
from potash_firmware.rpu.operations.operations import CommandOperations
from potash_firmware.rpu.outstanding import Outstanding
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.reports import Reports
from potash_firmware.rpu.statistics import Statistics
from potash_firmware.rpu.subsystem import Subsystem
from potash_firmware.rpu.telemetry_areas import collect
from potash_firmware.rpu.transfer import Transfer
from potash_firmware.rpu.value_work import ValueAccess


@dataclass(frozen=True)
class CommandSupport:
    """The supported commands, from the dispatch tables."""

    oacs: int
    oncs: int
    effects: Callable[[int, frozenset[CommandSet]], CommandEffectsLog]
    """The log page for a command set identifier, where those of the set are enabled."""


class Controller:
    """The parts of one controller, put together, and those of its `subsystem` that its handlers
    use."""

    def __init__(
        self, board: Board, support: CommandSupport, subsystem: Subsystem[Controller]
    ) -> None:
        self.board, self.support = board, support
        self.subsystem, self.identifier = subsystem, len(subsystem.controllers)
        """The subsystem that it belongs to, and CNTLID."""
        subsystem.controllers.append(self)
        self.settings = settings = subsystem.settings
        self.uncorrectable, self.failures = subsystem.uncorrectable, subsystem.failures
        self.timers, self.deadlines = subsystem.timers, subsystem.deadlines
        self.scheduler, self.apu, self.engine = scheduler, apu, engine = (
            subsystem.scheduler,
            subsystem.apu,
            subsystem.engine,
        )
        self.timing, self.job_time = subsystem.timing, subsystem.job_time
        self.value_time, self.faults = subsystem.value_time, subsystem.faults
        self.placement, self.ocp = subsystem.placement, subsystem.ocp
        self.upcalls, self.thermal = subsystem.upcalls, subsystem.thermal
        self.firmware, self.self_tests = subsystem.firmware, subsystem.self_tests
        self.sanitizing, self.health = subsystem.sanitizing, subsystem.health
        self.persistence = subsystem.persistence
        self.statistics, self.outstanding = Statistics(), Outstanding()
        subsystem.outstanding.append(self.outstanding)
        self.transfer = Transfer(board.dma, board.trace)
        storage = board.storage
        self.telemetry = Telemetry(storage.sidecar, self.identifier)
        self.media_work = MediaWork(storage.executor, board.trace, subsystem.media_work)
        self.namespaces = namespaces = Namespaces(subsystem.inventory, board, subsystem.clock)
        self.features = namespaces.features
        self.reachability = Reachability(namespaces)
        self.reports = Reports(subsystem.reports, namespaces)
        self.alerts = self.reports.alerts
        self.reservations = HostReservations(
            subsystem.inventory.reservations,
            self.identifier,
            namespaces,
            self.reports.events,
            self.outstanding,
        )
        self.ana: AsymmetricAccess | None = None
        if settings.ana:
            from potash_firmware.rpu.namespaces.asymmetric_access import AsymmetricAccess

            self.ana = AsymmetricAccess(namespaces, self.alerts, self.deadlines)
            subsystem.accesses.append(self.ana)
        self.power: PowerStates | None = None
        if settings.power_states and self.timing is not None:
            from potash_firmware.rpu.power import PowerStates

            self.power = PowerStates(
                self.timing,
                self.features,
                self.deadlines,
                self.outstanding,
                lambda: self.sanitizing.state is SanitizeState.IN_PROGRESS,
            )
        self.host_memory: HostMemory | None = None
        if settings.host_memory and self.timing is not None:
            from potash_firmware.rpu.host_memory import HostMemory

            pages = settings.host_memory // PAGE_SIZE
            self.host_memory = HostMemory(
                pages, self.timing, self.features, subsystem.host_memories
            )
        self.compute = Compute(
            settings.compute,
            engine,
            self.transfer,
            scheduler,
            namespaces,
            self.reachability,
            self.job_time,
        )
        subsystem.computes.append(self.compute)
        self.memories = Memories(namespaces, self.compute, self.media_work, storage.executor)
        subsystem.memories.append(self.memories)
        self.accelerators = AcceleratorCommands(
            apu,
            self.transfer,
            board.trace,
            self.identifier,
            subsystem.accelerators_of(self.identifier),
        )
        self.operations = CommandOperations(subsystem.operations)
        self.download = Download()
        common = (
            storage,
            namespaces,
            self.uncorrectable,
            subsystem.operations,
            self.self_tests,
            subsystem.reports,
            self.sanitizing,
        )
        self.formatting = Formatting(*common, self.failures, apu.erase)
        self.management = Management(
            *common, self.faults, subsystem.computes, subsystem.outstanding
        )
        self.keep_alive = KeepAlive(self.timers)
        self.write_backs = WriteBacks(
            apu,
            self.identifier,
            namespaces,
            self.uncorrectable,
            self.media_work,
            self.failures,
            self.faults,
            self.sanitizing,
            scheduler,
            self.job_time,
            self.statistics,
            self.reservations,
        )
        self.values = ValueAccess(
            namespaces, self.reservations, self.reachability, self.media_work, self.failures
        )
        self.value_reads = ValueReads(
            apu,
            self.compute,
            namespaces,
            self.values,
            scheduler,
            self.statistics,
            self.value_time,
            self.job_time,
        )
        parts = (
            self.outstanding,
            self.write_backs,
            self.operations,
            self.features,
            self.reservations,
            *self.reports.parts,
            self.power,
            self.host_memory,
            self.keep_alive,
            self.download,
            self.compute,
            self.memories,
            self.telemetry,
        )
        self.parts: tuple[Part, ...] = tuple(part for part in parts if part is not None)
        """Its own parts, in the order in which a reset and a power cycle reach them."""

    # Resets.

    def go_on(self, unreported: bool, activated: bool) -> None:
        """Go on with a session that began elsewhere."""
        self.subsystem.unreported = unreported, activated
        self.select_command_sets()

    def reset(self, *, next_host: bool) -> None:
        """Forget the host's session; what the media still does is waited for by the lifecycle.

        The `next_host`, where it may be another one, is to find nothing of this one's.
        """
        self.statistics.resets += 1
        for part in self.parts:
            part.reset(next_host=next_host)
        self.scheduler.forget_closed()
        if next_host:
            self.board.trace.recent.clear()
        self.subsystem.session_ended(self, next_host=next_host)

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
        if self.telemetry.capture(reason, collect(self)):
            self.persistence.hurry()
            self.alerts.notice(NoticeEvent.TELEMETRY_LOG_CHANGED)

    def failed(self) -> None:
        self.reports.persistent_events.add(
            HardwareError(code=HardwareErrorCode.CONTROLLER_FATAL_STATUS)
        )
        self.internal_fault("controller fatal status")

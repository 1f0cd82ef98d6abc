"""The life cycle of a controller, CC.EN and CSTS.RDY: a table, and the actions of its steps.

A state and an event that are not in the table leave the state as it is.

Source: NVM Express Base Specification 2.0, section 3.1.3.5 (CC), 3.1.3.6 (CSTS), 3.5 and 3.6."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from nvme_spec.queues import COMPLETION_ENTRY_SHIFT, SUBMISSION_ENTRY_SHIFT
from nvme_spec.registers import (
    AdminQueueAttributes,
    CommandSetSelected,
    ControllerConfiguration,
    ControllerStatus,
    Register,
    ShutdownNotification,
    ShutdownStatus,
)
from potash_device.controller.queues import CompletionQueue, Interrupt, SubmissionQueue
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.flushing import Flushed, flushing
from potash_firmware.rpu.scheduler import Steps
from pyvfio_user.memory import AccessFault

log = logging.getLogger(__name__)


COMMAND_SETS = (CommandSetSelected.NVM, CommandSetSelected.ALL_SUPPORTED)
"""Selections of CC.CSS: the NVM command set alone, or all of a profile."""


LOG_INTERVAL = 60.0
"""Seconds before the same kind of failure is worth another line."""


class ControllerState(Enum):
    DISABLED = auto()
    ENABLING = auto()  # EN is set; the media still has work of the time before
    READY = auto()
    FAILED = auto()  # CSTS.CFS: only a reset leads out


ENABLING, READY = ControllerState.ENABLING, ControllerState.READY
"""The states that each pass asks for. Python 3.11 takes 60 ns to look a member up."""


class Event(Enum):
    ENABLE = auto()  # CC.EN from 0 to 1
    START = auto()  # nothing of the time before is left, and the configuration is good
    DISABLE = auto()  # CC.EN from 1 to 0: a controller reset
    FAIL = auto()
    RESET = auto()  # function level reset, subsystem reset, the host is gone


TRANSITIONS: dict[tuple[ControllerState, Event], ControllerState] = {
    (ControllerState.DISABLED, Event.ENABLE): ControllerState.ENABLING,
    (ControllerState.DISABLED, Event.RESET): ControllerState.DISABLED,
    (ControllerState.ENABLING, Event.START): ControllerState.READY,
    (ControllerState.ENABLING, Event.DISABLE): ControllerState.DISABLED,
    (ControllerState.ENABLING, Event.FAIL): ControllerState.FAILED,
    (ControllerState.ENABLING, Event.RESET): ControllerState.DISABLED,
    (ControllerState.READY, Event.DISABLE): ControllerState.DISABLED,
    (ControllerState.READY, Event.FAIL): ControllerState.FAILED,
    (ControllerState.READY, Event.RESET): ControllerState.DISABLED,
    (ControllerState.FAILED, Event.DISABLE): ControllerState.DISABLED,
    (ControllerState.FAILED, Event.RESET): ControllerState.DISABLED,
}


@dataclass(eq=False, repr=False)
class Lifecycle:
    """CC and CSTS of one controller. `on_reset` is called whenever a host's session ends, and
    `reset_subsystem` for an NVM subsystem reset."""

    controller: Controller
    on_reset: Callable[[], None]
    reset_subsystem: Callable[[], None]
    clock: Callable[[], float]
    state: ControllerState = ControllerState.DISABLED
    serving: bool = False
    """Commands may be fetched and executed."""
    shut_down: bool = False
    """A shutdown is complete: the host may take its memory back, so it is left alone until the next
    reset."""
    _logged: dict[str, float] = field(default_factory=dict)
    """The time until which a kind of failure is not logged again."""
    _flushes: bool = False
    """A shutdown has begun a flush, be it one of a session that is over."""
    flush_is_due: bool = False
    """A shutdown waits for the media to end what it has begun, and then for a flush."""

    def __post_init__(self) -> None:
        self._board = self.controller.board

    def configure(self, configuration: ControllerConfiguration) -> None:
        self._enter(Event.ENABLE if configuration.en else Event.DISABLE)
        if configuration.shn in (ShutdownNotification.NORMAL, ShutdownNotification.ABRUPT):
            self._begin_shutdown()

    def function_reset(self) -> None:
        """The board has reset its registers and queues; the firmware follows."""
        self._enter(Event.RESET)

    def subsystem_reset(self) -> None:
        """A host has written the key to NSSR of some controller: as a function reset, and CSTS says
        that it was."""
        self._board.function_reset()
        self._update_status(nssro=1)

    def fail(self, reason: str) -> None:
        """Controller fatal status: only a reset leads out."""
        now, kind = self.clock(), reason.partition(":")[0]
        if now >= self._logged.get(kind, now):  # a host may fail as often as it likes
            self._logged[kind] = now + LOG_INTERVAL
            log.error("controller fatal status: %s", reason)
        self._enter(Event.FAIL)

    def service(self) -> None:
        """Do what has waited for the media to end what they had begun."""
        if self.state is ControllerState.ENABLING:
            self._start_if_possible()
        # What was waiting may have begun a write that a shutdown's flush is to cover.
        if self.flush_is_due:
            self._flush_if_quiet()

    def _start_if_possible(self) -> None:
        """Become ready once the media has ended what the time before had begun.

        A write that a reset has forgotten may still be on its way to the media. If new ones were
        taken before it ends, it could undo one that was acknowledged.
        """
        if self.controller.media_work.unfinished:
            return
        if self.controller.compute.executions:
            return  # a program of the session before may still write to memory
        if not self._board.dma.mastering:
            return  # no entry could be fetched: ready once the host sets Bus Master Enable
        problem = self._create_admin_queues()
        if problem:
            self.fail(problem)
        else:
            self._enter(Event.START)

    @property
    def flushing(self) -> bool:
        """A shutdown is waited for."""
        return self._flushes or self.flush_is_due

    def load(self, state: ControllerState) -> None:
        """Go on in a state that was saved. Raises ValueError where the registers disagree."""
        status = self._status()
        failed, ready = state is ControllerState.FAILED, state is ControllerState.READY
        # RDY stays as it was when a controller fails.
        if bool(status.cfs) != failed or (not failed and bool(status.rdy) != ready):
            raise ValueError(f"a controller that is {state.name} does not say so in CSTS")
        queues, dma = bool(self._board.queues.submissions), self._board.dma.started
        if ready != dma or (
            queues and state in (ControllerState.DISABLED, ControllerState.ENABLING)
        ):
            raise ValueError(f"a controller that is {state.name} has other queues")
        if ready and not queues:
            raise ValueError("a controller that is ready has no queues")
        self.state = state
        self._update_status()

    def _enter(self, event: Event) -> None:
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            return
        if self._board.trace.sink is not None:
            self._board.trace.sink("rpu.state", {"state": after.name})
        log.debug("the controller is %s", after.name.lower())
        self.state = after
        if after is ControllerState.DISABLED:
            # Who resets the whole function may do so to give it to somebody else.
            self._end_session(next_host=event is Event.RESET)
        elif after is ControllerState.ENABLING:
            # A host that shut down with EN = 0 has no other way to begin again than to set it.
            self._no_shutdown()
        elif after is ControllerState.READY:
            self.controller.select_command_sets()
            self.controller.persistence.in_use(self.controller.identifier)
            self.controller.subsystem.began()
            self._update_status(rdy=1)
        elif after is ControllerState.FAILED:
            self._board.dma.stop()
            self._update_status(cfs=1)
            self.controller.failed()

    def _end_session(self, *, next_host: bool) -> None:
        """After this no data moves, no command is answered and no interrupt waits."""
        self._board.dma.stop()
        self._board.queues.clear()
        self._board.interrupts.clear()
        self._board.registers.unmask()
        self.controller.reset(next_host=next_host)
        self.controller.persistence.unused(self.controller.identifier)
        self.on_reset()
        self._no_shutdown()
        self._update_status(rdy=0, cfs=0)

    def _create_admin_queues(self) -> str:
        """Begin a session as CC, AQA, ASQ and ACQ say; a sentence where they make no sense."""
        registers, dma, queues = self._board.registers, self._board.dma, self._board.queues
        configuration = ControllerConfiguration(registers.read(Register.CC))
        if configuration.css not in COMMAND_SETS or configuration.mps or configuration.ams:
            return "CC selects a command set, a page size or an arbitration that CAP does not offer"
        sizes = (configuration.iosqes, configuration.iocqes)
        if sizes not in ((0, 0), (SUBMISSION_ENTRY_SHIFT, COMPLETION_ENTRY_SHIFT)):
            return "CC selects queue entries of a size that does not exist"
        attributes = AdminQueueAttributes(registers.read(Register.AQA))
        if not attributes.asqs_z or not attributes.acqs_z:
            return "AQA gives an admin queue fewer than two entries"
        completions = CompletionQueue(
            dma, 0, registers.read(Register.ACQ), attributes.acqs_z + 1, Interrupt(0, enabled=True)
        )
        submissions = SubmissionQueue(
            dma, 0, registers.read(Register.ASQ), attributes.asqs_z + 1, completions
        )
        dma.start()
        try:
            queues.add_completion(completions)
            queues.add_submission(submissions)
        except AccessFault as fault:
            return f"an admin queue is not in the host's memory: {fault}"
        return ""

    def _begin_shutdown(self) -> None:
        """Flush everything to stable storage; no new command is taken from now on.

        An abrupt shutdown differs in what the host does before it. When either is complete the
        power may go, so both flush.
        """
        if self._status().shst != ShutdownStatus.NORMAL_OPERATION:
            return
        self._update_status(shst=ShutdownStatus.OCCURRING)
        self.flush_is_due = True
        self._flush_if_quiet()

    def _no_shutdown(self) -> None:
        self.flush_is_due = False
        self._update_status(shst=ShutdownStatus.NORMAL_OPERATION)

    def _flush_if_quiet(self) -> None:
        """Begin the flush that is due once nothing can be written behind its back.

        A write that ended after the flush would be acknowledged and not durable. It also keeps the
        flushes of a host that shuts down again and again to one at a time.
        """
        if self.controller.media_work.unfinished:
            return
        self.flush_is_due = False
        self.controller.scheduler.start(self._flush())

    def _flush(self) -> Steps[None]:
        """Flush, and complete the shutdown unless another one has begun meanwhile."""
        flush_all = flushing(self.controller.namespaces.stored.values())
        remember = self.controller.persistence.shut_down(self.controller.identifier)

        def flush() -> list[Flushed]:
            ended = flush_all()
            if all(error is None for _, error in ended):
                remember()
            return ended

        self._flushes = True
        flushed = yield self.controller.media_work.submit(flush)
        self._flushes = False
        for namespace, error in flushed:
            if error is not None:
                self.controller.failures.writing(namespace.nsid, namespace.media, error, lba=0)
        if self._status().shst == ShutdownStatus.OCCURRING and not self.flush_is_due:
            for namespace in self.controller.namespaces.zoned:
                namespace.zones.power_cycled()
            self._update_status(shst=ShutdownStatus.COMPLETE)

    def _status(self) -> ControllerStatus:
        return ControllerStatus(self._board.registers.read(Register.CSTS))

    def _update_status(self, **fields: int) -> None:
        status = self._status().update(**fields)
        self._board.registers.write(Register.CSTS, status.encode())
        # Asked for every command, while a register takes a microsecond to take apart.
        self.serving = (
            self.state is ControllerState.READY and status.shst == ShutdownStatus.NORMAL_OPERATION
        )
        self.shut_down = status.shst == ShutdownStatus.COMPLETE

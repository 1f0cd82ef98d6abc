"""The RPU's service loop: from what the host wrote to what the host is told.

One pass takes the host's writes, then what the media and the APU have finished, then new commands,
and ends with one interrupt for each vector that has something to say. Nothing in a pass waits, and
a pass is bounded, so that a host that floods one queue delays nobody's register access for long.

Commands are answered in one place, `_complete`. A command whose handler waits is in `outstanding`;
the end of a session empties that, so what comes later for it finds nobody and is dropped.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from csd_spec.opcodes import JOB_ENDED_EVENT
from nvme_spec.features import (
    COALESCING_UNIT,
    UNLIMITED_BURST,
    Arbitration,
    FeatureId,
    InterruptCoalescing,
    InterruptVectorConfiguration,
)
from nvme_spec.logs import CommandByte, ErrorEvent
from nvme_spec.opcodes import DataDirection, data_direction
from nvme_spec.queues import FLAGS_FUSE_MASK, Fuse
from nvme_spec.registers import (
    DOORBELL_BASE,
    SUBSYSTEM_RESET_KEY,
    ControllerConfiguration,
    Register,
    doorbell_offset,
)
from nvme_spec.status import NvmeError, Status
from potash_device.board import Board
from potash_device.controller.coalescing import Coalescing
from potash_device.controller.notify import Notify
from potash_device.controller.queue_set import UnknownDoorbell
from potash_device.controller.queues import (
    CompletionQueue,
    InvalidDoorbell,
    SubmissionQueue,
)
from potash_device.trace import Note
from potash_firmware.mailbox import RpuPort
from potash_firmware.mailbox.messages import JobEnded, ReadCheck, ResetDone, WriteBack
from potash_firmware.rpu.accelerators.apu_link import Answer, ApuLink, Grant
from potash_firmware.rpu.accelerators.write_back import WriteBacks
from potash_firmware.rpu.admin import ADMIN_COMMANDS, FAULT_COMMANDS
from potash_firmware.rpu.command import Command, Pending, Result
from potash_firmware.rpu.command_sets import IO_COMMANDS
from potash_firmware.rpu.command_sets.nvm import fused
from potash_firmware.rpu.command_sets.nvm.blocks import require_pointer
from potash_firmware.rpu.command_sets.nvm.fast_path import DirectReadsAndWrites
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.dispatch import check_namespace, support
from potash_firmware.rpu.lifecycle import Lifecycle, State
from potash_firmware.rpu.namespaces.namespace import flush_all
from potash_firmware.rpu.settings import RpuSettings
from pyvfio_user.memory import AccessFault

log = logging.getLogger(__name__)

CHUNK = 64
"""Commands of a turn without limit between two looks at the time."""

WATCH = 10
"""Looks at the shadow page, a microsecond each, between two passes that nothing calls for."""

PASS_TIME = 500e-6
"""Seconds after which a pass begins no further turn."""

HOST_WRITES_PER_PASS = 1024

MEDIA_WORK_LIMIT = 64
"""Pieces of work that the media executor has at most; each may hold a buffer as large as MDTS."""

OUTSTANDING_LIMIT = 4096
"""Commands that wait at most. Beyond it they wait in their queues, in the host's own memory."""

ADMIN_LIMIT = 256
"""As much for Admin commands, which no flood of I/O keeps waiting."""

FAULT_LOG_INTERVAL = 60.0
"""Seconds before another failed pass is worth a line."""

_DOORBELL_STATUS = {
    ErrorEvent.INVALID_DOORBELL_REGISTER: Status.INVALID_QUEUE_IDENTIFIER,
    ErrorEvent.INVALID_DOORBELL_VALUE: Status.INVALID_FIELD,
}
"""The most applicable status, which the log wants of an error that no command had."""

_NO_SUCH_THING = (Status.INVALID_FIELD, Status.INVALID_LOG_PAGE, Status.INVALID_NAMESPACE)
"""Answers to a question of a driver that finds out what there is."""


class Rpu:
    """The firmware of one controller; `service` is to be called whenever something happened."""

    def __init__(
        self, board: Board, settings: RpuSettings, apu: ApuLink, clock: Callable[[], float]
    ) -> None:
        extra = FAULT_COMMANDS if settings.allow_faults else {}
        self._admin_commands = {**ADMIN_COMMANDS, **extra}
        supported = support(self._admin_commands, IO_COMMANDS)
        self.controller = Controller(board, settings, apu, supported, clock)
        self.keeper = self.controller.keeper
        self.keep_alive = self.controller.keep_alive
        self.lifecycle = Lifecycle(self.controller, on_reset=self._session_ended, clock=clock)
        self._faults = self.controller.faults
        self._board = board
        self._apu = apu
        self._clock = clock
        self._notify = Notify(clock)
        self._coalescing = Coalescing(clock)
        self._direct = DirectReadsAndWrites(self.controller, self._complete_successes)
        self._write_backs = WriteBacks(self.controller)
        self._features_version = -1
        self._paused = False
        """Bus Master Enable is off: no command is begun, goes on or ends."""
        self._held: deque[Callable[[], object]] = deque()
        """What waits for it, one step for each command at most."""
        self._burst = 0
        self._cut_short = False
        self._told_until = clock()
        self.controller.features.own_coalescing = self._own_coalescing
        board.reset_line = self.lifecycle.function_reset

    @property
    def timeout(self) -> float | None:
        """Seconds that may pass before the next call of `service`; None when nothing is due.

        The keeper, the keep alive timer and operations on the drive have times of their own.
        """
        queues, held = self._board.queues, self._coalescing.timeout
        looking = (
            queues.shadow is not None
            and self._board.dma.mastering
            and (self.lifecycle.serving or (self.lifecycle.state is State.READY and queues.blocked))
        )
        tick = self._notify.timeout if looking else None
        return tick if held is None else held if tick is None else min(tick, held)

    def watch(self) -> None:
        """Instead of a tick of no time at all: wait for the host to store something, for a moment.

        A pass of the loop takes 10 µs, which is half of what a host that has one command at a time
        waits for. Others who want this processor get it: a guest may have as many of its own.
        """
        shadow = self._board.queues.shadow
        now = self._clock()
        try:
            for _ in range(WATCH):
                if shadow is None or shadow.stirs():
                    return
                os.sched_yield()
                before, now = now, self._clock()
                self._notify.yielded(now - before)
        except AccessFault:
            pass  # The pass that follows finds that too.

    def power_on(self) -> None:
        """Remember the time before; waits for the sidecar."""
        clean = self.keeper.power_on()
        self.controller.self_tests.restore()
        self.controller.sanitizing.restore(clean=clean)
        self.controller.restore_uncorrectable()
        self.controller.thermal.look()

    def power_off(self, *, clean: bool) -> None:
        """Bring everything to stable storage; `clean` unless something has gone wrong. Waits."""
        ended = flush_all(self.controller.allocated.values())
        for namespace, error in ended:
            if error is not None:
                log.error("namespace %d: %s", namespace.settings.nsid, error.strerror)
        self.keeper.power_off(clean=clean and all(error is None for _, error in ended))

    @property
    def apu_may_start(self) -> bool:
        """Nothing reads the arenas any more on behalf of an APU that is gone."""
        return self._apu.port is None and not self._write_backs

    def apu_started(self, port: RpuPort) -> None:
        """An APU runs and listens at the other end of `port`."""
        self._write_backs.apu_lost()
        self._apu.connect(port)

    def service(self, *, media: bool = True, apu: bool = True) -> bool:
        """Do what there is to do; True when more is waiting already.

        Whatever the firmware does wrong here ends the session, with controller fatal status, and
        not the drive.

        Args:
            media: the media executor may have finished something.
            apu: the APU may have said something.
        """
        try:
            # A pass that was cut short may have left some of what the executor has finished.
            more = self._pass(media=media or self._cut_short, apu=apu)
        except Exception as error:
            log.debug("a pass of the firmware was cut short", exc_info=True)
            self._fault(error)
            more = not self._cut_short or bool(self._board.registers.host_writes)
            self._cut_short = True
        else:
            self._cut_short = False
        return more

    def _fault(self, error: Exception) -> None:
        """A pass has met a mistake of the firmware: a host that is there is told to reset."""
        reason = f"a mistake of the firmware: {error!r}"
        if self.lifecycle.state in (State.ENABLING, State.READY):
            try:
                self.lifecycle.fail(reason)
            except Exception:  # perhaps the same, in what is recorded of a fault
                log.debug("the fault is not recorded whole", exc_info=True)
        elif self._clock() >= self._told_until:  # no line for each pass of a mistake that stays
            self._told_until = self._clock() + FAULT_LOG_INTERVAL
            log.error("%s", reason)

    def _pass(self, *, media: bool, apu: bool) -> bool:
        """One pass of the service."""
        was_paused, self._paused = self._paused, not self._board.dma.mastering
        if was_paused and not self._paused:
            self._go_on()
        self._take_host_writes()
        if media:
            self._take_media()
        if apu or self._apu.due:
            self._take_apu()
        if self.controller.tasks.resting:
            for task in self.controller.tasks.time_passed():
                self._resume(task, None)
        self.lifecycle.start_if_possible()
        try:
            if not self._paused:
                self._look_and_execute()
                self._deliver_events()
        except AccessFault as fault:
            self.lifecycle.fail(f"queue memory is gone: {fault}")
        if self.keep_alive.expired:
            self._host_is_dead()
        self._interrupt()
        self.keeper.service()
        return (
            bool(self._board.registers.host_writes)
            or self._apu.due
            or (
                self.lifecycle.serving
                and not self._paused
                and any(map(self._may_fetch, self._board.queues.ready))
            )
        )

    def _go_on(self) -> None:
        """Do what has waited for Bus Master Enable, in its order."""
        while self._held:
            self._held.popleft()()
        for qid, completions in self._board.queues.completions.items():
            if completions.blocked:  # it may have been given room meanwhile
                self._doorbell(doorbell_offset(qid, completion=True), completions.head)

    def _host_is_dead(self) -> None:
        self.keep_alive.stop()
        self.controller.errors.add_event(Status.KEEP_ALIVE_TIMER_EXPIRED)
        self.lifecycle.fail("the host has sent no Keep Alive command in time")

    # What came in.

    def _take_host_writes(self) -> None:
        writes = self._board.registers.host_writes
        for _ in range(HOST_WRITES_PER_PASS):
            if not writes:
                return
            offset, value = writes.popleft()
            if offset >= DOORBELL_BASE:
                self._doorbell(offset, value)
            elif offset == Register.CC.offset:
                self.lifecycle.configure(ControllerConfiguration(value))
            elif offset == Register.NSSR.offset and value == SUBSYSTEM_RESET_KEY:
                self.lifecycle.subsystem_reset()

    def _doorbell(self, offset: int, value: int) -> None:
        if self.lifecycle.state is not State.READY:
            return
        try:
            queue = self._board.queues.ring(offset, value)
        except UnknownDoorbell as error:
            self._error_event(ErrorEvent.INVALID_DOORBELL_REGISTER, error)
        except InvalidDoorbell as error:
            self._error_event(ErrorEvent.INVALID_DOORBELL_VALUE, error)
        except AccessFault as fault:
            if not self._paused:
                self.lifecycle.fail(f"queue memory is gone: {fault}")
        else:
            if queue is not None:
                self._announce(queue)

    def _error_event(self, information: ErrorEvent, error: Exception) -> None:
        # No line for each ring: a host could make its reader slow.
        if self.controller.alerts.error(information, _DOORBELL_STATUS[information]):
            log.warning("%s", error)

    def _take_media(self) -> None:
        for future in self._board.executor.finished():
            come = self.controller.media_finished(future)
            ours = self._write_backs.media_finished(future) or self.keeper.media_finished(future)
            if not ours:
                self._resume(future, future)
            for token in come:
                self._resume(token, None)
            # Commands first: what they go on to do is what an operation has to wait for.
            for task in self.controller.tasks.media_finished(future):
                self._resume(task, None)
            # Last, as what was waiting may have begun a write that a shutdown's flush is to cover.
            self.lifecycle.media_finished(future)

    def _take_apu(self) -> None:
        for message in self._apu.messages():
            if isinstance(message, Answer):
                self._answered(message)
            elif isinstance(message, WriteBack):
                self._write_backs.start(message)
            elif isinstance(message, ReadCheck):
                self._write_backs.check(message)
            elif isinstance(message, JobEnded):
                self.controller.alerts.vendor(JOB_ENDED_EVENT, message.log_page)
            elif isinstance(message, ResetDone):
                self._apu.reset_done(message.tag)
        for future in self._apu.erased():
            for task in self.controller.tasks.media_finished(future):
                self._resume(task, None)
        for grant in self._apu.grants():
            self._granted(grant)

    def _answered(self, answer: Answer) -> None:
        """The APU has answered a command, whose slot is free when the host has its data."""
        if self._has_to_wait(answer.reply.tag):
            self._held.append(partial(self._answered, answer))
        else:
            self._resume(answer.reply.tag, answer)
            self._apu.free_slot(answer.slot)

    def _granted(self, grant: Grant) -> None:
        """A slot is free for a command that waits for one, if it still does."""
        if self._has_to_wait(grant.token):
            self._held.append(partial(self._granted, grant))
        elif not self._resume(grant.token, grant.slot):
            self._apu.free_slot(grant.slot)

    # Commands.

    def _look_and_execute(self) -> None:
        if self.lifecycle.state is not State.READY:
            return
        # Also after a shutdown: what waits for room is still owed.
        freed, errors = self._board.queues.look()
        for completions in freed:
            self._announce(completions)
        for error in errors:
            self._error_event(ErrorEvent.INVALID_DOORBELL_VALUE, error)
        if self._features_version != self.controller.features.version:
            self._apply_features()
        executed = self._execute() if self.lifecycle.serving else 0
        if executed:
            self._notify.worked(executed)
        elif self._notify.may_arm and not self._board.queues.arm():
            self._notify.armed()

    def _execute(self) -> int:
        """Give every queue its turns while the pass lasts; how many commands there were."""
        queues = self._board.queues
        burst = self._burst
        executed = 0
        until = 0.0
        while ready := [queue for queue in queues.in_turn() if self._may_fetch(queue)]:
            for queue in ready:
                executed += self._execute_burst(queue, burst or CHUNK)
                if len(ready) > 1:  # its host goes on while the others have their turn
                    self._interrupt()
                if burst or not queue.ready:
                    queues.served(queue)
                now = self._clock()
                until = until or now + PASS_TIME
                if now >= until or not self.lifecycle.serving:
                    return executed
                if not burst and queue.ready:
                    break
        return executed

    def _apply_features(self) -> None:
        """The host has set features, or a reset has taken them back."""
        features = self.controller.features
        self._features_version = features.version
        self.controller.watch()
        ab = Arbitration(features.get(FeatureId.ARBITRATION)).ab
        self._burst = 0 if ab == UNLIMITED_BURST else 1 << ab
        chosen = features.chosen(FeatureId.INTERRUPT_COALESCING)
        self._notify.tuned = chosen is None
        setting = InterruptCoalescing(chosen or 0)
        exempt = {
            vector
            for vector in range(self._board.interrupts.vectors if chosen else 0)
            if InterruptVectorConfiguration(
                features.get(FeatureId.INTERRUPT_VECTOR_CONFIGURATION, vector)
            ).cd
        }
        self._coalescing.configure(setting.thr_z + 1, setting.time * COALESCING_UNIT, exempt)

    def _own_coalescing(self) -> int:
        """What Interrupt Coalescing reads as while the device adapts by itself."""
        time = round(self._notify.tick / COALESCING_UNIT)
        return InterruptCoalescing(thr_z=0xFF if time else 0, time=time).encode()

    def _may_fetch(self, queue: SubmissionQueue) -> bool:
        """There is something in the queue, and room for what comes of it."""
        outstanding = self.controller.outstanding
        if queue.qid == 0:
            return (
                queue.ready and outstanding.admin < ADMIN_LIMIT and not self.controller.tasks.full
            )
        return (
            queue.ready
            and len(self.controller.unfinished) < MEDIA_WORK_LIMIT
            and len(outstanding) < OUTSTANDING_LIMIT
        )

    def _execute_burst(self, queue: SubmissionQueue, burst: int) -> int:
        """Execute up to `burst` commands of a queue; how many there were."""
        executed = 0
        while executed < burst and self._may_fetch(queue) and self.lifecycle.serving:
            if (
                queue.qid
                and not self._faults.io
                and self._board.trace.sink is None
                and queue.qid not in self.controller.fused
            ):
                done = self._direct.run(queue, burst - executed)
                if done:
                    executed += done
                    continue
            executed += 1
            command = Command(queue.fetch(), queue)
            self.controller.statistics.commands[queue.qid, command.entry.opcode] += 1
            self._note("rpu.fetch", command, command.entry)
            if self._board.trace.sink is not None:
                self._board.trace.sink("rpu.fetch", {"qid": queue.qid, **command.entry._asdict()})
            if queue.qid and (
                queue.qid in self.controller.fused or command.entry.flags & FLAGS_FUSE_MASK
            ):
                alone = fused.begin(self.controller, command, self._run)
                if alone is None:
                    continue
            self._run(command, partial(self._begin, command))
        return executed

    def _begin(self, command: Command) -> Result:
        """Take a command's first step, unless a fault comes between. Raises NvmeError."""
        if command.key in self.controller.outstanding:
            raise NvmeError(
                Status.COMMAND_ID_CONFLICT,
                detail=f"command {command.entry.cid} is still outstanding",
            )
        if self._faults.io if command.queue.qid else self._faults.admin:
            return self._faults.instead(command, partial(self._carry_out, command))
        return self._carry_out(command)

    def _carry_out(self, command: Command) -> Result:
        """Look the command up and call its handler. Raises NvmeError."""
        entry = command.entry
        row = (IO_COMMANDS if command.queue.qid else self._admin_commands).get(entry.opcode)
        if row is None:
            raise NvmeError(
                Status.INVALID_OPCODE, detail=f"opcode {entry.opcode:#04x} is not supported"
            )
        if entry.fuse is not Fuse.NORMAL:
            raise NvmeError(
                Status.INVALID_FIELD,
                detail="there is no such fused operation",
                location=CommandByte.FLAGS,
            )
        require_pointer(command)
        self.controller.sanitizing.check(command)
        check_namespace(self.controller, command, row.namespace)
        return row.handler(self.controller, command)

    def _has_to_wait(self, token: object) -> bool:
        """A command waits for `token`, and for Bus Master Enable."""
        return self._paused and self.controller.outstanding.holds(token)

    def _resume(self, token: object, value: object) -> bool:
        """Go on with the command that waits for `token`; False when it is gone.

        Not before the host lets the device reach its memory, where the command's data and its
        completion belong.
        """
        if self._has_to_wait(token):
            self._held.append(partial(self._resume, token, value))
            return True
        waiting = self.controller.outstanding.take(token)
        if waiting is None:
            return False
        self._run(waiting.command, lambda: waiting.pending.resume(value))
        return True

    def _run(self, command: Command, step: Callable[[], Result]) -> None:
        """Take one step of a command and do what comes of it."""
        try:
            result = step()
        except NvmeError as error:
            self._refuse(command, error)
        except Exception as error:  # a mistake of ours must not end the drive
            log.exception("opcode %#04x went wrong", command.entry.opcode)
            self.controller.internal_fault(f"opcode {command.entry.opcode:#04x}: {error!r}")
            self.controller.alerts.error(ErrorEvent.TRANSIENT_INTERNAL_ERROR)
            self._refuse(command, NvmeError(Status.INTERNAL_ERROR, dnr=False, detail=str(error)))
        else:
            if isinstance(result, Pending):
                if self._board.trace.sink is not None and isinstance(result.token, int):
                    known = {"qid": command.queue.qid, "cid": command.entry.cid}
                    self._board.trace.sink("rpu.forward", known | {"tag": result.token})
                self.controller.outstanding.add(command, result)
            else:
                self._answer_aborted()
                self._note("rpu.complete", command, (Status.SUCCESS, result or 0))
                self._complete(command.queue, command.entry.cid, dw0=result or 0)

    def _note(self, point: str, command: Command, what: tuple[int, ...]) -> None:
        """Remember what was asked, or answered, for telemetry: not for `DirectReadsAndWrites`."""
        qid, cid = command.queue.qid, command.entry.cid
        self._board.trace.recent.append(Note(self._clock(), point, qid, cid, what))

    def _answer_aborted(self) -> None:
        """Commands that another one has ended are answered before it."""
        while self.controller.aborted:
            self._refuse(*self.controller.aborted.pop(0))

    def _refuse(self, command: Command, error: NvmeError) -> None:
        if log.isEnabledFor(logging.DEBUG):
            qid, cid = command.key
            known = {"qid": qid, "cid": cid, "opcode": command.entry.opcode, "status": error.status}
            log.debug("opcode %#04x: %s", command.entry.opcode, error, extra={"known": known})
        # A driver finds out what there is by asking: a question that is refused is no error.
        question = (
            command.queue.qid == 0
            and data_direction(command.entry.opcode) is DataDirection.CONTROLLER_TO_HOST
            and error.status in _NO_SUCH_THING
        )
        if not question:
            self.controller.errors.add(command, error)
        self.controller.statistics.errors[error.status] += 1
        self._note("rpu.complete", command, (error.status, 0))
        self._complete(command.queue, command.entry.cid, error.status, error.dnr)

    def _complete(
        self, queue: SubmissionQueue, cid: int, status: int = 0, dnr: bool = False, dw0: int = 0
    ) -> None:
        """Answer a command: the only place that does."""
        if self.lifecycle.state is not State.READY:
            return
        if self._board.trace.sink is not None:
            known = {"qid": queue.qid, "cid": cid, "status": status, "dnr": dnr, "dw0": dw0}
            self._board.trace.sink("rpu.complete", known)
        try:
            posted = self._board.queues.post(queue, cid, status, dnr, dw0)
        except AccessFault as fault:
            self.lifecycle.fail(f"queue memory is gone: {fault}")
            return
        if posted:
            self._announce(queue.completions, urgent=status != 0)
        else:
            self._notify.worked(0)  # look for room soon: the host may never ring for it

    def _complete_successes(self, queue: SubmissionQueue, cids: Sequence[int]) -> None:
        """As `_complete`, for commands that have succeeded and whose completions have room."""
        completions = queue.completions
        try:
            completions.post_successes(queue, cids)
        except AccessFault as fault:
            self.lifecycle.fail(f"queue memory is gone: {fault}")
            return
        if completions.interrupt.enabled:
            self._coalescing.announce(completions.interrupt.vector, len(cids))

    def _deliver_events(self) -> None:
        if self.lifecycle.state is State.READY:
            for token, event in self.controller.events.deliver():
                self._resume(token, event)

    def _announce(self, completions: CompletionQueue, *, urgent: bool = True) -> None:
        """The host is to be told of new completions at the end of the pass, or of the time that
        it has chosen where nothing is `urgent`."""
        interrupt = completions.interrupt
        if interrupt.enabled:
            self._coalescing.announce(interrupt.vector, urgent=urgent or completions.qid == 0)

    def _interrupt(self) -> None:
        due = self._coalescing.take_due()
        if due and self._faults.interrupts:
            due = self._faults.heard(due)
        self._board.interrupts.fire_all(due)

    def _session_ended(self) -> None:
        """Interrupts of a session that is over are not wanted any more, nor are its commands."""
        self._coalescing.clear()
        paused, self._paused = self._paused, False
        self._go_on()
        self._paused = paused

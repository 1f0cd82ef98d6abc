"""The RPU's service loop: from what the host wrote to its interrupts.

One pass takes the host's writes, then what the media and the APU have finished, then new commands,
and ends with one interrupt for each vector. It never waits, and it is bounded, so that a host that
floods one queue does not delay register accesses for long. Between two passes, the device's loop
waits for `Rpu.timeout` at most.
"""

import logging
import os
from collections.abc import Callable

from csd_spec.opcodes import JOB_ENDED_EVENT
from nvme_spec.features import COALESCING_UNIT, FeatureId, InterruptCoalescing
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.logs import ErrorEvent
from nvme_spec.registers import (
    DOORBELL_BASE,
    SUBSYSTEM_RESET_KEY,
    ControllerConfiguration,
    Register,
    doorbell_offset,
)
from nvme_spec.status import Status
from potash_device.board import Board
from potash_device.controller.doorbell_page import IDLE_POLL
from potash_device.controller.polling import Polling
from potash_device.controller.queue_set import UnknownDoorbell
from potash_device.controller.queues import InvalidDoorbell
from potash_firmware.mailbox import RpuPort, SharedBuffers
from potash_firmware.mailbox.messages import (
    JobBegan,
    JobCounted,
    JobEnded,
    JobLeft,
    ReadCheck,
    ResetDone,
    ToRpu,
    WriteBack,
)
from potash_firmware.mailbox.values import ReadJobValue, ReadValue
from potash_firmware.naming import CommandNames
from potash_firmware.rpu.admin import ADMIN_COMMANDS, FAULT_COMMANDS
from potash_firmware.rpu.admin.placement import PLACEMENT_ADMIN, PLACEMENT_IO
from potash_firmware.rpu.admin.stepping import Stepping
from potash_firmware.rpu.arbitration import PASS_TIME, Arbiter
from potash_firmware.rpu.command_sets import COMMANDS
from potash_firmware.rpu.commands import Commands
from potash_firmware.rpu.compute.engine import ProgramEngine
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.dispatch import support
from potash_firmware.rpu.interrupts import Interrupts
from potash_firmware.rpu.lifecycle import ControllerState, Lifecycle
from potash_firmware.rpu.migration.migration import Migration
from potash_firmware.rpu.namespaces.flushing import flushing
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.subsystem import Subsystem
from potash_firmware.rpu.timing.holding import Holding
from potash_firmware.waiting import earliest
from pyvfio_user.memory import AccessFault

log = logging.getLogger(__name__)

SPINS = 10
"""Reads of the doorbells in vain, about a microsecond each, after which `Rpu.spin` gives up."""

HOST_WRITES_PER_PASS = 1024
"""Register writes of one pass, so that a host that floods registers does not delay commands."""

FAULT_LOG_INTERVAL = 60.0
"""Seconds between two log lines about passes that failed."""

_DOORBELL_ERRORS = {
    UnknownDoorbell: (ErrorEvent.INVALID_DOORBELL_REGISTER, Status.INVALID_QUEUE_IDENTIFIER),
    InvalidDoorbell: (ErrorEvent.INVALID_DOORBELL_VALUE, Status.INVALID_FIELD),
}
"""Each with the closest status: the error log requires one even outside a command."""


class Rpu:
    """The firmware of one controller; `service` is to be called whenever something happened."""

    def __init__(
        self,
        board: Board,
        settings: RpuSettings,
        buffers: SharedBuffers,
        clock: Callable[[], float],
        engine: ProgramEngine | None = None,
    ) -> None:
        admin = {**ADMIN_COMMANDS, **(FAULT_COMMANDS if settings.allow_faults else {})}
        commands = COMMANDS
        if settings.placement is not None:
            admin |= PLACEMENT_ADMIN
            commands = {**COMMANDS, CommandSet.NVM: COMMANDS[CommandSet.NVM] | PLACEMENT_IO}
        self._stepping: Stepping | None = None
        if settings.time is not None and settings.time.stepped:
            self._stepping = Stepping()
            admin |= self._stepping.commands
        extended = None
        if settings.extensions is not None:
            from potash_firmware.rpu.extended import Extended

            extended = Extended(settings.extensions)
            admin, commands = extended.admin(admin), extended.io(commands)
        self.controller = Controller(
            board, settings, buffers, engine, support(admin, commands), clock, Subsystem()
        )
        self._engine = self.controller.engine
        self.lifecycle = Lifecycle(
            self.controller, on_reset=lambda: self._interrupts.clear(), clock=clock
        )
        self._keep_alive = self.controller.keep_alive
        self._media_work = self.controller.media_work
        self._persistence = self.controller.persistence
        self._scheduler = self.controller.scheduler
        self._events = self.controller.reports.events
        self._deadlines = self.controller.deadlines
        self._timers = self.controller.timers
        self._write_backs = self.controller.write_backs
        self._board = board
        self._apu = self.controller.apu
        self._clock = clock
        self._polling = Polling(clock, rest=None if board.queues.page is None else IDLE_POLL)
        self._interrupts = Interrupts(board, self.controller.faults, self._timers, clock)
        if settings.time is not None:
            from potash_firmware.rpu.command_sets.timed import timed  # NumPy

            commands = timed(commands)
        self.names: CommandNames = {}
        make: Callable[..., Commands] = Commands
        if extended is not None:
            extended.attach(self.controller, commands)
            self.names = extended.names
            make = extended.commands
        self._commands = make(
            self.controller,
            self.lifecycle,
            self._interrupts,
            admin,
            commands,
            # Poll for room soon: a host may free entries without ringing a doorbell.
            blocked=lambda: self._polling.worked(0),
            clock=clock,
        )
        self.arbiter = Arbiter(
            self.controller, self.lifecycle, self._commands, self._interrupts, clock
        )
        self.migration = Migration(
            self.controller,
            self.lifecycle,
            self._commands,
            self._interrupts,
            woken=lambda: self._polling.worked(0),
        )
        board.migration = self.migration
        self.holding: Holding | None = None
        """Stops the guest while the emulation is behind the model, if there is a QEMU monitor."""
        self._features_version = -1
        self._cut_short = False
        self._logged_until = clock()
        self.controller.features.own_coalescing = self._own_coalescing
        board.reset_line = self.lifecycle.function_reset

    @property
    def timeout(self) -> float | None:
        """Seconds that may pass before the next call of `service`; None when nothing is due.

        A host that is polled without pause comes first: where the answer is 0, the heaps of
        deadlines are not asked.
        """
        holding = None if self.holding is None else self.holding.timeout
        if self.migration.stopped:
            return earliest(self.migration.timeout, holding)
        queues = self._board.queues
        polling = (
            (queues.shadow is not None or queues.page is not None)
            and self._board.dma.mastering
            and not self.lifecycle.shut_down
            and (
                self.lifecycle.serving
                or (self.lifecycle.state is ControllerState.READY and queues.blocked)
            )
        )
        tick = self._polling.timeout if polling else None
        if tick == 0.0:
            return 0.0
        limits = [tick, holding, self._timers.timeout(polls=False)]
        if self._deadlines.heap:
            limits.append(self._deadlines.timeout(polls=self._polling.may_wait))
        return earliest(*limits)

    def spin(self) -> None:
        """Poll the doorbells for a moment, and execute new commands for up to PASS_TIME.

        Commands whose deadline comes meanwhile are completed; one that comes soon is waited for,
        and so are executions. The device's loop calls this instead of sleeping when `timeout` is 0:
        one of its rounds takes as long as a pass, so it would double the latency at queue depth 1.
        `sched_yield` lets other processes, such as the guest's virtual processors, run here.
        """
        queues, engine = self._board.queues, self._apu.engine
        now = self._clock()
        until = now + PASS_TIME
        spins, executing = 0, engine.executing
        try:
            while (spins < SPINS or executing or self._deadlines.near) and now < until:
                if not queues.polled:
                    return
                answered = executing and self._apu.has_message()
                if answered or self._deadlines.due or queues.has_changed():
                    if not self._execute_at_once(answered):
                        return
                    spins, executing = 0, engine.executing
                    now = self._clock()
                else:
                    spins += 1
                    os.sched_yield()
                    before, now = now, self._clock()
                    self._polling.yielded(now - before)
        except AccessFault:
            pass  # The next pass meets the same fault, and handles it.

    def _execute_at_once(self, answered: bool) -> bool:
        """Complete what is due or `answered`, poll the queues and send interrupts only. Returns
        False if a whole pass has to follow."""
        if self._board.dma.remote:
            return False  # memory that is reached by messages: only a whole pass waits for them
        try:
            if answered:
                for message in self._apu.messages():
                    self._handle_message(message)
                while self._engine.ended:
                    self._scheduler.ended(self._engine.ended.popleft())
                self._scheduler.run()
            if self._deadlines.heap:
                self._pass_time()
            self._poll_and_execute()
            self._interrupts.send()
        except AccessFault as fault:
            self._queue_memory_failed(fault)
            return False
        except Exception as error:
            log.debug("commands were cut short", exc_info=True)
            self._fault(error)
            return False
        return not (
            self._media_work.unfinished
            or self._engine.ended
            or self._scheduler.ready
            or self._board.queues.ready
        )

    def power_on(self) -> None:
        """Load the state of the last power cycle. Blocks until the sidecar is read."""
        self._persistence.power_on()

    def power_off(self, *, clean: bool) -> None:
        """Flush everything to stable storage; `clean` unless something has failed. Blocks."""
        flush = flushing(self.controller.namespaces.stored.values())
        ended = flush()
        for namespace, error in ended:
            if error is not None:
                log.error("namespace %d: %s", namespace.nsid, error.strerror)
        self._persistence.power_off(clean=clean and all(error is None for _, error in ended))
        self.controller.namespaces.close()

    @property
    def apu_may_start(self) -> bool:
        """True if there is no APU, and no write-back of the last one still reads the arenas."""
        return self._apu.port is None and not self._write_backs

    def apu_started(self, port: RpuPort) -> None:
        """An APU runs and listens at the other end of `port`."""
        # The APU before will never report what it left unfinished.
        self._write_backs.apu_lost()
        if self.controller.job_time is not None:
            self.controller.job_time.apu_lost()
        self._apu.connect(port)

    def service(self, *, media: bool = True, apu: bool = True) -> bool:
        """Do what there is to do; True if more is waiting already.

        An exception here is a bug of the firmware: it sets controller fatal status, and the drive
        goes on.

        Args:
            media: the media executor may have finished something.
            apu: the APU may have said something.
        """
        if self.migration.stopped:
            self.migration.rest()
            return False
        try:
            # A pass that was cut short may have left some of what the executor has finished.
            more = self._pass(media=media or self._cut_short, apu=apu)
        except Exception as error:
            log.debug("a pass of the firmware was cut short", exc_info=True)
            self._fault(error)
            # Tried again soon after the first failure only: a bug may be there in each pass.
            more = not self._cut_short or bool(self._board.registers.host_writes)
            self._cut_short = True
        else:
            self._cut_short = False
        if self.migration.stopping:
            self.migration.service()
        return more and not self.migration.stopped

    def _fault(self, error: Exception) -> None:
        """Deal with a bug of the firmware: an enabled controller fails until the host resets it."""
        reason = f"a mistake of the firmware: {error!r}"
        if self.lifecycle.state in (ControllerState.ENABLING, ControllerState.READY):
            try:
                self.lifecycle.fail(reason)
            except Exception:  # recording the failure may meet the same bug
                log.debug("the fault is not recorded whole", exc_info=True)
        elif self._clock() >= self._logged_until:  # no line for each pass of a bug that stays
            self._logged_until = self._clock() + FAULT_LOG_INTERVAL
            log.error("%s", reason)

    def _pass(self, *, media: bool, apu: bool) -> bool:
        commands = self._commands
        was_paused = commands.paused
        commands.paused = not self._board.dma.mastering or self.lifecycle.shut_down
        if was_paused and not commands.paused:
            self._go_on()
        if self._board.registers.host_writes:
            self._apply_host_writes()
        if media:
            self._poll_media()
        if apu and self._apu.port is not None:
            for message in self._apu.messages():
                self._handle_message(message)
        now = self._clock()
        if self._timers.heap and self._timers.heap[0][0] <= now * 1e9:
            for timer in self._timers.passed():
                timer.wake()
        while self._engine.ended:
            self._scheduler.ended(self._engine.ended.popleft())
        if self._scheduler.ready:
            self._scheduler.run()
        if self._deadlines.heap:
            self._pass_time()
        if self.lifecycle.state is ControllerState.ENABLING or self.lifecycle.flush_is_due:
            self.lifecycle.service()
        try:
            if not self._commands.paused:
                self._poll_and_execute()
                if self._events.queued and self.lifecycle.state is ControllerState.READY:
                    self._events.deliver()
                if self._scheduler.ready:
                    self._scheduler.run()
        except AccessFault as fault:
            self._queue_memory_failed(fault)
        if self._keep_alive.expired:
            self._host_is_dead()
        try:
            self._interrupts.send()
        except AccessFault as fault:
            self._queue_memory_failed(fault)
        if now >= self._persistence.sample_at:
            self._persistence.sample(now)
        return (
            (self._stepping is not None and self._stepping.service(self.controller))
            or bool(self._board.registers.host_writes)
            or bool(self._engine.ended)
            or bool(self._scheduler.ready)
            or (
                self.lifecycle.serving
                and not self._commands.paused
                and not self.migration.stopping
                and (self.holding is None or self.holding.may_fetch)
                and bool(self._board.queues.filled)
                and any(map(self.arbiter.may_fetch, self._board.queues.ready))
                and not self._board.dma.interrupted
            )
        )

    def _pass_time(self) -> None:
        """Have commands and operations go on whose deadline has come."""
        if self._scheduler.time_passes():
            self._polling.worked(0)  # a host that gets a completion may send its next command

    def _queue_memory_failed(self, fault: AccessFault) -> None:
        """Fail the controller as a queue's memory cannot be accessed, unless the access was only
        interrupted by a message of the client, after which it is tried again."""
        if not self._board.dma.interrupted:
            self.lifecycle.fail(f"queue memory is gone: {fault}")

    def _go_on(self) -> None:
        self._scheduler.resume()
        self._scheduler.run()
        for qid, completions in self._board.queues.completions.items():
            if completions.blocked:  # the host may have made room during the pause
                self._doorbell(doorbell_offset(qid, completion=True), completions.head)

    def _host_is_dead(self) -> None:
        self._keep_alive.reset()
        self.controller.reports.errors.add_event(Status.KEEP_ALIVE_TIMER_EXPIRED)
        self.lifecycle.fail("the host has sent no Keep Alive command in time")

    # Input: the host's writes, media, the APU.

    def _apply_host_writes(self) -> None:
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
        if self.lifecycle.state is not ControllerState.READY or self.lifecycle.shut_down:
            return
        try:
            queue = self._board.queues.ring(offset, value)
        except (InvalidDoorbell, UnknownDoorbell) as error:
            self._doorbell_error(error)
        except AccessFault as fault:
            if not self._commands.paused:
                self.lifecycle.fail(f"queue memory is gone: {fault}")
        else:
            if queue is not None:
                self._interrupts.announce(queue)

    def _doorbell_error(self, error: InvalidDoorbell | UnknownDoorbell) -> None:
        # No line for each write: a host could flood whoever reads the log.
        if self.controller.alerts.error(*_DOORBELL_ERRORS[type(error)]):
            log.warning("%s", error)

    def _poll_media(self) -> None:
        for future in self._board.executor.finished():
            self._media_work.finished(future)
            self._scheduler.ended(future)

    def _handle_message(self, message: ToRpu) -> None:
        """Do what a message of the APU asks for."""
        job_time = self.controller.job_time
        match message:
            case WriteBack():
                self._write_backs.start(message)
            case ReadCheck():
                self._write_backs.check(message)
            case ReadValue() | ReadJobValue():
                self.controller.value_reads.start(message)
            case JobEnded():
                if job_time is not None:
                    job_time.awaited.discard(message.accelerator)
                self.controller.alerts.vendor(JOB_ENDED_EVENT, message.log_page)
            case ResetDone():
                self._apu.reset_done(message.tag)
            case JobBegan() if job_time is not None:
                job_time.began(message)
            case JobCounted() if job_time is not None:
                job_time.counted(message)
            case JobLeft() if job_time is not None:
                job_time.left(message)

    # Commands.

    def _poll_and_execute(self) -> None:
        if self.lifecycle.state is not ControllerState.READY:
            return
        # Also while a shutdown is in progress: completions that wait for room must still be posted.
        freed, errors = self._board.queues.poll()
        for completions in freed:
            self._interrupts.announce(completions)
        for error in errors:
            self._doorbell_error(error)
        if self._features_version != self.controller.features.version:
            self._apply_features()
        holding, executed = self.holding, 0
        may_fetch = self.lifecycle.serving and not self.migration.stopping
        if not self._board.queues.filled or not may_fetch:
            pass
        elif holding is None:
            executed = self.arbiter.serve()
        elif holding.may_fetch:
            executed = holding.serve(self.arbiter.serve)
        if executed:
            self._polling.worked(executed)
        elif self._polling.may_arm and not self._board.queues.arm():
            self._polling.armed()

    def _apply_features(self) -> None:
        """The host has set features, or a reset has taken them back."""
        features = self.controller.features
        self._features_version = features.version
        self.arbiter.configure(features)
        self._polling.tuned = features.chosen(FeatureId.INTERRUPT_COALESCING) is None
        self._interrupts.configure(features)

    def _own_coalescing(self) -> int:
        """The value of Interrupt Coalescing while the device adapts by itself."""
        time = round(self._polling.tick / COALESCING_UNIT)
        return InterruptCoalescing(thr_z=0xFF if time else 0, time=time).encode()

"""The RPU's service loop: from what the hosts wrote to their interrupts.

One pass takes the hosts' writes, then what the media and the APU have finished, then new commands,
and ends with one interrupt for each vector. It never waits, and it is bounded, so that a host that
floods one queue does not delay register accesses for long. Between two passes, the device's loop
waits for `Rpu.timeout` at most.
"""

import logging
import os
from collections.abc import Callable, Sequence

from csd_spec.opcodes import JOB_ENDED_EVENT
from nvme_spec.identify.capabilities import CommandSet
from potash_device.board import Board
from potash_device.controller.polling import CROWDED
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
from potash_firmware.rpu.arbitration import PASS_TIME
from potash_firmware.rpu.command_sets import COMMANDS
from potash_firmware.rpu.commands import Commands
from potash_firmware.rpu.compute.engine import ProgramEngine
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.dispatch import support
from potash_firmware.rpu.host_interface import HostInterface
from potash_firmware.rpu.lifecycle import READY
from potash_firmware.rpu.migration.migration import Migration
from potash_firmware.rpu.namespaces.flushing import flushing
from potash_firmware.rpu.namespaces.zones import ZoneChanges
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.subsystem import Subsystem
from potash_firmware.rpu.timing.holding import Holding
from potash_firmware.waiting import earliest
from pyvfio_user.memory import AccessFault

log = logging.getLogger(__name__)

SPINS = 40
"""Reads of the doorbells in vain, about a microsecond each, after which `Rpu.spin` gives up."""

FEW_SPINS = 10
"""The same while the media executor or the APU may answer, which only the device's loop hears."""


class Rpu:
    """The firmware of one NVM subsystem, with a controller on each board; `service` is to be called
    whenever something happened."""

    def __init__(
        self,
        boards: Board | Sequence[Board],
        settings: RpuSettings,
        buffers: SharedBuffers,
        clock: Callable[[], float],
        engine: ProgramEngine | None = None,
    ) -> None:
        boards = [boards] if isinstance(boards, Board) else boards
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
        self.subsystem: Subsystem[Controller]
        self.subsystem = Subsystem(boards, settings, buffers, engine, clock)
        subsystem = self.subsystem
        supported = support(admin, commands)
        for board in boards:
            Controller(board, supported, subsystem)
        subsystem.complete()
        self.controller = subsystem.controllers[0]
        """The first controller."""
        self._engine = subsystem.engine
        self._media_work = subsystem.media_work
        self._executor = subsystem.storage.executor
        self._persistence = subsystem.persistence
        self._scheduler = subsystem.scheduler
        self._deadlines = subsystem.deadlines
        self._timers = subsystem.timers
        self._apu = subsystem.apu
        self._clock = clock
        if settings.time is not None:
            from potash_firmware.rpu.command_sets.timed import timed  # NumPy

            commands = timed(commands)
        self.names: CommandNames = {}
        make: Callable[..., Commands] = Commands
        if extended is not None:
            for controller in subsystem.controllers:
                extended.attach(controller, commands)
            self.names = extended.names
            make = extended.commands
        self.hosts = tuple(
            HostInterface(
                controller,
                make,
                admin,
                commands,
                clock,
                self._reset_subsystem,
            )
            for controller in subsystem.controllers
        )
        """The host interface of each controller, in the order of their identifiers."""
        first = self.hosts[0]
        self.lifecycle, self.arbiter = first.lifecycle, first.arbiter
        self.migration = Migration(
            self.controller,
            first.lifecycle,
            first.commands,
            first.interrupts,
            woken=lambda: first.polling.worked(0),
        )
        for host in self.hosts:
            host.migration = self.migration
        if len(boards) == 1:
            boards[0].migration = self.migration
        self.holding: Holding | None = None
        """Stops the guest while the emulation is behind the model, if there is a QEMU monitor."""
        self._cut_short = False

    @property
    def timeout(self) -> float | None:
        """Seconds that may pass before the next call of `service`; None when nothing is due.

        A host that is polled without pause comes first: where the answer is 0, the heaps of
        deadlines are not asked.
        """
        holding = None if self.holding is None else self.holding.timeout
        if self.migration.stopped:
            return earliest(self.migration.timeout, holding)
        tick: float | None = None
        for host in self.hosts:
            queues, lifecycle = host.queues, host.lifecycle
            if (
                (queues.shadow is not None or queues.page is not None)
                and host.dma.mastering
                and not lifecycle.shut_down
                and (lifecycle.serving or (lifecycle.state is READY and queues.blocked))
            ):
                limit = host.polling.timeout
                if limit == 0.0:
                    return 0.0
                tick = limit if tick is None else earliest(tick, limit)
        limits = [tick, holding, self._timers.timeout(polls=False)]
        if self._deadlines.heap:
            polls = True
            for host in self.hosts:
                polls = polls and host.polling.may_wait
            limits.append(self._deadlines.timeout(polls=polls))
        return earliest(*limits)

    def spin(self) -> None:
        """Poll the doorbells for a moment, and execute new commands for up to PASS_TIME.

        Commands whose deadline comes meanwhile are completed; one that comes soon is waited for,
        and so are executions. The device's loop calls this instead of sleeping when `timeout` is 0:
        one of its rounds takes as long as a pass, so it would double the latency at queue depth 1.
        `sched_yield` lets other processes, such as the guest's virtual processors, run here.
        """
        engine, hosts, deadlines = self._apu.engine, self.hosts, self._deadlines
        now = self._clock()
        until = now + PASS_TIME / len(hosts)
        spins, executing = 0, engine.executing
        awaited = self._media_work.any_unfinished or not self._apu.idle
        most = FEW_SPINS if awaited else SPINS
        polled = [host.queues for host in hosts if host.queues.polled]
        if not polled:
            return
        try:
            while (spins < most or executing or (deadlines.heap and deadlines.near)) and (
                now < until
            ):
                changed = False
                for queues in polled:
                    changed = changed or queues.has_changed()
                answered = executing and self._apu.has_message()
                if changed or answered or (deadlines.heap and deadlines.due):
                    if not self._execute_at_once(answered):
                        return
                    spins, executing = 0, engine.executing
                    now = self._clock()
                else:
                    spins += 1
                    os.sched_yield()
                    before, now = now, self._clock()
                    if now - before > CROWDED:
                        for host in hosts:
                            host.polling.yielded(now - before)
        except AccessFault:
            pass  # The next pass meets the same fault, and handles it.

    def _execute_at_once(self, answered: bool) -> bool:
        """Complete what is due or `answered`, poll the queues and send interrupts only. Returns
        False if a whole pass has to follow."""
        hosts, more = self.hosts, False
        for host in hosts:
            if host.dma.remote:
                return False  # memory that is reached by messages: only a whole pass waits for it
        try:
            if answered:
                for message in self._apu.messages():
                    self._handle_message(message)
                while self._engine.ended:
                    self._scheduler.ended(self._engine.ended.popleft())
                self._scheduler.run()
            if self._deadlines.heap:
                self._pass_time()
            for host in self.hosts:
                hosts = (host,)
                if host.serve(self.holding):
                    more = True
        except Exception as error:
            log.debug("commands were cut short", exc_info=True)
            self._fault(error, hosts)
            return False
        return not (
            more or self._media_work.any_unfinished or self._engine.ended or self._scheduler.ready
        )

    def power_on(self) -> None:
        """Load the state of the last power cycle. Blocks until the sidecar is read."""
        self._persistence.power_on()

    def power_off(self, *, clean: bool) -> None:
        """Flush everything to stable storage; `clean` unless something has failed. Blocks."""
        flush = flushing(self.subsystem.inventory.stored.values())
        ended = flush()
        for namespace, error in ended:
            if error is not None:
                log.error("namespace %d: %s", namespace.nsid, error.strerror)
        self._persistence.power_off(clean=clean and all(error is None for _, error in ended))
        self.subsystem.inventory.close()

    def _reset_subsystem(self) -> None:
        """Reset every controller, as the host of one has asked for it."""
        self.subsystem.inventory.features.reset()
        for zoned in self.subsystem.inventory.zoned:
            zoned.zones.changes = ZoneChanges()
        for host in self.hosts:
            host.lifecycle.subsystem_reset()

    @property
    def apu_may_start(self) -> bool:
        """True if there is no APU, and no write-back of the last one still reads the arenas."""
        controllers = self.subsystem.controllers
        return self._apu.port is None and not any(each.write_backs for each in controllers)

    def apu_started(self, port: RpuPort) -> None:
        """An APU runs and listens at the other end of `port`."""
        # The APU before will never report what it left unfinished.
        for controller in self.subsystem.controllers:
            controller.write_backs.apu_lost()
        if self.subsystem.job_time is not None:
            self.subsystem.job_time.apu_lost()
        self._apu.connect(port)

    def service(self, *, media: bool = True, apu: bool = True) -> bool:
        """Do what there is to do; True if more is waiting already.

        An exception here is a bug of the firmware: it sets controller fatal status, of the
        controller whose host interface it was in or of all, and the drive goes on.

        Args:
            media: the media executor may have finished something.
            apu: the APU may have said something.
        """
        if self.migration.stopped:
            self.migration.rest()
            return False
        was_cut_short, self._cut_short = self._cut_short, False
        try:
            # A pass that was cut short may have left some of what the executor has finished.
            more = self._pass(media=media or was_cut_short, apu=apu)
        except Exception as error:
            log.debug("a pass of the firmware was cut short", exc_info=True)
            self._fault(error, self.hosts)
            more = True
        if self._cut_short:
            # Tried again soon after the first failure only: a bug may be there in each pass.
            waiting = any(host.board.registers.host_writes for host in self.hosts)
            more = not was_cut_short or waiting
        if self.migration.stopping:
            self.migration.service()
        return more and not self.migration.stopped

    def _fault(self, error: Exception, hosts: Sequence[HostInterface]) -> None:
        """Deal with a bug of the firmware, in what it does for these hosts."""
        self._cut_short = True
        for host in hosts:
            host.fault(error)

    def _pass(self, *, media: bool, apu: bool) -> bool:
        holding, hosts, more = self.holding, self.hosts, False
        for host in hosts:
            try:
                # Nothing is new in most passes.
                if (
                    host.host_writes
                    or host.commands.paused
                    or not host.dma.mastering
                    or host.lifecycle.shut_down
                ):
                    host.begin_pass()
            except Exception as error:
                log.debug("a pass of the firmware was cut short", exc_info=True)
                self._fault(error, (host,))
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
        if self._media_work.touched:  # commands that wait for blocks, after those that had them
            self._media_work.wake()
            self._scheduler.run()
        if self._deadlines.heap:
            self._pass_time()
        for host in hosts:
            try:
                if host.serve(holding) or host.host_writes:
                    more = True
            except Exception as error:
                log.debug("a pass of the firmware was cut short", exc_info=True)
                self._fault(error, (host,))
        if now >= self._persistence.sample_at:
            self._persistence.sample(now)
        return (
            (self._stepping is not None and self._stepping.service(self.controller))
            or more
            or bool(self._engine.ended)
            or bool(self._scheduler.ready)
            or bool(self._media_work.touched)
        )

    def _pass_time(self) -> None:
        """Have commands and operations go on whose deadline has come."""
        if self._scheduler.time_passes():
            for host in self.hosts:
                host.polling.worked(0)  # a host that gets a completion may send its next command

    # Input: media, the APU.

    def _executing(self, tag: int) -> Controller:
        """The controller of an execution; the first one if it has ended."""
        execution = self._apu.engine.execution(tag)
        for controller in self.subsystem.controllers:
            if controller.compute.run_of(execution) is not None:
                return controller
        return self.controller

    def _poll_media(self) -> None:
        for future in self._executor.finished():
            self._media_work.finished(future)
            self._scheduler.ended(future)

    def _handle_message(self, message: ToRpu) -> None:
        """Do what a message of the APU asks for."""
        subsystem = self.subsystem
        job_time = subsystem.job_time
        match message:
            case WriteBack():
                subsystem.owner(message.accelerator).write_backs.start(message)
            case ReadCheck():
                subsystem.owner(message.accelerator).write_backs.check(message)
            case ReadJobValue():
                subsystem.owner(message.accelerator).value_reads.start(message)
            case ReadValue():
                self._executing(message.tag).value_reads.start(message)
            case JobEnded():
                if job_time is not None:
                    job_time.awaited.discard(message.accelerator)
                owner = subsystem.owner(message.accelerator)
                owner.alerts.vendor(JOB_ENDED_EVENT, message.log_page)
            case ResetDone():
                self._apu.reset_done(message.tag)
            case JobBegan() if job_time is not None:
                job_time.began(message)
            case JobCounted() if job_time is not None:
                job_time.counted(message)
            case JobLeft() if job_time is not None:
                job_time.left(message)

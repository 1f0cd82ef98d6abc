"""The host interface of one controller: what its host writes, its queues, and its interrupts."""

import logging
from collections.abc import Callable, Mapping

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
from potash_device.controller.doorbell_page import IDLE_POLL
from potash_device.controller.polling import Polling
from potash_device.controller.queue_set import UnknownDoorbell
from potash_device.controller.queues import InvalidDoorbell
from potash_firmware.rpu.arbitration import Arbiter
from potash_firmware.rpu.commands import Commands
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.dispatch import Table
from potash_firmware.rpu.interrupts import Interrupts
from potash_firmware.rpu.lifecycle import ENABLING, READY, Lifecycle
from potash_firmware.rpu.migration.migration import Migration
from potash_firmware.rpu.timing.holding import Holding
from pyvfio_user.memory import AccessFault

log = logging.getLogger(__name__)

HOST_WRITES_PER_PASS = 1024
"""Register writes of one pass, so that a host that floods registers does not delay commands."""

FAULT_LOG_INTERVAL = 60.0
"""Seconds between two log lines about passes that failed."""

_DOORBELL_ERRORS = {
    UnknownDoorbell: (ErrorEvent.INVALID_DOORBELL_REGISTER, Status.INVALID_QUEUE_IDENTIFIER),
    InvalidDoorbell: (ErrorEvent.INVALID_DOORBELL_VALUE, Status.INVALID_FIELD),
}
"""Each with the closest status: the error log requires one even outside a command."""


class HostInterface:
    """The host interface of a controller, whose steps the service loop takes in each pass.

    Args:
        make: makes the controller's commands, `Commands` or a class of an extension.
        admin, io: the dispatch tables, that of I/O commands for each command set.
        reset_subsystem: called for an NVM subsystem reset.
    """

    def __init__(
        self,
        controller: Controller,
        make: Callable[..., Commands],
        admin: Table,
        io: Mapping[CommandSet, Table],
        clock: Callable[[], float],
        reset_subsystem: Callable[[], None],
    ) -> None:
        self.controller = controller
        self.board = board = controller.board
        self.queues, self.dma = board.queues, board.dma
        self.host_writes = board.registers.host_writes
        self._clock = clock
        self.migration: Migration
        """While the drive is to stop, no command is fetched."""
        self.lifecycle = Lifecycle(controller, self._session_ended, reset_subsystem, clock)
        self.polling = Polling(clock, rest=None if board.queues.page is None else IDLE_POLL)
        self.interrupts = Interrupts(
            board, controller.faults, controller.timers, clock, controller.identifier
        )
        self.commands = make(
            controller,
            self.lifecycle,
            self.interrupts,
            admin,
            io,
            # Poll for room soon: a host may free entries without ringing a doorbell.
            blocked=lambda: self.polling.worked(0),
            clock=clock,
        )
        self.arbiter = Arbiter(controller, self.lifecycle, self.commands, self.interrupts, clock)
        self._events, self._keep_alive = controller.reports.events, controller.keep_alive
        self._features_version = -1
        self._logged_until = clock()
        controller.features.own_coalescing = self._own_coalescing
        board.reset_line = self.lifecycle.function_reset

    # The steps of a pass.

    def begin_pass(self) -> None:
        """Notice a pause or its end, and apply what the host has written."""
        was_paused = self.commands.paused
        self.commands.paused = not self.dma.mastering or self.lifecycle.shut_down
        if was_paused and not self.commands.paused:
            self._go_on()
        writes = self.host_writes
        for _ in range(HOST_WRITES_PER_PASS):
            if not writes:
                return
            offset, value = writes.popleft()
            if offset >= DOORBELL_BASE:
                self._doorbell(offset, value)
            elif offset == Register.CC.offset:
                self.lifecycle.configure(ControllerConfiguration(value))
            elif offset == Register.NSSR.offset and value == SUBSYSTEM_RESET_KEY:
                self.lifecycle.reset_subsystem()

    def serve(self, holding: Holding | None) -> bool:
        """Poll the queues, execute commands, and send events and interrupts. True if there are more
        commands already. In one piece, as it is called for each command of a host that waits for
        it.
        """
        lifecycle, queues, scheduler = self.lifecycle, self.queues, self.controller.scheduler
        if lifecycle.state is ENABLING or lifecycle.flush_is_due:
            lifecycle.service()
        may_fetch = False
        try:
            if lifecycle.state is READY and not self.commands.paused:
                # Also during a shutdown: completions that wait for room must still be posted.
                freed, errors = queues.poll()
                for completions in freed:
                    self.interrupts.announce(completions)
                for error in errors:
                    self._doorbell_error(error)
                if self._features_version != self.controller.features.version:
                    self._apply_features()
                may_fetch = not self.migration.stopping and (holding is None or holding.may_fetch)
                executed = 0
                if queues.filled and may_fetch and lifecycle.serving:
                    serve = self.arbiter.serve
                    executed = serve() if holding is None else holding.serve(serve)
                if executed:
                    self.polling.worked(executed)
                elif self.polling.may_arm and not queues.arm():
                    self.polling.armed()
                if self._events.queued and lifecycle.state is READY:
                    self._events.deliver()
                if scheduler.ready:
                    scheduler.run()
        except AccessFault as fault:
            self._queue_memory_failed(fault)
        if self._keep_alive.expired:
            self._host_is_dead()
        try:
            self.interrupts.send()
        except AccessFault as fault:
            self._queue_memory_failed(fault)
        return (
            may_fetch
            and lifecycle.serving
            and not self.commands.paused
            and bool(queues.filled)
            and any(map(self.arbiter.may_fetch, queues.filled.values()))
            and not self.dma.interrupted
        )

    def _queue_memory_failed(self, fault: AccessFault) -> None:
        """Fail the controller as a queue's memory cannot be accessed, unless the access was only
        interrupted by a message of the client, after which it is tried again."""
        if not self.dma.interrupted:
            self.lifecycle.fail(f"queue memory is gone: {fault}")

    def fault(self, error: Exception) -> None:
        """Deal with a bug of the firmware: an enabled controller fails until the host resets it."""
        reason = f"a mistake of the firmware: {error!r}"
        if self.lifecycle.state in (ENABLING, READY):
            try:
                self.lifecycle.fail(reason)
            except Exception:  # recording the failure may meet the same bug
                log.debug("the fault is not recorded whole", exc_info=True)
        elif self._clock() >= self._logged_until:  # no line for each pass of a bug that stays
            self._logged_until = self._clock() + FAULT_LOG_INTERVAL
            log.error("%s", reason)

    def _go_on(self) -> None:
        scheduler = self.controller.scheduler
        scheduler.resume()
        scheduler.run()
        for qid, completions in self.queues.completions.items():
            if completions.backlog:  # the host may have made room during the pause
                self._doorbell(doorbell_offset(qid, completion=True), completions.head)

    def _session_ended(self) -> None:
        """Drop pending interrupts: the session that they belong to has ended."""
        self.interrupts.clear()

    def _host_is_dead(self) -> None:
        self._keep_alive.reset()
        self.controller.reports.errors.add_event(Status.KEEP_ALIVE_TIMER_EXPIRED)
        self.lifecycle.fail("the host has sent no Keep Alive command in time")

    def _doorbell(self, offset: int, value: int) -> None:
        if self.lifecycle.state is not READY or self.lifecycle.shut_down:
            return
        try:
            queue = self.queues.ring(offset, value)
        except (InvalidDoorbell, UnknownDoorbell) as error:
            self._doorbell_error(error)
        except AccessFault as fault:
            if not self.commands.paused:
                self.lifecycle.fail(f"queue memory is gone: {fault}")
        else:
            if queue is not None:
                self.interrupts.announce(queue)

    def _doorbell_error(self, error: InvalidDoorbell | UnknownDoorbell) -> None:
        # No line for each write: a host could flood whoever reads the log.
        if self.controller.alerts.error(*_DOORBELL_ERRORS[type(error)]):
            log.warning("%s", error)

    # Features.

    def _apply_features(self) -> None:
        """The host has set features, or a reset has taken them back."""
        features = self.controller.features
        self._features_version = features.version
        self.arbiter.configure(features)
        self.polling.tuned = features.chosen(FeatureId.INTERRUPT_COALESCING) is None
        self.interrupts.configure(features)

    def _own_coalescing(self) -> int:
        """The value of Interrupt Coalescing while the device adapts by itself."""
        time = round(self.polling.tick / COALESCING_UNIT)
        return InterruptCoalescing(thr_z=0xFF if time else 0, time=time).encode()

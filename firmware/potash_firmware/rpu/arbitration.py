"""Arbitration between submission queues: round robin, in bursts.

Source: NVM Express Base Specification 2.0, section 3.4.4.1 and 5.27.1.1 (Arbitration)."""

from collections.abc import Callable

from nvme_spec.features import UNLIMITED_BURST, Arbitration, FeatureId
from nvme_spec.identify.capabilities import CommandSet
from potash_device.controller.queues import SubmissionQueue
from potash_firmware.rpu.command_sets.fast_path import FastPath
from potash_firmware.rpu.commands import Commands
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.features.values import Features
from potash_firmware.rpu.interrupts import Interrupts
from potash_firmware.rpu.lifecycle import Lifecycle
from potash_firmware.rpu.outstanding import OUTSTANDING_LIMIT

CHUNK = 64
"""Commands of an unlimited burst after which the time is checked."""

PASS_TIME = 500e-6
"""Seconds after which a pass begins no further burst; the controllers have equal shares."""

MEDIA_WORK_LIMIT = 64
"""Pieces of work that the media executor has at most; each may hold a buffer as large as MDTS."""

ADMIN_LIMIT = 256
"""Admin commands that wait at most: a limit of their own, as no flood of I/O is to delay them."""

_COMPUTE = CommandSet.COMPUTE


class Arbiter:
    """Serves the submission queues of one controller; `clock` gives seconds."""

    def __init__(
        self,
        controller: Controller,
        lifecycle: Lifecycle,
        commands: Commands,
        interrupts: Interrupts,
        clock: Callable[[], float],
    ) -> None:
        self.fast_path = FastPath(controller, commands.complete_successes, interrupts.send)
        if controller.timing is not None:
            from potash_firmware.rpu.timed_fast_path import TimedFastPath  # NumPy

            self.fast_path = TimedFastPath(controller, controller.timing, commands)
        self._always_slow = commands.observes_io
        """An extension observes commands."""
        self._board = controller.board
        self._lifecycle = lifecycle
        self._commands = commands
        self._interrupts = interrupts
        self._clock = clock
        self._faults = controller.faults
        self._unfinished = controller.media_work.unfinished
        self._outstanding = controller.outstanding
        self._operations = controller.operations
        self._burst = 0
        """Commands of a burst; 0 for no limit."""
        self._pass_time = PASS_TIME / len(controller.subsystem.controllers)
        """Its share of the time of a pass."""

    def configure(self, features: Features) -> None:
        """The host may have set another arbitration burst."""
        ab = Arbitration(features.get(FeatureId.ARBITRATION)).ab
        self._burst = 0 if ab == UNLIMITED_BURST else 1 << ab

    def serve(self) -> int:
        """Serve the queues round robin while the pass lasts; how many commands there were."""
        queues, burst = self._board.queues, self._burst
        executed, until, goes_on = 0, 0.0, True
        while goes_on:
            ready, goes_on = queues.round_robin(), False
            for queue in ready:
                # A command of this round may have deleted the queue, or taken the last room.
                if queue.closed or not self._has_room(queue):
                    continue
                done = self._serve_burst(queue, burst or CHUNK)
                if not done and self._board.dma.interrupted:
                    return executed
                executed += done
                goes_on = goes_on or queue.head != queue.tail
                may_continue = not burst and queue.head != queue.tail and queue.ready
                if not may_continue:
                    queues.served(queue)
                if len(ready) > 1:  # its host goes on while the others are served
                    self._interrupts.send()
                elif not goes_on:  # as far as is known: doorbells are polled in the next pass
                    return executed
                now = self._clock()
                until = until or now + self._pass_time
                if now >= until or not self._lifecycle.serving:
                    return executed
                if may_continue:
                    break
        return executed

    def may_fetch(self, queue: SubmissionQueue) -> bool:
        """There is something in the queue, and room for what comes of it."""
        return queue.ready and self._has_room(queue)

    def _has_room(self, queue: SubmissionQueue) -> bool:
        if queue.qid == 0:
            return self._outstanding.admin < ADMIN_LIMIT and not self._operations.full
        return (
            len(self._unfinished) < MEDIA_WORK_LIMIT
            and len(self._outstanding.all) < OUTSTANDING_LIMIT
        )

    def _serve_burst(self, queue: SubmissionQueue, burst: int) -> int:
        """Execute up to `burst` commands of a queue that has some; how many there were."""
        executed, slow = 0, False
        while True:
            if (
                queue.qid
                and not slow  # as the last one was, and its like often follows
                and not self._always_slow
                and not self._faults.io
                and self._board.trace.sink is None
                and queue.qid not in self._outstanding.fused
                and (done := self.fast_path.run(queue, burst - executed))
            ):
                executed += done
            elif self._board.dma.remote and self._board.dma.interrupted:
                break  # what failed for that only is begun again
            else:
                executed += 1
                slow = self._commands.begin(queue) is _COMPUTE
            if (
                executed >= burst
                or queue.head == queue.tail
                or not self.may_fetch(queue)
                or not self._lifecycle.serving
            ):
                break
        return executed

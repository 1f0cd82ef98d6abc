"""Interrupts for completions: as the host has configured them, or one per pass of the loop.

Source: NVM Express Base Specification 2.0, section 5.27.1.6 (Interrupt Coalescing), 5.27.1.7
(Interrupt Vector Configuration).
"""

from collections.abc import Callable

from nvme_spec.features import (
    COALESCING_UNIT,
    FeatureId,
    InterruptCoalescing,
    InterruptVectorConfiguration,
)
from potash_device.board import Board
from potash_device.controller.interrupts import Coalescing
from potash_device.controller.queues import CompletionQueue
from potash_firmware.rpu.deadlines import NO_TIMER, Deadlines, Timer
from potash_firmware.rpu.faults import Faults
from potash_firmware.rpu.features.values import Features


class Interrupts:
    """The interrupts of the controller with the identifier `controller`; `clock` gives seconds.

    One of `timers` wakes the loop when an interrupt is due that is held back.
    """

    def __init__(
        self,
        board: Board,
        faults: Faults,
        timers: Deadlines,
        clock: Callable[[], float],
        controller: int,
    ) -> None:
        self._lines = board.interrupts
        self._dma = board.dma
        self._queues = board.queues
        self._faults, self._controller = faults, controller
        self._timers = timers
        self._timer: Timer = NO_TIMER
        self.coalescing = Coalescing(clock)

    def configure(self, features: Features) -> None:
        """The host may have set other values of the features."""
        chosen = features.chosen(FeatureId.INTERRUPT_COALESCING)
        setting = InterruptCoalescing(chosen or 0)
        exempt = {
            vector
            for vector in range(self._lines.vectors if chosen else 0)
            if InterruptVectorConfiguration(
                features.get(FeatureId.INTERRUPT_VECTOR_CONFIGURATION, vector)
            ).cd
        }
        self._timer.cancel()  # the next may be due sooner
        self.coalescing.configure(setting.thr_z + 1, setting.time * COALESCING_UNIT, exempt)

    def announce(self, completions: CompletionQueue, *, urgent: bool = True) -> None:
        """Announce a new completion: the host is interrupted at the end of the pass, or at the time
        that it has chosen where nothing is `urgent`."""
        interrupt = completions.interrupt
        if interrupt.enabled:
            urgent = urgent or completions.qid == 0
            self.coalescing.announce(interrupt.vector, urgent=urgent)

    @property
    def held(self) -> set[int]:
        """Vectors of completions for which the host has not been interrupted."""
        return self.coalescing.held

    def send(self) -> None:
        """Interrupt the host for what is due, once it has the completions. Raises AccessFault."""
        if self._dma.remote and not self._queues.store():
            return
        coalescing = self.coalescing
        if not (coalescing.due or coalescing.holds):
            return
        due = coalescing.take_due()
        if due and self._faults.interrupts:
            due = self._faults.delivered(due, self._controller)
        for vector in due:
            self._lines.fire(vector)
        if coalescing.holds and self._timer.over and (left := coalescing.timeout) is not None:
            self._timer = self._timers.after(left)

    def clear(self) -> None:
        self.coalescing.clear()

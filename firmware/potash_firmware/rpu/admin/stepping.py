"""A clock that stands still until the host waits: Advance Clock, an extension (opcode F4h).

What a host measures then depends neither on this machine's speed nor on its scheduling. The host
sends Advance Clock when it has nothing else to do. The drive finishes all work whose end in
modelled time is not known yet, and then passes from deadline to deadline: up to a time (CDW11:10,
in nanoseconds), or if that is 0, until a completion queue has an entry that the host has not taken.
For that, CDW12 has the heads of the Admin completion queue (15:0) and of the first I/O completion
queue (31:16). Dwords 1:0 of the completion are the clock's time.
"""

from heapq import heappop

from csd_spec.opcodes import ClockOpcode
from nvme_spec.logs import CommandEffects
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.deadlines import SteppedClock
from potash_firmware.rpu.dispatch import Row, table
from potash_firmware.rpu.reservations import Access
from potash_firmware.rpu.scheduler import Signal, Wait

LATEST = 1 << 62
"""The latest time to which a host may advance the clock: the models compute in 64 bits."""

QUEUES = (0, 1)
"""The completion queues whose heads a host names."""


class Stepping:
    """The Advance Clock command of one controller."""

    def __init__(self) -> None:
        self._signal: Signal | None = None
        self._until = 0
        self._heads: tuple[int, int] = (0, 0)

    @property
    def commands(self) -> dict[int, Row]:
        """The row of the command, for the table of Admin commands."""
        return table(
            Row(ClockOpcode.ADVANCE, self.advance, Access.OTHER, effects=CommandEffects(0))
        )

    def advance(self, controller: Controller, command: Command) -> Steps:
        """Wait until `service` has advanced the clock. Raises NvmeError for a second one."""
        if self._signal is not None:
            raise NvmeError(Status.COMMAND_SEQUENCE_ERROR, "the clock is being advanced already")
        entry = command.entry
        until = entry.cdw11 << 32 | entry.cdw10
        if until > LATEST:
            raise NvmeError(Status.INVALID_FIELD, f"the clock does not go on to {until} ns")
        controller.statistics.uncounted += 1
        self._until = until
        self._heads = entry.cdw12 & 0xFFFF, entry.cdw12 >> 16
        self._signal = signal = Signal()
        try:
            yield Wait(signal)
        finally:
            self._signal = None
        return controller.deadlines.clock.now()

    def service(self, controller: Controller) -> bool:
        """Take a step if nothing else is to be done first. True if a step was taken."""
        signal, deadlines, job_time = self._signal, controller.deadlines, controller.job_time
        clock = deadlines.clock
        assert isinstance(clock, SteppedClock)
        assert job_time is not None
        if signal is None or signal.sent:  # the command may have to wait for Bus Master Enable
            return False
        if not self._until and self._has_completed(controller):
            signal.send()
            return True
        if (
            controller.media_work.unfinished
            or not controller.apu.idle
            or job_time.working(controller.write_backs.waiting)
        ):
            return False  # which wakes the loop when it ends
        heap = deadlines.heap
        while heap and heap[0][2].over:
            heappop(heap)
        due = heap[0][0] if heap else None
        if self._until and (due is None or due > self._until):
            clock.advance(self._until)
            signal.send()
        elif due is None:
            signal.send()
        else:
            clock.advance(due)
        return True

    def _has_completed(self, controller: Controller) -> bool:
        queues = controller.board.queues.completions
        return any(
            qid in queues and queues[qid].tail != head
            for qid, head in zip(QUEUES, self._heads, strict=True)
        )

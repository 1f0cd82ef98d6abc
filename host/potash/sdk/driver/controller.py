"""The controller: from reset to ready, commands on its two queue pairs, and shutdown.

NVM Express Base Specification 2.0, sections 3.5.1 (initialization), 3.6 (shutdown) and 3.7
(resets).
"""

import math
import os
import select
import time
from collections import deque
from collections.abc import Callable

from nvme_spec import commands, queues
from nvme_spec.features import FeatureId, NumberOfQueues
from nvme_spec.opcodes import AdminOpcode
from nvme_spec.registers import (
    DOORBELL_WIDTH,
    TIMEOUT_UNIT,
    AdminQueueAttributes,
    Capabilities,
    CommandSets,
    CommandSetSelected,
    ControllerConfiguration,
    ControllerStatus,
    Register,
    ShutdownNotification,
    ShutdownStatus,
    doorbell_offset,
)
from potash.sdk.driver.memory import DriverMemory, QueueMemory
from potash.sdk.driver.pci import PciFunction
from potash.sdk.errors import CommandFailed, CommandTimeout, DeviceMisbehaved
from potash.sdk.transport import NO_CDWS
from potash_wire import words

_STATUS_WORD = queues.STATUS_WORD_OFFSET // 2
_CIDS = 0xFFFF
"""FFFFh is left out: the error log uses it for "no command"."""

OnEnd = Callable[[queues.CompletionEntry | None], None]
"""Called when a command has ended: with its completion, or None after a reset."""


class QueuePair:
    """`entries` entries in each queue; `submission` and `completion` are zeroed views of them.

    At most half as many commands as entries may be in flight, see `head_is_due`.
    """

    def __init__(
        self, qid: int, entries: int, submission: memoryview, completion: memoryview
    ) -> None:
        self.qid = qid
        self.entries = entries
        self.tail = 0
        self.head = 0
        self.in_flight: dict[int, OnEnd] = {}
        self._submission = submission[: entries * queues.SUBMISSION_ENTRY_SIZE]
        self._completion = completion[: entries * queues.COMPLETION_ENTRY_SIZE]
        self._words = self._completion.cast("H")
        self._phase = queues.PHASE_BIT
        self._cid = 0

    def put(self, command: queues.SubmissionEntry, on_end: OnEnd) -> int:
        """Write a command, with an identifier that is free: its CID. Ring the tail afterwards."""
        cid = self._cid
        while cid == self._cid or cid in self.in_flight:
            cid = (cid + 1) % _CIDS
        self._cid = cid
        start = self.tail * queues.SUBMISSION_ENTRY_SIZE
        self._submission[start : start + queues.SUBMISSION_ENTRY_SIZE] = command.encode()
        queues.COMMAND_ID.pack_into(self._submission, start + queues.COMMAND_ID_OFFSET, cid)
        self.tail = (self.tail + 1) % self.entries
        self.in_flight[cid] = on_end
        return cid

    def take(self) -> queues.CompletionEntry | None:
        """The next completion, if there is one. Ring the head afterwards if `head_is_due`."""
        # The phase tag alone says that the entry is there; only then may the rest be read.
        word = self._words[self.head * queues.COMPLETION_ENTRY_WORDS + _STATUS_WORD]
        if word & queues.PHASE_BIT != self._phase:
            return None
        entry = queues.CompletionEntry.decode(
            self._completion, self.head * queues.COMPLETION_ENTRY_SIZE
        )
        self.head += 1
        if self.head == self.entries:
            self.head = 0
            self._phase ^= queues.PHASE_BIT
        return entry

    @property
    def head_is_due(self) -> bool:
        """True if the head has to be reported: twice a lap keeps the completion queue from filling.

        Half of the queue is always free for commands in flight, and each message that is not sent
        spares the device a wake-up.
        """
        return self.head % (self.entries // 2) == 0

    def release(self) -> None:
        """Drop the views of shared memory."""
        for view in (self._words, self._completion, self._submission):
            view.release()


ADMIN_QUEUE = 0
IO_QUEUE = 1
STATUS_POLL = 0.001
"""Seconds between two reads of CSTS while the controller gets ready."""
LIVENESS_POLL = 0.25
"""Seconds after which a waiting command checks that the controller is alive."""
SHUTDOWN_TIMEOUT = 5.0
"""Seconds that a shutdown may take."""


class Controller:
    """Drives one controller; `eventfds[i]` is vector i's.

    It asks for `io_queues` I/O queue pairs, and creates the first.
    """

    def __init__(
        self, function: PciFunction, memory: DriverMemory, eventfds: list[int], io_queues: int = 1
    ) -> None:
        self._function = function
        self._io_queues = io_queues
        self._memory = memory
        self._admin_eventfd = _Interrupt(eventfds[0])
        self._io_eventfd = _Interrupt(eventfds[-1])
        self._io_vector = len(eventfds) - 1
        self._capabilities = Capabilities()
        self._queues: list[QueuePair] = []
        self._event_requested = False
        self._events: deque[int] = deque()

    def start(self, timeout: float) -> None:
        """Enable the controller with one I/O queue pair; again after any reset."""
        self._capabilities = Capabilities(self._read(Register.CAP))
        self._check_capabilities()
        self._disable()
        forgotten = [on_end for queue in self._queues for on_end in queue.in_flight.values()]
        self.release()
        for on_end in forgotten:
            on_end(None)
        self._events.clear()
        entries = self.entries
        self._queues.append(_queue_pair(ADMIN_QUEUE, entries, self._memory.admin))
        last = entries - 1
        self._write(Register.AQA, AdminQueueAttributes(asqs_z=last, acqs_z=last).encode())
        self._write(Register.ASQ, self._memory.admin.submission_address)
        self._write(Register.ACQ, self._memory.admin.completion_address)
        several = self._capabilities.css & CommandSets.IO_COMMAND_SETS
        sets = CommandSetSelected.ALL_SUPPORTED if several else CommandSetSelected.NVM
        enabled = ControllerConfiguration(
            en=1,
            css=sets,
            iosqes=queues.SUBMISSION_ENTRY_SHIFT,
            iocqes=queues.COMPLETION_ENTRY_SHIFT,
        )
        self._write(Register.CC, enabled.encode())
        self._await("become ready", self._ready_timeout, lambda status: status.rdy == 1)
        self._create_io_queues(entries, timeout)

    def submit(
        self, admin: bool, command: queues.SubmissionEntry, on_end: OnEnd
    ) -> tuple[int, int]:
        """Send one command; `wait` calls `on_end` with its completion, `start` with None.

        Gives its queue's identifier and its own, as Abort takes them.
        """
        queue = self._queues[ADMIN_QUEUE if admin else IO_QUEUE]
        cid = queue.put(command, on_end)
        self._ring(queue.qid, False, queue.tail)
        return queue.qid, cid

    def wait(self, admin: bool, deadline: float) -> bool:
        """Handle completions, or if there are none, sleep until there may be some.

        False at the deadline, in seconds of `time.monotonic`.
        """
        queue = self._queues[ADMIN_QUEUE if admin else IO_QUEUE]
        if self._handle_completions(queue):
            return True
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        interrupt = self._admin_eventfd if admin else self._io_eventfd
        interrupted = interrupt.wait(min(remaining, LIVENESS_POLL))
        if not interrupted:
            self.check()
        return True

    def check(self) -> None:
        """Raises DeviceMisbehaved for a fatal status."""
        if ControllerStatus(self._read(Register.CSTS)).cfs:
            raise DeviceMisbehaved("the controller reports a fatal status; reset it")

    def await_event(self, timeout: float) -> int | None:
        """Implement `Transport.await_event`. One event request is outstanding afterwards."""
        deadline = time.monotonic() + timeout
        if not self._event_requested:
            self._event_requested = True
            request = admin_command(AdminOpcode.ASYNCHRONOUS_EVENT_REQUEST, 0, NO_CDWS)
            self.submit(True, request, self._on_event)
        while not self._events:
            if not self.wait(True, deadline):
                return None
        return self._events.popleft()

    def shut_down(self) -> None:
        """Notify the controller of a shutdown, and wait until it is complete."""
        configuration = ControllerConfiguration(self._read(Register.CC))
        if configuration.en:
            notified = configuration.update(shn=ShutdownNotification.NORMAL)
            self._write(Register.CC, notified.encode())
            self._await(
                "shut down", SHUTDOWN_TIMEOUT, lambda status: status.shst == ShutdownStatus.COMPLETE
            )
            self._disable()

    def release(self) -> None:
        """Drop every view of shared memory."""
        while self._queues:
            self._queues.pop().release()

    @property
    def entries(self) -> int:
        """Entries of each queue."""
        return min(self._memory.entries, self._capabilities.mqes_z + 1)

    def _check_capabilities(self) -> None:
        if not self._capabilities.css & CommandSets.NVM:
            raise DeviceMisbehaved("the controller does not support the NVM command set")
        if self._capabilities.mpsmin:
            raise DeviceMisbehaved("the controller does not support pages of 4096 bytes")
        doorbells_end = self._doorbell(IO_QUEUE, True) + DOORBELL_WIDTH
        if self._function.bar0_size < doorbells_end:
            raise DeviceMisbehaved("BAR 0 has no room for the doorbells")

    def _disable(self) -> None:
        configuration = ControllerConfiguration(self._read(Register.CC))
        self._write(Register.CC, configuration.update(en=0, shn=ShutdownNotification.NONE).encode())
        self._await("stop", self._ready_timeout, lambda status: status.rdy == 0, fatal_allowed=True)

    @property
    def _ready_timeout(self) -> float:
        """Seconds, by CAP.TO; a controller that says 0 gets one unit all the same."""
        return TIMEOUT_UNIT * max(1, self._capabilities.to)

    def _create_io_queues(self, entries: int, timeout: float) -> None:
        last = self._io_queues - 1
        wanted = NumberOfQueues(nsq_z=last, ncq_z=last).encode()
        set_queues = commands.SetFeatures(FeatureId.NUMBER_OF_QUEUES, wanted)
        memory = self._memory.io
        create_cq = commands.CreateIoCompletionQueue(IO_QUEUE, entries - 1, iv=self._io_vector)
        create_sq = commands.CreateIoSubmissionQueue(IO_QUEUE, entries - 1, cqid=IO_QUEUE)
        queue = _queue_pair(IO_QUEUE, entries, memory)
        self._queues.append(queue)
        for opcode, prp1, cdws in (
            (AdminOpcode.SET_FEATURES, 0, set_queues.encode()),
            (AdminOpcode.CREATE_IO_COMPLETION_QUEUE, memory.completion_address, create_cq.encode()),
            (AdminOpcode.CREATE_IO_SUBMISSION_QUEUE, memory.submission_address, create_sq.encode()),
        ):
            self.execute(admin_command(opcode, prp1, cdws), timeout)

    @property
    def heads(self) -> int:
        """The heads of the Admin completion queue (bits 15:0) and of the I/O one (31:16)."""
        return self._queues[ADMIN_QUEUE].head | self._queues[IO_QUEUE].head << 16

    def execute(self, command: queues.SubmissionEntry, timeout: float) -> queues.CompletionEntry:
        """Send an Admin command, and wait for its completion."""
        completions: list[queues.CompletionEntry | None] = []
        self.submit(True, command, completions.append)
        deadline = time.monotonic() + timeout
        while not completions:
            if not self.wait(True, deadline):
                raise command_timeout(timeout)
        (entry,) = completions
        assert entry is not None
        if entry.status:
            raise CommandFailed(True, command.opcode, entry.status, dnr=entry.dnr)
        return entry

    def _handle_completions(self, queue: QueuePair) -> bool:
        """End the commands that have completed; whether there are any."""
        found = False
        while (entry := queue.take()) is not None:
            found = True
            if queue.head_is_due:
                self._ring(queue.qid, True, queue.head)
            on_end = queue.in_flight.pop(entry.cid, None)
            if on_end is None:
                raise DeviceMisbehaved(f"command {entry.cid} was answered, but is not in flight")
            on_end(entry)
        return found

    def _on_event(self, entry: queues.CompletionEntry | None) -> None:
        self._event_requested = False
        if entry is not None and not entry.status:
            self._events.append(entry.dw0)

    def _await(
        self,
        what: str,
        timeout: float,
        reached: Callable[[ControllerStatus], bool],
        *,
        fatal_allowed: bool = False,
    ) -> None:
        deadline = time.monotonic() + timeout
        while not reached(status := ControllerStatus(self._read(Register.CSTS))):
            if status.cfs and not fatal_allowed:
                raise DeviceMisbehaved(f"the controller failed to {what}: its status is fatal")
            if time.monotonic() >= deadline:
                raise CommandTimeout(f"the controller did not {what} in {timeout:g} s")
            time.sleep(STATUS_POLL)

    def _doorbell(self, qid: int, completion: bool) -> int:
        return doorbell_offset(qid, completion, self._capabilities.dstrd)

    def _ring(self, qid: int, completion: bool, value: int) -> None:
        self._function.write_register(self._doorbell(qid, completion), DOORBELL_WIDTH, value)

    def _read(self, register: Register) -> int:
        return self._function.read_register(register.offset, register.width)

    def _write(self, register: Register, value: int) -> None:
        self._function.write_register(register.offset, register.width, value)


class _Interrupt:
    """A vector's eventfd, which may have any number: the application has descriptors of its own."""

    def __init__(self, eventfd: int) -> None:
        self._eventfd = eventfd
        self._poll = select.poll()
        self._poll.register(eventfd, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """Take the interrupt if it comes in time, to the next whole millisecond."""
        if not self._poll.poll(math.ceil(seconds * 1000)):
            return False
        os.eventfd_read(self._eventfd)
        return True


def command_timeout(timeout: float) -> CommandTimeout:
    return CommandTimeout(f"the device did not complete a command in {timeout:g} s")


def _queue_pair(qid: int, entries: int, memory: QueueMemory) -> QueuePair:
    memory.clear()
    return QueuePair(qid, entries, memory.submission, memory.completion)


def admin_command(opcode: int, prp1: int, cdws: words.Cdws) -> queues.SubmissionEntry:
    return queues.SubmissionEntry(opcode, 0, 0, 0, 0, 0, 0, prp1, 0, *cdws)

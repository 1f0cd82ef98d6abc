"""The drive alone, over its socket: a load generator as cheap as can be.

The entries of a submission queue are written once, before anything is measured; from then on a
command is submitted by moving the tail in the shadow page, and completions are counted by comparing
their status words with numpy, a batch at a time. So what is measured is the device, and not Python
at the other end. A successful status word equals its phase tag; any other one ends the measurement.
"""

import contextlib
import os
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nvme_spec.memory_commands import MemoryOpcode
from nvme_spec.opcodes import AdminOpcode, IoOpcode
from nvme_spec.queues import (
    COMPLETION_ENTRY_SHIFT,
    COMPLETION_ENTRY_SIZE,
    COMPLETION_ENTRY_WORDS,
    STATUS_WORD_OFFSET,
    SUBMISSION_ENTRY_SHIFT,
    SUBMISSION_ENTRY_SIZE,
    SubmissionEntry,
)
from nvme_spec.ranges import BlockSourceRange, CopyFormat
from nvme_spec.registers import (
    AdminQueueAttributes,
    CommandSetSelected,
    ControllerConfiguration,
    ControllerStatus,
    Register,
    doorbell_offset,
)
from potash.bench.drives import SIZE, filled
from potash.bench.processors import process_time
from potash.bench.report import Result, alone, paired
from potash.sdk.driver.pci import PciFunction
from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress
from potash.vm.drive import device_process
from pyvfio_user.client import Client, SealedMemory

PAGE = 4096
ENTRIES = 1024
"""Of each I/O queue. An entry's index is its command's identifier, and has a page for its data."""
ADMIN_ENTRIES = 16
PIECE = 1 << 20
"""Bytes that one Memory Copy moves."""
STALL = 5.0
"""Seconds without a completion after which the device counts as hung."""
BASELINE = "memory copy"


@dataclass(frozen=True)
class Load:
    """The same command at random places: `depth` at a time in each of `queues`, of `size` bytes.

    `entry` makes one, with its data at the given address; of `memory`, namespace 2 is needed.
    """

    name: str
    depth: int
    queues: int
    entry: Callable[[int, memoryview, int], SubmissionEntry] = lambda cid, memory, data: (
        SubmissionEntry(
            IoOpcode.READ, cid=cid, nsid=1, prp1=data, cdw10=random.randrange(SIZE // PAGE)
        )
    )
    size: int = PAGE
    memory: bool = False


def _moving(opcode: MemoryOpcode) -> Callable[[int, memoryview, int], SubmissionEntry]:
    """Memory Read or Memory Write of a page."""

    def entry(cid: int, memory: memoryview, data: int) -> SubmissionEntry:
        start = random.randrange(SIZE // PAGE) * PAGE
        return SubmissionEntry(opcode, cid=cid, nsid=2, prp1=data, cdw10=start, cdw12=PAGE)

    return entry


def _copying(cid: int, memory: memoryview, data: int) -> SubmissionEntry:
    """Memory Copy of a piece of blocks."""
    block = random.randrange((SIZE - PIECE) // PAGE)
    source = BlockSourceRange(1, block, PIECE // PAGE - 1).encode(CopyFormat.BLOCKS)
    memory[data : data + len(source)] = source
    start = random.randrange(SIZE // PIECE) * PIECE
    last = CopyFormat.BLOCKS << 8
    return SubmissionEntry(
        MemoryOpcode.COPY, cid=cid, nsid=2, cdw2=PIECE, prp1=data, cdw10=start, cdw12=last
    )


LOADS = (
    Load("socket-randread-4k-qd1", 1, 1),
    Load("socket-randread-4k-qd32", 32, 1),
    Load("socket-randread-4k-qd1-2q", 1, 2),
    Load("socket-randread-4k-qd32-2q", 32, 2),
    Load("memory-read-4k-qd32", 32, 1, _moving(MemoryOpcode.READ), memory=True),
    Load("memory-write-4k-qd32", 32, 1, _moving(MemoryOpcode.WRITE), memory=True),
    Load("memory-copy-1m-qd4", 4, 1, _copying, PIECE, memory=True),
)
NAMES = tuple(load.name for load in LOADS)


def measure(
    names: Sequence[str], times: int, seconds: float, progress: Progress
) -> Iterator[Result]:
    """Measure what is named, `times` for `seconds` each; the baseline copies the same pages by itself.

    Raises:
        PotashError: the device does not start, hangs, or fails a command.
    """
    chosen = [load for load in LOADS if load.name in names]
    for index, load in enumerate(chosen):
        rates, costs = [], []
        with _generator(load) as generator:
            for turn in range(times):
                progress(load.name, (index + turn / times) / len(chosen))
                rate, cost = generator.run(seconds)
                copies = _copies(load.depth * load.queues, seconds / 10, load.size)
                rates.append((rate, copies))
                costs.append(cost * 1e6)
        yield paired(load.name, "iops", "1/s", BASELINE, rates)
        yield alone(load.name, "device time", "µs/io", costs)


def _copies(depth: int, seconds: float, size: int) -> float:
    """Copies of `size` bytes from random places that plain Python makes in a second."""
    source = memoryview(bytearray(os.urandom(1 << 20) * 16))
    target = memoryview(bytearray(depth * size))
    places = [random.randrange(len(source) // size) * size for _ in range(ENTRIES)]
    done = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for index in range(depth):
            place = places[(done + index) % ENTRIES]
            at = index * size
            target[at : at + size] = source[place : place + size]
        done += depth
    return done / seconds


class _Queue:
    """An I/O queue pair whose entries are all written already."""

    def __init__(
        self, memory: memoryview, qid: int, submission: int, data: int, load: Load
    ) -> None:
        self.qid = qid
        self.submission = submission
        self.completion = submission + ENTRIES * SUBMISSION_ENTRY_SIZE
        self.size = ENTRIES * (SUBMISSION_ENTRY_SIZE + COMPLETION_ENTRY_SIZE)
        for cid in range(ENTRIES):
            entry = load.entry(cid, memory, data + cid * PAGE)
            at = submission + cid * SUBMISSION_ENTRY_SIZE
            memory[at : at + SUBMISSION_ENTRY_SIZE] = entry.encode()
        ring = memory[self.completion : submission + self.size]
        self._status = np.frombuffer(ring, "<u2")[STATUS_WORD_OFFSET // 2 :: COMPLETION_ENTRY_WORDS]
        self._head = 0
        self._phase = 1
        self.tail = 0

    def reap(self, most: int) -> int:
        """Count the completions that are there, in a batch of `most` at most."""
        head = self._head
        end = min(head + most, ENTRIES)
        matches = self._status[head:end] == self._phase
        done = end - head if matches.all() else int(matches.argmin())
        self._head = head + done
        if self._head == ENTRIES:
            self._head = 0
            self._phase ^= 1
        return done

    def failure(self) -> int:
        """The status word at the head, where it is one of a command that failed; else 0."""
        word = int(self._status[self._head])
        return word if word & 1 == self._phase and word >> 1 else 0

    @property
    def head(self) -> int:
        return self._head

    def release(self) -> None:
        del self._status


class _Generator:
    """A controller with its queues, and the loop that keeps them filled."""

    def __init__(self, client: Client, memory: SealedMemory, load: Load, pid: int) -> None:
        self._function = PciFunction(client)
        self._view = memory.view
        self._load = load
        self._pid = pid
        self._admin_tail = 0
        self._admin_sq, self._admin_cq, self._shadow, self._events = (
            page * PAGE for page in range(4)
        )
        self._words = memory.view[self._shadow : self._shadow + 2 * PAGE].cast("I")
        at = 4 * PAGE
        self._queues: list[_Queue] = []
        for qid in range(1, load.queues + 1):
            queue = _Queue(memory.view, qid, at, at + (ENTRIES * 80), load)
            self._queues.append(queue)
            at += queue.size + ENTRIES * PAGE

    @staticmethod
    def memory_size(load: Load) -> int:
        return 4 * PAGE + load.queues * ENTRIES * (
            SUBMISSION_ENTRY_SIZE + COMPLETION_ENTRY_SIZE + PAGE
        )

    def start(self, eventfds: list[int]) -> None:
        """Bring the controller to ready, with the queues and shadow doorbells."""
        function = self._function
        function.enable()
        function.enable_interrupts(eventfds)
        last = ADMIN_ENTRIES - 1
        self._write(Register.AQA, AdminQueueAttributes(asqs_z=last, acqs_z=last).encode())
        self._write(Register.ASQ, self._admin_sq)
        self._write(Register.ACQ, self._admin_cq)
        enabled = ControllerConfiguration(
            en=1,
            css=CommandSetSelected.ALL_SUPPORTED if self._load.memory else CommandSetSelected.NVM,
            iosqes=SUBMISSION_ENTRY_SHIFT,
            iocqes=COMPLETION_ENTRY_SHIFT,
        )
        self._write(Register.CC, enabled.encode())
        until = time.monotonic() + STALL
        status = Register.CSTS
        while not ControllerStatus(function.read_register(status.offset, status.width)).rdy:
            if time.monotonic() > until:
                raise PotashError("the device does not become ready")
            time.sleep(1e-3)
        for queue in self._queues:
            sizes = (ENTRIES - 1) << 16 | queue.qid
            vector = queue.qid << 16
            self._admin(
                AdminOpcode.CREATE_IO_COMPLETION_QUEUE, queue.completion, 0, sizes, vector | 3
            )
            self._admin(
                AdminOpcode.CREATE_IO_SUBMISSION_QUEUE, queue.submission, 0, sizes, vector | 1
            )
        self._admin(AdminOpcode.DOORBELL_BUFFER_CONFIG, self._shadow, self._events)

    def run(self, seconds: float) -> tuple[float, float]:
        """Commands a second, and the device's processor seconds for each of them."""
        before = process_time(self._pid)
        started = time.perf_counter()
        until = started + seconds
        stalled = started + STALL
        words, queues, depth = self._words, self._queues, self._load.depth
        total = 0
        for queue in queues:
            self._submit(queue, depth)
        now = started
        while now < until:
            progress = 0
            for queue in queues:
                done = queue.reap(depth)
                if done:
                    words[2 * queue.qid + 1] = queue.head
                    self._submit(queue, done)
                    progress += done
            now = time.perf_counter()
            if progress:
                total += progress
                stalled = now + STALL
            elif now > stalled or any(queue.failure() for queue in queues):
                raise self._failure()
        elapsed = now - started
        for queue in queues:
            self._drain(queue, depth)
        return total / elapsed, (process_time(self._pid) - before) / total

    def release(self) -> None:
        for queue in self._queues:
            queue.release()
        self._words.release()

    def _submit(self, queue: _Queue, count: int) -> None:
        """Move the tail, and ring if the device has asked for that (section B.5)."""
        before = queue.tail
        queue.tail = after = (before + count) % ENTRIES
        index = 2 * queue.qid
        self._words[index] = after
        event = self._words[PAGE // 4 + index]
        if (after - event - 1) & 0xFFFF < (after - before) & 0xFFFF:
            offset = doorbell_offset(queue.qid, completion=False)
            self._function.write_register(offset, 4, after)

    def _drain(self, queue: _Queue, left: int) -> None:
        until = time.monotonic() + STALL
        while left:
            left -= queue.reap(left)
            self._words[2 * queue.qid + 1] = queue.head
            if time.monotonic() > until:
                raise self._failure()

    def _failure(self) -> PotashError:
        for queue in self._queues:
            if word := queue.failure():
                return PotashError(
                    f"the device fails a command with status {word >> 1 & 0x7FF:#05x}"
                )
        return PotashError(f"the device completes nothing for {STALL:g} seconds")

    def _admin(
        self, opcode: AdminOpcode, prp1: int, prp2: int, cdw10: int = 0, cdw11: int = 0
    ) -> None:
        """One admin command, whose completion is polled for; there are fewer than entries."""
        index = self._admin_tail
        entry = SubmissionEntry(
            opcode, cid=index, prp1=prp1, prp2=prp2, cdw10=cdw10, cdw11=cdw11
        ).encode()
        at = self._admin_sq + index * SUBMISSION_ENTRY_SIZE
        self._view[at : at + SUBMISSION_ENTRY_SIZE] = entry
        self._admin_tail += 1
        self._function.write_register(doorbell_offset(0, completion=False), 4, self._admin_tail)
        where = self._admin_cq + index * COMPLETION_ENTRY_SIZE + STATUS_WORD_OFFSET
        until = time.monotonic() + STALL
        while not (word := struct.unpack_from("<H", self._view, where)[0]) & 1:
            if time.monotonic() > until:
                raise PotashError(f"the device does not answer admin command {opcode.name}")
            time.sleep(1e-4)
        if word >> 1:
            raise PotashError(f"the device fails {opcode.name} with status {word >> 1:#06x}")

    def _write(self, register: Register, value: int) -> None:
        self._function.write_register(register.offset, register.width, value)


@contextlib.contextmanager
def _generator(load: Load) -> Iterator[_Generator]:
    """A device of its own, and a generator that is connected to it."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(filled("blocks"))
        options = ("--memory-namespace", str(SIZE)) if load.memory else ()
        device = stack.enter_context(
            device_process(folder / "drive", "--media", str(folder / "blocks"), *options)
        )
        client = stack.enter_context(Client(folder / "drive"))
        memory = stack.enter_context(SealedMemory(_Generator.memory_size(load)))
        client.negotiate()
        client.dma_map(0, len(memory.view), memory.fd)
        eventfds = []
        for _ in range(load.queues + 1):
            eventfds.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            stack.callback(os.close, eventfds[-1])
        generator = _Generator(client, memory, load, device.pid)
        stack.callback(generator.release)
        generator.start(eventfds)
        yield generator

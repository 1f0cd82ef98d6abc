"""A load generator for a drive over its socket, as cheap as can be.

The entries of a submission queue are written once, before anything is measured; from then on a
command is submitted by moving the tail in the shadow page, and completions are counted by comparing
their status words with numpy, a batch at a time. So what is measured is the device, and not Python
at the other end. A successful status word equals its phase tag; any other one ends the measurement.
"""

import contextlib
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nvme_spec.memory_commands import MemoryCopy, MemoryOpcode
from nvme_spec.opcodes import AdminOpcode, IoOpcode
from nvme_spec.queues import (
    COMPLETION_ENTRY_SIZE,
    COMPLETION_ENTRY_WORDS,
    FLAGS_PSDT_SHIFT,
    STATUS_WORD_OFFSET,
    SUBMISSION_ENTRY_SIZE,
    Psdt,
    SubmissionEntry,
)
from nvme_spec.ranges import BlockSourceRange, CopyFormat
from nvme_spec.registers import doorbell_offset
from potash.bench.drives import SIZE, filled, random_bytes
from potash.bench.processors import RESOLUTION, family_time
from potash.bench.report import Result, Settings, alone, paired
from potash.configuration import Configuration
from potash.devices import serving
from potash.namespace_sections import NamespaceSection
from potash.sdk import Device
from potash.sdk.driver.controller import Controller
from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress
from potash.sdk.vfio_user import VfioUserTransport, open_vfio_user
from potash.sections import MODELLED, MemorySection, TimeSection
from pyvfio_user.sealed_memory import SealedMemory

PAGE = 4096
ENTRIES = 1024
"""Entries of each I/O queue. An entry's index is its command's identifier, and has a page for its
data."""
LARGE = 128 << 10
"""Bytes of a large read, whose pages are those of the entries behind it too."""
LARGE_PLACES = PAGE // 8 - LARGE // PAGE
"""Pages at which a large read's data may begin, so that its PRP list is in one page."""
SHADOW_PAGES = 2
"""The shadow doorbells, and what the device says of them."""
STALL = 20.0
"""Seconds without a completion after which the device counts as hung."""
Command = Callable[[int], tuple[SubmissionEntry, bytes]]
"""The command at an index of a queue, and what is in its page before it; the queue sets its
identifier and its data pointer."""


class LoadResult(NamedTuple):
    """The measured results of a load."""

    rate: float
    """Commands a second."""
    cost: float
    """Processor seconds of all the device's processes for each command."""
    latencies: Sequence[float] = ()
    """Seconds from the doorbell to the completion of each, where they were measured."""


class _Queue:
    """An I/O queue pair, which has its memory from `submission` on."""

    SIZE = ENTRIES * (SUBMISSION_ENTRY_SIZE + COMPLETION_ENTRY_SIZE + PAGE) + PAGE

    def __init__(self, memory: memoryview, qid: int, submission: int) -> None:
        self.qid = qid
        self.submission = submission
        self.completion = submission + ENTRIES * SUBMISSION_ENTRY_SIZE
        self._data = self.completion + ENTRIES * COMPLETION_ENTRY_SIZE
        self._memory = memory
        ring = memory[self.completion : self._data]
        self._status = np.frombuffer(ring, "<u2")[STATUS_WORD_OFFSET // 2 :: COMPLETION_ENTRY_WORDS]
        self.head = 0
        self._phase = 1
        self.tail = 0

    def fill(self, command: Command, size: int = PAGE, *, sgl: bool = False) -> None:
        """Write the entries: commands of `size` bytes, with PRPs or with one SGL data block."""
        prps = self._data + ENTRIES * PAGE
        for index in range(PAGE // 8):
            struct.pack_into("<Q", self._memory, prps + 8 * index, self._data + index * PAGE)
        for cid in range(ENTRIES):
            entry, content = command(cid)
            place = cid % LARGE_PLACES if size == LARGE else cid
            page = self._data + place * PAGE
            self._memory[page : page + len(content)] = content
            at = self.submission + cid * SUBMISSION_ENTRY_SIZE
            self._memory[at : at + SUBMISSION_ENTRY_SIZE] = entry._replace(
                cid=cid,
                flags=int(Psdt.SGL_MPTR_BUFFER) << FLAGS_PSDT_SHIFT if sgl else 0,
                prp1=page,
                prp2=size if sgl else prps + 8 * (place + 1),
            ).encode()

    def reap(self, most: int) -> int:
        """Count the completions that are there, in a batch of `most` at most."""
        head = self.head
        end = min(head + most, ENTRIES)
        matches = self._status[head:end] == self._phase
        done = end - head if matches.all() else int(matches.argmin())
        self.head = head + done
        if self.head == ENTRIES:
            self.head = 0
            self._phase ^= 1
        return done

    def failure(self) -> int:
        """The status word at the head, where it is one of a command that failed; else 0."""
        word = int(self._status[self.head])
        return word if word & 1 == self._phase and word >> 1 else 0

    def release(self) -> None:
        del self._status


class Generator:
    """A device with queues 1 to `queues` here, and the loop that keeps them filled.

    The SDK, whose own I/O queue comes before these, sends the Admin commands.
    """

    def __init__(
        self, transport: VfioUserTransport, memory: SealedMemory, queues: int, pid: int
    ) -> None:
        self.device = Device(transport, timeout=STALL)
        self._function = transport.function
        self._pid = pid
        self._words = memory.view[: SHADOW_PAGES * PAGE].cast("I")
        self._queues = [
            _Queue(memory.view, qid + 2, SHADOW_PAGES * PAGE + qid * _Queue.SIZE)
            for qid in range(queues)
        ]

    def start(self, controller: Controller) -> None:
        """Create the queues, and have shadow doorbells used."""
        for queue in self._queues:
            sizes, vector = (ENTRIES - 1) << 16 | queue.qid, 1 << 16
            for opcode, address, flags in (
                (AdminOpcode.CREATE_IO_COMPLETION_QUEUE, queue.completion, vector | 3),
                (AdminOpcode.CREATE_IO_SUBMISSION_QUEUE, queue.submission, queue.qid << 16 | 1),
            ):
                entry = SubmissionEntry(opcode, prp1=address, cdw10=sizes, cdw11=flags)
                controller.execute(entry, STALL)
        shadow = AdminOpcode.DOORBELL_BUFFER_CONFIG
        controller.execute(SubmissionEntry(shadow, prp1=0, prp2=PAGE), STALL)

    def fill(self, qid: int, command: Command, size: int = PAGE, *, sgl: bool = False) -> None:
        """Have `run` give these commands, of `size` bytes, in a queue."""
        self._queues[qid - 1].fill(command, size, sgl=sgl)

    def run(self, depth: int, seconds: float, qids: Sequence[int] = (1,)) -> LoadResult:
        """Keep `depth` commands in flight in each of some queues, until at least one has ended."""
        before = family_time(self._pid)
        started = time.perf_counter()
        until = started + seconds
        stalled = started + STALL
        words, queues = self._words, [self._queues[qid - 1] for qid in qids]
        total = 0
        for queue in queues:
            self._submit(queue, depth)
        now = started
        while now < until or not total:
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
        return LoadResult(total / elapsed, self._cost(before, total))

    def warm_up(self, depth: int, seconds: float) -> None:
        """Run bursts of commands, each to its end, so that all processes of the device are ready.

        The first command of a process may take so long that its identifier would come up again.
        """
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self.run(depth, 0)

    def run_singly(self, seconds: float) -> LoadResult:
        """Give one command after the other, at least one; each is timed."""
        before = family_time(self._pid)
        queue = self._queues[0]
        latencies: list[float] = []
        began = now = time.perf_counter()
        while now < began + seconds or not latencies:
            self._submit(queue, 1)
            self._drain(queue, 1)
            latencies.append(-now + (now := time.perf_counter()))
        count = len(latencies)
        return LoadResult(count / (now - began), self._cost(before, count), latencies)

    def _cost(self, before: float, commands: int) -> float:
        """Processor seconds for each command, since so many had been used; at least the clock's
        resolution."""
        return max(family_time(self._pid) - before, RESOLUTION) / commands

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
            if queue.failure() or time.monotonic() > until:
                raise self._failure()

    def _failure(self) -> PotashError:
        for queue in self._queues:
            if word := queue.failure():
                return PotashError(
                    f"the device fails a command with status {word >> 1 & 0x7FF:#05x}"
                )
        return PotashError(f"the device completes nothing for {STALL:g} seconds")


@contextlib.contextmanager
def generating(queues: int, config: Configuration) -> Iterator[Generator]:
    """A device with a configuration and `SIZE` bytes of random blocks, and a generator that is
    connected to it. The blocks are the device's own memory; of one whose modelled flash is to be
    empty, a file. Raises PotashError where the device does not start."""
    with contextlib.ExitStack() as stack:
        is_modelled = config.time.mode == MODELLED
        if is_modelled:
            media = stack.enter_context(filled("blocks")) / "blocks"
            config = replace(config, device=replace(config.device, media=media))
        else:
            config = replace(config, namespaces=(NamespaceSection(SIZE),))
        device = stack.enter_context(serving(config))
        transport = open_vfio_user(str(device.socket), timeout=STALL, io_queues=queues + 1)
        stack.callback(transport.close)
        size = SHADOW_PAGES * PAGE + queues * _Queue.SIZE
        memory = stack.enter_context(SealedMemory(size))
        transport.client.dma_map(0, len(memory.view), memory.fd)
        generator = Generator(transport, memory, queues, device.process.pid)
        stack.callback(generator.release)
        assert transport.controller is not None
        if not is_modelled:
            generator.device.namespace(1).write(0, random_bytes())
        generator.start(transport.controller)
        yield generator


BASELINE = "memory copy"
PIECE = 1 << 20
"""Bytes that one Memory Copy moves."""
MEMORY = 2
"""The memory namespace, which has as many bytes as that with blocks."""
PLAIN = Configuration()
WITH_MEMORY = Configuration(memory=MemorySection((SIZE,)))


def _read(_: int, opcode: IoOpcode = IoOpcode.READ) -> tuple[SubmissionEntry, bytes]:
    return SubmissionEntry(opcode, nsid=1, cdw10=random.randrange(SIZE // PAGE)), b""


def _write(cid: int) -> tuple[SubmissionEntry, bytes]:
    return _read(cid, IoOpcode.WRITE)


def _large_read(_: int) -> tuple[SubmissionEntry, bytes]:
    blocks = LARGE // PAGE
    slba = random.randrange(SIZE // LARGE) * blocks
    return SubmissionEntry(IoOpcode.READ, nsid=1, cdw10=slba, cdw12=blocks - 1), b""


def _access(opcode: MemoryOpcode) -> Command:
    def command(_: int) -> tuple[SubmissionEntry, bytes]:
        start = random.randrange(SIZE // PAGE) * PAGE
        return SubmissionEntry(opcode, nsid=MEMORY, cdw10=start, cdw12=PAGE), b""

    return command


def _copy(_: int) -> tuple[SubmissionEntry, bytes]:
    first, start = (random.randrange(SIZE // PIECE) * PIECE for _ in range(2))
    source = BlockSourceRange(1, first // PAGE, PIECE // PAGE - 1).encode(CopyFormat.BLOCKS)
    fields = MemoryCopy(PIECE, start, 0, CopyFormat.BLOCKS).fields()
    return SubmissionEntry(MemoryOpcode.MEMORY_COPY, nsid=MEMORY, **fields), source


class Load(NamedTuple):
    """A load of one command at random places: `depth` at a time in each of `queues`.

    The baseline copies as many bytes as each of them from memory to memory, within `target` bytes;
    without a target, it reads blocks of the same drive. Where time is modelled, it is the same load
    of a drive whose time is not.
    """

    name: str
    depth: int
    queues: int = 1
    command: Command = _read
    size: int = PAGE
    target: int = PAGE
    config: Configuration = PLAIN
    sgl: bool = False
    """Commands have one SGL data block, instead of PRPs."""

    @property
    def modelled(self) -> bool:
        """The drive's time is modelled."""
        return self.config.time.mode == MODELLED


LOADS = (
    Load("socket-randread-4k-qd1", 1),
    Load("socket-randread-4k-qd32", 32, target=32 * PAGE),
    Load("socket-randread-4k-qd1-sgl", 1, sgl=True),
    Load("socket-randread-4k-qd32-sgl", 32, target=32 * PAGE, sgl=True),
    Load("socket-randread-128k-qd8", 8, 1, _large_read, LARGE, 8 * LARGE),
    Load("socket-randread-128k-qd8-sgl", 8, 1, _large_read, LARGE, 8 * LARGE, sgl=True),
    Load("socket-randread-4k-qd1-2q", 1, 2, target=2 * PAGE),
    Load("socket-randread-4k-qd32-2q", 32, 2, target=64 * PAGE),
    *(
        Load(f"memory-{name}-4k-qd32", 32, 1, _access(opcode), PAGE, 0, WITH_MEMORY)
        for name, opcode in (
            ("read", MemoryOpcode.MEMORY_READ),
            ("write", MemoryOpcode.MEMORY_WRITE),
        )
    ),
    *(
        Load(f"memory-copy-1m-qd{depth}", depth, 1, _copy, PIECE, SIZE, WITH_MEMORY)
        for depth in (1, 4)
    ),
    *(
        Load(
            f"modelled-{drive}-rand{name}-4k-qd{depth}",
            depth,
            1,
            command,
            config=Configuration(time=TimeSection(MODELLED, drive)),
        )
        for drive in ("z-nand", "tlc")
        for name, command in (("read", _read), ("write", _write))
        for depth in (1, 32)
    ),
)
NAMES = tuple(load.name for load in LOADS)


def measure(settings: Settings, progress: Progress) -> Iterator[Result]:
    """Measure what is named, and its baseline by itself. Raises PotashError where the device does
    not start, hangs, or fails a command."""
    times, seconds = settings.pairs, settings.seconds
    chosen = [load for load in LOADS if load.name in settings.names]
    for index, load in enumerate(chosen):
        runs: list[tuple[LoadResult, LoadResult]] = []
        qids = range(1, load.queues + 1)
        with contextlib.ExitStack() as stack:
            generator = stack.enter_context(generating(load.queues + 1, load.config))
            for qid in qids:
                generator.fill(qid, load.command, load.size, sgl=load.sgl)
            generator.fill(load.queues + 1, _read)
            if load.modelled:
                unmodelled = stack.enter_context(generating(1, PLAIN))
                unmodelled.fill(1, load.command)
            for repetition in range(times):
                progress(load.name, (index + repetition / times) / len(chosen))
                run = generator.run(load.depth, seconds, qids)
                if load.modelled:
                    baseline = unmodelled.run(load.depth, seconds)
                elif load.target:
                    copies = _copies(load.size, load.target, seconds / 10)
                    baseline = LoadResult(copies, 1 / copies)
                else:
                    baseline = generator.run(load.depth, seconds, (load.queues + 1,))
                runs.append((run, baseline))
        name = BASELINE if load.target else "reads of blocks"
        if load.modelled:
            name = "unmodelled"
        yield paired(load.name, "iops", "1/s", name, [(a.rate, b.rate) for a, b in runs])
        costs = [(a.cost * 1e6, b.cost * 1e6) for a, b in runs]
        if load.modelled:
            yield paired(load.name, "device time", "µs/io", name, costs)
        else:
            yield alone(load.name, "device time", "µs/io", [cost for cost, _ in costs])


def _copies(size: int, target_size: int, seconds: float) -> float:
    """Copies of `size` bytes from random places that plain Python makes in a second."""
    source = memoryview(random_bytes())
    target = memoryview(bytearray(b"\1") * target_size)
    places = [random.randrange(SIZE // size) * size for _ in range(ENTRIES)]
    done = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for at in range(0, target_size, size):
            place = places[done % ENTRIES]
            target[at : at + size] = source[place : place + size]
            done += 1
    return done / elapsed

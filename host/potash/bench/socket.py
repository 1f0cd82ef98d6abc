"""The drive alone, over its socket."""

import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nvme_spec.memory_commands import MemoryCopy, MemoryOpcode
from nvme_spec.opcodes import IoOpcode
from nvme_spec.queues import SubmissionEntry
from nvme_spec.ranges import BlockSourceRange, CopyFormat
from potash.bench.drives import SIZE
from potash.bench.generator import ENTRIES, PAGE, Command, generating
from potash.bench.report import Result, alone, paired
from potash.sdk.progress import Progress

BASELINE = "memory copy"
PIECE = 1 << 20
"""Bytes that one Memory Copy moves."""
MEMORY = 2
"""The memory namespace, which has as many bytes as that with blocks."""
MEMORY_OPTIONS = ("--memory-namespace", str(SIZE))


def _read(_: int) -> tuple[SubmissionEntry, bytes]:
    return SubmissionEntry(IoOpcode.READ, nsid=1, cdw10=random.randrange(SIZE // PAGE)), b""


def _access(opcode: MemoryOpcode) -> Command:
    """Memory Read or Memory Write of a page."""

    def command(_: int) -> tuple[SubmissionEntry, bytes]:
        start = random.randrange(SIZE // PAGE) * PAGE
        return SubmissionEntry(opcode, nsid=MEMORY, cdw10=start, cdw12=PAGE), b""

    return command


def _copy(_: int) -> tuple[SubmissionEntry, bytes]:
    """Memory Copy of a piece of blocks."""
    first, start = (random.randrange(SIZE // PIECE) * PIECE for _ in range(2))
    source = BlockSourceRange(1, first // PAGE, PIECE // PAGE - 1).encode(CopyFormat.BLOCKS)
    fields = MemoryCopy(PIECE, start, 0, CopyFormat.BLOCKS).fields()
    return SubmissionEntry(MemoryOpcode.MEMORY_COPY, nsid=MEMORY, **fields), source


@dataclass(frozen=True)
class Load:
    """The same command at random places: `depth` at a time in each of `queues`.

    The baseline copies as many bytes as each of them from memory to memory, within `target` bytes;
    without a target, it reads blocks of the same drive.
    """

    name: str
    depth: int
    queues: int = 1
    command: Command = _read
    size: int = PAGE
    target: int = PAGE
    options: tuple[str, ...] = ()


LOADS = (
    Load("socket-randread-4k-qd1", 1),
    Load("socket-randread-4k-qd32", 32, target=32 * PAGE),
    Load("socket-randread-4k-qd1-2q", 1, 2, target=2 * PAGE),
    Load("socket-randread-4k-qd32-2q", 32, 2, target=64 * PAGE),
    *(
        Load(f"memory-{name}-4k-qd32", 32, 1, _access(opcode), PAGE, 0, MEMORY_OPTIONS)
        for name, opcode in (
            ("read", MemoryOpcode.MEMORY_READ),
            ("write", MemoryOpcode.MEMORY_WRITE),
        )
    ),
    *(
        Load(f"memory-copy-1m-qd{depth}", depth, 1, _copy, PIECE, SIZE, MEMORY_OPTIONS)
        for depth in (1, 4)
    ),
)
NAMES = tuple(load.name for load in LOADS)


def measure(
    names: Sequence[str], times: int, seconds: float, progress: Progress
) -> Iterator[Result]:
    """Measure what is named, `times` for `seconds` each, and its baseline by itself.

    Raises:
        PotashError: the device does not start, hangs, or fails a command.
    """
    chosen = [load for load in LOADS if load.name in names]
    for index, load in enumerate(chosen):
        rates, costs = [], []
        qids = range(1, load.queues + 1)
        with generating(load.queues + 1, *load.options) as generator:
            for qid in qids:
                generator.fill(qid, load.command)
            generator.fill(load.queues + 1, _read)
            for repetition in range(times):
                progress(load.name, (index + repetition / times) / len(chosen))
                run = generator.run(load.depth, seconds, qids)
                if load.target:
                    baseline = _copies(load.size, load.target, seconds / 10)
                else:
                    baseline = generator.run(load.depth, seconds, (load.queues + 1,)).rate
                rates.append((run.rate, baseline))
                costs.append(run.cost * 1e6)
        name = BASELINE if load.target else "reads of blocks"
        yield paired(load.name, "iops", "1/s", name, rates)
        yield alone(load.name, "device time", "µs/io", costs)


def _copies(size: int, target_size: int, seconds: float) -> float:
    """Copies of `size` bytes from random places that plain Python makes in a second."""
    source = memoryview(bytearray(os.urandom(1 << 20)) * (SIZE >> 20))
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

"""The counts of a worker's jobs, from which their modelled time is computed.

There is one in mode `modelled` only. While a job runs, its row of the shared counters has the time
that its core would have taken so far.
"""

from collections.abc import Sequence
from operator import add

from csd_spec.run_times import NOT_DECLARED, RunTime
from potash_device.cores import LARGEST_COUNT, QUERY_KINDS, CoreProfile, Price, Work
from potash_firmware.bpf.counters import InstructionCounters, Kind
from potash_firmware.mailbox.messages import Read
from potash_firmware.mailbox.shared import WORD, Row, Word, unshared_row

MOST_READS = 1 << 17
"""Reads of one job that are reported one by one."""

_MASK = (1 << 8 * WORD) - 1


class WorkCounter:
    """Counts the work of one job after another; `row` gets its time on a core of `profile`."""

    def __init__(self, profile: CoreProfile, row: Row | None = None) -> None:
        self.instructions = InstructionCounters(self.show)
        self.row = unshared_row() if row is None else row
        self._price = Price(profile)
        self._length = 0
        self.begin()

    def begin(self) -> None:
        self.instructions.counts = [0] * len(Kind)
        self.helpers = self.bytes = self.vta_cycles = self.macs = 0
        self.queries = (0,) * len(QUERY_KINDS)
        self.reads: list[Read] = []
        self._run_time = NOT_DECLARED
        self.show()

    def declare(self, run_time: RunTime, length: int) -> None:
        """The job's program declares its time; its input or ranges have so many bytes."""
        self._run_time, self._length = run_time, length
        self.show()

    @property
    def work(self) -> Work:
        """The job's counts so far."""
        others = (self.helpers, self.bytes, self.vta_cycles, self.macs)
        helpers, moved, cycles, macs = (min(count, LARGEST_COUNT) for count in others)
        work = Work(tuple(self.instructions.counts), helpers, moved, cycles, macs, self.queries)
        if self._run_time is NOT_DECLARED:
            return work
        ns = self._run_time.duration(self._price(work), self._length, work.instructions)
        return work._replace(declared=min(ns + 1, LARGEST_COUNT))

    def show(self) -> None:
        work = self.work
        # In this order: what is read of them never says too much of the core.
        self.row[Word.DRAM] = min(self._price.dram(_moved(work)), _MASK)
        self.row[Word.MODELLED] = min(self._price(work), _MASK)

    def called(self) -> None:
        self.helpers += 1
        self.show()

    def moved(self, count: int) -> None:
        """The core reads or writes so many bytes of DRAM."""
        self.bytes += count

    def accelerated(self, cycles: int) -> None:
        self.vta_cycles += cycles
        self.show()

    def queried(self, counts: Sequence[int], moved: int) -> None:
        """A query has gone on, with so much of each of `QUERY_KINDS` and bytes of output."""
        sums = map(add, self.queries, counts)
        self.queries = tuple(min(count, LARGEST_COUNT) for count in sums)
        self.bytes += moved
        self.show()

    def ran_model(self, macs: int, moved: int) -> None:
        """A model has run, with so many operations of the core and bytes of input and output."""
        self.macs += macs
        self.bytes += moved
        self.show()

    def read(self, nsid: int, first: int, length: int) -> None:
        """Blocks are read from the media; after very many reads, from DRAM."""
        if len(self.reads) >= MOST_READS:
            self.moved(length)
        elif length:
            at, moved = self.position
            self.reads.append(Read(at, nsid, first, length, moved))

    @property
    def position(self) -> tuple[int, int]:
        """The job's time on its core so far, and the bytes that it has moved in DRAM."""
        work = self.work
        return self._price(work), _moved(work)


def _moved(work: Work) -> int:
    """Bytes that take the time of DRAM: none where the program declares its time."""
    return 0 if work.declared else work.bytes

"""A drive with memory and compute namespaces, and an engine that does what the test says."""

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from potash_device.cores import Work
from potash_device.media.shapes import NamespaceShape
from potash_firmware.mailbox.messages import Outcome
from potash_firmware.rpu.compute.engine import Execution, Shared, SharedRange
from potash_firmware.rpu.settings import ComputeSettings, RpuSettings
from potash_firmware.rpu.timing.modelled import TimeSettings
from support.nvme_host import DATA, Cqe, Host, Queue

LOAD, ACTIVATION, RANGE_SETS, EXECUTE = 0x85, 0x88, 0x89, 0x01
BLOCKS, MEMORY, COMPUTE, OTHER_MEMORY, OTHER_COMPUTE = 1, 2, 3, 4, 5
"""Namespace identifiers."""
MEMORY_SIZE, OTHER_SIZE = 1 << 20, 1 << 16
BUILT_IN = 2
"""Device-defined programs, the first indexes."""
EBPF = 0xC0

SMALL = ComputeSettings(programs=8, activated=5, program_memory=1, range_sets=3, ranges=4)


@dataclass(eq=False)
class Asked:
    """An execution that the engine was asked for."""

    nsid: int
    program: Shared | int
    ranges: Sequence[SharedRange]
    parameters: tuple[int, int]
    data: bytes
    row: int = 0
    future: Future[Execution] = field(default_factory=Future)
    cancelled: bool = False


class FakeEngine:
    """Keeps what it is asked, until the test has it end."""

    device_defined = (0,) * BUILT_IN

    def __init__(self) -> None:
        self.checks: deque[tuple[Shared, Future[Execution]]] = deque()
        self.asked: list[Asked] = []
        """Executions that have not ended."""
        self.opened: list[int] = []
        self.closed: list[int] = []
        self.forgotten: list[int] = []
        self.verdict: Outcome | None = Outcome.RETURNED
        """How every check ends at once; None where the test ends them."""
        self.ended: deque[Future[Any]] = deque()

    def open(self, nsid: int) -> None:
        self.opened.append(nsid)

    def close(self, nsid: int) -> None:
        assert not any(one.nsid == nsid for one in self.asked)
        self.closed.append(nsid)

    def check(self, nsid: int, program: Shared) -> Future[Execution]:
        future: Future[Execution] = Future()
        self.checks.append((program, future))
        if self.verdict is not None:
            self.end_check(self.verdict)
        return future

    def execute(
        self,
        nsid: int,
        program: Shared | int,
        ranges: Sequence[SharedRange],
        parameters: tuple[int, int],
        data: memoryview,
        row: int = 0,
    ) -> Future[Execution]:
        asked = Asked(nsid, program, ranges, parameters, bytes(data), row)
        self.asked.append(asked)
        return asked.future

    def cancel(self, execution: Future[Execution]) -> None:
        for one in self.asked:
            one.cancelled |= one.future is execution

    def forget(self, handle: int) -> None:
        self.forgotten.append(handle)

    # The test's.

    def end(
        self,
        asked: Asked | None = None,
        value: int = 0,
        outcome: Outcome = Outcome.RETURNED,
        work: Work | None = None,
    ) -> None:
        """An execution, the oldest one, ends."""
        asked = self.asked[0] if asked is None else asked
        self.asked.remove(asked)
        asked.future.set_result(Execution(outcome, value, work))
        self.ended.append(asked.future)

    def end_cancelled(self) -> None:
        """Those that were cancelled end."""
        for one in [one for one in self.asked if one.cancelled]:
            self.end(one, outcome=Outcome.CANCELLED)

    def end_check(self, verdict: Outcome) -> None:
        """A check, the oldest one, ends."""
        _, future = self.checks.popleft()
        future.set_result(Execution(verdict))
        self.ended.append(future)


class ComputeHost(Host):
    """A host of such a drive; every method of a command gives its completion."""

    def __init__(self, compute: ComputeSettings = SMALL, time: TimeSettings | None = None) -> None:
        self.engine = FakeEngine()
        shapes = {
            MEMORY: NamespaceShape.memory(MEMORY_SIZE),
            COMPUTE: NamespaceShape.compute(),
            OTHER_MEMORY: NamespaceShape.memory(OTHER_SIZE),
            OTHER_COMPUTE: NamespaceShape.compute(),
        }
        settings = RpuSettings(compute=compute, time=time)
        super().__init__(settings=settings, engine=self.engine, shapes=shapes)
        self.css = 6

    def load(
        self,
        index: int,
        piece: bytes,
        *,
        psize: int | None = None,
        loff: int = 0,
        ptype: int = EBPF,
        pit: int = 0,
        pid: int = 0,
        nsid: int = COMPUTE,
    ) -> Cqe:
        """Load Program: a piece, or a whole program."""
        size = len(piece) if psize is None else psize
        self.put(piece)
        words = (index | ptype << 16 | pit << 25, size, pid & 0xFFFF_FFFF, pid >> 32)
        return self.command(self.admin, LOAD, nsid=nsid, cdws=(*words, len(piece), loff), prp2=PRP2)

    def unload(self, index: int, nsid: int = COMPUTE) -> Cqe:
        return self.command(self.admin, LOAD, nsid=nsid, cdws=(index | 1 << 24,))

    def activate(self, index: int, sel: int = 1, nsid: int = COMPUTE) -> Cqe:
        return self.command(self.admin, ACTIVATION, nsid=nsid, cdws=(index | sel << 16,))

    def deactivate(self, index: int, nsid: int = COMPUTE) -> Cqe:
        return self.activate(index, 0, nsid)

    def create_set(
        self, *ranges: tuple[int, int, int], numr: int | None = None, nsid: int = COMPUTE
    ) -> Cqe:
        """Memory Range Set Management: ranges of namespace, first byte and length."""
        self.put(b"".join(map(range_descriptor, ranges)))
        number = len(ranges) if numr is None else numr
        return self.command(self.admin, RANGE_SETS, nsid=nsid, cdws=(0, number))

    def delete_set(self, rsid: int, nsid: int = COMPUTE) -> Cqe:
        return self.command(self.admin, RANGE_SETS, nsid=nsid, cdws=(1 | rsid << 16,))

    def begin(
        self,
        queue: Queue,
        index: int,
        cid: int = 1,
        *,
        rsid: int = 0,
        numr: int = 0,
        dlen: int = 0,
        parameters: tuple[int, int] = (0, 0),
        nsid: int = COMPUTE,
        prp1: int = DATA,
    ) -> None:
        """Submit Execute Program."""
        words = struct.unpack("<4I", struct.pack("<2Q", *parameters))
        first = (index | rsid << 16, numr, dlen)
        self.place(queue, EXECUTE, cid, nsid=nsid, first=first, cdws=words, prp1=prp1, prp2=PRP2)
        self.ring(queue)
        self.service()

    def answers(self, queue: Queue) -> list[tuple[int, int, bool]]:
        """Command identifiers, statuses and Do Not Retry of what has ended."""
        self.service()
        return [(one.cid, one.status, one.dnr) for one in self.reap(queue)]

    def refusal(self, queue: Queue, index: int, **fields: Any) -> tuple[int, bool]:
        """Status and Do Not Retry of an Execute Program that ends at once."""
        self.begin(queue, index, **fields)
        ((_, status, dnr),) = self.answers(queue)
        return status, dnr


PRP2 = DATA + 4096
"""The second page of data, whether there is one or not."""


def range_descriptor(one: tuple[int, int, int]) -> bytes:
    """Memory range descriptor: namespace, first byte, length."""
    nsid, start, length = one
    return struct.pack("<IIQ16x", nsid, length, start)


@contextmanager
def compute_host(
    compute: ComputeSettings = SMALL, time: TimeSettings | None = None
) -> Iterator[ComputeHost]:
    """A device with two memory and two compute namespaces; enabled for all command sets."""
    with ComputeHost(compute, time) as host:
        host.enable()
        yield host

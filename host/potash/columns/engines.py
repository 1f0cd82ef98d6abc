"""The engines that run the program of a query: an accelerator, or a compute namespace.

Both read pages of the drive, which are not transferred to the host, and return the output and the
number of bytes that were transferred.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from csd_spec.descriptors import pad_to_dword
from csd_spec.opcodes import DWORD_SIZE, PAGE_SIZE, QUERY_FIRMWARE
from csd_spec.table_plans import PROGRAM_INDEX
from nvme_spec.computational import MEMORY_RANGE_SIZE
from potash.columns.answer import Stored
from potash.columns.errors import InvalidQuery
from potash.columns.generator import BAD_INDEX
from potash.columns.layout import Job, Limits
from potash.sdk.accelerator import Accelerator
from potash.sdk.compute_namespace import ComputeNamespace
from potash.sdk.errors import InvalidRequest, PotashError
from potash.sdk.memory_namespace import LARGEST_COPY, Blocks, Bytes, MemoryNamespace
from potash.sdk.namespace import Namespace
from potash.sdk.progress import Progress, silent
from potash.sdk.targets import PagesSource, Range

MAX_RANGES = 64
"""Runs of pages that a job of an accelerator can have."""
MAX_TABLE = 64 << 10
"""Bytes of the table, which is an argument of Start."""


class Output(NamedTuple):
    """The output of a job, and the bytes that were transferred between host and drive for it."""

    data: bytes
    moved: int


class QueryEngine(Protocol):
    @property
    def limits(self) -> Limits: ...

    def run(self, program: bytes, job: Job, pages: Sequence[Range], room: int) -> Output:
        """Run a program on pages of the drive. Raises PotashError."""

    def close(self) -> None:
        """Remove what it has left on the drive."""


class OnAccelerator:
    """The platform's commands: the pages are the local input of an accelerator."""

    def __init__(
        self, accelerator: Accelerator, *, timeout: float | None = None, progress: Progress = silent
    ) -> None:
        self._accelerator = accelerator
        self._nsid = accelerator.device.nsid
        self._timeout = timeout
        self._progress = progress
        self.moved = 0

    def attach(self, stored: Stored) -> None:
        """Raises InvalidRequest for a file in more pieces than an accelerator can be granted."""
        accelerator, ranges = self._accelerator, stored.ranges
        if len(ranges) > MAX_RANGES:
            raise InvalidRequest(
                f"the file is in {len(ranges)} pieces on the drive, and an accelerator takes"
                f" {MAX_RANGES}; copy it to a new file, or use a compute namespace (--execute)"
            )
        accelerator.require_idle()
        accelerator.reset()
        for number, (page, pages) in enumerate(ranges):
            accelerator.grant(page, pages, replace=not number)
        accelerator.select(QUERY_FIRMWARE)

    def ask(self, request: bytes) -> int:
        self.moved += len(request)
        status = self._accelerator.run_again(
            [request], timeout=self._timeout, progress=self._progress
        )
        return status.produced

    def read(self, start: int, length: int) -> bytes:
        self.moved += length
        return self._accelerator.read_output(length, offset=start)

    @property
    def limits(self) -> Limits:
        inputs, outputs = self._accelerator.input_size, self._accelerator.output_size
        return Limits(MAX_RANGES, MAX_TABLE, lambda read, made: read <= inputs and made <= outputs)

    def run(self, program: bytes, job: Job, pages: Sequence[Range], room: int) -> Output:
        table = job.table
        result = self._accelerator.run(
            program,
            PagesSource(pages, job.size, self._nsid),
            args=[table],
            timeout=self._timeout,
            progress=self._progress,
        )
        require_done(result.status.return_value & BAD_INDEX)
        return Output(result.output, len(program) + len(table) + len(result.output))

    def close(self) -> None:
        pass


class InComputeNamespace:
    """The standard's commands: the pages are copied to a memory namespace within the drive."""

    def __init__(
        self,
        compute: ComputeNamespace,
        memory: MemoryNamespace,
        *,
        timeout: float | None = None,
        progress: Progress = silent,
    ) -> None:
        self._compute = compute
        self._memory = memory
        self._nsid = compute.device.nsid
        self._timeout = timeout
        self._progress = progress
        self._index: int | None = None
        self._room = memory.size
        self.moved = 0
        self._size = 0

    def attach(self, stored: Stored) -> None:
        """Copy the file to the memory namespace. Raises InvalidRequest where it does not fit."""
        memory, ranges = self._memory, stored.ranges
        self._size = PAGE_SIZE * sum(part.pages for part in ranges)
        if self._size + PAGE_SIZE > self._room:
            raise InvalidRequest(
                f"the file has {stored.size} bytes, and memory namespace {memory.nsid} has"
                f" {self._room}, also for the result; create a larger one, or use an accelerator"
            )
        per_page = PAGE_SIZE // Namespace(memory.device, self._nsid).block_size
        blocks = [Blocks(self._nsid, page * per_page, count * per_page) for page, count in ranges]
        memory.copy(0, blocks, progress=self._progress)
        copies = sum(-(-part.pages * PAGE_SIZE // LARGEST_COPY) for part in ranges)
        self.moved += copies * MEMORY_RANGE_SIZE

    def ask(self, request: bytes) -> int:
        """The request is at the end of the memory, and the output between it and the file."""
        memory, data = self._memory, pad_to_dword(request)
        place = (self._room - len(data)) & -DWORD_SIZE
        memory.write(place, data)
        ranges = [
            Bytes(memory.nsid, 0, self._size),
            Bytes(memory.nsid, self._size, max(0, place - self._size)),
            Bytes(memory.nsid, place, len(data)),
        ]
        self.moved += len(data) + len(ranges) * MEMORY_RANGE_SIZE
        return self._compute.execute(PROGRAM_INDEX, ranges, timeout=self._timeout)

    def read(self, start: int, length: int) -> bytes:
        self.moved += length
        return self._memory.read(self._size + start, length)

    @property
    def limits(self) -> Limits:
        rest = self._room - MAX_TABLE
        return Limits(1 << 16, MAX_TABLE, lambda read, made: read + _whole(made) <= rest)

    def run(self, program: bytes, job: Job, pages: Sequence[Range], room: int) -> Output:
        memory, compute = self._memory, self._compute
        per_page = PAGE_SIZE // Namespace(memory.device, self._nsid).block_size
        blocks = [Blocks(self._nsid, one.page * per_page, one.pages * per_page) for one in pages]
        size = memory.copy(0, blocks, progress=self._progress)
        made, table = _whole(room), job.table
        memory.fill(size, made)
        memory.write(size + made, table)
        moved = len(table)
        if self._index is None:
            index = compute.free_index()
            compute.load(index, program)
            self._index = index
            moved += len(program)
        ranges = [
            Bytes(memory.nsid, 0, size),
            Bytes(memory.nsid, size, made),
            Bytes(memory.nsid, size + made, _whole(len(table))),
        ]
        length = compute.execute(self._index, ranges, timeout=self._timeout)
        require_done(length)
        if length > made:
            raise PotashError(f"the program says that it made {length} bytes of {made}")
        output = memory.read(size, length)
        copies = sum(-(-one.pages * PAGE_SIZE // LARGEST_COPY) for one in pages)
        moved += (copies + len(ranges)) * MEMORY_RANGE_SIZE + len(output)
        return Output(output, moved)

    def close(self) -> None:
        """Unload the program."""
        if self._index is not None:
            self._compute.deactivate(self._index)
            self._compute.unload(self._index)
            self._index = None


def require_done(value: int) -> None:
    """Raises InvalidQuery for what a program returns that is no length."""
    if value == BAD_INDEX:
        raise InvalidQuery("a row has a value that is not in its column's dictionary")
    if value > BAD_INDEX >> 1:
        raise InvalidQuery(f"the program of the query ended with {value:#x}")


def _whole(size: int) -> int:
    return -(-size // PAGE_SIZE) * PAGE_SIZE

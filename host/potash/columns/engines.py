"""The engines that run the program of a query: an accelerator, or a compute namespace.

Both read pages of the drive, which are not transferred to the host, and return the output and the
number of bytes that were transferred.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from csd_spec.opcodes import PAGE_SIZE
from nvme_spec.computational import MEMORY_RANGE_SIZE
from potash.columns.errors import InvalidQuery
from potash.columns.generator import BAD_INDEX
from potash.columns.layout import Job, Limits
from potash.sdk.accelerator import Accelerator
from potash.sdk.compute_namespace import ComputeNamespace
from potash.sdk.errors import PotashError
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

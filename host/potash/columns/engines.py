"""The drive's program for queries, on an accelerator or in a compute namespace."""

from __future__ import annotations

from csd_spec.descriptors import LogEntryType, pad_to_dword
from csd_spec.opcodes import PAGE_SIZE, QUERY_FIRMWARE
from csd_spec.table_plans import PROGRAM_INDEX
from nvme_spec.computational import MEMORY_RANGE_SIZE
from nvme_spec.status import Status
from potash.columns.answer import Stored
from potash.columns.errors import InvalidQuery
from potash.sdk.accelerator import Accelerator
from potash.sdk.compute_namespace import ComputeNamespace
from potash.sdk.errors import CommandFailed, InvalidRequest, JobFailed
from potash.sdk.memory_namespace import LARGEST_COPY, Blocks, Bytes, MemoryNamespace
from potash.sdk.namespace import Namespace
from potash.sdk.progress import Progress, silent
from potash.sdk.targets import pages_of

LEAST_ROOM = 18 * PAGE_SIZE
"""Bytes of a memory namespace for the largest request and a page of output."""


class OnAccelerator:
    """The platform's commands: the program of an accelerator reads the file's pages in place."""

    def __init__(
        self, accelerator: Accelerator, *, timeout: float | None = None, progress: Progress = silent
    ) -> None:
        self._accelerator = accelerator
        self._nsid = accelerator.device.nsid
        self._timeout = timeout
        self._progress = progress
        self.moved = 0

    def attach(self, stored: Stored) -> None:
        accelerator = self._accelerator
        accelerator.require_idle()
        accelerator.reset()
        for number, (page, pages) in enumerate(stored.ranges):
            accelerator.grant(page, pages, replace=not number)
        accelerator.select(QUERY_FIRMWARE)

    def ask(self, request: bytes) -> int:
        self.moved += len(request)
        try:
            return self._accelerator.run_again(
                [request], timeout=self._timeout, progress=self._progress
            ).produced
        except JobFailed as error:
            entries = error.log.entries
            if entries and entries[-1].type == LogEntryType.ACCELERATOR_ERROR:
                raise InvalidQuery(entries[-1].text) from error
            raise

    def read(self, start: int, length: int) -> bytes:
        self.moved += length
        return self._accelerator.read_output(length, offset=start)

    def close(self) -> None: ...


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
        self._room = memory.size
        self.moved = 0
        self._size = 0

    def attach(self, stored: Stored) -> None:
        """Copy the file to the memory namespace. Raises InvalidRequest where it does not fit."""
        memory, ranges = self._memory, stored.ranges
        self._size = PAGE_SIZE * sum(part.pages for part in ranges)
        if self._size + LEAST_ROOM > self._room:
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
        memory, size = self._memory, pages_of(len(request)) * PAGE_SIZE
        place = self._room // PAGE_SIZE * PAGE_SIZE - size
        memory.write(place, pad_to_dword(request))
        ranges = [
            Bytes(memory.nsid, 0, self._size),
            Bytes(memory.nsid, self._size, place - self._size),
            Bytes(memory.nsid, place, size),
        ]
        self.moved += len(request) + len(ranges) * MEMORY_RANGE_SIZE
        try:
            return self._compute.execute(PROGRAM_INDEX, ranges, timeout=self._timeout)
        except CommandFailed as error:
            if error.status != Status.INVALID_FIELD:
                raise
            raise InvalidQuery(
                "the drive refuses the query, and Execute Program has no place for the reason; an"
                " accelerator (without --execute) gives it"
            ) from error

    def read(self, start: int, length: int) -> bytes:
        self.moved += length
        return self._memory.read(self._size + start, length)

    def close(self) -> None: ...

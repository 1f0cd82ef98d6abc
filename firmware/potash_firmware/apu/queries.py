"""Queries of tables in a worker: the bytes of the file, and the query that goes on in the next job.

A result comes in pieces, one for each job. The query is kept for the job that asks for the next
piece of the same result, and begins anew in any other worker and for any other request.
"""

import importlib.util
from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from operator import sub
from typing import TYPE_CHECKING

from csd_spec.descriptors import decode_arguments
from csd_spec.table_plans import Piece, Request
from potash_device.cores import QUERY_KINDS
from potash_firmware.apu.config import NamespaceConfig
from potash_firmware.apu.model import Grant
from potash_firmware.apu.work_counter import WorkCounter

if TYPE_CHECKING:
    from potash_firmware.tables import ByteSource, Execution

LACKING = "queries need pyarrow on the device's machine: pip install 'potash[columns]'"
"""The reason why a device refuses the program."""

PACKAGE = "pyarrow"

NOTHING = (0,) * len(QUERY_KINDS)

ReadBlocks = Callable[[int, int, int, memoryview], int]
"""Reads blocks: namespace, first block, number of blocks, and where they go."""


def refusal() -> str | None:
    """The reason why this machine can run no query; None if it can."""
    return None if _is_installed(PACKAGE) else LACKING


@cache  # it looks into folders, and the service asks for each piece of a result
def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def request_in(arguments: bytes) -> bytes:
    """The request in a job's arguments. Raises ValueError."""
    given = decode_arguments(arguments)
    if len(given) != 1:
        raise ValueError(f"a query has 1 argument, its request, not {len(given)}")
    return given[0]


class MemorySource:
    """A file in memory, which a host may change at any time: what is read is a copy."""

    def __init__(self, view: memoryview, counter: WorkCounter | None) -> None:
        self._view = view
        self._counter = counter
        self.size = len(view)

    def read(self, offset: int, into: memoryview) -> None:
        """Fill `into` from byte `offset` on. Raises ValueError past the end."""
        into[:] = self._view[offset : offset + len(into)]
        if self._counter is not None:
            self._counter.moved(len(into))


class BlockSource:
    """A file in granted blocks, one grant after another."""

    def __init__(
        self, granted: Sequence[Grant], namespaces: Mapping[int, NamespaceConfig], read: ReadBlocks
    ) -> None:
        self._granted = granted
        self._namespaces = namespaces
        self._read = read
        sizes = (grant.blocks * namespaces[grant.nsid].block_size for grant in granted)
        *self._starts, self.size = accumulate(sizes, initial=0)

    def read(self, offset: int, into: memoryview) -> None:
        """Fill `into` from byte `offset` on. Raises MediaReadError, ValueError past the end."""
        if offset + len(into) > self.size:
            raise ValueError(f"the file's blocks have {self.size} bytes, none at {self.size}")
        while into:
            place = bisect_right(self._starts, offset) - 1
            grant = self._granted[place]
            size = self._namespaces[grant.nsid].block_size
            within = offset - self._starts[place]
            lba, skipped = grant.first_lba + within // size, within % size
            count = min(len(into) // size, grant.blocks - within // size)
            if skipped or not count:
                block = memoryview(bytearray(size))
                self._read(grant.nsid, lba, 1, block)
                length = min(size - skipped, len(into))
                into[:length] = block[skipped : skipped + length]
            else:
                length = count * size
                self._read(grant.nsid, lba, count, into[:length])
            into, offset = into[length:], offset + length


class Queries:
    """The queries of a worker, one at a time."""

    def __init__(self, counter: WorkCounter | None) -> None:
        self._counter = counter
        self._execution: Execution | None = None
        self._of: Hashable = None
        """The request and the file of the query that is kept."""
        self._next = 0
        self._counted: Sequence[int] = NOTHING

    def drop(self) -> None:
        """Keep no query: another program runs, or the file is another one."""
        self._execution, self._of = None, None

    def piece(
        self,
        request: bytes | memoryview,
        source: "ByteSource",
        into: memoryview,
        file: Hashable = None,
    ) -> int:
        """Write a piece of a result; returns its bytes. `file` says which one `source` has. Raises
        ValueError for a request that is refused, MediaReadError and MemoryError."""
        try:
            from potash_firmware import tables
        except ImportError as error:
            raise ValueError(f"pyarrow cannot be used: {error}") from None
        header = Request.decode_head(request)
        plan = bytes(request[Request.RECORD.size :][: header.plan_size])
        of = header._replace(offset=0, work=0), plan, file
        try:
            if self._execution is None or (of, header.offset) != (self._of, self._next):
                self.drop()
                self._counted = NOTHING
                self._execution, self._of = tables.begin(bytes(request), source), of
            else:
                self._execution.resume(source)
            length = self._execution.piece(header.offset, into, header.work)
        except BaseException:
            self.drop()
            raise
        piece = Piece.decode_head(into)
        self._next = header.offset + piece.shown + piece.length
        if self._counter is not None:
            codecs = self._execution.codecs.values()
            counts = piece.decoded, piece.compared, piece.hashed, piece.aggregated, *codecs
            self._counter.queried(tuple(map(sub, counts, self._counted)), length)
            self._counted = counts
        return length

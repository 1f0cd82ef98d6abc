"""A memory namespace: bytes on the drive that programs compute on.

NVM Express Subsystem Local Memory Command Set Specification; `nvme_spec.memory_commands` lists
unverified layouts.
"""

import os
from collections.abc import Iterable
from contextlib import closing
from typing import Annotated, NamedTuple, TypeAlias

from csd_spec.opcodes import PAGE_SIZE, ValueOpcode
from csd_spec.reporting import Count, Key
from csd_spec.values import KEY_SIZE, SourceFlag, ValueSource
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.memory_commands import MEMORY_GRANULARITY, MemoryAccess, MemoryCopy, MemoryOpcode
from nvme_spec.memory_commands import MemoryNamespace as MemoryNamespaceData
from nvme_spec.opcodes import IoOpcode
from nvme_spec.ranges import BlockSourceRange, CopyFormat, MemorySourceRange
from potash.sdk.commands import AnyNamespace, pieces_of
from potash.sdk.errors import InvalidRequest
from potash.sdk.files import FileInPlace
from potash.sdk.namespace import MAX_BLOCKS, Namespace
from potash.sdk.progress import Progress, silent
from potash.sdk.transport import Buffer, PendingCommand

LARGEST_COPY = 1 << 20
"""Bytes that one Memory Copy moves, so that other commands have their turn."""


class Blocks(NamedTuple):
    """Logical blocks of a namespace, as a source of a copy."""

    nsid: int
    lba: int
    blocks: int


class Bytes(NamedTuple):
    """Bytes of a memory namespace.

    They are a source of a copy, or a range that a program works on.
    """

    nsid: Annotated[Count, "The memory namespace's identifier."]
    start: Annotated[Count, "The first byte."]
    length: Annotated[Count, "Length in bytes."]


class Values(NamedTuple):
    """Values of a key value namespace, as a source of a copy: at most `most` in the drive's order,
    from the key `first` on, or else the next one.

    Each value is behind a header with its size and its key (`csd_spec.values.ValueHeader`), unless
    it is copied `plain`.
    """

    nsid: int
    first: bytes = b""
    most: int = 0xFFFF_FFFF
    plain: bool = False


class CopiedValues(NamedTuple):
    """The number of values that were copied, and of the bytes that they have in memory."""

    values: int
    size: int


class PeerBytes(NamedTuple):
    """Bytes of the memory in another drive's BAR, as a source of a copy. In a guest, its address is
    in line 5 of `/sys/class/nvme/nvme1/device/resource`."""

    address: int
    length: int


Source: TypeAlias = Blocks | Bytes | PeerBytes
"""A source of a copy."""


class MemoryNamespace(AnyNamespace):
    """One memory namespace of a device. Its commands raise what `Device`'s do.

    The drive transfers dwords: offset and length of `write`, `fill` and `copy` are multiples of 4
    (InvalidRequest); `read` accepts any.
    """

    csi = CommandSet.MEMORY
    nsid: Annotated[Count, "The namespace's identifier."]

    @property
    def size(self) -> Annotated[Count, Key()]:
        """Size of the namespace in bytes."""
        return MemoryNamespaceData(self._structure()).nsze

    def read(self, start: int, length: int, *, progress: Progress = silent) -> bytes:
        """`length` bytes from byte `start`."""
        skipped = start % MEMORY_GRANULARITY
        first = start - skipped
        whole = -(-(skipped + length) // MEMORY_GRANULARITY) * MEMORY_GRANULARITY
        pieces = bytearray()
        submitted = (
            self._submit(
                MemoryOpcode.MEMORY_READ, MemoryAccess(first + at, size), data_in_length=size
            )
            for at, size in pieces_of(whole, self._piece)
        )
        for completion in self.device.completions(submitted):
            pieces += completion.data
            progress("reading memory", len(pieces) / whole)
        return bytes(pieces[skipped : skipped + length])

    def write(self, start: int, data: Buffer, *, progress: Progress = silent) -> None:
        """Write `data` from byte `start` on."""
        view = memoryview(data).cast("B")
        _require_whole(start, len(view))
        submitted = (
            self._submit(
                MemoryOpcode.MEMORY_WRITE,
                MemoryAccess(start + at, size),
                data_out=view[at : at + size],
            )
            for at, size in pieces_of(len(view), self._piece)
        )
        for done, _ in enumerate(self.device.completions(submitted), 1):
            progress("writing memory", min(1.0, done * self._piece / len(view)))

    def fill(self, start: int, length: int) -> None:
        """Fill `length` bytes from byte `start` on with zeroes."""
        _require_whole(start, length)
        for at, size in pieces_of(length, 1 << 30):
            self._submit(MemoryOpcode.MEMORY_FILL, MemoryAccess(start + at, size)).result()

    def copy(self, start: int, sources: Iterable[Source], *, progress: Progress = silent) -> int:
        """Copy blocks and memory, one after another, to byte `start` on; the number of bytes.

        The data does not pass through the host. `PeerBytes` are for drives of one `potash guest`;
        CommandFailed with Data Transfer Error says that no other drive shares memory there.
        """
        wanted = list(sources)
        pieces = [piece for source in wanted for piece in self._pieces(source)]
        total = sum(size for _, size in pieces)
        _require_whole(start, total)
        begins = [start]
        for _, size in pieces:
            begins.append(begins[-1] + size)
        submitted = (
            self._copy(begin, source, size)
            for begin, (source, size) in zip(begins, pieces, strict=False)
        )
        for done, _ in enumerate(self.device.completions(submitted), 1):
            progress("copying", done / len(pieces))
        return total

    def copy_file(
        self, start: int, path: str | os.PathLike[str], *, progress: Progress = silent
    ) -> int:
        """Copy a file of a file system on the drive to byte `start` on; the file's length.

        Its blocks are copied in place, to the end of its last page. Raises InvalidRequest for a
        file that is not on the drive, PotashError for one that was changed meanwhile.
        """
        nsid = self.device.nsid
        per_page = PAGE_SIZE // Namespace(self.device, nsid).block_size
        with closing(FileInPlace(path, self.device)) as file:
            pages = file.ranges
            blocks = [Blocks(nsid, one.page * per_page, one.pages * per_page) for one in pages]
            self.copy(start, blocks, progress=progress)
            file.confirm()
            return file.size

    def copy_values(self, start: int, length: int, sources: Iterable[Values]) -> CopiedValues:
        """Copy values of key value namespaces, one behind the other, to at most `length` bytes from
        byte `start` on. The values do not pass through the host.

        It ends with the first value for which there is no room. Raises InvalidRequest for a key
        of more than 16 bytes, and for more than 128 sources.
        """
        _require_whole(start, length)
        listed = list(sources)
        if any(len(source.first) > KEY_SIZE for source in listed):
            raise InvalidRequest(f"a key has at most {KEY_SIZE} bytes")
        data = b"".join(
            ValueSource.of(
                source.nsid, source.first, source.most, SourceFlag.PLAIN if source.plain else 0
            ).encode()
            for source in listed
        )
        layout = MemoryCopy(length, start, len(listed) - 1, 0)
        done = self._submit(ValueOpcode.COPY_VALUES, layout, data_out=data).result()
        return CopiedValues(done.result & 0xFFFF_FFFF, done.result >> 32)

    def flush(self) -> None:
        """Wait until all writes have reached the memory."""
        self.device.submit(IoOpcode.FLUSH, nsid=self.nsid).result()

    @property
    def _piece(self) -> int:
        return self.device.max_transfer // MEMORY_GRANULARITY * MEMORY_GRANULARITY

    def _pieces(self, source: Source) -> Iterable[tuple[Source, int]]:
        if isinstance(source, PeerBytes):
            for at, size in pieces_of(source.length, LARGEST_COPY):
                yield PeerBytes(source.address + at, size), size
            return
        if isinstance(source, Bytes):
            for at, size in pieces_of(source.length, LARGEST_COPY):
                yield Bytes(source.nsid, source.start + at, size), size
            return
        block = Namespace(self.device, source.nsid).block_size
        for at, count in pieces_of(source.blocks, min(MAX_BLOCKS, LARGEST_COPY // block)):
            yield Blocks(source.nsid, source.lba + at, count), count * block

    def _copy(self, start: int, source: Source, size: int) -> PendingCommand:
        if isinstance(source, Blocks):
            kind = CopyFormat.BLOCKS
            data = BlockSourceRange(source.nsid, source.lba, source.blocks - 1).encode(kind)
        elif isinstance(source, PeerBytes):
            kind = CopyFormat.PEER
            data = MemorySourceRange(0, *source).encode()
        else:
            kind = CopyFormat.MEMORY
            data = MemorySourceRange(*source).encode()
        layout = MemoryCopy(size, start, 0, kind)
        return self._submit(MemoryOpcode.MEMORY_COPY, layout, data_out=data)


def _require_whole(start: int, length: int) -> None:
    if start % MEMORY_GRANULARITY or length % MEMORY_GRANULARITY:
        raise InvalidRequest(
            f"{length} bytes at {start}: the drive moves whole dwords, so both have to be "
            f"multiples of {MEMORY_GRANULARITY}"
        )

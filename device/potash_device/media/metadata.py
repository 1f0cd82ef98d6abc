"""Metadata of logical blocks, in a file beside theirs.

A block and its metadata are written as a pair. As they are in two files, a pair is first recorded
at the beginning of the metadata's file; a device that is killed while it writes the pair writes it
again when it starts. What was never written is a hole of the file: metadata is stored as its
difference from that of an unwritten block.

    offset 0          the pair that is being written: header, metadata, blocks
    offset `AREA`     the metadata of each block
"""

import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from potash_device.media.errors import MediaError
from potash_device.media.shapes import NamespaceShape
from potash_device.media.store import Media, MemoryMedia

AREA = 1 << 20
"""Offset of the metadata of block 0."""

_HEADER = struct.Struct("<8sIIQI")
"""Magic, CRC-32 of what follows, bytes of metadata, first block, bytes of blocks."""
_MAGIC = b"PTSHPAIR"
_NOTHING = memoryview(bytes(_HEADER.size))
_MOST = 1 << 19
"""Bytes of blocks that are recorded at a time; their metadata is no longer than an eighth."""


def file_size(shape: NamespaceShape) -> int:
    """Bytes of the file for a namespace's metadata."""
    return AREA + shape.size // shape.block_size * shape.metadata.size


class Pairs:
    """The blocks of `media` with their metadata in `file`, both of the given shape.

    Reads and writes of the same blocks must not be made at the same time.
    """

    def __init__(self, media: Media, file: Media, shape: NamespaceShape) -> None:
        self.media = media
        self._file = file
        self._block_size, self._size = shape.block_size, shape.metadata.size
        self._unwritten = shape.metadata.unwritten
        self._recorded = not isinstance(file, MemoryMedia)
        self._record = threading.Lock()
        media.beside = self

    def read(self, lba: int, blocks: memoryview, metadata: memoryview) -> None:
        """Fill `blocks` and `metadata` from block `lba` on; waits. Raises MediaError."""
        self.media.read_into([blocks], lba * self._block_size)
        with self._of_blocks():
            self._file.read_into([metadata], self._at(lba))
        self._change(metadata)

    def read_at_once(self, lba: int, blocks: memoryview, metadata: memoryview) -> bool:
        """Read as `read` does, or return False if that would wait. Raises MediaError."""
        if not self.media.read_at_once([blocks], lba * self._block_size):
            return False
        with self._of_blocks():
            done = self._file.read_at_once([metadata], self._at(lba))
        if done:
            self._change(metadata)
        return done

    @property
    def never_waits(self) -> bool:
        """True if `write` never waits."""
        return self.media.never_waits and self._file.never_waits

    def write(self, lba: int, blocks: memoryview, metadata: memoryview) -> None:
        """Write pairs from block `lba` on; `metadata` is changed. Raises MediaError."""
        self.media.require_writable()
        self.media.require_whole()
        self._change(metadata)
        count = _MOST // self._block_size
        for at in range(0, len(blocks) // self._block_size, count):
            self._write(
                lba + at,
                blocks[at * self._block_size : (at + count) * self._block_size],
                metadata[at * self._size : (at + count) * self._size],
            )

    def _write(self, lba: int, blocks: memoryview, stored: memoryview) -> None:
        if not self._recorded:
            self._write_pair(lba, blocks, stored)
            return
        rest = struct.pack("<IQI", len(stored), lba, len(blocks))
        check = zlib.crc32(blocks, zlib.crc32(stored, zlib.crc32(rest)))
        header = _HEADER.pack(_MAGIC, check, len(stored), lba, len(blocks))
        with self._record:
            with self._of_blocks():
                self._file.write_from([memoryview(header), stored, blocks], 0)
            try:
                self._write_pair(lba, blocks, stored)
            finally:
                self._forget()

    def _write_pair(self, lba: int, blocks: memoryview, stored: memoryview) -> None:
        self.media.write_from([blocks], lba * self._block_size)
        with self._of_blocks():
            self._file.write_from([stored], self._at(lba))

    def _forget(self) -> None:
        """The pair is written, or is not to be: a later one must not be undone by it."""
        try:
            self._file.write_from([_NOTHING], 0)
        except MediaError as error:
            self.media.lost = self.media.lost or error
            raise

    def recover(self) -> None:
        """Write again what was being written when the device was killed. Raises MediaError, also
        for media that cannot be written."""
        header = memoryview(bytearray(_HEADER.size))
        self._file.read_into([header], 0)
        magic, check, size, lba, length = _HEADER.unpack(header)
        blocks = length // self._block_size
        if magic != _MAGIC or not blocks or length > _MOST or size != blocks * self._size:
            return
        if (lba + blocks) * self._block_size > self.media.size:
            return
        content = memoryview(bytearray(size + length))
        self._file.read_into([content], _HEADER.size)
        rest = struct.pack("<IQI", size, lba, length)
        if zlib.crc32(content, zlib.crc32(rest)) == check:
            self._write_pair(lba, content[size:], content[:size])
        self._forget()

    def punch(self, offset: int, length: int) -> None:
        """The blocks in these bytes are about to become unwritten. Raises MediaError.

        Their metadata goes first: then nobody finds that it does not fit a block of zeroes. With
        all blocks goes what was recorded of any.
        """
        first = -(-offset // self._block_size)
        end = (offset + length) // self._block_size
        begin = self._at(first)
        if not offset and length >= self.media.size:
            begin = 0
        if first < end:
            with self._of_blocks():
                self._file.punch(begin, self._at(end) - begin)

    def flush(self) -> None:
        """Return when all metadata is on stable storage. Raises MediaError."""
        with self._of_blocks():
            self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _at(self, lba: int) -> int:
        return AREA + lba * self._size

    def _change(self, metadata: memoryview) -> None:
        """Convert stored metadata to their values in place, or back."""
        # As one number: a device that has no use for NumPy starts without it.
        pattern = self._unwritten * (len(metadata) // self._size)
        changed = int.from_bytes(metadata) ^ int.from_bytes(pattern)
        metadata[:] = changed.to_bytes(len(metadata))

    @contextmanager
    def _of_blocks(self) -> Iterator[None]:
        """Have an error name the bytes of the block whose metadata it is about."""
        try:
            yield
        except MediaError as error:
            if error.at is not None:
                error.at = max(error.at - AREA, 0) // self._size * self._block_size
            raise

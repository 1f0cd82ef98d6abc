"""A worker's access to the drive's blocks: it reads the media, and collects writes.

A program reads and writes the ranges that its host has granted. What it writes reaches no media
while it runs: it is gathered in the arena, where the job's own reads see it, and handed over when
the job has come to its end. So a job that does not get there has written nothing.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from potash_firmware.apu import ranges
from potash_firmware.apu.config import NamespaceConfig
from potash_firmware.apu.model import ByteRange, Grant


class MediaReadError(Exception):
    """The media do not give what they were asked for."""


class NotAllowed(Exception):
    """A program asked for blocks that it may not have, or for more than there is room for."""


def read_media(fd: int, nsid: int, offset: int, into: memoryview) -> None:
    """Fill `into` from byte `offset` of a namespace's media. Raises MediaReadError."""
    while into:
        try:
            count = os.preadv(fd, [into], offset)
        except OSError as error:
            raise MediaReadError(f"namespace {nsid}: {error.strerror}") from None
        if count == 0:
            raise MediaReadError(f"the media of namespace {nsid} ends at {offset}")
        into, offset = into[count:], offset + count


@dataclass
class Blocks:
    """The blocks that a job's program reads and writes.

    `media` are descriptors by namespace, of those at least that are granted; `gathered` is the
    memory for what is to be written. `output_ranges` are the job's output's, which it must not
    write another way: nobody could say which of the two would be there in the end.
    """

    granted: tuple[Grant, ...]
    namespaces: Mapping[int, NamespaceConfig]
    media: Mapping[int, int]
    gathered: memoryview
    output_ranges: tuple[ByteRange, ...] = ()
    unreadable: tuple[ByteRange, ...] = ()
    """Granted blocks that the drive would not let a host read either."""
    _places: dict[tuple[int, int], int] = field(default_factory=dict)
    """The offset in `gathered` of each block, by namespace and first byte, in ascending order of
    offsets."""
    _used: int = 0

    def read(self, nsid: int, lba: int, count: int, into: memoryview) -> int:
        """Read `count` blocks into the beginning of `into`; returns how many bytes they have.

        Raises NotAllowed and MediaReadError.
        """
        size = self._block_size(nsid, lba, count, writing=False)
        length = count * size
        if length > len(into):
            raise NotAllowed(
                f"{count} blocks have {length} bytes, and there is room for {len(into)}"
            )
        first = lba * size
        self._require_readable(ByteRange(nsid, first, length), size)
        read_media(self.media.get(nsid, -1), nsid, first, into[:length])
        for at in range(0, length, size) if self._places else ():
            place = self._places.get((nsid, first + at))
            if place is not None:
                into[at : at + size] = self.gathered[place : place + size]
        return length

    def write(self, nsid: int, lba: int, count: int, data: memoryview) -> int:
        """Gather `count` blocks, all of `data`; returns how many bytes they have.

        Raises NotAllowed, and then has gathered nothing.
        """
        size = self._block_size(nsid, lba, count, writing=True)
        length = count * size
        if length != len(data):
            raise NotAllowed(f"{count} blocks have {length} bytes, not {len(data)}")
        first = lba * size
        if any(_overlap(item, ByteRange(nsid, first, length)) for item in self.output_ranges):
            raise NotAllowed("blocks of the job's output are written by setting its output only")
        keys = [(nsid, first + at) for at in range(0, length, size)]
        added = sum(size for key in keys if key not in self._places)
        if self._used + added > len(self.gathered):
            raise NotAllowed(f"a job can write {len(self.gathered)} bytes, and this would be more")
        for key, at in zip(keys, range(0, length, size), strict=True):
            place = self._places.setdefault(key, self._used)
            if place == self._used:
                self._used += size
            self.gathered[place : place + size] = data[at : at + size]
        return length

    def written(self) -> tuple[ByteRange, ...]:
        """The ranges that `gathered` holds the bytes of, one behind the other from its
        beginning."""
        found: list[ByteRange] = []
        for nsid, first in self._places:
            size = self.namespaces[nsid].block_size
            last = found[-1] if found else None
            if last is not None and (nsid, first) == (last.nsid, last.first + last.length):
                found[-1] = last._replace(length=last.length + size)
            else:
                found.append(ByteRange(nsid, first, size))
        return tuple(found)

    def _require_readable(self, wanted: ByteRange, size: int) -> None:
        """Raises MediaReadError for a block that cannot be read, unless the job has written it."""
        for item in self.unreadable:
            if not _overlap(item, wanted):
                continue
            last = min(item.first + item.length, wanted.first + wanted.length)
            for at in range(max(item.first, wanted.first), last, size):
                if (wanted.nsid, at) not in self._places:
                    raise MediaReadError(f"block {at // size} of namespace {wanted.nsid} is lost")

    def _block_size(self, nsid: int, lba: int, count: int, *, writing: bool) -> int:
        """Bytes of a block of a namespace, when the program may do what it asks."""
        namespace = self.namespaces.get(nsid)
        if namespace is None:
            raise NotAllowed(f"there is no namespace {nsid}")
        if not ranges.is_granted(self.granted, nsid, lba, count, writing=writing):
            what = "writing" if writing else "reading"
            raise NotAllowed(
                f"{count} blocks from {lba} of namespace {nsid} are not granted for {what}"
            )
        if count and nsid not in self.media:
            raise NotAllowed(f"there is no namespace {nsid}")
        if count and (lba + count) * namespace.block_size > namespace.size:
            raise NotAllowed(f"namespace {nsid} ends before {count} blocks from {lba} do")
        return namespace.block_size


def _overlap(one: ByteRange, other: ByteRange) -> bool:
    return bool(
        one.length
        and other.length
        and one.nsid == other.nsid
        and one.first < other.first + other.length
        and other.first < one.first + one.length
    )

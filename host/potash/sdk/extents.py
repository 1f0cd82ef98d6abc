"""Extents of a file on the drive, and the file system's offset on the namespace.

Linux's `Documentation/filesystems/fiemap.rst` and `include/uapi/linux/fiemap.h`; sysfs's
`/sys/dev/block`, which knows partitions; proc(5) on `/proc/self/mountinfo`.
"""

import fcntl
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from csd_spec.opcodes import PAGE_SIZE
from potash.sdk.errors import InvalidRequest, restated
from potash.sdk.targets import Range, pages_of
from potash_wire.records import U32, U64, At, Record

FIEMAP_FLAG_SYNC = 1 << 0
EXTENTS_AT_ONCE = 128
WHOLE_FILE = (1 << 64) - 1

LAST = 1 << 0
_UNFIT = {
    1 << 1: "is not on the drive yet",
    1 << 2: "is not on the drive yet",
    1 << 3: "is compressed or encrypted",
    1 << 7: "is encrypted",
    1 << 8: "does not fill whole blocks",
    1 << 9: "is kept inside the file system's own records",
    1 << 10: "shares a block with another file",
    1 << 11: "has blocks on the drive that were never written",
    1 << 13: "shares its blocks with another file",
}
"""Flags of an extent that no program could make sense of, or must not write, by meaning."""

_FS_JOURNAL_DATA_FL = 0x4000

FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4"})
"""File systems whose extents are places on their device, and stay where they are."""

SECTOR = 512
"""Bytes of sysfs's unit of size."""

Ioctl = Callable[[int, int, bytearray], int]


class _Request(NamedTuple):
    """`struct fiemap`: a range of a file, the extents that the kernel has stored behind this, and
    how many these are at most."""

    start: U64
    length: U64
    flags: U32
    mapped: U32
    most: U32


class Extent(NamedTuple):
    """A part of a file and where it is on the file system's device, in bytes: `struct
    fiemap_extent`."""

    logical: U64
    physical: U64
    length: U64
    flags: Annotated[U32, At(40)] = 0


_REQUESTS = Record(_Request, least_size=32)
_EXTENTS = Record(Extent, least_size=56)
FS_IOC_FIEMAP = 3 << 30 | 32 << 16 | ord("f") << 8 | 11
FS_IOC_GETFLAGS = 2 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 1


class Volume(NamedTuple):
    """A mounted file system on a namespace: where on the namespace it begins, and its kind."""

    start: int
    kind: str
    options: str


def extents_of(fd: int, ioctl: Ioctl = fcntl.ioctl) -> list[Extent]:
    """All extents of an open file, in order; what was written to it is on the drive first. Raises
    OSError if the file system does not support it."""
    found: list[Extent] = []
    while True:
        start = found[-1].logical + found[-1].length if found else 0
        request = _Request(start, WHOLE_FILE - start, FIEMAP_FLAG_SYNC, 0, EXTENTS_AT_ONCE)
        header = _REQUESTS.encode(request)
        buffer = bytearray(header + bytes(EXTENTS_AT_ONCE * _EXTENTS.size))
        ioctl(fd, FS_IOC_FIEMAP, buffer)
        mapped = _REQUESTS.decode_from(buffer).mapped
        found += _EXTENTS.decode_all(buffer[len(header) :][: mapped * _EXTENTS.size])
        if not mapped or found[-1].flags & LAST:
            return found


def ranges_of(name: str, extents: Sequence[Extent], size: int, start: int) -> list[Range]:
    """The pages of a namespace that hold a file's first `size` bytes, in the file's order.

    `start` is where the file system begins on the namespace. Raises InvalidRequest for a file that
    is not on the drive as it is read.
    """
    wanted = pages_of(size) * PAGE_SIZE
    ranges: list[Range] = []
    at = 0
    for extent in extents:
        if at >= wanted:
            break
        if extent.logical > at:
            break  # a hole
        _require_fit(name, extent)
        first = start + extent.physical
        length = min(extent.length, wanted - at)
        if extent.logical < at or first % PAGE_SIZE or length % PAGE_SIZE:
            raise InvalidRequest(
                f"{name} is not stored in whole pages of {PAGE_SIZE} bytes; make its file system "
                f"with blocks of {PAGE_SIZE} bytes, on a partition that begins on a page"
            )
        _add(ranges, Range(first // PAGE_SIZE, length // PAGE_SIZE))
        at += length
    if at < wanted:
        raise InvalidRequest(
            f"{name} has a hole at byte {at}, which is nowhere on the drive; copy it with"
            " cp --sparse=never"
        )
    return ranges


def _require_fit(name: str, extent: Extent) -> None:
    for flag, meaning in _UNFIT.items():
        if extent.flags & flag:
            raise InvalidRequest(
                f"{name} {meaning} at byte {extent.logical}; a program cannot use it in place, so"
                " copy it"
            )


def _add(ranges: list[Range], more: Range) -> None:
    """Add a range behind the others, as part of the last one where it continues that."""
    if ranges and ranges[-1].page + ranges[-1].pages == more.page:
        ranges[-1] = Range(ranges[-1].page, ranges[-1].pages + more.pages)
    else:
        ranges.append(more)


def volume_of(
    path: Path, block_device: int | None, *, sysfs: Path = Path("/sys"), proc: Path = Path("/proc")
) -> Volume | None:
    """The file system that a file is on, if that is on a namespace; None if it is elsewhere.

    `block_device` is the number of the namespace's block device. File systems on a device
    mapper, a loop device or another machine are elsewhere. Raises OSError.
    """
    number = os.stat(path).st_dev
    if block_device is None:
        return None
    start = _start_on(number, block_device, sysfs)
    if start is None:
        return None
    kind, options = _mounted(number, proc)
    return Volume(start, kind, options)


def _start_on(number: int, block_device: int, sysfs: Path) -> int | None:
    """Start of a block device on another one, whose partition it is or which is itself; None if
    it is neither."""
    if number == block_device:
        return 0
    folder = Path(os.path.realpath(sysfs / "dev" / "block" / _text(number)))
    try:
        if (folder.parent / "dev").read_text().strip() != _text(block_device):
            return None
        return int((folder / "start").read_text()) * SECTOR
    except (OSError, ValueError):
        return None


def _mounted(number: int, proc: Path) -> tuple[str, str]:
    """The kind and the options of the file system on a block device; nothing if it is not
    mounted."""
    for line in (proc / "self" / "mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == _text(number):
            kind, _, options = rest.split(" ", 2)
            return kind, options
    return "", ""


def drive_of(path: Path) -> str | None:
    """The NVMe block device that a file is on, such as /dev/nvme0n1; None if it is elsewhere."""
    folder = Path(os.path.realpath(Path("/sys/dev/block", _text(os.stat(path).st_dev))))
    if (folder / "partition").exists():
        folder = folder.parent
    return f"/dev/{folder.name}" if folder.name.startswith("nvme") else None


def mounts_of(
    block_device: int, *, sysfs: Path = Path("/sys"), proc: Path = Path("/proc")
) -> Iterator[str]:
    """Mount points of file systems of a namespace, or of a partition on it."""
    for line in (proc / "self" / "mountinfo").read_text().splitlines():
        _, _, number, _, place, *_ = line.split()
        major, _, minor = number.partition(":")
        if _start_on(os.makedev(int(major), int(minor)), block_device, sysfs) is not None:
            yield place


def require_usable(name: str, fd: int, volume: Volume, ioctl: Ioctl = fcntl.ioctl) -> None:
    """Refuse a file whose blocks do not contain its data. Raises InvalidRequest.

    Blocks cannot be read and written in place on a file system that keeps several versions of a
    file's data, or moves it.
    """
    if volume.kind not in FILE_SYSTEMS:
        raise InvalidRequest(
            f"{name} is on a file system ({volume.kind or 'unknown'}) whose files cannot be used in"
            f" place; that can be done on {', '.join(sorted(FILE_SYSTEMS))}, so copy it"
        )
    flags = bytearray(struct.calcsize("l"))
    with restated(OSError, f"{name} cannot be looked at"):
        ioctl(fd, FS_IOC_GETFLAGS, flags)
    journalled = int.from_bytes(flags[:4], "little") & _FS_JOURNAL_DATA_FL
    if journalled or "data=journal" in volume.options.split(","):
        raise InvalidRequest(
            f"{name} has its data in the file system's journal before it is in its place; a program"
            " cannot use it there, so copy it"
        )


def _text(number: int) -> str:
    return f"{os.major(number)}:{os.minor(number)}"

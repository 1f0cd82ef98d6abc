"""Writing the "newc" cpio archive that Linux unpacks as its first file system.

The format is the kernel's "initramfs buffer format" (Documentation/driver-api/early-userspace/
buffer-format.rst): a 110-byte header of hexadecimal ASCII, the name, the data, each padded to four
bytes; "TRAILER!!!" ends an archive, and archives may follow one another, so that a part that rarely
changes and one that often does are built apart.
"""

import os
import stat
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

MAGIC = b"070701"
TRAILER = "TRAILER!!!"
ALIGNMENT = 4


class Entry(NamedTuple):
    """One file: `mode` with its type bits, its bytes (a symbolic link's target), a device
    number."""

    mode: int
    data: bytes | Path = b""
    major: int = 0
    minor: int = 0


def header(inode: int, entry: Entry, data_size: int, name_size: int) -> bytes:
    """The fixed part: magic and thirteen fields of eight digits, owned by root, dated 1970."""
    directory = stat.S_ISDIR(entry.mode)
    fields = (
        inode,
        entry.mode,
        0,  # c_uid
        0,  # c_gid
        2 if directory else 1,  # c_nlink
        0,  # c_mtime: a date would make equal content different archives
        data_size,
        0,  # c_maj
        0,  # c_min
        entry.major,
        entry.minor,
        name_size,
        0,  # c_chksum: only in the "crc" format
    )
    return MAGIC + b"".join(b"%08X" % field for field in fields)


class Archive:
    """A tree of files to be written as one archive. Parent folders make themselves."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def directory(self, name: str, mode: int = 0o755) -> None:
        """Add a folder, and those above it, unless they are there."""
        path = _relative(name)
        for parent in reversed(path.parents[:-1]):
            self.entries.setdefault(str(parent), Entry(stat.S_IFDIR | 0o755))
        if str(path) != ".":
            self.entries.setdefault(str(path), Entry(stat.S_IFDIR | mode))

    def file(self, name: str, data: bytes | Path, mode: int = 0o644) -> None:
        """Add a regular file from bytes or from a file (read when the archive is written)."""
        self._add(name, Entry(stat.S_IFREG | mode, data))

    def symlink(self, name: str, target: str) -> None:
        self._add(name, Entry(stat.S_IFLNK | 0o777, target.encode()))

    def device(self, name: str, major: int, minor: int, mode: int) -> None:
        """Add a character device node; no privilege is needed to write one into an archive."""
        self._add(name, Entry(stat.S_IFCHR | mode, b"", major, minor))

    def copy(self, source: Path, name: str, mode: int | None = None) -> None:
        """Add a file with its own executable bits, following links."""
        bits = stat.S_IMODE(source.stat().st_mode) if mode is None else mode
        self.file(name, source, bits & 0o755)

    def write(self, stream: BinaryIO) -> None:
        """Write the archive, folders before what is in them."""
        ordered = sorted(self.entries.items(), key=lambda item: PurePosixPath(item[0]).parts)
        for inode, (name, entry) in enumerate(ordered, start=1):
            data = entry.data.read_bytes() if isinstance(entry.data, Path) else entry.data
            _put(stream, inode, name, entry, data)
        _put(stream, 0, TRAILER, Entry(0), b"")

    def _add(self, name: str, entry: Entry) -> None:
        path = _relative(name)
        self.directory(str(path.parent))
        self.entries[str(path)] = entry


def _relative(name: str) -> PurePosixPath:
    path = PurePosixPath(name.lstrip("/"))
    if ".." in path.parts:
        raise ValueError(f"an archive's name cannot leave the archive: {name}")
    return path


def _put(stream: BinaryIO, inode: int, name: str, entry: Entry, data: bytes) -> None:
    encoded = os.fsencode(name) + b"\0"
    head = header(inode, entry, len(data), len(encoded)) + encoded
    stream.write(head + bytes(-len(head) % ALIGNMENT))
    stream.write(data)
    stream.write(bytes(-len(data) % ALIGNMENT))

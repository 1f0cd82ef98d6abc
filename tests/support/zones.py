"""A host of a drive with one zoned namespace: commands and structures by literal numbers."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from potash_device.media.drive import Drive
from potash_device.media.shapes import (
    DEFAULT_LIMITS,
    NO_AREAS,
    NamespaceShape,
    WriteAreas,
    ZoneLimits,
)
from potash_firmware.rpu.settings import RpuSettings
from support.nvme_host import DATA, Cqe, Host

FLUSH, WRITE, READ, UNCORRECTABLE, COMPARE, ZEROES, DEALLOCATE, VERIFY, COPY = (
    0, 1, 2, 4, 5, 8, 9, 0xC, 0x19,
)  # fmt: skip
SEND, RECEIVE, APPEND = 0x79, 0x7A, 0x7D
CLOSE, FINISH, OPEN, RESET, OFFLINE, EXTEND, COMMIT = 1, 2, 3, 4, 5, 0x10, 0x11
WITH_AREA = 1 << 9
EMPTY, IMPLICIT, EXPLICIT, CLOSED, READ_ONLY, FULL, GONE = 1, 2, 3, 4, 0xD, 0xE, 0xF

INVALID_FIELD, OUT_OF_RANGE = 0x02, 0x80
INVALID_OPERATION, NO_AREA_LEFT = 0x1B6, 0x1B7
BOUNDARY, IS_FULL, IS_READ_ONLY, IS_OFFLINE = 0x1B8, 0x1B9, 0x1BA, 0x1BB
INVALID_WRITE, TOO_MANY_ACTIVE, TOO_MANY_OPEN, INVALID_TRANSITION = 0x1BC, 0x1BD, 0x1BE, 0x1BF

ZONE, BLOCK = 64 << 10, 4096
BLOCKS = ZONE // BLOCK
CAPACITY = 12
"""Blocks of a zone, and how many of them can be written."""
NO_POINTER = (1 << 64) - 1


def shape(
    zones: int = 8, areas: WriteAreas = NO_AREAS, limits: ZoneLimits = DEFAULT_LIMITS
) -> NamespaceShape:
    return NamespaceShape.zoned(zones * ZONE, ZONE, CAPACITY * BLOCK, areas=areas, limits=limits)


@contextmanager
def powered(
    path: Path | None = None,
    zones: int = 8,
    settings: RpuSettings | None = None,
    areas: WriteAreas = NO_AREAS,
    limits: ZoneLimits = DEFAULT_LIMITS,
) -> Iterator[Host]:
    """A drive with one zoned namespace, enabled with all command sets, and I/O queue 1."""
    with (
        Drive.open(path, (shape(zones, areas, limits),)) as drive,
        Host(settings=settings, drive=drive) as host,
    ):
        host.css = 6
        host.enable()
        host.create_io_queue()
        yield host


def asked(host: Host, opcode: int, slba: int, *more: int, nsid: int = 1) -> Cqe:
    """The completion of a command whose first two dwords are an LBA; its data are at DATA."""
    cdws = (slba & 0xFFFF_FFFF, slba >> 32, *more)
    done = host.command(host.io[1], opcode, nsid=nsid, prp1=DATA, prp2=DATA + 4096, cdws=cdws)
    return done


def write(host: Host, slba: int, count: int = 1, fill: int = 1, opcode: int = WRITE) -> Cqe:
    assert count <= 2
    host.put(bytes([fill]) * count * BLOCK)
    return asked(host, opcode, slba, count - 1)


def read(host: Host, slba: int) -> bytes:
    host.clear(DATA, BLOCK)
    assert asked(host, READ, slba, 0).status == 0
    return host.data(BLOCK)


def send(host: Host, action: int, slba: int = 0, *, every: bool = False) -> int:
    return asked(host, SEND, slba, 0, every << 8 | action).status


class Zone(NamedTuple):
    """A zone descriptor."""

    state: int
    capacity: int
    first: int
    pointer: int
    attributes: int


def report(
    host: Host, slba: int = 0, options: int = 0, *, partial: bool = False, size: int = 4096
) -> tuple[int, list[Zone]]:
    """The number of zones that a report has, and the descriptors that are there."""
    host.clear(DATA, size)
    done = asked(host, RECEIVE, slba, size // 4 - 1, partial << 16 | options << 8)
    assert done.status == 0, hex(done.status)
    return decoded(host.data(size))


def decoded(data: bytes, step: int = 64) -> tuple[int, list[Zone]]:
    (count,) = struct.unpack_from("<Q", data)
    assert not any(data[8:64])
    found = []
    for at in range(64, len(data) - 63, step):
        kind, state, attributes, information, capacity, first, pointer = struct.unpack_from(
            "<BBBB4xQQQ", data, at
        )
        if kind:
            assert (kind, state & 0xF, information) == (2, 0, 0)
            found.append(Zone(state >> 4, capacity, first, pointer, attributes))
    return count, found


def zone(host: Host, number: int) -> Zone:
    return report(host, number * BLOCKS)[1][0]


def states(host: Host) -> list[int]:
    return [one.state for one in report(host)[1]]


def copy(host: Host, to: int, *ranges: tuple[int, int]) -> int:
    host.put(b"".join(struct.pack("<8xQH14x", first, count - 1) for first, count in ranges))
    return asked(host, COPY, to, len(ranges) - 1).status

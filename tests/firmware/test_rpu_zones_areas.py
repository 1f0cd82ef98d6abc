"""Random write areas of zones (ZRWA), by literal numbers.

Source: TP 4076, which revisions of the Zoned Namespace Command Set Specification after 1.1 include.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from potash_device.media.drive import Drive
from potash_device.media.shapes import DriveError, WriteAreas, ZoneLimits
from support.memory import identify
from support.nvme_host import Host
from support.zones import (
    APPEND,
    BLOCK,
    BLOCKS,
    BOUNDARY,
    CAPACITY,
    CLOSE,
    CLOSED,
    COMMIT,
    EMPTY,
    EXPLICIT,
    EXTEND,
    FINISH,
    FULL,
    IMPLICIT,
    INVALID_FIELD,
    INVALID_OPERATION,
    INVALID_TRANSITION,
    INVALID_WRITE,
    NO_AREA_LEFT,
    OPEN,
    RESET,
    WITH_AREA,
    WRITE,
    ZEROES,
    asked,
    copy,
    powered,
    read,
    send,
    shape,
    write,
    zone,
)

AREA, GRANULARITY, MOST = 4, 2, 2
"""Blocks of an area and of what is committed at once, and zones that can have one."""
AREAS = WriteAreas(AREA * BLOCK, GRANULARITY * BLOCK, MOST)
ZRWAV = 0x08


@pytest.fixture
def host() -> Iterator[Host]:
    with powered(areas=AREAS) as found:
        yield found


def allocate(host: Host, number: int = 0) -> int:
    return send(host, OPEN | WITH_AREA, number * BLOCKS)


def test_identify_has_the_areas(host: Host) -> None:
    data = identify(host, 0x05, 1, 2)
    (options,) = struct.unpack_from("<H", data, 2)
    assert options == 0b11
    assert struct.unpack_from("<IHHB", data, 44) == (MOST - 1, GRANULARITY, AREA, 1)


def test_areas_keep_their_bytes_over_a_format(host: Host) -> None:
    assert allocate(host) == 0
    assert write(host, 3).status == 0
    assert host.command(host.admin, 0x80, nsid=1, cdws=(0,)).status == 0  # blocks of 512 bytes
    units = 4096 // 512
    data = identify(host, 0x05, 1, 2)
    assert struct.unpack_from("<HH", data, 48) == (GRANULARITY * units, AREA * units)
    assert zone(host, 0)[::4] == (EMPTY, 0)
    assert allocate(host) == 0
    host.put(bytes([9]) * 512)
    assert asked(host, WRITE, AREA * units, 0).status == 0
    assert zone(host, 0).pointer == GRANULARITY * units
    assert send(host, COMMIT, GRANULARITY * units * 2 - 1) == 0


def test_a_zone_has_an_area_until_it_is_full_or_empty(host: Host) -> None:
    for action, state in ((FINISH, FULL), (RESET, EMPTY)):
        assert allocate(host) == 0
        assert zone(host, 0)[::4] == (EXPLICIT, ZRWAV)
        assert send(host, CLOSE) == 0
        assert zone(host, 0)[::4] == (CLOSED, ZRWAV)
        assert send(host, action) == 0
        assert zone(host, 0)[::4] == (state, 0)
        assert send(host, RESET) == 0


def test_writes_in_the_area_come_in_any_order(host: Host) -> None:
    assert allocate(host) == 0
    for lba, fill in ((3, 3), (0, 1), (3, 4), (1, 2), (0, 5)):
        assert write(host, lba, fill=fill).status == 0
    assert [read(host, lba)[0] for lba in range(5)] == [5, 2, 0, 4, 0]
    assert zone(host, 0).pointer == 0


def test_a_write_behind_the_area_commits(host: Host) -> None:
    assert allocate(host) == 0
    assert write(host, 4, 1).status == 0  # one block behind the area: two are committed
    assert zone(host, 0).pointer == 2
    assert write(host, 1).status == INVALID_WRITE
    assert write(host, 2 + 2 * AREA, 1).status == INVALID_WRITE
    assert write(host, 2 + 2 * AREA - 1, 1).status == 0
    assert zone(host, 0).pointer == 2 + AREA
    assert write(host, CAPACITY - 2, 2).status == 0
    assert write(host, CAPACITY - 1, 2).status == BOUNDARY
    assert zone(host, 0).pointer == CAPACITY - AREA
    assert write(host, CAPACITY - 2, 2).status == 0
    assert zone(host, 0).state == EXPLICIT
    assert send(host, COMMIT, CAPACITY - 1) == 0
    assert zone(host, 0)[::4] == (FULL, 0)


@pytest.mark.parametrize(
    ("last", "status"), [(0, 0x1B6), (1, 0), (3, 0), (4, 0x1B6), (5, 0x1B6), (BLOCKS, 0x1B6)]
)
def test_a_commit_is_of_whole_units_in_the_area(host: Host, last: int, status: int) -> None:
    assert allocate(host) == 0
    assert write(host, 1).status == 0
    assert send(host, COMMIT, last) == status
    assert zone(host, 0).pointer == (0 if status else last + 1)
    assert [read(host, lba)[0] for lba in range(4)] == [0, 1, 0, 0]


def test_what_an_area_refuses(host: Host) -> None:
    assert send(host, COMMIT, 1) == INVALID_OPERATION
    assert write(host, 0, opcode=APPEND).status == 0
    assert allocate(host) == INVALID_OPERATION  # it is not empty
    assert send(host, FINISH) == 0
    assert allocate(host) == INVALID_TRANSITION
    assert allocate(host, 1) == 0
    assert allocate(host, 1) == INVALID_OPERATION
    assert write(host, BLOCKS, opcode=APPEND).status == INVALID_OPERATION
    assert send(host, COMMIT, 8 * BLOCKS) == INVALID_FIELD
    assert send(host, OPEN | WITH_AREA, every=True) == INVALID_FIELD
    assert send(host, COMMIT, every=True) == INVALID_FIELD
    assert send(host, RESET | WITH_AREA, every=True) == 0  # to which the bit says nothing


def test_a_namespace_without_areas_gives_none() -> None:
    with powered() as host:
        assert allocate(host) == INVALID_OPERATION
        assert zone(host, 0).state == EMPTY
        assert identify(host, 0x05, 1, 2)[44:53] == bytes(9)


def test_areas_are_counted(host: Host) -> None:
    assert [allocate(host, number) for number in range(3)] == [0, 0, NO_AREA_LEFT]
    assert zone(host, 2).state == EMPTY
    assert send(host, OPEN, 2 * BLOCKS) == 0
    assert send(host, CLOSE, 0) == 0
    assert allocate(host, 3) == NO_AREA_LEFT
    assert send(host, RESET, 0) == 0
    assert send(host, EXTEND | WITH_AREA, 3 * BLOCKS) == 0
    assert zone(host, 3)[::4] == (CLOSED, 0x80 | ZRWAV)


def test_a_commit_opens_a_closed_zone(host: Host) -> None:
    assert allocate(host) == 0
    assert send(host, CLOSE) == 0
    assert send(host, COMMIT, 1) == 0
    assert zone(host, 0)[:1] == (IMPLICIT,)


def test_copies_and_zeroes_are_writes_in_the_area(host: Host) -> None:
    assert write(host, BLOCKS, 2, fill=7).status == 0
    assert allocate(host) == 0
    assert copy(host, 2, (BLOCKS, 2)) == 0
    assert write(host, 3, opcode=ZEROES).status == 0
    assert [read(host, lba)[0] for lba in range(4)] == [0, 0, 7, 0]
    assert copy(host, AREA, (BLOCKS, 2)) == 0
    assert zone(host, 0).pointer == GRANULARITY


def test_areas_outlive_a_power_cycle(tmp_path: Path) -> None:
    with powered(tmp_path / "drive", areas=AREAS) as host:
        assert allocate(host, 0) == 0
        assert allocate(host, 1) == 0
        assert write(host, 2).status == 0
    with powered(tmp_path / "drive", areas=AREAS) as host:
        assert zone(host, 0)[::4] == (CLOSED, ZRWAV)
        assert zone(host, 1)[::4] == (EMPTY, 0)  # nothing was written
        assert read(host, 2)[0] == 1
        assert write(host, 0).status == 0
        assert send(host, COMMIT, 3) == 0
        assert zone(host, 0).pointer == 4


@pytest.mark.parametrize(
    ("sound", "broken"),
    [
        ("size = 16384", "size = 12288"),
        ("size = 16384", "size = 1048576"),
        ("granularity = 8192", "granularity = 0"),
        ("granularity = 8192", "granularity = 512"),
        ("max_open = 2", "max_open = 4"),
        ("max_open = 2", "max_open = 0"),
        ("max_open = 2", "max_opened = 2"),
    ],
)
def test_the_media_have_the_areas_and_limits(tmp_path: Path, sound: str, broken: str) -> None:
    described = shape(4, AREAS, ZoneLimits(3, 2, cross_zone_reads=False, reset_after=7))
    with Drive.open(tmp_path / "drive", (described,)):
        pass
    with Drive.open(tmp_path / "drive") as drive:
        assert drive.shapes == {1: described}
    for other in (shape(4), shape(4, AREAS), shape(4, limits=described.limits)):
        with pytest.raises(DriveError, match="areas 16384:8192:2, max_active 3, .*; leave them"):
            Drive.open(tmp_path / "drive", (other,))
    listed = tmp_path / "drive.toml"
    assert sound in listed.read_text()
    listed.write_text(listed.read_text().replace(sound, broken))
    with pytest.raises(DriveError, match="does not describe the namespaces"):
        Drive.open(tmp_path / "drive")

"""The SLC buffer of zones, against closed forms: small writes of zones gather in it."""

from __future__ import annotations

import io
from dataclasses import asdict, replace
from typing import Any

import pytest

from potash_device.flash.profile import PAGE, Profile, ProfileError, Rate
from potash_device.flash.profiles import PROFILES, from_mapping
from potash_device.flash.scaling import ZoneShape, equipped, scaled
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.requests import Op
from potash_firmware.ftl.saving import StateError, load, save
from support.drive_reference import Reference
from support.drive_time import problems

Either = type[Drive] | type[Reference]
SECOND = 10**9
ZONES, UNIT, SIZE, SLC_SIZE = 48, 6, 192, 48
"""A superblock has 32 program units of 3 rows of 2 pages, or 8 units in SLC mode."""
BUFFER = 12
"""Superblocks of the SLC buffer."""


ZONED = Profile(
    channels=4,
    dies=1,
    planes=1,
    blocks=80,
    pages=24,
    page_bytes=2 * PAGE,
    program_pages=3,
    capacity=(1 + ZONES * SIZE) * PAGE,
    read_ns=(1000,),
    program_ns=(6000,),
    erase_ns=30_000,
    bus=Rate(1, 0),
    link=Rate(1, 0),
    buffer_bytes=48 * PAGE,
    zone_superblocks=ZONES,
    zone_pages=ZONES * SIZE,
    zone_slc=150,
    slc_read_ns=300,
    slc_program_ns=500,
    slc_erase_ns=20_000,
)
"""Nothing takes time but the dies: a unit in SLC mode 1.5 µs, and in the native mode 6 µs."""


def write(drive: Any, zone: int, at: int, count: int = 1, time: int = 0, fua: bool = False) -> int:
    stream, first = drive.profile.frontiers + zone, 1 + zone * SIZE
    ended: int = drive.submit(max(time, drive.now), Op.WRITE, first + at, count, stream, fua)
    return ended


def manage(drive: Any, op: Op, zone: int, time: int = 0) -> int:
    ended: int = drive.submit(max(time, drive.now), op, 0, 0, drive.profile.frontiers + zone)
    return ended


def test_the_drive_is_as_described() -> None:
    assert (ZONED.unit_pages, ZONED.superblock_pages, ZONED.slc_pages) == (UNIT, SIZE, SLC_SIZE)
    assert (ZONED.zone_slc_superblocks, ZONED.slc_unit_ns) == (BUFFER, 1500)


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_small_writes_of_many_zones_are_programmed_at_the_speed_of_slc(kind: Either) -> None:
    drive = kind(ZONED)
    ends = [write(drive, zone, at) for at in range(4) for zone in range(ZONES)]
    units = 4 * ZONES // UNIT
    assert drive.counters.slc_programs == drive.counters.programs == units == 32
    assert drive.counters.write_amplification == 1
    assert drive.counters.die_ns == units * 1500
    # The write buffer has room for 8 units, so the last but 8 are programmed by then.
    assert max(ends) == (units - 8) // 4 * 1500
    # Without it, nothing is programmed, however much is in memory.
    drive = kind(replace(ZONED, zone_slc=0))
    assert max(write(drive, zone, at) for at in range(4) for zone in range(ZONES)) == 0
    assert drive.counters.programs == 0


@pytest.mark.parametrize("kind", [Drive, Reference])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 12, 192])
def test_what_a_write_leaves_of_a_unit_is_written_twice(kind: Either, size: int) -> None:
    """All but the write that fills a unit goes through the buffer."""
    drive, zones = kind(ZONED), range(8)
    for at in range(0, SIZE, size):
        for zone in zones:
            write(drive, zone, at, size)
    units = SIZE // UNIT * len(zones)
    twice = (UNIT - size) * units if size < UNIT and not UNIT % size else 0
    if size == 4:  # of 12 pages, the second write fills the first unit, and begins the other one
        twice = (4 + 2) * units // 2
    counters = drive.counters
    assert counters.host == SIZE * len(zones)
    assert counters.folded == counters.relocated == twice
    assert counters.programs - counters.slc_programs == units
    assert counters.slc_programs == twice // UNIT
    assert counters.erased == (twice // UNIT * UNIT) // SLC_SIZE
    assert counters.padding == 0


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_a_unit_that_is_filled_has_its_pages_read_in_slc(kind: Either) -> None:
    drive = kind(ZONED)
    for zone in range(2 * UNIT):  # two units, of which zone 0 has a page in the first
        write(drive, zone, 0)
    # A read of a page in SLC mode, and one of a page in memory.
    write(drive, 0, 1, time=SECOND)
    assert drive.submit(SECOND, Op.READ, 1, 1) == SECOND + 300
    assert drive.submit(SECOND, Op.READ, 2, 1) == SECOND
    assert drive.counters.senses == 1
    # The rest of the unit: its first page is read, the second one is in memory yet.
    before = drive.counters
    assert write(drive, 0, 2, UNIT - 2, 2 * SECOND) == 2 * SECOND
    assert drive.submit(2 * SECOND + 300 + 5999, Op.READ, 1, 2) == 2 * SECOND + 6299
    took = drive.counters.since(before)
    assert (took.senses, took.programs, took.slc_programs) == (1, 1, 0)
    assert (took.folded, took.relocated, took.host) == (2, 2, UNIT - 2)
    assert drive.submit(2 * SECOND + 6300, Op.READ, 1, 2) == 2 * SECOND + 7300


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_a_reset_frees_the_buffer_without_a_copy(kind: Either) -> None:
    drive = kind(ZONED)
    for at in range(4):
        for zone in range(SLC_SIZE // 4):  # they fill a superblock
            write(drive, zone, at)
    assert drive.wear.slc == 1
    before = drive.counters
    for zone in range(SLC_SIZE // 4):
        ended = manage(drive, Op.RESET, zone, SECOND * (zone + 1))
        assert ended == SECOND * (zone + 1) + (30_000 if zone < 11 else 50_000)
    took = drive.counters.since(before)
    # A superblock of each zone, and that of the buffer with the last of them.
    assert took.erased == SLC_SIZE // 4 + 1
    assert took.senses == took.programs == took.relocated == 0
    assert drive.wear.slc == 0 and drive.wear.free == 80


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_a_finish_moves_what_is_in_the_buffer(kind: Either) -> None:
    drive = kind(ZONED)
    for zone in range(UNIT):
        write(drive, zone, 0)
    ended = manage(drive, Op.FINISH, 2, SECOND)
    # The page is read, then 8 units of each die are programmed, one of which waits for the page.
    assert ended == SECOND + 300 + 8 * 6000
    counters = drive.counters
    assert (counters.folded, counters.padding, counters.senses) == (1, SIZE - 1, 1)
    assert drive.submit(2 * SECOND, Op.READ, 1 + 2 * SIZE, 1) == 2 * SECOND + 1000
    manage(drive, Op.FINISH, 7, 2 * SECOND)  # one that is empty
    assert drive.counters.programs == 1 + SIZE // UNIT


@pytest.mark.parametrize("kind", [Drive, Reference])
@pytest.mark.parametrize("protected", [False, True])
def test_what_was_flushed_is_on_flash(kind: Either, protected: bool) -> None:
    drive = kind(replace(ZONED, protected=protected))
    for zone in range(UNIT + 2):
        write(drive, zone, 0)
    ended = drive.submit(SECOND, Op.FLUSH)
    assert ended == SECOND + (0 if protected else 1500)
    assert drive.counters.padding == (0 if protected else UNIT - 2)
    # FUA of a small write, of one that fills its unit, and of one that fills half of the next, too.
    now = 2 * SECOND
    for at, count, took in ((1, 1, 1500), (2, 4, 300 + 6000), (6, 9, 6000 + 1500)):
        ended = write(drive, 0, at, count, now, fua=True)
        assert ended == now + (0 if protected else took)
        now += SECOND
    # Of the 12 pages that do not fill a unit of a zone.
    assert drive.counters.slc_programs == (2 if protected else 4)


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_zones_that_stay_half_written_have_their_pages_copied(kind: Either) -> None:
    """With one page of each zone in all superblocks of the buffer, they are copied together."""
    drive = kind(ZONED)
    at = 0
    for zone in range(1, BUFFER + 1):
        write(drive, zone, 0)
        while drive.counters.slc_programs < zone * SLC_SIZE // UNIT:
            if at == SIZE:
                manage(drive, Op.RESET, 0)
            at %= SIZE
            write(drive, 0, at)
            at += 1
    assert drive.wear.slc == BUFFER
    before = drive.counters
    write(drive, 40, 0)
    took = drive.counters.since(before)
    assert (took.erased, took.relocated, took.folded) == (1, 1, 0)
    assert drive.wear.slc == BUFFER


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_a_full_buffer_has_units_filled_in_memory(kind: Either) -> None:
    drive = kind(replace(ZONED, zone_slc=1))
    assert drive.profile.zone_slc_superblocks == 1
    for at in range(2):
        for zone in range(ZONES // 2):
            write(drive, zone, at)
    assert drive.counters.slc_programs == SLC_SIZE // UNIT  # nothing of it is invalid
    before = drive.counters
    assert write(drive, 30, 0, 3, SECOND) == write(drive, 30, 3, 3) == SECOND
    took = drive.counters.since(before)
    assert (took.slc_programs, took.programs, took.folded) == (0, 1, 0)


def test_a_saved_buffer_is_restored() -> None:
    drive = Drive(ZONED)
    for at in range(9):
        for zone in range(ZONES - 7):
            write(drive, zone, at)
    drive.rest()
    copy = load(saved(drive))
    assert problems(ZONED, copy.state) == []
    for each in (drive, copy):
        for at in range(9, 20):
            for zone in range(ZONES - 3):
                write(each, zone, at if zone < ZONES - 7 else at - 9)
        manage(each, Op.FINISH, 3)
        manage(each, Op.RESET, 5)
    assert copy.counters == drive.counters
    assert (copy.state.places == drive.state.places).all()
    assert copy.submit(SECOND, Op.FLUSH) == drive.submit(SECOND, Op.FLUSH)


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("staged", (0, 0), -1),
        ("staged", (0, 4), 7),
        ("staged", (0, 0), 1 << 30),
        ("staged", (0, 0), 2),
        ("staged", (40, 0), 9000),
        ("mode", 0, 0),
        ("mode", 2, 1),
        ("filled", -1, 48),
    ],
)
def test_a_buffer_that_contradicts_itself_is_refused(name: str, at: Any, value: int) -> None:
    drive = Drive(ZONED)
    for page in range(2):
        for zone in range(9):
            write(drive, zone, page)
    state = drive.state
    opened = state.zone.tolist().index(ZONED.frontiers + ZONED.superblocks)
    if name == "mode":
        at = opened if not value else int(state.open[ZONED.frontiers])
    getattr(state.flash if name == "mode" else state, name)[at] = value
    with pytest.raises(StateError, match="contradict|mapping"):
        load(saved(drive))


def saved(drive: Drive) -> io.BytesIO:
    file = io.BytesIO()
    save(drive, file)
    file.seek(0)
    return file


def test_a_drive_is_made_for_its_zones_with_a_buffer() -> None:
    for name in ("tlc", "qlc", "zns"):
        for size in (1 << 20, 16 << 20, 512 << 20):
            for slc in (0, 50):
                asked = equipped(PROFILES[name], slc, zone_slc=30)
                profile = scaled(asked, 8 * size + (4 << 30), [ZoneShape(8, size, size)])
                assert profile.zone_slc_superblocks == -(-profile.superblocks * 30 // 1000)
                without = scaled(replace(asked, zone_slc=0), profile.capacity, ())
                assert (without.slc, profile.slc) == (slc, slc)
    assert scaled(replace(PROFILES["tlc"], zone_slc=30), 4 << 30).zone_slc_superblocks == 0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"program_pages": 1}, "zone_slc needs cells of several bits"),
        ({"slc_bits": 3}, "it must be less than the 3 bits of a cell"),
        ({"buffer_bytes": 0}, "zone_slc needs a write buffer, in which small writes gather"),
        ({"copy_back": True}, "with copy_back there can be no zone_slc"),
        ({"slc": 400}, "slc and zone_slc are more than half of the flash together"),
        ({"zone_slc": 501}, "zone_slc"),
        ({"zone_slc": 500}, "the drive needs"),
        ({"zone_slc": "5"}, "percentage"),
    ],
)
def test_a_buffer_that_cannot_be_is_refused(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(ProfileError, match=problem):
        from_mapping(asdict(ZONED) | changes)
    assert from_mapping(asdict(ZONED) | {"zone_slc": "12.5%"}).zone_slc == 125

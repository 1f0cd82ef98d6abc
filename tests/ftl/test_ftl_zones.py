"""Zones on a modelled drive, against closed forms: they have superblocks of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from potash_device.flash.profile import PAGE, Profile, ProfileError, Rate
from potash_device.flash.profiles import PROFILES
from potash_device.flash.scaling import ZoneShape, scaled
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.requests import WORN, Op
from support.drive_reference import Reference

Either = type[Drive] | type[Reference]

SECOND = 10**9
ZONES = 16
PLAIN = Profile(
    channels=4,
    dies=1,
    planes=1,
    blocks=64,
    pages=64,
    page_bytes=PAGE,
    program_pages=1,
    capacity=PAGE,
    read_ns=(1000,),
    program_ns=(5000,),
    erase_ns=20_000,
    bus=Rate(1, 0),
    link=Rate(1, 0),
    buffer_bytes=1 << 20,
    submission_ns=10,
    other_command_ns=20,
    completion_ns=30,
)
"""A superblock has 256 pages; nothing takes time but the dies, and 60 ns of each command."""
OVERHEAD = 60


def zoned(width: int = 0, **changes: Any) -> Profile:
    """A drive with zones of a superblock each, and a page that is in none."""
    profile = replace(PLAIN, width=width, **changes)
    return replace(
        profile,
        capacity=(1 + ZONES * profile.superblock_pages) * PAGE,
        zone_superblocks=ZONES,
        zone_pages=ZONES * profile.superblock_pages,
    )


def zone(profile: Profile, number: int) -> tuple[int, int]:
    """The stream of a zone, and its first page."""
    return profile.frontiers + number, 1 + number * profile.superblock_pages


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_zones_that_are_reset_amplify_nothing(kind: Either) -> None:
    profile = zoned()
    drive, now, random = kind(profile), 0, np.random.default_rng(1)
    size = profile.superblock_pages
    for turn in range(6):
        chosen = range(ZONES) if not turn else random.permutation(ZONES)[:8].tolist()
        for number in chosen if turn else ():
            now = drive.submit(now, Op.RESET, 0, 0, zone(profile, number)[0])
        for at in range(0, size, 32):  # side by side
            for number in chosen:
                stream, first = zone(profile, number)
                now = drive.submit(now, Op.WRITE, first + at, min(32, size - at), stream)
    counters = drive.counters
    assert counters.host == (ZONES + 5 * 8) * size
    assert counters.write_amplification == 1
    assert counters.erased == 5 * 8


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_a_finish_costs_its_padding_and_a_reset_its_erases(kind: Either) -> None:
    profile = zoned()
    drive, (stream, first) = kind(profile), zone(profile, 3)
    drive.submit(0, Op.WRITE, first, 100, stream)
    now = drive.submit(SECOND, Op.FINISH, 0, 0, stream)
    assert now - SECOND == OVERHEAD + (256 - 100) // 4 * 5000
    assert drive.counters.padding == 156
    assert drive.submit(now, Op.READ, first + 99, 1, stream) == now + OVERHEAD - 20 + 1000
    now = drive.submit(2 * SECOND, Op.RESET, 0, 0, stream)
    assert now - 2 * SECOND == OVERHEAD + 20_000
    assert drive.counters.erased == 1
    assert drive.submit(3 * SECOND, Op.READ, first, 1, stream) == 3 * SECOND + OVERHEAD - 20


@pytest.mark.parametrize("kind", [Drive, Reference])
@pytest.mark.parametrize("share", [0, 1, 2, 4])
def test_a_finish_amplifies_by_what_is_not_written(kind: Either, share: int) -> None:
    profile = zoned()
    drive, (stream, first) = kind(profile), zone(profile, 0)
    written = profile.superblock_pages * share // 4
    if written:
        drive.submit(0, Op.WRITE, first, written, stream)
    drive.submit(SECOND, Op.FINISH, 0, 0, stream)
    assert drive.counters.padding == (256 - written if written else 0)
    assert drive.counters.write_amplification == (4 / share if share else 0)


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_a_reset_waits_for_the_programs_of_its_dies_alone(kind: Either) -> None:
    profile = zoned(width=2)
    drive, rows = kind(profile), profile.pages
    for number in range(3):  # zones 0 and 2 are on the same two dies
        stream, first = zone(profile, number)
        drive.submit(0, Op.WRITE, first, profile.superblock_pages, stream)
    busy = 10 + 2 * rows * 5000
    assert drive.submit(1, Op.RESET, 0, 0, zone(profile, 0)[0]) == busy + 20_000 + 30
    assert drive.submit(1, Op.RESET, 0, 0, zone(profile, 1)[0]) == 10 + rows * 5000 + 20_000 + 30
    assert drive.submit(1, Op.RESET, 0, 0, zone(profile, 2)[0]) == busy + 2 * 20_000 + 30


@pytest.mark.parametrize(
    ("bits", "program", "read", "erase"),
    [
        (1, 75_000, 4000, 2_000_000),
        (3, 937_500, 32_000, 3_000_000),
        (4, 12_196_000, 85_000, 3_000_000),
    ],
)
@pytest.mark.parametrize("kind", [Drive, Reference])
def test_an_idle_drive_takes_the_times_of_femus_zones(
    kind: Either, bits: int, program: int, read: int, erase: int
) -> None:
    """The constants of hw/femu/zns/zns.h and hw/femu/nand/nand.h, with its planes and pages: a page
    of 4 KiB is written to its cache in 1 µs."""
    profile = zoned(
        dies=2, planes=2, page_bytes=4 * PAGE, pages=8 * bits, program_pages=bits,
        read_ns=(read,), program_ns=(program,), erase_ns=erase,
        write_page_ns=1000, submission_ns=0, other_command_ns=0, completion_ns=0,
    )  # fmt: skip
    drive, (stream, first) = kind(profile), zone(profile, 1)
    row = profile.unit_pages * profile.total_dies
    assert drive.submit(0, Op.WRITE, first, row, stream) == row * 1000
    assert drive.submit(SECOND, Op.READ, first, 1, stream) == SECOND + read
    assert drive.submit(2 * SECOND, Op.FINISH, 0, 0, stream) == 2 * SECOND + 7 * program
    assert drive.submit(3 * SECOND, Op.RESET, 0, 0, stream) == 3 * SECOND + erase


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_pages_of_a_random_write_area_are_programmed_once(kind: Either) -> None:
    profile = zoned(zone_buffer_bytes=4 * PAGE)
    drive, (stream, first) = kind(profile), zone(profile, 2)
    now = 0
    for turn in range(10):
        now = drive.submit(turn * SECOND, Op.WRITE_AREA, first + turn % 2, 1, stream)
        assert now == turn * SECOND + OVERHEAD - 20  # no command of another kind
    assert drive.submit(now, Op.READ, first, 1, stream) == now + OVERHEAD - 20
    assert drive.counters.programs == 0
    now = drive.submit(SECOND * 10, Op.COMMIT, first, 8, stream)
    # Four units are in the zone's buffer, and each of four dies programs one of the others.
    assert now == SECOND * 10 + OVERHEAD + 5000
    counters = drive.counters
    assert (counters.host, counters.area_writes, counters.commits) == (10, 10, 8)
    assert (counters.programs, counters.write_amplification) == (8, 0.8)
    assert (
        drive.submit(11 * SECOND, Op.READ, first, 1, stream) == 11 * SECOND + OVERHEAD - 20 + 1000
    )


@pytest.mark.parametrize("kind", [Drive, Reference])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_zone_has_the_throughput_of_its_dies(kind: Either, width: int) -> None:
    profile = zoned(width=width, buffer_bytes=0)
    drive, (stream, first) = kind(profile), zone(profile, 5)
    took = drive.submit(0, Op.WRITE, first, profile.superblock_pages, stream) - 40
    assert profile.superblock_pages / took == width / 5000
    took = drive.submit(SECOND, Op.READ, first, profile.superblock_pages, stream) - SECOND - 40
    assert profile.superblock_pages / took == width / 1000


@pytest.mark.parametrize("kind", [Drive, Reference])
@pytest.mark.parametrize("units", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("shared", [0, 1 << 20])
def test_a_buffer_of_a_zone_keeps_as_many_dies_busy(kind: Either, units: int, shared: int) -> None:
    """Each write is a page, which is a program unit; the shared buffer is of no use to zones."""
    profile = zoned(buffer_bytes=shared, zone_buffer_bytes=units * PAGE, zone_superblocks=ZONES)
    drive, pages = kind(profile), profile.superblock_pages
    ends: list[list[int]] = []
    for number in (0, 1):  # which take turns on the same dies
        (stream, first), now = zone(profile, number), number * SECOND
        ends.append([])
        for page in range(pages):
            now = drive.submit(now, Op.WRITE, first + page, 1, stream)
            ends[number].append(now - number * SECOND)
    assert ends[0] == ends[1]
    # The first pages wait for nothing; each further one for the program `units` before it.
    busy = min(units, 4)
    assert ends[0][units - 1] < 5000 <= ends[0][units]
    rounds = (pages - 1 - units) // busy
    assert ends[0][-1] // 5000 in (rounds, rounds + 1)
    assert drive.submit(9 * SECOND, Op.FLUSH) == 9 * SECOND + OVERHEAD
    for stream in (zone(profile, 0)[0], zone(profile, 1)[0]):
        drive.submit(10 * SECOND, Op.RESET, 0, 0, stream)
    assert drive.submit(11 * SECOND, Op.WRITE, 1, 1, zone(profile, 0)[0]) < 11 * SECOND + 5000


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_zones_are_as_quick_as_their_dies(kind: Either) -> None:
    profile = zoned(width=2, buffer_bytes=0)

    def took(*zones: int) -> int:
        drive = kind(profile)
        ends = []
        for number in zones:
            stream, first = zone(profile, number)
            ends.append(drive.submit(0, Op.WRITE, first, profile.superblock_pages, stream))
        return max(ends) - OVERHEAD + 20

    assert profile.superblock_pages == 128
    assert took(0) == 128 // 2 * 5000
    assert took(0, 1) == took(0)
    assert took(0, 2) == 2 * took(0)


def test_a_reset_frees_superblocks_of_a_drive_that_had_none() -> None:
    """Zones keep superblocks of which programs have failed until they are reset."""
    profile = zoned()
    drive = Drive(profile)

    def fill(number: int) -> bool:
        stream, first = zone(profile, number)
        return drive.submit(drive.now, Op.WRITE, first, profile.superblock_pages, stream) != WORN

    assert all(map(fill, range(4)))
    drive.fail_programs(profile.superblocks - 4 - 1 - profile.reserve)
    assert not fill(4) and drive.worn
    for number in (0, 1):
        drive.submit(drive.now, Op.RESET, stream=zone(profile, number)[0])
    assert not drive.worn and fill(0)
    # With the bad ones, which are retired then, so few are left that the drive is worn out.
    drive.submit(drive.now, Op.RESET, stream=zone(profile, 4)[0])
    assert drive.worn and not fill(4) and drive.good < profile.least_superblocks


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("size", [1 << 17, 1 << 20, 16 << 20, 48 << 20, 512 << 20])
def test_a_drive_is_made_for_its_zones(name: str, size: int) -> None:
    zones = ZoneShape(8, size, size * 3 // 4)
    profile = scaled(PROFILES[name], 8 * size, [zones])
    superblock = profile.superblock_pages * PAGE
    assert profile.zone_superblocks == 8 * -(-zones.capacity // superblock)
    assert profile.superblocks >= profile.least_superblocks
    # A zone wastes little of its superblocks, unless a program unit is larger than the zone.
    unit = profile.unit_pages * PAGE * profile.group_dies
    assert superblock < zones.capacity + max(unit, superblock // 8) or profile.group_dies == 1
    together = scaled(PROFILES[name], 8 * size + (4 << 30), [zones])
    assert together.logical_pages == (8 * size + (4 << 30)) // PAGE


@pytest.mark.parametrize("name", ["tlc", "zns"])
def test_all_pages_of_a_drive_for_small_zones_can_be_written_without_zones(name: str) -> None:
    """As after its host has deleted the zoned namespace and created another one."""
    drive = Drive(scaled(PROFILES[name], 32 << 20, [ZoneShape(32, 1 << 20, 1 << 19)]))
    pages, random = drive.profile.logical_pages, np.random.default_rng(1)
    for first in (*range(0, pages, 64), *random.integers(0, pages - 64, 400).tolist()):
        drive.submit(drive.now, Op.WRITE, first, 64)
    assert drive.counters.host == pages + 400 * 64


def test_a_width_divides_the_dies() -> None:
    with pytest.raises(ProfileError, match="width is 3"):
        zoned(width=3)

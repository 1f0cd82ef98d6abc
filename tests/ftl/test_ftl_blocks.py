"""Bad blocks of a modelled drive: from the factory, grown bad, and worn out."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from itertools import count
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.flash.blocks import endurance, most_bad
from potash_device.flash.profile import PAGE, Profile, ProfileError, Rate
from potash_device.flash.profiles import PROFILES
from potash_device.flash.rates import NAMES
from potash_device.flash.scaling import equipped, scaled
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.interface import FtlError
from potash_firmware.ftl.policies import PolicyError
from potash_firmware.ftl.requests import REQUEST, WORN, Op
from potash_firmware.ftl.saving import load, save
from potash_firmware.ftl.state import FREE, IS_RETIRED, IS_ZONED
from support.drive_time import lost, policies, problems, profiles, requests

PLAIN = Profile(
    channels=2,
    dies=2,
    planes=1,
    blocks=100,
    pages=4,
    page_bytes=PAGE,
    program_pages=1,
    capacity=80 * 16 * PAGE,
    read_ns=(1000,),
    program_ns=(5000,),
    erase_ns=20_000,
    bus=Rate(PAGE, 100),
    link=Rate(PAGE, 10),
    cycles=40,
)
"""A superblock has 16 pages."""


@pytest.mark.parametrize(("dies", "share"), [(1, 10), (8, 20), (16, 5)])
def test_a_drive_has_the_superblocks_of_its_worst_die(dies: int, share: int) -> None:
    """The expected maximum of binomial variables."""
    blocks, p = 200, share / 1000
    below, expected = 0.0, 0.0
    for bad in range(40):
        below += comb(blocks, bad) * p**bad * (1 - p) ** (blocks - bad)
        expected += 1 - min(1.0, below) ** dies
    found = [most_bad(blocks, dies, share, seed) for seed in range(400)]
    assert np.mean(found) == pytest.approx(expected, abs=0.2)
    profile = replace(PLAIN, channels=dies, dies=1, blocks=blocks, capacity=PAGE, bad_blocks=share)
    assert profile.superblocks == blocks - most_bad(blocks, dies, share, 0)
    narrow = replace(profile, width=1)
    assert narrow.superblocks == dies * profile.superblocks


def test_blocks_make_up_for_bad_ones() -> None:
    bad = replace(PLAIN, bad_blocks=50, seed=3)
    assert bad.superblocks == 100 - most_bad(100, 4, 50, 3) < 100
    assert Drive(bad).wear.available_spare == 100  # they are no part of the spare
    assert Drive(bad).wear.retired == 0
    drive = Drive(bad)
    requests = np.zeros(3000, REQUEST)
    requests["op"], requests["count"] = Op.WRITE, 1
    requests["first"] = np.random.default_rng(1).integers(0, 1280, 3000)
    drive.run(requests)
    assert problems(bad, drive.state) == []
    with pytest.raises(ProfileError, match="the drive needs"):
        replace(bad, bad_blocks=400)
    spare = equipped(bad, spare=250)
    assert 100 <= spare.superblocks <= 101
    for capacity in (1 << 27, 100 << 30):
        with_bad = scaled(replace(PROFILES["tlc"], blocks=200, bad_blocks=10), capacity)
        good = with_bad.blocks - most_bad(with_bad.blocks, 16, 10, 0)
        wanted = scaled(replace(PROFILES["tlc"], blocks=200 - most_bad(200, 16, 10, 0)), capacity)
        assert good == with_bad.superblocks == wanted.superblocks


def test_superblocks_wear_out_within_their_spread() -> None:
    found = endurance(10_000, 1000, 200, 1)
    assert min(found) == 800 and max(found) == 1200
    # A uniform distribution.
    assert np.mean(found) == pytest.approx(1000, abs=5)
    assert np.std(found) == pytest.approx(400 / 12**0.5, rel=0.02)
    assert endurance(3, 7, 0, 1) == [7, 7, 7]


@pytest.mark.parametrize("spread", [0, 250, 1000])
def test_a_drive_wears_out_superblock_by_superblock(spread: int) -> None:
    profile = replace(PLAIN, cycles_spread=spread)
    drive, random = Drive(profile), np.random.default_rng(2)
    expected = endurance(100, 40, spread, 0)
    for time in count():
        requests = np.zeros(500, REQUEST)
        requests["time"], requests["op"], requests["count"] = time, Op.WRITE, 1
        requests["first"] = random.integers(0, 1280, 500)
        worn = (drive.run(requests) == WORN).any()
        erases = drive.state.flash.erases
        retired = drive.state.status == IS_RETIRED
        assert (erases[retired] == np.array(expected)[retired]).all()
        assert (erases[~retired] < np.array(expected)[~retired]).all()
        spare = profile.superblocks - profile.least_superblocks + 1
        left = max(0, spare - int(retired.sum()))
        assert drive.wear.available_spare == 100 * left // spare
        if worn:
            break
    assert drive.worn and left == 0


def test_deallocation_takes_time_by_the_page() -> None:
    drive = Drive(replace(PLAIN, trim_page_ns=7, other_command_ns=100))
    assert drive.submit(0, Op.TRIM, 0, 64) == 100 + 64 * 7
    assert drive.submit(1000, Op.FLUSH) == 1100


# Programs that fail.


def test_data_of_a_program_that_fails_are_programmed_elsewhere() -> None:
    drive = Drive(replace(PLAIN, cycles=0))
    drive.submit(0, Op.WRITE, 0, 10, fua=True)  # a superblock has 16 pages
    now, spare = 10**9, drive.wear.available_spare
    drive.fail_programs(1)
    # Link, bus and program; then bus and program again, of the first unit of the next superblock.
    assert drive.submit(now, Op.WRITE, 10, 1, fua=True) == now + 10 + 2 * (100 + 5000)
    bad = 0
    assert drive.state.flash.bad.tolist() == [1] + 99 * [0]
    assert drive.state.places[10] // 16 == 1
    assert problems(drive.profile, drive.state) == []
    # A page of the bad superblock is relocated with each request, and then it is retired.
    for page in range(11):
        assert drive.good == 100 and drive.wear.retired == 0
        now += 10**9
        drive.submit(now, Op.READ, page, 1)
    assert drive.good == 99 and drive.state.status[bad] == IS_RETIRED
    assert drive.wear.grown_bad == drive.wear.retired == 1
    assert drive.wear.available_spare < spare
    counters = drive.counters
    assert counters.relocated == 10 + 1 and counters.refreshed == 0 and counters.padding == 0
    assert (counters.erased, counters.programs) == (0, 10 + 2 + 10)
    assert (drive.state.places[:11] >= 16).all()
    assert problems(drive.profile, drive.state) == []


def test_padding_that_cannot_be_programmed_is_not_programmed_elsewhere() -> None:
    drive = Drive(replace(PLAIN, zone_superblocks=2, zone_pages=32))
    zone = drive.profile.frontiers
    drive.submit(0, Op.WRITE, PLAIN.logical_pages - 32, 5, zone)
    drive.fail_programs(1)
    drive.submit(10**9, Op.FINISH, 0, 0, zone)
    assert drive.counters.padding == 1 and drive.counters.programs == 6
    assert problems(drive.profile, drive.state) == []
    drive.submit(2 * 10**9, Op.RESET, 0, 0, zone)
    assert drive.wear.grown_bad == drive.wear.retired == 1


def test_superblocks_grow_bad_at_the_rate_of_the_profile() -> None:
    """Whether they have is known from their erases alone, as each is programmed in order."""
    profile = replace(PLAIN, blocks=400, cycles=0, program_failures=500, seed=7)
    drive, random = Drive(profile), np.random.default_rng(1)
    pages = profile.logical_pages
    every = np.zeros(60_000, REQUEST)
    every["op"], every["count"] = Op.WRITE, 1
    every["first"] = np.r_[np.arange(pages), random.integers(0, pages, 60_000 - pages)]
    assert (drive.run(every) != WORN).all()
    flash = drive.state.flash
    units = profile.superblock_pages // profile.unit_pages
    bad = flash.bad == 1
    # A failure is put off while there is no free superblock beyond the reserve.
    assert (flash.erases[bad] * units + units > flash.failing[bad]).all()
    assert (flash.erases[~bad] * units <= flash.failing[~bad] + units).all()
    expected = drive.counters.programs * 500 / 1_000_000
    assert bad.sum() == pytest.approx(expected, abs=3 * expected**0.5)
    assert (drive.state.places[:pages] >= 0).all(), "nothing is lost"
    assert problems(profile, drive.state) == []
    file = BytesIO()
    drive.rest()
    save(drive, file)
    file.seek(0)
    copy = load(file)
    assert copy.wear == drive.wear and problems(profile, copy.state) == []


@settings(max_examples=30, deadline=None)
@given(profiles(), st.integers(1000, 200_000), st.integers(0, 1 << 20))
def test_random_drives_lose_nothing_as_programs_fail(
    profile: Profile, rate: int, seed: int
) -> None:
    changes: dict[str, Any] = {
        "reclaim_groups": 1,
        "blocks": profile.blocks + 4,
        "read_cache": seed % 4 * PAGE,
    }
    copies = seed % 2 == 0 and not (profile.isolated or profile.zone_slc) and profile.groups == 1
    profile = replace(profile, program_failures=rate, copy_back=copies, **changes)
    drive, asked = Drive(profile, policies(seed)), requests(profile, 400, seed)
    try:
        completions = drive.run(asked)
    except PolicyError as error:
        assert "frees nothing" in str(error)
        return
    assert problems(profile, drive.state) == []
    retired = drive.state.flash.erases >= drive.state.flash.endurance
    gone = drive.state.status == IS_RETIRED
    assert (gone <= (retired | (drive.state.flash.bad == 1))).all()
    assert lost(drive, asked, completions) == set()


def test_a_drive_of_which_no_superblock_is_closed_is_worn_out() -> None:
    drive = Drive(replace(PLAIN, cycles=0))
    drive.state.status[:] = IS_ZONED
    drive.state.registers[FREE] = drive.state.free[0] = 1
    assert drive.submit(0, Op.WRITE, 0, 1) == WORN and drive.worn


def test_programs_do_not_fail_with_reclaim_groups() -> None:
    grouped = replace(PLAIN, width=2, reclaim_groups=2, streams=2)
    with pytest.raises(ProfileError, match="program_failures"):
        replace(grouped, program_failures=1)
    with pytest.raises(FtlError, match="reclaim_groups"):
        Drive(grouped).fail_programs(1)


def test_built_in_drives_have_their_names_where_none_is_loaded() -> None:
    assert tuple(PROFILES) == NAMES

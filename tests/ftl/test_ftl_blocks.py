"""Factory-bad blocks of a modelled drive, and blocks that wear out sooner or later."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from math import comb

import numpy as np
import pytest

from potash_device.flash.blocks import endurance, most_bad
from potash_device.flash.profile import PAGE, Profile, ProfileError, Rate
from potash_device.flash.profiles import PROFILES
from potash_device.flash.scaling import equipped, scaled
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.requests import REQUEST, WORN, Op
from potash_firmware.ftl.state import IS_RETIRED
from support.drive_time import problems

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

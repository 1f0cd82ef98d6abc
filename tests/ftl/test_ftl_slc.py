"""The SLC cache of a modelled drive: its times, its cliff, and what folding leaves."""

from __future__ import annotations

import io
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from potash_device.flash.profile import PAGE, Profile, ProfileError, Rate
from potash_device.flash.profiles import from_mapping
from potash_device.flash.state import SLC
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.policies import PolicyError
from potash_firmware.ftl.requests import REQUEST, Op
from potash_firmware.ftl.saving import StateError, load, save
from support.drive_time import lost, policies, problems, profiles, requests

SECOND = 10**9
TLC = Profile(
    channels=4,
    dies=1,
    planes=1,
    blocks=80,
    pages=96,
    page_bytes=PAGE,
    program_pages=3,
    capacity=20_000 * PAGE,
    read_ns=(1000,),
    program_ns=(6000,),
    erase_ns=30_000,
    bus=Rate(PAGE, 10),
    link=Rate(PAGE, 1),
    buffer_bytes=48 * PAGE,
    slc=200,
    slc_read_ns=300,
    slc_program_ns=500,
    slc_erase_ns=20_000,
    slc_idle_ns=1_000_000,
)
"""A superblock has 384 pages, or 120 in SLC mode: a block's 32 pages are 10 program units of 3.
16 superblocks are the cache, 1920 pages."""
CACHE = 16 * 120


def writes(first: int, count: int, time: int = 0) -> NDArray[np.void]:
    found = np.zeros(count, REQUEST)
    found["time"], found["op"], found["count"] = time, Op.WRITE, 1
    found["first"] = np.arange(first, first + count)
    return found


def rate(completions: NDArray[np.int64], first: int, last: int) -> float:
    """Pages a microsecond."""
    return (last - first) * 1000 / int(completions[last] - completions[first])


def test_a_page_of_the_cache_takes_the_times_of_its_mode() -> None:
    drive = Drive(TLC)
    # Link, bus, and the three pages of a program unit; erased blocks are programmed at once.
    assert drive.submit(0, Op.WRITE, 0, 1, fua=True) == 1 + 30 + 3 * 500
    # tR, bus, link; idle time has not been long enough to fold the page.
    assert drive.submit(500_000, Op.READ, 0, 1) == 500_000 + 300 + 10 + 1
    assert Drive(replace(TLC, slc=0)).submit(0, Op.WRITE, 0, 1, fua=True) == 1 + 30 + 6000


def test_the_cliff_is_where_and_as_high_as_arithmetic_has_it() -> None:
    drive = Drive(TLC)
    ends = drive.run(writes(0, 8000))
    # Four dies program three pages in 1.5 µs.
    assert rate(ends, 240, CACHE - 240) == 4 * 3 / 1.5
    # For each unit that is written, three pages are read and programmed in 6 µs; for ten, a block
    # is erased.
    during = rate(ends, CACHE + 480, CACHE + 480 + 40 * 120)
    assert during == pytest.approx(4 * 3 / (1.5 + 3 * 0.3 + 6 + 20 / 10), rel=0.005)
    assert drive.counters.folded == drive.counters.relocated
    # All that was written but the cache, apart from what is being folded.
    assert drive.counters.folded == pytest.approx(8000 - CACHE, abs=2 * 120)
    # After a pause, the cache is empty but for the superblock that was being filled.
    ends = drive.run(writes(8000, CACHE - 120, SECOND))
    assert rate(ends, 240, CACHE - 240) == 4 * 3 / 1.5
    assert problems(TLC, drive.state) == []


def test_a_cache_in_a_mode_of_two_bits_holds_twice_as_much() -> None:
    """As the MLC mode of TLC flash: 64 pages of a block, or 256 of a superblock, rounded down to
    program units."""
    profile = replace(TLC, slc_bits=2, slc_program_ns=900)
    assert (profile.slc_pages, TLC.slc_pages) == (252, 120)
    drive = Drive(profile)
    assert drive.submit(0, Op.WRITE, 0, 1, fua=True) == 1 + 30 + 3 * 900
    drive = Drive(profile)
    ends = drive.run(writes(0, 15 * 252))
    assert rate(ends, 240, 240 + 12 * 200) == pytest.approx(4 * 3 / 2.7, rel=0.005)
    assert drive.counters.folded == 0 and drive.wear.slc == 15
    drive.run(writes(5000, 300, ends[-1] + 1000))
    assert drive.counters.folded > 0
    assert problems(profile, drive.state) == []


def test_idle_time_folds_as_much_as_it_is_long() -> None:
    for idle, superblocks in ((999_000, 0), (SECOND, 8)):
        drive = Drive(TLC)
        drive.run(writes(0, 8 * 120))
        busy = int(drive.state.flash.last.max())
        drive.submit(busy + idle, Op.FLUSH)
        assert drive.counters.erased == superblocks
        assert drive.counters.folded == superblocks * 120
    # 12 pages of each step: four dies read three pages each, then program them.
    drive = Drive(TLC)
    drive.run(writes(0, 8 * 120))
    begins = int(drive.state.flash.last.max()) + TLC.slc_idle_ns
    drive.submit(begins + 50_000, Op.FLUSH)
    step = 3 * 300 + 30 + 30 + 6000
    assert drive.counters.folded == pytest.approx(12 * 50_000 / step, abs=24)


def test_what_was_overwritten_in_the_cache_is_not_folded() -> None:
    drive = Drive(TLC)
    for time in range(50):
        drive.run(writes(0, 120, time))
    # Nothing is valid in the first ones by the time they are folded.
    assert drive.counters.folded == 0
    assert drive.counters.erased == pytest.approx(50 - 16, abs=1)
    assert drive.counters.write_amplification == 1


@settings(max_examples=20)
@given(profiles(), st.integers(2, 4), st.integers(50, 300), st.integers(0, 1 << 20))
def test_random_drives_with_a_cache_are_sound(
    profile: Profile, bits: int, share: int, seed: int
) -> None:
    blocks = profile.blocks + 2 + profile.blocks * share // (1000 - share)
    idle = seed % 300
    changes: dict[str, Any] = {"slc": share, "cell_bits": bits, "blocks": blocks}
    changes |= {"reclaim_groups": 1, "isolated": False}
    try:
        profile = replace(profile, **changes, slc_idle_ns=idle, slc_program_ns=9, slc_read_ns=2)
    except ProfileError:  # blocks of few pages
        return
    drive, asked = Drive(profile, policies(seed)), requests(profile, 400, seed)
    asked["time"] += np.arange(400) // 50 * 1000
    try:
        completions = drive.run(asked)
    except PolicyError as error:
        assert "frees nothing" in str(error)
        return
    assert problems(profile, drive.state) == []
    assert drive.counters.folded <= drive.counters.relocated
    assert asked["stream"].max() < len(drive.state.open)
    assert lost(drive, asked, completions) == set()


def test_a_saved_cache_is_restored() -> None:
    drive = Drive(TLC)
    drive.run(writes(0, 2500))
    drive.rest()
    file = io.BytesIO()
    save(drive, file)
    file.seek(0)
    copy = load(file)
    assert problems(TLC, copy.state) == []
    assert int((copy.state.flash.mode == SLC).sum()) == 16
    asked = writes(2000, 3000, 5 * TLC.slc_idle_ns)
    # Those that were in the middle of being folded begin anew.
    difference = copy.run(asked) - drive.run(asked)
    assert abs(difference).max() < 120 * 500
    drive.state.flash.mode[int(np.flatnonzero(drive.state.flash.mode == SLC)[0])] = 0
    file = io.BytesIO()
    save(drive, file)
    file.seek(0)
    with pytest.raises(StateError, match="cache"):
        load(file)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"program_pages": 1}, "several bits"),
        ({"cell_bits": 1}, "several bits"),
        ({"slc_bits": 3}, "it must be less than the 3 bits of a cell"),
        ({"cell_bits": 8, "pages": 21}, "enough pages"),
        ({"slc": 501}, "slc"),
        ({"slc": "5"}, "percentage"),
        ({"slc": "2.55%"}, "percentage"),
        ({"slc": "x%"}, "percentage"),
        ({"slc": "nan%"}, "percentage"),
        ({"slc": 400}, "the drive needs"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(ProfileError, match=problem):
        from_mapping(asdict(TLC) | changes)
    assert from_mapping(asdict(TLC) | {"slc": "12.5%"}).slc == 125

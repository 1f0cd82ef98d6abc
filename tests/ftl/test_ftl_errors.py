"""Bit errors of a modelled drive: retries, data that cannot be read, refresh and read reclaim."""

from __future__ import annotations

import io
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.flash.error_models import MODELS
from potash_device.flash.profile import PAGE, Profile, ProfileError, Rate
from potash_device.flash.profiles import from_mapping
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.policies import PolicyError
from potash_firmware.ftl.requests import Op
from potash_firmware.ftl.saving import StateError, load, save
from potash_firmware.ftl.state import LOST
from support.drive_time import policies, problems, profiles, requests

SECOND = 10**9
HOUR = 3600 * SECOND
LIMITS = (0.004, 0.006, 0.009, 0.015)
PLAIN = Profile(
    channels=1,
    dies=1,
    planes=1,
    blocks=16,
    pages=8,
    page_bytes=PAGE,
    program_pages=1,
    capacity=64 * PAGE,
    read_ns=(1000,),
    program_ns=(5000,),
    erase_ns=20_000,
    bus=Rate(PAGE, 100),
    link=Rate(PAGE, 10),
    rber=MODELS["tlc"],
    retry_rber=LIMITS,
    retry_ns=(100, 250),
)
"""A superblock has 8 pages."""
TIMES = (1110, 1210, 1460, 1710)
"""Those of reads by the number of limits that the error rate exceeds: 1110 ns and the retries'
100, 250 and 250. A read with a rate above all limits takes as long as one with the last retry."""


def rate(cycles: float, hours: float, reads: float) -> float:
    """Kim, Choi and Min, FAST 2019, with the figures of 72-layer TLC in table 2."""
    wear: float = 1.48e-3 + 3.90e-10 * cycles**2.05
    retention: float = 6.28e-5 * cycles**0.14 * hours**0.54
    disturbance: float = 3.73e-9 * cycles**0.33 * reads**1.71
    return wear + retention + disturbance


def latency(cycles: int, age: int, reads: int, **changes: Any) -> int:
    """That of a read of data of an age, in a superblock with so many cycles and reads of rows."""
    drive = Drive(replace(PLAIN, **changes))
    drive.submit(0, Op.WRITE, 0, 1, fua=True)
    drive.rest()
    drive.state.flash.erases[0] = cycles - 1
    drive.state.flash.reads[0] = reads
    drive.age(age)
    took = drive.submit(0, Op.READ, 0, 1)
    assert (drive.unreadable == 0) == (drive.counters.uncorrectable == 1)
    assert drive.unreadable in (-1, 0)
    return took


@pytest.mark.parametrize("cycles", [1, 300, 1500])
def test_retries_are_those_of_the_table_at_its_points(cycles: int) -> None:
    for step, limit in enumerate(LIMITS):
        # The age, or the reads, with which the rate is at the limit.
        left = limit - rate(cycles, 0, 0)
        hours = (left / (6.28e-5 * cycles**0.14)) ** (1 / 0.54)
        reads = (left / (3.73e-9 * cycles**0.33)) ** (1 / 1.71)
        for above, exceeded in ((0, step), (1, step + 1)):
            expected = (*TIMES, TIMES[-1])[exceeded]
            assert latency(cycles, int(hours * HOUR * (0.9999 + above / 5000)), 0) == expected
            assert latency(cycles, 0, int(8 * reads) + above) == expected


def test_retries_grow_with_age_wear_and_reads() -> None:
    for grown in (
        [latency(1000, hours * HOUR, 0) for hours in range(0, 3000, 50)],
        [latency(cycles, 100 * HOUR, 0) for cycles in range(1, 6000, 100)],
        [latency(1000, 0, reads) for reads in range(0, 20_000, 300)],
    ):
        assert grown == sorted(grown)
        assert set(grown) == set(TIMES)
    assert latency(3000, 10**6 * HOUR, 10**6, rber=()) == TIMES[0]


def worn(**changes: Any) -> Drive:
    """A drive whose pages 0 to 7, a superblock, cannot be read any more, while others can."""
    drive = Drive(replace(PLAIN, **changes))
    for page in range(8):
        drive.submit(0, Op.WRITE, page, 1)
    drive.rest()
    drive.state.flash.erases[:] = 1000
    drive.age(10_000 * HOUR)
    return drive


def test_what_cannot_be_read_is_reported_until_it_is_written_again() -> None:
    drive = worn()
    assert drive.submit(0, Op.READ, 3, 1) == TIMES[-1]
    assert drive.unreadable == 3
    assert drive.submit(SECOND, Op.READ, 2, 6) > SECOND
    assert drive.unreadable == 2
    drive.submit(2 * SECOND, Op.WRITE, 3, 1, fua=True)
    assert drive.submit(3 * SECOND, Op.READ, 3, 1) == 3 * SECOND + TIMES[0]
    assert drive.unreadable == -1
    counters = drive.counters
    assert (counters.uncorrectable, counters.retries) == (7, 7 * 3)


def test_what_cannot_be_relocated_is_lost() -> None:
    drive = worn()
    for page in range(4):
        drive.submit(0, Op.WRITE, page, 1)
    random = np.random.default_rng(1)
    for page in [*range(8, 64), *random.integers(8, 64, 500).tolist()]:
        drive.submit(SECOND, Op.WRITE, page, 1)
    assert drive.counters.lost == 4
    assert drive.state.places[4:8].tolist() == [LOST] * 4
    assert problems(PLAIN, drive.state) == []
    # Firmware knows, and reads no flash: only the link.
    before = drive.counters.senses
    drive.submit(100 * SECOND, Op.READ, 5, 1)
    assert (drive.unreadable, drive.counters.senses) == (5, before)
    copy = restored(drive)
    copy.submit(100 * SECOND, Op.READ, 5, 1)
    assert copy.unreadable == 5
    drive.submit(101 * SECOND, Op.TRIM, 5, 1)
    drive.submit(101 * SECOND, Op.WRITE, 6, 1)
    for page, unreadable in ((5, -1), (6, -1), (7, 7)):
        drive.submit(102 * SECOND, Op.READ, page, 1)
        assert drive.unreadable == unreadable


def restored(drive: Drive) -> Drive:
    file = io.BytesIO()
    save(drive, file)
    file.seek(0)
    return load(file)


def test_refresh_relocates_data_before_they_are_too_old() -> None:
    drive = Drive(replace(PLAIN, refresh_s=1000))
    for page in range(64):
        drive.submit(0, Op.WRITE, page, 1, fua=True)
    drive.rest()
    drive.submit(999 * SECOND, Op.FLUSH)
    assert drive.counters.refreshed == 0
    time = 1020 * SECOND  # it looks each 64th part of the age
    for step in range(80):  # a unit of a page with each request
        drive.submit(time + step * SECOND, Op.FLUSH)
    assert drive.counters.refreshed == drive.counters.relocated == 64
    assert drive.counters.erased == 8
    assert problems(drive.profile, drive.state) == []
    written = drive.state.flash.born[drive.state.valid > 0]
    assert written.min() >= time


def test_read_reclaim_relocates_a_superblock_that_is_read_often() -> None:
    drive = Drive(replace(PLAIN, reclaim_reads=10))
    for page in range(16):
        drive.submit(0, Op.WRITE, page, 1, fua=True)
    drive.rest()
    for read in range(10 * 8):
        assert drive.counters.refreshed == 0
        drive.submit(read * SECOND, Op.READ, read % 3, 1)
    for step in range(10):
        drive.submit((100 + step) * SECOND, Op.FLUSH)
    # The superblock of pages 0 to 7 alone.
    assert (drive.counters.refreshed, drive.counters.erased) == (8, 1)
    assert drive.state.flash.reads.max() == 0


def test_ages_and_reads_are_kept() -> None:
    drive = worn()
    drive.submit(50 * SECOND, Op.READ, 3, 1)
    copy = restored(drive)
    assert copy.state.flash.reads.tolist() == drive.state.flash.reads.tolist()
    assert copy.state.flash.born[0] == drive.state.flash.born[0] - 50 * SECOND
    assert copy.submit(0, Op.READ, 3, 1) == TIMES[-1]
    for name, value in (("reads", -1), ("born", -(1 << 62)), ("reads", 1 << 62)):
        wrong = restored(drive)
        getattr(wrong.state.flash, name)[0] = value
        with pytest.raises(StateError, match="superblocks"):
            restored(wrong)


@settings(max_examples=20)
@given(profiles(), st.integers(0, 100), st.integers(0, 1 << 20))
def test_random_drives_with_errors_are_sound(profile: Profile, share: int, seed: int) -> None:
    changes: dict[str, Any] = {
        "rber": (seed % 3 / 1000, 0, 1, 1e-4, 0, 1, 1e-4, 0, 1),
        "retry_rber": (0.001, 0.002, 0.004),
        "refresh_s": seed % 2,
        "reclaim_reads": seed % 5,
        "slc": share if profile.program_pages > 1 and profile.pages >= 9 else 0,
        "blocks": profile.blocks + 3,
    }
    # Which reclaim groups cannot be combined with.
    groups: dict[str, Any] = {"reclaim_groups": 1, "isolated": False}
    profile = replace(profile, **groups, **changes, slc_idle_ns=50)
    drive = Drive(profile, policies(seed))
    asked = requests(profile, 300, seed)
    asked["time"] += np.arange(300) // 100 * (HOUR // 2)
    try:
        drive.run(asked)
    except PolicyError as error:
        assert "frees nothing" in str(error)
        return
    assert problems(profile, drive.state) == []
    drive.rest()
    assert problems(profile, restored(drive).state) == []
    drive.age(100 * HOUR)
    asked = requests(profile, 100, seed)
    try:
        drive.run(asked)
    except PolicyError as error:
        assert "frees nothing" in str(error)
        return
    assert problems(profile, drive.state) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rber": "slc"}, "must be numbers or tlc"),
        ({"rber": [1, 2]}, "rber has 2 numbers; it must have 9"),
        ({"rber": [-1.0] * 9}, "rber must be a list of numbers"),
        ({"rber": [float("nan")] * 9}, "rber must be a list of numbers"),
        ({"rber": 1}, "rber must be a list of numbers"),
        ({"retry_rber": []}, "1 to 64 numbers that ascend"),
        ({"retry_rber": [0.2, 0.1]}, "1 to 64 numbers that ascend"),
        ({"retry_rber": [0.1, "x"]}, "retry_rber must be a list of numbers"),
        ({"retry_ns": []}, "retry_ns is empty"),
        ({"refresh_s": -1}, "refresh_s"),
    ],
)
def test_errors_that_cannot_be_are_refused(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(ProfileError, match=problem):
        from_mapping(asdict(PLAIN) | changes)
    assert from_mapping(asdict(PLAIN) | {"rber": "tlc"}) == PLAIN


def test_what_is_refreshed_is_no_victim_even_if_nothing_else_is_closed() -> None:
    drive = Drive(replace(PLAIN, background=16, background_pages=1, refresh_s=1))
    for page in range(8):
        drive.submit(page * 1_000_000, Op.WRITE, page, 1)
    drive.age(2 * SECOND)
    drive.submit(20_000_000, Op.READ, 0, 1)  # begins to refresh the only closed superblock
    for page in range(8, 32):
        drive.submit((20 + page) * 1_000_000, Op.WRITE, page, 1)
    assert drive.counters.refreshed == 8
    assert problems(drive.profile, drive.state) == []

"""The two engines of a drive's time agree, and what they do to a drive is sound."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from potash_device.flash.profile import PAGE, Profile, Rate
from potash_device.flash.profiles import PROFILES
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.interface import FtlError
from potash_firmware.ftl.requests import WORN, Op
from support.drive_reference import Reference
from support.drive_time import policies, problems, profiles, requests


@settings(max_examples=30)
@given(profiles(), st.integers(0, 1 << 20))
def test_both_engines_give_the_same_times_and_drives(profile: Profile, seed: int) -> None:
    note(f"seed {seed}")
    compare(profile, seed)


@pytest.mark.slow
@settings(max_examples=150)
@given(profiles(), st.integers(0, 1 << 20))
def test_both_engines_give_the_same_for_many_drives(profile: Profile, seed: int) -> None:
    note(f"seed {seed}")
    compare(profile, seed)


def test_a_read_whose_translations_have_superblocks_erased_is_of_what_was_there() -> None:
    """Of two pages, the first is on a superblock that is erased for the translation of the other."""
    profile = Profile(
        channels=1, dies=1, planes=1, blocks=9, pages=3, page_bytes=PAGE, program_pages=1,
        capacity=5 * PAGE, read_ns=(0,), program_ns=(0,), erase_ns=0, bus=Rate(1, 0),
        link=Rate(1024, 0), suspend_ns=0, mapping_cache=PAGE, background=6, background_pages=1,
    )  # fmt: skip
    compare(profile, 0)


def compare(profile: Profile, seed: int) -> None:
    asked = requests(profile, 400, seed)
    reference, drive = Reference(profile, policies(seed)), Drive(profile, policies(seed))
    expected, found, whole = [], [], True
    try:
        for time, op, first, count, stream, fua in asked.tolist():
            expected.append(reference.submit(time, Op(op), first, count, stream, bool(fua)))
    except FtlError as error:  # it may relocate the same valid pages for ever
        assert "frees nothing" in str(error)
        whole = False
    try:
        found = drive.run(asked[: len(expected)]).tolist()
    except FtlError as error:
        assert "frees nothing" in str(error)
        return
    assert found == expected
    if not whole:  # the reference is in the middle of a request that the drive has not seen
        return
    assert drive.counters == reference.counters
    assert drive.report == reference.report
    assert drive.state.flash.erases.tolist() == reference.flash.erases
    assert drive.state.places.tolist() == list(reference.places)
    assert [list(one) for one in drive.streams] == reference.by_stream
    assert problems(profile, drive.state) == []


@settings(max_examples=40, deadline=None)
@given(profiles(), st.integers(0, 1 << 20))
def test_no_request_completes_before_its_own_costs(profile: Profile, seed: int) -> None:
    asked = requests(profile, 300, seed)
    completions = Drive(profile).run(asked)
    least = profile.submission_ns + profile.completion_ns
    served = completions != WORN
    assert (completions[served] >= asked["time"][served] + least).all()
    assert np.isin(asked["op"][~served], [Op.WRITE, Op.COMMIT]).all()
    assert np.flatnonzero(~served).size == 0 or profile.cycles


def test_a_copy_of_a_drive_has_a_state_of_its_own() -> None:
    drive = Drive(PROFILES["z-nand"])
    drive.submit(0, Op.WRITE, 0, 1)
    copied = deepcopy(drive)
    assert copied.submit(10**6, Op.WRITE, 1, 1) == drive.submit(10**6, Op.WRITE, 1, 1)
    copied.submit(10**6, Op.WRITE, 2, 1)
    assert (drive.counters.host, copied.counters.host) == (2, 3)

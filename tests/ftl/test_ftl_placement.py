"""Placement on a modelled drive: handles, which are streams, in reclaim groups."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.flash.profile import PAGE, Profile, ProfileError, Rate
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.policies import DieFirst, Policies
from potash_firmware.ftl.requests import REQUEST, Op
from potash_firmware.ftl.saving import StateError, load, save
from support.drive_reference import Reference
from support.drive_time import problems

GROUPS = 2
BY_CHANNEL = Policies(allocation=DieFirst())
"""Superblocks of two dies are on one channel each."""
ONE = Profile(
    channels=1,
    dies=2,
    planes=1,
    blocks=40,
    pages=16,
    page_bytes=PAGE,
    program_pages=1,
    capacity=28 * 32 * PAGE,
    read_ns=(1000,),
    program_ns=(5000,),
    erase_ns=20_000,
    bus=Rate(PAGE, 100),
    link=Rate(1, 0),
)
"""A drive of one channel, with superblocks of 32 pages."""


def several(streams: int = GROUPS, groups: int = GROUPS, **changes: Any) -> Profile:
    """A drive of as many channels as reclaim groups, which have the dies and spare of `ONE`."""
    return replace(
        ONE,
        channels=groups,
        width=2,
        streams=streams,
        reclaim_groups=groups,
        capacity=groups * ONE.capacity,
        **changes,
    )


def writes(pages: object, stream: int = 0) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    found = np.zeros(len(np.asarray(pages)), REQUEST)
    found["op"], found["first"], found["count"], found["stream"] = Op.WRITE, pages, 1, stream
    return found


@pytest.mark.parametrize("kind", [Drive, Reference])
@pytest.mark.parametrize("isolated", [False, True])
def test_a_reclaim_group_is_like_a_drive_of_its_own(
    kind: type[Drive | Reference], isolated: bool
) -> None:
    both, alone = kind(several(isolated=isolated), BY_CHANNEL), kind(ONE)
    random, logical = np.random.default_rng(3), ONE.logical_pages
    pages = (*range(logical), *random.integers(0, logical, 2 * logical).tolist())
    for time, page in enumerate(pages):
        end = alone.submit(time * 3000, Op.WRITE, page, 1)
        for stream in range(GROUPS):
            first = page + stream * logical
            assert both.submit(time * 3000, Op.WRITE, first, 1, stream) == end
    assert alone.counters.relocated > logical
    found, expected = both.counters, alone.counters
    assert (found.relocated, found.erased) == (
        GROUPS * expected.relocated,
        GROUPS * expected.erased,
    )


def test_reads_of_a_group_do_not_wait_for_the_collection_of_another() -> None:
    drive, logical = Drive(several(), BY_CHANNEL), ONE.logical_pages
    for stream in range(GROUPS):
        drive.run(writes(np.arange(logical) + stream * logical, stream))
    drive.rest()
    random, now, other, own = np.random.default_rng(4), 0, set(), []
    for _ in range(4 * logical):
        page, read = random.integers(0, logical, 2).tolist()
        end = drive.submit(now, Op.WRITE, page, 1)
        other.add(drive.submit(now, Op.READ, logical + read, 1) - now)
        own.append(drive.submit(now, Op.READ, read, 1) - now)
        now = end
    assert drive.counters.relocated > logical
    assert other == {1000 + 100} and max(own) > 20_000


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(2, 1), (3, 1), (2, 2), (4, 2), (4, 4)]),
    st.booleans(),
    st.sampled_from([0, 3]),
    st.integers(0, 1 << 20),
)
def test_handles_are_counted_and_kept_apart(
    shape: tuple[int, int], isolated: bool, background: int, seed: int
) -> None:
    """A plain model: the stream that wrote each page, and what was written by each. The host may
    write all pages by any stream, so that a group overflows."""
    streams, groups = shape
    profile = several(streams, groups, isolated=isolated, background=background)
    spare = profile.blocks * groups - profile.least_superblocks
    profile = replace(
        profile, capacity=profile.capacity + min(0, spare) * 32 * PAGE, background_pages=4
    )
    drive, random = Drive(profile), np.random.default_rng(seed)
    pages, own = profile.logical_pages, random.random() < 0.5
    owners, host = np.full(pages, -1), [0] * streams
    for _ in range(60):
        stream, first = int(random.integers(0, streams)), int(random.integers(0, pages))
        if own:  # each stream has its own part of the pages
            first = first % (pages // streams) + stream * (pages // streams)
        count = int(random.integers(1, 200))
        last = min(first + count, (stream + 1) * (pages // streams) if own else pages)
        op = random.choice([Op.WRITE] * 20 + [Op.TRIM, Op.CLOSE, Op.FORMAT])
        if op in (Op.CLOSE, Op.FORMAT):
            drive.submit(drive.now, Op(op), stream=stream if op == Op.CLOSE else 0)
            owners[:] = -1 if op == Op.FORMAT else owners
            continue
        drive.submit(drive.now, Op(op), first, last - first, stream if op == Op.WRITE else 0)
        owners[first:last] = stream if op == Op.WRITE else -1
        host[stream] += last - first if op == Op.WRITE else 0
        state = drive.state
        assert problems(profile, state) == []
        assert ((state.places[:pages] >= 0) == (owners >= 0)).all()
        held = state.owners.reshape(profile.superblocks, -1)
        for block, inside in enumerate(held):
            there = set(owners[inside[inside >= 0]].tolist())
            assert len(there) <= 1 or not isolated
            if own:
                assert {one % groups for one in there} <= {block % groups}
        for number in range(streams):
            inside = held[state.open[number]]
            if state.open[number] >= 0:
                assert set(owners[inside[inside >= 0]].tolist()) <= {number}
    counters, found = drive.counters, drive.streams
    assert [one.host for one in found] == host
    assert sum(one.relocated for one in found) == counters.relocated
    assert sum(one.padding for one in found) == counters.padding
    written = sum(one.media for one in found)
    assert written == counters.host + counters.relocated + counters.padding
    for one in found:
        assert one.write_amplification == (one.media / one.host if one.host else 0)


@pytest.mark.parametrize(("page", "stream"), [(0, 2), (0, -1), (5, 1)])
def test_a_state_with_streams_that_were_not_apart_is_refused(page: int, stream: int) -> None:
    drive = Drive(several(isolated=True))
    drive.run(writes(np.arange(40)))
    drive.run(writes(np.arange(40, 80), 1))
    for problem in (None, "its streams contradict its superblocks"):
        file = io.BytesIO()
        save(drive, file)
        file.seek(0)
        if problem is None:
            assert load(file).state.handles.tolist() == drive.state.handles.tolist()
            drive.state.handles[page] = stream
        else:
            with pytest.raises(StateError, match=problem):
                load(file)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reclaim_groups": 3}, "reclaim_groups is 3; it must divide the 2 streams"),
        ({"width": 0}, "and the 1 groups of dies"),
        ({"mapping_cache": PAGE}, "can be no zones, slc, mapping_cache"),
        ({"refresh_s": 1}, "refresh_s or reclaim_reads"),
        ({"zone_superblocks": 1}, "can be no zones, slc, mapping_cache"),
        ({"reclaim_groups": 0}, "reclaim_groups is 0"),
        ({"isolated": 1}, "isolated is 1"),
    ],
)
def test_groups_that_cannot_be_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        replace(several(), **changes)

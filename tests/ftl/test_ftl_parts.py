"""Parts of a modelled drive, each against an oracle of its own: cache, suspend, streams, wear."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.flash.profile import ENTRIES, LARGEST, PAGE, Profile, ProfileError, Rate
from potash_device.flash.profiles import PROFILES
from potash_device.flash.state import MOST_GAPS, NEVER
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.policies import Gap, Policies, PolicyError, Superblocks
from potash_firmware.ftl.requests import REQUEST, WORN, Op
from support.drive_checks import greedy_amplification
from support.drive_reference import Reference
from support.drive_time import policies, problems, profiles, requests

pytestmark = pytest.mark.filterwarnings("ignore:custom policies:DeprecationWarning")

SECOND = 10**9
PLAIN = Profile(
    channels=4,
    dies=1,
    planes=1,
    blocks=128,
    pages=64,
    page_bytes=PAGE,
    program_pages=1,
    capacity=96 * 256 * PAGE,
    read_ns=(1000,),
    program_ns=(5000,),
    erase_ns=20_000,
    bus=Rate(PAGE, 100),
    link=Rate(PAGE, 10),
)
"""A superblock has 256 pages; a page takes 100 ns of a bus and 10 ns of the link."""


def asked(op: Op, firsts: object, stream: int = 0) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    pages = np.asarray(firsts)
    found = np.zeros(len(pages), REQUEST)
    found["op"], found["first"], found["count"], found["stream"] = op, pages, 1, stream
    return found


# The cache of the mapping.

TRANSLATIONS = 24
"""Of the drive: 96 * 256 / 1024."""


@pytest.mark.parametrize("slots", [1, 3, 8, 23])
def test_the_cache_of_the_mapping_is_a_clock(slots: int) -> None:
    """A second-chance queue, as textbooks have it, of pages and whether they are dirty."""
    random = np.random.default_rng(slots)
    drive = Drive(replace(PLAIN, mapping_cache=slots * PAGE))
    operations = asked(Op.READ, random.integers(0, drive.profile.logical_pages, 3000))
    operations["op"] = random.choice([Op.READ, Op.WRITE, Op.TRIM], 3000)
    drive.run(operations)
    queue: list[list[int]] = []  # the next to be looked at first: number, used, dirty
    hits = written = 0
    for operation in operations.tolist():
        number, changes = operation[2] // ENTRIES, operation[1] != Op.READ
        entry = next((one for one in queue if one[0] == number), None)
        if entry is not None:
            hits += 1
            entry[1], entry[2] = True, entry[2] or changes
            continue
        if len(queue) == slots:
            while queue[0][1]:
                queue.append([queue[0][0], False, queue.pop(0)[2]])
            written += queue.pop(0)[2]
        queue.append([number, True, changes])
    assert (drive.counters.hits, drive.counters.misses) == (hits, 3000 - hits)
    assert drive.counters.translation == written
    assert drive.report.cache_hits == hits / 3000


@pytest.mark.parametrize("slots", [1, 3, 8, 23])
def test_a_read_whose_translation_misses_is_two_reads(slots: int) -> None:
    """CLOCK as a ring with a hand; a translation page is on flash once it was evicted changed."""
    drive, random = Drive(replace(PLAIN, mapping_cache=slots * PAGE)), np.random.default_rng(slots)
    pages = drive.profile.logical_pages
    every = asked(Op.WRITE, np.r_[np.arange(0, pages, 8), random.integers(0, pages, 4000)])
    every["op"][pages // 8 :] = Op.READ
    every["time"] = np.arange(len(every)) * 10_000  # a program ends before the next request
    drive.run(every)
    ring: list[int] = []
    used, changed, on_flash = set[int](), set[int](), set[int]()
    hand = senses = 0
    for _, op, page, *_ in every.tolist():
        number = page // ENTRIES
        if number not in ring:
            senses += number in on_flash
            if len(ring) < slots:
                ring.append(number)
            else:
                while ring[hand] in used:
                    used.remove(ring[hand])
                    hand = (hand + 1) % slots
                on_flash |= changed & {ring[hand]}
                changed.discard(ring[hand])
                ring[hand], hand = number, (hand + 1) % slots
        used.add(number)
        changed |= {number} if op == Op.WRITE else set()
        senses += op == Op.READ and page % 8 == 0
    assert drive.counters.senses == senses


@pytest.mark.parametrize("slots", [4, 12, 18])
def test_uniform_accesses_hit_by_the_share_that_is_cached(slots: int) -> None:
    drive, random = Drive(replace(PLAIN, mapping_cache=slots * PAGE)), np.random.default_rng(5)
    drive.run(asked(Op.WRITE, random.integers(0, drive.profile.logical_pages, 20_000)))
    share = slots / TRANSLATIONS
    assert drive.report.cache_hits == pytest.approx(share, abs=0.01)
    # Each miss but the first ones evicts a changed page; nothing has been collected yet.
    assert drive.counters.relocated == 0
    assert drive.counters.write_amplification == pytest.approx(2 - share, abs=0.01)


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_a_miss_reads_a_translation_page_first(kind: type[Drive | Reference]) -> None:
    drive = kind(replace(PLAIN, mapping_cache=PAGE))
    drive.submit(0, Op.WRITE, 0, 8)
    for other in (ENTRIES, 2 * ENTRIES):  # writes the translation page of page 0
        drive.submit(0, Op.WRITE, other, 8)
    drive.submit(SECOND, Op.READ, ENTRIES, 1)
    now = 2 * SECOND
    assert drive.submit(now, Op.READ, 0, 1) - now == (1000 + 100) + (1000 + 100 + 10)
    assert drive.submit(2 * now, Op.READ, 4, 1) - 2 * now == 1000 + 100 + 10  # it is cached now


# The read cache.

CACHING = replace(PLAIN, read_cache=8 * PAGE, read_cache_page_ns=40, planes=2)
"""A row has two pages; a superblock has 512."""


def test_a_hit_of_the_read_cache_costs_memory_and_link_alone() -> None:
    drive = Drive(CACHING)
    drive.submit(0, Op.WRITE, 0, 64, fua=True)
    missed, hit = 1000 + 2 * 100 + 2 * 10, 40 + 10
    assert drive.submit(SECOND, Op.READ, 0, 2) == SECOND + missed
    assert drive.submit(2 * SECOND, Op.READ, 1, 1) == 2 * SECOND + hit
    # Two pages are on the link one after the other; the third is on another die.
    assert drive.submit(3 * SECOND, Op.READ, 0, 3) == 3 * SECOND + 1000 + 100 + 10
    assert (drive.counters.read_hits, drive.counters.read_misses) == (3, 3)
    assert drive.counters.senses == 2
    # A page that is still being read is there when that has ended.
    drive.submit(4 * SECOND, Op.READ, 16, 2)
    assert drive.submit(4 * SECOND, Op.READ, 17, 1) == 4 * SECOND + missed - 20 + hit
    # What has been written is read from the buffer, and what is no longer mapped from nowhere.
    drive.submit(5 * SECOND, Op.TRIM, 0, 1)
    before = drive.counters
    assert drive.submit(5 * SECOND, Op.READ, 0, 1) == 5 * SECOND + 10
    assert drive.counters.since(before).read_hits == 0
    drive.rest()
    assert drive.submit(0, Op.READ, 17, 1) == hit
    drive.submit(SECOND, Op.FORMAT)
    drive.submit(SECOND, Op.WRITE, 17, 1, fua=True)
    assert drive.submit(2 * SECOND, Op.READ, 17, 1) == 2 * SECOND + 1000 + 100 + 10


@pytest.mark.parametrize("slots", [1, 3, 8, 100])
def test_the_read_cache_is_a_clock(slots: int) -> None:
    """As a ring with a hand, of pages that are read and on flash."""
    random = np.random.default_rng(slots)
    drive = Drive(replace(PLAIN, read_cache=slots * PAGE))
    drive.run(asked(Op.WRITE, range(200)))
    every = asked(Op.READ, np.minimum(random.geometric(0.02, 4000), 255))
    every["op"] = random.choice([Op.READ, Op.WRITE], 4000, p=[0.9, 0.1])
    every["time"] = SECOND + np.arange(4000) * 10_000  # a program ends before the next request
    drive.run(every)
    ring, used, written, hand, hits, reads = list[int](), set[int](), set(range(200)), 0, 0, 0
    for _, op, page, *_ in every.tolist():
        if op == Op.WRITE:
            written.add(page)
        elif page in written:
            reads += 1
            hits += page in ring
            if page not in ring and len(ring) < slots:
                ring.append(page)
            elif page not in ring:
                while ring[hand] in used:
                    used.remove(ring[hand])
                    hand = (hand + 1) % slots
                ring[hand], hand = page, (hand + 1) % slots
            used.add(page)
    assert (drive.counters.read_hits, drive.counters.read_misses) == (hits, reads - hits)
    assert drive.counters.senses == reads - hits


@pytest.mark.parametrize("slots", [16, 100, 250])
def test_uniform_reads_hit_by_the_share_that_is_cached(slots: int) -> None:
    drive, random = Drive(replace(PLAIN, read_cache=slots * PAGE)), np.random.default_rng(4)
    drive.submit(0, Op.WRITE, 0, 256, fua=True)
    reads = asked(Op.READ, random.integers(0, 256, 20_000))
    reads["time"] = SECOND
    drive.run(reads[:4000])
    before = drive.counters
    drive.run(reads)
    took = drive.counters.since(before)
    assert took.read_hits / 20_000 == pytest.approx(slots / 256, abs=0.015)
    assert took.senses == took.read_misses == 20_000 - took.read_hits


def test_a_read_cache_of_less_than_a_page_is_refused() -> None:
    with pytest.raises(ProfileError, match="a page takes 4096"):
        replace(PLAIN, read_cache=PAGE - 1)


# Suspending programs and erases.


@pytest.mark.parametrize("kind", [Drive, Reference])
@pytest.mark.parametrize("suspend", [-1, 0, 50, 300])
@pytest.mark.parametrize("reads", [1, 2, 5])
def test_reads_suspend_a_program_each_at_its_price(
    kind: type[Drive | Reference], suspend: int, reads: int
) -> None:
    profile = replace(
        PLAIN,
        channels=1,
        blocks=16,
        capacity=4 * 64 * PAGE,
        suspend_ns=suspend,
        buffer_bytes=2 * PAGE,
    )
    drive = kind(profile)
    drive.submit(0, Op.WRITE, 0, 8, fua=True)
    start = SECOND + 10 + 100  # of the program, after link and bus
    drive.submit(SECOND, Op.WRITE, 8, 1)
    apart = 1700  # a read is done before the next comes, and all before the program is
    for number in range(reads):
        at = SECOND + 200 + number * apart
        done = drive.submit(at, Op.READ, number, 1)
        if suspend >= 0:
            assert done == at + suspend + 1000 + 100 + 10
        else:
            assert done == start + 5000 + (number + 1) * 1000 + 100 + 10
    stolen = reads * (1000 + 2 * suspend) if suspend >= 0 else 0
    # The next program has to wait for the one that was suspended, or for the reads behind it.
    behind = start + 5000 + (stolen if suspend >= 0 else reads * 1000)
    assert drive.submit(SECOND + 200 + reads * apart, Op.WRITE, 9, 1, fua=True) == behind + 5000
    assert drive.counters.suspensions == (reads if suspend >= 0 else 0)


# Streams.


def test_streams_keep_hot_pages_apart_from_cold_ones() -> None:
    """Cold superblocks stay as they are, so hot pages have all spare superblocks: the closed form
    of a smaller drive."""
    profile = replace(PLAIN, streams=2, blocks=256, capacity=210 * 256 * PAGE)
    drive, random = Drive(profile), np.random.default_rng(6)
    half = profile.logical_pages // 2
    fill = asked(Op.WRITE, np.arange(2 * half) // 2)
    fill["stream"] = np.arange(2 * half) % 2
    fill["first"] += fill["stream"] * half
    drive.run(fill)
    sides = drive.state.owners.reshape(profile.superblocks, -1)
    for owners in sides:
        kinds = set((owners[owners >= 0] >= half).tolist())
        assert len(kinds) <= 1
    drive.run(asked(Op.WRITE, random.integers(0, half, 10 * half)))
    drive.rest()
    drive.run(asked(Op.WRITE, random.integers(0, half, 8 * half)))
    cold = -(-half // profile.superblock_pages)
    kept = profile.reserve + 0.5 + 2 * 0.5
    alpha = (profile.blocks - cold - kept) * profile.superblock_pages / half
    expected = greedy_amplification(alpha, profile.superblock_pages)
    assert drive.counters.write_amplification == pytest.approx(expected, rel=0.01)


# Garbage collection in the background.


@pytest.mark.parametrize("thousandths", [125, 200, 250])
def test_collection_of_superblocks_with_a_share_invalid_costs_its_inverse(thousandths: int) -> None:
    """FEMU's rule: where few lines are free, one is relocated as soon as an eighth is invalid, so
    seven pages for each of the host's."""
    profile = replace(
        PLAIN, background=32, background_pages=LARGEST, background_invalid=thousandths
    )
    drive, random = Drive(profile), np.random.default_rng(9)
    pages = profile.logical_pages
    drive.run(asked(Op.WRITE, range(pages)))
    drive.run(asked(Op.WRITE, random.integers(0, pages, 3 * pages)))
    drive.rest()
    drive.run(asked(Op.WRITE, random.integers(0, pages, 3 * pages)))
    assert drive.counters.write_amplification == pytest.approx(1000 / thousandths, rel=0.02)
    assert profile.reserve < drive.report.wear.free < profile.background


# Copy back.


def test_pages_of_a_drive_of_one_die_are_relocated_without_the_bus() -> None:
    profile = replace(PLAIN, channels=1, blocks=16, capacity=8 * 64 * PAGE, copy_back=True)
    for copies in (False, True):
        drive = Drive(replace(profile, copy_back=copies))
        now = 0
        for page in [*range(512), *range(1, 512, 2), *range(0, 64, 2)] * 2:
            now += SECOND
            drive.submit(now, Op.WRITE, page, 1, fua=True)
        counters = drive.counters
        # A few are not on flash yet when they are relocated again.
        assert counters.relocated >= counters.senses > 290
        assert counters.copied == copies * counters.senses
        # A page takes 100 ns of the bus, in each direction.
        crossed = counters.programs + counters.senses - 2 * counters.copied
        assert counters.bus_ns == 100 * crossed
        assert counters.die_ns == sum(
            (counters.senses * 1000, counters.programs * 5000, counters.erased * 20_000)
        )


@pytest.mark.parametrize("gone", [0, 1, 3, 4])
def test_a_page_is_copied_back_where_its_new_place_is_on_its_die(gone: int) -> None:
    """A superblock of four dies that is refreshed, without so many pages at its beginning."""
    drive = Drive(replace(PLAIN, copy_back=True, refresh_s=1))
    drive.submit(0, Op.WRITE, 0, 256, fua=True)
    for page in range(gone):
        drive.submit(SECOND // 2, Op.TRIM, page, 1)
    before = drive.counters
    for number in range(256):
        drive.submit(2 * SECOND + number * 100_000, Op.FLUSH)
    took = drive.counters.since(before)
    assert took.relocated == took.senses == took.programs == 256 - gone
    assert took.copied == (0 if gone % 4 else 256 - gone)
    assert took.bus_ns == 2 * 100 * (took.relocated - took.copied)


def test_random_pages_are_copied_back_by_the_share_of_a_die() -> None:
    profile = replace(PLAIN, copy_back=True)
    drive, random = Drive(profile), np.random.default_rng(3)
    pages = profile.logical_pages
    writes = asked(Op.WRITE, np.r_[np.arange(pages), random.integers(0, pages, 2 * pages)])
    writes["time"] = np.arange(3 * pages) * 1_000_000  # nothing is still to be programmed
    drive.run(writes)
    assert drive.counters.copied / drive.counters.relocated == pytest.approx(1 / 4, rel=0.1)
    assert problems(profile, drive.state) == []


@pytest.mark.parametrize(
    "changes", [{"rber": (0.1,) * 9}, {"isolated": True, "streams": 1}, {"width": 2}]
)
def test_copy_back_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ProfileError, match="with copy_back there can be no rber"):
        replace(PLAIN, copy_back=True, **changes)


def test_femu_collects_as_its_documentation_says() -> None:
    femu = PROFILES["femu"]
    lines = femu.blocks
    assert femu.background == lines // 4 and femu.reserve == lines // 20
    assert femu.background_invalid == 1000 // 8 and femu.background_pages >= femu.superblock_pages


# Wear.


class CountingGap(Gap):
    moved = 0

    def victim(self, superblocks: Superblocks) -> int | None:
        chosen = super().victim(superblocks)
        self.moved += chosen is not None
        return chosen


@pytest.mark.parametrize("gap", [10, 20])
def test_levelling_moves_cold_superblocks_once_for_each_gap(gap: int) -> None:
    """Cold pages are moved to the most erased superblocks, and stay there until the others, which
    share all erases of hot pages, have `gap` more."""
    profile = replace(PLAIN, blocks=64, pages=16, capacity=48 * 64 * PAGE)
    hot, cold, random = 8, 40, np.random.default_rng(2)
    wear = CountingGap(gap)
    drive = Drive(profile, Policies(wear=wear))
    drive.run(asked(Op.WRITE, range(profile.logical_pages)))
    drive.run(asked(Op.WRITE, random.integers(0, hot * 64, 200_000)))
    moved, erased = wear.moved, drive.counters.erased
    drive.run(asked(Op.WRITE, random.integers(0, hot * 64, 300_000)))
    moved = wear.moved - moved
    others = drive.counters.erased - erased - moved
    assert int(np.ptp(drive.state.flash.erases)) <= gap + 2
    assert moved == pytest.approx(others * cold / ((profile.blocks - cold) * gap), rel=0.1)


def test_spare_falls_to_nothing_as_superblocks_are_retired() -> None:
    profile = replace(PLAIN, blocks=40, pages=16, capacity=24 * 64 * PAGE, cycles=12)
    drive, random = Drive(profile), np.random.default_rng(8)
    seen: list[tuple[int, int]] = []
    spare = profile.superblocks - profile.least_superblocks + 1
    while not drive.worn:
        found = drive.run(asked(Op.WRITE, random.integers(0, profile.logical_pages, 64)))
        report = drive.report.wear
        assert report.retired == int((drive.state.flash.erases == 12).sum())
        assert report.available_spare == max(0, 100 * (spare - report.retired) // spare)
        assert report.percentage_used == drive.state.flash.erases.sum() * 100 // (40 * 12)
        assert report.worn == (report.available_spare == 0)
        seen.append((report.available_spare, -report.percentage_used))
    assert seen == sorted(seen, reverse=True) and seen[0] == (100, 0)
    assert report.percentage_used > 90  # the least erased are used first
    assert (found == WORN).any()
    # Everything that was written is read, and written no more.
    pages = np.flatnonzero(drive.state.places[: profile.logical_pages] >= 0)
    later = asked(Op.READ, pages)
    later["time"] = drive.now + SECOND
    assert (drive.run(later) > drive.now).all()
    again = asked(Op.WRITE, pages[:4])
    again["time"] = drive.now
    assert (drive.run(again) == WORN).all()
    assert drive.submit(drive.now, Op.FLUSH) >= 0


# What holds after each request.


def broken(drive: Drive) -> list[str]:
    """What is impossible in a drive at any time."""
    profile, state = drive.profile, drive.state
    wrong = problems(profile, state)
    for which, (first, last) in enumerate(state.flash.intervals.tolist()):
        ends = np.stack(
            [state.flash.begins[which, first:last], state.flash.ends[which, first:last]], axis=1
        ).ravel()
        if not 0 <= last - first <= MOST_GAPS or (np.diff(ends) < 0).any():
            wrong.append(f"the intervals of calendar {which} overlap")
    rows = state.flash.programmed.reshape(profile.superblocks, -1, profile.group_dies)
    later, before = rows[:, 1:], rows[:, :-1]
    if (before > later)[later != NEVER].any():
        wrong.append("a unit is programmed before the one below it")
    if (rows[:, 0] < state.flash.erased[:, None]).any():
        wrong.append("a unit is programmed before its superblock is erased")
    counters = drive.counters
    programmed = counters.programs * profile.unit_pages
    if (state.counters < 0).any() or programmed > counters.programmed:
        wrong.append("more is programmed than was written")
    return wrong


@settings(max_examples=40, deadline=None)
@given(profiles(), st.integers(0, 1 << 20))
def test_a_drive_is_sound_after_each_request(profile: Profile, seed: int) -> None:
    drive, every = Drive(profile, policies(seed)), requests(profile, 150, seed)
    unit = profile.unit_pages
    for time, op, first, count, stream, fua in every.tolist():
        before, erases = drive.counters, drive.state.flash.erases.copy()
        try:
            done = drive.submit(time, Op(op), first, count, stream, bool(fua))
        except PolicyError:
            assert broken(drive) == []
            return
        assert broken(drive) == []
        assert done == WORN or done >= time + profile.submission_ns + profile.completion_ns
        assert drive.now == time and (drive.state.flash.erases >= erases).all()
        took = drive.counters.since(before)
        assert min(took) >= 0
        assert took.erased == (drive.state.flash.erases - erases).sum()
        if op == Op.WRITE:
            assert took.host <= count and (
                took.host == count or done == WORN or stream >= profile.frontiers
            )
            assert 0 <= took.padding < unit * (profile.streams + 1)
        if op not in (Op.FORMAT, Op.RESET):  # which erase superblocks that are not full
            assert abs(took.programs * unit - took.programmed) < unit * profile.frontiers

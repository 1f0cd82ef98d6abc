"""The translation layer in plain Python: equal to the compiled one, and its hooks."""

from __future__ import annotations

import runpy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from potash import timing
from potash_device.flash import calendars
from potash_device.flash.plain import Calendar, Flash, FlashError
from potash_device.flash.profile import PAGE, Profile, ProfileError, Rate
from potash_device.flash.state import MOST_GAPS, new_flash
from potash_device.vta.fast import compiling
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.hooks import Block, Hint, Page
from potash_firmware.ftl.interface import Ftl, FtlError
from potash_firmware.ftl.plain import Frontier, PageMapped
from potash_firmware.ftl.policies import PolicyError
from potash_firmware.ftl.requests import FAILED, REQUEST, Op, RequestError
from support.drive_time import profiles, requests

SMALL = Profile(
    channels=2,
    dies=2,
    planes=1,
    blocks=24,
    pages=4,
    page_bytes=PAGE,
    program_pages=1,
    capacity=10 * 16 * PAGE,
    read_ns=(1000,),
    program_ns=(5000,),
    erase_ns=20_000,
    bus=Rate(PAGE, 100),
    link=Rate(PAGE, 10),
)


@compiling.entry
def book(begins: Any, ends: Any, bounds: Any, operations: Any, found: Any) -> None:
    """Insert operations, of rows of the time, the earliest start and the duration."""
    for each in range(found.size):
        now, earliest, duration = operations[each]
        found[each] = calendars.insert(begins, ends, bounds, now, earliest, duration)


@pytest.mark.parametrize("seed", range(3))
def test_calendars_of_both_kinds_have_the_same_gaps(seed: int) -> None:
    """With many more gaps than one remembers: they are between operations of 100 ns each."""
    random, count = np.random.default_rng(seed), 8 * MOST_GAPS
    now = np.sort(random.integers(0, 50 * count, count))
    late = random.random(count) < 0.7
    earliest = now + np.where(late, 300 * MOST_GAPS * random.random(count), 0).astype(np.int64)
    durations = random.choice([0, 20, 50, 100], count)
    apart = np.arange(MOST_GAPS) * 200
    operations = np.zeros((MOST_GAPS + count, 3), np.int64)
    operations[:MOST_GAPS, 1], operations[:MOST_GAPS, 2] = apart, 100
    operations[MOST_GAPS:] = np.stack([now, earliest, durations], axis=1)
    flash, found = new_flash(SMALL, list(range(4))), np.zeros(len(operations), np.int64)
    calendar, bounds = Calendar(), flash.intervals[0]
    book(flash.begins[0], flash.ends[0], bounds, operations, found)
    assert [calendar.reserve(*operation) for operation in operations.tolist()] == found.tolist()
    assert calendar.begins == flash.begins[0, slice(*bounds)].tolist()
    assert calendar.ends == flash.ends[0, slice(*bounds)].tolist()


def test_the_first_of_a_thousand_gaps_is_taken() -> None:
    calendar, flash = Calendar(), new_flash(SMALL, list(range(4)))
    apart = [(0, 200 * at, 100) for at in range(MOST_GAPS)]
    operations = np.array([*apart, (0, 0, 100)])
    found = np.zeros(len(operations), np.int64)
    book(flash.begins[0], flash.ends[0], flash.intervals[0], operations, found)
    assert [calendar.reserve(*operation) for operation in operations.tolist()][-1] == 200
    assert found[-1] == 200


@settings(max_examples=25)
@given(profiles(), st.integers(0, 1 << 20))
def test_it_is_equal_to_the_compiled_one(profile: Profile, seed: int) -> None:
    compare(profile, seed)


@pytest.mark.slow
@settings(max_examples=1000)
@given(profiles(), st.integers(0, 1 << 20))
def test_it_is_equal_to_the_compiled_one_for_a_thousand_drives(profile: Profile, seed: int) -> None:
    compare(profile, seed)


def compare(profile: Profile, seed: int) -> None:
    note(f"seed {seed}")
    profile = replace(
        profile,
        background=0,
        mapping_cache=0,
        zone_superblocks=0,
        zone_pages=0,
        isolated=False,
        reclaim_groups=1,
    )
    compiled, plain = Drive(profile), PageMapped(profile)
    for count in (300, 150):
        asked = requests(profile, count, seed)
        flying = np.full((2, 3), asked["time"][-1])
        try:
            expected = [compiled.run(asked), compiled.closed_loop(asked[-50:].copy(), flying[0])]
        except PolicyError as error:  # greedy may relocate valid pages for ever
            assert "frees nothing" in str(error)
            with pytest.raises(FtlError, match="frees nothing"):
                plain.run(asked)
                plain.closed_loop(asked[-50:].copy(), flying[1])
            return
        assert plain.run(asked).tolist() == expected[0].tolist()
        assert plain.closed_loop(asked[-50:].copy(), flying[1]).tolist() == expected[1].tolist()
        assert sorted(flying[0]) == sorted(flying[1])
        assert plain.report == compiled.report
        assert list(plain.places) == compiled.state.places.tolist()
        assert list(plain.owners) == compiled.state.owners.tolist()
        for stream in range(profile.streams):
            opened = compiled.state.open[stream] >= 0
            assert plain.filled(stream) == (compiled.state.filled[stream] if opened else 0)
        compiled.rest()
        plain.rest()


def writes(
    count: int, pages: int = SMALL.logical_pages
) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    found = np.zeros(count, REQUEST)
    found["op"], found["count"] = Op.WRITE, 1
    found["first"] = np.random.default_rng(4).integers(0, pages, count)
    found["time"] = np.arange(count) * 10_000
    return found


def test_hooks_choose_the_superblocks_of_pages() -> None:
    class Mine(PageMapped):
        frontiers = 4
        last: list[Block]

        def frontier(self, page: Page, hint: Hint) -> int:
            assert page.block == (self.places[page.number] // 16 if page.block >= 0 else -1)
            return 1 if hint.hot else hint.host

        def victim(self, blocks: Sequence[Block]) -> int:
            assert all(self.state[block.number] == "closed" for block in blocks)
            self.last = list(blocks)
            return min(blocks, key=lambda block: (block.valid, -block.age)).number

        def relocate(self, page: Page, source: Block) -> int:
            assert page.block == source.number
            return 2 if source.frontier == 1 else self.cold

    drive = Mine(SMALL)
    for turn in range(800):
        hint = Hint(hot=True) if turn % 2 else Hint(host=0)
        drive.submit(turn * 10_000, Op.WRITE, turn % 120 + turn % 2 * 40, 1, hint=hint)
        for number, frontier in enumerate(drive.filled_by):
            if drive.state[number] == "open" and frontier < 2:  # hot pages and others are apart
                owners = drive.owners[number * 16 : number * 16 + 16]
                assert all((page - frontier * 40) % 2 == frontier for page in owners if page >= 0)
    assert drive.counters.erased > 10
    assert {block.frontier for block in drive.last} >= {0, 1}
    assert sum(drive.valid) == drive.mapped == sum(place >= 0 for place in drive.places)


@settings(max_examples=15)
@given(profiles(), st.integers(2, 6), st.integers(0, 1 << 20))
def test_hooks_that_answer_anything_leave_a_sound_drive(
    profile: Profile, count: int, seed: int
) -> None:
    class Mine(PageMapped):
        frontiers = count
        random = Random(seed)

        def frontier(self, page: Page, hint: Hint) -> int:
            return self.random.randrange(count)

        def victim(self, blocks: Sequence[Block]) -> int:
            return min(self.random.sample(blocks, min(8, len(blocks)))).number

        def relocate(self, page: Page, source: Block) -> int:
            return self.random.randrange(count)

        def idle(self, until: int) -> None:
            for _ in range(self.random.randrange(4)):
                self.clean(until)

    profile = replace(profile, mapping_cache=0, zone_superblocks=0, zone_pages=0)
    try:
        drive = Mine(replace(profile, blocks=profile.blocks + 3 * count))
    except ProfileError:
        assume(False)
    errors = list[FtlError]()
    drive.on_failure = errors.append
    asked = requests(profile, 300, seed)
    asked["time"] *= 20
    assert (drive.run(asked) >= -2).all()
    assert all(str(error).endswith("Mine.victim frees nothing") for error in errors), errors
    mapped = {place: page for page, place in enumerate(drive.places) if place >= 0}
    assert mapped == {place: page for place, page in enumerate(drive.owners) if page >= 0}
    of_blocks = Counter(place // drive.size for place in mapped)
    assert drive.valid == [of_blocks[block] for block in range(len(drive.valid))]
    assert drive.free == {n for n, state in enumerate(drive.state) if state == "free"}


def coldest(page: int, pages: int) -> int:
    """The second half of the pages is written to a superblock of its own."""
    return int(2 * page >= pages)


def test_hooks_may_call_functions_that_numba_compiles() -> None:
    class Plain(PageMapped):
        frontiers = 2
        half: Any = staticmethod(coldest)

        def frontier(self, page: Page, hint: Hint) -> int:
            return int(self.half(page.number, self.profile.logical_pages))

    class Compiled(Plain):
        half = staticmethod(numba.njit(coldest))

    plain, compiled = Plain(SMALL), Compiled(SMALL)
    asked = writes(1500)
    assert plain.run(asked).tolist() == compiled.run(asked).tolist()
    assert plain.counters == compiled.counters


def test_idle_time_is_for_the_background_and_no_longer() -> None:
    class Idle(PageMapped):
        moved = 0

        def idle(self, until: int) -> None:
            while len(self.free) < 12 and self.clean(until):
                self.moved += 1

    plain, idle = PageMapped(SMALL), Idle(SMALL)
    asked = writes(1500)
    asked["time"] = np.arange(1500) // 50 * 1_000_000 + np.arange(1500) % 50 * 2000
    late = (idle.run(asked) - asked["time"]).max(), (plain.run(asked) - asked["time"]).max()
    assert late[0] < late[1]
    assert idle.moved > 100 and len(idle.free) > plain.reserve + 1
    assert idle.counters.relocated > plain.counters.relocated


BROKEN = {
    "frontier": "self, page, hint",
    "victim": "self, blocks",
    "relocate": "self, page, source",
    "idle": "self, until",
}


@pytest.mark.parametrize(
    ("hook", "body", "said"),
    [
        ("frontier", "return 3", "answered 3, which is none of the 3 frontiers"),
        ("frontier", "return -1", "answered -1, which is none of the 3 frontiers"),
        ("frontier", "return 10**5000", "answered a number of 16610 bits, which is none of the 3"),
        ("frontier", "return 'hot'", "answered 'hot', which is none of the 3 frontiers"),
        ("frontier", "return hint.heat", "raised AttributeError: 'Hint' object has no"),
        ("frontier", "raise SystemExit(1)", "raised SystemExit: 1"),
        ("victim", "return blocks[0]", "answered Block(number="),
        ("victim", "return self.open[0].block", "which is no closed superblock"),
        ("victim", "return next(iter(self.free))", "which is no closed superblock"),
        ("victim", "return max(blocks, key=lambda block: block.valid).number", "frees nothing"),
        ("relocate", "pass", "answered None, which is none of the 3 frontiers"),
        ("relocate", "return page.number", "which is none of the 3 frontiers"),
        ("idle", "self.flash.erase(next(iter(self.free)), self.flash.now)", "reserved flash for"),
        ("idle", "self.erase(self.block_of(0), 0)", "FlashError: superblock"),
    ],
)
def test_a_hook_that_fails_is_replaced(hook: str, body: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    source = f"class Mine(PageMapped):\n frontiers = 3\n def {hook}({BROKEN[hook]}):\n  {body}\n"
    path.write_text(f"from {PageMapped.__module__} import PageMapped\n{source}")
    mine = runpy.run_path(str(path))["Mine"]
    drive = mine(SMALL)
    with pytest.raises(FtlError) as raised:
        drive.run(writes(800))
    assert str(raised.value).startswith(f"mine.py: Mine.{hook} ") and said in str(raised.value)
    drive, errors = mine(SMALL), list[FtlError]()
    drive.on_failure = errors.append
    found = drive.run(writes(800))
    assert [str(error) for error in errors] == [str(raised.value)]
    assert (found == FAILED).sum() == 1
    assert sum(drive.valid) == sum(place >= 0 for place in drive.places) == drive.mapped
    assert drive.counters.erased > 10


def test_it_is_a_drive_like_the_built_in_one() -> None:
    drives: list[Ftl] = [Drive(SMALL), PageMapped(SMALL)]
    took = [timing.precondition(drive, fill=0.9, overwrites=2.0) for drive in drives]
    assert took[0] == took[1] and took[0].relocated > 0
    windows = [timing.steady(drive, writes=1.0, depth=4, windows=3) for drive in drives]
    assert windows[0] == windows[1]


def written(self: Any, profile: Profile) -> None:
    self.written = {}


def good(self: Any, profile: Profile) -> None:
    self.hot, self.good = 1, 2


def read(self: Any, profile: Profile) -> None:
    self.read = 0


@pytest.mark.parametrize(
    ("body", "name", "base"),
    [
        ({"__init__": written}, "written", "PageMapped"),
        ({"__init__": good}, "good", "PythonFtl"),
        ({"__init__": read}, "read", "PageMapped"),
        ({"state": {}}, "state", "PageMapped"),
        ({"source": lambda self: 3}, "source", "PageMapped"),
    ],
)
def test_an_attribute_of_the_base_is_no_name_for_ones_own(
    body: dict[str, object], name: str, base: str
) -> None:
    sentence = f"Mine has an attribute {name}, which is one of {base}, too: give it another name"
    with pytest.raises(TypeError, match=f"^{sentence}$"):
        type("Mine", (PageMapped,), body)


def test_what_a_class_declares_and_counts_itself_is_its_own() -> None:
    class Counting(PageMapped):
        frontiers, targets = 3, 2

        def __init__(self, profile: Profile) -> None:
            self.profile = profile
            super().__init__(profile)
            self.victims = 0

    class Further(Counting):
        def __init__(self, profile: Profile) -> None:
            super().__init__(profile)
            self.victims = 1

    assert Further(SMALL).victims == 1


def test_any_other_method_that_fails_has_its_name_in_the_error() -> None:
    class Mine(PageMapped):
        def trim(self, ready: int, pages: range) -> int:
            return ready // len(pages[:0])

    drive = Mine(SMALL)
    with pytest.raises(FtlError, match=r"^test_ftl_plain\.py: .*Mine\.trim raised ZeroDivision"):
        drive.submit(0, Op.TRIM, 0, 1)


def test_a_mapping_cache_is_not_left_out_silently() -> None:
    with pytest.raises(ProfileError, match="mapping_cache is for the FTL page, and PageMapped has"):
        PageMapped(replace(SMALL, mapping_cache=PAGE, blocks=30))


def test_a_drive_that_is_too_small_for_its_frontiers_is_refused() -> None:
    class Many(PageMapped):
        frontiers = 20

    class One(PageMapped):
        frontiers = 1

    for kind in (Many, One):
        with pytest.raises(ProfileError, match=f"{kind.__name__} has {kind.frontiers} frontiers"):
            kind(SMALL)
    with pytest.raises(RequestError, match="PageMapped has none"):
        PageMapped(SMALL).submit(0, Op.RESET, stream=SMALL.frontiers)


class SlcFirst(PageMapped):
    """The host's pages are in SLC mode until they are relocated."""

    version = 1

    def open_superblock(self, frontier: Frontier) -> None:
        super().open_superblock(frontier)
        if frontier.number != self.cold:
            self.flash.set_slc(frontier.block)


def test_superblocks_can_have_a_mode_of_their_own() -> None:
    profile = replace(
        SMALL, program_pages=2, pages=8, blocks=30, capacity=20 * 32 * PAGE, slc_program_ns=700,
        slc_read_ns=300, slc_erase_ns=9000, program_ns=(5000,), bus=Rate(1, 0), link=Rate(1, 0),
    )  # fmt: skip
    drive, random = SlcFirst(profile), Random(1)
    for page in range(17):  # a unit each, of which a superblock has half as many
        time = 10_000 * page
        assert drive.submit(time, Op.WRITE, page, 1, fua=True) == time + 1400
    assert drive.wear.slc == 3 and drive.flash.pages(0) == 16
    assert drive.submit(10**6, Op.READ, 0, 1) == 10**6 + 300
    for _ in range(3000):
        drive.submit(drive.now, Op.WRITE, random.randrange(400), 1)
    counters = drive.counters
    native = counters.relocated // 2  # all that is moved
    assert counters.programs - counters.slc_programs == native > 0
    assert counters.slc_programs * 2 == counters.host + counters.padding
    drive.rest()
    copy = SlcFirst(profile)
    saved = drive.save()
    copy.restore(saved)
    assert copy.wear == drive.wear and copy.wear.slc > 2
    for page in (1, 7, 300):
        assert copy.submit(0, Op.READ, page, 1) == drive.submit(0, Op.READ, page, 1)
    for wrong in (
        [0, 99],
        [0.5],
        [min(copy.free)],
        [next(iter(set(range(30)) - copy.flash.slc - copy.free))],
    ):
        with pytest.raises(ValueError, match="superblocks"):
            SlcFirst(profile).restore(saved | {"slc": np.array(wrong)})
    with pytest.raises(FlashError, match="is not erased"):
        drive.flash.set_slc(int(saved["slc"][0]))
    with pytest.raises(FlashError, match="no SLC mode"):
        Flash(SMALL, [0, 1, 2, 3]).set_slc(0)


def test_flash_does_not_what_flash_cannot() -> None:
    flash = Flash(SMALL, [0, 1, 2, 3])
    flash.program(0, 0, 0)
    for unit in (0, 2):
        with pytest.raises(FlashError, match="but the next is 1 of 16"):
            flash.program(0, unit, 0)
    with pytest.raises(FlashError, match="unit 1 of superblock 0 is sensed and not programmed"):
        flash.sense(1, 1, 0, True)
    flash.erase(0, 0)
    with pytest.raises(FlashError, match="not programmed"):
        flash.sense(0, 1, 0, True)
    with pytest.raises(FlashError, match="each of the 4 dies once"):
        Flash(SMALL, [0, 1, 2, 2])

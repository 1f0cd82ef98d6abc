"""The example of a translation layer with log blocks: merges against sequences counted by hand."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from potash_device.flash.profile import PAGE, Profile, Rate
from potash_firmware.ftl.requests import REQUEST, Op
from support.docs import ROOT

LogBlock: Any = runpy.run_path(str(ROOT / "examples" / "log-block" / "log_block.py"))["LogBlock"]

FOUR = Profile(
    channels=1,
    dies=1,
    planes=1,
    blocks=40,
    pages=4,
    page_bytes=PAGE,
    program_pages=1,
    capacity=20 * 4 * PAGE,
    read_ns=(1000,),
    program_ns=(5000,),
    erase_ns=20_000,
    bus=Rate(PAGE, 100),
    link=Rate(PAGE, 10),
    buffer_bytes=PAGE,
)
"""A logical block has four pages."""


@pytest.mark.parametrize(
    ("pages", "merges", "copied", "erased"),
    [
        # A log block that is full in order becomes the data block, and an older one is erased.
        ([0, 1, 2, 3], {}, 0, 0),
        ([0, 1, 2, 3, 0], {"switch": 1}, 0, 0),
        ([0, 1, 2, 3, 0, 1, 2, 3, 0], {"switch": 2}, 0, 1),
        # Four logical blocks more need the log blocks: 2 and 3 are copied behind 0 and 1.
        ([0, 1, 2, 3, 0, 1, 4, 8, 12, 16], {"switch": 1, "partial": 1}, 2, 1),
        # 1 was written before 0: all four are copied, both blocks are erased.
        ([0, 1, 2, 3, 1, 0, 4, 8, 12, 16], {"switch": 1, "full": 1}, 4, 2),
        # 0 was written twice; there is no data block yet.
        ([0, 0, 1, 2, 3], {"full": 1}, 3, 1),
        # Only pages 0 and 3 have data: 1 and 2 stay empty in the new data block.
        ([3, 0, 4, 8, 12, 16], {"full": 1}, 2, 1),
        ([0, 4, 8, 12, 16], {"switch": 1}, 0, 0),
    ],
)
def test_merges_are_as_counted_by_hand(
    pages: Sequence[int], merges: dict[str, int], copied: int, erased: int
) -> None:
    drive = LogBlock(FOUR)
    for turn, page in enumerate(pages):
        drive.submit(turn * 10**6, Op.WRITE, page, 1)
    assert drive.merges == merges
    assert drive.counters.relocated == copied
    assert drive.counters.erased == erased
    written = {*pages}
    assert {page for page, place in enumerate(drive.places) if place >= 0} == written


def test_a_merge_takes_its_copies_and_erases() -> None:
    drive = LogBlock(FOUR)
    for turn, page in enumerate([0, 1, 2, 3, 1, 0, 4, 8, 12]):
        drive.submit(turn * 10**6, Op.WRITE, page, 1)
    now = 10**8
    drive.submit(now, Op.WRITE, 16, 1)
    # One die: each page is sensed, transferred twice and programmed before the next; both blocks
    # are erased, and the host's page is programmed.
    copies = 4 * (1000 + 100 + 100 + 5000)
    assert drive.flash.dies[0].last - now == copies + 2 * 20_000 + 5000


@pytest.mark.parametrize("unit", [1, 3])
@pytest.mark.parametrize("buffer", [0, 24])
def test_data_blocks_have_each_page_at_its_index(unit: int, buffer: int) -> None:
    pages = 12
    profile = replace(
        FOUR, dies=2, pages=pages, program_pages=unit, capacity=20 * 24 * PAGE - 5 * PAGE,
        buffer_bytes=buffer * PAGE,
    )  # fmt: skip
    drive, random = LogBlock(profile), np.random.default_rng(unit)
    asked = np.zeros(3000, REQUEST)
    asked["time"] = np.cumsum(random.integers(0, 50_000, len(asked)))
    asked["op"] = random.choice(
        [Op.WRITE, Op.READ, Op.TRIM, Op.FLUSH], len(asked), p=[0.7, 0.2, 0.08, 0.02]
    )
    asked["first"] = random.integers(0, profile.logical_pages - 30, len(asked))
    asked["count"] = random.integers(1, 30, len(asked))
    asked["count"][asked["op"] == Op.FLUSH] = 0
    drive.run(asked)
    assert min(drive.merges[kind] for kind in ("switch", "partial", "full")) > 10
    for logical, block in drive.data_blocks.items():
        for index, owner in enumerate(drive.owners[block * drive.size : (block + 1) * drive.size]):
            assert owner in (-1, logical * drive.size + index)
    used = {*drive.data_blocks.values(), *(log for _, log in drive.log_blocks.values())}
    assert used == {n for n, state in enumerate(drive.state) if state != "free"}
    mapped = [place for place in drive.places if place >= 0]
    assert len(set(mapped)) == len(mapped) == sum(drive.valid)
    drive.submit(drive.now, Op.FORMAT)
    assert drive.mapped == 0 and len(drive.free) == profile.superblocks


def test_the_readme_shows_what_the_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    folder = ROOT / "examples" / "log-block"
    runpy.run_path(str(folder / "log_block.py"), run_name="__main__")
    shown = (folder / "README.md").read_text().split("```text\n")[1].partition("```")[0]
    assert capsys.readouterr().out == shown

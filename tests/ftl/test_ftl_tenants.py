"""Tenants of a modelled drive with placement handles: the write amplification of each, as
docs/placement.md has it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from potash.bench.drive_time import PLAIN
from potash_device.flash.profile import PAGE
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.requests import REQUEST, Op
from support.docs import ROOT

TENANTS = 4
"""One writes its pages in order, one at random, and two at random with a skew."""
SKEWS = {2: (0.8, 0.2), 3: (0.95, 0.05)}
"""Shares of a tenant's writes, and of its pages that they go to."""
PAGES = int(PLAIN.superblocks * PLAIN.superblock_pages / 1.28) // TENANTS
"""Of each tenant."""


def writes(handles: int, turns: int, random: np.random.Generator) -> NDArray[np.void]:
    """As many as the drive has pages, so many times, by tenants in turn."""
    count = TENANTS * PAGES * turns
    tenant, hot = np.arange(count) % TENANTS, np.zeros(count, bool)
    first = random.integers(0, PAGES, count)
    first[tenant == 0] = np.arange(count // TENANTS) % PAGES
    for number, (share, pages) in SKEWS.items():
        limit, its = int(PAGES * pages), tenant == number
        chosen = its & (random.random(count) < share)
        first = np.where(its, random.integers(limit, PAGES, count), first)
        first = np.where(chosen, random.integers(0, limit, count), first)
        hot |= chosen
    streams = {1: 0 * tenant, TENANTS: tenant, 2 * TENANTS: 2 * tenant + hot}
    return requests(tenant * PAGES + first, streams[handles])


def requests(first: NDArray[np.int64], stream: NDArray[np.int64]) -> NDArray[np.void]:
    found = np.zeros(len(first), REQUEST)
    found["op"], found["count"], found["first"], found["stream"] = Op.WRITE, 1, first, stream
    return found


@pytest.mark.parametrize(
    ("handles", "isolated", "row"),
    [
        (1, False, "one for all"),
        (4, False, "one for each"),
        (8, False, "two for each"),
        (4, True, "one for each, isolated"),
        (8, True, "two for each, isolated"),
    ],
)
def test_the_page_has_the_write_amplification_of_each_tenant(
    handles: int, isolated: bool, row: str
) -> None:
    profile = replace(
        PLAIN,
        capacity=TENANTS * PAGES * PAGE,
        streams=handles,
        isolated=isolated,
        # Open superblocks are no part of the spare.
        blocks=PLAIN.blocks + handles + (handles if isolated else 1),
    )
    drive, random, pages = Drive(profile), np.random.default_rng(1), np.arange(TENANTS * PAGES)
    drive.run(requests(pages, pages // PAGES * (handles // TENANTS)))
    for _ in range(2):  # to a steady state, then to measure
        drive.rest()
        drive.run(writes(handles, 5, random))
    of_tenants = []
    if handles > 1:
        both = np.array(drive.streams)[:handles].reshape(TENANTS, -1, 3).sum(axis=1)
        of_tenants = (both.sum(axis=1) / both[:, 0]).tolist()
    found = [f"{value:.2f}" for value in (drive.counters.write_amplification, *of_tenants)]
    assert f"| {row} | {' | '.join(found)} |" in (ROOT / "docs" / "placement.md").read_text()

"""The model of a drive's time against sums worked out by hand and against closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from potash import timing
from potash_device.flash.profile import PAGE, Profile, Rate
from potash_device.flash.profiles import PROFILES
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.policies import Gap, Policies
from potash_firmware.ftl.requests import REQUEST, WORN, Op
from support import drive_checks
from support.drive_checks import CHECKS, Check
from support.drive_reference import Reference

Either = type[Drive] | type[Reference]

SECOND = 10**9
PLAIN = Profile(
    channels=1,
    dies=1,
    planes=1,
    blocks=16,
    pages=4,
    page_bytes=PAGE,
    program_pages=1,
    capacity=32 * PAGE,
    read_ns=(1000,),
    program_ns=(5000,),
    erase_ns=20_000,
    bus=Rate(PAGE, 100),
    link=Rate(PAGE, 10),
    buffer_bytes=2 * PAGE,
)
"""One die; a page takes 100 ns of the bus and 10 ns of the link."""


def writes(firsts: object, count: int = 1) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    pages = np.asarray(firsts)
    found = np.zeros(len(pages), REQUEST)
    found["op"], found["first"], found["count"] = Op.WRITE, pages, count
    return found


def programmed(drive: Drive | Reference, pages: int) -> int:
    """Write pages in order and let the drive become idle; the time is then."""
    drive.submit(0, Op.WRITE, 0, pages, fua=True)
    return SECOND


@pytest.mark.parametrize(
    ("name", "pages", "reads", "write"),
    [
        # NVMeVirt's ssd_config.h: 21 500 + 35 760 -+ 6000 + 32 * 152 + 32 * 36; 4000 + 460 + 1152.
        ("970-pro", (0, 16 * 8), (63_276 - 6000, 63_276 + 6000), 5612),
        # FEMU's bbssd: tR, tPROG.
        ("femu", (0,), (40_000,), 200_000),
        # 1000 + 3100 + tR + 3414 (4096 B at 1.2 GB/s) + 586 (at 7 GB/s) + 1000; 5100 + 586.
        ("tlc", (0, 8, 16), (49_100, 59_100, 69_100), 5686),
        ("qlc", (0, 16, 32, 48), (89_100, 109_100, 129_100, 149_100), 5686),
        # As before, but 1280 ns for 4096 B at 3.2 GB/s.
        ("z-nand", (0,), (12_794,), 6380),
        ("xl-flash", (0,), (13_100,), 5686),
    ],
)
def test_an_idle_drive_takes_the_sum_of_its_parts(
    name: str, pages: tuple[int, ...], reads: tuple[int, ...], write: int
) -> None:
    drive = Drive(replace(PROFILES[name], mapping_cache=0))
    assert drive.submit(0, Op.WRITE, 0, 1) == write
    now = programmed(drive, PROFILES[name].unit_pages * PROFILES[name].total_dies * 2)
    for page, expected in zip(pages, reads, strict=True):
        now += SECOND
        assert drive.submit(now, Op.READ, page, 1) - now == expected


def test_an_idle_drive_takes_the_times_of_femus_qlc_cells() -> None:
    """The constants of hw/femu/nand/nand.h for cells of four bits, and the types of the pages of a
    block in hw/femu/nand/nand.c: two of each in turn, but for the first eight."""
    reads = (47_900, 76_200, 134_600, 228_100)
    programs = (861_525, 2_447_500, 6_880_800, 9_174_400)
    types = [0] * 6 + [1] * 2 + [page // 2 % 4 for page in range(248)]
    drive = Drive(
        replace(
            PROFILES["femu"],
            read_ns=tuple(reads[kind] for kind in types),
            program_ns=tuple(programs[kind] for kind in types),
            erase_ns=3_000_000,
        )
    )
    dies, now = drive.profile.total_dies, 0
    for page, kind in enumerate(types):
        now += SECOND
        ends = [drive.submit(now, Op.WRITE, page * dies + die, 1) for die in range(dies)]
        assert set(ends) == {now + programs[kind]}
    for page, kind in enumerate(types):
        now += SECOND
        assert drive.submit(now, Op.READ, page * dies, 1) == now + reads[kind]
    assert drive.submit(2 * now, Op.FORMAT) == 2 * now + 3_000_000


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_a_full_buffer_has_a_write_wait_for_a_program(kind: Either) -> None:
    drive = kind(PLAIN)
    # Two pages fit. The first is programmed at 10 + 100 + 5000; the third waits for that.
    assert [drive.submit(0, Op.WRITE, page, 1) for page in range(4)] == [10, 20, 5120, 10_120]
    # The fourth was admitted at 10 110; its program follows those before on the one die.
    assert drive.submit(30_000, Op.FLUSH) == 30_000
    assert drive.submit(30_000, Op.WRITE, 4, 1, 0, True) == 30_000 + 10 + 100 + 5000


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_a_write_waits_for_the_buffer_behind_those_before_it(kind: Either) -> None:
    drive = kind(replace(PLAIN, program_pages=2, buffer_bytes=2 * PAGE))
    # A program frees two pages: the fourth has room at once, but not before the third.
    assert [drive.submit(0, Op.WRITE, page, 1) for page in range(4)] == [10, 20, 5230, 5240]
    # A format empties the buffer.
    drive.submit(0, Op.FORMAT)
    assert drive.submit(100, Op.WRITE, 0, 1) == 110


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_a_read_waits_for_its_die_or_suspends_what_it_does(kind: Either) -> None:
    for suspend, expected in ((-1, 110 + 5000 + 1110), (50, 2000 + 50 + 1110)):
        drive = kind(replace(PLAIN, suspend_ns=suspend))
        now = programmed(drive, 1)
        drive.submit(now, Op.WRITE, 1, 1)
        assert drive.submit(now + 2000, Op.READ, 0, 1) == now + expected
        # What is being programmed is still in memory, so this read takes the link alone.
        assert drive.submit(now + 2001, Op.READ, 1, 1) == now + 2011
        # The program ends 1000 + 2 * 50 later where it was suspended; the next follows it.
        after = 5110 + 5000 + (1000 if suspend < 0 else 1100)
        assert drive.submit(now + 2002, Op.WRITE, 2, 1, 0, True) == now + after


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_a_transfer_takes_a_gap_before_one_that_waits_for_a_die(kind: Either) -> None:
    drive = kind(replace(PLAIN, dies=2))
    now = programmed(drive, 4)
    # Two reads of die 0; the second's transfer is at 2000. That of die 1, asked last, is at 1100.
    ends = [drive.submit(now, Op.READ, page, 1) - now for page in (0, 2, 1)]
    assert ends == [1110, 2110, 1210]


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_pages_of_a_row_are_read_together_and_unmapped_ones_from_nowhere(kind: Either) -> None:
    drive = kind(replace(PLAIN, planes=2, capacity=64 * PAGE))
    now = programmed(drive, 4)
    assert drive.submit(now, Op.READ, 0, 4) - now == 2000 + 200 + 20  # two rows, one die
    assert drive.submit(2 * now, Op.READ, 8, 2) - 2 * now == 20
    assert drive.submit(3 * now, Op.TRIM, 0, 4) == 3 * now
    assert drive.submit(4 * now, Op.READ, 0, 4) - 4 * now == 40
    assert drive.submit(5 * now, Op.FORMAT) - 5 * now == 20_000  # of the one superblock in use


SLOW = {f"amplification-fifo-{spare}" for spare in (7, 20, 50)}
SLOW |= {f"amplification-greedy-{spare}" for spare in (12.5, 28)}
"""Each spare is checked with one policy in any case, and with both among the slow tests."""


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=check.name, marks=[pytest.mark.slow] if check.name in SLOW else [])
        for check in CHECKS
    ],
)
def test_a_drive_does_what_formulas_say(check: Check) -> None:
    model, expected = check.run()
    assert model == pytest.approx(expected, rel=check.tolerance)


def test_the_formulas_have_their_published_values() -> None:
    """Tables of the literature's closed forms, to their last digit."""
    fifo = {0.07: 7.82, 0.125: 4.68, 0.2: 3.19, 0.28: 2.48, 0.5: 1.72}
    greedy = {
        64: (7.00, 4.38, 3.05, 2.40, 1.68),
        256: (7.60, 4.60, 3.15, 2.46, 1.71),
        1024: (7.76, 4.66, 3.18, 2.48, 1.71),
    }
    for spare, expected in fifo.items():
        assert drive_checks.fifo_amplification(1 + spare) == pytest.approx(expected, abs=0.005)
    for pages, row in greedy.items():
        found = [drive_checks.greedy_amplification(1 + spare, pages) for spare in fifo]
        assert found == pytest.approx(row, abs=0.0051)
    found = [drive_checks.busy_share(depth, 16) for depth in (16, 32, 64)]
    assert found == pytest.approx([0.586, 0.764, 0.877], abs=0.0005)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"op": 10}, "is of no kind"),
        ({"time": 9}, "comes before"),
        ({"time": (1 << 62) + 1}, "comes in more than"),
        ({"count": 0}, "has no pages"),
        ({"first": -1}, "has no pages"),
        ({"first": 32}, "ends behind"),
        ({"first": 30, "count": 3}, "ends behind"),
        ({"count": (1 << 63) - 1}, "ends behind"),
        ({"stream": 1}, "names none of the drive's 1 streams"),
    ],
)
def test_requests_that_a_drive_cannot_have_are_refused(
    change: dict[str, int], problem: str
) -> None:
    drive = Drive(PLAIN)
    drive.submit(10, Op.WRITE, 0, 1)
    asked = writes([0, 1])
    asked["time"] = 10
    for name, value in change.items():
        asked[name][1] = value
    with pytest.raises(timing.RequestError, match=f"request [01] {problem}"):
        drive.run(asked)
    with pytest.raises(timing.RequestError, match=problem):
        drive.submit(*asked[1].item())
    assert drive.counters.host == 1


def test_static_wear_levelling_keeps_erases_together() -> None:
    profile = replace(PLAIN, blocks=32, pages=16, capacity=24 * 16 * PAGE)
    spread = []
    for wear in (Policies(), Policies(wear=Gap(5))):
        drive = Drive(profile, wear)
        drive.run(writes(range(profile.logical_pages)))
        drive.run(writes(np.random.default_rng(2).integers(0, 32, 60_000)))  # the rest stays cold
        spread.append(int(np.ptp(drive.state.flash.erases)))
    assert spread[0] > 100
    assert spread[1] <= 5 + 2


def test_a_worn_drive_refuses_writes_and_goes_on_reading() -> None:
    drive = Drive(replace(PLAIN, cycles=3))
    asked = writes(np.arange(1000) % 32)
    refused = drive.run(asked) == WORN
    assert drive.worn
    assert not refused[: 32 * 3].any()
    assert refused[int(np.argmax(refused)) :].all()
    now = 10 * SECOND
    assert drive.submit(now, Op.READ, 0, 1) == now + 1110
    assert (
        int((drive.state.flash.erases == 3).sum())
        >= PLAIN.superblocks - PLAIN.least_superblocks + 1
    )

"""The model of a drive's time against sums worked out by hand and against closed forms."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from potash import timing
from potash_device.timing.drive import Drive
from potash_device.timing.policies import Fifo, Gap, Greedy, Policies
from potash_device.timing.profile import PAGE, PROFILES, Profile, Rate
from potash_device.timing.reference import Reference
from potash_device.timing.requests import REQUEST, WORN, Op
from support.drive_time import problems

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


@pytest.mark.parametrize("kind", [Drive, Reference])
def test_a_full_buffer_has_a_write_wait_for_a_program(kind: Either) -> None:
    drive = kind(PLAIN)
    # Two pages fit. The first is programmed at 10 + 100 + 5000; the third waits for that.
    assert [drive.submit(0, Op.WRITE, page, 1) for page in range(4)] == [10, 20, 5120, 10_120]
    # The fourth was admitted at 10 110; its program follows those before on the one die.
    assert drive.submit(30_000, Op.FLUSH) == 30_000
    assert drive.submit(30_000, Op.WRITE, 4, 1, 0, True) == 30_000 + 10 + 100 + 5000


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


def test_random_reads_keep_as_many_dies_busy_as_the_queue_allows() -> None:
    rng = np.random.default_rng(3)
    for dies, depth in ((64, 64), (64, 128), (32, 128)):
        profile = replace(
            PLAIN,
            channels=dies,
            blocks=10,
            pages=64,
            capacity=dies * 64 * PAGE,
            bus=Rate(1, 0),
            link=Rate(1, 0),
            buffer_bytes=0,
        )
        drive = Drive(profile)
        drive.run(writes(range(profile.logical_pages)))
        drive.rest()
        asked = writes(rng.integers(0, profile.logical_pages, 20_000))
        asked["op"] = Op.READ
        ends = np.sort(timing.closed_loop(drive, asked, depth))[2000:18_000]
        busy = len(ends) * 1000 / (dies * int(ends[-1] - ends[0]))
        x = depth / dies
        assert busy == pytest.approx(1 + x - math.sqrt(1 + x * x), rel=0.02), (dies, depth)


@pytest.mark.parametrize(
    ("bus", "link", "pages_per_us"),
    [
        (100, 10, 4 * 4 / 1),  # four dies, each four pages in 1 µs; transfers hide behind senses
        (500, 10, 2 / 0.5),  # two buses
        (100, 200, 1 / 0.2),  # the link
    ],
)
def test_sequential_reads_are_as_fast_as_the_slowest_part(
    bus: int, link: int, pages_per_us: float
) -> None:
    profile = replace(
        PLAIN,
        channels=2,
        dies=2,
        planes=4,
        pages=64,
        capacity=4096 * PAGE,
        bus=Rate(PAGE, bus),
        link=Rate(PAGE, link),
        buffer_bytes=0,
    )
    drive = Drive(profile)
    asked = writes(range(0, 4096, 64), 64)
    drive.run(asked)
    drive.rest()
    asked["op"] = Op.READ
    assert 4096 / (int(drive.run(asked).max()) / 1000) == pytest.approx(pages_per_us, rel=0.01)


def lambert(x: float) -> float:
    """W0, where x = W e^W, by Newton's method; x in (-1/e, 0)."""
    w = -0.5
    for _ in range(100):
        w -= (w * math.exp(w) - x) / (math.exp(w) * (w + 1))
    return w


def fifo_amplification(alpha: float) -> float:
    """Desnoyers 2012; Xiang and Kurkoski 2011 for greedy with large superblocks."""
    return alpha / (alpha + lambert(-alpha * math.exp(-alpha)))


def greedy_amplification(alpha: float, pages: int) -> float:
    """Desnoyers 2012."""
    k = 1 + 1 / (2 * pages)
    x = 0.5 - pages / alpha * lambert(-k * alpha * math.exp(-k * alpha))
    return pages / (pages - (x - 1))


BLOCKS, PAGES = 256, 256


def steady(spare: float, gc: Greedy | Fifo) -> tuple[Drive, float]:
    """A drive overwritten at random until its write amplification stays, and its effective spare:
    superblocks that are kept free, of which one is about to be opened, and half of those that are
    open are none."""
    profile = replace(
        PLAIN,
        channels=4,
        blocks=BLOCKS,
        pages=PAGES // 4,
        buffer_bytes=0,
        capacity=int(BLOCKS * PAGES / (1 + spare)) * PAGE,
    )
    drive = Drive(profile, Policies(gc))
    timing.precondition(drive, 1.0, 5.0)
    random = np.random.default_rng(1).integers(0, profile.logical_pages, 4 * profile.logical_pages)
    drive.run(writes(random))
    kept = profile.reserve + 0.5 + 2 * 0.5
    return drive, (BLOCKS - kept) * PAGES / profile.logical_pages


@pytest.mark.parametrize("spare", [0.07, 0.125, 0.2, 0.28, 0.5])
def test_write_amplification_is_that_of_the_closed_forms(spare: float) -> None:
    drive, alpha = steady(spare, Greedy())
    found = drive.counters.write_amplification
    assert found == pytest.approx(greedy_amplification(alpha, PAGES), rel=0.01)
    assert problems(drive.profile, drive.state) == []
    drive, alpha = steady(spare, Fifo())
    assert drive.counters.write_amplification == pytest.approx(fifo_amplification(alpha), rel=0.01)


def test_sustained_random_writes_are_as_fast_as_amplification_allows() -> None:
    drive, _ = steady(0.28, Greedy())
    pages = drive.profile.logical_pages
    drive.rest()
    asked = writes(np.random.default_rng(2).integers(0, pages, 4 * pages))
    asked["time"] = np.arange(len(asked)) * 3500  # a tenth faster than the drive
    drive.run(asked)
    amplification = drive.counters.write_amplification
    each = amplification * (5000 + 20_000 / (PAGES / 4)) + (amplification - 1) * 1000
    expected = drive.profile.total_dies / each
    assert drive.counters.host / int(drive.state.last.max()) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"op": 5}, "is of no kind"),
        ({"time": 9}, "comes before"),
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
        spread.append(int(np.ptp(drive.state.erases)))
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
    assert int((drive.state.erases == 3).sum()) >= PLAIN.blocks - PLAIN.least_blocks + 1

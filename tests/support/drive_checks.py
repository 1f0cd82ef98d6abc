"""What a modelled drive does against what published formulas and constants say of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from potash import timing
from potash.bench.drive_time import PLAIN, requests
from potash_device.flash.profile import PAGE, Rate
from potash_device.flash.profiles import PROFILES
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.policies import Fifo, Greedy, Policies
from potash_firmware.ftl.requests import Op

SECOND = 10**9
FREE = Rate(1, 0)
SPARES = (0.07, 0.125, 0.2, 0.28, 0.5)


@dataclass(frozen=True)
class Check:
    """A figure of the model, and what a formula says of it."""

    name: str
    metric: str
    unit: str
    against: str
    tolerance: float
    """As a share."""
    run: Callable[[], tuple[float, float]]
    """The model's figure and the formula's."""


# Closed forms, which know nothing of the model. Sources: P. Desnoyers, "Analytic Modeling of SSD Write
# Performance", SYSTOR 2012; L. Xiang and B. M. Kurkoski, "An Improved Analytical Expression for
# Write Amplification in NAND Flash", 2011.


def lambert(x: float) -> float:
    """The principal branch of the W function, where x = W e^W, by Newton's method; for x between
    -1/e and 0."""
    w = -0.5
    for _ in range(100):
        w -= (w * math.exp(w) - x) / (math.exp(w) * (w + 1))
    return w


def fifo_amplification(alpha: float) -> float:
    """Write amplification of random writes where superblocks are collected in the order in which
    they were filled; also for greedy where they are large. `alpha` is physical over logical size,
    above 1."""
    return alpha / (alpha + lambert(-alpha * math.exp(-alpha)))


def greedy_amplification(alpha: float, pages: int) -> float:
    """The same where those with the fewest valid pages are collected, of so many pages each."""
    k = 1 + 1 / (2 * pages)
    x = 0.5 - pages / alpha * lambert(-k * alpha * math.exp(-k * alpha))
    return pages / (pages - (x - 1))


def busy_share(depth: int, dies: int) -> float:
    """Mean share of busy dies where `depth` reads of random dies are in flight, each as long as the
    others."""
    x = depth / dies
    return 1 + x - math.sqrt(1 + x * x)


def _idle(name: str, op: Op, expected: int) -> tuple[float, float]:
    drive = Drive(PROFILES[name])
    if op is Op.READ:
        drive.submit(0, Op.WRITE, 0, PROFILES[name].row_pages, fua=True)
    return drive.submit(SECOND, op, 0, 1) - SECOND, expected


def _random_reads(dies: int, depth: int) -> tuple[float, float]:
    profile = replace(
        PLAIN, channels=dies, blocks=10, capacity=dies * 64 * PAGE, bus=FREE, link=FREE
    )
    drive, rng = Drive(profile), np.random.default_rng(3)
    drive.run(requests(Op.WRITE, range(profile.logical_pages)))
    drive.rest()
    asked = requests(Op.READ, rng.integers(0, profile.logical_pages, 20_000))
    ends = np.sort(timing.closed_loop(drive, asked, depth))[2000:18_000]
    busy = len(ends) * 1000 / (dies * int(ends[-1] - ends[0]))
    return busy, busy_share(depth, dies)


def _sequential_reads(bus: int, link: int, pages_per_us: float) -> tuple[float, float]:
    profile = replace(
        PLAIN, channels=2, dies=2, planes=4, blocks=16, bus=Rate(PAGE, bus), link=Rate(PAGE, link),
        capacity=4096 * PAGE,
    )  # fmt: skip
    drive = Drive(profile)
    drive.run(requests(Op.WRITE, range(0, 4096, 64), 64))
    drive.rest()
    asked = requests(Op.READ, range(0, 4096, 64), 64)
    return 4096 / (int(drive.run(asked).max()) / 1000), pages_per_us


def _steady(spare: float, gc: Greedy | Fifo) -> tuple[Drive, float]:
    """A drive overwritten at random until its write amplification stays, and its effective spare:
    superblocks that are kept free, of which one is about to be opened, and half of those that are
    open are none."""
    pages = PLAIN.blocks * PLAIN.superblock_pages
    profile = replace(PLAIN, capacity=int(pages / (1 + spare)) * PAGE)
    drive = Drive(profile, Policies(gc))
    timing.precondition(drive, 1.0, 5.0)
    rng, logical = np.random.default_rng(1), profile.logical_pages
    drive.run(requests(Op.WRITE, rng.integers(0, logical, 4 * logical)))
    kept = profile.reserve + 0.5 + 2 * 0.5
    return drive, (PLAIN.blocks - kept) * PLAIN.superblock_pages / logical


def _greedy(spare: float) -> tuple[float, float]:
    drive, alpha = _steady(spare, Greedy())
    expected = greedy_amplification(alpha, PLAIN.superblock_pages)
    return drive.counters.write_amplification, expected


def _fifo(spare: float) -> tuple[float, float]:
    drive, alpha = _steady(spare, Fifo())
    return drive.counters.write_amplification, fifo_amplification(alpha)


def _share_invalid() -> tuple[float, float]:
    """By FEMU's rule, superblocks are relocated as soon as an eighth is invalid."""
    profile = replace(
        PLAIN,
        capacity=192 << 20,
        background=PROFILES["femu"].background,
        background_pages=PLAIN.superblock_pages,
        background_invalid=PROFILES["femu"].background_invalid,
    )
    drive = Drive(profile)
    timing.precondition(drive, 1.0, 3.0)
    pages = drive.profile.logical_pages
    drive.run(requests(Op.WRITE, np.random.default_rng(1).integers(0, pages, 3 * pages)))
    return drive.counters.write_amplification, 8.0


def _sustained_writes() -> tuple[float, float]:
    """Pages a microsecond, against what programs, relocations and erases take of the dies."""
    drive, _ = _steady(0.28, Greedy())
    pages = drive.profile.logical_pages
    drive.rest()
    asked = requests(Op.WRITE, np.random.default_rng(2).integers(0, pages, 4 * pages))
    asked["time"] = np.arange(len(asked)) * 3500  # a tenth faster than the drive
    drive.run(asked)
    amplification = drive.counters.write_amplification
    each = amplification * (5000 + 20_000 / PLAIN.pages) + (amplification - 1) * 1000
    rate = drive.counters.host / int(drive.state.flash.last.max())
    return rate * 1000, drive.profile.total_dies / each * 1000


CHECKS: Sequence[Check] = (
    *(
        Check(name, "latency", "ns", against, 0.0, partial(_idle, profile, op, expected))
        for name, profile, op, against, expected in (
            # 21 500 + 35 760 - 6000 + 32 * 152 + 32 * 36; 4000 + 460 + 1152.
            ("idle-read-970-pro", "970-pro", Op.READ, "NVMeVirt's constants", 57_276),
            ("idle-write-970-pro", "970-pro", Op.WRITE, "NVMeVirt's constants", 5612),
            ("idle-read-femu", "femu", Op.READ, "FEMU's constants", 40_000),
            ("idle-write-femu", "femu", Op.WRITE, "FEMU's constants", 200_000),
        )
    ),
    *(
        Check(f"random-reads-{depth}-on-{dies}-dies", "busy dies", "",
              "1 + x - sqrt(1 + x²)", 0.02, partial(_random_reads, dies, depth))
        for dies, depth in ((64, 64), (64, 128), (32, 128))
    ),
    *(
        Check(f"sequential-reads-{part}", "throughput", "pages/µs", "the slowest part", 0.01,
              partial(_sequential_reads, bus, link, pages))
        for part, bus, link, pages in (
            # Four dies, each four pages in 1 µs, where transfers hide behind senses; two buses.
            ("dies", 100, 10, 16.0), ("buses", 500, 10, 4.0), ("link", 100, 200, 5.0),
        )
    ),
    *(
        Check(f"amplification-{name}-{spare * 100:g}", "write amplification", "", "Desnoyers 2012",
              0.01, partial(run, spare))
        for spare in SPARES for name, run in (("greedy", _greedy), ("fifo", _fifo))
    ),
    Check("amplification-femu", "write amplification", "", "inverse of 1/8", 0.02, _share_invalid),
    Check("sustained-writes", "throughput", "pages/µs", "time of the dies", 0.03,
          _sustained_writes),
)  # fmt: skip

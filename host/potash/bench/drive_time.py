"""The model of a drive's time against its closed forms, and how fast it is."""

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from potash import timing
from potash.bench.report import Result, alone, paired
from potash.sdk.progress import Progress
from potash_device.timing import closed_forms
from potash_device.timing.drive import Drive
from potash_device.timing.policies import Fifo, Greedy, Policies
from potash_device.timing.profile import PAGE, PROFILES, Profile, Rate
from potash_device.timing.requests import REQUEST, Op

SECOND = 10**9
PLAIN = Profile(
    channels=4,
    dies=1,
    planes=1,
    blocks=256,
    pages=64,
    page_bytes=PAGE,
    program_pages=1,
    capacity=48 << 20,
    read_ns=(1000,),
    program_ns=(5000,),
    erase_ns=20_000,
    bus=Rate(PAGE, 100),
    link=Rate(PAGE, 10),
)
"""A superblock has 256 pages; a page takes 100 ns of a bus and 10 ns of the link."""
FREE = Rate(1, 0)
SPARES = (0.07, 0.125, 0.2, 0.28, 0.5)
SAMPLE = 200_000
"""Requests of the sample trace."""


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


def _requests(op: Op, firsts: object, count: int = 1) -> NDArray[np.void]:
    pages = np.asarray(firsts)
    found = np.zeros(len(pages), REQUEST)
    found["op"], found["first"], found["count"] = op, pages, count
    return found


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
    drive.run(_requests(Op.WRITE, range(profile.logical_pages)))
    drive.rest()
    asked = _requests(Op.READ, rng.integers(0, profile.logical_pages, 20_000))
    ends = np.sort(timing.closed_loop(drive, asked, depth))[2000:18_000]
    busy = len(ends) * 1000 / (dies * int(ends[-1] - ends[0]))
    return busy, closed_forms.busy_share(depth, dies)


def _sequential_reads(bus: int, link: int, pages_per_us: float) -> tuple[float, float]:
    profile = replace(
        PLAIN, channels=2, dies=2, planes=4, blocks=16, bus=Rate(PAGE, bus), link=Rate(PAGE, link),
        capacity=4096 * PAGE,
    )  # fmt: skip
    drive = Drive(profile)
    drive.run(_requests(Op.WRITE, range(0, 4096, 64), 64))
    drive.rest()
    asked = _requests(Op.READ, range(0, 4096, 64), 64)
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
    drive.run(_requests(Op.WRITE, rng.integers(0, logical, 4 * logical)))
    kept = profile.reserve + 0.5 + 2 * 0.5
    return drive, (PLAIN.blocks - kept) * PLAIN.superblock_pages / logical


def _greedy(spare: float) -> tuple[float, float]:
    drive, alpha = _steady(spare, Greedy())
    expected = closed_forms.greedy_amplification(alpha, PLAIN.superblock_pages)
    return drive.counters.write_amplification, expected


def _fifo(spare: float) -> tuple[float, float]:
    drive, alpha = _steady(spare, Fifo())
    return drive.counters.write_amplification, closed_forms.fifo_amplification(alpha)


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
    drive.run(_requests(Op.WRITE, np.random.default_rng(1).integers(0, pages, 3 * pages)))
    return drive.counters.write_amplification, 8.0


def _sustained_writes() -> tuple[float, float]:
    """Pages a microsecond, against what programs, relocations and erases take of the dies."""
    drive, _ = _steady(0.28, Greedy())
    pages = drive.profile.logical_pages
    drive.rest()
    asked = _requests(Op.WRITE, np.random.default_rng(2).integers(0, pages, 4 * pages))
    asked["time"] = np.arange(len(asked)) * 3500  # a tenth faster than the drive
    drive.run(asked)
    amplification = drive.counters.write_amplification
    each = amplification * (5000 + 20_000 / PLAIN.pages) + (amplification - 1) * 1000
    rate = drive.counters.host / int(drive.state.last.max())
    return rate * 1000, drive.profile.total_dies / each * 1000


def _placement(streams: int) -> float:
    """Write amplification where three of four writes overwrite random pages of an eighth of the
    drive, and one goes on overwriting the rest sequentially, in a stream of its own or not."""
    profile = replace(PLAIN, capacity=int(PLAIN.blocks * PLAIN.superblock_pages / 1.28) * PAGE)
    drive, rng = Drive(replace(profile, streams=2)), np.random.default_rng(5)
    pages = profile.logical_pages
    hot, cold = pages // 8, pages - pages // 8
    drive.run(_requests(Op.WRITE, range(pages)))
    for _ in range(2):  # to a steady state, then to measure
        drive.rest()
        random = rng.integers(0, hot, 6 * pages)
        sequential = hot + np.arange(2 * pages) % cold
        turns = np.arange(8 * pages) % 4 == 3
        asked = _requests(Op.WRITE, np.where(turns, 0, 1))
        asked["first"][turns], asked["first"][~turns] = sequential, random
        asked["stream"] = turns & (streams > 1)
        drive.run(asked)
    return drive.counters.write_amplification


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
PLACED, REPEATED = "placement", "repeated"
READING, SIMULATING = "trace-reading", "simulate"
NAMES = (*(check.name for check in CHECKS), PLACED, REPEATED, READING, SIMULATING)


def measure(names: Sequence[str], pairs: int, progress: Progress) -> Iterator[Result]:
    """Check and measure what is named; speeds `pairs` times."""
    wanted = [check for check in CHECKS if check.name in names]
    for done, check in enumerate(wanted):
        progress(check.name, done / len(names))
        yield paired(check.name, check.metric, check.unit, check.against, [check.run()])
    if PLACED in names:
        progress(PLACED, len(wanted) / len(names))
        placed = _placement(2), _placement(1)
        yield paired(PLACED, "write amplification", "", "without placement", [placed])
    if not {REPEATED, READING, SIMULATING} & set(names):
        return
    progress("sample trace", len(wanted) / len(names))
    with tempfile.TemporaryDirectory(prefix="potash-bench-") as folder:
        path = Path(folder) / "sample.csv"
        write_sample(path, SAMPLE)
        asked = timing.read_trace(path, PROFILES["tlc"])
        if READING in names:
            rates = [
                _rate(SAMPLE, partial(timing.read_trace, path, PROFILES["tlc"]))
                for _ in range(pairs)
            ]
            yield alone(READING, "throughput", "requests/s", rates)
    if REPEATED in names:
        unequal = int((_drive().run(asked) != _drive().run(asked)).sum())
        yield alone(REPEATED, "unequal times", "", [unequal])
    if SIMULATING in names:
        rates = [_rate(len(asked), partial(_drive().run, asked)) for _ in range(pairs)]
        yield alone(SIMULATING, "throughput", "requests/s", rates)


def write_sample(path: Path, count: int) -> None:
    """A trace in MSR Cambridge's form, of our own making: seven of ten requests are reads, of 4 to
    64 KiB, most of them in a part of 16 GiB that changes slowly; 30 µs between them on average."""
    draw, at, centre, lines = random.Random(1), 128_166_372_003_061_629, 0, list[str]()
    for _ in range(count):
        at += int(draw.expovariate(1 / 300))
        centre = (centre + draw.randrange(1 << 16)) % (1 << 34)
        offset = centre if draw.random() < 0.8 else draw.randrange(1 << 34)
        size = draw.choice((4096, 4096, 4096, 8192, 16_384, 65_536))
        kind = "Read" if draw.random() < 0.7 else "Write"
        lines.append(f"{at},host,0,{kind},{offset // 512 * 512},{size},0")
    path.write_text("\n".join(lines))


def _drive() -> Drive:
    drive = timing.drive("tlc")
    timing.precondition(drive, 0.5)
    return drive


def _rate(count: int, run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return count / (time.perf_counter() - start)

"""Benchmarks of the speed of a drive's timing model, and of the benefit of data placement."""

import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from potash import timing
from potash.bench.report import Result, Settings, alone, once, paired
from potash.sdk.progress import Progress
from potash_device.flash.profile import PAGE, Profile, Rate
from potash_device.flash.profiles import PROFILES
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.requests import REQUEST, Op

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
SAMPLE = 200_000
"""Requests of the sample trace."""
PLACED, READING, SIMULATING = "placement", "trace-reading", "simulate"
NAMES = (PLACED, READING, SIMULATING)


def measure(settings: Settings, progress: Progress) -> Iterator[Result]:
    """Measure what is named."""
    names, pairs = settings.names, settings.pairs
    if PLACED in names:
        progress(PLACED, 0)
        placed = _placement(2), _placement(1)
        yield paired(PLACED, "write amplification", "", "without placement", [placed])
    if not {READING, SIMULATING} & set(names):
        return
    progress("sample trace", 1 / len(names))
    with tempfile.TemporaryDirectory(prefix="potash-bench-") as folder:
        path = Path(folder) / "sample.csv"
        write_sample(path, SAMPLE)
        read = partial(timing.read_trace, path, PROFILES["tlc"])
        asked = read()
        if READING in names:
            rates = [SAMPLE / once(read) for _ in range(pairs)]
            yield alone(READING, "throughput", "requests/s", rates)
    if SIMULATING in names:
        rates = [len(asked) / once(partial(_drive().run, asked)) for _ in range(pairs)]
        yield alone(SIMULATING, "throughput", "requests/s", rates)


def requests(op: Op, firsts: object, count: int = 1) -> NDArray[np.void]:
    pages = np.asarray(firsts)
    found = np.zeros(len(pages), REQUEST)
    found["op"], found["first"], found["count"] = op, pages, count
    return found


def _placement(streams: int) -> float:
    """Write amplification where three of four writes overwrite random pages of an eighth of the
    drive, and one goes on overwriting the rest sequentially, in a stream of its own or not."""
    profile = replace(PLAIN, capacity=int(PLAIN.superblocks * PLAIN.superblock_pages / 1.28) * PAGE)
    drive, rng = Drive(replace(profile, streams=2)), np.random.default_rng(5)
    pages = profile.logical_pages
    hot, cold = pages // 8, pages - pages // 8
    drive.run(requests(Op.WRITE, range(pages)))
    for _ in range(2):  # to a steady state, then to measure
        drive.rest()
        random = rng.integers(0, hot, 6 * pages)
        sequential = hot + np.arange(2 * pages) % cold
        turns = np.arange(8 * pages) % 4 == 3
        asked = requests(Op.WRITE, np.where(turns, 0, 1))
        asked["first"][turns], asked["first"][~turns] = sequential, random
        asked["stream"] = turns & (streams > 1)
        drive.run(asked)
    return drive.counters.write_amplification


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

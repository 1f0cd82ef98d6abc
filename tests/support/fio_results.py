"""Measurements of a modelled drive in the form of fio's JSON output, for `potash drive fit`.

They are made with the model's public interface, and know nothing of how a fit models jobs.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potash import timing
from potash_device.flash.profile import PAGE, Rate

LISTED = (1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99)
"""The percentiles that fio lists."""
REGION = 1 << 20
"""Pages of the region that jobs read and write."""
COMMAND = {"ioengine": "libaio", "direct": "1", "group_reporting": "1"}
UNSEEN: Mapping[str, Mapping[str, str]] = {
    "read-4k-8": {"rw": "randread", "bs": "4k", "iodepth": "8"},
    "read-4k-32": {"rw": "randread", "bs": "4k", "iodepth": "32"},
    "read-8k-4": {"rw": "randread", "bs": "8k", "iodepth": "4"},
    "read-64k-8": {"rw": "randread", "bs": "64k", "iodepth": "8"},
    "write-4k-16": {"rw": "randwrite", "bs": "4k", "iodepth": "16"},
    "mixed-50-4k-16": {"rw": "randrw", "bs": "4k", "iodepth": "16", "rwmixread": "50"},
}
"""Jobs that no fit sees."""


def hidden(seed: int) -> timing.Profile:
    """A random drive, of the flash of `tlc`."""
    random = np.random.default_rng(seed)

    def between(low: float, high: float) -> float:
        return float(np.exp(random.uniform(np.log(low), np.log(high))))

    channels, dies = (int(random.choice(some)) for some in ([2, 4, 8, 16], [1, 2, 4, 8]))
    sense, program = between(0.6, 2), between(0.5, 2)
    bus, link = (Rate(1000, round(1000 / between(*some))) for some in ((0.4, 2.4), (3, 14)))
    tlc = timing.profile("tlc")
    return replace(
        tlc,
        channels=channels,
        dies=dies,
        read_ns=tuple(round(one * sense) for one in tlc.read_ns),
        program_ns=(round(tlc.program_ns[0] * program),),
        bus=bus,
        link=link,
        submission_ns=round(between(500, 2000)),
        completion_ns=round(between(500, 5000)),
        cores=int(random.choice([2, 4, 8])),
        read_command_ns=round(between(1000, 6000)),
        read_page_ns=round(between(50, 200)),
        write_command_ns=round(between(1000, 6000)),
        write_page_ns=round(between(50, 300)),
        buffer_bytes=round(between(4, 64)) << 20,
        suspend_ns=int(random.choice([-1, 5000, 20_000])),
        pages=96,
        blocks=8 + (64 << 30) // (channels * dies * 96 * 8 * PAGE),
        capacity=3 * REGION * PAGE,
    )


def measure(
    profile: timing.Profile, jobs: Mapping[str, Mapping[str, str]], samples: int
) -> dict[str, Any]:
    """fio's document of the jobs on a drive; `samples` requests of each are counted."""
    drive = timing.Drive(profile)
    fill = _requests(timing.Op.WRITE, np.arange(0, REGION, 256), 256)
    drive.run(fill)
    return document(_entry(drive, name, options, samples) for name, options in jobs.items())


def document(entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The document of fio with these jobs."""
    return {"fio version": "fio-3.35", "global options": COMMAND, "jobs": list(entries)}


def write(path: Path, found: Mapping[str, Any]) -> Path:
    """Store a document."""
    path.write_text(json.dumps(found))
    return path


def _requests(op: int, first: NDArray[Any], count: int) -> NDArray[np.void]:
    found = np.zeros(len(first), timing.REQUEST)
    found["op"], found["first"], found["count"] = op, first, count
    return found


def _entry(
    drive: timing.Drive, name: str, options: Mapping[str, str], samples: int
) -> dict[str, Any]:
    pages = int(options["bs"].removesuffix("k")) // 4
    depth = int(options["iodepth"]) * int(options.get("numjobs", "1"))
    mixed = {"read": 100, "write": 0, "rw": int(options.get("rwmixread", "50"))}
    share = mixed[options["rw"].removeprefix("rand")] / 100
    pause = int(options.get("thinktime", "0ms").removesuffix("ms"))
    burst = int(options.get("thinktime_blocks", "1"))
    random = np.random.default_rng([len(name), *name.encode()])
    bursts = max(8, samples // 10 // (burst * pages))
    count = burst * bursts if pause else 2 * max((4 if share == 1 else 1) * samples // pages, 5000)
    reads = random.random(count) < share
    places = REGION // pages
    first = random.integers(0, places, count) if "rand" in options["rw"] else np.arange(count)
    requests = _requests(0, first % places * pages, pages)
    requests["op"] = np.where(reads, timing.Op.READ, timing.Op.WRITE)
    if name.startswith("empty-"):
        requests["first"] += REGION
    drive.rest()
    if pause:
        times, now = [], 0
        for start in range(0, count, burst):
            part = requests[start : start + burst].copy()
            ends = drive.closed_loop(part, np.full(depth, now))
            times.append(ends - part["time"])
            now = int(ends.max()) + pause * 10**6
        latencies = np.concatenate(times)
    else:
        ends = timing.closed_loop(drive, requests, depth)
        latencies = (ends - requests["time"])[count // 2 :]
        reads = reads[count // 2 :]
    assert (latencies > 0).all()
    return {
        "jobname": name,
        "error": 0,
        "job options": {"name": name, **options},
        "read": _side(latencies[reads]),
        "write": _side(latencies[~reads]),
    }


def _side(latencies: NDArray[np.int64]) -> dict[str, Any]:
    if not len(latencies):
        return {"total_ios": 0, "clat_ns": {"min": 0, "max": 0, "mean": 0.0, "N": 0}}
    found = np.percentile(latencies, LISTED, method="inverted_cdf").astype(int).tolist()
    listed = {f"{one:.6f}": _class(time) for one, time in zip(LISTED, found, strict=True)}
    return {
        "total_ios": len(latencies),
        "clat_ns": {"mean": float(latencies.mean()), "N": len(latencies), "percentile": listed},
    }


def _class(time: int) -> int:
    """The middle of the class of a latency: fio has 64 for each power of two."""
    bits = max(0, time.bit_length() - 7)
    return (time >> bits << bits) + (1 << bits >> 1)

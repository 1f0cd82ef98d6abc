"""fio's measurements of a drive: the jobs to run, and the latencies in its JSON output.

Option names are those of fio's manual. Percentiles are of completion latencies (clat), in ns since
fio 3.0 (`clat_ns`) and in µs before (`clat`), or of total latencies (lat) where only those are.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from potash.sdk.errors import restated
from potash.timing.traces import TimingError
from potash_device.flash.profile import PAGE

STEADY = "steady-"
"""Names of jobs that measure a drive whose flash has been overwritten begin with this."""
EMPTY = "empty-"
"""Names of jobs that read what was never written begin with this."""
PREPARING = ("fill", "overwrite")
"""Names of jobs that only prepare the drive."""
LARGEST_RESULT = 1 << 28
"""Bytes of a file."""
MOST_FLYING = 1 << 14
"""Pages that are in flight."""
MOST_BURST = 1 << 14
"""Requests."""
LONGEST = 1000.0
"""Seconds, of a latency and of thinktime."""


class Job(NamedTuple):
    """The requests of a job of fio: `depth` in flight, each of `pages` pages of 4 KiB."""

    name: str
    random: bool
    reads: float
    """Share of reads among them."""
    pages: int
    depth: int
    pause_ns: int = 0
    """After each `burst` requests (thinktime), if it is not 0."""
    burst: int = 1

    @property
    def empty(self) -> bool:
        """True if what it reads was never written, which takes no flash."""
        return self.name.startswith(EMPTY)

    @property
    def steady(self) -> bool:
        """True if all of the drive's flash was written on before, and is collected."""
        return self.name.startswith(STEADY)


class Latencies(NamedTuple):
    """Latencies of the reads, or of the writes, of a job, in nanoseconds."""

    mean: float
    percentiles: Mapping[float, float]
    errors: Sequence[float] = ()
    """Relative standard errors of the mean and of the percentiles of modelled requests."""


class Measurement(NamedTuple):
    """The latencies of a job; None for reads or writes that it has not."""

    job: Job
    reads: Latencies | None
    writes: Latencies | None


_JOBS = """
empty-read-4k-1     randread   4k   1
empty-read-4k-64    randread   4k   64
empty-read-128k-1   randread   128k 1
empty-read-128k-32  randread   128k 32
empty-burst-4k-64   randread   4k   64  thinktime=2ms thinktime_blocks=64
rand-read-4k-1      randread   4k   1
rand-read-4k-4      randread   4k   4
rand-read-4k-16     randread   4k   16
rand-read-4k-64     randread   4k   64
rand-read-4k-256    randread   4k   256
rand-burst-4k-256   randread   4k   256 thinktime=5ms thinktime_blocks=256
rand-read-16k-1     randread   16k  1
rand-read-128k-1    randread   128k 1
rand-read-128k-16   randread   128k 16
rand-burst-128k-32  randread   128k 32  thinktime=5ms thinktime_blocks=32
seq-read-128k-32    read       128k 32
rand-write-4k-idle  randwrite  4k   1   thinktime=2ms
seq-write-128k-idle write      128k 1   thinktime=50ms
write-burst-4k-64   randwrite  4k   64  thinktime=10ms thinktime_blocks=64
burst-128k-16       write      128k 16  thinktime=500ms thinktime_blocks=512
rand-write-4k-32    randwrite  4k   32
seq-write-128k-32   write      128k 32
mixed-90-4k-8       randrw     4k   8   rwmixread=90
mixed-70-4k-32      randrw     4k   32  rwmixread=70
steady-write-4k-32  randwrite  4k   32
steady-70-4k-32     randrw     4k   32  rwmixread=70
"""
"""Name, rw, bs, iodepth and further options."""
THREADED = 64
"""Requests in flight from which on a job has four processes, as one may not keep up."""

_FILL = {"name": "fill", "rw": "write", "bs": "128k", "iodepth": "32"}
_OVERWRITE = {"name": "overwrite", "rw": "randwrite", "bs": "4k", "iodepth": "32"}
_SHARED = {"ioengine": "libaio", "direct": "1"}
_HEAD = """\
; {title}
; All data on the drive are lost. Run it with
;   DRIVE=/dev/nvmeXnY fio --output-format=json --output={name}.json {name}.fio
[global]
filename=${{DRIVE}}
{shared}
randrepeat=0
norandommap=1
group_reporting=1
stonewall=1
"""
_TIMED = "size={size}\ntime_based=1\nruntime={seconds}s\nramp_time=3s\n"


def _options(line: str) -> dict[str, str]:
    """Options of a line of the table."""
    name, rw, size, depth, *more = line.split()
    options = {"name": name, "rw": rw, "bs": size, "iodepth": depth}
    options |= dict(option.split("=", 1) for option in more)
    if "thinktime_blocks" in options:
        # All of a burst in one submission, and the pause after as many requests have been issued.
        options |= {"iodepth_batch": depth, "thinktime_blocks_type": "issue"}
    elif int(depth) >= THREADED:
        options |= {"iodepth": str(int(depth) // 4), "numjobs": "4"}
    return options


TABLE: Mapping[str, Mapping[str, str]] = {
    options["name"]: options for options in map(_options, _JOBS.strip().splitlines())
}
"""Options of the jobs, by name."""


def job_files(size: str = "16G", seconds: int = 22) -> dict[str, str]:
    """The jobs as files of fio, by name: ten minutes, and hours for a drive that is overwritten."""
    title = "Ten minutes on a drive that is empty (blkdiscard) and has nothing else to do."
    fit, filled = _head(title, "fit"), False
    title = "For the spare flash: fill the drive, overwrite it, measure. This takes hours."
    steady = _head(title, "steady")
    for prepare in (_FILL, _OVERWRITE):
        steady += _section({**prepare, "size": "100%", "loops": "2"})
    for name, options in TABLE.items():
        if name.startswith(STEADY):
            steady += _section(options) + _TIMED.format(size="100%", seconds=4 * seconds)
        else:
            if not (name.startswith(EMPTY) or filled):
                fit, filled = fit + _section({**_FILL, "size": size}), True
            fit += _section(options) + _TIMED.format(size=size, seconds=seconds)
    return {"fit.fio": fit, "steady.fio": steady}


def _head(title: str, name: str) -> str:
    shared = "\n".join(f"{key}={value}" for key, value in _SHARED.items())
    return _HEAD.format(title=title, name=name, shared=shared)


def _section(options: Mapping[str, str]) -> str:
    lines = [f"{key}={value}" for key, value in options.items() if key != "name"]
    return "\n".join(["", f"[{options['name']}]", *lines, ""])


def read(paths: Iterable[Path]) -> list[Measurement]:
    """The measurements in files of fio's JSON output, but those of jobs that only prepare. Raises
    TimingError for what is none, and for a job that failed or is there twice."""
    found: dict[str, Measurement] = {}
    whence: dict[str, Path] = {}
    for path in paths:
        for measurement in _measurements(path, _document(path)):
            name = measurement.job.name
            if name in whence:
                where = f"in {whence[name]} and {path}" if whence[name] != path else f"in {path}"
                raise TimingError(
                    f"job {name} is twice {where}: leave one out, or use group_reporting"
                )
            found[name], whence[name] = measurement, path
    return list(found.values())


def _document(path: Path) -> Mapping[str, Any]:
    """fio's document, which its warnings may precede."""
    with restated(OSError, f"{path} cannot be read", TimingError), path.open("rb") as file:
        data = file.read(LARGEST_RESULT + 1)
    if not data.strip():
        raise TimingError(f"{path} is empty: fio may have been stopped before it wrote its results")
    if len(data) > LARGEST_RESULT:
        raise TimingError(f"{path} is larger than any result of fio")
    try:
        text = data.decode()
        start = re.search(r"^\s*\{", text, re.MULTILINE)
        document = json.loads(text[start.start() :] if start else text)
    except (ValueError, RecursionError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise TimingError(
            f"{path} is no JSON ({reason}); run fio with --output-format=json"
        ) from None
    if not (isinstance(document, dict) and isinstance(document.get("jobs"), list)):
        raise TimingError(f"{path} has no jobs of fio; run fio with --output-format=json")
    if not str(document.get("fio version", "")).startswith("fio"):
        raise TimingError(
            f"{path} does not name a version of fio: another tool may have written it"
        )
    return document


def _measurements(path: Path, document: Mapping[str, Any]) -> Iterator[Measurement]:
    for entry in document["jobs"]:
        name = entry.get("jobname") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise TimingError(f"{path} has a job without a name")
        if name not in PREPARING:
            try:
                yield _measurement(name, entry, _mapping(document.get("global options")))
            except ValueError as error:
                raise TimingError(f"{path}: job {name} {error}") from None
            except (TypeError, OverflowError):
                raise TimingError(f"{path}: job {name} is damaged: a number is none") from None


def _measurement(name: str, entry: Mapping[str, Any], shared: Mapping[str, Any]) -> Measurement:
    if entry.get("error"):
        raise ValueError(f"failed with error {entry['error']}; run it again")
    own = _mapping(entry.get("job options"))
    # fio before 2.17 writes no options.
    options = {**shared, **own} if own else {**_SHARED, **TABLE.get(name, {})}
    if "rw" not in options and "readwrite" not in options:
        raise ValueError("has no options; run it by fio 3, or name it as `--jobs` does")
    job = _job(name, options)
    found = {
        kind: _latencies(_mapping(entry.get(kind)), kind) if share else None
        for kind, share in (("read", job.reads), ("write", 1 - job.reads))
    }
    return Measurement(job, found["read"], found["write"])


_RW = {
    "read": (False, 1), "write": (False, 0), "randread": (True, 1), "randwrite": (True, 0),
    "rw": (False, None), "readwrite": (False, None), "randrw": (True, None),
}  # fmt: skip
_DIRECT = ("spdk", "io_uring_cmd", "nvme", "xnvme")
"""Engines without a page cache."""
_SYNCHRONOUS = ("psync", "sync", "vsync", "pvsync", "pvsync2", "mmap")
_REFUSED = (
    "bssplit", "bsrange", "rate", "rate_iops", "random_distribution", "percentage_random",
    "zonemode", "verify", "fsync", "fdatasync", "sync", "rwmixwrite", "thinktime_iotime",
)  # fmt: skip
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS = {"": 1e-6, "us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "s": 1.0}


def _job(name: str, options: Mapping[str, Any]) -> Job:
    """The job of these options. Raises ValueError with the rest of a sentence."""
    given = {str(key): str(value) for key, value in options.items()}
    for key in _REFUSED:
        if key in given:
            raise ValueError(f"has the option {key}, which has no model")
    rw = given.get("rw", given.get("readwrite", ""))
    if rw not in _RW:
        raise ValueError(f"has rw={rw}; only {', '.join(_RW)} have a model")
    engine = given.get("ioengine", "psync")
    if given.get("direct", "0") != "1" and not engine.startswith(_DIRECT):
        raise ValueError("went through the page cache; run it with direct=1")
    random, share = _RW[rw]
    depth = 1 if engine in _SYNCHRONOUS else _count(given, "iodepth")
    depth *= _count(given, "numjobs")
    size = _number(given.get("bs", given.get("blocksize", "4k")), "bs", _UNITS)
    pages, rest = divmod(int(size), PAGE)
    if rest or not pages:
        raise ValueError(f"has bs={given.get('bs')}, which is no multiple of {PAGE} bytes")
    if not 1 <= depth * pages <= MOST_FLYING:
        raise ValueError("has more than 64 MiB in flight, or nothing")
    mixed = _number(given.get("rwmixread", "50"), "rwmixread", {"": 0.01})
    pause = _number(given.get("thinktime", "0"), "thinktime", _SECONDS)
    burst = _count(given, "thinktime_blocks")
    if not (mixed <= 1 and pause <= LONGEST and 1 <= burst <= MOST_BURST):
        raise ValueError("has an rwmixread, thinktime or thinktime_blocks beyond all sense")
    return Job(
        name, random, mixed if share is None else share, pages, depth, int(pause * 1e9), burst
    )


def _count(given: Mapping[str, str], key: str) -> int:
    return int(_number(given.get(key, "1"), key, {"": 1}))


def _number(text: str, key: str, units: Mapping[str, float]) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]*)", text.strip().lower())
    unit = match[2] if match else ""
    if unit not in units:
        unit = unit.removesuffix("b").removesuffix("i")
    if match is None or unit not in units:
        raise ValueError(f"has {key}={text}, which is not one number")
    return float(match[1]) * units[unit]


def _latencies(side: Mapping[str, Any], kind: str) -> Latencies:
    """The latencies of one direction. Raises ValueError with the rest of a sentence."""
    if not side.get("total_ios", side.get("io_bytes", 0)):
        raise ValueError(f"has completed no {kind}")
    for key, factor in (("clat_ns", 1), ("lat_ns", 1), ("clat", 1000), ("lat", 1000)):
        found = _mapping(side.get(key))
        listed = _mapping(found.get("percentile"))
        if not listed:
            continue
        percentiles = {float(name): float(value) * factor for name, value in listed.items()}
        mean = float(found.get("mean", 0)) * factor
        values: Sequence[float] = (mean, *percentiles.values())
        if not all(0 < value <= LONGEST * 1e9 for value in values):
            raise ValueError(f"has a {kind} latency of 0, below it, or beyond all sense")
        if not {50.0, 99.0} <= set(percentiles):
            raise ValueError("has no percentiles 50 and 99; leave percentile_list as it is")
        return Latencies(mean, dict(sorted(percentiles.items())))
    raise ValueError(f"has no percentiles of {kind}s; run it without gtod_reduce and disable_clat")


def _mapping(value: Any) -> Mapping[str, Any]:
    """The value, if it is a mapping; an empty one if there is none. Raises ValueError."""
    if value is not None and not isinstance(value, dict):
        raise ValueError("is damaged: something else is where an object has to be")
    return value or {}

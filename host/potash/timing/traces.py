"""Traces of block requests, in the forms in which tools and public collections have them.

| form | lines |
|---|---|
| MSR Cambridge | `time in 100 ns,host,disk,Read or Write,offset,bytes,response time` |
| Alibaba | `device,R or W,offset,bytes,time in µs` |
| Tencent | `time in s,sector,sectors,0 to read or 1 to write,volume` |
| FIU | `time in ns, process ID, process, sector, sectors, W or R, device, hash` |
| blkparse | `device CPU number seconds process action kind sector + sectors` |
| blktrace | binary records (`struct blk_io_trace`) |
| fio's iolog | version 2: `file action offset bytes`; version 3: the same after a time in µs |

A sector has 512 bytes. Each may be compressed (.gz). Of blkparse and blktrace, requests are the
events of queueing (Q), or of issue to the driver (D) where there are none.
"""

import gzip
import re
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import IO, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from potash.sdk.errors import PotashError
from potash_device.flash.profile import PAGE
from potash_firmware.ftl.requests import REQUEST, Op

T = TypeVar("T")

SECTOR = 512
MICROSECOND = 1000
_LARGEST = 1 << 61
"""Maximum of nanoseconds (73 years) and of bytes, so that sums of them fit into 64 bits."""
_LINE = np.dtype(
    [
        ("time", np.int64),
        ("op", np.int64),
        ("offset", np.int64),
        ("size", np.int64),
        ("fua", np.int64),
    ]
)
"""A request: nanoseconds, an `Op`, bytes, and whether it has FUA."""

_Line = tuple[int, Op, int, int, bool]


class TimingError(PotashError):
    """A profile, a policy or a trace that cannot be used; the sentence says why."""


class Trace(NamedTuple):
    """The requests of a trace on a drive."""

    form: str
    requests: NDArray[np.void]
    folded: int
    """Requests whose address is beyond the drive's end, which begin again at its start."""
    split: int
    """Requests that cross the drive's end, which are two."""


def load(path: Path, logical_pages: int, faster: float = 1.0) -> Trace:
    """The requests of a trace, as they arrive on a drive of so many pages; `faster` divides times.
    Raises TimingError for what is no trace."""
    try:
        form, lines = _read(path)
        if not len(lines):
            raise TimingError(f"{path} has no requests")
        return _on_drive(form, lines, logical_pages, faster)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TimingError(f"{path} cannot be read: {reason}") from None
    except UnicodeDecodeError:
        raise TimingError(f"{path} is not a trace in a known format: it is not text") from None
    except (ValueError, IndexError) as error:
        reason = str(error).split(";")[0]
        raise TimingError(f"{path} is not a trace in a known format: {reason}") from None


def _on_drive(form: str, lines: NDArray[np.void], pages: int, faster: float) -> Trace:
    """Requests, extended to whole pages; or reduced to them, where they are TRIM."""
    lines = lines[np.argsort(lines["time"], kind="stable")]
    found = np.zeros(len(lines), REQUEST)
    times = (lines["time"] - lines["time"].min()) // faster
    if times.max() > _LARGEST:
        raise ValueError("a number is too large (time)")
    found["time"] = times
    found["op"], found["fua"] = lines["op"], lines["fua"]
    first, end = lines["offset"] // PAGE, -(-(lines["offset"] + lines["size"]) // PAGE)
    trims = lines["op"] == Op.TRIM
    first[trims] = -(-lines["offset"][trims] // PAGE)
    end[trims] = (lines["offset"][trims] + lines["size"][trims]) // PAGE
    flushes = lines["op"] == Op.FLUSH
    first[flushes] = end[flushes] = 0
    folded = int((first >= pages).sum())
    found["first"], found["count"] = first % pages, np.minimum(end - first, pages)
    found = found[(found["count"] > 0) | flushes]
    over = found["first"] + found["count"] - pages
    rest = found[over > 0].copy()
    found["count"] -= np.maximum(over, 0)
    rest["first"], rest["count"] = 0, over[over > 0]
    every = np.concatenate([found, rest])
    return Trace(form, every[np.argsort(every["time"], kind="stable")], folded, len(rest))


# Forms of traces.


def _read(path: Path) -> tuple[str, NDArray[np.void]]:
    with path.open("rb") as plain, _opened(plain, path) as file:
        start = file.read(4)
        file.seek(0)
        for order in "<>":
            if _is_record(start, order):
                return "blktrace", _array(_chosen(_blktrace(file, order)))
        line = file.readline().decode()
        file.seek(0)
        if match := re.match(r"fio version ([23]) iolog", line):
            return "fio", _array(_numbered(file, _fio(match[1])))
        if _BLKPARSE.match(line):
            return "blkparse", _array(_chosen(_numbered(file, _blkparse)))
    return _table(path, line)


def _opened(file: IO[bytes], path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(file)) if path.suffix == ".gz" else file


def _array(lines: Iterable[_Line]) -> NDArray[np.void]:
    try:
        found = np.fromiter(lines, _LINE)
    except OverflowError:
        raise ValueError("a number is too large") from None
    _require(found)
    return found


def _require(lines: NDArray[np.void]) -> None:
    """Raises ValueError for a request that no drive can have."""
    if lines["time"].min(initial=0) < 0:
        raise ValueError("a number is negative (time)")
    for name in ("time", "offset", "size"):
        if lines[name].max(initial=0) > _LARGEST:
            raise ValueError(f"a number is too large ({name})")
    flushes = lines["op"] == Op.FLUSH
    bad = (lines["op"] < 0) | (lines["offset"] < 0) | ((lines["size"] < 1) & ~flushes)
    if bad.any():
        at = int(np.argmax(bad)) + 1
        raise ValueError(f"request {at} is not a read or write of one byte or more")


class _Form(NamedTuple):
    """A table: its columns of time, kind, offset and size, nanoseconds of a tick, bytes of a unit,
    and the kinds of reads and of writes."""

    name: str
    delimiter: str | None
    columns: tuple[int, int, int, int]
    tick: int
    unit: int
    kinds: str = "RW"


_MSR = _Form("MSR", ",", (0, 3, 4, 5), 100, 1)
_ALIBABA = _Form("Alibaba", ",", (4, 1, 2, 3), MICROSECOND, 1)
_TENCENT = _Form("Tencent", ",", (0, 3, 1, 2), 10**9, SECTOR, "01")
_FIU = _Form("FIU", None, (0, 5, 3, 4), 1, SECTOR)
_CELL = np.dtype([("time", np.int64), ("op", "U1"), ("offset", np.int64), ("size", np.int64)])


def _table(path: Path, line: str) -> tuple[str, NDArray[np.void]]:
    form, cells = _FIU, line.strip().split(",")
    if len(cells) > 5:
        form = _MSR
    elif len(cells) > 1:
        form = _ALIBABA if cells[1].upper() in ("R", "W") else _TENCENT
    # It opens files that end in .gz itself, and reads them faster than it reads Python's.
    with warnings.catch_warnings(action="ignore"):  # of a file without data
        found = np.loadtxt(
            path, _CELL, comments=None, delimiter=form.delimiter, usecols=form.columns, ndmin=1
        )
    if found["time"].min(initial=0) < 0:
        raise ValueError("a number is negative (time)")
    # A Windows time has more nanoseconds than 64 bits.
    found["time"] -= found["time"].min(initial=np.iinfo(np.int64).max)
    for name, unit in (("time", form.tick), ("offset", form.unit), ("size", form.unit)):
        if found[name].max(initial=0) > _LARGEST // unit:
            raise ValueError(f"a number is too large ({name})")
        found[name] *= unit
    lines = np.zeros(len(found), _LINE)
    for name in ("time", "offset", "size"):
        lines[name] = found[name]
    reads, writes = (np.char.upper(found["op"]) == kind for kind in form.kinds)
    lines["op"] = np.where(reads, Op.READ, np.where(writes, Op.WRITE, -1))
    _require(lines)
    return form.name, lines


def _numbered(file: IO[bytes], parse: Callable[[str], T | None]) -> Iterator[T]:
    """The meanings of lines. Raises ValueError, which names the line."""
    for number, line in enumerate(file, 1):
        try:
            found = parse(line.decode())
        except (ValueError, IndexError, KeyError):
            raise ValueError(f"line {number} is {line[:60]!r}") from None
        if found is not None:
            yield found


_FIO = {
    "read": Op.READ,
    "write": Op.WRITE,
    "trim": Op.TRIM,
    **dict.fromkeys(("sync", "datasync", "sync_file_range"), Op.FLUSH),
}


def _fio(version: str) -> Callable[[str], _Line | None]:
    """A reader of lines; that of version 2 adds up the times that a host waits."""
    waited = 0

    def parse(line: str) -> _Line | None:
        nonlocal waited
        cells = line.split()
        if cells[:1] == ["fio"]:
            return None
        time = waited if version == "2" else int(cells.pop(0)) * MICROSECOND
        action = cells[1]
        if action in ("add", "open", "close"):
            return None
        if action == "wait":
            waited += int(cells[2]) * MICROSECOND
            return None
        op = _FIO[action]
        offset, size = (0, 0) if op is Op.FLUSH else map(int, cells[2:4])
        return time, op, offset, size, False

    return parse


# Linux, block/blktrace.c and include/uapi/linux/blktrace_api.h; blkparse's default format.

_RECORD = "IIQQIIIIIHH"
"""Magic and version, number, ns, sector, bytes, action, process, device, CPU, error, bytes that
follow."""
_MAGIC = 0x65617400
_CATEGORIES = 16
"""The bit of an action at which its categories begin."""
_WRITES, _FLUSHES, _NOTIFIES, _DISCARDS, _FUA = (1 << bit for bit in (1, 2, 10, 13, 15))
_EVENTS = {1: "Q", 7: "D"}
_KINDS = {"D": Op.TRIM, "W": Op.WRITE, "R": Op.READ}
_BLKPARSE = re.compile(
    r"\s*\d+,\d+\s+\d+\s+\d+\s+(\d+)\.(\d{9})\s+\d+\s+(\w+)\s+(\w+)(?:\s+(\d+) \+ (\d+))?"
)


_Event = tuple[str, _Line]
"""Q or D, and the request."""


def _blkparse(line: str) -> _Event | None:
    match = _BLKPARSE.match(line)
    if match is None:
        if line[:1].isdigit() or re.match(r"\s+\d+,\d", line):
            raise ValueError
        return None  # of the summary at the end
    seconds, nanoseconds, action, kind, sector, sectors = match.groups()
    if action not in _EVENTS.values():
        return None
    time = int(seconds) * 10**9 + int(nanoseconds)
    if sector is None:
        return (action, (time, Op.FLUSH, 0, 0, False)) if "F" in kind else None
    op = next((op for letter, op in _KINDS.items() if letter in kind), None)
    if op is None:
        return None
    fua = op is Op.WRITE and "F" in kind[kind.index("W") :]
    return action, (time, op, int(sector) * SECTOR, int(sectors) * SECTOR, fua)


def _blktrace(file: IO[bytes], order: str) -> Iterator[_Event]:
    record = struct.Struct(order + _RECORD)
    for number in count(1):
        data = file.read(record.size)
        if not data:
            return
        if len(data) < record.size or not _is_record(data, order):
            raise ValueError(f"record {number} is damaged")
        _, _, time, sector, size, action, _, _, _, _, length = record.unpack(data)
        if len(file.read(length)) < length:
            raise ValueError(f"record {number} is damaged")
        kinds, event = action >> _CATEGORIES, _EVENTS.get(action & 0xFF)
        if event is None or kinds & _NOTIFIES:
            continue
        if size:
            op = Op.TRIM if kinds & _DISCARDS else Op.WRITE if kinds & _WRITES else Op.READ
            yield event, (time, op, sector * SECTOR, size, bool(kinds & _FUA))
        elif kinds & _FLUSHES:
            yield event, (time, Op.FLUSH, 0, 0, False)


def _is_record(data: bytes, order: str) -> bool:
    return len(data) >= 4 and struct.unpack(f"{order}I", data[:4])[0] & ~0xFF == _MAGIC


def _chosen(events: Iterator[_Event]) -> list[_Line]:
    """The requests that were queued, or that were issued if there are none."""
    found: dict[str, list[_Line]] = {action: [] for action in _EVENTS.values()}
    for action, line in events:
        found[action].append(line)
    return found["Q"] or found["D"]

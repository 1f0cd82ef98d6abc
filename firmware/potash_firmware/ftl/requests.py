"""Requests of a host to a drive, and counters of what they cause."""

from collections.abc import Callable
from enum import IntEnum
from heapq import heapreplace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash_device.flash.profile import Profile


class Op(IntEnum):
    """Kinds of requests. Write Zeroes is a TRIM, as the drive deallocates; FORMAT is also what
    Sanitize by block or crypto erase comes to; CLOSE has a stream begin another superblock; RESET
    erases a zone's superblocks, and FINISH fills the one that it has open. WRITE_AREA writes to the
    random write area of a zone, which is in memory, and COMMIT programs pages from there."""

    READ = 0
    WRITE = 1
    TRIM = 2
    FLUSH = 3
    FORMAT = 4
    CLOSE = 5
    RESET = 6
    FINISH = 7
    WRITE_AREA = 8
    COMMIT = 9


REQUEST = np.dtype(
    [
        ("time", np.int64),
        ("op", np.int64),
        ("first", np.int64),
        ("count", np.int64),
        ("stream", np.int64),
        ("fua", np.int64),
    ]
)
"""Nanoseconds at which the doorbell rings, in ascending order; an `Op`; the first logical page and
how many, 0 from FLUSH to FINISH; the stream of a WRITE or CLOSE; whether it has FUA.

For requests of zones, the stream is `frontiers` of the profile and the
number that the zone has while it has superblocks; numbers are less than `superblocks`."""
COLUMNS = 6
"""Number of these columns."""

LATEST = 1 << 62
"""ns: no request comes later than in 146 years, so that what follows fits into 64 bits."""

WORN = -1
"""In the place of a completion time: a write that a drive at its end of life refuses."""
FAILED = -2
"""In the place of a completion time: a request on the way of which a policy failed."""


class RequestError(ValueError):
    """A request that the drive does not have; a sentence."""


class Counters(NamedTuple):
    """Counters inside the drive, in pages of 4 KiB unless stated otherwise."""

    host: int
    """Written by the host."""
    relocated: int
    """Written by garbage collection and wear levelling."""
    translation: int
    """Written from the cache of the mapping."""
    padding: int
    """Left empty, where FUA or Flush programs a unit that is not full."""
    senses: int
    """Reads of rows."""
    programs: int
    """Programs of units."""
    erased: int
    """Superblocks."""
    hits: int
    """Hits, and misses, of the mapping's cache."""
    misses: int
    suspensions: int
    die_ns: int
    """Busy time of all dies together."""
    bus_ns: int
    """Busy time of all channels together."""
    link_ns: int
    """Busy time of both directions together."""
    core_ns: int
    """Busy time of all firmware cores together."""
    retries: int = 0
    """Retries of reads of rows."""
    uncorrectable: int = 0
    """Reads of rows whose errors were too many for all retries."""
    folded: int = 0
    """Relocated from the SLC cache, or the SLC buffer of zones; counted in `relocated`, too."""
    refreshed: int = 0
    """Relocated as their data had become old, or had been read often; likewise."""
    lost: int = 0
    """Pages that could not be read when they were to be relocated."""
    read_hits: int = 0
    """Reads of pages on flash that the read cache had, and those that it had not."""
    read_misses: int = 0
    copied: int = 0
    """Relocated within their dies (copy back); counted in `relocated`, too."""
    slc_programs: int = 0
    """Programs of units in SLC mode; counted in `programs`, too."""
    area_writes: int = 0
    """Written to random write areas of zones; counted in `host`, too."""
    commits: int = 0
    """Programmed from these areas."""

    def since(self, before: "Counters") -> "Counters":
        """The counts since an earlier time."""
        return Counters(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def programmed(self) -> int:
        """Pages, for the host or by the drive itself, with padding."""
        kept = self.host - self.area_writes + self.commits
        return kept + self.relocated + self.translation + self.padding

    @property
    def write_amplification(self) -> float:
        """Pages programmed for each that the host wrote; 0 before any."""
        return self.programmed / self.host if self.host else 0.0


class StreamCounters(NamedTuple):
    """Counters of a stream, which may be a placement handle, in pages of 4 KiB."""

    host: int
    """Written by the host."""
    relocated: int
    """Written by garbage collection, wear levelling and folding, of pages that it wrote."""
    padding: int

    @property
    def media(self) -> int:
        """Programmed."""
        return sum(self)

    @property
    def write_amplification(self) -> float:
        """Pages programmed for each that the host wrote; 0 before any."""
        return self.media / self.host if self.host else 0.0


def problem_of(
    profile: Profile, now: int, time: int, op: int, first: int, count: int, stream: int
) -> str | None:
    """The reason why the drive cannot have a request, as for `check`; None if it can."""
    if not Op.READ <= op <= Op.COMMIT:
        return "is of no kind that a drive knows"
    if time < now:
        return "comes before the one before it"
    if time > LATEST:
        return "comes in more than 146 years"
    if op < Op.FLUSH or op > Op.FINISH:
        if count < 1 or first < 0:
            return "has no pages"
        if first + count > profile.logical_pages:
            return f"ends behind the drive's {profile.logical_pages} pages"
    quick = op < Op.RESET and 0 <= stream < profile.streams
    if not (quick or _names_stream(profile, op, stream)):
        return f"names none of the drive's {profile.streams} streams, and no zone"
    return None


def _names_stream(profile: Profile, op: Any, stream: Any) -> Any:
    """True for a stream, or for a zone, that a request of a kind can name; arrays or numbers."""
    zone = stream - profile.frontiers
    of_zone = (zone >= 0) & (zone < profile.superblocks)
    of_stream = (stream >= 0) & (stream < profile.streams)
    return (of_zone & ((op <= Op.WRITE) | (op >= Op.RESET))) | (of_stream & (op < Op.RESET))


def in_closed_loop(
    requests: NDArray[np.void],
    flying: NDArray[np.int64],
    serve: Callable[[int, tuple[int, ...]], int],
) -> NDArray[np.int64]:
    """Completions where each request arrives when one in flight completes, as for
    `Ftl.closed_loop`; `serve` is given its arrival and its columns."""
    heap, times, completions = flying.tolist(), list[int](), list[int]()
    try:
        for columns in requests.tolist():
            times.append(heap[0])
            completions.append(serve(heap[0], columns))
            heapreplace(heap, max(completions[-1], heap[0]))
    finally:
        flying[:], requests["time"][: len(times)] = heap, times
    return np.array(completions, np.int64)


def check(profile: Profile, requests: NDArray[np.void], now: int) -> None:
    """Raises RequestError for the first kind of request that the drive cannot have."""
    op, first, count = requests["op"], requests["first"], requests["count"]
    whole = (op >= Op.FLUSH) & (op <= Op.FINISH)
    for wrong, problem in (
        ((op < Op.READ) | (op > Op.COMMIT), "is of no kind that a drive knows"),
        (np.diff(requests["time"], prepend=now) < 0, "comes before the one before it"),
        (requests["time"] > LATEST, "comes in more than 146 years"),
        (~whole & ((count < 1) | (first < 0)), "has no pages"),
        (
            ~whole & ((first >= profile.logical_pages) | (count > profile.logical_pages - first)),
            f"ends behind the drive's {profile.logical_pages} pages",
        ),
        (
            ~_names_stream(profile, op, requests["stream"]),
            f"names none of the drive's {profile.streams} streams, and no zone",
        ),
    ):
        if wrong.any():
            raise RequestError(f"request {int(np.argmax(wrong))} {problem}")

"""Named points that a command passes on its way, for whoever wants to watch.

A point is written where it stands as

    if trace.sink is not None:
        trace.sink("rpu.fetch", {"qid": 1, "cid": 7})

so that one that nobody watches costs an attribute test and builds nothing.

Beside that the firmware notes in `recent` what it was asked last, watched or not, where that costs
nothing that can be measured: not on the short way of reads and writes.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

Sink = Callable[[str, Mapping[str, object]], None]
"""Takes a point's name and what is known there."""

RECENT_LIMIT = 256


class Note(NamedTuple):
    """A command that was fetched, or answered: `what` is its entry, or its status and dword 0."""

    time: float
    point: str
    qid: int
    cid: int
    what: tuple[int, ...]


class Trace:
    """The points of one device; `sink` is None while nobody watches."""

    def __init__(self) -> None:
        self.sink: Sink | None = None
        self.recent: deque[Note] = deque(maxlen=RECENT_LIMIT)
        """The newest notes, for telemetry."""

"""Named points that a command passes on its way, for whoever wants to watch.

A point is written where it stands as

    if trace.sink is not None:
        trace.sink("rpu.fetch", {"qid": 1, "cid": 7})

so that one that nobody watches costs an attribute test and builds nothing.
"""

from collections.abc import Callable, Mapping

Sink = Callable[[str, Mapping[str, object]], None]
"""Takes a point's name and what is known there."""


class Trace:
    """The points of one device; `sink` is None while nobody watches."""

    def __init__(self) -> None:
        self.sink: Sink | None = None

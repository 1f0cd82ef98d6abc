"""Traces as a viewer reads them, by the format's own document and nothing of the writer's."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]

TOLERANCE = 1e-3
"""Microseconds: what rounding to nanoseconds may do to an end."""


@dataclass(frozen=True)
class Slice:
    """A slice on a track; times in microseconds."""

    process: str
    track: str
    name: str
    begin: float
    end: float
    args: dict[str, Any]

    def holds(self, other: Slice) -> bool:
        return self.begin <= other.begin and other.end <= self.end + TOLERANCE


class Viewed:
    """A trace, its slices in the order in which they begin."""

    def __init__(self, path: Path) -> None:
        self.document = json.loads(path.read_bytes())
        self.events: list[Event] = self.document["traceEvents"]
        meta = [event for event in self.events if event["ph"] == "M"]
        self.processes = {
            event["pid"]: event["args"]["name"] for event in meta if event["name"] == "process_name"
        }
        self.tracks = {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in meta
            if event["name"] == "thread_name"
        }
        self.slices = self._slices()

    def named(self, name: str, process: str = "", track: str = "") -> list[Slice]:
        """The slices of that name, of processes and tracks that begin so."""
        return [
            one
            for one in self.slices
            if one.name == name and one.process.startswith(process) and one.track.startswith(track)
        ]

    def one(self, name: str, process: str = "", track: str = "") -> Slice:
        (found,) = self.named(name, process, track)
        return found

    def instants(self, track: str) -> list[str]:
        return [
            event["name"]
            for event in self.events
            if event["ph"] == "i" and self.tracks[event["pid"], event["tid"]] == track
        ]

    def _slices(self) -> list[Slice]:
        found = []
        open_: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
        for event in self.events:
            key = (event["pid"], event.get("tid", 0))
            if event["ph"] == "X":
                found.append(self._slice(event, event["ts"] + event["dur"], event["args"]))
            elif event["ph"] == "B":
                open_[key].append(event)
            elif event["ph"] == "E":
                found.append(self._slice(open_[key].pop(), event["ts"], event["args"]))
        assert not any(open_.values()), "something begins and does not end"
        return sorted(found, key=lambda one: (one.begin, -one.end))

    def _slice(self, event: Event, end: float, args: dict[str, Any]) -> Slice:
        process, track = self.processes[event["pid"]], self.tracks[event["pid"], event["tid"]]
        return Slice(process, track, event["name"], event["ts"], end, args)

    def check_nesting(self) -> None:
        """On each track a slice lies in another one or beside it."""
        stacks: defaultdict[tuple[str, str], list[Slice]] = defaultdict(list)
        for one in self.slices:
            assert one.end >= one.begin
            stack = stacks[one.process, one.track]
            while stack and stack[-1].end <= one.begin + TOLERANCE:
                stack.pop()
            assert not stack or stack[-1].holds(one), (stack[-1], one)
            stack.append(one)

    def check_arrows(self) -> None:
        """Each arrow that arrives has left before, and both of its ends are in slices."""
        left = {event["id"]: event for event in self.events if event["ph"] == "s"}
        arrived = [event for event in self.events if event["ph"] == "f"]
        assert len({event["id"] for event in arrived}) == len(arrived)
        begins: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        latest: defaultdict[tuple[str, str], list[float]] = defaultdict(list)  # end up to each
        for one in self.slices:
            begins[one.process, one.track].append(one.begin)
            ends = latest[one.process, one.track]
            ends.append(max(one.end, ends[-1]) if ends else one.end)
        for event in arrived:
            start = left[event["id"]]
            assert start["ts"] <= event["ts"] + TOLERANCE
            for end in (start, event):
                track = self.processes[end["pid"]], self.tracks[end["pid"], end["tid"]]
                count = bisect_right(begins[track], end["ts"] + TOLERANCE)
                assert count and end["ts"] <= latest[track][count - 1] + TOLERANCE, end

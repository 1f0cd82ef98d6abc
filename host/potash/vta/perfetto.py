"""A stream's run as a trace that the Perfetto viewer (ui.perfetto.dev) and chrome://tracing open.

In Chrome's JSON trace-event format: a track for the fetch, for each module and for each memory
channel, an arrow for each token, and how many wait in each queue. The format counts microseconds
and some readers cut off fractions, so a cycle is shown as one microsecond.

Source: "Trace Event Format" (the Chromium project).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from potash_device.vta.isa import Stage
from potash_device.vta.timing.result import Kind, Timing
from potash_device.vta.timing.tokens import QUEUES, Token, tokens

PROCESS = 1
FETCH, READS, WRITES = "fetch", "DRAM reads", "DRAM writes"
TRACKS = (FETCH, *(stage.name for stage in Stage), READS, WRITES)
"""From the top; a track's number is its place here and one more."""

Event = dict[str, Any]


def document(timing: Timing, texts: Sequence[str]) -> bytes:
    """The trace as JSON. `texts` says each instruction in words."""
    clock = timing.parameters.clock / 1e6
    trace = {
        "displayTimeUnit": "ns",
        "otherData": {"cycles": timing.cycles, "clock_mhz": clock},
        "traceEvents": [
            _named("process_name", 0, f"VTA at {clock:g} MHz, a cycle as 1 µs"),
            *(_named("thread_name", _track(name), name) for name in TRACKS),
            *(_sorted(_track(name)) for name in TRACKS),
            *events(timing, texts),
        ],
    }
    return json.dumps(trace, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def events(timing: Timing, texts: Sequence[str]) -> Iterator[Event]:
    """What happens on the tracks, times in cycles: slices, tokens, and how many there are."""
    yield from slices(timing, texts)
    yield from _arrows(tokens(timing))
    yield from _counts(tokens(timing))


def slices(timing: Timing, texts: Sequence[str]) -> Iterator[Event]:
    """What each track shows, each slice before those that lie in it."""
    for instruction in timing:
        text = texts[instruction.index]
        about = {"instruction": instruction.index, "text": text}
        moments, facts = instruction.moments, instruction.facts
        yield _slice(FETCH, "fetch", "fetch", instruction.fetching, moments.fetched, about)
        track = Stage(facts.stage).name
        for stall in instruction.waits:
            yield _slice(track, f"waits: {stall.reason}", "stall", stall.begin, stall.end, about)
        yield _slice(track, Kind(facts.kind).name, "work", moments.start, moments.end, about)
        for stall in instruction.delays:
            yield _slice(track, f"waits: {stall.reason}", "stall", stall.begin, stall.end, about)
        if facts.beats:
            channel = WRITES if facts.kind == Kind.OUT else READS
            end = moments.granted + facts.beats
            detail = {**about, "bytes": facts.size}
            yield _slice(channel, Kind(facts.kind).name, "dma", moments.granted, end, detail)


def _slice(track: str, name: str, category: str, begin: int, end: int, about: Event) -> Event:
    return {
        "ph": "X",
        "pid": PROCESS,
        "tid": _track(track),
        "name": name,
        "cat": category,
        "ts": begin,
        "dur": end - begin,
        "args": about,
    }


def _arrows(found: Sequence[Token]) -> Iterator[Event]:
    """From the last cycle of the slice that gives a token to the first of the one that takes it."""
    for number, token in enumerate(found):
        if token.taker is None:
            continue
        giver, taker = token.queue
        name = f"{giver.name} to {taker.name}"
        shared = {"pid": PROCESS, "name": name, "cat": "token", "id": number}
        yield {"ph": "s", "tid": _track(giver.name), "ts": token.given - 1, **shared}
        yield {"ph": "f", "bp": "e", "tid": _track(taker.name), "ts": token.taken, **shared}


def _counts(found: Sequence[Token]) -> Iterator[Event]:
    for queue in QUEUES:
        name = f"tokens {queue[0].name} to {queue[1].name}"
        steps: dict[int, int] = {0: 0}
        for token in found:
            if token.queue == queue:
                steps[token.given] = steps.get(token.given, 0) + 1
                if token.taker is not None:
                    steps[token.taken] = steps.get(token.taken, 0) - 1
        count = 0
        for time in sorted(steps):
            count += steps[time]
            yield {
                "ph": "C",
                "pid": PROCESS,
                "name": name,
                "ts": time,
                "args": {"tokens": count},
            }


def _track(name: str) -> int:
    return TRACKS.index(name) + 1


def _named(what: str, track: int, name: str) -> Event:
    return {"ph": "M", "pid": PROCESS, "tid": track, "name": what, "args": {"name": name}}


def _sorted(track: int) -> Event:
    return {
        "ph": "M",
        "pid": PROCESS,
        "tid": track,
        "name": "thread_sort_index",
        "args": {"sort_index": track},
    }

"""A stream's run on a document's tracks: the fetch, each module and each memory channel, an arrow
for each token, and how many wait in each queue."""

from collections.abc import Callable, Sequence
from typing import BinaryIO

from potash.tracing.document import Document
from potash_device.vta.isa import Stage
from potash_device.vta.timing.result import QUEUES, Kind, Timing, Token, tokens

PROCESS = 1
FETCH, READS, WRITES = "fetch", "DRAM reads", "DRAM writes"
TRACKS = (FETCH, *(stage.name for stage in Stage), READS, WRITES)
"""Tracks from the top."""

Moment = Callable[[int], float]
"""A function from a cycle to its time on the document's clock."""


def write(file: BinaryIO, timing: Timing, texts: Sequence[str]) -> None:
    """One stream as a trace; a cycle is shown as one microsecond, as some readers cut off
    fractions.

    `texts` says each instruction in words.
    """
    clock = timing.parameters.clock / 1e6
    about = {"cycles": timing.cycles, "clock_mhz": clock}
    document = Document(file, 0, about, scale=1)
    document.name_process(PROCESS, f"VTA at {clock:g} MHz, a cycle as 1 µs", 0)
    for place, track in enumerate(TRACKS):
        document.sort_track(PROCESS, track, place)
    show(document, PROCESS, timing, texts, lambda cycle: cycle)
    document.close()


def show(
    document: Document, process: int, timing: Timing, texts: Sequence[str], at: Moment
) -> None:
    """Each slice before those that lie in it, tokens, and how many there are."""

    def bar(
        track: str, name: str, category: str, begin: int, end: int, about: dict[str, object]
    ) -> None:
        document.slice(process, track, name, at(begin), at(end), category=category, about=about)

    for instruction in timing:
        about: dict[str, object] = {
            "instruction": instruction.index,
            "text": texts[instruction.index],
        }
        moments, facts = instruction.moments, instruction.facts
        bar(FETCH, "fetch", "fetch", instruction.fetching, moments.fetched, about)
        track = Stage(facts.stage).name
        for stall in instruction.waits:
            bar(track, f"waits: {stall.reason}", "stall", stall.begin, stall.end, about)
        bar(track, Kind(facts.kind).name, "work", moments.start, moments.end, about)
        for stall in instruction.delays:
            bar(track, f"waits: {stall.reason}", "stall", stall.begin, stall.end, about)
        if facts.beats:
            channel = WRITES if facts.kind == Kind.OUT else READS
            end, detail = moments.granted + facts.beats, {**about, "bytes": facts.size}
            bar(channel, Kind(facts.kind).name, "dma", moments.granted, end, detail)
    found = tokens(timing)
    for token in found:
        if token.taker is not None:
            # From the last cycle of the slice that gives it to the first of the one that takes it.
            giver, taker = (stage.name for stage in token.queue)
            name, given = f"{giver} to {taker}", at(token.given - 1)
            number = document.arrow_from(process, giver, name, given, category="token")
            document.arrow_to(process, taker, name, at(token.taken), number, category="token")
    for queue in QUEUES:
        name = f"tokens {queue[0].name} to {queue[1].name}"
        count = 0
        for cycle, change in _changes([token for token in found if token.queue == queue]):
            count += change
            document.counter(process, name, at(cycle), {"tokens": count})


def _changes(found: Sequence[Token]) -> list[tuple[int, int]]:
    """The cycles in which the number of a queue's tokens changes, and by how much."""
    steps: dict[int, int] = {0: 0}
    for token in found:
        steps[token.given] = steps.get(token.given, 0) + 1
        if token.taker is not None:
            steps[token.taken] = steps.get(token.taken, 0) - 1
    return sorted(steps.items())

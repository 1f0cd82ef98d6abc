"""The tokens of a stream on the clock: the giver and the taker of each."""

from collections.abc import Sequence
from typing import NamedTuple

from potash_device.vta.isa import Dependencies, Stage
from potash_device.vta.stream import POPS, PUSHES, TOKEN_QUEUES, TokenQueue
from potash_device.vta.timing.result import Timing

QUEUES: Sequence[TokenQueue] = tuple(dict.fromkeys(TOKEN_QUEUES.values()))
"""The four of them."""


class Token(NamedTuple):
    """A token, and the instructions (their indices) that gave and took it."""

    queue: TokenQueue
    giver: int
    given: int
    """The cycle."""
    taker: int | None
    """None where it is left over."""
    taken: int


def tokens(timing: Timing) -> list[Token]:
    """Every token, queue after queue, in the order in which they go through it."""
    given: dict[TokenQueue, list[tuple[int, int]]] = {queue: [] for queue in QUEUES}
    taken: dict[TokenQueue, list[tuple[int, int]]] = {queue: [] for queue in QUEUES}
    for one in timing:
        stage = Stage(one.facts.stage)
        for bit in Dependencies(one.facts.dependencies):
            queue = TOKEN_QUEUES[stage, bit]
            if bit & PUSHES:
                given[queue].append((one.index, one.moments.end))
            elif bit & POPS:
                taken[queue].append((one.index, one.moments.start))
    found = []
    for queue in QUEUES:
        for place, (giver, when) in enumerate(given[queue]):
            if place < len(taken[queue]):
                found.append(Token(queue, giver, when, *taken[queue][place]))
            else:
                found.append(Token(queue, giver, when, None, 0))
    return found

"""Instructions that run in one call of the core, and which of them are those of which node."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from potash_firmware.tflite.capi import Node
from potash_firmware.vta_runtime import Runtime, splitting


class Mark(NamedTuple):
    """A node's instructions in a stream: from `first` on, before `end`."""

    node: Node
    first: int
    end: int


class Stream(NamedTuple):
    """Instructions that run in one call of the core."""

    code: bytes
    marks: tuple[Mark, ...]


def streams_of(
    nodes: Sequence[Node], code: bytes, counts: Sequence[int], runtime: Runtime
) -> Iterator[Stream]:
    """A stream of jobs, of which each is a node's and has so many instructions: as several where it
    has too many micro-ops for one."""
    for piece in splitting.split(code, runtime.config, runtime.core.step_limit):
        yield Stream(piece.code, tuple(_within(_marks(nodes, counts), piece)))


def _marks(nodes: Sequence[Node], counts: Sequence[int]) -> Iterator[Mark]:
    first = 0
    for node, count in zip(nodes, counts, strict=True):
        yield Mark(node, first, first + count)
        first += count


def _within(marks: Iterator[Mark], piece: splitting.Piece) -> Iterator[Mark]:
    """What a piece of a stream has of each node."""
    for node, first, end in marks:
        if first < piece.end and end > piece.first:
            yield Mark(
                node, max(first, piece.first) - piece.first, min(end, piece.end) - piece.first
            )

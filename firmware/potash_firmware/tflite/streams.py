"""Instructions that run in one call of the core, and which of them are those of which node.

Streams that execute more micro-ops than a core allows in one are split into pieces that it allows.
The core's buffers keep their contents from stream to stream, but tokens do not pass from one to the
next. Pieces run one after the other, so that a token whose giver and taker are in different pieces
is not needed.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from potash_device.vta.config import Config
from potash_device.vta.encoding import INSTRUCTION_BYTES, WORD_BITS, Field
from potash_device.vta.isa import Dependencies, Opcode
from potash_device.vta.stream import POPS, PUSHES, TOKEN_QUEUES, TokenQueue, decode_stream
from potash_firmware.tflite.capi import Node
from potash_firmware.vta_runtime import Runtime
from potash_firmware.vta_runtime.commands import CommandStream

Words: TypeAlias = npt.NDArray[np.uint64]
"""Instructions, two words each."""


class Piece(NamedTuple):
    """A stream, and the instructions of the whole one that it begins with: from `first` on, before
    `end`."""

    code: bytes
    first: int
    end: int


def split(code: bytes, config: Config, limit: int) -> list[Piece]:
    """A stream in pieces that execute at most `limit` micro-ops each, unless a single instruction
    executes more; in one piece where it executes no more itself."""
    steps = _steps(np.frombuffer(code, "<u8").reshape(-1, 2), config)
    if int(steps.sum()) <= limit:
        return [Piece(code, 0, len(steps))]
    borders, total = [0], 0
    for index, its in enumerate(steps.tolist()):
        total += its
        if total > limit and its < total:
            borders.append(index)
            total = its
    return _cut(code, config, [*borders, len(steps)])


def values_of(words: Words, field: Field) -> npt.NDArray[np.int64]:
    """An unsigned field of all instructions."""
    word, low = divmod(field.low, WORD_BITS)
    return (words[:, word] >> np.uint64(low) & np.uint64(field.mask)).astype(np.int64)


def _steps(words: Words, config: Config) -> npt.NDArray[np.int64]:
    """Number of micro-ops that each instruction executes."""
    steps = np.zeros(len(words), np.int64)
    kinds: tuple[tuple[Opcode, Any], ...] = (
        (Opcode.GEMM, config.layouts.gemm),
        (Opcode.ALU, config.layouts.alu),
    )
    for opcode, layout in kinds:
        at = values_of(words, layout.by_name["opcode"]) == opcode
        first, end, outer, inner = (
            values_of(words[at], layout.by_name[name])
            for name in ("uop_bgn", "uop_end", "iter_out", "iter_in")
        )
        steps[at] = (end - first) * outer * inner
    return steps


def _cut(code: bytes, config: Config, borders: list[int]) -> list[Piece]:
    """The pieces of a stream that are between the borders."""
    instructions = decode_stream(code, config)
    pieces = np.searchsorted(borders, np.arange(len(instructions)), "right").tolist()
    dependencies = [instruction.dependencies for instruction in instructions]
    given: defaultdict[TokenQueue, deque[tuple[int, Dependencies]]] = defaultdict(deque)
    for index, instruction in enumerate(instructions):
        for bit in instruction.dependencies & POPS:
            # In the order of the stream a token is given before it is taken.
            giver, push = given[TOKEN_QUEUES[instruction.stage, bit]].popleft()
            if pieces[giver] != pieces[index]:
                dependencies[giver] &= ~push
                dependencies[index] &= ~bit
        for bit in instruction.dependencies & PUSHES:
            given[TOKEN_QUEUES[instruction.stage, bit]].append((index, bit))
    found = []
    for first, end in pairwise(borders):
        commands = CommandStream(config)
        for index in range(first, end):
            commands.emit(replace(instructions[index], dependencies=dependencies[index]))
        if end < len(instructions):
            commands.finish()
        found.append(Piece(bytes(commands), first, end))
    return found


class Mark(NamedTuple):
    """A node's instructions in a stream: from `first` on, before `end`. The last one has also what
    ends the stream."""

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
    for piece in split(code, runtime.config, runtime.core.step_limit):
        marks = list(_within(_marks(nodes, counts), piece))
        if marks:
            marks[-1] = marks[-1]._replace(end=len(piece.code) // INSTRUCTION_BYTES)
        yield Stream(piece.code, tuple(marks))


def _marks(nodes: Sequence[Node], counts: Sequence[int]) -> Iterator[Mark]:
    first = 0
    for node, count in zip(nodes, counts, strict=True):
        yield Mark(node, first, first + count)
        first += count


def _within(marks: Iterator[Mark], piece: Piece) -> Iterator[Mark]:
    """The part of each node's instructions in a piece of a stream."""
    for node, first, end in marks:
        if first < piece.end and end > piece.first:
            yield Mark(
                node, max(first, piece.first) - piece.first, min(end, piece.end) - piece.first
            )

"""Chains: several executions in a compute namespace by one command, one after another (extension).

The I/O command `ChainOpcode.EXECUTE_CHAIN` has the number of dwords of its data in CDW10. The data
is a header and the steps. A step begins when the one before has returned, and its memory ranges are
usually the output of that one, which no host has to copy or to look at. The chain ends with the
last step, whose return value is in dwords 0 and 1, or with the first one that fails, whose status
it has; then no further step begins.
"""

from collections.abc import Iterable
from enum import IntFlag
from typing import Annotated

from potash_wire.packed import Packed
from potash_wire.records import U16, U32, U64, At, Number, Range

VERSION = 1
HEADER_SIZE = 8
STEP_SIZE = 24
RANGE_SIZE = 16
MOST_STEPS = 16
MOST_RANGES = 64


class ChainError(ValueError):
    """Bytes that are no chain."""


class StepFlag(IntFlag):
    PREVIOUS = 1
    """CPARAM1 is the value that the step before has returned, such as the length of its output."""


class ChainRange(Packed, least_size=RANGE_SIZE):
    """A memory range, as in Execute Program: memory namespace, length and first byte."""

    nsid: U32
    length: U32
    start: U64


class ChainStep(Packed, least_size=STEP_SIZE, error=ChainError):
    """An execution: the index of its program, its parameters and its memory ranges."""

    program: U16
    flags: U16 = 0
    cparam1: Annotated[U64, At(8)] = 0
    cparam2: U64 = 0
    ranges: Annotated[tuple[ChainRange, ...], Number("H", 4), Range(0, MOST_RANGES)] = ()


class _Header(Packed, least_size=HEADER_SIZE, error=ChainError):
    version: U16 = VERSION
    steps: Annotated[U16, Range(1, MOST_STEPS)] = 1


def encode(steps: Iterable[ChainStep]) -> bytes:
    """The data of a command. Raises ChainError."""
    encoded = [step.encode() for step in steps]
    return b"".join([_Header(VERSION, len(encoded)).encode(), *encoded])


def decode(data: bytes) -> list[ChainStep]:
    """The steps in the data of a command, which may be followed by others. Raises ChainError."""
    header = _Header.RECORD.decode_from(data)
    if header.version != VERSION:
        raise ChainError(f"the chain has version {header.version}, not {VERSION}")
    steps, at = [], HEADER_SIZE
    for _ in range(header.steps):
        step = ChainStep.RECORD.decode_from(data, at)
        if step.flags > StepFlag.PREVIOUS:
            raise ChainError(f"flags {step.flags:#x} of a step are reserved")
        steps.append(step)
        at += STEP_SIZE + RANGE_SIZE * len(step.ranges)
    return steps

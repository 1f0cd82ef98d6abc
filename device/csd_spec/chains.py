"""Chains: several executions by one command, one after another (extension).

The command has the number of dwords of its data in CDW10. The data is a header and the steps. A
step begins when the one before has ended, and works on the output of that one, which no host has to
copy or to look at. The chain ends with the last step, or with the first one that fails; then no
further step begins.

For a compute namespace, the I/O command `ChainOpcode.EXECUTE_CHAIN` has `ChainStep`s, which name
their memory ranges. It completes with the chain: the last return value is in dwords 0 and 1, or it
has the status of the step that has failed. For an accelerator, `Operation.START_CHAIN` of Basic
Accelerator Control has `JobStep`s. The output of each is the input of the next; the chain is a job
for the status, the log and the event.
"""

from collections.abc import Iterable
from enum import IntFlag
from typing import Annotated, TypeVar

from csd_spec.opcodes import DWORD_SIZE
from potash_wire.packed import Packed
from potash_wire.records import U16, U32, U64, At, Number, Range

VERSION = 1
HEADER_SIZE = 8
STEP_SIZE = 24
RANGE_SIZE = 16
JOB_STEP_SIZE = 8
MOST_STEPS = 16
MOST_RANGES = 64
MOST_ARGUMENTS = 1 << 20
"""Bytes of an argument list."""


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


class JobStep(Packed, least_size=JOB_STEP_SIZE, error=ChainError):
    """A job: the ID of its firmware, and its argument list as `descriptors.encode_arguments` makes
    it, in whole dwords."""

    firmware: U32
    arguments: Annotated[bytes, Number("I", 4), Range(0, MOST_ARGUMENTS)] = b""

    def validate(self) -> None:
        if len(self.arguments) % DWORD_SIZE:
            raise ValueError("an argument list is not whole dwords")


class _Header(Packed, least_size=HEADER_SIZE, error=ChainError):
    version: U16 = VERSION
    steps: Annotated[U16, Range(1, MOST_STEPS)] = 1


Step = TypeVar("Step", ChainStep, JobStep)


def encode(steps: Iterable[ChainStep] | Iterable[JobStep]) -> bytes:
    """The data of a command. Raises ChainError."""
    encoded = [step.encode() for step in steps]
    return b"".join([_Header(VERSION, len(encoded)).encode(), *encoded])


def decode(data: bytes) -> list[ChainStep]:
    """The steps in the data of a command, which may be followed by others. Raises ChainError."""
    steps = _decode(data, ChainStep)
    for step in steps:
        if step.flags > StepFlag.PREVIOUS:
            raise ChainError(f"flags {step.flags:#x} of a step are reserved")
    return steps


def decode_jobs(data: bytes) -> list[JobStep]:
    """The steps of a chain for an accelerator. Raises ChainError."""
    return _decode(data, JobStep)


def _decode(data: bytes, kind: type[Step]) -> list[Step]:
    header = _Header.RECORD.decode_from(data)
    if header.version != VERSION:
        raise ChainError(f"the chain has version {header.version}, not {VERSION}")
    steps, at = [], HEADER_SIZE
    for _ in range(header.steps):
        step = kind.RECORD.decode_from(data, at)
        steps.append(step)
        at += len(step.encode())
    return steps

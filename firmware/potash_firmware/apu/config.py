"""The configuration of the APU: a message that its processes get in sealed memory."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Annotated, Self, cast

from csd_spec.opcodes import PAGE_SIZE
from potash_device.cores import CoreProfile
from potash_firmware.bpf.arena import FRAME_SIZE, MAX_CALL_DEPTH
from potash_firmware.bpf.engine_names import Engine
from potash_firmware.log_components import LogSettings
from potash_firmware.mailbox import MailboxError
from potash_firmware.mailbox.datagrams import decode, encode, kinds_of, message
from potash_firmware.mailbox.shared import ENGINE_ROWS, ArenaPlan, seal
from potash_wire.records import (
    BOOL,
    MAY_FOLLOW,
    U8,
    U32,
    U64,
    Converted,
    Number,
    Range,
    Stored,
    pairs_of,
)

MOST = (1 << 16) - 1
"""The largest number of accelerators, or of namespaces."""

DESCRIPTORS_AT_ONCE = 128
"""The most descriptors of one message to a forked APU; Linux takes 253 (unix(7))."""
MAX_NAMES = 1 << 14
"""Bytes; more than their names."""

_Seconds = Annotated[float, Stored("d")]


def _named(choices: type[Enum]) -> Converted:
    """An enumeration that is stored by the values of its members, which are texts."""
    return Converted(str, lambda choice: choice.value, choices)


_TEXTS = Converted(str, "\0".join, lambda texts: tuple(filter(None, texts.split("\0"))))
"""Texts without zero bytes, such as paths."""


class ConfigError(Exception):
    """The APU cannot start with this configuration."""


class RangeUnit(Enum):
    """The unit of a local storage range."""

    PAGE = "page"
    LBA = "lba"


@dataclass(frozen=True)
class AcceleratorConfig:
    """One accelerator; sizes of its buffers, and of a function's stack frame, in bytes."""

    id: U32
    input_size: U64
    output_size: U64
    frame_size: U64 = FRAME_SIZE
    controller: U8 = 0
    """The controller that it belongs to."""

    @cached_property
    def plan(self) -> ArenaPlan:
        return ArenaPlan(self.input_size, self.output_size, self.frame_size * MAX_CALL_DEPTH)


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """One namespace: its media's size and its block size in bytes."""

    nsid: U32
    size: U64
    block_size: U32 = PAGE_SIZE


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one program, one accelerator's firmware and one log.

    `memory` is the private memory of a worker, in bytes, which the kernel enforces; about 150 MiB
    of it are taken by what a worker imports with its first model. `compile_seconds` and
    `compile_memory` are those of the process that compiles one program.
    """

    instructions: U64 = 1_000_000_000_000
    seconds: _Seconds = 3600.0
    memory: U64 = 2 << 30
    compile_seconds: _Seconds = 60.0
    compile_memory: U64 = 2 << 30
    frame_size: U64 = FRAME_SIZE
    """Stack bytes of a function of a program, in compute namespaces."""
    firmware_slots: U64 = 16
    firmware_size: U64 = 1024 * 1024
    firmware_total: U64 = 16 * 1024 * 1024
    ranges: U64 = 64
    grants: U64 = 1024
    """Ranges of blocks that programs may access themselves: a file may be in so many extents."""
    log_entries: U64 = 1024
    log_text: U64 = 1024
    engine_workers: U64 = 4
    """Executions that run simultaneously in one compute namespace."""
    patience: _Seconds = 5.0
    """Seconds in which the fork server has to report a worker's exit."""


@dataclass(frozen=True, slots=True)
class RangeBlocks:
    """The units of local storage ranges (88h and others): pages or blocks, and a plain or a 0's
    based count."""

    unit: Annotated[RangeUnit, Number("B"), Range(0, 255), _named(RangeUnit)] = RangeUnit.PAGE
    zero_based: BOOL = False


@message(96)
class Config:
    """The whole configuration.

    `vta` is the accelerator hardware's configuration, its LOG_ names to numbers, and `vta_threads`
    the number of threads that execute one of its streams; `engine` runs programs. With
    `count_cycles` a worker models how many cycles each stream would take.
    `log` are the levels of what the APU and its workers log. With `platform_status` an accelerator
    is done after a job that failed, and failed when Start finds no program, as the platform has it.
    With a `processor`, jobs count what they do, and end when they would have ended on that.
    `extensions` are the files, or the names, of what programs have beside what is built in.
    """

    accelerators: Annotated[tuple[AcceleratorConfig, ...], Number("H"), Range(0, MOST)]
    namespaces: Annotated[tuple[NamespaceConfig, ...], Number("H"), Range(0, MOST)] = ()
    limits: Limits = Limits()
    range_blocks: RangeBlocks = RangeBlocks()
    vta: Annotated[Mapping[str, int], Number("H"), Range(0, MOST), pairs_of(int)] = field(
        default_factory=dict
    )
    vta_threads: U32 = 1
    engine: Annotated[Engine, Number("B"), Range(0, 255), _named(Engine)] = Engine.NATIVE
    count_cycles: BOOL = False
    platform_status: BOOL = False
    log: LogSettings = field(default_factory=LogSettings)
    extensions: Annotated[tuple[str, ...], Number("H"), Range(0, MOST), _TEXTS] = ()
    processor: Annotated[CoreProfile | None, MAY_FOLLOW] = None

    @property
    def rows(self) -> int:
        """Rows of the shared counters."""
        return len(self.accelerators) + (0 if self.processor is None else ENGINE_ROWS)

    def validate(self) -> None:
        """Raise ValueError, with a sentence."""
        numbers: list[tuple[str, float]] = [
            *((f"accelerator {a.id}'s input_size", a.input_size) for a in self.accelerators),
            *((f"accelerator {a.id}'s output_size", a.output_size) for a in self.accelerators),
            *((f"namespace {n.nsid}'s block_size", n.block_size) for n in self.namespaces),
            ("vta_threads", self.vta_threads),
            *dataclasses.asdict(self.limits).items(),
        ]
        for name, value in numbers:
            if value <= 0:
                raise ValueError(f"{name} is {value!r}, not a positive number")
        for what, keys in (
            ("accelerator", [a.id for a in self.accelerators]),
            ("namespace", [n.nsid for n in self.namespaces]),
        ):
            if len(set(keys)) != len(keys):
                raise ValueError(f"two {what}s have one identifier")

    def share(self) -> int:
        """A descriptor of sealed memory for `adopt`; the caller closes it."""
        return seal("potash-config", encode(self))

    @classmethod
    def adopt(cls, descriptor: int) -> Self:
        """The configuration that another process shares. Raises ConfigError."""
        try:
            data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            return cast(Self, decode(data, kinds_of(cls)))
        except (OSError, MailboxError) as error:
            raise ConfigError(f"the configuration cannot be read: {error}") from None


def parse_descriptors(text: str) -> dict[str, int]:
    """`"mailbox=3,state=4"` as a mapping. Raises ConfigError."""
    descriptors: dict[str, int] = {}
    for item in filter(None, text.split(",")):
        name, _, number = item.partition("=")
        if not name or not number.isdecimal() or name in descriptors:
            raise ConfigError(f"{item!r} does not give a name to one descriptor")
        descriptors[name] = int(number)
    return descriptors


def format_descriptors(descriptors: Mapping[str, int]) -> str:
    """The inverse of `parse_descriptors`."""
    return ",".join(f"{name}={fd}" for name, fd in descriptors.items())

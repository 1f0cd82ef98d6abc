"""The configuration that the APU gets from its board when it is started, as JSON."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

from csd_spec.opcodes import PAGE_SIZE
from potash_device.timing.cores import CoreProfile
from potash_device.timing.profile import Rate
from potash_firmware.bpf.arena import FRAME_SIZE, MAX_CALL_DEPTH
from potash_firmware.bpf.engine import Engine
from potash_firmware.log_components import LogSettings
from potash_firmware.mailbox.counters import ENGINE_ROWS
from potash_firmware.mailbox.shared import ArenaPlan

CONFIG_VARIABLE = "POTASH_APU_CONFIG"
"""The environment variable that has the configuration: command lines stay fit for `ps`."""


class ConfigError(Exception):
    """The configuration is not one that the APU can start with."""


class RangeUnit(Enum):
    """What a local storage range counts in."""

    PAGE = "page"
    LBA = "lba"


@dataclass(frozen=True, slots=True)
class AcceleratorConfig:
    """One accelerator; sizes of its buffers, and of a function's stack frame, in bytes."""

    id: int
    input_size: int
    output_size: int
    frame_size: int = FRAME_SIZE

    @property
    def plan(self) -> ArenaPlan:
        return ArenaPlan(self.input_size, self.output_size, self.frame_size * MAX_CALL_DEPTH)


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """One namespace: its media's size and its block size in bytes."""

    nsid: int
    size: int
    block_size: int = PAGE_SIZE


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program, one accelerator's firmware and one log may take at most.

    `memory` is what the kernel lets a worker have, in bytes of private memory; about 150 MiB of it
    are taken by what a worker loads with its first model. `compile_seconds` and `compile_memory`
    are those of the process that compiles one program.
    """

    instructions: int = 1_000_000_000_000
    seconds: float = 3600.0
    memory: int = 2 << 30
    compile_seconds: float = 60.0
    compile_memory: int = 2 << 30
    frame_size: int = FRAME_SIZE
    """Stack bytes of a function of a program, in compute namespaces."""
    firmware_slots: int = 16
    firmware_size: int = 1024 * 1024
    firmware_total: int = 16 * 1024 * 1024
    ranges: int = 64
    log_entries: int = 1024
    log_text: int = 1024
    engine_workers: int = 4
    """Executions that run at once in one compute namespace."""
    patience: float = 5.0
    """Seconds in which the fork server has to tell of a worker's death."""


@dataclass(frozen=True, slots=True)
class RangeBlocks:
    """How 88h and its relatives count: in pages or blocks, with a plain or a 0's based count."""

    unit: RangeUnit = RangeUnit.PAGE
    zero_based: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """The whole.

    `vta` is the accelerator hardware's configuration, its LOG_ names to numbers, and `vta_threads`
    how many threads execute one of its streams; `engine` is what runs programs. With `count_cycles`
    a worker finds out how many cycles each stream would take.
    `log` is what the APU and its workers say of themselves. With `platform_status` an accelerator
    is done after a job that failed, and failed when Start finds no program, as the platform has it.
    With a `processor`, jobs count what they do, and end when it would have ended on that.
    """

    accelerators: tuple[AcceleratorConfig, ...]
    namespaces: tuple[NamespaceConfig, ...] = ()
    limits: Limits = Limits()
    range_blocks: RangeBlocks = RangeBlocks()
    vta: Mapping[str, int] = field(default_factory=dict)
    vta_threads: int = 1
    engine: Engine = Engine.NATIVE
    count_cycles: bool = False
    platform_status: bool = False
    log: LogSettings = field(default_factory=LogSettings)
    processor: CoreProfile | None = None

    @property
    def rows(self) -> int:
        """Rows of the shared counters."""
        return len(self.accelerators) + (0 if self.processor is None else ENGINE_ROWS)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), default=lambda item: item.value)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises ConfigError for anything but what `to_json` makes; what has a default may lack."""
        try:
            raw = json.loads(text)
            blocks = raw.get("range_blocks", {})
            if "unit" in blocks:
                blocks["unit"] = RangeUnit(blocks["unit"])
            config = cls(
                tuple(AcceleratorConfig(**item) for item in raw.pop("accelerators")),
                tuple(NamespaceConfig(**item) for item in raw.pop("namespaces", ())),
                Limits(**raw.pop("limits", {})),
                RangeBlocks(**raw.pop("range_blocks", {})),
                dict(raw.pop("vta", {})),
                int(raw.pop("vta_threads", 1)),
                Engine(raw.pop("engine", Engine.NATIVE)),
                bool(raw.pop("count_cycles", False)),
                bool(raw.pop("platform_status", False)),
                LogSettings(**raw.pop("log", {})),
                _processor(raw.pop("processor", None)),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"the configuration cannot be read: {error}") from None
        _check(config, raw)
        return config


def _processor(table: Mapping[str, Any] | None) -> CoreProfile | None:
    if table is None:
        return None
    return CoreProfile(**{**table, "cycles": tuple(table["cycles"]), "dram": Rate(*table["dram"])})


def _check(config: Config, left: Mapping[str, Any]) -> None:
    if left:
        raise ConfigError(f"the configuration has an unknown part {next(iter(left))!r}")
    numbers: list[tuple[str, float]] = [
        *((f"accelerator {a.id}'s input_size", a.input_size) for a in config.accelerators),
        *((f"accelerator {a.id}'s output_size", a.output_size) for a in config.accelerators),
        *((f"namespace {n.nsid}'s block_size", n.block_size) for n in config.namespaces),
        ("vta_threads", config.vta_threads),
        *dataclasses.asdict(config.limits).items(),
    ]
    for name, value in numbers:
        if not isinstance(value, (int, float)) or value <= 0:
            raise ConfigError(f"{name} is {value!r}, not a positive number")
    for what, keys in (
        ("accelerator", [a.id for a in config.accelerators]),
        ("namespace", [n.nsid for n in config.namespaces]),
    ):
        if len(set(keys)) != len(keys):
            raise ConfigError(f"two {what}s have one identifier")


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

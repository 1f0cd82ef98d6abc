"""The configuration of a core: tensor shapes, data widths and buffer sizes, as one immutable value.

The keys of the JSON form are those of the VTA project's `vta_config.json`: base-two logarithms of
widths in bits, of shapes in elements and of buffer sizes in bytes.
"""

import functools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from potash_device.vta import encoding
from potash_device.vta.encoding import Depths, InstructionError, Layouts

ReportedConfig = Annotated[
    Mapping[str, int], "Configuration of the core, by the keys of vta_config.json."
]

ReportedCore = Annotated[str | None, "The core's name, platform or paper; null for another core."]


class ConfigError(ValueError):
    """An invalid configuration."""


class MemoryId(IntEnum):
    """Memory types of LOAD and STORE (`VTA_MEM_ID_*`).

    ACC_8BIT is a memory type for loads into ACC, not a buffer: 8-bit values from DRAM,
    sign-extended.
    """

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4
    ACC_8BIT = 5


DRAM_BASE = 0x1000
"""Physical address of the shared DRAM's first byte: no buffer has address 0."""

LOG_UOP_WIDTH = 5
LOG_BYTE = 3
TENSOR_WIDTHS = (3, 4, 5)
MAX_LOG_SHAPE = 8
MAX_LOG_BUFFER_SIZE = 30

FIXED_KEYS = {"LOG_UOP_WIDTH": LOG_UOP_WIDTH, "LOG_INS_WIDTH": 7}
"""Keys that can have one value."""

BOARD_KEYS = frozenset({"TARGET", "HW_VER", "HW_FREQ", "HW_CLK_TARGET", "LOG_BUS_WIDTH"})
"""Keys of `vta_config.json` about the board, not the core."""


class _Memory(NamedTuple):
    """A buffer's depth in elements, and in DRAM an element's shape, bits of a value, and bytes."""

    depth: int
    shape: tuple[int, ...]
    value_bits: int
    element_bytes: int

    @classmethod
    def of(cls, log_depth: int, shape: tuple[int, ...], log_width: int) -> Self:
        return cls(1 << log_depth, shape, 1 << log_width, math.prod(shape) << log_width >> LOG_BYTE)


@dataclass(frozen=True)
class Config:
    """A core's parameters. Raises ConfigError for inconsistent values."""

    log_inp_width: int = 3
    log_wgt_width: int = 3
    log_acc_width: int = 5
    log_out_width: int = 3
    log_batch: int = 0
    log_block_in: int = 4
    log_block_out: int = 4
    log_uop_buff_size: int = 15
    log_inp_buff_size: int = 15
    log_wgt_buff_size: int = 18
    log_acc_buff_size: int = 17

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not _is_integer(value):
                raise ConfigError(f"{field.name.upper()} must be an integer, not {value!r}")
        for name in ("log_inp_width", "log_wgt_width", "log_out_width"):
            if getattr(self, name) not in TENSOR_WIDTHS:
                raise ConfigError(
                    f"{name.upper()} is {getattr(self, name)}; 8, 16 and 32 bits (3, 4, 5) exist"
                )
        if self.log_acc_width != 5:
            raise ConfigError(f"LOG_ACC_WIDTH is {self.log_acc_width}; accumulators have 32 bits")
        for name in ("log_batch", "log_block_in", "log_block_out"):
            if not 0 <= getattr(self, name) <= MAX_LOG_SHAPE:
                raise ConfigError(
                    f"{name.upper()} is {getattr(self, name)}, outside 0 to {MAX_LOG_SHAPE}"
                )
        for name, log_element in self._log_element_bytes.items():
            self._check_buffer(name, log_element)
        try:
            encoding.layouts(self.log_depths)
        except InstructionError as error:
            raise ConfigError(str(error)) from None

    def _check_buffer(self, name: str, log_element: int) -> None:
        log_size = getattr(self, f"log_{name}_buff_size")
        key = f"LOG_{name.upper()}_BUFF_SIZE"
        if not log_element <= log_size <= MAX_LOG_BUFFER_SIZE:
            raise ConfigError(
                f"{key} is {log_size}: with elements of {1 << log_element} bytes "
                f"it must be {log_element} to {MAX_LOG_BUFFER_SIZE}"
            )
        if log_size - log_element > encoding.SRAM_ADDRESS_BITS:
            raise ConfigError(
                f"{key} is {log_size}: {1 << log_size - log_element} elements are more than "
                f"an SRAM address of {encoding.SRAM_ADDRESS_BITS} bits reaches"
            )

    @classmethod
    def default(cls) -> "Config":
        """The platform's core: 1x16x16, 8-bit tensors, 32-bit accumulators."""
        return cls()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Config":
        """Read `vta_config.json`. Raises ConfigError."""
        try:
            values = json.loads(text, object_pairs_hook=_without_repetitions)
        except UnicodeDecodeError:
            raise ConfigError("the VTA configuration is not JSON: it is not text") from None
        except (ValueError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"the VTA configuration is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError("the VTA configuration must be a JSON object")
        return cls.from_mapping(values)

    @classmethod
    def from_file(cls, path: Path) -> "Config":
        """Read a `vta_config.json` file. Raises ConfigError and OSError."""
        return cls.from_json(path.read_bytes())

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], base: "Config | None" = None) -> "Config":
        """Read already parsed keys, which replace those of `base`, by default the platform's core;
        those of `BOARD_KEYS` are not a core's and are ignored. Raises ConfigError, also for an
        unknown key."""
        wanted = {key: value for key, value in values.items() if key not in BOARD_KEYS}
        for key, only in FIXED_KEYS.items():
            value = wanted.pop(key, only)
            if not _is_integer(value) or value != only:
                raise ConfigError(f"{key} must be {only}, not {value!r}")
        if "LOG_BLOCK" in wanted:
            block = wanted.pop("LOG_BLOCK")
            for key in ("LOG_BLOCK_IN", "LOG_BLOCK_OUT"):
                if wanted.setdefault(key, block) != block:
                    raise ConfigError(f"{key} is {wanted[key]!r} and LOG_BLOCK is {block!r}")
        if "LOG_INP_WIDTH" in wanted:
            # The VTA project derives it so, and its files do not name it.
            wanted.setdefault("LOG_OUT_WIDTH", wanted["LOG_INP_WIDTH"])
        out_size = wanted.pop("LOG_OUT_BUFF_SIZE", None)
        known = {field.name.upper(): field.name for field in fields(cls)}
        for key in wanted:
            if key not in known:
                raise ConfigError(f"{key!r} is not a key of a VTA configuration")
        config = replace(base or cls(), **{known[key]: value for key, value in wanted.items()})
        if out_size is not None and out_size != config.log_out_buff_size:
            raise ConfigError(
                f"LOG_OUT_BUFF_SIZE is {out_size!r}; an output element for each of ACC's "
                f"makes it {config.log_out_buff_size}"
            )
        return config

    def to_mapping(self) -> dict[str, int]:
        """The LOG_* keys and their values, as `from_mapping` reads them."""
        return {field.name.upper(): getattr(self, field.name) for field in fields(self)}

    @property
    def name(self) -> str | None:
        """The core's name in `CORES`, if it has one."""
        return next((name for name, config in CORES.items() if config == self), None)

    @property
    def batch(self) -> int:
        """Rows of an INP, ACC or OUT element."""
        return 1 << self.log_batch

    @property
    def block_in(self) -> int:
        """Columns of an INP element and of a WGT element."""
        return 1 << self.log_block_in

    @property
    def block_out(self) -> int:
        """Rows of a WGT element, columns of an ACC or OUT element."""
        return 1 << self.log_block_out

    @property
    def log_out_buff_size(self) -> int:
        """OUT has as many elements as ACC."""
        return self.log_acc_buff_size + self.log_out_width - self.log_acc_width

    @property
    def _log_element_bytes(self) -> dict[str, int]:
        """Logarithms of the bytes of an element, by buffer."""
        return {
            "uop": LOG_UOP_WIDTH - LOG_BYTE,
            "inp": self.log_batch + self.log_block_in + self.log_inp_width - LOG_BYTE,
            "wgt": self.log_block_out + self.log_block_in + self.log_wgt_width - LOG_BYTE,
            "acc": self.log_batch + self.log_block_out + self.log_acc_width - LOG_BYTE,
        }

    @functools.cached_property
    def log_depths(self) -> Depths:
        """Logarithms of the depths in elements, which the instruction encoding follows."""
        elements = self._log_element_bytes.items()
        return Depths(**{key: getattr(self, f"log_{key}_buff_size") - log for key, log in elements})

    @functools.cached_property
    def layouts(self) -> Layouts:
        """The fields of this core's instructions and micro-ops."""
        return encoding.layouts(self.log_depths)

    def element_bytes(self, memory: MemoryId) -> int:
        """Bytes that one element of `memory` takes in DRAM."""
        return self._memories[memory].element_bytes

    def element_shape(self, memory: MemoryId) -> tuple[int, ...]:
        """Rows and columns of an element; a micro-op has none."""
        return self._memories[memory].shape

    def value_bits(self, memory: MemoryId) -> int:
        """Bits of one value of an element in DRAM."""
        return self._memories[memory].value_bits

    def depth(self, memory: MemoryId) -> int:
        """Elements that `memory` holds on the chip."""
        return self._memories[memory].depth

    @functools.cached_property
    def _memories(self) -> Mapping[MemoryId, _Memory]:
        depths = self.log_depths
        tile = (self.batch, self.block_out)
        wgt = (self.block_out, self.block_in)
        inp = (self.batch, self.block_in)
        return {
            MemoryId.UOP: _Memory.of(depths.uop, (), LOG_UOP_WIDTH),
            MemoryId.WGT: _Memory.of(depths.wgt, wgt, self.log_wgt_width),
            MemoryId.INP: _Memory.of(depths.inp, inp, self.log_inp_width),
            MemoryId.ACC: _Memory.of(depths.acc, tile, self.log_acc_width),
            MemoryId.OUT: _Memory.of(depths.acc, tile, self.log_out_width),
            MemoryId.ACC_8BIT: _Memory.of(depths.acc, tile, LOG_BYTE),
        }

    @functools.cached_property
    def alignment(self) -> int:
        """Bytes of the largest element, or of an instruction: an address aligned to it can be named
        in any memory's elements, and a stream can begin there."""
        return max(encoding.INSTRUCTION_BYTES, *(self.element_bytes(one) for one in MemoryId))


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _without_repetitions(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        twice = next(key for key in values if [name for name, _ in pairs].count(key) > 1)
        raise ConfigError(f"{twice!r} is in the VTA configuration twice")
    return values


def default_threads() -> int:
    """Threads that execute a stream if nothing is said: one, or two where there are two
    processors."""
    return min(2, len(os.sched_getaffinity(0)))


CORES: Mapping[str, Config] = {
    "platform": Config(),
    "paper": Config(log_uop_buff_size=14),
}
"""Cores by name: the platform's, and that of the VTA paper's PYNQ board (section 5), which has 16
KiB for micro-ops."""

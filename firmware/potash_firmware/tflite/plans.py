"""What an operator makes of a node: how its tensors have to lie, and how its outputs come about.

There are three ways. `Compute` appends instructions to the partition's stream. `Alias` says that the
output is there already: the input's surface, seen differently. `Arrange` moves values between
layouts, which only the host can where they change places within an element.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

import numpy as np

from potash_device.vta.config import Config
from potash_firmware.tflite.capi import Array, Node
from potash_firmware.tflite.packing import Layout, Margin
from potash_firmware.vta_runtime import Buffer, Runtime
from potash_firmware.vta_runtime.schedules import Surface, layouts


class Rounding(Enum):
    """How an accumulator is scaled down to int8."""

    EXACT = "exact"
    """As TensorFlow Lite's reference kernels: twice, the second time with halves away from zero."""
    SINGLE = "single"
    """Once, with halves up, as kernels built with TFLITE_SINGLE_ROUNDING do."""
    ALKALI = "alkali"
    """With multipliers of 16 bits, as the platform's own delegate does: off by one at times."""

    @property
    def elsewhere(self) -> "Rounding":
        """That of operators which the platform's delegate does not have."""
        return Rounding.EXACT if self is Rounding.ALKALI else self


class Settings(NamedTuple):
    """What holds for every node of a delegate."""

    config: Config
    rounding: Rounding = Rounding.EXACT
    floats: bool = True
    """Whether the reference kernel of FULLY_CONNECTED scales its sums in floating point."""


class Builder:
    """A partition under construction: its stream, and the memory that it keeps."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.config = runtime.config
        self.buffers: list[Buffer] = []
        """What it has allocated, in that order."""

    def allocate(self, size: int) -> Buffer:
        """Zeroed memory that lives as long as the partition. Raises VtaMemoryError."""
        buffer = self.runtime.alloc(size)
        self.buffers.append(buffer)
        return buffer

    def constant(self, values: Array) -> Buffer:
        """Memory with these values in it."""
        buffer = self.allocate(values.nbytes)
        np.frombuffer(buffer.view, values.dtype)[:] = values.reshape(-1)
        return buffer

    def channels(self, values: Array) -> Buffer:
        """A number for each channel, for an epilogue's vector."""
        return self.constant(layouts.pack_channels(values, self.config))

    def stream(self) -> bytes:
        """The instructions since the last one, with their micro-ops in the partition's memory."""
        code, kernels = self.runtime.keep()
        self.buffers += kernels
        return code

    def drop(self, begin: int) -> None:
        """Give the memory back that was allocated after the first `begin` buffers."""
        for buffer in self.buffers[begin:]:
            buffer.free()
        del self.buffers[begin:]

    def close(self) -> None:
        """Give all memory back."""
        self.drop(0)


Emit: TypeAlias = Callable[["Builder", Sequence[Surface | None], Sequence[Surface]], None]
"""Appends instructions, given the inputs' surfaces (None for what the layouts leave out) and the
outputs'."""


@dataclass(frozen=True)
class Compute:
    """Instructions."""

    emit: Emit


@dataclass(frozen=True)
class Alias:
    """The one output is the one packed input: `surface` says where in it, and `margin` which margin
    the input needs for the output to have the given one."""

    surface: Callable[[Surface], Surface]
    margin: Callable[[Margin], Margin]


@dataclass(frozen=True)
class Arrange:
    """The one output has the packed inputs' values at other places: `arrange` makes an array of the
    output's shape from arrays of the inputs'."""

    arrange: Callable[..., Array]


Work: TypeAlias = Compute | Alias | Arrange


@dataclass(frozen=True)
class Plan:
    """A node made ready: the layouts of its inputs (None for one that is not read packed) and
    outputs, and the work. An input's margin is what the work reads of it besides."""

    inputs: tuple[Layout | None, ...]
    outputs: tuple[Layout, ...]
    work: Work


class Operator(NamedTuple):
    """How one builtin operator runs on the accelerator.

    `supports` says in one clause why it does not run a node, or None. `plan` makes a node ready that
    it does run, given how its inputs lie so far: None for a constant and for what nobody has laid
    out yet.
    """

    supports: Callable[[Node, Settings], str | None]
    plan: Callable[[Node, Settings, Sequence[Layout | None]], Plan]

"""The result of lowering a node: the layouts of its tensors, and how its outputs are computed.

There are four kinds of work. `Compute` appends instructions to the partition's stream. `Alias`
says that the output is the input's surface, or a part of it. `Arrange` permutes values between
layouts, which only the host can do where values change places within an element. `Keep` leaves a
value for the next run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import numpy as np

from potash_device.vta.config import Config, MemoryId
from potash_firmware.tflite.capi import Array, Node
from potash_firmware.tflite.packing import Layout, Margin
from potash_firmware.vta_runtime import Buffer, Runtime
from potash_firmware.vta_runtime.schedules import Surface, layouts


class Rounding(StrEnum):
    """Rounding of an accumulator that is scaled down to int8."""

    EXACT = "exact"
    """Two roundings, the second with halves away from zero: TensorFlow Lite's reference kernels."""
    SINGLE = "single"
    """One rounding, with halves up: kernels built with TFLITE_SINGLE_ROUNDING."""
    ALKALI = "alkali"
    """Multipliers of 16 bits, as in the platform's own delegate: sometimes off by one."""

    @property
    def elsewhere(self) -> "Rounding":
        """The rounding of operators that the platform's delegate lacks."""
        return Rounding.EXACT if self is Rounding.ALKALI else self


class Settings(NamedTuple):
    """Settings of every node of a delegate."""

    config: Config
    rounding: Rounding = Rounding.EXACT


class Builder:
    """A partition under construction: its stream, and the memory that it keeps."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.config = runtime.config
        self.buffers: list[Buffer] = []
        """The allocated buffers, in order of allocation."""

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

    def channels(self, values: Array, count: int) -> Buffer:
        """An epilogue's vector for `count` channels: a number for each, or one for all."""
        each = np.broadcast_to(values, count)
        return self.constant(layouts.pack_channels(each, self.config))

    def stream(self) -> bytes:
        """The instructions since the last one, with their micro-ops in the partition's memory."""
        code, kernels = self.runtime.keep()
        self.buffers += kernels
        return code

    def drop(self, begin: int) -> None:
        """Free the memory that was allocated after the first `begin` buffers."""
        for buffer in self.buffers[begin:]:
            buffer.free()
        del self.buffers[begin:]

    def close(self) -> None:
        """Free all memory."""
        self.drop(0)


Inputs: TypeAlias = Sequence[Surface | None]
Emit: TypeAlias = Callable[[Builder, Inputs, Sequence[Surface]], None]
"""Appends instructions, given the inputs' surfaces (None for what the layouts leave out) and the
outputs'."""


@dataclass(frozen=True)
class Compute:
    """Instructions. The packed inputs are read as elements of INP, or loaded for the ALU."""

    emit: Emit
    multiplies: bool = False

    @classmethod
    def of_one(cls, emit: Callable[..., None], *, multiplies: bool = False) -> "Compute":
        """Instructions that read one packed input: `emit` gets the builder, that input's surface
        and the outputs' surfaces."""

        def emit_all(builder: Builder, inputs: Inputs, outputs: Sequence[Surface]) -> None:
            (source,) = (one for one in inputs if one is not None)
            emit(builder, source, *outputs)

        return cls(emit_all, multiplies)

    def memory(self, config: Config) -> MemoryId:
        """Memory type as which the inputs are read."""
        return MemoryId.INP if self.multiplies else layouts.alu_memory(config)


@dataclass(frozen=True)
class Alias:
    """The one output is the one packed input: `surface` gives its surface in the input's, and
    `margin` the margin that the input needs for the output to have the given one."""

    surface: Callable[[Surface], Surface]
    margin: Callable[[Margin], Margin]


@dataclass(frozen=True)
class Arrange:
    """The one output has the packed inputs' values in another order: `arrange` makes an array of
    the output's shape from arrays of the inputs'."""

    arrange: Callable[..., Array]


@dataclass(frozen=True)
class Keep:
    """No output: the first input is what the second one, a variable, holds from the next run on."""


Work: TypeAlias = Compute | Alias | Arrange | Keep
Layouts: TypeAlias = Sequence[Layout | None]
"""Layouts of a node's inputs: None for a constant, and for a tensor without a layout yet."""


@dataclass(frozen=True)
class Placement:
    """The layouts of a node's inputs (None for one that is not read packed) and outputs, and the
    work. An input's margin is what the work reads around it."""

    inputs: tuple[Layout | None, ...]
    outputs: tuple[Layout, ...]
    work: Work


@dataclass(frozen=True)
class Lowering:
    """A node that runs on the accelerator. `place` decides about layouts, given those that its
    inputs have so far."""

    place: Callable[[Layouts], Placement]

    @classmethod
    def fixed(
        cls, inputs: Sequence[Layout | None], outputs: Sequence[Layout], work: Work
    ) -> "Lowering":
        """One whose layouts do not depend on those of its inputs."""
        placement = Placement(tuple(inputs), tuple(outputs), work)
        return cls(lambda given: placement)


class Refusal(Exception):
    """The reason why the accelerator does not run a node, as a clause."""


Lower: TypeAlias = Callable[[Node, Settings], Lowering | Refusal]
"""Lowers a node of one builtin operator to the accelerator: computes once what does not depend on
activations. Returns or raises a Refusal for a node that does not run there; the message
of a QuantizationError or ScheduleError is a reason too."""

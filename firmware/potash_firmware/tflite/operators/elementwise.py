"""Layouts and the stream of all elementwise operators.

One input, a *whole* one, has the output's layout and is loaded into the tile. A second one is
loaded into plane 1; but a number for each channel needs no plane of its own, whether it is constant
or not. The host repeats any other broadcast input while it packs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from potash_device.vta.config import Config
from potash_firmware.tflite.arithmetic.ramps import Values
from potash_firmware.tflite.arithmetic.requantization import Steps
from potash_firmware.tflite.capi import Node, Tensor
from potash_firmware.tflite.lowering import (
    Builder,
    Compute,
    Inputs,
    Layouts,
    Lowering,
    Placement,
    Refusal,
    Settings,
)
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.packing import NO_MARGIN, Layout, Sizes
from potash_firmware.tflite.quantization import INT8_MAX, INT8_MIN
from potash_firmware.vta_runtime import Buffer
from potash_firmware.vta_runtime.schedules import (
    Channels,
    Elementwise,
    Extent,
    Plane,
    ScheduleError,
    Surface,
    elementwise,
    layouts,
)

WASTE = 2
"""Images may take so many times the elements of a flat layout."""

VALUES = np.arange(INT8_MIN, INT8_MAX + 1, dtype=np.int64)
"""All values of an argument."""
OTHER = Plane(1)
_VECTOR = Channels(0)

Operand: TypeAlias = Plane | Channels | Values
"""The second operand: a plane, an activation for each channel, or constants, one or for each
channel."""
Emit: TypeAlias = Callable[[Steps, int, Operand | None], None]
"""Appends an operator's steps, given which input is in the tile, and the other if there is one."""


class Quantization(NamedTuple):
    """A tensor's scale and zero point."""

    scale: float
    zero_point: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Quantization":
        """A tensor's."""
        return cls(tensor.scale, tensor.zero_point)


def tensors(
    node: Node, settings: Settings, inputs: int, what: str, types: Mapping[int, int] = checks.INT8
) -> tuple[list[Tensor], Tensor]:
    """The inputs of a node, of which there are so many, and its output. Raises Refusal where they
    are not for the VTA."""
    sources, output = checks.tensors(node, (inputs,), what, types=types)
    if np.broadcast_shapes(*(tensor.shape for tensor in sources)) != output.shape:
        raise Refusal(f"{what} has another shape than its inputs give")
    return sources, output


def lowering(
    sources: Sequence[Tensor],
    output: Tensor,
    settings: Settings,
    emit: Emit,
    layout: Layout | None = None,
) -> Lowering:
    """The operator that `emit` appends, which is called once for each assignment of inputs to
    planes, on tensors in any layout or in the given one. Raises Refusal where there is no room for
    the steps, and what `emit` raises."""
    config = settings.config
    known: dict[tuple[tuple[int, ...], int | None], Steps] = {}

    def steps_of(operands: _Operands) -> Steps:
        key = operands.planes, operands.vector
        if key not in known:
            known[key] = operands.steps(emit)
        return known[key]

    for given in (layout,) if layout else (Layout.flat(output.shape), None):
        operands = _place(sources, output, [given] * len(sources), config)
        try:
            _schedule(Extent(1, 1, 1, 1), operands, steps_of(operands), config)
        except ScheduleError:
            raise Refusal("the VTA's accumulator memory is too small") from None

    def place(given: Layouts) -> Placement:
        operands = _place(sources, output, [layout] if layout else given, config)
        steps = steps_of(operands)

        def run(builder: Builder, inputs: Inputs, outputs: Sequence[Surface]) -> None:
            planes = [inputs[at] for at in operands.planes]
            surfaces = [surface for surface in (*planes, *outputs) if surface is not None]
            even = operands.vector is None and all(one.size == 1 for one in steps.vectors)
            *tiles, target = _rows(surfaces, even)
            extent = Extent(target.groups, target.blocks, target.height, target.width)
            vector = None if operands.vector is None else inputs[operands.vector]
            channels = _vectors(builder, steps, extent.blocks * config.block_out, vector)
            plan = _schedule(extent, operands, steps, config)
            plan.emit(builder.runtime, tiles, target, channels=channels)

        return Placement(operands.inputs, (operands.output,), Compute(run))

    return Lowering(place)


@dataclass(frozen=True)
class _Operands:
    """The tensors' layouts, and which input is loaded into which plane."""

    inputs: tuple[Layout | None, ...]
    output: Layout
    planes: tuple[int, ...]
    """The inputs in planes 0 and 1."""
    other: Operand | None
    vector: int | None = None
    """The input that is an activation for each channel."""

    def steps(self, emit: Emit) -> Steps:
        """The steps of an operator; an empty vector is a placeholder for the activation."""
        steps = Steps(vectors=[] if self.vector is None else [np.zeros(0, np.int64)])
        emit(steps, self.planes[0], self.other)
        return steps


def _place(sources: Sequence[Tensor], output: Tensor, given: Layouts, config: Config) -> _Operands:
    whole = [at for at, tensor in enumerate(sources) if tensor.size == output.size]
    layout = next((its for at, its in enumerate(given) if its and at in whole), None)
    layout = layout.with_margin(NO_MARGIN) if layout else images_or_flat(output, config)
    spread = replace(layout, spread=output.shape)
    layouts: list[Layout | None] = [layout if at in whole else spread for at in range(len(sources))]
    # A constant is better the other one.
    first = min(
        range(len(sources)), key=lambda at: (at not in whole, sources[at].constant is not None)
    )
    if len(sources) == 1:
        return _Operands(tuple(layouts), layout, (0,), None)
    second = 1 - first
    tensor = sources[second]
    if second not in whole and tensor.constant is not None:
        if tensor.size == 1 or _by_channel(tensor, output, layout, config):
            layouts[second] = None
            values = tensor.constant.reshape(-1).astype(np.int64)
            return _Operands(tuple(layouts), layout, (first,), values)
    elif second not in whole and _by_channel(tensor, output, layout, config):
        images = math.prod(tensor.shape[:-1])
        layouts[second] = Layout(Sizes(images, 1, 1, output.shape[-1]))
        return _Operands(tuple(layouts), layout, (first,), _VECTOR, second)
    return _Operands(tuple(layouts), layout, (first, second), OTHER)


def _by_channel(tensor: Tensor, output: Tensor, layout: Layout, config: Config) -> bool:
    """True if the output's layout is images, and the tensor has a value for each channel, or for
    each channel of each image."""
    if layout.sizes != Layout.image(output.shape).sizes or not output.shape:
        return False
    shape = (1,) * (len(output.shape) - len(tensor.shape)) + tensor.shape
    images = math.prod(shape[:-1])
    if shape[-1] != output.shape[-1]:
        return False
    if images == 1:
        return config.batch == 1 or layout.sizes.images == 1 or tensor.constant is not None
    return tensor.constant is None and images == layout.sizes.images == math.prod(shape[:-3])


def images_or_flat(output: Tensor, config: Config) -> Layout:
    """The layout as images if that does not waste too much, otherwise the flat one."""
    image, flat = Layout.image(output.shape), Layout.flat(output.shape)
    return image if image.elements(config) <= WASTE * flat.elements(config) else flat


def _schedule(extent: Extent, operands: _Operands, steps: Steps, config: Config) -> Elementwise:
    return elementwise(
        extent, config, (layouts.alu_memory(config),) * len(operands.planes), steps.steps
    )


def _rows(surfaces: list[Surface], even: bool) -> list[Surface]:
    """Surfaces with rows as long as possible: all elements in one where all of them have the same
    steps, else a plane's, and only where there is no margin between them."""
    if even and all(surface.is_contiguous for surface in surfaces):
        return [surface.as_row() for surface in surfaces]
    if all(surface.is_dense for surface in surfaces):
        return [surface.flattened() for surface in surfaces]
    return surfaces


def _vectors(
    builder: Builder, steps: Steps, lanes: int, activation: Surface | None
) -> list[Buffer | Surface]:
    """The steps' vectors; an empty one is a placeholder for the activation."""
    made: list[Buffer | Surface] = []
    for values in steps.vectors:
        if activation is not None and not values.size:
            made.append(activation)
        else:
            made.append(builder.channels(values, lanes if values.size == 1 else values.size))
    return made

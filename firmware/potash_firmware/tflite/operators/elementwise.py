"""What operators that take values one by one have in common: where the values lie, and the run.

One input, a *whole* one, lies as the output does and is loaded into the tile. So is another one, into
plane 1; but a number for each channel needs no plane of its own, whether it is constant or not. What
is repeated in other ways the host repeats while it packs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from potash_device.vta.config import Config, MemoryId
from potash_firmware.tflite.arithmetic.requantization import Steps, Values
from potash_firmware.tflite.capi import Node, Tensor
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.packing import NO_MARGIN, Layout, Sizes
from potash_firmware.tflite.plans import Builder, Compute, Plan, Settings
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
)

WASTE = 2
"""How many times the elements of a flat layout images may take."""

VALUES = np.arange(INT8_MIN, INT8_MAX + 1, dtype=np.int64)
"""All that an argument can be."""
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


def refusal(node: Node, settings: Settings, inputs: int, what: str) -> str | None:
    """Why the tensors of a node with that many inputs are not for the VTA; None when they are."""
    reason = checks.first((checks.core(settings.config), checks.arity(node, (inputs,), what)))
    if reason is not None:
        return reason
    reason = checks.first(checks.quantized(tensor) for tensor in (*node.inputs, *node.outputs))
    if reason is not None:
        return reason
    sources, output = _tensors(node)
    if np.broadcast_shapes(*(tensor.shape for tensor in sources)) != output.shape:
        return f"{what} has another shape than its inputs give"
    return None


def room(node: Node, settings: Settings, emit: Emit) -> str | None:
    """Whether there is room for the steps. Raises QuantizationError where `emit` does."""
    for given in (Layout.flat(node.outputs[0].shape) if node.outputs[0] else None, None):
        place = _place(node, [given] * len(node.inputs), settings.config)
        try:
            _schedule(Extent(1, 1, 1, 1), place, place.steps(emit), settings.config)
        except ScheduleError:
            return "the VTA's accumulator memory is too small"
    return None


def plan(node: Node, settings: Settings, given: Sequence[Layout | None], emit: Emit) -> Plan:
    """A node that `refusal` and `room` have no objection to."""
    place = _place(node, given, settings.config)
    steps = place.steps(emit)

    def run(builder: Builder, inputs: Sequence[Surface | None], outputs: Sequence[Surface]) -> None:
        config = builder.config
        sources = [inputs[at] for at in place.planes]
        surfaces = [surface for surface in (*sources, *outputs) if surface is not None]
        even = place.vector is None and all(one.size == 1 for one in steps.vectors)
        surfaces = _rows(surfaces, even)
        *tiles, target = surfaces
        extent = Extent(target.groups, target.blocks, target.height, target.width)
        _schedule(extent, place, steps, config).emit(
            builder.runtime,
            tiles,
            target,
            channels=_vectors(builder, steps, extent, place.vector, inputs),
        )

    return Plan(place.inputs, (place.output,), Compute(run))


@dataclass(frozen=True)
class _Place:
    """Which input is loaded into which plane, and how the tensors lie."""

    inputs: tuple[Layout | None, ...]
    output: Layout
    planes: tuple[int, ...]
    """The inputs in planes 0 and 1."""
    other: Operand | None
    vector: int | None = None
    """The input that is an activation for each channel."""

    def steps(self, emit: Emit) -> Steps:
        """The steps of an operator; an empty vector stands for the activation."""
        steps = Steps(vectors=[] if self.vector is None else [np.zeros(0, np.int64)])
        emit(steps, self.planes[0], self.other)
        return steps


def _place(node: Node, given: Sequence[Layout | None], config: Config) -> _Place:
    sources, output = _tensors(node)
    whole = [at for at, tensor in enumerate(sources) if tensor.size == output.size]
    layout = next((its for at, its in enumerate(given) if its and at in whole), None)
    layout = layout.with_margin(NO_MARGIN) if layout else _images_or_flat(output, config)
    spread = replace(layout, spread=output.shape)
    layouts: list[Layout | None] = [layout if at in whole else spread for at in range(len(sources))]
    # A constant is better the other one.
    first = min(
        range(len(sources)), key=lambda at: (at not in whole, sources[at].constant is not None)
    )
    if len(sources) == 1:
        return _Place(tuple(layouts), layout, (0,), None)
    second = 1 - first
    tensor = sources[second]
    if second not in whole and tensor.constant is not None:
        if tensor.size == 1 or _by_channel(tensor, output, layout, config):
            layouts[second] = None
            values = tensor.constant.reshape(-1).astype(np.int64)
            return _Place(tuple(layouts), layout, (first,), values)
    elif second not in whole and _by_channel(tensor, output, layout, config):
        images = math.prod(tensor.shape[:-1])
        layouts[second] = Layout(Sizes(images, 1, 1, output.shape[-1]))
        return _Place(tuple(layouts), layout, (first,), _VECTOR, second)
    return _Place(tuple(layouts), layout, (first, second), OTHER)


def _by_channel(tensor: Tensor, output: Tensor, layout: Layout, config: Config) -> bool:
    """Whether it has a value for each channel of the images as which the output lies, or for each
    channel of each image."""
    if layout.sizes != Layout.image(output.shape).sizes or not output.shape:
        return False
    shape = (1,) * (len(output.shape) - len(tensor.shape)) + tensor.shape
    images = math.prod(shape[:-1])
    if shape[-1] != output.shape[-1]:
        return False
    if images == 1:
        return config.batch == 1 or layout.sizes.images == 1 or tensor.constant is not None
    return tensor.constant is None and images == layout.sizes.images == math.prod(shape[:-3])


def _images_or_flat(output: Tensor, config: Config) -> Layout:
    """As images, where those do not waste too much."""
    image, flat = Layout.image(output.shape), Layout.flat(output.shape)
    return image if image.elements(config) <= WASTE * flat.elements(config) else flat


def _tensors(node: Node) -> tuple[list[Tensor], Tensor]:
    output = node.outputs[0]
    assert output is not None
    return [tensor for tensor in node.inputs if tensor is not None], output


def _schedule(extent: Extent, place: _Place, steps: Steps, config: Config) -> Elementwise:
    return elementwise(extent, config, (MemoryId.ACC_8BIT,) * len(place.planes), steps.steps)


def _rows(surfaces: list[Surface], even: bool) -> list[Surface]:
    """Surfaces with rows as long as may be: all elements in one where all of them are treated
    evenly, else a plane's, and only where nothing lies between."""
    if even and all(surface.is_contiguous for surface in surfaces):
        return [surface.as_row() for surface in surfaces]
    if all(surface.is_dense for surface in surfaces):
        return [surface.flattened() for surface in surfaces]
    return surfaces


def _vectors(
    builder: Builder,
    steps: Steps,
    extent: Extent,
    vector: int | None,
    inputs: Sequence[Surface | None],
) -> list[Buffer | Surface]:
    lanes = extent.blocks * builder.config.block_out
    made: list[Buffer | Surface] = []
    for values in steps.vectors:
        surface = None if values.size or vector is None else inputs[vector]
        if surface is not None:
            made.append(surface)
        else:
            made.append(builder.channels(np.resize(values, lanes) if values.size == 1 else values))
    return made

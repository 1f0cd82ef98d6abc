"""What operators that take values one by one have in common: where the values lie, and the run."""

from collections.abc import Sequence

import numpy as np

from potash_device.vta.config import Config, MemoryId
from potash_firmware.tflite.capi import Node, Tensor
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.operators.requantization import Steps
from potash_firmware.tflite.packing import NO_MARGIN, Layout
from potash_firmware.tflite.plans import Builder, Compute, Plan, Settings
from potash_firmware.vta_runtime.schedules import (
    Elementwise,
    Extent,
    ScheduleError,
    Surface,
    elementwise,
)

WASTE = 2
"""How many times the elements of a flat layout images may take."""


def refusal(node: Node, settings: Settings, inputs: int, what: str) -> str | None:
    """Why the tensors of a node with that many inputs are not for the VTA; None when they are."""
    reason = checks.first((checks.core(settings.config), checks.arity(node, (inputs,), what)))
    if reason is not None:
        return reason
    reason = checks.first(checks.quantized(tensor) for tensor in (*node.inputs, *node.outputs))
    if reason is not None:
        return reason
    if len({tensor.shape for tensor in (*node.inputs, *node.outputs) if tensor}) != 1:
        return "the shapes differ, and broadcasting is not done"
    return None


def room(steps: Steps, inputs: int, config: Config) -> str | None:
    """Whether there is room for the steps."""
    try:
        _schedule(Extent(1, 1, 1, 1), steps, inputs, config)
    except ScheduleError:
        return "the VTA's accumulator memory is too small"
    return None


def plan(node: Node, settings: Settings, given: Sequence[Layout | None], steps: Steps) -> Plan:
    """A node whose inputs go to planes 0, 1, …, and what happens to them there."""
    output = node.outputs[0]
    assert output is not None
    layout = _layout(output, given, settings.config)

    def emit(
        builder: Builder, inputs: Sequence[Surface | None], outputs: Sequence[Surface]
    ) -> None:
        surfaces = [surface for surface in (*inputs, *outputs) if surface is not None]
        if all(surface.is_dense for surface in surfaces):
            surfaces = [_run(surface) for surface in surfaces]
        *sources, target = surfaces
        extent = Extent(target.groups, target.blocks, target.height, target.width)
        lanes = extent.blocks * builder.config.block_out
        _schedule(extent, steps, len(sources), builder.config).emit(
            builder.runtime,
            sources,
            target,
            channels=[builder.channels(np.broadcast_to(one, lanes)) for one in steps.vectors],
        )

    return Plan((layout,) * len(node.inputs), (layout,), Compute(emit))


def _schedule(extent: Extent, steps: Steps, inputs: int, config: Config) -> Elementwise:
    return elementwise(extent, config, (MemoryId.ACC_8BIT,) * inputs, steps.steps)


def _layout(output: Tensor, given: Sequence[Layout | None], config: Config) -> Layout:
    """As one of the inputs lies already; else as images, where those do not waste too much."""
    for layout in given:
        if layout is not None:
            return layout.with_margin(NO_MARGIN)
    image, flat = Layout.image(output.shape), Layout.flat(output.shape)
    return image if image.elements(config) <= WASTE * flat.elements(config) else flat


def _run(surface: Surface) -> Surface:
    """A dense surface as one row of elements."""
    elements = surface.groups * surface.blocks * surface.height * surface.width
    return Surface.dense(surface.buffer, 1, 1, 1, elements)

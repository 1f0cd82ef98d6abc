"""CONCATENATION of int8 tensors of one scale: moves of elements where the pieces begin with one.

Where they do not, as channels that do not fill their blocks, it is packing.
Source: `tflite/kernels/concatenation.cc`.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from potash_device.vta.config import Config
from potash_firmware.tflite.capi import Activation, ConcatenationOptions, Node, Tensor
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.packing import Layout
from potash_firmware.tflite.plans import Arrange, Builder, Compute, Plan, Settings
from potash_firmware.vta_runtime.schedules import Surface, between, move


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this concatenation; None when it does."""
    reason = checks.first(
        (
            checks.core(settings.config),
            checks.arity(node, range(1, len(node.inputs) + 1), "a concatenation"),
            *map(checks.quantized, (*node.inputs, *node.outputs)),
        )
    )
    if reason is not None:
        return reason
    sources, output = _tensors(node)
    if not isinstance(node.options, ConcatenationOptions):
        return "a concatenation has options"
    if node.options.activation != Activation.NONE:
        return "the concatenation has a fused activation"
    rank = len(output.shape)
    if not -rank <= node.options.axis < rank:
        return "the concatenation is along no axis of its output"
    axis = _axis(node)
    shapes = [list(source.shape) for source in sources]
    if any(len(shape) != rank for shape in shapes):
        return "the tensors of the concatenation differ in rank"
    whole = [*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :]]
    if list(output.shape) != whole or any(
        shape[:axis] + shape[axis + 1 :] != whole[:axis] + whole[axis + 1 :] for shape in shapes
    ):
        return "the shapes of the concatenation do not fit together"
    return checks.first(checks.same_scale(source, output) for source in sources)


def plan(node: Node, settings: Settings, given: Sequence[Layout | None]) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    sources, output = _tensors(node)
    axis = _axis(node)
    sizes = [source.shape[axis] for source in sources]
    firsts = [0, *itertools.accumulate(sizes)][:-1]
    layouts = tuple(Layout.image(source.shape) for source in sources), (Layout.image(output.shape),)
    # Counted from the last axis: channels, columns, rows, images.
    behind = min(len(output.shape) - 1 - axis, 3)
    if len(output.shape) == 2 and behind == 1:
        behind = 3
    step = _step(behind, len(output.shape), settings.config)
    if step is None or any(first % step for first in firsts):
        return Plan(*layouts, Arrange(lambda *values: np.concatenate(values, axis)))

    def emit(
        builder: Builder, inputs: Sequence[Surface | None], outputs: Sequence[Surface]
    ) -> None:
        for surface, first in zip(inputs, firsts, strict=True):
            assert surface is not None
            target = _part(outputs[0], behind, first // step, surface)
            move(builder.runtime, surface, target, between(surface, target))

    return Plan(*layouts, Compute(emit))


def _tensors(node: Node) -> tuple[list[Tensor], Tensor]:
    """The inputs and the output."""
    output = node.outputs[0]
    assert output
    return [tensor for tensor in node.inputs if tensor], output


def _axis(node: Node) -> int:
    assert isinstance(node.options, ConcatenationOptions)
    _, output = _tensors(node)
    return node.options.axis % len(output.shape)


def _step(behind: int, rank: int, config: Config) -> int | None:
    """How many places of the axis an element takes; None where the images have several axes."""
    if behind > 2:
        return config.batch if rank <= 4 else None
    return config.block_out if behind == 0 else 1


def _part(whole: Surface, behind: int, first: int, size: Surface) -> Surface:
    """As much as `size` of a surface, from an element of an axis on."""
    group, row, column, block = (first if behind == axis else 0 for axis in (3, 2, 1, 0))
    return replace(
        whole,
        first=whole.place(group, block, row, column),
        groups=size.groups,
        blocks=size.blocks,
        height=size.height,
        width=size.width,
    )

"""TRANSPOSE of int8: nothing where values stay in order, moves of elements where channels stay last.

Others change places within the elements, which is packing. Source: `tflite/kernels/transpose.cc`.
"""

from collections.abc import Sequence

import numpy as np

from potash_firmware.tflite.capi import Node, Tensor
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.operators.reshape import same_surface
from potash_firmware.tflite.packing import NO_MARGIN, Layout
from potash_firmware.tflite.plans import Arrange, Builder, Compute, Plan, Settings
from potash_firmware.vta_runtime.schedules import Surface, Way, move


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this node; None when it does."""
    reason = checks.moving(node, settings, (2,), "a transposition") or checks.numbers(
        node.inputs[1]
    )
    if reason is not None:
        return reason
    source, order, output = _tensors(node)
    if sorted(order) != list(range(len(source.shape))):
        return "the transposition has other axes than its input"
    if tuple(source.shape[axis] for axis in order) != output.shape:
        return "the transposition's output has another shape than it should"
    return None


def plan(node: Node, settings: Settings, given: Sequence[Layout | None]) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    source, order, output = _tensors(node)
    moving = [axis for axis in order if source.shape[axis] > 1]
    if moving == sorted(moving):
        layout = given[0].with_margin(NO_MARGIN) if given[0] else Layout.image(output.shape)
        return Plan((layout, None), (layout,), same_surface())
    layouts = (Layout.image(source.shape), None), (Layout.image(output.shape),)
    channels = len(source.shape) - 1
    # With several images in an element, their axes have to stay as well.
    kept = {channels, *(range(channels - 2) if settings.config.batch > 1 else ())}
    if channels < 2 or any(order[axis] != axis for axis in kept):
        return Plan(*layouts, Arrange(lambda values: np.transpose(values, order)))

    def emit(
        builder: Builder, inputs: Sequence[Surface | None], outputs: Sequence[Surface]
    ) -> None:
        before, after = inputs[0], outputs[0]
        assert before is not None
        its, others = _strides(before, source.shape), _strides(after, output.shape)
        ways = [
            Way(extent, its[axis], stride)
            for extent, axis, stride in zip(output.shape[:-1], order, others, strict=False)
        ]
        if settings.config.batch > 1:
            # Images stay where they are, by groups.
            ways = [Way(before.groups, before.group, after.group), *ways[-2:]]
        deep = Way(before.blocks, before.plane, after.plane)
        move(builder.runtime, before, after, [*ways, deep])

    return Plan(*layouts, Compute(emit))


def _tensors(node: Node) -> tuple[Tensor, list[int], Tensor]:
    """The input, the axes of the output in it, and the output."""
    source, order = node.inputs
    output = node.outputs[0]
    assert source and order and output and order.constant is not None
    rank = len(source.shape)
    axes = order.constant.reshape(-1).tolist()
    return source, [axis + rank if axis < 0 else axis for axis in axes], output


def _strides(surface: Surface, shape: Sequence[int]) -> list[int]:
    """How many elements apart what differs along each axis but the channels' lies."""
    strides = [surface.row, 1]
    image = surface.group
    for extent in shape[-4::-1]:
        strides.insert(0, image)
        image *= extent
    return strides

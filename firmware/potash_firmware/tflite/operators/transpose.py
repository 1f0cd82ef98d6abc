"""TRANSPOSE of int8: nothing where values stay in order, moves of elements where channels stay
last.

Others change places within the elements, which is packing. Source: `tflite/kernels/transpose.cc`.
"""

from collections.abc import Sequence

import numpy as np

from potash_firmware.tflite.capi import Node
from potash_firmware.tflite.lowering import Arrange, Builder, Compute, Lowering, Refusal, Settings
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.operators.reshape import same_surface
from potash_firmware.tflite.packing import Layout
from potash_firmware.vta_runtime.schedules import MovedAxis, Surface, move


def lower(node: Node, settings: Settings) -> Lowering:
    """Raises Refusal."""
    (source,), output = checks.tensors(node, settings, (2,), "a transposition", 1)
    checks.same_scale(source, output)
    rank, batch = len(source.shape), settings.config.batch
    order = [axis + rank if axis < 0 else axis for axis in checks.numbers(node.inputs[1])]
    if sorted(order) != list(range(rank)):
        raise Refusal("the transposition has other axes than its input")
    if tuple(source.shape[axis] for axis in order) != output.shape:
        raise Refusal("the transposition's output has another shape than it should")
    moving = [axis for axis in order if source.shape[axis] > 1]
    if moving == sorted(moving):
        return same_surface(output)
    inputs, outputs = (Layout.image(source.shape), None), (Layout.image(output.shape),)
    channels = rank - 1
    # With several images in an element, their axes have to stay as well.
    kept = {channels, *(range(channels - 2) if batch > 1 else ())}
    if channels < 2 or any(order[axis] != axis for axis in kept):
        return Lowering.fixed(inputs, outputs, Arrange(lambda values: np.transpose(values, order)))

    def emit(
        builder: Builder, inputs: Sequence[Surface | None], outputs: Sequence[Surface]
    ) -> None:
        before, after = inputs[0], outputs[0]
        assert before is not None
        its, others = _strides(before, source.shape), _strides(after, output.shape)
        axes = [
            MovedAxis(extent, its[axis], stride)
            for extent, axis, stride in zip(output.shape[:-1], order, others, strict=False)
        ]
        if batch > 1:
            # Images stay where they are, by groups.
            axes = [MovedAxis(before.groups, before.group, after.group), *axes[-2:]]
        deep = MovedAxis(before.blocks, before.plane, after.plane)
        move(builder.runtime, before, after, [*axes, deep])

    return Lowering.fixed(inputs, outputs, Compute(emit))


def _strides(surface: Surface, shape: Sequence[int]) -> list[int]:
    """The distance in elements of neighbours along each axis but the channels'."""
    strides = [surface.row, 1]
    image = surface.group
    for extent in shape[-4::-1]:
        strides.insert(0, image)
        image *= extent
    return strides

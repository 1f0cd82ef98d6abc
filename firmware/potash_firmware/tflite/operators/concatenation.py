"""CONCATENATION of int8 tensors of one scale: moves of elements where the pieces begin with one.

Where they do not, as channels that do not fill their blocks, it is packing.
Source: `tflite/kernels/concatenation.cc`.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from potash_device.vta.config import Config
from potash_firmware.tflite.capi import Activation, Node
from potash_firmware.tflite.lowering import Arrange, Builder, Compute, Lowering, Refusal, Settings
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.packing import Layout
from potash_firmware.vta_runtime.schedules import Surface, between, move


def lower(node: Node, settings: Settings) -> Lowering:
    """Raises Refusal."""
    what = "a concatenation"
    counts = range(1, len(node.inputs) + 1)
    sources, output = checks.tensors(node, settings, counts, what)
    options = checks.options(node, what)
    if options.activation != Activation.NONE:
        raise Refusal("the concatenation has a fused activation")
    rank = len(output.shape)
    if not -rank <= options.axis < rank:
        raise Refusal("the concatenation is along no axis of its output")
    axis = options.axis % rank
    if any(len(source.shape) != rank for source in sources):
        raise Refusal("the tensors of the concatenation differ in rank")
    sizes = [source.shape[axis] for source in sources]
    if output.shape[axis] != sum(sizes) or any(
        (*source.shape[:axis], output.shape[axis], *source.shape[axis + 1 :]) != output.shape
        for source in sources
    ):
        raise Refusal("the shapes of the concatenation do not fit together")
    for source in sources:
        checks.same_scale(source, output)
    firsts = [0, *itertools.accumulate(sizes)][:-1]
    inputs = [Layout.image(source.shape) for source in sources]
    outputs = (Layout.image(output.shape),)
    # Axes after it: none for channels, then columns, rows, images.
    inner = min(rank - 1 - axis, 3)
    if rank == 2 and inner == 1:
        inner = 3
    step = _step(inner, rank, settings.config)
    if step is None or any(first % step for first in firsts):
        arrange = Arrange(lambda *values: np.concatenate(values, axis))
        return Lowering.fixed(inputs, outputs, arrange)

    def emit(builder: Builder, pieces: Sequence[Surface | None], wholes: Sequence[Surface]) -> None:
        for surface, first in zip(pieces, firsts, strict=True):
            assert surface is not None
            target = _part(wholes[0], inner, first // step, surface)
            move(builder.runtime, surface, target, between(surface, target))

    return Lowering.fixed(inputs, outputs, Compute(emit))


def _step(inner: int, rank: int, config: Config) -> int | None:
    """How many places of the axis an element takes; None where the images have several axes."""
    if inner > 2:
        return config.batch if rank <= 4 else None
    return config.block_out if inner == 0 else 1


def _part(whole: Surface, inner: int, first: int, size: Surface) -> Surface:
    """As much as `size` of a surface, from an element of an axis on."""
    group, row, column, block = (first if inner == axis else 0 for axis in (3, 2, 1, 0))
    return replace(
        whole,
        first=whole.place(group, block, row, column),
        groups=size.groups,
        blocks=size.blocks,
        height=size.height,
        width=size.width,
    )

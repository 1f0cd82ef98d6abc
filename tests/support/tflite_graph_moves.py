"""Nodes of random networks that take values out of a tensor, give them other places, or repeat and
mix them: slices, splits, moves between depth and space, changes of the rank, resizing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from support.graph_builder import Tensor

if TYPE_CHECKING:
    from support.tflite_graphs import Drawing

CODE = schema.BuiltinOperator
MOST_VALUES = 1 << 13
"""In one tensor."""


def _like(net: Drawing, x: Tensor, shape: Sequence[int]) -> Tensor:
    """An activation with the quantisation of `x`."""
    return net.graph.tensor(shape, x.scale, x.zero_point)


def _numbers(net: Drawing, values: Sequence[int]) -> Tensor:
    return net.graph.constant(np.array(values, np.int32))


def strided_slice(net: Drawing) -> Tensor | None:
    x = net.tensor((1, 2, 3, 4))
    if x is None:
        return None
    begins, ends, steps, shape = [], [], [], []
    for axis, extent in enumerate(x.shape):
        block = 8 if axis == len(x.shape) - 1 and net.one_in(2) else 1
        begin = int(net.random.integers((extent - 1) // block + 1)) * block
        end = extent if net.one_in(2) else int(net.random.integers(begin + 1, extent + 1))
        step = net.choose([1, 1, 1, 2, 3])
        begins.append(begin - extent if net.one_in(4) else begin)
        ends.append(end)
        steps.append(step)
        shape.append(len(range(begin, end, step)))
    options = schema.StridedSliceOptionsT()
    if net.one_in(4):
        at = int(net.random.integers(len(shape)))
        options.shrinkAxisMask, steps[at] = 1 << at, 1
        ends[at] = begins[at] + 1
        del shape[at]
    if net.one_in(4):
        at = len(x.shape) - 1
        if not options.shrinkAxisMask:
            options.endMask = 1 << at
            shape[at] = len(range(begins[at] % x.shape[at], x.shape[at], steps[at]))
    inputs = [x, *(_numbers(net, one) for one in (begins, ends, steps))]
    return net.graph.operator(CODE.STRIDED_SLICE, inputs, _like(net, x, shape), options)


def split(net: Drawing) -> Tensor | None:
    """SPLIT in equal pieces, SPLIT_V in others."""
    x = net.tensor((2, 3, 4))
    if x is None:
        return None
    axis = net.choose([-1, *range(len(x.shape))])
    extent = x.shape[axis]
    block = 8 if net.one_in(2) and extent > 8 else 1
    count = net.choose([1, 2, 3])
    equal = net.one_in(2)
    if equal:
        if extent % count:
            return None
        sizes = [extent // count] * count
    else:
        places = block * net.random.integers(1, -(-extent // block) + 1, count - 1)
        borders = sorted({0, extent, *(int(place) for place in places if place < extent)})
        sizes = [high - low for low, high in itertools.pairwise(borders)]
    outputs = []
    for size in sizes:
        shape = list(x.shape)
        shape[axis] = size
        outputs.append(_like(net, x, shape))
    along = net.graph.constant(np.array(axis, np.int32))
    made: schema.SplitOptionsT | schema.SplitVOptionsT
    if equal:
        made, code, inputs = schema.SplitOptionsT(), CODE.SPLIT, [along, x]
    else:
        made, code = schema.SplitVOptionsT(), CODE.SPLIT_V
        inputs = [x, _numbers(net, sizes), along]
    made.numSplits = len(outputs)
    first, *others = outputs
    net.live += others
    return net.graph.operator(code, inputs, first, made, others=others)


def blocks(net: Drawing) -> Tensor | None:
    """DEPTH_TO_SPACE and SPACE_TO_DEPTH."""
    x = net.tensor((4,))
    if x is None:
        return None
    images, height, width, channels = x.shape
    size = net.choose([1, 2, 2, 3])
    options: schema.DepthToSpaceOptionsT | schema.SpaceToDepthOptionsT
    if channels % size**2 == 0 and net.one_in(2):
        options, code = schema.DepthToSpaceOptionsT(), CODE.DEPTH_TO_SPACE
        shape = images, height * size, width * size, channels // size**2
    elif height % size == 0 == width % size:
        options, code = schema.SpaceToDepthOptionsT(), CODE.SPACE_TO_DEPTH
        shape = images, height // size, width // size, channels * size**2
    else:
        return None
    options.blockSize = size
    return net.graph.operator(code, [x], _like(net, x, shape), options)


def rank(net: Drawing) -> Tensor | None:
    """EXPAND_DIMS and SQUEEZE."""
    x = net.tensor((1, 2, 3, 4))
    if x is None:
        return None
    ones = [at for at, extent in enumerate(x.shape) if extent == 1]
    if ones and len(x.shape) > 1 and net.one_in(2):
        at = net.choose(ones)
        options = schema.SqueezeOptionsT()
        options.squeezeDims = [at]
        shape = [*x.shape[:at], *x.shape[at + 1 :]]
        return net.graph.operator(CODE.SQUEEZE, [x], _like(net, x, shape), options)
    if len(x.shape) > 3:
        return None
    at = int(net.random.integers(len(x.shape) + 1))
    shape = [*x.shape[:at], 1, *x.shape[at:]]
    inputs = [x, net.graph.constant(np.array(at, np.int32))]
    options = schema.ExpandDimsOptionsT()
    return net.graph.operator(CODE.EXPAND_DIMS, inputs, _like(net, x, shape), options)


def resize(net: Drawing) -> Tensor | None:
    """RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR."""
    x = net.tensor((4,))
    if x is None:
        return None
    factors = net.choose([1, 2, 2, 3]), net.choose([1, 2, 2, 3])
    size = [extent * factor for extent, factor in zip(x.shape[1:3], factors, strict=True)]
    if net.one_in(3):
        size = [int(net.random.integers(1, 20)) for _ in range(2)]
    shape = x.shape[0], *size, x.shape[3]
    if math.prod(shape) > MOST_VALUES:
        return None
    made: schema.ResizeBilinearOptionsT | schema.ResizeNearestNeighborOptionsT
    if net.one_in(2):
        made, code = schema.ResizeBilinearOptionsT(), CODE.RESIZE_BILINEAR
    else:
        made, code = schema.ResizeNearestNeighborOptionsT(), CODE.RESIZE_NEAREST_NEIGHBOR
    made.alignCorners, made.halfPixelCenters = net.choose(
        [(False, False), (True, False), (False, True)]
    )
    return net.graph.operator(code, [x, _numbers(net, size)], _like(net, x, shape), made, version=3)

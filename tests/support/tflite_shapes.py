"""Graphs that compute shapes, as converters write them for an open batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.writer import ModelBuilder
from support.model_fuzz import packed, unpacked

OPERATOR, OPTIONS = schema.BuiltinOperator, schema.BuiltinOptions


def flatten(graph: ModelBuilder, x: int, output: int, rest: Sequence[int] = (128,)) -> None:
    """As Keras: SHAPE, STRIDED_SLICE, PACK and RESHAPE; `rest` are the extents after the batch."""
    shape = graph.tensor("shape", (4,), np.int32)
    options = schema.ShapeOptionsT()
    options.outType = schema.TensorType.INT32
    graph.operator(
        OPERATOR.SHAPE, (x,), (shape,), options_type=OPTIONS.ShapeOptions, options=options
    )
    ends = [graph.tensor(f"end {end}", (1,), np.int32, data=end) for end in (0, 1, 1)]
    batch = graph.tensor("batch", (), np.int32)
    options = schema.StridedSliceOptionsT()
    options.beginMask = options.endMask = options.ellipsisMask = options.newAxisMask = 0
    options.shrinkAxisMask = 1
    graph.operator(
        OPERATOR.STRIDED_SLICE,
        (shape, *ends),
        (batch,),
        options_type=OPTIONS.StridedSliceOptions,
        options=options,
    )
    extents = [graph.tensor(f"extent {at}", (), np.int32, data=at) for at in rest]
    wanted = graph.tensor("wanted", (1 + len(rest),), np.int32)
    options = schema.PackOptionsT()
    options.valuesCount, options.axis = 1 + len(rest), 0
    graph.operator(
        OPERATOR.PACK,
        (batch, *extents),
        (wanted,),
        options_type=OPTIONS.PackOptions,
        options=options,
    )
    graph.operator(
        OPERATOR.RESHAPE,
        (x, wanted),
        (output,),
        options_type=OPTIONS.ReshapeOptions,
        options=schema.ReshapeOptionsT(),
    )


def multiply(graph: ModelBuilder, x: int, weights: int, output: int) -> None:
    """FULLY_CONNECTED without a bias."""
    graph.operator(
        OPERATOR.FULLY_CONNECTED,
        (x, weights, -1),
        (output,),
        options_type=OPTIONS.FullyConnectedOptions,
        options=schema.FullyConnectedOptionsT(),
    )


def opened(model: bytes, *names: bytes) -> bytes:
    """The model with tensors whose shapes are not known before it runs."""
    tables = unpacked(model)
    for tensor in tables.subgraphs[0].tensors:
        if tensor.name in names:
            tensor.shapeSignature = [-1] * len(tensor.shape)
    return packed(tables)

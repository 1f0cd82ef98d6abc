"""Tensors whose shapes are computed while a model runs, as a Flatten of an open batch makes them."""

from collections.abc import Sequence

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.delegate import OTHER_SHAPES
from potash_firmware.tflite.runtime import Model, ModelError, infer, inspect
from potash_firmware.tflite.validation import validate
from potash_firmware.tflite.writer import ModelBuilder
from support.model_fuzz import packed, unpacked
from support.tflite import bench, reference

OPERATOR, OPTIONS = schema.BuiltinOperator, schema.BuiltinOptions
X = np.random.default_rng(5).integers(-128, 128, (2, 4, 4, 8), np.int8)


class Graph(ModelBuilder):
    """Tensors that all have the same scale and zero point."""

    def activation(self, name: str, shape: Sequence[int]) -> int:
        return self.tensor(name, shape, scale=0.05, zero_point=3)

    def flatten(self, x: int, output: int) -> None:
        """As Keras: SHAPE, STRIDED_SLICE, PACK and RESHAPE."""
        shape = self.tensor("shape", (4,), np.int32)
        options = schema.ShapeOptionsT()
        options.outType = schema.TensorType.INT32
        self.operator(
            OPERATOR.SHAPE, (x,), (shape,), options_type=OPTIONS.ShapeOptions, options=options
        )
        ends = [self.tensor(f"end {end}", (1,), np.int32, data=end) for end in (0, 1, 1)]
        batch = self.tensor("batch", (), np.int32)
        options = schema.StridedSliceOptionsT()
        options.beginMask = options.endMask = options.ellipsisMask = options.newAxisMask = 0
        options.shrinkAxisMask = 1
        self.operator(
            OPERATOR.STRIDED_SLICE,
            (shape, *ends),
            (batch,),
            options_type=OPTIONS.StridedSliceOptions,
            options=options,
        )
        rest = self.tensor("rest", (), np.int32, data=128)
        wanted = self.tensor("wanted", (2,), np.int32)
        options = schema.PackOptionsT()
        options.valuesCount, options.axis = 2, 0
        self.operator(
            OPERATOR.PACK,
            (batch, rest),
            (wanted,),
            options_type=OPTIONS.PackOptions,
            options=options,
        )
        self.operator(
            OPERATOR.RESHAPE,
            (x, wanted),
            (output,),
            options_type=OPTIONS.ReshapeOptions,
            options=schema.ReshapeOptionsT(),
        )


def flattened(shape: Sequence[int]) -> bytes:
    """x + x, flattened, and that + that; the file gives `shape` for what is flat."""
    graph = Graph()
    x, y = (graph.activation(name, X.shape) for name in "xy")
    flat, output = (graph.activation(name, shape) for name in ("flat", "output"))
    graph.add(x, x, y)
    graph.flatten(y, flat)
    graph.add(flat, flat, output)
    return graph.build((x,), (output,))


def test_what_is_around_a_flatten_runs_on_the_vta() -> None:
    model = flattened((2, 128))
    with bench() as vta:
        assert vta.infer(model, (X,), X.size) == reference(model, (X,))
        assert vta.delegate.nodes_run == 2
        reasons = {node.operator: node.reason for node in inspect(model, vta.delegate)}
        output = bytearray(X.size)
        assert infer(model, X.tobytes(), memoryview(output), delegate=vta.delegate) == X.size
    assert reasons["ADD"] is None
    assert reasons["RESHAPE"] == "the reshape's shape is computed while the model runs"


@pytest.mark.parametrize("shape", [(1, 1), (1, 256)], ids=["smaller", "other"])
def test_nodes_whose_shapes_are_others_than_in_the_file_are_left(shape: Sequence[int]) -> None:
    model = flattened(shape)
    with bench() as vta:
        loaded = Model(model, delegate=vta.delegate, reference=True)
        output = bytearray(X.size)
        for values in (X, X[::-1].copy()):
            assert loaded(values.tobytes(), memoryview(output)) == X.size
            assert output == reference(model, (values,))
        assert vta.delegate.nodes_run == 3
        assert vta.reasons[0] is None and vta.reasons[-1] == OTHER_SHAPES


def test_a_shape_that_changes_after_the_first_run_is_an_error() -> None:
    graph = Graph()
    x, flat, output = (graph.activation(name, (2, 128)) for name in ("x", "flat", "output"))
    wanted = graph.tensor("wanted", (2,), np.int32)
    graph.operator(OPERATOR.RESHAPE, (x, wanted), (flat,))
    graph.add(flat, flat, output)
    with bench() as vta:
        loaded = Model(graph.build((x, wanted), (output,)), delegate=vta.delegate)
        for shape in ((2, 128), (2, 128)):
            data = X.tobytes() + np.array(shape, np.int32).tobytes()
            assert loaded(data, memoryview(bytearray(X.size))) == X.size
        data = X.tobytes() + np.array((4, 64), np.int32).tobytes()
        with pytest.raises(ModelError, match="has the shape \\(4, 64\\), and not \\(2, 128\\)"):
            loaded(data, memoryview(bytearray(X.size)))


def test_an_open_shape_in_the_file_says_nothing_about_what_is_there() -> None:
    # As in BirdNET, whose products get rows of 1025 values from a tensor of (1, 1) in the file.
    graph = Graph()
    x, flat = graph.activation("x", X.shape), graph.activation("flat", (1, 1))
    output = graph.activation("output", (1, 6))
    matrix = np.random.default_rng(6).integers(-127, 128, (6, 128), np.int8)
    weights = graph.tensor("weights", matrix.shape, scale=0.01, data=matrix)
    graph.flatten(x, flat)
    options = schema.FullyConnectedOptionsT()
    graph.operator(
        OPERATOR.FULLY_CONNECTED,
        (flat, weights, -1),
        (output,),
        options_type=OPTIONS.FullyConnectedOptions,
        options=options,
    )
    closed = graph.build((x,), (output,))
    with pytest.raises(ModelError, match="rows of 128, which do not divide 1"):
        validate(closed)
    tables = unpacked(closed)
    for tensor in tables.subgraphs[0].tensors:
        if tensor.name in (b"flat", b"output"):
            tensor.shapeSignature = [-1] * len(tensor.shape)
    model = packed(tables)
    expected = reference(model, (X,))
    assert len(expected) == 12
    with bench() as vta:
        assert vta.infer(model, (X,), 12) == expected

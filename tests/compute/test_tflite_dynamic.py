"""Tensors whose shapes are computed while a model runs, as a Flatten of an open batch makes them."""

from collections.abc import Sequence

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.delegate import OTHER_SHAPES
from potash_firmware.tflite.runtime import Model, ModelError, infer, inspect
from potash_firmware.tflite.validation import validate
from potash_firmware.tflite.writer import ModelBuilder
from support.tflite import bench, litert_only, reference
from support.tflite_shapes import OPERATOR, OPTIONS, flatten, multiply, opened

pytestmark = litert_only

X = np.random.default_rng(5).integers(-128, 128, (2, 4, 4, 8), np.int8)


class Graph(ModelBuilder):
    """Tensors that all have the same scale and zero point."""

    def activation(self, name: str, shape: Sequence[int]) -> int:
        return self.tensor(name, shape, scale=0.05, zero_point=3)


def flattened(shape: Sequence[int]) -> bytes:
    """x + x, flattened, and that + that; the file gives `shape` for what is flat."""
    graph = Graph()
    x, y = (graph.activation(name, X.shape) for name in "xy")
    flat, output = (graph.activation(name, shape) for name in ("flat", "output"))
    graph.add(x, x, y)
    flatten(graph, y, flat)
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
    flatten(graph, x, flat)
    multiply(graph, flat, weights, output)
    closed = graph.build((x,), (output,))
    with pytest.raises(ModelError, match="rows of 128, which do not divide 1"):
        validate(closed)
    model = opened(closed, b"flat", b"output")
    expected = reference(model, (X,))
    assert len(expected) == 12
    with bench() as vta:
        assert vta.infer(model, (X,), 12) == expected


def test_a_node_that_the_shapes_in_the_file_do_not_suit_runs_behind_others_that_they_do() -> None:
    # As in BirdNET: a sum of placeholders suits the VTA, but then a convolution gets an image of
    # one pixel, for which its kernel is too large.
    graph = Graph()
    x, y = (graph.activation(name, X.shape) for name in "xy")
    image, total = (graph.activation(name, (1, 1, 1, 8)) for name in ("image", "total"))
    output = graph.activation("output", (1, 1, 1, 5))
    kernels = np.random.default_rng(7).integers(-127, 128, (5, 3, 3, 8), np.int8)
    weights = graph.tensor("weights", kernels.shape, scale=[0.01] * 5, data=kernels)
    bias = graph.tensor("bias", (5,), np.int32, scale=[0.0005] * 5, data=[100, 0, -7, 3, 12])
    graph.add(x, x, y)
    flatten(graph, y, image, (4, 4, 8))
    graph.add(image, image, total)
    options = schema.Conv2DOptionsT()
    options.padding = schema.Padding.VALID
    options.strideH = options.strideW = 1
    graph.operator(
        OPERATOR.CONV_2D,
        (total, weights, bias),
        (output,),
        options_type=OPTIONS.Conv2DOptions,
        options=options,
    )
    model = opened(graph.build((x,), (output,)), b"image", b"total", b"output")
    with bench() as vta:
        loaded = Model(model, delegate=vta.delegate, reference=True)
        result = bytearray(40)
        for values in (X, X[::-1].copy()):
            assert loaded(values.tobytes(), memoryview(result)) == 40
            assert result == reference(model, (values,))
        # The ADD before the reshape stays on the VTA; it ran in the attempt that failed, too.
        assert vta.delegate.nodes_run == 3
        with pytest.raises(ModelError, match="there is room for 39"):
            loaded(X.tobytes(), memoryview(bytearray(39)))

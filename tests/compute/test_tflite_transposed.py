"""TRANSPOSE_CONV on the VTA: the reference kernel's bits."""

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.vta.config import Config
from potash_firmware.tflite.capi import BuiltinOperator
from potash_firmware.tflite.runtime import inspect
from potash_firmware.tflite.validation import ModelError, validate
from support.graph_builder import FusedActivation, GraphBuilder, Padding, Tensor
from support.tflite import bench, litert_only, reference
from support.tflite_values import SMALL, spread

pytestmark = litert_only

CONFIGS = (Config.default(), SMALL)
SCALE = 0.02


def transposed(
    graph: GraphBuilder,
    x: Tensor,
    weights: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Padding = Padding.SAME,
    *,
    bias: bool = True,
    activation: FusedActivation = FusedActivation.NONE,
    zero_point: int = 7,
) -> Tensor:
    """TRANSPOSE_CONV into an output of that height and width."""
    options = schema.TransposeConvOptionsT()
    options.padding, (options.strideH, options.strideW) = padding, stride
    options.fusedActivationFunction = activation
    outputs = weights.shape[0]
    inputs = [graph.constant(np.array((x.shape[0], *size, outputs), np.int32)), weights, x]
    if bias:
        values = np.random.default_rng(outputs).integers(-5000, 5000, outputs)
        inputs.append(graph.bias(values, x, weights))
    taps = max(1, math.prod(weights.shape[1:]) / math.prod(stride))
    y = graph.tensor((x.shape[0], *size, outputs), SCALE * 0.01 * 70 * math.sqrt(taps), zero_point)
    code = BuiltinOperator.TRANSPOSE_CONV
    return graph.operator(code, inputs, y, options, version=4)


def kernels(graph: GraphBuilder, *shape: int) -> Tensor:
    """Weights with a scale for each output channel."""
    random = np.random.default_rng(sum(shape))
    scales = (0.01 * 3 ** random.random(shape[0])).tolist()
    return graph.constant(random.integers(-127, 128, shape, np.int8), scales)


side = st.integers(1, 5)


@settings(max_examples=20, deadline=None)
@given(
    images=st.integers(1, 3),
    image=st.tuples(side, side),
    kernel=st.tuples(side, side),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    odd=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    channels=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    padding=st.sampled_from(Padding),
    bias=st.booleans(),
    activation=st.sampled_from(tuple(FusedActivation)[:4]),
    zero_points=st.tuples(st.integers(-128, 127), st.integers(-128, 127)),
    config=st.sampled_from(CONFIGS),
)
def test_any_transposed_convolution(
    images: int,
    image: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    odd: tuple[int, int],
    channels: tuple[int, int],
    padding: Padding,
    bias: bool,
    activation: FusedActivation,
    zero_points: tuple[int, int],
    config: Config,
) -> None:
    """Outputs of all sizes that a convolution makes the input's of."""
    size = []
    for extent, taps, step, more in zip(image, kernel, stride, odd, strict=True):
        least = (extent - 1) * step + (1 if padding is Padding.SAME else taps)
        size.append(least + min(more, step - 1))
    graph = GraphBuilder()
    x = graph.tensor((images, *image, channels[0]), SCALE, zero_points[0])
    w = kernels(graph, channels[1], *kernel, channels[0])
    y = transposed(
        graph, x, w, size, stride, padding,
        bias=bias, activation=activation, zero_point=zero_points[1],
    )  # fmt: skip
    model, data = graph.finish([x], [y]), spread(x.shape, sum(size))
    with bench(config) as vta:
        assert vta.infer(model, [data], math.prod(y.shape)) == reference(model, [data])
        assert vta.reasons == [None]


@pytest.mark.parametrize("config", CONFIGS)
def test_in_a_decoder(config: Config) -> None:
    """Between convolutions, with padding on both sides of it, in one stream."""
    graph = GraphBuilder()
    x = graph.tensor((2, 6, 5, 12), SCALE, 3)
    weights = graph.constant(np.ones((20, 3, 3, 12), np.int8), 0.01)
    y = graph.conv2d(x, weights, None, SCALE, -7)
    up = transposed(graph, y, kernels(graph, 9, 3, 3, 20), (12, 10), (2, 2))
    again = transposed(graph, up, kernels(graph, 17, 2, 2, 9), (24, 20), (2, 2), Padding.VALID)
    out = graph.max_pool2d(again, 3, padding=Padding.SAME)
    model, data = graph.finish([x], [up, out]), spread(x.shape)
    with bench(config) as vta:
        expected = reference(model, [data])
        assert vta.infer(model, [data], len(expected)) == expected
        assert vta.reasons == [None] * 4
        assert len(vta.streams) == 1


def test_a_multiplier_that_is_too_large_is_left_to_the_processor() -> None:
    graph = GraphBuilder()
    x = graph.tensor((1, 3, 3, 4), SCALE)
    w = graph.constant(np.ones((4, 4, 4, 4), np.int8), 1e5)
    with bench() as vta:
        (report,) = inspect(
            graph.finish([x], [transposed(graph, x, w, (6, 6), (2, 2))]), vta.delegate
        )
    assert report.reason == "a multiplier is too large for the VTA's 32 bits"


@pytest.mark.parametrize(
    ("size", "stride", "sentence"),
    [
        ((6, 6), (0, 2), "(TRANSPOSE_CONV) has StrideH 0"),
        ((6, 7), (2, 2), "makes the shape [1, 6, 7, 4] of (1, 3, 3, 4)"),
        ((6, 1 << 30), (2, 2), "makes a tensor that is too large"),
    ],
)
def test_impossible_ones_are_refused(
    size: Sequence[int], stride: Sequence[int], sentence: str
) -> None:
    graph = GraphBuilder()
    x = graph.tensor((1, 3, 3, 4), SCALE)
    w = graph.constant(np.ones((4, 2, 2, 4), np.int8), 0.01)
    inputs = [graph.constant(np.array((1, *size, 4), np.int32)), w, x]
    options = schema.TransposeConvOptionsT()
    options.strideH, options.strideW = stride
    y = graph.operator(
        BuiltinOperator.TRANSPOSE_CONV, inputs, graph.tensor((1, 6, 6, 4), SCALE), options
    )
    with pytest.raises(ModelError, match=re.escape(sentence)):
        validate(graph.finish([x], [y]))

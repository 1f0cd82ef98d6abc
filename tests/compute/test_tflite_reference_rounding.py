"""How sums are brought to the output's scale: the reference kernels' bits for many accumulators at
once.

A bias without products puts any number into an accumulator. TensorFlow Lite's reference kernels do
not agree with each other: CONV_2D and DEPTHWISE_CONV_2D round twice, FULLY_CONNECTED rounds once.
"""

from __future__ import annotations

import numpy as np
import pytest

from potash_firmware.apu.models import DRAM_BYTES
from support.graph_builder import GraphBuilder
from support.tflite import bench, reference

COUNT = 4096


def model(kind: str, seed: int) -> tuple[bytes, tuple[int, ...]]:
    """A model that gives COUNT sums of nothing and a bias, and its input's shape."""
    random = np.random.default_rng(seed)
    x_scale, scale, y_scale = random.uniform((0.01, 0.0005, 0.02), (0.05, 0.002, 0.3)).tolist()
    most = int(130 * y_scale / (x_scale * scale))
    sums = random.integers(-most, most, COUNT)
    graph = GraphBuilder()
    shapes = {
        "conv2d": ((1, 1, 1, 4), (COUNT, 1, 1, 4), 0),
        "depthwise": ((1, 1, 1, COUNT), (1, 1, 1, COUNT), 3),
        "connected": ((1, 4), (COUNT, 4), 0),
    }
    shape, kernel, axis = shapes[kind]
    scales = scale if kind == "connected" else [scale] * COUNT
    x = graph.tensor(shape, x_scale)
    weights = graph.constant(np.zeros(kernel, np.int8), scales, axis=axis)
    bias = graph.bias(sums, x, weights)
    if kind == "conv2d":
        y = graph.conv2d(x, weights, bias, y_scale, 0)
    elif kind == "depthwise":
        y = graph.depthwise_conv2d(x, weights, bias, y_scale, 0)
    else:
        y = graph.fully_connected(x, weights, bias, y_scale, 0)
    return graph.finish((x,), (y,)), shape


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["conv2d", "depthwise", "connected"])
def test_every_sum_is_rounded_as_the_reference_kernel_does(kind: str, seed: int) -> None:
    data, shape = model(kind, seed)
    inputs = [np.zeros(shape, np.int8)]
    expected = reference(data, inputs)
    assert len(set(expected)) > 200
    with bench(dram_bytes=DRAM_BYTES) as vta:
        result = vta.infer(data, inputs, COUNT)
    assert np.flatnonzero(np.frombuffer(result, "i1") != np.frombuffer(expected, "i1")).size == 0

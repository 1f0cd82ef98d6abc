"""Graphs made operator by operator: TensorFlow Lite agrees about their shapes and what they
compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from potash_firmware.tflite.interpreter import Interpreter, OpResolverType
from support.graph_builder import FusedActivation, GraphBuilder, Padding, Tensor

Array = npt.NDArray[Any]
RELU6 = FusedActivation.RELU6
SAME, VALID = Padding.SAME, Padding.VALID


def run(model: bytes, *inputs: Array) -> list[Array]:
    interpreter = Interpreter(
        model_content=model, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    for details, values in zip(interpreter.get_input_details(), inputs, strict=True):
        assert details["shape"].tolist() == list(values.shape)
        interpreter.set_tensor(details["index"], values)
    interpreter.invoke()
    return [interpreter.get_tensor(item["index"]) for item in interpreter.get_output_details()]


class Either:
    """Builds a graph in float32 or, with scales, in int8: the same call for both."""

    def __init__(self, quantised: bool) -> None:
        self.graph = GraphBuilder()
        self.quantised = quantised

    def out(self, scale: float, zero_point: int = 0) -> dict[str, Any]:
        return {"scale": scale, "zero_point": zero_point} if self.quantised else {}

    def weights(self, values: Array, axis: int = 0, *, each: bool = True) -> Tensor:
        if not self.quantised:
            return self.graph.constant(values)
        others = tuple(at for at in range(values.ndim) if at != axis)
        scales = np.abs(values).max(others if each else None, keepdims=True) / 127
        whole = np.round(values / scales).astype(np.int8)
        return self.graph.constant(whole, scales.reshape(-1).tolist(), axis=axis)

    def bias(self, values: Array, x: Tensor, weights: Tensor) -> Tensor:
        if not self.quantised:
            return self.graph.constant(values)
        assert x.scale is not None
        return self.graph.bias(np.round(values / (x.scale * np.array(weights.scales))), x, weights)


Case = Callable[[Either, Tensor], Tensor]
RANDOM = np.random.default_rng(10)
X = RANDOM.uniform(-1, 1, (2, 9, 8, 4)).astype(np.float32)
X_SCALE, X_ZERO = 2.1 / 255, 3


def numbers(*shape: int) -> Array:
    return RANDOM.uniform(-0.5, 0.5, shape).astype(np.float32)


KERNEL, DEPTHWISE, MATRIX = numbers(5, 3, 2, 4), numbers(1, 3, 3, 8), numbers(7, 4)
FIVE, SEVEN, EIGHT, FOUR = numbers(5), numbers(7), numbers(8), numbers(4)
OTHER = numbers(2, 9, 8, 4)


def conv(**options: Any) -> Case:
    def case(e: Either, x: Tensor) -> Tensor:
        w = e.weights(KERNEL)
        return e.graph.conv2d(x, w, e.bias(FIVE, x, w), **e.out(0.03, -5), **options)

    return case


def depthwise(e: Either, x: Tensor) -> Tensor:
    w = e.weights(DEPTHWISE, 3)
    b = e.bias(EIGHT, x, w)
    return e.graph.depthwise_conv2d(x, w, b, **e.out(0.02, 7), stride=2, dilation=(1, 1))


def connected(**options: Any) -> Case:
    def case(e: Either, x: Tensor) -> Tensor:
        w = e.weights(MATRIX, each=False)
        return e.graph.fully_connected(x, w, e.bias(SEVEN, x, w), **e.out(0.015), **options)

    return case


def other(e: Either) -> Tensor:
    if not e.quantised:
        return e.graph.constant(OTHER)
    return e.graph.constant(np.round(OTHER / X_SCALE + X_ZERO).astype(np.int8), X_SCALE, X_ZERO)


CASES: dict[str, Case] = {
    "conv2d": conv(activation=RELU6),
    "conv2d-valid": conv(padding=VALID, stride=(2, 1), dilation=(1, 3)),
    "conv2d-same-stride": conv(stride=(2, 3)),
    "conv2d-no-bias": lambda e, x: e.graph.conv2d(x, e.weights(KERNEL), **e.out(0.03, -5)),
    "depthwise": depthwise,
    "fully-connected": connected(activation=FusedActivation.RELU),
    "fully-connected-keep": connected(keep_dimensions=True),
    "fully-connected-no-bias": lambda e, x: e.graph.fully_connected(
        x, e.weights(MATRIX, each=False), **e.out(0.015)
    ),
    "add": lambda e, x: e.graph.add(x, other(e), **e.out(0.013, 1)),
    "sub": lambda e, x: e.graph.sub(x, other(e), **e.out(0.013, 1)),
    "mul": lambda e, x: e.graph.mul(x, other(e), **e.out(0.005, 1), activation=RELU6),
    "add-channels": lambda e, x: e.graph.add(
        x,
        e.graph.constant(np.array([9, 0, -9, 5], np.int8), 0.01)
        if e.quantised
        else e.graph.constant(np.array([0.09, 0, -0.09, 0.05], np.float32)),
        **e.out(0.013, 1),
    ),
    "minimum": lambda e, x: e.graph.minimum(x, other(e)),
    "maximum": lambda e, x: e.graph.maximum(x, other(e)),
    "max-pool": lambda e, x: e.graph.max_pool2d(x, (3, 2), stride=2, padding=SAME),
    "max-pool-valid": lambda e, x: e.graph.max_pool2d(x, 2, activation=FusedActivation.RELU),
    "average-pool": lambda e, x: e.graph.average_pool2d(x, 3, stride=(1, 2), padding=SAME),
    "mean": lambda e, x: e.graph.mean(x, **e.out(0.001)),
    "mean-keep": lambda e, x: e.graph.mean(x, (1, 2), **e.out(0.001), keep_dimensions=True),
    "pad": lambda e, x: e.graph.pad(x, ((0, 0), (1, 2), (0, 3), (0, 0))),
    "relu": lambda e, x: e.graph.relu(x, **e.out(0.01, -128)),
    "relu6": lambda e, x: e.graph.relu6(x, **e.out(0.01, -128)),
    "reshape": lambda e, x: e.graph.reshape(x, (2, -1)),
    "transpose": lambda e, x: e.graph.transpose(x, (0, 3, 1, 2)),
    "concatenation": lambda e, x: e.graph.concatenation((x, other(e), x), 2),
}


def made(case: Case, quantised: bool) -> tuple[bytes, Tensor]:
    e = Either(quantised)
    x = e.graph.tensor(X.shape, **e.out(X_SCALE, X_ZERO))
    y = case(e, x)
    return e.graph.finish((x,), (y,)), y


@pytest.mark.parametrize("name", CASES)
def test_shapes_follow_and_int8_says_what_float_says(name: str) -> None:
    model, y = made(CASES[name], quantised=False)
    (exact,) = run(model, X)
    assert exact.shape == y.shape
    model, y = made(CASES[name], quantised=True)
    whole = np.clip(np.round(X / X_SCALE + X_ZERO), -128, 127).astype(np.int8)
    (result,) = run(model, whole)
    assert result.shape == y.shape and result.dtype == np.int8
    assert y.scale is not None
    represented = (result.astype(np.float64) - y.zero_point) * y.scale
    assert np.abs(represented - exact).max() <= 3 * y.scale
    assert np.ptp(exact) > 20 * y.scale


def same_columns(*values: float) -> Array:
    return np.array(values, np.float32).reshape(1, 1, len(values), 1)


LINE = same_columns(1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        # A correlation, not a convolution; SAME puts the odd zero behind.
        (lambda g, x: g.conv2d(x, g.constant(same_columns(1, 10))), [21, 32, 43, 54, 5]),
        (
            lambda g, x: g.conv2d(x, g.constant(same_columns(1, 10)), padding=VALID, dilation=2),
            [31, 42, 53],
        ),
        (lambda g, x: g.max_pool2d(x, (1, 2)), [2, 4]),
        (lambda g, x: g.average_pool2d(x, (1, 3), stride=2, padding=SAME), [1.5, 3, 4.5]),
        (lambda g, x: g.sub(x, g.constant(np.float32(2)), activation=RELU6), [0, 0, 1, 2, 3]),
        (lambda g, x: g.pad(x, ((0, 0), (0, 0), (1, 2), (0, 0))), [0, 1, 2, 3, 4, 5, 0, 0]),
        (lambda g, x: g.mean(x), [3]),
        (lambda g, x: g.maximum(x, g.constant(np.float32(3))), [3, 3, 3, 4, 5]),
    ],
)  # fmt: skip
def test_what_operators_compute(
    build: Callable[[GraphBuilder, Tensor], Tensor], expected: Sequence[float]
) -> None:
    graph = GraphBuilder()
    x = graph.tensor(LINE.shape)
    y = build(graph, x)
    (result,) = run(graph.finish((x,), (y,)), LINE)
    assert result.reshape(-1).tolist() == expected
    assert result.shape == y.shape


def test_a_bias_has_the_scales_of_the_products() -> None:
    graph = GraphBuilder()
    x = graph.tensor((1, 2, 2, 1), 0.5, 3)
    weights = graph.constant(np.zeros((2, 1, 1, 1), np.int8), (0.25, 0.125))
    assert graph.bias([4, 5], x, weights).scales == (0.125, 0.0625)


def test_a_scale_is_asked_for_where_one_is_needed() -> None:
    graph = GraphBuilder()
    whole, real = graph.tensor((4,), 0.5), graph.tensor((4,))
    with pytest.raises(ValueError, match="needs a scale"):
        graph.add(whole, whole)
    with pytest.raises(ValueError, match="needs a scale"):
        graph.add(real, real, 0.5)

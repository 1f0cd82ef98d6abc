"""The two roundings beside the reference kernels': once, as TFLITE_SINGLE_ROUNDING does, and as the
platform's own delegate does. TensorFlow Lite as it is installed does neither, so that what is
expected is worked out here, from the definitions.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from potash_firmware.tflite.lowering import Rounding
from support.graph_builder import FusedActivation, GraphBuilder, Padding
from support.tflite import Bench, bench, nothing_kept, reference

__all__ = ["nothing_kept"]

GRID = np.arange(-128, 128, dtype=np.int8)
PAIRS = tuple(values.reshape(-1) for values in np.meshgrid(GRID, GRID))

Integers = npt.NDArray[np.int64]


@pytest.fixture(scope="module")
def single() -> Iterator[Bench]:
    with bench(dram_bytes=1 << 24, rounding=Rounding.SINGLE) as made:
        yield made


@pytest.fixture(scope="module")
def alkali() -> Iterator[Bench]:
    with bench(dram_bytes=1 << 24, rounding=Rounding.ALKALI) as made:
        yield made


def ran(vta: Bench, model: bytes, *inputs: npt.NDArray[Any]) -> Integers:
    """The outputs, after a look that they come from the VTA."""
    before = vta.delegate.nodes_run
    result = vta.infer(model, inputs, len(reference(model, inputs)))
    assert vta.delegate.nodes_run > before
    return np.frombuffer(result, np.int8).astype(np.int64)


def parts(real: float, bits: int) -> tuple[int, int]:
    """`real` as significand * 2^(shift - bits)."""
    fraction, shift = math.frexp(real)
    significand = math.floor(fraction * 2**bits + 0.5)
    return (significand // 2, shift + 1) if significand == 2**bits else (significand, shift)


def float32(value: float) -> float:
    return float(np.float32(value))


# TFLITE_SINGLE_ROUNDING: (x * significand + 2^(total - 1)) >> total, with total = 31 - shift.


def once(values: Integers, real: float) -> Integers:
    significand, shift = parts(real, 31)
    total = 31 - shift
    distinct, places = np.unique(values, return_inverse=True)
    scaled = [(int(value) * significand + (1 << total - 1)) >> total for value in distinct]
    return np.array(scaled)[places].reshape(values.shape)


SCALES = [
    ((0.05183, 0.03141, 0.07012), (3, -7, 5)),
    ((1.0, 1.0, 2.0), (0, 0, 0)),
    ((0.05, 0.031, 0.07), (60, -78, -80)),
    ((0.5, 0.75, 300.0), (-128, 127, -128)),
]


def pairs(
    name: str, scales: tuple[float, ...], points: tuple[int, ...], activation: FusedActivation
) -> bytes:
    graph = GraphBuilder()
    left, right = (
        graph.tensor((65536,), scale, point)
        for scale, point in zip(scales[:2], points[:2], strict=True)
    )
    operation: Callable[..., Any] = getattr(graph, name)
    output = operation(left, right, scales[2], points[2], activation=activation)
    return graph.finish([left, right], [output])


@pytest.mark.parametrize("name", ["add", "sub", "mul"])
@pytest.mark.parametrize(("scales", "points"), SCALES)
def test_once_rounded_every_pair_is_as_defined(
    single: Bench, name: str, scales: tuple[float, ...], points: tuple[int, ...]
) -> None:
    model = pairs(name, scales, points, FusedActivation.NONE)
    left, right, output = map(float32, scales)
    grid = GRID.astype(np.int64)
    if name == "mul":
        ratio = float(np.float32(left) * np.float32(right) / np.float32(output))
        x, y = (
            side.astype(np.int64) - point for side, point in zip(PAIRS, points[:2], strict=True)
        )
        total = once(x * y, ratio)
    else:
        twice = 2 * max(left, right)
        first, second = (
            once((grid - point) << 20, scale / twice)
            for scale, point in zip((left, right), points[:2], strict=True)
        )
        left_sums, right_sums = (
            first[PAIRS[0].view(np.uint8) ^ 128],
            second[PAIRS[1].view(np.uint8) ^ 128],
        )
        sums = left_sums + right_sums if name == "add" else left_sums - right_sums
        total = once(sums, twice / (2**20 * output))
    expected = np.clip(total + points[2], -128, 127)
    assert (ran(single, model, *PAIRS) == expected).all()


def convolution(scales: tuple[float, float, float], points: tuple[int, int]) -> tuple[Any, ...]:
    """A model of a convolution 1x1, its weights, and accumulators for an input."""
    random = np.random.default_rng(7)
    graph = GraphBuilder()
    x = graph.tensor((1, 16, 16, 32), scales[0], points[0])
    values = random.integers(-127, 128, (20, 1, 1, 32)).astype(np.int8)
    weights = graph.constant(values, scales[1])
    bias = random.integers(-5000, 5000, 20)
    y = graph.conv2d(
        x, weights, graph.bias(bias, x, weights), scales[2], points[1], padding=Padding.VALID
    )
    image = random.integers(-128, 128, x.shape).astype(np.int8)
    rows = image.reshape(-1, 32).astype(np.int64) - points[0]
    sums = rows @ values.reshape(20, 32).T.astype(np.int64) + bias
    return graph.finish([x], [y]), image, sums


@pytest.mark.parametrize(
    ("scales", "points"),
    [((0.02, 0.003, 0.05), (7, -3)), ((0.02, 0.3, 0.01), (-128, 0)), ((0.5, 0.5, 4096.0), (0, 9))],
)
def test_once_rounded_a_convolution_is_as_defined(
    single: Bench, scales: tuple[float, float, float], points: tuple[int, int]
) -> None:
    model, image, sums = convolution(scales, points)
    real = float32(scales[0]) * float32(scales[1]) / float32(scales[2])
    expected = np.clip(once(sums, real) + points[1], -128, 127)
    assert (ran(single, model, image) == expected.reshape(-1)).all()


# The platform: "Alkali CSD NVMe accelerators test platform", delegated operators. Multipliers of 16
# bits; an operand is shifted left by 7, multiplied, nudged, shifted right by 15 and by the shift.


def word(values: Integers) -> Integers:
    """What 32 bits keep of them."""
    low: Integers = values.astype(np.uint64).astype(np.uint32).view(np.int32).astype(np.int64)
    return low


def dequantized(values: Integers, point: int, real: float) -> Integers:
    multiplier, shift = parts(real, 15)
    product = ((values - point) << 7) * multiplier
    nudge = np.where(product >= 0, 1 << 14, 1 - (1 << 14))
    scaled: Integers = ((product + nudge) >> 15) >> -shift
    return scaled


def requantized(values: Integers, real: float, point: int) -> Integers:
    multiplier, shift = parts(real, 15)
    scaled = word(values * multiplier) >> (15 - shift)
    clamped: Integers = np.clip(scaled + point, -128, 127)
    return clamped


@pytest.mark.parametrize(("scales", "points"), SCALES)
@pytest.mark.parametrize("name", ["add", "sub"])
def test_the_platforms_sums_are_as_its_document_says(
    alkali: Bench, name: str, scales: tuple[float, ...], points: tuple[int, ...]
) -> None:
    left, right, output = map(float32, scales)
    twice = 2 * max(left, right)
    first = dequantized(PAIRS[0].astype(np.int64), points[0], left / twice)
    second = dequantized(PAIRS[1].astype(np.int64), points[1], right / twice)
    sums = first + second if name == "add" else first - second
    expected = requantized(sums, twice / (2**7 * output), points[2])
    got = ran(alkali, pairs(name, scales, points, FusedActivation.NONE), *PAIRS)
    assert (got == expected).all()


def test_the_platforms_sums_are_off_by_one_at_times(alkali: Bench) -> None:
    model = pairs("add", *SCALES[0], FusedActivation.NONE)
    exact = np.frombuffer(reference(model, PAIRS), np.int8).astype(np.int64)
    off = np.abs(ran(alkali, model, *PAIRS) - exact)
    assert set(off.tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("scales", "points"),
    # With the second, products leave 32 bits.
    [((0.02, 0.003, 0.05), (7, -3)), ((0.02, 0.3, 0.01), (-128, 0)), ((0.5, 0.5, 4096.0), (0, 9))],
)
def test_the_platforms_convolutions_are_as_its_document_says(
    alkali: Bench, scales: tuple[float, float, float], points: tuple[int, int]
) -> None:
    model, image, sums = convolution(scales, points)
    real = float32(scales[0]) * float32(scales[1]) / float32(scales[2])
    expected = requantized(sums, real, points[1])
    assert (ran(alkali, model, image) == expected.reshape(-1)).all()


def test_what_the_platform_has_not_is_rounded_as_the_reference_does(alkali: Bench) -> None:
    model = pairs("mul", *SCALES[0], FusedActivation.RELU)
    exact = np.frombuffer(reference(model, PAIRS), np.int8)
    assert (ran(alkali, model, *PAIRS) == exact).all()


@pytest.mark.parametrize("ratio", [2.0, 3.5, 40 / 7, 2.0**12, 0.75])
def test_a_fully_connected_layer_rounds_once_with_halves_away_from_zero(ratio: float) -> None:
    random = np.random.default_rng(8)
    graph = GraphBuilder()
    x = graph.tensor((256, 1), 0.25, 3)
    weights = graph.constant(random.integers(-127, 128, (40, 1)).astype(np.int8), 0.5)
    y = graph.fully_connected(x, weights, None, 0.125 * ratio, -5)
    model = graph.finish([x], [y])
    with bench() as exact:
        expected = np.frombuffer(reference(model, [GRID]), np.int8)
        assert (ran(exact, model, GRID) == expected).all()

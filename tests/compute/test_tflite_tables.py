"""Operators that are tables of their values' results, on the VTA: every result as TensorFlow Lite's
reference kernels have it."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from hypothesis import example, given, settings
from hypothesis import strategies as st

from potash_device.vta.config import Config
from potash_firmware.tflite.arithmetic import pieces
from potash_firmware.tflite.runtime import inspect
from support.graph_builder import GraphBuilder, Padding
from support.tflite import Bench, Int8, bench, litert_only, nothing_kept, reference

__all__ = ["nothing_kept"]

Code = schema.BuiltinOperator
GRID = np.arange(-128, 128, dtype=np.int8)

PAIRS = Config(
    log_batch=1,
    log_block_in=3,
    log_block_out=3,
    log_uop_buff_size=9,
    log_inp_buff_size=10,
    log_wgt_buff_size=12,
    log_acc_buff_size=13,
)
"""2x8x8, 128 accumulators: images are in pairs, and tiles are small."""

FUNCTIONS = {
    Code.QUANTIZE: 1,
    Code.LOGISTIC: 2,
    Code.TANH: 2,
    Code.HARD_SWISH: 1,
    Code.LEAKY_RELU: 2,
}
"""Operators, and the versions of those for int8."""
FIXED = {Code.LOGISTIC: (1 / 256, -128), Code.TANH: (1 / 128, 0)}
"""Scales and zero points that outputs have to have."""


@pytest.fixture(scope="module")
def vta() -> Iterator[Bench]:
    with bench(dram_bytes=1 << 24) as made:
        yield made


def same(vta: Bench, model: bytes, inputs: Sequence[Int8]) -> Int8:
    expected = reference(model, inputs)
    assert vta.infer(model, inputs, len(expected)) == expected
    assert set(vta.reasons) == {None}
    return np.frombuffer(expected, np.int8)


def function(
    code: int, scales: tuple[float, float], zero_points: tuple[int, int], alpha: float = 0.1
) -> bytes:
    graph = GraphBuilder()
    x = graph.tensor(GRID.shape, scales[0], zero_points[0])
    y = graph.tensor(GRID.shape, *FIXED.get(code, (scales[1], zero_points[1])))
    options = None
    if code == Code.LEAKY_RELU:
        options = schema.LeakyReluOptionsT()
        options.alpha = alpha
    graph.operator(code, (x,), y, options, version=FUNCTIONS.get(code, 1))
    return graph.finish([x], [y])


@pytest.mark.parametrize("code", FUNCTIONS)
@settings(max_examples=25, deadline=None)
@given(
    scales=st.tuples(*[st.floats(0.004, 0.5)] * 2),
    zero_points=st.tuples(*[st.integers(-128, 127)] * 2),
    alpha=st.sampled_from([0.01, 0.1, 0.3, 0.5, 1.7, -0.2]),
)
def test_every_value_is_what_the_reference_kernel_gives(
    vta: Bench, code: int, scales: tuple[float, float], zero_points: tuple[int, int], alpha: float
) -> None:
    model = function(code, scales, zero_points, alpha)
    try:
        reference(model, [GRID])
    except RuntimeError:
        # Some scales are too far from each other for it.
        return
    same(vta, model, [GRID])


@pytest.mark.parametrize(
    "kinds", [(np.int8, np.uint8), (np.uint8, np.int8), (np.uint8, np.uint8)], ids=str
)
@settings(max_examples=15, deadline=None)
@given(
    scales=st.tuples(*[st.floats(0.01, 0.2)] * 2) | st.just((0.05, 0.05)),
    zero_points=st.tuples(*[st.integers(0, 255)] * 2)
    | st.integers(0, 255).map(lambda it: (it,) * 2),
)
def test_bytes_with_and_without_a_sign_are_quantised_alike(
    vta: Bench, kinds: tuple[type, type], scales: tuple[float, float], zero_points: tuple[int, int]
) -> None:
    graph = GraphBuilder()
    points = [at - 128 * (kind is np.int8) for at, kind in zip(zero_points, kinds, strict=True)]
    x, y = (
        graph.tensor((2, 8, 8, 5), scale, zero_point, dtype=kind)
        for scale, zero_point, kind in zip(scales, points, kinds, strict=True)
    )
    graph.operator(Code.QUANTIZE, (x,), y)
    # Bytes: what has no sign is seen as if it had one.
    values: Int8 = np.resize(GRID, (2, 8, 8, 5))
    vta.streams.clear()
    same(vta, graph.finish([x], [y]), [values.view(kinds[0])])
    if scales[0] == scales[1] and zero_points[0] == zero_points[1] and kinds[0] is not kinds[1]:
        # In two tiles.
        assert vta.counts["Alu"] == 2


def test_bytes_that_change_their_sign_inside_a_partition(vta: Bench) -> None:
    graph = GraphBuilder()
    x = graph.tensor((1, 6, 6, 20), 0.05, 3, name="x")
    y = graph.operator(
        Code.QUANTIZE, (x,), graph.tensor(x.shape, 0.07, 100, dtype=np.uint8, name="y")
    )
    z = graph.operator(Code.QUANTIZE, (y,), graph.tensor(x.shape, 0.07, -28, name="z"))
    z = graph.max_pool2d(z, 3, padding=Padding.SAME)
    values = np.resize(GRID, x.shape)
    same(vta, graph.finish([x], [z, y]), [values])
    with bench(Config(log_inp_width=4, log_out_width=4)) as wide:
        same(wide, graph.finish([x], [z, y]), [values])


@litert_only
@pytest.mark.parametrize("code", [Code.SQRT, Code.RSQRT])
@pytest.mark.parametrize("scales", [(0.112, 0.000865), (0.0309, 0.00159), (0.00772, 0.0055)])
@pytest.mark.parametrize("zero_point", [-128, 5])
def test_roots_of_what_is_not_negative(
    vta: Bench, code: int, scales: tuple[float, float], zero_point: int
) -> None:
    same(vta, function(code, scales, (-128, zero_point)), [GRID])


def test_roots_of_negative_numbers_are_left_to_the_processor(vta: Bench) -> None:
    (report,) = inspect(function(Code.RSQRT, (0.1, 0.1), (0, 0)), vta.delegate)
    assert report.reason == "TensorFlow Lite does not run it by itself"


def test_a_function_is_as_few_lines_as_it_looks(vta: Bench) -> None:
    for code, least, most in ((Code.QUANTIZE, 2, 12), (Code.LEAKY_RELU, 5, 80)):
        vta.streams.clear()
        same(vta, function(code, (0.05, 0.07), (3, -9)), [GRID])
        assert least <= vta.counts["Alu"] <= most
    vta.streams.clear()
    same(vta, function(Code.LOGISTIC, (0.05, 0), (3, 0)), [GRID])
    # In two tiles, as of any tensor.
    assert vta.counts["Alu"] < 2 * 120


@given(st.lists(st.integers(-128, 127), min_size=256, max_size=256) | st.just([7] * 256))
def test_pieces_are_right_or_there_are_none(wanted: list[int]) -> None:
    table = np.array(wanted, np.int64)
    found = pieces.fit(table)
    assert found is None or (found.values(GRID.astype(np.int64)) == table).all()


@pytest.mark.parametrize("steps", [[-128] * 100 + [127] * 156, [5] * 255 + [6], [3, *[-3] * 255]])
def test_pieces_of_a_step(steps: list[int]) -> None:
    table = np.array(steps, np.int64)
    found = pieces.fit(table)
    assert found is not None
    assert (found.values(GRID.astype(np.int64)) == table).all()
    assert len(found.slopes) <= 3


def prelu(
    shape: Sequence[int],
    factors: Any,
    scales: tuple[float, float],
    zero_points: tuple[int, int],
    factor_scale: float = 0.01,
    factor_zero_point: int = 0,
) -> bytes:
    graph = GraphBuilder()
    x = graph.tensor(shape, scales[0], zero_points[0])
    y = graph.tensor(shape, scales[1], zero_points[1])
    alpha = graph.constant(np.array(factors, np.int8), factor_scale, factor_zero_point)
    graph.operator(Code.PRELU, (x, alpha), y)
    return graph.finish([x], [y])


# Where a line is below zero at zero.
@example(
    scales=(0.125, 0.010000000000000002),
    zero_points=(0, 116),
    factor_scale=0.001,
    factor_zero_point=0,
    seed=0,
)
@settings(max_examples=40, deadline=None)
@given(
    scales=st.tuples(*[st.floats(0.01, 0.2)] * 2),
    zero_points=st.tuples(*[st.integers(-128, 127)] * 2),
    factor_scale=st.sampled_from([0.001, 0.0078, 0.03]),
    factor_zero_point=st.integers(-20, 20),
    seed=st.integers(0, 100),
)
def test_rectifiers_with_factors(
    vta: Bench,
    scales: tuple[float, float],
    zero_points: tuple[int, int],
    factor_scale: float,
    factor_zero_point: int,
    seed: int,
) -> None:
    factors = np.random.default_rng(seed).integers(-128, 128, (1, 1, 20), np.int8)
    shape = (1, 16, 16, 20)
    model = prelu(shape, factors, scales, zero_points, factor_scale, factor_zero_point)
    x = np.broadcast_to(GRID.reshape(1, 16, 16, 1), shape).copy()
    same(vta, model, [x])


@pytest.mark.parametrize("shape", [(256,), (4, 64), (1, 1, 1, 3), (2, 5, 3, 8)])
@pytest.mark.parametrize("config", [None, PAIRS])
def test_rectifiers_of_any_shape(shape: tuple[int, ...], config: Config | None) -> None:
    random = np.random.default_rng(1)
    x = random.integers(-128, 128, shape, np.int8)
    with bench(config, dram_bytes=1 << 22) as made:
        for factors in ([30], random.integers(-128, 128, shape[-1], np.int8)):
            model = prelu(shape, factors, (0.05, 0.04), (7, -11))
            same(made, model, [x])


def test_a_rectifier_behind_a_convolution_is_in_its_partition(vta: Bench) -> None:
    random = np.random.default_rng(2)
    graph = GraphBuilder()
    x = graph.tensor((1, 8, 8, 3), 0.05, 3)
    w = graph.constant(random.integers(-127, 128, (20, 3, 3, 3)).astype(np.int8), 0.01)
    y = graph.conv2d(x, w, None, 0.1, 2, padding=Padding.SAME)
    alpha = graph.constant(random.integers(-128, 128, (1, 1, 20), np.int8), 0.01)
    y = graph.operator(Code.PRELU, (y, alpha), graph.tensor((1, 8, 8, 20), 0.08, -5))
    y = graph.operator(Code.LOGISTIC, (y,), graph.tensor((1, 8, 8, 20), 1 / 256, -128), version=2)
    y = graph.max_pool2d(graph.operator(Code.QUANTIZE, (y,), graph.tensor(y.shape, 0.02, 4)), 2)
    model = graph.finish([x], [y])
    vta.streams.clear()
    same(vta, model, [random.integers(-128, 128, (1, 8, 8, 3), np.int8)])
    assert len(vta.streams) == 1


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            prelu((1, 2, 2, 8), np.ones((2, 2, 8)), (0.1, 0.1), (0, 0)),
            "the rectifier has other factors than one for each channel",
        ),
        (
            prelu((1, 2, 2, 8), np.ones((2, 2, 1)), (0.1, 0.1), (0, 0)),
            "the rectifier has other factors than one for each channel",
        ),
    ],
)
def test_what_is_not_done_says_why(vta: Bench, model: bytes, reason: str) -> None:
    (report,) = inspect(model, vta.delegate)
    assert report.reason == reason

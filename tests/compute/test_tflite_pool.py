"""int8 pooling and MEAN on the VTA: the same bytes as TensorFlow Lite's reference kernels."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.vta.config import Config
from potash_device.vta.isa import Alu, AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Steps, divide
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.lowering import Rounding
from potash_firmware.tflite.runtime import infer, inspect
from potash_firmware.vta_runtime.schedules import Plane
from support.graph_builder import FusedActivation, GraphBuilder, Padding, Tensor
from support.tflite import Bench, Int8, bench, reference
from support.tflite_values import SMALL, spread

CONFIGS = (Config.default(), SMALL)
ACTIVATIONS = (
    FusedActivation.NONE,
    FusedActivation.RELU,
    FusedActivation.RELU_N1_TO_1,
    FusedActivation.RELU6,
)


def check(model: bytes, inputs: Sequence[Int8], size: int, config: Config = CONFIGS[0]) -> Bench:
    """Every node runs on the VTA in one partition, and what comes out is the reference's."""
    with bench(config) as vta:
        assert vta.infer(model, inputs, size) == reference(model, inputs)
        assert set(vta.reasons) == {None}
        assert vta.delegate.nodes_run > 0
        assert vta.counts["Finish"] == 1
        return vta


@st.composite
def pools(draw: st.DrawFn) -> tuple[Any, ...]:
    shape = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 12)),
        draw(st.integers(1, 12)),
        draw(st.sampled_from([1, 3, 8, 16, 20, 33])),
    )
    padding = draw(st.sampled_from(Padding))
    most = shape[1:3] if padding is Padding.VALID else (14, 14)
    size = tuple(draw(st.integers(1, extent)) for extent in most)
    stride = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    return shape, size, stride, padding


@settings(max_examples=20, deadline=None)
@given(
    pools(),
    st.sampled_from(["max_pool2d", "average_pool2d"]),
    st.sampled_from(ACTIVATIONS),
    st.integers(-128, 127),
    st.sampled_from(CONFIGS),
)
def test_any_pooling_is_the_references(
    pool: tuple[Any, ...], kind: str, activation: FusedActivation, zero_point: int, config: Config
) -> None:
    shape, size, stride, padding = pool
    graph = GraphBuilder()
    x = graph.tensor(shape, 0.04, zero_point)
    y = getattr(graph, kind)(x, size, stride=stride, padding=padding, activation=activation)
    check(graph.finish([x], [y]), [spread(shape)], math.prod(y.shape), config)


def pool(
    kind: str,
    shape: Sequence[int],
    size: int | tuple[int, int],
    stride: int = 1,
    padding: Padding = Padding.SAME,
) -> tuple[bytes, int]:
    graph = GraphBuilder()
    x = graph.tensor(shape, 0.05, 3)
    y = getattr(graph, kind)(x, size, stride=stride, padding=padding)
    return graph.finish([x], [y]), math.prod(y.shape)


@pytest.mark.parametrize("kind", ["max_pool2d", "average_pool2d"])
@pytest.mark.parametrize(
    ("shape", "size", "stride", "padding"),
    [
        ((1, 1, 1, 1), 1, 1, Padding.VALID),
        ((1, 56, 56, 64), 3, 2, Padding.SAME),
        ((1, 112, 112, 16), 112, 1, Padding.VALID),
        ((1, 3, 700, 16), (3, 699), 1, Padding.VALID),
        ((1, 2, 3000, 16), (2, 5), 3, Padding.SAME),
        ((1, 13, 13, 32), 13, 1, Padding.SAME),
    ],
    ids=["one value", "resnet", "more than fits", "few outputs", "broad", "more than the image"],
)
def test_poolings_that_are_easily_forgotten(
    kind: str, shape: Sequence[int], size: Any, stride: int, padding: Padding
) -> None:
    model, room = pool(kind, shape, size, stride, padding)
    check(model, [spread(shape)], room)


@pytest.mark.parametrize("value", [-128, 127])
@pytest.mark.parametrize("size", [2, 7, 16, 100])
def test_sums_of_extreme_values_are_exact(value: int, size: int) -> None:
    model, room = pool("average_pool2d", (1, size, size, 4), size, 1, Padding.VALID)
    check(model, [np.full((1, size, size, 4), value, np.int8)], room)


def test_a_small_window_is_one_instruction_for_each_of_its_spread() -> None:
    model, room = pool("max_pool2d", (1, 4, 4, 16), 2, 2)
    vta = check(model, [spread((1, 4, 4, 16))], room)
    opcodes = [one.alu_opcode for one in vta.executed if isinstance(one, Alu)]
    # Two virtual threads; what begins as zero plus the first value goes on as the largest.
    assert opcodes == [AluOpcode.MUL, AluOpcode.ADD, *[AluOpcode.MAX] * 3] * 2


def test_a_large_window_takes_instructions_for_its_rows_and_its_columns_only() -> None:
    model, room = pool("max_pool2d", (1, 13, 13, 16), 13, 1)
    vta = check(model, [spread((1, 13, 13, 16))], room)
    assert vta.counts["Alu"] < 4 * 13 * 2


def average(total: int, count: int) -> int:
    """As `reference_integer_ops::AveragePool` has it: C's division drops what is behind the
    point."""
    nudged = total + count // 2 if total > 0 else total - count // 2
    return int(math.copysign(abs(nudged) // count, nudged))


def evaluate(steps: Steps, tile: Int8) -> Any:
    """The steps on 32-bit values that wrap around."""
    planes: dict[int, Any] = {0: tile.astype(np.int32)}
    operations: dict[AluOpcode, Callable[[Any, Any], Any]] = {
        AluOpcode.ADD: lambda a, b: a + b,
        AluOpcode.MUL: lambda a, b: a * b,
        AluOpcode.MAX: np.maximum,
        AluOpcode.MIN: np.minimum,
        AluOpcode.SHR: lambda a, b: a >> b,
    }
    for step in steps.steps:
        source: Any = step.source
        if isinstance(source, Plane):
            source = planes[source.number]
        elif not isinstance(source, int):
            source = steps.vectors[source.number]
        target = planes.get(step.target.number, np.zeros_like(planes[0])).astype(np.int64)
        planes[step.target.number] = operations[step.opcode](target, source).astype(np.int32)
    return planes[0]


@pytest.mark.parametrize(
    "counts", [range(1, 130), [255, 256, 257, 400, 841, 3136, 12544, 32767, 32768, 65537, 8388607]]
)
def test_sums_are_divided_with_halves_away_from_zero(counts: Sequence[int]) -> None:
    random = np.random.default_rng(5)
    for count in counts:
        steps = Steps()
        divide(steps, count, (Plane(1), Plane(2)))
        multiples = np.arange(-128, 128) * count
        near = [multiples + by for by in (-1, 0, 1)]
        halves = [multiples + count // 2 + by for by in (-1, 0, 1)]
        some = random.integers(-128 * count, 127 * count + 1, 200)
        sums = np.concatenate([*near, *halves, some]).clip(-128 * count, 127 * count)
        expected = [average(total, count) for total in sums.tolist()]
        assert evaluate(steps, sums.astype(np.int32)).tolist() == expected


def chain(graph: GraphBuilder, x: Tensor) -> Tensor:
    random = np.random.default_rng(1)
    weights = random.integers(-127, 128, (20, 3, 3, x.shape[3])).astype(np.int8)
    y = graph.conv2d(x, graph.constant(weights, 0.002), None, 0.05, 4)
    y = graph.max_pool2d(y, 3, stride=2, padding=Padding.SAME)
    return graph.average_pool2d(y, 3, stride=1, padding=Padding.SAME)


def test_a_chain_is_one_stream() -> None:
    graph = GraphBuilder()
    x = graph.tensor((2, 9, 9, 3), 0.03, -9)
    y = chain(graph, x)
    check(graph.finish([x], [y]), [spread(x.shape)], math.prod(y.shape))


@pytest.mark.parametrize("kind", ["max_pool2d", "average_pool2d"])
def test_a_core_with_too_few_accumulators_is_not_asked_to(kind: str) -> None:
    model, room = pool(kind, (1, 6, 6, 3), 2)
    config = Config(log_acc_buff_size=6)
    with bench(config) as vta:
        (report,) = inspect(model, vta.delegate)
        assert report.reason == "the accumulators have no room for a pooling"
        inputs = [spread((1, 6, 6, 3))]
        assert vta.infer(model, inputs, room) == reference(model, inputs)


def test_windows_of_too_many_sizes_are_left_to_the_processor() -> None:
    model, _ = pool("average_pool2d", (1, 40, 40, 1), 41)
    with bench() as vta:
        (report,) = inspect(model, vta.delegate)
        assert report.reason == "the pooling has windows of too many sizes at its borders"


@pytest.mark.parametrize("kind", ["max_pool2d", "average_pool2d"])
def test_floats_are_left_to_the_processor(kind: str) -> None:
    graph = GraphBuilder()
    x = graph.tensor((1, 4, 4, 3))
    y = getattr(graph, kind)(x, 2)
    with bench() as vta:
        (report,) = inspect(graph.finish([x], [y]), vta.delegate)
        assert report.reason == "tensor 'tensor-0' is not int8"


def mean(
    shape: Sequence[int],
    axes: Sequence[int] = (1, 2),
    scales: tuple[float, float] = (0.05, 0.04),
    zero_points: tuple[int, int] = (-7, 11),
    keep: bool = False,
) -> tuple[bytes, int]:
    graph = GraphBuilder()
    x = graph.tensor(shape, scales[0], zero_points[0])
    y = graph.mean(x, axes, scales[1], zero_points[1], keep_dimensions=keep)
    return graph.finish([x], [y]), math.prod(y.shape)


@settings(max_examples=20, deadline=None)
@given(
    st.tuples(
        st.integers(1, 3), st.integers(1, 20), st.integers(1, 20), st.sampled_from([1, 16, 33])
    ),
    st.sampled_from([(1, 2), (2, 1), (-2, -3), (1,), (-2,), (1, 2, 1), (), (3,), (-1,)]),
    st.booleans(),
    st.floats(-3, 3),
    st.tuples(st.integers(-128, 127), st.integers(-128, 127)),
    st.sampled_from(CONFIGS),
)
def test_any_mean_is_the_references(
    shape: Sequence[int],
    axes: Sequence[int],
    keep: bool,
    ratio: float,
    zero_points: tuple[int, int],
    config: Config,
) -> None:
    model, room = mean(shape, axes, (0.05, 0.05 * 2**ratio), zero_points, keep)
    check(model, [spread(shape)], room, config)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("scales", [(0.05, 0.05), (0.05, 0.0073), (0.02, 0.16)])
def test_means_of_large_images(keep: bool, scales: tuple[float, float]) -> None:
    shape = (1, 112, 112, 20)
    inputs = spread(shape)
    inputs[..., 0], inputs[..., 1] = 127, -128
    model, room = mean(shape, scales=scales, keep=keep)
    check(model, [inputs], room)


@pytest.mark.parametrize(
    ("shape", "axes"), [((5, 7, 16), (0, 1)), ((2, 2, 3, 3, 5), (2, 3)), ((1, 4, 4, 8), (0, 1, 2))]
)
def test_means_of_images_in_other_ranks(shape: Sequence[int], axes: Sequence[int]) -> None:
    model, room = mean(shape, axes)
    check(model, [spread(shape)], room)


OTHER_AXES = "the mean is one of other axes than height and width, or channels"


@pytest.mark.parametrize(
    ("shape", "axes", "scales", "reason"),
    [
        ((1, 4, 4, 8), (1, 3), (1, 1), OTHER_AXES),
        ((2, 4, 4, 8), (0, 1, 2), (1, 1), OTHER_AXES),
        ((4, 8), (0,), (1, 1), OTHER_AXES),
        ((1, 4, 4, 8), (1, 2), (1, 1e-7), "a multiplier is too large for the VTA's 32 bits"),
    ],
)
def test_other_means_are_left_to_the_processor(
    shape: Sequence[int], axes: Sequence[int], scales: tuple[float, float], reason: str
) -> None:
    model, room = mean(shape, axes, scales)
    with bench() as vta:
        (report,) = inspect(model, vta.delegate)
        assert report.reason == reason
        assert vta.infer(model, [spread(shape)], room) == reference(model, [spread(shape)])


@pytest.mark.parametrize("rounding", [Rounding.EXACT, Rounding.ALKALI])
def test_what_the_platforms_delegate_has_not_is_exact_beside_it(rounding: Rounding) -> None:
    model, room = mean((1, 7, 7, 33))
    inputs, output = spread((1, 7, 7, 33)), bytearray(room)
    with bench() as vta:
        delegate = VtaDelegate(vta.runtime, rounding)
        infer(model, inputs.tobytes(), memoryview(output), delegate=delegate)
        assert delegate.nodes_run == 1
    assert bytes(output) == reference(model, [inputs])

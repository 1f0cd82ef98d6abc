"""int8 convolutions and products on the VTA: the same bytes as TensorFlow Lite's reference
kernels."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.vta.config import Config
from potash_device.vta.isa import Gemm
from potash_firmware.tflite.arithmetic.ramps import Scale
from potash_firmware.tflite.arithmetic.requantization import Steps, requantize
from potash_firmware.tflite.quantization import Multiplier, QuantizationError
from potash_firmware.tflite.runtime import inspect
from potash_firmware.vta_runtime.schedules import Plane
from support.graph_builder import FusedActivation, GraphBuilder, Padding
from support.tflite import Int8, bench, litert_only, reference, scale_down

SMALL = Config(
    log_batch=1,
    log_block_in=3,
    log_block_out=3,
    log_uop_buff_size=9,
    log_inp_buff_size=10,
    log_wgt_buff_size=12,
    log_acc_buff_size=13,
)
"""2x8x8, 128 accumulators: images are in pairs, and tiles are small."""

ACTIVATIONS = tuple(FusedActivation)[:4]


def values(shape: tuple[int, ...], seed: int) -> Int8:
    """Values of all sizes, and in places the extremes."""
    random = np.random.default_rng(seed)
    drawn = random.integers(-128, 128, shape, np.int8)
    extreme = random.choice(np.array([-128, 127], np.int8), shape)
    return np.where(random.random(shape) < 0.2, extreme, drawn)


def check(model: bytes, inputs: Int8, size: int, config: Config | None = None) -> None:
    """Every node runs on the VTA, in one partition, and what comes out is the reference's."""
    with bench(config, dram_bytes=1 << 24) as vta:
        assert vta.infer(model, [inputs], size) == reference(model, [inputs])
        assert set(vta.reasons) == {None}


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    size = st.integers(1, 3)
    return {
        "images": draw(st.integers(1, 3)),
        "height": draw(st.integers(1, 12)),
        "width": draw(st.integers(1, 12)),
        "channels": draw(st.integers(1, 35)),
        "outputs": draw(st.integers(1, 35)),
        "kernel": (draw(st.integers(1, 5)), draw(st.integers(1, 5))),
        "stride": (draw(size), draw(size)),
        "dilation": (draw(size), draw(size)),
        "padding": draw(st.sampled_from(Padding)),
        "activation": draw(st.sampled_from(ACTIVATIONS)),
        "zero_points": (draw(st.integers(-128, 127)), draw(st.integers(-128, 127))),
        "ratio": 10.0 ** draw(st.floats(-2.5, 1.5)),
        "spread": draw(st.sampled_from([1.0, 1.5, 30.0])),
        "bias": draw(st.booleans()),
        "seed": draw(st.integers(0, 1 << 16)),
    }


def scales(its: dict[str, Any], depth: int, outputs: int) -> tuple[float, list[float], float]:
    """Of the input, of the weights of each output channel, and of the output: with a ratio of 1 the
    sums fill the output's range."""
    random = np.random.default_rng(its["seed"])
    weights = (0.01 * its["spread"] ** random.random(outputs)).astype(np.float32)
    return 0.02, weights.tolist(), 0.02 * 0.01 * 70 * math.sqrt(depth) * its["ratio"]


@settings(max_examples=25, deadline=None)
@given(convolutions(), st.sampled_from([None, SMALL]))
def test_conv_2d(its: dict[str, Any], config: Config | None) -> None:
    kernel, random = its["kernel"], np.random.default_rng(its["seed"])
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, its["dilation"], strict=True)]
    if its["padding"] is Padding.VALID:
        its["height"], its["width"] = its["height"] + reach[0], its["width"] + reach[1]
    shape = (its["images"], its["height"], its["width"], its["channels"])
    source, weight, output = scales(its, math.prod(kernel) * its["channels"], its["outputs"])
    graph = GraphBuilder()
    x = graph.tensor(shape, source, its["zero_points"][0])
    w = graph.constant(
        random.integers(-127, 128, (its["outputs"], *kernel, its["channels"]), np.int8), weight
    )
    bias = graph.bias(random.integers(-5000, 5000, its["outputs"]), x, w) if its["bias"] else None
    y = graph.conv2d(
        x,
        w,
        bias,
        output,
        its["zero_points"][1],
        stride=its["stride"],
        dilation=its["dilation"],
        padding=its["padding"],
        activation=its["activation"],
    )
    check(graph.finish([x], [y]), values(shape, its["seed"]), math.prod(y.shape), config)


@pytest.mark.parametrize("config", [None, SMALL])
@pytest.mark.parametrize(("groups", "channels", "outputs"), [(2, 8, 5), (4, 3, 8), (8, 1, 2)])
def test_groups_of_channels(
    groups: int, channels: int, outputs: int, config: Config | None
) -> None:
    random = np.random.default_rng(groups)
    graph = GraphBuilder()
    x = graph.tensor((2, 5, 6, groups * channels), 0.02, -9)
    shape = groups * outputs, 3, 2, channels
    scales = (0.01 * 3 ** random.random(shape[0])).tolist()
    w = graph.constant(random.integers(-127, 128, shape, np.int8), scales)
    bias = graph.bias(random.integers(-5000, 5000, shape[0]), x, w)
    y = graph.conv2d(x, w, bias, 0.04 * math.sqrt(channels), 5, stride=(2, 1))
    check(graph.finish([x], [y]), values(x.shape, 4), math.prod(y.shape), config)


@settings(max_examples=15, deadline=None)
@given(convolutions(), st.integers(1, 3), st.sampled_from([None, SMALL]))
def test_depthwise_conv_2d(its: dict[str, Any], multiplier: int, config: Config | None) -> None:
    kernel, random = its["kernel"], np.random.default_rng(its["seed"])
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, its["dilation"], strict=True)]
    if its["padding"] is Padding.VALID:
        its["height"], its["width"] = its["height"] + reach[0], its["width"] + reach[1]
    shape = (its["images"], its["height"], its["width"], its["channels"])
    outputs = its["channels"] * multiplier
    source, weight, output = scales(its, math.prod(kernel), outputs)
    graph = GraphBuilder()
    x = graph.tensor(shape, source, its["zero_points"][0])
    w = graph.constant(random.integers(-127, 128, (1, *kernel, outputs), np.int8), weight, axis=3)
    y = graph.depthwise_conv2d(
        x,
        w,
        graph.bias(random.integers(-5000, 5000, outputs), x, w) if its["bias"] else None,
        output,
        its["zero_points"][1],
        # The reference kernel of TensorFlow Lite takes no other than equal strides.
        stride=its["stride"][0],
        dilation=its["dilation"],
        padding=its["padding"],
        activation=its["activation"],
    )
    check(graph.finish([x], [y]), values(shape, its["seed"]), math.prod(y.shape), config)


@settings(max_examples=20, deadline=None)
@given(convolutions(), st.booleans(), st.sampled_from([None, SMALL]))
def test_fully_connected(its: dict[str, Any], channels: bool, config: Config | None) -> None:
    random = np.random.default_rng(its["seed"])
    depth = its["channels"] * its["width"]
    source, weight, output = scales(its, depth, its["outputs"])
    graph = GraphBuilder()
    x = graph.tensor((its["images"], depth), source, its["zero_points"][0])
    w = graph.constant(
        random.integers(-127, 128, (its["outputs"], depth), np.int8),
        weight if channels else weight[0],
    )
    bias = graph.bias(random.integers(-5000, 5000, its["outputs"]), x, w) if its["bias"] else None
    y = graph.fully_connected(
        x, w, bias, output, its["zero_points"][1], activation=its["activation"]
    )
    check(graph.finish([x], [y]), values(x.shape, its["seed"]), math.prod(y.shape), config)


@litert_only
@pytest.mark.parametrize("exponent", [1, 4, 8, 11, 14])
@pytest.mark.parametrize("exact", [True, False])
def test_the_nearest_of_a_product_is_litert_s(exponent: int, exact: bool) -> None:
    """Sums next to all the places at which the output steps, and halves themselves: rounded once,
    away from zero, as LiteRT's reference kernel of FULLY_CONNECTED does, and no other."""
    random = np.random.default_rng(exponent)
    weight = float(np.float32(0.5 if exact else random.uniform(0.5, 1)) * 2.0**-exponent)
    for zero_point in (0, -7, 90):
        places = np.rint((np.arange(-255, 256) - 0.5) / weight).astype(np.int64)
        sums = np.unique(np.concatenate([places - 1, places, places + 1]))
        graph = GraphBuilder()
        x = graph.tensor((1, 1), 1.0)
        w = graph.constant(np.zeros((len(sums), 1), np.int8), weight)
        y = graph.fully_connected(x, w, graph.bias(sums, x, w), 1.0, zero_point)
        model, data = graph.finish([x], [y]), values((1, 1), 1)
        products = sums * weight
        rounded = np.trunc(products + np.copysign(0.5, products)) + zero_point
        expected = np.clip(rounded, -128, 127).astype(np.int8).tobytes()
        assert reference(model, [data]) == expected
        check(model, data, len(sums), None)


def test_the_sums_are_the_cores_and_not_the_hosts() -> None:
    graph = GraphBuilder()
    x = graph.tensor((1, 6, 6, 16), 0.02, 3)
    w = graph.constant(np.ones((16, 3, 3, 16), np.int8), 0.01)
    y = graph.conv2d(x, w, None, 0.3, padding=Padding.SAME)
    model, data = graph.finish([x], [y]), values((1, 6, 6, 16), 1)
    with bench() as vta:
        assert vta.infer(model, [data], 576) == reference(model, [data])
        products = sum(
            (one.uop_end - one.uop_bgn) * one.iter_out * one.iter_in
            for one in vta.executed
            if isinstance(one, Gemm) and not one.reset
        )
        assert products == 36 * 9


@pytest.mark.parametrize("shift", range(-8, 18))
def test_requantisation_at_every_shift(shift: int) -> None:
    """The steps in 32-bit arithmetic, against gemmlowp's functions as they are written."""
    random = np.random.default_rng(shift + 8)
    significands = [1 << 30, (1 << 31) - 1, *random.integers(1 << 30, 1 << 31, 14).tolist()]
    zero_point, low, high = int(random.integers(-128, 128)), -128, 127
    steps = Steps()
    scale = Scale.of([Multiplier(one, -shift) for one in significands], zero_point, low, high)
    requantize(steps, scale, (Plane(1), Plane(2)))
    width = 1 << min(max(shift + 11, 4), 30)
    data = random.integers(-width, width, (500, 16))
    data[:4] = [[-(1 << 31)] * 16, [(1 << 31) - 1] * 16, [0] * 16, [-1] * 16]
    edges = np.array(scale.thresholds())
    data[4:10] = np.repeat(edges, 3, axis=0) + np.tile([[-1], [0], [1]], (2, 1))
    data = np.clip(data, -(1 << 31), (1 << 31) - 1)
    got = alu(steps, data)
    for row, result in zip(data.tolist(), got.tolist(), strict=True):
        for x, y, significand in zip(row, result, significands, strict=True):
            if shift < 0:
                scaled = scale_down(x << -shift, significand, 0)
            else:
                scaled = scale_down(x, significand, -shift)
            assert y == min(max(scaled + zero_point, low), high)


def alu(steps: Steps, data: Any) -> Any:
    """What the steps make of accumulators, wrapping around as 32 bits do."""
    planes = {0: data.astype(np.int64), 1: np.full_like(data, 12345), 2: np.full_like(data, -99)}
    for step in steps.steps:
        source: Any = step.source
        if isinstance(source, Plane):
            source = planes[source.number]
        elif not isinstance(source, int):
            source = steps.vectors[source.number]
        target = planes[step.target.number]
        match step.opcode.name:
            case "MIN":
                result = np.minimum(target, source)
            case "MAX":
                result = np.maximum(target, source)
            case "ADD":
                result = target + source
            case "MUL":
                result = target * source
            case _:
                shifts = np.broadcast_to(source, target.shape)
                result = np.where(
                    shifts >= 0, target >> np.maximum(shifts, 0), target << np.maximum(-shifts, 0)
                )
        planes[step.target.number] = (
            (result & 0xFFFFFFFF)
            .astype(np.uint32)
            .view(np.int32)
            .astype(np.int64)
            .reshape(data.shape)
        )
    return planes[0]


@pytest.mark.parametrize("shift", [18, 31, -9, -30])
def test_multipliers_that_32_bits_cannot_have_are_refused(shift: int) -> None:
    with pytest.raises(QuantizationError, match="for the VTA's 32 bits"):
        Scale.of([Multiplier(1 << 30, -shift)], 0, -128, 127)


DEAD: dict[str, tuple[float, int]] = {
    "nothing": (2.0**-40, 0),
    "nothing, by far": (2.0**-100, 5),
    "a constant": (2.0**-24, 5 << 24),
    "a large constant": (2.0**-22, 80 << 22),
    "beyond the range": (2.0**-20, 1 << 30),
    "beyond it on the other side": (2.0**-20, -1 << 30),
    "just a change": (2.0**-20, (5 << 20) + (1 << 19) - 100),
    "just another": (2.0**-19, -(7 << 19) - (1 << 18)),
}
"""Multipliers that are too small for the steps of others, and biases."""


@pytest.mark.parametrize("kind", ["convolution", "depthwise", "connected", "in pairs"])
@pytest.mark.parametrize("which", [*map(str, DEAD), "all"])
def test_channels_that_training_has_let_vanish(kind: str, which: str) -> None:
    chosen = list(DEAD.values()) if which == "all" else [DEAD[which]]
    factors = np.full(16, 2.0**-7)
    bias = np.arange(-800, 800, 100, dtype=np.int32)
    for at, (factor, its) in enumerate(chosen):
        factors[2 * at + 1], bias[2 * at + 1] = factor, its
    weights = values((16, 3, 3, 16), seed=8) // 9
    if which == "all":
        weights[1::4] = 0
    graph = GraphBuilder()
    scales = (factors * 4).tolist()
    if kind == "connected":
        x = graph.tensor((40, 16), 0.5, 3)
        w = graph.constant(weights[:, 0, 0], scales)
        y = graph.fully_connected(x, w, graph.bias(bias, x, w), 2.0, -9)
    elif kind == "depthwise":
        x = graph.tensor((1, 6, 7, 16), 0.5, 3)
        w = graph.constant(weights[:1], scales, axis=3)
        y = graph.depthwise_conv2d(x, w, graph.bias(bias, x, w), 2.0, -9)
    else:
        x = graph.tensor((1, 6, 7, 16), 0.5, 3)
        w = graph.constant(weights, scales)
        y = graph.conv2d(x, w, graph.bias(bias, x, w), 2.0, -9)
    config = SMALL if kind == "in pairs" else None
    check(graph.finish([x], [y]), values(x.shape, seed=2), math.prod(y.shape), config)


def test_a_small_multiplier_of_sums_beyond_30_bits_is_refused() -> None:
    graph = GraphBuilder()
    x = graph.tensor((1, 3, 3, 16), 0.5, 3)
    w = graph.constant(np.ones((16, 1, 1, 16), np.int8), 2.0**-22)
    bias = graph.bias(np.full(16, (1 << 30) + (1 << 23), np.int32), x, w)
    model = graph.finish([x], [graph.conv2d(x, w, bias, 2.0)])
    with bench() as vta:
        (report,) = inspect(model, vta.delegate)
    assert report.reason == "a multiplier is too small for the VTA's 32 bits"


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("connected", [False, True])
def test_sums_that_a_multiplier_takes_out_of_32_bits_are_refused(
    connected: bool, sign: int
) -> None:
    """With a multiplier of 1, sums are doubled first: from 2^30 on the reference kernel of
    convolutions wraps around."""
    data = np.full((1, 1, 1, 16), 127, np.int8)
    largest = 16 * (127 + 128)
    for beyond in (0, 1):
        limit = (1 << 30) - (1 if sign > 0 else 0) + beyond
        graph = GraphBuilder()
        x = graph.tensor(data.shape, 0.5, -128)
        w = graph.constant(np.full((16, 1, 1, 16), sign, np.int8), 0.5)
        bias = graph.bias(np.full(16, sign * (limit - largest), np.int32), x, w)
        if connected:
            matrix = graph.constant(np.full((16, 16), sign, np.int8), 0.5)
            y = graph.fully_connected(x, matrix, bias, 0.25)
        else:
            y = graph.conv2d(x, w, bias, 0.25)
        model = graph.finish([x], [y])
        if not beyond:
            check(model, data, 16)
            continue
        wrapped = np.full(16, -128 if sign > 0 else 127, np.int8).tobytes()
        assert connected or reference(model, [data]) == wrapped
        with bench() as vta:
            (report,) = inspect(model, vta.delegate)
        assert report.reason is not None and "may exceed 32 bits" in report.reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"groups": 32}, "the convolution has more groups of channels than a block"),
        ({"output": 1e-9}, "a multiplier is too large"),
        ({"side": 1023}, "a depthwise convolution of this size takes too many"),
    ],
)
def test_what_is_not_done_says_why(changes: dict[str, Any], reason: str) -> None:
    graph = GraphBuilder()
    if side := changes.get("side"):
        x = graph.tensor((1, side, side, 1), 0.02, 3)
        w = graph.constant(np.ones((1, side, side, 1), np.int8), 0.01)
        y = graph.depthwise_conv2d(x, w, None, 0.3)
    else:
        x = graph.tensor((1, 6, 6, 32), 0.02, 3)
        channels = 32 // changes.get("groups", 1)
        w = graph.constant(np.ones((32, 3, 3, channels), np.int8), 0.01)
        y = graph.conv2d(x, w, None, changes.get("output", 0.3))
    with bench() as vta:
        (report,) = inspect(graph.finish([x], [y]), vta.delegate)
        assert report.reason is not None
        assert report.reason.startswith(reason)

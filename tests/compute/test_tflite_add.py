"""int8 ADD on the VTA: the same bytes as TensorFlow Lite's reference kernels and as exact
integers."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.vta.config import Config
from potash_device.vta.isa import Dependencies, Store
from potash_firmware.tflite.writer import FusedActivation, ModelBuilder, add_model
from support.tflite import Int8, Quantization, add_exactly, bench, reference

GRID = np.arange(-128, 128, dtype=np.int8)
EVERY_PAIR = tuple(values.reshape(-1) for values in np.meshgrid(GRID, GRID))

Triple = tuple[float, float, float]


def float32(value: float) -> float:
    return float(np.float32(value))


@st.composite
def scale_triples(draw: st.DrawFn) -> Triple:
    """Scales of operands and output for which a sum is scaled down, up to where it vanishes."""
    left = 2.0 ** draw(st.floats(-12, 4))
    right = left * 2.0 ** draw(st.floats(-14, 14) | st.just(0.0))
    output = max(left, right) * 2.0 ** draw(st.floats(-3, 3) | st.floats(-18, 20))
    return float32(left), float32(right), float32(output)


def limits(activation: FusedActivation, output: Quantization) -> tuple[int, int]:
    """The activation's range in whole steps of the output, by rounding real numbers."""
    bounds = {
        FusedActivation.NONE: (-np.inf, np.inf),
        FusedActivation.RELU: (0, np.inf),
        FusedActivation.RELU_N1_TO_1: (-1, 1),
        FusedActivation.RELU6: (0, 6),
    }
    low, high = (
        output.zero_point + np.copysign(np.floor(abs(steps) + 0.5), steps)
        for steps in (np.float32(bound) / np.float32(output.scale) for bound in bounds[activation])
    )
    return int(max(low, -128)), int(min(high, 127))


ZERO_POINTS = st.sampled_from([-128, -1, 0, 127]) | st.integers(-128, 127)
BYTES = st.sampled_from([-128, -127, -1, 0, 1, 126, 127]) | st.integers(-128, 127)


@settings(max_examples=25)
@given(
    scales=scale_triples(),
    zero_points=st.tuples(ZERO_POINTS, ZERO_POINTS, ZERO_POINTS),
    activation=st.sampled_from(
        [activation for activation in FusedActivation if activation is not FusedActivation.TANH]
    ),
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    data=st.data(),
)
def test_any_addition_is_bit_exact(
    scales: Triple,
    zero_points: tuple[int, int, int],
    activation: FusedActivation,
    shape: list[int],
    data: st.DataObject,
) -> None:
    size = int(np.prod(shape))
    values = st.lists(BYTES, min_size=size, max_size=size)
    left, right = (np.array(data.draw(values), np.int8) for _ in range(2))
    model = add_model(shape, scales=scales, zero_points=zero_points, activation=activation)
    quantizations = tuple(map(Quantization, scales, zero_points))
    with bench() as vta:
        result = vta.infer(model, (left, right), size)
        assert vta.delegate.nodes_run == 1
        assert vta.counts["Alu"] > 0
    exact = add_exactly(
        left.tolist(),
        right.tolist(),
        (quantizations[0], quantizations[1], quantizations[2]),
        limits(activation, quantizations[2]),
    )
    assert np.frombuffer(result, np.int8).tolist() == exact
    assert result == reference(model, (left, right))


@pytest.mark.parametrize(
    ("scales", "zero_points"),
    [
        # Shifts of 0, of 17 to 20, and of 31; a significand at either end of its range.
        ((1.0, 1.0, float32(2.0**-18.9)), (0, 0, 0)),
        ((0.05, 0.031, 0.07), (3, -7, 5)),
        ((5 / 16, 3 / 16, 6 / 16), (-128, 127, -128)),
        ((1.0, 1.0, float32(1.0000001)), (1, 2, 3)),
        ((1.0, 1.0, 2.0), (-128, -128, 127)),
        ((0.02, 0.5, 0.11), (-100, 100, 0)),
        ((1.0, 1.0, 4096.0), (0, 0, -5)),
    ],
)
def test_every_pair_of_bytes_is_bit_exact(
    scales: Triple, zero_points: tuple[int, int, int]
) -> None:
    model = add_model((256, 256), scales=scales, zero_points=zero_points)
    with bench() as vta:
        assert vta.infer(model, EVERY_PAIR, 65536) == reference(model, EVERY_PAIR)
        assert vta.delegate.nodes_run == 1


@pytest.mark.parametrize("size", [1, 15, 16, 17, 31, 33, 3264 * 2, 3264 * 2 + 1, 3264 * 16 + 5])
def test_every_length_comes_out_whole(size: int) -> None:
    model = add_model((size,), scales=(0.05, 0.031, 0.07), zero_points=(3, -7, 5))
    inputs = [np.resize(values, size) for values in (GRID, GRID[::-3])]
    with bench() as vta:
        assert vta.infer(model, inputs, size) == reference(model, inputs)


@pytest.mark.parametrize(
    "config",
    [
        Config(log_batch=2, log_block_in=3, log_block_out=3),
        Config(log_block_in=6, log_block_out=6, log_wgt_buff_size=20),
        # Two tiles of one vector are all that the accumulator memory holds.
        Config(log_acc_buff_size=10),
        # Room for four micro-ops: kernels push each other out.
        Config(log_uop_buff_size=4),
    ],
    ids=["batch 4", "wide blocks", "small accumulators", "few micro-ops"],
)
def test_other_cores_give_the_same_bytes(config: Config) -> None:
    model = add_model((300,), scales=(0.05, 0.031, 0.07), zero_points=(3, -7, 5))
    inputs = [np.resize(values, 300) for values in (GRID, GRID[::-3])]
    with bench(config) as vta:
        assert vta.infer(model, inputs, 300) == reference(model, inputs)
        assert vta.delegate.nodes_run == 1


def test_a_tensor_can_be_added_to_itself_and_to_a_constant() -> None:
    builder = ModelBuilder()
    x = builder.tensor("x", (256,), scale=0.05, zero_point=3)
    twice = builder.tensor("twice", (256,), scale=0.09, zero_point=-1)
    bias = builder.tensor("bias", (256,), scale=0.3, zero_point=9, data=GRID[::-1])
    output = builder.tensor("output", (256,), scale=0.2, zero_point=-20)
    builder.add(x, x, twice)
    builder.add(twice, bias, output)
    model = builder.build((x,), (output,))
    with bench() as vta:
        assert vta.infer(model, (GRID,), 256) == reference(model, (GRID,))
        assert vta.delegate.nodes_run == 2


def test_two_virtual_threads_let_a_store_overlap_the_next_tile() -> None:
    size = 4 * 1024 * 16  # Four tiles: two tensors in half of 2048 vectors, twice.
    model = add_model((size,), scales=(0.05, 0.031, 0.07))
    inputs: list[Int8] = [np.zeros(size, np.int8)] * 2
    with bench() as vta:
        vta.infer(model, inputs, size)
        executed = vta.executed
    stores = [store for store in executed if isinstance(store, Store) and store.x_size]
    halves = [store.sram_base for store in stores]
    assert len(stores) >= 4 and len(set(halves)) == 2
    assert all(one != other for one, other in itertools.pairwise(halves))
    assert all(
        {Dependencies.POP_PREV, Dependencies.PUSH_PREV} <= set(store.dependencies)
        for store in stores
    )

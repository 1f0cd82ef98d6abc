"""Operators that take values one by one, on the VTA: every byte as TensorFlow Lite's reference
kernels have it, for all pairs of values, any scales and any shapes, whichever way the steps are
made.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.vta.config import Config
from potash_device.vta.isa import Alu
from potash_firmware.tflite.arithmetic import lines
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.operators import addition, pointwise
from potash_firmware.tflite.partition import Partition
from potash_firmware.tflite.runtime import Model, inspect
from support.graph_builder import FusedActivation, GraphBuilder, Tensor
from support.tflite import Bench, Int8, bench, nothing_kept, reference

__all__ = ["nothing_kept"]

GRID = np.arange(-128, 128, dtype=np.int8)
PAIRS = tuple(values.reshape(-1) for values in np.meshgrid(GRID, GRID))

Shape = tuple[int, ...]
Operation = Callable[..., Tensor]

SCALED = ("add", "sub", "mul")
PLAIN = ("minimum", "maximum")
ACTIVATIONS = [
    activation for activation in FusedActivation if activation is not FusedActivation.TANH
]


@pytest.fixture(scope="module")
def vta() -> Iterator[Bench]:
    """One core for all, because it is what is on it that differs."""
    with bench(dram_bytes=1 << 24) as made:
        yield made


def same(vta: Bench, model: bytes, inputs: Sequence[Int8], nodes: int = 1) -> np.ndarray:
    """The outputs, after a look that the VTA made them, and as the reference kernels do."""
    expected = reference(model, inputs)
    before = vta.delegate.nodes_run
    assert vta.infer(model, inputs, len(expected)) == expected
    assert vta.delegate.nodes_run == before + nodes
    return np.frombuffer(expected, np.int8)


def binary(
    name: str,
    shapes: tuple[Shape, Shape],
    scales: Sequence[float],
    zero_points: Sequence[int],
    activation: FusedActivation = FusedActivation.NONE,
    constants: Sequence[Int8 | None] = (None, None),
) -> bytes:
    """A model of one operator; `constants` are the inputs that are none of the model's."""
    graph = GraphBuilder()
    operands = [
        graph.tensor(shape, scale, zero_point)
        if values is None
        else graph.constant(values, scale, zero_point)
        for shape, scale, zero_point, values in zip(
            shapes, scales, zero_points, constants, strict=False
        )
    ]
    operation: Operation = getattr(graph, name)
    if name in PLAIN:
        output = operation(*operands)
    else:
        output = operation(*operands, scales[2], zero_points[2], activation=activation)
    inputs = [
        operand for operand, values in zip(operands, constants, strict=True) if values is None
    ]
    return graph.finish(inputs, [output])


@contextmanager
def scheme(by_definition: bool) -> Iterator[None]:
    """Lines where there are some; or none is found any more, and all is scaled as it is defined."""
    found = addition._line, addition._constant_line, pointwise._constant_line
    for cached in found:
        cached.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        if by_definition:
            patch.setattr(lines, "fit", lambda *_, **__: None)
        yield
    for cached in found:
        cached.cache_clear()


SUMS = [
    # Halves on both sides of zero; a left operand that vanishes; one that outweighs the output.
    ((1.0, 1.0, 2.0), (0, 0, 0)),
    ((1.0, 0.5, 1.0), (5, -3, 7)),
    ((0.05, 0.031, 0.07), (3, -7, 5)),
    ((0.055077314376831055, 0.05578913912177086, 0.03754076361656189), (60, -78, -80)),
    ((2.0**-14, 1.0, 0.75), (-128, 127, -128)),
    ((0.37, 2.0**-30, 0.21), (1, 2, 3)),
    ((1.0, 1.0, 2.0**-18), (0, 0, -1)),
    ((1.0, 1.0, 2.0**11), (0, 0, 127)),
    ((1e-30, 3e-30, 5e-30), (-128, -128, -128)),
]
PRODUCTS = [
    ((0.05, 0.031, 0.07), (3, -7, 5)),
    ((1.0, 1.0, 64.0), (0, 0, 0)),
    # Effective scales of one half and above, and above one; shifts of more than 10.
    ((1.0, 0.5, 1.0), (-3, 4, 0)),
    ((1.0, 0.9, 1.0), (127, -128, -100)),
    ((1.0, 3.7, 1.0), (0, -128, 1)),
    ((1.0, 300.0, 1.0), (-1, 0, 0)),
    ((1.0, 1.0, 513.0), (-128, -128, -128)),
    ((1.0, 1.0, 1e6), (-128, 127, -7)),
    ((1.0, 1.0, 1e12), (-128, 127, -7)),
    ((0.123, 0.456, 12.3), (127, 127, 127)),
]


SCALES = [
    *((name, *one) for name in ("add", "sub") for one in SUMS),
    *(("mul", *one) for one in PRODUCTS),
]


@pytest.mark.parametrize(
    ("name", "scales", "zero_points", "by_definition"),
    [(*one, False) for one in SCALES]
    + [(*one, True) for one in SCALES]
    + [(name, (0.1, 0.1), (-3, -3), False) for name in PLAIN],
)
def test_every_pair_of_values_is_exact(
    vta: Bench,
    name: str,
    scales: tuple[float, ...],
    zero_points: tuple[int, ...],
    by_definition: bool,
) -> None:
    model = binary(name, ((65536,), (65536,)), scales, zero_points)
    with scheme(by_definition):
        same(vta, model, PAIRS)


@pytest.mark.parametrize("side", [0, 1], ids=["left", "right"])
@pytest.mark.parametrize(
    ("name", "by_definition"),
    [(name, False) for name in (*SCALED, *PLAIN)] + [(name, True) for name in SCALED],
)
def test_every_constant_is_exact_as_a_channel(
    vta: Bench, name: str, side: int, by_definition: bool
) -> None:
    shapes = ((256,), (256, 1, 1, 256)) if side == 0 else ((256, 1, 1, 256), (256,))
    constants = [GRID if at == side else None for at in range(2)]
    scales, zero_points = (0.05, 0.05, 0.07 if name != "mul" else 0.2), (3, 3, 5)
    model = binary(name, shapes, scales, zero_points, constants=constants)
    every = np.repeat(GRID, 256)
    with scheme(by_definition):
        same(vta, model, [every])


ZERO_POINTS = st.sampled_from([-128, -1, 0, 127]) | st.integers(-128, 127)


@st.composite
def shape_pairs(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """Two shapes that broadcast to each other's."""
    whole = draw(st.lists(st.integers(1, 5), max_size=4))
    if whole:
        whole.append(draw(st.integers(1, 40)))
    pair = []
    for _ in range(2):
        shape = [draw(st.sampled_from((extent, extent, 1))) for extent in whole]
        pair.append(tuple(shape[draw(st.integers(0, len(shape))) if draw(st.booleans()) else 0 :]))
    return pair[0], pair[1]


@st.composite
def quantizations(draw: st.DrawFn, name: str) -> tuple[list[float], list[int]]:
    """Scales with which the output is neither always at its limits nor never, mostly."""
    left = 2.0 ** draw(st.floats(-12, 4))
    right = left * 2.0 ** draw(st.floats(-14, 14) | st.just(0.0))
    reach = left * right * 100 if name == "mul" else max(left, right)
    output = reach * 2.0 ** draw(st.floats(-3, 3) | st.floats(-12, 20))
    output = max(output, 2.0**-28)  # TensorFlow Lite wants six of it to fit in 32 bits
    return [left, right, output], [draw(ZERO_POINTS) for _ in range(3)]


@settings(max_examples=40)
@given(data=st.data(), name=st.sampled_from([*SCALED, *PLAIN]), shapes=shape_pairs())
def test_any_shapes_scales_and_activations_are_exact(
    vta: Bench, data: st.DataObject, name: str, shapes: tuple[Shape, Shape]
) -> None:
    scales, zero_points = data.draw(quantizations(name))
    if name in PLAIN:
        scales[1], zero_points[1] = scales[0], zero_points[0]
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    values = [random.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
    constant = data.draw(st.sampled_from([None, None, 0, 1]))
    constants = [its if at == constant else None for at, its in enumerate(values)]
    activation = data.draw(st.sampled_from(ACTIVATIONS))
    model = binary(name, shapes, scales, zero_points, activation, constants)
    same(vta, model, [its for at, its in enumerate(values) if at != constant])


@settings(max_examples=30)
@given(
    code=st.sampled_from(["RELU", "RELU6", "RELU_N1_TO_1"]),
    scale=st.floats(-12, 8).map(lambda power: 2.0**power),
    ratio=st.just(1.0) | st.floats(-9, 20).map(lambda power: 2.0**power),
    zero_points=st.tuples(ZERO_POINTS, ZERO_POINTS),
    by_definition=st.booleans(),
)
def test_rectifiers_are_exact(
    vta: Bench,
    code: str,
    scale: float,
    ratio: float,
    zero_points: tuple[int, int],
    by_definition: bool,
) -> None:
    graph = GraphBuilder()
    x = graph.tensor((256,), scale, zero_points[0])
    y = graph.tensor((256,), scale * ratio, zero_points[1])
    graph.operator(
        getattr(schema.BuiltinOperator, code), [x], y, version=1 if code == "RELU_N1_TO_1" else 2
    )
    with scheme(by_definition):
        same(vta, graph.finish([x], [y]), [GRID])


@pytest.mark.parametrize(
    "config",
    [
        Config(log_batch=2, log_block_in=3, log_block_out=3, log_wgt_buff_size=18),
        Config(log_block_in=6, log_block_out=6, log_wgt_buff_size=20),
        Config(log_acc_buff_size=11),
        Config(log_uop_buff_size=4),
    ],
    ids=["batch 4", "wide blocks", "small accumulators", "few micro-ops"],
)
@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 3, 4, 20), (20,)),
        ((20,), (1, 3, 4, 20)),
        ((5, 1, 1, 20), (5, 3, 4, 20)),
        ((5, 3, 1, 20), (3, 4, 1)),
        ((7, 40), (40,)),
        ((300,), (1,)),
    ],
    ids=str,
)
def test_other_cores_give_the_same_bytes(config: Config, shapes: tuple[Shape, Shape]) -> None:
    random = np.random.default_rng(3)
    values = [random.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
    for name, constants in (("add", (None, None)), ("mul", (None, values[1]))):
        model = binary(name, shapes, (0.05, 0.03, 0.07), (3, -7, 5), constants=constants)
        with bench(config) as other:
            same(other, model, values[: sum(its is None for its in constants)])


@pytest.mark.parametrize("size", [1, 17, 200007])
def test_the_alu_takes_each_value_in_few_steps(vta: Bench, size: int) -> None:
    model = binary("add", ((size,), (size,)), (0.05183, 0.03141, 0.07012), (3, -7, 5))
    inputs = [np.resize(values, size) for values in (GRID, GRID[::-3])]
    vta.streams.clear()
    same(vta, model, inputs)
    elements = -(-size // 16)
    steps = sum(one.steps for one in vta.executed if isinstance(one, Alu))
    assert steps % elements == 0
    # Two factors, a sum, an offset and a shift, and one clamp or two.
    assert 5 <= steps // elements <= 7


def test_a_chain_of_operators_is_one_stream_with_nothing_done_on_the_host(vta: Bench) -> None:
    random = np.random.default_rng(5)
    graph = GraphBuilder()
    x = graph.tensor((1, 9, 9, 20), 0.02, 7)
    weights = graph.constant(random.integers(-127, 128, (33, 3, 3, 20)).astype(np.int8), 0.003)
    convolved = graph.conv2d(x, weights, None, 0.05, -3)
    factors = graph.constant(random.integers(-128, 128, (33,)).astype(np.int8), 0.01, 2)
    product = graph.mul(convolved, factors, 0.04, 4)
    total = graph.add(product, convolved, 0.06, -9, activation=FusedActivation.RELU)
    half = graph.constant(np.array(50, np.int8), 0.01)
    less = graph.sub(total, half, 0.05, 1)
    least = graph.minimum(less, less)
    gate = graph.relu6(least, 0.03, -128)
    small = graph.tensor((1, 1, 1, 33), 0.02, -4)
    output = graph.mul(gate, small, 0.07, 11)
    model = graph.finish([x, small], [output])
    inputs = [random.integers(-128, 128, t.shape).astype(np.int8) for t in (x, small)]
    same(vta, model, inputs, nodes=7)
    (partition,) = partitions(vta.delegate, model)
    assert len(partition.steps) == len(partition.streams) == 1


def partitions(delegate: VtaDelegate, model: bytes) -> list[Partition]:
    """Those that a model has while it is loaded."""
    loaded = Model(model, delegate=delegate)
    made = [partition for _, partition in delegate._session.partitions.values()]
    del loaded
    return made


def test_a_broadcast_within_elements_is_packed_by_the_host(vta: Bench) -> None:
    model = binary("add", ((2, 5, 5, 20), (2, 5, 5, 1)), (0.05, 0.03, 0.07), (3, -7, 5))
    (partition,) = partitions(vta.delegate, model)
    assert (len(partition.steps), len(partition.streams)) == (2, 1)


def test_a_tensor_that_is_repeated_in_two_ways_is_so_in_each(vta: Bench) -> None:
    random = np.random.default_rng(6)
    graph = GraphBuilder()
    x = graph.tensor((2, 1, 2, 1), 0.02, 7)
    wide, high = graph.tensor((2, 1, 2, 2), 0.02, 7), graph.tensor((2, 2, 2, 1), 0.02, 7)
    outputs = [graph.add(x, other, 0.03, 1) for other in (wide, high)]
    model = graph.finish([x, wide, high], outputs)
    inputs = [random.integers(-128, 128, t.shape).astype(np.int8) for t in (x, wide, high)]
    same(vta, model, inputs, nodes=2)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            binary("mul", ((4,), (4,)), (1.0, 1.0, 2.0**-17), (0, 0, 0)),
            "a multiplier is too large for the VTA's 32 bits",
        ),
        (
            binary("mul", ((4,), (4,)), (1.0, 1.0, 1.0), (0, 0, 0), FusedActivation.TANH),
            "the fused activation 4 is not a clamp",
        ),
    ],
)
def test_what_is_not_done_is_left_with_a_reason(vta: Bench, model: bytes, reason: str) -> None:
    (report,) = inspect(model, vta.delegate)
    assert report.reason == reason


def test_a_line_is_never_believed_unless_it_is_right_everywhere() -> None:
    values = np.arange(-128, 128, dtype=np.int64)
    square = values * values // 128
    assert lines.fit((1.0,), (values,), square) is None
    line = lines.fit((0.3,), (values,), np.floor(values * 0.3 + 0.5).astype(np.int64))
    assert line is not None
    got = (line.factors[0] * values + line.offset) >> line.shift
    assert got.tolist() == [math.floor(value * 0.3 + 0.5) for value in values.tolist()]

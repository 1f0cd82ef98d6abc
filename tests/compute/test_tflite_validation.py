"""Models that contradict themselves are refused before native code sees them, each with its
reason."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.validation import ModelError, validate
from potash_firmware.tflite.writer import ModelBuilder
from support import model_fuzz
from support.graph_builder import FusedActivation, GraphBuilder, Padding, Tensor
from support.tflite import bench, reference

Code = schema.BuiltinOperator
SHAPE = (1, 4, 4, 2)
Make = Callable[[GraphBuilder], Tensor]


def options(name: str, **values: Any) -> Any:
    made = getattr(schema, name)()
    for field, value in values.items():
        setattr(made, field, value)
    return made


def ones(*shape: int, scale: float | Sequence[float] | None = 0.1, axis: int = 0) -> Make:
    return lambda graph: graph.constant(np.ones(shape, np.int8), scale, axis=axis)


def numbers(values: Any, dtype: type[np.generic] = np.int32) -> Make:
    return lambda graph: graph.constant(np.array(values, dtype))


def one(
    code: Any,
    inputs: Sequence[Make],
    given: Any = None,
    *,
    scale: float = 0.5,
    output: float | None = 0.5,
    shape: Sequence[int] = SHAPE,
) -> bytes:
    """A model of one operator on a tensor of SHAPE and other inputs."""
    graph = GraphBuilder()
    x = graph.tensor(shape, scale, name="x")
    y = graph.tensor(SHAPE, output, dtype=np.int8, name="y")
    graph.operator(code, [x, *(make(graph) for make in inputs)], y, given, version=2)
    return graph.finish((x,), (y,))


KERNEL, BIAS = ones(2, 3, 3, 2, scale=(0.1, 0.2)), numbers([0, 0])
STEPS = {"strideH": 1, "strideW": 1}


def conv(
    kernel: Make = KERNEL, bias: Make = BIAS, *, to: float | None = 0.5, **values: Any
) -> bytes:
    given = options("Conv2DOptionsT", **(STEPS | values))
    return one(Code.CONV_2D, (kernel, bias), given, output=to)


def depthwise(kernel: Make, bias: Make = BIAS, **values: Any) -> bytes:
    given = options("DepthwiseConv2DOptionsT", **(STEPS | {"depthMultiplier": 1} | values))
    return one(Code.DEPTHWISE_CONV_2D, (kernel, bias), given)


def pool(**values: Any) -> bytes:
    whole = STEPS | {"filterHeight": 2, "filterWidth": 2} | values
    return one(Code.MAX_POOL_2D, (), options("Pool2DOptionsT", **whole))


def connected(kernel: Make, to: float | None = 0.5) -> bytes:
    return one(Code.FULLY_CONNECTED, (kernel,), options("FullyConnectedOptionsT"), output=to)


def padded(*values: Any) -> bytes:
    return one(Code.PAD, (numbers(values),), options("PadOptionsT"))


def joined(other: Make, axis: int = 3, to: float | None = 0.5) -> bytes:
    return one(Code.CONCATENATION, (other,), options("ConcatenationOptionsT", axis=axis), output=to)


def product(other: Make, to: float = 0.5) -> bytes:
    return one(Code.MUL, (other,), options("MulOptionsT"), output=to)


def mean(axes: Make) -> bytes:
    return one(Code.MEAN, (axes,), options("ReducerOptionsT"))


NEGATIVE, HUGE = -1, (1 << 31) - 1
REFUSED: dict[str, tuple[bytes, str]] = {
    "no stride": (conv(strideH=0), "(CONV_2D) has StrideH 0"),
    "negative stride": (conv(strideW=NEGATIVE), "(CONV_2D) has StrideW -1"),
    "no dilation": (conv(dilationHFactor=0), "(CONV_2D) has DilationHFactor 0"),
    "huge dilation": (conv(dilationWFactor=HUGE), "has DilationWFactor 2147483647"),
    "odd padding": (conv(padding=7), "has the padding 7"),
    "no options": (one(Code.CONV_2D, (KERNEL, BIAS)), "(CONV_2D) has no options"),
    "others' options": (
        one(Code.CONV_2D, (KERNEL, BIAS), options("AddOptionsT")),
        "(CONV_2D) has the options of another, AddOptions",
    ),
    "options for none": (one(Code.RELU, (), options("AddOptionsT")), "the options of another"),
    "no factor": (
        one(Code.SOFTMAX, (), options("SoftmaxOptionsT", beta=0.0)),
        "(SOFTMAX) scales its input by 0",
    ),
    "factors' scale": (
        one(Code.PRELU, (ones(2),), output=None),
        "(PRELU) needs one scale above 0 for tensor 'y'",
    ),
    "too few inputs": (one(Code.ADD, (), options("AddOptionsT")), "has 1 inputs and 1 outputs"),
    "no bias": (
        one(Code.CONV_2D, (KERNEL,), options("Conv2DOptionsT", **STEPS)),
        "has 2 inputs and 1 outputs",
    ),
    "kernel rank": (conv(ones(2, 3, 3)), "has weights of the shape (2, 3, 3)"),
    "empty kernel": (conv(ones(2, 0, 3, 2)), "has weights of the shape (2, 0, 3, 2)"),
    "channels": (conv(ones(2, 3, 3, 5)), "has weights for 5 channels, which do not divide 2"),
    "window": (
        conv(ones(2, 3, 3, 2), dilationHFactor=2, padding=Padding.VALID),
        "has a window of (5, 3) on (4, 4)",
    ),
    "bias": (conv(bias=numbers([1])), "adds a bias of 1 values to 2 channels"),
    "scales": (
        conv(ones(3, 3, 3, 2, scale=None), numbers([0] * 3)),
        "has 0 scales along axis 0 of its weights, for 3 channels",
    ),
    "scales' axis": (
        conv(ones(2, 3, 3, 2, scale=(0.1, 0.2), axis=3)),
        "has 2 scales along axis 3 of its weights",
    ),
    "scale of zero": (conv(ones(2, 3, 3, 2, scale=(0.1, 0.0))), "needs scales above 0 for tensor"),
    "output's scale": (conv(to=0.0), "needs one scale above 0 for tensor 'y'"),
    "no output's scale": (conv(to=None), "needs one scale above 0 for tensor 'y'"),
    "huge factor": (conv(to=1e-30), "scales its result by"),
    "depthwise channels": (depthwise(ones(1, 3, 3, 3), numbers([0] * 3)), "makes 3 channels of 2"),
    "depthwise axis": (
        depthwise(ones(1, 2, 3, 2, scale=(0.1, 0.2), axis=1)),
        "has 2 scales along axis 1",
    ),
    "depthwise stride": (depthwise(ones(1, 3, 3, 2), strideH=0), "has StrideH 0"),
    "connected rows": (connected(ones(3, 5)), "has weights for rows of 5, which do not divide 32"),
    "connected empty": (connected(ones(3, 0)), "has weights of the shape (3, 0)"),
    "connected rank": (connected(ones(32)), "has weights of the shape (32,)"),
    "connected scale": (connected(ones(3, 32), to=0.0), "needs one scale above 0 for tensor 'y'"),
    "product": (product(ones(*SHAPE), to=0.0), "needs one scale above 0 for tensor 'y'"),
    "large product": (product(ones(*SHAPE, scale=1e38), to=1e-38), "scales its result by"),
    "shapes": (product(ones(3)), "takes tensors of (1, 4, 4, 2) and (3,)"),
    "filter": (pool(filterHeight=0), "has FilterHeight 0"),
    "negative filter": (pool(filterWidth=NEGATIVE), "has FilterWidth -1"),
    "pool stride": (pool(strideW=0), "has StrideW 0"),
    "pool window": (pool(filterHeight=5, padding=Padding.VALID), "has a window of (5, 2)"),
    "pool rank": (
        one(Code.MAX_POOL_2D, (), options("Pool2DOptionsT"), shape=(32,)),
        "takes 4 dimensions, and tensor 'x' has (32,)",
    ),
    "mean's axis": (mean(numbers([1, 4])), "takes the mean along axes [1, 4] of 4"),
    "mean's axis before": (mean(numbers([-5])), "takes the mean along axes [-5] of 4"),
    "mean's axes' type": (mean(numbers([1], np.int8)), "for whole numbers"),
    "mean's axes": (mean(numbers([1] * 65)), "has 65 numbers in tensor"),
    "negative padding": (padded([0, 0], [0, -1], [0, 0], [0, 0]), "(PAD) has a padding of -1"),
    "huge padding": (padded([0, 0], [HUGE, HUGE], [0, 0], [0, 0]), "a tensor that is too large"),
    "paddings": (padded([0, 0], [1, 1]), "has 4 paddings for 4 dimensions"),
    "reshape": (
        one(Code.RESHAPE, (numbers([7]),), options("ReshapeOptionsT")),
        "makes the shape [7] of 32 values",
    ),
    "reshape twice": (
        one(Code.RESHAPE, (numbers([-1, -1]),), options("ReshapeOptionsT")),
        "makes the shape [-1, -1]",
    ),
    "reshape around zero": (
        one(Code.RESHAPE, (numbers([-1, 0]),), options("ReshapeOptionsT")),
        "makes the shape [-1, 0] of 32 values",
    ),
    "transpose": (
        one(Code.TRANSPOSE, (numbers([0, 1, 1, 3]),), options("TransposeOptionsT")),
        "puts the axes in the order [0, 1, 1, 3]",
    ),
    "transpose outside": (
        one(Code.TRANSPOSE, (numbers([0, 1, 2, -5]),), options("TransposeOptionsT")),
        "puts the axes in the order [0, 1, 2, -5]",
    ),
    "join axis": (joined(ones(*SHAPE), axis=4), "joins along axis 4 of 4"),
    "join shapes": (joined(ones(1, 3, 4, 2)), "joins tensors whose shapes do not fit"),
    "join scale": (joined(ones(*SHAPE), to=0.0), "needs one scale above 0 for tensor 'y'"),
    "relu": (one(Code.RELU, (), output=0.0), "needs one scale above 0 for tensor 'y'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_operator_that_contradicts_itself_is_refused(name: str) -> None:
    model, message = REFUSED[name]
    with pytest.raises(ModelError) as caught:
        validate(model)
    assert str(caught.value).startswith("operator 0 (")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "model",
    [
        conv(),
        conv(ones(2, 3, 3, 1)),
        depthwise(ones(1, 3, 3, 2, scale=(0.1, 0.2), axis=3)),
        pool(),
        pool(filterHeight=4, padding=Padding.VALID),
        connected(ones(3, 8)),
        product(ones(2)),
        mean(numbers([-1, 1])),
        padded([0, 0], [1, 1], [0, 0], [0, 0]),
        one(Code.RESHAPE, (numbers([-1, 8]),), options("ReshapeOptionsT")),
        one(Code.TRANSPOSE, (numbers([0, -1, 1, 2]),), options("TransposeOptionsT")),
        joined(ones(1, 4, 4, 9), axis=-1),
    ],
)
def test_what_is_right_is_let_through(model: bytes) -> None:
    validate(model)


def changed(change: Callable[[Any], None]) -> bytes:
    """The first addition below, with something in its tables changed."""
    graph = GraphBuilder()
    x = graph.tensor((4,), 0.5, name="x")
    constant = graph.constant(np.array([1, 2, 3, 4], np.int8), 0.5, name="constant")
    y = graph.add(x, constant, 1.0)
    model = model_fuzz.unpacked(graph.finish((x,), (y,)))
    change(model)
    return model_fuzz.packed(model)


def set_scales(scales: Sequence[float], points: Sequence[int], axis: int = 0) -> Any:
    def change(model: Any) -> None:
        quantization = model.subgraphs[0].tensors[1].quantization
        quantization.scale = np.array(scales, np.float32)
        quantization.zeroPoint = np.array(points, np.int64)
        quantization.quantizedDimension = axis

    return change


def shorten(model: Any) -> None:
    model.buffers[-1].data = model.buffers[-1].data[:3]


def behind(model: Any) -> None:
    buffer = model.buffers[-1]
    buffer.data, buffer.offset, buffer.size = None, 1 << 40, 4


def twice(model: Any) -> None:
    model.buffers[-1].offset, model.buffers[-1].size = 8, 4


def first(model: Any) -> None:
    model.buffers[0].data = model.buffers[-1].data
    model.subgraphs[0].tensors[1].buffer = 0


def elsewhere(model: Any) -> None:
    model.subgraphs[0].tensors[1].externalBuffer = 1


def grow(model: Any) -> None:
    model.subgraphs[0].tensors[1].shape = [1 << 20, 1 << 20]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_scales([], []), "operator 0 (ADD) cannot be scaled"),
        (set_scales([0.5], []), "tensor 'constant' has 1 scales and 0 zero points"),
        (set_scales([0.5] * 3, [0] * 3), "has 3 scales along axis 0 of the shape [4]"),
        (set_scales([0.5] * 4, [0] * 4, 1), "has 4 scales along axis 1 of the shape [4]"),
        (set_scales([-0.5], [0]), "has a scale that is not a positive number"),
        (shorten, "tensor 'constant' takes 4 bytes, and the model has 3 for it"),
        (grow, "tensor 'constant' takes 1099511627776 bytes, and the model has 4 for it"),
        (behind, "the model is damaged: a buffer ends after the model"),
        (twice, "the model is damaged: a buffer has two pieces of data"),
        (first, "operator 0 (ADD) reads tensor 'constant' before it has a value"),
        (elsewhere, "tensor 'constant' has its data in another file"),
    ],
)
def test_a_tensor_that_contradicts_itself_is_refused(change: Any, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        validate(changed(change))
    assert message in str(caught.value)


def test_data_may_be_behind_the_tables() -> None:
    # As in files of ai-edge-quantizer with 256 KiB of constants and more.
    plain, size = changed(lambda model: None), 4

    def outside(offset: int) -> bytes:
        def change(model: Any) -> None:
            buffer = model.buffers[-1]
            buffer.data, buffer.offset, buffer.size = None, offset, size

        return changed(change)

    head = outside(1 << 20)
    model = outside(-(-len(head) // 16) * 16)
    whole = model.ljust(-(-len(model) // 16) * 16, b"\0") + bytes([1, 2, 3, 4])
    inputs = (np.array([5, -6, 7, 127], np.int8),)
    with bench() as vta:
        assert vta.infer(whole, inputs, 4) == reference(plain, inputs)
        assert vta.reasons == [None]
    with pytest.raises(ModelError, match="a buffer ends after the model"):
        validate(whole[:-1])
    size = 3
    with pytest.raises(ModelError, match="'constant' takes 4 bytes, and the model has 3 for it"):
        validate(outside(64))


def test_a_value_that_is_not_there_yet_is_not_read() -> None:
    builder = ModelBuilder()
    x, later, y = (builder.tensor(name, (4,), scale=0.1) for name in ("x", "later", "y"))
    builder.add(x, later, y)
    builder.add(x, x, later)
    with pytest.raises(ModelError, match=r"operator 0 \(ADD\) reads tensor 'later' before"):
        validate(builder.build((x,), (y,)))


def test_a_value_that_nothing_writes_is_not_given() -> None:
    builder = ModelBuilder()
    x, never = (builder.tensor(name, (4,), scale=0.1) for name in ("x", "never"))
    with pytest.raises(ModelError, match="the model gives tensor 'never' before it has a value"):
        validate(builder.build((x,), (never,)))


def test_a_variable_may_be_read_first_but_is_no_output() -> None:
    builder = ModelBuilder()
    x, y = (builder.tensor(name, (4,), scale=0.1) for name in ("x", "y"))
    state = builder.tensor("state", (4,), scale=0.1, variable=True)
    builder.add(x, state, y)
    validate(builder.build((x,), (y,)))
    builder.add(x, y, state)
    with pytest.raises(ModelError, match="the model writes to tensor 'state', a variable"):
        validate(builder.build((x,), (y,)))


def calling(*calls: int) -> bytes:
    """Graphs of one IF each, which all call the graphs of these numbers."""
    graph = GraphBuilder()
    x = graph.tensor((1,), dtype=np.bool_)
    y = graph.operator(Code.IF, (x,), graph.tensor((1,)), options("IfOptionsT"))
    model = model_fuzz.unpacked(graph.finish((x,), (y,)))
    (first,) = model.subgraphs
    model.subgraphs = []
    for call in calls:
        model.subgraphs.append(copy.deepcopy(first))
        chosen = model.subgraphs[-1].operators[0].builtinOptions
        chosen.thenSubgraphIndex = chosen.elseSubgraphIndex = call
    return model_fuzz.packed(model)


def test_graphs_that_call_each_other_in_a_circle_are_refused() -> None:
    validate(calling(1, 2, 3))
    for calls in ((0,), (1, 0), (1, 2, 1)):
        with pytest.raises(ModelError, match="the model's graphs call each other in a circle"):
            validate(calling(*calls))


def everything() -> bytes:
    """A model with every operator that there is a rule for."""
    graph = GraphBuilder()
    x = graph.tensor((1, 6, 6, 4), 0.5, 3)
    kernel = graph.constant(np.ones((4, 3, 3, 4), np.int8), (0.1, 0.2, 0.3, 0.4))
    down = graph.constant(np.ones((1, 3, 3, 4), np.int8), (0.1, 0.2, 0.3, 0.4), axis=3)
    matrix = graph.constant(np.ones((5, 8), np.int8), 0.1)
    y = graph.conv2d(x, kernel, None, 0.5, 1, activation=FusedActivation.RELU)
    y = graph.depthwise_conv2d(y, down, None, 0.5, stride=2)
    y = graph.relu6(graph.relu(graph.add(y, y, 1.0), 0.5, -128), 0.5, -128)
    y = graph.mul(graph.sub(y, y, 0.5), y, 0.5)
    y = graph.maximum(graph.minimum(y, y), y)
    y = graph.pad(y, ((0, 0), (1, 1), (1, 1), (0, 0)))
    y = graph.average_pool2d(graph.max_pool2d(y, 2, stride=1), 2)
    y = graph.concatenation((y, y), 3)
    y = graph.transpose(y, (0, 2, 1, 3))
    factors = graph.constant(np.ones(8, np.int8), 0.1)
    y = graph.operator(Code.PRELU, (y, factors), graph.tensor(y.shape, 0.5))
    y = graph.operator(Code.QUANTIZE, (y,), graph.tensor(y.shape, 0.4), options("QuantizeOptionsT"))
    given = options("LeakyReluOptionsT", alpha=0.2)
    y = graph.operator(Code.LEAKY_RELU, (y,), graph.tensor(y.shape, 0.3), given, version=2)
    y = graph.operator(Code.HARD_SWISH, (y,), graph.tensor(y.shape, 0.3))
    given = options("SoftmaxOptionsT", beta=1.0)
    y = graph.operator(Code.SOFTMAX, (y,), graph.tensor(y.shape, 1 / 256, -128), given, version=2)
    y = graph.mean(y, scale=0.5)
    y = graph.fully_connected(graph.reshape(y, (1, 8)), matrix, None, 0.5)
    return graph.finish((x,), (y,))


def test_damaged_models_end_nothing_but_their_own_process() -> None:
    count = 40
    verdicts = model_fuzz.run(everything(), count, seed=11)
    for kind, its in verdicts.items():
        assert sum(its.values()) == count
        assert its["refused"] > 10
        assert its["ran"] > 2 or kind == "truncation"
        # Past validation, TensorFlow Lite rarely ends the process: what it does is known by name.
        assert its["ended"] <= 2

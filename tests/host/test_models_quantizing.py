"""A model in float32 becomes one in int8 that computes nearly the same."""

from __future__ import annotations

import copy
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash.cli.app import run_app
from potash.models import folding, networks
from potash.models.quantizing import quantize
from potash.sdk.errors import PotashError
from potash_firmware.tflite.writer import ModelBuilder
from support.graph_builder import FusedActivation, GraphBuilder
from support.model_fuzz import packed, unpacked
from support.models import ISOLATED, in_this_process
from support.tflite import bench, reference
from support.tflite_shapes import flatten, multiply, opened

pytestmark = pytest.mark.skipif(
    find_spec("ai_edge_quantizer") is None, reason="the package ai-edge-quantizer is not installed"
)

Array = npt.NDArray[Any]
RANDOM = np.random.default_rng(6)


def reals(*shape: int) -> Array:
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


SAMPLES = reals(16, 6, 6, 3)


def network() -> bytes:
    graph = GraphBuilder()
    x = graph.tensor((1, 6, 6, 3), name="picture")
    y = graph.conv2d(
        x,
        graph.constant(reals(8, 3, 3, 3)),
        graph.constant(reals(8)),
        activation=FusedActivation.RELU,
    )
    down = graph.depthwise_conv2d(
        y,
        graph.constant(reals(1, 3, 3, 8)),
        graph.constant(reals(8)),
        activation=FusedActivation.RELU6,
    )
    y = graph.max_pool2d(graph.add(y, down), 2)
    y = graph.mean(y)
    matrix = reals(5, 8)
    matrix[:, ::3] = 0
    y = graph.fully_connected(y, graph.constant(matrix), graph.constant(reals(5)))
    return graph.finish((x,), (y,))


def unsigned(model: bytes) -> bytes:
    """The model without names for its inputs and outputs."""
    tables = unpacked(model)
    tables.signatureDefs = None
    return packed(tables)


@pytest.mark.parametrize("change", [bytes, unsigned])
def test_int8_says_what_float_says(change: Any) -> None:
    model = change(network())
    made = quantize(model, [("samples", SAMPLES.tobytes())])
    assert (made.samples, made.float_tensors, made.float_operators) == (16, (), 0)
    assert made.operators == 6
    tables = unpacked(made.model)
    graph = tables.subgraphs[0]
    scales = {}
    for what, (index,) in (("x", graph.inputs), ("y", graph.outputs)):
        tensor = graph.tensors[index]
        assert tensor.type == schema.TensorType.INT8
        scales[what] = float(tensor.quantization.scale[0]), int(tensor.quantization.zeroPoint[0])
    weights = [tensor for tensor in graph.tensors if list(tensor.shape) == [8, 3, 3, 3]]
    assert [len(tensor.quantization.scale) for tensor in weights] == [8]
    for sample in SAMPLES:
        exact = np.frombuffer(reference(model, (sample,)), np.float32)
        scale, point = scales["x"]
        whole = np.clip(np.rint(sample / scale) + point, -128, 127).astype(np.int8)
        scale, point = scales["y"]
        result = np.frombuffer(reference(made.model, (whole,)), np.int8)
        assert np.abs((result.astype(float) - point) * scale - exact).max() < 0.06 * np.ptp(exact)


def vanishing(kind: str) -> tuple[bytes, Array]:
    """A network of one layer, of whose four channels two have weights close to 0, so that their
    biases, at the scale of input times weights, would be 70 and 6000 times as large as 32 bits hold;
    and samples."""
    graph, samples = GraphBuilder(), reals(4, 1, 4, 4, 4)
    each, bias = (
        np.array([1, 1e-7, 1, 1e-11]),
        graph.constant(np.array([0.5, -1, 0.25, 0.75], np.float32)),
    )
    x = graph.tensor((1, 4, 4, 4), name="x")
    if kind == "CONV_2D":
        weights = reals(4, 3, 3, 4) * each[:, None, None, None]
        y = graph.conv2d(x, graph.constant(weights.astype(np.float32)), bias)
    elif kind == "DEPTHWISE_CONV_2D":
        weights = reals(1, 3, 3, 4) * each
        y = graph.depthwise_conv2d(x, graph.constant(weights.astype(np.float32)), bias)
    elif kind == "FULLY_CONNECTED":
        weights = reals(4, 64) * each[:, None]
        y = graph.fully_connected(x, graph.constant(weights.astype(np.float32)), bias)
    else:
        weights = reals(4, 3, 3, 4) * each[:, None, None, None]
        options = schema.TransposeConvOptionsT()
        options.strideH = options.strideW = 1
        shape = graph.constant(np.array([1, 4, 4, 4], np.int32))
        inputs = (shape, graph.constant(weights.astype(np.float32)), x, bias)
        code = schema.BuiltinOperator.TRANSPOSE_CONV
        y = graph.operator(code, inputs, graph.tensor((1, 4, 4, 4)), options, version=3)
    return graph.finish((x,), (y,)), samples


@pytest.mark.parametrize(
    "kind", ["CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"]
)
def test_the_bias_of_a_channel_with_vanished_weights_is_kept(kind: str) -> None:
    model, samples = vanishing(kind)
    made = quantize(model, [("samples", samples.tobytes())]).model
    graph = unpacked(made).subgraphs[0]
    its, results = (graph.tensors[at].quantization for at in (*graph.inputs, *graph.outputs))
    for sample in samples:
        exact = np.frombuffer(reference(model, (sample,)), np.float32).reshape(-1, 4)
        whole = np.clip(np.rint(sample / its.scale[0]) + its.zeroPoint[0], -128, 127)
        found = np.frombuffer(reference(made, (whole.astype(np.int8),)), np.int8).reshape(-1, 4)
        error = found.astype(float) - results.zeroPoint[0] - exact / results.scale[0]
        assert np.abs(error[:, 1::2]).max() <= 0.6
        assert np.abs(error).max() <= 3
    with bench() as vta:
        vta.infer(made, (whole.astype(np.int8),), found.size)
        assert vta.reasons == [None]


def test_an_output_that_nobody_reads_is_quantised_too() -> None:
    """As the first step of an unrolled LSTM or GRU has one: XNNPACK does not compute it."""
    builder, data = ModelBuilder(), reals(16, 8)
    x, y, a, b, z = (
        builder.tensor(name, (1, size), np.float32)
        for name, size in (("x", 8), ("y", 16), ("a", 8), ("b", 8), ("z", 8))
    )
    weights = builder.tensor("weights", data.shape, np.float32, data=data)
    axis = builder.tensor("axis", (), np.int32, data=np.array(1, np.int32))
    code, kinds = schema.BuiltinOperator, schema.BuiltinOptions
    layer, split = schema.FullyConnectedOptionsT(), schema.SplitOptionsT()
    split.numSplits = 2
    its: dict[str, Any] = {"options": layer, "options_type": kinds.FullyConnectedOptions}
    builder.operator(code.FULLY_CONNECTED, [x, weights, -1], [y], **its)
    its = {"options": split, "options_type": kinds.SplitOptions}
    builder.operator(code.SPLIT, [axis, y], [a, b], **its)
    builder.operator(code.LOGISTIC, [a], [z])
    samples = reals(4, 8)
    made = quantize(builder.build([x], [z]), [("samples", samples.tobytes())])
    graph = unpacked(made.model).subgraphs[0]
    (given,), (result,) = graph.inputs, graph.outputs
    scale, point = (
        getattr(graph.tensors[given].quantization, of)[0] for of in ("scale", "zeroPoint")
    )
    assert [graph.tensors[at].name for at in graph.outputs] == [b"z"] and made.operators == 3
    for sample in samples:
        whole = np.clip(np.rint(sample / scale) + point, -128, 127).astype(np.int8)
        found = np.frombuffer(reference(made.model, (whole,)), np.int8)
        real = 1 / (1 + np.exp(-data[:8] @ sample))
        assert graph.tensors[result].quantization.scale[0] == 1 / 256
        assert np.abs((found.astype(float) + 128) / 256 - real).max() < 0.03


def in_float16(tables: Any) -> None:
    """Have an operator make float32 of each constant."""
    graph = tables.subgraphs[0]
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.DEQUANTIZE
    code.version = 2
    tables.operatorCodes.append(code)
    made = []
    for tensor in list(graph.tensors):
        buffer = tables.buffers[tensor.buffer]
        if buffer.data is None or tensor.type != schema.TensorType.FLOAT32:
            continue
        half = copy.copy(tensor)
        half.name, half.type = tensor.name + b" in float16", schema.TensorType.FLOAT16
        buffer.data = buffer.data.view(np.float32).astype(np.float16).view(np.uint8)
        graph.tensors.append(half)
        tensor.buffer = 0
        operator = schema.OperatorT()
        operator.opcodeIndex = len(tables.operatorCodes) - 1
        operator.inputs, operator.outputs = [len(graph.tensors) - 1], [graph.tensors.index(tensor)]
        made.append(operator)
    assert made
    graph.operators = [*made, *graph.operators]


def rounded(tables: Any) -> None:
    """Have constants be what float16 has."""
    for tensor in tables.subgraphs[0].tensors:
        buffer = tables.buffers[tensor.buffer]
        if buffer.data is not None and tensor.type == schema.TensorType.FLOAT32:
            values = buffer.data.view(np.float32).astype(np.float16).astype(np.float32)
            buffer.data = values.view(np.uint8)


def without_zeroes(tables: Any) -> None:
    """Have an operator put the zeroes back into the last layer's weights."""
    graph = tables.subgraphs[0]
    at = next(at for at, tensor in enumerate(graph.tensors) if list(tensor.shape) == [5, 8])
    whole = graph.tensors[at]
    values = tables.buffers[whole.buffer].data.view(np.float32).reshape(5, 8)
    rows, columns = np.nonzero(values)
    assert 0 < len(rows) < 40
    rows_of = schema.DimensionMetadataT()
    rows_of.format, rows_of.denseSize = schema.DimensionType.DENSE, 5
    columns_of = schema.DimensionMetadataT()
    columns_of.format = schema.DimensionType.SPARSE_CSR
    columns_of.arraySegmentsType = columns_of.arrayIndicesType = (
        schema.SparseIndexVector.Int32Vector
    )
    columns_of.arraySegments = schema.Int32VectorT()
    columns_of.arraySegments.values = np.searchsorted(rows, np.arange(6)).astype(np.int32)
    columns_of.arrayIndices = schema.Int32VectorT()
    columns_of.arrayIndices.values = columns.astype(np.int32)
    part = copy.copy(whole)
    part.name, part.sparsity = b"without zeroes", schema.SparsityParametersT()
    part.sparsity.traversalOrder = np.array([0, 1], np.int32)
    part.sparsity.dimMetadata = [rows_of, columns_of]
    tables.buffers[whole.buffer].data = values[rows, columns].view(np.uint8)
    graph.tensors.append(part)
    whole.buffer = 0
    code = schema.OperatorCodeT()
    code.builtinCode, code.version = schema.BuiltinOperator.DENSIFY, 1
    code.deprecatedBuiltinCode = schema.BuiltinOperator.DENSIFY
    tables.operatorCodes.append(code)
    operator = schema.OperatorT()
    operator.opcodeIndex = len(tables.operatorCodes) - 1
    operator.inputs, operator.outputs = [len(graph.tensors) - 1], [at]
    graph.operators = [operator, *graph.operators]


def of_an_older_converter(tables: Any) -> None:
    for code in tables.operatorCodes:
        code.builtinCode = 0


def changed(model: bytes, change: Any) -> bytes:
    tables = unpacked(model)
    change(tables)
    return packed(tables)


def numbers(model: bytes) -> list[Any]:
    """Types, shapes, scales and constants of the tensors that operators read."""
    tables = unpacked(model)
    graph, found = tables.subgraphs[0], []
    for index in sorted({int(at) for one in graph.operators for at in one.inputs}):
        tensor = graph.tensors[index]
        its, data = tensor.quantization, tables.buffers[tensor.buffer].data
        scales = None if its is None or its.scale is None else its.scale.tobytes()
        constant = None if data is None else bytes(data)
        found.append((tensor.name, tensor.type, tensor.shape.tolist(), scales, constant))
    return sorted(found)


@pytest.mark.parametrize(
    ("change", "equal"),
    [(in_float16, rounded), (without_zeroes, None), (of_an_older_converter, None)],
)
def test_what_converters_write_is_quantised_as_plain_float32(change: Any, equal: Any) -> None:
    plain = network()
    samples = [("samples", SAMPLES.tobytes())]
    expected = quantize(changed(plain, equal) if equal else plain, samples)
    made = quantize(changed(plain, change), samples)
    assert (made.operators, made.float_operators) == (6, 0)
    assert numbers(made.model) == numbers(expected.model)
    # Nothing stays that nothing reads.
    assert len(made.model) < len(expected.model) + 1000


def test_a_model_with_many_constants_runs_on_the_vta() -> None:
    graph = GraphBuilder()
    x = graph.tensor((2, 600), name="x")
    y = graph.fully_connected(x, graph.constant(reals(600, 600)), graph.constant(reals(600)))
    model = graph.finish((x,), (y,))
    inputs = reals(2, 600)
    made = quantize(model, [("samples", inputs.tobytes())]).model
    whole = RANDOM.integers(-128, 128, (2, 600), np.int8)
    with bench() as vta:
        assert vta.infer(made, (whole,), 1200) == reference(made, (whole,))
        assert vta.reasons == [None]
    with pytest.raises(PotashError, match="it may be quantised already"):
        quantize(made, [("samples", inputs.tobytes())])


def test_what_takes_int8_is_not_left_in_float32() -> None:
    graph = GraphBuilder()
    x = graph.tensor((1, 6, 6, 3), name="x")
    y = graph.conv2d(x, graph.constant(reals(8, 3, 3, 3)), graph.constant(reals(8)))
    options = schema.DepthToSpaceOptionsT()
    options.blockSize = 2
    code = schema.BuiltinOperator.DEPTH_TO_SPACE
    z = graph.operator(code, (y,), graph.tensor((1, 12, 12, 2)), options)
    factors = graph.constant(reals(1, 1, 8) / 3)
    y = graph.operator(schema.BuiltinOperator.PRELU, (y, factors), graph.tensor(y.shape))
    leaky = schema.LeakyReluOptionsT()
    leaky.alpha = 0.2
    y = graph.conv2d(y, graph.constant(reals(4, 1, 1, 8)), graph.constant(reals(4)))
    code = schema.BuiltinOperator.LEAKY_RELU
    y = graph.operator(code, (y,), graph.tensor(y.shape), leaky)
    y = graph.conv2d(y, graph.constant(reals(4, 1, 1, 4)), graph.constant(reals(4)))
    z = graph.conv2d(z, graph.constant(reals(3, 1, 1, 2)), graph.constant(reals(3)))
    model = graph.finish((x,), (y, z))
    made = quantize(model, [("samples", SAMPLES.tobytes())])
    assert (made.float_operators, made.float_tensors) == (0, ())
    tables = unpacked(made.model)
    quantized = tables.subgraphs[0]
    assert {quantized.tensors[one.outputs[0]].type for one in quantized.operators} == {
        schema.TensorType.INT8
    }

    def real(tensor: int, values: Array) -> Array:
        its = quantized.tensors[tensor].quantization
        return np.asarray((values.astype(float) - its.zeroPoint[0]) * its.scale[0])

    its = quantized.tensors[quantized.inputs[0]].quantization
    for sample in SAMPLES[:4]:
        whole = np.clip(np.rint(sample / its.scale[0]) + its.zeroPoint[0], -128, 127)
        results = np.frombuffer(reference(made.model, (whole.astype(np.int8),)), np.int8)
        exact = np.frombuffer(reference(model, (sample,)), np.float32)
        for index, part in zip(quantized.outputs, (slice(144), slice(144, None)), strict=True):
            expected = exact[part]
            assert np.abs(real(index, results[part]) - expected).max() < 0.06 * np.ptp(expected)


def test_negations_and_squares_become_products_and_a_maximum_is_one_of_int8() -> None:
    graph = GraphBuilder()
    x = graph.tensor((1, 6, 6, 3), name="x")
    results = []
    for code in (schema.BuiltinOperator.NEG, schema.BuiltinOperator.SQUARE):
        y = graph.conv2d(x, graph.constant(reals(8, 3, 3, 3)), graph.constant(reals(8) + 2))
        y = graph.operator(code, (y,), graph.tensor(y.shape))
        results.append(graph.max_pool2d(y, 1))
    options = schema.ReducerOptionsT()
    options.keepDims = True
    y = graph.conv2d(x, graph.constant(reals(8, 3, 3, 3)), graph.constant(reals(8)))
    inputs = (y, graph.constant(np.array([1, 2], np.int32)))
    code = schema.BuiltinOperator.REDUCE_MAX
    y = graph.operator(code, inputs, graph.tensor((1, 1, 1, 8)), options)
    results.append(graph.max_pool2d(y, 1))
    model = graph.finish((x,), results)
    made = quantize(model, [("samples", SAMPLES.tobytes())])
    # The maximum has its input's scale, and then its own.
    assert (made.operators, made.float_operators) == (10, 0)
    quantized = unpacked(made.model).subgraphs[0]
    its, *outputs = (
        quantized.tensors[at].quantization for at in (*quantized.inputs, *quantized.outputs)
    )
    whole = np.clip(np.rint(SAMPLES[:1] / its.scale[0]) + its.zeroPoint[0], -128, 127)
    exact = np.frombuffer(reference(model, (SAMPLES[:1],)), np.float32)
    found = np.frombuffer(reference(made.model, (whole.astype(np.int8),)), np.int8)
    half = (len(exact) - 8) // 2
    parts = [np.split(values, [half, 2 * half]) for values in (exact, found)]
    for real, values, one in zip(*parts, outputs, strict=True):
        error = (values.astype(float) - one.zeroPoint[0]) * one.scale[0] - real
        assert np.abs(error).max() < 0.04 * np.ptp(real)


def of_an_open_batch(kind: type, x: tuple[int, ...] = (1, 4, 4, 8)) -> bytes:
    """A product of what a Flatten gives; its shape is not in the file."""
    graph = ModelBuilder()
    made = graph.tensor("x", x, kind)
    image, flat = graph.tensor("image", x, np.float32), graph.tensor("flat", (1, 1), np.float32)
    if kind is np.float32:
        graph.operator(schema.BuiltinOperator.RELU, (made,), (image,))
    else:
        graph.operator(schema.BuiltinOperator.CAST, (made,), (image,))
    weights = graph.tensor("weights", (6, 128), np.float32, data=reals(6, 128))
    output = graph.tensor("output", (1, 6), np.float32)
    flatten(graph, image, flat)
    multiply(graph, flat, weights, output)
    return opened(graph.build((made,), (output,)), b"x", b"image", b"flat", b"output")


def test_shapes_of_an_open_batch_are_computed_once() -> None:
    model, images = of_an_open_batch(np.float32), reals(4, 1, 4, 4, 8)
    once = packed(folding.folded(model))
    assert len(unpacked(once).subgraphs[0].operators) == 3
    for image in images:
        assert reference(once, (image,)) == reference(model, (image,))
    made = quantize(model, [("samples", images.tobytes())])
    assert (made.operators, made.float_operators) == (3, 0)
    whole = RANDOM.integers(-128, 128, images[0].shape, np.int8)
    with bench() as vta:
        assert vta.infer(made.model, (whole,), 6) == reference(made.model, (whole,))
        assert vta.reasons == [None] * 3


def test_shapes_that_may_depend_on_values_are_left() -> None:
    # That a CAST gives no shape is not looked at.
    model = of_an_open_batch(np.int32)
    assert len(folding.folded(model).subgraphs[0].operators) == 6


def test_a_divisor_that_is_nearly_0_does_not_become_0() -> None:
    graph = GraphBuilder()
    x, d = graph.tensor((1, 6), name="x"), graph.tensor((1, 6), name="d")
    options = schema.DivOptionsT()
    y = graph.operator(schema.BuiltinOperator.DIV, (x, d), graph.tensor((1, 6)), options)
    samples = np.array([[1] * 6, [1, 2, 4, -4, 3, 0.001]], np.float32)
    made = quantize(graph.finish((x, d), (y,)), [("samples", samples.tobytes())]).model
    graph_made = unpacked(made).subgraphs[0]
    ones, divisors, quotients = (
        graph_made.tensors[at].quantization for at in (*graph_made.inputs, *graph_made.outputs)
    )
    whole = [
        np.clip(np.rint(row / its.scale[0]) + its.zeroPoint[0], -128, 127).astype(np.int8)
        for row, its in zip(samples[:, None], (ones, divisors), strict=True)
    ]
    assert whole[1][0, 5] == divisors.zeroPoint[0]
    found = np.frombuffer(reference(made, tuple(whole)), np.int8)[:5]
    real = (found.astype(float) - quotients.zeroPoint[0]) * quotients.scale[0]
    # The scale is that of the largest quotient, 1000.
    assert np.abs(real - 1 / samples[1, :5]).max() <= quotients.scale[0]


def test_what_the_quantizer_cannot_do_stays_float_and_is_told() -> None:
    graph = GraphBuilder()
    x = graph.tensor((1, 6), name="x")
    y = graph.operator(schema.BuiltinOperator.FLOOR, (x,), graph.tensor((1, 6), name="y"))
    made = quantize(graph.finish((x,), (y,)), [("samples", reals(4, 6).tobytes())])
    assert (made.operators, made.float_operators, made.float_tensors) == (3, 2, ())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "samples has 0 bytes, and a sample takes 432"),
        (bytes(433), "samples has 433 bytes, and a sample takes 432"),
        (np.full(108, np.nan, np.float32).tobytes(), "samples holds infinities, or what is no"),
    ],
)
def test_samples_that_are_none_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(PotashError, match=message):
        quantize(network(), [("samples", data)])


def test_a_quantised_model_is_refused() -> None:
    with pytest.raises(PotashError, match="the model takes no float32"):
        quantize(networks.make("add-4"), [("samples", bytes(8))])


def test_the_command_writes_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = tmp_path / "float.tflite", tmp_path / "int8.tflite"
    source.write_bytes(network())
    pieces = [tmp_path / "first.bin", tmp_path / "second.bin"]
    for path, samples in zip(pieces, (SAMPLES[:4], SAMPLES[4:]), strict=True):
        path.write_bytes(samples.tobytes())
    arguments = [item for path in pieces for item in ("--calibration", str(path))]
    command = ["model", "quantize", str(source), *arguments, "--output", str(output), "--json"]
    assert run_app(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["samples"], report["bytes"]) == (16, output.stat().st_size)
    assert (report["float_operators"], report["float_tensors"]) == (0, [])
    assert output.read_bytes()[4:8] == b"TFL3"
    pieces[1].write_bytes(b"?")
    monkeypatch.setattr(ISOLATED, in_this_process)
    before = output.read_bytes()
    assert run_app(command) == 1
    said = capsys.readouterr().err
    assert said == f"potash: {source}: {pieces[1]} has 1 bytes, and a sample takes 432\n"
    assert output.read_bytes() == before


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_quantizer", None)
    monkeypatch.delitem(sys.modules, "ai_edge_quantizer.quantizer", raising=False)
    with pytest.raises(PotashError, match=r"pip install 'potash\[quantize\]'"):
        quantize(network(), [("samples", SAMPLES.tobytes())])

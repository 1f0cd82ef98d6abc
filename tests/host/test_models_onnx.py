"""ONNX models come out as TensorFlow Lite models that compute what ONNX's own evaluator says."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from potash.cli.app import run_app
from potash.models import onnx_import
from potash.models.onnx_import import Imported, convert
from potash.sdk.errors import PotashError
from support.tflite import reference

onnx: Any = pytest.importorskip("onnx", reason="the package onnx is not installed")
evaluator: Any = pytest.importorskip("onnx.reference")

Array = npt.NDArray[Any]
RANDOM = np.random.default_rng(4)
PICTURE = (1, 4, 9, 8)


def reals(*shape: int) -> Array:
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


def op(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    return onnx.helper.make_node(kind, inputs.split(), [output], **attributes)


def built(
    nodes: Sequence[Any],
    constants: dict[str, Array],
    given: Sequence[int] = PICTURE,
    outputs: str = "y",
    version: int = 17,
) -> bytes:
    """An ONNX model with the input x."""
    make = onnx.helper
    numbers = onnx.TensorProto.FLOAT
    graph = make.make_graph(
        nodes,
        "graph",
        [make.make_tensor_value_info("x", numbers, given)],
        [make.make_tensor_value_info(name, numbers, None) for name in outputs.split()],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = [make.make_opsetid("", version)]
    data: bytes = make.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()
    return data


def evaluated(data: bytes, x: Array) -> list[Array]:
    with np.errstate(all="ignore"):
        outputs: list[Array] = evaluator.ReferenceEvaluator(onnx.load_from_string(data)).run(
            None, {"x": x}
        )
    return outputs


def last(array: Array) -> Array:
    return array.transpose(0, 2, 3, 1) if array.ndim == 4 else array


def run(made: Imported, x: Array) -> list[Array]:
    """What the converted model gives for x, which is as ONNX has it."""
    data, offset, results = reference(made.model, (last(x),)), 0, []
    for tensor in made.outputs:
        count = int(np.prod(tensor.shape))
        values = np.frombuffer(data, tensor.dtype, count, offset).reshape(tensor.shape)
        offset += values.nbytes
        results.append(values)
    return results


W, B = reals(6, 4, 3, 2), reals(6)
NORM = {
    "gamma": reals(6) + 2,
    "beta": reals(6),
    "mean": reals(6),
    "variance": reals(6) + 2,
}
FLOAT: dict[str, tuple[Sequence[Any], dict[str, Array]]] = {
    "conv": ([op("Conv", "x w b", "y", pads=[1, 0, 1, 1])], {"w": W, "b": B}),
    "conv valid": (
        [op("Conv", "x w", "y", strides=[2, 1], dilations=[1, 2])],
        {"w": W},
    ),
    "conv same": ([op("Conv", "x w", "y", auto_pad="SAME_UPPER", strides=[2, 2])], {"w": W}),
    "conv same lower": ([op("Conv", "x w", "y", auto_pad="SAME_LOWER")], {"w": W}),
    "conv lopsided": ([op("Conv", "x w b", "y", pads=[2, 1, 0, 3])], {"w": W, "b": B}),
    "depthwise": (
        [op("Conv", "x w b", "y", group=4, pads=[1, 1, 1, 1], strides=[2, 2])],
        {"w": reals(8, 1, 3, 3), "b": reals(8)},
    ),
    "grouped": ([op("Conv", "x w", "y", group=2)], {"w": reals(6, 2, 3, 3)}),
    "normalised": (
        [
            op("Conv", "x w b", "c"),
            op("BatchNormalization", "c gamma beta mean variance", "n", epsilon=0.1),
            op("Relu", "n", "y"),
        ],
        {"w": W, "b": B} | NORM,
    ),
    "normalised alone": (
        [op("BatchNormalization", "x gamma beta mean variance", "y")],
        {name: values[:4] for name, values in NORM.items()},
    ),
    "relu": ([op("Conv", "x w", "c"), op("Relu", "c", "y")], {"w": W}),
    "relu6": (
        [op("Mul", "x ten", "m"), op("Clip", "m low high", "y")],
        {
            "ten": np.array(10, np.float32),
            "low": np.array(0, np.float32),
            "high": np.array(6, np.float32),
        },
    ),
    "relu of what is given too": (
        [op("Add", "x x", "a"), op("Relu", "a", "r"), op("Sub", "a r", "y")],
        {},
    ),
    "sums": (
        [op("Add", "x channel", "a"), op("Sub", "a row", "b"), op("Mul", "b x", "y")],
        {"channel": reals(4, 1, 1), "row": reals(8)},
    ),
    "extremes": ([op("Min", "x c", "a"), op("Max", "a x", "y")], {"c": reals(4, 1, 1)}),
    "max pool": ([op("MaxPool", "x", "y", kernel_shape=[2, 3], strides=[2, 1])], {}),
    "max pool of relu": (
        [op("Relu", "x", "r"), op("MaxPool", "r", "y", kernel_shape=[3, 3], pads=[1] * 4)],
        {},
    ),
    "average pool": ([op("AveragePool", "x", "y", kernel_shape=[3, 2], strides=[1, 2])], {}),
    "average pool padded": (
        [op("AveragePool", "x", "y", kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1)],
        {},
    ),
    "average pool same": (
        [op("AveragePool", "x", "y", kernel_shape=[3, 3], pads=[1] * 4)],
        {},
    ),
    "classifier": (
        [
            op("GlobalAveragePool", "x", "g"),
            op("Flatten", "g", "f"),
            op("Gemm", "f w b", "y", transB=1),
        ],
        {"w": reals(5, 4), "b": reals(5)},
    ),
    "gemm": (
        [op("Flatten", "x", "f"), op("Gemm", "f w b", "y", alpha=0.5, beta=2.0)],
        {"w": reals(288, 5), "b": reals(5)},
    ),
    "matmul": (
        [op("Reshape", "x s", "r"), op("MatMul", "r w", "m"), op("Add", "m b", "y")],
        {"s": np.array([1, 9, 32]), "w": reals(32, 5), "b": reals(5)},
    ),
    "mean": ([op("ReduceMean", "x", "y", axes=[2, 3], keepdims=0)], {}),
    "mean kept": ([op("ReduceMean", "x", "y", axes=[1], keepdims=1)], {}),
    "mean of columns": ([op("ReduceMean", "x", "y", axes=[-1], keepdims=0)], {}),
    "pad": ([op("Pad", "x p", "y")], {"p": np.array([0, 1, 2, 0, 0, 0, 1, 3])}),
    "reshape": ([op("Reshape", "x s", "y")], {"s": np.array([0, -1, 6])}),
    "reshape to a picture": ([op("Reshape", "x s", "y")], {"s": np.array([1, 8, 4, -1])}),
    "transpose": ([op("Transpose", "x", "y", perm=[0, 3, 1, 2])], {}),
    "transpose to channels last": ([op("Transpose", "x", "y", perm=[0, 2, 3, 1])], {}),
    "concat": ([op("Mul", "x x", "m"), op("Concat", "x m x", "y", axis=1)], {}),
    "identity": ([op("Identity", "x", "i"), op("Relu", "i", "r"), op("Identity", "r", "y")], {}),
}


@pytest.mark.parametrize("name", FLOAT)
def test_float_models_compute_the_same(name: str) -> None:
    nodes, constants = FLOAT[name]
    data = built(nodes, constants)
    x = reals(*PICTURE)
    made = convert(data)
    assert not made.quantised
    (expected,), (result,) = evaluated(data, x), run(made, x)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, last(expected), rtol=1e-4, atol=1e-5)


def test_activations_and_normalisation_are_taken_into_the_convolution() -> None:
    nodes, constants = FLOAT["normalised"]
    assert _operators(convert(built(nodes, constants)).model) == ["CONV_2D"]


def test_axes_may_be_an_input_as_in_newer_models() -> None:
    mean = op("ReduceMean", "x axes", "y", keepdims=0)
    data = built([mean], {"axes": np.array([2, 3])}, version=18)
    x = reals(*PICTURE)
    (result,), (expected,) = run(convert(data), x), evaluated(data, x)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_several_outputs_come_in_their_order() -> None:
    nodes = [op("Relu", "x", "a"), op("GlobalAveragePool", "x", "b")]
    data = built(nodes, {}, outputs="b a")
    x = reals(*PICTURE)
    for result, expected in zip(run(convert(data), x), evaluated(data, x), strict=True):
        np.testing.assert_allclose(result, last(expected), rtol=1e-5, atol=1e-6)


def quantised(kind: type[np.generic]) -> tuple[bytes, dict[str, Array]]:
    """A network that says how its values are quantised: conv, relu, add, pool and classifier."""
    zero = 128 if kind is np.uint8 else 0
    constants: dict[str, Array] = {
        "w": RANDOM.integers(-127, 128, (6, 4, 3, 3)).astype(np.int8),
        "ws": np.array([0.01, 0.02, 0.005, 0.01, 0.015, 0.008], np.float32),
        "wz": np.zeros(6, np.int8),
        "b": RANDOM.integers(-400, 400, 6).astype(np.int32),
        "v": RANDOM.integers(-127, 128, (5, 6)).astype(np.int8),
        "vs": np.array(0.01, np.float32),
        "vz": np.array(0, np.int8),
        "c": RANDOM.uniform(-1, 1, 5).astype(np.float32),
    }
    nodes = []

    def through(name: str, scale: float, point: int) -> str:
        """The value behind a QuantizeLinear and a DequantizeLinear."""
        constants[f"{name}_s"] = np.array(scale, np.float32)
        constants[f"{name}_z"] = np.array(point + zero, kind)
        parameters = f"{name}_s {name}_z"
        nodes.append(op("QuantizeLinear", f"{name} {parameters}", f"{name}_q"))
        nodes.append(op("DequantizeLinear", f"{name}_q {parameters}", f"{name}_d"))
        return f"{name}_d"

    x = through("x", 2 / 255, 3)
    constants["bs"], constants["bz"] = constants["x_s"] * constants["ws"], np.zeros(6, np.int32)
    nodes.append(op("DequantizeLinear", "w ws wz", "wd", axis=0))
    nodes.append(op("DequantizeLinear", "b bs bz", "bd", axis=0))
    nodes.append(op("DequantizeLinear", "v vs vz", "vd"))
    nodes.append(op("Conv", f"{x} wd bd", "conv", pads=[1] * 4))
    nodes.append(op("Relu", "conv", "relu"))
    relu = through("relu", 0.02, -128)
    nodes.append(op("Add", f"{relu} {relu}", "sum"))
    total = through("sum", 0.04, -128)
    nodes.append(op("MaxPool", total, "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4))
    pool = through("pool", 0.05, -120)
    nodes.append(op("GlobalAveragePool", pool, "mean"))
    mean = through("mean", 0.02, -128)
    nodes.append(op("Flatten", mean, "flat"))
    flat = through("flat", 0.02, -128)
    nodes.append(op("Gemm", f"{flat} vd c", "gemm", transB=1))
    last_one = through("gemm", 0.05, 5)
    nodes.append(op("Identity", last_one, "y"))
    return built(nodes, constants, version=19), constants


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_a_quantised_model_becomes_one_in_int8(kind: type[np.generic]) -> None:
    data, constants = quantised(kind)
    made = convert(data)
    assert made.quantised
    (given,), (output,) = made.inputs, made.outputs
    assert given.dtype == output.dtype == np.int8
    assert (given.scale, given.zero_point) == (float(constants["x_s"]), 3)
    assert (output.scale, output.zero_point) == (float(constants["gemm_s"]), 5)
    whole = RANDOM.integers(-128, 128, PICTURE).astype(np.int8)
    x = ((whole - 3.0) * float(constants["x_s"])).astype(np.float32)
    (expected,), (result,) = evaluated(data, x), run(made, whole)
    steps = (result - 5.0) - expected / float(constants["gemm_s"])
    assert np.abs(steps).max() <= 2.01
    assert np.ptp(expected) > 20 * float(constants["gemm_s"])
    # Nothing is left in float32, and nothing is requantised but what the model asks for.
    operators = _operators(made.model)
    assert operators.count("QUANTIZE") == 1
    assert "DEQUANTIZE" not in operators


def _operators(model: bytes) -> list[str]:
    from ai_edge_litert import schema_py_generated as schema

    tables = schema.ModelT.InitFromPackedBuf(model, 0)
    names = {code: name for name, code in vars(schema.BuiltinOperator).items()}
    return [
        names[tables.operatorCodes[operator.opcodeIndex].builtinCode]
        for operator in tables.subgraphs[0].operators
    ]


REFUSED: dict[str, tuple[bytes, str]] = {
    "not ONNX": (b"nothing of the kind", "this is not an ONNX model"),
    "empty": (b"", "this is not an ONNX model"),
    "operators": (
        built([op("Softmax", "x", "a"), op("Erf", "a", "b"), op("Erf", "b", "y")], {}),
        "the model has operators that are not supported: Erf (2), Softmax (1)",
    ),
    "bounds": (
        built(
            [op("Clip", "x a b", "y")], {"a": np.array(1, np.float32), "b": np.array(6, np.float32)}
        ),
        "Clip y has bounds other than 0 and 6",
    ),
    "weights": (built([op("Conv", "x x", "y")], {}), "Conv y has an input 1 that is not constant"),
    "channels": (
        built([op("Conv", "x w", "y")], {"w": reals(2, 3, 1, 1)}),
        "Conv y has weights (2, 3, 1, 1) for 4 channels",
    ),
    "rows": (
        built([op("Flatten", "x", "f"), op("MatMul", "f w", "y")], {"w": reals(7, 2)}),
        "MatMul y has weights (7, 2) for rows of 288",
    ),
    "pool": (
        built([op("MaxPool", "x", "y", kernel_shape=[4, 4], pads=[1] * 4)], {}),
        "MaxPool y has padding that TensorFlow Lite has no like of",
    ),
    "pad": (built([op("Pad", "x p", "y", mode="edge")], {"p": np.zeros(8, np.int64)}), "zeroes"),
    "reshape": (
        built([op("Reshape", "x s", "y")], {"s": np.array([7, 7])}),
        "Reshape y makes the shape [7, 7] of 288 values",
    ),
    "order": (
        built([op("Relu", "later", "y"), op("Relu", "x", "later")], {}),
        "Relu y uses later, which is not there yet",
    ),
    "output": (built([op("Relu", "x", "a")], {}), "the model gives y, which nothing computes"),
    "axis": (
        built([op("Transpose", "x", "y", perm=[0, 1, 1, 3])], {}),
        "Transpose y puts the axes in the order [0, 1, 1, 3]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_one_sentence(name: str) -> None:
    data, message = REFUSED[name]
    with pytest.raises(PotashError) as caught:
        convert(data)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_damaged_models_are_refused_or_converted() -> None:
    data, _ = quantised(np.int8)
    random = np.random.default_rng(9)
    verdicts = []
    for _ in range(150):
        damaged = bytearray(data)
        for at in random.integers(0, len(data), 3):
            damaged[at] ^= 1 << int(random.integers(8))
        try:
            verdicts.append(bool(convert(bytes(damaged)).model))
        except PotashError as error:
            assert "\n" not in str(error)
            verdicts.append(False)
    assert 0 < sum(verdicts) < len(verdicts)


def test_the_command_writes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "model.onnx", tmp_path / "model.tflite"
    source.write_bytes(built(*FLOAT["classifier"]))
    assert run_app(["model", "import", str(source), "--output", str(output), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert output.read_bytes() == convert(source.read_bytes()).model
    assert report["bytes"] == output.stat().st_size and report["quantised"] is False
    assert report["inputs"][0]["shape"] == [1, 9, 8, 4]
    assert report["outputs"][0]["shape"] == [1, 5]
    source.write_bytes(b"?")
    assert run_app(["model", "import", str(source), "--output", str(output)]) == 1
    assert capsys.readouterr().err == f"potash: {source}: this is not an ONNX model\n"


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(PotashError, match=r"needs the package onnx.*pip install 'potash\[onnx\]'"):
        convert(b"")
    assert onnx_import.CONVERSIONS

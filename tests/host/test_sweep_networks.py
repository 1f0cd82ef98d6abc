"""The networks that `potash sweep` reads out of TensorFlow Lite models, held against LiteRT."""

from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash.sdk.errors import PotashError
from potash.sweep.networks import network
from potash_firmware.tflite.interpreter import Interpreter
from potash_firmware.vta_runtime.schedules import Conv2d

Code = schema.BuiltinOperator


class Model:
    """A float model, written with the object interface that flatc makes of TensorFlow Lite's
    schema."""

    def __init__(self, image: tuple[int, ...]) -> None:
        self.buffers = [schema.BufferT()]
        self.tensors: list[Any] = []
        self.operators: list[Any] = []
        self.codes: list[int] = []
        self.last = self.tensor(image)

    def tensor(self, shape: tuple[int, ...], *, constant: bool = False) -> int:
        tensor = schema.TensorT()
        tensor.shape, tensor.type = list(shape), schema.TensorType.FLOAT32
        tensor.name = f"t{len(self.tensors)}".encode()
        tensor.buffer = 0
        if constant:
            buffer = schema.BufferT()
            buffer.data = np.zeros(shape, np.float32).view(np.uint8).reshape(-1)
            self.buffers.append(buffer)
            tensor.buffer = len(self.buffers) - 1
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def add(
        self,
        code: int,
        weights: tuple[int, ...] | None,
        output: tuple[int, ...],
        options: Any = None,
    ) -> None:
        operator = schema.OperatorT()
        self.codes.append(code)
        operator.opcodeIndex = len(self.codes) - 1
        operator.inputs = [self.last]
        if weights is not None:
            operator.inputs += [self.tensor(weights, constant=True)]
            operator.inputs += [self.tensor((output[-1],), constant=True)]
        self.last = self.tensor(output)
        operator.outputs = [self.last]
        if options is not None:
            name = type(options).__name__.removesuffix("T")
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, name)
            operator.builtinOptions = options
        self.operators.append(operator)

    def write(self, path: Path) -> Path:
        graph = schema.SubGraphT()
        graph.tensors, graph.operators = self.tensors, self.operators
        graph.inputs, graph.outputs = [0], [self.last]
        model = schema.ModelT()
        model.version, model.subgraphs, model.buffers = 3, [graph], self.buffers
        model.operatorCodes = []
        for code in self.codes:
            entry = schema.OperatorCodeT()
            entry.builtinCode = entry.deprecatedBuiltinCode = code
            entry.version = 1
            model.operatorCodes.append(entry)
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        path.write_bytes(builder.Output())
        return path


def convolution(stride: tuple[int, int], dilation: tuple[int, int], padding: int) -> Any:
    options = schema.Conv2DOptionsT()
    options.strideH, options.strideW = stride
    options.dilationHFactor, options.dilationWFactor = dilation
    options.padding = padding
    return options


def depthwise(
    stride: tuple[int, int], dilation: tuple[int, int], padding: int, multiplier: int
) -> Any:
    options = schema.DepthwiseConv2DOptionsT()
    options.strideH, options.strideW = stride
    options.dilationHFactor, options.dilationWFactor = dilation
    options.padding, options.depthMultiplier = padding, multiplier
    return options


@pytest.mark.parametrize("multiplier", [None, 1, 2])
@pytest.mark.parametrize("padding", [schema.Padding.SAME, schema.Padding.VALID])
@pytest.mark.parametrize(
    ("size", "taps", "stride", "dilation"),
    [
        ((8, 8), (3, 3), (1, 1), (1, 1)),
        ((9, 14), (3, 5), (2, 3), (1, 1)),
        ((14, 11), (3, 3), (1, 1), (2, 3)),
        ((7, 7), (1, 1), (2, 2), (1, 1)),
        ((5, 9), (2, 4), (1, 2), (1, 1)),
    ],
)
def test_a_convolution_has_the_output_that_litert_gives_it(
    tmp_path: Path,
    padding: int,
    size: tuple[int, int],
    taps: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    multiplier: int | None,
) -> None:
    """As a depthwise one where it has a multiplier."""
    model = Model((2, *size, 3))
    if multiplier is None:
        options = convolution(stride, dilation, padding)
        model.add(Code.CONV_2D, (5, *taps, 3), (1, 1, 1, 5), options)
    else:
        outputs = 3 * multiplier
        options = depthwise(stride, dilation, padding, multiplier)
        model.add(Code.DEPTHWISE_CONV_2D, (1, *taps, outputs), (1, 1, 1, outputs), options)
    path = model.write(tmp_path / "m.tflite")
    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    expected = list(interpreter.get_output_details()[0]["shape"])
    (shape,) = network(str(path)).shapes
    assert isinstance(shape, Conv2d)
    assert [shape.images, shape.out_height, shape.out_width, shape.out_channels] == expected
    assert (shape.height, shape.width, shape.in_channels) == (*size, 3)
    assert (shape.kernel, shape.stride, shape.dilation) == (taps, stride, dilation)
    assert shape.depthwise is (multiplier is not None)


def test_layers_are_counted_and_what_has_no_schedule_is_named(tmp_path: Path) -> None:
    model = Model((1, 8, 8, 16))
    same = convolution((1, 1), (1, 1), schema.Padding.SAME)
    for _ in range(3):
        model.add(Code.CONV_2D, (16, 3, 3, 16), (1, 8, 8, 16), same)
    model.add(Code.CONV_2D, (16, 3, 3, 4), (1, 8, 8, 16), same)
    model.add(Code.RELU, None, (1, 8, 8, 16))
    model.add(Code.RELU, None, (1, 8, 8, 16))
    its_own = depthwise((2, 2), (1, 1), schema.Padding.SAME, 1)
    model.add(Code.DEPTHWISE_CONV_2D, (1, 3, 3, 16), (1, 4, 4, 16), its_own)
    model.add(Code.FULLY_CONNECTED, (10, 128), (2, 10), schema.FullyConnectedOptionsT())
    found = network(str(model.write(tmp_path / "net.tflite")))
    assert found.name == "net.tflite"
    assert dict(found.shapes) == {
        Conv2d(1, 16, 8, 8, 16, (3, 3), padding=(1, 1, 1, 1)): 3,
        Conv2d(1, 16, 8, 8, 16, (3, 3), (2, 2), (0, 1, 0, 1), depthwise=True): 1,
        Conv2d(2, 128, 1, 1, 10, (1, 1)): 1,
    }
    assert dict(found.left_out) == {"CONV_2D": 1, "RELU": 2}
    assert found.operations == 2 * (3 * 64 * 16 * 16 * 9 + 16 * 16 * 9 + 2 * 10 * 128)


def refusal(path: Path) -> str:
    with pytest.raises(PotashError) as caught:
        network(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_models_that_cannot_be_read_are_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(b"no model")
    assert refusal(path).startswith(f"{path}: ")
    empty = Model((1, 8))
    empty.add(Code.RELU, None, (1, 8))
    assert "no convolution and no matrix product" in refusal(empty.write(path))
    loose = Model((1, 8, 8, 16))
    loose.tensors[0].shape = [1, 0, 8, 16]
    loose.add(Code.CONV_2D, (16, 3, 3, 16), (1, 8, 8, 16), convolution((1, 1), (1, 1), 0))
    assert "[1, 0, 8, 16], which is not fixed" in refusal(loose.write(path))
    still = Model((1, 8, 8, 16))
    still.add(Code.CONV_2D, (16, 3, 3, 16), (1, 8, 8, 16), convolution((0, 1), (1, 1), 0))
    assert "StrideH 0" in refusal(still.write(path))
    large = Model((1, 2, 2, 16))
    large.add(Code.CONV_2D, (16, 3, 3, 16), (1, 1, 1, 16), convolution((1, 1), (1, 1), 1))
    assert "a window of (3, 3) on (2, 2)" in refusal(large.write(path))
    mute = Model((1, 8, 8, 16))
    mute.add(Code.CONV_2D, (16, 3, 3, 16), (1, 8, 8, 16))
    assert "has no options" in refusal(mute.write(path))


def test_a_layer_that_no_stream_has_room_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model((1, 8, 8, 16))
    model.add(Code.CONV_2D, (16, 3, 3, 16), (1, 8, 8, 16), convolution((1, 1), (1, 1), 0))
    path = model.write(tmp_path / "m.tflite")
    monkeypatch.setattr("potash.sweep.networks.MOST_PRODUCTS", 64 * 16 * 16 * 9 - 1)
    assert "147456 products, more than a sweep can time" in refusal(path)


def test_a_damaged_model_never_ends_in_anything_but_a_sentence(tmp_path: Path) -> None:
    model = Model((1, 8, 8, 16))
    model.add(Code.CONV_2D, (16, 3, 3, 16), (1, 8, 8, 16), convolution((1, 1), (1, 1), 0))
    model.add(Code.FULLY_CONNECTED, (10, 64), (16, 10), schema.FullyConnectedOptionsT())
    path = model.write(tmp_path / "m.tflite")
    whole = path.read_bytes()
    telling = np.flatnonzero(np.frombuffer(whole, np.uint8))
    random = np.random.default_rng(11)
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        for at in random.choice(telling, 3):
            damaged[at] = random.integers(0, 256)
        path.write_bytes(damaged)
        try:
            network(str(path))
        except PotashError:
            refused += 1
    assert refused > 100

"""The networks that are made: which there are, that they are what they say, and that they
compute."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash.models import resnet
from potash.models.layers import Random
from potash.models.networks import NETWORKS, make
from potash.sdk.errors import PotashError
from potash.sweep.networks import of_model
from potash_firmware.tflite.interpreter import Interpreter
from potash_firmware.tflite.validation import validate

Array = npt.NDArray[Any]
WHOLE = ("resnet18", "mobilenet-v2")
HEAVY = {name for name in NETWORKS if "-s224-c32-" in name or name.endswith("-o256")}


@cache
def made(name: str) -> bytes:
    return make(name)


def operators(model: bytes) -> list[str]:
    graph = schema.Model.GetRootAs(model, 0)
    codes = [graph.OperatorCodes(at).BuiltinCode() for at in range(graph.OperatorCodesLength())]
    names = {code: name for name, code in vars(schema.BuiltinOperator).items()}
    subgraph = graph.Subgraphs(0)
    return [
        names[codes[subgraph.Operators(at).OpcodeIndex()]]
        for at in range(subgraph.OperatorsLength())
    ]


def opened(model: bytes) -> Interpreter:
    interpreter = Interpreter(model_content=model)
    interpreter.allocate_tensors()
    return interpreter


def test_the_platforms_set_is_there() -> None:
    adds = {f"add-{n}" for n in (1, 4, 16, 25, 64, 256, 1024, 4096, 8192, 10000, 200007)}
    assert {name for name in NETWORKS if name.startswith("add-")} == adds
    convs = {name for name in NETWORKS if name.startswith("conv2d-")}
    assert "conv2d-s4-c1-k3-st1-p0-o1" in convs
    assert "conv2d-s10-c3-k5-st1-p2-o32" in convs
    # For 10: k3 p0, k5 p0, k5 p2; for 224 also k11 p0 and p2; by channels, strides and outputs.
    assert len(convs) == 1 + (3 + 5) * 3 * 2 * 2
    assert not any("-k3-" in name and "-p2-" in name for name in convs)
    assert not any("-s10-" in name and "-k11-" in name for name in convs)
    assert {"conv-add", "conv-conv-add", *WHOLE} < set(NETWORKS)
    assert {f"resnet18-c{n}" for n in range(1, 13)} < set(NETWORKS)


@pytest.mark.parametrize("name", sorted(NETWORKS.keys() - HEAVY))
def test_every_network_is_accepted_and_has_the_shape_of_its_name(name: str) -> None:
    validate(made(name))
    interpreter = opened(made(name))
    (output,) = interpreter.get_output_details()
    assert output["dtype"] == np.int8
    if name.startswith("conv2d-"):
        size, channels, kernel, stride, padding, outputs = (
            int("".join(filter(str.isdigit, part))) for part in name.split("-")[1:]
        )
        (given,) = interpreter.get_input_details()
        assert given["shape"].tolist() == [1, size, size, channels]
        across = (size + 2 * padding - kernel) // stride + 1
        assert output["shape"].tolist() == [1, across, across, outputs]
    elif name.startswith("add-"):
        assert output["shape"].tolist() == [1, int(name.removeprefix("add-"))]


def test_resnets_layers_have_the_shapes_of_their_models() -> None:
    for name, layer in resnet.LAYERS.items():
        interpreter = opened(made(f"resnet18-{name.lower()}"))
        shape = layer.shape
        extents = interpreter.get_output_details()[0]["shape"].tolist()
        assert extents == [1, shape.out_height, shape.out_width, shape.out_channels]


def test_whole_networks_are_made_of_what_they_are_named_after() -> None:
    counts = {name: {code: operators(made(name)).count(code) for code in CODES} for name in WHOLE}
    assert counts["resnet18"] == dict(zip(CODES, (20, 0, 8, 5, 1, 1, 1), strict=True))
    assert counts["mobilenet-v2"] == dict(zip(CODES, (35, 17, 10, 0, 0, 1, 1), strict=True))
    # 11.7 and 3.5 million parameters, as their papers have it, less batch normalisation.
    assert 11.6e6 < len(made("resnet18")) < 11.9e6
    assert 3.4e6 < len(made("mobilenet-v2")) < 4.0e6


def test_resnet_has_each_layer_of_the_table_as_often_as_it_says() -> None:
    found: Counter[tuple[object, ...]] = Counter()
    for shape, count in of_model("resnet18", made("resnet18")).shapes.items():
        key = shape.in_channels, shape.out_channels, shape.kernel, shape.stride, shape.out_height
        found[key] += count
    assert found.pop((512, 1000, (1, 1), (1, 1), 1)) == 1  # the classes
    table = {
        (one.channels, one.outputs, (one.kernel,) * 2, (one.stride,) * 2, one.shape.out_height): one
        for one in resnet.LAYERS.values()
    }
    assert found == {key: one.times for key, one in table.items() if one.times}


CODES = ("CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "PAD", "MAX_POOL_2D", "MEAN", "FULLY_CONNECTED")


def test_a_seed_makes_the_same_bytes_and_another_makes_others() -> None:
    names = "add-64", "conv-add", "resnet18-c12"
    program = f"""
import sys
from potash.models.networks import make

for name in {names}:
    sys.stdout.buffer.write(make(name, 7))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    made = {name: make(name, 7) for name in names}
    assert done.stdout == b"".join(made.values())
    assert all(made[name] != make(name, 8) for name in names)


def numbers(model: bytes) -> str:
    """A digest of what a model computes with: constants, scales and zero points."""
    tables = schema.ModelT.InitFromPackedBuf(model, 0)
    digest = hashlib.sha256()
    for tensor in tables.subgraphs[0].tensors:
        data = tables.buffers[tensor.buffer].data
        digest.update(b"" if data is None else bytes(data))
        if tensor.quantization is not None and tensor.quantization.scale is not None:
            digest.update(tensor.quantization.scale.astype("<f4").tobytes())
            digest.update(tensor.quantization.zeroPoint.astype("<i8").tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add-64", "9a0c5d142b0766b4"),
        ("conv-add", "fc8050137b0b1a90"),
        ("resnet18", "6145917b73648809"),
        ("mobilenet-v2", "2d0c13023b445c0b"),
    ],
)
def test_a_network_is_the_same_on_any_machine(name: str, expected: str) -> None:
    # Written down once: another processor or another NumPy must not change a bit.
    assert numbers(made(name)) == expected


def test_the_weights_are_a_frozen_stream() -> None:
    # PCG64's first outputs for seed 42, as NumPy's documentation of bit generators promises to
    # keep.
    first = np.random.PCG64(42).random_raw()
    assert Random(42).bytes(8).tobytes() == int(first).to_bytes(8, "little")
    assert Random(42).reals(0, 1, 1)[0] == np.random.Generator(np.random.PCG64(42)).random()
    assert Random(1).weights(4096).min() == -127


def activations(model: bytes, picture: Array) -> list[tuple[Array, int]]:
    """Every tensor that a layer of the network wrote, with its zero point."""
    with pytest.warns(UserWarning, match="preserve_all_tensors"):
        interpreter = Interpreter(model_content=model, experimental_preserve_all_tensors=True)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], picture)
    interpreter.invoke()
    return [
        (interpreter.get_tensor(item["index"]), item["quantization"][1])
        for item in interpreter.get_tensor_details()
        if item["name"].startswith("tensor-")
    ]


@pytest.mark.parametrize("name", WHOLE)
def test_values_neither_vanish_nor_saturate_and_the_answer_depends_on_the_picture(
    name: str,
) -> None:
    # Other pictures than those that the scales were made for.
    pictures = Random(99).pictures(2, 224, 3)
    answers = []
    for picture in pictures:
        written = activations(made(name), picture[None])
        assert len(written) == len(operators(made(name))) + 1
        for values, zero_point in written:
            assert len(np.unique(values)) > 100
            assert values.std() > 10
            ends = (values == 127) | ((values == -128) & (zero_point != -128))
            assert ends.mean() < 0.03
        answers.append(written[-1][0].astype(int).ravel())
    first, second = answers
    assert min(len(np.unique(answer)) for answer in answers) > 100
    assert np.abs(first - second).mean() > 3


def test_an_unknown_network_is_one_sentence() -> None:
    with pytest.raises(PotashError, match="there is no network resnet19; potash model list"):
        make("resnet19")


def test_progress_is_told() -> None:
    told: list[str] = []
    make("conv-add", progress=lambda label, fraction: told.append(label))
    assert told == ["making conv-add"] * 3

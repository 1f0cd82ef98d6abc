"""`potash model`: networks are made, looked at and run, and what is wrong is one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash.cli.app import run_app
from potash.models import networks, public, running
from potash.models.process import isolated
from potash.models.running import Ran, Target, with_shapes
from potash.sdk.errors import PotashError
from potash_firmware.tflite.interpreter import Interpreter, OpResolverType
from potash_firmware.tflite.runtime import TensorReport
from potash_firmware.tflite.writer import ModelBuilder
from support.graph_builder import GraphBuilder
from support.model_fuzz import packed, unpacked
from support.models import ISOLATED, in_this_process
from support.tflite import reference


def say(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """What the command reports as JSON."""
    assert run_app(["model", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def sentence(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence of an error."""
    assert run_app(["model", *map(str, arguments)]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("potash: ")
    assert said.err.count("\n") == 1
    return said.err.removeprefix("potash: ").rstrip("\n")


@pytest.fixture(autouse=True)
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process for each model, but for the test that runs one on the VTA."""
    if "target" not in request.fixturenames or request.getfixturevalue("target") != Target.VTA:
        monkeypatch.setattr(ISOLATED, in_this_process)


@pytest.fixture
def add(tmp_path: Path) -> Path:
    file = tmp_path / "add.tflite"
    file.write_bytes(networks.make("add-64"))
    return file


@pytest.fixture
def values(tmp_path: Path) -> Path:
    file = tmp_path / "values.bin"
    file.write_bytes(bytes(range(128)))
    return file


def sums(model: Path, values: Path) -> bytes:
    left, right = np.frombuffer(values.read_bytes(), np.int8).reshape(2, 64)
    return reference(model.read_bytes(), (left, right))


def test_a_network_is_made_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "made.tflite"
    report = say(capsys, "make", "conv-add", "--seed", 5, "--output", file)
    assert file.read_bytes() == networks.make("conv-add", 5)
    assert report == {
        "network": "conv-add",
        "seed": 5,
        "output": str(file),
        "bytes": file.stat().st_size,
    }


def test_the_list_names_every_network(capsys: pytest.CaptureFixture[str]) -> None:
    report = say(capsys, "list")
    listed, others = report["networks"], report["public"]
    assert [item["name"] for item in listed] == list(networks.NETWORKS)
    assert [item["name"] for item in others] == list(public.PUBLIC)
    assert all(item["summary"] for item in (*listed, *others))
    assert run_app(["model", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*networks.NETWORKS, *public.PUBLIC]


def test_an_unknown_network_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "made.tflite"
    said = sentence(capsys, "make", "vgg", "--output", file)
    assert said == "there is no network vgg; potash model list names them"
    assert not file.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("make",),
        ("make", "add-1"),
        ("make", "add-1", "--seed", "-1", "--output", "x"),
        ("run", "-", "--input", "-", "--compare"),
        ("run", "-", "--input", "-"),
        ("info", "-", "--rounding", "double"),
    ],
)
def test_a_wrong_use_is_told_apart(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["model", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("potash: ")


def test_info_says_where_each_node_runs_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = GraphBuilder()
    x = graph.tensor((1, 4), 0.5, -3, name="x")
    y = graph.relu(graph.add(x, x, 1.0, 2), 0.25, -128)
    z = graph.tensor((1, 4), name="z")
    dequantised = graph.operator(schema.BuiltinOperator.DEQUANTIZE, (y,), z, version=2)
    file = tmp_path / "model.tflite"
    file.write_bytes(graph.finish((x,), (dequantised,)))
    report = say(capsys, "info", file)
    assert report["bytes"] == file.stat().st_size
    expected = {"name": "x", "dtype": "int8", "shape": [1, 4], "bytes": 4, "scale": 0.5}
    assert report["inputs"] == [{**expected, "zero_point": -3, "open": []}]
    (output,) = report["outputs"]
    assert (output["dtype"], output["bytes"]) == ("float32", 16)
    assert output["scale"] is output["zero_point"] is None
    assert [node["operator"] for node in report["nodes"]] == ["ADD", "RELU", "DEQUANTIZE"]
    first, _, last = report["nodes"]
    assert (first["on"], first["reason"]) == ("vta", None)
    assert (last["on"], last["reason"]) == ("cpu", "the VTA has no kernel for this operator")
    assert report["nodes_on_vta"] == sum(node["on"] == "vta" for node in report["nodes"])
    assert run_app(["model", "info", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "input x: int8 1x4, 4 bytes, scale 0.5, zero point -3" in shown
    assert "2  DEQUANTIZE  CPU: the VTA has no kernel for this operator" in shown


def test_info_asks_the_core_that_it_is_given(
    add: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "small.json"
    config.write_text(json.dumps({"LOG_ACC_BUFF_SIZE": 8}))
    (node,) = say(capsys, "info", add, "--vta-config", config)["nodes"]
    assert (node["on"], node["reason"]) == ("cpu", "the VTA's accumulator memory is too small")


@pytest.mark.parametrize("target", list(Target))
def test_a_model_runs_on_each_place(
    target: Target, add: Path, values: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "output.bin"
    report = say(capsys, "run", add, "--input", values, "--output", output, "--on", target)
    assert (report["on"], report["input_bytes"], report["output_bytes"]) == (target, 128, 64)
    assert report["nodes_on_vta"] == (1 if target is Target.VTA else 0)
    result, exact = (np.frombuffer(b, np.int8) for b in (output.read_bytes(), sums(add, values)))
    difference = np.abs(result.astype(int) - exact).max()
    assert difference <= (1 if target is Target.CPU else 0)


HALVES = {"exact": [-1, 1, -2, 1], "single": [0, 1, -1, 1], "alkali": [-1, 1, -2, 1]}
"""A quarter of -2, 2, -6 and 3: halves away from zero, or up; the platform's delegate has no
MUL."""


@pytest.mark.parametrize("rounding", HALVES)
def test_a_model_is_rounded_as_one_asks(
    rounding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = GraphBuilder()
    x, y = (graph.tensor((1, 4), 0.5, 0) for _ in range(2))
    file, given, output = (tmp_path / name for name in ("model", "input", "output"))
    file.write_bytes(graph.finish((x, y), (graph.mul(x, y, 1.0, 0),)))
    given.write_bytes(np.array([-2, 2, -6, 3, 1, 1, 1, 1], np.int8).tobytes())
    asked = ("--rounding", rounding)
    report = say(capsys, "run", file, "--input", given, "--output", output, *asked)
    assert np.frombuffer(output.read_bytes(), np.int8).tolist() == HALVES[rounding]
    assert (report["rounding"], report["nodes_on_vta"]) == (rounding, 1)
    described = say(capsys, "info", file, *asked)
    assert (described["rounding"], described["nodes_on_vta"]) == (rounding, 1)


def test_places_are_compared(add: Path, values: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = say(capsys, "run", add, "--input", values, "--compare")
    (output,) = report["outputs"]
    pairs = {(pair["left"], pair["right"]): pair for pair in output["pairs"]}
    assert set(pairs) == {("vta", "cpu"), ("vta", "reference"), ("cpu", "reference")}
    assert pairs["vta", "reference"]["differing"] == pairs["vta", "reference"]["largest"] == 0
    assert "output" not in report
    ((node,), lacked) = report["nodes"], report["without_reference"]
    assert (node["operator"], node["on"], lacked) == ("ADD", "vta", [])


def test_a_comparison_says_which_nodes_ran_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builder, (file, given) = ModelBuilder(), (tmp_path / name for name in ("model", "input"))
    x, y = (builder.tensor(name, (1, 4), scale=0.5) for name in "xy")
    real, *rest = (builder.tensor(name, (1, 4), np.float32) for name in "abc")
    code = schema.BuiltinOperator
    builder.operator(code.RELU, [x], [y], version=2)
    builder.operator(code.ELU, [real], [rest[0]])
    builder.operator(code.ELU, [rest[0]], [rest[1]])
    file.write_bytes(builder.build([x, real], [y, rest[1]]))
    given.write_bytes(bytes(20))
    assert run_app(["model", "run", str(file), "--input", str(given), "--compare"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "vta: 1 of 3 nodes on the VTA; on the fast kernels: ELU (1, 2)",
        "reference: ELU on optimised kernels, for lack of reference ones",
    ]


def open_pictures() -> bytes:
    """A network for pictures of any size, as its file says: 1x1x1x3."""
    graph = GraphBuilder()
    x = graph.tensor((1, 4, 4, 3), 0.05, 3, name="picture")
    weights = graph.constant(np.ones((4, 3, 3, 3), np.int8), scale=0.1)
    bias = graph.bias([1, 2, 3, 4], x, weights)
    y = graph.mean(graph.relu(graph.conv2d(x, weights, bias, scale=0.5), 0.5), scale=0.5)
    tables = unpacked(graph.finish((x,), (y,)))
    for tensor in tables.subgraphs[0].tensors:
        if len(tensor.shape) == 4 and tensor.shape[0] != 4:
            tensor.shape = [1, 1, 1, tensor.shape[3]]
            tensor.shapeSignature = [1, -1, -1, tensor.shape[3]]
    return packed(tables)


def test_open_extents_are_what_one_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, given, output = (tmp_path / name for name in ("model", "input", "output"))
    file.write_bytes(open_pictures())
    values = np.random.default_rng(0).integers(-128, 128, (1, 9, 6, 3), np.int8)
    given.write_bytes(values.tobytes())
    assert run_app(["model", "info", str(file)]) == 0
    assert "open in axes 1, 2 (--shape sets them)" in capsys.readouterr().out
    shape = ("--shape", "1x9x6x3")
    described = say(capsys, "info", file, *shape)
    ((tensor,), count) = described["inputs"], described["nodes_on_vta"]
    assert (tensor["shape"], tensor["open"], count) == ([1, 9, 6, 3], [], 3)
    say(capsys, "run", file, "--input", given, "--output", output, *shape)
    plain = Interpreter(
        model_content=open_pictures(), experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    plain.resize_tensor_input(plain.get_input_details()[0]["index"], values.shape)
    plain.allocate_tensors()
    plain.set_tensor(plain.get_input_details()[0]["index"], values)
    plain.invoke()
    (result,) = plain.get_output_details()
    assert output.read_bytes() == plain.get_tensor(result["index"]).tobytes()
    for wrong, message in (
        (["1x9x6x4"], "input 'picture' has the shape 1x?x?x3, which 1x9x6x4 is not one of"),
        (["1x9x6"], "input 'picture' has the shape 1x?x?x3, which 1x9x6 is not one of"),
        (["1x9x6x3"] * 2, "the model has 1 input, and --shape is given 2 times"),
    ):
        options = [word for one in wrong for word in ("--shape", one)]
        assert sentence(capsys, "info", file, *options) == f"{file}: {message}"
    assert run_app(["model", "info", str(file), "--shape", "1xx3"]) == 2
    assert "'1xx3' is not a shape; write one as 1x224x224x3" in capsys.readouterr().err


def test_every_shape_is_in_the_file_then() -> None:
    tables = unpacked(with_shapes(open_pictures(), [(1, 9, 6, 3)]))
    shapes = [list(tensor.shape) for tensor in tables.subgraphs[0].tensors]
    assert shapes.count([1, 9, 6, 4]) == 2 and shapes.count([1, 9, 6, 3]) == 1


def test_differences_are_counted_for_each_output() -> None:
    def ran(small: list[int], real: list[float]) -> Ran:
        output = np.array(small, np.int8).tobytes() + np.array(real, np.float32).tobytes()
        return Ran(output, tensors, 0, 0, (), (), 0.0)

    tensors = (
        TensorReport("a", "int8", (3,), 3, 0.5, 0, ()),
        TensorReport("b", "float32", (2,), 8, None, None, ()),
    )
    nan = float("nan")
    compared = running.compare(
        {Target.VTA: ran([-128, 5, 7], [nan, 1.5]), Target.CPU: ran([127, 5, 6], [nan, 1.0])}
    )
    (first,), (second,) = (tensor.pairs for tensor in compared)
    assert (first.differing, first.largest) == (2, 255)
    assert (second.differing, second.largest) == (1, 0.5)


def test_too_little_input_is_one_sentence(
    add: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short, output = tmp_path / "short.bin", tmp_path / "output.bin"
    short.write_bytes(bytes(100))
    said = sentence(capsys, "run", add, "--input", short, "--output", output)
    assert said == f"{add}: the model takes 128 bytes of input, and gets 100"
    assert not output.exists()


@pytest.mark.parametrize("command", ["info", "run"])
def test_what_is_no_model_is_one_sentence(
    command: str, values: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--input", values, "--output", tmp_path / "output.bin"] if command == "run" else []
    said = sentence(capsys, command, values, *more)
    assert said == f"{values}: this is not a TensorFlow Lite model"


def test_a_process_that_ends_is_one_sentence() -> None:
    with pytest.raises(PotashError, match="TensorFlow Lite ended with SIGABRT on this model"):
        isolated(os.abort)
    with pytest.raises(PotashError, match="TensorFlow Lite ended with code 3"):
        isolated(os._exit, 3)


def test_a_mistake_of_ours_is_not_taken_for_the_models() -> None:
    with pytest.raises(RuntimeError, match="FileNotFoundError"):
        isolated(os.stat, "/nowhere at all")

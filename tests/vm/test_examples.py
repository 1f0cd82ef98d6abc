"""An example in a guest: the light command there, on the kernel's block device."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from potash.cli.app import run_app
from potash.programs.examples import Example

LIMIT = 120.0

pytestmark = pytest.mark.usefixtures("images")


def test_a_log_on_the_drive_is_searched_in_the_guest(capfd: pytest.CaptureFixture[str]) -> None:
    code = run_app(["demo", "grep", "--json"])
    out, err = capfd.readouterr()
    assert code == 0, err
    report = json.loads(out)
    example = Example.load("grep")
    assert report["equal"] is True
    assert (report["input"], report["output"]) == (len(example.input), len(example.expected))
    assert "/share/grep/output.bin; the program returned 0" in err


@pytest.mark.slow  # what differs from a search, `tests/host/test_examples.py` has without a guest
@pytest.mark.parametrize("name", ["digits", "resnet18"])
def test_a_model_runs_next_to_images_on_the_drive_in_the_guest(name: str) -> None:
    command = [sys.executable, "-m", "potash.cli.main", "demo", name, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["equal"] is True and report["vta_cycles"] > 0
    assert 0 < report["job_seconds"] < report["seconds"]
    assert report.get("accuracy", 1) >= 0.96
    assert f"program: {name}: " in done.stderr

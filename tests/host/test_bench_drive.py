"""`potash bench drive`: its report, and the trace that it makes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from potash import timing
from potash.bench import drive_time
from potash.cli.app import run_app
from potash_device.flash.profiles import PROFILES
from support.reports import check


def test_the_report_has_what_was_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive_time, "SAMPLE", 5000)
    monkeypatch.setattr(drive_time, "_drive", lambda: timing.drive("tlc"))  # an empty one
    only = ("--only", "placement", "--only", "simulate")
    assert run_app(["bench", "drive", *only, "--pairs", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    check("bench drive", report)
    found = {one["name"]: one for one in report["results"]}
    # Hot and cold pages in streams of their own: what docs/placement.md has of it.
    assert round(found["placement"]["value"], 2) == 1.05
    assert round(found["placement"]["baseline"]["value"], 2) == 2.66
    assert found["simulate"]["value"] > 0
    assert run_app(["bench", "drive", "--only", "none"]) == 2


def test_the_sample_trace_is_always_the_same(tmp_path: Path) -> None:
    traces = []
    for name in ("a.csv", "b.csv"):
        drive_time.write_sample(tmp_path / name, 2000)
        traces.append(timing.read_trace(tmp_path / name, PROFILES["tlc"]))
    assert (traces[0] == traces[1]).all()
    assert 0.65 < (traces[0]["op"] == timing.Op.READ).mean() < 0.75
    gaps = np.diff(traces[0]["time"])
    assert 27_000 < gaps.mean() < 33_000 and (gaps % 100 == 0).all()

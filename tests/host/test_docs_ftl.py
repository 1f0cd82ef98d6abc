"""The translation layer of `docs/ftl.md` runs, and gives the figures that the page shows."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from potash import timing
from potash.cli.app import run_app
from support.docs import blocks, run_python

PAGE = 4096
DRIVE = """
base = "femu"
channels = 2
dies = 2
blocks = 96
pages = 16
capacity = 8_388_608
"""


def test_the_layer_of_the_page_serves_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three quarters of the writes are to an eighth of the drive, in bursts."""
    monkeypatch.chdir(tmp_path)
    mine, _ = blocks("ftl.md", "python")
    Path("mine.py").write_text(mine.replace("10_000", "1000"))
    Path("small.toml").write_text(DRIVE)
    pages = [random.Random(n).randrange(256 if n % 4 else 2048) for n in range(6000)]
    times = (n * 500 + n // 100 * 400_000 for n in range(len(pages)))
    lines = [f"{t},h,0,Write,{page * PAGE},{PAGE},0" for t, page in zip(times, pages, strict=True)]
    Path("trace.csv").write_text("\n".join(lines))
    shown, _ = blocks("ftl.md", "sh")[0].splitlines()
    command = shown.replace("femu", "small.toml").split()[1:]
    amplification = []
    for words in (command, [word for word in command if word not in ("--ftl", "Mine")]):
        assert run_app([*words, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["counters"]["host"] == len(pages)
        amplification.append(found["write_amplification"])
    assert amplification[0] < amplification[1]


def test_its_pages_are_cold_when_first_written_after_a_fill(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A drive's counters begin at 0 after `--fill`, the detector's count does not."""
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(blocks("ftl.md", "toml")[0])
    drive = timing.drive("small.toml")
    found: dict[str, Any] = {}
    exec(blocks("ftl.md", "python")[0], found)  # noqa: S102
    mine = found["Mine"](drive.profile)
    timing.precondition(mine, fill=1.0, overwrites=0)
    page = SimpleNamespace(number=0)
    answers = [mine.frontier(page, SimpleNamespace(hot=None)) for _ in range(2)]
    assert answers == [0, 1]


def test_the_drive_of_the_page_completes_when_it_says() -> None:
    code = blocks("ftl.md", "python")[1]
    assert run_python(code).split() == re.findall(r"# (\d+)", code)

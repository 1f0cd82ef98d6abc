"""A modelled drive's way to its steady state, its wear, and the pictures and reports of them."""

from __future__ import annotations

import heapq
import itertools
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

import numpy as np
import pytest

from potash import timing
from potash.cli.app import run_app
from potash.timing.steady import random_pages
from potash_device.flash.profile import PAGE, Profile, Rate
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.policies import Policies
from potash_firmware.ftl.requests import REQUEST, Op
from support.drive_reference import Reference
from support.reports import check

SMALL = """\
base = "femu"
channels = 2
dies = 2
blocks = 64
pages = 16
capacity = 12582912
reserve = 3
cycles = 50
background = 0
"""
PAGES = 12582912 // PAGE
DIES = 4


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def report(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert run_app(["drive", *map(str, arguments), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    check(f"drive {arguments[0]}", found)
    return found


@pytest.mark.parametrize("depth", [1, 3, 64])
def test_a_closed_loop_keeps_its_requests_in_flight(small: Path, depth: int) -> None:
    profile = timing.profile(str(small))
    random, asked = np.random.default_rng(depth), np.zeros(3000, REQUEST)
    asked["op"] = random.choice([Op.READ, Op.WRITE], len(asked))
    asked["first"], asked["count"] = random.integers(0, PAGES - 4, len(asked)), 3
    reference, flying, times, expected = Reference(profile), [0] * depth, [], []
    for _, op, first, count, *_ in asked.tolist():
        times.append(heapq.heappop(flying))
        expected.append(reference.submit(times[-1], Op(op), first, count))
        heapq.heappush(flying, expected[-1])
    drive = Drive(profile)
    found = timing.closed_loop(drive, asked, depth)
    assert found.tolist() == expected
    assert asked["time"].tolist() == times
    later = timing.closed_loop(drive, asked[:5], depth)  # from the last arrival on
    assert (asked["time"][:5] >= times[-1]).all() and (later >= times[-1]).all()


def test_random_writes_lead_from_empty_to_the_steady_state(small: Path) -> None:
    drive = timing.drive(str(small))
    depth = 16
    windows = timing.steady(drive, writes=8.0, depth=depth, windows=40)
    assert sum(one.requests for one in windows) == 8 * PAGES
    assert [one.written for one in windows[-1:]] == [8 * PAGES * PAGE]
    assert all(one.seconds < two.seconds for one, two in itertools.pairwise(windows))
    assert windows[0].write_amplification == 1.0  # there is nothing to collect yet
    late = [one.write_amplification for one in windows[20:]]
    assert min(late) > 1.3 and max(late) < 1.3 * min(late)
    first, last = windows[0], windows[-1]
    for one in (first, last):
        assert one.reads is None and one.writes is not None
        assert 200.0 <= one.writes.p50_us <= one.writes.p99_us <= one.writes.p999_us
    assert first.writes is not None and last.writes is not None
    assert last.writes.p99_us > 2 * first.writes.p99_us


def test_reads_and_writes_have_their_share_and_their_latencies(small: Path) -> None:
    drive = timing.drive(str(small))
    timing.precondition(drive)
    windows = timing.steady(drive, writes=1.0, reads=0.75, depth=4, windows=3)
    requests = sum(one.requests for one in windows)
    assert requests == 4 * PAGES
    assert windows[-1].written == pytest.approx(PAGES * PAGE, rel=0.05)
    for one in windows:
        assert one.reads is not None and one.reads.p50_us >= 40.0  # tR


def test_a_worn_drive_has_windows_without_writes(small: Path) -> None:
    small.write_text(SMALL.replace("cycles = 50", "cycles = 3"))
    windows = timing.steady(timing.drive(str(small)), writes=20.0, reads=0.1, windows=20)
    last = windows[-1]
    assert last.writes is None and last.write_amplification == 0.0 and last.reads is not None
    assert last.written == windows[-2].written


def test_what_preconditioning_took_is_that_of_its_last_part(small: Path) -> None:
    drive = timing.drive(str(small))
    assert timing.precondition(drive, 0.0).host == 0
    filled = timing.precondition(drive, 0.5)
    assert (filled.host, filled.write_amplification) == (PAGES // 2, 1.0)
    drive.submit(10**9, Op.READ, 0, 1)  # it need not be at rest before
    over = timing.precondition(drive, 1.0, 2.0)
    assert over.host == 2 * PAGES and over.write_amplification > 1.3


def test_a_plot_has_a_curve_for_each_percentile(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plot.svg"
    found = report(
        capsys, *("plot", "-o", path, "--drive", small, "--windows", 12, "--reads", 50, "--seed", 3)
    )
    assert found["output"] == str(path) and len(found["windows"]) == 12
    assert found["wear"]["erases"]["total"] > 0
    root = xml.fromstring(path.read_text())
    curves = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    # Three percentiles of reads and of writes, and write amplification.
    assert len(curves) == 7
    for curve in curves:
        points = [tuple(map(float, one.split(","))) for one in curve.attrib["points"].split()]
        assert len(points) == 12
        assert all(80 <= x <= 730 and 60 <= y <= 580 for x, y in points)
        assert [x for x, _ in points] == sorted(x for x, _ in points)
    marks = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"50", "100", "200", "500", "1000"} & {*marks} and not {"64", "128", "256"} & {*marks}
    # Amplification grows, which is upwards.
    assert points[0][1] > points[-1][1]
    assert run_app(["drive", "plot", "--drive", str(small), "-o", "/nowhere/plot.svg"]) == 1
    assert "/nowhere/plot.svg cannot be written" in capsys.readouterr().err
    assert run_app(["drive", "plot", "--drive", str(small), "--writes", "1"]) == 0
    assert "amplification" in capsys.readouterr().out


MINE = """\
from potash.extend import ftl
from potash.ftl import PageMapped

@ftl
class Mine(PageMapped):
    pass
"""


def test_drives_are_compared_in_one_picture(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, mine = tmp_path / "compared.svg", tmp_path / "mine.py"
    mine.write_text(MINE)
    load = ("--drive", small, "--skew", "90/10", "--writes", 2, "--reads", 50, "--windows", 4)
    ftls = ("--ftl", "page", "--ftl", "Mine", "--extend", mine)
    policies = ("--policy", "gc=greedy", "--policy", "gc=fifo,wear=none")
    found = report(capsys, "compare", "-o", path, *load, *ftls, *policies)["variants"]
    named = [(one["ftl"], *one["policies"]) for one in found]
    assert named == [("page", "gc=greedy"), ("page", "gc=fifo", "wear=none"), ("Mine",)]
    greedy, fifo, plain = (one["windows"] for one in found)
    assert greedy == plain  # the same requests, and the same decisions
    assert greedy != fifo
    assert greedy == report(capsys, "plot", *load)["windows"]
    root = xml.fromstring(path.read_text())
    # Two percentiles of reads and of writes, and write amplification, of each.
    curves = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(curves) == 3 * 5
    assert len({one.attrib["stroke"] for one in curves}) == 3
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {f"{small}, {', '.join(one)}" for one in named} <= {*texts}
    assert run_app(["drive", "compare", *map(str, load)]) == 0
    assert f"{small}, page" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--skew", "100/10"], "'100/10' is not two percentages from 1 to 99, like 90/10"),
        (["--policy", "gc=fifo", "--ftl", "page", "--ftl", "nix"], "there is no FTL nix"),
        (["--policy", "gc=fifo", "--policy", "gc=fifo,"], "'' is not KIND=POLICY"),
        (["--policy", ","], "'' is not KIND=POLICY"),
        (["--policy", "gc=fifo,gc=greedy"], "has a kind twice; repeat --policy"),
        ([f"--policy=gc={one}" for one in range(9)], "have 9 combinations, and the picture has"),
    ],
)
def test_what_cannot_be_compared_is_refused_at_once(
    arguments: list[str], said: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["drive", "compare", "--drive", str(small), *arguments]) > 0
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "plot"])
@pytest.mark.parametrize("name", ["small.toml", "../{}/small.toml", "mine.py"])
def test_a_picture_takes_the_place_of_no_file_that_is_read(
    command: str,
    name: str,
    small: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(small.parent)
    Path("mine.py").write_text("")
    before = small.read_text()
    options = ("--drive", str(small), "--extend", "mine.py", "-o", name.format(small.parent.name))
    assert run_app(["drive", command, *options]) == 2
    assert "is read, too; name another file for the picture" in capsys.readouterr().err
    assert (small.read_text(), Path("mine.py").read_text()) == (before, "")


def test_skewed_requests_go_to_their_share_of_the_pages() -> None:
    pages = random_pages(np.random.default_rng(1), 1000, 200_000, (90, 10))
    assert (pages < 100).mean() == pytest.approx(0.9, abs=0.01)
    assert np.bincount(pages, minlength=1000).min() > 0 and pages.max() == 999


def test_the_wear_of_a_drive_is_that_of_its_erases(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ("--drive", small, "--fill", 100, "--overwrite", 5)
    found = report(capsys, "wear", *before)
    wear, size = found["wear"], DIES * 16 * PAGE
    erases = wear["erases"]
    assert found["written"] == 5 * PAGES * PAGE
    # What was programmed was erased before, but for what the drive holds now.
    programmed = PAGES * PAGE + found["written"] * found["write_amplification"]
    assert erases["total"] * size == pytest.approx(programmed - 64 * size, abs=16 * size)
    assert wear["percentage_used"] == erases["total"] * 100 // (64 * 50)
    assert erases["mean"] == erases["total"] / 64
    order = [erases[name] for name in ("min", "p50", "p90", "p99", "max")]
    assert order == sorted(order)
    assert sum(one["superblocks"] for one in wear["histogram"]) == 64
    left = (64 * 50 - erases["total"]) * size / found["write_amplification"]
    assert found["endurance"] == pytest.approx(left, abs=PAGE)
    # A drive that was kept has its wear, but nothing is known of what wrote it.
    report(capsys, "precondition", "-o", tmp_path / "used.npz", *before)
    kept = report(capsys, "wear", "--drive", tmp_path / "used.npz")
    assert kept["wear"] == wear and kept["endurance"] is None and kept["written"] == 0
    assert run_app(["drive", "wear", "--drive", str(small), "--overwrite", "2"]) == 2
    assert "--overwrite is a multiple of --fill" in capsys.readouterr().err
    assert run_app(["drive", "wear", *map(str, before)]) == 0
    assert "still writable" in capsys.readouterr().out


def test_endurance_is_what_the_drive_bears(small: Path) -> None:
    """The prediction of `wear`, against writing until the end of life."""
    small.write_text(SMALL.replace("cycles = 50", "cycles = 30"))
    drive = timing.drive(str(small), Policies())
    took = timing.precondition(drive, 1.0, 3.0)
    profile, erases = drive.profile, int(drive.state.flash.erases.sum())
    predicted = (30 * 64 - erases) * profile.superblock_pages / took.write_amplification
    found = 0
    while not drive.worn:
        found += timing.precondition(drive, 1.0, 1.0, seed=erases).host + PAGES
    assert found == pytest.approx(predicted, rel=0.1)


def test_the_report_of_a_small_drive() -> None:
    profile = Profile(
        channels=1,
        dies=1,
        planes=1,
        blocks=10,
        pages=4,
        page_bytes=PAGE,
        program_pages=1,
        capacity=8 * PAGE,
        read_ns=(1,),
        program_ns=(1,),
        erase_ns=1,
        bus=Rate(1, 0),
        link=Rate(1, 0),
    )
    drive = Drive(profile)
    drive.state.flash.erases[:] = [0, 1, 1, 2, 2, 2, 3, 3, 9, 17]
    spread = drive.report.spread
    assert spread == (40, 4.0, 0, 2, 9, 17, 17)  # nearest ranks
    assert [one.superblocks for one in drive.report.erases if one.superblocks] == [3, 5, 1, 1]

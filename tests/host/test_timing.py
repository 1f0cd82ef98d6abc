"""`potash.timing` and `potash drive`: profiles, traces and policies, good and bad."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from potash import timing
from potash.cli.app import run_app
from potash_device.cores import DEFAULT
from potash_device.flash.profile import PAGE
from potash_device.flash.profiles import PROFILES
from potash_firmware import extension_limits
from potash_firmware.ftl.named import cores
from support.docs import ROOT
from support.reports import check

MSR = """\
128166372003061629,hm,1,Read,383496192,32768,413
128166372003061639,hm,1,Write,8192,512,6340
128166372003061649,hm,1,Write,4095,2,100
"""
FIU = """\
89966419 20782 gzip 16 8 W 6 0 56f11b711d91a065a2b6458eca924523
89968195 20782 gzip 283193184 24 R 6 0 56f11b711d91a065a2b6458eca924523
"""
SMALL = """\
base = "femu"
channels = 2
dies = 2
blocks = 24
pages = 16
capacity = 4194304
reserve = 3
"""
SMALL_TLC = """\
base = "tlc"
channels = 2
dies = 1
planes = 1
blocks = 100
pages = 48
capacity = 125829120
"""


pytestmark = pytest.mark.filterwarnings("ignore:custom policies:DeprecationWarning")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def failure(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The sentence of a command that fails."""
    assert run_app(["drive", *map(str, arguments)]) == 1
    lines = capsys.readouterr().err.splitlines(keepends=True)
    (said,) = [line for line in lines if "are deprecated" not in line]
    assert said.startswith("potash: ")
    return said


def test_traces_of_both_forms_are_read(tmp_path: Path) -> None:
    profile = PROFILES["tlc"]
    plain, compressed, words = (tmp_path / name for name in ("a.csv", "b.csv.gz", "c.txt"))
    plain.write_text(MSR)
    compressed.write_bytes(gzip.compress(MSR.encode()))
    words.write_text(FIU)
    for path in (plain, compressed):
        found = timing.read_trace(path, profile)
        assert found["time"].tolist() == [0, 1000, 2000]  # of 100 ns each
        assert found["op"].tolist() == [timing.Op.READ, timing.Op.WRITE, timing.Op.WRITE]
        assert found["first"].tolist() == [383496192 // 4096, 2, 0]
        assert found["count"].tolist() == [8, 1, 2]
    found = timing.read_trace(words, profile)
    assert found["time"].tolist() == [0, 89968195 - 89966419]
    assert found["first"].tolist() == [2, 283193184 // 8 % profile.logical_pages]
    assert found["count"].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "has no requests"),
        ("1,h,0,Read,0\n", "is not a trace in a known format"),
        ("x,h,0,Read,0,512,0\n", "is not a trace in a known format"),
        ("1,h,0,Trim,0,512,0\n", "request 1 is not a read or write"),
        ("1,h,0,Read,0,512,0\n2,h,0,Read,-8,512,0\n", "request 2 is not a read or write"),
        (f"1,h,0,Read,0,512,0\n{1 << 62},h,0,Read,0,512,0\n", "too large (time)"),
        (f"{-(1 << 63)},h,0,Read,0,512,0\n{(1 << 63) - 1},h,0,Read,0,512,0\n", "is negative"),
        (f"1,h,0,Read,{(1 << 63) - 1},512,0\n", "too large (offset)"),
        (f"0 1 p {(1 << 55) + 8} 8 W 0 0 h\n", "too large (offset)"),
        (f"0 1 p 0 {(1 << 55) + 8} W 0 0 h\n", "too large (size)"),
        (f"0 1 p 0 8 W 0 0 h\n{(1 << 63) - 1} 1 p 8 8 R 0 0 h\n", "too large (time)"),
        ("\n\n", "has no requests"),
        ("\0" * 99, "could not convert"),
        ("\ufeff1,h,0,Read,0,512,0\n", "could not convert"),
        ("1,h,0,Read,0x20,512,0\n", "could not convert string '0x20'"),
        ("1,h,0,Read,0,512,0\n1,2,3\n", "invalid column index 3 at row 2 with 3 columns"),
        ("time,host,disk,type,offset,size,took\n", "could not convert string 'time'"),
        (f"fio version 3 iolog\n{1 << 80} f read 0 4096\n", "a number is too large"),
        (f"fio version 2 iolog\nf wait {1 << 80}\nf read 0 4096\n", "a number is too large"),
        ("fio version 9 iolog\n", "could not convert string 'fio'"),
        ('{"fio version": "fio-3.33", "jobs": []}', "is not a trace in a known format"),
        (f"  8,0 1 1 0.000000000 1 Q R {1 << 70} + 8 [x]\n", "a number is too large"),
    ],
)
def test_what_is_no_trace_is_refused(
    text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    assert expected in failure(capsys, "simulate", path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("program_ns = [1]\nred_ns = [1]", "there is no key red_ns; did you mean read_ns?"),
        ("base = 'mlc'", "base is 'mlc'"),
        ("base = 'tlc'\nchannels = 0", "channels is 0"),
        ("base = 'tlc'\ncores = true", "cores is True"),
        ("base = 'tlc'\nbus = [1]", "bus must be 2 numbers: bytes, ns"),
        ("base = 'tlc'\nread_ns = []", "read_ns is empty"),
        ("base = 'tlc'\nread_ns = 3", "must be a list"),
        ("base = 'tlc'\nprotected = 1", "must be true or false"),
        ("base = 'tlc'\npages = 100", "no multiple of program_pages"),
        ("base = 'tlc'\nblocks = 170", "blocks is 170"),
        ("base = 'tlc'\nblocks = 100_000_000", "a TiB or more"),
        ("base = 'tlc'\nbuffer_bytes = 4096", "a program unit of each stream takes 98304"),
        ("base = 'tlc'\ncapacity = 5000", "no multiple of 4096"),
        ("base = 'tlc'\ncapacity = '5000'", "no multiple of 4096"),
        ("base = 'tlc'\ncapacity = '9' * 30", "is not TOML"),
        ("base = 'tlc'\ncapacity = '99999999T'", "capacity is 1"),
        ("base = 'tlc'\ncapacity = '5X'", "capacity is '5X'"),
        ("base = 'tlc'\ncapacity = '-5M'", "capacity is '-5M'"),
        ("base = 'tlc'\nblocks = '5M'", "blocks is '5M'"),
        ("base = 'tlc'\npages = [384]", "pages is a list; it must be one whole number"),
        ("base = 'tlc'\npages = []", "pages is a list; it must be one whole number"),
        ("base = 'tlc'\nblocks = {a = 1}", "blocks is {'a': 1}; it must be a whole number"),
        ("base = 'tlc'\nread_ns = [[1]]", "read_ns has [1]; it must be a whole number"),
        ("base = 'tlc'\nread_ns = [5.0]", "read_ns has 5.0; it must be a whole number"),
        ("base = 'tlc'\nerase_ns = -1", "erase_ns is -1"),
        ("base = 'tlc'\nerase_ns = inf", "erase_ns is inf"),
        ("base = 'tlc'\nlink = [0, 1]", "link's bytes is 0; it must be a whole number, 1 to"),
        ("base = 'tlc'\nbus = [1, 1_000_000]", "a program unit of 98304 bytes takes more than"),
        ("base = 'tlc'\nchannels = '8'", "channels is '8'"),
        ("base = 'tlc'\nstreams = 65", "streams is 65; it must be a whole number, 1 to 64"),
        ("base = 'tlc'\nplanes = 3\npage_bytes = 512", "3 planes of 512 bytes are no multiple"),
        ("base = 'tlc'\nreserve = 1", "reserve is 1"),
        ("base = 'qlc'\nreserve = 2", "reserve is 2; with a mapping_cache it must be 3 at least"),
        ("base = 'tlc'\nbackground_invalid = 1001", "background_invalid is 1001"),
        ("base = [['tlc']]", "base is "),
        ("base = 3", "base is 3"),
        (
            "base = 'tlc'\nslc = [1]\nover_provisioning = '7%'",
            "slc is a list; it must be one whole number",
        ),
        ("base = 'tlc'\nslc = 501", "slc is 501"),
        ("base = 'tlc'\nover_provisioning = '0%'", "the drive needs"),
        ("base = 'tlc'\nwidth = 3", "width is 3; it must divide the 16 dies"),
        ("base = 'tlc'\nzone_pages = 5", "zones take zone_superblocks"),
        ("base = 'tlc'\nzone_pages = 9_999_999\nzone_superblocks = 1", "the capacity has 8388608"),
        ("base = 'tlc'\nzone_superblocks = 1000", "the drive needs 1178"),
        ("channels = 1", "dies is missing"),
        ("channels =", "is not TOML"),
    ],
)
def test_drives_that_cannot_be_are_refused(
    change: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "drive.toml"
    path.write_text(change)
    assert expected in failure(capsys, "info", path)
    assert "neither a file" in failure(capsys, "info", tmp_path / "none")


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("--faster", "nan"), 2, "'nan' is not a number"),
        (("--faster", "1e-300"), 1, "too large (time)"),
        (("--fill", "1", "--overwrite", "nan"), 2, "'nan' is not a number"),
        (("--drive", "."), 1, "Is a directory"),
        (("--drive", "tlc.npz"), 1, "tlc.npz cannot be read"),
        (("--drive", "old.npz"), 1, "old.npz: this is no state of a drive: it is damaged"),
        (("--drive", "other.npz"), 1, "other.npz: this is no state of a drive: places has the"),
        (("--drive", "key.npz"), 1, "key.npz: this is no state of a drive: there is no key age"),
        (("--drive", "cut.npz"), 1, "cut.npz: this is no state of a drive: it is damaged"),
        (("--ftl", ""), 1, "there is no FTL"),
        (("--ftl", "zoned"), 1, "there is no FTL zoned; there is page"),
        (("--slc", "nan%"), 2, "'nan%' is not a percentage"),
        (("--slc", "60%"), 1, "slc is 600"),
        (("--policy", "gc="), 1, "'' is neither FILE:CLASS nor one of"),
        (("--policy", "gc=.:Mine"), 1, "is no file of Python"),
        (("--extend", "none.py"), 1, "there is no file none.py"),
    ],
)
def test_options_that_cannot_be_are_refused_in_a_sentence(
    arguments: tuple[str, ...],
    status: int,
    expected: str,
    small: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """States of another version, another geometry, with a key of tomorrow, and cut off, too."""
    monkeypatch.chdir(tmp_path)
    timing.save(timing.drive("small.toml"), Path("cut.npz"))
    arrays: dict[str, Any] = dict(np.load("cut.npz"))
    profile = json.loads(arrays["profile"].tobytes())
    for name, change in {"other": {"capacity": 2 << 20}, "key": {"age": 1}}.items():
        text = np.frombuffer(json.dumps(profile | change).encode(), np.uint8)
        np.savez(f"{name}.npz", **arrays | {"profile": text})
    del arrays["places"]
    np.savez("old.npz", **arrays)
    Path("cut.npz").write_bytes(Path("cut.npz").read_bytes()[:-50])
    drive = () if "--drive" in arguments else ("--drive", str(small))
    assert run_app(["drive", "simulate", str(trace(tmp_path, 2)), *drive, *arguments]) == status
    said = capsys.readouterr().err
    assert expected in said and said.startswith("potash: ") and said.count("\n") == 1


def policy(tmp_path: Path, body: str) -> str:
    path = tmp_path / f"mine{len(body)}.py"
    path.write_text(body)
    return f"gc={path}:Mine"


def trace(tmp_path: Path, count: int = 3000) -> Path:
    """Random writes to the small drive, 200 µs apart."""
    path = tmp_path / "writes.csv"
    pages = random.Random(1).choices(range(1024), k=count)
    lines = [f"{n * 2000},h,0,Write,{page * PAGE},4096,0" for n, page in enumerate(pages)]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return 1 / 0", "the policy {name} raised ZeroDivisionError"),
        ("return -1", "the policy {name} chose -1, which is no closed superblock"),
        ("return None", "the policy {name} chose None"),
        ("return int(s.candidates[s.valid[s.candidates].argmax()])", "the policy {name} frees"),
        ("while True: pass", "the policy {name} took more than"),
    ],
)
def test_policies_that_fail_are_named(
    body: str,
    expected: str,
    small: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extension_limits, "STEP_LIMIT", 0.05)
    named = policy(tmp_path, f"class Mine:\n    def victim(self, s):\n        {body}\n")
    said = failure(
        capsys, "simulate", trace(tmp_path), "--drive", small, "--fill", 100, "--policy", named
    )
    assert expected.format(name=named.removeprefix("gc=")) in said


def test_policies_that_are_none_are_refused(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path, 1)
    for named, expected in {
        "best": "is not KIND=POLICY",
        "gc=best": "neither FILE:CLASS nor one of greedy",
        "gc=/nowhere.py:Mine": "FileNotFoundError",
        policy(tmp_path, "class Other: pass"): "AttributeError",
        "allocation=" + policy(tmp_path, "class Mine:\n order = 3")[3:]: "has no method order",
    }.items():
        assert expected in failure(capsys, "simulate", path, "--drive", small, "--policy", named)


def test_a_garbage_collector_of_a_file_works_and_is_deprecated(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = """
class Mine:
    def victim(self, superblocks):
        by_age = sorted(superblocks.candidates, key=superblocks.closed_at.__getitem__)
        return min(by_age[: len(by_age) // 2 + 1], key=superblocks.valid.__getitem__)
"""
    arguments = ["simulate", trace(tmp_path), "--drive", small, "--fill", 100, "--json"]

    def report(*more: object) -> Any:
        assert run_app(["drive", *map(str, [*arguments, *more])]) == 0
        return json.loads(capsys.readouterr().out)

    assert run_app(["drive", *map(str, arguments), "--policy", policy(tmp_path, code)]) == 0
    said = capsys.readouterr()
    assert "custom policies are deprecated; a class with @ftl" in said.err
    mine = json.loads(said.out)
    greedy = report("--policy", "gc=greedy")
    check("drive simulate", mine)
    assert mine["requests"] == 3000 and mine["refused"] == 0
    assert mine["counters"]["erased"] >= (3000 - 512) // 64  # 512 pages are spare
    assert mine["counters"]["host"] == greedy["counters"]["host"] == 3000
    assert mine["counters"] != greedy["counters"]
    (writes,) = mine["latencies"]
    assert writes["kind"] == "write" and writes["bytes"] == 3000 * PAGE
    assert writes["p50_us"] >= 200.0  # FEMU's tPROG; it has no write buffer


LAYER = """
from potash.extend import ftl

@ftl
class Mine:
    def __init__(self, profile):
        self.written = 0
    def submit(self, time, op, first, count, stream, fua, hint):
        self.written += 1
        assert self.written <= 3000
        return time + 7000
"""


def test_a_translation_layer_of_an_extension_serves_a_trace(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "layer.py").write_text(LAYER)
    path, extend = trace(tmp_path), ("--drive", small, "--extend", tmp_path / "layer.py")
    arguments = [*map(str, ("drive", "simulate", path, *extend, "--ftl", "Mine", "--json"))]
    assert run_app(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["latencies"][0]["p999_us"] == found["latencies"][0]["mean_us"] == 7
    assert run_app([*arguments[:-1]]) == 0
    assert f"drive {small}, FTL Mine, trace of MSR" in capsys.readouterr().out
    for ftl, more, said in (
        ("Mien", (), "there is no FTL Mien; did you mean Mine?"),
        ("Mine", ("--drive", "tlc", "--slc", "5%"), "slc is for the FTL page, and Mine has none"),
        ("Mine", ("--policy", "gc=fifo"), "policies are for the FTL page, and Mine decides"),
        ("Mine", ("--fill", 100), "layer.py, line 10: AssertionError"),
    ):
        assert said in failure(capsys, "simulate", path, *extend, "--ftl", ftl, *more)


def test_a_cache_and_spare_flash_are_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("".join(f"{at},host,0,Write,{at * 65536},65536,0\n" for at in range(4000)))
    small = tmp_path / "small.toml"
    small.write_text(SMALL_TLC)
    options = ["--drive", str(small), "--over-provisioning", "30%", "--slc", "5%"]
    assert run_app(["drive", "simulate", str(path), *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    check("drive simulate", report)
    assert report["counters"]["folded"] == report["counters"]["relocated"] > 0
    assert report["wear"]["slc"] > 0
    assert run_app(["drive", "simulate", str(path), *options[:-2], "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["counters"]["folded"] == report["wear"]["slc"] == 0
    assert run_app(["drive", "simulate", str(path), "--slc", "5"]) == 2
    assert "'5' is not a percentage like 5% or 2.5%" in capsys.readouterr().err
    said = failure(capsys, "simulate", path, "--drive", "femu", "--slc", "5%")
    assert said == "potash: slc needs cells of several bits, and blocks of enough pages\n"
    kept = tmp_path / "kept.npz"
    assert run_app(["drive", "precondition", "-o", str(kept), "--fill", "1", *options]) == 0
    assert run_app(["drive", "wear", "--drive", str(kept)]) == 0
    assert run_app(["drive", "wear", "--drive", str(kept), "--slc", "5%"]) == 2
    assert "has its own SLC cache and spare flash" in capsys.readouterr().err
    (tmp_path / "cached.toml").write_text('base = "tlc"\nover_provisioning = "20%"\nslc = "5%"')
    assert run_app(["drive", "info", str(tmp_path / "cached.toml"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["slc"] == 11 and 0.2 <= report["spare"] < 0.21


def test_old_data_are_read_again_and_refreshed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, drive, kept = (tmp_path / name for name in ("trace.csv", "old.toml", "old.npz"))
    path.write_text("".join(f"{at}0000,host,0,Read,{at * 65536},4096,0\n" for at in range(1000)))
    drive.write_text(SMALL_TLC + 'rber = "tlc"\n')

    def counters(*options: object) -> dict[str, int]:
        arguments = ["drive", "simulate", path, *options, "--json"]
        assert run_app([*map(str, arguments)]) == 0
        report = json.loads(capsys.readouterr().out)
        check("drive simulate", report)
        found: dict[str, int] = report["counters"]
        return found

    full = "--drive", drive, "--fill", 100
    assert counters(*full)["retries"] == 0
    # Of the first cycle: 1.48e-3 + 6.28e-5 * 8766**0.54 is 9.9e-3, above 4, 6 and 8e-3.
    found = counters(*full, "--age", "1y")
    assert found["retries"] == 3 * found["senses"] > 0
    assert run_app([*map(str, ["drive", "simulate", path, *full, "--age", "1y"])]) == 0
    assert f"\n{found['retries']} read retries\n" in capsys.readouterr().out
    arguments = "precondition", "-o", kept, *full, "--age", "0.5y"
    assert run_app(["drive", *map(str, arguments)]) == 0
    capsys.readouterr()
    assert counters("--drive", kept, "--age", "0.5y")["retries"] == found["retries"]
    drive.write_text(SMALL_TLC + "refresh_s = 86_400\n")
    assert counters(*full, "--age", "2d")["refreshed"] > 0
    for age, problem in (("1y", "needs a drive"), ("1", "time like"), ("101y", "100 years")):
        assert run_app(["drive", "simulate", str(path), "--age", age]) == 2
        assert problem in capsys.readouterr().err


def test_a_preconditioned_drive_of_an_extension_is_kept(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = "from potash.extend import ftl\nfrom potash.ftl import PageMapped\n"
    for name, body in (("Mine", "version = 1"), ("Other", "pass")):
        mine += f"@ftl\nclass {name}(PageMapped):\n    {body}\n"
    (tmp_path / "mine.py").write_text(mine)
    kept, path, extend = tmp_path / "kept.npz", trace(tmp_path), ("--extend", tmp_path / "mine.py")
    before = ("--fill", 100, "--overwrite", 1)

    def report(*arguments: object) -> Any:
        assert run_app(["drive", *map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    ours = (*extend, "--ftl", "Mine")
    once = report("simulate", path, "--drive", small, *before, *ours)
    made = report("precondition", "-o", kept, "--drive", small, *before, *ours)
    assert made["erases"] > 0 and made["mapped"] == 4 << 20
    again = report("simulate", path, "--drive", kept, *ours)
    assert {**again, "profile": ""} == {**once, "profile": ""}
    for arguments, said in (
        (("simulate", path, "--drive", kept), "it is not of the FTL page"),
        (("simulate", path, "--drive", kept, *extend, "--ftl", "Other"), "it is of another FTL"),
        (("precondition", "-o", tmp_path / "a.npz", *extend, "--ftl", "Other"), "has no version"),
    ):
        assert said in failure(capsys, *arguments)


def test_a_preconditioned_drive_is_kept(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(*arguments: object) -> Any:
        assert run_app(["drive", *map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    path, before = trace(tmp_path), ("--fill", 100, "--overwrite", 2, "--seed", 5)
    once = report("simulate", path, "--drive", small, *before)
    kept = report("precondition", "-o", tmp_path / "kept.npz", "--drive", small, *before)
    check("drive precondition", kept)
    assert kept["mapped"] == 4 << 20 and kept["erases"] > 0
    again = report("simulate", path, "--drive", tmp_path / "kept.npz")
    assert again | {"profile": ""} == once | {"profile": ""}
    (tmp_path / "bad.npz").write_bytes(b"no drive")
    said = failure(capsys, "simulate", path, "--drive", tmp_path / "bad.npz")
    assert "this is no state of a drive: it is damaged" in said
    assert "cannot be read" in failure(capsys, "simulate", path, "--drive", "/nowhere.npz")


def test_the_drive_of_the_documentation_and_the_built_in_ones_are_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "fit.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "own.toml").write_text(text)
    assert run_app(["drive", "info", str(tmp_path / "own.toml"), "--json"]) == 0
    assert cores(str(tmp_path / "own.toml")) == DEFAULT
    report = json.loads(capsys.readouterr().out)
    check("drive info", report)
    # 1000 + 3100 + tR + 4096 B at 2 GB/s + 586 + 1000
    assert report["idle_read_us"] == [52.734, 62.734, 82.734]
    assert report["dies"] == 32
    assert report["profiles"] == list(PROFILES)
    for name in PROFILES:
        assert run_app(["drive", "info", name]) == 0
        assert "4 KiB read, idle" in capsys.readouterr().out

"""`potash drive fit`: drives recovered from measurements, and files that are none."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

import pytest

from potash import timing
from potash.cli.app import run_app
from potash.timing import fio, fitting, jobs
from potash.timing.evidence import Evidence
from potash.timing.fitting import compare
from support.fio_results import UNSEEN, document, hidden, measure, write
from support.reports import check

SEEN = {name: job for name, job in fio.TABLE.items() if not name.startswith(fio.STEADY)}
LEFT_OUT = {"rand-read-4k-4", "rand-read-4k-256", "mixed-90-4k-8"}
QUICK = {name: job for name, job in SEEN.items() if name not in LEFT_OUT}
SAMPLES = 40_000
TOLERANCE = 0.05
Key = tuple[str, str, float]


def errors(
    profile: timing.Profile, measured: list[timing.Measurement], samples: int
) -> dict[Key, float]:
    """Differences of modelled medians and 99th percentiles, as parts."""
    return {
        (one.job.name, one.kind, part): one.modelled.percentiles[part]
        / one.measured.percentiles[part]
        - 1
        for one in compare(profile, measured, samples)
        for part in (50.0, 99.0)
    }


def unseen_errors(
    drive: timing.Profile, fitted: timing.Profile, path: Path, samples: int
) -> dict[Key, float]:
    """The same for jobs that the fit has not seen; a latency that the hidden drive itself does not
    repeat may be left out."""
    measured = timing.measurements([write(path, measure(drive, UNSEEN, samples))])
    again, found = errors(drive, measured, samples), errors(fitted, measured, samples)
    repeated = {key: error for key, error in found.items() if abs(again[key]) < TOLERANCE / 2}
    assert len(repeated) >= len(found) - 1, again
    return repeated


MISSED = {
    8: "the hidden drive itself does not repeat three of its latencies",
    13: "a 99th percentile is 7 % off",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=pytest.mark.xfail(reason=MISSED[seed])) if seed in MISSED else seed
        for seed in range(20)
    ],
)
def test_hidden_drives_are_recovered(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="the extra `fit` is not installed")
    drive = hidden(seed)
    path = write(tmp_path / "fit.json", measure(drive, SEEN, 200_000))
    found = timing.fit(timing.measurements([path]), timing.profile("tlc"))
    left = unseen_errors(drive, found.profile, tmp_path / "unseen.json", 200_000)
    assert max(map(abs, left.values())) < TOLERANCE, left


def test_writes_are_modelled_with_the_buffer_as_full_as_fio_finds_it(tmp_path: Path) -> None:
    # Firmware fills this drive's buffer a little faster than flash empties it.
    drive, table = hidden(4), {**SEEN, **UNSEEN}
    table = {name: table[name] for name in ("rand-write-4k-32", "write-4k-16", "mixed-70-4k-32")}
    measured = timing.measurements([write(tmp_path / "fit.json", measure(drive, table, 100_000))])
    for pair in compare(drive, measured, 20_000):
        if pair.kind == "write":
            for part, latency in pair.modelled.percentiles.items():
                assert latency == pytest.approx(pair.measured.percentiles[part], 0.03), pair


@pytest.mark.parametrize("size", [0, 1 << 22])
def test_few_writes_show_the_firmware_if_there_is_a_buffer(size: int, tmp_path: Path) -> None:
    drive = replace(hidden(7), buffer_bytes=size, program_ns=(800_000,))
    table = {name: SEEN[name] for name in ("rand-read-4k-1", "rand-write-4k-idle")}
    measured = timing.measurements([write(tmp_path / "fit.json", measure(drive, table, 10_000))])
    evidence = Evidence(measured, timing.profile("tlc"))
    assert len(evidence.few) == bool(size)


def test_a_drive_is_recovered_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A rough fit: fewer requests of each job on a smaller drive, and fewer variants.
    rough: dict[str, Any] = {"SAMPLES": 800, "NEAR_VALUES": 5, "NEAR": 1, "ROUNDS": 4}
    rough |= {"MANY": 10_000, "PROGRAMS": (1.0,)}
    rough |= {"CHANNELS": (8, 16, 32), "DIES": (2, 4, 8), "CORES": (2, 4, 8)}
    rough["BUFFERS"] = 1 << 21, 1 << 23, 1 << 25
    for name, value in rough.items():
        monkeypatch.setattr(fitting, name, value)
    for name, value in {"REGION": 1 << 12, "SETTLING": 10, "CHUNK": 1 << 12}.items():
        monkeypatch.setattr(jobs, name, value)
    pytest.importorskip("scipy", reason="the extra `fit` is not installed")
    drive = hidden(7)
    results = write(tmp_path / "fit.json", measure(drive, QUICK, SAMPLES))
    profile, picture = tmp_path / "server.toml", tmp_path / "fit.svg"
    command = ["drive", "fit", results, "-o", profile, "--picture", picture, "--json"]
    assert run_app([*map(str, command)]) == 0
    report = json.loads(capsys.readouterr().out)
    check("drive fit", report)
    fitted = timing.profile(str(profile))
    assert (fitted.channels, fitted.dies) == (drive.channels, drive.dies)
    for name, part in (("program_ns", 0.02), ("read_ns", 0.02), ("buffer_bytes", 0.2)):
        (number,) = (one for one in report["numbers"] if one["name"] == name)
        assert number["shown"]
        value = getattr(drive, name)
        assert number["value"] == pytest.approx(value if name != "buffer_bytes" else [value], part)
    left = unseen_errors(drive, fitted, tmp_path / "unseen.json", SAMPLES)
    assert max(map(abs, left.values())) < TOLERANCE, left
    assert {one["job"] for one in report["jobs"]} == set(QUICK)
    circles = xml.parse(picture).getroot().findall("{*}circle")
    assert len(circles) == 2 * len(report["jobs"])


def failure(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The sentence of `potash drive fit` where it fails."""
    assert run_app(["drive", "fit", *map(str, arguments)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("potash: ") and said.count("\n") == 1
    return said


LISTED = {"50.000000": 80_000, "99.000000": 120_000}
SIDE = {"total_ios": 10, "clat_ns": {"mean": 85_000.0, "percentile": LISTED}}
OPTIONS = {"rw": "randread", "bs": "4k", "iodepth": "1"}
ENTRY = {"jobname": "mine", "error": 0, "job options": OPTIONS, "read": SIDE}


def entry(changes: dict[str, Any] = {}, **options: str) -> dict[str, Any]:  # noqa: B006
    """The document of a job with changes to its entry and its options."""
    return document([{**ENTRY, "job options": {**OPTIONS, **options}, **changes}])


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("", "is empty: fio may have been stopped"),
        ("rand-read: (g=0): rw=randread", "is no JSON (Expecting value"),
        ('{"jobs": [{"jobname": "a", "read": {"io', "is no JSON (Unterminated string"),
        ("[" * 100_000, "is no JSON"),
        (b"\xff\xfe{", "it is not UTF-8"),
        ({"results": {}}, "has no jobs of fio; run fio with --output-format=json"),
        ([1, 2], "has no jobs of fio"),
        ({"jobs": []}, "does not name a version of fio: another tool may have written it"),
        ({**document([]), "global options": 3, "jobs": [ENTRY]}, "job mine is damaged"),
        (document([]), "no job has random reads of 4 KiB with one in flight"),
        (document([3]), "has a job without a name"),  # type: ignore[list-item]
        (document([ENTRY, ENTRY]), "job mine is twice in"),
        (entry({"error": 5}), "job mine failed with error 5; run it again"),
        (entry({"read": 7}), "job mine is damaged"),
        (entry({"read": {}}), "job mine has completed no read"),
        (entry({"read": {"total_ios": 3}}), "has no percentiles of reads"),
        (
            entry({"read": {"total_ios": 3, "clat_ns": {"percentile": {"50": [], "99": 1}}}}),
            "job mine is damaged: a number is none",
        ),
        (
            entry({"read": {"total_ios": 3, "clat_ns": {"mean": 5, "percentile": {"50": 1}}}}),
            "has no percentiles 50 and 99",
        ),
        (
            entry({"read": {"total_ios": 3, "clat_ns": {"mean": 0, "percentile": LISTED}}}),
            "has a read latency of 0",
        ),
        (document([{**ENTRY, "job options": {}}]), "job mine has no options; run it by fio 3"),
        (entry(rw="trim"), "job mine has rw=trim; only"),
        (entry(direct="0"), "went through the page cache; run it with direct=1"),
        (entry(bs="4k,8k"), "has bs=4k,8k, which is not one number"),
        (entry(bs="512"), "has bs=512, which is no multiple of 4096 bytes"),
        (entry(iodepth="many"), "has iodepth=many, which is not one number"),
        (entry(iodepth="100000"), "has more than 64 MiB in flight"),
        (entry(thinktime="1y"), "has thinktime=1y"),
        (entry(thinktime="1s", thinktime_blocks="0"), "beyond all sense"),
        (entry(rate_iops="100"), "has the option rate_iops, which has no model"),
        (entry(iodepth="4"), "no job has random reads of 4 KiB with one in flight"),
    ],
)
def test_what_is_no_result_is_refused(
    found: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    data = found if isinstance(found, str | bytes) else json.dumps(found)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    assert said in failure(capsys, path)


def test_older_forms_and_warnings_are_read(tmp_path: Path) -> None:
    new = write(tmp_path / "new.json", document([ENTRY]))
    new.write_text(f"fio: this platform does not support\n{new.read_text()}")
    # fio 2 has microseconds, and its first versions no options.
    old_side = {"io_bytes": 40, "clat": {"mean": 85.0, "percentile": {"50.0": 80, "99.0": 120}}}
    old = {"jobname": "rand-read-4k-1", "error": 0, "read": old_side}
    path = write(tmp_path / "old.json", {"fio version": "fio-2.2.10", "jobs": [old]})
    total = {"total_ios": 4, "lat_ns": {"mean": 90_000.0, "percentile": LISTED}}
    other = write(tmp_path / "total.json", document([{**ENTRY, "jobname": "b", "read": total}]))
    first, second, third = timing.measurements([new, path, other])
    assert first.job == fio.Job("mine", True, 1, 1, 1) and second.job.name == "rand-read-4k-1"
    assert first.reads == second.reads and first.writes is None
    assert second.job._replace(name="mine") == first.job
    assert third.reads and third.reads.mean == 90_000


def test_the_jobs_take_ten_minutes_and_are_what_the_fit_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["drive", "fit", "--jobs", str(tmp_path / "jobs"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    check("drive fit", report)
    text = (tmp_path / "jobs" / "fit.fio").read_text()
    assert report["files"] == [str(tmp_path / "jobs" / name) for name in ("fit.fio", "steady.fio")]
    seconds = [
        sum(map(int, found)) for found in re.findall(r"runtime=(\d+)s\nramp_time=(\d)s", text)
    ]
    assert sum(seconds) <= 600 and len(seconds) == len(SEEN)
    sections = re.findall(r"^\[(.*)\]$", text, re.MULTILINE)
    assert sections == ["global", *list(SEEN)[:5], "fill", *list(SEEN)[5:]]
    assert "cannot be written" in failure(capsys, "--jobs", tmp_path / "jobs" / "fit.fio" / "a")


def test_arguments_that_do_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "fit.json", document([ENTRY]))
    for arguments, said in (
        (["--jobs", tmp_path, path], "--jobs writes the jobs, before there are RESULTS"),
        ([], "no RESULTS; --jobs DIRECTORY writes the jobs"),
    ):
        assert run_app(["drive", "fit", *map(str, arguments)]) == 2
        assert said in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert "pip install 'potash[fit]'" in failure(capsys, path)

"""What a benchmark says: the form of its JSON, and its arithmetic."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import bench_page
import pytest
from click.testing import CliRunner

from potash.bench import (
    computational,
    drive_time,
    everything,
    generator,
    guest,
    models,
    programs,
    report,
    starting,
    tables,
    vta,
)
from potash.bench.processors import Followed
from potash.bench.report import Baseline, Result, alone, document, paired, table
from potash.cli.device.bench import bench
from potash.schema import encode
from potash.sdk.errors import PotashError
from support.reports import check


def test_a_ratio_is_the_median_of_the_pairs_and_not_of_the_sums() -> None:
    result = paired("load", "iops", "1/s", "other", [(10, 5), (10, 10), (1000, 4000)])
    assert (result.ratio, result.spread, result.pairs) == (1.0, (0.25, 2.0), 3)
    assert (result.value, result.baseline) == (10, Baseline("other", 10))


def test_without_a_baseline_the_spread_is_of_the_values() -> None:
    result = alone("load", "iops", "1/s", [3, 1, 2])
    assert (result.value, result.baseline, result.ratio) == (2, None, None)
    assert (result.pairs, result.spread) == (3, (1, 3))


def test_the_document_has_the_keys_that_readers_rely_on() -> None:
    results = [paired("a", "iops", "1/s", "other", [(2, 1)]), alone("b", "iops", "1/s", [5])]
    read = json.loads(encode(document(results)))
    assert set(read) == {"machine", "results"}
    keys = {"name", "metric", "value", "unit", "baseline", "ratio", "pairs", "spread"}
    assert [set(one) for one in read["results"]] == [keys, keys]
    assert read["results"][0]["baseline"] == {"name": "other", "value": 1}
    assert read["results"][0]["spread"] == [2, 2]
    assert read["results"][1]["baseline"] is None


def test_the_table_shows_the_value_the_baseline_and_the_ratio() -> None:
    lines = table([paired("load", "iops", "1/s", "other", [(30000, 20000)])])
    assert lines[1].split() == ["load", "iops", "1/s", "30,000", "20,000", *["1.50"] * 3, "1"]


def test_values_between_two_samples_are_interpolated() -> None:
    used = iter([0.0, 10.0])
    with Followed({"it": lambda: next(used, 10.0)}) as followed:
        pass
    first, last = followed._samples[0].at, followed._samples[-1].at
    assert followed.between(first - 1, last + 1) == {"it": 10.0}
    middle = (first + last) / 2
    assert 0 < followed.between(first - 1, middle)["it"] <= 10.0
    assert time.time() >= last


@pytest.mark.parametrize("arguments", [["--only", "randread"], ["--pairs", "0"]])
def test_what_cannot_be_measured_is_a_usage_error(arguments: list[str]) -> None:
    said = CliRunner().invoke(bench, ["nvme", "--guest", *arguments])
    assert said.exit_code == 2


def test_programs_are_measured_beside_native_code() -> None:
    said = CliRunner().invoke(
        bench, ["bpf", "--json", "--pairs", "1", "--only", "sum", "--only", "filter"]
    )
    if said.exit_code and "there is no" in str(said.exception):
        pytest.skip(str(said.exception))
    results = json.loads(said.stdout)["results"]
    found = {(one["name"], one["metric"]): one for one in results}
    for kernel in ("sum", "filter"):
        assert found[kernel, "time"]["ratio"] > 0
        assert found[kernel, "time"]["baseline"]["name"].endswith("-O2")
        assert found[kernel, "compile"]["value"] > found[kernel, "load from the cache"]["value"] > 0
    ratios = [found[kernel, "time"]["ratio"] for kernel in ("sum", "filter")]
    mean = found["all kernels", "mean time"]["ratio"]
    assert min(ratios) <= mean <= max(ratios)


def measured(*arguments: str) -> dict[tuple[str, str], Any]:
    """Each result of a short benchmark, by name and metric."""
    said = CliRunner().invoke(bench, [*arguments, "--json", "--pairs", "1", "--seconds", "0.1"])
    if said.exit_code and "there is no compiler" in str(said.exception):
        pytest.skip(str(said.exception))
    report = json.loads(said.stdout)
    check(f"bench {arguments[0]}", report)
    return {(one["name"], one["metric"]): one for one in report["results"]}


def test_queries_are_measured_beside_reading_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS", 20_000)
    said = CliRunner().invoke(bench, ["columns", "--json", "--pairs", "1", "--only", "q6-10%"])
    report = json.loads(said.stdout)
    check("bench columns", report)
    found = {result["metric"]: result for result in report["results"]}
    assert found["time"]["ratio"] > 0 and found["moved"]["ratio"] < 0.01
    assert found["read by the drive"]["value"] < found["moved"]["baseline"]["value"]


def test_memory_is_measured_beside_blocks_and_copies() -> None:
    names = ("memory-read-4k-qd32", "memory-copy-1m-qd4")
    found = measured("nvme", "--only", names[0], "--only", names[1])
    assert {name for name, metric in found if metric == "iops"} == set(names)
    assert found[names[0], "iops"]["baseline"]["name"] == "reads of blocks"
    assert found[names[1], "iops"]["baseline"]["name"] == "memory copy"
    assert all(found[name, "iops"]["ratio"] > 0 for name in names)


def test_modelled_time_is_measured_beside_a_drive_without_a_model() -> None:
    name = "modelled-z-nand-randwrite-4k-qd32"
    found = measured("nvme", "--only", name)
    assert set(found) == {(name, "iops"), (name, "device time")}
    assert all(one["ratio"] > 0 for one in found.values())
    assert {one["baseline"]["name"] for one in found.values()} == {"unmodelled"}


def test_executions_are_measured_alone() -> None:
    found = measured("cp")
    assert {name for name, _ in found} == set(computational.NAMES)
    assert {name for name, metric in found if metric == "latency"} == {
        "execute-qd1", "execute-ranges-qd1"
    }  # fmt: skip
    units = {(metric, one["unit"]) for (_, metric), one in found.items()}
    assert units == {("iops", "1/s"), ("latency", "µs"), ("device time", "µs/io")}
    assert all(one["value"] >= 0 and one["baseline"] is None for one in found.values())


def test_every_kernel_is_there_and_no_other() -> None:
    assert {path.stem for path in programs.FOLDER.glob("*.c")} == set(programs.NAMES)


def test_a_start_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "SETTLED", 0.0)
    only = ("--only", "help", "--only", "serve")
    said = CliRunner().invoke(bench, ["start", *only, "--json", "--pairs", "1"])
    report = json.loads(said.stdout)
    check("bench start", report)
    found = {(one["name"], one["metric"]): one["value"] for one in report["results"]}
    assert found["help", "time"] > 0 and found["serve", "ready"] > 0
    assert ("serve", "memory") in found or os.geteuid()


def _measured(name: str) -> everything.Measure:
    return lambda settings, progress: iter([alone(name, "time", "ms", [settings.pairs])])


def _fails(*_: object) -> Iterator[Result]:
    raise PotashError("there is no fio")


def test_all_benchmarks_are_run_and_one_that_cannot_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    benchmarks = {"vta": _measured("C2"), "nvme --guest": _fails, "drive": _measured("simulate")}
    monkeypatch.setattr(everything, "BENCHMARKS", benchmarks)
    said = CliRunner().invoke(bench, ["all", "--json", "--pairs", "3"])
    assert said.exit_code == 0
    assert "nvme --guest is left out: there is no fio" in said.stderr
    report = json.loads(said.stdout)
    check("bench all", report)
    assert [(one["name"], one["command"]) for one in report["benchmarks"]] == [
        ("vta", "potash bench vta"),
        ("drive", "potash bench drive"),
    ]
    assert report["benchmarks"][0]["results"][0]["value"] == 3


NAMES = {
    "start": starting.NAMES,
    "nvme": generator.NAMES,
    "nvme --guest": guest.NAMES,
    "cp": computational.NAMES,
    "bpf": (*programs.NAMES, programs.ALL),
    "vta": vta.NAMES,
    "model": (*models.NAMES, *models.PUBLIC),
    "model --threads 2": (*models.NAMES, *models.PUBLIC),
    "drive": drive_time.NAMES,
    "columns": tables.NAMES,
    "columns --guest": tables.NAMES,
}


@pytest.mark.parametrize("name", bench_page.TABLES)
def test_a_table_of_the_page_has_rows_that_are_measured(name: str) -> None:
    table = bench_page.TABLES[name]
    assert table.benchmark in everything.BENCHMARKS
    assert {workload for _, workload, _ in table.rows} <= set(NAMES[table.benchmark])
    assert f"<!-- figures: {name} -->" in bench_page.PAGE.read_text()


def test_the_page_gets_tables_of_what_was_measured() -> None:
    old = "text\n<!-- figures: {} -->\nas it was\n<!-- end of figures -->\nmore\n"
    ready = alone("serve", "ready", "ms", [150, 149, 152])
    figures = everything.Figures(
        report.machine(), [everything.Benchmark("start", "potash bench start", [ready])]
    )
    page = bench_page.replaced(old.format("start") + old.format("cp"), json.loads(encode(figures)))
    assert "Medians of 3 measurements, on " in page
    assert "| `potash serve` is ready | 150 ms | – | importing modules" in page
    assert page.startswith("text\n<!-- figures: start -->\nMedians")
    assert page.endswith(old.format("cp"))

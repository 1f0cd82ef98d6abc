"""The experiments of `examples/papers`, in small: each shows its claim, and is short."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import papers_picture
import pytest

from potash.experiment import plan
from potash.experiment.runs import Refused, carry_out
from support.docs import ROOT

PAPERS = ROOT / "examples" / "papers"
NAMES = sorted(path.parent.name for path in PAPERS.glob("*/experiment.toml"))
MOST_LINES = 200


def small(name: str) -> list[Mapping[str, Any]]:
    """The rows of an experiment's small version."""
    rows: list[Mapping[str, Any]] = []
    for task in plan.read(PAPERS / name / "experiment.toml").reduced().tasks():
        found = carry_out(task)
        assert not isinstance(found, Refused), found.reason
        rows.extend(run.row for run in found)
    return rows


def values(rows: list[Mapping[str, Any]], column: str, *names: str) -> dict[Any, float]:
    """A column of what the program found, by the values of parameters."""
    return {
        tuple(row[name] for name in names) if len(names) > 1 else row[names[0]]: row[column]
        for row in rows
        if row["method"] != "published"
    }


def deviations(rows: list[Mapping[str, Any]], column: str) -> list[float]:
    """How far what the program found is from each published value, as a share of that."""
    published = {row["point"]: row.get(column) for row in rows if row["method"] == "published"}
    return [
        row[column] / there - 1
        for row in rows
        if row["method"] != "published" and (there := published[row["point"]]) is not None
    ]


@pytest.mark.parametrize(("name", "prepared"), [("csd-schedulers", 0), ("offload-selectivity", 1)])
def test_published_values_get_drives_only_if_they_are_prepared(
    name: str, prepared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    booted: list[object] = []  # in place of drives, which a point cannot use
    monkeypatch.setattr("potash.experiment.runs.booted_device", lambda **_: booted.append(0))
    task = plan.read(PAPERS / name / "experiment.toml").reduced().tasks()[0]
    assert isinstance(carry_out(task._replace(methods=("published",))), Refused) == prepared
    assert len(booted) == prepared


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_is_short_and_has_a_page(name: str) -> None:
    files = [path for path in (PAPERS / name).iterdir() if path.is_file()]
    assert sum(len(path.read_text().splitlines()) for path in files) <= MOST_LINES
    assert (PAPERS / name / "README.md").exists()
    assert f"({name}/README.md)" in (PAPERS / "README.md").read_text()
    assert f"/{name}/README.md)" in (ROOT / "docs" / "papers.md").read_text()


def panels(picture: bytes) -> dict[str, str]:
    """The names of the experiments in a picture, and the texts below them."""
    texts = list(ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text"))
    return {
        str(text.text): str(below.text)
        for text, below in pairwise(texts)
        if text.get("font-weight") == "bold"
    }


def test_the_picture_of_the_front_page_is_of_these_experiments(tmp_path: Path) -> None:
    labels = {name: papers_picture.label(papers_picture.axes_of(name)) for name in NAMES}
    assert panels(papers_picture.PICTURE.read_bytes()) == labels
    name = "zns-finish"
    drawn = papers_picture.picture({name: papers_picture.measured(name, tmp_path, "--small")})
    assert panels(drawn) == {name: labels[name]}
    assert drawn.count(b"<polyline") == 2 and drawn.count(b"<circle") == 4


def test_suspension_takes_collection_out_of_the_tail() -> None:
    rows = small("gc-tail")
    found = values(rows, "us", "collection", "suspension", "percentile")
    assert 5 < found["whole", "no", 99.9] / found["none", "no", 99.9] < 138
    assert found["whole", "yes", 99.9] < found["none", "no", 99.9]
    assert found["none", "yes", 99.9] < found["whole", "yes", 99.9]


def test_a_finish_programs_the_rest_of_a_zone_or_of_a_narrow_superblock() -> None:
    rows = small("zns-finish")
    assert max(map(abs, deviations(rows, "amplification"))) < 0.15
    found = values(rows, "amplification", "width", "occupancy")
    assert found[16, 0.1] > 7 * found[1, 0.1] and found[16, 1.0] == found[1, 1.0] == 1
    times = values([row for row in rows if row.get("occupancy") == 0.1], "read_ms", "width")
    assert times[16] > 5 * times[1]


def test_handles_keep_large_objects_from_being_moved() -> None:
    rows = small("fdp-cache")
    assert max(map(abs, deviations(rows, "amplification"))) < 0.01
    found = values(rows, "amplification", "handles")
    assert found["one"] > 3 and found["two"] < 1.05 and found["two, misclassified"] > 1.2


def test_lines_that_predict_places_save_double_reads() -> None:
    found = values(small("dftl-double-reads"), "double_reads", "ftl")
    assert found["Cached"] > 0.95 and found["Learned"] < (1 - 0.555) * found["Cached"]


def test_writes_are_slower_behind_the_end_of_an_slc_cache() -> None:
    rows = small("slc-cliff")
    found = values(rows, "bandwidth", "written")
    assert found[0.2] > 2 * found[0.4] > 2.8 * found[0.8]
    published = {row["written"]: row["bandwidth"] for row in rows if row["method"] == "published"}
    assert all(found[at] == pytest.approx(published[at], rel=0.05) for at in (0.1, 0.2, 0.34, 0.4))


def test_write_amplification_is_as_analyses_say() -> None:
    rows = small("greedy-wa")
    published = deviations(rows, "amplification")
    assert len(published) == 3 and max(map(abs, published)) < 0.02
    found = values(rows, "amplification", "workload", "policy")
    assert found["90/10", "gc=cost-benefit"] < 0.8 * found["90/10", "gc=greedy"]


def test_virtual_threads_bring_the_accelerator_to_its_published_peak() -> None:
    rows = small("vta-roofline")
    published = deviations(rows, "used")
    assert len(published) == 2 and max(map(abs, published)) < 0.01


def test_the_most_urgent_tenant_waits_as_theory_says() -> None:
    rows = small("csd-schedulers")
    found = values(rows, "slowdown", "scheduler", "tenant")
    assert found["fifo", 0] > 2 * found["priority", 0]
    assert found["priority", 3] > 1.5 * found["fifo", 3]


def test_only_an_ordered_collection_keeps_what_was_flushed() -> None:
    rows = small("power-loss")
    flushed, acknowledged = (
        values(rows, f"{what}_lost", "ftl_class") for what in ("flushed", "acknowledged")
    )
    assert flushed["Buffered"] > 20 * flushed["MovedFirst"] > 0
    assert flushed["Ordered"] == flushed["Through"] == acknowledged["Through"] == 0
    assert acknowledged["Ordered"] > 0.5


def test_drives_pay_off_while_they_spare_the_link_or_the_host() -> None:
    rows = small("offload-selectivity")
    assert max(map(abs, deviations(rows, "speedup"))) < 0.1
    speedup = values(rows, "speedup", "work")
    assert speedup["compress"] > 5 and 0.9 < speedup["scan"] < 1


def test_a_drive_writes_values_once_and_a_library_as_often_as_it_merges() -> None:
    found = values(small("kv-in-drive"), "amplification", "store", "phase")
    assert 9.5 < found["library", "load"] < 10.5, "10 by the closed form"
    assert found["drive", "load"] < 1.05
    assert found["drive", "update"] < found["library", "update"] / 8

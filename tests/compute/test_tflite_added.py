"""Operators of other packages: the one of docs/adding/operator.md, and those that are left out."""

import importlib
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash_device.cache import digest_of_sources
from potash_firmware.tflite import partition_cache
from potash_firmware.tflite.operators import OPERATORS, added, installed
from potash_firmware.tflite.runtime import inspect
from potash_firmware.tflite.writer import ModelBuilder
from support.docs import blocks
from support.tflite import bench, reference

SHAPE = (1, 5, 5, 20)


def absolute(scales: tuple[float, float] = (0.1, 0.1)) -> bytes:
    builder = ModelBuilder()
    x = builder.tensor("x", SHAPE, scale=scales[0], zero_point=-5)
    y = builder.tensor("y", SHAPE, scale=scales[1], zero_point=9)
    builder.operator(schema.BuiltinOperator.ABS, [x], [y])
    return builder.build([x], [y])


def package(folder: Path, points: str, code: str, name: str = "potash_abs") -> None:
    """A package as pip leaves it."""
    (folder / f"{name}.py").write_text(code)
    information = folder / f"{name}-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (information / "entry_points.txt").write_text(points)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    installed.cache_clear()
    yield tmp_path
    for name in ("potash_abs", "other_abs"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    installed.cache_clear()


def points(name: str = "ABS", value: str = "potash_abs:lower") -> str:
    return f"[{added.GROUP}]\n{name} = {value}\n"


def test_the_operator_of_the_page_runs_on_the_vta(folder: Path) -> None:
    (code,) = blocks("adding/operator.md", "python")
    (toml,) = blocks("adding/operator.md", "toml")
    assert 'ABS = "potash_abs:lower"' in toml
    assert added.GROUP in toml
    package(folder, points(), code)
    data = np.random.default_rng(0).integers(-128, 128, SHAPE, np.int8)
    with bench() as vta:
        (report,) = inspect(absolute(), vta.delegate)
        assert report.reason is None
        assert vta.infer(absolute(), [data], data.size) == reference(absolute(), [data])
        assert vta.delegate.nodes_run == 1
        assert vta.counts["Alu"] > 0
        (report,) = inspect(absolute((0.1, 0.2)), vta.delegate)
        assert report.reason == "the scales of the absolute value differ"


GOOD = "def lower(node, settings):\n    return 1 / 0\n"


def test_one_that_fails_leaves_its_nodes_to_tensorflow_lite(folder: Path) -> None:
    package(folder, points(), GOOD)
    data = np.random.default_rng(0).integers(-128, 128, SHAPE, np.int8)
    with bench() as vta:
        (report,) = inspect(absolute(), vta.delegate)
        assert report.reason == "the operator of another package failed: division by zero"
        assert vta.infer(absolute(), [data], data.size) == reference(absolute(), [data])


@pytest.mark.parametrize(
    ("given", "code", "problem"),
    [
        (points("NO_SUCH"), GOOD, "TensorFlow Lite has no operator of that name"),
        (points("CONV_2D"), GOOD, "Potash has that operator itself"),
        (points(), "lower = 7\n", "potash_abs:lower is not a function"),
        (points(), "raise SystemExit('no')\n", "no"),
        (points(value="no_such_module:ABS"), GOOD, "No module named 'no_such_module'"),
    ],
)
def test_what_is_no_operator_is_left_out(folder: Path, given: str, code: str, problem: str) -> None:
    package(folder, given, code)
    found = added.collect(metadata.entry_points(group=added.GROUP), OPERATORS)
    assert found.operators == {}
    name = given.splitlines()[1].split()[0]
    assert found.problems == (f"the operator {name} of potash_abs is left out: {problem}",)


def test_its_sources_are_in_the_names_of_cached_models(folder: Path) -> None:
    package(folder, points(), "lower = print")
    (point,) = [one for one in metadata.entry_points(group=added.GROUP) if one.name == "ABS"]
    assert added.sources(point) == [folder / "potash_abs.py"]
    before = list(partition_cache.added_sources())
    (folder / "potash_abs.py").write_text("lower = repr")
    digest_of_sources.cache_clear()
    after = list(partition_cache.added_sources())
    assert len(before) == len(after) == 2 and before != after


def test_two_of_one_name_are_both_left_out(folder: Path) -> None:
    package(folder, points(), GOOD)
    package(folder, points(value="other_abs:lower"), GOOD, "other_abs")
    found = added.collect(metadata.entry_points(group=added.GROUP), OPERATORS)
    assert found.operators == {}
    assert len(found.problems) == 2

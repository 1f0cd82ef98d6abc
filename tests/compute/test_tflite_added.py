"""Operators of other packages: the one of docs/adding/operator.md, and those that are left out."""

import importlib
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash_device.cache import digest_of_sources
from potash_firmware import extension_files, extensions
from potash_firmware.tflite import delegate, partition_cache
from potash_firmware.tflite.operators import OPERATORS, added, installed
from potash_firmware.tflite.runtime import inspect
from potash_firmware.tflite.validation import ModelError
from potash_firmware.tflite.variables.claims import Call
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


START = """
import numpy as np
from potash_firmware.tflite.lowering import Alias, Arrange, Compute, Lowering, Placement
from potash_firmware.tflite.operators import elementwise
from potash_firmware.tflite.packing import Layout

def nothing(builder, inputs, outputs):
    pass

def half(builder, inputs, outputs):
    (whole,) = outputs
    builder.runtime.store_2d(whole.buffer, sram=0, offset=whole.first, x_size=whole.width // 2)

def lower(node, settings):
    sizes = Layout.flat(node.inputs[0].shape)
    def placed(work, output=sizes):
        return Lowering.fixed([sizes], [output], work)
"""


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ("pass", "it returned None, which is neither a Lowering nor a Refusal"),
        ("return placed", "it returned <function .*, which is neither a Lowering nor a Refusal"),
        ("return Lowering(lambda given: None)", r"its place\(\) returned no Placement"),
        ("return Lowering(lambda given: 1 / 0)", "division by zero"),
        ("return placed(None)", "its work is NoneType, with other tensors than that takes"),
        ("return placed(Compute(nothing))", "its instructions do not store the whole output"),
        ("return placed(Compute(half))", "its instructions do not store the whole output"),
        ("return placed(Compute(None))", "'NoneType' object is not callable"),
        ("return placed(Compute(nothing), None)", "its layouts have other sizes than the tensors"),
        (
            "return placed(Compute(nothing), Layout.flat((1,)))",
            "its layouts have other sizes than the tensors",
        ),
        (
            "return placed(Alias(lambda one: one.grown(0, 0, 0, -1), lambda margin: margin))",
            "its surface is not the output's",
        ),
    ],
)
def test_one_that_does_not_compute_its_output_leaves_its_nodes_too(
    folder: Path, rest: str, reason: str
) -> None:
    package(folder, points(), f"{START}    {rest}\n")
    data = np.random.default_rng(0).integers(-128, 128, SHAPE, np.int8)
    with bench() as vta:
        assert vta.infer(absolute(), [data], data.size) == reference(absolute(), [data])
        ((report,),) = vta.delegate.decisions
        assert report.reason is not None
        assert re.fullmatch(f"the operator of another package failed: {reason}", report.reason)
        assert vta.delegate.nodes_run == 0


@pytest.mark.parametrize(
    "function", ["lambda values: None", "lambda values: values[:, 1:]", "half"]
)
def test_one_that_fails_as_it_runs_fails_the_run(folder: Path, function: str) -> None:
    package(folder, points(), f"{START}    return placed(Arrange({function}))\n")
    data = np.zeros(SHAPE, np.int8)
    with bench() as vta, pytest.raises(ModelError, match="the operator of another package failed"):
        vta.infer(absolute(), [data], data.size)


def test_a_partition_that_does_not_compute_an_output_is_not_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a node's work is, here that of one that has nothing to do."""
    monkeypatch.setattr(delegate, "lower", lambda *_: Call())
    with bench() as vta, pytest.raises(AssertionError, match="no node of the partition computes"):
        vta.infer(absolute(), [np.zeros(SHAPE, np.int8)], 500)


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


def test_an_operator_of_an_extension_runs_on_the_vta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    (code,) = blocks("adding/operator.md", "python")
    file = tmp_path / "mine.py"
    file.write_text(code + "\n")
    monkeypatch.setattr(extensions, "programs", extension_files.load([str(file)]))
    before = list(partition_cache.added_sources())
    assert before == ["ABS", digest_of_sources(file).hex()]
    data = np.random.default_rng(0).integers(-128, 128, SHAPE, np.int8)
    with bench() as vta:
        assert vta.infer(absolute(), [data], data.size) == reference(absolute(), [data])
        assert vta.delegate.nodes_run == 1


def test_an_operator_that_potash_has_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from potash.extend import *\n@operator('ADD')\ndef mine(*_): pass\n")
    with pytest.raises(extensions.ExtensionError, match=r"ADD \(.*mine.py, line 2\).* itself"):
        extension_files.load([str(file)])

"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR: the reference kernels' bits."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.vta.config import Config
from potash_firmware.tflite.capi import BuiltinOperator
from potash_firmware.tflite.operators.pooling import MOST_PARTS
from potash_firmware.tflite.operators.resizing import Mix, runs
from potash_firmware.tflite.runtime import inspect
from support.graph_builder import GraphBuilder
from support.tflite import Bench, bench, reference
from support.tflite_values import SMALL, spread

CONFIGS = (Config.default(), SMALL)
FLAGS = [(False, False), (False, True), (True, False)]
"""Whether corners are aligned, and whether pixels have half-pixel centres: never both."""

BILINEAR, NEAREST = BuiltinOperator.RESIZE_BILINEAR, BuiltinOperator.RESIZE_NEAREST_NEIGHBOR


def resizing(
    code: int,
    shape: Sequence[int],
    size: Sequence[int],
    flags: Sequence[bool],
    reader: bool = False,
) -> bytes:
    """A model that resizes its input, followed by a padded pooling if it has a reader."""
    graph = GraphBuilder()
    x = graph.tensor(shape, 0.05, -7)
    made = (
        schema.ResizeBilinearOptionsT()
        if code == BILINEAR
        else schema.ResizeNearestNeighborOptionsT()
    )
    made.alignCorners, made.halfPixelCenters = flags
    inputs = [x, graph.constant(np.array(size, np.int32))]
    output = graph.tensor((shape[0], *size, shape[3]), 0.05, -7)
    y = graph.operator(code, inputs, output, made, version=3)
    return graph.finish([x], [graph.pad(y, ((0, 0), (1, 2), (0, 1), (0, 0))) if reader else y])


def check(
    vta: Bench, code: int, shape: Sequence[int], size: Sequence[int], flags: Sequence[bool]
) -> None:
    model, values = resizing(code, shape, size, flags), spread(shape)
    count = shape[0] * math.prod(size) * shape[3]
    assert vta.infer(model, [values], count) == reference(model, [values])
    assert vta.reasons == [None]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("code", [BILINEAR, NEAREST])
class TestBits:
    @settings(max_examples=6, deadline=None)
    @given(
        shape=st.tuples(
            st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.sampled_from([1, 16, 20])
        ),
        factor=st.integers(1, 4),
    )
    def test_of_whole_factors(
        self, code: int, flags: Sequence[bool], config: Config, shape: Sequence[int], factor: int
    ) -> None:
        with bench(config) as vta:
            check(vta, code, shape, (shape[1] * factor, shape[2] * factor), flags)

    @settings(max_examples=6, deadline=None)
    @given(
        shape=st.tuples(st.just(1), st.integers(1, 9), st.integers(1, 9), st.sampled_from([3, 16])),
        size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    )
    def test_of_any_sizes(
        self,
        code: int,
        flags: Sequence[bool],
        config: Config,
        shape: Sequence[int],
        size: Sequence[int],
    ) -> None:
        with bench(config) as vta:
            check(vta, code, shape, size, flags)

    def test_into_the_margin_of_a_reader(
        self, code: int, flags: Sequence[bool], config: Config
    ) -> None:
        model, values = resizing(code, (2, 4, 3, 20), (8, 6), flags, True), spread((2, 4, 3, 20))
        with bench(config) as vta:
            assert vta.infer(model, [values], 2 * 11 * 7 * 20) == reference(model, [values])
            assert vta.reasons == [None, None]


def test_many_pairs_of_neighbours_are_rounded_as_in_the_reference() -> None:
    """Halves of both signs among them."""
    every = np.arange(-128, 128, dtype=np.int8)
    values = np.stack(np.meshgrid(every, every)).reshape(1, 2, 256, 256).transpose(0, 2, 1, 3)
    values = np.ascontiguousarray(values).reshape(1, 256, 2, 256)[:, ::5]
    with bench() as vta:
        for flags in FLAGS[:2]:
            model = resizing(BILINEAR, values.shape, (values.shape[1], 4), flags)
            wanted = reference(model, [values])
            assert vta.infer(model, [values], len(wanted)) == wanted
            assert vta.reasons == [None]


def test_doubling_takes_four_runs() -> None:
    inner = [Mix((0, 1), (3, 1), 2), Mix((0, 1), (1, 3), 2)]
    rows = [
        Mix((0,)),
        *(mix._replace(sources=(place, place + 1)) for place in range(5) for mix in inner),
        Mix((5,)),
    ]
    found = runs(rows)
    assert sorted((run.first, run.stride, run.length, run.step) for run in found) == [
        (0, 2, 1, 1),
        (1, 2, 5, 1),
        (2, 2, 5, 1),
        (11, 2, 1, 1),
    ]


@pytest.mark.parametrize(
    ("shape", "size", "flags", "reason"),
    [
        ((1, 20, 20, 1), (41, 41), (True, False), "the resizing has too many different weights"),
        ((1, 1, 1, 1), (1, 40000), (False, True), "the resizing has too many different weights"),
        (
            (1, 1, 1, 1),
            (1, 1500),
            (False, False),
            "the resizing's rounded scale leads beyond its input",
        ),
    ],
)
def test_what_is_left_to_the_processor(
    shape: Sequence[int], size: Sequence[int], flags: Sequence[bool], reason: str
) -> None:
    model = resizing(BILINEAR, shape, size, flags)
    with bench() as vta:
        (report,) = inspect(model, vta.delegate)
        assert report.reason == reason


@pytest.mark.parametrize("length", [2, 3, 64, 5000])
def test_runs_contain_each_place_once(length: int) -> None:
    random = np.random.default_rng(length)
    sources = np.sort(random.integers(0, length, length))
    mixes = [Mix((int(source),)) for source in sources]
    found = runs(mixes)
    if len(found) > MOST_PARTS:
        return
    places = {
        run.first + at * run.stride: run.mix.sources[0] + at * run.step
        for run in found
        for at in range(run.length)
    }
    assert sum(run.length for run in found) == length
    assert [Mix((places[place],)) for place in range(length)] == mixes

"""PAD of long rows, MIRROR_PAD, GATHER, PACK, REDUCE_MAX and REDUCE_MIN: the bytes of TensorFlow Lite's reference kernels,
on the VTA."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash_device.vta.config import Config
from potash_firmware.tflite.runtime import Model, inspect
from support.graph_builder import GraphBuilder, Tensor
from support.tflite import bench, nothing_kept, reference
from support.tflite_values import SMALL, spread

__all__ = ["nothing_kept"]

Code = schema.BuiltinOperator
Make = Callable[[GraphBuilder, Tensor], Tensor]
CONFIGS = (Config.default(), SMALL)


def run(make: Make, shape: Sequence[int], config: Config = CONFIGS[0]) -> tuple[int, list[str]]:
    """Run what `make` adds to an input, all of it on the VTA. Gives the VTA's bytes of memory, and
    the partition's steps."""
    graph = GraphBuilder()
    x = graph.tensor(shape, 0.05, -7)
    y = make(graph, x)
    model, inputs = graph.finish([x], [y]), [spread(shape)]
    with bench(config) as vta:
        assert [one.reason for one in inspect(model, vta.delegate) if one.reason] == []
        loaded = Model(model, delegate=vta.delegate, reference=True)
        expected = reference(model, inputs)
        output = memoryview(bytearray(math.prod(y.shape)))
        loaded(inputs[0].tobytes(), output)
        assert output == expected
        ((_, partition),) = vta.delegate._session.partitions.values()
        del loaded
        names = [type(step).__name__ for step in partition.steps]
        return sum(one.size for one in partition.builder.buffers), names


def convolution(graph: GraphBuilder, x: Tensor) -> Tensor:
    weights = np.random.default_rng(3).integers(-127, 128, (20, 1, 5, 1)).astype(np.int8)
    return graph.conv2d(x, graph.constant(weights, 0.004), None, 0.06, 9)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_padding_of_a_long_row_is_a_margin(config: Config) -> None:
    """A product with ones would take weights of 900 x 1100."""

    def make(graph: GraphBuilder, x: Tensor) -> Tensor:
        y = graph.reshape(graph.max_pool2d(x, 1), (1, 1, 900))
        y = graph.pad(y, ((0, 0), (0, 0), (60, 140)))
        return convolution(graph, graph.reshape(y, (1, 1, 1100, 1)))

    used, steps = run(make, (1, 1, 900, 1), config)
    assert (used < 100_000, steps) == (True, ["Stream"])


@pytest.mark.parametrize("config", CONFIGS)
def test_the_padding_of_long_rows(config: Config) -> None:
    run(lambda graph, x: graph.pad(x, ((0, 0), (1, 0), (2, 45))), (2, 3, 300), config)


def mirrored(graph: GraphBuilder, x: Tensor, pads: Sequence[Sequence[int]], mode: int) -> Tensor:
    options = schema.MirrorPadOptionsT()
    options.mode = mode
    shape = [extent + sum(each) for extent, each in zip(x.shape, pads, strict=True)]
    inputs = (x, graph.constant(np.array(pads, np.int32)))
    return graph.operator(Code.MIRROR_PAD, inputs, graph.tensor(shape, 0.05, -7), options)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("mode", [0, 1], ids=["reflect", "symmetric"])
@pytest.mark.parametrize(
    ("shape", "pads"),
    [
        ((1, 1, 300), ((0, 0), (0, 0), (128, 128))),
        ((5, 20), ((4, 1), (0, 19))),
        ((2, 4, 5, 20), ((1, 0), (3, 2), (0, 4), (2, 0))),
    ],
)
def test_mirrors(
    shape: Sequence[int], pads: Sequence[Sequence[int]], mode: int, config: Config
) -> None:
    run(lambda graph, x: mirrored(graph, x, pads, mode), shape, config)


def test_a_mirrored_row_is_read_as_it_is() -> None:
    def make(graph: GraphBuilder, x: Tensor) -> Tensor:
        y = mirrored(graph, graph.reshape(x, (1, 1, 300)), ((0, 0), (0, 0), (40, 40)), 0)
        return convolution(graph, graph.reshape(y, (1, 1, 380, 1)))

    assert run(make, (1, 1, 300, 1))[1] == ["Arrangement", "Stream"]


def gathered(graph: GraphBuilder, x: Tensor, places: Sequence[Sequence[int]], axis: int) -> Tensor:
    options = schema.GatherOptionsT()
    options.axis = axis
    which = np.array(places, np.int32)
    at = axis % len(x.shape)
    shape = (*x.shape[:at], *which.shape, *x.shape[at + 1 :])
    inputs = (x, graph.constant(which))
    return graph.operator(Code.GATHER, inputs, graph.tensor(shape, 0.05, -7), options)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gathers(axis: int, config: Config) -> None:
    run(lambda graph, x: gathered(graph, x, [[3, 0, 0], [2, 3, 1]], axis), (4, 5, 20), config)


def test_places_that_there_are_not_are_left_to_the_processor() -> None:
    for places in ([[0, 4]], [[-1, 0]]):
        graph = GraphBuilder()
        x = graph.tensor((4, 5), 0.05, -7)
        model = graph.finish([x], [gathered(graph, x, places, 0)])
        with bench() as vta:
            (report,) = inspect(model, vta.delegate)
            assert report.reason == "the gather is of places that its input does not have"


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    ("shape", "axis", "moved"),
    [((4, 5, 20), 0, 1), ((4, 5, 32), 2, 1), ((4, 5, 20), -1, 0), ((20,), 0, 1), ((20,), 1, 0)],
)
def test_packs(shape: Sequence[int], axis: int, moved: int, config: Config) -> None:
    options = schema.PackOptionsT()
    options.axis, options.valuesCount = axis, 3
    whole = list(shape)
    whole.insert(axis % (len(shape) + 1), 3)

    def make(graph: GraphBuilder, x: Tensor) -> Tensor:
        y = graph.maximum(x, x)
        return graph.operator(Code.PACK, (x, y, x), graph.tensor(whole, 0.05, -7), options)

    _, steps = run(make, shape, config)
    assert config is SMALL or steps == (["Stream"] if moved else ["Stream", "Arrangement"])


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("code", [Code.REDUCE_MAX, Code.REDUCE_MIN])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1, 17, 31), [1, 2]),
        ((1, 997), [-1]),
        ((2, 5, 7), [0, 1, 2]),
        ((3, 6, 7, 20), [1, 2]),
        ((2, 6, 7, 20), [-2]),
        ((6, 7, 20), [0]),
        ((1, 1, 5), [0]),
    ],
)
@pytest.mark.parametrize("kept", [True, False])
def test_extremes(
    shape: Sequence[int], axes: Sequence[int], code: int, kept: bool, config: Config
) -> None:
    options = schema.ReducerOptionsT()
    options.keepDims = kept
    reduced = {axis % len(shape) for axis in axes}
    left = [
        1 if at in reduced else extent
        for at, extent in enumerate(shape)
        if kept or at not in reduced
    ]

    def make(graph: GraphBuilder, x: Tensor) -> Tensor:
        inputs = (x, graph.constant(np.array(axes, np.int32)))
        return graph.operator(code, inputs, graph.tensor(left, 0.05, -7), options, version=2)

    run(make, shape, config)


def test_extremes_of_channels_are_left_to_the_processor() -> None:
    graph = GraphBuilder()
    x = graph.tensor((2, 5), 0.05, -7)
    inputs = (x, graph.constant(np.array([1], np.int32)))
    y = graph.operator(
        Code.REDUCE_MAX, inputs, graph.tensor((2,), 0.05, -7), schema.ReducerOptionsT(), version=2
    )
    with bench() as vta:
        (report,) = inspect(graph.finish([x], [y]), vta.delegate)
        assert report.reason == "the extreme is one of other axes than height and width, or all"

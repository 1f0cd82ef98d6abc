"""Operators that only move int8 values: the reference's bytes, and no more work than it takes."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.isa import Load, Store
from potash_firmware.tflite.capi import BuiltinOperator, Node, Options, TensorType
from potash_firmware.tflite.capi import Tensor as Operand
from potash_firmware.tflite.lowering import Refusal, Settings
from potash_firmware.tflite.operators import lower
from potash_firmware.tflite.runtime import inspect
from potash_firmware.vta_runtime.schedules import MovedAxis, common_axes
from potash_firmware.vta_runtime.schedules.transfers import Axis
from support.graph_builder import GraphBuilder, Padding, Tensor
from support.tflite import bench, reference
from support.tflite_moves import CONFIGS, Make, run
from support.tflite_values import SMALL, spread

CHANNELS = [1, 3, 8, 16, 20, 32, 48]

BYTES = (MemoryId.ACC_8BIT, MemoryId.OUT)


def convolution(graph: GraphBuilder, x: Tensor, channels: int = 16, size: int = 3) -> Tensor:
    random = np.random.default_rng(3)
    weights = random.integers(-127, 128, (channels, size, size, x.shape[3])).astype(np.int8)
    return graph.conv2d(x, graph.constant(weights, 0.004), None, 0.06, 9)


shapes = st.tuples(
    st.integers(1, 3), st.integers(1, 7), st.integers(1, 7), st.sampled_from(CHANNELS)
)


class TestPadding:
    @settings(max_examples=20, deadline=None)
    @given(
        shapes,
        st.lists(st.integers(0, 4), min_size=4, max_size=4),
        st.integers(-128, 127),
        st.sampled_from(CONFIGS),
    )
    def test_at_a_models_borders_takes_no_instruction(
        self, shape: Sequence[int], pads: list[int], zero_point: int, config: Config
    ) -> None:
        top, bottom, left, right = pads
        around = ((0, 0), (top, bottom), (left, right), (0, 0))
        vta, steps = run(lambda graph, x: graph.pad(x, around), shape, config, zero_point)
        assert steps == [] and vta.executed == []

    def test_before_a_convolution_is_its_margin(self) -> None:
        def make(graph: GraphBuilder, x: Tensor) -> Tensor:
            padded = graph.pad(x, ((0, 0), (1, 2), (3, 0), (0, 0)))
            return convolution(graph, graph.pad(padded, ((0, 0), (0, 1), (0, 1), (0, 0))))

        _, steps = run(make, (2, 6, 5, 20))
        assert steps == ["Stream"]

    def test_behind_a_convolution_and_before_several_readers(self) -> None:
        def make(graph: GraphBuilder, x: Tensor) -> Tensor:
            y = convolution(graph, x)
            padded = graph.pad(y, ((0, 0), (1, 1), (1, 1), (0, 0)))
            first = graph.max_pool2d(padded, 3, stride=1, padding=Padding.VALID)
            return graph.concatenation(
                [first, y, graph.max_pool2d(y, 3, stride=1, padding=Padding.SAME)]
            )

        _, steps = run(make, (1, 6, 5, 3))
        assert steps == ["Stream"]

    @pytest.mark.parametrize(
        ("shape", "pads"),
        [((1, 2, 2, 3), ((1, 0), (0, 0), (0, 0), (0, 0))), ((2, 3), ((1, 0), (0, 0)))],
    )
    def test_of_images_is_left_to_the_processor(
        self, shape: Sequence[int], pads: Sequence[tuple[int, int]]
    ) -> None:
        graph = GraphBuilder()
        x = graph.tensor(shape, 0.05)
        model = graph.finish([x], [graph.pad(x, pads)])
        with bench() as vta:
            (report,) = inspect(model, vta.delegate)
            sentence = "the padding is one of other axes than height, width and channels"
            assert report.reason == sentence

    @pytest.mark.parametrize("config", CONFIGS)
    @pytest.mark.parametrize(
        ("shape", "pads"),
        [
            ((1, 4, 5, 3), ((0, 0), (0, 0), (0, 0), (0, 2))),
            ((2, 4, 5, 24), ((0, 0), (1, 0), (0, 2), (0, 24))),
            ((1, 3, 3, 32), ((0, 0), (1, 1), (1, 1), (5, 0))),
            ((3, 4, 20), ((1, 0), (0, 0), (17, 40))),
            ((3,), ((0, 1),)),
        ],
    )
    def test_of_channels(
        self, shape: Sequence[int], pads: Sequence[tuple[int, int]], config: Config
    ) -> None:
        def make(graph: GraphBuilder, x: Tensor) -> Tensor:
            y = graph.pad(x, pads)
            # Behind it a margin and another operator.
            return graph.max_pool2d(y, 3, stride=1) if len(shape) == 4 else y

        _, steps = run(make, shape, config)
        assert steps == ["Stream"]

    def test_of_an_image_without_images(self) -> None:
        run(lambda graph, x: graph.pad(x, ((1, 2), (0, 3), (0, 0))), (3, 4, 20))


class TestReshaping:
    @settings(max_examples=30, deadline=None)
    @given(shapes, st.data(), st.sampled_from(CONFIGS))
    def test_alone_takes_no_instruction(
        self, shape: Sequence[int], data: st.DataObject, config: Config
    ) -> None:
        factors = list(data.draw(st.permutations(shape)))
        cut = data.draw(st.integers(0, 3))
        wanted = [math.prod(factors[: cut + 1]), *factors[cut + 1 :]]
        vta, steps = run(lambda graph, x: graph.reshape(x, wanted), shape, config)
        assert steps == [] and vta.executed == []

    @settings(max_examples=30, deadline=None)
    @given(shapes, st.data(), st.sampled_from(CONFIGS))
    def test_between_images_of_any_sizes(
        self, shape: Sequence[int], data: st.DataObject, config: Config
    ) -> None:
        wanted = data.draw(st.permutations(shape))

        def make(graph: GraphBuilder, x: Tensor) -> Tensor:
            y = graph.max_pool2d(x, 1)
            return graph.max_pool2d(graph.reshape(y, wanted), 2, stride=1, padding=Padding.SAME)

        run(make, shape, config)

    @pytest.mark.parametrize(
        ("shape", "wanted", "steps"),
        [
            ((1, 7, 6, 32), (1, 1, 1, 1344), ["Stream"]),
            ((1, 7, 6, 32), (1, 6, 7, 32), ["Stream"]),
            ((1, 7, 6, 32), (2, 7, 3, 32), ["Stream"]),
            ((1, 7, 6, 20), (1, 42, 1, 20), ["Stream"]),
            ((1, 7, 6, 20), (1, 1, 1, 840), ["Stream", "Arrangement", "Stream"]),
            ((1, 4, 4, 48), (1, 4, 6, 32), ["Stream", "Arrangement", "Stream"]),
        ],
    )
    def test_whole_elements_are_moved_by_the_vta(
        self, shape: Sequence[int], wanted: Sequence[int], steps: list[str]
    ) -> None:
        def make(graph: GraphBuilder, x: Tensor) -> Tensor:
            return graph.max_pool2d(graph.reshape(graph.max_pool2d(x, 1), wanted), 1)

        assert run(make, shape)[1] == steps

    @pytest.mark.parametrize("wanted", [(2, 6, 2, 8), (8, 3, 1, 8), (1, 8, 3, 8), (4, 2, 3, 8)])
    def test_images_that_share_elements_are_told_apart(self, wanted: Sequence[int]) -> None:
        def make(graph: GraphBuilder, x: Tensor) -> Tensor:
            return graph.max_pool2d(graph.reshape(graph.max_pool2d(x, 1), wanted), 1)

        steps = run(make, (4, 3, 2, 8), SMALL)[1]
        kept = ["Stream"] if wanted[0] == 4 else ["Stream", "Arrangement", "Stream"]
        assert steps == kept


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=0, max_size=4),
    st.sampled_from(CHANNELS),
    st.data(),
    st.sampled_from(CONFIGS),
)
def test_any_transposition(
    extents: list[int], channels: int, data: st.DataObject, config: Config
) -> None:
    shape = (*extents, channels)
    order = data.draw(st.permutations(range(len(shape))))
    run(lambda graph, x: graph.transpose(x, order), shape, config)


@pytest.mark.parametrize(
    ("shape", "order", "steps"),
    [
        ((1, 5, 7, 20), (0, 2, 1, 3), ["Stream"]),
        ((3, 5, 7, 20), (1, 2, 0, 3), ["Stream"]),
        ((1, 90, 100, 16), (0, 2, 1, 3), ["Stream"]),
        ((1, 5, 1, 20), (2, 1, 0, 3), []),
        ((1, 28, 28, 1), (0, 3, 1, 2), []),
        ((1, 5, 7, 20), (0, 3, 1, 2), ["Arrangement"]),
        ((5, 7), (1, 0), ["Arrangement"]),
    ],
)
def test_transpositions_take_what_they_must(
    shape: Sequence[int], order: Sequence[int], steps: list[str]
) -> None:
    assert run(lambda graph, x: graph.transpose(x, order), shape)[1] == steps


class TestConcatenation:
    @settings(max_examples=40, deadline=None)
    @given(
        st.lists(st.integers(1, 5), min_size=0, max_size=4),
        st.sampled_from(CHANNELS),
        st.data(),
        st.sampled_from(CONFIGS),
    )
    def test_along_any_axis(
        self, extents: list[int], channels: int, data: st.DataObject, config: Config
    ) -> None:
        shape = [*extents, channels]
        axis = data.draw(st.integers(-len(shape), len(shape) - 1))
        sizes = data.draw(st.lists(st.sampled_from(CHANNELS), min_size=1, max_size=3))

        def make(graph: GraphBuilder, x: Tensor) -> Tensor:
            others = []
            for number, size in enumerate(sizes):
                its = list(shape)
                its[axis] = size
                others.append(graph.constant(spread(its, number), x.scale, x.zero_point))
            return graph.concatenation([x, *others, x], axis)

        run(make, shape, config)

    @pytest.mark.parametrize(
        ("channels", "axis", "steps"),
        [
            ((16, 32, 5), 3, ["Stream"]),
            ((20, 16), 3, ["Stream", "Arrangement"]),
            ((20, 20), 2, ["Stream"]),
            ((20, 20), 1, ["Stream"]),
            ((20, 20), 0, ["Stream"]),
        ],
    )
    def test_whole_elements_are_moved_by_the_vta(
        self, channels: Sequence[int], axis: int, steps: list[str]
    ) -> None:
        def make(graph: GraphBuilder, x: Tensor) -> Tensor:
            return graph.concatenation([convolution(graph, x, count) for count in channels], axis)

        assert run(make, (1, 5, 6, 3))[1] == steps

    @pytest.mark.parametrize(
        ("scale", "axis", "activation", "reason"),
        [
            (0.06, 1, 0, "tensors 'b' and 'out' differ in scale or zero point"),
            (0.05, 1, 1, "the concatenation has a fused activation"),
            (0.05, 2, 0, "the concatenation is along no axis of its output"),
            (0.05, 0, 0, "the shapes of the concatenation do not fit together"),
        ],
    )
    def test_that_a_runtime_may_let_through_is_left_to_the_processor(
        self, scale: float, axis: int, activation: int, reason: str
    ) -> None:
        # LiteRT refuses such models before a delegate sees them.
        def tensor(name: str, shape: tuple[int, ...], scale: float = 0.05) -> Operand:
            return Operand(
                index=0, name=name, type=TensorType.INT8, shape=shape, allocation=2, variable=False,
                scale=scale, zero_point=3, scales=(scale,), zero_points=(3,), axis=0, constant=None,
            )  # fmt: skip

        node = Node(
            index=0,
            operator=BuiltinOperator.CONCATENATION,
            version=2,
            inputs=(tensor("a", (2, 3)), tensor("b", (2, 4), scale)),
            outputs=(tensor("out", (2, 7)),),
            options=Options(activation, axis=axis),
        )
        found = lower(node, Settings(Config.default()))
        assert isinstance(found, Refusal)
        assert str(found) == reason


@pytest.mark.parametrize(
    "make",
    [
        lambda graph, x: graph.reshape(x, (1, 96)),
        lambda graph, x: graph.transpose(x, (0, 2, 1, 3)),
        lambda graph, x: graph.transpose(x, (0, 3, 1, 2)),
        lambda graph, x: graph.pad(x, ((0, 0), (1, 0), (0, 2), (0, 0))),
        lambda graph, x: graph.concatenation([x, x], 3),
        lambda graph, x: graph.max_pool2d(x, 2),
        lambda graph, x: graph.average_pool2d(x, 2),
        lambda graph, x: graph.mean(x, (1, 2), 0.04, 3),
    ],
)
def test_constants_are_inputs_as_others_are(make: Make) -> None:
    graph = GraphBuilder()
    x = graph.tensor((1, 3), 0.05, 4)
    constant = graph.constant(spread((1, 4, 3, 8)), 0.05, -3)
    y = make(graph, constant)
    model, inputs = graph.finish([x], [y]), [spread((1, 3))]
    with bench() as vta:
        assert vta.infer(model, inputs, math.prod(y.shape)) == reference(model, inputs)


def test_a_network_is_one_stream() -> None:
    def make(graph: GraphBuilder, x: Tensor) -> Tensor:
        y = convolution(graph, graph.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), 32)
        y = graph.max_pool2d(y, 2)
        y = graph.reshape(y, (1, -1))
        random = np.random.default_rng(4)
        weights = random.integers(-127, 128, (10, y.shape[1])).astype(np.int8)
        return graph.fully_connected(y, graph.constant(weights, 0.002), None, 0.3, 2)

    vta, steps = run(make, (1, 8, 8, 3))
    assert steps == ["Stream"]
    assert vta.counts["Gemm"] > 0 and vta.counts["Finish"] == 1


def test_a_move_of_a_plain_image_is_one_load_and_one_store() -> None:
    vta, _ = run(lambda graph, x: graph.concatenation([x], 3), (1, 5, 6, 16))
    moves = [
        one
        for one in vta.executed
        if isinstance(one, Load | Store) and one.memory_type in BYTES and one.x_size
    ]
    assert [(type(one), one.x_size, one.y_size) for one in moves] == [(Load, 30, 1), (Store, 30, 1)]


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
)
def test_two_ways_to_count_are_joined_or_they_are_not(one: list[int], other: list[int]) -> None:
    """Both lists of extents count the same places where their products agree; gaps between planes
    keep axes apart."""
    total = math.prod(one)
    if total != math.prod(other):
        other = [total]
    before, after = (
        np.ravel(
            np.arange(math.prod(e + 1 for e in extents)).reshape([e + 1 for e in extents])[
                tuple(slice(0, e) for e in extents)
            ]
        )
        for extents in (one, other)
    )

    def axes(extents: list[int]) -> list[Axis]:
        return [
            Axis(extent, math.prod(e + 1 for e in extents[number + 1 :]))
            for number, extent in enumerate(extents)
        ]

    moved = common_axes(axes(one), axes(other))
    if moved is None:
        return
    places = [(0, 0)]
    for extent, source, target in moved:
        places = [
            (begin + count * source, end + count * target)
            for begin, end in places
            for count in range(extent)
        ]
    assert places == list(zip(before.tolist(), after.tolist(), strict=True))


def test_axes_that_do_not_meet_are_not_joined() -> None:
    assert common_axes([Axis(4, 10), Axis(6, 1)], [Axis(6, 10), Axis(4, 1)]) is None
    assert common_axes([Axis(4, 6), Axis(6, 1)], [Axis(6, 4), Axis(4, 1)]) == [MovedAxis(24, 1, 1)]

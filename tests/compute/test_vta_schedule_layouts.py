"""Nests of loops, spans, rectangles and layouts, of which schedules are made."""

import itertools
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from potash_device.vta.isa import MicroOp
from potash_firmware.vta_runtime import Loop
from potash_firmware.vta_runtime.schedules import layouts, transfers
from potash_firmware.vta_runtime.schedules.nests import nests
from support.vta import TINY, unpack_nchw

Array = NDArray[Any]


@given(
    st.lists(
        st.builds(Loop, st.integers(1, 5), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
        max_size=5,
    ),
    st.integers(1, 20),
)
def test_a_nest_visits_every_step_once(loops: list[Loop], room: int) -> None:
    found: list[tuple[int, ...]] = []
    for nest in nests(MicroOp(7, 8, 9), tuple(loops), room):
        assert len(nest.micro_ops) <= room
        assert len(nest.loops) <= 2
        for turns in itertools.product(*(range(loop.extent) for loop in nest.loops)):
            for step in nest.micro_ops:
                found.append(_moved(step, turns, nest.loops))
    ranges = (range(loop.extent) for loop in loops)
    expected = [_moved(MicroOp(7, 8, 9), turns, loops) for turns in itertools.product(*ranges)]
    assert sorted(found) == sorted(expected)


def _moved(step: MicroOp, turns: Any, loops: Any) -> tuple[int, ...]:
    dst, src, wgt = step
    for turn, loop in zip(turns, loops, strict=True):
        dst, src, wgt = dst + turn * loop.dst, src + turn * loop.src, wgt + turn * loop.wgt
    return dst, src, wgt


@given(st.integers(-30, 30), st.integers(1, 4), st.integers(1, 20), st.integers(1, 20))
def test_a_span_says_which_places_lie_in_the_image(
    first: int, step: int, count: int, limit: int
) -> None:
    places = [first + number * step for number in range(count)]
    inside = [place for place in places if 0 <= place < limit]
    found = transfers.span(first, step, count, limit)
    assert found.total == count
    assert found.inside == len(inside)
    assert found.before == sum(place < 0 for place in places)
    if inside:
        assert found.start == inside[0]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=4))
def test_rectangles_are_the_piece(sizes: list[tuple[int, int]]) -> None:
    axes: list[transfers.Axis] = []
    stride = 1
    for extent, gap in reversed(sizes):
        axes.insert(0, transfers.Axis(extent, stride))
        stride *= extent + gap - 1
    expected = [
        sum(turn * axis.stride for turn, axis in zip(turns, axes, strict=True))
        for turns in itertools.product(*(range(axis.extent) for axis in axes))
    ]
    found: dict[int, int] = {}
    for one in transfers.rectangles(axes):
        for row, column in itertools.product(range(one.y_size), range(one.x_size)):
            found[one.sram + row * one.x_size + column] = one.dram + row * one.x_stride + column
    assert [found[place] for place in range(len(expected))] == expected


def test_images_are_packed_in_blocks() -> None:
    images = np.arange(2 * 5 * 1 * 2, dtype=np.int8).reshape(2, 5, 1, 2)
    packed = layouts.pack_nchw(images, TINY)  # two images and four channels an element
    assert packed.shape == (1, 2, 1, 2, 2, 4)
    # At the second pixel: channel 4 of both images, and what fills the block up.
    assert packed[0, 1, 0, 1].tolist() == [[9, 0, 0, 0], [19, 0, 0, 0]]
    np.testing.assert_array_equal(unpack_nchw(packed, 2, 5), images)


def test_weights_are_packed_in_blocks() -> None:
    weights = np.arange(9 * 5 * 1 * 2, dtype=np.int8).reshape(9, 5, 1, 2)
    packed = layouts.pack_oihw(weights, TINY)  # eight by four
    assert packed.shape == (2, 2, 1, 2, 8, 4)
    assert packed[1, 1, 0, 1, 0].tolist() == [89, 0, 0, 0]
    assert packed[0, 0, 0, 0, 1].tolist() == [10, 12, 14, 16]
    np.testing.assert_array_equal(layouts.pack_ohwi(weights.transpose(0, 2, 3, 1), TINY), packed)

"""Windows that move over pictures: how many places they have, and what padding stands around."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

from ai_edge_litert import schema_py_generated as schema

Pair: TypeAlias = int | tuple[int, int]
"""For height and for width; one number is for both."""


class Padding(IntEnum):
    """`Padding` of the schema."""

    SAME = schema.Padding.SAME
    VALID = schema.Padding.VALID


def pair(value: Pair) -> tuple[int, int]:
    """Both, where one stands for both."""
    return (value, value) if isinstance(value, int) else value


def extents(
    spatial: Sequence[int], size: Sequence[int], stride: Pair, dilation: Pair, padding: Padding
) -> tuple[int, int]:
    """Height and width of what a window gives: `ComputeOutSize` (`tflite/kernels/padding.h`)."""
    height, width = (
        -(-extent // step)
        if padding is Padding.SAME
        else (extent - (window - 1) * apart - 1 + step) // step
        for extent, window, step, apart in zip(
            spatial, size, pair(stride), pair(dilation), strict=True
        )
    )
    return height, width


def same_padding(extent: int, window: int, stride: int) -> tuple[int, int]:
    """What SAME puts before and behind: the odd one behind."""
    total = max((-(-extent // stride) - 1) * stride + window - extent, 0)
    return total // 2, total - total // 2

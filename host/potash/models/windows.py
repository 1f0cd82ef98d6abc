"""Windows on images, with one number or two for height and width."""

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.windows import count

Pair: TypeAlias = int | tuple[int, int]
"""For height and for width; one number is for both."""


class Padding(IntEnum):
    """`Padding` of the schema."""

    SAME = schema.Padding.SAME
    VALID = schema.Padding.VALID


def pair(value: Pair) -> tuple[int, int]:
    """Both numbers, where one may be given for both."""
    return (value, value) if isinstance(value, int) else value


def extents(
    spatial: Sequence[int], size: Sequence[int], stride: Pair, dilation: Pair, padding: Padding
) -> tuple[int, int]:
    """Height and width of a window operator's output."""
    axes = zip(spatial, size, pair(stride), pair(dilation), strict=True)
    height, width = (count(*axis, same=padding is Padding.SAME) for axis in axes)
    return height, width

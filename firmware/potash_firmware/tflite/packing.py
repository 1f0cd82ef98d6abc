"""Layouts of tensors in the accelerator's memory.

A tensor of any rank is seen as images [N][H][W][C] of the same values in the same order. Packed, an
element holds a pixel's values of a block of channels (`vta_runtime.schedules.layouts`); around each
plane there may be a margin that holds the tensor's zero point, which is what SAME padding pads
with: the accelerator itself pads with 0.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from potash_device.vta.config import Config, MemoryId
from potash_firmware.tflite.capi import Array, Tensor
from potash_firmware.vta_runtime import Buffer
from potash_firmware.vta_runtime.schedules import MovedAxis, Surface, common_axes, layouts
from potash_firmware.vta_runtime.schedules.shapes import blocks
from potash_firmware.vta_runtime.schedules.transfers import Axis


class Margin(NamedTuple):
    """Rows and columns around each plane."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0

    def joined(self, other: "Margin") -> "Margin":
        """The larger of both on each side."""
        return Margin(*map(max, self, other))

    def plus(self, other: "Margin") -> "Margin":
        """One around the other."""
        return Margin(*(mine + its for mine, its in zip(self, other, strict=True)))


NO_MARGIN = Margin()


class Sizes(NamedTuple):
    """A tensor as images."""

    images: int
    height: int
    width: int
    channels: int


@dataclass(frozen=True)
class Layout:
    """A tensor as images of these sizes with that margin; broadcast first where `spread` is a
    larger shape."""

    sizes: Sizes
    margin: Margin = NO_MARGIN
    spread: tuple[int, ...] | None = None

    @classmethod
    def image(cls, shape: Sequence[int], margin: Margin = NO_MARGIN) -> "Layout":
        """The last axis as channels, the two before it as height and width, the rest as images.
        What has two axes is a pixel in each image."""
        match tuple(shape):
            case (*_, _, _, _):
                *images, height, width, channels = shape
                return cls(Sizes(math.prod(images), height, width, channels), margin)
            case (images, channels):
                return cls(Sizes(images, 1, 1, channels), margin)
            case _:
                return cls(Sizes(1, 1, 1, math.prod(shape)), margin)

    @classmethod
    def flat(cls, shape: Sequence[int]) -> "Layout":
        """All values as the channels of one pixel: no element but the last has an empty place."""
        return cls(Sizes(1, 1, 1, math.prod(shape)))

    def with_margin(self, margin: Margin) -> "Layout":
        """The layout with another margin."""
        return replace(self, margin=margin)

    def elements(self, config: Config, memory: MemoryId = MemoryId.OUT) -> int:
        """Elements of that kind that it takes, with its margin."""
        images, height, width, channels = self.sizes
        top, bottom, left, right = self.margin
        block = config.element_shape(memory)[1]
        groups, deep = blocks(images, config.batch), blocks(channels, block)
        return groups * deep * (height + top + bottom) * (width + left + right)

    def bytes(self, config: Config, memory: MemoryId = MemoryId.OUT) -> int:
        """Bytes that it takes, with its margin."""
        return self.elements(config, memory) * config.element_bytes(memory)

    def surface(self, buffer: Buffer, config: Config, memory: MemoryId = MemoryId.OUT) -> Surface:
        """The surface of the tensor, inside its margin, in a buffer of that many bytes."""
        images, height, width, channels = self.sizes
        top, bottom, left, right = self.margin
        whole = Surface.dense(
            buffer,
            blocks(images, config.batch),
            blocks(channels, config.element_shape(memory)[1]),
            height + top + bottom,
            width + left + right,
            memory,
        )
        return whole.grown(-top, -bottom, -left, -right)


def fit(layouts: Sequence[Layout | None], tensors: Sequence[Tensor | None]) -> bool:
    """True if there is a layout, or None, for each tensor, and each has its tensor's size."""

    def fits(layout: Layout, tensor: Tensor | None) -> bool:
        shape = layout.spread or (tensor.shape if tensor else ())
        return tensor is not None and math.prod(layout.sizes) == math.prod(shape)

    return len(layouts) == len(tensors) and all(
        layout is None or fits(layout, tensor)
        for layout, tensor in zip(layouts, tensors, strict=True)
    )


def around(surface: Surface, margin: Margin) -> tuple[Surface, ...]:
    """The margin of a surface: the rows above and below it, and the columns at both sides."""
    top, bottom, left, right = margin
    whole, (height, width) = surface.grown(*margin), (surface.height, surface.width)
    return (
        whole.grown(0, -bottom - height, 0, 0),
        whole.grown(-top - height, 0, 0, 0),
        surface.grown(0, 0, left, -width),
        surface.grown(0, 0, -width, right),
    )


def pack(values: Array, sizes: Sizes, surface: Surface, config: Config) -> None:
    """Put a tensor's values into its surface."""
    for place, image in pairs(values.reshape(sizes), sizes, surface, config):
        place[...] = image


def unpack(surface: Surface, sizes: Sizes, config: Config, out: Array | None = None) -> Array:
    """A tensor's values from its surface, as images; into `out`, of as many values, when given."""
    result = np.empty(sizes, np.int8) if out is None else out.reshape(sizes)
    for place, image in pairs(result, sizes, surface, config):
        image[...] = place
    return result


def pairs(
    values: Array, sizes: Sizes, surface: Surface, config: Config
) -> Iterator[tuple[Array, Array]]:
    """Views of the surface, and of the images' values there: whole blocks of channels, and the
    rest of them."""
    images, height, width, channels = sizes
    block = config.element_shape(surface.memory)[1]
    full = channels - channels % block
    for group, first in zip(surface.values(config), range(0, images, config.batch), strict=True):
        image = values[first : first + config.batch]
        # [block][H][W][batch][lane], seen as [batch][H][W][block][lane].
        place = group.transpose(3, 1, 2, 0, 4)[: len(image)]
        if full:
            whole = image[..., :full].reshape(len(image), height, width, -1, block)
            place_of_whole = place[..., : full // block, :]
            if place.dtype == image.dtype and image.strides[-1] == image.itemsize:
                # numpy copies elements ten times as fast as it copies short rows of their values.
                element = np.dtype((np.void, block * image.itemsize))
                whole, place_of_whole = whole.view(element), place_of_whole.view(element)
            yield place_of_whole, whole
        if full < channels:
            yield place[..., full // block, : channels - full], image[..., full:]


def moved(
    source: Surface, sizes: Sizes, target: Surface, its_sizes: Sizes, config: Config
) -> list[MovedAxis] | None:
    """Moves of a tensor's elements from one layout to another. None if values change places within
    elements, as only whole elements are moved, or if the elements differ."""
    loaded = layouts.alu_memory(config)
    if not layouts.alike(source.memory, loaded, config) or target.memory != MemoryId.OUT:
        return None
    whole = not (sizes.channels % config.block_out or its_sizes.channels % config.block_out)
    if sizes.channels != its_sizes.channels and not whole:
        return None
    if config.batch > 1 and sizes.images != its_sizes.images:
        return None
    one, other = _sections(source), _sections(target)
    together = [[0], [1], [2]]
    if config.batch == 1:
        together = [[0, 1], [2]]
    if sizes.channels != its_sizes.channels:
        *before, pixels, channels = together
        together = [*before, pixels + channels]
    axes = []
    for numbers in together:
        its = common_axes(
            [axis for number in numbers for axis in one[number]],
            [axis for number in numbers for axis in other[number]],
        )
        if its is None:
            return None
        axes += its
    return axes


def _sections(surface: Surface) -> tuple[list[Axis], list[Axis], list[Axis]]:
    """The axes of images, of pixels, and of blocks of channels."""
    deep, down, across = surface.axes(surface.blocks, surface.height, surface.width)
    return [Axis(surface.groups, surface.group)], [down, across], [deep]

"""Packed images in DRAM, and the strides of their elements.

A dense surface is what `layouts` packs. A surface may also be the inside of a larger one: its
margin is then the padding of an operator that reads the larger one, and nothing has to be copied.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from potash_device.vta.config import Config, MemoryId
from potash_firmware.vta_runtime.buffers import Buffer
from potash_firmware.vta_runtime.schedules import layouts
from potash_firmware.vta_runtime.schedules.layouts import Array
from potash_firmware.vta_runtime.schedules.shapes import ScheduleError
from potash_firmware.vta_runtime.schedules.transfers import Axis


class Extent(NamedTuple):
    """The sizes of a surface or of a piece of one, or where in one that begins, in elements."""

    groups: int
    blocks: int
    height: int
    width: int

    @property
    def elements(self) -> int:
        return math.prod(self)


@dataclass(frozen=True)
class Surface:
    """`groups` of images, each of `blocks` planes of `height` x `width` elements of INP or OUT.

    `first` is the element of `buffer` at which the first plane begins; `group`, `plane` and `row`
    are the strides of groups, planes and rows, in elements.
    """

    buffer: Buffer
    groups: int
    blocks: int
    height: int
    width: int
    row: int
    plane: int
    group: int
    first: int = 0
    memory: MemoryId = MemoryId.OUT
    """Memory type of the surface's elements."""

    @classmethod
    def dense(
        cls,
        buffer: Buffer,
        groups: int,
        blocks: int,
        height: int,
        width: int,
        memory: MemoryId = MemoryId.OUT,
    ) -> "Surface":
        """One that fills the beginning of `buffer`."""
        plane = height * width
        size = blocks * plane
        return cls(buffer, groups, blocks, height, width, width, plane, size, memory=memory)

    @classmethod
    def of(cls, given: "Buffer | Surface", extent: Extent) -> "Surface":
        """A buffer as a dense surface, or a surface, which has to be of that extent.

        Raises ScheduleError.
        """
        if not isinstance(given, Surface):
            return cls.dense(given, *extent)
        if given.extent != extent:
            raise ScheduleError(f"the operation has a surface of {extent}, not {given}")
        return given

    @property
    def extent(self) -> Extent:
        return Extent(self.groups, self.blocks, self.height, self.width)

    @property
    def is_dense(self) -> bool:
        """True if each group's elements are contiguous."""
        return self.row == self.width and self.plane == self.height * self.width

    @property
    def is_contiguous(self) -> bool:
        """True if all elements are contiguous."""
        return self.is_dense and (self.groups == 1 or self.group == self.blocks * self.plane)

    def place(self, group: int, block: int, row: int, column: int) -> int:
        """The number of that element in the buffer."""
        return self.first + group * self.group + block * self.plane + row * self.row + column

    def axes(self, blocks: int, rows: int, columns: int) -> tuple[Axis, Axis, Axis]:
        """A piece of that size, for `transfers`."""
        return Axis(blocks, self.plane), Axis(rows, self.row), Axis(columns, 1)

    def piece(self, at: Extent, size: Extent) -> tuple[int, tuple[Axis, Axis, Axis]]:
        """The first element and the axes of a piece of one group."""
        return self.place(*at), self.axes(size.blocks, size.height, size.width)

    def grown(self, top: int, bottom: int, left: int, right: int) -> "Surface":
        """This with a margin around it; negative numbers remove one."""
        return replace(
            self,
            height=self.height + top + bottom,
            width=self.width + left + right,
            first=self.first - top * self.row - left,
        )

    def flattened(self) -> "Surface":
        """The surface with all pixels in one row. Raises ScheduleError if it is not dense."""
        if not self.is_dense:
            raise ScheduleError("the rows of a surface with a margin are no single row")
        return replace(self, height=1, width=self.plane, row=self.plane)

    def as_row(self) -> "Surface":
        """All elements in one row. Raises ScheduleError where they are not contiguous."""
        if not self.is_contiguous:
            raise ScheduleError("the planes of a surface with a margin are no single row")
        width = self.groups * self.blocks * self.plane
        row = 1, 1, 1, width, width, width, width
        return Surface(self.buffer, *row, self.first, self.memory)

    def values(self, config: Config) -> Array:
        """The values themselves, [groups][blocks][height][width][BATCH][BLOCK]: a view to write
        into. Raises ScheduleError where they exceed the buffer."""
        kind, shape = layouts.value_type(config, self.memory), config.element_shape(self.memory)
        lanes = config.element_bytes(self.memory) // kind.itemsize
        last = self.place(*(size - 1 for size in self.extent))
        whole = np.frombuffer(self.buffer.view, kind)
        if self.first < 0 or (last + 1) * lanes > whole.size:
            raise ScheduleError("the surface exceeds its buffer")
        strides = (self.group, self.plane, self.row, 1)
        return as_strided(
            whole[self.first * lanes :],
            (*self.extent, *shape),
            (
                *(stride * lanes * kind.itemsize for stride in strides),
                shape[1] * kind.itemsize,
                kind.itemsize,
            ),
        )

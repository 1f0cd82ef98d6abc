"""LOAD and STORE: rectangles between DRAM and the buffers, which keep what their path likes."""

from typing import Any

import numpy as np

from potash_device.vta.fast import layout
from potash_device.vta.fast.compiling import Number, compiled, implements
from potash_device.vta.fast.paths import BIAS, BLOCK, DIAGONAL, FIRST, Loops, Vnni256, Vnni512
from potash_device.vta.fast.tiles import pack

BLOCK_BYTES = BLOCK * BLOCK


@compiled
def load(row: Any, geometry: layout.Geometry, dram: Any, uop: Any, buffers: Any, acc: Any) -> None:
    """Execute a LOAD that fits."""
    memory = row[layout.MEMORY_TYPE]
    width = row[layout.X_PAD_0] + row[layout.X_SIZE] + row[layout.X_PAD_1]
    at = row[layout.SRAM_BASE]
    clear(memory, at, row[layout.Y_PAD_0] * width, geometry, uop, buffers, acc)
    at += row[layout.Y_PAD_0] * width
    size = geometry.sizes[memory]
    source = row[layout.DRAM_BASE] * size - geometry.base
    lines, length = row[layout.Y_SIZE], row[layout.X_SIZE]
    if width == length == row[layout.X_STRIDE]:
        lines, length, width = min(lines, 1), lines * length, lines * length
    for _ in range(lines):
        clear(memory, at, row[layout.X_PAD_0], geometry, uop, buffers, acc)
        inner = at + row[layout.X_PAD_0]
        data = dram[source : source + length * size]
        fill(memory, inner, length, data, geometry, uop, buffers, acc)
        clear(memory, inner + length, row[layout.X_PAD_1], geometry, uop, buffers, acc)
        at += width
        source += row[layout.X_STRIDE] * size
    width = row[layout.X_PAD_0] + row[layout.X_SIZE] + row[layout.X_PAD_1]
    clear(memory, at, row[layout.Y_PAD_1] * width, geometry, uop, buffers, acc)


@compiled
def clear(
    memory: Number,
    at: Number,
    count: Number,
    geometry: layout.Geometry,
    uop: Any,
    buffers: Any,
    acc: Any,
) -> None:
    """Zero `count` elements from element `at` on."""
    if count == 0:
        return
    if memory == layout.UOP:
        uop[at : at + count] = 0
    elif memory == layout.INP:
        clear_inp(buffers, at, count)
    elif memory == layout.WGT:
        clear_wgt(buffers, at, count)
    else:
        acc[at * geometry.lanes : (at + count) * geometry.lanes] = 0


@compiled
def fill(
    memory: Number,
    at: Number,
    count: Number,
    data: Any,
    geometry: layout.Geometry,
    uop: Any,
    buffers: Any,
    acc: Any,
) -> None:
    """Copy `count` elements from `data` to element `at` and those after it."""
    if memory == layout.UOP:
        copy(uop[at : at + count].view(np.uint8), data)
    elif memory == layout.INP:
        fill_inp(buffers, at, count, data)
    elif memory == layout.WGT:
        fill_wgt(buffers, at, count, data)
    else:
        target = acc[at * geometry.lanes : (at + count) * geometry.lanes]
        if memory == layout.ACC:
            copy(target.view(np.uint8), data)
        else:
            narrow = data.view(np.int8)
            for number in range(target.size):
                target[number] = narrow[number]


@compiled
def store(row: Any, geometry: layout.Geometry, dram: Any, acc: Any) -> None:
    """Execute a STORE that fits: the low bits of the accumulators."""
    size = geometry.sizes[layout.OUT]
    width = size // geometry.lanes
    source = row[layout.SRAM_BASE] * geometry.lanes
    target = row[layout.DRAM_BASE] * size - geometry.base
    lines, length = row[layout.Y_SIZE], row[layout.X_SIZE]
    if length == row[layout.X_STRIDE]:
        lines, length = min(lines, 1), lines * length
    for _ in range(lines):
        values = acc[source : source + length * geometry.lanes]
        data = dram[target : target + length * size]
        if width == 1:
            for number in range(values.size):
                data[number] = np.uint8(values[number])
        elif width == 2:
            for number in range(values.size):
                data[2 * number] = np.uint8(values[number])
                data[2 * number + 1] = np.uint8(values[number] >> 8)
        else:
            copy(data, values.view(np.uint8))
        source += length * geometry.lanes
        target += row[layout.X_STRIDE] * size


@compiled
def copy(target: Any, source: Any) -> None:
    for at in range(target.size):
        target[at] = source[at]


def clear_inp(buffers: Any, at: Number, count: Number) -> None:
    raise NotImplementedError("compiled code only")


def clear_wgt(buffers: Any, at: Number, count: Number) -> None:
    raise NotImplementedError("compiled code only")


def fill_inp(buffers: Any, at: Number, count: Number, data: Any) -> None:
    raise NotImplementedError("compiled code only")


def fill_wgt(buffers: Any, at: Number, count: Number, data: Any) -> None:
    raise NotImplementedError("compiled code only")


@implements(clear_inp)
def _clear_inp(buffers: Any, at: Any, count: Any) -> Any:
    zero = BIAS if buffers.instance_class in (Vnni256, Vnni512) else 0

    def tiled(buffers: Any, at: Number, count: Number) -> None:
        buffers.inp[at * BLOCK : (at + count) * BLOCK] = zero

    def shaped(buffers: Any, at: Number, count: Number) -> None:
        size = buffers.batch * buffers.block_in
        buffers.inp[at * size : (at + count) * size] = 0

    return _chosen(buffers, tiled, tiled, shaped)


@implements(clear_wgt)
def _clear_wgt(buffers: Any, at: Any, count: Any) -> Any:
    def biased(buffers: Any, at: Number, count: Number) -> None:
        buffers.wgt[at * BLOCK_BYTES : (at + count) * BLOCK_BYTES] = 0
        buffers.correction[at * BLOCK : (at + count) * BLOCK] = 0

    def formed(buffers: Any, at: Number, count: Number) -> None:
        buffers.wgt[at * BLOCK_BYTES : (at + count) * BLOCK_BYTES] = 0
        buffers.correction[at * BLOCK : (at + count) * BLOCK] = 0
        buffers.diagonal[at * BLOCK : (at + count) * BLOCK] = 0
        buffers.forms[at : at + count] = FIRST | DIAGONAL

    def plain(buffers: Any, at: Number, count: Number) -> None:
        buffers.wgt[at * BLOCK_BYTES : (at + count) * BLOCK_BYTES] = 0

    def shaped(buffers: Any, at: Number, count: Number) -> None:
        size = buffers.block_out * buffers.block_in
        buffers.wgt[at * size : (at + count) * size] = 0

    return _chosen(buffers, formed if buffers.instance_class is Vnni512 else biased, plain, shaped)


@implements(fill_inp)
def _fill_inp(buffers: Any, at: Any, count: Any, data: Any) -> Any:
    def biased(buffers: Any, at: Number, count: Number, data: Any) -> None:
        target = buffers.inp[at * BLOCK : (at + count) * BLOCK]
        for number in range(target.size):
            target[number] = data[number] ^ np.uint8(BIAS)

    def plain(buffers: Any, at: Number, count: Number, data: Any) -> None:
        target = buffers.inp[at * BLOCK : (at + count) * BLOCK]
        widen(target, data)

    def shaped(buffers: Any, at: Number, count: Number, data: Any) -> None:
        size = buffers.batch * buffers.block_in
        widen(buffers.inp[at * size : (at + count) * size], data)

    return _chosen(buffers, biased, plain, shaped)


@implements(fill_wgt)
def _fill_wgt(buffers: Any, at: Any, count: Any, data: Any) -> Any:
    def packed(buffers: Any, at: Number, count: Number, data: Any) -> None:
        source = data.ctypes.data
        for number in range(count):
            pack(buffers, source + number * BLOCK_BYTES, at + number)

    def shaped(buffers: Any, at: Number, count: Number, data: Any) -> None:
        size = buffers.block_out * buffers.block_in
        widen(buffers.wgt[at * size : (at + count) * size], data)

    return _chosen(buffers, packed, packed, shaped)


@compiled
def widen(target: Any, data: Any) -> None:
    """Signed values of as many bytes as there are for each."""
    width = data.size // max(target.size, 1)
    if width == 1:
        narrow = data.view(np.int8)
        for number in range(target.size):
            target[number] = narrow[number]
    elif width == 2:
        for number in range(target.size):
            target[number] = np.int16(
                np.uint16(data[2 * number]) | np.uint16(data[2 * number + 1]) << np.uint16(8)
            )
    else:
        copy(target.view(np.uint8), data)


def _chosen(buffers: Any, biased: Any, plain: Any, shaped: Any) -> Any:
    if buffers.instance_class is Loops:
        return shaped
    return biased if buffers.instance_class in (Vnni256, Vnni512) else plain

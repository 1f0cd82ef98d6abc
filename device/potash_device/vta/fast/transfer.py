"""LOAD and STORE: transfers of rectangles between DRAM and the buffers, in the path's layout."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from potash_device.vta.fast import layout
from potash_device.vta.fast.compiling import (
    Number,
    by_type,
    compiled,
    emits,
    intrinsic,
    least,
    most,
)
from potash_device.vta.fast.emitting import I8, I64, integer, scaled
from potash_device.vta.fast.emitting import load as load_vector
from potash_device.vta.fast.emitting import store as store_vector
from potash_device.vta.fast.paths import BIAS, BLOCK, DIAGONAL, FIRST, Biased, Loops
from potash_device.vta.fast.tiles import pack

BLOCK_BYTES = BLOCK * BLOCK


@compiled
def load(row: Any, geometry: layout.Geometry, dram: Any, buffers: Any, acc: Any) -> None:
    """Execute a LOAD that fits into its buffer, of anything but micro-ops."""
    memory = row[layout.MEMORY_TYPE]
    if memory == layout.INP:
        values = buffers.inp.size // geometry.depths[layout.INP]
        load_values(row, geometry, dram, buffers.inp, values)
        load_signed(row, geometry, dram, buffers, values)
    elif memory == layout.WGT:
        load_weights(row, geometry, dram, buffers)
    else:
        load_values(row, geometry, dram, acc, geometry.lanes)


@compiled
def load_values(
    row: Any, geometry: layout.Geometry, dram: Any, target: Any, values: Number
) -> None:
    """Load elements of `values` values each to INP or ACC."""
    zero = zero_of(target)
    before, after = row[layout.X_PAD_0] * values, row[layout.X_PAD_1] * values
    size = geometry.sizes[row[layout.MEMORY_TYPE]]
    lines, length = row[layout.Y_SIZE], row[layout.X_SIZE]
    stride = row[layout.X_STRIDE] * size
    width = before + length * values + after
    if before + after == 0 and length == row[layout.X_STRIDE]:
        lines, length = least(lines, 1), lines * length
    at = row[layout.SRAM_BASE] * values
    source = (row[layout.DRAM_BASE] & layout.DRAM_BASE_MASK) * size - geometry.base
    target[at : at + row[layout.Y_PAD_0] * width] = zero
    at += row[layout.Y_PAD_0] * width
    for _ in range(lines):
        if before:
            target[at : at + before] = zero
        at += before
        put(target[at : at + length * values], dram[source : source + length * size])
        at += length * values
        if after:
            target[at : at + after] = zero
        at += after
        source += stride
    target[at : at + row[layout.Y_PAD_1] * width] = zero


@by_type
def load_signed(row: Any, geometry: Any, dram: Any, buffers: Any, values: Any) -> Any:
    """Load elements of INP unbiased, too, for a path that keeps them so."""

    def signed(
        row: Any, geometry: layout.Geometry, dram: Any, buffers: Any, values: Number
    ) -> None:
        load_values(row, geometry, dram, buffers.signed, values)

    def nothing(
        row: Any, geometry: layout.Geometry, dram: Any, buffers: Any, values: Number
    ) -> None:
        return

    return signed if "signed" in buffers.fields else nothing


@compiled
def load_weights(row: Any, geometry: layout.Geometry, dram: Any, buffers: Any) -> None:
    width = row[layout.X_PAD_0] + row[layout.X_SIZE] + row[layout.X_PAD_1]
    at = row[layout.SRAM_BASE]
    clear_wgt(buffers, at, row[layout.Y_PAD_0] * width)
    at += row[layout.Y_PAD_0] * width
    size = geometry.sizes[layout.WGT]
    source = (row[layout.DRAM_BASE] & layout.DRAM_BASE_MASK) * size - geometry.base
    length = row[layout.X_SIZE]
    for _ in range(row[layout.Y_SIZE]):
        inner = at + row[layout.X_PAD_0]
        clear_wgt(buffers, at, row[layout.X_PAD_0])
        fill_wgt(buffers, inner, length, dram[source : source + length * size])
        clear_wgt(buffers, inner + length, row[layout.X_PAD_1])
        at += width
        source += row[layout.X_STRIDE] * size
    clear_wgt(buffers, at, row[layout.Y_PAD_1] * width)


@compiled
def store(row: Any, geometry: layout.Geometry, dram: Any, acc: Any) -> None:
    """Execute a STORE that fits into its buffer: it stores the low bits of the accumulators."""
    size = geometry.sizes[layout.OUT]
    width = size // geometry.lanes
    source = row[layout.SRAM_BASE] * geometry.lanes
    target = (row[layout.DRAM_BASE] & layout.DRAM_BASE_MASK) * size - geometry.base
    lines, length = row[layout.Y_SIZE], row[layout.X_SIZE]
    if length == row[layout.X_STRIDE]:
        lines, length = least(lines, 1), lines * length
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
            copy(data, values)
        source += length * geometry.lanes
        target += row[layout.X_STRIDE] * size


@compiled
def store_narrow(row: Any, geometry: layout.Geometry, dram: Any, narrow: Number) -> None:
    """Execute a STORE of elements that are in the narrow memory, at the address `narrow`."""
    source = narrow + np.int64(row[layout.SRAM_BASE]) * BLOCK
    target = (row[layout.DRAM_BASE] & layout.DRAM_BASE_MASK) * BLOCK - geometry.base
    target += dram.ctypes.data
    lines, length = np.int64(row[layout.Y_SIZE]), np.int64(row[layout.X_SIZE])
    if length == row[layout.X_STRIDE]:
        lines, length = least(lines, 1), lines * length
    for _ in range(lines):
        copy_elements(target, source, length)
        source += length * BLOCK
        target += row[layout.X_STRIDE] * BLOCK


@emits()
def copy_elements(builder: Any, target: Any, source: Any, count: Any) -> None:
    """Copy `count` elements of 16 bytes."""
    begin = integer(0)
    for at_once in (4, 1):
        kind = ir.VectorType(I8, at_once * BLOCK)
        end = builder.and_(count, integer(-at_once))
        with cgutils.for_range_slice(builder, begin, end, integer(at_once), I64) as (number, _):
            offset = scaled(builder, number, BLOCK)
            values = load_vector(builder, builder.add(source, offset), 0, kind)
            store_vector(builder, values, builder.add(target, offset))
        begin = end


@intrinsic
def copy(typing: Any, target: Any, source: Any) -> Any:
    """Copy the bytes of an array to another one, which has room for them."""
    signature = types.void(target, source)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, of = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        to_bytes, of_bytes = to.data, of.data
        cgutils.raw_memcpy(builder, to_bytes, of_bytes, of.nitems, of.itemsize)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return signature, generate


@by_type
def zero_of(target: Any) -> Any:
    """Zero in the layout of INP or ACC."""
    zero = BIAS if target.dtype == types.uint8 else 0
    return lambda target: zero


@by_type
def put(target: Any, data: Any) -> Any:
    """Copy values from DRAM in the layout of INP or ACC."""

    def biased(target: Any, data: Any) -> None:
        for number in range(target.size):
            target[number] = data[number] ^ np.uint8(BIAS)

    return biased if target.dtype == types.uint8 else lambda target, data: widen(target, data)


@by_type
def clear_wgt(buffers: Any, at: Any, count: Any) -> Any:
    def biased(buffers: Any, at: Number, count: Number) -> None:
        buffers.wgt[at * BLOCK_BYTES : (at + count) * BLOCK_BYTES] = 0
        buffers.correction[at * BLOCK : (at + count) * BLOCK] = 0

    def formed(buffers: Any, at: Number, count: Number) -> None:
        buffers.wgt[at * BLOCK_BYTES : (at + count) * BLOCK_BYTES] = 0
        buffers.correction[at * BLOCK : (at + count) * BLOCK] = 0
        buffers.diagonal[at * BLOCK : (at + count) * BLOCK] = 0
        buffers.forms[at : at + count] = FIRST | DIAGONAL

    def paired(buffers: Any, at: Number, count: Number) -> None:
        buffers.wgt[at * BLOCK_BYTES : (at + count) * BLOCK_BYTES] = 0
        buffers.diagonal[at * BLOCK : (at + count) * BLOCK] = 0
        buffers.forms[at : at + count] = FIRST | DIAGONAL

    def shaped(buffers: Any, at: Number, count: Number) -> None:
        size = buffers.block_out * buffers.block_in
        buffers.wgt[at * size : (at + count) * size] = 0

    return _chosen(buffers, formed if "forms" in buffers.fields else biased, paired, shaped)


@by_type
def fill_wgt(buffers: Any, at: Any, count: Any, data: Any) -> Any:
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
    """Copy signed values of DRAM, of `data.size / target.size` bytes each, to a wider type."""
    width = data.size // most(target.size, 1)
    if width == 1:
        for number in range(target.size):
            target[number] = np.int8(data[number])
    elif width == 2:
        for number in range(target.size):
            target[number] = np.int16(
                np.uint16(data[2 * number]) | np.uint16(data[2 * number + 1]) << np.uint16(8)
            )
    else:
        copy(target, data)


def _chosen(buffers: Any, biased: Any, plain: Any, shaped: Any) -> Any:
    if buffers.instance_class is Loops:
        return shaped
    return biased if issubclass(buffers.instance_class, Biased) else plain

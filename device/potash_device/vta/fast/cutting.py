"""Division of a row of positions into tiles of the sizes that fit the registers.

A step of products is for any number of positions and blocks of weights. A tile is compiled for a
constant number of both, as many as there are registers for their accumulators, so a step is divided
into tiles of a few sizes, large ones first. With 32 vector registers and pairs of blocks, 30
positions become tiles of 8, 8, 8, 4, 1 and 1 positions by two blocks, and 14 positions become 7 and
7, as a tile of 8 would leave 6. With one block, tiles have up to 14 positions: 30 are divided into
14, 14, 1 and 1.

Blocks of weights that are mostly zero have cheaper tiles (`form_of`). With AMX, tiles of up to 16
positions are used where there are enough products (`matrix`)."""

from typing import Any

import numpy as np

from potash_device.vta.fast import steps as s
from potash_device.vta.fast.compiling import Flag, Number, by_type, compiled, inlined
from potash_device.vta.fast.emitting import ACC_BYTES, PAIR_BYTES
from potash_device.vta.fast.matrix import MOST_PAIRS, MOST_ROWS, configure, multiply, release_tiles
from potash_device.vta.fast.paths import (
    DIAGONAL,
    FIRST,
    FULL,
    Amx,
    AmxModel,
    Loops,
    Vnni256,
    Vnni512,
)
from potash_device.vta.fast.tiles import Operands, pair_weights, tile


@by_type
def accumulate(buffers: Any, step: Any, pairs: Any, lanes: Any, acc: Any, configured: Any) -> Any:
    """Execute a step of PRODUCTS. `configured` is the configuration of this thread's AMX tiles, 0
    for none; returns the configuration afterwards."""

    def with_matrix(
        buffers: Any, step: Any, pairs: Any, lanes: Number, acc: Any, configured: Number
    ) -> Number:
        return in_matrix(buffers, step, pairs, acc, configured)

    def with_registers(
        buffers: Any, step: Any, pairs: Any, lanes: Number, acc: Any, configured: Number
    ) -> Number:
        in_tiles(buffers, step, pairs, acc)
        return configured

    def with_loops(
        buffers: Any, step: Any, pairs: Any, lanes: Number, acc: Any, configured: Number
    ) -> Number:
        in_loops(buffers, step, pairs, lanes, acc)
        return configured

    if buffers.instance_class is Loops:
        return with_loops
    return with_matrix if "signed" in buffers.fields else with_registers


@by_type
def release(buffers: Any, configured: Any) -> Any:
    """Give up this thread's tiles of AMX. While they have contents, every switch to another thread
    saves their 8 KiB, and the processor may not rest as deeply."""

    def tiles(buffers: Any, configured: Number) -> None:
        if configured:
            release_tiles(buffers)

    def nothing(buffers: Any, configured: Number) -> None:
        return

    return tiles if "signed" in buffers.fields else nothing


TILE_CYCLES, TILE_OVERHEAD, VECTOR_CYCLES = 16, 20, 2
"""Approximate cycles of an instruction on tiles, of a tile's overhead compared to vectors, and of
vpdpbusd for a row of inputs and a block of weights."""


@compiled
def in_matrix(buffers: Any, step: Any, pairs: Any, acc: Any, configured: Number) -> Number:
    """Execute a step in AMX tiles where it has enough products for them, else in vector
    registers."""
    blocks, length = np.int64(step[s.BLOCKS]), np.int64(step[s.COUNT])
    dst_step, block_step = np.int64(step[s.DST_STEP]), np.int64(step[s.BLOCK_STEP])
    src_step, wgt_step = np.int64(step[s.SRC_STEP]), np.int64(step[s.WGT_STEP])
    table = pairs.ctypes.data + np.int64(step[s.PAIR]) * PAIR_BYTES
    count, fresh = np.int64(step[s.PAIRS]), np.int64(step[s.FRESH])
    wgt = np.int64(step[s.WGT])
    operands = Operands(dst_step, block_step, src_step, wgt, wgt_step, table, count, fresh)
    together = run_of(pairs, np.int64(step[s.PAIR]), count)
    windows = (length + MOST_ROWS - 1) // MOST_ROWS
    rows = length // windows
    if (
        TILE_CYCLES * (count // together) + TILE_OVERHEAD >= VECTOR_CYCLES * rows * count
        or form_of(buffers, False, step[s.CONSECUTIVE], operands) != FULL
    ):
        in_tiles(buffers, step, pairs, acc)
        return configured
    shape = (rows, together)
    if configured != rows * MOST_PAIRS + together:
        configure(buffers, rows, together)
    at = acc.ctypes.data + np.int64(step[s.TARGET]) * ACC_BYTES
    src, done = np.int64(step[s.SRC]), windows * rows
    block = 0
    while block < blocks:
        grouped, left = 1, blocks - block
        if step[s.SRC_BLOCK] == 0 and left >= 2:
            grouped = 4 if left >= 4 else 2
        for line in range(step[s.LINES]):
            place = at + line * np.int64(step[s.LINE_STEP]) * ACC_BYTES
            source = src + line * np.int64(step[s.SRC_LINE])
            in_windows(buffers, grouped, windows, place, source, shape, operands)
            for number in range(grouped if done < length else 0):
                rest = place + (done * dst_step + number * block_step) * ACC_BYTES
                after, block_operands = source + done * src_step, of_block(operands, number)
                in_registers(buffers, False, FULL, length - done, rest, after, block_operands)
        block += grouped
        at += grouped * block_step * ACC_BYTES
        src += grouped * np.int64(step[s.SRC_BLOCK])
        operands = of_block(operands, grouped)
    return rows * MOST_PAIRS + together


@compiled
def in_windows(
    buffers: Any,
    grouped: Number,
    windows: Number,
    acc: Number,
    src: Number,
    shape: Any,
    operands: Any,
) -> None:
    """Multiply for `windows` times as many positions as a tile has rows, and for one, two or four
    blocks. Up to four tiles accumulate alternately, as an instruction waits for the previous one on
    the same tile."""
    dst_step, block_step = operands.position_step, operands.block_step
    src_step = operands.source_step
    window = 0
    while window < windows:
        first = window * shape[0]
        at, source = acc + first * dst_step * ACC_BYTES, src + first * src_step
        left = windows - window
        if left == 1:
            if grouped == 4:
                multiply(buffers, 1, 4, at, source, shape, operands)
            elif grouped == 2:
                multiply(buffers, 1, 2, at, source, shape, operands)
            else:
                multiply(buffers, 1, 1, at, source, shape, operands)
            return
        two = left < 4 and grouped > 1
        for number in range(0, grouped, 2 if two else 1):
            place = at + number * block_step * ACC_BYTES
            block_operands = of_block(operands, number)
            if two:
                multiply(buffers, 2, 2, place, source, shape, block_operands)
            elif left >= 4:
                multiply(buffers, 4, 1, place, source, shape, block_operands)
            else:
                multiply(buffers, 2, 1, place, source, shape, block_operands)
        window += 4 if left >= 4 else 2


@compiled
def of_block(operands: Any, number: Number) -> Any:
    """The operands for the block that comes `number` blocks later."""
    return Operands(
        operands.position_step,
        operands.block_step,
        operands.source_step,
        operands.weight + number * operands.weight_step,
        operands.weight_step,
        operands.table,
        operands.count,
        operands.fresh,
    )


@compiled
def run_of(pairs: Any, first: Number, count: Number) -> Number:
    """Length of the runs into which all pairs can be divided, in which each pair names the elements
    behind those of the previous one: at most MOST_PAIRS, 1 where there are no such runs."""
    for together in range(MOST_PAIRS, 1, -1):
        if count % together == 0:
            fits = True
            at = first
            while fits and at < first + count:
                for number in range(at + 1, at + together):
                    fits &= pairs[number, s.PAIR_INP] == pairs[number - 1, s.PAIR_INP] + 1
                    fits &= pairs[number, s.PAIR_WGT] == pairs[number - 1, s.PAIR_WGT] + 1
                at += together
            if fits:
                return together
    return 1


@compiled
def in_tiles(buffers: Any, step: Any, pairs: Any, acc: Any) -> None:
    """Execute a step in tiles of vector registers, with one or two blocks of weights at a time."""
    if step[s.COUNT] * step[s.LINES] * step[s.BLOCKS] * step[s.PAIRS] == 1:
        in_one_tile(buffers, step, pairs, acc)
        return
    blocks = np.int64(step[s.BLOCKS])
    dst_step, block_step = np.int64(step[s.DST_STEP]), np.int64(step[s.BLOCK_STEP])
    src_step, wgt_step = np.int64(step[s.SRC_STEP]), np.int64(step[s.WGT_STEP])
    table = pairs.ctypes.data + np.int64(step[s.PAIR]) * PAIR_BYTES
    count, fresh = np.int64(step[s.PAIRS]), np.int64(step[s.FRESH])
    at = acc.ctypes.data + np.int64(step[s.TARGET]) * ACC_BYTES
    src, wgt = np.int64(step[s.SRC]), np.int64(step[s.WGT])
    down, along = np.int64(step[s.LINE_STEP]) * ACC_BYTES, np.int64(step[s.SRC_LINE])
    block = 0
    while block < blocks:
        two = step[s.TOGETHER] != 0 and block + 1 < blocks
        operands = Operands(dst_step, block_step, src_step, wgt, wgt_step, table, count, fresh)
        form = form_of(buffers, two, step[s.CONSECUTIVE], operands)
        for line in range(step[s.LINES]):
            place, source = at + line * down, src + line * along
            in_registers(buffers, two, form, np.int64(step[s.COUNT]), place, source, operands)
        done = 2 if two else 1
        block += done
        at += done * block_step * ACC_BYTES
        src += done * np.int64(step[s.SRC_BLOCK])
        wgt += done * wgt_step


@compiled
def in_one_tile(buffers: Any, step: Any, pairs: Any, acc: Any) -> None:
    """A single product, with the least overhead: streams without any regularity consist of
    these."""
    place = acc.ctypes.data + np.int64(step[s.TARGET]) * ACC_BYTES
    table = pairs.ctypes.data + np.int64(step[s.PAIR]) * PAIR_BYTES
    zero = np.int64(0)
    wgt, fresh = np.int64(step[s.WGT]), np.int64(step[s.FRESH])
    operands = Operands(zero, zero, zero, wgt, zero, table, np.int64(1), fresh)
    tile(buffers, FULL, 1, 1, place, np.int64(step[s.SRC]), operands)


@compiled
def in_loops(buffers: Any, step: Any, pairs: Any, lanes: Number, acc: Any) -> None:
    """Execute a step for a core of any shape."""
    batch, depth, height = buffers.batch, buffers.block_in, buffers.block_out
    for block in range(step[s.BLOCKS]):
        for position in range(step[s.COUNT] * step[s.LINES]):
            line, column = divmod(position, step[s.COUNT])
            dst = step[s.TARGET] + block * step[s.BLOCK_STEP]
            dst += line * step[s.LINE_STEP] + column * step[s.DST_STEP]
            if step[s.FRESH]:
                acc[dst * lanes : (dst + 1) * lanes] = 0
            for number in range(step[s.PAIR], step[s.PAIR] + step[s.PAIRS]):
                src = pairs[number, s.PAIR_INP] + step[s.SRC] + block * step[s.SRC_BLOCK]
                src += line * step[s.SRC_LINE] + column * step[s.SRC_STEP]
                wgt = pairs[number, s.PAIR_WGT] + step[s.WGT] + block * step[s.WGT_STEP]
                for row in range(batch):
                    at = (src * batch + row) * depth
                    inputs = buffers.inp[at : at + depth]
                    for output in range(height):
                        at = (wgt * height + output) * depth
                        weights = buffers.wgt[at : at + depth]
                        total = np.int32(0)
                        for value in range(depth):
                            total = np.int32(
                                total + np.int32(inputs[value]) * np.int32(weights[value])
                            )
                        acc[(dst * batch + row) * height + output] += total


@by_type
def in_registers(
    buffers: Any, two: Any, form: Any, length: Any, acc: Any, src: Any, operands: Any
) -> Any:
    """Add up products for `length` positions, with one block of weights or with `two`. All blocks
    have the form `form`; `operands` are those of `tile`."""
    if buffers.instance_class in (Vnni512, Amx, AmxModel):
        return _in_many_registers
    return _in_few_registers if buffers.instance_class is Vnni256 else _in_few_registers_by_form


def _tiles(form: int, blocks: int, *positions: int) -> Any:
    """A function that adds up products in tiles of so many blocks and positions, the largest tiles
    first, for those of `length` positions that are not `done`."""

    @inlined
    def fill(
        buffers: Any, length: Number, done: Number, acc: Number, src: Number, operands: Any
    ) -> Number:
        dst_step, src_step = operands.position_step * ACC_BYTES, operands.source_step
        while done + most <= length:
            place, source = acc + done * dst_step, src + done * src_step
            tile(buffers, form, most, blocks, place, source, operands)
            done += most
        return done

    @inlined
    def fill_in_turn(
        buffers: Any, length: Number, done: Number, acc: Number, src: Number, operands: Any
    ) -> Number:
        done = fill(buffers, length, done, acc, src, operands)
        return fill_rest(buffers, length, done, acc, src, operands)

    most, *less = positions
    fill_rest: Any = _tiles(form, blocks, *less) if less else None
    return fill_in_turn if less else fill


# For 32 registers (many) or 16, for blocks of a form, one by one or two together.
_many_full, _many_full_two = _tiles(FULL, 1, 14, 8, 7, 4, 1), _tiles(FULL, 2, 7, 4, 1)
_eights_of_two = _tiles(FULL, 2, 8)
_many_first, _many_first_two = _tiles(FIRST, 1, 14, 4, 1), _tiles(FIRST, 2, 8, 2, 1)
_many_diagonal = _tiles(DIAGONAL, 1, 14, 7, 4, 1)
_few_full, _few_full_two = _tiles(FULL, 1, 4, 1), _tiles(FULL, 2, 2, 1)
_few_first, _few_first_two = _tiles(FIRST, 1, 4, 1), _tiles(FIRST, 2, 2, 1)
_few_diagonal = _tiles(DIAGONAL, 1, 4, 1)


def _in_many_registers(
    buffers: Any, two: Flag, form: Number, length: Number, acc: Number, src: Number, operands: Any
) -> None:
    """Tiles for 32 registers of 16 lanes."""
    done = np.int64(0)
    if form & FIRST:
        if two:
            _many_first_two(buffers, length, done, acc, src, operands)
        else:
            _many_first(buffers, length, done, acc, src, operands)
    elif two:
        # 14 positions are two sevens, 75 are five eights and five sevens, and 9 an eight and one.
        eights, few = length // 8, length % 7
        if length % 8 != 0 and few <= length // 7:
            eights = few
        done = _eights_of_two(buffers, 8 * eights, done, acc, src, operands)
        _many_full_two(buffers, length, done, acc, src, operands)
    elif form & DIAGONAL:
        _many_diagonal(buffers, length, done, acc, src, operands)
    else:
        _many_full(buffers, length, done, acc, src, operands)


def _in_few_registers(
    buffers: Any, two: Flag, form: Number, length: Number, acc: Number, src: Number, operands: Any
) -> None:
    """Tiles for 16 registers of 8 lanes."""
    done = np.int64(0)
    if two:
        _few_full_two(buffers, length, done, acc, src, operands)
    else:
        _few_full(buffers, length, done, acc, src, operands)


def _in_few_registers_by_form(
    buffers: Any, two: Flag, form: Number, length: Number, acc: Number, src: Number, operands: Any
) -> None:
    done = np.int64(0)
    if form & FIRST:
        if two:
            _few_first_two(buffers, length, done, acc, src, operands)
        else:
            _few_first(buffers, length, done, acc, src, operands)
    elif two:
        _few_full_two(buffers, length, done, acc, src, operands)
    elif form & DIAGONAL:
        _few_diagonal(buffers, length, done, acc, src, operands)
    else:
        _few_full(buffers, length, done, acc, src, operands)


@by_type
def form_of(buffers: Any, two: Any, consecutive: Any, operands: Any) -> Any:
    """The form that all multiplied blocks have in common. The blocks of `consecutive` pairs follow
    each other."""

    def unknown(buffers: Any, two: Flag, consecutive: Flag, operands: Any) -> Number:
        return FULL

    def known(buffers: Any, two: Flag, consecutive: Flag, operands: Any) -> Number:
        form = form_of_blocks(buffers.forms, np.int64(0), consecutive, operands)
        if two and form:
            form &= form_of_blocks(buffers.forms, operands.weight_step, consecutive, operands)
        return form

    return known if "forms" in buffers.fields else unknown


@compiled
def form_of_blocks(forms: Any, step: Number, consecutive: Flag, operands: Any) -> Number:
    """The common form of the blocks that are `step` elements from those of the pairs."""
    wgt, pairs, count = operands.weight, operands.table, operands.count
    first = wgt + step + pair_weights(pairs, 0)
    form = np.int64(forms[first])
    if form == FULL:
        return form
    if consecutive:
        # The loop has no exit in the middle, so LLVM vectorises it.
        same = forms[first : first + count]
        common = np.uint8(FIRST | DIAGONAL)
        for number in range(same.size):
            common &= same[number]
        return np.int64(common)
    for at in range(1, count):
        form &= forms[wgt + step + pair_weights(pairs, at)]
    return form

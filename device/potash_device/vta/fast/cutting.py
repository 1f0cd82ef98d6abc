"""Cutting a row of positions into tiles, of sizes for which there are registers."""

from typing import Any

import numpy as np

from potash_device.vta.fast import steps as s
from potash_device.vta.fast.compiling import Flag, Number, compiled, implements
from potash_device.vta.fast.paths import DIAGONAL, FIRST, FULL, Loops, Vnni256, Vnni512
from potash_device.vta.fast.tiles import ACC_BYTES, PAIR_BYTES, tile, weights_of


def accumulate(buffers: Any, step: Any, pairs: Any, lanes: Number, acc: Any) -> None:
    """Execute a step of PRODUCTS."""
    raise NotImplementedError("compiled code only")


@implements(accumulate)
def _accumulate(buffers: Any, step: Any, pairs: Any, lanes: Any, acc: Any) -> Any:
    return in_loops if buffers.instance_class is Loops else in_tiles


def in_tiles(buffers: Any, step: Any, pairs: Any, lanes: Number, acc: Any) -> None:
    """With one block of weights after the other, or two at once."""
    blocks = np.int64(step[s.BLOCKS])
    dst_step, block_step = np.int64(step[s.DST_STEP]), np.int64(step[s.BLOCK_STEP])
    src_step, wgt_step = np.int64(step[s.SRC_STEP]), np.int64(step[s.WGT_STEP])
    table = pairs.ctypes.data + np.int64(step[s.PAIR]) * PAIR_BYTES
    count, fresh = np.int64(step[s.PAIRS]), np.int64(step[s.FRESH])
    at = acc.ctypes.data + np.int64(step[s.TARGET]) * ACC_BYTES
    src, wgt = np.int64(step[s.SRC]), np.int64(step[s.WGT])
    block = 0
    while block < blocks:
        two = step[s.TOGETHER] != 0 and block + 1 < blocks
        others = (dst_step, block_step, src_step, wgt, wgt_step, table, count, fresh)
        in_registers(buffers, two, np.int64(step[s.COUNT]), at, src, others)
        done = 2 if two else 1
        block += done
        at += done * block_step * ACC_BYTES
        src += done * np.int64(step[s.SRC_BLOCK])
        wgt += done * wgt_step


def in_loops(buffers: Any, step: Any, pairs: Any, lanes: Number, acc: Any) -> None:
    """For a core of any shape."""
    batch, depth, height = buffers.batch, buffers.block_in, buffers.block_out
    for block in range(step[s.BLOCKS]):
        for position in range(step[s.COUNT]):
            dst = step[s.TARGET] + block * step[s.BLOCK_STEP] + position * step[s.DST_STEP]
            if step[s.FRESH]:
                acc[dst * lanes : (dst + 1) * lanes] = 0
            for number in range(step[s.PAIR], step[s.PAIR] + step[s.PAIRS]):
                src = pairs[number, 0] + step[s.SRC] + block * step[s.SRC_BLOCK]
                src += position * step[s.SRC_STEP]
                wgt = pairs[number, 1] + step[s.WGT] + block * step[s.WGT_STEP]
                for line in range(batch):
                    at = (src * batch + line) * depth
                    inputs = buffers.inp[at : at + depth]
                    for output in range(height):
                        at = (wgt * height + output) * depth
                        weights = buffers.wgt[at : at + depth]
                        total = np.int32(0)
                        for value in range(depth):
                            total = np.int32(
                                total + np.int32(inputs[value]) * np.int32(weights[value])
                            )
                        acc[(dst * batch + line) * height + output] += total


def in_registers(
    buffers: Any, two: Flag, length: Number, acc: Number, src: Number, others: Any
) -> None:
    """Add up products for `length` positions, with one block of weights or with `two`; `others` are
    `tile`'s."""
    raise NotImplementedError("compiled code only")


@implements(in_registers)
def _in_registers(buffers: Any, two: Any, length: Any, acc: Any, src: Any, others: Any) -> Any:
    if buffers.instance_class is Vnni512:
        return _in_many_registers
    return _in_few_registers if buffers.instance_class is Vnni256 else _in_few_registers_by_form


def _in_many_registers(
    buffers: Any, two: Flag, length: Number, acc: Number, src: Number, others: Any
) -> None:
    """With 32 registers of 16 lanes."""
    form = form_of(buffers.forms, two, others)
    if form & FIRST:
        _of_first_inputs(buffers, two, length, acc, src, others)
        return
    if form & DIAGONAL and not two:
        _of_diagonals(buffers, length, acc, src, others)
        return
    dst_step, src_step, done = others[0], others[2], 0
    while two and done + 8 <= length:
        tile(buffers, FULL, 8, 2, acc, src, others)
        acc, src, done = acc + 8 * dst_step * ACC_BYTES, src + 8 * src_step, done + 8
    while two and done + 7 <= length:
        tile(buffers, FULL, 7, 2, acc, src, others)
        acc, src, done = acc + 7 * dst_step * ACC_BYTES, src + 7 * src_step, done + 7
    while two and done + 4 <= length:
        tile(buffers, FULL, 4, 2, acc, src, others)
        acc, src, done = acc + 4 * dst_step * ACC_BYTES, src + 4 * src_step, done + 4
    while two and done + 1 <= length:
        tile(buffers, FULL, 1, 2, acc, src, others)
        acc, src, done = acc + 1 * dst_step * ACC_BYTES, src + 1 * src_step, done + 1
    while done + 14 <= length:
        tile(buffers, FULL, 14, 1, acc, src, others)
        acc, src, done = acc + 14 * dst_step * ACC_BYTES, src + 14 * src_step, done + 14
    while done + 8 <= length:
        tile(buffers, FULL, 8, 1, acc, src, others)
        acc, src, done = acc + 8 * dst_step * ACC_BYTES, src + 8 * src_step, done + 8
    while done + 4 <= length:
        tile(buffers, FULL, 4, 1, acc, src, others)
        acc, src, done = acc + 4 * dst_step * ACC_BYTES, src + 4 * src_step, done + 4
    while done + 1 <= length:
        tile(buffers, FULL, 1, 1, acc, src, others)
        acc, src, done = acc + 1 * dst_step * ACC_BYTES, src + 1 * src_step, done + 1


def _few(form: int) -> Any:
    """With 16 registers of 8 lanes, where all blocks have this form; diagonals come one by one."""

    @compiled
    def of_form(
        buffers: Any, two: Flag, length: Number, acc: Number, src: Number, others: Any
    ) -> None:
        dst_step, src_step, done = others[0], others[2], 0
        if form != DIAGONAL:
            while two and done + 2 <= length:
                tile(buffers, form, 2, 2, acc, src, others)
                acc, src, done = acc + 2 * dst_step * ACC_BYTES, src + 2 * src_step, done + 2
            while two and done + 1 <= length:
                tile(buffers, form, 1, 2, acc, src, others)
                acc, src, done = acc + 1 * dst_step * ACC_BYTES, src + 1 * src_step, done + 1
        while done + 4 <= length:
            tile(buffers, form, 4, 1, acc, src, others)
            acc, src, done = acc + 4 * dst_step * ACC_BYTES, src + 4 * src_step, done + 4
        while done + 1 <= length:
            tile(buffers, form, 1, 1, acc, src, others)
            acc, src, done = acc + 1 * dst_step * ACC_BYTES, src + 1 * src_step, done + 1

    return of_form


_few_full, _few_first, _few_diagonal = _few(FULL), _few(FIRST), _few(DIAGONAL)


def _in_few_registers(
    buffers: Any, two: Flag, length: Number, acc: Number, src: Number, others: Any
) -> None:
    _few_full(buffers, two, length, acc, src, others)


def _in_few_registers_by_form(
    buffers: Any, two: Flag, length: Number, acc: Number, src: Number, others: Any
) -> None:
    form = form_of(buffers.forms, two, others)
    if form & FIRST:
        _few_first(buffers, two, length, acc, src, others)
    elif form & DIAGONAL and not two:
        _few_diagonal(buffers, two, length, acc, src, others)
    else:
        _few_full(buffers, two, length, acc, src, others)


@compiled
def _of_first_inputs(
    buffers: Any, two: Flag, length: Number, acc: Number, src: Number, others: Any
) -> None:
    """The same, where only the first inputs have weights."""
    dst_step, src_step, done = others[0], others[2], 0
    while two and done + 8 <= length:
        tile(buffers, FIRST, 8, 2, acc, src, others)
        acc, src, done = acc + 8 * dst_step * ACC_BYTES, src + 8 * src_step, done + 8
    while two and done + 2 <= length:
        tile(buffers, FIRST, 2, 2, acc, src, others)
        acc, src, done = acc + 2 * dst_step * ACC_BYTES, src + 2 * src_step, done + 2
    while two and done + 1 <= length:
        tile(buffers, FIRST, 1, 2, acc, src, others)
        acc, src, done = acc + 1 * dst_step * ACC_BYTES, src + 1 * src_step, done + 1
    while done + 14 <= length:
        tile(buffers, FIRST, 14, 1, acc, src, others)
        acc, src, done = acc + 14 * dst_step * ACC_BYTES, src + 14 * src_step, done + 14
    while done + 4 <= length:
        tile(buffers, FIRST, 4, 1, acc, src, others)
        acc, src, done = acc + 4 * dst_step * ACC_BYTES, src + 4 * src_step, done + 4
    while done + 1 <= length:
        tile(buffers, FIRST, 1, 1, acc, src, others)
        acc, src, done = acc + 1 * dst_step * ACC_BYTES, src + 1 * src_step, done + 1


@compiled
def _of_diagonals(buffers: Any, length: Number, acc: Number, src: Number, others: Any) -> None:
    """The same, where each output has its own input and no other."""
    dst_step, src_step, done = others[0], others[2], 0
    while done + 14 <= length:
        tile(buffers, DIAGONAL, 14, 1, acc, src, others)
        acc, src, done = acc + 14 * dst_step * ACC_BYTES, src + 14 * src_step, done + 14
    while done + 4 <= length:
        tile(buffers, DIAGONAL, 4, 1, acc, src, others)
        acc, src, done = acc + 4 * dst_step * ACC_BYTES, src + 4 * src_step, done + 4
    while done + 1 <= length:
        tile(buffers, DIAGONAL, 1, 1, acc, src, others)
        acc, src, done = acc + 1 * dst_step * ACC_BYTES, src + 1 * src_step, done + 1


@compiled
def form_of(forms: Any, two: Flag, others: Any) -> Number:
    """What all blocks that are multiplied have in common."""
    wgt, wgt_step, pairs, count = others[3:7]
    form = FIRST | DIAGONAL
    at = 0
    while form and at < count:
        number = wgt + weights_of(pairs, at)
        form &= forms[number]
        if two:
            form &= forms[number + wgt_step]
        at += 1
    return form

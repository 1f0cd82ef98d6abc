"""Cutting a row of positions into tiles, of sizes for which there are registers."""

from typing import Any

from potash_device.vta.fast.compiling import Flag, Number, implements
from potash_device.vta.fast.paths import Vnni512
from potash_device.vta.fast.tiles import ACC_BYTES, tile


def accumulate(
    buffers: Any, two: Flag, length: Number, acc: Number, src: Number, others: Any
) -> None:
    """Add up products for `length` positions, with one block of weights or with `two`; `others` are
    `tile`'s other arguments: steps of positions, blocks and INP; a weight; its step; table,
    count."""
    raise NotImplementedError("compiled code only")


@implements(accumulate)
def _accumulate(buffers: Any, two: Any, length: Any, acc: Any, src: Any, others: Any) -> Any:
    return _in_many_registers if buffers.instance_class is Vnni512 else _in_few_registers


def _in_many_registers(
    buffers: Any, two: Flag, length: Number, acc: Number, src: Number, others: Any
) -> None:
    """With 32 registers of 16 lanes."""
    dst_step, block_step, src_step, wgt, wgt_step, table, count = others
    done = 0
    while two and done + 8 <= length:
        tile(buffers, 8, 2, acc, dst_step, block_step, src, src_step, wgt, wgt_step, table, count)
        acc, src, done = acc + 8 * dst_step * ACC_BYTES, src + 8 * src_step, done + 8
    while two and done + 7 <= length:
        tile(buffers, 7, 2, acc, dst_step, block_step, src, src_step, wgt, wgt_step, table, count)
        acc, src, done = acc + 7 * dst_step * ACC_BYTES, src + 7 * src_step, done + 7
    while two and done + 4 <= length:
        tile(buffers, 4, 2, acc, dst_step, block_step, src, src_step, wgt, wgt_step, table, count)
        acc, src, done = acc + 4 * dst_step * ACC_BYTES, src + 4 * src_step, done + 4
    while two and done + 1 <= length:
        tile(buffers, 1, 2, acc, dst_step, block_step, src, src_step, wgt, wgt_step, table, count)
        acc, src, done = acc + 1 * dst_step * ACC_BYTES, src + 1 * src_step, done + 1
    while done + 14 <= length:
        tile(buffers, 14, 1, acc, dst_step, block_step, src, src_step, wgt, wgt_step, table, count)
        acc, src, done = acc + 14 * dst_step * ACC_BYTES, src + 14 * src_step, done + 14
    while done + 8 <= length:
        tile(buffers, 8, 1, acc, dst_step, block_step, src, src_step, wgt, wgt_step, table, count)
        acc, src, done = acc + 8 * dst_step * ACC_BYTES, src + 8 * src_step, done + 8
    while done + 4 <= length:
        tile(buffers, 4, 1, acc, dst_step, block_step, src, src_step, wgt, wgt_step, table, count)
        acc, src, done = acc + 4 * dst_step * ACC_BYTES, src + 4 * src_step, done + 4
    while done + 1 <= length:
        tile(buffers, 1, 1, acc, dst_step, block_step, src, src_step, wgt, wgt_step, table, count)
        acc, src, done = acc + 1 * dst_step * ACC_BYTES, src + 1 * src_step, done + 1


def _in_few_registers(
    buffers: Any, two: Flag, length: Number, acc: Number, src: Number, others: Any
) -> None:
    """With 16 registers of 8 lanes."""
    dst_step, block_step, src_step, wgt, wgt_step, table, count = others
    done = 0
    while two and done + 2 <= length:
        tile(buffers, 2, 2, acc, dst_step, block_step, src, src_step, wgt, wgt_step, table, count)
        acc, src, done = acc + 2 * dst_step * ACC_BYTES, src + 2 * src_step, done + 2
    while two and done + 1 <= length:
        tile(buffers, 1, 2, acc, dst_step, block_step, src, src_step, wgt, wgt_step, table, count)
        acc, src, done = acc + 1 * dst_step * ACC_BYTES, src + 1 * src_step, done + 1
    while done + 4 <= length:
        tile(buffers, 4, 1, acc, dst_step, block_step, src, src_step, wgt, wgt_step, table, count)
        acc, src, done = acc + 4 * dst_step * ACC_BYTES, src + 4 * src_step, done + 4
    while done + 1 <= length:
        tile(buffers, 1, 1, acc, dst_step, block_step, src, src_step, wgt, wgt_step, table, count)
        acc, src, done = acc + 1 * dst_step * ACC_BYTES, src + 1 * src_step, done + 1

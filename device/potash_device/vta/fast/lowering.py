"""Lowering of instructions to steps: of a whole stream, or as many as there is room for."""

from typing import Any

import numpy as np

from potash_device.vta.fast import foresight, layout
from potash_device.vta.fast import steps as s
from potash_device.vta.fast.alu import lower_alu
from potash_device.vta.fast.compiling import Flag, Number, compiled, entry
from potash_device.vta.fast.foresight import stays
from potash_device.vta.fast.narrowing import find_narrow
from potash_device.vta.fast.positions import lower_products


@entry
def lower(
    rows: Any,
    order: Any,
    place: Number,
    geometry: layout.Geometry,
    dram: Any,
    uop: Any,
    loaded: Any,
    recording: Flag,
    sink: s.Sink,
) -> Number:
    """Put the steps of a stream's instructions from `place` of its order on into `sink`. Returns
    the place of the first instruction that was not lowered: there is no room for it, its micro-ops
    may be written by a STORE among the steps, or they lead out of a buffer. Micro-ops are loaded
    into `uop`, and `loaded` is set for them. With `recording`, they are known not to be written and
    not to lead out, and no instruction is divided."""
    while place < order.size:
        row = rows[order[place]]
        opcode = row[layout.OPCODE]
        if opcode == layout.GEMM or opcode == layout.ALU:
            if not (recording or sink.filled[s.ITERATION] or stays(row, uop, geometry)):
                sink.filled[s.FAILED] = 1
                break
            for at in range(row[layout.UOP_BGN], row[layout.UOP_END]):
                if not loaded[at]:
                    sink.filled[s.OTHERS] = 1
            if not lower_instruction(row, uop, geometry, recording, sink):
                break
        elif opcode != layout.FINISH and row[layout.X_SIZE]:
            memory = row[layout.MEMORY_TYPE]
            if memory == layout.UOP:
                if sink.filled[s.STORES] and not recording:
                    break
                load_micro_ops(row, geometry, dram, uop, loaded)
            else:
                if s.room(sink) < 1:
                    break
                if memory != layout.INP and memory != layout.WGT and waits(row, sink):
                    s.zero_waiting(sink)
                at = s.new_step(sink, s.TRANSFER)
                for column in range(layout.COLUMNS):
                    sink.steps[at, s.ROW + column] = np.int32(row[column])
                sink.steps[at, s.NARROW] = 0
                if opcode == layout.STORE:
                    sink.filled[s.STORES] = 1
        place += 1
    s.zero_waiting(sink)
    if recording and place == order.size:
        find_narrow(sink, geometry)
    return place


@compiled
def load_micro_ops(row: Any, geometry: layout.Geometry, dram: Any, uop: Any, loaded: Any) -> None:
    source = row[layout.DRAM_BASE] * geometry.sizes[layout.UOP] - geometry.base
    foresight.load(row, source, dram, uop)
    begin = row[layout.SRAM_BASE]
    width = row[layout.X_PAD_0] + row[layout.X_SIZE] + row[layout.X_PAD_1]
    height = row[layout.Y_PAD_0] + row[layout.Y_SIZE] + row[layout.Y_PAD_1]
    loaded[begin : begin + width * height] = True


@compiled
def waits(row: Any, sink: s.Sink) -> Flag:
    """True for a transfer of accumulators of which some wait to be zeroed."""
    if sink.filled[s.ZEROED] == 0:
        return False
    width = row[layout.X_PAD_0] + row[layout.X_SIZE] + row[layout.X_PAD_1]
    height = row[layout.Y_PAD_0] + row[layout.Y_SIZE] + row[layout.Y_PAD_1]
    begin = row[layout.SRAM_BASE]
    for at in range(begin, begin + width * height):
        if sink.zeroed[at]:
            return True
    return False


@compiled
def lower_instruction(
    row: Any, uop: Any, geometry: layout.Geometry, recording: Flag, sink: s.Sink
) -> Flag:
    """The steps of a GEMM or ALU instruction that stays in its buffers. False where there is no
    room for all of them; those of some iterations may be there then."""
    words = uop[row[layout.UOP_BGN] : row[layout.UOP_END]]
    iterations = row[layout.ITER_OUT] * row[layout.ITER_IN]
    if words.size * iterations == 0:
        return True
    if not has_pairs(sink, geometry):
        return False
    if sink.filled[s.ITERATION] == 0:
        if words.size * iterations <= s.room(sink):
            lower_words(row, words, geometry, sink)
            return True
        # There may be fewer steps than micro-ops. If there are not, the steps before are
        # overwritten.
        s.zero_waiting(sink)
        before, pairs = sink.filled[s.STEPS], sink.filled[s.FILLED_PAIRS]
        if before and not recording:
            return False
        lower_words(row, words, geometry, sink)
        if not sink.filled[s.OVERFLOW] and s.room(sink) >= 0:
            return True
        sink.filled[s.STEPS], sink.filled[s.FILLED_PAIRS] = before, pairs
        sink.filled[s.GROUP], sink.filled[s.OVERFLOW] = -1, 0
        sink.filled[s.ZEROED] = 0
        sink.zeroed[:] = 0
        if recording:
            return False
    while sink.filled[s.ITERATION] < iterations:
        if words.size > s.room(sink) or not has_pairs(sink, geometry):
            return False
        outer, inner = divmod(sink.filled[s.ITERATION], row[layout.ITER_IN])
        lower_iteration(row, words, outer, inner, geometry, sink)
        sink.filled[s.ITERATION] += 1
    sink.filled[s.ITERATION] = 0
    return True


@compiled
def has_pairs(sink: s.Sink, geometry: layout.Geometry) -> Flag:
    """True where there is room for the pairs of an instruction."""
    most = geometry.depths[layout.UOP] + s.TABLE_PAIRS
    return sink.filled[s.FILLED_PAIRS] + most <= sink.pairs.shape[0]


@compiled
def lower_iteration(
    row: Any, words: Any, outer: Number, inner: Number, geometry: layout.Geometry, sink: s.Sink
) -> None:
    """The steps of one iteration of an instruction's loops, as those of an instruction without
    loops: its micro-ops have larger numbers. No field overflows, as they stay in their buffers."""
    add = outer * row[layout.DST_OUT] + inner * row[layout.DST_IN]
    if row[layout.OPCODE] == layout.GEMM and not row[layout.RESET]:
        src = outer * row[layout.SRC_OUT] + inner * row[layout.SRC_IN]
        wgt = outer * row[layout.WGT_OUT] + inner * row[layout.WGT_IN]
        add += src << geometry.dst_bits | wgt << geometry.dst_bits + geometry.src_bits
    elif row[layout.OPCODE] == layout.ALU and not row[layout.USE_IMM]:
        src = outer * row[layout.SRC_OUT] + inner * row[layout.SRC_IN]
        add += src << geometry.dst_bits
    own = sink.words[: words.size]
    for number in range(words.size):
        own[number] = np.uint32(words[number] + add)
    for column in range(row.size):
        sink.row[column] = row[column]
    sink.row[layout.ITER_OUT] = 1
    sink.row[layout.ITER_IN] = 1
    lower_words(sink.row, own, geometry, sink)


@compiled
def lower_words(row: Any, words: Any, geometry: layout.Geometry, sink: s.Sink) -> None:
    if row[layout.OPCODE] == layout.ALU:
        s.zero_waiting(sink)
        lower_alu(row, words, geometry, sink)
    elif row[layout.RESET]:
        reset(row, words, geometry, sink)
    else:
        lower_products(row, words, geometry, sink)


@compiled
def reset(row: Any, words: Any, geometry: layout.Geometry, sink: s.Sink) -> None:
    """Mark the accumulators that the micro-ops name as waiting to be zeroed. Often the next
    products are the first to use them, and then need not read them."""
    mask = np.uint32((1 << geometry.dst_bits) - 1)
    for outer in range(row[layout.ITER_OUT]):
        for inner in range(row[layout.ITER_IN]):
            offset = outer * row[layout.DST_OUT] + inner * row[layout.DST_IN]
            for number in range(words.size):
                at = np.int64(words[number] & mask) + offset
                if not sink.zeroed[at]:
                    sink.zeroed[at] = s.WAITING
                    sink.filled[s.ZEROED] += 1

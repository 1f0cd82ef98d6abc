"""From micro-ops to tiles.

Accumulation commutes modulo 2^32 and GEMM reads nothing that it writes, so its steps may be done in
any order. This searches for *positions*: micro-ops, or iterations of a loop, that go through ACC
and INP by equal steps and use the same weights, as a row of an image does. Micro-ops that return to
the same accumulators are the products to add up. What has no such structure becomes tiles of one
position."""

from typing import Any

import numpy as np

from potash_device.vta.fast import layout
from potash_device.vta.fast import steps as s
from potash_device.vta.fast.compiling import Flag, Number, compiled

NO_LOOP = (1, 0, 0, 0)


@compiled
def lower_products(row: Any, words: Any, geometry: layout.Geometry, sink: s.Sink) -> None:
    """Find positions and products."""
    dst_mask = (1 << geometry.dst_bits) - 1
    src_mask = (1 << geometry.src_bits) - 1
    src_low = geometry.dst_bits
    wgt_low = src_low + geometry.src_bits
    wgt_mask = (1 << geometry.wgt_bits) - 1
    count = words.size

    length = positions_of(words, geometry)
    transposed = length < 0
    length = abs(length)
    first = np.int64(words[0])
    dst_step = np.int64(1)
    src_step = np.int64(0)
    if length > 1:
        second = np.int64(words[count // length if transposed else 1])
        dst_step = (second & dst_mask) - (first & dst_mask)
        src_step = (second >> src_low & src_mask) - (first >> src_low & src_mask)

    # The loops, as (iterations, dst, src, wgt); the order in which they are nested is free.
    one = (row[layout.ITER_OUT], row[layout.DST_OUT], row[layout.SRC_OUT], row[layout.WGT_OUT])
    other = (row[layout.ITER_IN], row[layout.DST_IN], row[layout.SRC_IN], row[layout.WGT_IN])

    # Pairs of INP and WGT elements, one for each row of positions.
    most = geometry.depths[layout.UOP] + s.TABLE_PAIRS
    pair = sink.filled[s.FILLED_PAIRS]
    table = sink.pairs[pair : pair + most]
    rows = count // length
    stride = 1 if transposed else length
    for number in range(rows):
        word = np.int64(words[number * stride])
        table[number, 0] = word >> src_low & src_mask
        table[number, 1] = word >> wgt_low & wgt_mask

    # Loops that stay at their accumulators are more products of each group of rows.
    turns = 1
    if one[1] == 0 and rows * one[0] <= table.shape[0]:
        turns = unroll(table, words, stride, dst_mask, rows, turns, one)
        one = NO_LOOP
    if other[1] == 0 and rows * turns * other[0] <= table.shape[0]:
        turns = unroll(table, words, stride, dst_mask, rows, turns, other)
        other = NO_LOOP
    consecutive = True
    for number in range(1, rows * turns):
        if table[number, 1] != table[number - 1, 1] + 1:
            row_of = number // turns
            other_dst = (words[row_of * stride] ^ words[(row_of - 1) * stride]) & dst_mask
            consecutive &= number % turns == 0 and other_dst != 0
    if length == 1:
        # A loop that keeps its weights goes through the positions.
        if has_positions(one) and not (has_positions(other) and other[0] > one[0]):
            length, dst_step, src_step = one[0], one[1], one[2]
            one = NO_LOOP
        elif has_positions(other):
            length, dst_step, src_step = other[0], other[1], other[2]
            other = NO_LOOP
    # A loop over blocks of weights for the same inputs goes innermost: two of them share a tile.
    if has_pairs(one, length, dst_step):
        one, other = other, one
    together = has_pairs(other, length, dst_step)

    for iteration in range(one[0]):
        start, last = 0, -1
        while start < rows:
            dst = np.int64(words[start * stride]) & dst_mask
            end = start + 1
            while end < rows and np.int64(words[end * stride]) & dst_mask == dst:
                end += 1
            dst += iteration * one[1]
            waiting = s.take_zeroed(sink, dst, dst_step, length, other[1], other[0])
            if waiting == s.SOME:
                s.zero_waiting(sink)
            size = (end - start) * turns
            if last >= 0 and last == sink.filled[s.STEPS] - 1:
                first_pair = pair + start * turns
                if is_line(sink, last, dst, first_pair, size, waiting == s.ALL):
                    sink.steps[last, s.LINES] += 1
                    start = end
                    continue
            last = s.new_step(sink, s.PRODUCTS)
            step = sink.steps[last]
            step[s.COUNT] = length
            step[s.TARGET] = dst
            step[s.DST_STEP], step[s.BLOCK_STEP] = dst_step, other[1]
            step[s.SRC], step[s.SRC_STEP] = iteration * one[2], src_step
            step[s.SRC_BLOCK] = other[2]
            step[s.WGT], step[s.WGT_STEP] = iteration * one[3], other[3]
            step[s.PAIR], step[s.PAIRS] = pair + start * turns, size
            step[s.BLOCKS], step[s.TOGETHER] = other[0], together
            step[s.FRESH], step[s.CONSECUTIVE] = waiting == s.ALL, consecutive
            step[s.LINES], step[s.LINE_STEP], step[s.SRC_LINE] = 1, 0, 0
            start = end
    sink.filled[s.FILLED_PAIRS] += rows * turns


@compiled
def is_line(sink: s.Sink, at: Number, dst: Number, pair: Number, size: Number, fresh: Flag) -> Flag:
    """Whether products with `size` pairs from number `pair` on are one more line of a step: with
    the same weights, as far from its last line as that is from the one before."""
    step = sink.steps[at]
    first, lines = np.int64(step[s.PAIR]), np.int64(step[s.LINES])
    down = dst - step[s.TARGET]
    along = np.int64(sink.pairs[pair, 0] - sink.pairs[first, 0])
    if lines == 1:
        step[s.LINE_STEP], step[s.SRC_LINE] = down, along
    if step[s.PAIRS] != size or step[s.FRESH] != fresh:
        return False
    if down != lines * step[s.LINE_STEP] or along != lines * step[s.SRC_LINE]:
        return False
    for number in range(size):
        one, other = sink.pairs[pair + number], sink.pairs[first + number]
        if one[0] - other[0] != along or one[1] != other[1]:
            return False
    return True


@compiled
def has_positions(loop: Any) -> Flag:
    """Whether a loop's iterations are positions: other accumulators, the same weights."""
    return loop[0] > 1 and loop[1] > 0 and loop[3] == 0


@compiled
def has_pairs(loop: Any, length: Number, dst_step: Number) -> Flag:
    """Whether two iterations of a loop can share a tile: the same inputs, and no accumulators
    twice."""
    if loop[0] < 2 or loop[2] != 0 or loop[1] == 0:
        return False
    return loop[1] % dst_step != 0 or loop[1] // dst_step >= length


@compiled
def unroll(
    pairs: Any, words: Any, stride: Number, dst_mask: Number, rows: Number, turns: Number, loop: Any
) -> Number:
    """Put a loop's iterations one behind the other in each group of rows with the same
    accumulators, from the last group on, as there is room behind it. A row begins at every
    `stride`-th word, and has `turns` pairs; gives how many it has then."""
    iterations = loop[0]
    end = rows
    while end:
        start = end - 1
        dst = words[start * stride] & dst_mask
        while start and words[(start - 1) * stride] & dst_mask == dst:
            start -= 1
        size, source = (end - start) * turns, start * turns
        for iteration in range(iterations - 1, -1, -1):
            target = source * iterations + iteration * size
            for number in range(size - 1, -1, -1):
                pairs[target + number, 0] = pairs[source + number, 0] + iteration * loop[2]
                pairs[target + number, 1] = pairs[source + number, 1] + iteration * loop[3]
        end = start
    return turns * iterations


@compiled
def positions_of(words: Any, geometry: layout.Geometry) -> Number:
    """How many positions each row of the micro-ops has; negative where the rows are their columns,
    the products of a position standing together. 1 where there is no such structure."""
    dst_mask = (1 << geometry.dst_bits) - 1
    count = words.size
    if count == 1:
        return 1
    first = np.int64(words[0])
    step = np.int64(words[1]) - first
    length = 1
    if (np.int64(words[1]) & dst_mask) != (first & dst_mask):
        while length < count and np.int64(words[length]) - first == length * step:
            length += 1
        if count % length or not straight(first, step, length, geometry):
            return 1
        for start in range(length, count, length):
            line = words[start : start + length]
            begin = np.int64(line[0])
            same = True
            for number in range(length):
                same &= np.int64(line[number]) - begin == number * step
            if not same or not straight(begin, step, length, geometry):
                return 1
        return length
    while length < count and (np.int64(words[length]) & dst_mask) == (first & dst_mask):
        length += 1
    if length == count or count % length:
        return 1
    step = np.int64(words[length]) - first
    for start in range(length, count, length):
        line, iteration = words[start : start + length], start // length
        same = True
        for number in range(length):
            same &= np.int64(line[number]) - np.int64(words[number]) == iteration * step
        if not same:
            return 1
    for number in range(length):
        if not straight(np.int64(words[number]), step, count // length, geometry):
            return 1
    return -(count // length)


@compiled
def straight(first: Number, step: Number, length: Number, geometry: layout.Geometry) -> Flag:
    """Whether a word that grows by `step` does so without a carry from field to field: by the same
    steps in each field, forward in ACC and not at all in WGT."""
    dst_mask = (1 << geometry.dst_bits) - 1
    src_mask = (1 << geometry.src_bits) - 1
    src_low = geometry.dst_bits
    wgt_low = src_low + geometry.src_bits
    second = first + step
    dst = (second & dst_mask) - (first & dst_mask)
    src = (second >> src_low & src_mask) - (first >> src_low & src_mask)
    if dst <= 0 or second >> wgt_low != first >> wgt_low:
        return False
    last_dst = (first & dst_mask) + (length - 1) * dst
    last_src = (first >> src_low & src_mask) + (length - 1) * src
    return last_dst <= dst_mask and 0 <= last_src <= src_mask

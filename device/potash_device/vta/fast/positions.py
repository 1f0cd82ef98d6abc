"""Lowering of a GEMM's micro-ops to products of regular shape.

A micro-op adds the product of an INP and a WGT element to an ACC element. Decoding the micro-ops
one by one would take longer than multiplying. Additions modulo 2^32 commute and a GEMM reads
nothing that it writes, so its micro-ops may be executed in any order. This module searches for
*positions*: micro-ops, or iterations of a loop, that go through ACC and INP by equal steps and use
the same weights, as the pixels in a row of an image do. Micro-ops that name the same accumulators
again are further products to add up. For example, a convolution of two weights at three positions
has six micro-ops, (ACC, INP, WGT):

    (0, 0, 0)  (1, 1, 0)  (2, 2, 0)
    (0, 1, 1)  (1, 2, 1)  (2, 3, 1)

Each line here is a *row*. Together they become one step of three positions and the two pairs
(INP, WGT) of the first column, (0, 0) and (1, 1). *Transposed* micro-ops come in the order of the
columns. Micro-ops without such a structure become steps of one position."""

from typing import Any, NamedTuple

import numpy as np

from potash_device.vta.fast import layout
from potash_device.vta.fast import steps as s
from potash_device.vta.fast.compiling import Flag, Number, compiled


class GemmLoop(NamedTuple):
    """One of the two loops of a GEMM: its iterations, and by how many elements of ACC (`dst`), INP
    (`src`) and WGT an iteration advances."""

    iterations: Number
    dst: Number
    src: Number
    wgt: Number


NO_LOOP = GemmLoop(1, 0, 0, 0)


@compiled
def lower_products(row: Any, words: Any, geometry: layout.Geometry, sink: s.Sink) -> None:
    """Lower the products of a GEMM instruction, a decoded `row` of `layout` with its micro-op
    `words`, to steps in `sink`."""
    dst_mask = (1 << geometry.dst_bits) - 1
    src_mask = (1 << geometry.src_bits) - 1
    src_low = geometry.dst_bits
    wgt_low = src_low + geometry.src_bits
    wgt_mask = (1 << geometry.wgt_bits) - 1
    count = words.size

    length = row_length(words, geometry)
    transposed = length < 0
    length = abs(length)
    first = np.int64(words[0])
    dst_step = np.int64(1)
    src_step = np.int64(0)
    if length > 1:
        second = np.int64(words[count // length if transposed else 1])
        dst_step = (second & dst_mask) - (first & dst_mask)
        src_step = (second >> src_low & src_mask) - (first >> src_low & src_mask)

    # Any order of nesting gives the same sums, so the loops may be exchanged below.
    outer = GemmLoop(
        row[layout.ITER_OUT], row[layout.DST_OUT], row[layout.SRC_OUT], row[layout.WGT_OUT]
    )
    inner = GemmLoop(
        row[layout.ITER_IN], row[layout.DST_IN], row[layout.SRC_IN], row[layout.WGT_IN]
    )

    # Pairs of INP and WGT elements, one for each row of positions.
    capacity = geometry.depths[layout.UOP] + s.TABLE_PAIRS
    pair = sink.filled[s.FILLED_PAIRS]
    table = sink.pairs[pair : pair + capacity]
    rows = count // length
    stride = 1 if transposed else length
    for number in range(rows):
        word = np.int64(words[number * stride])
        table[number, s.PAIR_INP] = word >> src_low & src_mask
        table[number, s.PAIR_WGT] = word >> wgt_low & wgt_mask

    # A loop that stays at its accumulators only adds products to them: it is unrolled into pairs.
    per_row = 1
    if outer.dst == 0 and rows * outer.iterations <= table.shape[0]:
        per_row = unroll(table, words, stride, dst_mask, rows, per_row, outer)
        outer = NO_LOOP
    if inner.dst == 0 and rows * per_row * inner.iterations <= table.shape[0]:
        per_row = unroll(table, words, stride, dst_mask, rows, per_row, inner)
        inner = NO_LOOP
    consecutive = True
    for number in range(1, rows * per_row):
        if table[number, s.PAIR_WGT] != table[number - 1, s.PAIR_WGT] + 1:
            row_of = number // per_row
            other_dst = (words[row_of * stride] ^ words[(row_of - 1) * stride]) & dst_mask
            consecutive &= number % per_row == 0 and other_dst != 0
    if length == 1:
        # A loop that keeps its weights goes through the positions.
        if has_positions(outer) and not (
            has_positions(inner) and inner.iterations > outer.iterations
        ):
            length, dst_step, src_step = outer.iterations, outer.dst, outer.src
            outer = NO_LOOP
        elif has_positions(inner):
            length, dst_step, src_step = inner.iterations, inner.dst, inner.src
            inner = NO_LOOP
    # A loop over blocks of weights for the same inputs becomes the inner one: the fast path
    # multiplies two blocks in one tile.
    if shares_tile(outer, length, dst_step):
        outer, inner = inner, outer
    together = shares_tile(inner, length, dst_step)

    for iteration in range(outer.iterations):
        start, last = 0, -1
        while start < rows:
            dst = np.int64(words[start * stride]) & dst_mask
            end = start + 1
            while end < rows and np.int64(words[end * stride]) & dst_mask == dst:
                end += 1
            dst += iteration * outer.dst
            waiting = s.take_zeroed(sink, dst, dst_step, length, inner.dst, inner.iterations)
            if waiting == s.SOME:
                s.zero_waiting(sink)
            size = (end - start) * per_row
            if last >= 0 and last == sink.filled[s.STEPS] - 1:
                first_pair = pair + start * per_row
                if continues_lines(sink, last, dst, first_pair, size, waiting == s.ALL):
                    sink.steps[last, s.LINES] += 1
                    start = end
                    continue
            last = s.new_step(sink, s.PRODUCTS)
            step = sink.steps[last]
            step[s.COUNT] = length
            step[s.TARGET] = dst
            step[s.DST_STEP], step[s.BLOCK_STEP] = dst_step, inner.dst
            step[s.SRC], step[s.SRC_STEP] = iteration * outer.src, src_step
            step[s.SRC_BLOCK] = inner.src
            step[s.WGT], step[s.WGT_STEP] = iteration * outer.wgt, inner.wgt
            step[s.PAIR], step[s.PAIRS] = pair + start * per_row, size
            step[s.BLOCKS], step[s.TOGETHER] = inner.iterations, together
            step[s.FRESH], step[s.CONSECUTIVE] = waiting == s.ALL, consecutive
            step[s.LINES], step[s.LINE_STEP], step[s.SRC_LINE] = 1, 0, 0
            start = end
    sink.filled[s.FILLED_PAIRS] += rows * per_row


@compiled
def continues_lines(
    sink: s.Sink, at: Number, dst: Number, pair: Number, size: Number, fresh: Flag
) -> Flag:
    """True where products with `size` pairs from number `pair` on are one more line of the step
    `at`: they have its weights, and the distance from its last line that its lines have.

    A step of one line gets the distance from these products, which means nothing unless they are
    its second line.
    """
    step = sink.steps[at]
    first, lines = np.int64(step[s.PAIR]), np.int64(step[s.LINES])
    dst_distance = dst - step[s.TARGET]
    src_distance = np.int64(sink.pairs[pair, s.PAIR_INP] - sink.pairs[first, s.PAIR_INP])
    if lines == 1:
        step[s.LINE_STEP], step[s.SRC_LINE] = dst_distance, src_distance
    if step[s.PAIRS] != size or step[s.FRESH] != fresh:
        return False
    if dst_distance != lines * step[s.LINE_STEP] or src_distance != lines * step[s.SRC_LINE]:
        return False
    for number in range(size):
        added, original = sink.pairs[pair + number], sink.pairs[first + number]
        if added[s.PAIR_INP] - original[s.PAIR_INP] != src_distance:
            return False
        if added[s.PAIR_WGT] != original[s.PAIR_WGT]:
            return False
    return True


@compiled
def has_positions(loop: Any) -> Flag:
    """True for a loop whose iterations are positions: other accumulators, the same weights."""
    return loop.iterations > 1 and loop.dst > 0 and loop.wgt == 0


@compiled
def shares_tile(loop: Any, length: Number, dst_step: Number) -> Flag:
    """True for a loop of which two iterations can share a tile of `length` positions: they have the
    same inputs, and no accumulators in common."""
    if loop.iterations < 2 or loop.src != 0 or loop.dst == 0:
        return False
    return loop.dst % dst_step != 0 or loop.dst // dst_step >= length


@compiled
def unroll(
    pairs: Any,
    words: Any,
    stride: Number,
    dst_mask: Number,
    rows: Number,
    per_row: Number,
    loop: Any,
) -> Number:
    """Unroll a loop in place: give each group of rows with the same accumulators the pairs of all
    iterations. A row begins at every `stride`-th word, and has `per_row` pairs. Returns how many it
    has afterwards.

    Pairs move to higher numbers, so the last ones move first.
    """
    iterations = loop.iterations
    end = rows
    while end:
        start = end - 1
        dst = words[start * stride] & dst_mask
        while start and words[(start - 1) * stride] & dst_mask == dst:
            start -= 1
        size, source = (end - start) * per_row, start * per_row
        for iteration in range(iterations - 1, -1, -1):
            target = source * iterations + iteration * size
            for number in range(size - 1, -1, -1):
                added, original = pairs[target + number], pairs[source + number]
                added[s.PAIR_INP] = original[s.PAIR_INP] + iteration * loop.src
                added[s.PAIR_WGT] = original[s.PAIR_WGT] + iteration * loop.wgt
        end = start
    return per_row * iterations


@compiled
def row_length(words: Any, geometry: layout.Geometry) -> Number:
    """Number of positions in each row of micro-ops, negated where these are transposed, so that all
    products of one position follow each other; 1 where there is no such structure.

    A packed word has its fields side by side, so one difference of words compares all three.
    """
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
        if count % length or not has_equal_steps(first, step, length, geometry):
            return 1
        for start in range(length, count, length):
            line = words[start : start + length]
            begin = np.int64(line[0])
            same = True
            for number in range(length):
                same &= np.int64(line[number]) - begin == number * step
            if not same or not has_equal_steps(begin, step, length, geometry):
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
        if not has_equal_steps(np.int64(words[number]), step, count // length, geometry):
            return 1
    return -(count // length)


@compiled
def has_equal_steps(first: Number, step: Number, length: Number, geometry: layout.Geometry) -> Flag:
    """True where `length` micro-ops, from the word `first` on, with packed words `step` apart are
    positions: no field carries into the next, ACC rises, and WGT stays the same."""
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

"""Tiles: accumulators of a GEMM that stay in registers while products are added to them.

Loading and storing accumulators for each product would take longer than the products do. A tile is
a number of positions (`positions`) by a number of blocks of 16 outputs, and has 16 accumulators for
each position and block. They all stay in vector registers while it goes through a table of
(INP element, WGT element) pairs. A pair multiplies a row of 16 inputs by a block of 16x16 weights;
each further position uses an INP element one step further. For example, a tile of two positions,
one element apart, by one block computes for the pairs (3, 5) and (4, 6)

    ACC[0] += INP[3] * WGT[5] + INP[4] * WGT[6]
    ACC[1] += INP[4] * WGT[5] + INP[5] * WGT[6]

and loads WGT[5] and WGT[6] once for both positions.

Weights are packed in groups of 64 bytes: four for each output, which one instruction multiplies by
four inputs and adds up. VPDPBUSD multiplies unsigned by signed bytes, so 128 is added to the
inputs. The inputs (1, -2) and the weights (3, 4) give 129 * 3 + 126 * 4 = 891; the correction of
the block, -128 * (3 + 4) = -896, makes it 1 * 3 - 2 * 4 = -5.

Many blocks are mostly zero. A block's *form* (`paths`) is FULL, FIRST (only its first four inputs
have weights) or DIAGONAL; code that is specialised for a form leaves out the products with zeroes.

LLVM's scheduler would hoist loads until registers run out, and spill them. The products of each
position are one piece of inline assembly, inside which it moves nothing.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, VPDPBUSD and VPMADDWD."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import types

from potash_device.vta.fast.compiling import Number, emits, intrinsic
from potash_device.vta.fast.emitting import (
    ACC_BYTES,
    I8,
    I16,
    I32,
    I64,
    LANES,
    PAIR_BYTES,
    Addresses,
    Value,
    integer,
    load,
    scaled,
    shuffle,
    store,
    word,
)
from potash_device.vta.fast.paths import (
    BLOCK,
    DIAGONAL,
    FIRST,
    FIRST_INPUTS,
    FULL,
    Amx,
    AmxModel,
    Pairs8,
    Pairs16,
    Vnni256,
    Vnni512,
)

GROUP_BYTES = 4 * BLOCK
BIAS = 0x80808080
"""The bias of INP where the instruction multiplies unsigned bytes, in four bytes."""


@dataclass(frozen=True)
class Kind:
    """A path's layout of rows of inputs and blocks of weights, and its multiplying instruction."""

    value_bytes: int
    """Bytes of a value of INP and of WGT."""
    halves: int
    """Number of vectors that hold 16 accumulators: 1, or 2 for two halves."""
    product: str | None = None
    """The assembly that adds products of `weights` and `inputs` to `sums`; None where LLVM selects
    the instructions."""
    weights_in_registers: bool = False
    """True where a block's weights are loaded into registers once, for all positions."""
    registers: str = "x"
    """LLVM's constraint for the vector registers that the instruction can use."""
    corrected: bool = False
    """True where INP is biased, and each block has a correction."""
    form: int = FULL
    """The form that all blocks of a tile have."""

    @property
    def element_bytes(self) -> int:
        return BLOCK * self.value_bytes

    @property
    def groups(self) -> int:
        """Groups of weights in a block."""
        return self.element_bytes // 4

    @property
    def multiplied(self) -> int:
        """Number of groups to multiply; all others are zero in a block of this form."""
        return {FULL: self.groups, FIRST: FIRST_INPUTS * self.value_bytes // 4, DIAGONAL: 1}[
            self.form
        ]

    @property
    def block_bytes(self) -> int:
        return BLOCK * self.element_bytes

    @property
    def diagonal_bytes(self) -> int:
        """Bytes of the diagonal of a DIAGONAL block."""
        return 2 * BLOCK if self.product is None else ACC_BYTES

    @property
    def vector(self) -> Value:
        return ir.VectorType(I32, BLOCK // self.halves)

    @property
    def vector_bytes(self) -> int:
        return ACC_BYTES // self.halves


_VNNI512 = Kind(
    value_bytes=1,
    halves=1,
    product="vpdpbusd {weights}, {inputs}, {sums}",
    weights_in_registers=True,
    registers="v",
    corrected=True,
)
KINDS = {
    Vnni512: _VNNI512,
    Amx: _VNNI512,
    AmxModel: _VNNI512,
    Vnni256: Kind(
        value_bytes=1,
        halves=2,
        product="{{vex}} vpdpbusd {weights}, {inputs}, {sums}",
        corrected=True,
    ),
    Pairs8: Kind(value_bytes=2, halves=2),
    Pairs16: Kind(value_bytes=2, halves=1),
}


class Operands(NamedTuple):
    """The places of a tile's accumulators, inputs and weights. Steps are in elements."""

    position_step: Number
    """Step from a position to the next in ACC."""
    block_step: Number
    """Step from a block to the next in ACC."""
    source_step: Number
    """Step from a position to the next in INP."""
    weight: Number
    """WGT element that the pairs' WGT elements are relative to."""
    weight_step: Number
    """Step from a block to the next in WGT."""
    table: Number
    """Address of the pairs."""
    count: Number
    """Number of pairs."""
    fresh: Number
    """1 where the accumulators in memory are not read but begin as zero."""


@intrinsic
def tile(
    typing: Any,
    buffers: Any,
    form: Any,
    positions: Any,
    blocks: Any,
    acc: Any,
    source: Any,
    operands: Any,
) -> Any:
    """Add products to a tile of accumulators.

    `form`, which all blocks have, and the numbers of `positions` and `blocks` are compile-time
    constants. `acc` is the address of the first accumulators; the pairs' INP elements are relative
    to the element `source`. `operands` are `Operands`.
    """
    kind = replace(KINDS[buffers.instance_class], form=form.literal_value)
    position_count, block_count = positions.literal_value, blocks.literal_value
    signature = types.void(buffers, form, positions, blocks, types.int64, types.int64, operands)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        addresses = Addresses(context, builder, signature.args[0], arguments[0])
        acc, source = arguments[4:6]
        position_step, block_step, source_step, weight, weight_step, table, count, fresh = (
            context.cast(builder, builder.extract_value(arguments[6], at), given, types.int64)
            for at, given in enumerate(operands)
        )
        targets = [
            builder.add(
                acc,
                builder.mul(
                    integer(ACC_BYTES),
                    builder.add(
                        builder.mul(position_step, integer(x)), builder.mul(block_step, integer(y))
                    ),
                ),
            )
            for y in range(block_count)
            for x in range(position_count)
        ]
        size = kind.vector_bytes
        zero = ir.Constant(kind.vector, [0] * (BLOCK // kind.halves))
        start = builder.block
        reading = builder.function.append_basic_block("read")
        beginning = builder.function.append_basic_block("begin")
        builder.cbranch(builder.icmp_unsigned("==", fresh, integer(0)), reading, beginning)
        builder.position_at_end(reading)
        read = [
            [load(builder, place, half * size, kind.vector) for half in range(kind.halves)]
            for place in targets
        ]
        builder.branch(beginning)
        builder.position_at_end(beginning)
        first = [[builder.phi(kind.vector) for _ in vectors] for vectors in read]
        _add_incoming(first, read, reading)
        _add_incoming(first, [[zero] * kind.halves] * len(targets), start)
        corrections = [[zero] * kind.halves for _ in range(block_count if kind.corrected else 0)]

        before = builder.block
        loop = builder.function.append_basic_block("products")
        after = builder.function.append_basic_block("added")
        builder.branch(loop)
        builder.position_at_end(loop)
        index = builder.phi(I64)
        index.add_incoming(integer(0), before)
        sums = [[builder.phi(kind.vector) for _ in vectors] for vectors in first + corrections]
        _add_incoming(sums, first + corrections, before)

        pair = builder.add(table, builder.mul(index, integer(PAIR_BYTES)))
        src = builder.add(source, word(builder, pair, 0))
        wgt = builder.add(weight, word(builder, pair, 4))
        row = builder.add(addresses.inp, builder.mul(src, integer(kind.element_bytes)))
        step = builder.mul(source_step, integer(kind.element_bytes))
        numbers = [
            builder.add(wgt, builder.mul(weight_step, integer(y))) for y in range(block_count)
        ]
        if kind.form == DIAGONAL:
            packed, size_packed = addresses.diagonal, kind.diagonal_bytes
        else:
            packed, size_packed = addresses.wgt, kind.block_bytes
        weights = [
            _Weights(builder, kind, builder.add(packed, scaled(builder, n, size_packed)))
            for n in numbers
        ]
        added = list(sums)
        for x in range(position_count):
            if x:
                row = builder.add(row, step)
            chosen = [y * position_count + x for y in range(block_count)]
            flat = [vector for number in chosen for vector in sums[number]]
            result = _products(builder, kind, flat, row, weights)
            for at, number in enumerate(chosen):
                added[number] = result[at * kind.halves : (at + 1) * kind.halves]
        for y in range(len(corrections)):
            place = builder.add(addresses.correction, scaled(builder, numbers[y], ACC_BYTES))
            added[len(targets) + y] = [
                builder.add(vector, load(builder, place, half * size, kind.vector))
                for half, vector in enumerate(sums[len(targets) + y])
            ]
        following = builder.add(index, integer(1))
        index.add_incoming(following, loop)
        _add_incoming(sums, added, loop)
        builder.cbranch(builder.icmp_signed("<", following, count), loop, after)

        builder.position_at_end(after)
        for number, place in enumerate(targets):
            for half, vector in enumerate(added[number]):
                if kind.corrected:
                    vector = builder.add(
                        vector, added[len(targets) + number // position_count][half]
                    )
                store(builder, vector, place, half * size)
        return context.get_dummy_value()

    return signature, generate


@emits(types.int64)
def pair_weights(builder: Any, pairs: Any, number: Any) -> Any:
    """The WGT element of pair `number` of the table at address `pairs`."""
    return word(builder, builder.add(pairs, scaled(builder, number, PAIR_BYTES)), 4)


@intrinsic
def pack(typing: Any, buffers: Any, source: Any, number: Any) -> Any:
    """Put the block of 16x16 8-bit weights at address `source` into WGT as element `number`."""
    kind = KINDS[buffers.instance_class]
    signature = types.void(buffers, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        addresses = Addresses(context, builder, signature.args[0], arguments[0])
        _, source, number = arguments
        target = builder.add(addresses.wgt, scaled(builder, number, kind.block_bytes))
        # A loaded vector has four outputs, each in four lanes of four weights. A packed group has
        # one lane of each of the 16 outputs.
        quarters = [load(builder, source, quarter * GROUP_BYTES) for quarter in range(4)]
        groups = []
        for group in range(4):
            lanes = [4 * output + group for output in range(8)]
            low = shuffle(builder, quarters[0], quarters[1], lanes)
            high = shuffle(builder, quarters[2], quarters[3], lanes)
            groups.append(shuffle(builder, low, high, range(BLOCK)))
        narrow = groups
        if kind.value_bytes == 2:
            groups = [half for group in groups for half in _widened(builder, group)]
        for group, vector in enumerate(groups):
            store(builder, vector, target, group * GROUP_BYTES)
        if kind.corrected:
            place = builder.add(addresses.correction, scaled(builder, number, ACC_BYTES))
            for half in range(kind.halves):
                store(
                    builder,
                    _correction(builder, kind, groups, half),
                    place,
                    half * kind.vector_bytes,
                )
        if "forms" in buffers.fields:
            place = builder.inttoptr(builder.add(addresses.forms, number), I8.as_pointer())
            builder.store(ir.Constant(I8, FULL), place)
            # Most blocks are FULL, so test a few weights first: those of the last four inputs and
            # the first 12 outputs, which are zero in a block of any other form.
            tested = ir.Constant(LANES, [-1] * 12 + [0] * 4)
            with builder.if_then(_is_zero(builder, [narrow[3]], [tested])):
                form, diagonal = _form(builder, narrow)
                builder.store(form, place)
                size = kind.diagonal_bytes
                place = builder.add(addresses.diagonal, scaled(builder, number, size))
                if kind.product is None:
                    values = builder.trunc(diagonal, ir.VectorType(I8, BLOCK))
                    diagonal = builder.sext(values, ir.VectorType(I16, BLOCK))
                store(builder, diagonal, place)
        return context.get_dummy_value()

    return signature, generate


def _correction(builder: Any, kind: Kind, groups: Sequence[Value], half: int) -> Value:
    """The correction of a block in packed groups: its negated products with inputs of the bias."""
    lanes = kind.vector.count
    zero = ir.Constant(kind.vector, [0] * lanes)
    inputs = ir.Constant(kind.vector, [BIAS] * lanes)
    assert kind.product is not None
    line = kind.product.format(weights="$1", inputs="$2", sums="$0")
    called = ir.FunctionType(kind.vector, [kind.vector] * 3)
    code = ir.InlineAsm(called, line, "=x,x,x,0", False)
    added = zero
    for group in groups:
        weights = shuffle(builder, group, group, range(half * lanes, (half + 1) * lanes))
        added = builder.call(code, [weights, inputs, added])
    return builder.sub(zero, added)


def _is_zero(builder: Any, vectors: Sequence[Value], masks: Sequence[Value]) -> Value:
    """True where vectors of 16 lanes are zero in all bits of their masks."""
    zero = ir.Constant(LANES, [0] * BLOCK)
    found = zero
    for vector, mask in zip(vectors, masks, strict=True):
        found = builder.or_(found, builder.and_(vector, mask))
    bits = builder.bitcast(builder.icmp_unsigned("!=", found, zero), ir.IntType(BLOCK))
    return builder.icmp_unsigned("==", bits, ir.Constant(bits.type, 0))


def _form(builder: Any, groups: Sequence[Value]) -> tuple[Value, Value]:
    """The form of a block in packed groups, and its diagonal, each weight in its output's lane."""
    shifts = [8 * (output % 4) for output in range(BLOCK)]
    diagonal_masks = [
        [255 << shift if output // 4 == group else 0 for output, shift in enumerate(shifts)]
        for group in range(4)
    ]
    later_input_masks = [[-1 if 4 * group >= FIRST_INPUTS else 0] * BLOCK for group in range(4)]
    off_diagonal_masks = [[~mask for mask in masks] for masks in diagonal_masks]
    form = ir.Constant(I8, FULL)
    for number, masks in ((FIRST, later_input_masks), (DIAGONAL, off_diagonal_masks)):
        has_form = _is_zero(builder, groups, [ir.Constant(LANES, mask) for mask in masks])
        form = builder.or_(
            form, builder.select(has_form, ir.Constant(I8, number), ir.Constant(I8, FULL))
        )
    diagonal = ir.Constant(LANES, [0] * BLOCK)
    for vector, mask in zip(groups, diagonal_masks, strict=True):
        diagonal = builder.or_(diagonal, builder.and_(vector, ir.Constant(LANES, mask)))
    return form, builder.lshr(diagonal, ir.Constant(LANES, shifts))


class _Weights:
    """A block of weights: in registers, or in memory at an address."""

    def __init__(self, builder: Any, kind: Kind, address: Value) -> None:
        self.address = address
        self.loaded = (
            [load(builder, address, group * GROUP_BYTES) for group in range(kind.multiplied)]
            if kind.weights_in_registers
            else []
        )


def _products(
    builder: Any, kind: Kind, sums: list[Value], row: Value, weights: Sequence[_Weights]
) -> list[Value]:
    """The `sums` of one position, with the products of `row` and each block added to them."""
    if kind.product is None:
        return _pair_products(builder, kind, sums, row, weights)
    given = [row]
    for block in weights:
        given += block.loaded or [block.address]
    # Numbers of the assembly's operands: first the outputs, which are the sums and a scratch
    # register for the inputs; then the incoming sums, in the same registers; then `given`.
    inputs = f"${len(sums)}"
    address, *operands = (f"${2 * len(sums) + 1 + number}" for number in range(len(given)))
    lines = []
    for group in range(kind.multiplied):
        if kind.form == DIAGONAL:
            # A weight is the lowest byte of its lane, and so is its input.
            lines.append(f"vpmovzxbd ({address}), {inputs}")
        else:
            lines.append(f"vpbroadcastd {4 * group}({address}), {inputs}")
        for number in range(len(sums)):
            which, half = divmod(number, kind.halves)
            if kind.weights_in_registers:
                operand = operands[which * kind.multiplied + group]
            else:
                operand = f"{group * GROUP_BYTES + half * kind.vector_bytes}({operands[which]})"
            lines.append(kind.product.format(weights=operand, inputs=inputs, sums=f"${number}"))
    results = [kind.vector] * (len(sums) + 1)
    constraints = [f"=&{kind.registers}"] * len(results)
    constraints += [str(number) for number in range(len(sums))]
    constraints += ["r" if value.type == I64 else kind.registers for value in given]
    arguments = [*sums, *given]
    called = ir.FunctionType(ir.LiteralStructType(results), [value.type for value in arguments])
    code = ir.InlineAsm(called, "\n".join(lines), ",".join(constraints), False)
    result = builder.call(code, arguments)
    return [builder.extract_value(result, number) for number in range(len(sums))]


def _pair_products(
    builder: Any, kind: Kind, sums: list[Value], row: Value, weights: Sequence[_Weights]
) -> list[Value]:
    """The result of `_products`, with pairs of 16-bit products, which LLVM turns into the
    processor's instructions (VPMADDWD)."""
    result = list(sums)
    lanes = kind.vector.count
    if kind.form == DIAGONAL:
        for half in range(kind.halves):
            values = [
                load(builder, address, 2 * lanes * half, ir.VectorType(I16, lanes))
                for address in (row, weights[0].address)
            ]
            product = builder.mul(*(builder.sext(value, kind.vector) for value in values))
            result[half] = builder.add(result[half], product)
        return result
    pairs, wide = ir.VectorType(I16, 2 * lanes), ir.VectorType(I32, 2 * lanes)
    for group in range(kind.multiplied):
        word = load(builder, row, 4 * group, I32)
        undefined = ir.Constant(kind.vector, ir.Undefined)
        lane = builder.insert_element(undefined, word, ir.Constant(I32, 0))
        inputs = builder.bitcast(shuffle(builder, lane, lane, [0] * lanes), pairs)
        for number in range(len(sums)):
            which, half = divmod(number, kind.halves)
            offset = group * GROUP_BYTES + half * kind.vector_bytes
            values = load(builder, weights[which].address, offset, pairs)
            products = builder.mul(builder.sext(inputs, wide), builder.sext(values, wide))
            even = shuffle(builder, products, products, range(0, 2 * lanes, 2))
            odd = shuffle(builder, products, products, range(1, 2 * lanes, 2))
            result[number] = builder.add(result[number], builder.add(even, odd))
    return result


def _widened(builder: Any, group: Value) -> list[Value]:
    """Two groups of 16-bit values, made from one group of 8-bit values."""
    values = builder.bitcast(group, ir.VectorType(I8, 4 * BLOCK))
    wide = builder.bitcast(
        builder.sext(values, ir.VectorType(I16, 4 * BLOCK)), ir.VectorType(I32, 2 * BLOCK)
    )
    return [shuffle(builder, wide, wide, range(half, 2 * BLOCK, 2)) for half in range(2)]


def _add_incoming(
    sums: Sequence[Sequence[Value]], values: Sequence[Sequence[Value]], block: Value
) -> None:
    for phis, given in zip(sums, values, strict=True):
        for phi, value in zip(phis, given, strict=True):
            phi.add_incoming(value, block)

"""Products in the tile registers of AMX.

A vector register holds the 16 accumulators of one position; a tile register holds those of up to 16
positions. One instruction multiplies up to 16 rows of inputs by up to four blocks of weights, one
below the other: INP elements that follow each other are a row, and WGT as it is packed already has
the layout that the instruction needs. For example, for 14 positions and three pairs, registers of
sums are configured as 14 rows of 64 bytes (16 accumulators each), those of inputs as 14 rows of 48
bytes (three INP elements), and that of weights as 12 rows of 64 bytes (three packed blocks). One
instruction then adds up 14 * 3 * 256 = 10 752 products.

Of the eight tile registers, four add up products, two hold inputs and one holds weights. The last
one is a guard: some virtual machines lose the contents of tiles, but not their configuration, when
another thread gets the processor. So sums start from zero and are stored to a buffer, and are added
to the accumulators only if the guard has its contents then; otherwise all is done again.

A processor may lack AMX, so tests emit a model of the instructions instead (`INSTRUCTIONS`): all
code around them is the same.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, "Programming with
Intel Advanced Matrix Extensions", and the instructions LDTILECFG, TDPBSSD, TILELOADD, TILERELEASE,
TILESTORED and TILEZERO.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from potash_device.vta.fast.compiling import intrinsic
from potash_device.vta.fast.emitting import (
    ACC_BYTES,
    I32,
    I64,
    LANES,
    PAIR_BYTES,
    Addresses,
    Value,
    integer,
    load,
    scaled,
    store,
    word,
)
from potash_device.vta.fast.paths import BLOCK, Amx

MOST_ROWS = 16
MOST_PAIRS = 4
"""Pairs of INP and WGT elements whose products one instruction adds up."""
SUMS, INPUTS, WEIGHTS, GUARD = (0, 1, 2, 3), (4, 5), 6, 7
"""Numbers of the registers for each purpose."""
GUARD_BYTES = 4
REGISTER_BYTES, ROW_BYTES = 1024, 64
CONFIGURATION_BYTES = 64
PALETTE, BYTES_AT, ROWS_AT = 1, 16, 48
"""Fields of a configuration: its first byte, the offset of the 16-bit numbers of bytes in a row,
and that of the 8-bit numbers of rows."""
ELEMENT_BYTES, BLOCK_BYTES = BLOCK, BLOCK * BLOCK


class Assembly:
    """Emits the instructions."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def configure(self, address: Value) -> None:
        self._emit("ldtilecfg ($0)", address)

    def release(self) -> None:
        self._emit("tilerelease")

    def zero(self, tile: int) -> None:
        self._emit(f"tilezero %tmm{tile}")

    def load(self, tile: int, address: Value, stride: Value) -> None:
        self._emit(f"tileloadd ($0,$1,1), %tmm{tile}", address, stride)

    def store(self, tile: int, address: Value, stride: Value) -> None:
        self._emit(f"tilestored %tmm{tile}, ($0,$1,1)", address, stride)

    def multiply(self, sums: int, inputs: int, weights: int) -> None:
        self._emit(f"tdpbssd %tmm{weights}, %tmm{inputs}, %tmm{sums}")

    def _emit(self, line: str, *operands: Value) -> None:
        kind = ir.FunctionType(ir.VoidType(), [I64] * len(operands))
        constraints = ",".join(["r"] * len(operands) + ["~{memory}"])
        self._builder.call(ir.InlineAsm(kind, line, constraints, True), operands)


INSTRUCTIONS: dict[type, Callable[[Any, Addresses], Assembly]] = {
    Amx: lambda builder, addresses: Assembly(builder)
}
"""Makes the emitter of the instructions, by path. Tests add one of a model of them."""


def _instructions(
    context: Any, builder: Any, kind: Any, buffers: Value
) -> tuple[Assembly, Addresses]:
    addresses = Addresses(context, builder, kind, buffers)
    return INSTRUCTIONS[kind.instance_class](builder, addresses), addresses


def configuration(rows: Value, pairs: Value, builder: Any) -> Sequence[Value]:
    """The eight words of a configuration for so many rows of inputs, and pairs for each."""
    quads, bytes_of_inputs = scaled(builder, pairs, 4), scaled(builder, pairs, ELEMENT_BYTES)
    bytes_of = dict.fromkeys((*SUMS, WEIGHTS), integer(ROW_BYTES))
    bytes_of |= dict.fromkeys(INPUTS, bytes_of_inputs) | {GUARD: integer(GUARD_BYTES)}
    rows_of = dict.fromkeys((*SUMS, *INPUTS), rows) | {WEIGHTS: quads, GUARD: integer(1)}
    words = [integer(0)] * (CONFIGURATION_BYTES // 8)
    words[0] = integer(PALETTE)
    for at, size, values in ((BYTES_AT, 2, bytes_of), (ROWS_AT, 1, rows_of)):
        for tile, value in values.items():
            number, low = divmod(at + size * tile, 8)
            words[number] = builder.or_(words[number], builder.shl(value, integer(8 * low)))
    return words


@intrinsic
def configure(typing: Any, buffers: Any, rows: Any, pairs: Any) -> Any:
    """Configure this thread's registers for `rows` rows of inputs, of `pairs` pairs each."""
    signature = types.void(buffers, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        buffers, rows, pairs = arguments
        emit, _ = _instructions(context, builder, signature.args[0], buffers)
        words = ir.ArrayType(I64, CONFIGURATION_BYTES // 8)
        place = builder.ptrtoint(cgutils.alloca_once(builder, words), I64)  # type: ignore[no-untyped-call]
        for number, value in enumerate(configuration(rows, pairs, builder)):
            store(builder, value, place, 8 * number)
        emit.configure(place)
        emit.load(GUARD, place, integer(GUARD_BYTES))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def release_tiles(typing: Any, buffers: Any) -> Any:
    """Give up this thread's registers."""
    signature = types.void(buffers)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit, _ = _instructions(context, builder, signature.args[0], arguments[0])
        emit.release()
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def multiply(
    typing: Any,
    buffers: Any,
    windows: Any,
    blocks: Any,
    acc: Any,
    source: Any,
    shape: Any,
    operands: Any,
) -> Any:
    """Add products to the accumulators of `windows` times as many positions as a register has rows,
    and of `blocks` blocks.

    `windows` and `blocks` are constants, at most four by one, two by two or one by four. `shape` is
    the registers' configuration, rows and pairs. The other parameters are those of `tiles.tile`.
    """
    across, down = windows.literal_value, blocks.literal_value
    signature = types.void(buffers, windows, blocks, types.int64, types.int64, shape, operands)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit, addresses = _instructions(context, builder, signature.args[0], arguments[0])
        acc, source = arguments[3:5]
        rows, together = (
            context.cast(builder, builder.extract_value(arguments[5], at), given, types.int64)
            for at, given in enumerate(shape)
        )
        position_step, block_step, source_step, weight, weight_step, table, count, fresh = (
            context.cast(builder, builder.extract_value(arguments[6], at), given, types.int64)
            for at, given in enumerate(operands)
        )
        inp_stride = scaled(builder, source_step, ELEMENT_BYTES)
        tiles = range(across * down)
        kind = ir.ArrayType(LANES, len(SUMS) * MOST_ROWS + 1)
        buffer = builder.ptrtoint(cgutils.alloca_once(builder, kind), I64)  # type: ignore[no-untyped-call]
        guard = builder.add(buffer, integer(len(SUMS) * REGISTER_BYTES))

        again = builder.function.append_basic_block("again")
        loop = builder.function.append_basic_block("tiles")
        multiplied = builder.function.append_basic_block("multiplied")
        lost = builder.function.append_basic_block("lost")
        kept = builder.function.append_basic_block("kept")
        builder.branch(again)
        builder.position_at_end(again)
        for tile in tiles:
            emit.zero(SUMS[tile])
        builder.branch(loop)
        builder.position_at_end(loop)
        index = builder.phi(I64)
        index.add_incoming(integer(0), again)
        pair = builder.add(table, scaled(builder, index, PAIR_BYTES))
        src = builder.add(source, word(builder, pair, 0))
        wgt = builder.add(weight, word(builder, pair, 4))
        for y in range(down):
            number = builder.add(wgt, scaled(builder, weight_step, y))
            block = builder.add(addresses.wgt, scaled(builder, number, BLOCK_BYTES))
            emit.load(WEIGHTS, block, integer(ROW_BYTES))
            for x in range(across):
                own = INPUTS[x % len(INPUTS)]
                if y == 0:
                    first = builder.add(src, scaled(builder, builder.mul(rows, source_step), x))
                    place = builder.add(addresses.signed, scaled(builder, first, ELEMENT_BYTES))
                    emit.load(own, place, inp_stride)
                emit.multiply(SUMS[y * across + x], own, WEIGHTS)
        following = builder.add(index, together)
        index.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, count), loop, multiplied)

        builder.position_at_end(multiplied)
        for tile in tiles:
            place = builder.add(buffer, integer(tile * REGISTER_BYTES))
            emit.store(SUMS[tile], place, integer(ROW_BYTES))
        emit.store(GUARD, guard, integer(GUARD_BYTES))
        found = load(builder, guard, 0, I32)
        builder.cbranch(builder.icmp_unsigned("!=", found, ir.Constant(I32, 0)), kept, lost)
        builder.position_at_end(lost)
        store(builder, ir.Constant(I32, 1), guard)
        emit.load(GUARD, guard, integer(GUARD_BYTES))
        builder.branch(again)

        builder.position_at_end(kept)
        is_fresh = builder.icmp_unsigned("!=", fresh, integer(0))
        zero = ir.Constant(LANES, [0] * BLOCK)
        with cgutils.for_range(builder, rows) as row:
            for tile in tiles:
                y, x = divmod(tile, across)
                position = builder.add(row.index, scaled(builder, rows, x))
                element = builder.add(
                    builder.mul(position, position_step), scaled(builder, block_step, y)
                )
                place = builder.add(acc, scaled(builder, element, ACC_BYTES))
                before = builder.select(is_fresh, zero, load(builder, place, 0))
                own = builder.add(buffer, scaled(builder, row.index, ROW_BYTES))
                sums = load(builder, own, tile * REGISTER_BYTES)
                store(builder, builder.add(before, sums), place)
        return context.get_dummy_value()

    return signature, generate

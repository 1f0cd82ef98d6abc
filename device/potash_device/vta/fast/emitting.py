"""LLVM code around the kernels in assembly: addresses, loads and shuffles."""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from potash_device.vta.fast.paths import BLOCK

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
LANES = ir.VectorType(I32, BLOCK)
ACC_BYTES = 4 * BLOCK
PAIR_BYTES = 8
"""Size of an entry of the table of pairs: two 32-bit numbers."""
Value = Any


class Addresses:
    """The addresses of the arrays of a path's buffers, as attributes of the same names."""

    def __init__(self, context: Any, builder: Any, kind: Any, buffers: Value) -> None:
        self._of = {}
        for number, (name, array) in enumerate(zip(kind.fields, kind.types, strict=True)):
            made = context.make_array(array)(
                context, builder, builder.extract_value(buffers, number)
            )
            self._of[name] = builder.ptrtoint(made.data, I64)

    def __getattr__(self, name: str) -> Value:
        return self._of[name]


def integer(value: int) -> Value:
    return ir.Constant(I64, value)


def on_stack(builder: Any, kind: Value) -> Value:
    """The address of uninitialised stack memory for a value. numba's own function would write
    zeroes, which also takes long to compile."""
    with builder.goto_entry_block():
        return builder.ptrtoint(builder.alloca(kind), I64)


def scaled(builder: Any, number: Value, size: int) -> Value:
    return builder.mul(number, integer(size))


def word(builder: Any, address: Value, offset: int) -> Value:
    return builder.sext(load(builder, address, offset, I32), I64)


def load(builder: Any, address: Value, offset: int, kind: Value = LANES) -> Value:
    where = builder.add(address, integer(offset))
    value = builder.load(builder.inttoptr(where, kind.as_pointer()))
    value.align = 1
    return value


def store(builder: Any, vector: Value, address: Value, offset: int = 0) -> None:
    where = builder.add(address, integer(offset))
    builder.store(vector, builder.inttoptr(where, vector.type.as_pointer())).align = 1


def shuffle(builder: Any, first: Value, second: Value, lanes: Sequence[int]) -> Value:
    return builder.shuffle_vector(
        first, second, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
    )

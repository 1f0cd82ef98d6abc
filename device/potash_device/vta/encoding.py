"""The position of every field of an instruction and of a micro-op, derived from one table,
`_table`.

Field widths follow the depths of the on-chip buffers, so two cores of different sizes share no
binaries.

Source: the VTA project's `hw_spec.h` (structures VTAMemInsn, VTAGemInsn, VTAAluInsn, VTAUop)."""

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

WORD_BITS = 64
INSTRUCTION_BYTES = 16
MICRO_OP_BITS = 32

SRAM_ADDRESS_BITS = 16
DRAM_ADDRESS_BITS = 32
SIZE_BITS = 16
PAD_BITS = 4
ITERATION_BITS = 14
IMMEDIATE_BITS = 16


class InstructionError(ValueError):
    """A field, an opcode or a value that the encoding does not have."""


class Depths(NamedTuple):
    """Base-two logarithms of the buffers' depths in elements: what field widths follow."""

    uop: int
    inp: int
    wgt: int
    acc: int


class Field(NamedTuple):
    """`width` bits from bit `low`; a signed field is in two's complement."""

    name: str
    low: int
    width: int
    signed: bool

    @property
    def mask(self) -> int:
        return (1 << self.width) - 1

    @property
    def high(self) -> int:
        """The last of the field's bits; below `low` where it has none."""
        return self.low + self.width - 1

    @property
    def minimum(self) -> int:
        return -(1 << self.width - 1) if self.signed else 0

    @property
    def maximum(self) -> int:
        return self.mask >> 1 if self.signed else self.mask


@dataclass(frozen=True)
class Layout:
    """The fields of one kind of word, which `kind` names in messages."""

    kind: str
    fields: tuple[Field, ...]

    @functools.cached_property
    def by_name(self) -> Mapping[str, Field]:
        return {field.name: field for field in self.fields}

    @functools.cached_property
    def _defined_bits(self) -> int:
        return sum(field.mask << field.low for field in self.fields)

    @functools.cached_property
    def _limits(self) -> tuple[tuple[str, int, int, int, int], ...]:
        return tuple(
            (field.name, field.low, field.minimum, field.maximum, field.mask)
            for field in self.fields
        )

    def reserved(self, word: int) -> int:
        """The bits of `word` that no field names."""
        return word & ~self._defined_bits

    def pack(self, values: Mapping[str, int]) -> int:
        """The word in which every field has its value. Raises InstructionError where one is too
        big or too small for its field."""
        word = 0
        for name, low, minimum, maximum, mask in self._limits:
            value = operator.index(values[name])
            if not minimum <= value <= maximum:
                raise InstructionError(
                    f"{self.kind}: {name} is {value}, outside {minimum} to {maximum}"
                )
            word |= (value & mask) << low
        return word

    def unpack(self, word: int) -> dict[str, int]:
        """The value of every field. Raises InstructionError where a reserved bit is set."""
        if reserved := self.reserved(word):
            bit = (reserved & -reserved).bit_length() - 1
            raise InstructionError(f"{self.kind}: reserved bit {bit} is set")
        return self.read(word)

    def read(self, word: int) -> dict[str, int]:
        """The value of every field, whatever the reserved bits are."""
        values = {}
        for name, low, width, signed in self.fields:
            value = word >> low & (1 << width) - 1
            if signed and value >> width - 1:
                value -= 1 << width
            values[name] = value
        return values


class Layouts(NamedTuple):
    """The layout of every kind of word that a core of one configuration reads."""

    memory: Layout
    gemm: Layout
    alu: Layout
    finish: Layout
    micro_op: Layout


_Row = tuple[str, int]
_Words = tuple[tuple[_Row, ...], ...]

SIGNED_FIELDS = frozenset({"imm"})

RESERVED = ""
"""The name of bits between fields that have to be zero."""

OPCODE_BITS = 3
HEAD: tuple[_Row, ...] = (("opcode", OPCODE_BITS), ("dependencies", 4))


def _table(depths: Depths) -> dict[str, _Words]:
    """Name and width of every field, word by word, from the lowest bit up."""
    loops: tuple[_Row, ...] = (
        ("uop_bgn", depths.uop),
        ("uop_end", depths.uop + 1),
        ("iter_out", ITERATION_BITS),
        ("iter_in", ITERATION_BITS),
    )
    dst_src_factors: tuple[_Row, ...] = (
        ("dst_factor_out", depths.acc),
        ("dst_factor_in", depths.acc),
        ("src_factor_out", depths.inp),
        ("src_factor_in", depths.inp),
    )
    return {
        "memory": (
            (
                *HEAD,
                ("memory_type", 3),
                ("sram_base", SRAM_ADDRESS_BITS),
                ("dram_base", DRAM_ADDRESS_BITS),
            ),
            (
                ("y_size", SIZE_BITS),
                ("x_size", SIZE_BITS),
                ("x_stride", SIZE_BITS),
                ("y_pad_0", PAD_BITS),
                ("y_pad_1", PAD_BITS),
                ("x_pad_0", PAD_BITS),
                ("x_pad_1", PAD_BITS),
            ),
        ),
        "gemm": (
            (*HEAD, ("reset", 1), *loops),
            (*dst_src_factors, ("wgt_factor_out", depths.wgt), ("wgt_factor_in", depths.wgt)),
        ),
        "alu": (
            # In hw_spec.h bit 7 is "reset" here too; no implementation reads it in an ALU
            # instruction, so it has to be zero.
            (*HEAD, (RESERVED, 1), *loops),
            (*dst_src_factors, ("alu_opcode", 3), ("use_imm", 1), ("imm", IMMEDIATE_BITS)),
        ),
        "finish": (HEAD,),
        "micro_op": ((("dst", depths.acc), ("src", depths.inp), ("wgt", depths.wgt)),),
    }


@functools.cache
def layouts(depths: Depths) -> Layouts:
    """The layouts for buffers of `depths`. Raises InstructionError where fields do not fit."""
    return Layouts(**{kind: _place(kind, words) for kind, words in _table(depths).items()})


_BUFFERS: Mapping[str, str] = {
    "uop": "LOG_UOP_BUFF_SIZE",
    "dst": "LOG_ACC_BUFF_SIZE",
    "src": "LOG_INP_BUFF_SIZE",
    "wgt": "LOG_WGT_BUFF_SIZE",
}
"""The keys of the configuration on which fields depend, by how their names begin."""


def _place(kind: str, words: _Words) -> Layout:
    limit = MICRO_OP_BITS if kind == "micro_op" else WORD_BITS
    fields = []
    for number, word in enumerate(words):
        low = number * WORD_BITS
        for name, width in word:
            if name != RESERVED:
                fields.append(Field(name, low, width, name in SIGNED_FIELDS))
            low += width
        used = low - number * WORD_BITS
        if used > limit:
            buffers = [
                key
                for prefix, key in _BUFFERS.items()
                if any(name.startswith(prefix) for name, _ in word)
            ]
            raise InstructionError(
                f"these buffers are too deep: word {number} of the {kind} encoding "
                f"would need {used} bits and has {limit}; reduce {' or '.join(buffers)}"
            )
    return Layout(kind, tuple(fields))

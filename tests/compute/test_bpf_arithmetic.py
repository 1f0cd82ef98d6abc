"""Arithmetic against C's integers (`ctypes`, which wraps as C does) and RFC 9669, section 4."""

import ctypes
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.bpf import (
    ADD,
    ALU,
    ALU64,
    AND,
    ARSH,
    DIV,
    END,
    LSH,
    MOD,
    MOV,
    MUL,
    NEG,
    OR,
    RSH,
    SUB,
    XOR,
    K,
    X,
    execute,
    exit_,
    insn,
    lddw,
    mov_reg,
)

EDGES = [0, 1, 2, 31, 32, 33, 63, 64, 65, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF]
EDGES += [0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
words = st.one_of(st.sampled_from(EDGES), st.integers(0, (1 << 64) - 1))
immediates = st.one_of(
    st.sampled_from([0, 1, -1, 31, 63, 64, -(1 << 31), (1 << 31) - 1]),
    st.integers(-(1 << 31), (1 << 31) - 1),
)

Unsigned = type[ctypes.c_uint32] | type[ctypes.c_uint64]
UNSIGNED: dict[int, Unsigned] = {ALU: ctypes.c_uint32, ALU64: ctypes.c_uint64}
SIGNED: dict[int, type[ctypes.c_int32] | type[ctypes.c_int64]] = {
    ALU: ctypes.c_int32,
    ALU64: ctypes.c_int64,
}
WIDTH = {ALU: 32, ALU64: 64}

CLASSES = pytest.mark.parametrize("kind", [ALU, ALU64], ids=["alu32", "alu64"])


def binary(kind: int, code: int, dst: int, src: int, offset: int = 0) -> int:
    """What `dst op= src` leaves in dst, both in registers."""
    return execute(
        lddw(1, dst), lddw(2, src), insn(kind | code | X, 1, 2, offset), mov_reg(0, 1), exit_
    ).value


def immediate(kind: int, code: int, dst: int, imm: int, offset: int = 0) -> int:
    """What `dst op= imm` leaves in dst."""
    return execute(
        lddw(1, dst), insn(kind | code | K, 1, 0, offset, imm), mov_reg(0, 1), exit_
    ).value


PLAIN: dict[str, tuple[int, Callable[[int, int, int], int]]] = {
    "add": (ADD, lambda a, b, n: a + b),
    "sub": (SUB, lambda a, b, n: a - b),
    "mul": (MUL, lambda a, b, n: a * b),
    "or": (OR, lambda a, b, n: a | b),
    "and": (AND, lambda a, b, n: a & b),
    "xor": (XOR, lambda a, b, n: a ^ b),
    "lsh": (LSH, lambda a, b, n: a * 2 ** (b % n)),
    "rsh": (RSH, lambda a, b, n: a // 2 ** (b % n)),
    "mov": (MOV, lambda a, b, n: b),
    "div": (DIV, lambda a, b, n: a // b if b else 0),
    "mod": (MOD, lambda a, b, n: a % b if b else a),
}


@CLASSES
@pytest.mark.parametrize("name", PLAIN)
@given(dst=words, src=words, imm=immediates)
def test_unsigned_operations_wrap_at_their_width(
    kind: int, name: str, dst: int, src: int, imm: int
) -> None:
    code, operation = PLAIN[name]
    wrap = UNSIGNED[kind]

    def expected(operand: int) -> int:
        return wrap(operation(wrap(dst).value, wrap(operand).value, WIDTH[kind])).value

    assert binary(kind, code, dst, src) == expected(src)
    assert immediate(kind, code, dst, imm) == expected(imm)


@CLASSES
@given(dst=words, src=words, imm=immediates)
def test_arithmetic_shift_keeps_the_sign(kind: int, dst: int, src: int, imm: int) -> None:
    def expected(operand: int) -> int:
        value = SIGNED[kind](dst).value  # dividing rounds down, as the shift does
        return UNSIGNED[kind](value // 2 ** (operand % WIDTH[kind])).value

    assert binary(kind, ARSH, dst, src) == expected(src)
    assert immediate(kind, ARSH, dst, imm) == expected(imm)


@CLASSES
@given(dst=words, src=words)
def test_signed_division_and_modulo_truncate(kind: int, dst: int, src: int) -> None:
    a, b = SIGNED[kind](dst).value, SIGNED[kind](src).value
    quotient = 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    remainder = a if b == 0 else a - b * quotient
    assert binary(kind, DIV, dst, src, offset=1) == UNSIGNED[kind](quotient).value
    assert binary(kind, MOD, dst, src, offset=1) == UNSIGNED[kind](remainder).value


@pytest.mark.parametrize(
    ("dividend", "divisor", "quotient", "remainder"),
    [(-13, 3, -4, -1), (13, -3, -4, 1), (-13, -3, 4, -1), (13, 3, 4, 1), (-1, 4, 0, -1)],
)
@CLASSES
def test_signed_modulo_is_that_of_c(
    kind: int, dividend: int, divisor: int, quotient: int, remainder: int
) -> None:
    """Section 4.1: -13 % 3 == -1."""
    wrap = UNSIGNED[kind]
    dst = dividend & (1 << 64) - 1
    assert immediate(kind, DIV, dst, divisor, offset=1) == wrap(quotient).value
    assert immediate(kind, MOD, dst, divisor, offset=1) == wrap(remainder).value


@pytest.mark.parametrize("offset", [0, 1], ids=["unsigned", "signed"])
def test_division_by_zero_is_zero_and_modulo_leaves_the_dividend(offset: int) -> None:
    dividend = 0xFEDC_BA98_8765_4321
    assert binary(ALU64, DIV, dividend, 0, offset) == 0
    assert binary(ALU, DIV, dividend, 0, offset) == 0
    assert binary(ALU64, MOD, dividend, 0, offset) == dividend
    assert binary(ALU, MOD, dividend, 0, offset) == 0x8765_4321


def test_the_most_negative_number_divided_by_minus_one_wraps() -> None:
    minus_one = (1 << 64) - 1
    assert binary(ALU64, DIV, 1 << 63, minus_one, offset=1) == 1 << 63
    assert binary(ALU64, MOD, 1 << 63, minus_one, offset=1) == 0
    assert binary(ALU, DIV, 1 << 31, minus_one, offset=1) == 1 << 31
    assert binary(ALU, MOD, 1 << 31, minus_one, offset=1) == 0


def test_a_wide_unsigned_division_sign_extends_its_immediate() -> None:
    assert immediate(ALU64, DIV, (1 << 64) - 1, -1) == 1
    assert immediate(ALU64, DIV, (1 << 64) - 2, -1) == 0
    assert immediate(ALU, DIV, 0xFFFF_FFFF, -1) == 1


@CLASSES
@given(dst=words)
def test_negation_wraps(kind: int, dst: int) -> None:
    assert immediate(kind, NEG, dst, 0) == UNSIGNED[kind](-dst).value


@pytest.mark.parametrize(
    ("kind", "bits"), [(ALU, 8), (ALU, 16), (ALU64, 8), (ALU64, 16), (ALU64, 32)]
)
@given(src=words)
def test_movsx_extends_the_sign(kind: int, bits: int, src: int) -> None:
    narrow = {8: ctypes.c_int8, 16: ctypes.c_int16, 32: ctypes.c_int32}[bits](src).value
    assert binary(kind, MOV, 0x5555, src, offset=bits) == UNSIGNED[kind](narrow).value


@pytest.mark.parametrize(("bits", "form"), [(16, "H"), (32, "I"), (64, "Q")])
@given(value=words)
def test_byte_swaps_cut_to_their_width_and_turn(bits: int, form: str, value: int) -> None:
    low = value & (1 << bits) - 1
    turned = struct.unpack(">" + form, struct.pack("<" + form, low))[0]

    def swap(opcode: int) -> int:
        return execute(lddw(1, value), insn(opcode, 1, imm=bits), mov_reg(0, 1), exit_).value

    assert swap(ALU | END | K) == low  # htole
    assert swap(ALU | END | X) == turned  # htobe
    assert swap(ALU64 | END | K) == turned  # bswap

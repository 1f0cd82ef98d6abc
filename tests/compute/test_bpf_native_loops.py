"""Compiled loops against the interpreter: what is proven of their accesses in front of them."""

import pytest

from potash_firmware.bpf.errors import FaultKind
from support.bpf import U64, exit_, insn, lddw, load, mov, mov_reg
from support.bpf_native import DW, OUTPUT, RODATA, B, case, own_cache, same, same_each

__all__ = ["own_cache"]


def loop_to(first: int, bound: int, *, size: int = DW, step: int = 8) -> list[bytes]:
    """Fill memory from the address `first` up to `bound`, in steps."""
    return [
        lddw(1, first),
        lddw(2, bound),
        mov(0, 0),
        insn(0x62 | size, 1, 0, 0, 0x11111111),  # 5: the store
        insn(0x07, 0, imm=1),
        insn(0x07, 1, imm=step),
        insn(0xAD, 1, 2, -4),
        exit_,
    ]


def test_a_loop_up_to_the_last_byte() -> None:
    seen = same(case(*loop_to(OUTPUT, RODATA)))
    assert (seen.value, seen.executed) == (1024, 3 + 4 * 1024 + 1)
    assert seen.memory[8192:16384] == b"\x11\x11\x11\x11\0\0\0\0" * 1024


@pytest.mark.parametrize("over", [1, 8, 4096])
def test_a_loop_beyond_it_stops_where_it_must(over: int) -> None:
    seen = same(case(*loop_to(OUTPUT + over % 8, RODATA + over), fill=0))
    assert seen.fault is not None
    first = RODATA if over % 8 == 0 else RODATA - 8 + over % 8
    assert seen.fault[:3] == (FaultKind.READ_ONLY, 5, first)


@pytest.mark.parametrize("limit", [1, 5, 4 * 1024 + 5, 4 * 1024 + 6, 4 * 1024 + 7])
def test_the_limit_in_a_counted_loop_is_exact(limit: int) -> None:
    """Three instructions, two of them wide, four in each iteration, and the exit."""
    seen = same(case(*loop_to(OUTPUT, RODATA), limit=limit))
    assert (seen.fault is None) == (limit >= 3 + 4 * 1024 + 1)


@pytest.mark.parametrize("jump", [0xA5, 0xAD, 0xA6, 0xAE, 0xCD, 0xCE, 0x5D, 0x5E])
def test_bounds_of_every_size_end_loops_as_they_should(jump: int) -> None:
    """`do { input[i] += 1 } while (++i < bound)`, in 64 and 32 bits, signed and not."""
    functions = []
    for bound in (0, 1, 2**31, 2**32 - 1, 2**32, 2**63, U64):
        if jump == 0xA5:
            test = insn(0xA5, 3, 0, -6, bound & 0x7FFF_FFFF)
        else:
            test = insn(jump, 3, 4, -6)
        code = [
            lddw(4, bound),
            mov(3, 0),
            mov_reg(2, 1),  # 3
            insn(0x0F, 2, 3),
            load(0, 2, 0, B),
            insn(0x73, 2, 0, 0),
            insn(0x07, 3, imm=1),
            test,
            exit_,
        ]
        functions.append(b"".join(code))
    # Those that go on for long get to the constants soon.
    same_each(functions, (RODATA - 512, OUTPUT))


JNE, JLT, JLE, JGT, JGE, JSLE, JSGT, JSGE = 0x50, 0xA0, 0xB0, 0x20, 0x30, 0xD0, 0x60, 0x70


ENDS = [
    (JNE, 0, 80, 8),
    (JNE, 0, 8192, 8),
    (JNE, 0, 8200, 8),
    (JNE, 0, 84, 8),  # is never met
    (JNE, 100, 0, 8),  # nor is this
    (JNE, 84, 0, -8),
    (JNE, 80, 0, -8),
    (JNE, 0, 80, -8),
    (JLT, 0, 8192, 8),
    (JLT, 0, 8193, 8),
    (JLT, 5, 0, 1),
    (JLT, -5, 10, 1),
    (JLE, 0, 8184, 8),
    (JLE, 0, 8192, 8),
    (JSLE, 0, 8184, 8),
    (JSLE, 0, 8192, 8),
    (JSLE, -16, 8184, 8),
    (JSLE, -8192, 8, 8),
    (JSLE, -8200, 8, 8),
    (JGT, 8191, 0, -3),  # passes 0, and is large again
    (JGT, 8190, 0, -3),
    (JGE, 10, 0, -1),  # so is this
    (JGE, 10, 1, -1),
    (JSGE, 10, 0, -1),
    (JSGE, 10, -8192, -6),
    (JSGE, 9, -8193, -6),
    (JSGT, 10, -8193, -6),
    (JSGT, 8192, 0, -1),
]
"""How a loop goes on, and its counter: where it begins, up to where, in which steps."""


@pytest.mark.parametrize("narrow", [False, True], ids=["64", "32"])
@pytest.mark.parametrize("at_top", [False, True], ids=["bottom", "top"])
def test_ends_of_loops(narrow: bool, at_top: bool) -> None:
    """`for (i = first; i goes_on bound; i += step) output[i] = i`, the test at its top or not.

    There are 8192 bytes in front of the output and behind its beginning; then come constants.
    """
    opposite = {JNE: 0x10, JLT: JGE, JLE: JGT, JGT: JLE, JGE: JLT}
    signed = {JSLE: JSGT, JSGT: JSLE, JSGE: 0xC0}
    jump, add = (0x0E, 0x04) if narrow else (0x0D, 0x07)
    functions = []
    for goes_on, first, bound, step in ENDS:
        body = [mov_reg(5, 2), insn(0x0F, 5, 3), insn(0x73, 5, 3), insn(add, 3, imm=step)]
        if at_top:
            leaves = (opposite | signed)[goes_on]
            loop = [insn(leaves | jump, 3, 4, len(body) + 1), *body, insn(0x05, offset=-6)]
        else:
            loop = [*body, insn(goes_on | jump, 3, 4, -5)]
        functions.append(b"".join([mov(3, first), mov(4, bound), *loop, exit_]))
    same_each(functions)


def test_a_test_that_only_some_iterations_pass_ends_nothing() -> None:
    """`for (;; i += 8) { if (!r6 && i >= 32) break; output[i] = i; }`, with r6 = 1."""
    code = [
        mov(6, 1),
        mov(3, 0),
        insn(0x55, 6, 0, 1, 0),
        insn(0x35, 3, 0, 5, 32),
        mov_reg(5, 2),
        insn(0x0F, 5, 3),
        insn(0x73, 5, 3),
        insn(0x07, 3, imm=8),
        insn(0x05, offset=-7),
        exit_,
    ]
    seen = same(case(*code))
    assert seen.fault is not None
    assert seen.fault[:3] == (FaultKind.READ_ONLY, 6, RODATA)


@pytest.mark.parametrize("most", [8184, 8192])
def test_a_register_that_only_some_iterations_add_to(most: int) -> None:
    """Every second of as many iterations moves on; the last ones are near the constants, or there."""
    iterations = most // 8 * 2
    code = [
        mov(3, 0),
        mov_reg(5, 2),
        insn(0x7B, 5, 3),  # 2: the store
        mov_reg(4, 3),
        insn(0x57, 4, imm=1),
        insn(0x15, 4, 0, 1, 0),
        insn(0x07, 5, imm=8),
        insn(0x07, 3, imm=1),
        insn(0xA5, 3, 0, -7, iterations + 1),
        exit_,
    ]
    seen = same(case(*code))
    assert (seen.fault is None) == (most == 8184)


def test_a_counted_loop_is_not_entered_without_the_fuel_for_it() -> None:
    """Its iterations would take days."""
    code = [
        lddw(4, 1 << 40),
        mov(3, 0),
        insn(0xDB, 1, 3),
        insn(0x07, 3, imm=1),
        insn(0xAD, 3, 4, -3),
    ]
    seen = same(case(*code, exit_, limit=10_000))
    assert seen.fault is not None
    assert seen.fault[0] is FaultKind.INSTRUCTION_LIMIT


@pytest.mark.parametrize("add", [0x04, 0x07], ids=["32 bits", "64 bits"])
@pytest.mark.parametrize("copy", [(0xBF, 0), (0xBC, 0), (0xBF, 32)], ids=["64", "u32", "s32"])
def test_an_index_that_does_not_count_in_64_bits(add: int, copy: tuple[int, int]) -> None:
    """`*(u8 *)(input + 64 + (type)index)` four times; what the type makes of it decides."""
    opcode, offset = copy
    functions = []
    for first in (-8, 0xFFFF_FFF8, 0x7FFF_FFF8, 0):
        code = [
            lddw(5, first & U64),
            mov(3, 0),
            insn(opcode, 4, 5, offset),  # 3
            insn(0x0F, 4, 1),
            load(0, 4, 64, B),
            insn(add, 5, imm=4),
            insn(0x07, 3, imm=1),
            insn(0xA5, 3, 0, -6, 4),
            exit_,
        ]
        functions.append(b"".join(code))
    same_each(functions)

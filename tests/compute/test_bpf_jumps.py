"""Jumps, local calls and helper calls: RFC 9669, section 4.3."""

import ctypes
import operator
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_firmware.bpf.errors import Fault, FaultKind
from potash_firmware.bpf.isa import CODE_BASE
from support.bpf import (
    JEQ,
    JGE,
    JGT,
    JLE,
    JLT,
    JMP,
    JMP32,
    JNE,
    JSET,
    JSGE,
    JSGT,
    JSLE,
    JSLT,
    LAYOUT,
    U64,
    K,
    X,
    call,
    call_local,
    execute,
    exit_,
    insn,
    lddw,
    load,
    mov,
    mov_reg,
    store,
)

EDGES = [0, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 1 << 32, (1 << 63) - 1, 1 << 63, U64]
words = st.one_of(st.sampled_from(EDGES), st.integers(0, U64))
immediates = st.one_of(st.sampled_from([0, 1, -1, -(1 << 31)]), st.integers(-(1 << 31), 2**31 - 1))

Compare = Callable[[int, int], bool]
UNSIGNED: dict[str, tuple[int, Compare]] = {
    "jeq": (JEQ, operator.eq),
    "jne": (JNE, operator.ne),
    "jgt": (JGT, operator.gt),
    "jge": (JGE, operator.ge),
    "jlt": (JLT, operator.lt),
    "jle": (JLE, operator.le),
    "jset": (JSET, lambda a, b: bool(a & b)),
}
SIGNED: dict[str, tuple[int, Compare]] = {
    "jsgt": (JSGT, operator.gt),
    "jsge": (JSGE, operator.ge),
    "jslt": (JSLT, operator.lt),
    "jsle": (JSLE, operator.le),
}
INTEGERS: dict[tuple[int, bool], Callable[[int], ctypes.c_uint64 | ctypes.c_int64]] = {
    (JMP, False): ctypes.c_uint64,
    (JMP, True): ctypes.c_int64,
}
NARROW: dict[bool, Callable[[int], ctypes.c_uint32 | ctypes.c_int32]] = {
    False: ctypes.c_uint32,
    True: ctypes.c_int32,
}

CLASSES = pytest.mark.parametrize("kind", [JMP, JMP32], ids=["jmp", "jmp32"])


def as_c(kind: int, is_signed: bool, value: int) -> int:
    """`value` as the C type that the comparison is made in."""
    if kind == JMP:
        return INTEGERS[JMP, is_signed](value).value
    return NARROW[is_signed](value).value


def taken(jump: bytes, dst: int, src: int) -> bool:
    """Whether `jump`, over the instruction behind it, was taken."""
    code = [mov(0, 1), lddw(1, dst), lddw(2, src), jump, mov(0, 0), exit_]
    return execute(*code).value == 1


@CLASSES
@pytest.mark.parametrize("name", UNSIGNED | SIGNED)
@given(dst=words, src=words, imm=immediates)
def test_conditions(kind: int, name: str, dst: int, src: int, imm: int) -> None:
    code, compare = (UNSIGNED | SIGNED)[name]

    def expected(operand: int) -> bool:
        return compare(as_c(kind, name in SIGNED, dst), as_c(kind, name in SIGNED, operand))

    assert taken(insn(kind | code | X, 1, 2, 1), dst, src) == expected(src)
    assert taken(insn(kind | code | K, 1, 0, 1, imm), dst, src) == expected(imm)


def test_ja_jumps_by_its_offset_and_ja32_by_its_immediate() -> None:
    assert execute(mov(0, 7), insn(0x05, offset=1), mov(0, 8), exit_).value == 7
    assert execute(mov(0, 7), insn(0x06, imm=1), mov(0, 8), exit_).value == 7


def test_a_jump_backwards_makes_a_loop() -> None:
    loop = [insn(0x0F, 0, 1), insn(0x17, 1, imm=1), insn(0x55, 1, offset=-3)]
    assert execute(mov(1, 10), *loop, exit_).value == sum(range(11))


def test_a_local_call_keeps_the_callers_registers_and_frame() -> None:
    """r6 to r10 are the caller's again after the return; r0 is the callee's."""
    caller = [
        mov(6, 6),
        mov(9, 9),
        insn(0x7A, 10, offset=-8, imm=77),  # *(u64 *)(r10 - 8) = 77
        call_local(6),
        mov_reg(7, 0),
        load(0, 10, -8),
        insn(0x0F, 0, 6),
        insn(0x0F, 0, 9),
        insn(0x0F, 0, 7),
        exit_,
    ]
    callee = [mov(6, 1000), mov(9, 1000), insn(0x7A, 10, offset=-8, imm=5), mov(0, 100), exit_]
    assert execute(*caller, *callee).value == 77 + 6 + 9 + 100


def test_a_function_sees_nothing_of_its_caller_but_the_arguments() -> None:
    caller = [mov(register, 1 << register) for register in range(10)]
    callee = [insn(0x0F, 0, register) for register in range(1, 10)]
    called = execute(*caller, call_local(1), exit_, *callee, exit_).value
    assert called == sum(1 << register for register in range(1, 6))


def test_a_caller_finds_its_arguments_as_they_were() -> None:
    caller = [mov(1, 7), call_local(2), mov_reg(0, 1), exit_]
    assert execute(*caller, mov(1, 0), exit_).value == 7


def test_a_callees_frame_lies_512_bytes_below() -> None:
    caller = [mov_reg(6, 10), call_local(3), insn(0x1F, 6, 0), mov_reg(0, 6), exit_]  # r6 -= r0
    callee = [mov_reg(0, 10), exit_]
    assert execute(*caller, *callee).value == 512


def test_a_pointer_into_the_callers_frame_works_in_the_callee() -> None:
    caller = [mov_reg(1, 10), insn(0x07, 1, imm=-16), call_local(2), load(0, 10, -16), exit_]
    callee = [mov(2, 31), store(1, 2), exit_]
    assert execute(*caller, *callee).value == 31


def nested(depth: int) -> list[bytes]:
    """`depth` functions that call each other in a row, the entry included; r1 counts them."""
    step = [insn(0x07, 1, imm=1), call_local(1), exit_]
    return [*(step * (depth - 1)), insn(0x07, 1, imm=1), mov_reg(0, 1), exit_]


def test_eight_functions_may_be_active_and_nine_may_not() -> None:
    assert execute(*nested(8)).value == 8
    with pytest.raises(Fault) as caught:
        execute(*nested(9))
    assert caught.value.kind is FaultKind.CALL_DEPTH
    assert caught.value.pc == 3 * 7 + 1


def test_a_recursion_without_end_is_stopped() -> None:
    with pytest.raises(Fault) as caught:
        execute(call_local(-1), exit_)
    assert caught.value.kind is FaultKind.CALL_DEPTH


def test_a_helper_gets_five_arguments_and_its_value_goes_to_r0() -> None:
    seen = []

    def helper(*arguments: int) -> int:
        seen.append(arguments)
        return -1

    code = [mov(register, register * 11) for register in range(1, 6)]
    assert execute(*code, call(9), exit_, helpers={9: helper}).value == U64
    assert seen == [(11, 22, 33, 44, 55)]


def test_callx_takes_a_helpers_number_from_a_register() -> None:
    code = [mov(3, 9), insn(0x8D, 3), exit_]
    assert execute(*code, helpers={9: lambda *arguments: 1234}).value == 1234


def test_callx_follows_a_pointer_to_a_function() -> None:
    callee = [mov(0, 55), exit_]
    address_of = lddw(2, 3, src=4)  # code_addr: three instructions behind the next slot
    assert execute(address_of, insn(0x8D, 2), exit_, mov(0, 1), *callee).value == 55


def test_a_code_address_cannot_be_read() -> None:
    with pytest.raises(Fault) as caught:
        execute(lddw(2, 1, src=4), load(0, 2), exit_)
    assert caught.value.kind is FaultKind.OUT_OF_BOUNDS


@pytest.mark.parametrize(
    "pointer", [CODE_BASE + 4, CODE_BASE + 8 * 4, CODE_BASE - 8, U64, LAYOUT.size]
)
def test_a_call_through_a_wild_pointer_faults(pointer: int) -> None:
    with pytest.raises(Fault) as caught:
        execute(lddw(2, pointer), insn(0x8D, 2), exit_)
    assert caught.value.kind in (FaultKind.OUTSIDE_PROGRAM, FaultKind.UNKNOWN_HELPER)
    assert caught.value.pc == 2


def test_an_unknown_helper_faults() -> None:
    with pytest.raises(Fault, match="no helper 77") as caught:
        execute(mov(0, 0), call(77), exit_, helpers={1: lambda *arguments: 0})
    assert (caught.value.kind, caught.value.pc) == (FaultKind.UNKNOWN_HELPER, 1)


def test_the_instruction_limit_is_exact() -> None:
    """Three instructions are executed: three are enough and two are not."""
    code = [mov(0, 1), mov(0, 2), exit_]
    assert execute(*code, limit=3).value == 2
    with pytest.raises(Fault) as caught:
        execute(*code, limit=2)
    assert (caught.value.kind, caught.value.pc) == (FaultKind.INSTRUCTION_LIMIT, 2)


def test_a_loop_without_end_is_stopped() -> None:
    with pytest.raises(Fault) as caught:
        execute(insn(0x05, offset=-1))
    assert caught.value.kind is FaultKind.INSTRUCTION_LIMIT


@pytest.mark.parametrize("code", [mov(0, 0), insn(0x05, offset=100), insn(0x05, offset=-2)])
def test_running_out_of_the_program_faults(code: bytes) -> None:
    with pytest.raises(Fault) as caught:
        execute(code)
    assert caught.value.kind is FaultKind.OUTSIDE_PROGRAM


def test_a_jump_into_the_middle_of_a_wide_instruction_faults() -> None:
    with pytest.raises(Fault) as caught:
        execute(insn(0x05, offset=1), lddw(1, 0), exit_)
    assert (caught.value.kind, caught.value.pc) == (FaultKind.INVALID_INSTRUCTION, 2)

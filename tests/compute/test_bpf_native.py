"""Compiled programs against the interpreter: values, memory, calls, faults, and the limit."""

import struct
import threading
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from potash_firmware.bpf import reserve
from potash_firmware.bpf.arena import Layout
from potash_firmware.bpf.engine import Engine, execute
from potash_firmware.bpf.errors import EngineUnavailable, Fault, FaultKind
from potash_firmware.bpf.native import compiler
from potash_firmware.bpf.verifier import verify
from support.bpf import LAYOUT, U64, arena, call, exit_, insn, lddw, load, mov, mov_reg, store
from support.bpf_native import own_cache
from support.bpf_programs import HELPERS, Case, Observed, observe, soup, structured
from support.bpf_vectors import VECTORS

__all__ = ["own_cache"]

BASE = 0x1000_0000
CODE_BASE = 1 << 40
INPUT, OUTPUT, RODATA = BASE + 4096, BASE + 8192, BASE + 16384
END = RODATA + 64
B, H, W, DW = 0x10, 0x08, 0x00, 0x18


def same(case: Case) -> Observed:
    """Run a case on both engines, which must agree; gives what was seen."""
    expected = observe(Engine.INTERPRETER, case)
    seen = observe(Engine.NATIVE, case)
    if expected.fault is not None and expected.fault[0] is FaultKind.INSTRUCTION_LIMIT:
        assert seen.fault is not None
        assert seen.fault[0] is FaultKind.INSTRUCTION_LIMIT
    else:
        assert seen == expected
    return seen


def case(
    *code: bytes, limit: int = 100_000, arguments: tuple[int, ...] = (INPUT, OUTPUT), fill: int = 0
) -> Case:
    return Case(b"".join(code), 0, arguments, bytes([fill]) * LAYOUT.size, limit)


seeds = st.integers(0, 2**32)
random_programs = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(random_programs, max_examples=15)
@given(seeds)
def test_programs_as_compilers_make_them(seed: int) -> None:
    program = structured(Random(seed))
    verify(program.code, program.entry, HELPERS)
    same(program)


@settings(random_programs, max_examples=10)
@given(seeds)
def test_programs_that_jump_anywhere(seed: int) -> None:
    program = soup(Random(seed))
    verify(program.code, program.entry, HELPERS)
    same(program)


@pytest.mark.slow
def test_many_programs() -> None:
    for seed in range(20_000):
        same(structured(Random(seed)))
        same(soup(Random(seed)))


@pytest.mark.parametrize(
    "which",
    [slice(0, None, 5), pytest.param(slice(None), marks=pytest.mark.slow)],
    ids=["a fifth", "all"],
)
def test_vectors_of_the_standard(which: slice) -> None:
    """They are functions of one program, whose entry calls the one that r5 points at."""
    vectors = VECTORS[which]
    functions = [vector.code for vector in vectors]
    head = 2 * len(functions) + 2
    starts = []
    at = head
    for function in functions:
        starts.append(at)
        at += len(function) // 8
    addresses = [lddw(0, start - 2 * index - 1, src=4) for index, start in enumerate(starts)]
    code = b"".join([*addresses, insn(0x8D, 5), exit_, *functions])
    verify(code, 0, ())
    wrong = []
    for vector, start in zip(vectors, starts, strict=True):
        memory = bytearray(LAYOUT.size)
        memory[4096 : 4096 + len(vector.memory)] = vector.memory
        arguments = (INPUT, len(vector.memory), 0, 0, CODE_BASE + 8 * start)
        value, _ = execute(Engine.NATIVE, code, 0, arena(memory), {}, arguments, 100_000)
        if value != vector.value:
            wrong.append((vector.name, hex(value), hex(vector.value)))
    assert wrong == []


# Faults


FAULTS: dict[str, tuple[list[bytes], FaultKind, int, int | None]] = {
    "the second of accesses that are checked together": (
        [lddw(1, END - 8), load(2, 1), load(3, 1, 8), load(4, 1, -8), exit_],
        FaultKind.OUT_OF_BOUNDS,
        3,
        END,
    ),
    "the first of them": (
        [lddw(1, BASE), load(2, 1, 8), load(3, 1, -1, B), load(4, 1, 16), exit_],
        FaultKind.OUT_OF_BOUNDS,
        3,
        BASE - 1,
    ),
    "a write where a read is allowed": (
        [lddw(1, RODATA), load(2, 1), store(1, 2), exit_],
        FaultKind.READ_ONLY,
        3,
        RODATA,
    ),
    "half an access": ([lddw(1, END - 4), load(2, 1), exit_], FaultKind.OUT_OF_BOUNDS, 2, END - 4),
    "behind a frame": (
        [insn(0x7B, 10, 1, -520), insn(0x79, 2, 10, -4104), exit_],
        FaultKind.OUT_OF_BOUNDS,
        1,
        BASE - 8,
    ),
    "a span as large as offsets allow": (
        [lddw(1, BASE + 8192), load(2, 1, 32767, B), load(3, 1, -32768, B), exit_],
        FaultKind.OUT_OF_BOUNDS,
        2,
        BASE + 8192 + 32767,
    ),
    "an address that wraps": ([mov(1, -4), load(2, 1, 4), exit_], FaultKind.OUT_OF_BOUNDS, 1, 0),
    "an unaligned atomic operation": (
        [lddw(1, INPUT + 4), insn(0xDB, 1, 2), exit_],
        FaultKind.UNALIGNED,
        2,
        INPUT + 4,
    ),
    "an atomic operation on constants": (
        [lddw(1, RODATA), insn(0xDB, 1, 2, 0, 0xF1), exit_],
        FaultKind.READ_ONLY,
        2,
        RODATA,
    ),
    "an unknown helper": ([mov(0, 0), call(77), exit_], FaultKind.UNKNOWN_HELPER, 1, None),
    "a pointer that is no function": (
        [lddw(2, CODE_BASE + 80), insn(0x8D, 2), exit_],
        FaultKind.OUTSIDE_PROGRAM,
        2,
        CODE_BASE + 80,
    ),
    "a call without end": (
        [mov(0, 0), insn(0x85, src=1, imm=-2), exit_],
        FaultKind.CALL_DEPTH,
        1,
        None,
    ),
    "a jump into an LDDW": (
        [insn(0x05, offset=1), lddw(1, 0), exit_],
        FaultKind.INVALID_INSTRUCTION,
        2,
        None,
    ),
    "a jump outside": ([insn(0x05, offset=99), exit_], FaultKind.OUTSIDE_PROGRAM, 100, None),
    "a fault in a function": (
        [mov(1, 16), insn(0x85, src=1, imm=1), exit_, load(0, 1), exit_],
        FaultKind.OUT_OF_BOUNDS,
        3,
        16,
    ),
}


NARROW = [insn(0xBC, 2, 1), insn(0xBC, 3, 7)]  # w2 = w1, w3 = w7


@pytest.mark.parametrize(
    "code",
    [
        # What is loaded through a 32-bit pointer is another address than the pointer's.
        [mov(4, 99), store(1, 4), insn(0xBC, 2, 1), load(2, 2, 0, W), load(0, 2), exit_],
        # The difference of two 32-bit values is not 0.
        [mov_reg(7, 2), *NARROW, insn(0x1F, 2, 3), lddw(5, INPUT), load(6, 5), load(0, 2), exit_],
        [*NARROW, insn(0x0F, 2, 3), load(4, 2), load(5, 3), exit_],
        [insn(0xBC, 2, 1), insn(0x04, 2, imm=-8), load(4, 1), load(5, 2), load(6, 2, -4096), exit_],
    ],
)
def test_halves_of_registers_are_told_apart(code: list[bytes]) -> None:
    same(case(*code))


@pytest.mark.parametrize("name", FAULTS)
def test_faults_name_the_instruction_and_the_address(name: str) -> None:
    code, kind, pc, address = FAULTS[name]
    seen = same(case(*code))
    assert seen.fault is not None
    assert seen.fault[:3] == (kind, pc, address)


def test_what_was_stored_before_a_fault_is_there_and_nothing_behind_it() -> None:
    code = [lddw(1, END - 136), *(insn(0x7A, 1, 0, at, imm=1) for at in range(0, 160, 8)), exit_]
    memory = same(case(*code)).memory
    words = struct.unpack("<9Q", memory[RODATA - BASE - 72 : RODATA - BASE])
    assert words == (1,) * 9


# Loops whose accesses are proven in front of them


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
    """Three instructions, two of them wide, four in each turn, and the exit."""
    seen = same(case(*loop_to(OUTPUT, RODATA), limit=limit))
    assert (seen.fault is None) == (limit >= 3 + 4 * 1024 + 1)


@pytest.mark.parametrize("bound", [0, 1, 2**31, 2**32 - 1, 2**32, 2**63, U64])
@pytest.mark.parametrize("jump", [0xA5, 0xAD, 0xA6, 0xAE, 0xCD, 0xCE, 0x5D, 0x5E])
def test_bounds_of_every_size_end_loops_as_they_should(jump: int, bound: int) -> None:
    """`do { input[i] += 1 } while (++i < bound)`, in 64 and 32 bits, signed and not."""
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
    same(case(*code))


JNE, JLT, JLE, JGT, JGE, JSLE, JSGT, JSGE = 0x50, 0xA0, 0xB0, 0x20, 0x30, 0xD0, 0x60, 0x70


@pytest.mark.parametrize(
    ("goes_on", "first", "bound", "step"),
    [
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
        (JSGE, 10, -8192, -1),
        (JSGE, 10, -8193, -1),
        (JSGT, 10, -8193, -1),
        (JSGT, 8192, 0, -1),
    ],
)
@pytest.mark.parametrize("narrow", [False, True], ids=["64", "32"])
@pytest.mark.parametrize("at_top", [False, True], ids=["bottom", "top"])
def test_ends_of_loops(
    goes_on: int, first: int, bound: int, step: int, narrow: bool, at_top: bool
) -> None:
    """`for (i = first; i goes_on bound; i += step) output[i] = i`, the test at its top or not.

    There are 8192 bytes in front of the output and behind its beginning; then come constants.
    """
    opposite = {JNE: 0x10, JLT: JGE, JLE: JGT, JGT: JLE, JGE: JLT}
    signed = {JSLE: JSGT, JSGT: JSLE, JSGE: 0xC0}
    jump, add = (0x0E, 0x04) if narrow else (0x0D, 0x07)
    body = [
        mov_reg(5, 2),
        insn(0x0F, 5, 3),
        insn(0x73, 5, 3),
        insn(add, 3, imm=step),
    ]
    if at_top:
        leaves = (opposite | signed)[goes_on]
        loop = [insn(leaves | jump, 3, 4, len(body) + 1), *body, insn(0x05, offset=-6)]
    else:
        loop = [*body, insn(goes_on | jump, 3, 4, -5)]
    same(case(mov(3, first), mov(4, bound), *loop, exit_))


def test_a_test_that_only_some_turns_pass_ends_nothing() -> None:
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
def test_a_register_that_only_some_turns_add_to(most: int) -> None:
    """Every second of as many turns moves on; the last ones are near the constants, or there."""
    turns = most // 8 * 2
    code = [
        mov(3, 0),
        mov_reg(5, 2),
        insn(0x7B, 5, 3),  # 2: the store
        mov_reg(4, 3),
        insn(0x57, 4, imm=1),
        insn(0x15, 4, 0, 1, 0),
        insn(0x07, 5, imm=8),
        insn(0x07, 3, imm=1),
        insn(0xA5, 3, 0, -7, turns + 1),
        exit_,
    ]
    seen = same(case(*code))
    assert (seen.fault is None) == (most == 8184)


def test_a_counted_loop_is_not_entered_without_the_fuel_for_it() -> None:
    """Its turns would take days."""
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
@pytest.mark.parametrize("first", [-8, 0xFFFF_FFF8, 0x7FFF_FFF8, 0])
def test_an_index_that_does_not_count_in_64_bits(
    add: int, copy: tuple[int, int], first: int
) -> None:
    """`*(u8 *)(input + 64 + (type)index)` four times; what the type makes of it decides."""
    opcode, offset = copy
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
    same(case(*code))


# Helpers


def run(*code: bytes, helpers: dict[int, Callable[..., int]], limit: int = 10_000) -> int:
    return execute(Engine.NATIVE, b"".join(code), 0, arena(), helpers, (), limit).value


def test_a_helpers_value_and_arguments() -> None:
    seen: list[tuple[int, ...]] = []

    def helper(*arguments: int) -> int:
        seen.append(arguments)
        return -1

    code = [mov(register, -register) for register in range(1, 6)]
    assert run(*code, call(4), exit_, helpers={4: helper}) == U64
    assert seen == [tuple(2**64 - register for register in range(1, 6))]


class Unforeseen(BaseException):
    pass


@pytest.mark.parametrize("error", [Unforeseen(), KeyboardInterrupt(), ValueError("x")])
def test_an_exception_of_a_helper_comes_out_as_it_is(error: BaseException) -> None:
    def helper(*arguments: int) -> int:
        raise error

    after = mov(0, 1)
    with pytest.raises(type(error)) as caught:
        run(insn(0x85, src=1, imm=2), after, exit_, call(4), exit_, helpers={4: helper})
    assert caught.value is error


def test_a_fault_in_a_helper_gets_the_calls_instruction() -> None:
    def helper(*arguments: int) -> int:
        raise Fault(FaultKind.HELPER_FAILED, None, None, "no")

    with pytest.raises(Fault) as caught:
        run(mov(0, 0), call(4), exit_, helpers={4: helper})
    assert (caught.value.kind, caught.value.pc) == (FaultKind.HELPER_FAILED, 1)


def test_a_helper_is_not_called_beyond_the_limit() -> None:
    seen = []

    def helper(*arguments: int) -> int:
        seen.append(arguments)
        return 0

    with pytest.raises(Fault) as caught:
        run(call(4), insn(0x05, offset=-2), exit_, helpers={4: helper}, limit=7)
    assert caught.value.kind is FaultKind.INSTRUCTION_LIMIT
    assert len(seen) == 4  # the instructions 1, 3, 5 and 7


def test_nor_is_one_in_a_row_of_calls() -> None:
    seen = []

    def helper(*arguments: int) -> int:
        seen.append(arguments)
        return 0

    with pytest.raises(Fault):
        run(call(4), call(4), call(4), exit_, helpers={4: helper}, limit=2)
    assert len(seen) == 2


def test_what_a_helper_writes_is_what_is_read_next() -> None:
    memory = bytearray(LAYOUT.size)
    space = arena(memory)

    def helper(*arguments: int) -> int:
        space.write(INPUT, 8, 99)
        return 0

    code = [lddw(6, INPUT), load(7, 6), call(4), load(0, 6), exit_]
    value, _ = execute(Engine.NATIVE, b"".join(code), 0, space, {4: helper}, (), 100)
    assert value == 99


# What surrounds a run


def test_other_threads_run_meanwhile() -> None:
    """The program waits, counting, for what only another thread can do to its memory."""
    memory = reserve.allocate(LAYOUT.size)
    code = [lddw(1, INPUT), mov(2, 0), insn(0xDB, 1, 2, 0, 0x01), insn(0x15, 2, 0, -3), exit_]
    ended: list[int] = []
    thread = threading.Thread(
        target=lambda: ended.append(
            execute(Engine.NATIVE, b"".join(code), 0, arena(memory), {}, (), 1 << 60).executed
        )
    )
    thread.start()
    try:
        thread.join(0.05)
        assert thread.is_alive()
    finally:
        memory[4096] = 1
        thread.join(30)
    assert ended


def test_an_endless_loop_ends_at_its_limit() -> None:
    seen = same(case(insn(0x05, offset=-1), limit=50_000))
    assert seen.fault is not None


def test_a_small_stack_is_refused() -> None:
    layout = Layout(0, 0, stack_size=512)
    small = type(arena())(memoryview(bytearray(layout.size)), layout)
    with pytest.raises(EngineUnavailable, match="stack of 4096 bytes"):
        execute(Engine.NATIVE, exit_, 0, small, {}, (), 10)


def test_code_that_wants_more_than_memory_functions_is_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "declare i64 @__somewhere_else(i64)\ndefine i64 @f0() {\n %a = call i64 @__somewhere_else(i64 1)\n ret i64 %a\n}"
    monkeypatch.setattr(compiler, "assembly", lambda code, entry: text)
    with pytest.raises(EngineUnavailable, match="__somewhere_else"):
        execute(Engine.NATIVE, exit_ * 2, 0, arena(), {}, (), 10)


def test_what_llvm_does_not_take_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "assembly", lambda code, entry: "define nonsense")
    with pytest.raises(EngineUnavailable, match="LLVM does not take"):
        execute(Engine.NATIVE, exit_ * 3, 0, arena(), {}, (), 10)

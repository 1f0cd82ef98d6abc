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
from potash_firmware.bpf.engine import Engine
from potash_firmware.bpf.errors import EngineUnavailable, Fault, FaultKind
from potash_firmware.bpf.machine import verify
from potash_firmware.bpf.native import compiler
from support.bpf import (
    LAYOUT,
    U64,
    arena,
    call,
    exit_,
    insn,
    lddw,
    load,
    mov,
    mov_reg,
    run_on,
    store,
)
from support.bpf_native import (
    BASE,
    CODE_BASE,
    END,
    FRAME,
    INPUT,
    RODATA,
    B,
    W,
    bundle,
    case,
    own_cache,
    same,
)
from support.bpf_programs import HELPERS, soup
from support.bpf_structured import structured
from support.bpf_vectors import VECTORS

__all__ = ["own_cache"]


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
    vectors = VECTORS[which]
    code, starts = bundle([vector.code for vector in vectors])
    verify(code, 0, ())
    wrong = []
    for vector, start in zip(vectors, starts, strict=True):
        memory = bytearray(LAYOUT.size)
        memory[4096 : 4096 + len(vector.memory)] = vector.memory
        arguments = (INPUT, len(vector.memory), 0, 0, CODE_BASE + 8 * start)
        value, _ = run_on(Engine.NATIVE, code, 0, arena(memory), {}, arguments, 100_000)
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
        [lddw(1, FRAME), load(2, 1, 8), load(3, 1, -1, B), load(4, 1, 16), exit_],
        FaultKind.OUT_OF_BOUNDS,
        3,
        FRAME - 1,
    ),
    "a write where a read is allowed": (
        [lddw(1, RODATA), load(2, 1), store(1, 2), exit_],
        FaultKind.READ_ONLY,
        3,
        RODATA,
    ),
    "half an access": ([lddw(1, END - 4), load(2, 1), exit_], FaultKind.OUT_OF_BOUNDS, 2, END - 4),
    "behind a frame": (
        [insn(0x7B, 10, 1, -512), insn(0x79, 2, 10, -520), exit_],
        FaultKind.OUT_OF_BOUNDS,
        1,
        FRAME - 8,
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


# Helpers


def run(*code: bytes, helpers: dict[int, Callable[..., int]], limit: int = 10_000) -> int:
    return run_on(Engine.NATIVE, b"".join(code), 0, arena(), helpers, (), limit).value


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
    value, _ = run_on(Engine.NATIVE, b"".join(code), 0, space, {4: helper}, (), 100)
    assert value == 99


# What surrounds a run


def test_other_threads_run_meanwhile() -> None:
    """The program waits, counting, for what only another thread can do to its memory."""
    memory = reserve.allocate(LAYOUT.size)
    code = [lddw(1, INPUT), mov(2, 0), insn(0xDB, 1, 2, 0, 0x01), insn(0x15, 2, 0, -3), exit_]
    ended: list[int] = []
    thread = threading.Thread(
        target=lambda: ended.append(
            run_on(Engine.NATIVE, b"".join(code), 0, arena(memory), {}, (), 1 << 60).executed
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
    with pytest.raises(EngineUnavailable, match="stack frames of 512 bytes"):
        run_on(Engine.NATIVE, exit_, 0, small, {}, (), 10)


def test_code_that_wants_more_than_memory_functions_is_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "declare i64 @__somewhere_else(i64)\ndefine i64 @f0() {\n %a = call i64 @__somewhere_else(i64 1)\n ret i64 %a\n}"
    monkeypatch.setattr(compiler, "assembly", lambda *_, **__: text)
    with pytest.raises(EngineUnavailable, match="__somewhere_else"):
        run_on(Engine.NATIVE, exit_ * 2, 0, arena(), {}, (), 10)


def test_what_llvm_does_not_take_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "assembly", lambda *_, **__: "define nonsense")
    with pytest.raises(EngineUnavailable, match="LLVM does not take"):
        run_on(Engine.NATIVE, exit_ * 3, 0, arena(), {}, (), 10)

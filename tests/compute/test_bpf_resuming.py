"""What compiled code leaves to the interpreter, and what LLVM wants that no program has."""

import ctypes
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from potash_device import object_code
from potash_firmware.bpf.arena import BASE
from potash_firmware.bpf.engine import Engine
from potash_firmware.bpf.errors import Fault, FaultKind
from potash_firmware.bpf.interpreter import Execution, Interpreter
from potash_firmware.bpf.isa import CODE_BASE
from potash_firmware.bpf.native import compiler, lowering, runtime
from support.bpf import arena, call, exit_, insn, lddw, load, mov, mov_reg, run_on, store
from support.bpf_native import own_cache, same
from support.bpf_structured import structured

__all__ = ["own_cache"]

INPUT = BASE + 4096
WIDE = st.integers(-(1 << 127), (1 << 127) - 1)


@pytest.fixture
def suspicious(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code takes every access for one outside, which it is not."""
    monkeypatch.setattr(lowering, "outside", lambda writer, at, low, span: "true")


@pytest.fixture
def compiled_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be left to the interpreter."""

    def refuse(self: Interpreter, *_: object) -> None:
        raise AssertionError("a function is interpreted")

    monkeypatch.setattr(Interpreter, "resume", refuse)


@pytest.mark.usefixtures("suspicious")
def test_registers_of_every_function_survive_a_groundless_side_exit() -> None:
    """Two functions deep, behind a branch: all callee-saved registers, arguments and the count."""
    inner = [mov(7, 70), load(0, 1), insn(0x55, 0, 0, 1, 12345), exit_, insn(0x0F, 0, 7)]
    inner += [insn(0x0F, 0, 2), exit_]
    code = [
        mov_reg(6, 1),
        mov(8, 8),
        mov(9, 900),
        mov_reg(1, 6),
        mov(2, 5),
        insn(0x85, src=1, imm=4),  # calls 10
        insn(0x0F, 0, 8),
        insn(0x0F, 0, 9),
        store(6, 0, 8),
        exit_,
        *inner,
    ]
    space = arena()
    seen = run_on(Engine.NATIVE, b"".join(code), 0, space, {}, (INPUT,), 1000)
    again = run_on(Engine.INTERPRETER, b"".join(code), 0, arena(), {}, (INPUT,), 1000)
    assert seen == again
    assert space.read(INPUT + 8, 8) == seen.value


@pytest.mark.usefixtures("suspicious")
@settings(max_examples=6, deadline=None)
@example(213)  # exceeds its limit of instructions, in another place of a block
@given(st.integers(0, 1 << 32))
def test_random_programs_that_are_left_at_each_access(seed: int) -> None:
    same(structured(Random(seed)))


@pytest.mark.parametrize("second", [0, 1])
def test_accesses_whose_constants_are_2_to_the_64_apart(second: int) -> None:
    """A group of them once had a span that is 0 in 64 bits, and a valid program was given up."""
    seen: list[int] = []

    def helper(first: int, *_: int) -> int:
        seen.append(first)
        return 0

    code = [
        mov_reg(6, 1),
        lddw(3, 1 << 63),
        insn(0x0F, 6, 3),
        mov(7, 1234),
        mov(0, 0),
        insn(0x15, 0, 0, 0, 1),
        mov_reg(2, 6),
        lddw(3, (1 << 63) - 8),
        insn(0x0F, 2, 3),
        load(0, 2),
        mov_reg(4, 6),
        lddw(3, (1 << 63) + second),
        insn(0x0F, 4, 3),
        load(0, 4),
        insn(0x05),
        mov_reg(1, 7),
        call(5),
        mov(0, 7),
        exit_,
    ]
    for engine_ in (Engine.INTERPRETER, Engine.NATIVE):
        value = run_on(engine_, b"".join(code), 0, arena(), {5: helper}, (INPUT + 64,), 1000).value
        assert value == 7
    assert seen == [1234, 1234]


def test_a_fault_behind_a_groundless_side_exit_is_the_interpreters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lowering, "outside", lambda writer, at, low, span: "true")
    code = [load(0, 1), mov(0, 0), insn(0x05, offset=-1), exit_]
    with pytest.raises(Fault) as caught:
        run_on(Engine.NATIVE, b"".join(code), 0, arena(), {}, (INPUT,), 1000)
    assert (caught.value.kind, caught.value.pc) == (FaultKind.INSTRUCTION_LIMIT, 2)


# Calls through pointers


@pytest.mark.usefixtures("compiled_only")
@pytest.mark.parametrize("where", ["input", "data", "rodata"])
def test_functions_that_are_pointed_at_are_compiled_before_the_run(where: str) -> None:
    """From an instruction for the first; from data for the others."""
    space = arena()
    code = [load(2, 1), insn(0x8D, 2), exit_, mov(0, 42), exit_]
    if where == "input":
        code = [lddw(2, 3, src=4), insn(0x8D, 2), exit_, insn(0x05), mov(0, 42), exit_]
    at = space.data if where == "data" else space.rodata
    start = at - BASE
    space.memory[start : start + 8] = (CODE_BASE + 8 * 3).to_bytes(8, "little")
    assert run_on(Engine.NATIVE, b"".join(code), 0, space, {}, (at,), 1000).value == 42


def test_a_function_that_is_computed_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []
    compile_program = compiler.compile_program

    def spy(code: bytes, entry: int, by_kind: bool) -> bytes:
        compiled.append(entry)
        return compile_program(code, entry, by_kind)

    monkeypatch.setattr(compiler, "compile_program", spy)
    code = b"".join([insn(0x8D, 1), insn(0x07, 0, imm=1), exit_, mov(0, 42), exit_])
    seen = run_on(Engine.NATIVE, code, 0, arena(), {}, (CODE_BASE + 8 * 3,), 1000)
    assert seen == Execution(43, 5)
    assert compiled == [0]


# What LLVM expects of a compiler's library


@pytest.mark.usefixtures("compiled_only")
def test_a_loop_whose_count_takes_a_division_of_128_bits() -> None:
    """`for (i = n; i <= m; i += 7) s += i`, as clang -O2 leaves it."""
    code = [
        mov(0, 0),
        insn(0x2D, 3, 4, 4),
        insn(0x0F, 0, 3),
        insn(0x07, 3, imm=7),
        insn(0xBD, 3, 4, -3),
        exit_,
    ]
    value = run_on(
        Engine.NATIVE, b"".join(code), 0, arena(), {}, (0, 0, 5, 1_000_000), 10_000_000
    ).value
    assert value == sum(range(5, 1_000_001, 7))


@pytest.mark.usefixtures("compiled_only")
def test_a_signed_one() -> None:
    """One for which LLVM calls __udivti3 for certain."""
    code = [
        mov_reg(9, 5),
        insn(0x07, 9, imm=2555),
        insn(0xCD, 9, 5, 3),
        mov_reg(6, 5),
        insn(0x07, 5, imm=511),
        insn(0x05, offset=-4),
        exit_,
    ]
    contents = compiler.compile_program(b"".join(code), 0)
    assert "__udivti3" in compiler.symbols(contents)[1]
    seen = run_on(Engine.NATIVE, b"".join(code), 0, arena(), {}, (0, 0, 0, 0, 5), 10_000)
    assert seen == Execution(0, 28)


@pytest.fixture(scope="module")
def divisions() -> dict[str, Any]:
    names = sorted(compiler.DIVISIONS)
    text = "\n".join(
        f"declare i128 @{name}(i128, i128)\n"
        f"define void @t{name}(ptr %a, ptr %b, ptr %c) {{\n"
        " %x = load i128, ptr %a, align 1\n %y = load i128, ptr %b, align 1\n"
        f" %z = call i128 @{name}(i128 %x, i128 %y)\n"
        " store i128 %z, ptr %c, align 1\n ret void }"
        for name in names
    )
    owner = runtime.load() and object_code.load(compiler.compile_assembly(text, names))
    kind = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p)
    found = {name: kind(owner.get_function_address(f"t{name}")) for name in names}
    return found | {"owner": owner}


@given(WIDE, WIDE)
@example(-(1 << 127), -1)
@example(-(1 << 127), 1)
@example(-1, -(1 << 127))
@example((1 << 127) - 1, 3)
def test_divisions_of_128_bits(divisions: dict[str, Any], dividend: int, divisor: int) -> None:
    divisor = divisor or 1
    wrap = (1 << 128) - 1
    unsigned = dividend & wrap, divisor & wrap
    size = abs(dividend) // abs(divisor)
    quotient = size if (dividend < 0) == (divisor < 0) else -size
    expected = {
        "__udivti3": unsigned[0] // unsigned[1],
        "__umodti3": unsigned[0] % unsigned[1],
        "__divti3": quotient & wrap,
        "__modti3": dividend - divisor * quotient & wrap,
    }
    for name, value in expected.items():
        out = ctypes.create_string_buffer(16)
        divisions[name](*(one.to_bytes(16, "little") for one in unsigned), out)
        assert int.from_bytes(out.raw, "little") == value, name

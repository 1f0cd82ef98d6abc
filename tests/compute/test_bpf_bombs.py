"""Small programs that once took minutes and gigabytes to compile."""

import struct
import time
from collections.abc import Iterator

import pytest

from potash_firmware.bpf.engine import Engine
from potash_firmware.bpf.errors import EngineUnavailable
from potash_firmware.bpf.native import blocks, compiler, loops
from support.bpf import B, arena, exit_, insn, load, mov, mov_reg, run_on
from support.bpf_native import INPUT, own_cache

__all__ = ["own_cache"]

SECONDS = 20
"""Far more than any takes, far less than any took."""


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    begun = time.thread_time()
    yield
    assert time.thread_time() - begun < SECONDS


def in_a_row(count: int) -> bytes:
    """Loops of which each one's registers are sums of those of the one in front."""
    code = [mov_reg(4, 1), mov(3, 0), mov(0, 0), insn(0x15, 3, 0, 0, 1)]
    code += [mov_reg(1, 4), mov_reg(2, 4)]
    for _ in range(count):
        code += [mov(7, 0), insn(0x07, 1, imm=8), insn(0x07, 2, imm=8), insn(0x07, 7, imm=1)]
        code += [insn(0xA5, 7, 0, -4, 2), mov_reg(5, 1), insn(0x0F, 1, 2), insn(0x1F, 2, 5)]
    distance = -(len(code) + 2 - 4)
    return b"".join([*code, load(0, 1, 0, B), insn(0x15, 3, 0, distance, 12345), exit_])


def in_each_other(count: int) -> bytes:
    heads = [insn(0x07, 0, imm=1)] * count
    backs = [insn(0x55, 1, 0, -(2 * index + 2)) for index in range(count)]
    return b"".join([mov(0, 0), mov(1, 0), *heads, *backs, exit_])


def sums(count: int) -> bytes:
    """A loop that adds up as many bytes."""
    body = [load(2, 1, at % 4000, B) + insn(0x0F, 0, 2) for at in range(count)]
    back = -(2 * count + 2)
    return b"".join(
        [mov(7, 0), mov(0, 0), *body, insn(0x07, 7, imm=1), insn(0xA5, 7, 0, back, 5), exit_]
    )


def ladder(count: int) -> bytes:
    steps = [struct.pack("<BBhi", 0x15, 1, 1, at) + insn(0x07, 0, imm=1) for at in range(count)]
    return b"".join([mov(0, 0), *steps, exit_])


def loops_in_a_row(count: int) -> bytes:
    body = [mov(3, 0), insn(0x07, 3, imm=1), load(0, 1), insn(0xA5, 3, 0, -3, 100)]
    return b"".join([*body * count, exit_])


@pytest.mark.parametrize(
    "code",
    [in_a_row(64), in_each_other(500), sums(1000), ladder(4500)],
    ids=["loops in a row", "loops in each other", "long sums", "branches in a row"],
)
def test_what_is_found_out_about_a_program_takes_seconds(code: bytes) -> None:
    assert "define i64 @f0" in compiler.assembly(code, 0)


@pytest.mark.parametrize(
    "code", [ladder(1000), loops_in_a_row(100)], ids=["branches in a row", "loops in a row"]
)
def test_what_llvm_would_be_long_at_is_optimised_less_and_computes_the_same(code: bytes) -> None:
    begun = time.thread_time()
    native = run_on(Engine.NATIVE, code, 0, arena(), {}, [INPUT], 50_000)
    assert time.thread_time() - begun < 4
    assert native == run_on(Engine.INTERPRETER, code, 0, arena(), {}, [INPUT], 50_000)


def test_one_tail_of_many_functions_is_not_compiled_for_each() -> None:
    calls = 100
    tail = [insn(0x07, 0, imm=1)] * 2000
    starts = [insn(0x85, src=1, imm=calls) for _ in range(calls)]
    with pytest.raises(EngineUnavailable, match="more than 16384 instructions"):
        compiler.assembly(b"".join([*starts, exit_, *tail, exit_]), 0)


def test_loops_are_not_looked_for_in_what_is_too_large() -> None:
    program = blocks.Code(in_each_other(500))
    assert loops.flow(blocks.function(program, 0)).loops == []

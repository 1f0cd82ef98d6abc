"""Stack frames: each function has one of the configured size, and reaches nothing below it."""

import struct
from pathlib import Path

import pytest

from potash_firmware.bpf import (
    Services,
    VerificationError,
    buffer_layout,
    load_program,
    reserve,
)
from potash_firmware.bpf.arena import Arena, Layout
from potash_firmware.bpf.engine import Engine
from potash_firmware.bpf.errors import Fault, FaultKind
from potash_firmware.bpf.machine import verify
from support.bpf import (
    call_local,
    engines,
    exit_,
    insn,
    lddw,
    load,
    mov,
    mov_reg,
    run_on,
    run_program,
    store,
)
from support.bpf_compiler import NO_COMPILER, compile_program, compiler

ENGINES = pytest.mark.parametrize("engine", engines())
FRAME = 4096
LDX, STX, ST, ATOMIC_ADD = 0x79, 0x7B, 0x7A, 0xDB


def run(*code: bytes, engine: Engine, frame: int = FRAME) -> int:
    layout = Layout(0, 0, 8 * frame)
    arena = Arena(reserve.allocate(layout.size), layout)
    return run_on(engine, b"".join(code), 0, arena, {}, (), 1_000).value


@ENGINES
@pytest.mark.parametrize(
    "call", [call_local(2), lddw(7, 3, src=4) + insn(0x8D, 7)], ids=["call", "callx"]
)
def test_frames_do_not_overlap(call: bytes, engine: Engine) -> None:
    """What a caller has at the bottom of its frame is there after a callee has filled its own."""
    fill = [mov(6, 77), insn(STX, 10, 6, -FRAME)]
    callee = [mov(1, 5), insn(STX, 10, 1, -FRAME), insn(STX, 10, 1, -8), exit_]
    assert run(*fill, call, load(0, 10, -FRAME), exit_, *callee, engine=engine) == 77


@ENGINES
def test_large_frames_are_as_many_as_small_ones(engine: Engine) -> None:
    count = [mov_reg(0, 1), insn(0x15, 1, 0, 5, 7), insn(ST, 10, 0, -FRAME, 1)]
    recursion = [insn(0x07, 1, imm=1), call_local(-5), load(1, 10, -FRAME), insn(0x0F, 0, 1), exit_]
    assert run(mov(1, 1), *count, *recursion, engine=engine) == 7 + 6
    with pytest.raises(Fault) as caught:
        run(insn(ST, 10, 0, -FRAME), call_local(-2), exit_, engine=engine)
    assert (caught.value.kind, caught.value.pc) == (FaultKind.CALL_DEPTH, 1)


@ENGINES
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("frame", [512, FRAME])
@pytest.mark.parametrize("opcode", [LDX, STX, ST, ATOMIC_ADD], ids=["ldx", "stx", "st", "atomic"])
def test_what_is_below_a_frame_cannot_be_accessed(
    opcode: int, frame: int, depth: int, engine: Engine
) -> None:
    """It is no variable of the function's, but perhaps one of a function that it calls."""
    outer = [call_local(1), exit_] if depth == 2 else []
    access = insn(opcode, 1, 0 if opcode == ST else 1)

    def reach(distance: int) -> int:
        inner = [mov_reg(1, 10), mov(2, distance), insn(0x1F, 1, 2), access, mov(0, 3), exit_]
        return run(*outer, *inner, engine=engine, frame=frame)

    assert reach(frame) == 3
    with pytest.raises(Fault, match=f"below the function's stack frame of {frame} bytes") as caught:
        reach(frame + 8)
    assert (caught.value.kind, caught.value.pc) == (FaultKind.OUT_OF_BOUNDS, len(outer) + 3)


@ENGINES
def test_a_loop_over_a_frame_ends_at_its_bottom(engine: Engine) -> None:
    """Also where one check in front of a loop stands for all of its accesses."""
    steps = [store(1, 2), insn(0x07, 1, imm=8), insn(0x07, 2, imm=1), insn(0xA5, 2, 0, -4, 60)]

    def loop(start: int) -> int:
        begin = [mov_reg(1, 10), insn(0x07, 1, imm=start), mov(2, 0), mov(0, 4)]
        return run(*begin, *steps, exit_, engine=engine)

    assert loop(-FRAME) == 4
    with pytest.raises(Fault, match="below the function's stack frame"):
        loop(-FRAME - 8)


@pytest.mark.parametrize(
    "code",
    [
        insn(LDX, 0, 10, -520),
        insn(STX, 10, 1, -520),
        insn(ST, 10, 0, -520),
        mov_reg(1, 10) + insn(0x07, 1, imm=-520),
    ],
    ids=["ldx", "stx", "st", "address"],
)
def test_a_frame_that_is_evidently_too_large_is_refused(code: bytes) -> None:
    verify(code + exit_, 0, (), 520)
    with pytest.raises(VerificationError, match="frame has 512 bytes at most .frame_size in .limi"):
        verify(code + exit_, 0, (), 512)


LARGE = """
#include "potash.h"
static __attribute__((noinline)) u64 callee(u64 x) {
    volatile u64 a[60];
    for (int i = 0; i < 60; i++) a[i] = x + i;
    u64 s = 0;
    for (int i = 0; i < 60; i++) s += a[i];
    return s;
}
int prog(char *in, char *out) {
    volatile u64 h[200];
    for (int i = 0; i < 200; i++) h[i] = i;
    u64 q = callee(1000);
    u64 s = 0;
    for (int i = 0; i < 200; i++) s += h[i];
    *(u64 *)out = s;
    *(u64 *)(out + 8) = q;
    return 0;
}
"""


@ENGINES
def test_c_with_large_variables_computes_what_it_says(engine: Engine, tmp_path: Path) -> None:
    command = compiler()
    if command is None:
        pytest.skip(NO_COMPILER)
    (tmp_path / "large.c").write_text(LARGE)
    option = ["-mllvm", "-bpf-stack-size=4096"]
    try:
        image = compile_program(command, tmp_path / "large.c", tmp_path / "large.o", *option)
    except AssertionError as error:
        if "Unknown command line argument" in str(error):
            pytest.skip("this clang has no option for larger stack frames")
        raise
    layout = buffer_layout(16, 16)
    memory = reserve.allocate(layout.size)
    services = Services(lambda text: None, lambda *_: 0, lambda *_: 0)
    run_program(
        load_program(image),
        memory,
        input_size=16,
        output_size=16,
        input_length=0,
        services=services,
        engine=engine,
    )
    output = memory[layout.output_offset : layout.output_offset + 16]
    assert struct.unpack("<2Q", output) == (sum(range(200)), sum(range(1000, 1060)))
    with pytest.raises(VerificationError, match="at most"):
        load_program(image, frame_size=1024)

"""The engine `ubpf`: a stand-in with the interface of libubpf's public header, which has a handful
of instructions; and, where it is installed, libubpf itself (`-m slow`)."""

import re
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from csd_spec.descriptors import LogEntryType
from csd_spec.status import StatusId
from potash import doctor
from potash.bench.programs import find_native
from potash.programs import execution
from potash.programs.examples import Example
from potash.sdk.errors import PotashError
from potash_firmware.apu.config import Limits
from potash_firmware.bpf import Services, load_program, ubpf
from potash_firmware.bpf.arena import Arena
from potash_firmware.bpf.engine import Engine, unavailable, usable
from potash_firmware.bpf.errors import EngineUnavailable, Fault, FaultKind
from potash_firmware.bpf.interpreter import Helper
from potash_firmware.bpf.machine import Placed
from potash_firmware.bpf.reserve import Extent, Space, address_of
from potash_firmware.mailbox.shared import SharedMemory
from support.apu import CONFIG, board, program
from support.bpf import (
    LAYOUT,
    U64,
    call,
    call_local,
    exit_,
    insn,
    lddw,
    load,
    mov,
    mov_reg,
    run_on,
    store,
)
from support.bpf_commands import potash
from support.bpf_vectors import VECTORS

STAND_IN = r"""
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef uint64_t u64;
typedef u64 (*helper)(u64, u64, u64, u64, u64, void *);
typedef bool (*check)(void *, u64, u64);
typedef int (*size)(const void *, uint16_t, void *);
struct code { uint8_t op, regs; int16_t off; int32_t imm; };
struct vm { helper helpers[64]; check check; size size; uint32_t limit, count; struct code *code; };
void *ubpf_create(void) { return calloc(1, sizeof(struct vm)); }
void ubpf_destroy(struct vm *vm) { free(vm->code); free(vm); }
int ubpf_register(struct vm *vm, unsigned i, const char *name, helper h) {
	if (i >= 64) return -1;
	vm->helpers[i] = h;
	return 0;
}
int ubpf_register_data_bounds_check(struct vm *vm, void *c, check f) { vm->check = f; return 0; }
int ubpf_register_stack_usage_calculator(struct vm *vm, size f, void *c) { vm->size = f; return 0; }
int ubpf_set_instruction_limit(struct vm *vm, uint32_t n, uint32_t *old) { vm->limit = n; return 0; }
int ubpf_load(struct vm *vm, const void *code, uint32_t n, char **message) {
	vm->code = malloc(n); memcpy(vm->code, code, n); vm->count = n / 8;
	for (uint32_t i = 0; i < vm->count; i++)
		if (vm->code[i].op == 0x8d) { *message = strdup("unknown opcode\n"); return -1; }
	return 0;
}
int ubpf_exec_ex(const struct vm *vm, void *mem, size_t len, u64 *value, uint8_t *stack, size_t stack_len) {
	u64 r[11] = {0, (uintptr_t)mem, len}, at;
	struct { uint32_t pc; int size; } frames[9] = {{0, vm->size(vm, 0, 0)}};
	int depth = 0, left = vm->limit;
	r[10] = (uintptr_t)stack + stack_len;
	for (uint32_t pc = 0; pc < vm->count; pc++) {
		struct code c = vm->code[pc];
		u64 *dst = &r[c.regs & 15], src = r[c.regs >> 4];
		if (vm->limit && left-- <= 0) return -1;
		switch (c.op) {
		case 0x18: *dst = (uint32_t)c.imm | (u64)(uint32_t)vm->code[++pc].imm << 32; break;
		case 0x07: *dst += c.imm; break;
		case 0xb7: *dst = c.imm; break;
		case 0xbf: *dst = src; break;
		case 0x05: pc += c.off; break;
		case 0x79: case 0x7b:
			at = (c.op == 0x79 ? src : *dst) + c.off;
			if (at - (uintptr_t)mem > len - 8 && !vm->check(0, at, 8)) return -1;
			if (c.op == 0x79) *dst = *(u64 *)at; else *(u64 *)at = src;
			break;
		case 0x85:
			if (c.regs >> 4 == 0) { r[0] = vm->helpers[c.imm](r[1], r[2], r[3], r[4], r[5], mem); break; }
			if (depth == 8) return -1;
			frames[depth].pc = pc; r[10] -= frames[depth++].size; pc += c.imm;
			frames[depth].size = vm->size(vm, pc + 1, 0);
			break;
		case 0x95:
			if (depth == 0) { *value = r[0]; return 0; }
			pc = frames[--depth].pc; r[10] += frames[depth].size;
			break;
		default: return -1;
		}
	}
	return -1;
}
"""


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        command = find_native().command
    except PotashError as error:
        pytest.skip(f"the stand-in for libubpf cannot be compiled: {error}")
    folder = tmp_path_factory.mktemp("ubpf")
    (folder / "ubpf.c").write_text(STAND_IN)
    flags = ["-O1", "-w", "-shared", "-fPIC", "ubpf.c", "-o", "libubpf.so"]
    subprocess.run([*command, *flags], check=True, timeout=120, cwd=folder)
    return folder / "libubpf.so"


@pytest.fixture
def stand_in(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POTASH_LIBUBPF", str(compiled))
    return compiled


def run(*code: bytes, memory: bytearray | None = None, helper: Helper | None = None) -> int:
    view = memoryview(bytearray(LAYOUT.size) if memory is None else memory)
    space = Arena(view, LAYOUT, address_of(view))
    arguments = (space.input, space.output, U64)
    helpers = {} if helper is None else {4: helper}
    return run_on(Engine.UBPF, b"".join(code), 0, space, helpers, arguments, 10**12).value


@pytest.mark.usefixtures("stand_in")
def test_arguments_values_and_memory_pass() -> None:
    memory = bytearray(LAYOUT.size)
    memory[4096:4104] = b"ABCDEFGH"
    assert run(load(4, 1), store(1, 4, 8), mov_reg(0, 3), exit_, memory=memory) == U64
    assert memory[4096:4112] == b"ABCDEFGH" * 2


@pytest.mark.usefixtures("stand_in")
def test_stack_frames_are_in_the_arena_and_do_not_overlap() -> None:
    memory = bytearray(LAYOUT.size)
    inner = [mov(1, 2), store(10, 1, -8), exit_]
    assert run(mov(1, 1), store(10, 1, -8), call_local(1), exit_, *inner, memory=memory) == 0
    top = LAYOUT.stack_size
    assert (memory[top - 8], memory[top - 8 - LAYOUT.frame_size]) == (1, 2)


@pytest.mark.usefixtures("stand_in")
def test_a_helper_reads_and_writes_the_stack() -> None:
    memory = bytearray(LAYOUT.size)

    def helper(address: int, *_: int) -> int:
        offset = address - address_of(memoryview(memory))
        assert (offset, memory[offset]) == (LAYOUT.stack_size - 8, 7)
        memory[offset + 1] = 1
        return -1

    before = [mov(2, 7), store(10, 2, -8), mov_reg(1, 10), insn(0x07, 1, imm=-8), call(4)]
    assert run(*before, load(0, 10, -8), exit_, memory=memory, helper=helper) == 0x107


@pytest.mark.usefixtures("stand_in")
def test_an_exception_of_a_helper_ends_the_program_at_once() -> None:
    def helper(*_: int) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(call(4), insn(0x07, 1, imm=1), insn(0x05, offset=-2), exit_, helper=helper)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("address", [8, 0x1000_0000, 1 << 47, U64])
def test_an_access_outside_the_arena_is_refused_with_its_address(address: int) -> None:
    with pytest.raises(Fault) as caught:
        run(lddw(1, address), load(0, 1), exit_)
    assert (caught.value.kind, caught.value.address) == (FaultKind.OUT_OF_BOUNDS, address)


@pytest.mark.usefixtures("stand_in")
def test_what_libubpf_does_not_take_says_why() -> None:
    with pytest.raises(EngineUnavailable, match="does not take the program: unknown opcode$"):
        run(insn(0x8D), exit_)


def test_without_the_library_the_interpreter_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ubpf.VARIABLE, str(tmp_path / "libubpf.so"))
    assert "--libubpf and POTASH_LIBUBPF take its path" in str(unavailable(Engine.UBPF))
    assert usable(Engine.UBPF) is Engine.INTERPRETER
    assert "libubpf cannot be used" in caplog.text
    assert doctor.libubpf().state is doctor.Grade.LIMITED


def test_exec_takes_the_librarys_path(
    compiled: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ubpf.VARIABLE, "")  # restored when the command has set it
    path = tmp_path / "p.o"
    path.write_bytes(program(mov(0, 7), exit_))
    options = ["--engine", "ubpf", "--libubpf", str(compiled)]
    assert potash("exec", path, *options) == 0
    assert "the program returned 7" in capfd.readouterr().out
    assert doctor.libubpf().state is doctor.Grade.GOOD
    path.write_bytes(program(insn(0x07, 1, imm=1), insn(0x05, offset=-2), exit_))
    assert potash("exec", path, *options, "--limit", "1000") == 1
    assert "the program was stopped: stopped by libubpf: " in capfd.readouterr().err


@pytest.mark.usefixtures("stand_in")
def test_a_confined_worker_runs_it_and_time_ends_what_counts_no_instructions() -> None:
    config = replace(CONFIG, engine=Engine.UBPF, limits=Limits(seconds=1.0))
    copy = program(load(4, 1), store(2, 4), mov(0, 7), exit_)
    endless = program(call(1), insn(0x07, 6, imm=1), insn(0x05, offset=-2), exit_)
    pointer = program(mov(0, 0), insn(0x8D, 1), exit_)  # a call of no helper: for the interpreter
    interpreted = program(mov(0, 9), exit_, insn(0x8D, 1), exit_)  # libubpf does not take it
    with board(config) as apu:
        done = apu.run(copy, b"ABCDEFGH")
        assert (done.status, done.return_value) == (StatusId.DONE, 7)
        assert apu.run(endless, b"looping\0").status == StatusId.FAILED
        assert LogEntryType.LIMIT_EXCEEDED in apu.log_types()
        assert apu.run(pointer, b"").status == StatusId.FAILED
        assert apu.run(interpreted, b"").return_value == 9
        assert apu.run(copy, b"ABCDEFGH").return_value == 7


@pytest.mark.usefixtures("stand_in")
def test_a_program_on_memory_ranges_finds_them_and_its_own_memory() -> None:
    space = Space()
    memory = SharedMemory(8192, "memory")
    memory.view[:8] = b"ABCDEFGH"
    image = program(load(0, 1), store(10, 0, -8), load(0, 10, -8), exit_)
    placed = Placed(load_program(image), space, base=space.address)
    space.show([Extent(memory.fd, 0, 8192)])
    services = Services(lambda _: None, lambda *_: 0, lambda *_: 0)
    placed.prepare(services, 1000, Engine.UBPF)
    for _ in range(2):
        assert placed.run((0, 0), b"").return_value == int.from_bytes(b"ABCDEFGH", "little")
        placed.clear()
    memory.close()


def need_libubpf() -> None:
    reason = unavailable(Engine.UBPF)
    if reason is not None:
        pytest.skip(f"{reason}; docs/native.md says how to build it")


@pytest.mark.slow
def test_libubpf_does_as_the_standard_says() -> None:
    need_libubpf()
    wrong, refused = {}, Counter[str]()
    for vector in VECTORS:
        try:
            value = execution.conform(vector.code, vector.memory, is_elf=False, engine=Engine.UBPF)
        except EngineUnavailable as error:
            refused[re.sub(r"\d+", "N", str(error))] += 1
        else:
            if value != vector.value:
                wrong[vector.name] = f"{value:#x} is not {vector.value:#x}"
    print(f"{len(VECTORS)} programs, refused: {dict(refused)}")
    assert wrong == {} and refused.total() < len(VECTORS) / 50


@pytest.mark.slow
@pytest.mark.parametrize("name", ["add", "checksum", "digits", "filter", "grep"])
def test_the_examples_run_on_libubpf(name: str) -> None:
    need_libubpf()
    example = Example.load(name)
    done = execution.execute(
        load_program(example.program),
        example.input,
        arguments=example.arguments,
        engine=Engine.UBPF,
        show=print,
    )
    assert done.output == example.expected

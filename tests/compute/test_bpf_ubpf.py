"""The third engine: an installed libubpf where there is one, and else a stand-in for the binding.

The stand-in has the interface of libubpf's public header and does a handful of instructions.
"""

import contextlib
import ctypes.util
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from potash_firmware.bpf import ubpf
from potash_firmware.bpf.engine import Engine, execute, unavailable
from potash_firmware.bpf.errors import EngineUnavailable, Fault, FaultKind
from support.bpf import (
    LAYOUT,
    U64,
    arena,
    call,
    exit_,
    insn,
    known,
    lddw,
    load,
    mov,
    mov_reg,
    store,
)
from support.bpf_vectors import VECTORS

INPUT, RODATA = 0x1000_1000, 0x1000_4000

STAND_IN = r"""
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef uint64_t (*helper)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
typedef bool (*check)(void *, uint64_t, uint64_t);
struct code { uint8_t op, regs; int16_t off; int32_t imm; };
struct vm { helper helpers[64]; check check; void *context; uint32_t limit; struct code *code; uint32_t count; };
void *ubpf_create(void) { return calloc(1, sizeof(struct vm)); }
void ubpf_destroy(struct vm *vm) { free(vm->code); free(vm); }
int ubpf_register(struct vm *vm, unsigned i, const char *name, helper h) { vm->helpers[i] = h; return 0; }
int ubpf_register_data_bounds_check(struct vm *vm, void *c, check f) { vm->context = c; vm->check = f; return 0; }
int ubpf_set_instruction_limit(struct vm *vm, uint32_t n, uint32_t *old) { vm->limit = n; return 0; }
int ubpf_load(struct vm *vm, const void *code, uint32_t n, char **message) {
	if (((uint8_t *)code)[n - 8] != 0x95) { *message = strdup("no exit"); return -1; }
	vm->code = malloc(n); memcpy(vm->code, code, n); vm->count = n / 8;
	return 0;
}
int ubpf_exec(const struct vm *vm, void *mem, size_t len, uint64_t *value) {
	uint64_t r[11] = {0, (uintptr_t)mem, len}, left = vm->limit;
	for (uint32_t pc = 0; left--; pc++) {
		struct code c = vm->code[pc];
		uint64_t *dst = &r[c.regs & 15], src = r[c.regs >> 4], at;
		switch (c.op) {
		case 0x18: *dst = (uint32_t)c.imm | (uint64_t)(uint32_t)vm->code[++pc].imm << 32; break;
		case 0xb7: *dst = c.imm; break;
		case 0xbf: *dst = src; break;
		case 0x06: pc += c.imm; break;
		case 0x05: pc += c.off; break;
		case 0x79: case 0x7b:
			at = (c.op == 0x79 ? src : *dst) + c.off;
			if ((at < (uintptr_t)mem || at + 8 > (uintptr_t)mem + len) && !vm->check(vm->context, at, 8)) return -1;
			if (c.op == 0x79) *dst = *(uint64_t *)at; else *(uint64_t *)at = src;
			break;
		case 0x85: r[0] = vm->helpers[c.imm](r[1], r[2], r[3], r[4], r[5]); break;
		case 0x95: *value = r[0]; return 0;
		default: return -1;
		}
	}
	return -1;
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("clang") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler for the stand-in of libubpf")
    folder = tmp_path_factory.mktemp("ubpf")
    source, made = folder / "ubpf.c", folder / "libubpf.so"
    source.write_text(STAND_IN)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-w", str(source), "-o", str(made)], check=True, timeout=60
    )
    return str(made)


@pytest.fixture
def stand_in(compiled: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: compiled)
    ubpf._library.cache_clear()
    yield
    ubpf._library.cache_clear()


def run(
    *code: bytes, memory: bytearray | None = None, helper: object = None, limit: int = 99
) -> int:
    space = arena(memory)
    helpers = {4: helper} if callable(helper) else {}
    arguments = (space.input, space.output, U64)
    return execute(Engine.UBPF, b"".join(code), 0, space, helpers, arguments, limit).value


@pytest.mark.usefixtures("stand_in")
def test_arguments_values_and_memory_go_through() -> None:
    memory = bytearray(LAYOUT.size)
    memory[4096:4104] = b"ABCDEFGH"
    code = [load(4, 1), store(1, 4, 8), mov_reg(0, 3), exit_]
    assert run(*code, memory=memory) == U64
    assert memory[4096:4112] == b"ABCDEFGH" * 2


@pytest.mark.usefixtures("stand_in")
def test_constants_are_as_before() -> None:
    memory = bytearray(LAYOUT.size)
    assert run(lddw(1, RODATA), mov(2, 1), store(1, 2), load(0, 1), exit_, memory=memory) == 1
    assert memory == bytes(LAYOUT.size)


@pytest.mark.usefixtures("stand_in")
def test_a_helper_sees_the_memory_and_may_change_it() -> None:
    memory = bytearray(LAYOUT.size)

    def helper(*arguments: int) -> int:
        assert arguments[0] == INPUT
        assert memory[4096] == 7
        memory[4097] = 1
        return -1

    code = [mov(2, 7), store(1, 2), call(4), mov_reg(6, 0), load(0, 1), exit_]
    assert run(*code, memory=memory, helper=helper) == 0x107


@pytest.mark.usefixtures("stand_in")
def test_an_exception_of_a_helper_comes_out_when_the_program_has_ended() -> None:
    def helper(*arguments: int) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(call(4), exit_, helper=helper)
    with pytest.raises(Fault, match="no helper 5"):
        run(call(5), exit_)


@pytest.mark.usefixtures("stand_in")
def test_an_access_outside_says_its_address() -> None:
    with pytest.raises(Fault) as caught:
        run(mov(1, 8), load(0, 1), exit_)
    assert (caught.value.kind, caught.value.address) == (FaultKind.OUT_OF_BOUNDS, 8)


@pytest.mark.usefixtures("stand_in")
def test_the_limit_stops_a_program() -> None:
    with pytest.raises(Fault) as caught:
        run(insn(0x05, offset=-1), exit_)
    assert caught.value.kind is FaultKind.STOPPED


@pytest.mark.usefixtures("stand_in")
def test_a_program_that_it_does_not_take_is_refused() -> None:
    with pytest.raises(EngineUnavailable, match="no exit"):
        run(mov(0, 0))


def test_a_library_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: "/nowhere/libubpf.so")
    ubpf._library.cache_clear()
    assert "libubpf cannot be used" in str(unavailable(Engine.UBPF))
    with pytest.raises(EngineUnavailable):
        run(exit_)
    ubpf._library.cache_clear()


def test_an_installed_libubpf_does_arithmetic_as_the_standard_says() -> None:
    reason = unavailable(Engine.UBPF)
    if reason is not None:
        pytest.skip(reason)
    done = 0
    for vector in VECTORS:
        if any(opcode & 7 not in (0, 4, 7) for opcode in vector.code[:-8:8]):
            continue
        if not known(Engine.UBPF, vector.code):
            continue
        memory = bytearray(LAYOUT.size)
        memory[4096 : 4096 + len(vector.memory)] = vector.memory
        with contextlib.suppress(EngineUnavailable):  # it may not know all versions
            arguments = (INPUT, len(vector.memory))
            value, _ = execute(Engine.UBPF, vector.code, 0, arena(memory), {}, arguments, 10_000)
            assert (vector.name, value) == (vector.name, vector.value)
            done += 1
    assert done

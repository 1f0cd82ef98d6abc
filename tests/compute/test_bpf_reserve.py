"""What compiled code can reach however wrong its guards are: nothing but its arena's memory."""

import ctypes
import faulthandler
import gc
import mmap
import os
import signal
import struct
import subprocess
import sys
from random import Random

import pytest

from potash_firmware.bpf import Prepared, Services, buffer_layout, load_program, reserve
from potash_firmware.bpf.arena import BASE, REACH, Arena, Layout
from potash_firmware.bpf.engine import Engine
from potash_firmware.bpf.errors import Fault, FaultKind
from potash_firmware.bpf.machine import NO_ARGUMENTS
from potash_firmware.bpf.native import lowering
from potash_firmware.bpf.native.ranges import Guard
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
from support.bpf_elf import Name, Part, elf, text
from support.bpf_native import own_cache

__all__ = ["own_cache"]

PAGE = mmap.PAGESIZE
INPUT = BASE + 4096
MAPPED = -(-LAYOUT.size // PAGE) * PAGE

NEAR = (
    *(0, 8, BASE - PAGE, BASE - 8, BASE - 1, BASE + LAYOUT.size, BASE + 8 * PAGE),
    *(REACH - 8, REACH - 1, REACH, REACH + BASE - 8, 1 << 40, 1 << 47, 1 << 62),
    *((1 << 63) - 8, 1 << 63, U64 - 7, U64),
)
ADDRESSES = (*NEAR, *(Random(17).getrandbits(64) for _ in range(8)))


@pytest.fixture
def gullible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code believes that every access is inside."""
    monkeypatch.setattr(lowering, "outside", lambda writer, at, low, span: "false")
    monkeypatch.setattr(Guard, "holds", lambda self, *_: "true")


@pytest.fixture
def memory() -> memoryview:
    return reserve.allocate(LAYOUT.size)


def ended(code: bytes, space: Arena, *arguments: int) -> tuple[FaultKind, int | None] | int:
    try:
        return run_on(Engine.NATIVE, code, 0, space, {}, arguments, 10_000).value
    except Fault as fault:
        return fault.kind, fault.address


@pytest.mark.usefixtures("gullible")
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("what", ["load", "store", "atomic"])
def test_an_unchecked_access_reaches_the_arena_or_nothing(
    what: str, size: int, memory: memoryview
) -> None:
    field = {1: 0x10, 2: 0x08, 4: 0x00, 8: 0x18}[size]
    if what == "load":
        access = load(0, 1, 0, field)
    elif what == "store":
        access = store(1, 2, 0, field)
    else:
        access = insn(0xDB if size == 8 else 0xC3, 1, 2, 0, 0x01)
    code = mov(2, 7) + access + exit_
    for address in ADDRESSES:
        if what == "atomic":
            address &= -8
        at = address % REACH
        if at + size <= BASE or at >= BASE + MAPPED:
            seen = ended(code, Arena(memory, LAYOUT), address)
            assert seen == (FaultKind.OUT_OF_BOUNDS, at), hex(address)


@pytest.mark.usefixtures("gullible")
def test_nothing_beside_the_arena_changes_or_is_read(memory: memoryview) -> None:
    """Every page of this process that is near, and pages that are mapped all about it."""
    places = [mmap.mmap(-1, PAGE) for _ in range(64)]
    for place in places:
        place[:] = b"\xa5" * PAGE
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory)) - BASE
    for place in places:
        address = ctypes.addressof(ctypes.c_char.from_buffer(place)) - first & U64
        seen = ended(mov(2, 7) + store(1, 2) + load(0, 1) + exit_, Arena(memory, LAYOUT), address)
        assert seen == 7 or seen == (FaultKind.OUT_OF_BOUNDS, address % REACH)
    assert all(place[:] == b"\xa5" * PAGE for place in places)


@pytest.mark.usefixtures("gullible")
def test_a_whole_loop_that_is_wrongly_proven_ends_where_the_memory_ends(memory: memoryview) -> None:
    """A vectorised fill that begins in the arena and goes on for 4 GiB."""
    code = [
        mov_reg(3, 1),
        lddw(4, 1 << 32),
        insn(0x0F, 4, 1),
        store(3, 2, 0),
        insn(0x07, 3, imm=8),
        insn(0xAD, 3, 4, -3),
        exit_,
    ]
    with pytest.raises(Fault) as caught:
        run_on(Engine.NATIVE, b"".join(code), 0, Arena(memory, LAYOUT), {}, (INPUT, 9), U64 >> 2)
    assert caught.value.address == BASE + MAPPED


@pytest.mark.usefixtures("gullible")
def test_pages_behind_a_programs_arena_are_not_its_own() -> None:
    memory = reserve.allocate(LAYOUT.size + 3 * PAGE)
    memory[MAPPED : MAPPED + 4] = b"kept"
    space = Arena(memory, LAYOUT)
    for access in (load(0, 1), store(1, 1)):
        seen = ended(access + exit_, space, BASE + MAPPED)
        assert seen == (FaultKind.OUT_OF_BOUNDS, BASE + MAPPED)
    assert bytes(memory[MAPPED : MAPPED + 4]) == b"kept"


@pytest.mark.usefixtures("gullible")
def test_a_prepared_program_reaches_nothing_of_another_one_s_data() -> None:
    """It reads the last of its data, then what would be there of a program with more of it."""
    memory = reserve.allocate(buffer_layout(PAGE, PAGE).size)

    def prepared(more: int) -> Prepared:
        code = [mov_reg(4, 1), load(1, 1), insn(0x0F, 1, 4), store(1, 1), load(0, 1), exit_]
        bss = Part("bss", b"", 3, type=8, size=more)
        return Prepared(
            load_program(elf([text(*code), bss], [Name("prog")])),
            memory,
            input_size=PAGE,
            output_size=PAGE,
            services=Services(print, lambda *_: 0, lambda *_: 0),
            engine=Engine.NATIVE,
        )

    little, much = prepared(PAGE - 128), prepared(1 << 20)
    source = memory[buffer_layout(PAGE, PAGE).input_offset :]
    first = BASE + buffer_layout(PAGE, PAGE).input_offset
    for _ in range(2):
        for program, end in ((little, 3 * PAGE), (much, (1 << 20) + 3 * PAGE)):
            source[:8] = struct.pack("<Q", end - 8)
            assert program.run(8, PAGE, NO_ARGUMENTS).return_value == first + end - 8
            source[:8] = struct.pack("<Q", end)
            with pytest.raises(Fault) as caught:
                program.run(8, PAGE, NO_ARGUMENTS)
            assert (caught.value.kind, caught.value.address) == (
                FaultKind.OUT_OF_BOUNDS,
                first + end,
            )


@pytest.mark.usefixtures("gullible")
def test_the_job_ends_and_nothing_else(memory: memoryview) -> None:
    """The next program runs, handlers of signals are those of before, and a helper's mistake is not
    taken for a program's."""
    faulthandler_was_on = faulthandler.is_enabled()
    before = signal.getsignal(signal.SIGSEGV)
    for _ in range(3):
        assert ended(load(0, 1) + exit_, arena(), 0) == (FaultKind.OUT_OF_BOUNDS, 0)
        assert ended(mov(0, 5) + exit_, arena()) == 5
    assert signal.getsignal(signal.SIGSEGV) == before
    assert faulthandler.is_enabled() == faulthandler_was_on


def test_a_fault_elsewhere_is_not_taken_for_a_programs() -> None:
    """A helper that reads the arena's guard from C ends its process, as it would anywhere."""
    program = """
import ctypes
from potash_firmware.bpf import Prepared, Services, buffer_layout, load_program, reserve
from potash_firmware.bpf.arena import Arena, Layout
from potash_firmware.bpf.engine import Engine, prepare
import struct
memory = reserve.allocate(8192)
first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
def helper(*_):
    return ctypes.string_at(first - 8, 1)[0]
code = struct.pack("<BBhi", 0x85, 0, 0, 4) + struct.pack("<BBhi", 0x95, 0, 0, 0)
prepare(Engine.NATIVE, code, 0, Arena(memory, Layout(4096, 0)), {4: helper}, 100)(())
"""
    environment = {**os.environ, "PYTHONFAULTHANDLER": "0"}
    done = subprocess.run([sys.executable, "-c", program], check=False, env=environment)
    assert done.returncode == -signal.SIGSEGV


def test_a_range_is_given_back_with_the_last_view() -> None:
    def mapped() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * PAGE

    gc.collect()
    before = mapped()
    memory = reserve.allocate(100)
    part = memory[10:20]
    del memory
    gc.collect()
    part[0] = 1
    assert mapped() >= before + REACH
    del part
    gc.collect()
    assert mapped() < before + REACH


@pytest.mark.parametrize("size", [0, REACH - BASE + 1])
def test_sizes_that_no_arena_has(size: int) -> None:
    with pytest.raises(ValueError):
        reserve.allocate(size)


def test_a_layout_that_32_bits_cannot_address() -> None:
    Layout(1 << 30, 1 << 30)
    with pytest.raises(ValueError, match="exceeds"):
        Layout(1 << 31, 1 << 31)


def test_shared_memory_is_the_files() -> None:
    descriptor = os.memfd_create("test")
    try:
        os.ftruncate(descriptor, 3 * PAGE)
        memory = reserve.share(descriptor, 2 * PAGE)
        memory[5:8] = b"abc"
        assert os.pread(descriptor, 3, 5) == b"abc"
    finally:
        os.close(descriptor)


@pytest.mark.usefixtures("gullible")
def test_helpers_pointers_have_a_bound_of_their_own(
    memory: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the check of a helper's pointer wrong, its view would end with the arena
    nevertheless."""
    monkeypatch.setattr(Arena, "_offset", lambda self, address, size, *, write: address - BASE)
    space = Arena(memory, LAYOUT)
    for address in (BASE + LAYOUT.size, BASE + LAYOUT.size + PAGE, 1 << 40):
        assert len(space.bytes_at(address, 64, write=True)) == 0
    assert len(space.bytes_at(BASE + LAYOUT.size - 8, 64, write=True)) == 8


def test_memory_in_no_range_is_copied() -> None:
    """With what a helper writes in between, and what the interpreter does in a function's place."""
    memory = bytearray(LAYOUT.size)
    space = arena(memory)

    def helper(*_: int) -> int:
        assert space.read(INPUT, 8) == 1
        space.write(INPUT, 8, 2)
        return 0

    code = [lddw(6, INPUT), mov(7, 1), store(6, 7), call(4), load(0, 6), insn(0x07, 0, imm=1)]
    code += [store(6, 0, 8), exit_]
    value = run_on(Engine.NATIVE, b"".join(code), 0, space, {4: helper}, (), 100).value
    assert (value, space.read(INPUT + 8, 8)) == (3, 3)

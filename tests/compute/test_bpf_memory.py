"""Loads, stores and atomic operations (RFC 9669, section 5), and the edges of the arena."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_firmware.bpf.arena import Arena, Layout
from potash_firmware.bpf.errors import Fault, FaultKind
from support.bpf import (
    ADD,
    AND,
    ATOMIC,
    DW,
    LAYOUT,
    LDX,
    MEM,
    MEMSX,
    OR,
    ST,
    STX,
    U64,
    WIDTHS,
    XOR,
    B,
    H,
    Result,
    W,
    arena,
    execute,
    exit_,
    insn,
    lddw,
    load,
    mov,
    mov_reg,
    store,
)

BASE = 0x1000_0000
INPUT = BASE + 4096
FRAME = INPUT - 512
"""Where the stack frame of the entry function begins."""
OUTPUT = INPUT + 4096
DATA = OUTPUT + 4096
RODATA = DATA + 4096
END = RODATA + 64

UNSIGNED_FORMS = {B: "<B", H: "<H", W: "<I", DW: "<Q"}
SIGNED_FORMS = {B: "<b", H: "<h", W: "<i"}
SIZES = pytest.mark.parametrize("size", [B, H, W, DW], ids=["b", "h", "w", "dw"])
words = st.integers(0, U64)


def at_input(result: Result, size: int = 8, offset: int = 0) -> bytes:
    """What the program left at the beginning of the input."""
    start = LAYOUT.input_offset + offset
    return bytes(result.memory[start : start + size])


@SIZES
@given(memory=st.binary(min_size=16, max_size=16), offset=st.integers(0, 8))
def test_loads_are_little_endian_and_zero_extend(size: int, memory: bytes, offset: int) -> None:
    result = execute(lddw(1, INPUT), load(0, 1, offset, size), exit_, memory=memory)
    assert result.value == struct.unpack_from(UNSIGNED_FORMS[size], memory, offset)[0]


@pytest.mark.parametrize("size", SIGNED_FORMS, ids=["b", "h", "w"])
@given(memory=st.binary(min_size=8, max_size=8))
def test_sign_extending_loads(size: int, memory: bytes) -> None:
    result = execute(lddw(1, INPUT), insn(LDX | MEMSX | size, 0, 1), exit_, memory=memory)
    assert result.value == struct.unpack_from(SIGNED_FORMS[size], memory)[0] & U64


@SIZES
@given(value=words, offset=st.integers(0, 8))
def test_stores_write_their_width_and_nothing_else(size: int, value: int, offset: int) -> None:
    width = WIDTHS[size]
    code = [lddw(1, INPUT), lddw(2, value), store(1, 2, offset, size), mov(0, 0), exit_]
    expected = bytearray(b"\xaa" * 16)
    expected[offset : offset + width] = struct.pack("<Q", value)[:width]
    assert at_input(execute(*code, memory=b"\xaa" * 16), 16) == bytes(expected)


@SIZES
@given(imm=st.integers(-(1 << 31), (1 << 31) - 1))
def test_an_immediate_is_sign_extended_before_it_is_stored(size: int, imm: int) -> None:
    code = [lddw(1, INPUT), insn(ST | 0x60 | size, 1, imm=imm), mov(0, 0), exit_]
    assert at_input(execute(*code), WIDTHS[size]) == struct.pack("<q", imm)[: WIDTHS[size]]


def test_a_negative_offset_reaches_below_its_base() -> None:
    code = [lddw(1, INPUT + 8), load(0, 1, -8, B), exit_]
    assert execute(*code, memory=b"\x5a").value == 0x5A


@pytest.mark.parametrize("opcode", [LDX | MEM | B, ST | MEM | B, STX | MEM | B, STX | ATOMIC | W])
def test_addresses_wrap_at_64_bits(opcode: int) -> None:
    """Register 1 and offset add up to 2**64, which is address 0."""
    src = 1 if opcode & 7 == LDX else 0
    dst = 0 if opcode & 7 == LDX else 1
    with pytest.raises(Fault) as caught:
        execute(mov(0, 0), mov(1, -4), insn(opcode, dst, src, 4), exit_)
    assert caught.value.address == 0


SIMPLE: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "add": (ADD, lambda old, src: old + src),
    "or": (OR, lambda old, src: old | src),
    "and": (AND, lambda old, src: old & src),
    "xor": (XOR, lambda old, src: old ^ src),
    "xchg": (0xE0, lambda old, src: src),
}


def atomic(size: int, imm: int, old: int, src: int, r0: int = 0) -> tuple[int, int, int]:
    """r0, the source register and the memory after an atomic operation on `old`.

    The source register's value is kept in the output, to be read from there.
    """
    code = [
        lddw(0, r0),
        lddw(1, INPUT),
        lddw(2, src),
        insn(STX | ATOMIC | size, 1, 2, 8, imm),
        store(1, 2, 16),
        exit_,
    ]
    result = execute(*code, memory=struct.pack("<QQ", 0, old))
    memory, register = struct.unpack("<QQ", at_input(result, 16, offset=8))
    return result.value, register, memory


@pytest.mark.parametrize("size", [W, DW], ids=["w", "dw"])
@pytest.mark.parametrize("name", SIMPLE)
@given(old=words, src=words)
def test_atomic_operations(name: str, size: int, old: int, src: int) -> None:
    code, operation = SIMPLE[name]
    mask = (1 << 8 * WIDTHS[size]) - 1
    stored = old & ~mask | operation(old & mask, src & mask) & mask
    if name != "xchg":
        assert atomic(size, code, old, src) == (0, src, stored)
    assert atomic(size, code | 1, old, src) == (0, old & mask, stored)


@pytest.mark.parametrize("size", [W, DW], ids=["w", "dw"])
@given(old=words, src=words, other=words, same=st.booleans())
def test_compare_and_exchange(size: int, old: int, src: int, other: int, same: bool) -> None:
    """r0 is compared at the width of the operation and gets the old value, zero extended."""
    mask = (1 << 8 * WIDTHS[size]) - 1
    r0 = old & mask | other & ~mask if same else other
    matches = r0 & mask == old & mask
    stored = old & ~mask | src & mask if matches else old
    assert atomic(size, 0xF1, old, src, r0) == (old & mask, src, stored)


@pytest.mark.parametrize(("size", "offset"), [(W, 1), (W, 2), (DW, 2), (DW, 4)])
def test_an_unaligned_atomic_operation_faults(size: int, offset: int) -> None:
    with pytest.raises(Fault) as caught:
        execute(lddw(1, INPUT), insn(STX | ATOMIC | size, 1, 2, offset), exit_)
    assert caught.value.kind is FaultKind.UNALIGNED
    assert caught.value.address == INPUT + offset


def test_a_compare_and_exchange_that_fails_still_needs_writable_memory() -> None:
    code = [mov(0, 1), lddw(1, RODATA), insn(STX | ATOMIC | DW, 1, 2, 0, 0xF1), exit_]
    with pytest.raises(Fault) as caught:
        execute(*code)
    assert caught.value.kind is FaultKind.READ_ONLY


# The arena: stack | input | output | data | rodata


def test_the_regions_lie_in_their_order_from_the_base_on() -> None:
    space = arena()
    assert (space.stack_top, space.input, space.output) == (INPUT, INPUT, OUTPUT)
    assert (space.data, space.rodata) == (DATA, RODATA)


def test_each_region_begins_on_a_page_of_its_own() -> None:
    layout = Layout(input_size=1, output_size=4097, data_size=0, rodata_size=3)
    offsets = (layout.input_offset, layout.output_offset, layout.data_offset, layout.rodata_offset)
    assert offsets == (4096, 2 * 4096, 4 * 4096, 4 * 4096)
    assert layout.size == 4 * 4096 + 3


def test_the_stack_is_eight_frames_of_512_bytes() -> None:
    assert execute(mov_reg(0, 10), exit_).value == BASE + 8 * 512


def access(address: int, size: int, write: bool) -> int:
    """Read or write one value at `address`; the value read."""
    operation = store(1, 0, size=size) if write else load(0, 1, size=size)
    return execute(mov(0, 0), lddw(1, address), operation, exit_).value


@SIZES
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
@pytest.mark.parametrize("edge", [FRAME, INPUT, OUTPUT, DATA])
def test_the_first_and_last_bytes_of_each_region_are_there(
    edge: int, write: bool, size: int
) -> None:
    access(edge, size, write)
    region_end = INPUT if edge == FRAME else edge + 4096
    access(region_end - WIDTHS[size], size, write)


@SIZES
def test_read_only_data_can_be_read_and_not_written(size: int) -> None:
    width = WIDTHS[size]
    for address in (RODATA, END - width):
        assert access(address, size, write=False) == 0
        with pytest.raises(Fault) as caught:
            access(address, size, write=True)
        assert (caught.value.kind, caught.value.address) == (FaultKind.READ_ONLY, address)
    access(RODATA - width, size, write=True)
    if width > 1:
        with pytest.raises(Fault) as caught:
            access(RODATA - width + 1, size, write=True)
        assert caught.value.kind is FaultKind.READ_ONLY


@SIZES
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_an_access_with_any_byte_outside_faults(write: bool, size: int) -> None:
    width = WIDTHS[size]
    for address in (
        FRAME - 1,
        BASE - 1,
        BASE - width,
        END - width + 1,
        END,
        0,
        U64,
        U64 - width + 1,
        1 << 63,
    ):
        with pytest.raises(Fault) as caught:
            access(address, size, write)
        assert caught.value.kind is FaultKind.OUT_OF_BOUNDS
        assert (caught.value.pc, caught.value.address) == (3, address)


def test_a_fault_says_where_and_why() -> None:
    with pytest.raises(Fault) as caught:
        execute(mov(0, 0), load(0, 0, 16, W), exit_)
    assert str(caught.value) == (
        "memory access out of bounds at instruction 1: a read of 4 bytes at 0x10 was refused: "
        "the arena spans 0x10000000 to 0x10004040"
    )


def test_a_store_that_was_refused_is_not_said_to_have_happened() -> None:
    for address, why in [
        (0, "the arena spans 0x10000000 to 0x10004040"),
        (RODATA, "it reaches into the read-only data"),
    ]:
        with pytest.raises(Fault) as caught:
            arena().write(address, 1, 7)
        assert caught.value.reason == f"a write of 1 byte at 0x{address:x} was refused: {why}"


def test_a_store_that_faults_changes_nothing() -> None:
    memory = bytearray(LAYOUT.size)
    with pytest.raises(Fault):
        arena(memory).write(RODATA - 4, 8, U64)
    assert not any(memory)


def test_memory_behind_the_arena_is_out_of_reach() -> None:
    memory = memoryview(bytearray(LAYOUT.size + 4096))
    with pytest.raises(Fault):
        Arena(memory, LAYOUT).read(END, 1)


def test_views_are_read_only_unless_asked_for() -> None:
    space = arena()
    assert space.bytes_at(INPUT, 4).readonly
    assert not space.bytes_at(INPUT, 4, write=True).readonly
    assert len(space.bytes_at(END, 0)) == 0
    with pytest.raises(Fault):
        space.bytes_at(INPUT, U64)
    with pytest.raises(Fault):
        space.bytes_at(RODATA - 1, 2, write=True)


def test_strings_end_at_their_nul_or_their_limit() -> None:
    memory = bytearray(LAYOUT.size)
    memory[LAYOUT.input_offset : LAYOUT.input_offset + 9] = b"one\0two\0x"
    space = arena(memory)
    assert space.string_at(INPUT, 100) == b"one"
    assert space.string_at(INPUT + 4, 100) == b"two"
    assert space.string_at(INPUT, 2) == b"on"
    assert space.string_at(INPUT + 3, 100) == b""


def test_a_string_may_end_with_the_arena_but_not_leave_it() -> None:
    memory = bytearray(LAYOUT.size)
    memory[-3:] = b"xyz"
    space = arena(memory)
    assert space.string_at(END - 3, 3) == b"xyz"
    with pytest.raises(Fault, match="no end"):
        space.string_at(END - 3, 4)
    with pytest.raises(Fault):
        space.string_at(END, 4)


def test_a_string_does_not_go_on_behind_the_arena() -> None:
    memory = memoryview(bytearray(b"x" * LAYOUT.size + b"y\0"))
    with pytest.raises(Fault, match="no end"):
        Arena(memory, LAYOUT).string_at(END - 3, 100)


def test_an_arena_needs_enough_memory() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        arena(bytearray(LAYOUT.size - 1))


def test_a_layout_cannot_be_negative_or_reach_the_code() -> None:
    with pytest.raises(ValueError, match="negative"):
        Layout(input_size=-1, output_size=0)
    with pytest.raises(ValueError, match="exceeds"):
        Layout(input_size=1 << 40, output_size=0)

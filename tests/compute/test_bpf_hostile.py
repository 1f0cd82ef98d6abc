"""Whatever bytes are run as a program: it ends with a value or a fault, and in no other way."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_firmware.bpf import isa
from potash_firmware.bpf.errors import Fault, FaultKind, VerificationError
from potash_firmware.bpf.interpreter import Interpreter
from potash_firmware.bpf.interpreter import execute as run
from potash_firmware.bpf.machine import verify
from support.bpf import LAYOUT, U64, arena, execute, exit_, insn, lddw, mov

HELPERS = {number: lambda *arguments: sum(arguments) for number in (1, 2, 3)}
LIMIT = 300


def finish(code: bytes, entry: int = 0) -> Fault | int:
    """Run `code` with pointers into its buffers in the registers, as a real start has them."""
    space = arena()
    arguments = (space.input, space.output, 4096, 4096, space.data)
    try:
        return run(code, entry, space, HELPERS, arguments, LIMIT).value
    except Fault as fault:
        return fault


small = st.integers(-8, 8)
immediates = st.one_of(small, st.integers(-(1 << 31), (1 << 31) - 1))
plausible = st.builds(
    insn,
    st.sampled_from(sorted(isa.FORMS)),
    st.integers(0, 10),
    st.integers(0, 10),
    st.one_of(st.just(0), small, st.integers(-(1 << 15), (1 << 15) - 1)),
    st.one_of(st.just(0), immediates, st.sampled_from([16, 32, 64, 0x01, 0x40, 0xE1, 0xF1])),
)
legal = st.one_of(
    st.builds(lddw, st.integers(0, 9), st.integers(0, U64)),
    plausible.filter(lambda slot: isa.problem(isa.decode(slot), 0) is None),
)


@given(st.binary(max_size=400))
def test_any_bytes(code: bytes) -> None:
    finish(code)


@given(st.lists(plausible, min_size=1, max_size=30), st.integers(-2, 32))
def test_plausible_instructions(code: list[bytes], entry: int) -> None:
    finish(b"".join(code), entry)


@given(st.lists(legal, min_size=1, max_size=30))
def test_legal_instructions_keep_the_machine_in_order(code: list[bytes]) -> None:
    """Registers stay 64 bits wide, the fault names an instruction, the limit holds."""
    space = arena()
    machine = Interpreter(b"".join([*code, exit_]), space, HELPERS, LIMIT)
    try:
        machine.run(0, (space.input, space.output, U64, 1 << 64, -1))
    except Fault as fault:
        assert fault.pc is not None
        if fault.kind is FaultKind.INVALID_INSTRUCTION:  # a jump into the middle of an LDDW
            assert machine.instructions[fault.pc].opcode == 0
    assert machine.executed <= LIMIT
    assert all(0 <= register <= U64 for register in machine.registers)


@given(st.lists(st.one_of(legal, plausible), min_size=1, max_size=12))
def test_what_is_verified_meets_only_the_faults_that_depend_on_values(code: list[bytes]) -> None:
    program = b"".join([*code, exit_])
    try:
        verify(program, 0, HELPERS)
    except VerificationError:
        return
    outcome = finish(program)
    if isinstance(outcome, Fault):
        callx = any(slot[0] == 0x8D for slot in code)
        assert outcome.kind is not FaultKind.INVALID_INSTRUCTION or callx
        assert outcome.kind is not FaultKind.UNKNOWN_HELPER or callx
        assert outcome.kind is not FaultKind.OUTSIDE_PROGRAM or callx


def test_code_that_is_not_whole_instructions_faults() -> None:
    with pytest.raises(Fault) as caught:
        execute(exit_ + b"\0")
    assert caught.value.kind is FaultKind.INVALID_INSTRUCTION


@pytest.mark.parametrize(
    ("code", "pc", "message"),
    [
        (b"", 0, "not a program"),
        (exit_[:-1], 0, "not a program"),
        (insn(0x00) + exit_, 0, "opcode 0x00 does not exist"),
        (insn(0x20, imm=4) + exit_, 0, "opcode 0x20 is one of the deprecated packet"),
        (insn(0xB7, 11) + exit_, 0, "11 in its dst field"),
        (insn(0xBF, 0, 11) + exit_, 0, "11 in its src field"),
        (insn(0xB7, 10) + exit_, 0, "10 in its dst field"),
        (insn(0x79, 10, 1) + exit_, 0, "10 in its dst field"),
        (insn(0xDB, 1, 10, imm=1) + exit_, 0, "frame pointer"),
        (insn(0xDB, 1, 2, imm=2) + exit_, 0, "2 in its imm field"),
        (insn(0xB7, 1, 2) + exit_, 0, "2 in its src field"),
        (insn(0xBF, 1, 2, imm=1) + exit_, 0, "1 in its imm field"),
        (insn(0xB7, 1, offset=1) + exit_, 0, "1 in its offset field"),
        (insn(0x37, 1, offset=2, imm=3) + exit_, 0, "2 in its offset field"),
        (insn(0xBC, 1, 2, 32) + exit_, 0, "32 in its offset field"),  # MOVSX of 32 bits is wide
        (insn(0xD4, 1, imm=8) + exit_, 0, "8 in its imm field"),
        (insn(0xDF, 1, imm=16) + exit_, 0, "opcode 0xdf does not exist"),
        (insn(0x8F, 1) + exit_, 0, "opcode 0x8f does not exist"),
        (insn(0x99, 1, 2) + exit_, 0, "opcode 0x99 does not exist"),  # MEMSX of 64 bits
        (insn(0xD3, 1, 2) + exit_, 0, "opcode 0xd3 does not exist"),  # 8-bit atomic
        (insn(0x85, src=2) + exit_, 0, "2 in its src field"),
        (lddw(1, 0, src=1) + exit_, 0, "1 in its src field"),
        (insn(0x18, 1), 0, "lacks its second half"),
        (insn(0x18, 1) + exit_, 0, "reserved fields"),
        (mov(0, 0) + insn(0x05, offset=1) + exit_, 1, "its target 3 is no instruction"),
        (insn(0x05, offset=-2) + exit_, 0, "its target -1 is no instruction"),
        (insn(0x06, imm=7) + exit_, 0, "its target 8 is no instruction"),
        (insn(0x15, 0, offset=1) + lddw(1, 0) + exit_, 0, "the middle of an LDDW"),
        (insn(0x85, src=1, imm=5) + exit_, 0, "its target 6 is no instruction"),
        (lddw(1, 5, src=4) + exit_, 0, "its target 6 is no instruction"),
        (insn(0x85, imm=9) + exit_, 0, "no helper 9"),
        (mov(0, 0), 0, "past its last instruction"),
        (exit_ + insn(0x15, 1, offset=-1), 1, "past its last instruction"),
    ],
)
def test_the_verifier_names_the_instruction_and_the_reason(
    code: bytes, pc: int, message: str
) -> None:
    with pytest.raises(VerificationError, match=message) as caught:
        verify(code, 0, HELPERS)
    assert caught.value.pc == pc


@pytest.mark.parametrize("entry", [-1, 1, 4])
def test_a_program_cannot_be_entered_between_instructions(entry: int) -> None:
    with pytest.raises(VerificationError, match="cannot be entered"):
        verify(lddw(0, 1) + mov(0, 0) + exit_, entry, HELPERS)


@pytest.mark.parametrize(
    "code",
    [
        insn(0x05, offset=-1),  # a loop without end has a last instruction
        insn(0x06, imm=-1),
        insn(0xDB, 1, 10, imm=0) + exit_,  # the frame pointer is added, but not fetched into
        insn(0xDB, 1, 10, imm=0xF1) + exit_,  # compare and exchange fetches into r0
        insn(0x7B, 10, 10, -8) + exit_,
        lddw(1, 1, src=4) + exit_,
        insn(0x85, src=1, imm=-1) + exit_,
        insn(0x8D, 10) + exit_,
    ],
)
def test_what_only_looks_wrong_is_accepted(code: bytes) -> None:
    verify(code, 0, HELPERS)


def test_the_verifier_also_reads_what_is_never_reached() -> None:
    with pytest.raises(VerificationError, match="opcode 0xff"):
        verify(exit_ + insn(0xFF) + exit_, 0, HELPERS)


def test_every_instruction_of_the_standard_is_accepted() -> None:
    """The opcodes of RFC 9669's appendix A but for the packet group, counted by hand.

    Arithmetic: 14 codes in two classes and sources, less NEG X and, for ALU64, END X; jumps: 11
    conditions in two classes and sources, JA twice, CALL, EXIT, and CALLX beside the standard.
    """
    arithmetic = 2 * (13 * 2 - 1) + 3
    jumps = 2 * 2 * 11 + 2 + 2 + 1
    memory = 1 + 3 * 4 + 3 + 2
    assert len(isa.FORMS) == arithmetic + jumps + memory


def test_decoding_follows_the_standards_example() -> None:
    """Section 3.1: 07 1 0 00 00 44 33 22 11 is r1 += 0x11223344 on a little endian machine."""
    [instruction] = isa.decode(bytes.fromhex("0701000044332211"))
    assert instruction == (0x07, 1, 0, 0, 0x11223344)
    assert isa.FORMS[instruction.opcode].name == "ALU64 ADD"
    assert struct.pack("<BBhi", 7, 0x01, 0, 0x11223344) == bytes.fromhex("0701000044332211")


def test_a_fault_leaves_the_arena_usable() -> None:
    memory = bytearray(LAYOUT.size)
    space = arena(memory)
    with pytest.raises(Fault):
        run(insn(0x79, 0, 0) + exit_, 0, space, {}, (), LIMIT)
    assert run(mov(0, 3) + exit_, 0, space, {}, (), LIMIT).value == 3

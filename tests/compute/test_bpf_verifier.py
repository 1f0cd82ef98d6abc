"""Every field of every instruction: what the RFC reserves is refused, whatever it is set to.

What each field may hold is written out from RFC 9669, sections 3 to 5. `test_bpf_hostile.py` has
the verifier's sentences, and what is wrong with a program as a whole.
"""

import pytest

from potash_firmware.bpf.errors import VerificationError
from potash_firmware.bpf.machine import verify
from support.bpf import exit_, insn

REGISTERS = range(16)
READ, WRITTEN, NONE = set(range(11)), set(range(10)), {0}
OFFSETS = [0, 1, 2, -1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, -(1 << 15), (1 << 15) - 1]
IMMEDIATES = [*OFFSETS, 0x01, 0x02, 0x40, 0x41, 0x50, 0x51, 0xA0, 0xA1, 0xE0, 0xE1, 0xF0, 0xF1]
IMMEDIATES += [65, 128, 0x100, -(1 << 31), (1 << 31) - 1]
ANY = set(IMMEDIATES)

HELPERS = ANY
"""Every number that is tried is a helper's, so that only the encoding can be wrong."""


def allowed(opcode: int) -> tuple[set[int], set[int], set[int], set[int]] | None:
    """What dst, src, offset and imm may hold; None where there is no such opcode."""
    kind, code, register = opcode & 7, opcode & 0xF0, bool(opcode & 8)
    if kind in (4, 7):  # ALU, ALU64
        wide = kind == 7
        if code == 0x80:  # NEG
            return None if register else (WRITTEN, NONE, NONE, NONE)
        if code == 0xD0:  # END
            return None if register and wide else (WRITTEN, NONE, NONE, {16, 32, 64})
        if code > 0xD0:
            return None
        offset = NONE
        if code in (0x30, 0x90):  # DIV, MOD
            offset = {0, 1}
        elif code == 0xB0 and register:  # MOV
            offset = {0, 8, 16, 32} if wide else {0, 8, 16}
        return (WRITTEN, READ, offset, NONE) if register else (WRITTEN, NONE, offset, ANY)
    if kind in (5, 6):  # JMP, JMP32; where they lead is looked at elsewhere
        if code == 0x00:  # JA
            far = kind == 6
            return None if register else (NONE, NONE, NONE if far else {0}, {0} if far else NONE)
        if code == 0x80:  # CALL
            if kind == 6:
                return None
            return (READ, NONE, NONE, NONE) if register else (NONE, {0}, NONE, ANY)
        if code == 0x90:  # EXIT
            return None if register or kind == 6 else (NONE, NONE, NONE, NONE)
        if code > 0xD0:
            return None
        return (READ, READ, {0}, NONE) if register else (READ, NONE, {0}, ANY)
    mode, size = opcode & 0xE0, opcode & 0x18
    byte_to_double = set(OFFSETS)
    if mode == 0x60 and kind in (1, 2, 3):
        dst = WRITTEN if kind == 1 else READ
        return dst, NONE if kind == 2 else READ, byte_to_double, ANY if kind == 2 else NONE
    if mode == 0x80 and kind == 1 and size != 0x18:  # MEMSX
        return WRITTEN, READ, byte_to_double, NONE
    if mode == 0xC0 and kind == 3 and size in (0x00, 0x18):  # ATOMIC
        operations = {0x00, 0x40, 0x50, 0xA0, 0x01, 0x41, 0x51, 0xA1, 0xE1, 0xF1}
        return READ, READ, byte_to_double, operations
    return None


LDDW = 0x18
ATOMIC = (0xC3, 0xDB)
JUMPS = {0x05, 0x06} | {
    code | bit | kind
    for code in (0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xA0, 0xB0, 0xC0, 0xD0)
    for bit in (0, 8)
    for kind in (5, 6)
}


def accepted(opcode: int, dst: int, src: int, offset: int, imm: int) -> bool:
    """Whether the verifier takes one instruction, with an exit behind it."""
    try:
        verify(insn(opcode, dst, src, offset, imm) + exit_, 0, HELPERS)
    except VerificationError as error:
        assert error.pc == 0
        return False
    return True


def test_each_field_takes_what_the_standard_lets_it() -> None:
    for opcode in range(256):
        if (rules := allowed(opcode)) is not None:
            check_fields(opcode, rules)
        elif opcode != LDDW:
            assert not accepted(opcode, 0, 0, 0, 0), hex(opcode)


def check_fields(opcode: int, rules: tuple[set[int], set[int], set[int], set[int]]) -> None:
    good = [min(values, key=lambda value: (value < 0, value)) for values in rules]
    assert accepted(opcode, *good), hex(opcode)
    for field, (rule, tried) in enumerate(
        zip(rules, (REGISTERS, REGISTERS, OFFSETS, IMMEDIATES), strict=True)
    ):
        if opcode in JUMPS and field == (3 if opcode == 0x06 else 2):
            continue  # a distance, which must lead somewhere
        for value in tried:
            chosen = [*good]
            chosen[field] = value
            # A local call's target is in imm, so a src of 1 leads somewhere too.
            expected = value in rule or (opcode == 0x85 and field == 1 and value == 1)
            assert accepted(opcode, *chosen) == expected, (hex(opcode), field, value)


@pytest.mark.parametrize("opcode", ATOMIC)
@pytest.mark.parametrize("operation", [0x01, 0x41, 0x51, 0xA1, 0xE1])
def test_nothing_is_fetched_into_the_frame_pointer(opcode: int, operation: int) -> None:
    assert accepted(opcode, 1, 9, 0, operation)
    assert not accepted(opcode, 1, 10, 0, operation)


@pytest.mark.parametrize("distance", range(-4, 5))
@pytest.mark.parametrize("opcode", [0x05, 0x06, 0x15, 0x85])
def test_a_jump_leads_to_the_beginning_of_an_instruction(opcode: int, distance: int) -> None:
    """exit, the jump, a wide instruction, exit: the places 0, 1, 2 and 4 are good."""
    in_imm = opcode in (0x06, 0x85)
    src = 1 if opcode == 0x85 else 0
    jump = insn(opcode, 0, src, 0 if in_imm else distance, distance if in_imm else 0)
    code = exit_ + jump + insn(LDDW, 1) + insn(0) + exit_
    target = 2 + distance
    if target in (0, 1, 2, 4):
        verify(code, 0, ())
        return
    with pytest.raises(VerificationError) as caught:
        verify(code, 0, ())
    assert caught.value.pc == 1
    inside = "the middle of an LDDW" if target == 3 else "no instruction"
    assert caught.value.reason == f"its target {target} is {inside}"

"""Every instruction of RFC 9669 does what the RFC says, on every engine there is."""

from pathlib import Path

import pytest

from potash_firmware.bpf import isa
from potash_firmware.bpf.engine import Engine
from potash_firmware.bpf.machine import verify
from support.bpf import LAYOUT, arena, engines, execute, run_on
from support.bpf_vectors import VECTORS, combined


def test_a_program_leaves_its_value_in_r0() -> None:
    found = {}
    for vector in VECTORS:
        verify(vector.code, 0, ())
        registers = (arena().input, len(vector.memory))
        found[vector.name] = execute(vector.code, registers=registers, memory=vector.memory).value
    assert found == {vector.name: vector.value for vector in VECTORS}


BATCH = 100
"""Programs that are compiled at once, which takes less time than one by one."""


@pytest.mark.parametrize("first", range(0, len(VECTORS), BATCH))
@pytest.mark.parametrize("engine", engines())
def test_every_engine_does_the_same(
    engine: Engine, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    vectors = VECTORS[first : first + BATCH]
    code = combined(vectors)
    verify(code, 0, ())
    wrong = {}
    for number, vector in enumerate(vectors):
        memory = bytearray(LAYOUT.size)
        space = arena(memory)
        start = LAYOUT.input_offset
        memory[start : start + len(vector.memory)] = vector.memory
        arguments = (space.input, len(vector.memory), number)
        value = run_on(engine, code, 0, space, {}, arguments, 10_000).value
        if value != vector.value:
            wrong[vector.name] = f"{value:#x} is not {vector.value:#x}"
    assert wrong == {}


# The instructions of the groups base32, base64, atomic32, atomic64, divmul32 and divmul64 in
# RFC 9669's appendix A, and CALLX: opcode, offset and imm where these tell instructions apart.
ALU_CODES = (0x00, 0x10, 0x20, 0x40, 0x50, 0x60, 0x70, 0xA0, 0xC0)
JUMP_CODES = (0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xA0, 0xB0, 0xC0, 0xD0)
INSTRUCTIONS = (
    {(code | source | kind, 0, 0) for code in ALU_CODES for source in (0, 8) for kind in (4, 7)}
    | {
        (code | source | kind, offset, 0)
        for code in (0x30, 0x90)
        for source in (0, 8)
        for kind in (4, 7)
        for offset in (0, 1)
    }
    | {(0x84, 0, 0), (0x87, 0, 0), (0xB4, 0, 0), (0xB7, 0, 0)}
    | {(0xBC, offset, 0) for offset in (0, 8, 16)}
    | {(0xBF, offset, 0) for offset in (0, 8, 16, 32)}
    | {(opcode, 0, width) for opcode in (0xD4, 0xDC, 0xD7) for width in (16, 32, 64)}
    | {(code | source | kind, 0, 0) for code in JUMP_CODES for source in (0, 8) for kind in (5, 6)}
    | {(0x05, 0, 0), (0x06, 0, 0), (0x85, 0, 0), (0x8D, 0, 0), (0x95, 0, 0), (0x18, 0, 0)}
    | {(mode | size, 0, 0) for mode in (0x61, 0x62, 0x63) for size in (0x00, 0x08, 0x10, 0x18)}
    | {(0x81, 0, 0), (0x89, 0, 0), (0x91, 0, 0)}
    | {
        (opcode, 0, operation)
        for opcode in (0xC3, 0xDB)
        for operation in (0x00, 0x40, 0x50, 0xA0, 0x01, 0x41, 0x51, 0xA1, 0xE1, 0xF1)
    }
)


def test_every_instruction_is_in_a_program() -> None:
    seen = set()
    for vector in VECTORS:
        for opcode, _, _, offset, imm in isa.decode(vector.code):
            arithmetic = opcode & 7 in (4, 7)
            tells = arithmetic and opcode & 0xF0 in (0x30, 0x90, 0xB0)
            counts = (arithmetic and opcode & 0xF0 == 0xD0) or opcode in (0xC3, 0xDB)
            seen.add((opcode, offset if tells else 0, imm if counts else 0))
    assert seen - {(0, 0, 0)} == INSTRUCTIONS


def test_there_are_no_other_opcodes() -> None:
    assert set(isa.FORMS) == {opcode for opcode, _, _ in INSTRUCTIONS}

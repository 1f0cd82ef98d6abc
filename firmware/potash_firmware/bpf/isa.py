"""The BPF instruction set as data: the encoding, its fields, and which combinations are legal.

Source: RFC 9669, sections 3 (encoding), 4 (arithmetic and jump) and 5 (load and store). The values
are the RFC's field values, not yet shifted into an opcode. All conformance groups are here but the
deprecated packet group.
"""

import struct
from collections.abc import Container, Mapping, Sequence
from enum import IntEnum
from itertools import product
from typing import NamedTuple

INSTRUCTION_SIZE = 8
INSTRUCTION = struct.Struct("<BBhi")
"""opcode, registers (source in the high nibble), offset, imm (section 3.1)."""

FRAME_POINTER = 10

CODE_BASE = 1 << 40
"""Lowest address of functions: far above every arena, so that no data access hits them."""


class Class(IntEnum):
    """Instruction classes, opcode bits 2:0 (section 3.3)."""

    LD = 0
    LDX = 1
    ST = 2
    STX = 3
    ALU = 4
    JMP = 5
    JMP32 = 6
    ALU64 = 7


class OperandSource(IntEnum):
    """The source of an arithmetic or jump instruction's operand, opcode bit 3 (section 4)."""

    K = 0
    X = 1


class ByteOrder(IntEnum):
    """The source bit of an ALU byte swap (section 4.2)."""

    TO_LE = 0
    TO_BE = 1


class Alu(IntEnum):
    """Arithmetic codes, opcode bits 7:4 (section 4.1)."""

    ADD = 0x0
    SUB = 0x1
    MUL = 0x2
    DIV = 0x3
    OR = 0x4
    AND = 0x5
    LSH = 0x6
    RSH = 0x7
    NEG = 0x8
    MOD = 0x9
    XOR = 0xA
    MOV = 0xB
    ARSH = 0xC
    END = 0xD


SIGNED = 1
"""The offset that makes DIV and MOD signed (section 4.1)."""


class Jump(IntEnum):
    """Jump codes, opcode bits 7:4 (section 4.3)."""

    JA = 0x0
    JEQ = 0x1
    JGT = 0x2
    JGE = 0x3
    JSET = 0x4
    JNE = 0x5
    JSGT = 0x6
    JSGE = 0x7
    CALL = 0x8
    EXIT = 0x9
    JLT = 0xA
    JLE = 0xB
    JSLT = 0xC
    JSLE = 0xD


UNCONDITIONAL = frozenset({Jump.JA, Jump.CALL, Jump.EXIT})


def _both_ways(*pairs: tuple[Jump, Jump]) -> Mapping[int, Jump]:
    return {one: other for a, b in pairs for one, other in ((a, b), (b, a))}


OPPOSITE = _both_ways(
    (Jump.JEQ, Jump.JNE),
    (Jump.JGT, Jump.JLE),
    (Jump.JGE, Jump.JLT),
    (Jump.JSGT, Jump.JSLE),
    (Jump.JSGE, Jump.JSLT),
)
"""Jumps with the opposite condition."""

MIRRORED = _both_ways(
    (Jump.JNE, Jump.JNE),
    (Jump.JGT, Jump.JLT),
    (Jump.JGE, Jump.JLE),
    (Jump.JSGT, Jump.JSLT),
    (Jump.JSGE, Jump.JSLE),
)
"""Pairs of comparisons that are the same with their sides exchanged."""


class CallKind(IntEnum):
    """The source register field of a CALL (section 4.3)."""

    HELPER = 0
    LOCAL = 1


class Size(IntEnum):
    """Width of a load or store, opcode bits 4:3 (section 5)."""

    W = 0
    H = 1
    B = 2
    DW = 3


SIZE_BYTES: Mapping[int, int] = {Size.W: 4, Size.H: 2, Size.B: 1, Size.DW: 8}


class Mode(IntEnum):
    """Mode of a load or store, opcode bits 7:5 (section 5)."""

    IMM = 0
    MEM = 3
    MEMSX = 4
    ATOMIC = 6


class Atomic(IntEnum):
    """The imm field of an atomic operation (section 5.3)."""

    ADD = 0x00
    FETCH = 0x01
    OR = 0x40
    AND = 0x50
    XOR = 0xA0
    XCHG = 0xE1
    CMPXCHG = 0xF1


_PLAIN_ATOMICS = (Atomic.ADD, Atomic.OR, Atomic.AND, Atomic.XOR)
ATOMIC_OPERATIONS = frozenset(
    {operation | fetch for operation in _PLAIN_ATOMICS for fetch in (0, Atomic.FETCH)}
    | {Atomic.XCHG, Atomic.CMPXCHG}
)


class ImmediateKind(IntEnum):
    """The source register field of a 64-bit immediate load (section 5.4).

    Maps and platform variables do not exist on this machine.
    """

    INTEGER = 0
    CODE_ADDRESS = 4


class Instruction(NamedTuple):
    """One 64-bit slot, decoded."""

    opcode: int
    dst: int
    src: int
    offset: int
    imm: int

    @property
    def kind(self) -> int:
        """The class, a `Class`."""
        return self.opcode & 7

    @property
    def code(self) -> int:
        """The `Alu` or `Jump` code of an arithmetic or jump instruction."""
        return self.opcode >> 4

    @property
    def source(self) -> int:
        """The `OperandSource` of an arithmetic or jump instruction."""
        return self.opcode >> 3 & 1

    @property
    def mode(self) -> int:
        """The `Mode` of a load or store."""
        return self.opcode >> 5

    @property
    def size(self) -> int:
        """Number of bytes that a load or store moves."""
        return SIZE_BYTES[self.opcode >> 3 & 3]


def operation_opcode(kind: int, code: int, source: int = OperandSource.K) -> int:
    """The opcode of an arithmetic or jump instruction."""
    return code << 4 | source << 3 | kind


def memory_opcode(kind: int, mode: int, size: int) -> int:
    """The opcode of a load or store."""
    return mode << 5 | size << 3 | kind


LDDW = memory_opcode(Class.LD, Mode.IMM, Size.DW)
CALL = operation_opcode(Class.JMP, Jump.CALL)
CALLX = operation_opcode(Class.JMP, Jump.CALL, OperandSource.X)
EXIT = operation_opcode(Class.JMP, Jump.EXIT)
JA = operation_opcode(Class.JMP, Jump.JA)
JA32 = operation_opcode(Class.JMP32, Jump.JA)


def decode(code: bytes) -> list[Instruction]:
    """The slots of `code`, whose length is a multiple of 8 bytes, without validation."""
    return [
        Instruction(opcode, registers & 0xF, registers >> 4, offset, imm)
        for opcode, registers, offset, imm in INSTRUCTION.iter_unpack(code)
    ]


def wide_value(instructions: Sequence[Instruction], at: int) -> int:
    """Value of the wide instruction at `at`: its halves, or an address of code (section 3.2)."""
    first = instructions[at]
    if first.src == ImmediateKind.CODE_ADDRESS:
        return CODE_BASE + (at + 1 + first.imm) * INSTRUCTION_SIZE
    return (instructions[at + 1].imm & 0xFFFF_FFFF) << 32 | first.imm & 0xFFFF_FFFF


def target(index: int, instruction: Instruction) -> int | None:
    """The instruction to which the one at `index` can jump, or whose address it takes; None for
    others."""
    opcode, _, src, offset, imm = instruction
    if (opcode, src) in ((CALL, CallKind.LOCAL), (LDDW, ImmediateKind.CODE_ADDRESS), (JA32, 0)):
        return index + 1 + imm
    if opcode & 7 in (Class.JMP, Class.JMP32) and opcode not in (CALL, CALLX, EXIT):
        return index + 1 + offset
    return None


# Which values the fields of an instruction may have: unused ones are zero (section 3.1).
_UNUSED = (0,)
_READABLE = range(FRAME_POINTER + 1)
_WRITABLE = range(FRAME_POINTER)
_ANY_OFFSET = range(-(1 << 15), 1 << 15)
_ANY_IMM = range(-(1 << 31), 1 << 31)


class Form(NamedTuple):
    """An opcode: its name, and the allowed values of each further field of the instruction."""

    name: str
    dst: Container[int]
    src: Container[int]
    offset: Container[int]
    imm: Container[int]


def _operand_fields(source: OperandSource) -> tuple[Container[int], Container[int]]:
    """Allowed values of the src and imm fields: one of them is the operand, the other unused."""
    return (_READABLE, _UNUSED) if source is OperandSource.X else (_UNUSED, _ANY_IMM)


def _arithmetic_forms() -> dict[int, Form]:
    forms = {}
    for kind, code, source in product((Class.ALU, Class.ALU64), Alu, OperandSource):
        src, imm = _operand_fields(source)
        offset: Container[int] = _UNUSED
        if code in (Alu.DIV, Alu.MOD):
            offset = (0, SIGNED)
        elif code is Alu.MOV and source is OperandSource.X:
            offset = (0, 8, 16) if kind is Class.ALU else (0, 8, 16, 32)
        elif code is Alu.NEG:
            if source is OperandSource.X:
                continue
            imm = _UNUSED
        elif code is Alu.END:
            if source is OperandSource.X and kind is Class.ALU64:
                continue
            src, imm = _UNUSED, (16, 32, 64)
        opcode = operation_opcode(kind, code, source)
        forms[opcode] = Form(f"{kind.name} {code.name}", _WRITABLE, src, offset, imm)
    return forms


def _jump_forms() -> dict[int, Form]:
    forms = {
        JA: Form("JMP JA", _UNUSED, _UNUSED, _ANY_OFFSET, _UNUSED),
        JA32: Form("JMP32 JA", _UNUSED, _UNUSED, _UNUSED, _ANY_IMM),
        CALL: Form("CALL", _UNUSED, tuple(CallKind), _UNUSED, _ANY_IMM),
        # Not in the RFC's table: what compilers emit for a call through a function pointer.
        CALLX: Form("CALLX", _READABLE, _UNUSED, _UNUSED, _UNUSED),
        EXIT: Form("EXIT", _UNUSED, _UNUSED, _UNUSED, _UNUSED),
    }
    for kind, code, source in product((Class.JMP, Class.JMP32), Jump, OperandSource):
        if code not in UNCONDITIONAL:
            src, imm = _operand_fields(source)
            name = f"{kind.name} {code.name}"
            forms[operation_opcode(kind, code, source)] = Form(
                name, _READABLE, src, _ANY_OFFSET, imm
            )
    return forms


def _memory_forms() -> dict[int, Form]:
    forms = {LDDW: Form("LDDW", _WRITABLE, tuple(ImmediateKind), _UNUSED, _ANY_IMM)}
    for size in Size:
        forms |= {
            memory_opcode(Class.LDX, Mode.MEM, size): Form(
                f"LDX {size.name}", _WRITABLE, _READABLE, _ANY_OFFSET, _UNUSED
            ),
            memory_opcode(Class.ST, Mode.MEM, size): Form(
                f"ST {size.name}", _READABLE, _UNUSED, _ANY_OFFSET, _ANY_IMM
            ),
            memory_opcode(Class.STX, Mode.MEM, size): Form(
                f"STX {size.name}", _READABLE, _READABLE, _ANY_OFFSET, _UNUSED
            ),
        }
    for size in (Size.W, Size.H, Size.B):
        forms[memory_opcode(Class.LDX, Mode.MEMSX, size)] = Form(
            f"LDXSX {size.name}", _WRITABLE, _READABLE, _ANY_OFFSET, _UNUSED
        )
    for size in (Size.W, Size.DW):
        forms[memory_opcode(Class.STX, Mode.ATOMIC, size)] = Form(
            f"ATOMIC {size.name}", _READABLE, _READABLE, _ANY_OFFSET, ATOMIC_OPERATIONS
        )
    return forms


FORMS: Mapping[int, Form] = _arithmetic_forms() | _jump_forms() | _memory_forms()
"""Every opcode there is, with what its instruction may hold."""


_PACKET_MODES = (1, 2)
_GOTOX = operation_opcode(Class.JMP, Jump.JA, OperandSource.X)


def _why_unknown(opcode: int) -> str:
    """The reason for which an opcode does not exist."""
    if opcode & 7 == Class.LD and opcode >> 5 in _PACKET_MODES:
        return f"opcode 0x{opcode:02x} is one of the deprecated packet instructions"
    if opcode == _GOTOX:
        return (
            f"opcode 0x{opcode:02x} jumps to a computed address, which no standard has: "
            "compile with -fno-jump-tables, and write a switch for a computed goto"
        )
    return f"opcode 0x{opcode:02x} does not exist"


def problem(instructions: Sequence[Instruction], index: int) -> str | None:
    """The error in the encoding of the instruction at `index`; None if there is none."""
    instruction = instructions[index]
    form = FORMS.get(instruction.opcode)
    if form is None:
        return _why_unknown(instruction.opcode)
    for field in ("dst", "src", "offset", "imm"):
        value = getattr(instruction, field)
        if value not in getattr(form, field):
            return f"{form.name} may not have {value} in its {field} field"
    if instruction.opcode == LDDW:
        if index + 1 == len(instructions):
            return "LDDW lacks its second half"
        if instructions[index + 1][:4] != (0, 0, 0, 0):
            return "LDDW has a second half with reserved fields set"
    if (
        instruction.kind == Class.STX
        and instruction.mode == Mode.ATOMIC
        and instruction.imm & Atomic.FETCH
        and instruction.imm != Atomic.CMPXCHG
        and instruction.src == FRAME_POINTER
    ):
        return f"{form.name} would fetch into the frame pointer"
    return None

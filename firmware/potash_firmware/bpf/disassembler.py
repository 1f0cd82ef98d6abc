"""Disassembly in the notation of LLVM's own disassembler.

`r1` is a register, `w1` its lower half; `s>` and `s/=` are the signed forms. `listing` gives a
whole program with the names, labels and source lines that its object file has.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple

from csd_spec.reporting import Count, Form
from potash_firmware.bpf import added, isa
from potash_firmware.bpf.debug_info import SourceLine
from potash_firmware.bpf.elf import HELPER_NAMES, Program
from potash_firmware.bpf.isa import (
    Alu,
    Atomic,
    ByteOrder,
    Class,
    Instruction,
    Jump,
    Mode,
    OperandSource,
)

_ASSIGNMENT: Final[Mapping[tuple[int, int], str]] = {
    # code and offset
    (Alu.ADD, 0): "+=",
    (Alu.SUB, 0): "-=",
    (Alu.MUL, 0): "*=",
    (Alu.DIV, 0): "/=",
    (Alu.DIV, isa.SIGNED): "s/=",
    (Alu.OR, 0): "|=",
    (Alu.AND, 0): "&=",
    (Alu.LSH, 0): "<<=",
    (Alu.RSH, 0): ">>=",
    (Alu.MOD, 0): "%=",
    (Alu.MOD, isa.SIGNED): "s%=",
    (Alu.XOR, 0): "^=",
    (Alu.MOV, 0): "=",
    (Alu.ARSH, 0): "s>>=",
}

_COMPARISON: Final[Mapping[int, str]] = {
    Jump.JEQ: "==",
    Jump.JGT: ">",
    Jump.JGE: ">=",
    Jump.JSET: "&",
    Jump.JNE: "!=",
    Jump.JSGT: "s>",
    Jump.JSGE: "s>=",
    Jump.JLT: "<",
    Jump.JLE: "<=",
    Jump.JSLT: "s<",
    Jump.JSLE: "s<=",
}

_ATOMIC: Final[Mapping[int, tuple[str, str]]] = {
    # as an assignment, as a function that fetches
    Atomic.ADD: ("+=", "add"),
    Atomic.OR: ("|=", "or"),
    Atomic.AND: ("&=", "and"),
    Atomic.XOR: ("^=", "xor"),
}

_NARROW = (Class.ALU, Class.JMP32)

_HELPERS: Final[Mapping[int, str]] = {number: name for name, number in HELPER_NAMES.items()}


def disassemble(instructions: Sequence[Instruction], index: int, label: str | None = None) -> str:
    """The instruction at `index`; `label` stands for where it leads to or what it refers to.

    An instruction that does not exist is shown as what is wrong with it.
    """
    problem = isa.problem(instructions, index)
    if problem is not None:
        return f"<{problem}>"
    instruction = instructions[index]
    if instruction.opcode == isa.LDDW:
        value = label or _wide_value(instructions, index)
        return f"r{instruction.dst} = {value} ll"
    match instruction.kind:
        case Class.ALU | Class.ALU64:
            return _arithmetic(instruction)
        case Class.JMP | Class.JMP32:
            return _jump(instruction, label)
        case Class.LDX:
            return f"r{instruction.dst} = {_memory(instruction, instruction.src)}"
    if instruction.mode == Mode.ATOMIC:
        return _atomic(instruction)
    value = str(instruction.imm) if instruction.kind == Class.ST else f"r{instruction.src}"
    return f"{_memory(instruction, instruction.dst)} = {value}"


def _wide_value(instructions: Sequence[Instruction], index: int) -> str:
    if instructions[index].src == isa.ImmediateKind.CODE_ADDRESS:
        return f"{instructions[index].imm:+d}"
    value = isa.wide_value(instructions, index)
    return str(value) if value < 1 << 16 else f"0x{value:x}"


def _register(instruction: Instruction, number: int) -> str:
    return f"{'w' if instruction.kind in _NARROW else 'r'}{number}"


def _operand(instruction: Instruction) -> str:
    if instruction.source == OperandSource.X:
        return _register(instruction, instruction.src)
    return str(instruction.imm)


def _arithmetic(instruction: Instruction) -> str:
    dst = _register(instruction, instruction.dst)
    if instruction.code == Alu.NEG:
        return f"{dst} = -{dst}"
    if instruction.code == Alu.END:
        dst = f"r{instruction.dst}"
        order = "be" if instruction.source == ByteOrder.TO_BE else "le"
        swap = "bswap" if instruction.kind == Class.ALU64 else order
        return f"{dst} = {swap}{instruction.imm} {dst}"
    if instruction.code == Alu.MOV and instruction.offset:
        return f"{dst} = (s{instruction.offset}){_operand(instruction)}"
    return f"{dst} {_ASSIGNMENT[instruction.code, instruction.offset]} {_operand(instruction)}"


def _jump(instruction: Instruction, label: str | None) -> str:
    distance = instruction.imm if instruction.opcode == isa.JA32 else instruction.offset
    target = label or f"{distance:+d}"
    match instruction.opcode:
        case isa.EXIT:
            return "exit"
        case isa.CALL:
            return f"call {label or instruction.imm}"
        case isa.CALLX:
            return f"callx r{instruction.dst}"
        case isa.JA:
            return f"goto {target}"
        case isa.JA32:
            return f"gotol {target}"
    condition = f"{_COMPARISON[instruction.code]} {_operand(instruction)}"
    dst = _register(instruction, instruction.dst)
    return f"if {dst} {condition} goto {target}"


def _memory(instruction: Instruction, base: int) -> str:
    sign = "s" if instruction.mode == Mode.MEMSX else "u"
    kind = f"{sign}{8 * instruction.size}"
    return f"*({kind} *)({_address(instruction, base)})"


def _address(instruction: Instruction, base: int) -> str:
    sign = "-" if instruction.offset < 0 else "+"
    return f"r{base} {sign} {abs(instruction.offset)}"


def _atomic(instruction: Instruction) -> str:
    bits = 8 * instruction.size
    letter = "r" if bits == 64 else "w"
    src = f"{letter}{instruction.src}"
    place = _address(instruction, instruction.dst)
    exchange = "64" if bits == 64 else "32_32"
    separator = "_" if bits == 64 else ""
    if instruction.imm == Atomic.XCHG:
        return f"{src} = xchg{separator}{exchange}({place}, {src})"
    if instruction.imm == Atomic.CMPXCHG:
        r0 = f"{letter}0"
        return f"{r0} = cmpxchg{separator}{exchange}({place}, {r0}, {src})"
    assignment, name = _ATOMIC[instruction.imm & ~Atomic.FETCH]
    if instruction.imm & Atomic.FETCH:
        return f"{src} = atomic_fetch_{name}((u{bits} *)({place}), {src})"
    return f"lock {_memory(instruction, instruction.dst)} {assignment} {src}"


class Row(NamedTuple):
    """An instruction of a program."""

    pc: Annotated[Count, "The instruction's number."]
    code: Annotated[bytes, Form(pattern="^[0-9a-f]+$"), "The instruction's bytes in hexadecimal."]
    text: Annotated[str, "The instruction in LLVM's notation."]
    function: Annotated[str | None, "The function that begins here."]
    label: Annotated[str | None, "The label of this instruction, if it is the target of a jump."]
    source: Annotated[
        SourceLine | None,
        "The source line; null if it is that of the previous instruction, or unknown.",
    ]


def listing(program: Program) -> list[Row]:
    """Every instruction of a program, in order."""
    instructions = isa.decode(program.code)
    starts = {function.start: function.name for function in program.debug.functions}
    lines = dict(program.debug.lines)
    labels = _labels(instructions, starts)
    rows = []
    index = 0
    while index < len(instructions):
        wide = instructions[index].opcode == isa.LDDW and index + 1 < len(instructions)
        following = index + 2 if wide else index + 1
        code = program.code[index * isa.INSTRUCTION_SIZE : following * isa.INSTRUCTION_SIZE]
        text = disassemble(instructions, index, _refers_to(program, instructions, index, labels))
        function = starts.get(index)
        label = None if function else labels.get(index)
        rows.append(Row(index, code, text, function, label, lines.get(index)))
        index = following
    return rows


def _labels(instructions: Sequence[Instruction], starts: Mapping[int, str]) -> dict[int, str]:
    """The labels of all targets of instructions."""
    labels = dict(starts)
    for index, instruction in enumerate(instructions):
        target = isa.target(index, instruction)
        if target is not None:
            labels.setdefault(target, f"L{target}")
    return labels


def _refers_to(
    program: Program, instructions: Sequence[Instruction], index: int, labels: Mapping[int, str]
) -> str | None:
    """The name of what the instruction at `index` leads to, or takes the address of."""
    instruction = instructions[index]
    target = isa.target(index, instruction)
    if target is not None:
        return labels[target]
    reference = program.debug.references.get(index)
    if reference is not None:
        return str(reference)
    if instruction.opcode == isa.CALL:
        helper = added.found().helpers.get(instruction.imm)
        return helper.name if helper else _HELPERS.get(instruction.imm)
    return None

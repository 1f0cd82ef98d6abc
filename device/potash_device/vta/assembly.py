"""Instruction streams as text that can be read, changed and assembled again.

A line is an opcode, its memory type or ALU operation, its fields as NAME=VALUE, and its tokens;
what is zero is left out. A number and a colon before it, and everything from a # on, are for the
reader alone. Any 128 bits can be written: codes that do not exist as a field, bits that no field
names as `reserved=MASK`, an unknown opcode as `word BITS`. Names and widths are those of
`encoding`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from potash_device.vta import encoding
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.isa import (
    Alu,
    AluOpcode,
    Dependencies,
    Gemm,
    Load,
    MemoryInstruction,
    MicroOp,
    Opcode,
    decode,
)

INSTRUCTION_BITS = encoding.INSTRUCTION_BYTES * 8
MICRO_OP_BYTES = encoding.MICRO_OP_BITS // 8

WORD = "word"
RESERVED = "reserved"

MAX_QUOTED = 40
"""Characters of a wrong operand that its error shows."""

FLAGS = frozenset({"reset", "use_imm"})
"""Fields that are written without a value, where they are set."""

HEXADECIMAL = frozenset({"sram_base", "dram_base"})

TOKENS: Mapping[str, Dependencies] = {
    bit.name.lower(): bit for bit in Dependencies if bit.name is not None
}


class Form(NamedTuple):
    """Notation of an opcode: its layout's name, and the field that has names for its values."""

    layout: str
    code_field: str = ""
    codes: type[IntEnum] | None = None


FORMS: Mapping[Opcode, Form] = {
    Opcode.LOAD: Form("memory", "memory_type", MemoryId),
    Opcode.STORE: Form("memory", "memory_type", MemoryId),
    Opcode.GEMM: Form("gemm"),
    Opcode.FINISH: Form("finish"),
    Opcode.ALU: Form("alu", "alu_opcode", AluOpcode),
}


class AssemblyError(ValueError):
    """Line `line`, counted from 1, is no instruction, for `reason`."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


def words(stream: bytes) -> Iterator[int]:
    """The instructions of a stream, as numbers. Raises ValueError where it ends inside of one."""
    if len(stream) % encoding.INSTRUCTION_BYTES:
        raise ValueError(
            f"{len(stream)} bytes are no whole number of instructions of "
            f"{encoding.INSTRUCTION_BYTES} bytes"
        )
    for at in range(0, len(stream), encoding.INSTRUCTION_BYTES):
        yield int.from_bytes(stream[at : at + encoding.INSTRUCTION_BYTES], "little")


def disassemble(word: int, config: Config) -> str:
    opcode = word & (1 << encoding.OPCODE_BITS) - 1
    if opcode not in FORMS:
        return f"{WORD} {word:#0{2 + INSTRUCTION_BITS // 4}x}"
    known = Opcode(opcode)
    form = FORMS[known]
    layout = _layout(form, config)
    values = layout.read(word)
    parts = [known.name.lower()]
    if form.codes is not None:
        value = values.pop(form.code_field)
        names = {code.value: code.name.lower() for code in form.codes}
        parts.append(names.get(value, f"{form.code_field}={value}"))
    del values["opcode"]
    tokens = Dependencies(values.pop("dependencies"))
    for name, value in values.items():
        if value:
            parts.append(name if name in FLAGS else f"{name}={_number(name, value)}")
    if reserved := layout.reserved(word):
        parts.append(f"{RESERVED}={reserved:#x}")
    parts.extend(name for name, bit in TOKENS.items() if bit in tokens)
    return " ".join(parts)


def remark(word: int, config: Config) -> str:
    """A comment: the module that executes an instruction and its addresses in DRAM, or why
    no core executes it."""
    try:
        instruction = decode(word, config)
    except encoding.InstructionError as error:
        return str(error)
    stage = instruction.stage.name
    match instruction:
        case MemoryInstruction():
            if not instruction.x_size:
                return f"{stage}: moves nothing"
            if not instruction.y_size:
                return f"{stage}: zeroes"
            rows = instruction.y_size - 1
            element = config.element_bytes(instruction.memory_type)
            first = instruction.dram_base * element
            last = first + (rows * instruction.x_stride + instruction.x_size) * element - 1
            return f"{stage}: {first:#x} to {last:#x}"
        case Gemm() | Alu():
            many = "" if instruction.steps == 1 else "s"
            return f"{stage}: {instruction.steps} micro-op{many}"
        case _:
            return stage


def listing(
    stream: bytes, config: Config, *, dram: memoryview | None = None, base: int = 0
) -> Iterator[str]:
    """The lines of a stream's text, with remarks; and with `dram`, whose first byte has the
    physical address `base`, the micro-ops that it loads. Raises ValueError as `words` does."""
    for index, word in enumerate(words(stream)):
        yield f"{index:6}: {disassemble(word, config)}  # {remark(word, config)}"
        if dram is not None:
            for place, micro_op in _micro_ops(word, config, dram, base):
                yield f"        #   {place:5}: {micro_op}"


def assemble(lines: Iterable[str], config: Config) -> bytes:
    """The stream of the lines. Raises AssemblyError."""
    stream = bytearray()
    for number, line in enumerate(lines, 1):
        try:
            word = _assemble(line, config)
        except ValueError as error:
            raise AssemblyError(number, str(error)) from None
        if word is not None:
            stream += word.to_bytes(encoding.INSTRUCTION_BYTES, "little")
    return bytes(stream)


def _assemble(line: str, config: Config) -> int | None:
    """A line's instruction; None where there is none. Raises ValueError."""
    parts = line.partition("#")[0].lower().split()
    if parts and re.fullmatch(r"[0-9]+:", parts[0]):
        del parts[0]
    if not parts:
        return None
    mnemonic, *operands = parts
    if mnemonic == WORD:
        return _bits(operands)
    try:
        opcode = Opcode[mnemonic.upper()]
    except KeyError:
        known = ", ".join(code.name.lower() for code in Opcode)
        raise ValueError(
            f"{_clipped(mnemonic)} is no instruction; there is {known}, {WORD}"
        ) from None
    form = FORMS[opcode]
    layout = _layout(form, config)
    values: dict[str, int] = {}
    for operand in operands:
        name, value = _operand(operand, form, layout)
        if name in TOKENS:
            name, value = "dependencies", values.pop("dependencies", 0) | TOKENS[name]
        elif name in values:
            raise ValueError(f"{name} is there twice")
        values[name] = value
    if form.codes is not None and form.code_field not in values:
        names = ", ".join(code.name.lower() for code in form.codes)
        raise ValueError(f"{mnemonic} needs one of {names}")
    reserved = values.pop(RESERVED, 0)
    if reserved != layout.reserved(reserved) or reserved >> INSTRUCTION_BITS:
        raise ValueError(f"{RESERVED}={reserved:#x} has bits that are not reserved in {mnemonic}")
    zeroes = dict.fromkeys(layout.by_name, 0)
    return layout.pack(zeroes | values | {"opcode": opcode}) | reserved


def _operand(operand: str, form: Form, layout: encoding.Layout) -> tuple[str, int]:
    """An operand's field, or token, and its value. Raises ValueError."""
    name, equals, text = operand.partition("=")
    if not equals:
        if form.codes is not None and name.upper() in form.codes.__members__:
            return form.code_field, form.codes[name.upper()]
        if name in TOKENS or (name in FLAGS and name in layout.by_name):
            return name, 1
    elif name == RESERVED or (name in layout.by_name and name not in ("opcode", "dependencies")):
        return name, _integer(text)
    raise ValueError(f"{_clipped(operand)} is nothing that the {layout.kind} encoding has")


def _bits(operands: list[str]) -> int:
    if len(operands) != 1:
        raise ValueError(f"{WORD} needs one number")
    word = _integer(operands[0])
    if not 0 <= word < 1 << INSTRUCTION_BITS:
        raise ValueError(f"{_clipped(operands[0])} does not fit into {INSTRUCTION_BITS} bits")
    return word


def _integer(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError(f"{_clipped(text)} is no number") from None


def _clipped(text: str) -> str:
    """Somebody's text in an error, which it must not fill."""
    return repr(text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…")


def _number(name: str, value: int) -> str:
    return f"{value:#x}" if name in HEXADECIMAL else str(value)


def _layout(form: Form, config: Config) -> encoding.Layout:
    layout = getattr(config.layouts, form.layout)
    assert isinstance(layout, encoding.Layout)
    return layout


def _micro_ops(word: int, config: Config, dram: memoryview, base: int) -> Iterator[tuple[int, str]]:
    """The micro-ops that an instruction loads, and their places in the buffer; none where it loads
    something else, or cannot be executed."""
    try:
        load = decode(word, config)
    except encoding.InstructionError:
        return
    if not isinstance(load, Load) or load.memory_type != MemoryId.UOP:
        return
    width = load.x_pad_0 + load.x_size + load.x_pad_1
    if load.sram_base + width * load.y_size > config.depth(MemoryId.UOP):
        return
    for row in range(load.y_size):
        for column in range(load.x_size):
            element = load.dram_base + row * load.x_stride + column
            offset = element * MICRO_OP_BYTES - base
            if not 0 <= offset <= len(dram) - MICRO_OP_BYTES:
                return
            bits = int.from_bytes(dram[offset : offset + MICRO_OP_BYTES], "little")
            place = load.sram_base + (load.y_pad_0 + row) * width + load.x_pad_0 + column
            yield place, _micro_op(bits, config)


def _micro_op(bits: int, config: Config) -> str:
    try:
        micro_op = MicroOp.decode(bits, config)
    except encoding.InstructionError as error:
        return f"{bits:#010x}, {error}"
    return " ".join(f"{name}={value}" for name, value in micro_op._asdict().items())

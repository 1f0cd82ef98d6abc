"""Single instructions as LLVM assembly: arithmetic, conditions, loads and stores.

Sources: RFC 9669, sections 4 and 5. Registers are stack slots `%r0` to `%r9` of the compiled
function, which LLVM turns into values; r10 is the function's parameter `%frame`. Addresses are
checked elsewhere.
"""

from collections.abc import Mapping

from potash_firmware.bpf import isa
from potash_firmware.bpf.arena import REACH
from potash_firmware.bpf.isa import Alu, Atomic, Class, Instruction, Jump, Mode, OperandSource
from potash_firmware.bpf.native.writer import ARENA, Writer

_PLAIN: Mapping[int, str] = {
    Alu.ADD: "add",
    Alu.SUB: "sub",
    Alu.MUL: "mul",
    Alu.OR: "or",
    Alu.AND: "and",
    Alu.XOR: "xor",
}
_SHIFTS: Mapping[int, str] = {Alu.LSH: "shl", Alu.RSH: "lshr", Alu.ARSH: "ashr"}
_DIVISIONS: Mapping[tuple[int, int], str] = {
    (Alu.DIV, 0): "udiv",
    (Alu.MOD, 0): "urem",
    (Alu.DIV, isa.SIGNED): "sdiv",
    (Alu.MOD, isa.SIGNED): "srem",
}
_CONDITIONS: Mapping[int, str] = {
    Jump.JEQ: "eq",
    Jump.JGT: "ugt",
    Jump.JGE: "uge",
    Jump.JNE: "ne",
    Jump.JSGT: "sgt",
    Jump.JSGE: "sge",
    Jump.JLT: "ult",
    Jump.JLE: "ule",
    Jump.JSLT: "slt",
    Jump.JSLE: "sle",
}
_ATOMICS: Mapping[int, str] = {
    Atomic.ADD: "add",
    Atomic.OR: "or",
    Atomic.AND: "and",
    Atomic.XOR: "xor",
    Atomic.XCHG & ~Atomic.FETCH: "xchg",
}


def get(writer: Writer, register: int) -> str:
    if register == isa.FRAME_POINTER:
        return "%frame"
    return writer.value(f"load i64, ptr %r{register}")


def put(writer: Writer, register: int, value: str) -> None:
    writer.line(f"store i64 {value}, ptr %r{register}")


def _truncate(writer: Writer, value: str, bits: int) -> str:
    return value if bits == 64 else writer.value(f"trunc i64 {value} to i{bits}")


def _extend(writer: Writer, value: str, bits: int, *, signed: bool = False) -> str:
    if bits == 64:
        return value
    return writer.value(f"{'sext' if signed else 'zext'} i{bits} {value} to i64")


def _operands(writer: Writer, instruction: Instruction, bits: int) -> tuple[str, str]:
    left = _truncate(writer, get(writer, instruction.dst), bits)
    if instruction.source == OperandSource.X:
        return left, _truncate(writer, get(writer, instruction.src), bits)
    return left, str(instruction.imm)


def arithmetic(writer: Writer, instruction: Instruction) -> None:
    bits = 32 if instruction.kind == Class.ALU else 64
    code = instruction.code
    if code == Alu.END:
        put(writer, instruction.dst, _swap_bytes(writer, instruction))
        return
    if code == Alu.MOV:
        put(writer, instruction.dst, _move(writer, instruction, bits))
        return
    left, right = _operands(writer, instruction, bits)
    kind = f"i{bits}"
    if code in _PLAIN:
        result = writer.value(f"{_PLAIN[code]} {kind} {left}, {right}")
    elif code in _SHIFTS:
        by = writer.value(f"and {kind} {right}, {bits - 1}")
        result = writer.value(f"{_SHIFTS[code]} {kind} {left}, {by}")
    elif code == Alu.NEG:
        result = writer.value(f"sub {kind} 0, {left}")
    else:
        result = _divide(writer, instruction, kind, left, right)
    put(writer, instruction.dst, _extend(writer, result, bits))


def _move(writer: Writer, instruction: Instruction, bits: int) -> str:
    if instruction.source == OperandSource.K:
        return str(instruction.imm if bits == 64 else instruction.imm & 0xFFFF_FFFF)
    value = get(writer, instruction.src)
    if instruction.offset:
        part = _truncate(writer, value, instruction.offset)
        value = writer.value(f"sext i{instruction.offset} {part} to i64")
    return _extend(writer, _truncate(writer, value, bits), bits)


def _swap_bytes(writer: Writer, instruction: Instruction) -> str:
    bits = instruction.imm
    value = _truncate(writer, get(writer, instruction.dst), bits)
    if instruction.kind != Class.ALU or instruction.source != isa.ByteOrder.TO_LE:
        value = writer.value(f"call i{bits} @llvm.bswap.i{bits}(i{bits} {value})")
    return _extend(writer, value, bits)


def _divide(writer: Writer, instruction: Instruction, kind: str, left: str, right: str) -> str:
    """A division as in section 4.1: by zero, the quotient is 0 and the remainder the dividend;
    nothing overflows."""
    zero = writer.value(f"icmp eq {kind} {right}, 0")
    minus = "false"
    if instruction.offset == isa.SIGNED:
        minus = writer.value(f"icmp eq {kind} {right}, -1")
    plain = writer.value(f"or i1 {zero}, {minus}")
    divisor = writer.value(f"select i1 {plain}, {kind} 1, {kind} {right}")
    result = writer.value(
        f"{_DIVISIONS[instruction.code, instruction.offset]} {kind} {left}, {divisor}"
    )
    if instruction.code == Alu.DIV:
        negated = writer.value(f"sub {kind} 0, {left}")
        result = writer.value(f"select i1 {minus}, {kind} {negated}, {kind} {result}")
    otherwise = "0" if instruction.code == Alu.DIV else left
    return writer.value(f"select i1 {zero}, {kind} {otherwise}, {kind} {result}")


def condition(writer: Writer, instruction: Instruction) -> str:
    bits = 32 if instruction.kind == Class.JMP32 else 64
    left, right = _operands(writer, instruction, bits)
    if instruction.code == Jump.JSET:
        both = writer.value(f"and i{bits} {left}, {right}")
        return writer.value(f"icmp ne i{bits} {both}, 0")
    return writer.value(f"icmp {_CONDITIONS[instruction.code]} i{bits} {left}, {right}")


def address(writer: Writer, instruction: Instruction) -> str:
    """The guest-virtual address that a load or store uses."""
    base = instruction.src if instruction.kind == Class.LDX else instruction.dst
    value = get(writer, base)
    return writer.value(f"add i64 {value}, {instruction.offset}") if instruction.offset else value


def access(writer: Writer, instruction: Instruction, at: str) -> None:
    """A load, store or atomic operation at the address `at`, which has been checked.

    Even if the check were wrong, the access could only reach the arena's reserved range, at the
    beginning of which %memory is. LLVM can only remove the mask where it sees the check itself;
    nothing here (no assumption, no flag of an operation) passes a guard's claim to it.
    """
    bits = 8 * instruction.size
    offset = writer.value(f"and i64 {at}, {REACH - 1}")
    place = writer.value(f"getelementptr i8, ptr %memory, i64 {offset}")
    if instruction.kind == Class.LDX:
        loaded = writer.value(f"load i{bits}, ptr {place}, align 1, {ARENA}")
        signed = instruction.mode == Mode.MEMSX
        put(writer, instruction.dst, _extend(writer, loaded, bits, signed=signed))
    elif instruction.kind == Class.STX and instruction.mode == Mode.ATOMIC:
        _atomic(writer, instruction, place, bits)
    else:
        if instruction.kind == Class.ST:
            value = str(instruction.imm if bits >= 32 else instruction.imm & (1 << bits) - 1)
        else:
            value = _truncate(writer, get(writer, instruction.src), bits)
        writer.line(f"store i{bits} {value}, ptr {place}, align 1, {ARENA}")


def _atomic(writer: Writer, instruction: Instruction, place: str, bits: int) -> None:
    kind = f"i{bits}"
    value = _truncate(writer, get(writer, instruction.src), bits)
    if instruction.imm == Atomic.CMPXCHG:
        expected = _truncate(writer, get(writer, 0), bits)
        pair = writer.value(
            f"cmpxchg ptr {place}, {kind} {expected}, {kind} {value} seq_cst seq_cst"
        )
        old = writer.value(f"extractvalue {{{kind}, i1}} {pair}, 0")
        put(writer, 0, _extend(writer, old, bits))
        return
    operation = _ATOMICS[instruction.imm & ~Atomic.FETCH]
    old = writer.value(f"atomicrmw {operation} ptr {place}, {kind} {value} seq_cst")
    if instruction.imm & Atomic.FETCH:
        put(writer, instruction.src, _extend(writer, old, bits))


def outside(writer: Writer, at: str, low: int, span: str) -> str:
    """True where bytes from `at` plus `low` on do not begin at one of the `span` addresses from
    %bottom on."""
    begin = writer.value(f"add i64 {at}, {low}") if low else at
    offset = writer.value(f"sub i64 {begin}, %bottom")
    return writer.value(f"icmp uge i64 {offset}, {span}")

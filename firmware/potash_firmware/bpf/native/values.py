"""Symbolic execution of instructions, one at a time: the registers' values as linear forms.

To compare addresses before a program runs, each register's value is a linear form: a constant plus
unknowns, each times a coefficient. For example, when a function begins with some value of r1,

    0: r2 = r1                r2 is r1
    1: r2 <<= 3               r2 is 8 * r1
    2: r2 += 5                r2 is 5 + 8 * r1
    3: r3 = *(u8 *)(r1 + 0)   r3 is a new unknown from 0 to 255
    4: w4 = w2                r4 is the low 32 bits of 5 + 8 * r1: its value is narrow

A result that is no linear form becomes a new unknown, so the analysis never assumes anything false.
Results of short loads and 32-bit operations have bounds at least.

Sources: RFC 9669, sections 4 and 5.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from potash_firmware.bpf import isa
from potash_firmware.bpf.isa import Alu, Atomic, Class, Instruction, Jump, Mode, OperandSource
from potash_firmware.bpf.native.blocks import Block
from potash_firmware.bpf.native.loops import FAR, Linear, Merged, Unsteady, near, number, unknown

_ARGUMENTS = range(1, 6)


def uses(instruction: Instruction) -> Iterator[int]:
    """The registers whose values an instruction uses, and for calls and atomics perhaps one more,
    which is safe for liveness."""
    match instruction.kind:
        case Class.ALU | Class.ALU64:
            if instruction.code != Alu.MOV:
                yield instruction.dst
            if instruction.source == OperandSource.X:
                yield instruction.src
        case Class.LDX:
            yield instruction.src
        case Class.ST:
            yield instruction.dst
        case Class.STX:
            yield from (instruction.dst, instruction.src)
            if instruction.mode == Mode.ATOMIC:
                yield 0
        case Class.JMP | Class.JMP32:
            yield from _uses_of_jump(instruction)


def _uses_of_jump(instruction: Instruction) -> Iterator[int]:
    match instruction.code:
        case Jump.CALL:
            yield from _ARGUMENTS
            yield instruction.dst
        case Jump.EXIT:
            yield 0
        case Jump.JA:
            pass
        case _:
            yield instruction.dst
            if instruction.source == OperandSource.X:
                yield instruction.src


def definitions(instruction: Instruction) -> Iterator[int]:
    """The register that an instruction changes, if there is one."""
    match instruction.kind:
        case Class.ALU | Class.ALU64 | Class.LD | Class.LDX:
            yield instruction.dst
        case Class.STX if instruction.mode == Mode.ATOMIC and instruction.imm & Atomic.FETCH:
            yield 0 if instruction.imm == Atomic.CMPXCHG else instruction.src
        case Class.JMP if instruction.opcode in (isa.CALL, isa.CALLX):
            yield 0


def live(
    instructions: Sequence[Instruction], blocks: Mapping[int, Block]
) -> dict[int, frozenset[int]]:
    """The live registers before each instruction of a function: backward dataflow on bit masks."""
    masks = {
        pc: (_mask(uses(instructions[pc])), ~_mask(definitions(instructions[pc])))
        for block in blocks.values()
        for pc in block.pcs
    }
    live_in = dict.fromkeys(blocks, 0)
    before: dict[int, int] = {}
    changed = True
    while changed:
        changed = False
        for start in reversed(list(blocks)):
            used = 0
            for successor in blocks[start].successors:
                used |= live_in[successor]
            for pc in reversed(blocks[start].pcs):
                reads, keeps = masks[pc]
                used = before[pc] = used & keeps | reads
            if used != live_in[start]:
                live_in[start] = used
                changed = True
    return {pc: _REGISTER_SETS[used] for pc, used in before.items()}


def _mask(registers: Iterator[int]) -> int:
    return sum(1 << register for register in set(registers))


class _RegisterSets(dict[int, frozenset[int]]):
    """The set of registers for each mask; instructions with equal masks share a set."""

    def __missing__(self, mask: int) -> frozenset[int]:
        found = self[mask] = frozenset(register for register in range(11) if mask >> register & 1)
        return found


_REGISTER_SETS = _RegisterSets()


WORD = 32

MOST_SUMMANDS = 32
"""Maximum number of terms of a form, which bounds the analysis. Addresses have fewer."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """The result of the instruction at `pc`, from `low` to `high`."""

    pc: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Opaque:
    """The result of the instruction at `pc`, whatever it may be."""

    pc: int


@dataclass(frozen=True, slots=True)
class Extension:
    """The low 32 bits of a form, sign- or zero-extended to 64.

    Where the form is a 32-bit number, that is the form itself (`loops.Fits`).
    """

    form: Linear
    signed: bool


@dataclass(frozen=True, slots=True)
class Start:
    """A register's value where the analysis begins."""

    register: int


class Value(NamedTuple):
    """A register's value: `form`, or, when `narrow`, its low 32 bits with zeroes above."""

    form: Linear
    narrow: bool = False


Environment = list[Value]
"""The values of r0 to r10."""

Widen = Callable[[Linear, bool], Linear]
"""Extends the low 32 bits of a form to 64: with their sign if the flag is set, else with zeroes."""


def start() -> Environment:
    """The environment where the analysis begins: each register is an unknown of its own."""
    return [Value(unknown(Start(register))) for register in range(11)]


def extend(form: Linear, signed: bool) -> Linear:
    """The `Widen` that uses no bounds: anything but a constant becomes an `Extension`."""
    if form.known:
        value = form.constant & 0xFFFF_FFFF
        return number(value - (value >> 31 << 32) if signed else value)
    return unknown(Extension(form, signed))


class Evaluator:
    """Executes instructions symbolically; `widen` extends the low 32 bits of values."""

    def __init__(self, instructions: list[Instruction], widen: Widen) -> None:
        self._instructions = instructions
        self._widen = widen

    def wide(self, value: Value) -> Linear:
        """All 64 bits of a value."""
        return self._widen(value.form, False) if value.narrow else value.form

    def address(self, environment: Environment, pc: int) -> Linear:
        """The address that the load or store at `pc` uses."""
        instruction = self._instructions[pc]
        base = instruction.src if instruction.kind == Class.LDX else instruction.dst
        return self.wide(environment[base]).shifted(instruction.offset)

    def step(self, environment: Environment, pc: int) -> None:
        """Execute the instruction at `pc` on `environment`."""
        instruction = self._instructions[pc]
        match instruction.kind:
            case Class.ALU | Class.ALU64:
                value = self._arithmetic(environment, instruction, pc)
                if len(value.form.terms) > MOST_SUMMANDS:
                    value = Value(unknown(Opaque(pc)))
                environment[instruction.dst] = value
            case Class.LD:
                environment[instruction.dst] = Value(number(isa.wide_value(self._instructions, pc)))
            case Class.LDX:
                environment[instruction.dst] = Value(_load_result(instruction, pc))
            case Class.STX if instruction.mode == Mode.ATOMIC and instruction.imm & Atomic.FETCH:
                changed = 0 if instruction.imm == Atomic.CMPXCHG else instruction.src
                environment[changed] = Value(_load_result(instruction, pc))
            case Class.JMP if instruction.code == isa.Jump.CALL:
                environment[0] = Value(unknown(Opaque(pc)))

    def operand(self, environment: Environment, instruction: Instruction) -> Value:
        """The second operand of an arithmetic instruction or a jump."""
        if instruction.source == OperandSource.X:
            return environment[instruction.src]
        return Value(number(instruction.imm))

    def _arithmetic(self, environment: Environment, instruction: Instruction, pc: int) -> Value:
        narrow = instruction.kind == Class.ALU
        bits = 32 if narrow else 64
        dst, src = environment[instruction.dst], self.operand(environment, instruction)
        code, immediate = instruction.code, instruction.source == OperandSource.K
        if code == Alu.MOV:
            if instruction.offset == WORD:
                return Value(self._widen(src.form, True))
            if instruction.offset:
                high = (1 << instruction.offset - 1) - 1
                return Value(unknown(Bounded(pc, -high - 1, high)), narrow)
            if immediate or src.narrow or not narrow:
                return src._replace(narrow=src.narrow or narrow)
            return Value(src.form, True)
        if code == Alu.END:
            high = (1 << instruction.imm) - 1
            return Value(unknown(Bounded(pc, 0, high) if instruction.imm < 64 else Opaque(pc)))
        # The low 32 bits of sums and products depend on nothing but the operands' low 32 bits.
        left = dst.form if narrow else self.wide(dst)
        right = src.form if narrow else self.wide(src)
        shift = right.constant & bits - 1
        match code:
            case Alu.ADD:
                return Value(left + right, narrow)
            case Alu.SUB:
                return Value(left - right, narrow)
            case Alu.NEG:
                return Value(left.scaled(-1), narrow)
            case Alu.MUL if right.known:
                return Value(left.scaled(right.constant), narrow)
            case Alu.MUL if left.known:
                return Value(right.scaled(left.constant), narrow)
            case Alu.LSH if right.known:
                return Value(left.scaled(1 << shift), narrow)
            case Alu.RSH | Alu.ARSH if immediate and not narrow and shift == WORD:
                # Compilers extend 32-bit values by a shift to the left and back.
                upper = _upper_half(left)
                if upper is not None:
                    if code == Alu.RSH:
                        return Value(upper, True)
                    return Value(self._widen(upper, True))
        low, high = _bounds(instruction, bits)
        return Value(unknown(Bounded(pc, low, high) if high < FAR else Opaque(pc)))


def _upper_half(form: Linear) -> Linear | None:
    """The form divided by 2^32, if its constant and all coefficients can be. The low 32 bits of
    the result are the high 32 bits of `form`."""
    unit = 1 << WORD
    if form.constant % unit or any(factor % unit for _, factor in form.terms):
        return None
    return Linear(
        form.constant // unit, frozenset((symbol, by // unit) for symbol, by in form.terms)
    )


def _load_result(instruction: Instruction, pc: int) -> Linear:
    """The value that a load yields: a new unknown, with the bounds of its size."""
    bits = 8 * instruction.size
    if bits == 64:
        return unknown(Opaque(pc))
    if instruction.mode == Mode.MEMSX:
        return unknown(Bounded(pc, -(1 << bits - 1), (1 << bits - 1) - 1))
    return unknown(Bounded(pc, 0, (1 << bits) - 1))


def _bounds(instruction: Instruction, bits: int) -> tuple[int, int]:
    """The lowest and highest result of an operation, unsigned: those of `bits` bits, or closer ones
    for some immediates."""
    most = (1 << bits) - 1
    imm = instruction.imm
    if instruction.source == OperandSource.K:
        match instruction.code:
            case Alu.AND if imm >= 0:
                return 0, imm
            case Alu.RSH:
                return 0, most >> (imm & bits - 1)
            case Alu.DIV if imm > 0 and not instruction.offset:
                return 0, most // imm
            case Alu.MOD if imm > 0 and not instruction.offset:
                return 0, imm - 1
    return 0, most


def widen(form: Linear, signed: bool) -> Linear:
    """The 64 bits that a 32-bit value becomes, as a symbol that carries the condition for its
    use."""
    if form.known:
        return extend(form, signed)
    bounds = static(form)
    if bounds is not None:
        low, high = (-(1 << 31), 1 << 31) if signed else (0, 1 << 32)
        if low <= bounds[0] and bounds[1] < high:
            return form
    return unknown(Extension(strip_extensions(form), signed))


def strip_extensions(form: Linear) -> Linear:
    """A form without its extensions, to which it is equal under its conditions."""
    total = number(form.constant)
    for symbol, factor in form.terms:
        inner = strip_extensions(symbol.form) if isinstance(symbol, Extension) else unknown(symbol)
        total += inner.scaled(factor)
    return total


def static(form: Linear) -> tuple[int, int] | None:
    """The lowest and highest value of a form whose symbols all have bounds, if these are near."""
    low = high = form.constant
    for symbol, factor in form.terms:
        if not isinstance(symbol, Bounded | Merged):
            return None
        ends = factor * symbol.low, factor * symbol.high
        low, high = low + min(ends), high + max(ends)
    return (low, high) if near(low, high) else None


def join(block: int, register: int, paths: list[Value]) -> Value:
    """The value of a register where paths meet."""
    first = paths[0]
    if all(path == first for path in paths):
        return first
    forms = [widen(path.form, False) if path.narrow else path.form for path in paths]
    differences = [form - forms[0] for form in forms]
    if all(difference.known for difference in differences):
        constants = [difference.constant for difference in differences]
        low, high = min(constants), max(constants)
        if low == high:
            return Value(forms[0])
        if near(low, high):
            return Value(forms[0] + unknown(Merged(block, register, low, high)))
    bounds = [ends for form in forms if (ends := static(form)) is not None]
    if len(bounds) == len(forms):
        low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
        return Value(unknown(Merged(block, register, low, high)))
    return Value(unknown(Unsteady(block, register)))

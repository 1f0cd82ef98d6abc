"""The interpreter: the readable form of the BPF machine, and its specification.

It implements the tables of RFC 9669, in the RFC's order. It is slow (less than a million
instructions per second) and simple; faster engines are compared with it.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from potash_firmware.bpf import isa
from potash_firmware.bpf.arena import MAX_CALL_DEPTH, Arena
from potash_firmware.bpf.counters import InstructionCounters, kind_of
from potash_firmware.bpf.errors import Fault, FaultKind
from potash_firmware.bpf.isa import Alu, Atomic, Class, Instruction, Jump, Mode, OperandSource

MASK = (1 << 64) - 1

PROGRESS_INTERVAL = 4096
"""Instructions between two reports of progress to the counters."""

Helper = Callable[[int, int, int, int, int], int]
"""A function of the platform: the values of r1 to r5 in, the value of r0 out."""


class Execution(NamedTuple):
    """A program's end: r0, unsigned, and how many instructions were executed."""

    value: int
    executed: int


def execute(
    code: bytes,
    entry: int,
    arena: Arena,
    helpers: Mapping[int, Helper],
    arguments: Sequence[int],
    instruction_limit: int,
    counters: InstructionCounters | None = None,
) -> Execution:
    """Execute a program as `engine.prepare` says. Raises Fault."""
    interpreter = interpreter_of(code, arena, helpers, instruction_limit, counters)
    return Execution(interpreter.run(entry, arguments), interpreter.executed)


class _Frame(NamedTuple):
    """The state of a calling function, which is restored when the called one returns."""

    pc: int
    registers: list[int]


class Interpreter:
    """Registers, program counter and call stack over one arena."""

    def __init__(
        self, code: bytes, arena: Arena, helpers: Mapping[int, Helper], instruction_limit: int
    ) -> None:
        if len(code) % isa.INSTRUCTION_SIZE:
            raise _fault(
                FaultKind.INVALID_INSTRUCTION,
                f"{len(code)} bytes of code are not a whole number of instructions",
            )
        self.instructions, self._steps = _decoded(code)
        self.arena = arena
        self.helpers = helpers
        self.instruction_limit = instruction_limit
        self.executed = 0
        self.registers = [0] * 11
        self.pc = 0
        self.frames: list[_Frame] = []

    def run(self, entry: int, arguments: Sequence[int]) -> int:
        """Call the function at index `entry`; returns r0 at its exit. Raises Fault."""
        self.start(entry, arguments)
        while self.frames:
            self.step()
        return self.registers[0]

    def start(self, entry: int, arguments: Sequence[int]) -> None:
        """Stand before the first instruction of the function at index `entry`."""
        arguments = [value & MASK for value in arguments] + [0] * 5
        self.registers = _fresh_registers(arguments[:5], self.arena.stack_top)
        self.frames = [_Frame(pc=-1, registers=[0] * 11)]
        self.executed = 0
        self.pc = entry

    @property
    def frame_bottom(self) -> int:
        """The lowest address of the function's stack frame. A callee's frame is below it, so an
        access below it means that the function's frame is too small for it."""
        return self.registers[isa.FRAME_POINTER] - self.arena.layout.frame_size

    def step(self) -> None:
        """Execute one instruction; the program has ended when no frame is left. Raises Fault."""
        pc = self.pc
        try:
            if not 0 <= pc < len(self.instructions):
                raise _fault(
                    FaultKind.OUTSIDE_PROGRAM,
                    f"the program has {len(self.instructions)} instructions",
                )
            if self.executed >= self.instruction_limit:
                raise _fault(
                    FaultKind.INSTRUCTION_LIMIT,
                    f"the program may execute {self.instruction_limit} instructions",
                )
            self.executed += 1
            self.pc = pc + 1
            self._steps[pc](self, self.instructions[pc])
        except Fault as fault:
            if fault.pc is None:
                fault.pc = pc
            raise

    def resume(self, pc: int, registers: Sequence[int], depth: int, executed: int) -> None:
        """Stand before the instruction at `pc`, where another engine has got to.

        `depth` functions are active, of which only the innermost one's `registers` are known.
        """
        self.registers = list(registers)
        self.frames = [_Frame(pc=-1, registers=[0] * 11)] * depth
        self.executed = executed
        self.pc = pc


class _Counting(Interpreter):
    """An interpreter that counts instructions by kind."""

    counters: InstructionCounters

    def step(self) -> None:
        if self.executed % PROGRESS_INTERVAL == 0:
            self.counters.progress()
        # One that faults counts; one that is not there, or one too many, does not.
        if 0 <= self.pc < len(self.instructions) and self.executed < self.instruction_limit:
            self.counters.counts[kind_of(self.instructions[self.pc])] += 1
        super().step()


def interpreter_of(
    code: bytes,
    arena: Arena,
    helpers: Mapping[int, Helper],
    instruction_limit: int,
    counters: InstructionCounters | None,
) -> Interpreter:
    """An interpreter, which counts in `counters` if there is one. Raises Fault."""
    if counters is None:
        return Interpreter(code, arena, helpers, instruction_limit)
    counting = _Counting(code, arena, helpers, instruction_limit)
    counting.counters = counters
    return counting


@functools.lru_cache(1)
def _decoded(code: bytes) -> tuple[Sequence[Instruction], Sequence["_Execute"]]:
    """The instructions of a program, which often runs again, and what executes each."""
    instructions = isa.decode(code)
    return instructions, [
        _invalid if isa.problem(instructions, index) else _EXECUTE[instruction.kind]
        for index, instruction in enumerate(instructions)
    ]


def _fresh_registers(arguments: Sequence[int], frame_pointer: int) -> list[int]:
    """r0 to r10 as a function finds them: nothing of its caller but the arguments."""
    return [0, *arguments, 0, 0, 0, 0, frame_pointer]


def _fault(kind: FaultKind, reason: str) -> Fault:
    return Fault(kind, None, None, reason)


def _invalid(cpu: Interpreter, instruction: Instruction) -> None:
    reason = isa.problem(cpu.instructions, cpu.pc - 1)
    raise _fault(FaultKind.INVALID_INSTRUCTION, str(reason))


def signed(value: int, bits: int) -> int:
    """The low `bits` of `value` as a two's complement number: sign extension (section 2.3)."""
    sign = 1 << bits - 1
    return (value & (sign << 1) - 1 ^ sign) - sign


# Arithmetic (section 4.1)

Operation = Callable[[int, int, int], int]
"""An operation on dst, src (unsigned) and their width in bits; its result is truncated to that
width."""


def _signed_divide(dst: int, src: int, bits: int) -> int:
    if src == 0:
        return 0
    dividend, divisor = signed(dst, bits), signed(src, bits)
    quotient = abs(dividend) // abs(divisor)  # truncates towards zero, as the RFC requires
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


_ARITHMETIC: Final[Mapping[tuple[int, int], Operation]] = {
    # code and offset, as in the RFC's table
    (Alu.ADD, 0): lambda dst, src, bits: dst + src,
    (Alu.SUB, 0): lambda dst, src, bits: dst - src,
    (Alu.MUL, 0): lambda dst, src, bits: dst * src,
    (Alu.DIV, 0): lambda dst, src, bits: dst // src if src else 0,
    (Alu.DIV, isa.SIGNED): _signed_divide,
    (Alu.OR, 0): lambda dst, src, bits: dst | src,
    (Alu.AND, 0): lambda dst, src, bits: dst & src,
    (Alu.LSH, 0): lambda dst, src, bits: dst << (src & bits - 1),
    (Alu.RSH, 0): lambda dst, src, bits: dst >> (src & bits - 1),
    (Alu.NEG, 0): lambda dst, src, bits: -dst,
    (Alu.MOD, 0): lambda dst, src, bits: dst % src if src else dst,
    (Alu.MOD, isa.SIGNED): lambda dst, src, bits: (
        signed(dst, bits) - signed(src, bits) * _signed_divide(dst, src, bits)
    ),
    (Alu.XOR, 0): lambda dst, src, bits: dst ^ src,
    (Alu.MOV, 0): lambda dst, src, bits: src,
    (Alu.MOV, 8): lambda dst, src, bits: signed(src, 8),
    (Alu.MOV, 16): lambda dst, src, bits: signed(src, 16),
    (Alu.MOV, 32): lambda dst, src, bits: signed(src, 32),
    (Alu.ARSH, 0): lambda dst, src, bits: signed(dst, bits) >> (src & bits - 1),
}

_WIDTH: Final[Mapping[int, int]] = {Class.ALU: 32, Class.ALU64: 64, Class.JMP: 64, Class.JMP32: 32}


def _operands(cpu: Interpreter, instruction: Instruction, bits: int) -> tuple[int, int]:
    """The unsigned values of dst and src at their width; an immediate is sign extended to it."""
    mask = (1 << bits) - 1
    from_register = instruction.source == OperandSource.X
    src = cpu.registers[instruction.src] if from_register else instruction.imm
    return cpu.registers[instruction.dst] & mask, src & mask


def _arithmetic(cpu: Interpreter, instruction: Instruction) -> None:
    if instruction.code == Alu.END:
        _byte_swap(cpu, instruction)
        return
    bits = _WIDTH[instruction.kind]
    dst, src = _operands(cpu, instruction, bits)
    result = _ARITHMETIC[instruction.code, instruction.offset](dst, src, bits)
    cpu.registers[instruction.dst] = result & (1 << bits) - 1


def _byte_swap(cpu: Interpreter, instruction: Instruction) -> None:
    """Section 4.2, on a little endian machine: TO_LE only cuts to the width."""
    width = instruction.imm // 8
    value = cpu.registers[instruction.dst] & (1 << instruction.imm) - 1
    keep = instruction.kind == Class.ALU and instruction.source == isa.ByteOrder.TO_LE
    order = value.to_bytes(width, "little" if keep else "big")
    cpu.registers[instruction.dst] = int.from_bytes(order, "little")


# Jumps and calls (section 4.3)

_CONDITION: Final[Mapping[int, Callable[[int, int, int], bool]]] = {
    Jump.JEQ: lambda dst, src, bits: dst == src,
    Jump.JGT: lambda dst, src, bits: dst > src,
    Jump.JGE: lambda dst, src, bits: dst >= src,
    Jump.JSET: lambda dst, src, bits: dst & src != 0,
    Jump.JNE: lambda dst, src, bits: dst != src,
    Jump.JSGT: lambda dst, src, bits: signed(dst, bits) > signed(src, bits),
    Jump.JSGE: lambda dst, src, bits: signed(dst, bits) >= signed(src, bits),
    Jump.JLT: lambda dst, src, bits: dst < src,
    Jump.JLE: lambda dst, src, bits: dst <= src,
    Jump.JSLT: lambda dst, src, bits: signed(dst, bits) < signed(src, bits),
    Jump.JSLE: lambda dst, src, bits: signed(dst, bits) <= signed(src, bits),
}


def _jump(cpu: Interpreter, instruction: Instruction) -> None:
    match instruction.code:
        case Jump.JA:
            far = instruction.kind == Class.JMP32
            cpu.pc += instruction.imm if far else instruction.offset
        case Jump.CALL:
            _call(cpu, instruction)
        case Jump.EXIT:
            _exit(cpu)
        case code:
            bits = _WIDTH[instruction.kind]
            dst, src = _operands(cpu, instruction, bits)
            if _CONDITION[code](dst, src, bits):
                cpu.pc += instruction.offset


def _call(cpu: Interpreter, instruction: Instruction) -> None:
    if instruction.source == OperandSource.X:
        _call_pointer(cpu, cpu.registers[instruction.dst])
    elif instruction.src == isa.CallKind.LOCAL:
        _call_local(cpu, cpu.pc + instruction.imm)
    else:
        _call_helper(cpu, instruction.imm)


def _call_pointer(cpu: Interpreter, pointer: int) -> None:
    """A pointer to a function of the program, or, small as it is, the number of a helper."""
    if pointer < isa.CODE_BASE:
        _call_helper(cpu, pointer)
        return
    index, rest = divmod(pointer - isa.CODE_BASE, isa.INSTRUCTION_SIZE)
    if rest or index >= len(cpu.instructions):
        reason = f"no function is at address 0x{pointer:x}"
        raise Fault(FaultKind.OUTSIDE_PROGRAM, None, pointer, reason)
    _call_local(cpu, index)


def _call_helper(cpu: Interpreter, number: int) -> None:
    helper = cpu.helpers.get(number)
    if helper is None:
        raise _fault(FaultKind.UNKNOWN_HELPER, f"there is no helper {number}")
    cpu.registers[0] = helper(*cpu.registers[1:6]) & MASK


def _call_local(cpu: Interpreter, index: int) -> None:
    """Enter a function: it gets its five arguments and a stack frame below the caller's."""
    if len(cpu.frames) == MAX_CALL_DEPTH:
        raise _fault(FaultKind.CALL_DEPTH, f"at most {MAX_CALL_DEPTH} functions can be active")
    cpu.frames.append(_Frame(cpu.pc, cpu.registers))
    cpu.registers = _fresh_registers(cpu.registers[1:6], cpu.frame_bottom)
    cpu.pc = index


def _exit(cpu: Interpreter) -> None:
    """Return to the caller, for whom only r0 has changed; the last exit ends the program."""
    value = cpu.registers[0]
    cpu.pc, cpu.registers = cpu.frames.pop()
    cpu.registers[0] = value


# Loads and stores (section 5)


def _load_immediate(cpu: Interpreter, instruction: Instruction) -> None:
    cpu.registers[instruction.dst] = isa.wide_value(cpu.instructions, cpu.pc - 1)
    cpu.pc += 1


def _load(cpu: Interpreter, instruction: Instruction) -> None:
    size = instruction.size
    address = cpu.registers[instruction.src] + instruction.offset & MASK
    value = cpu.arena.read(address, size, cpu.frame_bottom)
    if instruction.mode == Mode.MEMSX:
        value = signed(value, 8 * size) & MASK
    cpu.registers[instruction.dst] = value


def _store_immediate(cpu: Interpreter, instruction: Instruction) -> None:
    address = cpu.registers[instruction.dst] + instruction.offset & MASK
    cpu.arena.write(address, instruction.size, instruction.imm, cpu.frame_bottom)


def _store(cpu: Interpreter, instruction: Instruction) -> None:
    address = cpu.registers[instruction.dst] + instruction.offset & MASK
    if instruction.mode == Mode.ATOMIC:
        _atomic(cpu, instruction, address)
    else:
        value = cpu.registers[instruction.src]
        cpu.arena.write(address, instruction.size, value, cpu.frame_bottom)


_ATOMIC: Final[Mapping[int, Callable[[int, int], int]]] = {
    Atomic.ADD: lambda old, src: old + src,
    Atomic.OR: lambda old, src: old | src,
    Atomic.AND: lambda old, src: old & src,
    Atomic.XOR: lambda old, src: old ^ src,
    Atomic.XCHG & ~Atomic.FETCH: lambda old, src: src,
}


def _atomic(cpu: Interpreter, instruction: Instruction, address: int) -> None:
    """Section 5.3; one program has its arena to itself, so one step after the other is atomic."""
    size = instruction.size
    if address % size:
        reason = f"0x{address:x} is not a multiple of {size}"
        raise Fault(FaultKind.UNALIGNED, None, address, reason)
    mask = (1 << 8 * size) - 1
    cpu.arena.bytes_at(address, size, write=True)  # CMPXCHG needs a writable place even to fail
    old = cpu.arena.read(address, size, cpu.frame_bottom)
    src = cpu.registers[instruction.src] & mask
    if instruction.imm == Atomic.CMPXCHG:
        if old == cpu.registers[0] & mask:
            cpu.arena.write(address, size, src)
        cpu.registers[0] = old
        return
    cpu.arena.write(address, size, _ATOMIC[instruction.imm & ~Atomic.FETCH](old, src))
    if instruction.imm & Atomic.FETCH:
        cpu.registers[instruction.src] = old


_Execute = Callable[[Interpreter, Instruction], None]

_EXECUTE: Final[Mapping[int, _Execute]] = {
    Class.LD: _load_immediate,
    Class.LDX: _load,
    Class.ST: _store_immediate,
    Class.STX: _store,
    Class.ALU: _arithmetic,
    Class.JMP: _jump,
    Class.JMP32: _jump,
    Class.ALU64: _arithmetic,
}

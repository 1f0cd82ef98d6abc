"""A running program that can be stopped: breakpoints, steps, and inspection of its state.

The interpreter runs it. One step is one instruction or one source line; where the object file has
no lines, a line is an instruction.
"""

from collections.abc import Callable
from enum import Enum
from pathlib import PurePosixPath
from typing import NamedTuple

from potash.sdk.errors import PotashError
from potash_firmware.bpf import Fault, Program, isa
from potash_firmware.bpf.arena import BASE
from potash_firmware.bpf.disassembler import Row, listing
from potash_firmware.bpf.interpreter import Interpreter


class DebuggerError(PotashError):
    """The debugger was asked for something that there is not."""


class Breakpoint(NamedTuple):
    """A place where the program stops before it executes the instruction at `pc`."""

    number: int
    pc: int


class StopReason(Enum):
    """The reason for which the program does not run at the moment."""

    STOPPED = "stopped"
    BREAKPOINT = "breakpoint"
    ENDED = "ended"
    FAULT = "fault"


class Frame(NamedTuple):
    """An active function: its current instruction, and its registers, r0 to r10."""

    pc: int
    registers: list[int]


class Debugger:
    """A run of `program` on `cpu`, which has been started and is before its entry."""

    def __init__(self, program: Program, cpu: Interpreter) -> None:
        self.program = program
        self.cpu = cpu
        self.rows: dict[int, Row] = {row.pc: row for row in listing(program)}
        self.breakpoints: dict[int, Breakpoint] = {}
        self.state = StopReason.STOPPED
        self.fault: Fault | None = None
        self._next_number = 1

    @property
    def running(self) -> bool:
        """True while the program has not ended."""
        return self.state in (StopReason.STOPPED, StopReason.BREAKPOINT)

    @property
    def depth(self) -> int:
        return len(self.cpu.frames)

    @property
    def pc(self) -> int:
        """The instruction that comes next, or that ended the program with a fault."""
        if self.fault is not None and self.fault.pc is not None:
            return self.fault.pc
        return self.cpu.pc

    def add_breakpoint(self, where: str) -> list[Breakpoint]:
        """Break at a function, at LINE or FILE:LINE, or at the instruction *PC."""
        added = []
        for pc in self._locate(where):
            added.append(Breakpoint(self._next_number, pc))
            self.breakpoints[self._next_number] = added[-1]
            self._next_number += 1
        return added

    def delete_breakpoint(self, number: int) -> None:
        if self.breakpoints.pop(number, None) is None:
            raise DebuggerError(f"there is no breakpoint {number}")

    def step_instruction(self) -> None:
        self._run_until(lambda: True)

    def next_instruction(self) -> None:
        """Execute one instruction, and what it calls."""
        depth = self.depth
        self._run_until(lambda: self.depth <= depth)

    def step_line(self) -> None:
        """Go on to the beginning of another line, into functions that are called too."""
        depth, here = self.depth, self._line()
        self._run_until(lambda: self.depth != depth or self._at_other_line(here))

    def next_line(self) -> None:
        """Go on to the beginning of another line of this function, or of its caller."""
        depth, here = self.depth, self._line()
        self._run_until(
            lambda: self.depth < depth or (self.depth == depth and self._at_other_line(here))
        )

    def finish(self) -> None:
        """Go on until this function returns to its caller."""
        depth = self.depth
        self._run_until(lambda: self.depth < depth)

    def go_on(self) -> None:
        """Go on to a breakpoint, or to the end."""
        self._run_until(lambda: False)

    def frames(self) -> list[Frame]:
        """The active functions, the innermost first; a caller stands at its call."""
        callers = [Frame(frame.pc - 1, frame.registers) for frame in reversed(self.cpu.frames[1:])]
        return [Frame(self.pc, self.cpu.registers), *callers]

    def address(self, text: str) -> int:
        """The value of a number, a register, a buffer's name, or one of them plus a number."""
        base, sign, offset = text.replace(" ", ""), "", ""
        for sign in "+-":
            base, found, offset = base.partition(sign)
            if found:
                break
        else:
            sign = ""
        try:
            value = self._base(base)
            return value + int(sign + offset, 0) if sign else value
        except ValueError:
            raise DebuggerError(
                f"{text!r} is not an address: write a number, a register, input, output, data, "
                "constants or stack, and +N or -N behind it"
            ) from None

    def memory(self, address: int, size: int) -> bytes:
        """Bytes of the program's memory."""
        try:
            return bytes(self.cpu.arena.bytes_at(address, size))
        except Fault as fault:
            raise DebuggerError(fault.reason) from None

    def describe(self, value: int) -> str:
        """The thing at which a value points, where it is an address; else an empty text."""
        if value >= isa.CODE_BASE:
            index, rest = divmod(value - isa.CODE_BASE, isa.INSTRUCTION_SIZE)
            if not rest and index in self.rows:
                return str(self.program.debug.place(index))
        for name, start, end in self._regions():
            if start <= value < end:
                return f"{name}+0x{value - start:x}"
        return ""

    def describe_register(self, number: int) -> str:
        """The thing at which a register points; a frame pointer may be behind the stack's last
        byte."""
        value = self.cpu.registers[number]
        if number == isa.FRAME_POINTER:
            return f"stack+0x{value - BASE:x}"
        return self.describe(value)

    def _run_until(self, arrived: Callable[[], bool]) -> None:
        """Execute at least one instruction, then go on until a reason to stop."""
        if not self.running:
            raise DebuggerError("the program has ended")
        self.state = StopReason.STOPPED
        stops = {breakpoint_.pc for breakpoint_ in self.breakpoints.values()}
        try:
            while True:
                self.cpu.step()
                if not self.cpu.frames:
                    self.state = StopReason.ENDED
                    return
                if self.cpu.pc in stops:
                    self.state = StopReason.BREAKPOINT
                    return
                if arrived():
                    return
        except Fault as fault:
            self.state, self.fault = StopReason.FAULT, fault
            if fault.pc is not None:
                fault.place = self.program.debug.place(fault.pc)

    def _line(self) -> tuple[str, int] | None:
        line = self.program.debug.line_at(self.pc)
        return None if line is None else (line.file, line.number)

    def _at_other_line(self, here: tuple[str, int] | None) -> bool:
        """True at the beginning of a line other than `here`."""
        if here is None:
            return True
        row = self.rows.get(self.pc)
        return row is not None and row.source is not None and self._line() != here

    def _locate(self, where: str) -> list[int]:
        """The instructions that a breakpoint's place stands for."""
        if where.startswith("*"):
            try:
                pc = int(where[1:], 0)
            except ValueError:
                raise DebuggerError(f"{where[1:]!r} is not the number of an instruction") from None
            if pc not in self.rows:
                raise DebuggerError(f"no instruction begins at {pc}")
            return [pc]
        for function in self.program.debug.functions:
            if function.name == where:
                return [function.start]
        file, _, number = where.rpartition(":")
        if not number.isdecimal():
            raise DebuggerError(f"there is no function {where!r}")
        return self._locate_line(file, int(number))

    def _locate_line(self, file: str, number: int) -> list[int]:
        """The first instruction of a line in each function that has it."""
        found: dict[str | None, int] = {}
        for pc, line in self.program.debug.lines:
            same_file = not file or line.file == file or PurePosixPath(line.file).name == file
            if same_file and line.number == number:
                function = self.program.debug.function_at(pc)
                found.setdefault(function.name if function else None, pc)
        if not found:
            raise DebuggerError(f"no instruction comes from line {number}")
        return list(found.values())

    def _base(self, name: str) -> int:
        if name[:1] == "r" and name[1:].isdecimal() and int(name[1:]) < len(self.cpu.registers):
            return self.cpu.registers[int(name[1:])]
        for region, start, _ in self._regions():
            if region == name:
                return start
        return int(name, 0)

    def _regions(self) -> list[tuple[str, int, int]]:
        """The parts of the arena: name, first address, address behind the last byte."""
        layout = self.cpu.arena.layout
        parts = [
            ("stack", 0, layout.stack_size),
            ("input", layout.input_offset, layout.input_size),
            ("output", layout.output_offset, layout.output_size),
            ("data", layout.data_offset, layout.data_size),
            ("constants", layout.rodata_offset, layout.rodata_size),
        ]
        return [(name, BASE + start, BASE + start + size) for name, start, size in parts]

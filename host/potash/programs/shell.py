"""What a person says to the debugger, line by line, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from potash.programs.debugger import Debugger, DebuggerError, State
from potash_firmware.bpf.debug_info import printable

SHOWN_BYTES = 64
SHOWN_LINES = 5
MAX_BYTES = 1 << 16
_ROW = 16


class Quit(Exception):
    """The person has seen enough."""


class Command(NamedTuple):
    """One command: its names, the shortest last, and how it is used."""

    names: tuple[str, ...]
    usage: str
    help: str
    run: Callable[[Shell, list[str]], None]


class Shell:
    """Carries out commands on a debugger; `say` gets each line of the answers."""

    def __init__(self, debugger: Debugger, say: Callable[[str], None]) -> None:
        self._debugger = debugger
        self._tell = say
        self._sources: dict[str, list[str]] = {}

    def run(self, lines: Iterable[str]) -> None:
        """Carry out `lines` until one says quit, or there are none left."""
        self._where()
        try:
            for line in lines:
                self.command(line)
        except Quit:
            pass

    def command(self, line: str) -> None:
        """Carry out one line; an error is one line of answer."""
        name, *arguments = line.split() or [""]
        if not name or name.startswith("#"):
            return
        command = _BY_NAME.get(name)
        if command is None:
            self._say(f"error: there is no command {name!r}; help lists them")
            return
        try:
            command.run(self, arguments)
        except DebuggerError as error:
            self._say(f"error: {error}")

    def _say(self, line: str) -> None:
        self._tell(printable(line))

    # What runs the program on

    def step(self, arguments: list[str]) -> None:
        self._move(self._debugger.step_line, arguments)

    def next(self, arguments: list[str]) -> None:
        self._move(self._debugger.next_line, arguments)

    def stepi(self, arguments: list[str]) -> None:
        self._move(self._debugger.step_instruction, arguments)

    def nexti(self, arguments: list[str]) -> None:
        self._move(self._debugger.next_instruction, arguments)

    def finish(self, arguments: list[str]) -> None:
        self._move(self._debugger.finish, arguments)

    def go_on(self, arguments: list[str]) -> None:
        self._move(self._debugger.go_on, arguments)

    def _move(self, move: Callable[[], None], arguments: list[str]) -> None:
        for _ in range(_count(arguments, 1)):
            move()
            if self._debugger.state is not State.STOPPED:
                break
        self._where()

    # What looks at it

    def _where(self) -> None:
        """Say why the program stands, and before which line and instruction."""
        debugger = self._debugger
        match debugger.state:
            case State.ENDED:
                self._say(f"the program returned {debugger.cpu.registers[0]}")
                return
            case State.FAULT:
                self._say(str(debugger.fault))
            case State.BREAKPOINT:
                numbers = [
                    str(b.number) for b in debugger.breakpoints.values() if b.pc == debugger.pc
                ]
                self._say(f"breakpoint {', '.join(numbers)}")
        line = debugger.program.debug.line_at(debugger.pc)
        if line is not None:
            self._say(f"{debugger.program.debug.place(debugger.pc)}: {line.text.strip()}")
        self._instruction(debugger.pc, mark=True)

    def _instruction(self, pc: int, *, mark: bool) -> None:
        row = self._debugger.rows.get(pc)
        if row is not None:
            self._say(f"{'=>' if mark else '  '} {pc:6}: {row.text}")

    def break_(self, arguments: list[str]) -> None:
        if len(arguments) != 1:
            raise DebuggerError("say where: a function, LINE, FILE:LINE or *INSTRUCTION")
        for one in self._debugger.add_breakpoint(arguments[0]):
            place = self._debugger.program.debug.place(one.pc)
            self._say(f"breakpoint {one.number} at instruction {one.pc} ({place})")

    def delete(self, arguments: list[str]) -> None:
        numbers = [_number(text) for text in arguments] or list(self._debugger.breakpoints)
        for number in numbers:
            self._debugger.delete_breakpoint(number)

    def breakpoints(self, arguments: list[str]) -> None:
        for one in self._debugger.breakpoints.values():
            place = self._debugger.program.debug.place(one.pc)
            self._say(f"{one.number}: instruction {one.pc} ({place})")

    def registers(self, arguments: list[str]) -> None:
        for number, value in enumerate(self._debugger.cpu.registers):
            name = f"r{number}"
            if not arguments or name in arguments:
                self._say(
                    f"{name:>4} 0x{value:016x} {self._debugger.describe_register(number)}".rstrip()
                )
        self._say(f"  pc {self._debugger.pc}")

    def memory(self, arguments: list[str]) -> None:
        if not 1 <= len(arguments) <= 2:
            raise DebuggerError("say where, and how many bytes")
        address = self._debugger.address(arguments[0])
        size = _count(arguments[1:], SHOWN_BYTES)
        data = self._debugger.memory(address, min(size, MAX_BYTES))
        for at in range(0, len(data), _ROW):
            row = data[at : at + _ROW]
            text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
            self._say(f"0x{address + at:x}: {row.hex(' '):{3 * _ROW - 1}}  {text}")

    def backtrace(self, arguments: list[str]) -> None:
        for number, frame in enumerate(self._debugger.frames()):
            place = self._debugger.program.debug.place(frame.pc)
            self._say(f"#{number} instruction {frame.pc} ({place})")

    def list_(self, arguments: list[str]) -> None:
        debugger = self._debugger
        line = debugger.program.debug.line_at(debugger.pc)
        if line is None:
            raise DebuggerError("the object file has no line for this; build it with -g")
        known = {
            one.number: one.text for _, one in debugger.program.debug.lines if one.file == line.file
        }
        known |= dict(enumerate(self._source(line.file), 1))
        for number in range(line.number - SHOWN_LINES, line.number + SHOWN_LINES + 1):
            if number in known:
                mark = "=>" if number == line.number else "  "
                self._say(f"{mark} {number:5} {known[number].expandtabs(4)}".rstrip())

    def _source(self, file: str) -> list[str]:
        """The lines of a source file, none where it is not there any more."""
        if file not in self._sources:
            try:
                self._sources[file] = Path(file).read_text(errors="replace").splitlines()
            except (OSError, ValueError):
                self._sources[file] = []
        return self._sources[file]

    def disasm(self, arguments: list[str]) -> None:
        around = _count(arguments, SHOWN_LINES)
        order = sorted(self._debugger.rows)
        here = next((i for i, pc in enumerate(order) if pc >= self._debugger.pc), len(order))
        for pc in order[max(here - around, 0) : here + around + 1]:
            row = self._debugger.rows[pc]
            if row.function or row.label:
                self._say(f"{row.function or row.label}:")
            self._instruction(pc, mark=pc == self._debugger.pc)

    def help(self, arguments: list[str]) -> None:
        for command in COMMANDS:
            names = ", ".join(command.names)
            self._say(f"{names:16} {command.usage:16} {command.help}")

    def quit(self, arguments: list[str]) -> None:
        raise Quit


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise DebuggerError(f"{text!r} is not a number") from None


def _count(arguments: list[str], default: int) -> int:
    count = _number(arguments[0]) if arguments else default
    if count < 1:
        raise DebuggerError(f"{count} is too few")
    return count


COMMANDS = (
    Command(("break", "b"), "WHERE", "stop at a function, LINE, FILE:LINE or *PC", Shell.break_),
    Command(("breakpoints",), "", "list the breakpoints", Shell.breakpoints),
    Command(("delete", "d"), "[NUMBER…]", "forget breakpoints, or all", Shell.delete),
    Command(("continue", "c"), "[TIMES]", "go on to a breakpoint or the end", Shell.go_on),
    Command(("step", "s"), "[TIMES]", "go on to another line", Shell.step),
    Command(("next", "n"), "[TIMES]", "the same, past what is called", Shell.next),
    Command(("stepi", "si"), "[TIMES]", "execute one instruction", Shell.stepi),
    Command(("nexti", "ni"), "[TIMES]", "the same, and what it calls", Shell.nexti),
    Command(("finish",), "", "go on until this function returns", Shell.finish),
    Command(("backtrace", "bt"), "", "the active functions", Shell.backtrace),
    Command(
        ("registers", "r"), "[NAME…]", "the registers, and what they point at", Shell.registers
    ),
    Command(("memory", "x"), "WHERE [BYTES]", "memory, as bytes and text", Shell.memory),
    Command(("list", "l"), "", "source lines around this one", Shell.list_),
    Command(("disasm",), "[AROUND]", "instructions around this one", Shell.disasm),
    Command(("help", "h"), "", "this list", Shell.help),
    Command(("quit", "q"), "", "end", Shell.quit),
)

_BY_NAME = {name: command for command in COMMANDS for name in command.names}

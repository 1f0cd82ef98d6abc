"""The debugger's command line: it reads a user's commands, and prints their results."""

import cmd
from collections.abc import Callable
from pathlib import Path

from potash.programs.debugger import Debugger, DebuggerError, StopReason
from potash_firmware.bpf.debug_info import printable

SHOWN_BYTES = 64
SHOWN_LINES = 5
MAX_BYTES = 1 << 16
_ROW = 16


ALIASES = {
    "b": "break",
    "d": "delete",
    "c": "continue",
    "s": "step",
    "n": "next",
    "si": "stepi",
    "ni": "nexti",
    "bt": "backtrace",
    "r": "registers",
    "x": "memory",
    "l": "list",
    "h": "help",
    "q": "quit",
}


class Shell(cmd.Cmd):
    """Commands from standard input for a debugger; `say` gets each line of the answers.

    A command is a method `do_NAME`, whose docstring is its usage and its line in the help.
    """

    prompt = "(bpf) "

    def __init__(self, debugger: Debugger, say: Callable[[str], None]) -> None:
        super().__init__()
        self._debugger = debugger
        self._print = say
        self._sources: dict[str, list[str]] = {}
        if not self.stdin.isatty():
            self.use_rawinput, self.prompt = False, ""

    def preloop(self) -> None:
        self._where()

    def parseline(self, line: str) -> tuple[str | None, str | None, str]:
        name, arguments, line = super().parseline(line)
        return ALIASES.get(name or "", name), arguments, line

    def onecmd(self, line: str) -> bool:
        try:
            return super().onecmd(line)
        except DebuggerError as error:
            self._say(f"error: {error}")
            return False

    def emptyline(self) -> bool:
        return False

    def default(self, line: str) -> None:
        if not line.startswith("#"):
            raise DebuggerError(f"there is no command {line.split()[0]!r}; help lists them")

    def _say(self, line: str) -> None:
        self._print(printable(line))

    # What runs the program on

    def do_step(self, arguments: str) -> None:
        """[TIMES]: go on to another line"""
        self._move(self._debugger.step_line, arguments)

    def do_next(self, arguments: str) -> None:
        """[TIMES]: the same, past what is called"""
        self._move(self._debugger.next_line, arguments)

    def do_stepi(self, arguments: str) -> None:
        """[TIMES]: execute one instruction"""
        self._move(self._debugger.step_instruction, arguments)

    def do_nexti(self, arguments: str) -> None:
        """[TIMES]: the same, and what it calls"""
        self._move(self._debugger.next_instruction, arguments)

    def do_finish(self, arguments: str) -> None:
        """: go on until this function returns"""
        self._move(self._debugger.finish, arguments)

    def do_continue(self, arguments: str) -> None:
        """[TIMES]: go on to a breakpoint or the end"""
        self._move(self._debugger.go_on, arguments)

    def _move(self, move: Callable[[], None], arguments: str) -> None:
        for _ in range(_count(arguments.split(), 1)):
            move()
            if self._debugger.state is not StopReason.STOPPED:
                break
        self._where()

    # What looks at it

    def _where(self) -> None:
        """Say why the program stands, and before which line and instruction."""
        debugger = self._debugger
        match debugger.state:
            case StopReason.ENDED:
                self._say(f"the program returned {debugger.cpu.registers[0]}")
                return
            case StopReason.FAULT:
                self._say(str(debugger.fault))
            case StopReason.BREAKPOINT:
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

    def do_break(self, arguments: str) -> None:
        """WHERE: stop at a function, LINE, FILE:LINE or *PC"""
        if len(arguments.split()) != 1:
            raise DebuggerError("say where: a function, LINE, FILE:LINE or *INSTRUCTION")
        for one in self._debugger.add_breakpoint(arguments.strip()):
            place = self._debugger.program.debug.place(one.pc)
            self._say(f"breakpoint {one.number} at instruction {one.pc} ({place})")

    def do_delete(self, arguments: str) -> None:
        """[NUMBER…]: forget breakpoints, or all"""
        numbers = [_number(text) for text in arguments.split()] or list(self._debugger.breakpoints)
        for number in numbers:
            self._debugger.delete_breakpoint(number)

    def do_breakpoints(self, arguments: str) -> None:
        """: list the breakpoints"""
        for one in self._debugger.breakpoints.values():
            place = self._debugger.program.debug.place(one.pc)
            self._say(f"{one.number}: instruction {one.pc} ({place})")

    def do_registers(self, arguments: str) -> None:
        """[NAME…]: the registers, and what they point at"""
        for number, value in enumerate(self._debugger.cpu.registers):
            name = f"r{number}"
            if not arguments or name in arguments.split():
                self._say(
                    f"{name:>4} 0x{value:016x} {self._debugger.describe_register(number)}".rstrip()
                )
        self._say(f"  pc {self._debugger.pc}")

    def do_memory(self, arguments: str) -> None:
        """WHERE [BYTES]: memory, as bytes and text"""
        words = arguments.split()
        if not 1 <= len(words) <= 2:
            raise DebuggerError("say where, and how many bytes")
        address = self._debugger.address(words[0])
        size = _count(words[1:], SHOWN_BYTES)
        data = self._debugger.memory(address, min(size, MAX_BYTES))
        for at in range(0, len(data), _ROW):
            row = data[at : at + _ROW]
            text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
            self._say(f"0x{address + at:x}: {row.hex(' '):{3 * _ROW - 1}}  {text}")

    def do_backtrace(self, arguments: str) -> None:
        """: the active functions"""
        for number, frame in enumerate(self._debugger.frames()):
            place = self._debugger.program.debug.place(frame.pc)
            self._say(f"#{number} instruction {frame.pc} ({place})")

    def do_list(self, arguments: str) -> None:
        """: source lines around this one"""
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

    def do_disasm(self, arguments: str) -> None:
        """[AROUND]: instructions around this one"""
        around = _count(arguments.split(), SHOWN_LINES)
        order = sorted(self._debugger.rows)
        here = next((i for i, pc in enumerate(order) if pc >= self._debugger.pc), len(order))
        for pc in order[max(here - around, 0) : here + around + 1]:
            row = self._debugger.rows[pc]
            if row.function or row.label:
                self._say(f"{row.function or row.label}:")
            self._instruction(pc, mark=pc == self._debugger.pc)

    def do_help(self, arg: str) -> None:
        """: this list"""
        short = {name: letter for letter, name in ALIASES.items()}
        for name in [name.removeprefix("do_") for name in vars(Shell) if name.startswith("do_")]:
            usage, _, about = (getattr(Shell, f"do_{name}").__doc__ or "").partition(": ")
            names = f"{name}, {short[name]}" if name in short else name
            if about:
                self._say(f"{names:16} {usage:16} {about}")

    def do_quit(self, arguments: str) -> bool:
        """: end"""
        return True

    def do_EOF(self, arguments: str) -> bool:
        return True


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

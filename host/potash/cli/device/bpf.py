"""`potash bpf`: programs before they are on a drive."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import click

from csd_spec.reporting import Count, Form
from csd_spec.text import plain_lines
from potash.cli.device import reports
from potash.cli.device.extending import extend_option, use
from potash.cli.drive import common
from potash.files import STREAM
from potash.programs.debugger import Debugger
from potash.programs.execution import BUFFER_SIZE, Ran, conform, execute
from potash.programs.shell import Shell
from potash.sdk.errors import PotashError, restated
from potash.sections import LIBUBPF, DeviceSection, LimitsSection
from potash.signals import handling
from potash.tables import columns
from potash.toml_kinds import keys
from potash.units import Size, short
from potash_firmware import bpf as machine
from potash_firmware.bpf import added, elf
from potash_firmware.bpf.arena import Arena
from potash_firmware.bpf.debug_info import Function
from potash_firmware.bpf.disassembler import Row, listing
from potash_firmware.bpf.engine import Engine, usable
from potash_firmware.bpf.interpreter import Execution, Helper, Interpreter, signed

_ENGINES = click.Choice([engine.value for engine in Engine])
_entry = click.option(
    "--entry", metavar="NAME", help="Entry function (default: prog, or the first one)."
)
_input = click.option(
    "--input", "given", type=common.READABLE, help="Input of the program (- for standard input)."
)
_FRAME = keys(LimitsSection)["frame_size"]
_FRAME_HELP = "Size of a stack frame, as [limits] of the drive's configuration sets it."
_frame_size = click.option("--frame-size", **{**_FRAME.option, "help": _FRAME_HELP})


def _use_libubpf(_context: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Set the variable, which the processes that run programs inherit."""
    if path is not None:
        os.environ[LIBUBPF] = str(path.absolute())


_libubpf = keys(DeviceSection)["libubpf"]
libubpf_option = click.option(
    _libubpf.flags, expose_value=False, callback=_use_libubpf, **_libubpf.option
)


class Disassembly(NamedTuple):
    """A program, instruction by instruction."""

    entry: Annotated[Count, "Number of the entry instruction."]
    data: Annotated[Count, "Size of the variables in bytes."]
    constants: Annotated[Count, "Size of the constants in bytes."]
    functions: Annotated[Sequence[Function], "All functions, in the order of their addresses."]
    instructions: Annotated[
        Sequence[Annotated[Row, Form(title="Instruction")]], "All instructions."
    ]


@click.group()
@extend_option
def bpf(sources: tuple[str, ...]) -> None:
    """Disassemble, run and debug programs without a drive."""
    use(sources)


@bpf.command()
@click.argument("file", type=common.FILE)
@_entry
@common.json_option(Disassembly)
def disasm(file: Path, entry: str | None) -> None:
    """Disassemble FILE, an object file, with symbols and source lines."""
    program = _load(file, entry)
    rows = listing(program)
    lines = [f"{file}: {len(program.code) // 8} instructions, {len(program.data)} bytes of data, "]
    lines[0] += f"{len(program.rodata)} of constants; begins at {program.entry}"
    before = None
    for row in rows:
        if row.function is not None:
            lines += ["", f"{row.function}:"]
            before = None
        if row.source is not None and (row.source.file, row.source.number) != before:
            before = row.source.file, row.source.number
            lines.append(f"; {row.source}: {row.source.text.strip()}")
        if row.label is not None:
            lines.append(f"{row.label}:")
        for number, at in enumerate(range(0, len(row.code), 8)):
            code = row.code[at : at + 8].hex(" ")
            lines.append(f"{row.pc + number:8}: {code}  {'' if number else row.text}".rstrip())
    report = Disassembly(
        program.entry, len(program.data), len(program.rodata), program.debug.functions, rows
    )
    common.say(report, lines, indent=2)


@bpf.command()
@common.json_option(reports.Helpers)
def helpers() -> None:
    """List the helpers that programs can call.

    Those of other installed packages are included. The exit code is 1 if a helper of a package
    could not be loaded.
    """
    found = added.found()
    known = [reports.Helper(number, name, "potash") for name, number in elf.HELPER_NAMES.items()]
    known += [
        reports.Helper(number, one.name, one.package)
        for number, one in sorted(found.helpers.items())
    ]
    table = columns([(str(one.number), one.name, one.package) for one in known], "><")
    common.say(reports.Helpers(known, found.problems), table)
    for problem in found.problems if not common.as_json() else ():
        click.echo(f"potash: {problem}", err=True)
    if found.problems:
        sys.exit(1)


@bpf.command("exec")
@click.argument("file", type=common.FILE)
@_input
@common.output_option("File for the program's output (- for standard output; default: discarded).")
@click.option(
    "--output-size",
    type=Size(),
    default=short(BUFFER_SIZE),
    help="Size of the output buffer, as on the drive.",
)
@common.arguments_option
@_entry
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=machine.INSTRUCTION_LIMIT,
    help="Maximum number of instructions.",
)
@_frame_size
@click.option(
    "--engine", type=_ENGINES, help="Engine (default: native, as on the drive, if available)."
)
@libubpf_option
@common.json_option(reports.Executed)
def exec_(
    file: Path,
    given: Path | None,
    output: Path | None,
    output_size: int,
    arguments: tuple[bytes, ...],
    entry: str | None,
    limit: int,
    frame_size: int,
    engine: str | None,
) -> None:
    """Run FILE, an object file, on this machine.

    Memory and helpers are those of an accelerator. Text that the program prints goes to standard
    error.
    """
    program = _load(file, entry, frame_size)
    printed: list[str] = []

    def show(text: str) -> None:
        printed.append(text)
        if not common.as_json():
            click.echo(f"program: {plain_lines(text.rstrip())}", err=True)

    data = _read(given)
    try:
        # Python's own handler waits for the end of compiled code, which may have none.
        with handling({signal.SIGINT: signal.SIG_DFL}):
            ran = execute(
                program,
                data,
                arguments=arguments,
                output_size=output_size,
                instruction_limit=limit,
                frame_size=frame_size,
                engine=usable(Engine.NATIVE) if engine is None else Engine(engine),
                show=show,
            )
    except machine.Fault as fault:
        raise PotashError(f"the program was stopped: {fault}") from fault
    except machine.ProgramError as error:
        raise PotashError(f"the program cannot be run: {error}") from error
    if output is not None:
        common.write_output(output, ran.output)
    _report(ran, printed, output)


def _report(ran: Ran, printed: Sequence[str], output: Path | None) -> None:
    aside = output == STREAM
    value = signed(ran.return_value, 64)  # as the drive's status gives it
    target = None if output is None else str(output)
    report = reports.Executed(target, len(ran.output), value, ran.instructions, printed)
    where = "" if aside or output is None else f" in {output}"
    line = (
        f"{len(ran.output)} bytes{where}; the program returned {common.returned(value)} "
        f"after {ran.instructions} instructions"
    )
    common.say(report, [line], aside=aside)


@bpf.command()
@click.argument("file", type=common.FILE)
@_input
@common.arguments_option
@_entry
@_frame_size
def debug(
    file: Path, given: Path | None, arguments: tuple[bytes, ...], entry: str | None, frame_size: int
) -> None:
    """Debug FILE, an object file, on the interpreter.

    Commands are read from standard input, one per line; `help` lists them. The program is stopped
    before its first instruction. `potash build` includes source lines, as do compilers with -g.
    """
    if given == STREAM:
        raise click.UsageError("standard input has the commands; give --input a file")
    program = _load(file, entry, frame_size)

    def debugged(
        code: bytes,
        start: int,
        arena: Arena,
        helpers: Mapping[int, Helper],
        registers: Sequence[int],
        instruction_limit: int,
    ) -> Execution:
        cpu = Interpreter(code, arena, helpers, instruction_limit)
        cpu.start(start, registers)
        Shell(Debugger(program, cpu), click.echo).cmdloop()
        return Execution(0, 0)

    with restated(machine.ProgramError):
        execute(
            program,
            _read(given),
            arguments=arguments,
            frame_size=frame_size,
            engine=debugged,
            show=lambda text: click.echo(f"program: {plain_lines(text.rstrip())}"),
        )


@bpf.command()
@click.argument("memory", nargs=-1)
@click.option("--program", help="The program (default: a line of standard input).")
@click.option("--elf", "is_elf", is_flag=True, help="The program is an object file.")
@click.option("--engine", type=_ENGINES, default=Engine.INTERPRETER.value, help="Engine.")
@libubpf_option
def plugin(memory: tuple[str, ...], program: str | None, is_elf: bool, engine: str) -> None:
    """Run one test of the public BPF conformance suite.

    This is a plugin for the suite's runner. The program is read from standard input as hexadecimal
    bytes. MEMORY is the memory, also as hexadecimal bytes, whose address is in r1 and whose length
    is in r2. The output is r0 in hexadecimal.
    """
    given = [text for text in memory if text.strip()]  # a runner may pass empty ones
    if len(given) > 1:
        raise click.UsageError("MEMORY is one argument")
    try:
        code = bytes.fromhex(sys.stdin.readline() if program is None else program)
        data = bytes.fromhex(given[0]) if given else b""
    except ValueError:
        raise PotashError("the program and the memory are hexadecimal bytes") from None
    with restated((machine.Fault, machine.ProgramError)):
        value = conform(code, data, is_elf=is_elf, engine=Engine(engine))
    click.echo(f"{value:x}")


def _load(file: Path, entry: str | None, frame_size: int | None = None) -> machine.Program:
    """The program in an object file; without a `frame_size` one that the drive might refuse."""
    with restated(machine.ProgramError, file):
        if frame_size is None:
            return elf.load(file.read_bytes(), entry=entry, helpers=machine.helper_names())
        return machine.load_program(file.read_bytes(), entry=entry, frame_size=frame_size)


def _read(given: Path | None) -> bytes:
    return b"" if given is None else common.read_input(given)

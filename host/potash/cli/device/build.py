"""`potash build`: a program in C becomes one that the drive runs."""

from pathlib import Path

import click

from potash.cli.device import reports
from potash.cli.device.extending import extend_option, use
from potash.cli.drive.common import FILE, json_option, say
from potash.programs.compiler import CPUS, VARIABLE, ZIGLANG, build_program
from potash_firmware.bpf.isa import INSTRUCTION_SIZE


@click.command()
@extend_option
@click.argument("source", type=FILE)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The object file (default: SOURCE with .o).",
)
@click.option(
    "-I",
    "includes",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="An additional include directory; that of potash.h is always included.",
)
@click.option("-D", "defines", multiple=True, metavar="NAME[=VALUE]", help="Define a macro.")
@click.option(
    "--cpu",
    type=click.Choice(sorted(CPUS)),
    help="Version of the instruction set (default: v4, or v3 with an older compiler).",
)
@click.option(
    "--compiler",
    metavar="NAME",
    help=f"A clang, by name or path, or ziglang (default: {VARIABLE}, or the newest clang).",
)
@json_option(reports.Built)
def build(
    sources: tuple[str, ...],
    source: Path,
    output: Path | None,
    includes: tuple[Path, ...],
    defines: tuple[str, ...],
    cpu: str | None,
    compiler: str | None,
) -> None:
    """Compile SOURCE, a program in C, for the drive's accelerators.

    The compiler is the newest installed clang that supports BPF, or else the Python package
    ziglang. For C features that BPF does not support, the error suggests an alternative. The
    object file is checked by the drive's own linker and verifier.
    """
    use(sources)
    target = source.with_suffix(".o") if output is None else output
    if target.resolve() == source.resolve():
        raise click.UsageError(f"the object file would replace {source}; name it with -o")
    built = build_program(source, target, includes, defines, cpu, compiler)
    program = built.program
    function = program.debug.function_at(program.entry)
    report = reports.Built(
        output=str(target),
        compiler=ZIGLANG if built.compiler.name == ZIGLANG else "clang",
        cpu=built.cpu,
        entry=function.name if function else str(program.entry),
        functions=[function.name for function in program.debug.functions],
        instructions=len(program.code) // INSTRUCTION_SIZE,
        data=len(program.data),
        constants=len(program.rodata),
    )
    line = (
        f"{target}: {report.instructions} instructions (BPF {built.cpu}, {built.compiler.name}), "
        f"{report.data} bytes of data, {report.constants} of constants; begins with {report.entry}"
    )
    say(report, [line])

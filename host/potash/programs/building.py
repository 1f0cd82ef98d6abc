"""Building a program for a command: what the compiler says goes to standard error."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from potash.programs.compiler import BuildError, Built, build, find_compiler
from potash.programs.examples import examples_folder


def build_program(
    source: Path,
    target: Path,
    includes: Sequence[Path] = (),
    defines: Sequence[str] = (),
    cpu: str | None = None,
) -> Built:
    """As `compiler.build`, with this machine's compiler. Raises PotashError."""
    try:
        built = build(
            source,
            target,
            compiler=find_compiler(),
            includes=[*includes, examples_folder() / "include"],
            defines=defines,
            cpu=cpu,
        )
    except BuildError as error:
        if error.said:
            click.echo(error.said, err=True)
        for sentence in error.advice:
            click.echo(f"advice: {sentence}", err=True)
        raise
    if built.warnings:
        click.echo(built.warnings, err=True)
    return built


def compiled(source: Path) -> bytes:
    """The object file of a program, for a command that needs it at once. Raises PotashError."""
    with tempfile.TemporaryDirectory(prefix="potash-") as folder:
        target = Path(folder) / source.with_suffix(".o").name
        build_program(source, target)
        return target.read_bytes()

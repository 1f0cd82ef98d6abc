"""The examples in a list, and the files of one for whoever runs it by hand.

What an example is called and what it teaches stands in its README.md: its heading, and the
paragraph that begins with "**Teaches:**", or else the first one.
"""

import re
import shutil
from pathlib import Path

import click

from potash.cli.device import reports
from potash.cli.drive.common import say
from potash.programs.compiler import compiled, find_compiler
from potash.programs.examples import Example, example_names, examples_folder
from potash.sdk.errors import PotashError
from potash.tables import columns

PROGRAM, SOURCE, INPUT, EXPECTED = "program.o", "program.c", "input.bin", "expected.bin"
HEADER = "include/potash.h"
ARGUMENTS = "arguments"
"""The options of `potash run` for the program's arguments, one a line."""

_TEACHES = "**Teaches:**"


def described(folder: Path) -> reports.ExampleEntry:
    """What an example's README.md says. Raises PotashError where it says nothing."""
    try:
        title, *paragraphs = (folder / "README.md").read_text().strip().split("\n\n")
    except OSError as error:
        raise PotashError(f"the example {folder.name} has no README.md: {error.strerror}") from None
    matching = [one for one in paragraphs if one.startswith(_TEACHES)] or paragraphs[:1]
    if not title.startswith("# ") or not matching:
        raise PotashError(f"{folder}/README.md does not begin with a heading and a paragraph")
    teaches = re.sub(r"\s+", " ", matching[0].removeprefix(_TEACHES)).strip()
    return reports.ExampleEntry(folder.name, title[2:], teaches, folder.name in example_names())


def index() -> list[reports.ExampleEntry]:
    """Every example that comes with Potash."""
    folders = sorted(path.parent for path in examples_folder().glob("*/README.md"))
    return [described(folder) for folder in folders]


def show_index() -> None:
    """Print the examples: those that `potash demo` runs, and those that are run in another way."""
    found, rows = index(), []
    for one in found:
        other = "" if one.demo else f" (see {examples_folder() / one.name / 'README.md'})"
        rows.append((one.name, f"{one.title}{other}"))
    say(reports.Examples(found), columns(rows, "<"))


def write_files(name: str, folder: Path) -> None:
    """Write an example: all its files, the program compiled where that is possible, with what it is
    run on.

    Raises PotashError.
    """
    example = Example.load(name)
    place = examples_folder() / name
    source = place / SOURCE
    program = example.program
    if source.exists():
        try:
            find_compiler()
        except PotashError as error:
            said = f"{name}: the program is the one that comes with Potash, as {error}"
            click.echo(said, err=True)
        else:
            program = compiled(source)
    options = "".join(f"--arg\nhex:{argument.hex()}\n" for argument in example.arguments)
    folder.mkdir(parents=True, exist_ok=True)
    files = [path for path in sorted(place.iterdir()) if path.is_file()]
    if source.exists():  # which includes the header
        files.append(place.parent / HEADER)
    for path in files:
        shutil.copyfile(path, folder / path.name)
    (folder / PROGRAM).write_bytes(program)
    (folder / INPUT).write_bytes(example.input)
    (folder / EXPECTED).write_bytes(example.expected)
    (folder / ARGUMENTS).write_text(options)
    made = (PROGRAM, INPUT, EXPECTED, ARGUMENTS)
    click.echo(f"{folder}: {', '.join(dict.fromkeys((*made, *(path.name for path in files))))}")

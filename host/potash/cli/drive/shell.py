"""Several commands for one device, which stays open: the lines of `potash acc shell`."""

import shlex
import sys
from collections.abc import Iterable, Mapping

import click

import potash.sdk
from csd_spec.text import plain_lines
from potash.cli.drive.common import device_name
from potash.sdk import Device
from potash.sdk.errors import PotashError

PROMPT = "acc> "


def run_lines(device: str, lines: Iterable[str], groups: Mapping[str, click.Group]) -> None:
    """Carry them out, one after the other.

    A line may begin with the name of its group, the first of `groups` being meant by the others.

    Raises click's errors and PotashError for a line that fails, unless somebody types them.
    """
    typed = lines is sys.stdin and _is_typed()
    with potash.sdk.open(device_name(device)) as opened:
        _prompt(typed)
        for line in lines:
            try:
                _run_line(device, line, groups, opened)
            except (click.ClickException, PotashError, OSError) as error:
                if not typed:
                    raise
                said = error.format_message() if isinstance(error, click.ClickException) else error
                click.echo(f"potash: {plain_lines(str(said))}", err=True)
            _prompt(typed)


def _is_typed() -> bool:
    return sys.stdin.isatty()


def _prompt(typed: bool) -> None:
    if typed:
        click.echo(PROMPT, nl=False, err=True)


def _run_line(device: str, line: str, groups: Mapping[str, click.Group], opened: Device) -> None:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise click.UsageError(f"{line.strip()}: {str(error).lower()}") from None
    if not words:
        return
    group = groups.get(words[0])
    if group is not None:
        words = words[1:]
    else:
        group = next(iter(groups.values()))
    command: click.Command | None = group
    while isinstance(command, click.Group):
        name, words = words[0] if words else "", words[1:]
        command = command.commands.get(name)
    if command is None or name == "shell":
        raise click.UsageError(f"there is no command {line.strip()!r} here")
    command.main([device, *words], name, standalone_mode=False, obj=opened)

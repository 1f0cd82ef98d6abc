"""The reports of all commands: what `--json` prints, by the types that the commands name."""

from collections.abc import Iterator
from typing import Any

import click

from potash import schema as json_schema
from potash.cli.app import potash
from potash.cli.drive.common import JsonOption


def reports() -> dict[str, Any]:
    """The type of each command's report, by the command's words behind `potash`."""
    return dict(_reports(potash, click.Context(potash), ""))


def schema(command: str) -> dict[str, Any]:
    """The JSON Schema of a command's report. Raises KeyError where it has none."""
    return json_schema.schema(reports()[command])


def _reports(
    command: click.Command, context: click.Context, path: str
) -> Iterator[tuple[str, Any]]:
    if isinstance(command, click.Group):
        for name in sorted(command.list_commands(context)):
            below = command.get_command(context, name)
            assert below is not None
            yield from _reports(below, context, f"{path} {name}".strip())
    for option in command.params:
        if isinstance(option, JsonOption):
            yield path, option.report

"""The commands of a shell script, and whether `potash` has those that are its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click
import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from potash.cli.app import COMMANDS, potash

BASH = Parser(Language(tree_sitter_bash.language()))
UNKNOWN = "…"
"""Stands in a command for what a reader knows."""
CAPITALS = re.compile(r"[A-Z:…]+")
NO_FILE = re.compile(r"is not a file|No such file or directory")


def commands(script: str) -> Iterator[list[str]]:
    """The words of each command of a script, of those inside others, and of what is given to a
    guest or to `sh -c`. Raises ValueError where it is no script."""
    root = BASH.parse(script.encode()).root_node
    if root.has_error:
        raise ValueError(f"this is not shell: {script}")
    yield from _commands(root)


def _commands(node: Node) -> Iterator[list[str]]:
    for child in node.children:
        yield from _commands(child)
    if node.type != "command":
        return
    words = [_word(child) for child in node.children if child.is_named and not _aside(child)]
    yield words
    yield from _inner(words)


def _aside(node: Node) -> bool:
    return node.type in ("variable_assignment", "heredoc_redirect", "file_redirect")


def _word(node: Node) -> str:
    text = (node.text or b"").decode()
    if "$" in text and not text.startswith("'"):
        return text  # what the shell would put there is not known
    return "".join(shlex.split(text))


def _inner(words: Sequence[str]) -> Iterator[list[str]]:
    """What a command is given to run."""
    match words:
        case ["sh", "-c", script, *_]:
            yield from commands(script)
        case ["potash", "guest", *_] if "--" in words:
            given = list(words[words.index("--") + 1 :])
            yield given
            yield from _inner(given)
        case ["potash", "trace", *others] if own := [one for one in others if one in COMMANDS]:
            yield ["potash", *others[others.index(own[0]) :]]


def problem(words: Sequence[str], *, whole: bool = True) -> str | None:
    """What is wrong with the words behind `potash`; None if it is nothing.

    Files need not exist. With `whole=False`, arguments may be missing, as in running text, where a
    word in capitals stands for a value.
    """
    try:
        return _problem(words, whole and UNKNOWN not in words)
    except click.BadOptionUsage as error:
        return error.format_message() if whole else None
    except click.UsageError as error:
        return error.format_message()


def _problem(words: Sequence[str], whole: bool) -> str | None:
    command: click.Command = potash
    context = click.Context(command, info_name="potash")
    given = list(words)
    while isinstance(command, click.Group):
        if not given or given[0] in ("-h", "--help", "--version"):
            return None
        command.parse_args(context, given)
        given = [*context._protected_args, *context.args]
        if not given or CAPITALS.fullmatch(given[0]):
            return None
        name, found, given = command.resolve_command(context, given)
        assert found is not None  # or this has raised
        settings: dict[str, Any] = dict(found.context_settings)
        command, context = found, click.Context(found, context, info_name=name, **settings)
    values, left, _ = command.make_parser(context).parse_args(given)
    if left:
        return f"{left[0]} is too much"
    for param in command.params:
        value = values.get(param.name or "")
        if isinstance(value, (str, tuple, list)) and value:
            _check(param, [value] if isinstance(value, str) else value, context, whole)
        elif whole and param.required and not isinstance(value, (bool, int)):
            return f"{param.human_readable_name} is missing"
    return None


def _check(
    param: click.Parameter, values: Iterable[object], context: click.Context, whole: bool
) -> None:
    """Raises BadParameter."""
    if isinstance(param.type, (click.Path, click.File)):
        return
    for value in values:
        if not isinstance(value, str) or UNKNOWN in value or "$" in value:
            continue
        if not whole and CAPITALS.fullmatch(value):
            continue
        try:
            param.type.convert(value, param, context)
        except click.BadParameter as error:
            if not NO_FILE.search(error.message):
                raise

"""Extensions in commands: their errors, and the option of those that run programs themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from potash.sdk.errors import restated
from potash_firmware.extension_limits import ExtensionError

if TYPE_CHECKING:
    from potash_firmware.extension_registry import Extensions


def loaded(sources: Sequence[str]) -> Extensions | None:
    """Extensions that are imported; None without any. Raises PotashError."""
    if not sources:
        return None
    from potash_firmware import extension_files

    with restated(ExtensionError):
        return extension_files.load(sources)


def use(sources: Sequence[str]) -> None:
    """Have the helpers and operators of extensions in this process. Raises PotashError."""
    from potash_firmware import extensions

    extensions.programs = loaded(sources) or extensions.programs


extend_option = click.option(
    "--extend",
    "sources",
    multiple=True,
    metavar="FILE",
    help="Python file, or name of an installed extension, as of potash serve; may be repeated.",
)


def warn_of_policies(named: Sequence[str]) -> None:
    """Say what replaces the policies of files, if there are any, on standard error."""
    for text in named:
        if ":" in text:
            click.echo(
                f"potash: --policy {text}: custom policies are deprecated; a class with @ftl in a "
                "file of --extend replaces them (docs/ftl.md)",
                err=True,
            )

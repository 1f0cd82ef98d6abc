"""Extensions in commands: their errors, and the option of those that run programs themselves."""

from collections.abc import Sequence

import click

from potash.sdk.errors import PotashError
from potash_firmware import extension_files, extensions


def loaded(sources: Sequence[str]) -> extensions.Extensions | None:
    """Extensions that are imported; None without any. Raises PotashError."""
    try:
        return extension_files.load(sources) if sources else None
    except extensions.ExtensionError as error:
        raise PotashError(str(error)) from None


def _use(_context: click.Context, _parameter: click.Parameter, sources: Sequence[str]) -> None:
    extensions.programs = loaded(sources) or extensions.programs


extend_option = click.option(
    "--extend",
    multiple=True,
    metavar="FILE",
    expose_value=False,
    callback=_use,
    help="Python file, or installed extension, whose helpers and operators there are (--extend of "
    "potash serve); may be repeated.",
)

"""A program that is named on a command line: an object file, or C that is built first."""

import importlib
from pathlib import Path

import click

from potash.sdk.errors import PotashError

SOURCE_SUFFIX = ".c"

program_file = click.argument(
    "program", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)


def program_of(path: Path) -> bytes:
    """The object file. Raises PotashError where it has to be built and cannot be."""
    if path.suffix != SOURCE_SUFFIX:
        return path.read_bytes()
    try:
        # By name: what builds programs is heavy, and not there in a guest.
        building = importlib.import_module("potash.programs.building")
    except ModuleNotFoundError:
        raise PotashError(
            f"there is no compiler here for {path}; build it outside with potash build, and give"
            " the object file"
        ) from None
    image: bytes = building.compiled(path)
    return image

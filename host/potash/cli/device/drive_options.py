"""Options that the commands of `potash drive` share: a modelled drive, written on before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from potash.cli.drive.common import together
from potash.sdk.errors import PotashError
from potash.units import completing
from potash_device.flash.profiles import PROFILES

if TYPE_CHECKING:
    from potash_firmware.ftl.drive import Drive
    from potash_firmware.ftl.requests import Counters

profile_names = completing(lambda: PROFILES)

drive_options = together(
    click.option(
        "--drive",
        "name",
        metavar="PROFILE",
        shell_complete=profile_names,
        default="tlc",
        help=f"The drive: {', '.join(PROFILES)}, a TOML file, or a file of `precondition` (.npz).",
    ),
    click.option(
        "--policy",
        "named",
        multiple=True,
        metavar="KIND=POLICY",
        help="Policy of gc, wear or allocation: a built-in name, or FILE:CLASS; may be repeated.",
    ),
    click.option(
        "--fill",
        type=click.IntRange(0, 100),
        default=0,
        help="First write this percentage of the drive sequentially.",
    ),
    click.option(
        "--overwrite",
        type=click.FloatRange(0, 100),
        default=0.0,
        help="Then overwrite random pages, this many times the amount that was filled.",
    ),
    click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the random pages."),
)
"""The drive, and what is written on it before."""


class Prepared(NamedTuple):
    """A drive that has been written on, and what the last of `--fill` and `--overwrite` took."""

    drive: Drive
    took: Counters


def prepared(name: str, named: Sequence[str], fill: int, overwrite: float, seed: int) -> Prepared:
    """The drive that the options describe. Raises UsageError, PotashError and PolicyError."""
    from potash import timing

    if overwrite and not fill:
        raise click.UsageError("--overwrite is a multiple of --fill, which is not given")
    chosen = timing.policies(named)
    path = Path(name)
    drive = timing.restored(path, chosen) if path.suffix == ".npz" else timing.drive(name, chosen)
    return Prepared(drive, timing.precondition(drive, fill / 100, overwrite, seed))


@contextlib.contextmanager
def modelling() -> Iterator[None]:
    """A policy that fails ends the command, and a drive that memory has no room for."""
    from potash import timing

    try:
        yield
    except timing.PolicyError as error:
        raise PotashError(str(error)) from error
    except MemoryError:
        raise PotashError(
            "this machine has not enough memory for the model of this drive; make it smaller"
        ) from None

"""Options that the commands of `potash drive` share: a modelled drive, written on before."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from potash.cli.device.extending import extend_option, loaded, warn_of_policies
from potash.cli.drive.common import Decorator, together
from potash.sdk.errors import PotashError
from potash.sections import TimeSection
from potash.toml_kinds import keys
from potash.units import Parsed, Real, completing, parse_duration
from potash_device.flash.profiles import PROFILES

if TYPE_CHECKING:
    from potash_firmware.ftl.interface import Ftl
    from potash_firmware.ftl.requests import Counters

profile_names = completing(lambda: PROFILES)


def _skew(text: str) -> tuple[int, int]:
    """Percentages of a text like 90/10. Raises ValueError."""
    found = re.fullmatch(r"([1-9][0-9]?)/([1-9][0-9]?)", text)
    if not found:
        raise ValueError(f"{text!r:.40} is not two percentages from 1 to 99, like 90/10")
    return int(found[1]), int(found[2])


def as_served(key: str, *names: str, **changes: Any) -> Decorator:
    """The option of `potash serve` for a key of its modelled drive, with changes."""
    described = keys(TimeSection)[key]
    return click.option(described.flags, *names, **{**described.option, **changes})


chosen_options = together(
    as_served("drive", "name"), as_served("ftl"), as_served("policies", "named")
)
"""One drive with its translation layer."""
written_options = together(
    extend_option,
    as_served("slc"),
    as_served("over_provisioning"),
    click.option(
        "--fill",
        type=click.IntRange(0, 100),
        default=0,
        help="First write this percentage of the drive sequentially.",
    ),
    click.option(
        "--overwrite",
        type=Real(0, 100),
        default=0.0,
        help="Then overwrite random pages, this many times the amount that was filled.",
    ),
    click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the random pages."),
    click.option(
        "--skew",
        metavar="REQUESTS/PAGES",
        type=Parsed("REQUESTS/PAGES", _skew),
        help="Skew of the random pages: with 90/10, 90 % of the requests go to 10 % of the pages.",
    ),
    click.option(
        "--age",
        metavar="TIME",
        type=Parsed("TIME", parse_duration),
        default=0,
        help="Then let all data become so much older, as 12h, 90d or 1y.",
    ),
)
"""The properties of all drives that a command models, and what is written on them before."""
drive_options = together(chosen_options, written_options)
workload_options = together(
    click.option(
        "--writes",
        type=Real(0, 100, min_open=True),
        default=3.0,
        help="Amount that is written, as a multiple of the drive's capacity.",
    ),
    click.option(
        "--reads",
        type=click.IntRange(0, 99),
        default=0,
        help="Percentage of reads among the requests.",
    ),
    click.option(
        "--depth", type=click.IntRange(1, 65536), default=32, help="Number of requests in flight."
    ),
    click.option(
        "--windows",
        type=click.IntRange(1, 10_000),
        default=100,
        help="Number of intervals that the figures are given for.",
    ),
)
"""Random requests until the drive is steady."""


class DriveOptions(NamedTuple):
    """The values of the options of one drive."""

    name: str
    ftl: str
    sources: tuple[str, ...]
    named: tuple[str, ...]
    slc: int | None
    over_provisioning: int | None
    fill: int
    overwrite: float
    seed: int
    skew: tuple[int, int] | None
    age: int


class Prepared(NamedTuple):
    """A drive that has been written on, and what the last of `--fill` and `--overwrite` took."""

    drive: Ftl
    took: Counters


def require_no_input(output: Path | None, options: DriveOptions) -> None:
    """Raises UsageError for a picture in place of a file that describes the drive."""
    sources = options.name, *options.sources
    if output is not None and output.resolve() in (Path(source).resolve() for source in sources):
        raise click.UsageError(f"--output {output} is read, too; name another file for the picture")


def prepared(options: DriveOptions) -> Prepared:
    """The drive that the options describe. Raises UsageError, PotashError and FtlError."""
    from potash import timing
    from potash_firmware.extension_registry import Extensions

    if options.overwrite and not options.fill:
        raise click.UsageError("--overwrite is a multiple of --fill, which is not given")
    name, ftl, path = options.name, options.ftl, Path(options.name)
    found = (loaded(options.sources) or Extensions()).ftls
    if path.suffix != ".npz":
        profile = timing.profile(name, options.slc, options.over_provisioning)
        drive = timing.with_ftl(profile, ftl, options.named, found)
    elif options.slc is not None or options.over_provisioning is not None:
        raise click.UsageError(f"{name} has its own SLC cache and spare flash")
    else:
        drive = timing.restored_with_ftl(path, ftl, options.named, found)
    warn_of_policies(options.named)
    took = timing.precondition(
        drive, options.fill / 100, options.overwrite, options.seed, options.skew
    )
    if options.age:
        if not isinstance(drive, timing.Drive) or not (
            drive.profile.rber or drive.profile.refresh_s
        ):
            raise click.UsageError("--age needs a drive whose profile has rber or refresh_s")
        drive.age(options.age * 10**9)
    return Prepared(drive, took)


@contextlib.contextmanager
def modelling() -> Iterator[None]:
    """An FTL or policy that fails ends the command, and a drive that memory has no room for."""
    from potash_firmware.ftl.interface import FtlError

    try:
        yield
    except FtlError as error:
        raise PotashError(str(error)) from error
    except MemoryError:
        raise PotashError(
            "this machine has not enough memory for the model of this drive; make it smaller"
        ) from None

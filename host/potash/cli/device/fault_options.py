"""The options for fault injection from a device's start."""

import tomllib
from collections.abc import Iterable
from pathlib import Path

import click

from csd_spec.faults import FaultFlags
from potash.cli.drive.common import together
from potash.cli.drive.fault import FAULT
from potash.sdk.errors import PotashError
from potash.sdk.faults import Fault, describe, read_table

fault_options = together(
    click.option(
        "--fault",
        "faults",
        type=FAULT,
        multiple=True,
        help='Inject a fault from the start, like "io read status=UNRECOVERED_READ_ERROR count=3"; '
        "may be repeated (docs/faults.md).",
    ),
    click.option(
        "--faults",
        "fault_files",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        multiple=True,
        help="Inject the faults of a TOML file with [[fault]] tables.",
    ),
    click.option(
        "--allow-faults",
        is_flag=True,
        help="Allow fault injection at run time (potash fault).",
    ),
)


def faults_of(faults: Iterable[Fault], files: Iterable[Path]) -> tuple[Fault, ...]:
    """Every fault that the options name. Raises PotashError for a file that has none."""
    found = list(faults)
    for path in files:
        try:
            found += read_table(tomllib.loads(path.read_text()))
        except UnicodeDecodeError:
            raise PotashError(f"{path} is not TOML: it is not UTF-8") from None
        except (PotashError, ValueError) as error:
            raise PotashError(f"{path}: {error}") from None
    for fault in found:
        if FaultFlags.AT_ONCE in fault.flags:
            raise PotashError(
                f"{describe(fault)!r} is for a device that runs: inject it with potash fault add"
            )
    return tuple(found)

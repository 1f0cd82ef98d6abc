"""`potash fault`: fault injection into a drive that runs."""

import contextlib
from collections.abc import Iterator

import click

from nvme_spec.status import Status
from potash.cli.drive import reports
from potash.cli.drive.common import json_option, opened, say
from potash.sdk import faults
from potash.sdk.errors import CommandFailed, PotashError
from potash.units import Parsed

FAULT = Parsed("FAULT", faults.parse)


@click.group()
def fault() -> None:
    """Inject faults into a drive and clear them.

    DEVICE is /dev/nvme0, vfio-user:SOCKET or the socket's path, of a drive that was started with
    --allow-faults. FAULT is a line like "io read status=UNRECOVERED_READ_ERROR count=3", "io write
    delay=20ms", "admin identify lost", "media read lba=100..199", "interrupt vector=1 count=1" or
    "apu at=start".
    """


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Say what is to be done about a device that does not know the commands."""
    try:
        yield
    except CommandFailed as error:
        if error.status != Status.INVALID_OPCODE:
            raise
        raise PotashError(
            "this device takes no faults; start it with --allow-faults (potash serve, potash guest)"
        ) from error


@fault.command()
@click.argument("device")
@click.argument("words", metavar="FAULT", nargs=-1, required=True)
@json_option(reports.FaultAdded)
def add(device: str, words: tuple[str, ...]) -> None:
    """Inject FAULT, which may be several words."""
    wanted = FAULT.convert(" ".join(words), None, None)
    with opened(device) as one, _explained():
        identifier = faults.add(one, wanted)
    described = faults.describe(wanted)
    say(reports.FaultAdded(identifier, described), [f"{identifier}: {described}"])


@fault.command(name="list")
@click.argument("device")
@json_option(reports.Faults)
def list_(device: str) -> None:
    """List the faults, and how often each was triggered."""
    with opened(device) as one, _explained():
        found = faults.listed(one)
    lines = [
        f"{one.identifier}: {faults.describe(one)} (triggered {one.triggered} times"
        f"{', and does no more' if one.spent else ''})"
        for one in found
    ]
    say(reports.Faults(list(map(reports.Armed, found))), lines or ["no faults"])


@fault.command()
@click.argument("device")
@click.argument("identifiers", metavar="[ID...]", type=click.IntRange(1, 0xFFFF), nargs=-1)
def clear(device: str, identifiers: tuple[int, ...]) -> None:
    """Clear the faults with these IDs, or all of them."""
    with opened(device) as one, _explained():
        for identifier in identifiers or (0,):
            faults.clear(one, identifier)

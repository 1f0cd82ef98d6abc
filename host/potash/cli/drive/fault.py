"""`potash fault`: fault injection into a drive that runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click

from nvme_spec.status import Status
from potash.cli.drive import reports
from potash.cli.drive.common import json_option, opened, say
from potash.sdk import faults
from potash.sdk.errors import CommandFailed, InvalidRequest, PotashError
from potash.sdk.faults import Fault


class FaultText(click.ParamType[Fault]):
    """One line that describes a fault, as `potash.sdk.faults` has it."""

    name = "FAULT"

    def convert(
        self, value: str | Fault, param: click.Parameter | None, ctx: click.Context | None
    ) -> Fault:
        if isinstance(value, Fault):
            return value
        try:
            return faults.parse(value)
        except InvalidRequest as error:
            self.fail(str(error), param, ctx)


@click.group()
def fault() -> None:
    """Inject faults into a drive, and end them.

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
def add(device: str, words: tuple[str, ...], as_json: bool) -> None:
    """Inject FAULT, one line, quoted or not."""
    wanted = FaultText().convert(" ".join(words), None, None)
    with opened(device) as one, _explained():
        identifier = faults.add(one, wanted)
    report: reports.FaultAdded = {"id": identifier, "fault": faults.describe(wanted)}
    say(report, [f"{identifier}: {report['fault']}"], as_json=as_json)


@fault.command(name="list")
@click.argument("device")
@json_option(reports.Faults)
def list_(device: str, as_json: bool) -> None:
    """Show the faults, and how often each has occurred."""
    with opened(device) as one, _explained():
        found = faults.listed(one)
    report: reports.Faults = {
        "faults": [
            {
                "id": item.identifier,
                "fault": faults.describe(item),
                "triggered": item.triggered,
                "spent": item.spent,
            }
            for item in found
        ]
    }
    lines = [
        f"{item.identifier}: {faults.describe(item)} (triggered {item.triggered} times"
        f"{', and does no more' if item.spent else ''})"
        for item in found
    ]
    say(report, lines or ["no faults"], as_json=as_json)


@fault.command()
@click.argument("device")
@click.argument("identifiers", metavar="[ID...]", type=click.IntRange(1, 0xFFFF), nargs=-1)
def clear(device: str, identifiers: tuple[int, ...]) -> None:
    """End the faults of these numbers, or all of them."""
    with opened(device) as one, _explained():
        for identifier in identifiers or (0,):
            faults.clear(one, identifier)

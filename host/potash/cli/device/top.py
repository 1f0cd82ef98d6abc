"""`potash top`: what a running device does, live."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from potash.cli.drive.common import as_json, json_option, say
from potash.observing.rates import between
from potash.observing.screen import lines
from potash.observing.snapshot import Interval, Rates, Snapshot
from potash.observing.status import ask, running, status_socket
from potash.sdk.errors import DeviceNotFound, PotashError


@click.command()
@click.argument("device", required=False)
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 3600),
    default=1.0,
    show_default=True,
    help="Refresh interval in seconds.",
)
@click.option("--once", is_flag=True, help="Show one interval, and exit.")
@json_option(Interval, "Print each interval as one line of JSON.")
def top(device: str | None, interval: float, once: bool) -> None:
    """Show the activity of a running device: queues, commands, accelerators and jobs.

    DEVICE is the socket of potash serve (or vfio-user:SOCKET); the default is the only device that
    another command (guest, demo, bench) runs. The command ends with the device, or by an interrupt.
    """
    socket = _status_socket(device)
    intervals = _intervals(socket, interval)
    if as_json() or once or not sys.stdout.isatty():
        for snapshot, rates in intervals:
            report: Interval = {**snapshot, "rates": rates}
            say(report, lines(socket, snapshot, rates))
            if once:
                return
    else:
        _show(socket, intervals)


def _status_socket(device: str | None) -> Path:
    """The status socket to ask. Raises PotashError if there is not exactly one."""
    if device is not None:
        return status_socket(device)
    found = running()
    if len(found) == 1:
        return found[0]
    if not found:
        raise DeviceNotFound("no device runs that can be found; name the socket of potash serve")
    names = ", ".join(str(one.with_suffix("")) for one in found)
    raise PotashError(f"several devices run; name one of {names}")


def _intervals(socket: Path, interval: float) -> Iterator[tuple[Snapshot, Rates]]:
    """Snapshots with the rates since the one before, until the device has gone."""
    before = ask(socket)
    while True:
        time.sleep(interval)
        after = ask(socket)
        yield after, between(before, after)
        before = after


def _show(socket: Path, intervals: Iterator[tuple[Snapshot, Rates]]) -> None:
    """On a terminal, each interval replaces the previous one."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(Text("…"), console=Console(), screen=True, auto_refresh=False) as live:
        try:
            for snapshot, rates in intervals:
                live.update(Text("\n".join(lines(socket, snapshot, rates))), refresh=True)
        except DeviceNotFound:
            raise PotashError("the device has ended") from None

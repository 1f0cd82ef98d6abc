"""`potash top`: what a running device does, live."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from potash.cli.drive.common import as_json, json_option, say
from potash.observing.rates import Interval, Rates, between
from potash.observing.screen import lines
from potash.observing.status import ask, running, status_socket
from potash.sdk.errors import DeviceNotFound, PotashError, restated
from potash.units import Real
from potash_firmware.snapshot import Snapshot


@click.command()
@click.argument("device", required=False)
@click.option(
    "--interval",
    type=Real(0.05, 3600),
    default=1.0,
    help="Refresh interval in seconds.",
)
@click.option("--once", is_flag=True, help="Show one interval, and exit.")
@click.option(
    "--web",
    type=click.IntRange(0, 65535),
    is_flag=False,
    flag_value=0,
    metavar="[PORT]",
    help="Show the screen in a browser on this machine, at the address that is printed; at a free "
    "port, where none is given.",
)
@json_option(Interval, "Print each interval as one line of JSON.")
def top(device: str | None, interval: float, once: bool, web: int | None) -> None:
    """Show the activity of a running device: queues, commands, accelerators and jobs.

    DEVICE is the socket of potash serve (or vfio-user:SOCKET); the default is the only device that
    another command (guest, demo, bench) runs. The command ends with the device, or by an interrupt.
    """
    socket = _status_socket(device)
    if web is not None:
        if as_json() or once:
            raise click.UsageError("--web shows a screen, which has no --json and no --once")
        _serve(socket, interval, web)
    elif as_json() or once or not _has_screen():
        for snapshot, rates in _intervals(socket, interval):
            report: Interval = {**snapshot, "rates": rates}
            say(report, lines(socket, snapshot, rates))
            if once:
                return
    else:
        _show(socket, interval)


def _has_screen() -> bool:
    """True if there is a terminal, which Textual reads from and writes to as standard error, or a
    browser."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return "TEXTUAL_DRIVER" in os.environ or all(one.isatty() for one in streams)


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


def _show(socket: Path, interval: float) -> None:
    """Show the screen on a terminal, or in a browser by textual-serve, which sets a variable."""
    from potash.observing.live import LiveScreen

    live = LiveScreen(socket, interval)
    live.run()
    if live.interrupted:
        raise KeyboardInterrupt
    if live.ended is not None:
        raise live.ended


def _serve(socket: Path, interval: float, port: int) -> None:
    ask(socket)  # where there is no device, nothing is served
    try:
        from potash.observing import web
    except ImportError:
        raise PotashError(
            "the screen in a browser takes the package textual-serve; install potash[web]"
        ) from None
    with restated(OSError, f"port {port} of 127.0.0.1"):
        found = web.PrivateServer(socket, interval, port)
    click.echo(f"the screen is at {found.address} (Ctrl-C ends it)")
    found.run()

"""`potash serve`: a device by itself, for whatever client comes."""

from __future__ import annotations

import json
import logging
import shlex
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TextIO

import click

from potash.cli.units import Size, human
from potash_device.media import FLASH_SIZE, FileMedia, Media, MemoryMedia
from potash_device.trace import Sink
from potash_firmware.boot import PROFILES, Device, run_until_signal

NSID = 1


def qemu_device(socket: Path) -> str:
    """The `-device` argument that gives QEMU the device behind `socket`."""
    return json.dumps(
        {"driver": "vfio-user-pci", "socket": {"type": "unix", "path": str(socket)}},
        separators=(",", ":"),
    )


@click.command()
@click.option(
    "--socket",
    required=True,
    type=click.Path(path_type=Path),
    help="Where to listen: the path of a UNIX socket, for this user alone.",
)
@click.option(
    "--media",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the blocks in this file, made if it is not there (default: in memory).",
)
@click.option("--size", type=Size(), default="1G", show_default=True, help="Size of a new drive.")
@click.option(
    "--profile",
    type=click.Choice(sorted(PROFILES)),
    default="potash",
    show_default=True,
    help="What the device says that it is: itself, or the platform that it follows.",
)
@click.option(
    "--trace",
    "trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what commands pass on their way to this file, a line of JSON each.",
)
@click.option("--json", "as_json", is_flag=True, help="Say where the device is as JSON.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="How much to say on standard error of what happens.",
)
def serve(
    socket: Path,
    media: Path | None,
    size: int,
    profile: str,
    trace: Path | None,
    as_json: bool,
    log_level: str,
) -> None:
    """Run a device until it is interrupted; one client at a time may use it."""
    logging.basicConfig(format="potash: %(message)s", level=log_level.upper())
    path = socket.absolute()
    with ExitStack() as stack:
        blocks = stack.enter_context(closing(_open(media, size)))
        flash = stack.enter_context(closing(_open(_flash_path(media), FLASH_SIZE)))
        device = stack.enter_context(Device(path, {NSID: blocks}, flash, PROFILES[profile]))
        if trace is not None:
            lines = stack.enter_context(trace.open("w", buffering=1))
            device.board.trace.sink = _json_lines(lines)
        _announce(path, media, blocks.size, as_json=as_json)
        run_until_signal(device)


def _flash_path(media: Path | None) -> Path | None:
    """The flash of a drive that is kept in a file lies beside it."""
    return media.with_name(media.name + ".flash") if media is not None else None


def _open(path: Path | None, size: int) -> Media:
    return FileMedia.open(path, size) if path is not None else MemoryMedia.create(size)


def _announce(socket: Path, media: Path | None, size: int, *, as_json: bool) -> None:
    device = qemu_device(socket)
    if as_json:
        report = {
            "socket": str(socket),
            "media": str(media) if media else None,
            "size": size,
            "qemu_device": device,
        }
        click.echo(json.dumps(report))
        return
    where = f"in {media}" if media else "in memory, gone when this ends"
    click.echo(f"A drive of {human(size)}, {where}, listens at {socket}")
    click.echo("QEMU (10.1.1 or later) takes it with:")
    click.echo(f"  -device {shlex.quote(device)}")
    click.echo("and guest memory that can be shared:")
    click.echo("  -object memory-backend-memfd,id=m0,size=1G,share=on -M q35,memory-backend=m0")
    click.echo(f"Without QEMU: potash run vfio-user:{socket} PROGRAM INPUT OUTPUT")


def _json_lines(file: TextIO) -> Sink:
    """Write each trace point as one line of JSON: its time in seconds, its name, what it knows."""

    def sink(point: str, known: Mapping[str, object]) -> None:
        file.write(json.dumps({"time": time.monotonic(), "point": point, **known}) + "\n")

    return sink

"""Devices in processes of their own, each with a configuration, which is in a file."""

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from potash import configuration
from potash.configuration import Configuration
from potash.sections import MODELLED
from potash.vm.drive import starting_device


class Served(NamedTuple):
    """A device that runs.

    Attributes:
        socket: path of its socket.
        monitor: path at which QEMU creates the monitor with which the device stops its guest; None
            where it stops none.
        process: the device's process.
    """

    socket: Path
    monitor: Path | None
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def serving(
    config: Configuration, *, guest: bool = False, verbose: bool = False
) -> Iterator[Served]:
    """Run a device while the block lasts, at a socket of its own.

    Args:
        config: its configuration, but for the socket and the monitor.
        guest: if its time is modelled, it stops a guest through a monitor.
        verbose: let its log through to standard error.

    Raises:
        PotashError: it does not start; the text is the reason.
    """
    with _starting(config, guest=guest, verbose=verbose) as (served, wait):
        wait()
        yield served


@contextlib.contextmanager
def _starting(
    config: Configuration, *, guest: bool, verbose: bool
) -> Iterator[tuple[Served, Callable[[], None]]]:
    """The same, without waiting for the device to listen; yields a function that does."""
    # The directory is this user's alone, and so are the socket and the configuration.
    with tempfile.TemporaryDirectory(prefix="potash-") as folder:
        socket, file = Path(folder, "drive"), Path(folder, "potash.toml")
        monitor = Path(folder, "monitor") if guest and config.time.mode == MODELLED else None
        device = replace(config.device, socket=socket)
        config = replace(config, device=device, time=replace(config.time, monitor=monitor))
        file.write_text(configuration.write(config), encoding="utf-8")
        with starting_device(socket, "--config", str(file), verbose=verbose) as (process, wait):
            yield Served(socket, monitor, process), wait


@contextlib.contextmanager
def serving_guest(
    drives: Sequence[Configuration], *, verbose: bool = False
) -> Iterator[tuple[list[Path], list[Path]]]:
    """Serve all drives of a guest, as `serving` does; yields their sockets and monitors."""
    with contextlib.ExitStack() as stack:
        devices = [
            stack.enter_context(_starting(drive, guest=True, verbose=verbose)) for drive in drives
        ]
        for _, wait in devices:  # all start at the same time
            wait()
        yield (
            [served.socket for served, _ in devices],
            [served.monitor for served, _ in devices if served.monitor],
        )

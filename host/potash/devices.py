"""Devices in processes of their own, each with a configuration, which is in a file."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, NamedTuple

from potash import configuration
from potash.configuration import Configuration
from potash.sections import MODELLED
from potash.vm.drive import device_process, end, require_listening
from potash.vm.parent_death import dies_with_parent
from potash_firmware.apu_process import environment, in_memory

FORKING = "potash.cli.device.drives"
"""The module of the process from which all devices of a guest are forked."""
STDERR = 2


class Served(NamedTuple):
    """A device that runs, in a process; the socket of its first controller, and all sockets."""

    socket: Path
    monitor: Path | None
    """The path at which QEMU creates the monitor with which the device stops its guest; None where
    it stops none."""
    process: subprocess.Popen[bytes]
    sockets: tuple[Path, ...]


@contextlib.contextmanager
def serving(
    config: Configuration, *, guest: bool = False, controllers: int = 1, verbose: bool = False
) -> Iterator[Served]:
    """Run a device while the block lasts, at a socket of its own, or at one for each of several
    controllers. With `guest`, it stops a guest through a monitor if its time is modelled; with
    `verbose`, its log goes to standard error. Raises PotashError where it does not start; the text
    is the reason."""
    with (
        _written(config, guest=guest, controllers=controllers) as drive,
        device_process(
            drive.sockets[0],
            *("--config", str(drive.file)),
            more=drive.sockets[1:],
            verbose=verbose,
        ) as process,
    ):
        yield Served(drive.sockets[0], drive.monitor, process, drive.sockets)


class _Written(NamedTuple):
    """The files of a device: its sockets, its monitor if it stops a guest, its configuration."""

    sockets: tuple[Path, ...]
    monitor: Path | None
    file: Path


@contextlib.contextmanager
def _written(config: Configuration, *, guest: bool, controllers: int = 1) -> Iterator[_Written]:
    """A configuration in a file, with sockets and, for a guest, a monitor."""
    # The directory is this user's alone, and so are the socket and the configuration.
    with tempfile.TemporaryDirectory(prefix="potash-") as folder:
        sockets = tuple(Path(folder, f"drive{number or ''}") for number in range(controllers))
        file = Path(folder, "potash.toml")
        monitor = Path(folder, "monitor") if guest and config.time.mode == MODELLED else None
        device = replace(config.device, socket=sockets)
        monitors = None if monitor is None else (monitor,)
        config = replace(config, device=device, time=replace(config.time, monitor=monitors))
        file.write_text(configuration.write(config), encoding="utf-8")
        yield _Written(sockets, monitor, file)


@contextlib.contextmanager
def serving_guest(
    drives: Sequence[Configuration], *, paths: int = 1, verbose: bool = False
) -> Iterator[tuple[list[Path], list[Path]]]:
    """Serve all drives of a guest, in processes forked from one that has imported what they need.

    Yields the sockets of their controllers, of which each drive has as many as `paths`, and their
    monitors. Raises what `serving` does.
    """
    with contextlib.ExitStack() as stack:
        written = [
            stack.enter_context(_written(drive, guest=True, controllers=paths)) for drive in drives
        ]
        modelled = any(drive.time.mode == MODELLED for drive in drives)
        files = {
            drive.file: config.memory.peers for drive, config in zip(written, drives, strict=True)
        }
        stack.enter_context(_forked(files, modelled=modelled, verbose=verbose))
        yield (
            [socket for drive in written for socket in drive.sockets],
            [drive.monitor for drive in written if drive.monitor],
        )


@contextlib.contextmanager
def _forked(files: Mapping[Path, bool], *, modelled: bool, verbose: bool) -> Iterator[None]:
    """Run a device for each configuration while the block lasts (`potash.cli.device.drives`).

    The files' values say which drives share the memory in their BARs.
    """
    with contextlib.ExitStack() as stack:
        variables = stack.enter_context(in_memory(os.environ))
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in files]
        outputs: list[IO[bytes]] = []
        with contextlib.ExitStack() as ends:
            drives = []
            for file, log in zip(files, logs, strict=True):
                reading, writing = os.pipe2(os.O_CLOEXEC)
                outputs.append(stack.enter_context(open(reading, "rb")))
                ends.callback(os.close, writing)
                drives.append((str(file), writing, STDERR if verbose else log.fileno()))
            process = subprocess.Popen(
                dies_with_parent([sys.executable, "-P", "-m", FORKING]),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=None if verbose else logs[0],
                pass_fds=[variables.fileno(), *(fd for _, *fds in drives for fd in fds)],
                env=environment(),
                start_new_session=True,  # as for `device_process`
            )
        stack.callback(end, process)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            request = {
                "environment": variables.fileno(),
                "modelled": modelled,
                "shares": [*files.values()],
                "drives": drives,
            }
            process.stdin.write(json.dumps(request).encode())
        for output, log in zip(outputs, logs, strict=True):
            require_listening(output, log, verbose=verbose)
        yield

"""`potash serve`: a device by itself, for whatever client comes."""

import errno
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import click

from csd_spec.reporting import Count, Form, Positive
from nvme_spec.status import NvmeError
from potash import configuration, options
from potash.cli.device.extending import loaded
from potash.cli.device.modelled_time import (
    keep,
    modelled,
    require_cache,
    require_scheduler,
    standing,
)
from potash.cli.drive.common import json_option, say
from potash.cli.progress import showing
from potash.observing.status import also_at, status_socket
from potash.sdk.errors import PotashError, restated
from potash.sections import LIBUBPF, MODELLED
from potash.tracing.recording import TRACES, lines, recording
from potash.units import human, parse_size
from potash.vm.parent_death import dies_with_parent
from potash_device.media import shapes
from potash_device.media.drive import Drive
from potash_device.media.errors import MediaError
from potash_device.media.shapes import first_memories
from potash_device.pcie import peers
from potash_device.pcie.bar_memory import require_size
from potash_device.settings import MOST_CONTROLLERS
from potash_firmware.apu.config import RangeBlocks, RangeUnit
from potash_firmware.boot import Device, run_until
from potash_firmware.bpf.engine_names import Engine
from potash_firmware.confinement import be_undumpable
from potash_firmware.extension_limits import ExtensionError
from potash_firmware.settings import PROFILES, DeviceSettings
from potash_firmware.stop_signals import StopSignals

PROCESS = "potash"

LONGEST_SOCKET = 107
"""Bytes of a UNIX socket's path (unix(7))."""
LOOPBACK = "127.0.0.1"
BACKLOG = 16
METRICS = "potash.observing.metrics"
"""The module of the process that answers with the metrics."""


class Namespace(NamedTuple):
    """A namespace of the drive."""

    nsid: Annotated[Positive, "The namespace's identifier."]
    size: Annotated[Count, "Size of the namespace in bytes."]
    block_size: Annotated[int, Form(enum=[512, 4096]), "Size of a block in bytes."]
    read_only: Annotated[bool, "True if the namespace is read-only."]


class Serving(NamedTuple):
    """A running device; printed as soon as clients can connect."""

    socket: Annotated[str, "Absolute path of the UNIX socket."]
    media: Annotated[
        str | None, "The directory or file that stores the drive; null if it is in memory."
    ]
    size: Annotated[Count, "Total size of all namespaces in bytes."]
    capacity: Annotated[Count, "Maximum total size of all namespaces in bytes."]
    namespaces: Annotated[Sequence[Namespace], "All namespaces."]
    qemu_device: Annotated[str, "Value of QEMU's -device option that attaches the drive."]
    metrics: Annotated[str | None, "URL of the metrics for Prometheus; null without --metrics."]
    sockets: Annotated[Sequence[str], "Absolute paths of the sockets of all controllers."]


def announce(
    sockets: Sequence[Path], media: Path | None, drive: Drive, metrics: str | None
) -> None:
    """Report the sockets of the running drive, and how to use it."""
    path, listens = sockets[0], " and ".join(map(str, sockets))
    device, *others = (
        json.dumps(
            {"driver": "vfio-user-pci", "socket": {"type": "unix", "path": str(socket)}},
            separators=(",", ":"),
        )
        for socket in sockets
    )
    namespaces = [
        Namespace(nsid, drive.shapes[nsid].data_size, drive.block_sizes[nsid], namespace.read_only)
        for nsid, namespace in drive.namespaces.items()
    ]
    report = Serving(
        socket=str(path),
        media=str(media) if media else None,
        size=sum(namespace.size for namespace in namespaces),
        capacity=drive.capacity,
        namespaces=namespaces,
        qemu_device=device,
        metrics=metrics,
        sockets=[str(socket) for socket in sockets],
    )
    where = f"in {media}" if media else "in memory until this command ends"
    what = " and ".join(human(namespace.size) for namespace in namespaces) or "no namespace yet"
    if drive.memory_allocated:
        what += f", with {human(drive.memory_allocated)} of memory"
    lines = [
        f"A drive of {what}, {where}, listens at {listens}",
        "Options for QEMU (10.1.1 or later):",
        *(f"  -device {shlex.quote(each)}" for each in (device, *others)),
        "and, for guest memory that can be mapped:",
        "  -object memory-backend-memfd,id=m0,size=1G,share=on -M q35,memory-backend=m0",
    ]
    if metrics is not None:
        lines.append(f"Metrics for Prometheus: {metrics}")
    say(report, [*lines, f"Without QEMU: potash run vfio-user:{path} PROGRAM INPUT OUTPUT"])


@click.command(params=options.device_options(guest=False))
@json_option(Serving, "Report the device's address as JSON.")
@click.pass_context
def serve(ctx: click.Context, config_file: Path | None, print_config: bool) -> None:
    """Run a device until it is interrupted. It serves one client at a time at each --socket.

    `potash top` shows its activity.
    """
    config = options.configured(ctx, config_file)
    section = config.device
    if section.read_only and section.media is None:
        raise click.UsageError("--read-only needs --media: a drive in memory is empty")
    if config.memory.peers and not config.memory.bar:
        raise click.UsageError("--memory-peers needs --memory-bar")
    if print_config:
        click.echo(configuration.write(config), nl=False)
        return
    if not section.socket or Path() in section.socket:
        raise click.UsageError("give --socket PATH to listen at")
    sockets = [socket.absolute() for socket in section.socket]
    if len(sockets) > MOST_CONTROLLERS or len(set(sockets)) < len(sockets):
        raise click.UsageError(f"give up to {MOST_CONTROLLERS} different --socket")
    if len(config.time.monitor or ()) not in (0, 1, len(sockets)):
        raise click.UsageError(
            "give one --monitor for each --socket, in the same order, or one for a guest that has "
            "all sockets"
        )
    if (last := max(config.owners, default=0)) >= len(sockets):
        raise click.UsageError(
            f"controller {last}, which has namespaces or accelerators, is not there; "
            f"give {last + 1} --socket"
        )
    if len(sockets) > 1:
        _require_shareable(config)
    section.log_settings.apply(PROCESS)
    if section.libubpf is not None:  # for the processes that run programs, which inherit it
        os.environ[LIBUBPF] = str(section.libubpf.absolute())
    settings = device_settings(config)
    extensions = loaded((*section.extensions, *section.natives))
    settings = replace(settings, rpu=replace(settings.rpu, extensions=extensions))
    require_scheduler(config.time, settings.rpu)
    _serve(config, settings, sockets)


def _require_shareable(config: configuration.Configuration) -> None:
    """Raises UsageError for what a drive with several controllers does not have."""
    section = config.device
    for flag, there in (
        ("--incoming", section.incoming),
        ("--load", section.load),
        ("--save", section.save),
    ):
        if there:
            raise click.UsageError(f"{flag} is for a drive with one controller, so one --socket")


def _serve(
    config: configuration.Configuration, settings: DeviceSettings, sockets: Sequence[Path]
) -> None:
    section = config.device
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        standstill, time = standing(config.time), None
        if config.time.mode == MODELLED and section.media is not None and _is_new(section.media):
            # No media are made for a modelled drive that is refused.
            with _drive(replace(config, device=replace(section, media=None))) as planned:
                time = modelled(config.time, planned, section.fdp, settings.rpu.extensions)
        drive = stack.enter_context(_drive(config, locked=not section.incoming))
        time = time or modelled(config.time, drive, section.fdp, settings.rpu.extensions)
        for name in ("hmb", "power-states", "ocp"):
            if getattr(section, name.replace("-", "_")) and time is None:
                raise PotashError(f"--{name} is for modelled time; add --time modelled")
        if section.hmb and time is not None:
            require_cache(time.drive)
        settings = replace(settings, rpu=replace(settings.rpu, time=time))
        trace = section.trace
        if trace is not None and trace.suffix in TRACES:
            progress = stack.enter_context(showing(steps=True))
            stack.enter_context(recording(trace, progress))
            trace = None
        traced = stack.enter_context(lines(trace))
        path = sockets[0]
        device = Device(
            sockets,
            drive.namespaces,
            drive.flash,
            _with_memory_bar(settings, drive, len(sockets)) if config.memory.bar else settings,
            sidecar=drive.sidecar,
            drive=drive,
            trace=traced,
            status=status_socket(str(path)),
            incoming=section.begins_with_state,
            standstill=standstill,
        )
        try:
            stack.enter_context(device)
        except OSError as error:
            failed = Path(error.filename) if error.filename else path
            raise PotashError(
                f"the device cannot listen at {failed}: {_why(error, failed)}"
            ) from None
        except ExtensionError as error:
            raise PotashError(str(error)) from None
        except NvmeError as error:
            raise PotashError(error.detail) from None
        for other in sockets[1:]:
            stack.enter_context(also_at(str(other), str(path)))
        address = None
        if section.metrics is not None:
            asked = status_socket(str(path))
            if not asked.is_socket():
                raise PotashError(f"--metrics has no numbers to give: {asked} cannot be made")
            address = stack.enter_context(exporting(asked, section.metrics))
        be_undumpable()
        if section.load is not None:
            load_state(device, section.load)
        announce(sockets, section.media, drive, address)
        run_until(device, stop)
        if section.save is not None:
            save_state(device, section.save)
        elif device.rpu.migration.owns_media:
            keep(device.rpu.controller.timing, drive)


def device_settings(config: configuration.Configuration) -> DeviceSettings:
    """The settings of a device, but for its drive's namespaces."""
    section = config.device
    profile = PROFILES[section.profile]
    identity = profile.rpu.identity
    if section.serial is not None:
        # The name of a profile's subsystem would be that of all its devices.
        identity = replace(identity, serial=section.serial, qualified_name="")
    return replace(
        profile,
        board=replace(
            profile.board,
            vta=config.vta,
            cmb=section.cmb,
            map_doorbells=section.map_doorbells,
            peers=peers.inherited,
        ),
        rpu=replace(
            profile.rpu,
            identity=identity,
            faults=section.faults,
            allow_faults=section.allow_faults,
            compute=config.described_compute,
            copy_formats_enabled=config.memory.copy_formats,
            placement=section.fdp,
            host_memory=section.hmb or 0,
            nguid=section.nguid,
            append_limit=parse_size(section.append_limit or "0"),
            power_states=section.power_states,
            ocp=section.ocp,
            ana=len(section.socket or ()) > 1 if section.ana is None else section.ana,
        ),
        accelerators=config.described_accelerators,
        engine=Engine(section.engine),
        limits=config.described_limits,
        vta_threads=config.vta_threads,
        trust_memory=section.trust_memory,
        count_cycles=section.metrics is not None,
        log=section.log_settings,
        range_blocks=RangeBlocks(
            RangeUnit(section.range_unit), section.range_count == "zero-based"
        ),
    )


def _with_memory_bar(settings: DeviceSettings, drive: Drive, controllers: int) -> DeviceSettings:
    """The settings of a drive whose controllers have their first memory in a BAR. Raises
    PotashError where there is no such memory, or one has a size that no BAR has."""
    sizes = first_memories(drive.shapes, controllers)
    if not sizes:
        raise PotashError("--memory-bar is for a drive with a memory namespace")
    with restated(ValueError, "--memory-bar"):
        for size in sizes.values():
            require_size(size)
    return replace(settings, board=replace(settings.board, memory_bar=max(sizes.values())))


def _why(error: OSError, socket: Path) -> str:
    """The problem with a socket's path, and a remedy."""
    length = len(os.fsencode(socket))
    if length > LONGEST_SOCKET:
        return (
            f"the path has {length} bytes, and {LONGEST_SOCKET} are the most; choose a shorter one"
        )
    if error.errno == errno.ENOENT:
        return f"there is no folder {socket.parent}; make it, or choose another place"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.strerror} in {socket.parent}; choose another place"
    return error.strerror or str(error)


def _drive(config: configuration.Configuration, *, locked: bool = True) -> Drive:
    """Raises PotashError for what is no drive, or not the one that is asked for."""
    section = config.device
    with restated((shapes.DriveError, MediaError)):
        return Drive.open(
            section.media,
            config.shapes,
            capacity=section.capacity,
            memory_capacity=config.memory.capacity,
            read_only=section.read_only,
            locked=locked or section.media is None,
        )


def _is_new(media: Path) -> bool:
    """There is no drive at a path yet."""
    return not media.exists() or (media.is_dir() and not any(media.iterdir()))


def load_state(device: Device, path: Path) -> None:
    """Raises PotashError."""
    with restated(OSError, f"the state in {path} cannot be loaded"):
        device.load(path.read_bytes())


def save_state(device: Device, path: Path) -> None:
    """The file is there whole, or not at all. Raises PotashError."""
    new = path.with_name(path.name + ".new")
    with restated(OSError, f"the state cannot be saved in {path}"):
        state = device.save()
        new.touch(mode=0o600)
        new.write_bytes(state)
        new.rename(path)


@contextmanager
def exporting(status: Path, port: int) -> Iterator[str]:
    """Answer with the metrics at a port of this machine's loopback while the block lasts.

    Gives the address. Port 0 is any that is free. Raises PotashError where the port is taken.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
            listener.listen(BACKLOG)
        except OSError as error:
            raise PotashError(
                f"the metrics cannot be at port {port}: {error.strerror}; choose another port"
            ) from None
        port = listener.getsockname()[1]
        descriptor = listener.fileno()
        command = [sys.executable, "-m", METRICS, "--listener", str(descriptor)]
        process = subprocess.Popen(
            dies_with_parent([*command, "--status", str(status)]),
            stdin=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            # A key at the terminal is for the device, which ends this process.
            process_group=0,
        )
    try:
        yield f"http://{LOOPBACK}:{port}/metrics"
    finally:
        process.kill()
        process.wait()

"""`potash guest`: a Linux machine whose NVMe drive is our device."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from potash import configuration, options
from potash.cli.device.vta_options import writable_file
from potash.cli.drive.common import FILE
from potash.cli.progress import showing
from potash.configuration import Configuration
from potash.devices import serving_guest
from potash.sdk.vfio_user import require_free
from potash.sections import MEBI, MODELLED, GuestSection
from potash.tracing.recording import recording
from potash.units import Parsed
from potash.vm import images, snapshot, system
from potash.vm.guest import DRIVE, Guest
from potash.vm.qemu import ROOT_PORTS, Accelerator, Shape
from potash.vm.system import APPEND, Disk, System
from potash.vm.terminal import descriptor_sink
from potash_device.settings import MOST_CONTROLLERS

SHARE = "/share"


def _collected(text: str) -> tuple[str, Path]:
    inside, colon, outside = text.partition(":")
    if not colon or not inside.startswith("/") or not outside:
        raise ValueError(f"{text!r} is not GUEST:HOST with an absolute path in the guest")
    return inside, Path(outside)


def _disk(text: str) -> Disk:
    path = Path(text.removesuffix(",rw"))
    if not path.is_file() and not path.is_block_device():
        raise ValueError(f"{str(path)!r} is not a file with a disk in it")
    return Disk(path, text.endswith(",rw"))


Sockets = tuple[list[Path], list[Path]]
"""Sockets of devices, and those of QEMU's monitors for devices that stop the guest."""


def _devices(
    drives: Sequence[Configuration],
    paths: int,
    sockets: Sequence[Path],
    monitors: Sequence[Path],
    verbose: bool,
) -> AbstractContextManager[Sockets]:
    """Sockets of devices with these configurations, or those that listen already."""
    if not sockets:
        return serving_guest(drives, paths=paths, verbose=verbose)
    return nullcontext(([*sockets], [*monitors]))


@contextmanager
def running_guest(
    *drives: Configuration,
    paths: int = 1,
    sockets: Sequence[Path] = (),
    monitors: Sequence[Path] = (),
    refresh: bool = False,
    quiet: bool = False,
    verbose: bool = False,
) -> Iterator[Guest]:
    """A guest with its own drives, from nothing to its end. The configuration of the guest is that
    in the first of the drives, each of which has as many controllers as `paths`. Devices that
    listen at `sockets` are used instead; those that stop the guest expect QEMU at `monitors`. With
    `refresh`, packages are downloaded again; with `verbose`, the device's log is shown."""
    config = drives[0]
    with ExitStack() as stack:
        with showing(steps=True, quiet=quiet) as progress:
            found = images.prepare(progress, mirror=config.guest.debian_mirror, refresh=refresh)
            (first, *others), monitors = stack.enter_context(
                _devices(drives, paths, sockets, monitors, verbose)
            )
            guest = stack.enter_context(
                Guest(
                    found,
                    first,
                    config.guest.memory // MEBI,
                    config.guest.cpus,
                    more=others,
                    namespaces=sum(0 in (shape.controllers or (0,)) for shape in config.shapes)
                    + (not config.namespaces),
                    monitors=monitors,
                    progress=progress,
                )
            )
        yield guest


@click.command(params=options.device_options(guest=True))
@click.argument("command", nargs=-1, metavar="[-- CMD...]")
@click.option(
    "--socket",
    "served",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Use the device of a running `potash serve` at this socket instead of a new one; may be "
    "repeated.",
)
@click.option(
    "--monitor",
    "monitors",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Socket of a monitor of QEMU: the --monitor of the device at --socket; may be repeated, "
    "once for each device.",
)
@click.option(
    "--devices",
    type=click.IntRange(1, ROOT_PORTS),
    help="Number of drives, /dev/nvme0n1 and on (default: one, or as many as --media).",
)
@click.option(
    "--paths",
    type=click.IntRange(1, MOST_CONTROLLERS),
    default=1,
    show_default=True,
    help="Number of controllers of each drive, which are paths to its namespaces.",
)
@click.option(
    "--media",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Directory or file that stores a drive; created if it does not exist (default: in "
    "memory). May be repeated, once for each drive.",
)
@click.option(
    "--share",
    "shares",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help=f"Copy this file or directory to {SHARE} in the guest before the command runs; may be "
    "repeated.",
)
@click.option(
    "--collect",
    "collected",
    type=Parsed("GUEST:HOST", _collected),
    multiple=True,
    help="Copy a file or directory out of the guest after the command; may be repeated.",
)
@click.option(
    "--kernel",
    type=FILE,
    help="Boot this kernel instead of Potash's guest, with this terminal as its serial port.",
)
@click.option("--initrd", type=FILE, help="Initial file system (initramfs) for --kernel.")
@click.option(
    "--append", metavar="TEXT", help=f"Kernel command line for --kernel (default: {APPEND})."
)
@click.option(
    "--disk",
    "disks",
    type=Parsed("FILE[,rw]", _disk),
    multiple=True,
    help="Disk image of a custom system, raw or qcow2, read-only without ,rw; may be repeated. "
    "Without --kernel, the guest boots from the first one.",
)
@click.option(
    "--refresh",
    is_flag=True,
    help="Download the guest's packages again, in their current versions.",
)
@click.option(
    "--trace",
    "recorded",
    type=writable_file,
    help="Write a trace of the device to this file, as potash trace does.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show the device's log.")
@click.pass_context
def guest(
    ctx: click.Context,
    command: tuple[str, ...],
    config_file: Path | None,
    print_config: bool,
    served: tuple[Path, ...],
    monitors: tuple[Path, ...],
    devices: int | None,
    paths: int,
    media: tuple[Path, ...],
    shares: tuple[Path, ...],
    collected: tuple[tuple[str, Path], ...],
    kernel: Path | None,
    initrd: Path | None,
    append: str | None,
    disks: tuple[Disk, ...],
    refresh: bool,
    recorded: Path | None,
    verbose: bool,
) -> None:
    """Boot Linux with the drive as /dev/nvme0n1, and run a shell or one command in it.

    The exit code is that of the command. The first start downloads QEMU and the guest's packages
    from the Debian archive to the cache directory; later starts take seconds.

    With --kernel or --disk, a custom system boots instead, with the drive attached.
    """
    names = [share.resolve().name for share in shares]
    if len(set(names)) < len(names):
        raise click.UsageError(f"two of what is shared would have the same name below {SHARE}")
    described = [
        replace(drive, time=replace(drive.time, monitor=None))
        for drive in options.configured_drives(ctx, config_file)
    ]
    config = described[0]
    if media:
        config = replace(config, device=replace(config.device, media=media[0]))
    elif len(described) == 1 and config.device.media is not None:
        media = (config.device.media,)
    if print_config:
        if len(described) > 1:
            raise click.UsageError("--print-config prints one drive, and the file has several")
        click.echo(configuration.write(config), nl=False)
        return
    overrides = options.given(ctx)
    new_drives = bool(media or devices or paths > 1 or config_file)
    new_drives |= bool(overrides.keys() & {"", "memory", "key_value", "compute"})
    new_drives |= bool(overrides.get("device", {}).keys() - {"profile"})
    new_drives |= config.time.mode == MODELLED
    if served and (new_drives or recorded):
        raise click.UsageError(
            "the device at --socket has its drive already; give its options to `potash serve`"
        )
    for socket in served:
        require_free(str(socket))
    if not served and monitors:
        raise click.UsageError("--monitor is for --socket; new drives have their own")
    count = max(len(described), len(media)) if devices is None else devices
    if len(media) > count:
        raise click.UsageError(f"{len(media)} --media are too many for {count} of --devices")
    if len(described) not in (1, count):
        raise click.UsageError(f"{config_file} has {len(described)} drives, and not {count}")
    if max(count * paths, len(served)) > ROOT_PORTS:
        raise click.UsageError(f"a guest has room for {ROOT_PORTS} controllers")
    if len(described) == 1:
        # Linux takes two controllers of one name for one subsystem, and refuses the second.
        unnamed = replace(config, device=replace(config.device, serial=None))
        described = [config, *[unnamed] * (count - 1)]
    drives = [_own_drive(drive, number, media) for number, drive in enumerate(described)]
    if kernel is None and (initrd is not None or append is not None):
        raise click.UsageError("--initrd and --append are for --kernel")
    if kernel is not None or disks:
        if command or shares or collected:
            raise click.UsageError(
                "a command, --share and --collect need Potash's own guest; leave --kernel and "
                "--disk out, or have the custom system do it"
            )
        own = System(kernel, initrd, APPEND if append is None else append, disks)
        _boot(own, _devices(drives, paths, served, monitors, verbose), config.guest, refresh)
        return
    with (
        showing(steps=True) as progress,
        recording(recorded, progress),
        running_guest(
            *drives,
            paths=paths,
            sockets=served,
            monitors=monitors,
            refresh=refresh,
            verbose=verbose,
        ) as running,
    ):
        for share, name in zip(shares, names, strict=True):
            running.copy_in(share, f"{SHARE}/{name}")
        code = _run(running, command)
        for inside, outside in collected:
            running.copy_out(inside, outside)
    sys.exit(code)


def _own_drive(config: Configuration, number: int, media: Sequence[Path]) -> Configuration:
    """The configuration of a drive, with what two drives of a guest must not share.

    A new guest has not the memory that a saved state needs.
    """
    own: dict[str, Any] = {"incoming": False, "save": None, "load": None}
    if media:
        own["media"] = next(iter(media[number:]), None)
    if number:
        own |= {"trace": None, "metrics": None}
        own["serial"] = config.device.serial or f"POTASH{number + 1:04}"
    return replace(config, device=replace(config.device, **own))


def _boot(
    own: System, devices: AbstractContextManager[Sockets], guest: GuestSection, refresh: bool
) -> None:
    """Run a system of the user's at this terminal, to its end."""
    with ExitStack() as stack:
        with showing(steps=True) as progress:
            emulator = images.prepare_qemu(progress, mirror=guest.debian_mirror, refresh=refresh)
            sockets, monitors = stack.enter_context(devices)
        accelerator = Accelerator.KVM if snapshot.kvm_verdict(emulator) else Accelerator.TCG
        if sys.stdin.isatty():
            click.echo("The custom system, at this terminal; Ctrl-A X ends it.")
        shape = Shape(guest.memory // MEBI, guest.cpus)
        arguments = own.arguments(accelerator, shape, sockets, monitors)
        system.run(emulator.qemu, arguments)


def _run(running: Guest, command: tuple[str, ...]) -> int:
    if command:
        return running.run(command, sys.stdin, descriptor_sink(1), descriptor_sink(2))
    if sys.stdin.isatty():
        click.echo(f"Linux with the drive at {DRIVE}; its end, Ctrl-D or exit, ends the guest.")
    return running.shell()

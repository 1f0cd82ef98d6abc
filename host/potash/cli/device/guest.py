"""`potash guest`: a Linux machine whose NVMe drive is our device."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import click

from potash import configuration
from potash.cli.device import configured
from potash.cli.device.mirror import mirror_option
from potash.cli.device.vta_options import writable_file
from potash.cli.progress import showing
from potash.sdk import faults as sdk_faults
from potash.sdk.faults import Fault
from potash.sdk.vfio_user import require_free
from potash.sections import MODELLED
from potash.tracing.recording import recording
from potash.units import Parsed
from potash.vm import images, snapshot, system
from potash.vm.drive import serving_guest
from potash.vm.guest import DRIVE, Guest
from potash.vm.qemu import CPUS, MEMORY, ROOT_PORTS, Accelerator
from potash.vm.system import APPEND, Disk, System
from potash.vm.terminal import descriptor_sink

SHARE = "/share"
MEBIBYTE = 1 << 20


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
"""Of devices, and those where QEMU makes monitors for the ones that stop the guest."""


def _devices(
    drives: Sequence[Sequence[str]],
    socket: Path | None,
    monitor: Path | None,
    stop: bool,
    verbose: bool,
) -> AbstractContextManager[Sockets]:
    """Sockets of devices with these options, or of the one that listens already."""
    if socket is None:
        return serving_guest(drives, stop=stop, verbose=verbose)
    return nullcontext(([socket], [] if monitor is None else [monitor]))


@contextmanager
def running_guest(
    *drives: Sequence[str],
    socket: Path | None = None,
    monitor: Path | None = None,
    namespaces: int = 1,
    stop: bool = False,
    memory: int = MEMORY,
    cpus: int = CPUS,
    mirror: str | None = None,
    refresh: bool = False,
    quiet: bool = False,
    verbose: bool = False,
) -> Iterator[Guest]:
    """A guest with its own drives, from nothing to its end.

    Args:
        drives: further options of `potash serve` for each.
        socket: where a device listens already, which is used instead.
        monitor: where that one looks for QEMU's monitor, if it stops the guest.
        namespaces: how many the first drive has, as far as it is known.
        stop: new drives stop the guest while a job's emulation is behind its modelled time.
        memory: in MiB.
        mirror: the Debian archive's address (default: the one that apt is configured with).
        refresh: download the packages again.
        quiet: show no progress.
        verbose: show what the device logs.
    """
    with ExitStack() as stack:
        with showing(steps=True, quiet=quiet) as progress:
            found = images.prepare(progress, mirror=mirror, refresh=refresh)
            (first, *others), monitors = stack.enter_context(
                _devices(drives, socket, monitor, stop, verbose)
            )
            guest = stack.enter_context(
                Guest(
                    found,
                    first,
                    memory,
                    cpus,
                    more=others,
                    namespaces=namespaces,
                    monitors=monitors,
                    progress=progress,
                )
            )
        yield guest


@click.command()
@click.argument("command", nargs=-1, metavar="[-- CMD...]")
@configured.configuration_options(guest=True)
@click.option(
    "--socket",
    "served",
    type=click.Path(path_type=Path),
    help="Use the device of a running `potash serve` at this socket instead of a new one.",
)
@click.option(
    "--monitor",
    type=click.Path(path_type=Path),
    help="Socket of QEMU's monitor: the --monitor of the device at --socket.",
)
@click.option(
    "--devices",
    type=click.IntRange(1, ROOT_PORTS),
    help="Number of drives, /dev/nvme0n1 and on (default: one, or as many as --media).",
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
@mirror_option
@configured.fault_options
@click.option(
    "--kernel",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Boot this kernel instead of Potash's guest, with this terminal as its serial port.",
)
@click.option(
    "--initrd",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Initial file system (initramfs) for --kernel.",
)
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
def guest(
    command: tuple[str, ...],
    config_file: Path | None,
    print_config: bool,
    served: Path | None,
    monitor: Path | None,
    devices: int | None,
    media: tuple[Path, ...],
    shares: tuple[Path, ...],
    collected: tuple[tuple[str, Path], ...],
    debian_mirror: str | None,
    faults: tuple[Fault, ...],
    fault_files: tuple[Path, ...],
    allow_faults: bool,
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
    wanted = configured.configured(config_file)
    if media:
        wanted = replace(wanted, device=replace(wanted.device, media=media[0]))
    elif wanted.device.media is not None:
        media = (wanted.device.media,)
    mirror = debian_mirror or wanted.guest.debian_mirror
    wanted = replace(
        wanted,
        guest=replace(wanted.guest, debian_mirror=mirror),
        time=replace(wanted.time, monitor=None),
    )
    if print_config:
        click.echo(configuration.write(wanted), nl=False)
        return
    overrides = configured.given()
    new_drives = media or devices or config_file or overrides.keys() & {"", "memory", "compute"}
    new_drives = new_drives or overrides.get("device", {}).keys() - {"profile"}
    new_drives = new_drives or wanted.time.mode == MODELLED
    if served is not None and (new_drives or faults or fault_files or allow_faults or recorded):
        raise click.UsageError(
            "the device at --socket has its drive already; give its options to `potash serve`"
        )
    if served is not None:
        require_free(str(served))
    elif monitor is not None:
        raise click.UsageError("--monitor is for --socket; new drives have their own")
    count = max(1, len(media)) if devices is None else devices
    if len(media) > count:
        raise click.UsageError(f"{len(media)} --media are too many for {count} of --devices")
    shared = ["--allow-faults"] if allow_faults else []
    for fault in configured.faults_of(faults, fault_files):
        shared += ["--fault", sdk_faults.describe(fault)]
    drives = [
        [*shared, *_own_options(number, media[number : number + 1])] for number in range(count)
    ]
    stop = wanted.time.mode == MODELLED
    memory, cpus = wanted.guest.memory // MEBIBYTE, wanted.guest.cpus
    if kernel is None and (initrd is not None or append is not None):
        raise click.UsageError("--initrd and --append are for --kernel")
    if kernel is not None or disks:
        if command or shares or collected:
            raise click.UsageError(
                "a command, --share and --collect need Potash's own guest; leave --kernel and "
                "--disk out, or have the custom system do it"
            )
        own = System(kernel, initrd, APPEND if append is None else append, disks)
        with _configured(drives, wanted) as described:
            attached = _devices(described, served, monitor, stop, verbose)
            _boot(own, attached, memory, cpus, mirror, refresh)
        return
    blocks = len(wanted.namespaces) or 1
    with (
        showing(steps=True) as progress,
        recording(recorded, progress),
        _configured(drives, wanted) as described,
        running_guest(
            *described,
            socket=served,
            monitor=monitor,
            namespaces=blocks + len(wanted.memory.namespaces) + wanted.compute.namespaces,
            stop=stop,
            memory=memory,
            cpus=cpus,
            mirror=mirror,
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


@contextmanager
def _configured(
    drives: Sequence[Sequence[str]], wanted: configuration.Configuration
) -> Iterator[list[list[str]]]:
    """The options of drives with this configuration, which is in a file while the block lasts.

    What differs between drives, their media above all, is not in it. Raises ConfigurationError.
    """
    device = replace(wanted.device, socket=None, media=None)
    written = configuration.write(replace(wanted, device=device))
    with tempfile.TemporaryDirectory(prefix="potash-") as folder:
        file = Path(folder) / "potash.toml"
        file.write_text(written)
        yield [["--config", str(file), *options] for options in drives]


def _own_options(number: int, media: Sequence[Path]) -> list[str]:
    """Options in which a drive differs from the others of its guest."""
    options = ["--media", str(media[0])] if media else []
    # Linux takes two controllers of one name for one subsystem, and refuses the second.
    return [*options, "--serial", f"POTASH{number + 1:04}"] if number else options


def _boot(
    own: System,
    devices: AbstractContextManager[Sockets],
    memory: int,
    cpus: int,
    mirror: str | None,
    refresh: bool,
) -> None:
    """Run a system of the user's at this terminal, to its end."""
    with ExitStack() as stack:
        with showing(steps=True) as progress:
            emulator = images.prepare_qemu(progress, mirror=mirror, refresh=refresh)
            sockets, monitors = stack.enter_context(devices)
        accelerator = Accelerator.KVM if snapshot.kvm_verdict(emulator) else Accelerator.TCG
        if sys.stdin.isatty():
            click.echo("The custom system, at this terminal; Ctrl-A X ends it.")
        system.run(emulator.qemu, own.arguments(memory, cpus, accelerator, sockets, monitors))


def _run(running: Guest, command: tuple[str, ...]) -> int:
    if command:
        return running.run(command, sys.stdin, descriptor_sink(1), descriptor_sink(2))
    if sys.stdin.isatty():
        click.echo(f"Linux with the drive at {DRIVE}; its end, Ctrl-D or exit, ends the guest.")
    return running.shell()

"""`potash guest`: a Linux machine whose NVMe drive is our device."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import click

from potash import configuration
from potash.cli.device import configured
from potash.cli.device.configured import DEFAULTS, config_option, print_option
from potash.cli.device.serve import Namespace
from potash.cli.units import Size, short
from potash.configuration import LEAST_GUEST, MOST_CPUS, GuestSection
from potash.sdk.errors import DeviceNotFound
from potash.vm import images
from potash.vm.drive import serving
from potash.vm.guest import CPUS, DRIVE, MEMORY, Guest
from potash.vm.progress import reporting
from potash.vm.sources import ENVIRONMENT
from potash.vm.terminal import descriptor_sink
from potash_device.media import NamespaceShape
from potash_firmware.boot import PROFILES

SHARE = "/share"
MEBIBYTE = 1 << 20


class Collected(click.ParamType[tuple[str, Path]]):
    """GUEST:HOST, two paths."""

    name = "GUEST:HOST"

    def convert(
        self,
        value: str | tuple[str, Path],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, Path]:
        if isinstance(value, tuple):
            return value
        inside, colon, outside = value.partition(":")
        if not colon or not inside.startswith("/") or not outside:
            self.fail(f"{value!r} is not GUEST:HOST with an absolute path in the guest", param, ctx)
        return inside, Path(outside)


@contextmanager
def running_guest(
    *drive_options: str,
    socket: Path | None = None,
    memory: int = MEMORY,
    cpus: int = CPUS,
    mirror: str | None = None,
    refresh: bool = False,
    quiet: bool = False,
    verbose: bool = False,
) -> Iterator[Guest]:
    """A guest with a drive of its own, from nothing to its end.

    Args:
        drive_options: further options of `potash serve`.
        socket: where a device listens already, which is used instead.
        memory: in MiB.
        mirror: the Debian archive's address (default: the one that apt is configured with).
        refresh: bring the packages again.
        quiet: show no progress.
        verbose: show what the device logs.
    """
    with ExitStack() as stack:
        stack.enter_context(ending_on_signals())
        with reporting(quiet) as progress:
            found = images.prepare(progress, mirror=mirror, refresh=refresh)
            if socket is None:
                socket = stack.enter_context(serving(*drive_options, verbose=verbose))
            guest = stack.enter_context(Guest(found, socket, memory, cpus, progress=progress))
        yield guest


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as an exception does, so that everything is cleaned up."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command()
@click.argument("command", nargs=-1, metavar="[-- CMD...]")
@config_option
@print_option
@click.option(
    "--socket",
    "served",
    type=click.Path(path_type=Path),
    help="Use the device that `potash serve` runs at this socket, instead of one for this guest.",
)
@click.option(
    "--media",
    type=click.Path(path_type=Path),
    help="Keep the drive in this folder, or in this file and others beside it, made if it is not "
    "there (default: in memory).",
)
@click.option(
    "--namespace",
    "namespaces",
    type=Namespace(),
    multiple=True,
    help="A namespace of a new drive, as for potash serve; may be given several times.",
)
@click.option(
    "--size", type=Size(), help="Short for one --namespace of this size (default: 1 GiB)."
)
@click.option(
    "--share",
    "shares",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help=f"Copy this file or folder into the guest, below {SHARE}, before the command runs.",
)
@click.option(
    "--collect",
    "collected",
    type=Collected(),
    multiple=True,
    help="Copy a file or folder out of the guest after the command.",
)
@click.option(
    "--memory",
    type=Size(),
    default=short(DEFAULTS.guest.memory),
    show_default=True,
    help="The guest's memory.",
)
@click.option(
    "--cpus",
    type=click.IntRange(1, MOST_CPUS),
    default=DEFAULTS.guest.cpus,
    show_default=True,
    help="Number of processors.",
)
@click.option(
    "--debian-mirror",
    metavar="ADDRESS",
    envvar=ENVIRONMENT,
    show_envvar=True,
    help="Debian archive to bring the guest from (default: the one that apt is configured with).",
)
@click.option(
    "--profile",
    type=click.Choice(sorted(PROFILES)),
    default=DEFAULTS.device.profile,
    show_default=True,
    help="What the drive says that it is.",
)
@click.option("--refresh", is_flag=True, help="Bring the guest's packages again, as they are now.")
@click.option("-v", "--verbose", is_flag=True, help="Show what the device logs.")
def guest(
    command: tuple[str, ...],
    config_file: Path | None,
    print_config: bool,
    served: Path | None,
    media: Path | None,
    namespaces: tuple[NamespaceShape, ...],
    size: int | None,
    shares: tuple[Path, ...],
    collected: tuple[tuple[str, Path], ...],
    memory: int,
    cpus: int,
    debian_mirror: str | None,
    profile: str,
    refresh: bool,
    verbose: bool,
) -> None:
    """Start Linux with our drive as /dev/nvme0n1: a shell in it, or one command.

    Ends with the command's exit code. The first start brings QEMU and the guest's packages from the
    Debian archive into the cache folder; later ones take seconds.
    """
    names = [share.resolve().name for share in shares]
    if len(set(names)) < len(names):
        raise click.UsageError(f"two of what is shared would have the same name below {SHARE}")
    if memory % MEBIBYTE or memory < LEAST_GUEST:
        raise click.UsageError(
            f"the guest's memory is whole MiB, and at least {short(LEAST_GUEST)}"
        )
    if served is not None and (media or namespaces or size is not None):
        raise click.UsageError(
            "the device at --socket has its drive; say what it is to `potash serve`"
        )
    if served is not None and not served.is_socket():
        raise DeviceNotFound(
            f"no device listens at {served}; start one with: potash serve --socket {served}"
        )
    namespaces = configured.wanted_namespaces(namespaces, size)
    if print_config:
        found = configured.given()
        device = replace(found.device, media=media, profile=profile)
        machine = GuestSection(memory, cpus, debian_mirror)
        named = configured.sections(namespaces)
        found = replace(found, device=device, namespaces=named, guest=machine)
        click.echo(configuration.write(found), nl=False)
        return
    drive_options = ["--config", str(config_file)] if config_file else []
    drive_options += ["--profile", profile]
    drive_options += ["--media", str(media)] if media else []
    for namespace in namespaces:
        drive_options += ["--namespace", f"{namespace.size}:{namespace.block_size}"]
    with running_guest(
        *drive_options,
        socket=served,
        memory=memory // MEBIBYTE,
        cpus=cpus,
        mirror=debian_mirror,
        refresh=refresh,
        verbose=verbose,
    ) as running:
        for share, name in zip(shares, names, strict=True):
            running.copy_in(share, f"{SHARE}/{name}")
        code = _run(running, command)
        for inside, outside in collected:
            running.copy_out(inside, outside)
    sys.exit(code)


def _run(running: Guest, command: tuple[str, ...]) -> int:
    if command:
        return running.run(command, sys.stdin, descriptor_sink(1), descriptor_sink(2))
    if sys.stdin.isatty():
        click.echo(f"Linux with the drive at {DRIVE}; its end, Ctrl-D or exit, ends the guest.")
    return running.shell()

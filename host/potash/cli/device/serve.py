"""`potash serve`: a device by itself, for whatever client comes."""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import click

from csd_spec.opcodes import PAGE_SIZE
from nvme_spec.identify.capabilities import CommandSet
from potash import configuration
from potash.cli.device import configured, serve_reports
from potash.cli.device.serve_reports import announce
from potash.cli.device.time_options import keep, modelled, standing, time_options, time_section
from potash.cli.drive.common import json_option
from potash.cli.progress import showing
from potash.files import unwritable
from potash.observing.exporter import exporting
from potash.observing.status import status_socket
from potash.sdk.errors import PotashError
from potash.sdk.faults import Fault
from potash.tracing.recording import LINES, TRACES, VARIABLE, recording
from potash.units import Parsed, Size, human
from potash_device.controller.cmb import CmbSettings
from potash_device.media import shapes
from potash_device.media.drive import Drive
from potash_device.media.errors import MediaError
from potash_device.pcie.bar_memory import require_size
from potash_firmware.apu.config import RangeBlocks, RangeUnit
from potash_firmware.boot import Device, StopSignals, run_until
from potash_firmware.bpf.engine import Engine
from potash_firmware.confinement import be_undumpable
from potash_firmware.log_components import COMPONENTS, FORMATS, LEVELS, TEXT, LogSettings
from potash_firmware.rpu.placement import PlacementSettings
from potash_firmware.rpu.settings import NamespaceSettings
from potash_firmware.settings import PROFILES, DeviceSettings

PROCESS = "potash"

LONGEST_SOCKET = 107
"""Bytes of a UNIX socket's path (unix(7))."""


def _buffers(text: str) -> tuple[int, int]:
    first, _, second = text.partition(":")
    sizes = [Size(PAGE_SIZE).parse(one) for one in (first, second or first)]
    if max(sizes) > configuration.LARGEST_BUFFER:
        raise ValueError(f"{text!r}: a buffer has at most {human(configuration.LARGEST_BUFFER)}")
    return sizes[0], sizes[1]


def _levels(text: str) -> Mapping[str, str]:
    components = {}
    for item in text.split(","):
        component, equals, level = item.partition("=")
        if not equals:
            raise ValueError(f"{item!r} is not COMPONENT=LEVEL")
        components[component] = level
    return LogSettings(components=components).components


def _serial(text: str) -> str:
    """What fits in Identify Controller. Raises ValueError."""
    if not (text.strip() and text.isascii() and text.isprintable() and len(text) <= 20):
        raise ValueError(f"{text!r} is not up to 20 printable ASCII characters")
    return text


@click.command()
@configured.config_options
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    help="Path of the UNIX socket, which only this user can open.",
)
@click.option(
    "--media",
    type=click.Path(path_type=Path),
    help="Directory, or file, that stores the drive; created if it does not exist (default: in "
    "memory).",
)
@click.option(
    "--namespace",
    "namespaces",
    type=configured.NAMESPACE,
    multiple=True,
    help="A namespace for a new drive: its size, block size (512 or 4096, the default), bytes of "
    "metadata of each block (8, 16 or 64) and type of protection information (1, 2 or 3); may be "
    "repeated. The media store it.",
)
@click.option(
    "--size",
    type=Size(shapes.DEFAULT_BLOCK_SIZE),
    help=f"Short form for one --namespace of this size (default: {human(shapes.DEFAULT_SIZE)}).",
)
@click.option(
    "--capacity",
    type=Size(shapes.DEFAULT_BLOCK_SIZE),
    help="Maximum total size of all namespaces, for hosts that create some (default: their total "
    "size). The media store it.",
)
@configured.extension_options
@click.option(
    "--memory-capacity",
    type=configured.MEMORY_SIZE,
    help="Maximum total size of all memory namespaces, for hosts that create some (default: their "
    "total size). The media store it.",
)
@click.option("--read-only/--read-write", help="Open the media read-only, or for writing.")
@click.option(
    "--map-doorbells/--no-map-doorbells",
    help="Let the client map the page of doorbells, as SPDK's driver wants; the device polls it.",
)
@click.option(
    "--trust-memory/--no-trust-memory",
    help="Map memory of the client that is not sealed, or in huge pages, as SPDK's is. The client "
    "can then end the device (docs/security.md).",
)
@click.option(
    "--profile",
    type=click.Choice(sorted(PROFILES)),
    default=configured.DEFAULTS.device.profile,
    show_default=True,
    help="Identity of the device: Potash, or the hardware platform that it follows.",
)
@click.option(
    "--serial",
    type=Parsed("TEXT", _serial),
    help="Serial number (default: the profile's). The subsystem name is derived from it, so it "
    "must be unique in a machine.",
)
@click.option(
    "--accelerator",
    "accelerators",
    type=Parsed("SIZE[:SIZE]", _buffers),
    multiple=True,
    help="Sizes of the input and the output buffer of an accelerator (default: the same size); may "
    "be repeated. Accelerators are numbered from 0 (default: one with 64M).",
)
@click.option(
    "--range-unit",
    type=click.Choice([unit.value for unit in RangeUnit]),
    default=configured.DEFAULTS.device.range_unit,
    show_default=True,
    help="Unit of local storage in accelerator commands: pages of 4096 bytes, or LBAs.",
)
@click.option(
    "--range-count",
    type=click.Choice(configuration.RANGE_COUNTS),
    default=configured.DEFAULTS.device.range_count,
    show_default=True,
    help="Whether a count of one page is 1 there, or 0 as in Read and Write.",
)
@click.option(
    "--engine",
    type=click.Choice([engine.value for engine in Engine]),
    default=configured.DEFAULTS.device.engine,
    show_default=True,
    help="Engine that runs programs; the interpreter if it is not available.",
)
@configured.libubpf_option
@click.option(
    "--trace",
    "trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for a trace of commands: for ui.perfetto.dev, written at the end, if the name ends "
    "in .json or .json.gz; otherwise JSON lines, written at once.",
)
@click.option(
    "--metrics",
    type=click.IntRange(0, 0xFFFF),
    metavar="PORT",
    help="Serve metrics for Prometheus at this port of 127.0.0.1 (0: any free port).",
)
@configured.moving_options
@time_options
@click.option(
    "--monitor",
    type=click.Path(path_type=Path),
    metavar="SOCKET",
    help="A monitor of the guest's QEMU, which has no other client: the guest is stopped while a "
    "job's emulation is behind its modelled time.",
)
@configured.fault_options
@json_option(serve_reports.Serving, "Report the device's address as JSON.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default=configured.DEFAULTS.device.log_level,
    show_default=True,
    help="Log level.",
)
@click.option(
    "--log",
    "components",
    type=Parsed("COMPONENT=LEVEL[,…]", _levels),
    multiple=True,
    help=f"Log level of single components: {', '.join(COMPONENTS)}. May be repeated.",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default=TEXT,
    show_default=True,
    help="Log as text, or as one JSON object per line.",
)
def serve(
    config_file: Path | None,
    print_config: bool,
    socket: Path | None,
    media: Path | None,
    namespaces: tuple[shapes.NamespaceShape, ...],
    size: int | None,
    capacity: int | None,
    zoned_namespaces: tuple[shapes.NamespaceShape, ...],
    memory_namespaces: tuple[int, ...],
    memory_capacity: int | None,
    memory_bar: bool,
    compute_namespaces: int,
    cmb: CmbSettings | None,
    fdp: PlacementSettings | None,
    read_only: bool,
    map_doorbells: bool,
    trust_memory: bool,
    profile: str,
    serial: str | None,
    accelerators: tuple[tuple[int, int], ...],
    range_unit: str,
    range_count: str,
    engine: str,
    trace: Path | None,
    time_mode: str,
    modelled_drive: str,
    policies: tuple[str, ...],
    time_factor: int,
    monitor: Path | None,
    still_limit: int,
    faults: tuple[Fault, ...],
    fault_files: tuple[Path, ...],
    allow_faults: bool,
    metrics: int | None,
    incoming: bool,
    save: Path | None,
    load: Path | None,
    log_level: str,
    components: tuple[Mapping[str, str], ...],
    log_format: str,
) -> None:
    """Run a device until it is interrupted. It serves one client at a time.

    `potash top` shows its activity.
    """
    wanted = configuration.Configuration(
        device=configuration.DeviceSection(
            socket, media, capacity, read_only, profile, range_unit, range_count, engine, trace,
            log_level, cmb, fdp, map_doorbells, trust_memory,
        ),
        namespaces=configured.sections(
            configured.wanted_namespaces(namespaces, size, zoned_namespaces)
        ),
        accelerators=tuple(configuration.AcceleratorSection(*one) for one in accelerators)
        or configured.DEFAULTS.accelerators,
        **configured.computational(
            memory_namespaces, memory_capacity, memory_bar, compute_namespaces
        ),
        vta=configured.given().vta,
        vta_threads=configured.given().vta_threads,
        limits=configured.given().limits,
        guest=configured.given().guest,
        time=time_section(
            time_mode, modelled_drive, policies, time_factor, still_limit, monitor
        ),
    )  # fmt: skip
    if read_only and media is None:
        raise click.UsageError("--read-only needs --media: a drive in memory is empty")
    if print_config:
        click.echo(configuration.write(wanted), nl=False)
        return
    if socket is None or socket == Path():
        raise click.UsageError("give --socket PATH to listen at")
    log = LogSettings(
        log_level,
        {component: one[component] for one in components for component in one},
        log_format,
    )
    log.apply(PROCESS)
    settings = device_settings(wanted)
    rpu = replace(
        settings.rpu, faults=configured.faults_of(faults, fault_files), allow_faults=allow_faults
    )
    if serial is not None:
        # The name of a profile's subsystem would be that of all its devices.
        rpu = replace(rpu, identity=replace(rpu.identity, serial=serial, qualified_name=""))
    settings = replace(settings, rpu=rpu, count_cycles=metrics is not None, log=log)
    _serve(wanted, settings, socket, metrics, configured.Moving(incoming, save, load))


def _serve(
    wanted: configuration.Configuration,
    settings: DeviceSettings,
    socket: Path,
    metrics: int | None,
    moving: configured.Moving,
) -> None:
    section = wanted.device
    path = socket.absolute()
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        drive = stack.enter_context(_drive(wanted, locked=not moving.incoming))
        namespaces = tuple(
            NamespaceSettings.of(nsid, shape) for nsid, shape in drive.shapes.items()
        )
        settings = replace(
            settings, rpu=replace(settings.rpu, time=modelled(wanted.time, drive, section.fdp))
        )
        trace = section.trace
        if trace is not None and trace.suffix in TRACES:
            progress = stack.enter_context(showing(steps=True))
            stack.enter_context(recording(trace, progress))
            trace = None
        traced = stack.enter_context(_lines(trace))
        device = Device(
            path,
            drive.namespaces,
            drive.flash,
            _with_namespaces(settings, namespaces, memory_bar=wanted.memory.bar),
            sidecar=drive.sidecar,
            drive=drive,
            trace=traced,
            status=status_socket(str(path)),
            incoming=moving.waits,
            standstill=standing(wanted.time),
        )
        try:
            stack.enter_context(device)
        except OSError as error:
            raise PotashError(f"the device cannot listen at {path}: {_why(error, path)}") from None
        address = None
        if metrics is not None:
            asked = status_socket(str(path))
            if not asked.is_socket():
                raise PotashError(f"--metrics has no numbers to give: {asked} cannot be made")
            address = stack.enter_context(exporting(asked, metrics))
        be_undumpable()
        if moving.load is not None:
            configured.load_state(device, moving.load)
        announce(path, section.media, drive, address)
        run_until(device, stop)
        if moving.save is not None:
            configured.save_state(device, moving.save)
        elif device.rpu.migration.owns_media:
            keep(device.rpu.controller.timing, drive)


def device_settings(wanted: configuration.Configuration) -> DeviceSettings:
    """The settings of a device, but for its drive's namespaces."""
    section = wanted.device
    profile = PROFILES[section.profile]
    return replace(
        profile,
        board=replace(
            profile.board,
            vta=wanted.vta,
            cmb=section.cmb,
            map_doorbells=section.map_doorbells,
        ),
        rpu=replace(
            profile.rpu,
            compute=wanted.described_compute,
            copy_formats_enabled=wanted.memory.copy_formats,
            placement=section.fdp,
        ),
        accelerators=wanted.described_accelerators,
        engine=Engine(section.engine),
        limits=wanted.described_limits,
        vta_threads=wanted.vta_threads,
        trust_memory=section.trust_memory,
        range_blocks=RangeBlocks(
            RangeUnit(section.range_unit), section.range_count == "zero-based"
        ),
    )


def _with_namespaces(
    settings: DeviceSettings, namespaces: tuple[NamespaceSettings, ...], *, memory_bar: bool
) -> DeviceSettings:
    """The settings of a drive with those; its first memory is in a BAR for `memory_bar`.

    Raises PotashError where there is no such memory, or it has a size that no BAR has.
    """
    if memory_bar:
        first = next((one for one in namespaces if one.csi == CommandSet.MEMORY), None)
        if first is None:
            raise PotashError("--memory-bar is for a drive with a memory namespace")
        try:
            require_size(first.size)
        except ValueError as error:
            raise PotashError(f"--memory-bar: {error}") from None
        settings = replace(settings, board=replace(settings.board, memory_bar=first.size))
        namespaces = tuple(
            replace(one, host_addressable=True) if one is first else one for one in namespaces
        )
    return replace(settings, rpu=replace(settings.rpu, namespaces=namespaces))


def _why(error: OSError, socket: Path) -> str:
    """What is wrong with a socket's path, and what to do."""
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


def _drive(wanted: configuration.Configuration, *, locked: bool = True) -> Drive:
    """Raises PotashError for what is no drive, or not the one that is asked for."""
    section = wanted.device
    try:
        return Drive.open(
            section.media,
            wanted.shapes,
            capacity=section.capacity,
            memory_capacity=wanted.memory.capacity,
            read_only=section.read_only,
            locked=locked or section.media is None,
        )
    except shapes.DriveError as error:
        raise PotashError(str(error)) from None
    except MediaError as error:
        raise PotashError(error.strerror) from None


@contextmanager
def _lines(path: Path | None) -> Iterator[int | None]:
    """A descriptor for the lines of a trace; None where nobody wants any."""
    if path is None and VARIABLE in os.environ:
        path = Path(os.environ[VARIABLE], f"{os.getpid()}{LINES}")
    if path is None:
        yield None
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)

"""The sections of `potash.toml`, key by key: how a value is read, its default, and the option of
`potash serve`, and of `potash guest`, that overrides it.

This is the one list of settings; what reads files and command lines follows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import click

from csd_spec.faults import MOST_FAULTS, Fault
from csd_spec.opcodes import PAGE_SIZE
from potash import toml_kinds as kinds
from potash.namespace_sections import OF_ZONES, NamespaceSection
from potash.toml_kinds import key
from potash.units import LARGEST, Parsed, Size, completing, human, short
from potash.vm.defaults import CPUS, MEMORY, MIRROR_HELP, MIRROR_VARIABLE, STILL_LIMIT
from potash_device.controller.cmb import CmbSettings
from potash_device.flash.rates import NAMES as DRIVES
from potash_device.media.shapes import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_SIZE,
    DEFAULT_ZONE_SIZE,
    MEMORY_UNIT,
    MOST_NAMESPACES,
    NamespaceShape,
)
from potash_device.settings import MOST_CONTROLLERS
from potash_device.units import MOST_UNITS
from potash_device.vta.config import CORES
from potash_firmware.apu.config import Limits, RangeUnit
from potash_firmware.bpf.arena import LEAST_FRAME
from potash_firmware.bpf.engine_names import Engine
from potash_firmware.log_components import COMPONENTS, FORMATS, LEVELS, LogSettings
from potash_firmware.mailbox.messages import MAX_MEMORY_RANGES
from potash_firmware.rpu.placement import PlacementSettings
from potash_firmware.rpu.settings import ComputeSettings, RpuSettings
from potash_firmware.rpu.timing.shares import Shares
from potash_firmware.rpu.transfer import MAX_TRANSFER_SHIFT
from potash_firmware.settings import PROFILES, DeviceSettings

LARGEST_BUFFER = 1 << 30
"""Bytes of an accelerator's buffer, which are this machine's memory once a job has filled them."""

MEBI = 1 << 20
LIMITS = Limits()
LEAST_MEMORY = 512 * MEBI
"""Bytes with which small models run; a worker has taken a part of it before the first job."""
MOST_SECONDS = 10**6
LARGEST_FRAME = 1 << 15
"""Stack bytes of a function; libubpf counts them in 16 bits."""
COMPUTE = ComputeSettings()
LARGEST_MEMORY = 1 << 40
"""Bytes of a memory namespace, which are this machine's memory once they are written."""
MOST_COMPUTE_NAMESPACES = 16
LEAST_GUEST = 320 * MEBI
"""Bytes; the guest's file system is in its memory, and twice while it is unpacked."""
MOST_CPUS = 64
MODELLED = "modelled"
TIME_MODES = ("fast", MODELLED)
ON_FLASH = "flash"
KV_INDEXES = ("dram", ON_FLASH)
STEPPED = "stepped"
CLOCKS = ("host", STEPPED)
MOST_FACTOR = 1000
"""The largest factor by which modelled times may be multiplied."""
MOST_DIES = 1 << 16
"""Dies of a drive: 256 of each of 256 channels."""
RANGE_COUNTS = ("plain", "zero-based")
MOST_ACCELERATORS = 64
MOST_THREADS = 16
ACCELERATOR = DeviceSettings().accelerators[0]
"""The one that a device has if nothing is said."""
APPEND_LIMITS = tuple(short(2 * PAGE_SIZE << shift) for shift in range(MAX_TRANSFER_SHIFT))
BUFFER = kinds.size(PAGE_SIZE, LARGEST_BUFFER)
MEMORY_SIZE = kinds.size(MEMORY_UNIT, LARGEST_MEMORY, MEMORY_UNIT)
CONTROLLER = kinds.count(0, MOST_CONTROLLERS - 1)
CONTROLLERS = kinds.several(CONTROLLER, "controllers", MOST_NAMESPACES)
LOG = LogSettings()
LIBUBPF = "POTASH_LIBUBPF"
"""The environment variable that has the path of the engine ubpf's library."""


@dataclass(frozen=True)
class DeviceSection:
    """The device."""

    # fmt: off
    socket: tuple[Path, ...] | None = key(kinds.SOCKETS, None, "--socket",
        "Path of the UNIX socket, which only this user can open; potash guest creates its own. "
        "With several, up to 16, the drive has a controller at each.", page="controllers.md")
    media: Path | None = key(kinds.PATH, None, "--media",
        "Directory, or file, that stores the drive; created if it does not exist (default: in "
        "memory).", page="media.md")
    capacity: int | None = key(kinds.size(DEFAULT_BLOCK_SIZE, LARGEST), None, "--capacity",
        "Maximum total size of all namespaces, for hosts that create some (default: their total "
        "size). The media store it.")
    read_only: bool = key(kinds.FLAG, False, "--read-only/--read-write",
        "Open the media read-only, or for writing.")
    profile: str = key(kinds.choice(sorted(PROFILES)), "potash", "--profile",
        "Identity of the device: Potash, or the hardware platform that it follows.",
        page="design.md#device-profiles", guest=True)
    serial: str | None = key(kinds.SERIAL, None, "--serial",
        "Serial number (default: the profile's). The subsystem name is derived from it, so it "
        "must be unique in a machine.")
    range_unit: str = key(kinds.choice(unit.value for unit in RangeUnit),
        RangeUnit.PAGE.value, "--range-unit",
        "Unit of local storage in accelerator commands: pages of 4096 bytes, or LBAs.")
    range_count: str = key(kinds.choice(RANGE_COUNTS), "plain", "--range-count",
        "Whether a count of one page is 1 there, or 0 as in Read and Write.")
    engine: str = key(kinds.choice(engine.value for engine in Engine),
        Engine.NATIVE.value, "--engine",
        "Engine that runs programs; the interpreter if it is not available.",
        page="native.md#engines")
    libubpf: Path | None = key(kinds.EXISTING_FILE, None, "--libubpf",
        f"The library of the engine ubpf (default: {LIBUBPF}, or libubpf.so as the loader finds "
        "it).", page="native.md#engines")
    trace: Path | None = key(kinds.FILE, None, "--trace",
        "File for a trace of commands: for ui.perfetto.dev, written at the end, if the name ends "
        "in .json or .json.gz; otherwise JSON lines, written immediately.", page="tracing.md")
    metrics: int | None = key(kinds.count(0, 0xFFFF), None, "--metrics",
        "Serve metrics for Prometheus at this port of 127.0.0.1 (0: any free port).",
        page="observing.md", metavar="PORT")
    log_level: str = key(kinds.choice(LEVELS), LOG.level, "--log-level", "Log level.")
    log: tuple[Mapping[str, str], ...] = key(
        kinds.several(kinds.LEVELS, "log levels"), (), "--log",
        f"Log level of single components: {', '.join(COMPONENTS)}. May be repeated.")
    log_format: str = key(kinds.choice(FORMATS), LOG.format, "--log-format",
        "Log as text, or as one JSON object per line.")
    cmb: CmbSettings | None = key(kinds.CMB, None, "--cmb",
        "Controller memory buffer in BAR 2: its size, a power of two (Linux uses it from 2M on) "
        "up to 1G, and its uses: sqs,cqs,lists,rds,wds for submission and completion queues, "
        "lists, and data of reads and writes (default: all uses; no buffer).",
        page="design.md#controller-memory-buffer", guest=True)
    fdp: PlacementSettings | None = key(kinds.PLACEMENT, None, "--fdp",
        "Flexible data placement: the number of reclaim unit handles (1 to 128), the size of a "
        "reclaim unit (default: 64M), which with --time modelled is that of a superblock, and the "
        "number of reclaim groups (default: 1).",
        page="placement.md", guest=True)
    hmb: int | None = key(kinds.size(PAGE_SIZE, 4 << 30, PAGE_SIZE), None, "--hmb",
        "Host memory buffer that a drive with --time modelled prefers, for a profile with a "
        "mapping_cache: the cache of its mapping is larger by what the host gives (default: none).",
        page="time.md", guest=True)
    nguid: bool = key(kinds.FLAG, False, "--nguid/--no-nguid",
        "Namespaces have an NGUID and an EUI-64, made from their UUID, beside it.", guest=True)
    power_states: bool = key(kinds.FLAG, False, "--power-states/--no-power-states",
        "Power states of a drive with --time modelled, which it leaves and enters in modelled time "
        "as the host asks for or allows it to (APST).",
        page="admin.md#power-states", guest=True)
    ocp: bool = key(kinds.FLAG, False, "--ocp/--no-ocp",
        "Log pages of the Open Compute Project, which `nvme ocp` reads: extended SMART and the "
        "latency monitor of a drive with --time modelled.",
        page="admin.md#log-pages-of-the-open-compute-project", guest=True)
    ana: bool | None = key(kinds.FLAG, None, "--ana/--no-ana",
        "Report asymmetric namespace access (ANA), whose states potash ana changes (default: for a "
        "drive with several controllers).",
        page="ana.md", guest=True)
    append_limit: str | None = key(kinds.choice(APPEND_LIMITS), None, "--append-limit",
        "Maximum size of a Zone Append (ZASL; default: that of any transfer).",
        page="zones.md#limits", guest=True)
    map_doorbells: bool = key(kinds.FLAG, False, "--map-doorbells/--no-map-doorbells",
        "Let the client map the page of doorbells, as SPDK's driver wants; the device polls it.",
        page="vfio-user.md#spdk")
    trust_memory: bool = key(kinds.FLAG, False, "--trust-memory/--no-trust-memory",
        "Map memory of the client that is not sealed, or in huge pages, as SPDK's is. The client "
        "can then end the device (docs/security.md).", page="security.md#memory-that-is-trusted")
    faults: tuple[Fault, ...] = key(kinds.several(kinds.FAULT, "faults", MOST_FAULTS),
        (), "faults --fault",
        'Inject a fault from the start, like "io read status=UNRECOVERED_READ_ERROR count=3"; may'
        ' be repeated (docs/faults.md).', page="faults.md", guest=True)
    fault_files: tuple[Path, ...] = key(kinds.several(kinds.EXISTING_FILE, "paths"),
        (), "fault_files --faults",
        "Inject the faults of a TOML file with [[fault]] tables.", page="faults.md", guest=True)
    allow_faults: bool = key(kinds.FLAG, False, "--allow-faults/--no-allow-faults",
        "Allow fault injection at run time (potash fault).", page="faults.md", guest=True)
    extensions: tuple[str, ...] = key(kinds.several(kinds.EXTENSION, "extensions"),
        (), "extensions --extend",
        "Python file whose commands, log pages and more the drive has, or the name of an installed "
        "extension; may be repeated.", page="extend.md", guest=True, metavar="FILE")
    natives: tuple[str, ...] = key(kinds.several(kinds.NATIVE, "native programs"),
        (), "natives --native",
        "Function of a shared object that compute namespaces have as a device-defined program, and "
        "its declared run time; may be repeated.", page="extend.md#native-programs", guest=True,
        metavar="FILE.so:FUNCTION[:TIME]")
    incoming: bool = key(kinds.FLAG, False, "--incoming",
        "Wait for a client that transfers the state of another device; that device hands --media "
        "over.", page="migration.md")
    save: Path | None = key(kinds.FILE, None, "--save",
        "When interrupted, stop the drive, and write its state to this file, for --load.",
        page="migration.md")
    load: Path | None = key(kinds.FILE, None, "--load",
        "Continue from a state that --save has written, with the same --media, when a client "
        "attaches that still has the same memory.", page="migration.md")
    # fmt: on

    @property
    def log_settings(self) -> LogSettings:
        """The log, as the firmware takes it."""
        components = {name: level for levels in self.log for name, level in levels.items()}
        return LogSettings(self.log_level, components, self.log_format)

    @property
    def begins_with_state(self) -> bool:
        """The device begins with the state of another one, and not as at power on."""
        return self.incoming or self.load is not None


@dataclass(frozen=True)
class MemorySection:
    """Memory namespaces (Subsystem Local Memory)."""

    # fmt: off
    namespaces: tuple[int, ...] = key(kinds.several(MEMORY_SIZE, "sizes", MOST_NAMESPACES),
        (), "memory_namespaces --memory-namespace",
        "A memory namespace (Subsystem Local Memory) of this size, for a new drive or one without"
        " any; may be repeated. Its contents are not persistent.",
        page="computational.md", guest=True)
    capacity: int | None = key(MEMORY_SIZE, None, "--memory-capacity",
        "Maximum total size of all memory namespaces, for hosts that create some (default: their "
        "total size). The media store it.")
    copy_formats: bool = key(kinds.FLAG, RpuSettings.copy_formats_enabled, "",
        "Copy accepts all its descriptor formats, or only those that the host has enabled.")
    bar: bool = key(kinds.FLAG, False, "--memory-bar/--no-memory-bar",
        "Let the host map the first memory namespace of its controller, as BAR 4. Its size must be "
        "a power of two, up to 1G.", page="computational.md#memory-in-a-bar", guest=True)
    peers: bool = key(kinds.FLAG, False, "--memory-peers/--no-memory-peers",
        "Let the other drives of the same guest copy from the memory in the BAR.",
        page="computational.md#copies-between-drives", guest=True)
    controllers: tuple[int, ...] | None = key(CONTROLLERS, None, "",
        "The controller that has each of them, in their order (default: 0).",
        page="controllers.md")
    # fmt: on


@dataclass(frozen=True)
class KeyValueSection:
    """Key value namespaces."""

    # fmt: off
    namespaces: tuple[NamespaceShape, ...] = key(
        kinds.several(kinds.KEY_VALUE, "namespaces", MOST_NAMESPACES),
        (), "kv_namespaces --kv-namespace",
        "A key value namespace for a new drive or one without any: the size of all keys and "
        "values together, and of the longest value (default: 512K), and the only controller that "
        "it is attached to; may be repeated. The media store it.", page="kv.md", guest=True)
    # fmt: on


@dataclass(frozen=True)
class ComputeSection:
    """Compute namespaces (Computational Programs), and the limits of each."""

    # fmt: off
    namespaces: int = key(kinds.count(0, MOST_COMPUTE_NAMESPACES),
        0, "compute_namespaces --compute-namespace",
        "A compute namespace (Computational Programs), for a new drive or one without any; may be"
        " repeated.", page="computational.md", guest=True, count=True)
    programs: int = key(kinds.count(1, 256), COMPUTE.programs, "",
        "Program indexes, those of device-defined programs included.")
    activated: int = key(kinds.count(1, 256), COMPUTE.activated, "",
        "Maximum number of active programs.")
    program_memory: int = key(kinds.size(MEBI, LARGEST_BUFFER, MEBI),
        COMPUTE.program_memory * MEBI, "",
        "Total size of loaded programs.")
    range_sets: int = key(kinds.count(1, 0xFFFF), COMPUTE.range_sets, "", "Memory range sets.")
    ranges: int = key(kinds.count(1, MAX_MEMORY_RANGES), COMPUTE.ranges, "", "Ranges in a set.")
    units: int = key(kinds.count(1, MOST_UNITS), COMPUTE.units, "compute_units --compute-units",
        "Compute units of each compute namespace, in modelled time.", guest=True,
        page="time.md#compute-units", metavar="UNITS")
    scheduler: str = key(kinds.TEXT, COMPUTE.scheduler, "--scheduler",
        "Scheduler of these units: fifo, rr:TIME, priority, group:MEMBER,…=UNITS, or the name of "
        "one that an extension has.", guest=True, page="time.md#compute-units", metavar="NAME")
    controllers: tuple[int, ...] | None = key(CONTROLLERS, None, "",
        "The controller that has each of them, in their order (default: 0).",
        page="controllers.md")
    # fmt: on


@dataclass(frozen=True)
class AcceleratorSection:
    """Accelerators; the option `--accelerator` replaces all of them."""

    # fmt: off
    input_size: int = key(BUFFER, ACCELERATOR.input_size, "", "Size of the input buffer.")
    output_size: int = key(BUFFER, ACCELERATOR.output_size, "", "Size of the output buffer.")
    controller: int | None = key(CONTROLLER, None, "", "The controller that has it (default: 0).",
        page="controllers.md")
    # fmt: on

    @classmethod
    def parse(cls, text: str) -> Self:
        """An accelerator from SIZE[:SIZE][:controller=N]. Raises ValueError."""
        text, controller = kinds.of_controller(text, "controller")
        first, _, second = text.partition(":")
        sizes = [Size(PAGE_SIZE).parse(one) for one in (first, second or first)]
        if max(sizes) > LARGEST_BUFFER:
            raise ValueError(f"{text!r}: a buffer has at most {human(LARGEST_BUFFER)}")
        return cls(sizes[0], sizes[1], controller)


@dataclass(frozen=True)
class LimitsSection:
    """Limits of programs and models."""

    # fmt: off
    memory: int = key(kinds.size(LEAST_MEMORY, LARGEST, MEBI), LIMITS.memory, "",
        "Private memory of an accelerator's worker.", page="security.md")
    seconds: int = key(kinds.count(1, MOST_SECONDS), int(LIMITS.seconds), "",
        "Run time of a job, in seconds.")
    compile_memory: int = key(kinds.size(LEAST_MEMORY, LARGEST, MEBI), LIMITS.compile_memory, "",
        "Memory of the process that links or compiles one program or model.")
    compile_seconds: int = key(kinds.count(1, MOST_SECONDS), int(LIMITS.compile_seconds), "",
        "Run time of that process, in seconds.")
    frame_size: int = key(kinds.size(LEAST_FRAME, LARGEST_FRAME, LEAST_FRAME),
        LIMITS.frame_size, "",
        "Bytes of the stack frame that each active function of a program has.",
        page="programs.md#memory")
    # fmt: on


@dataclass(frozen=True)
class VtaSection:
    """The tensor accelerator. The keys of `vta_config.json`, such as `LOG_BLOCK`, change `core`."""

    # fmt: off
    threads: int | None = key(kinds.count(1, MOST_THREADS), None, "",
        "Threads that execute a stream (default: 2; 1 on a machine with one processor).",
        page="vta.md#several-threads")
    core: str = key(kinds.choice(tuple(CORES)), "platform", "",
        "The platform's core, or that of the VTA paper.", page="vta.md#configuration")
    # fmt: on


@dataclass(frozen=True)
class TimeSection:
    """The times at which commands complete."""

    # fmt: off
    mode: str = key(kinds.choice(TIME_MODES), "fast", "--time",
        "Complete commands as fast as possible, or when a modelled flash drive would.",
        page="time.md#a-device-that-takes-the-time-of-the-model", guest=True)
    drive: str = key(kinds.DRIVE, "tlc", "--drive",
        f"The modelled drive: {', '.join(DRIVES)}, a TOML file, or a file of potash drive "
        "precondition (.npz).", guest=True, metavar="PROFILE",
        shell_complete=completing(lambda: DRIVES))
    ftl: str = key(kinds.TEXT, "page", "--ftl",
        "Flash translation layer of the modelled drive: page, or the name of one that an extension "
        "has.", page="extend.md#a-flash-translation-layer", guest=True, metavar="NAME")
    policies: tuple[str, ...] = key(kinds.several(kinds.POLICY, "policies"),
        (), "policies --policy",
        "Policy of the modelled drive, of gc, wear or allocation: a built-in name, or FILE:CLASS;"
        " may be repeated.", guest=True, metavar="KIND=POLICY")
    slc: int | None = key(kinds.SHARE, None, "--slc",
        "Part of the modelled flash that is an SLC cache (default: as in the profile).",
        guest=True, page="ftl.md#slc-cache")
    over_provisioning: int | None = key(kinds.SHARE, None, "--over-provisioning",
        "Spare flash of the modelled drive, in percent of its capacity (default: as in the "
        "profile).", guest=True)
    kv_index: str = key(kinds.choice(KV_INDEXES), "dram", "--kv-index",
        "Place of the index of a modelled drive's key value namespaces: DRAM, or flash.",
        page="kv.md#modelled-time", guest=True)
    zone_width: int = key(kinds.count(0, MOST_DIES), 0, "--zone-width",
        "Number of dies of the modelled drive that a zone is on; 0 for all dies.", guest=True)
    zone_slc: int | None = key(kinds.SHARE, None, "--zone-slc",
        "Part of the modelled flash that is an SLC buffer for small writes of zones (default: as "
        "in the profile).", guest=True, page="time.md#zones")
    factor: int = key(kinds.count(1, MOST_FACTOR), 1, "--time-factor",
        "Multiply all modelled times, for machines that are too slow for the drive.", guest=True)
    bandwidth_shares: Shares | None = key(kinds.SHARES, None, "--bandwidth-shares",
        "Shares of DRAM and link: weights of host and jobs, and of single accelerators and "
        "compute namespaces (default: none, and DRAM for each core).", guest=True,
        page="time.md#shares-of-dram-and-link")
    clock: str = key(kinds.choice(CLOCKS), "host", "--clock",
        "Let modelled time pass as the host's does, or only while the client waits (stepped).",
        page="experiment.md#a-clock-that-waits-for-the-host")
    monitor: tuple[Path, ...] | None = key(kinds.SOCKETS, None, "--monitor",
        "A monitor of the guest's QEMU, which has no other client: the guest is stopped while a "
        "job's emulation is behind its modelled time. Several guests have one for each --socket, "
        "in the same order.", page="time.md#several-guests", metavar="SOCKET")
    hold: bool = key(kinds.FLAG, False, "--hold/--no-hold",
        "Stop the guest for block commands, too, whose emulation is more than a millisecond late.",
        page="time.md#the-guest-stands-still", guest=True)
    still_limit: int = key(kinds.count(1, MOST_SECONDS), STILL_LIMIT, "--still-limit",
        "Maximum time that the guest is stopped at once; a job that it is stopped for then fails.",
        guest=True, metavar="SECONDS")
    # fmt: on


@dataclass(frozen=True)
class GuestSection:
    """The machine that `potash guest` boots."""

    # fmt: off
    memory: int = key(kinds.size(LEAST_GUEST, LARGEST, MEBI), MEMORY * MEBI, "--memory",
        "Memory of the guest.", guest=True)
    cpus: int = key(kinds.count(1, MOST_CPUS), CPUS, "--cpus", "Number of vCPUs.", guest=True)
    debian_mirror: str | None = key(kinds.TEXT, None, "--debian-mirror",
        MIRROR_HELP,
        page="guest.md", guest=True, metavar="ADDRESS", envvar=MIRROR_VARIABLE, show_envvar=True)
    # fmt: on


class SectionsOption(NamedTuple):
    """An option that describes whole sections, which replace those of a file."""

    flag: str
    type: click.ParamType[Any]
    help: str
    guest: bool = True
    multiple: bool = True


SECTIONS_OPTIONS: Mapping[str, SectionsOption] = {
    "namespaces": SectionsOption(
        "--namespace",
        Parsed("SIZE[:BLOCK[+METADATA[:TYPE]]][:private=N]", NamespaceSection.parse),
        "A namespace for a new drive: its size, block size (512 or 4096, the default), bytes of "
        "metadata of each block (8, 16 or 64) and type of protection information (1, 2 or 3), and "
        "the only controller that it is attached to; may be repeated. The media store it.",
    ),
    "size": SectionsOption(
        "--size",
        Size(DEFAULT_BLOCK_SIZE),
        f"Short form for one --namespace of this size (default: {human(DEFAULT_SIZE)}).",
        multiple=False,
    ),
    "zoned_namespaces": SectionsOption(
        "--zoned-namespace",
        Parsed("SIZE[:ZONE[:CAPACITY]][,KEY=VALUE…]", NamespaceSection.parse_zoned),
        "A zoned namespace for a new drive: its size, the size of its zones (a power of two, "
        f"default: {human(DEFAULT_ZONE_SIZE)}), and how much of each zone can be written "
        f"(default: all), and keys of its section: {', '.join(OF_ZONES)}, private; may be "
        "repeated. It follows those of --namespace. The media store it.",
    ),
    "zrwa": SectionsOption(
        "--zrwa",
        Parsed("SIZE[:GRANULARITY[:ZONES]]", kinds.parse_areas),
        "Zone random write areas of the zoned namespaces of a new drive: the size of each, how "
        "much is committed at once (default: 4K), and how many zones can have one (default: all "
        "active ones).",
        multiple=False,
    ),
    "accelerators": SectionsOption(
        "--accelerator",
        Parsed("SIZE[:SIZE][:controller=N]", AcceleratorSection.parse),
        "Sizes of the input and the output buffer of an accelerator (default: the same size), and "
        "the controller that has it (default: 0); may be repeated. Accelerators are numbered from "
        "0 (default: one with 64M).",
        guest=False,
    ),
}
"""Sections by their keyword in `potash.testing`."""

"""The sections of `potash.toml`, key by key: how a value is read, its default, and the option of
`potash serve`, and of `potash guest`, that overrides it.

This is the one list of settings; what reads files and command lines follows it.
"""

from dataclasses import dataclass
from pathlib import Path

from csd_spec.opcodes import PAGE_SIZE
from potash import toml_kinds as kinds
from potash.toml_kinds import key
from potash.units import LARGEST
from potash.vm.qemu import CPUS, MEMORY
from potash.vm.standstill import DEFAULT_LIMIT
from potash_device.controller.cmb import CmbSettings
from potash_device.media.shapes import (
    BLOCK_SIZES,
    DEFAULT_BLOCK_SIZE,
    DEFAULT_SIZE,
    LEAST_ZONE_SIZE,
    MEMORY_UNIT,
    METADATA_SIZES,
    MOST_NAMESPACES,
    Metadata,
    NamespaceShape,
)
from potash_device.timing.profile import PROFILES as DRIVES
from potash_firmware.apu.config import Limits, RangeUnit
from potash_firmware.bpf.arena import LEAST_FRAME
from potash_firmware.bpf.engine import Engine
from potash_firmware.log_components import LEVELS
from potash_firmware.mailbox.messages import MAX_MEMORY_RANGES
from potash_firmware.rpu.placement import PlacementSettings
from potash_firmware.rpu.settings import ComputeSettings, RpuSettings
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
"""Bytes; the guest's file system is in its memory, and lies there twice while it is unpacked."""
MOST_CPUS = 64
MODELLED = "modelled"
TIME_MODES = ("fast", MODELLED)
MOST_FACTOR = 1000
"""By which modelled times may be multiplied."""
RANGE_COUNTS = ("plain", "zero-based")
MOST_ACCELERATORS = 64
MOST_THREADS = 16
ACCELERATOR = DeviceSettings().accelerators[0]
"""The one that a device has if nothing is said."""


@dataclass(frozen=True)
class DeviceSection:
    """`[device]`: what `potash serve` is told of the whole device."""

    socket: Path | None = key(
        kinds.PATH, None, "--socket", "Path of the UNIX socket, which only this user can open."
    )
    media: Path | None = key(
        kinds.PATH,
        None,
        "--media",
        "Directory, or file, that stores the drive; created if it does not exist (default: in "
        "memory).",
    )
    capacity: int | None = key(
        kinds.size(DEFAULT_BLOCK_SIZE, LARGEST),
        None,
        "--capacity",
        "Maximum total size of all namespaces, for hosts that create some (default: their total "
        "size). The media store it.",
    )
    read_only: bool = key(
        kinds.FLAG, False, "--read-only/--read-write", "Open the media read-only, or for writing."
    )
    profile: str = key(
        kinds.choice(sorted(PROFILES)),
        "potash",
        "--profile",
        "Identity of the device: Potash, or the hardware platform that it follows.",
        guest=True,
    )
    range_unit: str = key(
        kinds.choice(unit.value for unit in RangeUnit),
        RangeUnit.PAGE.value,
        "--range-unit",
        "Unit of local storage in accelerator commands: pages of 4096 bytes, or LBAs.",
    )
    range_count: str = key(
        kinds.choice(RANGE_COUNTS),
        "plain",
        "--range-count",
        "Whether a count of one page is 1 there, or 0 as in Read and Write.",
    )
    engine: str = key(
        kinds.choice(engine.value for engine in Engine),
        Engine.NATIVE.value,
        "--engine",
        "Engine that runs programs; the interpreter if it is not available.",
    )
    trace: Path | None = key(
        kinds.FILE,
        None,
        "--trace",
        "File for a trace of commands: for ui.perfetto.dev, written at the end, if the name ends "
        "in .json or .json.gz; otherwise JSON lines, written at once.",
    )
    log_level: str = key(kinds.choice(LEVELS), "info", "--log-level", "Log level.")
    cmb: CmbSettings | None = key(
        kinds.CMB,
        None,
        "--cmb",
        "Controller memory buffer in BAR 2: its size, a power of two (Linux uses it from 2M on), "
        "and its uses: sqs,cqs,lists,rds,wds for submission and completion queues, lists, and "
        "data of reads and writes (default: all uses; no buffer).",
        guest=True,
    )
    fdp: PlacementSettings | None = key(
        kinds.PLACEMENT,
        None,
        "--fdp",
        "Flexible data placement: the number of reclaim unit handles (1 to 128), and the size of "
        "a reclaim unit (default: 64M), which with --time modelled is that of a superblock.",
        guest=True,
    )
    map_doorbells: bool = key(
        kinds.FLAG,
        False,
        "--map-doorbells/--no-map-doorbells",
        "Let the client map the page of doorbells, as SPDK's driver wants; the device polls it.",
    )
    trust_memory: bool = key(
        kinds.FLAG,
        False,
        "--trust-memory/--no-trust-memory",
        "Map memory of the client that is not sealed, or in huge pages, as SPDK's is. The client "
        "can then end the device (docs/security.md).",
    )


@dataclass(frozen=True)
class NamespaceSection:
    """`[namespace.1]` and on: namespaces of a new drive; one with a `zone_size` is zoned."""

    size: int = key(kinds.size(min(BLOCK_SIZES), LARGEST), DEFAULT_SIZE)
    block_size: int = key(kinds.choice(BLOCK_SIZES), DEFAULT_BLOCK_SIZE)
    metadata: int = key(kinds.choice((0, *METADATA_SIZES)), 0)
    protection: int = key(kinds.choice(range(4)), 0)
    zone_size: int | None = key(kinds.size(LEAST_ZONE_SIZE, LARGEST), None)
    zone_capacity: int | None = key(kinds.size(DEFAULT_BLOCK_SIZE, LARGEST), None)

    @property
    def shape(self) -> NamespaceShape:
        """The namespace as the drive wants it. Raises ValueError for zones that cannot be."""
        if self.zone_size is None:
            metadata = Metadata(self.metadata, protection=self.protection)
            return NamespaceShape(self.size, self.block_size, metadata=metadata)
        if self.metadata:
            raise ValueError("zones have no metadata")
        capacity = self.zone_capacity or self.zone_size
        return NamespaceShape.zoned(self.size, self.zone_size, capacity, self.block_size)


@dataclass(frozen=True)
class MemorySection:
    """`[memory]`: memory namespaces (SLM) of a new drive, and what all of them may have."""

    namespaces: tuple[int, ...] = key(
        kinds.sizes(MEMORY_UNIT, LARGEST_MEMORY, MEMORY_UNIT, MOST_NAMESPACES),
        (),
        "--memory-namespace",
        "A memory namespace (Subsystem Local Memory) of this size, for a new drive or one without "
        "any; may be repeated. Its contents are not persistent.",
        guest=True,
    )
    capacity: int | None = key(
        kinds.size(MEMORY_UNIT, LARGEST_MEMORY, MEMORY_UNIT),
        None,
        "--memory-capacity",
        "Maximum total size of all memory namespaces, for hosts that create some (default: their "
        "total size). The media store it.",
    )
    copy_formats: bool = key(kinds.FLAG, RpuSettings.copy_formats_enabled)
    bar: bool = key(
        kinds.FLAG,
        False,
        "--memory-bar/--no-memory-bar",
        "Let the host map the first memory namespace, as BAR 4. Its size must be a power of two, "
        "up to 1G.",
        guest=True,
    )


@dataclass(frozen=True)
class ComputeSection:
    """`[compute]`: compute namespaces (CP) of a new drive, and what each of them takes."""

    namespaces: int = key(
        kinds.count(0, MOST_COMPUTE_NAMESPACES),
        0,
        "--compute-namespace",
        "A compute namespace (Computational Programs), for a new drive or one without any; may be "
        "repeated.",
        guest=True,
        count=True,
    )
    programs: int = key(kinds.count(1, 256), COMPUTE.programs)
    activated: int = key(kinds.count(1, 256), COMPUTE.activated)
    program_memory: int = key(kinds.size(MEBI, LARGEST_BUFFER, MEBI), COMPUTE.program_memory * MEBI)
    range_sets: int = key(kinds.count(1, 0xFFFF), COMPUTE.range_sets)
    ranges: int = key(kinds.count(1, MAX_MEMORY_RANGES), COMPUTE.ranges)


@dataclass(frozen=True)
class AcceleratorSection:
    """`[accelerator.0]` and on: the sizes of their buffers."""

    input_size: int = key(kinds.size(PAGE_SIZE, LARGEST_BUFFER), ACCELERATOR.input_size)
    output_size: int = key(kinds.size(PAGE_SIZE, LARGEST_BUFFER), ACCELERATOR.output_size)


@dataclass(frozen=True)
class LimitsSection:
    """`[limits]`: what programs and models may take, of an accelerator's worker and of a
    compiler."""

    memory: int = key(kinds.size(LEAST_MEMORY, LARGEST, MEBI), LIMITS.memory)
    seconds: int = key(kinds.count(1, MOST_SECONDS), int(LIMITS.seconds))
    compile_memory: int = key(kinds.size(LEAST_MEMORY, LARGEST, MEBI), LIMITS.compile_memory)
    compile_seconds: int = key(kinds.count(1, MOST_SECONDS), int(LIMITS.compile_seconds))
    frame_size: int = key(kinds.size(LEAST_FRAME, LARGEST_FRAME, LEAST_FRAME), LIMITS.frame_size)


@dataclass(frozen=True)
class TimeSection:
    """`[time]`: when the device completes commands, and of what drive it takes the time."""

    mode: str = key(
        kinds.choice(TIME_MODES),
        "fast",
        "--time",
        "Complete commands as fast as possible, or when a modelled flash drive would.",
        guest=True,
    )
    drive: str = key(
        kinds.DRIVE,
        "tlc",
        "--drive",
        f"The modelled drive: {', '.join(DRIVES)}, a TOML file, or a file of potash drive "
        "precondition (.npz).",
        guest=True,
        metavar="PROFILE",
    )
    policies: tuple[str, ...] = key(
        kinds.POLICIES,
        (),
        "--policy",
        "Policy of the modelled drive, of gc, wear or allocation: a built-in name, or FILE:CLASS; "
        "may be repeated.",
        guest=True,
        metavar="KIND=POLICY",
    )
    factor: int = key(
        kinds.count(1, MOST_FACTOR),
        1,
        "--time-factor",
        "Multiply all modelled times, for machines that are too slow for the drive.",
        guest=True,
    )
    monitor: Path | None = key(
        kinds.PATH,
        None,
        "--monitor",
        "A monitor of the guest's QEMU, which has no other client: the guest is stopped while a "
        "job's emulation is behind its modelled time.",
        metavar="SOCKET",
    )
    still_limit: int = key(
        kinds.count(1, MOST_SECONDS),
        DEFAULT_LIMIT,
        "--still-limit",
        "Maximum time that the guest is stopped for a job, which fails after it.",
        guest=True,
        metavar="SECONDS",
    )


@dataclass(frozen=True)
class GuestSection:
    """`[guest]`: the machine that `potash guest` boots."""

    memory: int = key(
        kinds.size(LEAST_GUEST, LARGEST, MEBI),
        MEMORY * MEBI,
        "--memory",
        "Memory of the guest.",
        guest=True,
    )
    cpus: int = key(kinds.count(1, MOST_CPUS), CPUS, "--cpus", "Number of vCPUs.", guest=True)
    debian_mirror: str | None = key(kinds.TEXT, None)

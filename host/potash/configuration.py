"""The configuration of a device and its guest: `potash.toml`, and all defaults.

A section is a frozen dataclass, and the type of each field defines how it is read from TOML and
which values are valid. The whole file is checked: an unknown key is an error.
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from csd_spec.opcodes import PAGE_SIZE
from potash import toml_kinds as kinds
from potash.toml_kinds import ConfigurationError
from potash.units import LARGEST, human
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
from potash_device.vta.config import Config, ConfigError
from potash_firmware.apu.config import AcceleratorConfig, Limits, RangeUnit
from potash_firmware.bpf.arena import LEAST_FRAME
from potash_firmware.bpf.engine import Engine
from potash_firmware.log_components import LEVELS
from potash_firmware.mailbox.execution import MAX_RANGES
from potash_firmware.rpu.placement import PlacementSettings
from potash_firmware.rpu.settings import ComputeSettings, RpuSettings
from potash_firmware.settings import PROFILES, DeviceSettings

LARGEST_FILE = 1 << 20
"""Bytes of a configuration."""

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


TIME_MODES = ("fast", "modelled")
MOST_FACTOR = 1000
"""By which modelled times may be multiplied."""
RANGE_COUNTS = ("plain", "zero-based")
MOST_ACCELERATORS = 64
ACCELERATOR = DeviceSettings().accelerators[0]
"""The one that a device has if nothing is said."""


@dataclass(frozen=True)
class DeviceSection:
    """`[device]`: what `potash serve` is told of the whole device."""

    socket: Annotated[Path | None, kinds.PATH] = None
    media: Annotated[Path | None, kinds.PATH] = None
    capacity: Annotated[int | None, kinds.size(DEFAULT_BLOCK_SIZE, LARGEST)] = None
    read_only: Annotated[bool, kinds.FLAG] = False
    profile: Annotated[str, kinds.choice(sorted(PROFILES))] = "potash"
    range_unit: Annotated[str, kinds.choice(unit.value for unit in RangeUnit)] = (
        RangeUnit.PAGE.value
    )
    range_count: Annotated[str, kinds.choice(RANGE_COUNTS)] = "plain"
    engine: Annotated[str, kinds.choice(engine.value for engine in Engine)] = Engine.NATIVE.value
    trace: Annotated[Path | None, kinds.PATH] = None
    log_level: Annotated[str, kinds.choice(LEVELS)] = "info"
    cmb: Annotated[CmbSettings | None, kinds.CMB] = None
    fdp: Annotated[PlacementSettings | None, kinds.PLACEMENT] = None
    map_doorbells: Annotated[bool, kinds.FLAG] = False
    trust_memory: Annotated[bool, kinds.FLAG] = False


@dataclass(frozen=True)
class NamespaceSection:
    """`[namespace.1]` and on: namespaces of a new drive; one with a `zone_size` is zoned."""

    size: Annotated[int, kinds.size(min(BLOCK_SIZES), LARGEST)] = DEFAULT_SIZE
    block_size: Annotated[int, kinds.choice(BLOCK_SIZES)] = DEFAULT_BLOCK_SIZE
    metadata: Annotated[int, kinds.choice((0, *METADATA_SIZES))] = 0
    protection: Annotated[int, kinds.choice(range(4))] = 0
    zone_size: Annotated[int | None, kinds.size(LEAST_ZONE_SIZE, LARGEST)] = None
    zone_capacity: Annotated[int | None, kinds.size(DEFAULT_BLOCK_SIZE, LARGEST)] = None

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

    namespaces: Annotated[
        tuple[int, ...], kinds.sizes(MEMORY_UNIT, LARGEST_MEMORY, MEMORY_UNIT, MOST_NAMESPACES)
    ] = ()
    capacity: Annotated[int | None, kinds.size(MEMORY_UNIT, LARGEST_MEMORY, MEMORY_UNIT)] = None
    copy_formats: Annotated[bool, kinds.FLAG] = RpuSettings.copy_formats_enabled
    bar: Annotated[bool, kinds.FLAG] = False


@dataclass(frozen=True)
class ComputeSection:
    """`[compute]`: compute namespaces (CP) of a new drive, and what each of them takes."""

    namespaces: Annotated[int, kinds.count(0, MOST_COMPUTE_NAMESPACES)] = 0
    programs: Annotated[int, kinds.count(1, 256)] = COMPUTE.programs
    activated: Annotated[int, kinds.count(1, 256)] = COMPUTE.activated
    program_memory: Annotated[int, kinds.size(MEBI, LARGEST_BUFFER, MEBI)] = (
        COMPUTE.program_memory * MEBI
    )
    range_sets: Annotated[int, kinds.count(1, 0xFFFF)] = COMPUTE.range_sets
    ranges: Annotated[int, kinds.count(1, MAX_RANGES)] = COMPUTE.ranges


@dataclass(frozen=True)
class AcceleratorSection:
    """`[accelerator.0]` and on: the sizes of their buffers."""

    input_size: Annotated[int, kinds.size(PAGE_SIZE, LARGEST_BUFFER)] = ACCELERATOR.input_size
    output_size: Annotated[int, kinds.size(PAGE_SIZE, LARGEST_BUFFER)] = ACCELERATOR.output_size


@dataclass(frozen=True)
class LimitsSection:
    """`[limits]`: what programs and models may take, of an accelerator's worker and of a
    compiler."""

    memory: Annotated[int, kinds.size(LEAST_MEMORY, LARGEST, MEBI)] = LIMITS.memory
    seconds: Annotated[int, kinds.count(1, MOST_SECONDS)] = int(LIMITS.seconds)
    compile_memory: Annotated[int, kinds.size(LEAST_MEMORY, LARGEST, MEBI)] = LIMITS.compile_memory
    compile_seconds: Annotated[int, kinds.count(1, MOST_SECONDS)] = int(LIMITS.compile_seconds)
    frame_size: Annotated[int, kinds.size(LEAST_FRAME, LARGEST_FRAME, LEAST_FRAME)] = (
        LIMITS.frame_size
    )


@dataclass(frozen=True)
class TimeSection:
    """`[time]`: when the device completes commands, and of what drive it takes the time."""

    mode: Annotated[str, kinds.choice(TIME_MODES)] = "fast"
    drive: Annotated[str, kinds.DRIVE] = "tlc"
    policies: Annotated[tuple[str, ...], kinds.POLICIES] = ()
    factor: Annotated[int, kinds.count(1, MOST_FACTOR)] = 1
    monitor: Annotated[Path | None, kinds.PATH] = None
    still_limit: Annotated[int, kinds.count(1, MOST_SECONDS)] = DEFAULT_LIMIT


@dataclass(frozen=True)
class GuestSection:
    """`[guest]`: the machine that `potash guest` boots."""

    memory: Annotated[int, kinds.size(LEAST_GUEST, LARGEST, MEBI)] = MEMORY * MEBI
    cpus: Annotated[int, kinds.count(1, MOST_CPUS)] = CPUS
    debian_mirror: Annotated[str | None, kinds.TEXT] = None


@dataclass(frozen=True)
class Configuration:
    """All of it. Without any namespace the drive has those that its media remembers, or one of
    `DEFAULT_SIZE`."""

    device: DeviceSection = field(default_factory=DeviceSection)
    namespaces: tuple[NamespaceSection, ...] = ()
    accelerators: tuple[AcceleratorSection, ...] = (AcceleratorSection(),)
    memory: MemorySection = field(default_factory=MemorySection)
    compute: ComputeSection = field(default_factory=ComputeSection)
    vta: Config = field(default_factory=Config.default)
    vta_threads: int | None = None
    """By the number of processors where it is not given."""
    limits: LimitsSection = field(default_factory=LimitsSection)
    guest: GuestSection = field(default_factory=GuestSection)
    time: TimeSection = field(default_factory=TimeSection)

    @property
    def shapes(self) -> tuple[NamespaceShape, ...]:
        """The namespaces as the drive wants them, of every command set."""
        return (
            *(one.shape for one in self.namespaces),
            *map(NamespaceShape.memory, self.memory.namespaces),
            *(NamespaceShape.compute() for _ in range(self.compute.namespaces)),
        )

    @property
    def described_compute(self) -> ComputeSettings:
        """What compute namespaces take, as the firmware wants it."""
        values = asdict(self.compute)
        del values["namespaces"]
        return ComputeSettings(**{**values, "program_memory": self.compute.program_memory // MEBI})

    @property
    def described_limits(self) -> Limits:
        """What programs and models may take, as the firmware wants it."""
        return replace(LIMITS, **asdict(self.limits))

    @property
    def described_accelerators(self) -> tuple[AcceleratorConfig, ...]:
        return tuple(
            AcceleratorConfig(number, one.input_size, one.output_size, self.limits.frame_size)
            for number, one in enumerate(self.accelerators)
        )


Section = (
    DeviceSection | MemorySection | ComputeSection | LimitsSection | GuestSection | TimeSection
)
SECTIONS: Mapping[str, type[Section]] = {
    "device": DeviceSection,
    "memory": MemorySection,
    "compute": ComputeSection,
    "limits": LimitsSection,
    "guest": GuestSection,
    "time": TimeSection,
}
"""Sections that there is one of; `[vta]` has the keys of `vta_config.json`, and `threads`."""

NUMBERED: Mapping[str, tuple[type[NamespaceSection | AcceleratorSection], int, int]] = {
    "namespace": (NamespaceSection, 1, MOST_NAMESPACES),
    "accelerator": (AcceleratorSection, 0, MOST_ACCELERATORS),
}
"""Sections by number: what they are, the first number, how many there may be."""

VTA, THREADS = "vta", "threads"
MOST_THREADS = 16

REMEMBERED = f"those that the media remembers, or one of {human(DEFAULT_SIZE)} on a new drive"
"""The namespaces where none is described."""


def read(path: Path) -> Configuration:
    """The configuration in a file, whose folder relative paths begin at.

    Raises ConfigurationError, also for a file that is not there.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > LARGEST_FILE:
        raise ConfigurationError(f"{path} is larger than any configuration")
    try:
        return parse(data.decode(), path.absolute().parent)
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not TOML: it is not UTF-8") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def parse(text: str, folder: Path) -> Configuration:
    """The configuration in a text. Raises ConfigurationError."""
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"it is not TOML: {error}") from None
    _known(content, [*SECTIONS, *NUMBERED, VTA], "there is no section [{}]")
    single = {name: _section(kind, content, name, folder) for name, kind in SECTIONS.items()}
    several = {
        name: _numbered(content, name, folder, *described) for name, described in NUMBERED.items()
    }
    for number, one in enumerate(several["namespace"], 1):
        if one.size < one.block_size:
            wrong = f"size in [namespace.{number}] is less than one block of {one.block_size} bytes"
            raise ConfigurationError(wrong)
        if one.protection and not one.metadata:
            wrong = f"protection in [namespace.{number}] is without metadata"
            raise ConfigurationError(wrong)
        try:
            _ = one.shape
        except ValueError as error:
            raise ConfigurationError(f"[namespace.{number}]: {error}") from None
    return Configuration(
        namespaces=several["namespace"],
        accelerators=several["accelerator"] or Configuration.accelerators,
        **_vta(content, folder),
        **single,
    )


def write(configuration: Configuration) -> str:
    """The configuration as TOML that reads back to the same. Raises ConfigurationError."""
    parts = [_written("device", configuration.device)]
    parts += [_written(f"namespace.{n}", one) for n, one in enumerate(configuration.namespaces, 1)]
    if not configuration.namespaces:
        parts.append([f"# No [namespace.1]: {REMEMBERED}."])
    parts += [_written(f"accelerator.{n}", o) for n, o in enumerate(configuration.accelerators)]
    parts.append(_written("memory", configuration.memory))
    parts.append(_written("compute", configuration.compute))
    vta = dict(configuration.vta.to_mapping())
    if configuration.vta_threads is not None:
        vta[THREADS] = configuration.vta_threads
    parts.append([f"[{VTA}]", *(f"{name} = {value}" for name, value in vta.items())])
    parts.append(_written("limits", configuration.limits))
    parts.append(_written("guest", configuration.guest))
    parts.append(_written("time", configuration.time))
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _written(name: str, section: Any) -> list[str]:
    lines = [f"[{name}]"]
    for key, kind in _keys(type(section)).items():
        value = getattr(section, key)
        if value is not None:
            lines.append(f"{key} = {kind.write(value)}")
    return lines


def _keys(section: type[Any]) -> dict[str, kinds.Kind]:
    """A section's keys, and how their values stand in TOML."""
    hints = get_type_hints(section, include_extras=True)
    return {name: get_args(hint)[1] for name, hint in hints.items()}


def _section(kind: type[Any], content: Mapping[str, Any], name: str, folder: Path) -> Any:
    """A section from the table `name`, which may not be there."""
    table = content.get(name.rpartition(".")[2], {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"[{name}] must be a section")
    keys = _keys(kind)
    _known(table, list(keys), f"[{name}] has no key {{}}")
    values = {}
    for key, value in table.items():
        try:
            values[key] = keys[key].read(value, folder)
        except ValueError as error:
            wrong = f"{key} in [{name}] is {_shown(value)}; it {error}"
            raise ConfigurationError(wrong) from None
    return kind(**values)


def _numbered(
    content: Mapping[str, Any], name: str, folder: Path, kind: type[Any], first: int, most: int
) -> tuple[Any, ...]:
    """The sections `[name.first]` and on, without a gap."""
    tables = content.get(name, {})
    if not isinstance(tables, dict) or len(tables) > most:
        raise ConfigurationError(f"[{name}.{first}] and on are sections, at most {most}")
    numbers = [str(number) for number in range(first, first + len(tables))]
    for number in tables:
        if number not in numbers:
            raise ConfigurationError(
                f"[{name}.{number}] is misnumbered: they are numbered from {first} without a gap"
            )
    return tuple(_section(kind, tables, f"{name}.{number}", folder) for number in numbers)


def _vta(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The core and how many threads execute its streams."""
    table = content.get(VTA, {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"[{VTA}] must be a section")
    core = {name: value for name, value in table.items() if name != THREADS}
    threads = None
    if THREADS in table:
        try:
            threads = kinds.count(1, MOST_THREADS).read(table[THREADS], folder)
        except ValueError as error:
            wrong = f"{THREADS} in [{VTA}] is {_shown(table[THREADS])}; it {error}"
            raise ConfigurationError(wrong) from None
    try:
        return {"vta": Config.from_mapping(core), "vta_threads": threads}
    except ConfigError as error:
        raise ConfigurationError(f"[{VTA}]: {error}") from None


def _known(table: Mapping[str, Any], known: list[str], sentence: str) -> None:
    for name in table:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise ConfigurationError(sentence.format(name) + meant)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"

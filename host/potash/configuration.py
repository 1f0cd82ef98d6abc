"""The configuration of a device and its guest: `potash.toml`, and all defaults.

The whole file is checked: an unknown key is an error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from potash import toml_kinds as kinds
from potash.namespace_sections import NamespaceSection
from potash.sdk.errors import restated
from potash.sections import (
    LIMITS,
    MEBI,
    MOST_ACCELERATORS,
    AcceleratorSection,
    ComputeSection,
    DeviceSection,
    GuestSection,
    KeyValueSection,
    LimitsSection,
    MemorySection,
    TimeSection,
    VtaSection,
)
from potash.toml_kinds import ConfigurationError
from potash.units import human
from potash_device.media.shapes import DEFAULT_SIZE, MOST_NAMESPACES, NamespaceShape
from potash_device.vta.config import CORES, Config, ConfigError
from potash_firmware.apu.config import AcceleratorConfig, Limits
from potash_firmware.rpu.settings import ComputeSettings

LARGEST_FILE = 1 << 20
"""Bytes of a configuration."""


@dataclass(frozen=True)
class Configuration:
    """All of it. Without any namespace the drive has those that its media remembers, or one of
    `DEFAULT_SIZE`."""

    device: DeviceSection = field(default_factory=DeviceSection)
    namespaces: tuple[NamespaceSection, ...] = ()
    accelerators: tuple[AcceleratorSection, ...] = (AcceleratorSection(),)
    memory: MemorySection = field(default_factory=MemorySection)
    key_value: KeyValueSection = field(default_factory=KeyValueSection)
    compute: ComputeSection = field(default_factory=ComputeSection)
    vta: Config = field(default_factory=Config.default)
    vta_threads: int | None = None
    """Number of threads; None for one that depends on the number of processors."""
    limits: LimitsSection = field(default_factory=LimitsSection)
    guest: GuestSection = field(default_factory=GuestSection)
    time: TimeSection = field(default_factory=TimeSection)

    @property
    def shapes(self) -> tuple[NamespaceShape, ...]:
        """The namespaces as the drive wants them, of every command set."""
        return (
            *(namespace.shape for namespace in self.namespaces),
            *_owned(map(NamespaceShape.memory, self.memory.namespaces), self.memory.controllers),
            *_owned([NamespaceShape.compute()] * self.compute.namespaces, self.compute.controllers),
            *self.key_value.namespaces,
        )

    @property
    def owners(self) -> set[int]:
        """The controllers that have something of their own."""
        found = {each.private for each in self.namespaces if each.private is not None}
        found |= {number for each in self.key_value.namespaces for number in each.controllers}
        found |= {each.controller for each in self.accelerators if each.controller is not None}
        return found.union(self.memory.controllers or (), self.compute.controllers or ())

    @property
    def described_compute(self) -> ComputeSettings:
        """Settings of compute namespaces for the firmware."""
        values = asdict(self.compute)
        del values["namespaces"], values["controllers"]
        return ComputeSettings(**{**values, "program_memory": self.compute.program_memory // MEBI})

    @property
    def described_limits(self) -> Limits:
        """Limits of programs and models for the firmware."""
        return replace(LIMITS, **asdict(self.limits))

    @property
    def described_accelerators(self) -> tuple[AcceleratorConfig, ...]:
        return tuple(
            AcceleratorConfig(
                number,
                accelerator.input_size,
                accelerator.output_size,
                self.limits.frame_size,
                accelerator.controller or 0,
            )
            for number, accelerator in enumerate(self.accelerators)
        )


def _owned(
    shapes: Iterable[NamespaceShape], controllers: Sequence[int] | None
) -> Iterator[NamespaceShape]:
    """Memory or compute namespaces, each of its controller; that of the rest is 0."""
    for shape, controller in zip(shapes, chain(controllers or (), repeat(0)), strict=False):
        yield shape._replace(controllers=(controller,) if controller else ())


SECTIONS: Mapping[str, type[Any]] = {
    "device": DeviceSection,
    "memory": MemorySection,
    "compute": ComputeSection,
    "limits": LimitsSection,
    "key_value": KeyValueSection,
    "guest": GuestSection,
    "time": TimeSection,
}
"""Sections that there is one of, but for `[vta]`, which also has the keys of `vta_config.json`."""

NUMBERED: Mapping[str, tuple[type[NamespaceSection | AcceleratorSection], int, int]] = {
    "namespace": (NamespaceSection, 1, MOST_NAMESPACES),
    "accelerator": (AcceleratorSection, 0, MOST_ACCELERATORS),
}
"""Sections by number: what they are, the first number, how many there may be."""

VTA = "vta"
DRIVE = "drive"

REMEMBERED = f"those that the media remembers, or one of {human(DEFAULT_SIZE)} on a new drive"
"""The namespaces where none is described."""


def read(path: Path) -> Configuration:
    """The configuration of the one drive that a file describes. Raises ConfigurationError."""
    drives = read_drives(path)
    if len(drives) > 1:
        raise ConfigurationError(f"{path} has {len(drives)} drives, which are for potash guest")
    return drives[0]


def read_drives(path: Path) -> list[Configuration]:
    """The configurations of the drives that a file describes, at least of one.

    Relative paths begin at the file's folder. What all drives have is in the usual sections, and
    what one has of its own in [drive.1.device], [drive.1.time] and so on, key by key.
    Raises ConfigurationError, also for a file that is not there.
    """
    content = read_toml(path)
    tables = content.pop(DRIVE, {})
    where = str(path)
    try:
        many = len(tables) if isinstance(tables, dict) else -1
        numbers = [str(number) for number in range(1, many + 1)]
        if many < 0 or sorted(tables) != sorted(numbers):
            raise ConfigurationError(f"[{DRIVE}.1.SECTION] and on are numbered without a gap")
        drives = []
        for number in numbers:
            where = f"{path}: [{DRIVE}.{number}]"
            drives.append(parse(_merged(content, tables[number]), path.absolute().parent))
        return drives or [parse(content, path.absolute().parent)]
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _merged(content: Mapping[str, Any], own: object) -> dict[str, Any]:
    """The sections of all drives, with the keys that one of them has of its own."""
    if not isinstance(own, dict):
        raise ConfigurationError("it has no section")
    merged = dict(content)
    for name, section in own.items():
        common = merged.get(name)
        if name in SECTIONS and isinstance(common, dict) and isinstance(section, dict):
            merged[name] = {**common, **section}
        else:
            merged[name] = section
    return merged


def read_toml(path: Path, largest: int = LARGEST_FILE) -> dict[str, Any]:
    """A TOML file of at most `largest` bytes. Raises ConfigurationError."""
    import tomllib

    try:
        with path.open("rb") as file:
            data = file.read(largest + 1)
        if len(data) > largest:
            raise ConfigurationError(f"{path} is larger than {human(largest)}")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not TOML: it is not UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path}: it is not TOML: {error}") from None


def parse(content: Mapping[str, Any], folder: Path) -> Configuration:
    """The configuration in the tables of a file. Raises ConfigurationError."""
    _known(content, [*SECTIONS, *NUMBERED, VTA], "there is no section [{}]")
    single = {name: _section(kind, content, name, folder) for name, kind in SECTIONS.items()}
    several = {
        name: _numbered(content, name, folder, *described) for name, described in NUMBERED.items()
    }
    for number, one in enumerate(several["namespace"], 1):
        with restated(ValueError, f"[namespace.{number}]", ConfigurationError):
            _ = one.shape
    return Configuration(
        namespaces=several["namespace"],
        accelerators=several["accelerator"] or Configuration.accelerators,
        **_vta(content, folder),
        **single,
    )


def write(configuration: Configuration) -> str:
    """The configuration as TOML that reads back to the same. Raises ConfigurationError."""
    parts = [_written(name, getattr(configuration, name)) for name in SECTIONS]
    parts += [
        _written(f"namespace.{n}", namespace)
        for n, namespace in enumerate(configuration.namespaces, 1)
    ]
    if not configuration.namespaces:
        parts.append([f"# No [namespace.1]: {REMEMBERED}."])
    parts += [_written(f"accelerator.{n}", o) for n, o in enumerate(configuration.accelerators)]
    core = [f"{name} = {value}" for name, value in configuration.vta.to_mapping().items()]
    section = VtaSection(configuration.vta_threads, configuration.vta.name or VtaSection.core)
    parts.append([*_written(VTA, section), *core])
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _written(name: str, section: Any) -> list[str]:
    lines = [f"[{name}]"]
    for field_name, key in kinds.keys(section).items():
        value = getattr(section, field_name)
        if value is not None:
            lines.append(f"{field_name} = {key.kind.write(value)}")
    return lines


def _section(kind: type[Any], content: Mapping[str, Any], name: str, folder: Path) -> Any:
    """A section from the table `name`, which may not be there."""
    table = content.get(name.rpartition(".")[2], {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"[{name}] must be a section")
    keys = kinds.keys(kind)
    _known(table, list(keys), f"[{name}] has no key {{}}")
    values = {}
    for key, value in table.items():
        try:
            values[key] = keys[key].kind.read(value, folder)
        except ValueError as error:
            shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}…"
            raise ConfigurationError(f"{key} in [{name}] is {shown}; it {error}") from None
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
    own = {name: table[name] for name in kinds.keys(VtaSection) if name in table}
    core = {name: value for name, value in table.items() if name not in own}
    section = _section(VtaSection, {VTA: own}, VTA, folder)
    with restated(ConfigError, f"[{VTA}]", ConfigurationError):
        found = Config.from_mapping(core, CORES[section.core])
        return {"vta": found, "vta_threads": section.threads}


def _known(table: Mapping[str, Any], known: list[str], sentence: str) -> None:
    for name in table:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            sections = _sections_of(name)
            if sections and not isinstance(table[name], dict):
                meant = f"the key {name} belongs in {' or '.join(sections)}"
            raise ConfigurationError(f"{sentence.format(name)}; {meant}")


def _sections_of(name: str) -> list[str]:
    """The sections that have a key of this name."""
    kinds_by_name = {**SECTIONS, VTA: VtaSection} | {
        f"{one}.{first}": kind for one, (kind, first, _) in NUMBERED.items()
    }
    return [f"[{one}]" for one, kind in kinds_by_name.items() if name in kinds.keys(kind)]

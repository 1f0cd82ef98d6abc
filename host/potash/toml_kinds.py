"""The kinds of values in `potash.toml`: what is valid, how it is written in TOML, and the type of
its option. A `key` of a section has such a kind."""

import functools
import json
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from nvme_spec.registers import CmbUse
from potash.sdk import faults
from potash.sdk.errors import PotashError
from potash.units import LARGEST, Parsed, human, parse_size, short
from potash_device.controller.cmb import EVERY_USE, CmbSettings
from potash_device.flash.rates import NAMES, ProfileError, thousandths
from potash_device.media.shapes import BLOCK_SIZES, MAX_VALUE, NamespaceShape, WriteAreas
from potash_device.settings import MOST_CONTROLLERS
from potash_firmware.extension_limits import is_file
from potash_firmware.log_components import LogSettings
from potash_firmware.rpu.placement import PlacementSettings
from potash_firmware.rpu.timing import shares

T = TypeVar("T")


MOST_VALUES = 256
"""Values in a list."""


class ConfigurationError(PotashError):
    """A configuration that cannot be read; the sentence says where and why."""


class Refused(ValueError):
    """An invalid value of a key; the end of a sentence that begins with "it"."""


@dataclass(frozen=True)
class Kind:
    """A kind of values, in TOML and on a command line.

    Attributes:
        read: makes a value of what TOML has, and of the folder that relative paths begin at. Raises
            ValueError with the end of a sentence that begins with "it".
        write: makes TOML of a value.
        valid: the valid values, as docs/config.md has them.
        type: click's type of an option; None for text.
        multiple: the option is repeated for each item of a list.
    """

    read: Callable[[Any, Path], Any]
    write: Callable[[Any], str]
    valid: str
    type: click.ParamType[Any] | None = None
    multiple: bool = False


@dataclass(frozen=True)
class Key:
    """A key of a section: its kind, its default, and its option of `potash serve`.

    Attributes:
        names: the option's flags, after its keyword in `potash.testing` where that has another
            name; empty for a key without an option.
        help: the option's help, and the key's row in docs/config.md.
        page: the page of the documentation that says more.
        guest: `potash guest` has the option, too.
        settings: settings of click's option that do not follow from the others.
    """

    kind: Kind
    default: Any
    names: str
    help: str
    page: str = ""
    guest: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def flags(self) -> str:
        """The option as a user writes it; empty where there is none."""
        return self.names.rpartition(" ")[2]

    @property
    def option(self) -> dict[str, Any]:
        """The settings of click's option."""
        found = {**self.settings, "type": self.kind.type, "help": self.help}
        found |= {"multiple": self.kind.multiple, "is_flag": self.kind is FLAG or None}
        if self.default not in (None, False, ()):
            found |= {"default": self.kind.write(self.default).strip('"')}
        return found


def key(
    kind: Kind,
    default: T,
    names: str,
    help: str,
    *,
    page: str = "",
    guest: bool = False,
    **settings: Any,
) -> T:
    """A field of a section (a dataclass) that is a `Key`."""
    described = Key(kind, default, names, help, page, guest, settings)
    value: T = field(default=default, metadata={"key": described})
    return value


def keys(section: Any) -> dict[str, Key]:
    """The keys of a section, which is a dataclass or an instance of one."""
    return {one.name: one.metadata["key"] for one in fields(section)}


def size(least: int, most: int, step: int = 1) -> Kind:
    """Bytes, as a number or as a text with a unit."""
    pieces = f", in steps of {human(step)}" if step > 1 else ""

    def read(value: object, _folder: Path) -> int:
        try:
            found = parse_size(value) if isinstance(value, str) else value
        except ValueError:
            found = None
        if not isinstance(found, int) or isinstance(found, bool):
            raise Refused('must be a size, such as 1048576 or "1M"')
        if not least <= found <= most or found % step:
            raise Refused(f"must be {human(least)} to {human(most)}{pieces}")
        return found

    def parse(described: str) -> int:
        try:
            return read(described, Path())
        except Refused as error:
            raise ValueError(f"{described!r} {error}") from None

    bounds = f"at least {human(least)}" if most == LARGEST else f"{human(least)} to {human(most)}"
    return Kind(
        read, lambda value: text(short(value)), f"size, {bounds}{pieces}", Parsed("SIZE", parse)
    )


def several(one: Kind, what: str, most: int = MOST_VALUES) -> Kind:
    """A list of at most `most` values, which are called `what`."""

    def read(value: object, folder: Path) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > most:
            raise Refused(f"must be a list of at most {most} {what}")
        return tuple(one.read(item, folder) for item in value)

    def write(values: Iterable[Any]) -> str:
        return f"[{', '.join(map(one.write, values))}]"

    return Kind(read, write, f"list of {what}: {one.valid}", one.type, multiple=True)


def count(least: int, most: int) -> Kind:
    """A whole number."""

    def read(value: object, _folder: Path) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise Refused(f"must be a whole number, {least} to {most}")
        return value

    return Kind(read, str, f"{least} to {most}", click.IntRange(least, most))


def choice(choices: Iterable[str | int]) -> Kind:
    """One of some texts or numbers."""
    known = list(choices)

    def read(value: object, _folder: Path) -> object:
        if value not in known or type(value) is not type(known[0]):
            raise Refused(f"must be {' or '.join(map(str, known))}")
        return value

    def write(value: object) -> str:
        return text(value) if isinstance(value, str) else str(value)

    return Kind(read, write, ", ".join(f"`{write(one)}`" for one in known), click.Choice(known))


def _read_flag(value: object, _folder: Path) -> bool:
    if not isinstance(value, bool):
        raise Refused("must be true or false")
    return value


def _read_text(value: object, _folder: Path) -> str:
    if not isinstance(value, str) or not value:
        raise Refused("must be a string that is not empty")
    return value


def text(value: str) -> str:
    """A basic string of TOML. Raises ConfigurationError where Unicode has no such characters."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{value!r} is no Unicode, which TOML is written in") from None
    # JSON escapes what TOML wants escaped, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def parse_cmb(described: str) -> CmbSettings:
    """A controller memory buffer from SIZE[:USE,…]. Raises ValueError."""
    bytes_, colon, names = described.partition(":")
    uses = EVERY_USE
    if colon:
        known = {one.name.lower(): one for one in CmbUse if one.name}
        chosen = names.lower().split(",")
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not one of {', '.join(known)}")
        uses = functools.reduce(operator.or_, (known[name] for name in chosen))
    return CmbSettings(parse_size(bytes_), uses)


def describe_cmb(settings: CmbSettings) -> str:
    """Text of the settings for `parse_cmb`."""
    bytes_ = short(settings.size)
    if settings.uses == EVERY_USE:
        return bytes_
    names = [one.name.lower() for one in CmbUse if one.name and one in settings.uses]
    return f"{bytes_}:{','.join(names)}"


def parse_placement(described: str) -> PlacementSettings:
    """Reclaim unit handles, their units and reclaim groups from HANDLES[:SIZE[:GROUPS]]. Raises
    ValueError."""
    handles, colon, rest = described.partition(":")
    size, _, groups = rest.partition(":")
    for number, meaning in ((handles, "reclaim unit handles"), (groups or "1", "reclaim groups")):
        if not number.isdecimal():
            raise ValueError(f"{number!r} is not a number of {meaning}")
    unit = parse_size(size) if colon else PlacementSettings.unit
    return PlacementSettings(int(handles), unit, int(groups or "1"))


def parse_areas(described: str) -> WriteAreas:
    """Random write areas of zones from SIZE[:GRANULARITY[:ZONES]]. Raises ValueError."""
    size, _, rest = described.partition(":")
    granularity, _, zones = rest.partition(":")
    if zones and not (zones.isdecimal() and 0 < int(zones) < 1 << 32):
        raise ValueError(f"{zones!r} is not a number of zones")
    least = parse_size(granularity) if granularity else max(BLOCK_SIZES)
    return WriteAreas.sound(parse_size(size), least, int(zones or 0))


def describe_areas(areas: WriteAreas) -> str:
    """The text that `parse_areas` reads."""
    zones = f":{areas.zones}" if areas.zones else ""
    return f"{short(areas.size)}:{short(areas.granularity)}{zones}"


def of_controller(text: str, word: str) -> tuple[str, int | None]:
    """A description without its end `:WORD=N`, and the controller N, if there is one. Raises
    ValueError."""
    described, found, number = text.rpartition(f":{word}=")
    if not found:
        return text, None
    if not number.isdecimal() or int(number) >= MOST_CONTROLLERS:
        raise ValueError(f"{text!r}: a controller is 0 to {MOST_CONTROLLERS - 1}")
    return described, int(number)


def parse_key_value(described: str) -> NamespaceShape:
    """A key value namespace from SIZE[:MAX][:private=N]. Raises ValueError."""
    described, private = of_controller(described, "private")
    size, colon, longest = described.partition(":")
    shape = NamespaceShape.key_value(parse_size(size), parse_size(longest) if colon else MAX_VALUE)
    return shape._replace(controllers=() if private is None else (private,))


def describe_key_value(shape: NamespaceShape) -> str:
    """The text that `parse_key_value` reads."""
    private = "".join(f":private={number}" for number in shape.controllers)
    return f"{short(shape.size)}:{short(shape.max_value)}{private}"


def parse_serial(serial: str) -> str:
    """A serial number that fits in Identify Controller. Raises ValueError."""
    if not (serial.strip() and serial.isascii() and serial.isprintable() and len(serial) <= 20):
        raise ValueError(f"{serial!r} is not up to 20 printable ASCII characters")
    return serial


def parse_levels(described: str) -> Mapping[str, str]:
    """Log levels by component from COMPONENT=LEVEL[,…]. Raises ValueError."""
    components = {}
    for item in described.split(","):
        component, equals, level = item.partition("=")
        if not equals:
            raise ValueError(f"{item!r} is not COMPONENT=LEVEL")
        components[component] = level
    return LogSettings(components=components).components


def _described(
    name: str, parse: Callable[[str], T], describe: Callable[[T], str], *examples: str
) -> Kind:
    """A text with parts, like the examples."""
    valid = " or ".join(map(text, examples))

    def read(value: object, folder: Path) -> T:
        described = _read_text(value, folder)
        try:
            return parse(described)
        except ValueError as error:
            raise Refused(f"must be like {valid}: {error}") from None

    shown = " or ".join(f"`{text(example)}`" for example in examples)
    return Kind(
        read, lambda value: text(describe(value)), f"text like {shown}", Parsed(name, parse)
    )


def _placed(
    place: Callable[[str, Path], T], valid: str, type: click.ParamType[Any] | None = None
) -> Kind:
    """A text that may name a file, which `place` places in the folder where relative paths begin;
    it is written with its whole path."""
    return Kind(
        lambda value, folder: place(_read_text(value, folder), folder),
        lambda value: text(str(place(str(value), Path.cwd()))),
        valid,
        type,
    )


def _policy(policy: str, folder: Path) -> str:
    """KIND=NAME, or KIND=FILE:CLASS."""
    kind, _, name = policy.partition("=")
    return f"{kind}={folder / name}" if ":" in name else policy


def _read_share(value: object, folder: Path) -> int:
    try:
        return thousandths(_read_text(value, folder))
    except ProfileError:
        raise Refused('must be a percentage like "5%"') from None


def _native(text: str, folder: Path) -> str:
    """A native program, whose path begins at a folder."""
    from potash_firmware.native_programs import source_of  # with what registers extensions

    if source_of(text) is None:
        raise Refused("must be FILE.so:FUNCTION or FILE.so:FUNCTION:TIME")
    return str(folder / text)


FLAG = Kind(_read_flag, lambda value: "true" if value else "false", "`true` or `false`")
TEXT = _placed(lambda value, _folder: value, "text")
CMB = _described("SIZE[:USE,…]", parse_cmb, describe_cmb, "64M", "64M:sqs,rds,wds")
PLACEMENT = _described(
    "HANDLES[:SIZE[:GROUPS]]",
    parse_placement,
    lambda chosen: f"{chosen.handles}:{short(chosen.unit)}:{chosen.groups}".removesuffix(":1"),
    "8",
    "8:64M",
    "4:64M:2",
)
AREAS = _described("SIZE[:GRANULARITY[:ZONES]]", parse_areas, describe_areas, "64K", "1M:16K:8")
KEY_VALUE = _described(
    "SIZE[:MAX][:private=N]",
    parse_key_value,
    describe_key_value,
    "1G",
    "1G:64K",
    "1G:private=1",
)
SERIAL = _described("TEXT", parse_serial, str, "POTASH0002")
LEVELS = _described(
    "COMPONENT=LEVEL[,…]",
    parse_levels,
    lambda levels: ",".join(map("=".join, levels.items())),
    "rpu=debug",
    "rpu=debug,apu=info",
)
FAULT = _described(
    "FAULT", faults.parse, faults.describe, "io read status=INTERNAL_ERROR count=3", "io write lost"
)
SHARES = _described(
    "NAME=WEIGHT[,…]",
    shares.parsed,
    str,
    "host=3,jobs=1",
    "host=2,jobs=1,accelerator1=4,namespace3=1",
)
DRIVE = _placed(
    lambda name, folder: name if name in NAMES else str(folder / name),
    f"{', '.join(f'`{text(name)}`' for name in NAMES)}, or the path of a file",
)
SHARE = Kind(
    _read_share,
    lambda value: text(f"{value / 10:g}%"),
    'text like `"5%"`',
    Parsed("PERCENT", thousandths),
)
POLICY = _placed(_policy, 'text like `"gc=fifo"` or `"wear=mine.py:Mine"`')
EXTENSION = _placed(
    lambda name, folder: str(folder / name) if is_file(name) else name,
    "path of a file (`.py`), or the name of an installed extension",
)
NATIVE = _placed(
    _native,
    'text like `"kernels.so:transform"` or `"kernels.so:transform:fixed=2us"`',
    Parsed("FILE.so:FUNCTION[:TIME]", lambda value: _native(value, Path.cwd())),
)
PATH = _placed(lambda name, folder: folder / name, "path", click.Path(path_type=Path))
SOCKETS = Kind(
    lambda value, folder: tuple(
        PATH.read(item, folder) for item in (value if isinstance(value, list) else [value])
    ),
    lambda paths: several(PATH, "paths").write(paths) if len(paths) > 1 else PATH.write(paths[0]),
    "path, or list of paths",
    PATH.type,
    multiple=True,
)
FILE = replace(PATH, valid="path of a file", type=click.Path(dir_okay=False, path_type=Path))
EXISTING_FILE = replace(FILE, type=click.Path(exists=True, dir_okay=False, path_type=Path))

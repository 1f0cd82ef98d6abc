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
from potash.sdk.errors import PotashError
from potash.units import Parsed, human, parse_size, short
from potash_device.controller.cmb import EVERY_USE, CmbSettings
from potash_device.timing.profile import PROFILES
from potash_firmware.rpu.placement import PlacementSettings

T = TypeVar("T")


class ConfigurationError(PotashError):
    """A configuration that cannot be read; the sentence says where and why."""


class Refused(ValueError):
    """A value that may not stand where it does; the end of a sentence that begins with "it"."""


@dataclass(frozen=True)
class Kind:
    """How a value stands in TOML, and on a command line.

    `read` is given the value and the folder that relative paths begin at, and raises ValueError
    with the end of a sentence that begins with "it"; `write` makes TOML of what it gave. `type` is
    click's; a `multiple` option is repeated for each item of a list.
    """

    read: Callable[[Any, Path], Any]
    write: Callable[[Any], str]
    type: click.ParamType[Any] | None = None
    multiple: bool = False


@dataclass(frozen=True)
class Key:
    """A key of a section: its kind, its default, and its option of `potash serve`.

    Attributes:
        flags: the option's names, as click has them; empty for a key without an option.
        help: the option's help.
        guest: `potash guest` has the option, too.
        settings: further settings of click's option.
    """

    kind: Kind
    default: Any
    flags: str = ""
    help: str = ""
    guest: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


def key(
    kind: Kind, default: T, flags: str = "", help: str = "", *, guest: bool = False, **settings: Any
) -> T:
    """A field of a section (a dataclass) that is a `Key`."""
    described = Key(kind, default, flags, help, guest, settings)
    value: T = field(default=default, metadata={"key": described})
    return value


def keys(section: Any) -> dict[str, Key]:
    """The keys of a section, which is a dataclass or an instance of one."""
    return {one.name: one.metadata["key"] for one in fields(section)}


def _parsed(name: str, read: Callable[[Any, Path], T]) -> Parsed[T]:
    """The type of an option whose text is read as in TOML."""

    def parse(text: str) -> T:
        try:
            return read(text, Path())
        except Refused as error:
            raise ValueError(f"{text!r} {error}") from None

    return Parsed(name, parse)


def size(least: int, most: int, step: int = 1) -> Kind:
    """Bytes, as a number or as a text with a unit."""

    def read(value: object, _folder: Path) -> int:
        try:
            found = parse_size(value) if isinstance(value, str) else value
        except ValueError:
            found = None
        if not isinstance(found, int) or isinstance(found, bool):
            raise Refused('must be a size, such as 1048576 or "1M"')
        if not least <= found <= most or found % step:
            pieces = f", in steps of {human(step)}" if step > 1 else ""
            raise Refused(f"must be {human(least)} to {human(most)}{pieces}")
        return found

    return Kind(read, lambda value: text(short(value)), _parsed("SIZE", read))


def sizes(least: int, most: int, step: int, number: int) -> Kind:
    """A list of at most `number` of them."""
    one = size(least, most, step)

    def read(value: object, folder: Path) -> tuple[int, ...]:
        if not isinstance(value, list) or len(value) > number:
            raise Refused(f"must be a list of at most {number} sizes")
        return tuple(one.read(item, folder) for item in value)

    return Kind(read, lambda values: f"[{', '.join(map(one.write, values))}]", one.type, True)


def count(least: int, most: int) -> Kind:
    def read(value: object, _folder: Path) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise Refused(f"must be a whole number, {least} to {most}")
        return value

    return Kind(read, str, click.IntRange(least, most))


def choice(choices: Iterable[str | int]) -> Kind:
    known = list(choices)

    def read(value: object, _folder: Path) -> object:
        if value not in known or type(value) is not type(known[0]):
            raise Refused(f"must be {' or '.join(map(str, known))}")
        return value

    def write(value: object) -> str:
        return text(value) if isinstance(value, str) else str(value)

    return Kind(read, write, click.Choice(known))


def _read_flag(value: object, _folder: Path) -> bool:
    if not isinstance(value, bool):
        raise Refused("must be true or false")
    return value


def _read_text(value: object, _folder: Path) -> str:
    if not isinstance(value, str) or not value:
        raise Refused("must be a string that is not empty")
    return value


def _read_path(value: object, folder: Path) -> Path:
    return folder / _read_text(value, folder)


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
    """What `parse_cmb` reads as the same."""
    bytes_ = short(settings.size)
    if settings.uses == EVERY_USE:
        return bytes_
    names = [one.name.lower() for one in CmbUse if one.name and one in settings.uses]
    return f"{bytes_}:{','.join(names)}"


def parse_placement(described: str) -> PlacementSettings:
    """Reclaim unit handles and their units from HANDLES[:SIZE]. Raises ValueError."""
    handles, colon, size = described.partition(":")
    if not handles.isdecimal():
        raise ValueError(f"{handles!r} is not a number of reclaim unit handles")
    unit = parse_size(size) if colon else PlacementSettings.unit
    return PlacementSettings(int(handles), unit)


def describe_placement(settings: PlacementSettings) -> str:
    """What `parse_placement` reads as the same."""
    return f"{settings.handles}:{short(settings.unit)}"


def _described(
    name: str, parse: Callable[[str], T], describe: Callable[[T], str], one: str, other: str
) -> Kind:
    """A kind with parts, written as two examples are."""

    def read(value: object, folder: Path) -> T:
        described = _read_text(value, folder)
        try:
            return parse(described)
        except ValueError as error:
            raise Refused(f'must be like "{one}" or "{other}": {error}') from None

    return Kind(read, lambda settings: text(describe(settings)), _parsed(name, read))


def _read_drive(value: object, folder: Path) -> str:
    """A profile's name, or the path of a file."""
    name = _read_text(value, folder)
    return name if name in PROFILES else str(folder / name)


def _read_policies(value: object, folder: Path) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Refused("must be a list of strings")
    return tuple(_placed(one, folder) for one in value)


def _placed(policy: str, folder: Path) -> str:
    """KIND=FILE:CLASS with the file's whole path."""
    kind, _, name = policy.partition("=")
    return f"{kind}={folder / name}" if ":" in name else policy


FLAG = Kind(_read_flag, lambda value: "true" if value else "false")
TEXT = Kind(_read_text, text)
CMB = _described("SIZE[:USE,…]", parse_cmb, describe_cmb, "64M", "64M:sqs,rds,wds")
PLACEMENT = _described("HANDLES[:SIZE]", parse_placement, describe_placement, "8", "8:64M")
DRIVE = Kind(_read_drive, lambda name: text(_written_drive(name)))
POLICIES = Kind(
    _read_policies,
    lambda names: f"[{', '.join(text(_placed(one, Path.cwd())) for one in names)}]",
    multiple=True,
)
PATH = Kind(_read_path, lambda path: text(str(path.absolute())), click.Path(path_type=Path))
FILE = replace(PATH, type=click.Path(dir_okay=False, path_type=Path))


def _written_drive(name: str) -> str:
    return name if name in PROFILES else str(Path(name).absolute())

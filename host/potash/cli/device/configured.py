"""The configuration of a drive: `--config FILE`, and the options that override what it says."""

import os
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from csd_spec.faults import FaultFlags
from csd_spec.opcodes import PAGE_SIZE
from potash import configuration, toml_kinds
from potash.cli.drive.common import FAULT, Decorator, completing, together
from potash.sdk.errors import PotashError
from potash.sdk.faults import Fault, describe, read_table
from potash.sections import LARGEST_BUFFER, MODELLED, AcceleratorSection, NamespaceSection
from potash.toml_kinds import Key
from potash.units import Parsed, Size, human
from potash_device.media import shapes
from potash_device.timing.profile import PROFILES as DRIVES

if TYPE_CHECKING:
    from potash_firmware.boot import Device


def _namespace(text: str) -> NamespaceSection:
    size, colon, described = text.partition(":")
    blocks, _, protection = described.partition(":")
    block, _, metadata = blocks.partition("+")
    if colon and block not in map(str, shapes.BLOCK_SIZES):
        raise ValueError(f"{text!r}: blocks have {' or '.join(map(str, shapes.BLOCK_SIZES))} bytes")
    if metadata and metadata not in map(str, shapes.METADATA_SIZES):
        sizes = ", ".join(map(str, shapes.METADATA_SIZES))
        raise ValueError(f"{text!r}: blocks have {sizes} bytes of metadata")
    if protection and (protection not in {"1", "2", "3"} or not metadata):
        raise ValueError(f"{text!r}: metadata may have protection information of type 1, 2 or 3")
    block_size = int(block) if colon else shapes.DEFAULT_BLOCK_SIZE
    return NamespaceSection(
        Size(block_size).parse(size), block_size, int(metadata or 0), int(protection or 0)
    )


def _zoned(text: str) -> NamespaceSection:
    size, *zone = text.split(":")
    if len(zone) > 2:
        raise ValueError(f"{text!r} is not SIZE:ZONE:CAPACITY")
    described = shapes.NamespaceShape.zoned(Size().parse(size), *map(Size().parse, zone))
    return NamespaceSection(
        Size().parse(size), zone_size=described.zone_size, zone_capacity=described.zone_capacity
    )


def _accelerator(text: str) -> AcceleratorSection:
    first, _, second = text.partition(":")
    sizes = [Size(PAGE_SIZE).parse(one) for one in (first, second or first)]
    if max(sizes) > LARGEST_BUFFER:
        raise ValueError(f"{text!r}: a buffer has at most {human(LARGEST_BUFFER)}")
    return AcceleratorSection(*sizes)


NAMESPACE = Parsed("SIZE[:BLOCK[+METADATA[:TYPE]]]", _namespace)


class KeyOption(click.Option):
    """An option that overrides a key of a section; in the section "", whole sections."""

    def __init__(self, flags: list[str], *, section: str, key: str, **settings: Any) -> None:
        self.section, self.key = section, key
        name = f"{section}_{key}"
        super().__init__([name, *flags], expose_value=False, callback=self._keep, **settings)

    def _keep(self, ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        """Keep what is given, which a default is not."""
        assert self.name is not None
        if ctx.get_parameter_source(self.name) is not ParameterSource.DEFAULT:
            given().setdefault(self.section, {})[self.key] = value


def given() -> dict[str, dict[str, Any]]:
    """The values of the running command's options that override something, by section and key."""
    found: dict[str, dict[str, Any]] = click.get_current_context().meta.setdefault(__name__, {})
    return found


def _option(section: str, name: str, key: Key) -> Decorator:
    """The option of a key."""
    settings = dict(key.settings)
    if key.default not in (None, False, ()):
        settings |= {"default": key.kind.write(key.default).strip('"'), "show_default": True}
    if key.kind is toml_kinds.DRIVE:
        settings["shell_complete"] = completing(lambda: DRIVES)
    settings |= {"type": key.kind.type, "multiple": key.kind.multiple, "help": key.help}
    return click.option(key.flags, cls=KeyOption, section=section, key=name, **settings)


def _sections_option(key: str, parsed: click.ParamType[Any], help: str, **more: Any) -> Decorator:
    """An option that describes a whole section."""
    flag = f"--{key.replace('_', '-')}"
    return click.option(flag, cls=KeyOption, section="", key=key, type=parsed, help=help, **more)


def configuration_options(*, guest: bool) -> Decorator:
    """`--config`, `--print-config`, and what overrides the file in `potash serve` or `guest`."""
    options: list[Decorator] = [
        click.option(
            "--config",
            "config_file",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Configuration file (potash.toml); other options override it.",
        ),
        click.option(
            "--print-config",
            is_flag=True,
            help="Print the resulting configuration as TOML, and exit.",
        ),
        *(
            _option(section, name, key)
            for section, kind in configuration.SECTIONS.items()
            for name, key in toml_kinds.keys(kind).items()
            if key.flags and (key.guest if guest else section != "guest")
        ),
        _sections_option(
            "namespace",
            NAMESPACE,
            "A namespace for a new drive: its size, block size (512 or 4096, the default), bytes "
            "of metadata of each block (8, 16 or 64) and type of protection information (1, 2 or "
            "3); may be repeated. The media store it.",
            multiple=True,
        ),
        _sections_option(
            "size",
            Size(shapes.DEFAULT_BLOCK_SIZE),
            f"Short form for one --namespace of this size (default: {human(shapes.DEFAULT_SIZE)}).",
        ),
        _sections_option(
            "zoned_namespace",
            Parsed("SIZE[:ZONE[:CAPACITY]]", _zoned),
            "A zoned namespace for a new drive: its size, the size of its zones (a power of two, "
            f"default: {human(shapes.DEFAULT_ZONE_SIZE)}), and how much of each zone can be "
            "written (default: all); may be repeated. It follows those of --namespace. The media "
            "store it.",
            multiple=True,
        ),
    ]
    if not guest:
        accelerators = _sections_option(
            "accelerator",
            Parsed("SIZE[:SIZE]", _accelerator),
            "Sizes of the input and the output buffer of an accelerator (default: the same size); "
            "may be repeated. Accelerators are numbered from 0 (default: one with 64M).",
            multiple=True,
        )
        options.append(accelerators)
    return together(*options)


def configured(config_file: Path | None) -> configuration.Configuration:
    """The configuration that the file and the options of the running command describe.

    Raises UsageError and ConfigurationError.
    """
    wanted = configuration.Configuration()
    if config_file is not None:
        wanted = configuration.read(config_file)
    overrides = dict(given())
    several = overrides.pop("", {})
    namespaces = several.get("namespace", ())
    if "size" in several:
        if namespaces:
            raise click.UsageError("--size is short for --namespace; give one of them")
        namespaces = (NamespaceSection(several["size"]),)
    wanted = replace(
        wanted,
        namespaces=(*namespaces, *several.get("zoned_namespace", ())) or wanted.namespaces,
        accelerators=several.get("accelerator") or wanted.accelerators,
        **{name: replace(getattr(wanted, name), **values) for name, values in overrides.items()},
    )
    if wanted.time.mode != MODELLED:
        monitors = ["monitor"] if wanted.time.monitor is not None else []
        for name in (*overrides.get("time", ()), *monitors):
            if name != "mode":
                flag = toml_kinds.keys(wanted.time)[name].flags
                raise click.UsageError(f"{flag} is for --time {MODELLED}")
    return wanted


def _libubpf(_context: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Set the variable, which the processes that run programs inherit."""
    if path is not None:
        os.environ["POTASH_LIBUBPF"] = str(path.absolute())


libubpf_option = click.option(
    "--libubpf",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    expose_value=False,
    callback=_libubpf,
    help="The library of the engine ubpf (default: POTASH_LIBUBPF, or libubpf.so as the loader "
    "finds it).",
)


fault_options = together(
    click.option(
        "--fault",
        "faults",
        type=FAULT,
        multiple=True,
        help='Inject a fault from the start, like "io read status=UNRECOVERED_READ_ERROR count=3"; '
        "may be repeated (docs/faults.md).",
    ),
    click.option(
        "--faults",
        "fault_files",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        multiple=True,
        help="Inject the faults of a TOML file with [[fault]] tables.",
    ),
    click.option(
        "--allow-faults",
        is_flag=True,
        help="Allow fault injection at run time (potash fault).",
    ),
)


def faults_of(faults: Iterable[Fault], files: Iterable[Path]) -> tuple[Fault, ...]:
    """Every fault that the options name. Raises PotashError for a file that has none."""
    found = list(faults)
    for path in files:
        try:
            found += read_table(tomllib.loads(path.read_text()))
        except UnicodeDecodeError:
            raise PotashError(f"{path} is not TOML: it is not UTF-8") from None
        except (PotashError, ValueError) as error:
            raise PotashError(f"{path}: {error}") from None
    for fault in found:
        if FaultFlags.AT_ONCE in fault.flags:
            raise PotashError(
                f"{describe(fault)!r} is for a device that runs: inject it with potash fault add"
            )
    return tuple(found)


_FILE = click.Path(dir_okay=False, path_type=Path)


class Moving(NamedTuple):
    """Whether a client brings the state of another device, and the files of states."""

    incoming: bool
    save: Path | None
    load: Path | None

    @property
    def waits(self) -> bool:
        """The device begins with a state, and not as when power comes."""
        return self.incoming or self.load is not None


moving_options = together(
    click.option(
        "--incoming",
        is_flag=True,
        help="Wait for a client that transfers the state of another device; that device hands "
        "--media over.",
    ),
    click.option(
        "--save",
        type=_FILE,
        help="When interrupted, stop the drive, and write its state to this file, for --load.",
    ),
    click.option(
        "--load",
        type=_FILE,
        help="Continue from a state that --save has written, with the same --media, when a client "
        "attaches that still has the same memory.",
    ),
)


def load_state(device: "Device", path: Path) -> None:
    """Raises PotashError."""
    try:
        device.load(path.read_bytes())
    except OSError as error:
        raise PotashError(f"the state in {path} cannot be loaded: {error.strerror}") from None


def save_state(device: "Device", path: Path) -> None:
    """The file is there whole, or not at all. Raises PotashError."""
    new = path.with_name(path.name + ".new")
    try:
        state = device.save()
        new.touch(mode=0o600)
        new.write_bytes(state)
        new.rename(path)
    except OSError as error:
        raise PotashError(f"the state cannot be saved in {path}: {error.strerror}") from None

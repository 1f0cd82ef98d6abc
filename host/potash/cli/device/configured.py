"""The options of a drive, and `--config FILE`: what a file says, as the defaults of options.

Whatever is said on the command line takes the place of what the file says.
"""

import dataclasses
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from csd_spec.faults import FaultFlags
from potash import configuration, toml_kinds
from potash.cli.drive.common import FAULT, together
from potash.sdk.errors import PotashError
from potash.sdk.faults import Fault, describe, read_table
from potash.units import Parsed, Size, human
from potash_device.media import shapes

if TYPE_CHECKING:
    from potash_firmware.boot import Device


def _namespace(text: str) -> shapes.NamespaceShape:
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
    return shapes.NamespaceShape(
        Size(block_size).parse(size),
        block_size,
        metadata=shapes.Metadata(int(metadata or 0), protection=int(protection or 0)),
    )


NAMESPACE = Parsed("SIZE[:BLOCK[+METADATA[:TYPE]]]", _namespace)


DEFAULTS = configuration.Configuration()


def _use(ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Have the options default to what the file says."""
    found = DEFAULTS if path is None else configuration.read(path)
    ctx.meta[__name__] = found
    if path is not None:
        values: dict[str, Any] = {
            **vars(found.device),
            **dataclasses.asdict(found.guest),
            "namespaces": tuple(one for one in found.shapes if one.has_blocks),
            "accelerators": tuple((a.input_size, a.output_size) for a in found.accelerators),
            "memory_namespaces": found.memory.namespaces,
            "memory_capacity": found.memory.capacity,
            "memory_bar": found.memory.bar,
            "compute_namespaces": found.compute.namespaces,
            "time_mode": found.time.mode,
            "modelled_drive": found.time.drive,
            "policies": found.time.policies,
            "time_factor": found.time.factor,
            "monitor": found.time.monitor,
            "still_limit": found.time.still_limit,
        }
        several = {
            one.name for one in ctx.command.params if isinstance(one, click.Option) and one.multiple
        }
        ctx.default_map = {
            name: (value,) if name in several and not isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None
        }
    return path


config_options = together(
    click.option(
        "--config",
        "config_file",
        type=click.Path(dir_okay=False, path_type=Path),
        is_eager=True,
        callback=_use,
        help="Configuration file (potash.toml); other options override it.",
    ),
    click.option(
        "--print-config",
        is_flag=True,
        help="Print the resulting configuration as TOML, and exit.",
    ),
)


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


def _memory_size(text: str) -> int:
    size = Size(shapes.MEMORY_UNIT).parse(text)
    if size % shapes.MEMORY_UNIT or size > configuration.LARGEST_MEMORY:
        raise ValueError(
            f"{text!r}: memory has {human(shapes.MEMORY_UNIT)} to "
            f"{human(configuration.LARGEST_MEMORY)}, in steps of {human(shapes.MEMORY_UNIT)}"
        )
    return size


MEMORY_SIZE = Parsed("SIZE", _memory_size)
"""Whole pages, as much as a memory namespace may have."""


def _zoned(text: str) -> shapes.NamespaceShape:
    size, *zone = text.split(":")
    if len(zone) > 2:
        raise ValueError(f"{text!r} is not SIZE:ZONE:CAPACITY")
    return shapes.NamespaceShape.zoned(Size().parse(size), *map(Size().parse, zone))


extension_options = together(
    click.option(
        "--zoned-namespace",
        "zoned_namespaces",
        type=Parsed("SIZE[:ZONE[:CAPACITY]]", _zoned),
        multiple=True,
        help="A zoned namespace for a new drive: its size, the size of its zones (a power of two, "
        f"default: {human(shapes.DEFAULT_ZONE_SIZE)}), and how much of each zone can be written "
        "(default: all); may be repeated. It follows those of --namespace. The media store it.",
    ),
    click.option(
        "--memory-namespace",
        "memory_namespaces",
        type=MEMORY_SIZE,
        multiple=True,
        help="A memory namespace (Subsystem Local Memory) of this size, for a new drive or one "
        "without any; may be repeated. Its contents are not persistent.",
    ),
    click.option(
        "--memory-bar/--no-memory-bar",
        help="Let the host map the first memory namespace, as BAR 4. Its size must be a power "
        "of two, up to 1G.",
    ),
    click.option(
        "--compute-namespace",
        "compute_namespaces",
        count=True,
        help="A compute namespace (Computational Programs), for a new drive or one without any; "
        "may be repeated.",
    ),
    click.option(
        "--cmb",
        type=Parsed("SIZE[:USE,…]", toml_kinds.parse_cmb),
        help="Controller memory buffer in BAR 2: its size, a power of two (Linux uses it from "
        "2M on), and its uses: sqs,cqs,lists,rds,wds for submission and completion "
        "queues, lists, and data of reads and writes (default: all uses; no buffer).",
    ),
    click.option(
        "--fdp",
        type=Parsed("HANDLES[:SIZE]", toml_kinds.parse_placement),
        help="Flexible data placement: the number of reclaim unit handles (1 to 128), and the "
        "size of a reclaim unit (default: 64M), which with --time modelled is that of a "
        "superblock.",
    ),
)
"""What a drive may have besides namespaces with plain blocks."""


def computational(
    memory: tuple[int, ...], capacity: int | None, bar: bool, compute: int
) -> dict[str, Any]:
    """Those sections of a configuration, with the limits that the file gives."""
    if compute > configuration.MOST_COMPUTE_NAMESPACES:
        raise click.UsageError(
            f"a drive has at most {configuration.MOST_COMPUTE_NAMESPACES} compute namespaces"
        )
    found = given()
    return {
        "memory": dataclasses.replace(found.memory, namespaces=memory, capacity=capacity, bar=bar),
        "compute": dataclasses.replace(found.compute, namespaces=compute),
    }


def given() -> configuration.Configuration:
    """What the file says, or the defaults where none is given."""
    found = click.get_current_context().meta[__name__]
    assert isinstance(found, configuration.Configuration)
    return found


def wanted_namespaces(
    namespaces: tuple[shapes.NamespaceShape, ...],
    size: int | None,
    zoned: tuple[shapes.NamespaceShape, ...] = (),
) -> tuple[shapes.NamespaceShape, ...]:
    """What `--namespace`, its short form `--size`, and `--zoned-namespace` come to."""
    source = click.get_current_context().get_parameter_source("namespaces")
    if size is None:
        named = not zoned or source is ParameterSource.COMMANDLINE
        return (namespaces if named else ()) + zoned
    if source is ParameterSource.COMMANDLINE:
        raise click.UsageError("--size is short for --namespace; give one of them")
    return (shapes.NamespaceShape(size), *zoned)


def sections(
    namespaces: tuple[shapes.NamespaceShape, ...],
) -> tuple[configuration.NamespaceSection, ...]:
    """Namespaces as a configuration has them."""
    return tuple(
        configuration.NamespaceSection(
            one.zones * one.zone_size or one.size,
            one.block_size,
            one.metadata.size,
            one.metadata.protection,
            one.zone_size or None,
            one.zone_capacity or None,
        )
        for one in namespaces
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

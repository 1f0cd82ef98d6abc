"""The list of a drive's namespaces in `namespaces.toml`.

It is replaced atomically, so it is in the state before or after a change, whatever ends the device.
It also records changes that may be incomplete; they are completed before any block is read."""

import errno
import os
import tomllib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nvme_spec.identify.capabilities import CommandSet
from potash_device.media.errors import MediaError

BLOCK_SIZES = (512, 4096)
DEFAULT_BLOCK_SIZE = 4096
DEFAULT_SIZE = 1 << 30
"""Bytes of a namespace that nothing is said of."""

MEMORY_UNIT = 4096
"""Bytes; the size of a memory namespace is a multiple of it."""

MOST_NAMESPACES = 64

LARGEST = 1 << 62
"""Bytes; more than a file may have."""


class DriveError(Exception):
    """What was named is no drive, or not the one that was asked for; the sentence says why."""


class NamespaceShape(NamedTuple):
    """Size and block size in bytes, and what a host has made of the namespace.

    One of another command set than NVM has no blocks here: the drive remembers that it is there.
    """

    size: int = DEFAULT_SIZE
    block_size: int = DEFAULT_BLOCK_SIZE
    attached: bool = True
    shared: bool = False
    uuid: str = ""
    """Of a namespace that a host has made; others have one that follows from the drive's."""
    erase: bool = False
    """Its blocks are to be gone before they are read again."""
    formats: int = 0
    """How often a host has formatted it: what was noted of its blocks before is void."""
    csi: int = CommandSet.NVM
    """Its command set."""

    @classmethod
    def memory(cls, size: int) -> "NamespaceShape":
        """A memory namespace of that many bytes."""
        return cls(size, csi=CommandSet.MEMORY)

    @classmethod
    def compute(cls) -> "NamespaceShape":
        """A compute namespace, which has no size."""
        return cls(0, csi=CommandSet.COMPUTE)


def blocks_of(shapes: Mapping[int, NamespaceShape]) -> dict[int, NamespaceShape]:
    """Those that have logical blocks, and so a file."""
    return {nsid: shape for nsid, shape in shapes.items() if shape.csi == CommandSet.NVM}


@dataclass
class Listed:
    shapes: dict[int, NamespaceShape]
    capacity: int | None = None
    """Bytes for all namespaces together; None where that is what they have."""
    remove: tuple[int, ...] = field(default=())
    """Namespaces that are gone, and whose files may not be."""
    memory_capacity: int | None = None
    """Bytes for all memory namespaces together; None where that is what they have."""


def read_list(path: Path) -> Listed | None:
    """What is remembered; None where nothing is. Raises DriveError for nonsense."""
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DriveError(f"cannot read {path}: {error}") from None
    try:
        return _listed(content)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DriveError(f"{path} does not describe the namespaces of a drive") from None


def write_list(path: Path, listed: Listed) -> None:
    """Remember the namespaces: the list is there whole, or not at all. Raises MediaError."""
    lines = ["# What the files of this drive are; sizes in bytes."]
    if listed.capacity is not None:
        lines.append(f"capacity = {listed.capacity}")
    if listed.memory_capacity is not None:
        lines.append(f"memory_capacity = {listed.memory_capacity}")
    if listed.remove:
        lines.append(f"remove = {list(listed.remove)}")
    for nsid, shape in sorted(listed.shapes.items()):
        lines += ["", f"[namespace.{nsid}]"]
        lines += [
            f"{name} = {_toml(value)}"
            for name, value in shape._asdict().items()
            if name in _ALWAYS or value != NamespaceShape._field_defaults[name]
        ]
    new = path.with_name(path.name + ".new")
    try:
        with new.open("w") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
        keep_folder(path.parent)
    except OSError as error:
        raise MediaError(error.errno, f"cannot write {path}: {error.strerror}") from None


def keep_folder(folder: Path) -> None:
    """Have the names in `folder` outlive a loss of power. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems have nothing to do for a folder
            raise
    finally:
        os.close(fd)


_ALWAYS = ("size", "block_size")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _listed(content: Mapping[str, Any]) -> Listed:
    """Raises ValueError, TypeError, KeyError or AttributeError."""
    shapes = {
        int(nsid): _shape(table)
        for nsid, table in sorted(content.get("namespace", {}).items(), key=lambda one: int(one[0]))
    }
    capacity, remove = content.get("capacity"), tuple(content.get("remove", ()))
    memory = content.get("memory_capacity")
    known = {"namespace", "capacity", "memory_capacity", "remove"}
    # A drive without any namespace is one whose host has deleted them all, and has a capacity.
    if not set(content) <= known or not (shapes or capacity):
        raise ValueError
    if not all(_is_number(nsid, MOST_NAMESPACES) for nsid in (*shapes, *remove)):
        raise ValueError
    if any(one is not None and not _is_number(one, LARGEST) for one in (capacity, memory)):
        raise ValueError
    return Listed(shapes, capacity, remove, memory)


def _shape(table: Mapping[str, Any]) -> NamespaceShape:
    """One entry of the list. Raises ValueError, TypeError or KeyError."""
    shape = NamespaceShape(**table)
    if not {*_ALWAYS} <= set(table) or shape.block_size not in BLOCK_SIZES:
        raise ValueError
    if not _is_size(shape):
        raise ValueError
    if isinstance(shape.formats, bool) or not 0 <= shape.formats < 1 << 32:
        raise ValueError
    if not all(isinstance(one, bool) for one in (shape.attached, shape.shared, shape.erase)):
        raise ValueError
    if shape.uuid:
        uuid.UUID(shape.uuid)
    return shape


def _is_size(shape: NamespaceShape) -> bool:
    if shape.csi == CommandSet.COMPUTE:
        return shape.size == 0
    unit = MEMORY_UNIT if shape.csi == CommandSet.MEMORY else 1
    known = shape.csi in (CommandSet.NVM, CommandSet.MEMORY)
    whole = _is_number(shape.size, LARGEST) and shape.size % unit == 0
    return known and whole and shape.size >= shape.block_size


def _is_number(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most

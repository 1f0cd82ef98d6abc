"""The list of a drive's namespaces in `namespaces.toml`.

It is replaced atomically, so it is in the state before or after a change, whatever ends the device.
It also records changes that may be incomplete; they are completed before any block is read."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from nvme_spec.identify.capabilities import CommandSet
from potash_device.media.durable import replace_file
from potash_device.saved import typed
from potash_wire.records import U8, U16, U32, Range

BLOCK_SIZES = (512, 4096)
METADATA_SIZES = (8, 16, 64)
DEFAULT_BLOCK_SIZE, DEFAULT_SIZE = 4096, 1 << 30
"""Bytes of a block, and of a namespace, that nothing is said of."""

MEMORY_UNIT = 4096
"""Bytes; the size of a memory namespace is a multiple of it."""

FLASH_PAGE = 4096
"""Bytes of a logical page of a modelled drive."""
INDEX_ENTRY = 32
"""Bytes of a key in an index on modelled flash."""
SPARE = 8
"""A log of values has so many spare pages, and another one for so many pages of values."""

MAX_VALUE = 512 << 10
"""Bytes of a value: as many as one command moves (MDTS)."""

ZONE_RECORD = 128
"""Bytes that the media keep of a zone, behind the blocks of all zones."""

DEFAULT_ZONE_SIZE = 16 << 20
LEAST_ZONE_SIZE = 64 << 10
"""Bytes of a zone; Linux wants a power of two."""

LARGEST_AREA = 16 << 20
"""Bytes of a zone random write area: Identify counts blocks of 512 bytes in 16 bits."""

MOST_NAMESPACES = 64

MOST_HANDLES = 128
"""Reclaim unit handles of a drive."""

LARGEST = 1 << 62
"""Bytes; more than a file may have."""

LONGEST_LIST = 1 << 20
"""Bytes of the list of namespaces."""

Handle = Annotated[int, Range(0, MOST_HANDLES - 1)]
Nsid = Annotated[int, Range(1, MOST_NAMESPACES)]
Size = Annotated[int, Range(1, LARGEST)]


class BlockFormat(NamedTuple):
    """An LBA format: bytes of a block and of its metadata, and what the protection information in
    them is like where a host wants some: bits of its guard and of its storage tag."""

    block_size: int
    metadata: int = 0
    guard: int = 16
    storage_tag: int = 0

    @property
    def extended(self) -> bool:
        """A host has to know of such protection information (LBAFEE)."""
        return self.guard != 16 or self.storage_tag != 0


FORMATS = (
    BlockFormat(512),
    BlockFormat(4096),
    BlockFormat(512, 8),
    BlockFormat(512, 16),
    BlockFormat(512, 64),
    BlockFormat(4096, 8),
    BlockFormat(4096, 16),
    BlockFormat(4096, 64),
    BlockFormat(4096, 16, guard=64),
    BlockFormat(4096, 64, guard=64),
    BlockFormat(4096, 16, guard=64, storage_tag=16),
    BlockFormat(4096, 16, guard=32, storage_tag=16),
    BlockFormat(4096, 64, guard=32, storage_tag=32),
    BlockFormat(4096, 8, storage_tag=16),
)
"""The formats of blocks, by their index. A host may have stored the index of one, so
new ones go to the end."""


class DriveError(Exception):
    """A path is no drive, or not the expected one; the message gives the reason."""


class Metadata(NamedTuple):
    """The metadata of each block, and the protection information in it."""

    size: int = 0
    """Bytes, behind each block or in a buffer of their own."""
    extended: bool = False
    """A host moves them behind their block, and not in a buffer of their own."""
    protection: Annotated[int, Range(0, 3)] = 0
    """The type of protection, 1 to 3; 0 for none."""
    first: bool = False
    """Protection information is the first bytes of metadata, and not the last."""
    guard: int = 16
    """Bits of the guard."""
    storage_tag: int = 0
    """Bits of the storage tag."""

    @property
    def protection_size(self) -> int:
        """Bytes of the protection information; 0 where there is none."""
        return (8 if self.guard == 16 else 16) if self.protection else 0

    @property
    def protection_at(self) -> int:
        """Offset of the protection information in the metadata, in bytes."""
        return 0 if self.first else self.size - self.protection_size

    @property
    def unwritten(self) -> bytes:
        """Metadata of a block that was never written: protection information that is not checked
        (NVM Command Set 1.0, section 3.2.3.2.1)."""
        size, at = self.protection_size, self.protection_at
        return (bytes(at) + b"\xff" * size).ljust(self.size, b"\0")


NO_METADATA = Metadata()


class WriteAreas(NamedTuple):
    """Random write areas of zones (ZRWA): bytes of each, bytes that are committed at once, and how
    many zones can have one; 0 for as many as can be active."""

    size: Annotated[int, Range(0, LARGEST_AREA)] = 0
    granularity: Annotated[int, Range(0, LARGEST_AREA)] = 0
    zones: U32 = 0

    @classmethod
    def sound(cls, size: int, granularity: int = max(BLOCK_SIZES), zones: int = 0) -> "WriteAreas":
        """Areas of whole blocks. Raises ValueError."""
        if granularity <= 0 or granularity % max(BLOCK_SIZES) or size % granularity:
            raise ValueError(
                "a zone random write area has a multiple of its granularity, which is a multiple "
                f"of {max(BLOCK_SIZES)} bytes"
            )
        if not 0 < size <= LARGEST_AREA:
            raise ValueError(f"a zone random write area has at most {LARGEST_AREA} bytes")
        return cls(size, granularity, zones)


NO_AREAS = WriteAreas()


class ZoneLimits(NamedTuple):
    """Limits of a zoned namespace."""

    max_active: U32 = 32
    max_open: U32 = 16
    """Zones that can be active (MAR), and open (MOR), at once."""
    cross_zone_reads: bool = True
    """Reads may cross zones (RAZB)."""
    finish_after: U32 = 0
    """Seconds without a write after which the drive recommends to finish an active zone; 0 for
    never."""
    reset_after: U32 = 0
    """Seconds after which it recommends to reset a full one."""

    @property
    def sound(self) -> bool:
        """Zones can be open that can be active."""
        return 0 < self.max_open <= self.max_active


DEFAULT_LIMITS = ZoneLimits()


class NamespaceShape(NamedTuple):
    """Size and block size in bytes, and what a host has made of the namespace.

    One of another command set than NVM has no blocks here: the drive remembers that it is there.
    """

    size: Annotated[int, Range(0, LARGEST)] = DEFAULT_SIZE
    block_size: int = DEFAULT_BLOCK_SIZE
    attached: bool = True
    shared: bool = False
    uuid: str = ""
    """UUID of a namespace that a host created; others derive theirs from the drive's."""
    erase: bool = False
    """Its blocks are to be gone before they are read again."""
    formats: U32 = 0
    """Number of formats by a host; records about blocks of an earlier format are void."""
    csi: U8 = CommandSet.NVM
    """The namespace's command set."""
    metadata: Metadata = NO_METADATA
    zone_size: int = 0
    """Bytes of a zone of a zoned namespace, and how many of them can be written."""
    zone_capacity: int = 0
    areas: WriteAreas = NO_AREAS
    limits: ZoneLimits = DEFAULT_LIMITS
    handles: tuple[Handle, ...] = ()
    """The reclaim unit handles of its placement handles; none means all that the drive has."""
    chosen: bool = False
    """The drive has chosen its handle, as the host has named none."""
    max_value: int = 0
    """Bytes of the longest value of a key value namespace."""
    ana_group: Annotated[int, Range(1, MOST_NAMESPACES)] = 1
    """Its group, if the drive has asymmetric namespace access."""
    controllers: tuple[U16, ...] = ()
    """The controllers that it is attached to, if it is attached; none means all that it can be."""

    @property
    def format(self) -> BlockFormat:
        kept = self.metadata
        return BlockFormat(self.block_size, kept.size, kept.guard, kept.storage_tag)

    @property
    def has_blocks(self) -> bool:
        """It has logical blocks, and so a file of them."""
        return self.csi in (CommandSet.NVM, CommandSet.ZONED)

    @property
    def has_values(self) -> bool:
        """It has keys and values, and so a file of them."""
        return self.csi == CommandSet.KEY_VALUE

    def owner(self, controllers: int) -> int:
        """The only one of so many controllers that a memory or compute namespace can be attached
        to."""
        owner = next(iter(self.controllers), 0)
        return owner if owner < controllers else 0

    @property
    def flash_size(self) -> int:
        """Bytes of pages of a modelled drive: of the blocks, or of values."""
        return sum(self.value_pages) * FLASH_PAGE if self.has_values else self.data_size

    @property
    def value_pages(self) -> tuple[int, int, int]:
        """Pages of a modelled drive: of values, their index, and spare ones of their log."""
        pages = -(-self.size // FLASH_PAGE)
        return pages, -(-pages * INDEX_ENTRY // FLASH_PAGE), SPARE + pages // SPARE

    @property
    def description(self) -> str:
        """The namespace with blocks, in the terms in which a user specifies one."""
        if self.zone_size:
            area, granularity, most = self.areas
            areas = f", random write areas {area}:{granularity}:{most}" if area else ""
            limits = [
                f", {name} {value}"
                for name, value in self.limits._asdict().items()
                if value != ZoneLimits._field_defaults[name]
            ]
            return (
                f"{self.zones} zones of {self.zone_size} bytes, {self.zone_capacity} of them "
                f"writable, in blocks of {self.block_size}{areas}{''.join(limits)}"
            )
        metadata = f" and {self.metadata.size} of metadata" if self.metadata.size else ""
        return f"{self.size} bytes in blocks of {self.block_size}{metadata}"

    @property
    def kind(self) -> tuple[int, int, int]:
        """Command set and sizes, which are equal for namespaces without blocks that are alike."""
        return self.csi, self.size, self.max_value

    @property
    def zones(self) -> int:
        """Zones of a zoned namespace, whose records are behind their blocks."""
        return self.size // (self.zone_size + ZONE_RECORD) if self.zone_size else 0

    @property
    def data_size(self) -> int:
        """Bytes of the logical blocks that a host sees: without the records of zones, and without
        a part of a block at the end."""
        return self.zones * self.zone_size or self.size // self.block_size * self.block_size

    @classmethod
    def zoned(
        cls,
        size: int,
        zone_size: int = DEFAULT_ZONE_SIZE,
        capacity: int = 0,
        block_size: int = DEFAULT_BLOCK_SIZE,
        areas: WriteAreas = NO_AREAS,
        limits: ZoneLimits = DEFAULT_LIMITS,
    ) -> "NamespaceShape":
        """A zoned namespace of `size` bytes, which are whole zones; without a `capacity` all
        blocks of a zone can be written. Raises ValueError."""
        if zone_size < LEAST_ZONE_SIZE or zone_size & zone_size - 1:
            raise ValueError(f"a zone has a power of two of bytes, at least {LEAST_ZONE_SIZE}")
        if not size or size % zone_size:
            raise ValueError(f"{size} bytes are no whole zones of {zone_size}")
        capacity = capacity or zone_size
        if capacity > zone_size or capacity % max(BLOCK_SIZES):
            raise ValueError(
                f"a zone's capacity is a multiple of {max(BLOCK_SIZES)} bytes, at most {zone_size}"
            )
        if not limits.sound:
            raise ValueError("max_open is at least 1, and at most max_active")
        if areas != NO_AREAS:
            WriteAreas.sound(*areas)
            if capacity % areas.granularity or areas.size > capacity:
                raise ValueError(
                    f"the capacity of a zone, {capacity} bytes, must be a multiple of the "
                    f"granularity of its random write area, {areas.granularity}, and not less than "
                    f"the area's {areas.size} bytes"
                )
        records = -(-size // zone_size * ZONE_RECORD // max(BLOCK_SIZES)) * max(BLOCK_SIZES)
        return cls(
            size + records,
            block_size,
            csi=CommandSet.ZONED,
            zone_size=zone_size,
            zone_capacity=capacity,
            areas=areas,
            limits=limits,
        )

    @classmethod
    def memory(cls, size: int) -> "NamespaceShape":
        """A memory namespace of that many bytes."""
        return cls(size, csi=CommandSet.MEMORY)

    @classmethod
    def key_value(cls, size: int, max_value: int = MAX_VALUE) -> "NamespaceShape":
        """A namespace for keys and values of that many bytes together. Raises ValueError."""
        if size < 1:
            raise ValueError("it has room for at least a byte")
        if not 1 <= max_value <= MAX_VALUE:
            raise ValueError(f"the longest value has 1 to {MAX_VALUE} bytes")
        return cls(size, csi=CommandSet.KEY_VALUE, max_value=max_value)

    @classmethod
    def compute(cls) -> "NamespaceShape":
        """A compute namespace, which has no size."""
        return cls(0, csi=CommandSet.COMPUTE)


def first_memories(shapes: Mapping[int, NamespaceShape], controllers: int) -> dict[int, int]:
    """The size of the first memory namespace of each of so many controllers that has one."""
    memories = [shape for shape in shapes.values() if shape.csi == CommandSet.MEMORY]
    return {shape.owner(controllers): shape.size for shape in reversed(memories)}


def blocks_of(shapes: Mapping[int, NamespaceShape]) -> dict[int, NamespaceShape]:
    """The namespaces that have logical blocks, and therefore a file."""
    return {nsid: shape for nsid, shape in shapes.items() if shape.has_blocks}


def stored_of(shapes: Mapping[int, NamespaceShape]) -> dict[int, NamespaceShape]:
    """The namespaces whose contents are durable."""
    return {nsid: shape for nsid, shape in shapes.items() if shape.has_blocks or shape.has_values}


@dataclass
class Listed:
    """The list, as it is stored."""

    shapes: dict[int, NamespaceShape]
    capacity: int | None = None
    """Bytes for all namespaces together; None where that is what they have."""
    remove: tuple[int, ...] = ()
    """Namespaces that are gone, and whose files may not be."""
    memory_capacity: int | None = None
    """Bytes for all memory namespaces together; None where that is what they have."""


def read_list(path: Path) -> Listed | None:
    """The stored list; None if there is none. Raises DriveError if it is invalid."""
    import tomllib

    try:
        with path.open("rb") as file:
            content = file.read(LONGEST_LIST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DriveError(f"cannot read {path}: {error}") from None
    try:
        if len(content) > LONGEST_LIST:
            raise ValueError
        return _listed(tomllib.loads(content.decode()))
    except tomllib.TOMLDecodeError as error:
        raise DriveError(f"cannot read {path}: {error}") from None
    except (ValueError, RecursionError):
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
    replace_file(path, "\n".join(lines) + "\n")


_ALWAYS = ("size", "block_size")


def _toml(value: object) -> str:
    if isinstance(value, Metadata | WriteAreas | ZoneLimits):
        defaults = value._field_defaults
        changed = {name: part for name, part in value._asdict().items() if part != defaults[name]}
        return "{" + ", ".join(f"{name} = {_toml(part)}" for name, part in changed.items()) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return f'"{value}"' if isinstance(value, str) else str(value)


class _Rest(NamedTuple):
    """The list, but for its namespaces."""

    capacity: Size | None = None
    remove: tuple[Nsid, ...] = ()
    memory_capacity: Size | None = None


def _listed(content: dict[str, Any]) -> Listed:
    """Raises ValueError."""
    tables = content.pop("namespace", {})
    if type(tables) is not dict or not all(type(table) is dict for table in tables.values()):
        raise ValueError
    if any(nsid != str(int(nsid)) for nsid in tables):  # 01 would be 1 again
        raise ValueError
    shapes = {typed(Nsid, int(nsid)): _shape(table) for nsid, table in tables.items()}
    rest: _Rest = typed(_Rest, content)
    # A drive without any namespace is one whose host has deleted them all, and has a capacity.
    if not (shapes or rest.capacity):
        raise ValueError
    return Listed(dict(sorted(shapes.items())), *rest)


def _shape(table: Any) -> NamespaceShape:
    """One entry of the list. Raises ValueError."""
    shape: NamespaceShape = typed(NamespaceShape, table)
    metadata = shape.metadata
    if not {*_ALWAYS} <= set(table) or shape.format not in FORMATS:
        raise ValueError
    if metadata.protection_size > metadata.size or not _is_size(shape):
        raise ValueError
    if shape.uuid:
        uuid.UUID(shape.uuid)
    return shape


def _is_size(shape: NamespaceShape) -> bool:
    if shape.csi == CommandSet.COMPUTE:
        return shape.size == 0
    if shape.has_values:
        return shape.size > 0 and 1 <= shape.max_value <= MAX_VALUE
    unit = MEMORY_UNIT if shape.csi == CommandSet.MEMORY else 1
    if shape.csi == CommandSet.ZONED:
        zones = shape.zones * shape.zone_size
        rest = shape.zone_capacity, shape.block_size, shape.areas, shape.limits
        sound = shape.zoned(zones, shape.zone_size, *rest)
        return sound[:2] == shape[:2]
    is_supported = shape.csi in (CommandSet.NVM, CommandSet.MEMORY)
    return is_supported and shape.size % unit == 0 and shape.size >= shape.block_size

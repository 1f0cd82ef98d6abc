"""The section of `potash.toml` that describes a namespace of a new drive."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from potash import toml_kinds as kinds
from potash.toml_kinds import key
from potash.units import LARGEST, Size
from potash_device.media.shapes import (
    BLOCK_SIZES,
    DEFAULT_BLOCK_SIZE,
    DEFAULT_LIMITS,
    DEFAULT_SIZE,
    DEFAULT_ZONE_SIZE,
    LEAST_ZONE_SIZE,
    METADATA_SIZES,
    MOST_NAMESPACES,
    NO_AREAS,
    Metadata,
    NamespaceShape,
    WriteAreas,
)
from potash_device.settings import MOST_CONTROLLERS

MOST_ZONES = 1 << 20
"""Zones that can be active or open at once; a namespace with fewer has no limit then."""
MOST_SECONDS = 10**9
OF_ZONES = (
    *("zrwa", "max_active", "max_open", "cross_zone_reads"),
    *("finish_after", "reset_after"),
)
"""Keys of zoned namespaces that `--zoned-namespace` takes by name."""


@dataclass(frozen=True)
class NamespaceSection:
    """Namespaces of a new drive; existing media keep theirs. Options replace all of them:
    `--namespace`, its short form `--size`, and `--zoned-namespace`."""

    # fmt: off
    size: int = key(kinds.size(min(BLOCK_SIZES), LARGEST), DEFAULT_SIZE, "",
        "Size of the namespace.")
    block_size: int = key(kinds.choice(BLOCK_SIZES), DEFAULT_BLOCK_SIZE, "",
        "Bytes of a logical block.")
    metadata: int = key(kinds.choice((0, *METADATA_SIZES)), 0, "",
        "Bytes of metadata of each block.", page="protection.md")
    protection: int = key(kinds.choice(range(4)), 0, "",
        "Type of protection information in the metadata; 0 for none.", page="protection.md")
    zone_size: int | None = key(kinds.size(LEAST_ZONE_SIZE, LARGEST), None, "",
        "Size of the zones of a zoned namespace, a power of two (default: no zones).",
        page="zones.md")
    zone_capacity: int | None = key(kinds.size(DEFAULT_BLOCK_SIZE, LARGEST), None, "",
        "How much of each zone can be written (default: all of it).", page="zones.md")
    zrwa: WriteAreas | None = key(kinds.AREAS, None, "",
        "Zone random write areas of a zoned namespace: the size of each, how much is committed at "
        "once (default: 4K), and how many zones can have one (default: all active ones).",
        page="zones.md#random-write-areas")
    max_active: int | None = key(kinds.count(1, MOST_ZONES), None, "",
        f"Zones that can be active at once (default: {DEFAULT_LIMITS.max_active}).",
        page="zones.md#limits")
    max_open: int | None = key(kinds.count(1, MOST_ZONES), None, "",
        f"Zones that can be open at once (default: {DEFAULT_LIMITS.max_open}).",
        page="zones.md#limits")
    cross_zone_reads: bool | None = key(kinds.FLAG, None, "",
        "Reads may cross zones (default: true).", page="zones.md#limits")
    finish_after: int | None = key(kinds.count(1, MOST_SECONDS), None, "",
        "Seconds without a write after which the drive recommends to finish an active zone "
        "(default: never).", page="zones.md#limits")
    reset_after: int | None = key(kinds.count(1, MOST_SECONDS), None, "",
        "Seconds after which the drive recommends to reset a full zone (default: never).",
        page="zones.md#limits")
    ana_group: int | None = key(kinds.count(1, MOST_NAMESPACES), None, "",
        "Its group, of a drive with asymmetric namespace access (default: 1).", page="ana.md")
    private: int | None = key(kinds.count(0, MOST_CONTROLLERS - 1), None, "",
        "The only controller that it is attached to, of a drive with several (default: all share "
        "it).", page="controllers.md")
    # fmt: on

    @property
    def shape(self) -> NamespaceShape:
        """The namespace, as the drive takes it. Raises ValueError for an invalid one."""
        controllers = () if self.private is None else (self.private,)
        return self._shape._replace(ana_group=self.ana_group or 1, controllers=controllers)

    @property
    def _shape(self) -> NamespaceShape:
        if self.size < self.block_size:
            raise ValueError(f"size is less than one block of {self.block_size} bytes")
        if self.protection and not self.metadata:
            raise ValueError("protection is without metadata")
        given = {name: value for name in OF_ZONES if (value := getattr(self, name)) is not None}
        if self.zone_size is None:
            if given:
                raise ValueError(f"{next(iter(given))} is for a namespace with a zone_size")
            metadata = Metadata(self.metadata, protection=self.protection)
            return NamespaceShape(self.size, self.block_size, metadata=metadata)
        if self.metadata:
            raise ValueError("zones have no metadata")
        capacity = self.zone_capacity or self.zone_size
        areas, limits = given.pop("zrwa", NO_AREAS), DEFAULT_LIMITS._replace(**given)
        return NamespaceShape.zoned(
            self.size, self.zone_size, capacity, self.block_size, areas, limits
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """A namespace from SIZE[:BLOCK[+METADATA[:TYPE]]][:private=N]. Raises ValueError."""
        text, private = kinds.of_controller(text, "private")
        size, colon, described = text.partition(":")
        blocks, _, protection = described.partition(":")
        block, _, metadata = blocks.partition("+")
        if colon and block not in map(str, BLOCK_SIZES):
            raise ValueError(f"{text!r}: blocks have {' or '.join(map(str, BLOCK_SIZES))} bytes")
        if metadata and metadata not in map(str, METADATA_SIZES):
            sizes = ", ".join(map(str, METADATA_SIZES))
            raise ValueError(f"{text!r}: blocks have {sizes} bytes of metadata")
        if protection and (protection not in {"1", "2", "3"} or not metadata):
            raise ValueError(
                f"{text!r}: metadata may have protection information of type 1, 2 or 3"
            )
        block_size = int(block) if colon else DEFAULT_BLOCK_SIZE
        return cls(
            Size(block_size).parse(size),
            block_size,
            int(metadata or 0),
            int(protection or 0),
            private=private,
        )

    @classmethod
    def parse_zoned(cls, text: str) -> Self:
        """A zoned namespace from SIZE[:ZONE[:CAPACITY]][,KEY=VALUE…]. Raises ValueError."""
        sizes, *pairs = text.split(",")
        size, zone, capacity, *rest = [*map(Size().parse, sizes.split(":")), 0, 0]
        if len(rest) > 2:
            raise ValueError(f"{text!r} is not SIZE:ZONE:CAPACITY")
        shape = NamespaceShape.zoned(size, zone or DEFAULT_ZONE_SIZE, capacity)
        given, names = {}, (*OF_ZONES, "private")
        for pair in pairs:
            name, _, value = pair.partition("=")
            if name not in names:
                raise ValueError(f"{pair!r} is not KEY=VALUE with a key of {', '.join(names)}")
            literal = {"true": True, "false": False}.get(value, value)
            try:
                given[name] = kinds.keys(cls)[name].kind.read(
                    int(value) if value.isdecimal() else literal, Path()
                )
            except kinds.Refused as error:
                raise ValueError(f"{name}={value}: it {error}") from None
        section = cls(size, zone_size=shape.zone_size, zone_capacity=shape.zone_capacity, **given)
        _ = section.shape
        return section

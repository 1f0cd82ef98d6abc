"""Drives of another size: more or fewer superblocks, or smaller ones, with the same spare."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from potash_device.flash.blocks import blocks_for
from potash_device.flash.profile import PAGE, Profile, ProfileError

LEAST_SUPERBLOCKS = 32
"""For data, of a drive that is made smaller; half as many where they cannot be smaller."""
ZONE_SPARE = 50
"""Superblocks of zones for which there is a spare one."""


class TooSmallError(ProfileError):
    """A capacity that such flash cannot be cut to; `least` bytes are the smallest one."""

    def __init__(self, capacity: int, least: int) -> None:
        self.least = least
        text = f"{capacity} bytes; such flash takes at least {least} ({-(-least >> 20)}M)"
        super().__init__(f"the drive has {text}")


class ZoneShape(NamedTuple):
    """Zones of one namespace: their number, and bytes of each, whole logical pages."""

    zones: int
    size: int
    capacity: int
    """Bytes of a zone that can be written."""

    def superblocks(self, pages: int) -> int:
        """Superblocks of so many pages that all zones take, as each has whole ones."""
        return self.zones * -(-self.capacity // (pages * PAGE))


def equipped(
    profile: Profile, slc: int | None = None, spare: int | None = None, zone_slc: int | None = None
) -> Profile:
    """The drive with an SLC cache, and an SLC buffer of zones, of so many thousandths, and with so
    many thousandths of its capacity as spare flash, which these are no part of; None for what
    stays. Raises ProfileError."""
    if slc is spare is zone_slc is None:
        return profile
    size, superblocks = profile.superblock_pages, profile.superblocks - profile.slc_superblocks
    superblocks -= profile.zone_slc_superblocks
    if spare is not None:
        superblocks = -(-profile.logical_pages * (1000 + spare) // (1000 * size))
    slc = profile.slc if slc is None else slc
    zone_slc = profile.zone_slc if zone_slc is None else zone_slc
    share = slc
    if zone_slc and profile.zone_superblocks:
        share += zone_slc
        superblocks += 2  # one for reclaim, and one as both parts are rounded up
    superblocks = -(-superblocks * 1000 // max(1, 1000 - share))
    return replace(profile, slc=slc, zone_slc=zone_slc, blocks=_blocks(profile, superblocks))


def _blocks(profile: Profile, superblocks: int) -> int:
    """Blocks of each plane with which there are so many superblocks."""
    good = -(-superblocks // profile.groups)
    return blocks_for(good, profile.total_dies, profile.bad_blocks, profile.seed)


def scaled(profile: Profile, capacity: int, zones: Collection[ZoneShape] = ()) -> Profile:
    """The drive with another capacity in bytes, `zones` included, and the same spare.

    It has more or fewer superblocks. One that would have few, by which garbage collection cannot be
    modelled, has smaller ones instead, of blocks with fewer pages, which take less time to erase in
    the same proportion. So has one whose superblocks would be larger than its zones, and of fewer
    dies if that is not enough, as a zone has whole superblocks. Raises ProfileError.
    """
    if capacity == profile.capacity and not zones:
        return profile
    slc, zone_slc, profile = profile.slc, profile.zone_slc, equipped(profile, 0, zone_slc=0)
    needed = profile.frontiers + profile.kept_free
    spare = (profile.superblocks - needed) * profile.superblock_pages, profile.mapped_pages
    pages, dies = profile.pages, profile.group_dies
    cells = profile.bits if slc or (zone_slc and zones) else 1
    least = profile.program_pages * cells
    rows = dies * profile.row_pages
    zoned = sum(zone.zones * zone.size // PAGE for zone in zones)
    logical = max(-(-capacity // PAGE), zoned)
    data = logical - zoned
    while pages >= 2 * least and 0 < data < LEAST_SUPERBLOCKS * rows * pages:
        pages = pages // 2 // least * least
    if zones:
        smallest = min(zone.capacity // PAGE for zone in zones)
        pages = min(pages, max(1, -(-smallest // (rows * least))) * least)
        while dies > 1 and dies * profile.row_pages * pages > smallest and pages == least:
            dies = max(number for number in range(1, dies) if dies % number == 0)
    size = dies * profile.row_pages * pages
    if 0 < data < LEAST_SUPERBLOCKS // 2 * size:
        raise TooSmallError(capacity, (zoned + LEAST_SUPERBLOCKS // 2 * size) * PAGE)
    whole = sum(zone.superblocks(size) for zone in zones)
    groups = profile.total_dies // dies
    smaller = replace(
        profile,
        capacity=logical * PAGE,
        pages=pages,
        width=0 if groups == 1 else dies,
        erase_ns=profile.erase_ns * pages // profile.pages,
        slc_erase_ns=max(-1, profile.slc_erase_ns * pages // profile.pages),
        blocks=profile.blocks * profile.groups + whole + -(-logical // size),
        zone_superblocks=whole,
        zone_pages=zoned,
    )
    mapped, part = (smaller.mapped_pages - zoned) * spare[0], size * spare[1]
    superblocks = (mapped + part // 2) // part + needed + whole + -(-whole // ZONE_SPARE)
    # A host may delete its zones, and then write all pages, although zones need not have so many.
    without_zones = (-(-smaller.mapped_pages // size) + needed + 1) * bool(zones)
    superblocks = max(superblocks, smaller.least_superblocks, without_zones)
    smaller = replace(smaller, blocks=_blocks(smaller, superblocks))
    return equipped(smaller, slc, zone_slc=zone_slc)

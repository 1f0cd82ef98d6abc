"""Profiles of another capacity: the same spare, and the same share of time for erases."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction

import pytest

from potash_device.flash.profile import Profile, ProfileError
from potash_device.flash.profiles import PROFILES, from_mapping
from potash_device.flash.scaling import equipped, scaled

GIB = 1 << 30


def spare(profile: Profile) -> Fraction:
    """Flash over data, without the superblocks that are open or kept free."""
    kept = profile.frontiers + profile.kept_free
    return Fraction((profile.blocks - kept) * profile.superblock_pages, profile.mapped_pages)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("capacity", [GIB // 8, GIB, 5 * GIB, 100 * GIB])
def test_a_profile_keeps_its_spare_and_its_times(name: str, capacity: int) -> None:
    whole = PROFILES[name]
    part = scaled(whole, capacity)
    assert part.capacity == capacity
    superblock = Fraction(part.superblock_pages, part.mapped_pages)
    assert abs(spare(part) - spare(whole)) <= superblock / 2
    assert (part.read_ns, part.program_ns, part.total_dies) == (
        whole.read_ns, whole.program_ns, whole.total_dies,
    )  # fmt: skip
    per_page = Fraction(part.erase_ns, part.pages), Fraction(whole.erase_ns, whole.pages)
    assert per_page[0] == pytest.approx(per_page[1], abs=1 / part.pages)


@pytest.mark.parametrize("capacity", [GIB // 2, GIB, 100 * GIB])
def test_an_slc_cache_and_spare_flash_come_on_top(capacity: int) -> None:
    for name in ("tlc", "qlc"):
        plain, part = PROFILES[name], scaled(equipped(PROFILES[name], 50), capacity)
        assert part.slc_superblocks == -(-part.superblocks * 50 // 1000) > 0
        assert part.slc_pages > 0
        superblock = Fraction(part.superblock_pages, part.mapped_pages)
        assert abs(spare(equipped(part, 0)) - spare(plain)) <= 1.5 * superblock
    tlc = equipped(PROFILES["tlc"], 100, 280)
    flash = (tlc.superblocks - tlc.slc_superblocks) * tlc.superblock_pages
    assert 1.28 * tlc.logical_pages <= flash < 1.28 * tlc.logical_pages + 2 * tlc.superblock_pages
    table = {"base": "tlc", "over_provisioning": "28%", "slc": "10%"}
    assert from_mapping(table) == tlc
    with pytest.raises(ProfileError, match="percentage"):
        from_mapping({"base": "tlc", "over_provisioning": 7})
    with pytest.raises(ProfileError, match="the drive needs"):
        from_mapping({"base": "tlc", "over_provisioning": "0%"})


def test_over_provisioning_is_applied_with_the_other_keys_of_a_profile() -> None:
    """The base's blocks are too few for the first, and more than a TiB with the last."""
    for changes in ({"capacity": "64G"}, {"slc": 400}, {"pages": 11520, "capacity": "512G"}):
        table = {"base": "tlc", "over_provisioning": "28%", **changes}
        found = from_mapping(table)
        assert from_mapping(table | {"blocks": 4}) == found
        flash = (found.superblocks - found.slc_superblocks) * found.superblock_pages
        assert 1.28 * found.logical_pages <= flash
    # Nor are blocks needed without a base.
    table = asdict(PROFILES["tlc"]) | {"over_provisioning": "28%"}
    del table["blocks"]
    assert from_mapping(table) == equipped(PROFILES["tlc"], spare=280)
    with pytest.raises(ProfileError, match="TiB"):
        from_mapping({"base": "tlc", "capacity": "1T", "over_provisioning": "28%"})


def test_its_own_capacity_changes_nothing() -> None:
    for profile in PROFILES.values():
        assert scaled(profile, profile.capacity) == profile


def test_a_large_drive_has_more_blocks_and_a_small_one_smaller_ones() -> None:
    tlc = PROFILES["tlc"]
    assert scaled(tlc, 64 * GIB).pages == tlc.pages
    assert scaled(tlc, GIB).pages == 48
    assert scaled(tlc, GIB).erase_ns == 562_500


def test_what_flash_cannot_be_cut_to_is_refused() -> None:
    with pytest.raises(ProfileError, match="takes at least 25165824"):
        scaled(PROFILES["tlc"], (24 << 20) - 4096)
    assert scaled(PROFILES["tlc"], 24 << 20)
    with pytest.raises(ProfileError, match="TiB"):
        scaled(PROFILES["tlc"], 2 << 40)

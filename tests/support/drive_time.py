"""Random small drives and requests for the model of a drive's time."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from potash_device.flash.profile import ENTRIES, PAGE, Profile, ProfileError, Rate
from potash_device.flash.scaling import equipped
from potash_device.flash.state import NEVER, SLC
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.policies import (
    ChannelFirst,
    Choices,
    CostBenefit,
    DieFirst,
    Fifo,
    Gap,
    Greedy,
    NoWear,
    Policies,
)
from potash_firmware.ftl.requests import REQUEST, WORN, Op
from potash_firmware.ftl.state import (
    CLOSED,
    FREE,
    FULL,
    IS_CACHED,
    IS_CLOSED,
    IS_FREE,
    IS_OPEN,
    IS_ZONED,
    SLC_FULL,
    SLC_USED,
    DriveState,
)


@st.composite
def profiles(draw: Any) -> Profile:
    """Drives of a few thousand pages at most, with short times, so that requests meet."""

    def number(least: int, most: int) -> int:
        value: int = draw(st.integers(least, most))
        return value

    def times() -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(0, 60), min_size=1, max_size=3)))

    planes, program_pages, streams, reserve = number(1, 2), number(1, 3), number(1, 3), number(2, 5)
    values: dict[str, Any] = {
        "channels": number(1, 3),
        "dies": number(1, 2),
        "planes": planes,
        "page_bytes": 4096 // planes * number(1, 3),
        "program_pages": program_pages,
        "pages": program_pages * draw(st.sampled_from([1, 3, 40, 150])),
        "blocks": streams + reserve + number(5, 12),
        "streams": streams,
        "reserve": reserve,
        "read_ns": times(),
        "program_ns": times(),
        "short_read_ns": draw(st.just(()) | st.just((7,))),
        "erase_ns": number(0, 200),
        "suspend_ns": number(-1, 5),
        "bus_command_ns": number(0, 3),
        "bus": Rate(number(1, 4096), number(0, 2)),
        "link": Rate(number(1024, 8192), number(0, 10)),
        "submission_ns": number(0, 3),
        "completion_ns": number(0, 3),
        "cores": number(0, 3),
        "read_command_ns": number(0, 9),
        "read_page_ns": number(0, 3),
        "write_command_ns": number(0, 9),
        "write_page_ns": number(0, 3),
        "short_read_command_ns": number(-1, 9),
        "other_command_ns": number(0, 9),
        "background": number(0, 8),
        "background_pages": number(0, 20),
        "background_invalid": draw(st.sampled_from([0, 0, 125, 500, 1000])),
        "protected": draw(st.booleans()),
        "cycles": draw(st.sampled_from([0, 0, 3, 9])),
        "mapping_cache": draw(st.sampled_from([0, 0, PAGE, 3 * PAGE])) if reserve > 2 else 0,
    }
    dies = values["channels"] * values["dies"]
    values["width"] = draw(st.sampled_from([0, 0, *(n for n in range(1, dies) if dies % n == 0)]))
    zones = draw(st.sampled_from([0, 0, 2, 4]))
    values["isolated"] = draw(st.booleans())
    values["blocks"] += values["isolated"] * 2 * streams
    groups = dies // (values["width"] or dies)
    if not (zones or values["mapping_cache"]) and groups % 2 == 0 and streams % 2 == 0:
        values["reclaim_groups"] = draw(st.sampled_from([1, 2]))
        values["blocks"] += 2 * reserve
    values["blocks"] += zones
    values["zone_superblocks"] = zones
    shape = Profile(**values, capacity=PAGE)
    kept = zones + shape.frontiers + (reserve + 1) * shape.reclaim_groups
    room = (shape.superblocks - kept) * shape.superblock_pages
    most = room - -(-room // ENTRIES) if values["mapping_cache"] else room
    values["zone_pages"] = zones * shape.superblock_pages
    values["capacity"] = PAGE * (max(1, most) - number(0, most // 2) + values["zone_pages"])
    values["buffer_bytes"] = draw(st.sampled_from([0, 1, 4])) * streams * shape.unit_pages * PAGE
    unit = shape.unit_pages * PAGE
    values["zone_buffer_bytes"] = draw(st.sampled_from([0, 1, 3])) * unit if zones else 0
    if zones and values["buffer_bytes"] and program_pages > 1 and draw(st.booleans()):
        share = draw(st.sampled_from([1, 100, 200]))
        with suppress(ProfileError):  # blocks of few pages
            return equipped(Profile(**values, slc_program_ns=9, slc_read_ns=2), zone_slc=share)
    try:
        return Profile(**values)
    except ProfileError:  # a superblock holds less than a page of translations takes
        return Profile(**values | {"mapping_cache": 0})


def requests(profile: Profile, count: int, seed: int) -> NDArray[np.void]:
    """Random ones; half of the writes go to an eighth of the drive. Some are of zones, each of a
    superblock, or of two."""
    random = np.random.default_rng(seed)
    pages, zones = profile.logical_pages - profile.zone_pages, _Zones(profile, random)
    found = np.zeros(count, REQUEST)
    found["time"] = np.cumsum(random.integers(0, 120, count))
    odds = [0.3, 0.59, 0.06, 0.038, 0.002, 0.01]
    found["op"] = random.choice(len(odds), count, p=odds)
    hot = random.random(count) < 0.5
    found["first"] = np.where(
        hot, random.integers(0, pages // 8 + 1, count), random.integers(0, pages, count)
    )
    longest = random.choice([1, 8, 64], count)
    found["count"] = np.minimum(random.integers(1, longest + 1), pages - found["first"])
    found["count"][found["op"] >= Op.FLUSH] = 0
    found["stream"] = random.integers(0, profile.streams, count)
    found["fua"] = random.random(count) < 0.1
    if profile.zone_superblocks:
        for row in np.flatnonzero(random.random(count) < 0.6).tolist():
            zones.ask(found[row])
    return found


class _Zones:
    """Zones of one superblock each, or of two, behind all other pages of a drive."""

    def __init__(self, profile: Profile, random: np.random.Generator) -> None:
        self._random = random
        superblocks = int(random.integers(1, 3))
        self._size = profile.superblock_pages * superblocks
        self._pointers = [0] * (profile.zone_superblocks // superblocks)
        self._first = profile.logical_pages - profile.zone_pages
        self._stream = profile.frontiers

    def ask(self, request: np.void) -> None:
        """Have a request be one of a zone; a write is at its write pointer, perhaps again at the
        page before, as blocks may be smaller than pages."""
        zone = int(self._random.integers(0, len(self._pointers)))
        pointer, first = self._pointers[zone], self._first + zone * self._size
        ops = [Op.READ, Op.WRITE, Op.RESET, Op.FINISH, Op.WRITE_AREA, Op.COMMIT]
        op = self._random.choice(ops, p=[0.2, 0.4, 0.06, 0.04, 0.15, 0.15])
        if op in (Op.WRITE, Op.COMMIT) and pointer == self._size:
            op = Op.RESET
        again = int(pointer > 0 and self._random.random() < 0.2)
        most = max(1, min(64, self._size - pointer + again))
        count = int(self._random.integers(1, most + 1))
        request["op"], request["stream"] = op, self._stream + zone
        request["first"], request["count"] = first + pointer - again, count
        if op in (Op.READ, Op.WRITE_AREA):
            request["first"] = first + self._random.integers(0, self._size)
            request["count"] = 1
        elif op in (Op.WRITE, Op.COMMIT):
            self._pointers[zone] += count - again
        else:
            request["first"] = request["count"] = 0
            self._pointers[zone] = 0 if op == Op.RESET else self._size


def policies(seed: int) -> Policies:
    """The same ones for the same seed; those that draw lots begin anew."""
    gc = (Greedy(), Fifo(), Choices(3, seed), CostBenefit())[seed % 4]
    return Policies(
        gc, Gap(2) if seed % 3 else NoWear(), DieFirst() if seed % 2 else ChannelFirst()
    )


def lost(drive: Drive, asked: NDArray[np.void], completions: NDArray[np.int64]) -> set[int]:
    """Pages that are not mapped although they were written, or the other way round; of a drive that
    is worn out or had zones reset, none that is known."""
    if drive.worn or (completions == WORN).any() or (asked["op"] == Op.RESET).any():
        return set()
    kept = set[int]()
    for _, op, first, count, _, _ in asked.tolist():
        if op in (Op.WRITE, Op.COMMIT):
            kept |= set(range(first, first + count))
        elif op == Op.TRIM:
            kept -= set(range(first, first + count))
        elif op == Op.FORMAT:
            kept.clear()
    mapped = np.flatnonzero(drive.state.places[: drive.profile.logical_pages] >= 0)
    return kept ^ set(mapped.tolist())


def problems(profile: Profile, state: DriveState) -> list[str]:
    """What contradicts itself in a state of this profile; nothing in a sound one."""
    size = profile.superblock_pages
    mapped = np.flatnonzero(state.places >= 0)
    owned = np.flatnonzero(state.owners >= 0)
    by_status = {one: int((state.status == one).sum()) for one in range(IS_CACHED + 1)}
    opened = state.open[state.open >= 0]
    filled = np.full(profile.superblocks, 0)
    full, slc = np.isin(state.status, FULL), state.flash.mode == SLC
    cache, buffer = slc & (state.zone < 0), state.zone == profile.frontiers + profile.superblocks
    staged = state.staged[np.arange(state.staged.shape[1]) < state.staged_count[:, None]]
    filled[full] = np.where(slc, profile.slc_pages, size)[full]
    filled[opened] = state.filled[state.open >= 0]
    # A superblock may be closed before all of its units are.
    programmed = (state.flash.programmed.reshape(profile.superblocks, -1) != NEVER).sum(axis=1)
    units = filled // profile.unit_pages
    wrong = {
        "the mapping and its inverse disagree": len(mapped) != len(owned)
        or bool((state.owners[state.places[mapped]] != mapped).any()),
        "valid pages are miscounted": bool(
            (np.bincount(owned // size, minlength=profile.superblocks) != state.valid).any()
        ),
        "pages are valid that were never filled": bool(
            (owned % size >= filled[owned // size]).any()
        ),
        "superblocks are miscounted": by_status[IS_FREE] != state.registers[FREE]
        or by_status[IS_CLOSED] != state.registers[CLOSED]
        or by_status[IS_OPEN] != len(opened)
        or by_status[IS_CACHED] != state.registers[SLC_FULL]
        or int(cache.sum()) != state.registers[SLC_USED]
        or by_status[IS_CACHED] + int(cache[opened].sum()) != int(cache.sum())
        or int(cache.sum()) > profile.slc_superblocks
        or int((buffer & (state.flash.bad == 0)).sum()) > profile.zone_slc_superblocks
        or bool((buffer != (slc & (state.zone >= 0))).any())
        or by_status[IS_ZONED]
        != int((state.zone >= 0).sum()) - int((state.zone[opened] >= 0).sum()),
        "pages are in the SLC buffer of zones, or are not, that should not be": bool(
            profile.zone_slc_superblocks
        )
        and sorted(state.owners[owned][buffer[owned // size]]) != sorted(staged),
        "data have no age": bool(((state.flash.born != NEVER) != (programmed > 0)).any()),
        "units are programmed that were never filled": bool(
            np.where(full, programmed > units, programmed != units).any()
        ),
    }
    return [problem for problem, found in wrong.items() if found]

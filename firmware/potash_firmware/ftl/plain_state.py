"""The state of the translation layer in plain Python that outlives power cycles, as arrays.

It is that of a drive at rest, as in `saving`: what follows from other arrays is made anew.
"""

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potash_firmware.ftl.base import PythonFtl

STATES = ("free", "open", "closed", "retired")
FREE, OPEN, CLOSED, RETIRED = range(len(STATES))
LARGEST = 1 << 48
"""The largest count of erases or closings of a superblock."""


class KeptFtl(PythonFtl):
    """A translation layer that has the attributes of `plain.PageMapped`."""

    places: "array[int]"
    owners: "array[int]"
    valid: list[int]
    state: list[str]
    free: set[int]
    filled_by: list[int]
    closed_at: list[int]
    closings: int
    open: list[Any]
    size: int
    unit: int
    least: int
    room: int
    buffered: int

    def save(self) -> dict[str, NDArray[Any]]:
        """The arrays by which `restore` has this drive again, at rest; for a class with a
        `version`. A subclass with more state adds arrays of its own."""
        slc = {"slc": np.array(sorted(self.flash.slc), np.int64)} if self.flash.slc else {}
        return slc | {
            "places": np.array(self.places, np.int64),
            "state": np.array([STATES.index(value) for value in self.state], np.int64),
            "erases": np.array(self.flash.erases, np.int64),
            "written": np.array(self.flash.written, np.int64),
            "filled_by": np.array(self.filled_by, np.int64),
            "closed_at": np.array(self.closed_at, np.int64),
            "open": np.array([(o.block, o.filled, o.waiting) for o in self.open], np.int64),
        }

    def restore(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Have an empty drive go on from these arrays. Raises ValueError for what no drive can have
        come to, before it is changed."""
        for name, like in KeptFtl.save(self).items():
            found = saved.get(name)
            if found is None or found.shape != like.shape or found.dtype != like.dtype:
                raise ValueError(f"{name} is missing, or of another drive")
        _check(self, saved)
        places, state = saved["places"], saved["state"]
        mapped = np.flatnonzero(places >= 0)
        owners = np.full(len(self.owners), -1, np.int64)
        owners[places[mapped]] = mapped
        blocks = places[mapped] // self.size
        self.places = array("i", places.tolist())
        self.owners = array("i", owners.tolist())
        self.valid = np.bincount(blocks, minlength=len(state)).tolist()
        self.state = [STATES[value] for value in state.tolist()]
        self.free = set(np.flatnonzero(state == FREE).tolist())
        self.filled_by, self.closed_at = saved["filled_by"].tolist(), saved["closed_at"].tolist()
        self.closings = max(self.closed_at) + 1
        self.good = len(state) - int((state == RETIRED).sum())
        self.worn = self.good < self.least
        self.flash.erases = saved["erases"].tolist()
        self.flash.written = saved["written"].tolist()
        self.flash.slc = set(saved.get("slc", np.empty(0, np.int64)).tolist())
        for frontier, (block, filled, waiting) in zip(
            self.open, saved["open"].tolist(), strict=True
        ):
            frontier.block, frontier.filled, frontier.waiting = block, filled, waiting
            self.buffered += waiting if self.room else 0
        self.rest()  # which has the units that were written be programmed


def _check(ftl: KeptFtl, saved: Mapping[str, NDArray[Any]]) -> None:
    """Raises ValueError."""
    size, unit, state = ftl.size, ftl.unit, saved["state"]
    block, filled, waiting = saved["open"].T
    opened = block >= 0
    numbers = ("erases", "closed_at", "filled_by", "written")
    if (
        min(saved[name].min() for name in numbers) < 0
        or max(saved["erases"].max(), saved["closed_at"].max()) > LARGEST
        or saved["filled_by"].max() >= len(block)
        or not np.isin(state, range(len(STATES))).all()
        or sorted(block[opened]) != np.flatnonzero(state == OPEN).tolist()
        or (filled < 0).any()
        or (filled >= size).any()
        or filled[~opened].any()
        or (waiting < 0).any()
        or (waiting > filled % unit).any()
    ):
        raise ValueError("the superblocks contradict each other")
    slc = saved.get("slc", np.empty(0, np.int64))
    if slc.dtype != np.int64 or not np.isin(slc, np.flatnonzero(state != FREE)).all():
        raise ValueError("superblocks are in SLC mode that are not in use")
    sizes = np.full(len(state), size)
    sizes[slc] = ftl.profile.slc_pages
    full = np.where(state == CLOSED, saved["written"] * unit, 0)
    full[block[opened]] = filled[opened]
    programmed = full // unit
    if (saved["written"] != programmed).any() or (full > sizes).any():
        raise ValueError("superblocks are programmed that were never filled")
    places = saved["places"]
    used = places[places >= 0]
    if (
        places.min() < -1
        or (used >= len(state) * size).any()
        or (np.bincount(used) > 1).any()
        or (used % size >= full[used // size]).any()
        # Without a free superblock nothing can be relocated, and none becomes free.
        or (not (state == FREE).any() and (state != RETIRED).sum() >= ftl.least)
    ):
        raise ValueError("the mapping is not of pages that were written")

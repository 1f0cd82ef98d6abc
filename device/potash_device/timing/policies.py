"""Decisions that a drive's flash translation layer can take in several ways, as small classes.

`victim` of a wear policy, and then of a garbage collection policy, is asked for each superblock
that is to be relocated and erased; `order` of an allocation policy once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class PolicyError(RuntimeError):
    """A policy raised, or gave an answer that makes no sense; a sentence that names it."""


class Superblocks(NamedTuple):
    """What a policy sees: arrays with an element for each superblock, not to be changed."""

    valid: NDArray[np.int64]
    """Pages of 4 KiB that are still mapped."""
    erases: NDArray[np.int64]
    closed_at: NDArray[np.int64]
    """The number of superblocks that were closed before, when this one was filled."""
    candidates: NDArray[np.int64]
    """The numbers of the closed superblocks, ascending: one of them is the answer."""
    pages: int
    """Of a superblock, valid or not."""


class Collection(Protocol):
    def victim(self, superblocks: Superblocks) -> int:
        """The superblock to relocate and erase, to free the rest of it."""


class Wear(Protocol):
    def victim(self, superblocks: Superblocks) -> int | None:
        """A superblock to relocate and erase in order to wear it, or None."""


class Allocation(Protocol):
    def order(self, channels: int, dies: int) -> Sequence[int]:
        """The order in which consecutive program units go to the dies; die d of channel c has
        number c * dies + d."""


class Greedy:
    """The fewest valid pages; of several such, the lowest number."""

    def victim(self, superblocks: Superblocks) -> int:
        candidates = superblocks.candidates
        return int(candidates[np.argmin(superblocks.valid[candidates])])


class Fifo:
    """The superblock that was filled longest ago."""

    def victim(self, superblocks: Superblocks) -> int:
        candidates = superblocks.candidates
        return int(candidates[np.argmin(superblocks.closed_at[candidates])])


class Choices:
    """The fewest valid pages of `count` random candidates (Van Houdt 2013: d-choices)."""

    def __init__(self, count: int = 10, seed: int = 0) -> None:
        self._count = count
        self._random = random.Random(seed)

    def victim(self, superblocks: Superblocks) -> int:
        candidates: list[int] = superblocks.candidates.tolist()
        drawn = self._random.choices(candidates, k=self._count)
        return min(drawn, key=superblocks.valid.__getitem__)


class CostBenefit:
    """The most age * (1 - u) / (1 + u), where u is the share of valid pages (Rosenblum and
    Ousterhout 1992, section 3.6)."""

    def victim(self, superblocks: Superblocks) -> int:
        candidates = superblocks.candidates
        closed_at = superblocks.closed_at
        valid = superblocks.valid[candidates]
        age = closed_at.max() + 1 - closed_at[candidates]
        worth = age * (superblocks.pages - valid) / (superblocks.pages + valid)
        return int(candidates[np.argmax(worth)])


class NoWear:
    """Superblocks wear as they will."""

    def victim(self, superblocks: Superblocks) -> int | None:
        return None


class Gap:
    """Static wear levelling: the least erased superblock, once another has `gap` more erases."""

    def __init__(self, gap: int = 100) -> None:
        self._gap = gap

    def victim(self, superblocks: Superblocks) -> int | None:
        candidates, erases = superblocks.candidates, superblocks.erases
        coldest = int(candidates[np.argmin(erases[candidates])])
        return coldest if int(erases.max() - erases[coldest]) > self._gap else None


class ChannelFirst:
    """From channel to channel, then to the next die of each."""

    def order(self, channels: int, dies: int) -> Sequence[int]:
        return [channel * dies + die for die in range(dies) for channel in range(channels)]


class DieFirst:
    """All dies of a channel, then the next channel."""

    def order(self, channels: int, dies: int) -> Sequence[int]:
        return range(channels * dies)


@dataclass(frozen=True)
class Policies:
    """One of each kind."""

    gc: Collection = field(default_factory=Greedy)
    wear: Wear = field(default_factory=NoWear)
    allocation: Allocation = field(default_factory=ChannelFirst)

    def dies(self, channels: int, dies: int) -> list[int]:
        """The order of all dies. Raises PolicyError."""
        order = _ask(self.allocation, "order", channels, dies)
        try:
            numbers = [int(one) for one in order]
        except (TypeError, ValueError):
            numbers = []
        if sorted(numbers) != list(range(channels * dies)):
            raise PolicyError(
                f"{name_of(self.allocation)} gave no order that has each of the "
                f"{channels * dies} dies once"
            )
        return numbers

    def victim(self, superblocks: Superblocks) -> int:
        """What to relocate next. Raises PolicyError."""
        for policy in (self.wear, self.gc):
            chosen = _ask(policy, "victim", superblocks)
            if chosen is None and policy is self.wear:
                continue
            if not isinstance(chosen, int | np.integer) or chosen not in superblocks.candidates:
                raise PolicyError(
                    f"{name_of(policy)} chose {chosen!r:.40}, which is no closed superblock"
                )
            return int(chosen)
        raise AssertionError("a policy of garbage collection always answers")


def name_of(policy: object) -> str:
    return f"the policy {getattr(policy, 'name', type(policy).__name__)}"


def _ask(policy: object, method: str, *arguments: object) -> Any:
    try:
        return getattr(policy, method)(*arguments)
    except PolicyError:
        raise
    except Exception as error:
        raise PolicyError(f"{name_of(policy)} raised {type(error).__name__}: {error}") from error

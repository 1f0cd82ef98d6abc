"""Decisions that a drive's flash translation layer can take in several ways, as small classes.

`victim` of a wear policy, and then of a garbage collection policy, is asked for each superblock
that is to be relocated and erased; `order` of an allocation policy once.
"""

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from potash_firmware import extension_limits
from potash_firmware.extension_limits import TookTooLong, limited, shown
from potash_firmware.ftl.interface import FtlError

DEPRECATED = "custom policies are deprecated: write a flash translation layer (docs/ftl.md)"

_Answer = TypeVar("_Answer")


class PolicyError(FtlError):
    """A policy raised, took too long, or gave an answer that makes no sense; a sentence that names
    it. `kind` is the field of `Policies` that it is in."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


class Superblocks(NamedTuple):
    """A policy's view: arrays with an element for each superblock, not to be changed."""

    valid: NDArray[np.int64]
    """Pages of 4 KiB that are still mapped."""
    erases: NDArray[np.int64]
    closed_at: NDArray[np.int64]
    """The number of superblocks that were closed before, when this one was filled."""
    candidates: NDArray[np.int64]
    """The numbers of the closed superblocks, ascending: one of them is the answer."""
    pages: int
    """Number of pages of a superblock, valid or not."""


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
    """Writes to channel after channel, then to the next die of each."""

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

    def __post_init__(self) -> None:
        if not all(map(_is_built_in, (self.gc, self.wear, self.allocation))):
            warnings.warn(DEPRECATED, DeprecationWarning, stacklevel=3)

    def without(self, kind: str) -> Self:
        """These policies with the built-in one for one kind."""
        return replace(self, **{kind: getattr(Policies(), kind)})

    def dies(self, channels: int, dies: int) -> list[int]:
        """The order of all dies. Raises PolicyError."""
        return ordered(self.allocation, channels, dies)

    def victim(self, superblocks: Superblocks, wear: bool = True) -> int:
        """The superblock to relocate next; the policy for wear is only asked if `wear` is true.
        Raises PolicyError."""
        found = chosen("wear", self.wear, superblocks) if wear else None
        if found is None:
            found = chosen("gc", self.gc, superblocks)
        assert found is not None
        return found


def ordered(policy: Allocation, channels: int, dies: int) -> list[int]:
    """The order of all dies that a policy gives. Raises PolicyError."""
    count = channels * dies

    def numbers() -> list[int]:
        return [int(one) for one in islice(policy.order(channels, dies), count + 1)]

    order = _ask("allocation", policy, numbers)
    if sorted(order) != list(range(count)):
        raise PolicyError(
            "allocation", f"{name_of(policy)} gave no order that has each of the {count} dies once"
        )
    return order


def chosen(kind: str, policy: Collection | Wear, superblocks: Superblocks) -> int | None:
    """The superblock that a policy chooses; None from one for wear alone. Raises PolicyError."""
    found = _ask(kind, policy, lambda: policy.victim(superblocks))
    if found is None and kind == "wear":
        return None
    if not isinstance(found, int | np.integer) or found not in superblocks.candidates:
        raise PolicyError(
            kind, f"{name_of(policy)} chose {shown(found)}, which is no closed superblock"
        )
    return int(found)


class Loaded:
    """A policy of a file, by its name, with the time limit of extensions."""

    def __init__(self, policy: Any, name: str) -> None:
        self._policy, self.name = policy, name

    def victim(self, superblocks: Superblocks) -> Any:
        """Raises TookTooLong, and what the policy raises."""
        return limited(extension_limits.STEP_LIMIT, self._policy.victim, superblocks)

    def order(self, channels: int, dies: int) -> Any:
        """Raises TookTooLong, and what the policy raises."""
        return limited(extension_limits.STEP_LIMIT, self._policy.order, channels, dies)


def name_of(policy: object) -> str:
    if isinstance(policy, Loaded):
        return f"the policy {policy.name}"
    kind = type(policy)
    name = kind.__qualname__ if _is_built_in(policy) else f"{kind.__module__}:{kind.__qualname__}"
    return f"the policy {name}"


def _is_built_in(policy: object) -> bool:
    return type(policy).__module__ == __name__ and not isinstance(policy, Loaded)


def _ask(kind: str, policy: object, decide: Callable[[], _Answer]) -> _Answer:
    """The decision of a policy. Raises PolicyError."""
    try:
        return decide()
    except PolicyError:
        raise
    except TookTooLong:
        limit = extension_limits.STEP_LIMIT
        raise PolicyError(kind, f"{name_of(policy)} took more than {limit:g} s to decide") from None
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())[:200]
        raise PolicyError(
            kind, f"{name_of(policy)} raised {type(error).__name__}: {said}"
        ) from error

"""Superblocks of the plain model of a drive, and its cached pages."""

from dataclasses import dataclass, field


@dataclass
class Superblock:
    """The blocks of one number on all dies of a group."""

    number: int
    state: str = "free"
    zone: int = -1
    """The stream of the zone that has it."""
    owners: list[int] = field(default_factory=list)
    """The logical page that each place filled so far holds, -1 where it is not valid."""
    programmed: dict[int, int] = field(default_factory=dict)
    """When each program unit is done."""
    erases: int = 0
    closed_at: int = 0
    erased: int = 0
    """When it is."""
    ready: int = 0
    """When the data of the unit that is being filled are there."""

    @property
    def valid(self) -> int:
        return sum(owner >= 0 for owner in self.owners)


@dataclass
class CachedPage:
    """A translation page in memory."""

    number: int
    loaded: int
    dirty: bool
    used: bool = True

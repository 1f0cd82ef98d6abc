"""One line of what the doctor says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How it is with something."""

    GOOD = "good"
    LIMITED = "limited"
    """Potash works without it, less well or less fast."""
    MISSING = "missing"
    """Potash does not work, or its guest does not."""


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it is, what that means, and the command that mends it."""

    name: str
    state: State
    meaning: str
    mend: str = ""
    """A command line; empty where there is nothing to mend, or no command does."""

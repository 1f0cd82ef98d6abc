"""One line of what the doctor says."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated


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

    name: Annotated[str, "What was looked at."]
    state: Annotated[State, "How it is."]
    meaning: Annotated[str, "What there is, or what its absence means."]
    mend: Annotated[str, "The command that mends it; empty where there is none."] = ""


@dataclass(frozen=True)
class Report:
    """What this machine has of what Potash needs."""

    healthy: Annotated[bool, "Whether nothing is missing."]
    findings: Annotated[Sequence[Finding], "One for each thing that was looked at."]

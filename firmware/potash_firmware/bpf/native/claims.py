"""What compiled code takes for proven, as data, for whoever wants to check it.

An access is left without a check of its own for one of three reasons: it is in its function's frame
(`checks.in_frame`), an earlier check covers it, or a proof in front of a nest of loops does. Such a
proof also stands for the turns of each loop and for the fuel. Values are named as in the assembly.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from potash_firmware.bpf.native.checks import Check
from potash_firmware.bpf.native.nests import Nest


class Hoist(NamedTuple):
    """What holds for a nest once the code at `label` has let its version without checks run.

    `last` is for each counted loop the number of its last turn, at most; `reach` for each range of
    the nest its first byte's address and the one behind its last; `cost` is how many instructions
    the nest executes at most, None where it looks at its fuel itself.
    """

    nest: Nest
    label: str
    last: dict[int, str]
    reach: list[tuple[str, str]]
    cost: str | None


@dataclass(frozen=True)
class Claims:
    """Of one function. A version is the header of the nest without checks, None elsewhere."""

    covered: dict[tuple[int | None, int], Check] = field(default_factory=dict)
    """For each version and access the check that it came under."""
    hoists: dict[int, Hoist] = field(default_factory=dict)
    """By the nest's header."""

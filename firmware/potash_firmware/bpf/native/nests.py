"""What is known of a loop nest before it begins: numbers of iterations, and ranges of addresses.

The registers of a counted loop are linear in the iteration number, and so are the addresses that it
uses. The last iteration gives the range of each. A guard before the nest checks these ranges for
all accesses of all iterations, and the fuel for all back edges; if it fails, a version of the nest
with its own checks runs.

All of this holds under conditions (a 32-bit counter does not wrap, a bound is not negative), which
the guard tests too. `induction` finds nests.
"""

from dataclasses import dataclass
from typing import NamedTuple

from potash_firmware.bpf.isa import Jump
from potash_firmware.bpf.native.linear import Linear, Symbol
from potash_firmware.bpf.native.loops import Loop

RISING = frozenset({Jump.JLT, Jump.JLE, Jump.JSLT, Jump.JSLE})
FALLING = frozenset({Jump.JGT, Jump.JGE, Jump.JSGT, Jump.JSGE})
SIGNED = frozenset({Jump.JSLT, Jump.JSLE, Jump.JSGT, Jump.JSGE})
INCLUSIVE = frozenset({Jump.JLE, Jump.JGE, Jump.JSLE, Jump.JSGE})


@dataclass(frozen=True, slots=True)
class Phi:
    """What a register holds when an iteration of the loop with this header begins."""

    header: int
    register: int


@dataclass(frozen=True, slots=True)
class Merged:
    """What a register holds where paths meet that leave different things in it: up to `high`."""

    block: int
    register: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Unsteady:
    """The same, where nothing is known of it."""

    block: int
    register: int


@dataclass(frozen=True, slots=True)
class Iteration:
    """The number of the current iteration of a loop, from 0."""

    header: int


@dataclass(frozen=True, slots=True)
class Times:
    """That number times a register's value at the nest's beginning."""

    header: int
    register: int


@dataclass(frozen=True, slots=True)
class Drift:
    """What a register has gained up to an iteration: each earlier one added `low` to `high`."""

    header: int
    register: int
    low: int
    high: int


class Fits(NamedTuple):
    """The condition that a form is a 32-bit number, signed or not, in every iteration."""

    form: Linear
    signed: bool


class Test(NamedTuple):
    """The exit test of a loop, which every iteration passes and some iteration must fail.

    The loop continues while `left`, plus `step` for each iteration, compares to `right` as `jump`
    says. If `register` is set, an iteration adds its value at the beginning of the nest. Blocks
    that the block `after` dominates are executed only after the test was true.
    """

    jump: Jump
    left: Linear
    right: Linear
    step: int
    register: int | None
    after: int
    conditions: frozenset[Fits]


class Range(NamedTuple):
    """Accesses that reach from `low` to `high` around the same unknowns.

    `short` names the loops whose last iteration, the one that ends them, has none of them.
    """

    terms: frozenset[tuple[Symbol, int]]
    low: int
    high: int
    write: bool
    short: frozenset[int]


@dataclass(frozen=True)
class Nest:
    """A loop that is worth a version without checks, with what has to hold for that.

    `tests` has, outer ones first, the loops whose iterations can be counted in advance and matter.
    `proven` are accesses that need no check in that version, each with its range's index. When it
    is `counted`, an upper bound of its instructions is known.
    """

    loop: Loop
    tests: dict[int, Test]
    ranges: list[Range]
    conditions: list[Fits]
    proven: dict[int, int]
    counted: bool
    branching: frozenset[int]
    """Latches of loops most of which an iteration may skip."""

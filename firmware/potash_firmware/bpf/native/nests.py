"""What is known of a nest of loops before it begins: how often it turns, and where it reaches.

The registers of a counted loop are linear in the number of its turn, and so are the addresses that
it uses. From where it ends, the range of each follows. One check of these ranges in front of the
nest then stands for all accesses of all turns, and one look at the fuel for all ways back; a nest
for which that fails is run with its own checks.

All of this holds under conditions (that a 32-bit counter does not wrap, that a bound is not
negative), which are part of it, and tested in front of the nest too. `induction` finds nests.
"""

from __future__ import annotations

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
    """What a register holds when a turn of the loop with this header begins."""

    header: int
    register: int


@dataclass(frozen=True, slots=True)
class Merged:
    """What a register holds where ways meet that leave different things in it: up to `high`."""

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
class Turn:
    """The number of the current turn of a loop, from 0."""

    header: int


@dataclass(frozen=True, slots=True)
class Times:
    """That number times a register's value at the nest's beginning."""

    header: int
    register: int


@dataclass(frozen=True, slots=True)
class Drift:
    """What a register has gained up to a turn: each turn before it added from `low` to `high`."""

    header: int
    register: int
    low: int
    high: int


class Fits(NamedTuple):
    """The condition that a form is a 32-bit number, signed or not, in every turn."""

    form: Linear
    signed: bool


class Test(NamedTuple):
    """What every turn of a loop passes, and some turn must fail.

    The loop goes on while `left`, plus `step` for each turn, compares to `right` as `jump` says.
    Where `register` is set, a turn adds what that holds at the nest's beginning. What the block
    `after` dominates is executed only once the test has come out true.
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

    `short` names the loops of whose last turn, the one that ends them, they are not part.
    """

    terms: frozenset[tuple[Symbol, int]]
    low: int
    high: int
    write: bool
    short: frozenset[int]


@dataclass(frozen=True)
class Nest:
    """A loop that is worth a version without checks, with what has to hold for that.

    `tests` has, outer ones first, the loops whose turns can be counted in advance and matter.
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
    """Latches of loops most of which a turn may leave out."""

"""A function's loops: their blocks, how they nest, and the values of their registers.

Bytecode has only jumps. To check the accesses of a loop in advance, the loops and what they compute
have to be found first. A loop consists of the blocks that reach a back edge to its header without
passing the header, which is on every path into it. Where control flow is not made of such loops,
none are found. For example,

    0: r3 = 0
    1: r4 = *(u64 *)(r1 + 0)
    2: r1 += 8
    3: r3 += 1
    4: if r3 < r2 goto 1
    5: exit

has blocks that begin at 0, 1 and 5. The edge from block 1 to itself is a back edge, so block 1 is a
loop, of which it is both the header and the only latch.

The registers of a counted loop are linear in the iteration number, and so are the addresses that it
uses: here r1 + 8 * i, which is `Linear(0, {(r1, 1), (i, 8)})`. Two addresses whose forms differ by
a constant have that distance whatever the unknowns are, so one check can cover several accesses.
The last iteration gives the range of each. A guard before a nest checks these ranges for all
accesses of all iterations, and the fuel for all back edges; if it fails, a version of the nest with
its own checks runs. All of this holds under conditions (a 32-bit counter does not wrap, a bound is
not negative), which the guard tests too. `induction` finds nests.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from potash_firmware.bpf.isa import Jump
from potash_firmware.bpf.native.blocks import Function

_WRAP = 1 << 64
_HALF = 1 << 63

FAR = 1 << 62
"""Maximum absolute value of numbers in guards; what may be larger is unknown to them.

Unknowns have limits within this, so a few of them, times factors of 31 bits, never overflow the
128 bits that `ranges` computes with.
"""

Symbol = Hashable
"""An unknown with one value; equal symbols have the same value.

They are not named tuples, as these are equal even if their types differ.
"""


def wrap(value: int) -> int:
    """`value` modulo 2^64, as a signed number."""
    return (value + _HALF) % _WRAP - _HALF


class Linear(NamedTuple):
    """`constant` plus each symbol times its coefficient, which is never 0; signed, modulo 2^64."""

    constant: int
    terms: frozenset[tuple[Symbol, int]]

    def __add__(self, other: Linear) -> Linear:  # type: ignore[override]  # a form is no tuple
        if not other.terms:
            return Linear(wrap(self.constant + other.constant), self.terms)
        terms = dict(self.terms)
        for symbol, factor in other.terms:
            terms[symbol] = terms.get(symbol, 0) + factor
        return _linear(self.constant + other.constant, terms)

    def __sub__(self, other: Linear) -> Linear:
        return self + other.scaled(-1)

    def scaled(self, factor: int) -> Linear:
        return _linear(self.constant * factor, {symbol: by * factor for symbol, by in self.terms})

    def shifted(self, by: int) -> Linear:
        return Linear(wrap(self.constant + by), self.terms)

    @property
    def known(self) -> bool:
        return not self.terms


def near(low: int, high: int) -> bool:
    """True where a guard may use a value from `low` to `high`."""
    return -FAR <= low and high <= FAR


def number(value: int) -> Linear:
    return Linear(wrap(value), frozenset())


def unknown(symbol: Symbol) -> Linear:
    return Linear(0, frozenset({(symbol, 1)}))


def _linear(constant: int, terms: Mapping[Symbol, int]) -> Linear:
    factors = {symbol: wrap(factor) for symbol, factor in terms.items()}
    return Linear(wrap(constant), frozenset(item for item in factors.items() if item[1]))


MOST_BLOCKS = 4096
"""Maximum number of blocks of a function whose loops are searched for, which takes quadratic
time."""

MOST_MEMBERS = 1 << 16
"""Maximum number of blocks of all loops together, where nested loops count again, for the same
reason."""


@dataclass(eq=False)
class Loop:
    """`blocks` includes those of the loops inside; `latches` lead back to the header."""

    header: int
    blocks: set[int]
    latches: list[int]
    parent: Loop | None = None
    depth: int = 1
    children: list[Loop] = field(default_factory=list)

    def nest(self) -> Iterator[Loop]:
        yield self
        for child in self.children:
            yield from child.nest()

    def innermost(self, start: int) -> Loop:
        """The innermost loop of the nest that has a block of this one."""
        for child in self.children:
            if start in child.blocks:
                return child.innermost(start)
        return self


@dataclass
class Flow:
    """The control flow of a function: its outermost loops, and the order of its blocks."""

    order: dict[int, int]
    predecessors: dict[int, list[int]]
    dominators: dict[int, int]
    """The immediate dominator of each block: the last other block that every path to it passes."""
    loops: list[Loop]
    deepest: int = 0
    """Maximum depth of nested loops."""

    def dominates(self, first: int, second: int) -> bool:
        """True where every path to the block `second` passes `first`; each block dominates
        itself."""
        while self.order[second] > self.order[first]:
            second = self.dominators[second]
        return first == second


def flow(function: Function) -> Flow:
    order = {start: index for index, start in enumerate(function.blocks)}
    predecessors: dict[int, list[int]] = {start: [] for start in function.blocks}
    for start, block in function.blocks.items():
        for successor in set(block.successors):
            predecessors[successor].append(start)
    found = Flow(order, predecessors, {}, [])
    if len(order) > MOST_BLOCKS:
        return found
    found.dominators = _dominators(function, order, predecessors)
    latches: dict[int, list[int]] = {}
    for target, sources in predecessors.items():
        for source in sources:
            if order[source] >= order[target]:
                if not found.dominates(target, source):
                    return found
                latches.setdefault(target, []).append(source)
    # Outer headers come first in reverse postorder, so each loop finds its parents made.
    every: list[Loop] = []
    members = 0
    for header in sorted(latches, key=order.__getitem__):
        loop = Loop(header, _body(header, latches[header], predecessors), latches[header])
        for outer in reversed(every):
            if header in outer.blocks:
                loop.parent = outer
                loop.depth = outer.depth + 1
                outer.children.append(loop)
                break
        else:
            found.loops.append(loop)
        every.append(loop)
        members += len(loop.blocks)
        if members > MOST_MEMBERS:
            return Flow(order, predecessors, found.dominators, [])
        found.deepest = max(found.deepest, loop.depth)
    return found


def _body(header: int, latches: list[int], predecessors: dict[int, list[int]]) -> set[int]:
    body = {header}
    waiting = list(latches)
    while waiting:
        start = waiting.pop()
        if start not in body:
            body.add(start)
            waiting.extend(predecessors[start])
    return body


def _dominators(
    function: Function, order: dict[int, int], predecessors: dict[int, list[int]]
) -> dict[int, int]:
    """Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm"."""
    found = {function.entry: function.entry}

    def common(left: int, right: int) -> int:
        while left != right:
            if order[left] > order[right]:
                left = found[left]
            else:
                right = found[right]
        return left

    changed = True
    while changed:
        changed = False
        for start in function.blocks:
            if start == function.entry:
                continue
            reached = [source for source in predecessors[start] if source in found]
            new = reached[0]
            for source in reached[1:]:
                new = common(new, source)
            if found.get(start) != new:
                found[start] = new
                changed = True
    return found


RISING = frozenset({Jump.JLT, Jump.JLE, Jump.JSLT, Jump.JSLE})
FALLING = frozenset({Jump.JGT, Jump.JGE, Jump.JSGT, Jump.JSGE})
SIGNED = frozenset({Jump.JSLT, Jump.JSLE, Jump.JSGT, Jump.JSGE})
INCLUSIVE = frozenset({Jump.JLE, Jump.JGE, Jump.JSLE, Jump.JSGE})


@dataclass(frozen=True, slots=True)
class Phi:
    """A register's value when an iteration of the loop with this header begins."""

    header: int
    register: int


@dataclass(frozen=True, slots=True)
class Merged:
    """A register's value, from `low` to `high`, where paths meet that leave different values in
    it."""

    block: int
    register: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Unsteady:
    """A register's value where paths meet, without known bounds."""

    block: int
    register: int


@dataclass(frozen=True, slots=True)
class Iteration:
    """The number of the current iteration of a loop, from 0."""

    header: int


@dataclass(frozen=True, slots=True)
class Times:
    """The number of the current iteration times a register's value before the nest."""

    header: int
    register: int


@dataclass(frozen=True, slots=True)
class Drift:
    """A register's total increment up to an iteration: each earlier one added `low` to `high`."""

    header: int
    register: int
    low: int
    high: int


def headers(terms: frozenset[tuple[Symbol, int]]) -> Iterator[int]:
    """The headers of the loops on whose iteration number terms depend."""
    for symbol, _ in terms:
        if isinstance(symbol, Iteration | Times | Drift):
            yield symbol.header


class Fits(NamedTuple):
    """The condition that a form fits 32 bits, signed or not, in every iteration."""

    form: Linear
    signed: bool


class Test(NamedTuple):
    """The exit test of a loop, which every iteration evaluates at the end of `block`.

    Iteration i (from 0) continues the loop if `jump` holds for `left` + i * `step` and `right`. If
    `register` is set, its value before the nest takes the place of `step`. Other blocks that
    `block` dominates are executed only after the test was true.
    """

    jump: Jump
    left: Linear
    right: Linear
    step: int
    register: int | None
    block: int
    conditions: frozenset[Fits]


class Range(NamedTuple):
    """Bytes that accesses reach: from `low` up to `high` (exclusive), relative to equal unknowns.

    `after_exit` has the headers of the loops whose last iteration leaves them before it executes
    these accesses.
    """

    terms: frozenset[tuple[Symbol, int]]
    low: int
    high: int
    write: bool
    after_exit: frozenset[int]


@dataclass(frozen=True)
class Nest:
    """A loop that is worth a version without checks, with the conditions for that.

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
    not_vectorised: frozenset[int]
    """Latches of innermost loops in which an iteration may skip too many blocks with accesses."""

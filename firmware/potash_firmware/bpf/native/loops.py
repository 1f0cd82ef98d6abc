"""A function's loops: which blocks they have, and how they lie in each other.

A loop consists of the blocks that reach a back edge to its header without passing the header, which
is on every path into it. Where control flow is not made of such loops, none are found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from potash_firmware.bpf.native.blocks import Function

MOST_BLOCKS = 4096
"""Blocks of a function beyond which no loops are looked for: it takes their square in time."""

MOST_MEMBERS = 1 << 16
"""Blocks of all loops together, each as often as it is in one, for the same reason."""


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
        """This loop and all inside, outer ones first."""
        yield self
        for child in self.children:
            yield from child.nest()


@dataclass
class Flow:
    """The control flow of a function: its outermost loops, and the order of its blocks."""

    order: dict[int, int]
    predecessors: dict[int, list[int]]
    dominators: dict[int, int]
    """For each block but the entry the last one that every path to it passes."""
    loops: list[Loop]
    deepest: int = 0
    """How many loops lie in each other."""

    def dominates(self, first: int, second: int) -> bool:
        """Whether every path to the block `second` passes `first`; each block dominates itself."""
        while self.order[second] > self.order[first]:
            second = self.dominators[second]
        return first == second


def flow(function: Function) -> Flow:
    """Find a function's loops."""
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

    def common(one: int, other: int) -> int:
        while one != other:
            if order[one] > order[other]:
                one = found[one]
            else:
                other = found[other]
        return one

    changed = True
    while changed:
        changed = False
        for start in function.blocks:
            if start == function.entry:
                continue
            known = [one for one in predecessors[start] if one in found]
            new = known[0]
            for one in known[1:]:
                new = common(new, one)
            if found.get(start) != new:
                found[start] = new
                changed = True
    return found

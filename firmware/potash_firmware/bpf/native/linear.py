"""Values as a compiler knows them before a program runs: linear forms over unknowns, modulo 2^64.

Two addresses whose forms differ in a constant lie that far apart, whatever the unknowns are. That
is what lets one check stand for several accesses.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

_WRAP = 1 << 64
_HALF = 1 << 63

FAR = 1 << 62
"""Maximum absolute value of numbers in guards; what may be larger is unknown to them.

Unknowns have limits within this, so a few of them, times factors of 31 bits, never overflow the
128 bits that `ranges` computes with.
"""

Symbol = Hashable
"""Something that has one value, which is not known; two of them are the same when equal.

No tuples, because those are equal whatever they are called.
"""


def wrapped(value: int) -> int:
    """`value` modulo 2^64, as a signed number."""
    return (value + _HALF) % _WRAP - _HALF


class Linear(NamedTuple):
    """`constant` plus each symbol times its coefficient, which is never 0; signed, modulo 2^64."""

    constant: int
    terms: frozenset[tuple[Symbol, int]]

    def __add__(self, other: Linear) -> Linear:  # type: ignore[override]  # a form is no tuple
        if not other.terms:
            return Linear(wrapped(self.constant + other.constant), self.terms)
        terms = dict(self.terms)
        for symbol, factor in other.terms:
            terms[symbol] = terms.get(symbol, 0) + factor
        return _linear(self.constant + other.constant, terms)

    def __sub__(self, other: Linear) -> Linear:
        return self + other.scaled(-1)

    def scaled(self, factor: int) -> Linear:
        """This form times a number."""
        return _linear(self.constant * factor, {one: by * factor for one, by in self.terms})

    def shifted(self, by: int) -> Linear:
        """This form plus a number."""
        return Linear(wrapped(self.constant + by), self.terms)

    @property
    def known(self) -> bool:
        """Whether this is just a number."""
        return not self.terms


def near(low: int, high: int) -> bool:
    """Whether a guard may use a value from `low` to `high`."""
    return -FAR <= low and high <= FAR


def number(value: int) -> Linear:
    """A form without unknowns."""
    return Linear(wrapped(value), frozenset())


def unknown(symbol: Symbol) -> Linear:
    """The form that is one symbol."""
    return Linear(0, frozenset({(symbol, 1)}))


def _linear(constant: int, terms: Mapping[Symbol, int]) -> Linear:
    wrap = {symbol: wrapped(factor) for symbol, factor in terms.items()}
    return Linear(wrapped(constant), frozenset(item for item in wrap.items() if item[1]))

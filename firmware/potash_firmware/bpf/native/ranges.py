"""The guard before a loop nest: code that decides whether the nest can run without checks.

Everything is computed as intervals of 128-bit integers: a register has one value, an iteration
number goes from 0 to the last. Nothing overflows as long as all earlier requirements hold, and once
one does not, the rest no longer matters:

* An unknown is a register, a limit that is known before (`linear.near`), an iteration number, or
  one of these times such a number. It is required to be within FAR, 2^62, where it is computed;
  before that it is at most 2^62 times MOST_ITERATIONS, 2^110.
* A form is a constant of 64 bits and at most MOST_TERMS, 16, unknowns, each times MOST_FACTOR,
  2^31, at most: below 2^98.
* The ends of a loop's test are required to be within FAR, and their distance below
  MOST_ITERATIONS.
* The instructions of an iteration are those of the program, which are less than 2^32, and the
  costs, each required to be below FAR, of at most MOST_BLOCKS, 256, inner loops: below 2^71. Times
  the number of iterations they are below 2^120.
"""

from collections.abc import Callable
from functools import reduce

from potash_firmware.bpf.arena import BASE
from potash_firmware.bpf.native import loops, lowering
from potash_firmware.bpf.native.blocks import Function
from potash_firmware.bpf.native.values import Bounded, Start
from potash_firmware.bpf.native.writer import Writer

MOST_ITERATIONS = 1 << 48
"""A guard fails for a loop with as many iterations or more."""

Interval = tuple[str, str]


class Guard:
    """Writes the code for one nest; `holds` is an i1."""

    def __init__(self, writer: Writer, nest: loops.Nest, function: Function) -> None:
        self._writer = writer
        self._nest = nest
        self._function = function
        self._true: list[str] = []
        self.last: dict[int, str] = {}
        """The number of each loop's last iteration, by its header."""
        self.reach: list[tuple[str, str]] = []
        """The first address and the end of each range."""
        self.cost: str | None = None
        """Instructions of the whole nest."""
        self._values: dict[int, str] = {}

    def holds(self, bottom: str, readable: str, writable: str, fuel: Callable[[], str]) -> str:
        """Write the guard. Returns the name of its result: the nest needs no checks. The function's
        stack frame begins at `bottom`.

        That, the limits of the arena and `fuel` are i64.
        """
        for header, test in self._nest.tests.items():
            self.last[header] = self._iterations(test)
        for condition in self._nest.conditions:
            low, high = self._interval(condition.form, frozenset())
            least, most = (-(1 << 31), (1 << 31) - 1) if condition.signed else (0, (1 << 32) - 1)
            self._require("sge", low, least)
            self._require("sle", high, most)
        for reached in self._nest.ranges:
            self._inside(reached, bottom, writable if reached.write else readable)
        if self._nest.counted:
            self.cost = self._cost(self._nest.loop)
            self._require("sle", self.cost, self._wide(fuel()))
        return reduce(lambda left, right: self._writer.value(f"and i1 {left}, {right}"), self._true)

    # Pieces

    def _require(self, how: str, left: str, right: str | int) -> None:
        self._true.append(self._writer.value(f"icmp {how} i128 {left}, {right}"))

    def _do(self, operation: str, left: str, right: str | int) -> str:
        return self._writer.value(f"{operation} i128 {left}, {right}")

    def _wide(self, value: str, *, signed: bool = True) -> str:
        return self._writer.value(f"{'sext' if signed else 'zext'} i64 {value} to i128")

    def _larger(self, left: str, right: str | int) -> str:
        return self._writer.value(f"call i128 @llvm.smax.i128(i128 {left}, i128 {right})")

    def _smaller(self, left: str, right: str | int) -> str:
        return self._writer.value(f"call i128 @llvm.smin.i128(i128 {left}, i128 {right})")

    def _register(self, register: int) -> str:
        if register not in self._values:
            self._values[register] = value = self._wide(lowering.get(self._writer, register))
            self._near(value, value)
        return self._values[register]

    def _near(self, low: str, high: str) -> None:
        self._require("sge", low, -loops.FAR)
        self._require("sle", high, loops.FAR)

    # Intervals

    def _interval(self, form: loops.Linear, after_exit: frozenset[int]) -> Interval:
        low = high = str(form.constant)
        for symbol, factor in sorted(form.terms, key=repr):
            ends = self._ends(symbol, after_exit)
            scaled = [self._do("mul", end, factor) if factor != 1 else end for end in ends]
            if factor < 0:
                scaled.reverse()
            low, high = self._do("add", scaled[0], low), self._do("add", scaled[1], high)
        return low, high

    def _ends(self, symbol: loops.Symbol, after_exit: frozenset[int]) -> Interval:
        match symbol:
            case Start(register=register):
                return self._register(register), self._register(register)
            case Bounded(low=low, high=high) | loops.Merged(low=low, high=high):
                return str(low), str(high)
            case loops.Iteration(header=header):
                return "0", self._iteration(header, after_exit)
            case loops.Times(header=header, register=register):
                most = self._do(
                    "mul", self._iteration(header, after_exit), self._register(register)
                )
                self._near(most, most)
                return self._smaller(most, 0), self._larger(most, 0)
            case loops.Drift(header=header, low=low, high=high):
                iteration = self._iteration(header, after_exit)
                ends = (
                    self._do("mul", iteration, min(low, 0)),
                    self._do("mul", iteration, max(high, 0)),
                )
                self._near(*ends)
                return ends
        raise AssertionError(f"{symbol} has no range")

    def _iteration(self, header: int, after_exit: frozenset[int]) -> str:
        last = self.last[header]
        return self._do("add", last, -1) if header in after_exit else last

    # Loops

    def _iterations(self, test: loops.Test) -> str:
        """The number of the iteration whose test fails at the latest; adds the requirements for
        that."""
        left, right = (
            self._interval(test.left, frozenset()),
            self._interval(test.right, frozenset()),
        )
        for low, high in (left, right):
            self._require("sge", low, -loops.FAR if test.jump in loops.SIGNED else 0)
            self._require("sle", high, loops.FAR)
        falling = test.step < 0
        if falling:
            distance = self._do("sub", left[1], right[0])
        else:
            distance = self._do("sub", right[1], left[0])
        self._require("slt", distance, MOST_ITERATIONS)
        inclusive = test.jump in loops.INCLUSIVE
        if inclusive:
            distance = self._do("add", distance, 1)
        if test.register is None:
            step = str(abs(test.step))
        else:
            step = lowering.get(self._writer, test.register)
            wide = self._register(test.register)
            self._require("sgt", wide, 0)
            self._require("slt", wide, MOST_ITERATIONS)
        if test.jump in loops.FALLING and test.jump not in loops.SIGNED:
            # The counter must not pass the bound by so much that it wraps.
            lowest = self._do("sub", right[0], abs(test.step) - (0 if inclusive else 1))
            self._require("sge", lowest, 0)
        if test.jump in loops.FALLING or test.jump in loops.RISING:
            distance = self._larger(distance, 0)
            return self._quotient(distance, step, round_up=True)
        # The counter must become equal to the bound.
        nearest = (
            self._do("sub", left[0], right[1]) if falling else self._do("sub", right[0], left[1])
        )
        self._require("sge", nearest, 0)
        if abs(test.step) != 1:
            self._require("eq", nearest, distance)
            self._exact(distance, step)
        return self._quotient(distance, step, round_up=False)

    def _quotient(self, distance: str, step: str, *, round_up: bool) -> str:
        writer = self._writer
        if step == "1":
            return distance
        short = writer.value(f"trunc i128 {distance} to i64")
        if round_up:
            short = writer.value(f"add i64 {short}, {writer.value(f'sub i64 {step}, 1')}")
        # A step of 0 has been refused, but the division is done nevertheless.
        divisor = writer.value(f"call i64 @llvm.umax.i64(i64 {step}, i64 1)")
        return self._wide(writer.value(f"udiv i64 {short}, {divisor}"), signed=False)

    def _exact(self, distance: str, step: str) -> None:
        writer = self._writer
        short = writer.value(f"trunc i128 {distance} to i64")
        rest = writer.value(f"urem i64 {short}, {step}")
        self._true.append(writer.value(f"icmp eq i64 {rest}, 0"))

    def _inside(self, reached: loops.Range, bottom: str, limit: str) -> None:
        low, high = self._interval(loops.Linear(0, reached.terms), reached.after_exit)
        begin, behind = self._do("add", low, reached.low), self._do("add", high, reached.high)
        self._require("sge", begin, self._wide(bottom, signed=False))
        end = self._do("add", self._wide(limit, signed=False), BASE)
        self._require("sle", behind, end)
        self.reach.append((begin, behind))

    def _cost(self, loop: loops.Loop) -> str:
        """The maximum number of instructions that a loop executes each time that it is entered."""
        inner = {start for child in loop.children for start in child.blocks}
        own = sum(len(self._function.blocks[start].pcs) for start in loop.blocks - inner)
        iteration = str(own)
        for child in loop.children:
            iteration = self._do("add", self._cost(child), iteration)
        iterations = self._do("add", self.last[loop.header], 1)
        cost = self._do("mul", iterations, iteration)
        self._require("slt", cost, loops.FAR)
        return cost

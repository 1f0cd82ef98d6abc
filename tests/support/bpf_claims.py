"""Compares the claims of compiled code with what a program does, instruction by instruction.

The interpreter runs the program. Wherever compiled code would compute a guard, its assembly is
evaluated here, with numbers that have no limits: no literal and no result may be too large for its
type while everything required so far holds. Where the guard lets a nest run without checks, each
iteration, each access and the number of instructions has to be as claimed, until the nest ends.
Accesses that came under an earlier check have to be among its bytes. Nothing of this depends on the
analysis that made the claims, nor is anything compiled.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from potash_firmware.bpf import isa
from potash_firmware.bpf.errors import Fault
from potash_firmware.bpf.interpreter import Interpreter
from potash_firmware.bpf.isa import Class, Instruction
from potash_firmware.bpf.native import blocks, generator
from potash_firmware.bpf.native.blocks import Function
from potash_firmware.bpf.native.checks import Check
from potash_firmware.bpf.native.context import Word
from potash_firmware.bpf.native.generator import Claims, Hoist
from support.bpf_programs import Case, Observed, seen, surroundings

BASE, FRAME, FARTHEST = 0x1000_0000, 512, 1 << 32


class Violation(AssertionError):
    """Something that was taken for proven is not so."""


def require(holds: bool, *what: object) -> None:
    if not holds:
        raise Violation(*what)


# The assembly of a guard

_VALUE = re.compile(r"(%\S+) = (.*)")
_FORMS = {
    form: re.compile(pattern)
    for form, pattern in {
        "two": r"(add|sub|mul|and|or|udiv|urem) i(\d+) (\S+), (\S+)",
        "compare": r"icmp (\w+) i(\d+) (\S+), (\S+)",
        "cast": r"(sext|zext|trunc) i(\d+) (\S+) to i(\d+)",
        "call": r"call i\d+ @llvm\.(\w+)\.i(\d+)\(i\d+ (\S+), i\d+ (\S+)\)",
        "load": r"load i64, ptr (%r\d|%fuel)",
    }.items()
}


def signed(value: int, bits: int) -> int:
    sign = 1 << bits - 1
    return (value % (2 * sign) ^ sign) - sign


class Evaluation:
    """The values of a guard's assembly, each as a signed number of its width."""

    def __init__(self, lines: Sequence[str], given: dict[str, int]) -> None:
        self.values = dict(given)
        self._given = given
        self._true = True
        """Whether all that was required so far holds."""
        self.holds = False
        for line in lines:
            match = _VALUE.fullmatch(line)
            if match is not None:
                self.values[match[1]] = self._value(match[2])
            else:
                self.holds = bool(self.values[re.split("[ ,]", line)[2]])

    def of(self, operand: str, bits: int = 128) -> int:
        if operand.startswith("%"):
            return self.values[operand]
        value = int(operand)
        most = 1 << (bits - 1 if bits > 64 else bits)
        require(-(1 << bits - 1) <= value < most, "a literal is too large", value, bits)
        return signed(value, bits)

    def _value(self, text: str) -> int:
        [(form, match)] = [
            (form, match) for form, one in _FORMS.items() if (match := one.fullmatch(text))
        ]
        if form == "load":
            return signed(self._given[match[1]], 64)
        operation, bits = match[1], int(match[2])
        left = self.of(match[3], bits)
        if form == "cast":
            return self._cast(operation, left, bits, int(match[4]))
        right = self.of(match[4], bits)
        size = 1 << bits
        match operation:
            case "add" | "sub" | "mul":
                exact = {"add": left + right, "sub": left - right, "mul": left * right}[operation]
                return self._fitted(exact, bits)
            case "and" | "or":
                return left & right if operation == "and" else left | right
            case "udiv" | "urem":
                quotient, rest = divmod(left % size, right % size)
                return signed(quotient if operation == "udiv" else rest, bits)
            case "smax" | "smin":
                return max(left, right) if operation == "smax" else min(left, right)
            case "umax":
                return signed(max(left % size, right % size), bits)
        if operation.startswith("u"):
            left, right = left % size, right % size
        order = (left > right) - (left < right)
        found = {"eq": order == 0, "ne": order != 0, "lt": order < 0, "le": order <= 0}
        found |= {"gt": order > 0, "ge": order >= 0}
        result = found[operation if operation in found else operation[1:]]
        self._true &= result
        return int(result)

    def _cast(self, operation: str, value: int, bits: int, to: int) -> int:
        if operation == "zext":
            return value % (1 << bits)
        return self._fitted(value, to) if operation == "trunc" else value

    def _fitted(self, exact: int, bits: int) -> int:
        """What is left of a result; 64-bit numbers may be unsigned."""
        most = 1 << (bits - 1 if bits > 64 else bits)
        if self._true:
            require(-(1 << bits - 1) <= exact < most, "a result overflows", exact, bits)
        return signed(exact, bits)


# Programs


@dataclass(frozen=True)
class _Explained:
    """A function's control flow, its claims, and the assembly of its guards by their labels."""

    function: Function
    claims: Claims
    guards: dict[str, list[str]]


def _explained(code: blocks.Code, entry: int) -> _Explained:
    function = blocks.function(code, entry)
    text, claims = generator.claims(code, function)
    guards: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.endswith(":"):
            lines = guards.setdefault(line[:-1], [])
        elif line.startswith("  "):
            lines.append(line.strip())
    return _Explained(function, claims, guards)


@dataclass
class _Nest:
    """A nest that is run without its own checks, and what its guard has computed."""

    hoist: Hoist
    guard: Evaluation
    iterations: dict[int, int] = field(default_factory=dict)
    executed: int = 0


@dataclass
class _Active:
    """An activation of a function."""

    code: _Explained
    block: int | None = None
    nest: _Nest | None = None
    checked: dict[Check, int] = field(default_factory=dict)
    """Checks of the current block, and the address that each began at."""


class Checker(Interpreter):
    """Runs a program, and raises Violation where a claim about it is wrong."""

    def begin(self, case: Case) -> None:
        self._code = blocks.Code(case.code)
        self._explain = functools.cache(functools.partial(_explained, self._code))
        self._active: list[_Active] = []
        self._left: list[int] | None = None
        """The accesses under a check that has failed, up to the last of which a fault must come."""
        self.guards = self.held = 0
        """How many guards were computed, and how many let a nest run."""
        self.start(case.entry, case.arguments)

    def step(self) -> None:
        if len(self.frames) > len(self._active):
            self._active.append(_Active(self._explain(self.pc)))
        del self._active[len(self.frames) :]
        require(self._left != [], "compiled code was left, and nothing is wrong", self.pc)
        active = self._active[-1]
        if self.pc in active.code.function.blocks:
            self._enter(active, self.pc)
        if 0 <= self.pc < len(self.instructions):
            self._visit(active, self.pc, self.instructions[self.pc])
        super().step()

    def _enter(self, active: _Active, block: int) -> None:
        source, active.block = active.block, block
        active.checked.clear()
        if active.nest is not None and block not in active.nest.hoist.nest.loop.blocks:
            active.nest = None
        hoist = active.code.claims.hoists.get(block)
        if active.nest is None and hoist and source not in hoist.nest.loop.blocks:
            self._prove(active, hoist)
        if active.nest is not None:
            for loop in active.nest.hoist.nest.loop.nest():
                if loop.header == block:
                    iterations = active.nest.iterations
                    iterations[block] = iterations[block] + 1 if source in loop.blocks else 0
                    last = active.nest.hoist.last.get(block)
                    if last is not None:
                        most = active.nest.guard.of(last)
                        require(
                            iterations[block] <= most,
                            "an iteration too many",
                            block,
                            iterations,
                            most,
                        )

    def _prove(self, active: _Active, hoist: Hoist) -> None:
        layout = self.arena.layout
        given = {f"%r{number}": value for number, value in enumerate(self.registers)}
        given |= {"%frame": self.registers[10], "%fuel": self.instruction_limit - self.executed}
        given |= {f"%c{Word.READABLE}": layout.size, f"%c{Word.WRITABLE}": layout.rodata_offset}
        given["%bottom"] = self.frame_bottom
        guard = Evaluation(active.code.guards[hoist.label], given)
        self.guards += 1
        if guard.holds:
            self.held += 1
            active.nest = _Nest(hoist, guard)

    def _visit(self, active: _Active, pc: int, instruction: Instruction) -> None:
        nest = active.nest
        if nest is not None and nest.hoist.cost is not None:
            nest.executed += 1
            most = nest.guard.of(nest.hoist.cost)
            require(nest.executed <= most, "more instructions than thought", pc, most)
            require(self.executed < self.instruction_limit, "the limit is evaded", pc)
        if instruction.kind not in (Class.LDX, Class.ST, Class.STX):
            return
        base = instruction.src if instruction.kind == Class.LDX else instruction.dst
        first = (self.registers[base] + instruction.offset) % (1 << 64)
        behind = first + instruction.size
        if base == isa.FRAME_POINTER and -FRAME <= instruction.offset <= -instruction.size:
            require(self.registers[10] - FRAME <= first and behind <= self.registers[10], pc)
        elif nest is not None and pc in nest.hoist.nest.proven:
            index = nest.hoist.nest.proven[pc]
            low, high = (nest.guard.of(end) for end in nest.hoist.reach[index])
            require(low <= first and behind <= high, "an access is elsewhere", pc, first, low, high)
            self._inside(low, high, instruction.kind != Class.LDX)
        elif not (instruction.kind == Class.STX and instruction.mode == isa.Mode.ATOMIC):
            self._covered(active, pc, first, behind, instruction.kind != Class.LDX)

    def _inside(self, low: int, high: int, write: bool) -> None:
        layout = self.arena.layout
        end = BASE + (layout.rodata_offset if write else layout.size)
        require(
            self.frame_bottom <= low and high <= end, "the arena does not reach so far", low, high
        )

    def _covered(self, active: _Active, pc: int, first: int, behind: int, write: bool) -> None:
        """An access that came under a check, perhaps its own."""
        header = active.nest.hoist.nest.loop.header if active.nest is not None else None
        check = active.code.claims.covered.get((header, pc))
        require(check is not None, "an access without a check", pc)
        assert check is not None
        require(check.write == write and check.high - check.low <= FARTHEST, pc, check)
        if check.pc == pc:
            active.checked[check] = first
            end = self.arena.layout.rodata_offset if write else self.arena.layout.size
            if not (self.frame_bottom <= first + check.low and first + check.high <= BASE + end):
                self._left = [*check.covers]
        require(check in active.checked, "a check that was not executed", pc, check)
        origin = active.checked[check]
        within = origin + check.low <= first and behind <= origin + check.high
        if self._left and pc == self._left[-1]:
            self._left = []
        elif self._left is None:
            require(within, "an access that its check does not cover", pc, first, origin, check)


class Held(NamedTuple):
    """What a run has shown: how it ended, None when it was cut short; guards, and those that
    held."""

    observed: Observed | None
    guards: int
    held: int


def hold(case: Case, most: int = 2_000) -> Held:
    """Run a case for `most` instructions; raises Violation where a claim about it is wrong."""
    space, memory, helpers, calls = surroundings(case)
    checker = Checker(case.code, space, helpers, case.limit)
    checker.begin(case)
    ended: Fault | int | None = None
    try:
        while checker.frames and checker.executed < most:
            checker.step()
        if not checker.frames:
            ended = checker.registers[0]
    except Fault as fault:
        ended = fault
    observed = seen(ended, checker.executed, memory, calls) if ended is not None else None
    return Held(observed, checker.guards, checker.held)

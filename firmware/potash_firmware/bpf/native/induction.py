"""Induction variables, and the loop nests whose accesses one guard can check in advance.

A check before each access of a loop can take longer than the access. In many loops, all addresses
are known before the first iteration: they are linear in the iteration number. So one guard before
the loop can check all accesses of all iterations. For example,

    1: r4 = *(u64 *)(r1 + 0)
    2: r1 += 8
    3: r3 += 1
    4: if r3 < r2 goto 1

reads, in iteration i (from 0), 8 bytes at r1 + 8 * i, and continues while r3 + 1 + i < r2, where
the registers stand for their values before the loop. The test gives the last iteration, and so the
range of all reads.

This is what compilers call scalar evolution. A first pass over the nest computes the registers
after each block, where a register that a loop changes is a `Phi` as an iteration begins. The phi's
initial value and its increment per iteration resolve it to a function of the iteration number; a
loop's exit test gives the number of iterations; and the address of an access gives its range.
"""

from collections.abc import Sequence
from typing import NamedTuple

from potash_firmware.bpf import isa
from potash_firmware.bpf.isa import MIRRORED, OPPOSITE, Class, Instruction, Jump
from potash_firmware.bpf.native import values
from potash_firmware.bpf.native.blocks import Block, Function
from potash_firmware.bpf.native.checks import is_access, is_provable, writes
from potash_firmware.bpf.native.loops import (
    FALLING,
    RISING,
    SIGNED,
    Drift,
    Fits,
    Flow,
    Iteration,
    Linear,
    Loop,
    Merged,
    Nest,
    Phi,
    Range,
    Symbol,
    Test,
    Times,
    headers,
    number,
    unknown,
)
from potash_firmware.bpf.native.values import join, static, strip_extensions, widen

MOST_FACTOR = 1 << 31
"""Maximum coefficient in a form that a guard computes. Addresses have smaller ones."""

MOST_RANGES = 24
"""Maximum number of ranges that a guard checks; more would cost more than they save."""

MOST_DEPTH = 8
"""Maximum depth of nested loops in a function that is analysed."""
MOST_BLOCKS = 256
"""Maximum number of blocks in a nest that is analysed."""

MOST_CONDITIONAL = 3
"""Maximum number of blocks with accesses that an iteration may skip, in a loop to vectorise."""

MOST_TERMS = 16
"""Maximum number of unknowns in a form that a guard computes, in 128 bits (`ranges`)."""


def find(instructions: Sequence[Instruction], function: Function, flow: Flow) -> list[Nest]:
    """The nests of a function that get a version without checks; none is inside another."""
    if flow.deepest > MOST_DEPTH:
        return []
    return [nest for loop in flow.loops for nest in _choose(instructions, function, flow, loop)]


def _choose(
    instructions: Sequence[Instruction], function: Function, flow: Flow, loop: Loop
) -> list[Nest]:
    """The nests of a loop: itself, unless more can be proven for the loops inside it."""
    nest = None
    if len(loop.blocks) <= MOST_BLOCKS:
        nest = _Analysis(instructions, function, flow, loop).nest()
    if nest is not None and len(nest.proven) == len(_accesses(instructions, function, loop)):
        return [nest]
    inner = [
        nested for child in loop.children for nested in _choose(instructions, function, flow, child)
    ]
    if nest is None or not {pc for nested in inner for pc in nested.proven} <= nest.proven.keys():
        return inner
    return [nest]


def _accesses(instructions: Sequence[Instruction], function: Function, loop: Loop) -> list[int]:
    return [
        pc
        for start in loop.blocks
        for pc in function.blocks[start].pcs
        if is_provable(instructions[pc])
    ]


class _Key(NamedTuple):
    """The common properties of accesses that share a range: their unknowns, reading or writing, and
    whether the last iterations of loops execute them."""

    terms: frozenset[tuple[Symbol, int]]
    write: bool
    after_exit: frozenset[int]


class _Analysis:
    """The analysis of one loop as the root of a nest."""

    def __init__(
        self, instructions: Sequence[Instruction], function: Function, flow: Flow, root: Loop
    ) -> None:
        self._instructions = list(instructions)
        self._function = function
        self._flow = flow
        self._root = root
        self._loops = {loop.header: loop for loop in root.nest()}
        self._order = sorted(root.blocks, key=flow.order.__getitem__)
        self._evaluator = values.Evaluator(self._instructions, widen)
        self._initial: dict[Phi, Linear] = {}
        """Registers' values before the first iteration of their loop."""
        self._steps: dict[Phi, Linear] = {}
        """Increments of registers per iteration: invariant ones, and others that have bounds."""
        self._extensions: dict[Phi, set[bool]] = {}
        """Registers that each iteration truncates to 32 bits, with their extensions: True for that
        with the sign, False for that with zeroes."""
        self._before: dict[int, values.Environment] = {}
        """Registers before each block."""
        self._after: dict[int, values.Environment] = {}
        """Registers after each block."""
        self._tests: dict[int, Test] = {}
        """The exit tests of loops, by header."""
        self._conditions: dict[Symbol, frozenset[Fits]] = {}
        """Cached results of `_conditions_of_symbol`."""
        self._resolutions: dict[Symbol, Linear | None] = {}
        """Cached results of `_resolved_symbol`, which are final as soon as `_walk` has returned."""

    def nest(self) -> Nest | None:
        """The nest; None where the analysis gives nothing of use."""
        self._walk()
        for header, loop in self._loops.items():
            test = self._test(loop)
            if test is not None:
                self._tests[header] = test
        ranges, conditions, proven = self._ranges()
        calls = any(
            self._instructions[pc].opcode in (isa.CALL, isa.CALLX)
            for start in self._root.blocks
            for pc in self._function.blocks[start].pcs
        )
        counted = len(self._tests) == len(self._loops) and not calls
        if not (proven or counted) or len(ranges) > MOST_RANGES:
            return None
        needed = set(self._tests) if counted else self._needed_loops(ranges, conditions)
        tests = {header: test for header, test in self._tests.items() if header in needed}
        for test in tests.values():
            conditions |= test.conditions
        resolved = {Fits(self._resolve(fits.form), fits.signed) for fits in conditions}
        return Nest(
            self._root,
            tests,
            ranges,
            sorted(resolved, key=repr),
            proven,
            counted,
            self._not_vectorised(),
        )

    def _walk(self) -> None:
        """Find the registers' values at each block, and their increments per iteration."""
        edges: dict[tuple[int, int], values.Environment] = {}
        for start in self._order:
            environment = self._begin(start, edges)
            self._before[start] = list(environment)
            block = self._function.blocks[start]
            for pc in block.pcs:
                self._evaluator.step(environment, pc)
            self._after[start] = environment
            for successor in block.successors:
                edges[start, successor] = environment
        for phi in self._initial:
            latches = self._loops[phi.header].latches
            last = [edges[latch, phi.header][phi.register] for latch in latches]
            steps = {self._increment(phi, value) for value in last}
            if len(steps) == 1 and (step := steps.pop()) is not None:
                self._steps[phi] = step

    def _begin(
        self, start: int, edges: dict[tuple[int, int], values.Environment]
    ) -> values.Environment:
        """The registers before a block, from those at the end of its incoming `edges`."""
        if start == self._root.header:
            environment = values.start()
        else:
            paths = [
                edges[source, start]
                for source in self._flow.predecessors[start]
                if (source, start) in edges
            ]
            environment = [
                join(start, register, [path[register] for path in paths]) for register in range(11)
            ]
        if start in self._loops:
            for register in self._definitions(self._loops[start]):
                phi = Phi(start, register)
                self._initial[phi] = self._evaluator.wide(environment[register])
                environment[register] = values.Value(unknown(phi))
        return environment

    def _definitions(self, loop: Loop) -> set[int]:
        """The registers that a loop may change."""
        return {
            register
            for start in loop.blocks
            for pc in self._function.blocks[start].pcs
            for register in values.definitions(self._instructions[pc])
        }

    def _increment(self, phi: Phi, value: values.Value) -> Linear | None:
        """The increment in an iteration that leaves `value` in a register; None if it is neither
        invariant nor bounded. Notes in `_extensions` how the register is truncated."""
        form = value.form
        extensions: set[bool] = set()
        if value.narrow:
            # Only the low 32 bits matter, which no extension inside the form changes.
            form = strip_extensions(form)
            extensions.add(False)
        elif len(form.terms) == 1 and not form.constant:
            [(symbol, factor)] = form.terms
            if isinstance(symbol, values.Extension) and factor == 1:
                form = symbol.form
                extensions.add(symbol.signed)
        increment = form - unknown(phi)
        symbols = [symbol for symbol, _ in increment.terms]
        if (
            all(isinstance(symbol, values.Start) for symbol in symbols)
            or static(increment) is not None
        ):
            self._extensions.setdefault(phi, set()).update(extensions)
            return increment
        return None

    # Exit tests of loops

    def _test(self, loop: Loop) -> Test | None:
        """The last exit test that every iteration evaluates and that counts the iterations."""
        for start in sorted(loop.blocks, key=self._flow.order.__getitem__, reverse=True):
            block = self._function.blocks[start]
            if len(block.successors) != 2 or self._root.innermost(start) is not loop:
                continue
            inside = [successor in loop.blocks for successor in block.successors]
            if inside[0] == inside[1]:
                continue
            if all(self._flow.dominates(start, latch) for latch in loop.latches):
                test = self._test_of_block(loop, block, stays=inside[0])
                if test is not None:
                    return test
        return None

    def _test_of_block(self, loop: Loop, block: Block, *, stays: bool) -> Test | None:
        """The exit test that a block ends with; its jump `stays` in the loop where it is taken."""
        instruction = self._instructions[block.pcs[-1]]
        jump: Jump | None = Jump(instruction.code)
        if not stays:
            jump = OPPOSITE.get(instruction.code)
        if jump is None or jump not in MIRRORED:
            return None
        environment = self._after[block.start]
        sides = []
        for value in (
            environment[instruction.dst],
            self._evaluator.operand(environment, instruction),
        ):
            if instruction.kind == Class.JMP32:
                form = widen(value.form, jump in SIGNED)
            else:
                form = self._evaluator.wide(value)
            sides.append(form)
        left, right = sides
        if self._varies(loop, right):
            left, right, jump = right, left, MIRRORED[jump]
        return self._linear_test(loop, jump, left, right, block.start)

    def _varies(self, loop: Loop, form: Linear) -> bool:
        """True for a form that depends on the iteration number of a loop."""
        resolved = self._try_resolve(form)
        return resolved is not None and any(_of_loop(symbol, loop) for symbol, _ in resolved.terms)

    def _linear_test(
        self, loop: Loop, jump: Jump, left: Linear, right: Linear, block: int
    ) -> Test | None:
        """The test of a comparison that a `block` ends with; None unless `left` grows or falls by
        an invariant step per iteration, `right` is invariant, and a guard can compute both."""
        resolved, bound = self._try_resolve(left), self._try_resolve(right)
        if resolved is None or bound is None:
            return None
        varying = [term for term in resolved.terms if _of_loop(term[0], loop)]
        if len(varying) != 1:
            return None
        [(symbol, step)] = varying
        rest = resolved - unknown(symbol).scaled(step)
        if not self._usable(rest, loop) or not self._usable(bound, loop):
            return None
        register = None
        if isinstance(symbol, Times):
            register = symbol.register
            if step != 1 or jump not in RISING:
                return None
        elif (
            not isinstance(symbol, Iteration)
            or abs(step) > MOST_FACTOR
            or (jump in RISING and step < 0)
            or (jump in FALLING and step > 0)
        ):
            return None
        conditions = self._conditions_of(left) | self._conditions_of(right)
        countable = {loop.header, *self._tests}
        for condition in conditions:
            form = self._try_resolve(condition.form)
            if form is None or not self._computable(form, countable):
                return None
        return Test(jump, rest, bound, step, register, block, frozenset(conditions))

    def _symbol_varies(self, symbol: Symbol, loop: Loop, nested: set[int]) -> bool:
        """True for a symbol that may vary with a loop's iterations, or with its `nested` loops'."""
        match symbol:
            case values.Bounded(pc=pc):
                return any(pc in self._function.blocks[start].pcs for start in loop.blocks)
            case Merged(block=block):
                return block in loop.blocks
            case Iteration(header=header) | Times(header=header) | Drift(header=header):
                return header in nested
        return False

    # Ranges that loops reach

    def _resolve(self, form: Linear) -> Linear:
        """The result of `_try_resolve`, for a form that is known to have one."""
        resolved = self._try_resolve(form)
        assert resolved is not None
        return resolved

    def _try_resolve(self, form: Linear) -> Linear | None:
        """The form with each phi replaced by a function of iteration numbers and of the registers
        before the nest; None where a symbol has no such function."""
        total = number(form.constant)
        for symbol, factor in form.terms:
            part = self._resolved_symbol(symbol)
            if part is None:
                return None
            total += part.scaled(factor)
        return total

    def _resolved_symbol(self, symbol: Symbol) -> Linear | None:
        if symbol not in self._resolutions:
            self._resolutions[symbol] = self._find_resolved(symbol)
        return self._resolutions[symbol]

    def _find_resolved(self, symbol: Symbol) -> Linear | None:
        match symbol:
            case values.Start() | values.Bounded() | Merged():
                return unknown(symbol)
            case values.Extension(form=form):
                return self._try_resolve(form)
            case Phi():
                return self._resolved_phi(symbol)
        return None

    def _resolved_phi(self, phi: Phi) -> Linear | None:
        step = self._steps.get(phi)
        if step is None:
            return None
        first = self._try_resolve(self._initial[phi])
        if first is None:
            return None
        bounds = static(step)
        if bounds is not None and not step.known:
            return first + unknown(Drift(phi.header, phi.register, *bounds))
        total = first + unknown(Iteration(phi.header)).scaled(step.constant)
        for symbol, factor in step.terms:
            assert isinstance(symbol, values.Start)
            total += unknown(Times(phi.header, symbol.register)).scaled(factor)
        return total

    def _conditions_of(self, form: Linear) -> set[Fits]:
        """Conditions under which a form equals what it is resolved to: nothing is truncated."""
        return {fits for symbol, _ in form.terms for fits in self._conditions_of_symbol(symbol)}

    def _conditions_of_symbol(self, symbol: Symbol) -> frozenset[Fits]:
        if symbol not in self._conditions:
            found: set[Fits] = set()
            match symbol:
                case values.Extension(form=inner, signed=signed):
                    found = {Fits(inner, signed), *self._conditions_of(inner)}
                case Phi() if symbol in self._steps:
                    found = self._conditions_of(self._initial[symbol])
                    for signed in self._extensions.get(symbol, ()):
                        found.add(Fits(unknown(symbol), signed))
            self._conditions[symbol] = frozenset(found)
        return self._conditions[symbol]

    def _usable(self, form: Linear, loop: Loop) -> bool:
        """True for a loop-invariant form whose range a guard can compute."""
        nested = {inner.header for inner in loop.nest()}
        return self._computable(form, set(self._tests)) and not any(
            self._symbol_varies(symbol, loop, nested) for symbol, _ in form.terms
        )

    def _computable(self, form: Linear, countable: set[int]) -> bool:
        """True for a form whose range a guard can compute if it can count the `countable` loops."""
        return len(form.terms) <= MOST_TERMS and all(
            abs(factor) <= MOST_FACTOR
            and (not isinstance(symbol, Iteration | Times | Drift) or symbol.header in countable)
            for symbol, factor in form.terms
        )

    def _ranges(self) -> tuple[list[Range], set[Fits], dict[int, int]]:
        """The ranges of all accesses that a guard can check, the conditions for that, and the index
        of each such access's range by pc."""
        found: dict[_Key, Range] = {}
        indices: dict[_Key, int] = {}
        conditions: set[Fits] = set()
        proven: dict[int, int] = {}
        for start in self._order:
            environment = list(self._before[start])
            after_exit = self._after_exit(start)
            for pc in self._function.blocks[start].pcs:
                instruction = self._instructions[pc]
                if is_provable(instruction):
                    address = self._evaluator.address(environment, pc)
                    needed = self._conditions_of(address)
                    to_resolve = [address, *(fits.form for fits in needed)]
                    forms = [self._try_resolve(each) for each in to_resolve]
                    form = forms[0]
                    if form is not None and all(
                        each is not None and self._computable(each, set(self._tests))
                        for each in forms
                    ):
                        conditions |= needed
                        key = _Key(form.terms, writes(instruction), after_exit)
                        proven[pc] = indices.setdefault(key, len(indices))
                        low, high = form.constant, form.constant + instruction.size
                        old = found.get(key, Range(key.terms, low, high, key.write, after_exit))
                        found[key] = old._replace(low=min(old.low, low), high=max(old.high, high))
                self._evaluator.step(environment, pc)
        return list(found.values()), conditions, proven

    def _after_exit(self, start: int) -> frozenset[int]:
        """Headers of the loops whose exit test dominates a block, which their last iteration
        therefore does not execute."""
        return frozenset(
            header
            for header, test in self._tests.items()
            if start in self._loops[header].blocks
            and start != test.block
            and self._flow.dominates(test.block, start)
        )

    def _not_vectorised(self) -> frozenset[int]:
        """The latches of innermost loops with accesses in more than MOST_CONDITIONAL blocks that an
        iteration may skip. A vectorised loop would execute all of these blocks in each iteration.
        """
        found: set[int] = set()
        for loop in self._loops.values():
            sometimes = [
                start
                for start in loop.blocks
                if not all(self._flow.dominates(start, latch) for latch in loop.latches)
                and any(
                    is_access(self._instructions[pc]) for pc in self._function.blocks[start].pcs
                )
            ]
            if not loop.children and len(sometimes) > MOST_CONDITIONAL:
                found.update(loop.latches)
        return frozenset(found)

    def _needed_loops(self, ranges: list[Range], conditions: set[Fits]) -> set[int]:
        """Headers of the loops on whose number of iterations the ranges and conditions depend."""
        needed: set[int] = set()
        waiting = [reached.terms for reached in ranges]
        waiting += [self._resolve(fits.form).terms for fits in conditions]
        while waiting:
            for header in headers(waiting.pop()):
                if header not in needed:
                    needed.add(header)
                    test = self._tests[header]
                    waiting += [test.left.terms, test.right.terms]
                    waiting += [self._resolve(fits.form).terms for fits in test.conditions]
        return needed


def _of_loop(symbol: Symbol, loop: Loop) -> bool:
    return isinstance(symbol, Iteration | Times | Drift) and symbol.header == loop.header

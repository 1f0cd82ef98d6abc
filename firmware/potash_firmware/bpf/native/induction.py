"""Loop nests whose accesses one guard can check in advance: induction over their iterations.

A check before each access of a loop can take longer than the access. In many loops, all addresses
are known before the first iteration: they are linear in the number of the iteration. So one guard
before the loop can check all accesses of all iterations. For example,

    1: r4 = *(u64 *)(r1 + 0)
    2: r1 += 8
    3: r3 += 1
    4: if r3 < r2 goto 1

reads, in iteration i, 8 bytes at r1 + 8 * i, where r1 is the register's value before the loop. The
loop continues while r3 + 1 + i < r2, which gives the last iteration, and so the range of all reads.

A first pass computes the registers after each block, from their values at the beginning of the nest
and of each iteration of its loops. The increment per iteration makes a register a function of the
iteration number; a loop's exit test gives the number of iterations; and the address of an access
gives its range.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from potash_firmware.bpf import isa
from potash_firmware.bpf.isa import MIRRORED, OPPOSITE, Class, Instruction, Jump
from potash_firmware.bpf.native import values
from potash_firmware.bpf.native.blocks import Block, Function
from potash_firmware.bpf.native.checks import in_frame, is_access, is_atomic, writes
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
    number,
    unknown,
)
from potash_firmware.bpf.native.values import merged, static, unwidened, widened

MOST_FACTOR = 1 << 31
"""Larger factors are of hashes, not of addresses."""

MOST_RANGES = 24
"""Ranges that are worth checking in front of a nest."""

MOST_DEPTH = 8
MOST_BLOCKS = 256
"""Maximum depth of loops, and blocks of a nest, that are analysed."""

MOST_CONDITIONAL = 3
"""Blocks with accesses that an iteration may skip, for a loop that is worth vectorising."""

MOST_TERMS = 16
"""Unknowns in a form that a guard computes; with MOST_FACTOR they bound what it computes with."""


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
        if _to_check(instructions[pc])
    ]


def _to_check(instruction: Instruction) -> bool:
    return is_access(instruction) and not in_frame(instruction) and not is_atomic(instruction)


class _Key(NamedTuple):
    """Accesses with the same unknowns, of the same kind and in the same iterations share a
    range."""

    terms: frozenset[tuple[Symbol, int]]
    write: bool
    short: frozenset[int]


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
        self._evaluator = values.Evaluator(self._instructions, widened)
        self._first: dict[Phi, Linear] = {}
        """Registers' values when their loop begins."""
        self._steps: dict[Phi, Linear] = {}
        """The increment of registers per iteration, if it is constant or at least has bounds."""
        self._extended: dict[Phi, set[bool]] = {}
        """Registers that are truncated to 32 bits in each iteration, with the kinds of their
        extension."""
        self._before: dict[int, values.Environment] = {}
        self._ends: dict[int, values.Environment] = {}
        self._tests: dict[int, Test] = {}
        self._conditions: dict[Symbol, frozenset[Fits]] = {}
        """Cached results of `_condition_of_symbol`."""
        self._resolutions: dict[Symbol, Linear | None] = {}
        """Cached results of `_resolved_symbol`, after the walk."""

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
        needed = set(self._tests) if counted else self._needed(ranges, conditions)
        tests = {header: test for header, test in self._tests.items() if header in needed}
        for test in tests.values():
            conditions |= test.conditions
        resolved = {Fits(self._resolved(fits.form), fits.signed) for fits in conditions}
        return Nest(
            self._root,
            tests,
            ranges,
            sorted(resolved, key=repr),
            proven,
            counted,
            self._branching(),
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
            self._ends[start] = environment
            for successor in block.successors:
                edges[start, successor] = environment
        for phi in self._first:
            latches = self._loops[phi.header].latches
            last = [edges[latch, phi.header][phi.register] for latch in latches]
            steps = {self._gain(phi, value) for value in last}
            if len(steps) == 1 and (step := steps.pop()) is not None:
                self._steps[phi] = step

    def _begin(
        self, start: int, edges: dict[tuple[int, int], values.Environment]
    ) -> values.Environment:
        if start == self._root.header:
            environment = values.start()
        else:
            paths = [
                edges[source, start]
                for source in self._flow.predecessors[start]
                if (source, start) in edges
            ]
            environment = [
                merged(start, register, [path[register] for path in paths])
                for register in range(11)
            ]
        if start in self._loops:
            for register in self._written(self._loops[start]):
                phi = Phi(start, register)
                self._first[phi] = self._evaluator.wide(environment[register])
                environment[register] = values.Value(unknown(phi))
        return environment

    def _written(self, loop: Loop) -> set[int]:
        return {
            register
            for start in loop.blocks
            for pc in self._function.blocks[start].pcs
            for register in values.written(self._instructions[pc])
        }

    def _gain(self, phi: Phi, value: values.Value) -> Linear | None:
        """The increment of an iteration that leaves `value` in a register; None where it is not
        known."""
        form = value.form
        extended: set[bool] = set()
        if value.narrow:
            # Only the low half matters, which does not depend on how its parts were extended.
            form = unwidened(form)
            extended.add(False)
        elif len(form.terms) == 1 and not form.constant:
            [(symbol, factor)] = form.terms
            if isinstance(symbol, values.Extended) and factor == 1:
                form = symbol.form
                extended.add(symbol.signed)
        gained = form - unknown(phi)
        symbols = [symbol for symbol, _ in gained.terms]
        if (
            all(isinstance(symbol, values.Start) for symbol in symbols)
            or static(gained) is not None
        ):
            self._extended.setdefault(phi, set()).update(extended)
            return gained
        return None

    # Exit tests of loops

    def _test(self, loop: Loop) -> Test | None:
        """A test that every iteration passes, and that some iteration must fail."""
        for start in sorted(loop.blocks, key=self._flow.order.__getitem__, reverse=True):
            block = self._function.blocks[start]
            if len(block.successors) != 2 or self._innermost(start) is not loop:
                continue
            inside = [successor in loop.blocks for successor in block.successors]
            if inside[0] == inside[1]:
                continue
            if all(self._flow.dominates(start, latch) for latch in loop.latches):
                test = self._understood(loop, block, stays=inside[0])
                if test is not None:
                    return test
        return None

    def _innermost(self, start: int) -> Loop:
        found = self._root
        for loop in self._root.nest():
            if start in loop.blocks and len(loop.blocks) <= len(found.blocks):
                found = loop
        return found

    def _understood(self, loop: Loop, block: Block, *, stays: bool) -> Test | None:
        instruction = self._instructions[block.pcs[-1]]
        jump: Jump | None = Jump(instruction.code)
        if not stays:
            jump = OPPOSITE.get(instruction.code)
        if jump is None or jump not in MIRRORED:
            return None
        environment = self._ends[block.start]
        sides = []
        for value in (
            environment[instruction.dst],
            self._evaluator.operand(environment, instruction),
        ):
            if instruction.kind == Class.JMP32:
                form = widened(value.form, jump in SIGNED)
            else:
                form = self._evaluator.wide(value)
            sides.append(form)
        left, right = sides
        if self._varies(loop, right):
            left, right, jump = right, left, MIRRORED[jump]
        return self._counted(loop, jump, left, right, block.start)

    def _varies(self, loop: Loop, form: Linear) -> bool:
        resolved = self.resolved(form)
        return resolved is not None and any(_of_loop(symbol, loop) for symbol, _ in resolved.terms)

    def _counted(
        self, loop: Loop, jump: Jump, left: Linear, right: Linear, after: int
    ) -> Test | None:
        resolved, bound = self.resolved(left), self.resolved(right)
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
        conditions = self._condition_of(left) | self._condition_of(right)
        counted = {loop.header, *self._tests}
        for condition in conditions:
            form = self.resolved(condition.form)
            if form is None or not self._computable(form, counted):
                return None
        return Test(jump, rest, bound, step, register, after, frozenset(conditions))

    def _inside(self, symbol: Symbol, loop: Loop, headers: set[int]) -> bool:
        """True for a symbol that may have another value in each iteration of a loop."""
        match symbol:
            case values.Bounded(pc=pc):
                return any(pc in self._function.blocks[start].pcs for start in loop.blocks)
            case Merged(block=block):
                return block in loop.blocks
            case Iteration(header=header) | Times(header=header) | Drift(header=header):
                return header in headers
        return False

    # Ranges that loops reach

    def _resolved(self, form: Linear) -> Linear:
        """The same as `resolved`, for a form that is known to have one."""
        resolved = self.resolved(form)
        assert resolved is not None
        return resolved

    def resolved(self, form: Linear) -> Linear | None:
        """A form over numbers of iterations and the registers at the beginning, if there is one."""
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
            case values.Extended(form=form):
                return self.resolved(form)
            case Phi():
                return self._resolved_phi(symbol)
        return None

    def _resolved_phi(self, phi: Phi) -> Linear | None:
        step = self._steps.get(phi)
        if step is None:
            return None
        first = self.resolved(self._first[phi])
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

    def _condition_of(self, form: Linear) -> set[Fits]:
        """Conditions under which `resolved` is right about a form."""
        return {fits for symbol, _ in form.terms for fits in self._condition_of_symbol(symbol)}

    def _condition_of_symbol(self, symbol: Symbol) -> frozenset[Fits]:
        if symbol not in self._conditions:
            found: set[Fits] = set()
            match symbol:
                case values.Extended(form=inner, signed=signed):
                    found = {Fits(inner, signed), *self._condition_of(inner)}
                case Phi() if symbol in self._steps:
                    found = self._condition_of(self._first[symbol])
                    for signed in self._extended.get(symbol, ()):
                        found.add(Fits(unknown(symbol), signed))
            self._conditions[symbol] = frozenset(found)
        return self._conditions[symbol]

    def _usable(self, form: Linear, loop: Loop) -> bool:
        """True for a form that has a range, and one value in all iterations of a loop."""
        inside = {nested.header for nested in loop.nest()}
        return self._computable(form, set(self._tests)) and not any(
            self._inside(symbol, loop, inside) for symbol, _ in form.terms
        )

    def _computable(self, form: Linear, counted: set[int]) -> bool:
        """True for a form that has a range, given the loops whose iterations can be counted."""
        return len(form.terms) <= MOST_TERMS and all(
            abs(factor) <= MOST_FACTOR
            and (not isinstance(symbol, Iteration | Times | Drift) or symbol.header in counted)
            for symbol, factor in form.terms
        )

    def _ranges(self) -> tuple[list[Range], set[Fits], dict[int, int]]:
        """Ranges of the accesses that can be proven, the conditions for that, and the index of each
        access's range."""
        found: dict[_Key, Range] = {}
        indices: dict[_Key, int] = {}
        conditions: set[Fits] = set()
        proven: dict[int, int] = {}
        for start in self._order:
            environment = list(self._before[start])
            short = self._short(start)
            for pc in self._function.blocks[start].pcs:
                instruction = self._instructions[pc]
                if _to_check(instruction):
                    address = self._evaluator.address(environment, pc)
                    needed = self._condition_of(address)
                    forms = [self.resolved(address), *(self.resolved(fits.form) for fits in needed)]
                    form = forms[0]
                    if form is not None and all(
                        each is not None and self._computable(each, set(self._tests))
                        for each in forms
                    ):
                        conditions |= needed
                        key = _Key(form.terms, writes(instruction), short)
                        proven[pc] = indices.setdefault(key, len(indices))
                        at, end = form.constant, form.constant + instruction.size
                        old = found.get(key, Range(key.terms, at, end, key.write, short))
                        found[key] = old._replace(low=min(old.low, at), high=max(old.high, end))
                self._evaluator.step(environment, pc)
        return list(found.values()), conditions, proven

    def _short(self, start: int) -> frozenset[int]:
        """Loops whose last iteration does not execute a block, as it follows their exit test."""
        return frozenset(
            header
            for header, test in self._tests.items()
            if start in self._loops[header].blocks
            and start != test.after
            and self._flow.dominates(test.after, start)
        )

    def _branching(self) -> frozenset[int]:
        """The latches of innermost loops that have accesses in many blocks not always executed.

        Vectorising such a loop means executing all of these blocks in every iteration.
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

    def _needed(self, ranges: list[Range], conditions: set[Fits]) -> set[int]:
        """The loops on whose number of iterations a range depends."""
        needed: set[int] = set()
        waiting = [reached.terms for reached in ranges]
        waiting += [self._resolved(fits.form).terms for fits in conditions]
        while waiting:
            for header in _headers(waiting.pop()):
                if header not in needed:
                    needed.add(header)
                    test = self._tests[header]
                    waiting += [test.left.terms, test.right.terms]
                    waiting += [self._resolved(fits.form).terms for fits in test.conditions]
        return needed


def _headers(terms: frozenset[tuple[Symbol, int]]) -> Iterator[int]:
    for symbol, _ in terms:
        if isinstance(symbol, Iteration | Times | Drift):
            yield symbol.header


def _of_loop(symbol: Symbol, loop: Loop) -> bool:
    return isinstance(symbol, Iteration | Times | Drift) and symbol.header == loop.header

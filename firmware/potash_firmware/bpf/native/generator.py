"""A function of a program as LLVM assembly.

Accesses, calls and jumps are checked before they are executed. Where a check fails, compiled code
passes the live registers to the interpreter, which continues there and raises the fault
(deoptimisation): so faults are identical on both, and cold code is small.

Every instruction is counted: a segment of instructions when it begins. The limit is checked at back
edges and before calls. Code that also counts by kind has a counter for each kind that occurs in the
function, which LLVM can keep in a register or compute after a loop, as it does the fuel.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from potash_firmware.bpf import isa
from potash_firmware.bpf.arena import BASE
from potash_firmware.bpf.counters import Kind, kind_of
from potash_firmware.bpf.isa import CallKind, Class, Instruction, Jump, OperandSource
from potash_firmware.bpf.native import induction, loops, lowering
from potash_firmware.bpf.native.blocks import Block, Code, Function
from potash_firmware.bpf.native.checks import Check, Segment, in_frame, is_atomic, segments
from potash_firmware.bpf.native.context import REFUEL, SideExit, Word
from potash_firmware.bpf.native.loops import Nest
from potash_firmware.bpf.native.ranges import Guard
from potash_firmware.bpf.native.values import live
from potash_firmware.bpf.native.writer import CONTEXT, LIKELY, SCALAR, UNLIKELY, Writer, verify

PARAMETERS = "ptr %context, ptr %memory, i64 %frame, i64 %a1, i64 %a2, i64 %a3, i64 %a4, i64 %a5"
_ARGUMENTS = range(1, 6)
_SAVED = range(10)


# What compiled code assumes, as data that tests verify. An access has no check of its own if it is
# in its function's frame, or if an earlier check or the guard of a loop nest covers it. A guard
# also covers the iterations of each loop and the fuel. Values have their names in the assembly.


class Hoist(NamedTuple):
    """Properties of a nest that hold when the guard at `label` lets its version without checks run.

    `last` is the maximum number of the last iteration of each counted loop; `reach` are the first
    address and the end of each range of the nest; `cost` is the maximum number of instructions that
    the nest executes, None if it checks its fuel itself.
    """

    nest: Nest
    label: str
    last: dict[int, str]
    reach: list[tuple[str, str]]
    cost: str | None


@dataclass(frozen=True)
class Claims:
    """Claims about one function. A version is the header of the nest without checks, None
    elsewhere."""

    covered: dict[tuple[int | None, int], Check] = field(default_factory=dict)
    """For each version and access, the check that covers it."""
    hoists: dict[int, Hoist] = field(default_factory=dict)
    """Guarded nests by their headers."""


def symbol(entry: int) -> str:
    """The name of the compiled function that begins at an instruction."""
    return f"f{entry}" if entry >= 0 else f"fm{-entry}"


def _counter(kind: Kind) -> str:
    return f"%{kind.name.lower()}s"


def generate(code: Code, function: Function, *, exported: bool, by_kind: bool = False) -> str:
    """The definition of `function`; only an exported one can be found from outside.

    With `by_kind` it counts instructions by kind.
    """
    return _Generator(code, function, by_kind).definition(exported)


def claims(code: Code, function: Function) -> tuple[str, Claims]:
    """The definition of `function`, and the claims that it takes for proven."""
    generator = _Generator(code, function)
    return generator.definition(exported=False), generator.claims


class _Generator:
    def __init__(self, code: Code, function: Function, by_kind: bool = False) -> None:
        self._by_kind = by_kind
        self._instructions = list(code.instructions)
        self._function = function
        self._flow = loops.flow(function)
        self._order = self._flow.order
        self._kinds: list[Kind] = []
        """Kinds that are counted here; the number of ALU is what remains of all instructions."""
        if by_kind:
            pcs = itertools.chain.from_iterable(block.pcs for block in function.blocks.values())
            found = {kind_of(self._instructions[pc]) for pc in pcs}
            self._kinds = sorted(found - {Kind.ALU})
        self._live = live(self._instructions, function.blocks)
        self._nests = {
            nest.loop.header: nest
            for nest in induction.find(self._instructions, function, self._flow)
        }
        self._nest: Nest | None = None
        """The nest whose version without checks is being written."""
        self._writer = Writer()
        self._prologue: dict[str, str] = {}
        self.claims = Claims()

    def definition(self, exported: bool) -> str:
        for block in self._function.blocks.values():
            self._block(block)
        for nest in self._nests.values():
            self._write_guarded(nest)
        linkage = "" if exported else "internal "
        name = symbol(self._function.entry)
        lines = [f"define {linkage}i64 @{name}({PARAMETERS}) nounwind {{", "start:"]
        for register in _SAVED:
            first = f"%a{register}" if register in _ARGUMENTS else "0"
            lines += [f"  %r{register} = alloca i64", f"  store i64 {first}, ptr %r{register}"]
        fuel = self._from_context(Word.FUEL)
        counts = {kind: self._from_context(Word.COUNTS + kind) for kind in self._kinds}
        lines.append("  %fuel = alloca i64")
        lines += [f"  {_counter(kind)} = alloca i64" for kind in counts]
        lines += self._prologue.values()
        lines.append(f"  store i64 {fuel}, ptr %fuel")
        lines += [f"  store i64 {count}, ptr {_counter(kind)}" for kind, count in counts.items()]
        lines.append(f"  br label %{self._entrance(None, self._function.entry)}")
        return verify("\n".join([*lines, self._writer.text(), "}", ""]))

    # Values that every function computes once

    def _from_context(self, word: int) -> str:
        """A word of the context, as it is when the function begins."""
        name = f"%c{word}"
        self._prologue.setdefault(
            name,
            f"  %p{word} = getelementptr i64, ptr %context, i64 {word}\n"
            f"  {name} = load i64, ptr %p{word}, {CONTEXT}",
        )
        return name

    def _span(self, size: int, write: bool) -> str:
        """Number of addresses at which `size` bytes can begin, from the bottom of the function's
        frame to the arena's limit."""
        limit = self._from_context(Word.WRITABLE if write else Word.READABLE)
        bottom = self._bottom()
        name = f"%{'write' if write else 'read'}{size}"
        self._prologue.setdefault(
            name,
            f"  {name}e = add i64 {limit}, {BASE}\n"
            f"  {name}a = sub i64 {name}e, {bottom}\n"
            f"  {name} = call i64 @llvm.usub.sat.i64(i64 {name}a, i64 {size - 1})",
        )
        return name

    def _bottom(self) -> str:
        """The lowest address of the function's frame, below which are its callees' frames and it
        may not access anything."""
        size = self._from_context(Word.FRAME)
        self._prologue.setdefault("%bottom", f"  %bottom = sub i64 %frame, {size}")
        return "%bottom"

    # Edges

    def _label(self, start: int) -> str:
        """The label of a block, in the version that is being written."""
        return f"{'u' if self._nest is not None else 'b'}{self._order[start]}"

    def _entrance(self, source: int | None, target: int) -> str:
        """The label to go to from one block to another: a nest is entered through its guard."""
        nest = self._nest
        if nest is not None and target in nest.loop.blocks:
            return self._label(target)
        entered = self._nests.get(target)
        if entered is not None and source not in entered.loop.blocks:
            return f"guard{self._order[target]}"
        return f"b{self._order[target]}"

    def _edge(self, block: Block, target: int) -> str:
        """The label to go to from a block to another, through a check of the fuel if it is a back
        edge."""
        label = self._entrance(block.start, target)
        back = self._order[target] <= self._order[block.start]
        if not back or (self._nest is not None and self._nest.counted):
            return label
        check = self._writer.name("back")
        with self._writer.begin_cold(check):
            # Otherwise LLVM would remove a loop that does nothing, and its limit with it.
            self._writer.line("call void @llvm.sideeffect()")
            self._check_fuel(block.pcs[-1], label)
        return check

    def _write_guarded(self, nest: Nest) -> None:
        """The guard in front of a nest, and the version of the nest that it allows."""
        writer = self._writer
        order = self._order[nest.loop.header]
        writer.label(f"guard{order}")
        limits = self._from_context(Word.READABLE), self._from_context(Word.WRITABLE)
        guard = Guard(writer, nest, self._function)
        holds = guard.holds(self._bottom(), *limits, self._all_fuel)
        writer.branch(holds, f"u{order}", f"b{order}", LIKELY)
        self.claims.hoists[nest.loop.header] = Hoist(
            nest, f"guard{order}", guard.last, guard.reach, guard.cost
        )
        self._nest = nest
        for start, block in self._function.blocks.items():
            if start in nest.loop.blocks:
                self._block(block)
        self._nest = None

    def _check_fuel(self, pc: int, enough: str) -> None:
        """Go to the label `enough`, or exit at `pc`."""
        writer = self._writer
        fuel = writer.value("load i64, ptr %fuel")
        empty = writer.value(f"icmp slt i64 {fuel}, 0")
        limit = writer.name("limit")
        writer.branch(empty, limit, enough, UNLIKELY)
        with writer.begin_cold(limit):
            if self._by_kind:
                self._refuel(enough)
            self._side_exit(SideExit.LIMIT, pc)

    def _refuel(self, enough: str) -> None:
        """Report progress, and go to the label `enough` unless the limit is reached."""
        writer = self._writer
        self._save_counts()
        helper = writer.value(f"inttoptr i64 {self._from_context(Word.CALL_HELPER)} to ptr")
        writer.value(f"call i64 {helper}(i64 {REFUEL}{', i64 0' * len(_ARGUMENTS)})")
        fuel = writer.load_context(Word.FUEL)
        writer.line(f"store i64 {fuel}, ptr %fuel")
        over = writer.name("over")
        writer.branch(writer.value(f"icmp slt i64 {fuel}, 0"), over, enough)
        writer.label(over)

    def _all_fuel(self) -> str:
        """The number of instructions that may still be executed."""
        writer = self._writer
        fuel = writer.value("load i64, ptr %fuel")
        if self._by_kind:
            fuel = writer.value(f"add i64 {fuel}, {writer.load_context(Word.RESERVE)}")
        return fuel

    def _save_counts(self, unspent: Sequence[int] = ()) -> None:
        """Put what was counted into the context; `unspent` are instructions that have been counted
        and not executed."""
        writer = self._writer
        fuel = writer.value("load i64, ptr %fuel")
        if unspent:
            fuel = writer.value(f"add i64 {fuel}, {len(unspent)}")
        writer.store_context(Word.FUEL, fuel)
        less = Counter(kind_of(self._instructions[pc]) for pc in unspent)
        for kind in self._kinds:
            count = writer.value(f"load i64, ptr {_counter(kind)}")
            if less[kind]:
                count = writer.value(f"sub i64 {count}, {less[kind]}")
            writer.store_context(Word.COUNTS + kind, count)

    def _load_counts(self) -> None:
        """Read back the counts of a function that was called."""
        writer = self._writer
        writer.line(f"store i64 {writer.load_context(Word.FUEL)}, ptr %fuel")
        for kind in self._kinds:
            count = writer.load_context(Word.COUNTS + kind)
            writer.line(f"store i64 {count}, ptr {_counter(kind)}")

    def _side_exit(self, why: SideExit, pc: int) -> None:
        """Return to the caller, which returns in turn, until the program has ended."""
        writer = self._writer
        self._save_counts()
        writer.store_context(Word.SIDE_EXIT, why)
        writer.store_context(Word.PC, pc)
        writer.line("ret i64 0")

    def _resume(self, pc: int, unspent: Sequence[int] = ()) -> None:
        """Let the interpreter do the rest of the function, from `pc` on, and return what it gives.

        The instructions at `unspent` have been paid for and not executed.
        """
        writer = self._writer
        self._save_counts(unspent)
        writer.store_context(Word.PC, pc)
        writer.store_context(Word.REGISTERS + isa.FRAME_POINTER, "%frame")
        for register in sorted(self._live.get(pc, frozenset()) - {isa.FRAME_POINTER}):
            value = lowering.get(writer, register)
            writer.store_context(Word.REGISTERS + register, value)
        resume = writer.value(f"inttoptr i64 {writer.load_context(Word.RESUME)} to ptr")
        writer.line(f"ret i64 {writer.value(f'tail call i64 {resume}()')}")

    def _unless(self, wrong: str, pcs: Sequence[int]) -> None:
        """Let the interpreter continue with `pcs`, the rest of a segment, if `wrong` is true."""
        writer = self._writer
        bad, good = writer.name("bad"), writer.name("good")
        writer.branch(wrong, bad, good, UNLIKELY)
        with writer.begin_cold(bad):
            self._resume(pcs[0], pcs)
        writer.label(good)

    # Blocks

    def _block(self, block: Block) -> None:
        writer = self._writer
        writer.label(self._label(block.start))
        version, proven = None, dict[int, int]()
        if self._nest is not None:
            version, proven = self._nest.loop.header, self._nest.proven
        for segment in segments(self._instructions, block.pcs, proven):
            self._segment(segment)
            for check in itertools.chain(*segment.checks.values()):
                self.claims.covered.update({(version, pc): check for pc in check.covers})
        if block.traps:
            self._resume(block.end)
            return
        last = self._instructions[block.pcs[-1]]
        if not block.successors:
            self._save_counts()
            writer.store_context(Word.PC, block.pcs[-1])
            writer.line(f"ret i64 {lowering.get(writer, 0)}")
            return
        note = SCALAR if self._nest is not None and block.start in self._nest.not_vectorised else ""
        if len(block.successors) == 1:
            writer.jump(self._edge(block, block.successors[0]), note)
        else:
            taken = lowering.condition(writer, last)
            target, following = block.successors
            writer.branch(taken, self._edge(block, target), self._edge(block, following), note)

    def _segment(self, segment: Segment) -> None:
        writer = self._writer
        pcs = segment.pcs
        fuel = writer.value("load i64, ptr %fuel")
        fuel = writer.value(f"sub i64 {fuel}, {len(pcs)}")
        writer.line(f"store i64 {fuel}, ptr %fuel")
        kinds = Counter(kind_of(self._instructions[pc]) for pc in pcs) if self._by_kind else {}
        for kind in sorted(kinds.keys() - {Kind.ALU}):
            count = writer.value(f"load i64, ptr {_counter(kind)}")
            count = writer.value(f"add i64 {count}, {kinds[kind]}")
            writer.line(f"store i64 {count}, ptr {_counter(kind)}")
        for index, pc in enumerate(pcs):
            self._instruction(pc, pcs[index:], segment.checks.get(pc, ()))

    def _instruction(self, pc: int, rest: Sequence[int], checks: Sequence[Check]) -> None:
        writer = self._writer
        instruction = self._instructions[pc]
        match instruction.kind:
            case Class.ALU | Class.ALU64:
                lowering.arithmetic(writer, instruction)
            case Class.LD:
                lowering.put(writer, instruction.dst, str(isa.wide_value(self._instructions, pc)))
            case Class.LDX | Class.ST | Class.STX:
                at = lowering.address(writer, instruction)
                for check in checks:
                    span = self._span(check.high - check.low, check.write)
                    self._unless(lowering.outside(writer, at, check.low, span), rest)
                if is_atomic(instruction):
                    self._check_atomic(instruction, at, rest)
                lowering.access(writer, instruction, at)
            case _ if instruction.code == Jump.CALL:
                self._call(instruction, pc)

    def _check_atomic(self, instruction: Instruction, at: str, rest: Sequence[int]) -> None:
        writer = self._writer
        low = writer.value(f"and i64 {at}, {instruction.size - 1}")
        self._unless(writer.value(f"icmp ne i64 {low}, 0"), rest)
        if not in_frame(instruction):
            span = self._span(instruction.size, write=True)
            self._unless(lowering.outside(writer, at, 0, span), rest)

    # Calls

    def _call(self, instruction: Instruction, pc: int) -> None:
        writer = self._writer
        enough = writer.name("enough")
        self._check_fuel(pc, enough)
        writer.label(enough)
        if instruction.source == OperandSource.X:
            self._call_pointer(instruction, pc)
        elif instruction.src == CallKind.LOCAL:
            target = isa.target(pc, instruction)
            assert target is not None
            self._check_depth(pc)
            self._call_function(f"@{symbol(target)}")
        else:
            self._call_helper(str(instruction.imm), pc)

    def _arguments(self) -> str:
        writer = self._writer
        return ", ".join(f"i64 {lowering.get(writer, register)}" for register in _ARGUMENTS)

    def _call_helper(self, number: str, pc: int) -> None:
        writer = self._writer
        if self._by_kind:
            self._save_counts()
        helper = writer.value(f"inttoptr i64 {self._from_context(Word.CALL_HELPER)} to ptr")
        value = writer.value(f"call i64 {helper}(i64 {number}, {self._arguments()})")
        lowering.put(writer, 0, value)
        left = writer.load_context(Word.SIDE_EXIT)
        raised = writer.value(f"icmp ne i64 {left}, 0")
        bad, good = writer.name("raised"), writer.name("good")
        writer.branch(raised, bad, good, UNLIKELY)
        with writer.begin_cold(bad):
            self._side_exit(SideExit.RAISED, pc)
        writer.label(good)

    def _check_depth(self, pc: int) -> None:
        bottom = self._from_context(Word.BOTTOM)
        self._unless(self._writer.value(f"icmp ult i64 %frame, {bottom}"), (pc,))

    def _call_function(self, function: str) -> None:
        """Call compiled code, which may have taken a side exit when it returns."""
        writer = self._writer
        self._save_counts()
        value = writer.value(
            f"call i64 {function}(ptr %context, ptr %memory, i64 {self._bottom()}, "
            f"{self._arguments()})"
        )
        lowering.put(writer, 0, value)
        self._load_counts()
        left = writer.value(f"icmp ne i64 {writer.load_context(Word.SIDE_EXIT)}, 0")
        bad, good = writer.name("left"), writer.name("good")
        writer.branch(left, bad, good, UNLIKELY)
        writer.cold(bad, ["ret i64 0"])
        writer.label(good)

    def _call_pointer(self, instruction: Instruction, pc: int) -> None:
        """Call a pointer to a function, or a helper's number; the interpreter refuses anything
        else."""
        writer = self._writer
        pointer = lowering.get(writer, instruction.dst)
        small = writer.value(f"icmp ult i64 {pointer}, {isa.CODE_BASE}")
        helper, function, done = (
            writer.name(prefix) for prefix in ("helper", "function", "called")
        )
        writer.branch(small, helper, function)
        writer.label(helper)
        self._call_helper(pointer, pc)
        writer.jump(done)
        writer.label(function)
        offset = writer.value(f"sub i64 {pointer}, {isa.CODE_BASE}")
        rest = writer.value(f"and i64 {offset}, {isa.INSTRUCTION_SIZE - 1}")
        self._unless(writer.value(f"icmp ne i64 {rest}, 0"), (pc,))
        index = writer.value(f"udiv i64 {offset}, {isa.INSTRUCTION_SIZE}")
        count = self._from_context(Word.COUNT)
        self._unless(writer.value(f"icmp uge i64 {index}, {count}"), (pc,))
        self._check_depth(pc)
        self._call_function(self._find_compiled(index, pc))
        writer.jump(done)
        writer.label(done)

    def _find_compiled(self, index: str, pc: int) -> str:
        """The compiled function that begins at an instruction; one that is not compiled is
        interpreted."""
        writer = self._writer
        table = writer.value(f"inttoptr i64 {self._from_context(Word.FUNCTIONS)} to ptr")
        place = writer.value(f"getelementptr i64, ptr {table}, i64 {index}")
        function = writer.value(f"load i64, ptr {place}, {CONTEXT}")
        self._unless(writer.value(f"icmp eq i64 {function}, 0"), (pc,))
        return writer.value(f"inttoptr i64 {function} to ptr")

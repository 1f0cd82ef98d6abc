"""A function's control flow: basic blocks, each after the blocks that dominate it.

Everything that can be reached from the function's first instruction belongs to it, also when it is
reached from other functions too. Where a program would fault for certain (an instruction that does
not exist, a jump outside), a block ends without successors, and the interpreter is left to say why.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from potash_firmware.bpf import isa
from potash_firmware.bpf.isa import CallKind, Class, Instruction, Jump


@dataclass(frozen=True)
class Block:
    """Instructions that are executed one after the other; `pcs` has an LDDW's first half only.

    `successors` are where it goes: for a conditional jump the target, then the next instruction.
    A block with `traps` ends in front of an instruction, `end`, that cannot be executed.
    """

    start: int
    pcs: tuple[int, ...]
    end: int
    successors: tuple[int, ...]
    traps: bool = False


@dataclass(frozen=True)
class Function:
    """Blocks by their first instruction, in reverse postorder."""

    entry: int
    blocks: dict[int, Block]
    calls: frozenset[int]
    """Entries of the functions that it calls."""
    addresses: frozenset[int]
    """Entries of the functions whose address it takes."""


class Code:
    """A program's instructions, and the effect of each on control flow."""

    def __init__(self, code: bytes) -> None:
        self.instructions: Sequence[Instruction] = isa.decode(code)

    def valid(self, pc: int) -> bool:
        """True where there is an instruction at `pc` that can be executed."""
        inside = 0 <= pc < len(self.instructions)
        return inside and isa.problem(self.instructions, pc) is None

    def following(self, pc: int) -> int:
        return pc + (2 if self.instructions[pc].opcode == isa.LDDW else 1)

    def successors(self, pc: int) -> tuple[int, ...] | None:
        """The targets of a jump or an exit; None for instructions that continue with the next
        one."""
        instruction = self.instructions[pc]
        if instruction.opcode == isa.EXIT:
            return ()
        if instruction.kind not in (Class.JMP, Class.JMP32) or instruction.code == Jump.CALL:
            return None
        target = isa.target(pc, instruction)
        assert target is not None
        return (target,) if instruction.code == Jump.JA else (target, pc + 1)


def function(code: Code, entry: int) -> Function:
    """The function that begins at `entry`."""
    leaders = _leaders(code, entry)
    blocks = {start: _block(code, start, leaders) for start in leaders}
    ordered = {start: blocks[start] for start in _order(blocks, entry)}
    calls = frozenset(_referred(code, ordered, isa.CALL, CallKind.LOCAL))
    addresses = frozenset(_referred(code, ordered, isa.LDDW, isa.ImmediateKind.CODE_ADDRESS))
    return Function(entry, ordered, calls, addresses & frozenset(range(len(code.instructions))))


def _leaders(code: Code, entry: int) -> set[int]:
    leaders = {entry}
    seen: set[int] = set()
    waiting = [entry]
    while waiting:
        pc = waiting.pop()
        if pc in seen:
            continue
        seen.add(pc)
        if not code.valid(pc):
            continue
        successors = code.successors(pc)
        if successors is None:
            waiting.append(code.following(pc))
        else:
            leaders.update(successors)
            waiting.extend(successors)
    return leaders


def _block(code: Code, start: int, leaders: set[int]) -> Block:
    pcs: list[int] = []
    pc = start
    while code.valid(pc):
        pcs.append(pc)
        successors = code.successors(pc)
        pc = code.following(pc)
        if successors is not None:
            return Block(start, tuple(pcs), pc, successors)
        if pc in leaders:
            return Block(start, tuple(pcs), pc, (pc,))
    return Block(start, tuple(pcs), pc, (), traps=True)


def _referred(code: Code, blocks: dict[int, Block], opcode: int, src: int) -> Iterator[int]:
    """The targets of the instructions with this opcode and source register field."""
    for block in blocks.values():
        for pc in block.pcs:
            instruction = code.instructions[pc]
            if instruction.opcode == opcode and instruction.src == src:
                target = isa.target(pc, instruction)
                assert target is not None
                yield target


def _order(blocks: dict[int, Block], entry: int) -> list[int]:
    seen = {entry}
    postorder: list[int] = []
    stack = [(entry, iter(blocks[entry].successors))]
    while stack:
        start, rest = stack[-1]
        for successor in rest:
            if successor not in seen:
                seen.add(successor)
                stack.append((successor, iter(blocks[successor].successors)))
                break
        else:
            postorder.append(start)
            stack.pop()
    return postorder[::-1]

"""An instruction stream before it runs: the order its tokens allow, or why there is none.

The three modules work through their own queues; between neighbours there is a token queue in each
direction. Where tokens leave a choice, LOAD goes as far as it can, then COMPUTE, then STORE, again
and again: so a stream with missing dependences has one defined result.

Source: "VTA: An Open Hardware-Software Stack for Deep Learning", section 2.3 (figures 5 and 6)."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from enum import StrEnum

from potash_device.vta.config import Config
from potash_device.vta.encoding import INSTRUCTION_BYTES, InstructionError
from potash_device.vta.isa import Dependencies, Finish, Instruction, Stage, decode

TokenQueue = tuple[Stage, Stage]
"""The module that gives its tokens, the module that takes them."""

TOKEN_QUEUES: Mapping[tuple[Stage, Dependencies], TokenQueue] = {
    (Stage.LOAD, Dependencies.POP_NEXT): (Stage.COMPUTE, Stage.LOAD),
    (Stage.LOAD, Dependencies.PUSH_NEXT): (Stage.LOAD, Stage.COMPUTE),
    (Stage.COMPUTE, Dependencies.POP_PREV): (Stage.LOAD, Stage.COMPUTE),
    (Stage.COMPUTE, Dependencies.POP_NEXT): (Stage.STORE, Stage.COMPUTE),
    (Stage.COMPUTE, Dependencies.PUSH_PREV): (Stage.COMPUTE, Stage.LOAD),
    (Stage.COMPUTE, Dependencies.PUSH_NEXT): (Stage.COMPUTE, Stage.STORE),
    (Stage.STORE, Dependencies.POP_PREV): (Stage.COMPUTE, Stage.STORE),
    (Stage.STORE, Dependencies.PUSH_PREV): (Stage.STORE, Stage.COMPUTE),
}
"""The queue that a dependency bit means in each module; a missing key is a bit it cannot have."""

POPS = Dependencies.POP_PREV | Dependencies.POP_NEXT
PUSHES = Dependencies.PUSH_PREV | Dependencies.PUSH_NEXT


class StreamError(Exception):
    """Instruction `index` of a stream cannot be executed, for `reason`."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"instruction {index}: {reason}")
        self.index = index
        self.reason = reason


def decode_stream(stream: bytes, config: Config) -> list[Instruction]:
    """A stream's instructions. Raises StreamError."""
    count, rest = divmod(len(stream), INSTRUCTION_BYTES)
    if rest:
        raise StreamError(count, f"the stream ends after {rest} of its bytes")
    instructions = []
    for index in range(count):
        at = index * INSTRUCTION_BYTES
        word = int.from_bytes(stream[at : at + INSTRUCTION_BYTES], "little")
        try:
            instructions.append(decode(word, config))
        except InstructionError as error:
            raise StreamError(index, str(error)) from None
    return instructions


class Order(StrEnum):
    """The order in which a stream executes."""

    TOKENS = "tokens"
    """The tokens, as on the hardware: `canonical_order`."""

    PROGRAM = "program"
    """The stream alone, one instruction after the other; its tokens are ignored."""


def execution_order(
    instructions: Sequence[Instruction], order: Order = Order.TOKENS
) -> Sequence[int]:
    """The indices of `instructions` as they execute. Raises StreamError as `canonical_order` does,
    but in program order for a wrong FINISH alone."""
    if order is Order.TOKENS:
        return canonical_order(instructions)
    _check_finish(instructions)
    return range(len(instructions))


def canonical_order(instructions: Sequence[Instruction]) -> list[int]:
    """The indices of `instructions` in the order in which they execute.

    Raises StreamError where FINISH is not the last instruction and the only one, where a dependency
    bit has no queue, and for a deadlock.
    """
    _check_finish(instructions)
    queues: dict[Stage, deque[int]] = {stage: deque() for stage in Stage}
    for index, instruction in enumerate(instructions):
        queues[instruction.stage].append(index)
    tokens: Counter[TokenQueue] = Counter()
    pops = [_token_queues(index, i, POPS) for index, i in enumerate(instructions)]
    pushes = [_token_queues(index, i, PUSHES) for index, i in enumerate(instructions)]
    order: list[int] = []
    moved = True
    while moved:
        moved = False
        for queue in queues.values():
            while queue and all(tokens[taken] for taken in pops[queue[0]]):
                index = queue.popleft()
                tokens.subtract(pops[index])
                tokens.update(pushes[index])
                order.append(index)
                moved = True
    if len(order) < len(instructions):
        raise _deadlock(queues, tokens, pops)
    return order


def _check_finish(instructions: Sequence[Instruction]) -> None:
    last = len(instructions) - 1
    for index, instruction in enumerate(instructions):
        if isinstance(instruction, Finish) and index != last:
            raise StreamError(index, "FINISH is not the last instruction of the stream")
    if not instructions or not isinstance(instructions[last], Finish):
        raise StreamError(max(last, 0), "the stream does not end with FINISH")


def _token_queues(index: int, instruction: Instruction, which: Dependencies) -> list[TokenQueue]:
    if not instruction.dependencies:
        return []
    stage = instruction.stage
    try:
        return [TOKEN_QUEUES[stage, bit] for bit in instruction.dependencies & which]
    except KeyError:
        raise StreamError(
            index, f"{stage.name} has no neighbour for {instruction.dependencies!s}"
        ) from None


def _deadlock(
    queues: Mapping[Stage, deque[int]],
    tokens: Counter[TokenQueue],
    pops: Sequence[list[TokenQueue]],
) -> StreamError:
    """Blame the first instruction that waits for a token which nothing gives any more."""
    index = min(queue[0] for queue in queues.values() if queue)
    giver, taker = next(taken for taken in pops[index] if not tokens[taken])
    return StreamError(
        index, f"deadlock: {taker.name} waits for a token from {giver.name} that never comes"
    )

"""The stream under construction: instructions in program order and the tokens between them.

A pop waits for the next instruction of its module; a push joins the last one. Where there is no
such instruction, or it carries the same token already, an instruction that moves nothing carries
it. Instructions are kept encoded: a token is one bit more.

Source: the VTA project's `vta/runtime.h`, VTADepPush and VTADepPop.
"""

from collections.abc import Iterator, Sequence

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.encoding import INSTRUCTION_BYTES
from potash_device.vta.isa import Finish, Instruction, Load, Stage, Store, decode
from potash_device.vta.stream import POPS, TOKEN_QUEUES

_BITS = [[[0] * len(Stage) for _ in Stage] for _ in range(2)]
"""The dependency bit by which a giver and a taker of tokens push (0) and pop (1) them; 0 where
there is no queue between the two. As of all that is done for each instruction, its keys and values
are plain numbers."""
for (_, _dependency), (_giver, _taker) in TOKEN_QUEUES.items():
    _BITS[_dependency in POPS][_giver][_taker] = int(_dependency)


class CommandStream:
    """Instructions waiting to run."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._low = config.layouts.finish.by_name["dependencies"].low
        self._no_ops: dict[Stage, int] = {}
        self.clear()

    def __len__(self) -> int:
        return len(self._words)

    def since(self, begin: int) -> Iterator[Instruction]:
        """The instructions from number `begin` on."""
        return (decode(word, self._config) for word in self._words[begin:])

    def __bytes__(self) -> bytes:
        return b"".join(word.to_bytes(INSTRUCTION_BYTES, "little") for word in self._words)

    def clear(self) -> None:
        """Drop every instruction and every token that waits for one."""
        self._words: list[int] = []
        self._last: list[int | None] = [None] * len(Stage)
        self._pending = [0] * len(Stage)

    def emit(self, instruction: Instruction) -> None:
        """Append an instruction, which takes the pops that wait for it. Raises InstructionError."""
        self.emit_word(instruction.stage, instruction.encode(self._config))

    def emit_word(self, stage: Stage, word: int) -> None:
        """Append an instruction of `stage` that is encoded, without dependencies."""
        pending = self._pending[stage]
        if pending:
            word |= pending << self._low
            self._pending[stage] = 0
        self._last[stage] = len(self._words)
        self._words.append(word)

    def emit_words(self, stage: Stage, words: Sequence[int]) -> None:
        """Append one or more instructions likewise."""
        self.emit_word(stage, words[0])
        self._words += words[1:]
        self._last[stage] = len(self._words) - 1

    def push(self, giver: Stage, taker: Stage) -> None:
        """`giver` gives `taker` a token when it has done all that is in the stream so far.

        Raises ValueError where there is no queue between the two.
        """
        bit = (_BITS[0][giver][taker] or _no_queue(giver, taker)) << self._low
        if self._pending[giver]:
            self._wait(giver)
        last = self._last[giver]
        if last is None or self._words[last] & bit:
            self._wait(giver)
            last = len(self._words) - 1
        self._words[last] |= bit

    def pop(self, giver: Stage, taker: Stage) -> None:
        """`taker` waits for a token of `giver` before its next instruction.

        Raises ValueError where there is no queue between the two.
        """
        bit = _BITS[1][giver][taker] or _no_queue(giver, taker)
        if self._pending[taker] & bit:
            self._wait(taker)
        self._pending[taker] |= bit

    def commit_pops(self) -> None:
        """Let no pop wait any longer for an instruction that does not come."""
        for stage in Stage:
            if self._pending[stage]:
                self._wait(stage)

    def _wait(self, stage: Stage) -> None:
        """Append an instruction that moves nothing."""
        if stage not in self._no_ops:
            self._no_ops[stage] = _no_op(stage).encode(self._config)
        self.emit_word(stage, self._no_ops[stage])

    def finish(self) -> None:
        """Wait for all that the stream does, and end it."""
        self.push(Stage.STORE, Stage.COMPUTE)
        self.push(Stage.LOAD, Stage.COMPUTE)
        self.pop(Stage.STORE, Stage.COMPUTE)
        self.pop(Stage.LOAD, Stage.COMPUTE)
        self.commit_pops()
        self.emit(Finish())


def _no_queue(giver: Stage, taker: Stage) -> int:
    raise ValueError(f"the VTA has no token queue from {giver!r} to {taker!r}")


def _no_op(stage: Stage) -> Instruction:
    match stage:
        case Stage.LOAD:
            return Load(memory_type=MemoryId.INP)
        case Stage.COMPUTE:
            return Load(memory_type=MemoryId.UOP)
        case Stage.STORE:
            return Store(memory_type=MemoryId.OUT)

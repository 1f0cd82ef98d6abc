"""The stream under construction: instructions in program order and the tokens between them.

A pop waits for the next instruction of its module; a push joins the last one. Where there is no
such instruction, or it carries the same token already, an instruction that moves nothing carries
it. Instructions are kept encoded: a token is one bit more.

Source: the VTA project's `vta/runtime.h`, VTADepPush and VTADepPop.
"""

from collections.abc import Iterator

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.encoding import INSTRUCTION_BYTES
from potash_device.vta.isa import Dependencies, Finish, Instruction, Load, Stage, Store, decode
from potash_device.vta.stream import POPS, TOKEN_QUEUES

_BITS = {(stage, queue, bit in POPS): bit for (stage, bit), queue in TOKEN_QUEUES.items()}
"""The dependency bit by which a module takes from (True) or gives to (False) a token queue."""


class CommandStream:
    """Instructions waiting to run."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._dependencies = config.layouts.finish.by_name["dependencies"]
        self.clear()

    def __len__(self) -> int:
        return len(self._words)

    def __iter__(self) -> Iterator[Instruction]:
        return (decode(word, self._config) for word in self._words)

    def __bytes__(self) -> bytes:
        return b"".join(word.to_bytes(INSTRUCTION_BYTES, "little") for word in self._words)

    def clear(self) -> None:
        """Drop every instruction and every token that waits for one."""
        self._words: list[int] = []
        self._last: dict[Stage, int] = {}
        self._pending = dict.fromkeys(Stage, Dependencies.NONE)

    def emit(self, instruction: Instruction) -> None:
        """Append an instruction, which takes the pops that wait for it. Raises InstructionError."""
        stage = instruction.stage
        word = instruction.encode(self._config) | self._shifted(self._pending[stage])
        self._pending[stage] = Dependencies.NONE
        self._last[stage] = len(self._words)
        self._words.append(word)

    def push(self, giver: Stage, taker: Stage) -> None:
        """`giver` gives `taker` a token when it has done all that is in the stream so far.

        Raises ValueError where there is no queue between the two.
        """
        bit = self._shifted(_bit(giver, (giver, taker), pops=False))
        if self._pending[giver]:
            self.emit(_no_op(giver))
        last = self._last.get(giver)
        if last is None or self._words[last] & bit:
            self.emit(_no_op(giver))
            last = self._last[giver]
        self._words[last] |= bit

    def pop(self, giver: Stage, taker: Stage) -> None:
        """`taker` waits for a token of `giver` before its next instruction.

        Raises ValueError where there is no queue between the two.
        """
        bit = _bit(taker, (giver, taker), pops=True)
        if self._pending[taker] & bit:
            self.emit(_no_op(taker))
        self._pending[taker] |= bit

    def commit_pops(self) -> None:
        """Let no pop wait any longer for an instruction that does not come."""
        for stage, pending in self._pending.items():
            if pending:
                self.emit(_no_op(stage))

    def finish(self) -> None:
        """Wait for all that the stream does, and end it."""
        self.push(Stage.STORE, Stage.COMPUTE)
        self.push(Stage.LOAD, Stage.COMPUTE)
        self.pop(Stage.STORE, Stage.COMPUTE)
        self.pop(Stage.LOAD, Stage.COMPUTE)
        self.commit_pops()
        self.emit(Finish())

    def _shifted(self, dependencies: Dependencies) -> int:
        return dependencies << self._dependencies.low


def _bit(stage: Stage, queue: tuple[Stage, Stage], *, pops: bool) -> Dependencies:
    try:
        return _BITS[stage, queue, pops]
    except KeyError:
        giver, taker = queue
        raise ValueError(f"the VTA has no token queue from {giver!r} to {taker!r}") from None


def _no_op(stage: Stage) -> Instruction:
    """An instruction of `stage` that moves nothing."""
    match stage:
        case Stage.LOAD:
            return Load(memory_type=MemoryId.INP)
        case Stage.COMPUTE:
            return Load(memory_type=MemoryId.UOP)
        case Stage.STORE:
            return Store(memory_type=MemoryId.OUT)

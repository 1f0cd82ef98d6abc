"""Operations that take values one by one: tensors loaded into ACC, ALU steps, a store.

LOAD has no part in it: what ACC gets COMPUTE loads itself, so that two virtual threads hide nothing
but the stores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.isa import Stage
from potash_firmware.vta_runtime.buffers import Buffer
from potash_firmware.vta_runtime.runtime import Runtime
from potash_firmware.vta_runtime.schedules import steps
from potash_firmware.vta_runtime.schedules.shapes import ScheduleError, blocks
from potash_firmware.vta_runtime.schedules.steps import Epilogue
from potash_firmware.vta_runtime.schedules.tiles import Room

COMPUTE, STORE = Stage.COMPUTE, Stage.STORE


@dataclass(frozen=True)
class Elementwise:
    """`count` values of each of some tensors, whose memory types (ACC, ACC_8BIT) are the
    epilogue's `tensors`: the first goes to plane 0, the next to plane 1, and so on. `length`
    elements of each are a tile.

    Raises ScheduleError where a tile does not fit, where there is no tensor, or where a step wants
    a vector of channels, which plain values do not have.
    """

    count: int
    config: Config
    epilogue: Epilogue
    length: int
    threads: int = 2

    def __post_init__(self) -> None:
        if self.count < 1 or not self.epilogue.tensors:
            raise ScheduleError("an elementwise operation needs a tensor, and values in it")
        if self.epilogue.vectors:
            raise ScheduleError("an elementwise operation has no channels")
        if not 0 < self.length * planes(self.epilogue) <= self._room.acc:
            raise ScheduleError(f"{self.length} elements do not fit into the accumulators")

    @property
    def elements(self) -> int:
        """Elements of each tensor and of the output."""
        return blocks(self.count, self.config.batch * self.config.block_out)

    @property
    def output_bytes(self) -> int:
        """Bytes of the output."""
        return self.elements * self.config.element_bytes(MemoryId.OUT)

    @property
    def _room(self) -> Room:
        return Room.of(self.config, self.threads, self.epilogue)

    def emit(self, runtime: Runtime, tensors: Sequence[Buffer], output: Buffer) -> None:
        """Append the operation to the runtime's stream; what follows in it may use the output.

        Raises ValueError where a buffer is too small or missing, VtaMemoryError.
        """
        kinds, room = self.epilogue.tensors, self._room
        if len(tensors) != len(kinds):
            raise ScheduleError(f"the operation has {len(kinds)} tensors, not {len(tensors)}")
        for _ in range(self.threads):
            runtime.dep_push(STORE, COMPUTE)
        for number, first in enumerate(range(0, self.elements, self.length)):
            length = min(self.length, self.elements - first)
            acc = number % self.threads * room.acc
            runtime.dep_pop(STORE, COMPUTE)
            for plane, (memory, tensor) in enumerate(zip(kinds, tensors, strict=True)):
                sram = acc + plane * length
                runtime.load_2d(tensor, memory, sram=sram, offset=first, x_size=length)
            for kernel in steps.kernels(self.epilogue.steps, acc, 0, 1, length, room.micro_ops):
                runtime.push_alu(kernel)
            runtime.dep_push(COMPUTE, STORE)
            runtime.dep_pop(COMPUTE, STORE)
            runtime.store_2d(output, sram=acc, offset=first, x_size=length)
            runtime.dep_push(STORE, COMPUTE)
        for _ in range(self.threads):
            runtime.dep_pop(STORE, COMPUTE)
        runtime.dep_push(COMPUTE, Stage.LOAD)
        runtime.dep_pop(COMPUTE, Stage.LOAD)


def planes(epilogue: Epilogue) -> int:
    """How many planes there are where the first tensor lies in plane 0."""
    return max(len(epilogue.tensors), Epilogue(epilogue.steps).planes)

"""Counters and trace points of a worker's tensor accelerator."""

import base64
import functools

from potash_device.trace import COMPUTE
from potash_device.vta import timing
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_device.vta.encoding import INSTRUCTION_BYTES, InstructionError
from potash_device.vta.stream import StreamError
from potash_device.vta.timing import parameters
from potash_firmware.apu.work_counter import WorkCounter
from potash_firmware.mailbox.shared import Row, Word, unshared_row

KEPT = 256
"""Streams whose cycles are remembered: a model runs the same ones again and again."""


COMPILED_FROM = 2_000
"""Instructions from which on the compiled clock is worth loading, which takes a second."""


class Meter:
    """Counts models and streams in `row`; cycles, which have to be found out, if that is wanted.

    `counter` is that of the worker's jobs, where their time is modelled.
    """

    def __init__(
        self,
        row: Row | None = None,
        *,
        count_cycles: bool = False,
        counter: WorkCounter | None = None,
    ) -> None:
        self._row = unshared_row() if row is None else row
        self._count_cycles = count_cycles
        self.counter = counter

    def attach(self, core: Core) -> None:
        """Count what a tensor accelerator does from now on."""
        if COMPUTE.sink is not None:
            COMPUTE.sink("vta.core", {"config": core.config.to_mapping()})
        config = core.config
        core.observer = lambda stream, began: self._streamed(config, stream, began)

    def model(self) -> None:
        self._row[Word.MODELS] += 1

    def _streamed(self, config: Config, stream: bytes, began: float) -> None:
        if COMPUTE.sink is not None:
            text = base64.b64encode(stream).decode()
            COMPUTE.sink("vta.stream", {"began": began, "stream": text})
        row = self._row
        row[Word.STREAMS] += 1
        row[Word.INSTRUCTIONS] += len(stream) // INSTRUCTION_BYTES
        if self._count_cycles or self.counter is not None:
            cycles = _cycles_of(config, stream)
            row[Word.CYCLES] += cycles
            if self.counter is not None:
                self.counter.accelerated(cycles)


@functools.lru_cache(KEPT)
def _cycles_of(config: Config, stream: bytes) -> int:
    """The cycles of a stream; 0 for one that the clock cannot follow."""
    compiled = len(stream) >= COMPILED_FROM * INSTRUCTION_BYTES
    try:
        return timing.run(config, parameters.PYNQ, stream, compiled=compiled).cycles
    except (StreamError, InstructionError):
        return 0

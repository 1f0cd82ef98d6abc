"""A model on the tensor accelerator's clock: the streams that one inference runs, and how long they
take there.

The delegate is the drive's own. What it gives to the core is noted on its way, so this says what was
run and not what might be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potash_device.vta import timing
from potash_device.vta.config import Config
from potash_device.vta.core import Control, Core, Register
from potash_device.vta.encoding import INSTRUCTION_BYTES
from potash_device.vta.timing import PYNQ, Parameters, Timing
from potash_firmware.apu.models import DRAM_BYTES
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.runtime import Model
from potash_firmware.vta_runtime import Runtime

OUTPUT_BYTES = 1 << 24
"""Room for a model's outputs."""


class RecordingCore(Core):
    """A core that keeps the streams that it is given, in `streams`, and runs them."""

    def __init__(self, config: Config, dram_bytes: int = DRAM_BYTES) -> None:
        super().__init__(config, memoryview(bytearray(dram_bytes)))
        self.streams: list[bytes] = []
        self._place: dict[int, int] = {}

    def write(self, register: int, value: int) -> None:
        if register != Register.CONTROL:
            self._place[register] = value
        elif value & Control.START:
            start = self._place[Register.INSNS] - self.base
            size = self._place[Register.INSN_COUNT] * INSTRUCTION_BYTES
            self.streams.append(bytes(self.dram[start : start + size]))
        super().write(register, value)

    def execute(self, stream: bytes) -> None:
        self.streams.append(bytes(stream))
        super().execute(stream)


@dataclass(frozen=True)
class Modelled:
    """What the tensor accelerator does for one inference, or for several."""

    cycles: int
    instructions: int
    clock: float
    """Hertz."""

    @property
    def seconds(self) -> float:
        """The cycles' time."""
        return self.cycles / self.clock

    def times(self, runs: int) -> Modelled:
        """The same for so many inferences, one behind the other."""
        return Modelled(self.cycles * runs, self.instructions * runs, self.clock)


@dataclass(frozen=True)
class Inference:
    """One inference: its output, and its streams on the clock."""

    output: bytes
    timings: Sequence[Timing]
    parameters: Parameters

    @property
    def modelled(self) -> Modelled:
        """All streams, one behind the other as they run."""
        return Modelled(
            sum(one.cycles for one in self.timings),
            sum(len(one) for one in self.timings),
            self.parameters.clock,
        )


def infer(
    model: bytes,
    inputs: bytes,
    *,
    config: Config | None = None,
    parameters: Parameters = PYNQ,
) -> Inference:
    """Run `model` once on `inputs`, on a core of `config`, by default the drive's; the reference
    kernels do what the delegate leaves.

    Raises ModelError, and what the VTA raises.
    """
    core = RecordingCore(config or Config.default())
    output = memoryview(bytearray(OUTPUT_BYTES))
    with Runtime(core) as runtime:
        loaded = Model(model, delegate=VtaDelegate(runtime), reference=True)
        core.streams.clear()  # loading may have run something, once
        length = loaded(inputs, output)
        found = [timing.run(core.config, parameters, stream) for stream in core.streams]
        return Inference(bytes(output[:length]), found, parameters)

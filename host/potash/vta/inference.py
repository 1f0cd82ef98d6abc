"""A model on the tensor accelerator's clock: the streams that one inference runs, and how long they
take there.

The delegate is the drive's own, and keeps a model's streams; what is timed is what it runs.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from potash_device.vta import timing
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_device.vta.timing.parameters import PYNQ, Parameters
from potash_device.vta.timing.result import Moments, Timing
from potash_firmware.apu.models import DRAM_BYTES
from potash_firmware.tflite.capi import Node
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.runtime import Model
from potash_firmware.tflite.streams import Mark
from potash_firmware.vta_runtime import Runtime

OUTPUT_BYTES = 1 << 24
"""Room for a model's outputs."""
ENDS = Moments._fields.index("end")


class Modelled(NamedTuple):
    """What the tensor accelerator does for one inference, or for several."""

    cycles: int
    instructions: int
    clock: float
    """Hertz."""

    @property
    def seconds(self) -> float:
        """The cycles' time."""
        return self.cycles / self.clock

    def times(self, runs: int) -> "Modelled":
        """The same for so many inferences, one behind the other."""
        return Modelled(self.cycles * runs, self.instructions * runs, self.clock)


class Clocked(NamedTuple):
    """A stream on the clock, and whose instructions are where in it."""

    timing: Timing
    marks: Sequence[Mark]

    @property
    def cycles(self) -> list[tuple[Node, int]]:
        """Each node's cycles.

        Modules work on two nodes at once where one ends and the next begins. A node has the cycles
        from the end of what stands before its instructions to the end of these, so that none counts
        twice; what follows the last node counts for it.
        """
        ends = np.maximum.accumulate(self.timing.moments[:, ENDS]).tolist()
        borders = [0, *(ends[mark.end - 1] for mark in self.marks[:-1]), self.timing.cycles]
        return [
            (mark.node, until - before)
            for mark, (before, until) in zip(self.marks, pairwise(borders), strict=True)
        ]


class Inference(NamedTuple):
    """One inference: its output, and its streams on the clock."""

    output: bytes
    streams: Sequence[Clocked]
    parameters: Parameters

    @property
    def modelled(self) -> Modelled:
        """All streams, one behind the other as they run."""
        return Modelled(
            sum(one.timing.cycles for one in self.streams),
            sum(len(one.timing) for one in self.streams),
            self.parameters.clock,
        )

    @property
    def cycles(self) -> list[tuple[Node, int]]:
        """Each node's cycles, of those that the accelerator runs."""
        return [one for stream in self.streams for one in stream.cycles]


def infer(
    model: bytes, inputs: bytes, *, config: Config | None = None, parameters: Parameters = PYNQ
) -> Inference:
    """Run `model` once on `inputs`, on a core of `config`, by default the drive's; the reference
    kernels do what the delegate leaves.

    Raises ModelError, and what the VTA raises.
    """
    output = memoryview(bytearray(OUTPUT_BYTES))
    with Runtime(Core.create(config or Config.default(), DRAM_BYTES)) as runtime:
        delegate = VtaDelegate(runtime)
        loaded = Model(model, delegate=delegate, reference=True)
        length = loaded(inputs, output)
        found = [
            Clocked(timing.run(runtime.config, parameters, stream.code), stream.marks)
            for stream in delegate.streams
        ]
        return Inference(bytes(output[:length]), found, parameters)

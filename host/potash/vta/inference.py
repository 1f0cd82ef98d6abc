"""A model on the tensor accelerator's clock: the streams that one inference runs, and how long they
take there.

The delegate is the drive's own, and keeps a model's streams; what is timed is what it runs.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from typing import NamedTuple

from potash.sdk.errors import restated
from potash.vta.layers import Layer, ModelTime
from potash_device.vta import figures, timing
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_device.vta.stream import StreamError
from potash_device.vta.timing.parameters import PYNQ, Parameters
from potash_device.vta.timing.result import Activity, Timing, joined
from potash_firmware.apu.models import DRAM_BYTES
from potash_firmware.tflite.capi import Node
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.lowering import Rounding
from potash_firmware.tflite.runtime import Model, macs_of
from potash_firmware.tflite.streams import Mark
from potash_firmware.vta_runtime import Runtime

OUTPUT_BYTES = 1 << 24
"""Room for a model's outputs."""


class Modelled(NamedTuple):
    """Work of the tensor accelerator for one inference, or for several."""

    cycles: int
    instructions: int
    clock: float
    """Hertz."""

    @property
    def seconds(self) -> float:
        """The cycles' time."""
        return self.cycles / self.clock

    def times(self, runs: int) -> "Modelled":
        """The work for so many inferences, one after the other."""
        return Modelled(self.cycles * runs, self.instructions * runs, self.clock)


class Clocked(NamedTuple):
    """A stream on the clock, and whose instructions are where in it."""

    timing: Timing
    marks: Sequence[Mark]

    @property
    def parts(self) -> list[tuple[Node, Activity]]:
        """The timing of each node, node after node.

        Modules work on two nodes at once where one ends and the next begins. A node has the cycles
        from the end of what stands before its instructions to the end of these, so that none counts
        twice.
        """
        return [(node, self.timing.part(first, end)) for node, first, end in self.marks]


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
        return [(node, part.cycles) for stream in self.streams for node, part in stream.parts]


def time_nodes(
    model: bytes, config: Config, parameters: Parameters, rounding: Rounding = Rounding.EXACT
) -> ModelTime:
    """The modelled time of each node of a model on a core. The model does not run: each of its
    subgraphs counts once.

    Raises ModelError, and PotashError where the parameters' queues are too short for a stream.
    """
    parts: dict[tuple[int, int], list[Activity]] = defaultdict(list)
    macs = {}
    with Runtime(Core.create(config, DRAM_BYTES)) as runtime:
        delegate = VtaDelegate(runtime, rounding)
        loaded = Model(model, delegate=delegate, reference=True)
        for graph, (code, marks) in delegate.streams_of_graphs:
            with restated(StreamError, "a stream does not run with these parameters"):
                timed = Clocked(timing.run(config, parameters, code), marks)
            for node, part in timed.parts:
                parts[graph, node.index].append(part)
                macs[graph, node.index] = macs_of(node)
        del loaded  # it kept the streams
    peak = figures.peak_throughput(config, parameters.clock) / 1e9
    layers = [
        Layer(
            node,
            joined(parts[node.graph, node.node], config, parameters) if node.claimed else None,
            macs.get((node.graph, node.node)),
        )
        for node in chain(*delegate.decisions)
    ]
    return ModelTime(config.name, config.to_mapping(), asdict(parameters), peak, layers)


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

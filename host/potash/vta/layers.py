"""The convolutions of ResNet-18, and the nodes of a model, on the tensor accelerator, and how long
they take there.

Source: "VTA: An Open Hardware-Software Stack for Deep Learning", table 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, NamedTuple

from csd_spec.reporting import INLINE, OPTIONAL, Count, Form, Key, Positive
from potash.vta import scheduled
from potash_device.vta import timing
from potash_device.vta.config import Config, ReportedConfig, ReportedCore
from potash_device.vta.timing.parameters import Parameters, ReportedParameters
from potash_device.vta.timing.result import Activity, Timing
from potash_firmware.tflite.decisions import NodeReport
from potash_firmware.vta_runtime.schedules import ScheduleError
from potash_firmware.vta_runtime.schedules.search import stream_of

THREADS = (1, 2)
"""Virtual threads: without hiding the latency of memory, and with it (section 4.3)."""
LAYERS = tuple(scheduled.SHAPES)
"""C1 to C12."""


class Tiles(StrEnum):
    """Origin of a layer's tiles."""

    SCHEDULED = "scheduled"
    """The scheduler, for each number of virtual threads the best that it finds."""
    FIXED = "fixed"
    """Nobody: the same tiles for any number of virtual threads, which four layers have."""


class Timed(NamedTuple):
    """The timing of a stream."""

    name: Annotated[str, "The layer, or the stream's file."]
    threads: int
    """Virtual threads; 0 for a stream that is not one of these layers'."""
    timing: Annotated[Timing, INLINE]
    macs: int | None = None
    """Multiplications of the layer, without those of partly empty blocks; None if not known."""

    @property
    def virtual_threads(self) -> Annotated[Positive | None, OPTIONAL, Key(before="instructions")]:
        """Number of virtual threads."""
        return self.threads or None

    @property
    def gops(self) -> Annotated[float | None, OPTIONAL, Key(before="instructions")]:
        """Throughput of the layer in GOP/s."""
        return None if self.macs is None else self.throughput

    @property
    def throughput(self) -> float:
        """GOP/s, of the layer's own operations where they are known."""
        return throughput(self.timing, self.macs)


class Layer(NamedTuple):
    """A node of a model, and its time on the core."""

    node: Annotated[NodeReport, INLINE]
    time: Annotated[
        Annotated[Activity, Form(title="NodeTime")] | None,
        "Its share of the model's time; null if the VTA does not run it.",
    ]
    macs: int | None = None
    """Multiplications, as in `Timed`."""

    @property
    def gops(self) -> Annotated[float | None, Key(before="time")]:
        """Throughput in GOP/s; null for a node without instructions.

        Partly empty blocks do not count whole. Operators that multiply nothing have two operations
        for each element of their largest tensor.
        """
        return throughput(self.time, self.macs) if self.time and self.macs is not None else None


class ModelTime(NamedTuple):
    """Modelled time of a model's nodes on a core."""

    core: ReportedCore
    config: ReportedConfig
    parameters: ReportedParameters
    peak_gops: Annotated[float, "Peak rate in GOP/s."]
    layers: Annotated[Sequence[Layer], "All nodes, in execution order."]

    @property
    def cycles(self) -> Annotated[Count, Key(before="layers")]:
        """Cycles of all nodes together, which is the time of a run on the core."""
        return sum(layer.time.cycles for layer in self.layers if layer.time)

    @property
    def seconds(self) -> Annotated[float, Key(before="layers")]:
        """Duration of these cycles in seconds."""
        return self.cycles / self.parameters["clock"]


def throughput(time: Activity, macs: int | None) -> float:
    """GOP/s: of so many multiplications, or of all that GEMM does where that is None."""
    return time.gemm_gops if macs is None else 2 * macs / time.seconds / 1e9 if time.cycles else 0.0


def stream(
    name: str, config: Config, parameters: Parameters, threads: int, tiles: Tiles
) -> bytes | None:
    """A layer's stream with so many virtual threads; None where there is no schedule for it."""
    shape = scheduled.SHAPES[name]
    try:
        if tiles is Tiles.SCHEDULED:
            return stream_of(scheduled.plan(shape, config, parameters, threads))
        if name not in scheduled.TILES:
            return None
        tile = replace(scheduled.TILES[name], threads=threads)
        return stream_of(scheduled.tiled(shape, config, tile))
    except ScheduleError:
        return None


def timed(
    names: Sequence[str], config: Config, parameters: Parameters, tiles: Tiles = Tiles.SCHEDULED
) -> Iterator[Timed]:
    """Each layer that has a schedule, with each number of virtual threads."""
    for name in names:
        for threads in THREADS:
            code = stream(name, config, parameters, threads, tiles)
            if code is not None:
                found = timing.run(config, parameters, code)
                yield Timed(name, threads, found, scheduled.SHAPES[name].products)

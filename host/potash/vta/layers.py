"""The convolutions of ResNet-18 on the tensor accelerator, and how long they take there.

Source: "VTA: An Open Hardware-Software Stack for Deep Learning", table 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, NamedTuple

from csd_spec.reporting import INLINE, OPTIONAL, Key, Positive
from potash.vta import scheduled, streams
from potash_device.vta import timing
from potash_device.vta.config import Config
from potash_device.vta.timing.parameters import Parameters
from potash_device.vta.timing.result import Timing
from potash_firmware.vta_runtime.schedules import ScheduleError
from potash_firmware.vta_runtime.schedules.search import stream_of

PLATFORM = Config.default()
THREADS = (1, 2)
"""Virtual threads: without hiding the latency of memory, and with it (section 4.3)."""
LAYERS = tuple(scheduled.SHAPES)
"""C1 to C12."""


class Tiles(StrEnum):
    """Who cuts a layer into tiles."""

    SCHEDULED = "scheduled"
    """The scheduler, for each number of virtual threads the best that it finds."""
    FIXED = "fixed"
    """Nobody: the same tiles for any number of virtual threads, which four layers have."""


class Timed(NamedTuple):
    """The timing of a stream."""

    name: Annotated[str, "The layer, or the stream's file."]
    threads: int
    """Virtual threads; 0 for a stream that is not a layer's."""
    timing: Annotated[Timing, INLINE]

    @property
    def virtual_threads(self) -> Annotated[Positive | None, OPTIONAL, Key(before="instructions")]:
        """Number of virtual threads."""
        return self.threads or None

    @property
    def gops(self) -> Annotated[float | None, OPTIONAL, Key(before="instructions")]:
        """Throughput of the layer in GOP/s."""
        return self.throughput if self.threads else None

    @property
    def throughput(self) -> float:
        """GOP/s; for a layer only its own operations: blocks that are partly empty do not count
        whole."""
        if not self.threads:
            return self.timing.gemm_gops
        return 2 * scheduled.SHAPES[self.name].products / self.timing.seconds / 1e9


def stream(
    name: str, config: Config, parameters: Parameters, threads: int, tiles: Tiles
) -> bytes | None:
    """A layer's stream with so many virtual threads; None where there is no schedule for it."""
    if tiles is Tiles.SCHEDULED:
        shape = scheduled.SHAPES[name]
        try:
            return stream_of(scheduled.plan(shape, config, parameters, threads))
        except ScheduleError:
            return None
    make = streams.CONVOLUTIONS.get(name)
    if make is None or replace(config, log_uop_buff_size=PLATFORM.log_uop_buff_size) != PLATFORM:
        return None
    return make(threads=threads, config=config).code


def timed(
    names: Sequence[str], config: Config, parameters: Parameters, tiles: Tiles = Tiles.SCHEDULED
) -> Iterator[Timed]:
    """Each layer that has a schedule, with each number of virtual threads."""
    for name in names:
        for threads in THREADS:
            code = stream(name, config, parameters, threads, tiles)
            if code is not None:
                yield Timed(name, threads, timing.run(config, parameters, code))

"""The convolutions of ResNet-18 on the tensor accelerator, and how long they take there.

Source: "VTA: An Open Hardware-Software Stack for Deep Learning", table 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from potash.bench import vta_streams
from potash_device.vta import timing
from potash_device.vta.config import Config
from potash_device.vta.timing import Parameters, Timing

PLATFORM = Config.default()
THREADS = (1, 2)
"""Virtual threads: without hiding the latency of memory, and with it (section 4.3)."""


@dataclass(frozen=True)
class Layer:
    """A convolution of a square image with as much padding as keeps its size, but for the stride."""

    name: str
    size: int
    inputs: int
    outputs: int
    kernel: int
    stride: int

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        across = -(-self.size // self.stride)
        return 2 * across**2 * self.inputs * self.outputs * self.kernel**2


LAYERS = (
    Layer("C1", 224, 3, 64, 7, 2),
    Layer("C2", 56, 64, 64, 3, 1),
    Layer("C3", 56, 64, 64, 1, 1),
    Layer("C4", 56, 64, 128, 3, 2),
    Layer("C5", 56, 64, 128, 1, 2),
    Layer("C6", 28, 128, 128, 3, 1),
    Layer("C7", 28, 128, 256, 3, 2),
    Layer("C8", 28, 128, 256, 1, 2),
    Layer("C9", 14, 256, 256, 3, 1),
    Layer("C10", 14, 256, 512, 3, 2),
    Layer("C11", 14, 256, 512, 1, 2),
    Layer("C12", 7, 512, 512, 3, 1),
)


@dataclass(frozen=True)
class Timed:
    """A layer on the clock."""

    layer: Layer
    threads: int
    timing: Timing

    @property
    def throughput(self) -> float:
        """The layer's own operations a second: blocks that are partly empty do not count whole."""
        return self.layer.operations / self.timing.seconds


def stream(layer: Layer, config: Config, parameters: Parameters, threads: int) -> bytes | None:
    """The layer's stream with so many virtual threads; None where there is no schedule for it."""
    make = vta_streams.CONVOLUTIONS.get(layer.name)
    if make is None or replace(config, log_uop_buff_size=PLATFORM.log_uop_buff_size) != PLATFORM:
        return None
    return make(threads=threads, config=config).code


def timed(layers: Sequence[Layer], config: Config, parameters: Parameters) -> Iterator[Timed]:
    """Each layer that has a schedule, with each number of virtual threads."""
    for layer in layers:
        for threads in THREADS:
            code = stream(layer, config, parameters, threads)
            if code is not None:
                yield Timed(layer, threads, timing.run(config, parameters, code))

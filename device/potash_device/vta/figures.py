"""Peak throughput of a configuration, and the bandwidth that its buffers need for it.

In every cycle, a busy GEMM core executes one micro-op: it reads an element of INP, WGT and ACC and
writes one of ACC. This is the arithmetic of "VTA: An Open Hardware-Software Stack for Deep
Learning", section 2.6, "Bandwidth Considerations".
"""

from potash_device.vta.config import Config, MemoryId

CLOCK = 100e6
"""Hertz of the paper's core on a PYNQ board (section 5)."""

BUFFERS = (MemoryId.UOP, MemoryId.INP, MemoryId.WGT, MemoryId.ACC, MemoryId.OUT)
"""The memories that are buffers on the chip."""


def operations_per_cycle(config: Config) -> int:
    """Multiplications and additions of one micro-op."""
    return 2 * config.batch * config.block_in * config.block_out


def peak_throughput(config: Config, clock: float = CLOCK) -> float:
    """Operations per second of a GEMM core that never waits."""
    return operations_per_cycle(config) * clock


def bandwidth(config: Config, memory: MemoryId, clock: float = CLOCK) -> float:
    """Bits per second for one element of `memory` per cycle."""
    return config.element_bytes(memory) * 8 * clock

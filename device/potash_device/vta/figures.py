"""What follows from a configuration and a clock: peak throughput, and what the buffers must
deliver.

A GEMM core at work reads one element of INP, WGT and ACC and writes one of ACC in every cycle, told
so by one micro-op. This is the arithmetic of "VTA: An Open Hardware-Software Stack for Deep
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
    """Operations a second of a GEMM core that never waits."""
    return operations_per_cycle(config) * clock


def bandwidth(config: Config, memory: MemoryId, clock: float = CLOCK) -> float:
    """Bits a second that an element of `memory` in every cycle makes."""
    return config.element_bytes(memory) * 8 * clock

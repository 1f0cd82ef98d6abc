"""Parameters of the timing model: assumptions that reproduce the shape of the paper's figures, and
were not calibrated on a board.

Source: "VTA: An Open Hardware-Software Stack for Deep Learning", sections 2.3, 2.6 and 5; the VTA
project's `vta.h` and `vta.cc` (HLS) and `Core.scala`, `TensorGemm.scala`, `TensorAlu.scala`
(Chisel)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from potash_device.vta.figures import CLOCK
from potash_wire.fields import Range
from potash_wire.ranges import require_ranges

LARGEST = 1 << 16
"""No count of cycles, bytes or places is greater, so that 64 bits hold whatever follows."""

Number = Annotated[int, Range(0, LARGEST)]
Positive = Annotated[int, Range(1, LARGEST)]


ReportedParameters = Annotated[
    Mapping[str, float],
    "Parameters of the timing model by name; in cycles, except `clock`, which is in Hz.",
]


class ParameterError(ValueError):
    """Invalid parameters."""


@dataclass(frozen=True)
class Parameters:
    """Durations of a core's operations. Raises ParameterError.

    All but `clock` are whole numbers: of cycles, unless the docstrings have another unit. The
    defaults are those of the HLS build on the paper's PYNQ board.
    """

    clock: float = CLOCK
    """Hertz. Nothing but the translation of cycles into seconds depends on it."""

    bus_bytes: Positive = 8
    """Bytes that a memory channel moves in a cycle: 64-bit AXI ports. All reads of LOAD and COMPUTE
    share one channel, stores have another, and so has the fetch of instructions."""
    latency: Number = 32
    """Cycles from a row's request to its first byte. Each row of a transfer is a request that waits
    for the one before it."""
    burst_bytes: Annotated[int, Range(16, LARGEST)] = 2048
    """Bytes of the longest burst: 256 beats in AXI4, of 8 bytes."""
    burst_cycles: Number = 2
    """Cycles to begin a burst."""

    decode: Number = 4
    """Cycles from an instruction's tokens to its first request or micro-op."""
    token_cycles: Positive = 2
    """Cycles of an instruction that moves nothing, and of FINISH."""

    gemm_interval: Positive = 1
    """Cycles from one micro-op of GEMM to the next: the core is fully pipelined (section 2.5)."""
    gemm_fill: Number = 10
    """Cycles through the pipeline, once per instruction."""
    gemm_drain: Number = 8
    """Cycles per iteration of the inner loop: HLS empties the pipeline of the micro-op loop before
    the loop around it continues."""
    alu_interval: Positive = 2
    """Cycles between micro-ops of ALU: ACC has one read port, and two operands come from it."""
    alu_immediate_interval: Positive = 2
    """Cycles between micro-ops of ALU with an immediate, which HLS schedules no better."""
    alu_fill: Number = 10
    """Cycles through the pipeline, once per instruction."""
    alu_drain: Number = 8
    """Cycles per iteration of the inner loop, as with `gemm_drain`."""

    command_queue: Positive = 512
    """Instructions that wait before each module; the fetch stalls at a full queue."""
    token_queue: Positive = 1024
    """Tokens between two modules, in each direction; a module waits at a full queue."""

    def __post_init__(self) -> None:
        if not 0 < self.clock < 1e12:
            raise ParameterError(f"no core has a clock of {self.clock} Hz")
        require_ranges(self, ParameterError)


PYNQ = Parameters()
CHISEL = Parameters(
    gemm_drain=0, alu_immediate_interval=1, alu_drain=0, command_queue=512, token_queue=255
)
"""The Chisel build: one state machine walks through both loops and the micro-ops, an immediate
needs no second read, and tokens are counted in 8 bits."""

BUILDS: Mapping[str, Parameters] = {"pynq": PYNQ, "chisel": CHISEL}
"""Parameters by the name of the build."""

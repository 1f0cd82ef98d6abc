"""The VTA's runtime: buffers, micro-kernels, dependences, and the stream that they become.

Source: the VTA project's runtime (`vta/runtime.h`), whose functions docs/vta.md sets against these.
"""

from potash_device.vta.config import MemoryId
from potash_device.vta.isa import AluOpcode, MicroOp, Stage
from potash_device.vta.stream import StreamError
from potash_firmware.vta_runtime.buffers import Buffer, Share, VtaMemoryError
from potash_firmware.vta_runtime.kernels import AluKernel, GemmKernel, Loop
from potash_firmware.vta_runtime.runtime import Runtime

__all__ = [
    "AluKernel",
    "AluOpcode",
    "Buffer",
    "GemmKernel",
    "Loop",
    "MemoryId",
    "MicroOp",
    "Runtime",
    "Share",
    "Stage",
    "StreamError",
    "VtaMemoryError",
]

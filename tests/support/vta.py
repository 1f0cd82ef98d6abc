"""A VTA on the bench: a core small enough to reason about, and DRAM between two guards."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.isa import Dependencies, Finish, Instruction, Load, MicroOp, Store
from potash_device.vta.simulator import Event, Simulator
from potash_device.vta.stream import Order
from potash_firmware.vta_runtime import Runtime

BASE = 0x1000
GUARD = b"\xa5" * 256

TINY = Config(
    log_batch=1,
    log_block_in=2,
    log_block_out=3,
    log_uop_buff_size=5,
    log_inp_buff_size=7,
    log_wgt_buff_size=9,
    log_acc_buff_size=10,
)
"""2x4x8; 8 micro-ops, 16 elements each of INP (8 bytes), WGT (32), ACC (64) and OUT (16)."""

HALF = Config(
    log_uop_buff_size=14, log_inp_buff_size=14, log_wgt_buff_size=17, log_acc_buff_size=16
)
"""Half of every buffer: UOP 4096, INP 1024, WGT 512 and ACC 1024 elements."""

WIDE = Config(
    log_inp_width=4,
    log_wgt_width=4,
    log_out_width=4,
    log_batch=2,
    log_block_in=3,
    log_block_out=5,
    log_uop_buff_size=6,
    log_inp_buff_size=9,
    log_wgt_buff_size=12,
    log_acc_buff_size=13,
)
"""4x8x32 of 16 bits; 16 micro-ops, 8 elements of INP (64 bytes), 8 of WGT (512), 16 of ACC
(512)."""

ONE = Config(
    log_block_in=0,
    log_block_out=0,
    log_uop_buff_size=2,
    log_inp_buff_size=0,
    log_wgt_buff_size=0,
    log_acc_buff_size=2,
)
"""1x1x1, and a single element of everything: indices and factors have no bits at all."""

LARGE = Config(
    log_batch=4,
    log_block_in=6,
    log_block_out=8,
    log_inp_buff_size=14,
    log_wgt_buff_size=18,
    log_acc_buff_size=18,
)
"""16x64x256: an element of WGT or ACC takes 16 KiB, more than the DRAM's first address."""

CONFIGS = (Config.default(), TINY, HALF, WIDE, ONE, LARGE)
"""Cores that have little in common."""


class Bench:
    """A simulator, the DRAM that it has, and guards around that which it must not touch."""

    def __init__(
        self,
        config: Config = TINY,
        size: int = 4096,
        step_limit: int = 1 << 16,
        order: Order = Order.TOKENS,
    ) -> None:
        self.config = config
        self._memory = bytearray(GUARD + bytes(size) + GUARD)
        self.dram = memoryview(self._memory)[len(GUARD) : len(GUARD) + size]
        self.simulator = Simulator(config, self.dram, BASE, step_limit=step_limit, order=order)

    @property
    def guards_intact(self) -> bool:
        """Whether nothing was written outside the DRAM."""
        memory = bytes(self._memory)
        return memory.startswith(GUARD) and memory.endswith(GUARD)

    def put(self, offset: int, values: NDArray[np.generic]) -> None:
        """Store an array's bytes in DRAM from byte `offset` on."""
        data = values.tobytes()
        self.dram[offset : offset + len(data)] = data

    def element(self, memory: MemoryId, offset: int) -> int:
        """What `dram_base` is for byte `offset` of DRAM."""
        address, rest = divmod(BASE + offset, self.config.element_bytes(memory))
        assert rest == 0
        return address

    def set_micro_ops(self, micro_ops: Sequence[MicroOp]) -> None:
        """Fill the micro-op buffer from its first place on."""
        for place, micro_op in enumerate(micro_ops):
            self.simulator.uop[place] = micro_op.encode(self.config)

    def run(self, *instructions: Instruction, finish: bool = True) -> None:
        """Run the instructions, and FINISH, from the end of DRAM."""
        stream = [*instructions, Finish()] if finish else list(instructions)
        words = [i.encode(self.config).to_bytes(16, "little") for i in stream]
        self.run_bytes(b"".join(words))

    def run_bytes(self, stream: bytes) -> None:
        """Run raw bytes as a stream, from the end of DRAM."""
        offset = (len(self.dram) - len(stream)) // 16 * 16
        self.dram[offset : offset + len(stream)] = stream
        self.simulator.run(BASE + offset, len(stream) // 16)


def wrapped(value: int) -> int:
    """`value` modulo 2^32 as a signed number."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def acc_pattern(seed: int = 0) -> NDArray[np.int32]:
    """Distinct values in the whole of TINY's ACC, some of them at the ends of the range."""
    values = np.random.default_rng(seed).integers(-(2**31), 2**31, (16, TINY.batch, TINY.block_out))
    values[:, 0, :4] = [0, -1, 2**31 - 1, -(2**31)]
    return values.astype(np.int32)


def load(dependencies: Dependencies = Dependencies.NONE) -> Load:
    """An instruction of the load module that moves nothing."""
    return Load(memory_type=MemoryId.INP, dependencies=dependencies)


def compute(dependencies: Dependencies = Dependencies.NONE) -> Load:
    """An instruction of the compute module that moves nothing."""
    return Load(memory_type=MemoryId.UOP, dependencies=dependencies)


def store(dependencies: Dependencies = Dependencies.NONE) -> Store:
    """An instruction of the store module that moves nothing."""
    return Store(memory_type=MemoryId.OUT, dependencies=dependencies)


def executed(runtime: Runtime) -> list[str]:
    """Kind and memory type of each instruction that the next `synchronize` executes."""
    names: list[str] = []

    def note(event: Event) -> None:
        memory = getattr(event.instruction, "memory_type", None)
        moves = getattr(event.instruction, "x_size", 1)
        if moves:
            kind = type(event.instruction).__name__
            names.append(kind if memory is None else f"{kind} {memory.name}")

    runtime.core.trace = note
    try:
        runtime.synchronize()
    finally:
        runtime.core.trace = None
    return names


def unpack_nchw(packed: NDArray[Any], images: int, channels: int) -> NDArray[Any]:
    """Images [N][C][H][W] from an output of the core, without what fills its blocks up."""
    groups, across, height, width, batch, block = packed.shape
    whole = packed.transpose(0, 4, 1, 5, 2, 3).reshape(
        groups * batch, across * block, height, width
    )
    return whole[:images, :channels]

"""Micro-kernels: what one GEMM or ALU instruction does, and where its micro-ops are.

A kernel's micro-ops are written to DRAM once and found again by their content. The core executes
them from its micro-op buffer, which holds as many kernels as fit; the least recently used make
room.

Source: the VTA project's `vta/runtime.h`: VTAUopPush, VTAUopLoopBegin, VTAPushGEMMOp, VTAPushALUOp.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.isa import Alu, AluOpcode, Gemm, Load, MicroOp
from potash_firmware.vta_runtime.buffers import Buffer, Spans

MAX_LOOPS = 2


@dataclass(frozen=True)
class Loop:
    """`extent` times, with that much added to the micro-ops' indices each time."""

    extent: int
    dst: int = 0
    src: int = 0
    wgt: int = 0


@dataclass(frozen=True)
class AluKernel:
    """`opcode` for each micro-op inside the loops, outer first; with `immediate` instead of the
    source where that is given."""

    opcode: AluOpcode
    micro_ops: tuple[MicroOp, ...]
    loops: tuple[Loop, ...] = ()
    immediate: int | None = None

    def instruction(self, uop_bgn: int) -> Alu:
        """The instruction, its micro-ops being in the buffer from `uop_bgn` on.

        Raises ValueError for more than two loops.
        """
        outer, inner = _two_loops(self.loops)
        return Alu(
            alu_opcode=self.opcode,
            use_imm=self.immediate is not None,
            imm=self.immediate or 0,
            uop_bgn=uop_bgn,
            uop_end=uop_bgn + len(self.micro_ops),
            iter_out=outer.extent,
            iter_in=inner.extent,
            dst_factor_out=outer.dst,
            dst_factor_in=inner.dst,
            src_factor_out=outer.src,
            src_factor_in=inner.src,
        )


@dataclass(frozen=True)
class GemmKernel:
    """Multiply and accumulate for each micro-op inside the loops, outer first; or zero the
    accumulators (`reset`)."""

    micro_ops: tuple[MicroOp, ...]
    loops: tuple[Loop, ...] = ()
    reset: bool = False

    def instruction(self, uop_bgn: int) -> Gemm:
        """The instruction, its micro-ops being in the buffer from `uop_bgn` on.

        Raises ValueError for more than two loops.
        """
        outer, inner = _two_loops(self.loops)
        return Gemm(
            reset=self.reset,
            uop_bgn=uop_bgn,
            uop_end=uop_bgn + len(self.micro_ops),
            iter_out=outer.extent,
            iter_in=inner.extent,
            dst_factor_out=outer.dst,
            dst_factor_in=inner.dst,
            src_factor_out=outer.src,
            src_factor_in=inner.src,
            wgt_factor_out=outer.wgt,
            wgt_factor_in=inner.wgt,
        )


def _two_loops(loops: Sequence[Loop]) -> tuple[Loop, Loop]:
    """The two loops of an instruction; a missing one has one iteration."""
    if len(loops) > MAX_LOOPS:
        raise ValueError(f"a VTA kernel has at most {MAX_LOOPS} loops, not {len(loops)}")
    outer, inner, *_ = (*loops, Loop(1), Loop(1))
    return outer, inner


class MicroOpCache:
    """Which micro-ops are in DRAM, and which of them in the core's micro-op buffer."""

    def __init__(
        self, config: Config, allocate: Callable[[int], Buffer], emit: Callable[[Load], None]
    ) -> None:
        self._config = config
        self._allocate = allocate
        self._emit = emit
        self._in_dram: dict[tuple[MicroOp, ...], Buffer] = {}
        self._in_core: OrderedDict[tuple[MicroOp, ...], int] = OrderedDict()
        self._depth = config.depth(MemoryId.UOP)
        self._spans = Spans(self._depth)

    def locate(self, micro_ops: tuple[MicroOp, ...]) -> int:
        """Where in the micro-op buffer they are when the next instruction executes.

        Raises ValueError for micro-ops that cannot be encoded or are too many, VtaMemoryError where
        DRAM has no room for them.
        """
        begin = self._in_core.get(micro_ops)
        if begin is not None:
            self._in_core.move_to_end(micro_ops)
            return begin
        if not 0 < len(micro_ops) <= self._depth:
            raise ValueError(f"a VTA kernel has 1 to {self._depth} micro-ops, not {len(micro_ops)}")
        buffer = self._put_in_dram(micro_ops)
        begin = self._make_room(len(micro_ops))
        self._emit(
            Load(
                memory_type=MemoryId.UOP,
                sram_base=begin,
                dram_base=buffer.physical // self._config.element_bytes(MemoryId.UOP),
                y_size=1,
                x_size=len(micro_ops),
                x_stride=len(micro_ops),
            )
        )
        self._in_core[micro_ops] = begin
        return begin

    def forget_core(self) -> None:
        """The micro-op buffer's contents are unknown: load every kernel again before its use."""
        self._in_core.clear()
        self._spans = Spans(self._depth)

    def clear(self) -> None:
        """Forget all kernels and free their DRAM."""
        self.forget_core()
        for buffer in self._in_dram.values():
            buffer.free()
        self._in_dram.clear()

    def hand_over(self) -> tuple[Buffer, ...]:
        """Forget all kernels; the caller frees their DRAM."""
        self.forget_core()
        buffers = tuple(self._in_dram.values())
        self._in_dram.clear()
        return buffers

    def _put_in_dram(self, micro_ops: tuple[MicroOp, ...]) -> Buffer:
        buffer = self._in_dram.get(micro_ops)
        if buffer is None:
            words = [micro_op.encode(self._config) for micro_op in micro_ops]
            image = struct.pack(f"<{len(words)}I", *words)
            buffer = self._allocate(len(image))
            buffer.view[:] = image
            self._in_dram[micro_ops] = buffer
        return buffer

    def _make_room(self, size: int) -> int:
        while (begin := self._spans.take(size)) is None:
            oldest, start = self._in_core.popitem(last=False)
            self._spans.give_back(start, len(oldest))
        return begin

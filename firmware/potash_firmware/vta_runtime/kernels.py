"""Micro-kernels: the work of one GEMM or ALU instruction, and the location of its micro-ops.

A kernel's micro-ops are written to DRAM once and found again by their content. The core executes
them from its micro-op buffer, which holds as many kernels as fit; the least recently used make
room.

Source: the VTA project's `vta/runtime.h`: VTAUopPush, VTAUopLoopBegin, VTAPushGEMMOp, VTAPushALUOp.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.isa import AluOpcode, MicroOp, Opcode
from potash_firmware.vta_runtime.buffers import Buffer, Spans

MAX_LOOPS = 2


@dataclass(frozen=True)
class Loop:
    """A loop of `extent` iterations, each of which adds increments to the micro-ops' indices."""

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

    def encode(self, uop_bgn: int, config: Config) -> int:
        """The instruction, its micro-ops being in the buffer from `uop_bgn` on.

        Raises ValueError for more than two loops, and for what cannot be encoded.
        """
        fields = _fields(Opcode.ALU, self, uop_bgn)
        fields["alu_opcode"] = self.opcode
        fields["use_imm"] = self.immediate is not None
        fields["imm"] = self.immediate or 0
        return config.layouts.alu.pack(fields)


@dataclass(frozen=True)
class GemmKernel:
    """Multiply and accumulate for each micro-op inside the loops, outer first; or zero the
    accumulators (`reset`)."""

    micro_ops: tuple[MicroOp, ...]
    loops: tuple[Loop, ...] = ()
    reset: bool = False

    def encode(self, uop_bgn: int, config: Config) -> int:
        """The instruction, likewise."""
        fields = _fields(Opcode.GEMM, self, uop_bgn)
        outer, inner = _two(self.loops)
        fields["reset"] = self.reset
        fields["wgt_factor_out"] = outer.wgt
        fields["wgt_factor_in"] = inner.wgt
        return config.layouts.gemm.pack(fields)


_ONCE = Loop(1)


def _two(loops: tuple[Loop, ...]) -> tuple[Loop, Loop]:
    """An instruction's loops; a missing one has one iteration."""
    if len(loops) > MAX_LOOPS:
        raise ValueError(f"a VTA kernel has at most {MAX_LOOPS} loops, not {len(loops)}")
    outer, inner = (*loops, _ONCE, _ONCE)[:2]
    return outer, inner


def _fields(opcode: Opcode, kernel: AluKernel | GemmKernel, uop_bgn: int) -> dict[str, int]:
    """The fields that GEMM and ALU have in common."""
    outer, inner = _two(kernel.loops)
    return {
        "opcode": opcode,
        "dependencies": 0,
        "uop_bgn": uop_bgn,
        "uop_end": uop_bgn + len(kernel.micro_ops),
        "iter_out": outer.extent,
        "iter_in": inner.extent,
        "dst_factor_out": outer.dst,
        "dst_factor_in": inner.dst,
        "src_factor_out": outer.src,
        "src_factor_in": inner.src,
    }


class MicroOpCache:
    """The micro-ops in DRAM, and those of them that are in the core's micro-op buffer."""

    def __init__(
        self,
        config: Config,
        allocate: Callable[[int], Buffer],
        load: Callable[[Buffer, int, int], None],
    ) -> None:
        """`load` appends a LOAD of a buffer's micro-ops, as many as are given, to the place that
        is given before."""
        self._config = config
        self._allocate = allocate
        self._load = load
        self.changes = 0
        """Number of changes of what is where in the micro-op buffer."""
        self._seen: dict[int, tuple[tuple[MicroOp, ...], int]] = {}
        """Micro-ops by their id, and their numbers: mostly the same object comes again, of which
        the contents need not be compared. It is kept, so that nothing else gets its id."""
        self._numbers: dict[tuple[MicroOp, ...], int] = {}
        self._in_dram: dict[int, Buffer] = {}
        self._in_core: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """Start and number of micro-ops, by their kernel's number."""
        self._depth = config.depth(MemoryId.UOP)
        self._spans = Spans(self._depth)

    def locate(self, micro_ops: tuple[MicroOp, ...]) -> int:
        """Place of micro-ops in the micro-op buffer when the next instruction executes.

        Raises ValueError for micro-ops that cannot be encoded or are too many, VtaMemoryError if
        DRAM has no room for them.
        """
        number = self._number(micro_ops)
        place = self._in_core.get(number)
        if place is not None:
            self._in_core.move_to_end(number)
            return place[0]
        if not 0 < len(micro_ops) <= self._depth:
            raise ValueError(f"a VTA kernel has 1 to {self._depth} micro-ops, not {len(micro_ops)}")
        buffer = self._put_in_dram(number, micro_ops)
        begin = self._make_room(len(micro_ops))
        self._load(buffer, begin, len(micro_ops))
        self.changes += 1
        self._in_core[number] = begin, len(micro_ops)
        return begin

    def use(self, kernels: Iterable[tuple[MicroOp, ...]]) -> None:
        """Note that micro-ops are used which are in the buffer."""
        for micro_ops in kernels:
            self._in_core.move_to_end(self._number(micro_ops))

    def forget_core(self) -> None:
        """The micro-op buffer's contents are unknown: load every kernel again before its use."""
        self.changes += 1
        self._in_core.clear()
        self._spans = Spans(self._depth)

    def clear(self) -> None:
        for buffer in self.hand_over():
            buffer.free()

    def hand_over(self) -> tuple[Buffer, ...]:
        """Forget all kernels; the caller frees their DRAM."""
        self.forget_core()
        buffers, self._in_dram = tuple(self._in_dram.values()), {}
        self._seen, self._numbers = {}, {}
        return buffers

    def _number(self, micro_ops: tuple[MicroOp, ...]) -> int:
        seen = self._seen.get(id(micro_ops))
        if seen is None:
            seen = micro_ops, self._numbers.setdefault(micro_ops, len(self._numbers))
            self._seen[id(micro_ops)] = seen
        return seen[1]

    def _put_in_dram(self, number: int, micro_ops: tuple[MicroOp, ...]) -> Buffer:
        buffer = self._in_dram.get(number)
        if buffer is None:
            size = len(micro_ops) * self._config.element_bytes(MemoryId.UOP)
            buffer = self._allocate(size)
            if buffer.view:
                buffer.view[:] = encode_micro_ops(micro_ops, self._config)
            self._in_dram[number] = buffer
        return buffer

    def _make_room(self, size: int) -> int:
        while (begin := self._spans.take(size)) is None:
            _, oldest = self._in_core.popitem(last=False)
            self._spans.give_back(*oldest)
        return begin


def encode_micro_ops(micro_ops: Sequence[MicroOp], config: Config) -> bytes:
    """Micro-ops as the core reads them. Raises InstructionError for one that cannot be encoded."""
    layout, values = config.layouts.micro_op.by_name, np.array(micro_ops).reshape(-1, 3)
    fields = [layout[name] for name in MicroOp._fields]
    # Numbers of more than 64 bits make an array of objects.
    if (values < 0).any() or (values > [field.mask for field in fields]).any():
        for micro_op in micro_ops:
            micro_op.encode(config)
    words = np.bitwise_or.reduce(values << [field.low for field in fields], axis=1)
    return bytes(words.astype("<u4"))

"""Two engines side by side, and streams that nobody would write."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import support.amx  # noqa: F401 - it adds a path
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.fast.simulator import FastSimulator
from potash_device.vta.isa import (
    Alu,
    AluOpcode,
    Dependencies,
    Finish,
    Gemm,
    Instruction,
    Load,
    MicroOp,
    Stage,
    Store,
    encode_stream,
)
from potash_device.vta.simulator import Simulator
from potash_device.vta.stream import Order, StreamError
from support.vta import BASE, GUARD

BUFFERS = ("uop", "inp", "wgt", "acc")
DRAM_ELEMENTS = 24
"""DRAM has room for so many of the largest elements."""
MAX_MICRO_OPS = 64


@dataclass(frozen=True)
class Outcome:
    """All that a stream leaves behind; of DRAM also what lies around it."""

    memory: bytes
    buffers: dict[str, bytes]
    refusal: tuple[int, str] | None


class Pair:
    """The readable simulator and a fast one: a DRAM each, and the same random contents all over."""

    def __init__(
        self,
        config: Config,
        *,
        path: str | None = None,
        seed: int = 0,
        micro_ops: Sequence[MicroOp] = (),
        order: Order = Order.TOKENS,
        step_limit: int = 1 << 15,
        threads: int = 1,
        base: int = BASE,
    ) -> None:
        self.config = config
        random = np.random.default_rng(seed)
        contents = random.bytes(config.alignment * DRAM_ELEMENTS)
        self._memories = [bytearray(GUARD + contents + GUARD) for _ in range(2)]
        self.drams = tuple(
            memoryview(memory)[len(GUARD) : len(GUARD) + len(contents)] for memory in self._memories
        )
        readable, fast = self.drams
        limits: dict[str, Any] = {"order": order, "step_limit": step_limit}
        self.readable = Simulator(config, readable, base, **limits)
        self.fast = FastSimulator(config, fast, base, path=path, threads=threads, **limits)
        self.fast.worth, self.fast.divided_at = -(1 << 40), 2
        for name in BUFFERS:
            buffer = getattr(self.readable, name)
            buffer[...] = np.frombuffer(random.bytes(buffer.nbytes), buffer.dtype).reshape(
                buffer.shape
            )
        for place, micro_op in enumerate(micro_ops):
            self.readable.uop[place] = micro_op.encode(config)
        self.fast.adopt(self.readable)

    def check(self, instructions: Sequence[Instruction]) -> Outcome:
        """Run a stream in both: what they leave behind is the same. Gives it."""
        return self.check_bytes(encode_stream(instructions, self.config))

    def check_bytes(self, stream: bytes) -> Outcome:
        """The same for raw bytes."""
        expected = self._outcome(0, self.readable, stream)
        found = self._outcome(1, self.fast, stream)
        assert found.refusal == expected.refusal
        assert found.memory == expected.memory
        for name in BUFFERS:
            assert found.buffers[name] == expected.buffers[name], name
        return found

    def _outcome(self, number: int, engine: Simulator | FastSimulator, stream: bytes) -> Outcome:
        refusal = None
        try:
            engine.execute(stream)
        except StreamError as error:
            refusal = (error.index, error.reason)
        else:
            # It has not left the work to the readable one.
            assert not isinstance(engine, FastSimulator) or engine.trace or engine.keeps(stream)
        buffers = {name: getattr(engine, name).tobytes() for name in BUFFERS}
        return Outcome(bytes(self._memories[number]), buffers, refusal)


def finished(*instructions: Instruction) -> list[Instruction]:
    """A stream of these, with FINISH."""
    return [*instructions, Finish()]


def near(limit: int) -> st.SearchStrategy[int]:
    """Numbers from 0 to `limit`, mostly small ones, and the last of them."""
    return st.integers(0, min(limit, 5)) | st.integers(0, limit) | st.just(limit)


@st.composite
def micro_op_lists(draw: st.DrawFn, config: Config) -> list[MicroOp]:
    """Micro-ops as schedules make them, and as nobody does."""
    depths = [config.depth(memory) for memory in (MemoryId.ACC, MemoryId.INP, MemoryId.WGT)]
    room = min(MAX_MICRO_OPS, config.depth(MemoryId.UOP))
    if draw(st.booleans()):
        fields = [st.integers(0, min(depth - 1, 40)) for depth in depths]
        return draw(st.lists(st.builds(MicroOp, *fields), min_size=1, max_size=min(room, 12)))
    turns = [draw(st.integers(1, 20)), draw(st.integers(1, 5))]
    steps = [[draw(st.sampled_from((0, 1, 1, 2, 7, -1))) for _ in depths] for _ in turns]
    first = [draw(st.integers(0, 20)) for _ in depths]
    found = []
    for outer in range(turns[1]):
        for inner in range(turns[0]):
            places = (
                (start + inner * steps[0][at] + outer * steps[1][at]) % depths[at]
                for at, start in enumerate(first)
            )
            found.append(MicroOp(*places))
    return found[:room]


@st.composite
def kernels(draw: st.DrawFn) -> tuple[Gemm | Alu, list[MicroOp]]:
    """A GEMM or ALU instruction of the default core that stays in its buffers, and its micro-ops:
    two loops unrolled, in which now and then one micro-op differs."""
    small = st.sampled_from((0, 0, 1, 1, 2, 3))
    turns = draw(st.sampled_from((1, 2, 3, 7, 8, 9, 14, 15, 17, 30))), draw(st.integers(1, 4))
    steps = [[draw(small) for _ in range(3)] for _ in turns]
    step_inp = draw(st.sampled_from((1, 1, 2, 0, -1, 16)))
    first_inp = draw(st.sampled_from((480, 60, 500)))
    shared = draw(st.booleans())  # the weights, by all positions
    micro_ops = [
        MicroOp(
            inner * steps[0][0] + outer * steps[1][0],
            first_inp + inner * step_inp + outer * steps[1][1],
            inner * steps[0][2] * (not shared) + outer * steps[1][2],
        )
        for outer in range(turns[1])
        for inner in range(turns[0])
    ]
    if draw(st.booleans()):
        micro_ops = [one for at in range(turns[0]) for one in micro_ops[at :: turns[0]]]
    if draw(st.integers(0, 3)) == 0:
        place = draw(st.integers(0, len(micro_ops) - 1))
        micro_ops[place] = MicroOp(*(draw(st.integers(0, 40)) for _ in range(3)))
    factors = st.sampled_from((0, 0, 1, 2, 5, 14, 30))
    fields: dict[str, Any] = {
        "uop_end": len(micro_ops),
        "iter_out": draw(st.integers(1, 5)),
        "iter_in": draw(st.sampled_from((1, 1, 2, 3, 15))),
        "dst_factor_out": draw(factors),
        "dst_factor_in": draw(factors),
        "src_factor_out": draw(factors),
        "src_factor_in": draw(factors),
    }
    if draw(st.integers(0, 2)) == 0:
        opcode, imm = draw(st.sampled_from(AluOpcode)), draw(st.integers(-40, 40))
        alu = Alu(**fields, alu_opcode=opcode, use_imm=draw(st.booleans()), imm=imm)
        return alu, micro_ops
    gemm = Gemm(
        **fields,
        reset=draw(st.integers(0, 5)) == 0,
        wgt_factor_out=draw(factors),
        wgt_factor_in=draw(factors),
    )
    return gemm, micro_ops


def _factor(depth: int) -> st.SearchStrategy[int]:
    return st.sampled_from(
        [value for value in (0, 0, 1, 1, 2, 3, 5, 14, 16, depth - 1) if value < depth]
    )


@st.composite
def loops(draw: st.DrawFn, config: Config, count: int) -> Instruction:
    """A GEMM or ALU instruction over some of `count` micro-ops."""
    acc, inp, wgt = (config.depth(m) for m in (MemoryId.ACC, MemoryId.INP, MemoryId.WGT))
    bounds = (0, count)
    if draw(st.integers(0, 3)) == 0:
        bounds = draw(st.tuples(near(count - 1), near(count)))
    turns = st.integers(0, 5) | st.sampled_from((1, 1, 2, 16, 300))
    shared: dict[str, Any] = {
        "uop_bgn": bounds[0],
        "uop_end": bounds[1],
        "iter_out": draw(turns),
        "iter_in": draw(turns),
        "dst_factor_out": draw(_factor(acc)),
        "dst_factor_in": draw(_factor(acc)),
        "src_factor_out": draw(_factor(inp)),
        "src_factor_in": draw(_factor(inp)),
    }
    if draw(st.booleans()):
        return Gemm(
            **shared,
            reset=draw(st.integers(0, 5)) == 0,
            wgt_factor_out=draw(_factor(wgt)),
            wgt_factor_in=draw(_factor(wgt)),
        )
    return Alu(
        **shared,
        alu_opcode=draw(st.sampled_from(AluOpcode)),
        use_imm=draw(st.booleans()),
        imm=draw(st.integers(-40, 40) | st.integers(-(1 << 15), (1 << 15) - 1)),
    )


@st.composite
def transfers(draw: st.DrawFn, config: Config, *, tame: bool) -> Instruction:
    """A LOAD or STORE. A tame one stays in its buffer and in DRAM, others may not."""
    memory = draw(st.sampled_from(MemoryId))
    stored = memory == MemoryId.OUT if tame or draw(st.integers(0, 9)) else draw(st.booleans())
    padded = not stored or not (tame or draw(st.integers(0, 9)))
    pads = [draw(st.sampled_from((0, 0, 0, 1, 2, 15))) if padded else 0 for _ in range(4)]
    y_size = draw(st.integers(0, 4))
    x_size = draw(st.integers(0, 6) | st.just(20))
    x_stride = draw(st.integers(0, 8) | st.sampled_from((x_size, x_size, 20)))
    depth = config.depth(memory)
    element = config.element_bytes(memory)
    first, end = -(-BASE // element), (BASE + config.alignment * DRAM_ELEMENTS) // element
    if tame:
        height = max(depth // (x_size + pads[2] + pads[3] or 1), 0)
        y_size = min(y_size, max(height - pads[0] - pads[1], 0))
        used = (x_size + pads[2] + pads[3]) * (y_size + pads[0] + pads[1])
        reached = max(y_size - 1, 0) * x_stride + x_size
        if used > depth or reached > end - first:
            x_size = 0
        sram_base = draw(near(max(depth - used, 0)))
        dram_base = first + draw(near(max(end - first - reached, 0)))
    else:
        sram_base = draw(near(depth))
        dram_base = draw(near(end - first).map(lambda place: first + place) | st.just(0))
    return (Store if stored else Load)(
        memory_type=memory,
        sram_base=min(sram_base, 0xFFFF),
        dram_base=dram_base,
        y_size=y_size,
        x_size=x_size,
        x_stride=x_stride,
        y_pad_0=pads[0],
        y_pad_1=pads[1],
        x_pad_0=pads[2],
        x_pad_1=pads[3],
    )


TOKENS = {
    (Stage.LOAD, Stage.COMPUTE): (Dependencies.PUSH_NEXT, Dependencies.POP_PREV),
    (Stage.COMPUTE, Stage.LOAD): (Dependencies.PUSH_PREV, Dependencies.POP_NEXT),
    (Stage.COMPUTE, Stage.STORE): (Dependencies.PUSH_NEXT, Dependencies.POP_PREV),
    (Stage.STORE, Stage.COMPUTE): (Dependencies.PUSH_PREV, Dependencies.POP_NEXT),
}
"""The bits of giver and taker."""


@st.composite
def streams(draw: st.DrawFn, config: Config, count: int) -> list[Instruction]:
    """A stream over `count` micro-ops, most often with tokens that can be had."""
    tame = draw(st.booleans())
    kinds = transfers(config, tame=tame) | loops(config, count)
    stream: list[Instruction] = draw(st.lists(kinds, min_size=1, max_size=7))
    stream.append(Finish())
    last = len(stream) - 1
    for giver, taker in draw(st.lists(st.tuples(st.integers(0, last), st.integers(0, last)))):
        found = TOKENS.get((stream[giver].stage, stream[taker].stage))
        if giver < taker and found is not None:
            for place, bit in zip((giver, taker), found, strict=True):
                given = stream[place].dependencies | bit
                stream[place] = replace(stream[place], dependencies=given)
    if not tame and draw(st.integers(0, 4)) == 0:
        place, bits = draw(st.integers(0, last)), draw(st.integers(0, 15))
        stream[place] = replace(stream[place], dependencies=Dependencies(bits))
    if not tame and draw(st.integers(0, 9)) == 0:
        stream.pop()
    return stream

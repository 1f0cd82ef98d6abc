"""Streams that are refused, and what a hostile one cannot do."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.isa import (
    Alu,
    AluOpcode,
    Dependencies,
    Finish,
    Gemm,
    Instruction,
    Load,
    MicroOp,
    Store,
)
from potash_device.vta.simulator import Simulator
from potash_device.vta.stream import StreamError
from support.vta import TINY, Bench, compute

POP_PREV, POP_NEXT = Dependencies.POP_PREV, Dependencies.POP_NEXT
PUSH_PREV, PUSH_NEXT = Dependencies.PUSH_PREV, Dependencies.PUSH_NEXT


FIRST_INP = 0x1000 // 8
"""Element 0 of DRAM, counted in INP elements."""


class TestRefusedInstructions:
    @pytest.mark.parametrize(
        ("instruction", "reason"),
        [
            (
                Load(
                    memory_type=MemoryId.INP,
                    sram_base=15,
                    dram_base=FIRST_INP,
                    y_size=1,
                    x_size=2,
                    x_stride=2,
                ),
                "element 16 is past the 16 of INP",
            ),
            (
                Load(
                    memory_type=MemoryId.INP,
                    dram_base=FIRST_INP,
                    y_size=3,
                    x_size=2,
                    x_stride=2,
                    x_pad_0=2,
                    x_pad_1=2,
                ),
                "element 17 is past the 16 of INP",
            ),
            (
                Load(
                    memory_type=MemoryId.INP,
                    dram_base=FIRST_INP,
                    y_size=1,
                    x_size=1,
                    x_stride=1,
                    y_pad_0=8,
                    y_pad_1=8,
                ),
                "element 16 is past the 16 of INP",
            ),
            (Load(memory_type=MemoryId.WGT, sram_base=16, x_size=1), None),
            (
                Load(memory_type=MemoryId.WGT, sram_base=17, x_size=1),
                "element 16 is past the 16 of WGT",
            ),
            (
                Load(memory_type=MemoryId.UOP, sram_base=8, dram_base=0x400, y_size=1, x_size=1),
                "element 8 is past the 8 of UOP",
            ),
            (
                Load(memory_type=MemoryId.INP, dram_base=FIRST_INP - 1, y_size=1, x_size=1),
                "0xff8 to 0xfff are not in DRAM",
            ),
            (Load(memory_type=MemoryId.INP, y_size=1, x_size=1), "0x0 to 0x7 are not in DRAM"),
            (
                Load(memory_type=MemoryId.INP, dram_base=FIRST_INP + 511, y_size=1, x_size=2),
                "0x1ff8 to 0x2007 are not in DRAM",
            ),
            (
                Load(
                    memory_type=MemoryId.INP, dram_base=FIRST_INP, y_size=2, x_size=1, x_stride=512
                ),
                "0x1000 to 0x2007 are not in DRAM",
            ),
            (
                Load(memory_type=MemoryId.ACC, dram_base=2**32 - 1, y_size=1, x_size=1),
                "are not in DRAM",
            ),
            (
                Load(memory_type=MemoryId.OUT, dram_base=0x100, y_size=1, x_size=1),
                "LOAD cannot write OUT",
            ),
            (
                Store(memory_type=MemoryId.ACC, dram_base=0x40, y_size=1, x_size=1),
                "STORE cannot read ACC",
            ),
            (
                Store(memory_type=MemoryId.OUT, dram_base=0x100, y_size=1, x_size=1, x_pad_0=1),
                "STORE cannot pad",
            ),
            (
                Store(memory_type=MemoryId.OUT, sram_base=10, dram_base=0x100, y_size=7, x_size=1),
                "element 16 is past the 16 of OUT",
            ),
            (
                Store(memory_type=MemoryId.OUT, dram_base=0x200, y_size=1, x_size=1),
                "0x2000 to 0x200f are not in DRAM",
            ),
            (Gemm(uop_bgn=1, uop_end=0), "uop_bgn is above uop_end"),
            (Gemm(uop_bgn=0, uop_end=9), "uop_end 9 is past the 8 micro-ops"),
            (Alu(alu_opcode=AluOpcode.ADD, uop_end=8, iter_out=1 << 13), None),
            (
                Alu(alu_opcode=AluOpcode.ADD, uop_end=8, iter_out=(1 << 13) + 1),
                "more than 65536 micro-ops",
            ),
            (Gemm(uop_end=1, iter_in=2, dst_factor_in=11), "dst index 16 is past the 16"),
            (Gemm(uop_end=1, iter_in=2, src_factor_in=11), "src index 16 is past the 16"),
            (Gemm(uop_end=1, iter_out=2, wgt_factor_out=11), "wgt index 16 is past the 16"),
            (
                Alu(alu_opcode=AluOpcode.MIN, uop_end=1, iter_out=2, dst_factor_out=11),
                "dst index 16 is past the 16 elements of ACC",
            ),
            (
                Alu(alu_opcode=AluOpcode.MIN, uop_end=1, iter_out=2, src_factor_out=11),
                "src index 16 is past the 16 elements of ACC",
            ),
        ],
    )
    def test_reason(self, instruction: Instruction, reason: str | None) -> None:
        bench = Bench(step_limit=1 << 16)
        bench.set_micro_ops([MicroOp(5, 5, 5)])
        bench.simulator.acc[:] = 3
        stream = [compute(), instruction, Finish()]
        if reason is None:
            bench.run(*stream, finish=False)
            return
        before = bytes(bench.dram[: -16 * len(stream)])
        with pytest.raises(StreamError, match=reason) as caught:
            bench.run(*stream, finish=False)
        assert caught.value.index == 1
        assert (bench.simulator.acc == 3).all()
        assert bytes(bench.dram[: -16 * len(stream)]) == before
        assert bench.guards_intact

    def test_the_last_element_lies_in_dram_to_its_last_byte(self) -> None:
        last = Store(memory_type=MemoryId.OUT, dram_base=0x1FF, y_size=1, x_size=1)
        beyond = Store(memory_type=MemoryId.OUT, dram_base=0x200, y_size=1, x_size=1)
        bench = Bench(size=4096 + 15)
        bench.run(last)
        with pytest.raises(StreamError, match="0x2000 to 0x200f are not in DRAM"):
            bench.run(beyond)
        assert bench.guards_intact

    def test_an_undecodable_instruction_is_named(self) -> None:
        bench = Bench()
        with pytest.raises(StreamError, match="opcode 7 does not exist") as caught:
            bench.run_bytes(bytes([3]) + bytes(15) + bytes([7]) + bytes(15))
        assert caught.value.index == 1

    @pytest.mark.parametrize(
        ("address", "count"),
        [(0, 1), (0xFF0, 1), (0x1000, 257), (0x1FF0, 2), (0x2000, 1), (0x1000, 2**32 - 1)],
    )
    def test_the_stream_lies_in_dram(self, address: int, count: int) -> None:
        with pytest.raises(StreamError, match="is not in DRAM"):
            Bench().simulator.run(address, count)

    def test_the_stream_is_aligned(self) -> None:
        with pytest.raises(StreamError, match="0x1008 is not 16-byte aligned"):
            Bench().simulator.run(0x1008, 1)


numbers = st.integers
few = st.sampled_from([0, 0, 0, 1])
rarely_dependent = st.sampled_from(
    [Dependencies.NONE] * 12 + [PUSH_PREV, PUSH_NEXT, POP_PREV, POP_NEXT]
)


@st.composite
def wild_memory_instructions(draw: st.DrawFn) -> Instruction:
    """A load or a store at, or a little outside of, both of the memories it names."""
    storing = draw(st.booleans())
    memory = MemoryId.OUT if storing else draw(st.sampled_from(MemoryId))
    element = TINY.element_bytes(memory)
    inside = numbers(0x1000 // element, 0x2000 // element - 1)
    edges = numbers(0x1000 // element - 2, 0x2000 // element + 1)
    fields: dict[str, Any] = {
        "memory_type": memory,
        "sram_base": draw(numbers(0, TINY.depth(memory))),
        "dram_base": draw(inside | edges | numbers(0, 2**32 - 1)),
        "y_size": draw(numbers(0, 3)),
        "x_size": draw(numbers(0, 3)),
        "x_stride": draw(numbers(0, 4) | numbers(0, 65535)),
        "dependencies": draw(rarely_dependent),
    }
    if storing:
        return Store(**fields)
    pads: dict[str, Any] = {f"{axis}_pad_{side}": draw(few) for axis in "xy" for side in "01"}
    return Load(**fields, **pads)


loop_fields = {
    "uop_bgn": numbers(0, 2),
    "uop_end": numbers(2, 8) | numbers(0, 9),
    "iter_out": numbers(0, 3) | numbers(0, 2**14 - 1),
    "iter_in": numbers(0, 3),
    "dst_factor_out": numbers(0, 2),
    "dst_factor_in": numbers(0, 2) | numbers(0, 15),
    "src_factor_out": numbers(0, 2),
    "src_factor_in": numbers(0, 2),
    "dependencies": rarely_dependent,
}
wild_instructions = st.one_of(
    wild_memory_instructions(),
    st.builds(Gemm, reset=st.booleans(), wgt_factor_out=numbers(0, 2), **loop_fields),
    st.builds(
        Alu,
        alu_opcode=st.sampled_from(AluOpcode),
        use_imm=st.booleans(),
        imm=numbers(-32768, 32767),
        **loop_fields,
    ),
)


def attempt(bench: Bench, stream: bytes) -> bool:
    """Whether the stream ran; any other end than that or a StreamError fails the test."""
    try:
        bench.run_bytes(stream)
    except StreamError as error:
        assert error.index in range(max(1, len(stream) // 16))
        assert error.reason
        return False
    finally:
        assert bench.guards_intact
    return True


class TestHostileStreams:
    @given(st.binary(max_size=16 * 8).map(lambda b: b[: len(b) // 16 * 16]))
    def test_random_bytes(self, stream: bytes) -> None:
        attempt(Bench(step_limit=1000), stream)

    @given(
        st.lists(wild_instructions, max_size=8),
        st.binary(min_size=64, max_size=64),
        numbers(0, 2**32 - 1),
    )
    def test_random_instructions(
        self, instructions: list[Instruction], micro_ops: bytes, seed: int
    ) -> None:
        bench = Bench(step_limit=1000)
        noise = np.random.default_rng(seed).integers(0, 256, 2048, dtype=np.uint8)
        bench.put(0, noise)
        bench.simulator.uop[:] = np.frombuffer(micro_ops, "<u4")[:8] & 0x000003FF
        words = [i.encode(TINY).to_bytes(16, "little") for i in [*instructions, Finish()]]
        attempt(bench, b"".join(words))

    def test_a_stream_that_overwrites_itself_has_been_fetched_before(self) -> None:
        bench = Bench()
        everything = Store(
            memory_type=MemoryId.OUT,
            dram_base=bench.element(MemoryId.OUT, 4096 - 256),
            y_size=1,
            x_size=16,
            x_stride=16,
            dependencies=PUSH_PREV,
        )
        bench.simulator.acc[:] = -1
        bench.run(everything, compute(POP_NEXT), everything)
        assert bytes(bench.dram[-256:]) == b"\xff" * 256


def test_a_dram_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(ValueError, match="writable"):
        Simulator(Config.default(), memoryview(bytes(4096)))
    with pytest.raises(ValueError, match="cannot begin at -4096"):
        Simulator(Config.default(), memoryview(bytearray(4096)), -0x1000)

"""The encoding, against integers written down from the bit table of docs/vta.md."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.encoding import InstructionError
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
    decode,
    encode_stream,
)
from support.vta import CONFIGS, HALF

DEFAULT = Config.default()
KNOWN: list[tuple[Instruction, int]] = [
    (Finish(), 0x3),
    (
        Finish(
            dependencies=Dependencies.POP_PREV
            | Dependencies.POP_NEXT
            | Dependencies.PUSH_PREV
            | Dependencies.PUSH_NEXT
        ),
        0x7B,
    ),
    (
        Load(
            memory_type=MemoryId.INP,
            sram_base=5,
            dram_base=0x120,
            y_size=3,
            x_size=4,
            x_stride=0x10,
            y_pad_0=1,
            y_pad_1=2,
            x_pad_0=3,
            x_pad_1=4,
            dependencies=Dependencies.POP_NEXT | Dependencies.PUSH_NEXT,
        ),
        0x4321_0010_0004_0003_0000_0004_8000_1550,
    ),
    (
        Store(
            memory_type=MemoryId.OUT,
            sram_base=0x7FF,
            dram_base=1,
            y_size=1,
            x_size=0x80,
            x_stride=0x80,
            dependencies=Dependencies.POP_PREV | Dependencies.PUSH_PREV,
        ),
        0x0000_0080_0080_0001_0000_0000_041F_FE29,
    ),
    (
        Gemm(
            reset=True,
            uop_bgn=3,
            uop_end=5,
            iter_out=7,
            iter_in=9,
            dst_factor_out=1,
            dst_factor_in=2,
            src_factor_out=3,
            src_factor_in=4,
            wgt_factor_out=5,
            wgt_factor_in=6,
            dependencies=Dependencies.POP_PREV | Dependencies.PUSH_NEXT,
        ),
        0x0180_5008_00C0_1001_0012_0038_00A0_03CA,
    ),
    (
        Alu(
            alu_opcode=AluOpcode.SHR,
            use_imm=True,
            imm=-19,
            uop_end=1,
            iter_in=256,
            dst_factor_in=1,
            src_factor_in=1,
        ),
        0xFFED_B002_0000_0800_0200_0008_0020_0004,
    ),
]


@pytest.mark.parametrize(("instruction", "word"), KNOWN, ids=lambda v: type(v).__name__)
def test_default_layout(instruction: Instruction, word: int) -> None:
    assert instruction.encode(DEFAULT) == word
    assert decode(word, DEFAULT) == instruction


def test_a_stream_is_little_endian() -> None:
    stream = encode_stream([KNOWN[3][0], Finish()], DEFAULT)
    assert stream == bytes.fromhex("29fe1f0400000000010080008000000003") + bytes(15)


def test_micro_op_of_the_default_layout() -> None:
    assert MicroOp(dst=5, src=6, wgt=7).encode(DEFAULT) == 0x01C0_3005
    assert MicroOp.decode(0x01C0_3005, DEFAULT) == (5, 6, 7)
    assert MicroOp(dst=2047, src=2047, wgt=1023).encode(DEFAULT) == 0xFFFF_FFFF


def test_widths_and_positions_follow_the_buffers() -> None:
    gemm = Gemm(
        uop_bgn=1,
        uop_end=1,
        iter_out=1,
        iter_in=1,
        dst_factor_out=1,
        dst_factor_in=1,
        src_factor_out=1,
        src_factor_in=1,
        wgt_factor_out=1,
        wgt_factor_in=1,
    )
    assert gemm.encode(HALF) == 0x0002_0100_4010_0401_0000_8002_0010_0102
    assert MicroOp(1, 1, 1).encode(HALF) == 0x0010_0401
    with pytest.raises(InstructionError, match="dst is 1024"):
        MicroOp(1024).encode(HALF)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (0x5, "opcode 5"),
        (0x6, "opcode 6"),
        (0x7, "opcode 7"),
        (0x0 | 6 << 7, "memory type 6"),
        (0x1 | 7 << 7, "memory type 7"),
        (0x4 | 5 << 108, "ALU opcode 5"),
        (0x4 | 1 << 7, "reserved bit 7"),
        (0x0 | 1 << 58, "reserved bit 58"),
        (0x2 | 1 << 63, "reserved bit 63"),
        (0x3 | 1 << 7, "reserved bit 7"),
        (0x3 | 1 << 127, "reserved bit 127"),
    ],
)
def test_what_the_encoding_does_not_have_is_refused(word: int, reason: str) -> None:
    with pytest.raises(InstructionError, match=reason):
        decode(word, DEFAULT)


@pytest.mark.parametrize(
    "instruction",
    [
        Load(memory_type=MemoryId.INP, x_size=65536),
        Load(memory_type=MemoryId.INP, x_pad_0=16),
        Load(memory_type=MemoryId.INP, dram_base=-1),
        Store(memory_type=MemoryId.OUT, dram_base=1 << 32),
        Gemm(uop_bgn=8192),
        Gemm(iter_out=1 << 14),
        Gemm(wgt_factor_in=1024),
        Alu(alu_opcode=AluOpcode.ADD, imm=32768),
        Alu(alu_opcode=AluOpcode.ADD, imm=-32769),
    ],
)
def test_a_value_that_does_not_fit_is_refused(instruction: Instruction) -> None:
    with pytest.raises(InstructionError, match="outside"):
        instruction.encode(DEFAULT)


def test_the_module_that_executes_an_instruction() -> None:
    stages = {memory: Load(memory_type=memory).stage for memory in MemoryId}
    assert stages == {
        MemoryId.INP: Stage.LOAD,
        MemoryId.WGT: Stage.LOAD,
        MemoryId.UOP: Stage.COMPUTE,
        MemoryId.ACC: Stage.COMPUTE,
        MemoryId.ACC_8BIT: Stage.COMPUTE,
        MemoryId.OUT: Stage.COMPUTE,
    }
    assert Store(memory_type=MemoryId.UOP).stage is Stage.STORE
    assert {Gemm().stage, Alu(alu_opcode=AluOpcode.MIN).stage, Finish().stage} == {Stage.COMPUTE}


@given(st.integers(0, 2**128 - 1), st.sampled_from(CONFIGS))
def test_any_word_is_refused_or_comes_back(word: int, config: Config) -> None:
    try:
        instruction = decode(word, config)
    except InstructionError:
        return
    assert instruction.encode(config) == word


def numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


MEMORY_FIELDS = {
    "memory_type": st.sampled_from(MemoryId),
    "sram_base": numbers(16),
    "dram_base": numbers(32),
    "y_size": numbers(16),
    "x_size": numbers(16),
    "x_stride": numbers(16),
    "y_pad_0": numbers(4),
    "y_pad_1": numbers(4),
    "x_pad_0": numbers(4),
    "x_pad_1": numbers(4),
    "dependencies": st.builds(Dependencies, numbers(4)),
}
LOOP_FIELDS = {
    "uop_bgn": numbers(13),
    "uop_end": numbers(14),
    "iter_out": numbers(14),
    "iter_in": numbers(14),
    "dst_factor_out": numbers(11),
    "dst_factor_in": numbers(11),
    "src_factor_out": numbers(11),
    "src_factor_in": numbers(11),
    "dependencies": st.builds(Dependencies, numbers(4)),
}
INSTRUCTIONS = st.one_of(
    st.builds(Load, **MEMORY_FIELDS),
    st.builds(Store, **MEMORY_FIELDS),
    st.builds(
        Gemm,
        reset=st.booleans(),
        wgt_factor_out=numbers(10),
        wgt_factor_in=numbers(10),
        **LOOP_FIELDS,
    ),
    st.builds(
        Alu,
        alu_opcode=st.sampled_from(AluOpcode),
        use_imm=st.booleans(),
        imm=st.integers(-32768, 32767),
        **LOOP_FIELDS,
    ),
)


@given(INSTRUCTIONS)
def test_every_instruction_comes_back(instruction: Instruction) -> None:
    word = instruction.encode(DEFAULT)
    assert 0 <= word < 1 << 128
    assert decode(word, DEFAULT) == instruction


@given(st.builds(MicroOp, numbers(11), numbers(11), numbers(10)))
def test_every_micro_op_comes_back(micro_op: MicroOp) -> None:
    assert MicroOp.decode(micro_op.encode(DEFAULT), DEFAULT) == micro_op

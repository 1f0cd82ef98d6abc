"""Streams as text: every 128 bits and back, and what a line can be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_device.vta.assembly import AssemblyError, assemble, disassemble, listing, remark
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.isa import Gemm, Load, MicroOp, encode_stream
from support.vta import CONFIGS, TINY

DEFAULT = Config.default()

# The words are those of the encoding's tests, written down from the bit tables of docs/vta.md.
KNOWN = [
    (0x3, "finish"),
    (0x7B, "finish pop_prev pop_next push_prev push_next"),
    (
        0x4321_0010_0004_0003_0000_0004_8000_1550,
        (
            "load inp sram_base=0x5 dram_base=0x120 y_size=3 x_size=4 x_stride=16 "
            "y_pad_0=1 y_pad_1=2 x_pad_0=3 x_pad_1=4 pop_next push_next"
        ),
    ),
    (
        0x0000_0080_0080_0001_0000_0000_041F_FE29,
        (
            "store out sram_base=0x7ff dram_base=0x1 y_size=1 x_size=128 x_stride=128 "
            "pop_prev push_prev"
        ),
    ),
    (
        0x0180_5008_00C0_1001_0012_0038_00A0_03CA,
        (
            "gemm reset uop_bgn=3 uop_end=5 iter_out=7 iter_in=9 dst_factor_out=1 dst_factor_in=2 "
            "src_factor_out=3 src_factor_in=4 wgt_factor_out=5 wgt_factor_in=6 pop_prev push_next"
        ),
    ),
    (
        0xFFED_B002_0000_0800_0200_0008_0020_0004,
        "alu shr uop_end=1 iter_out=1 iter_in=256 dst_factor_in=1 src_factor_in=1 use_imm imm=-19",
    ),
    # What no core executes: opcode 5, memory type 6, ALU operation 7, reserved bits.
    (0x5 | 1 << 100, "word 0x00000010000000000000000000000005"),
    (0x0 | 6 << 7, "load memory_type=6"),
    (0x4 | 7 << 108, "alu alu_opcode=7"),
    (0x4 | 1 << 7, "alu min reserved=0x80"),
    (0x3 | 1 << 127, f"finish reserved={1 << 127:#x}"),
    (0x1 | 4 << 7 | 1 << 58 | 1 << 5, f"store out reserved={1 << 58:#x} push_prev"),
]


@pytest.mark.parametrize(("word", "text"), KNOWN)
def test_the_text_of_a_word(word: int, text: str) -> None:
    assert disassemble(word, DEFAULT) == text
    assert assemble([text], DEFAULT) == word.to_bytes(16, "little")


opcodes = st.integers(0, 7)
few_bits = st.sets(st.integers(3, 127), max_size=6).map(lambda bits: sum(1 << b for b in bits))


@given(
    st.integers(0, 2**128 - 1) | st.builds(lambda o, b: o | b, opcodes, few_bits),
    st.sampled_from(CONFIGS),
)
def test_any_128_bits_come_back(word: int, config: Config) -> None:
    text = disassemble(word, config)
    assert assemble([text], config) == word.to_bytes(16, "little")
    assert "\n" not in text


@given(st.lists(st.integers(0, 2**128 - 1), max_size=5), st.sampled_from(CONFIGS))
def test_a_listing_is_assembled_to_its_stream(words: list[int], config: Config) -> None:
    stream = b"".join(word.to_bytes(16, "little") for word in words)
    dram = memoryview(bytearray(range(256)))
    assert assemble(listing(stream, config, dram=dram, base=0x1000), config) == stream


def test_a_line_may_be_written_freely() -> None:
    text = """
    # nothing here

       7:   LOAD  ACC_8BIT X_SIZE=0x10 push_next  y_size=0b1 pop_prev # 12 x_pad_0=3
    finish"""
    expected = 5 << 7 | 1 << 3 | 1 << 6 | 0x10 << 80 | 1 << 64, 3
    assert assemble(text.splitlines(), DEFAULT) == b"".join(
        word.to_bytes(16, "little") for word in expected
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("jump", "'jump' is no instruction; there is load, store, gemm, finish, alu, word"),
        ("1:2: finish", "'1:2:' is no instruction"),
        ("load", "load needs one of uop, wgt, inp, acc, out, acc_8bit"),
        ("load x_size=1", "load needs one of"),
        ("alu uop_end=1", "alu needs one of min, max, add, shr, mul"),
        ("alu inp", "'inp' is nothing that the alu encoding has"),
        ("gemm imm=1", "'imm=1' is nothing that the gemm encoding has"),
        ("gemm use_imm", "'use_imm' is nothing that the gemm encoding has"),
        ("load inp x_size", "'x_size' is nothing that the memory encoding has"),
        ("finish opcode=2", "'opcode=2' is nothing"),
        ("finish dependencies=2", "'dependencies=2' is nothing"),
        ("finish pop_prev=1", "'pop_prev=1' is nothing"),
        ("gemm uop_end=1 uop_end=1", "uop_end is there twice"),
        ("load inp wgt", "memory_type is there twice"),
        ("load inp memory_type=1", "memory_type is there twice"),
        ("finish reserved=128 reserved=128", "reserved is there twice"),
        ("gemm uop_end=", "'' is no number"),
        ("gemm uop_end=1.5", "'1.5' is no number"),
        ("gemm uop_end=ten", "'ten' is no number"),
        ("gemm uop_end=16384", "gemm: uop_end is 16384, outside 0 to 16383"),
        ("gemm uop_bgn=-1", "gemm: uop_bgn is -1, outside 0 to 8191"),
        ("alu add imm=32768", "alu: imm is 32768, outside -32768 to 32767"),
        ("load memory_type=8", "memory: memory_type is 8, outside 0 to 7"),
        ("finish reserved=8", "reserved=0x8 has bits that are not reserved in finish"),
        (f"finish reserved={1 << 128}", "has bits that are not reserved"),
        ("finish reserved=-1", "has bits that are not reserved"),
        ("word", "word needs one number"),
        ("word 1 2", "word needs one number"),
        ("word -1", "'-1' does not fit into 128 bits"),
        (f"word {1 << 128}", "does not fit into 128 bits"),
        ("x" * 10_000, f"'{'x' * 40}…' is no instruction"),
        (f"word {'9' * 10_000}", f"'{'9' * 40}…' is no number"),
    ],
)
def test_a_line_that_is_no_instruction_is_named(line: str, reason: str) -> None:
    with pytest.raises(AssemblyError) as caught:
        assemble(["finish", "", line, "jump"], DEFAULT)
    assert caught.value.line == 3
    assert reason in caught.value.reason
    assert str(caught.value) == f"line 3: {caught.value.reason}"
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("line", "said"),
    [
        # 16-byte elements of INP from 0x120 on: the last row begins 2 * 16 elements further
        ("load inp dram_base=0x120 y_size=3 x_size=4 x_stride=16", "LOAD: 0x1200 to 0x143f"),
        ("load acc dram_base=0x40 y_size=1 x_size=1", "COMPUTE: 0x1000 to 0x103f"),
        ("store out dram_base=0x100 y_size=1 x_size=2", "STORE: 0x1000 to 0x101f"),
        ("load wgt y_size=9", "LOAD: moves nothing"),
        ("load acc x_size=9 y_pad_0=1", "COMPUTE: zeroes"),
        ("gemm uop_bgn=2 uop_end=5 iter_out=7 iter_in=2", "COMPUTE: 42 micro-ops"),
        ("finish", "COMPUTE"),
        ("load memory_type=7", "memory type 7 does not exist"),
        ("alu min reserved=0x80", "alu: reserved bit 7 is set"),
        ("word 7", "opcode 7 does not exist"),
    ],
)
def test_the_remark_says_what_the_text_does_not(line: str, said: str) -> None:
    word = int.from_bytes(assemble([line], DEFAULT), "little")
    assert remark(word, DEFAULT) == said


class TestListing:
    def test_micro_ops_stand_below_their_load(self) -> None:
        dram = bytearray(64)
        dram[8:12] = (5 | 6 << 11 | 7 << 22).to_bytes(4, "little")
        dram[16:20] = (2047 | 1 << 11).to_bytes(4, "little")
        load = Load(
            memory_type=MemoryId.UOP,
            sram_base=3,
            dram_base=(0x1000 + 8) // 4,
            y_size=2,
            x_size=1,
            x_stride=2,
            x_pad_0=1,
        )
        stream = encode_stream([load, Gemm(uop_end=1)], DEFAULT)
        lines = list(listing(stream, DEFAULT, dram=memoryview(dram), base=0x1000))
        assert [line.strip() for line in lines[1:3]] == [
            "#       4: dst=5 src=6 wgt=7",
            "#       6: dst=2047 src=1 wgt=0",
        ]
        assert lines[3].startswith("     1: gemm uop_end=1 iter_out=1 iter_in=1")
        assert len(list(listing(stream, DEFAULT))) == 2

    def test_a_micro_op_with_a_reserved_bit_is_shown_as_it_is(self) -> None:
        # TINY's indices have four bits each, so bit 12 is none's.
        dram = memoryview(bytearray((MicroOp(1).encode(TINY) | 1 << 12).to_bytes(4, "little")))
        load = Load(memory_type=MemoryId.UOP, dram_base=0x400, y_size=1, x_size=1)
        lines = list(listing(encode_stream([load], TINY), TINY, dram=dram, base=0x1000))
        assert lines[1].endswith("0x00001001, micro_op: reserved bit 12 is set")

    @pytest.mark.parametrize(
        "line",
        [
            "load uop x_size=65535 y_size=65535 dram_base=0x400",
            "load uop x_size=1 y_size=1 dram_base=0x3ff",
            "load uop x_size=1 y_size=1 dram_base=0x500",
            "load inp x_size=1 y_size=1 dram_base=0x100",
        ],
    )
    def test_what_cannot_be_loaded_is_not_shown(self, line: str) -> None:
        dram = memoryview(bytearray(1024))
        assert len(list(listing(assemble([line], DEFAULT), DEFAULT, dram=dram, base=0x1000))) == 1

    def test_a_stream_has_whole_instructions(self) -> None:
        with pytest.raises(ValueError, match="17 bytes are no whole number of instructions"):
            list(listing(bytes(17), DEFAULT))

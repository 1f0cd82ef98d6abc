"""GEMM and ALU, against Python integers and numpy's 64-bit ones."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_device.vta.config import Config
from potash_device.vta.isa import Alu, AluOpcode, Gemm, MicroOp
from support.vta import TINY, Bench, acc_pattern, wrapped


@pytest.fixture
def bench() -> Bench:
    return Bench()


def gemm_reference(bench: Bench, gemm: Gemm, micro_ops: Sequence[MicroOp]) -> list[list[list[int]]]:
    """The pseudo-code of the platform's document, on Python integers."""
    acc: list[list[list[int]]] = bench.simulator.acc.tolist()
    inp, wgt = bench.simulator.inp.tolist(), bench.simulator.wgt.tolist()
    for e0 in range(gemm.iter_out):
        for e1 in range(gemm.iter_in):
            for micro_op in micro_ops[gemm.uop_bgn : gemm.uop_end]:
                d = micro_op.dst + e0 * gemm.dst_factor_out + e1 * gemm.dst_factor_in
                s = micro_op.src + e0 * gemm.src_factor_out + e1 * gemm.src_factor_in
                w = micro_op.wgt + e0 * gemm.wgt_factor_out + e1 * gemm.wgt_factor_in
                for b in range(len(acc[d])):
                    for o in range(len(acc[d][b])):
                        total = sum(x * y for x, y in zip(inp[s][b], wgt[w][o], strict=True))
                        acc[d][b][o] = 0 if gemm.reset else wrapped(acc[d][b][o] + total)
    return acc


small = st.integers(0, 3)
micro_op_lists = st.lists(st.builds(MicroOp, small, small, small), min_size=1, max_size=8)


class TestGemm:
    def test_a_matrix_product_of_the_default_core(self) -> None:
        bench = Bench(Config.default(), size=1 << 16)
        random = np.random.default_rng(1)
        left = random.integers(-128, 128, (32, 64), dtype=np.int8)
        right = random.integers(-128, 128, (48, 64), dtype=np.int8)
        bench.simulator.inp[: 32 * 4, 0] = left.reshape(32 * 4, 16)
        blocks = right.reshape(3, 16, 4, 16).transpose(0, 2, 1, 3)
        bench.simulator.wgt[:12] = blocks.reshape(12, 16, 16)
        bench.set_micro_ops([MicroOp(dst=row * 3, src=row * 4) for row in range(32)])
        bench.run(
            Gemm(
                uop_end=32,
                iter_out=3,
                iter_in=4,
                dst_factor_out=1,
                src_factor_in=1,
                wgt_factor_out=4,
                wgt_factor_in=1,
            )
        )
        expected = left.astype(np.int64) @ right.astype(np.int64).T
        np.testing.assert_array_equal(bench.simulator.acc[:96].reshape(32, 48), expected)

    def test_accumulators_wrap_around(self, bench: Bench) -> None:
        bench.simulator.acc[0] = 2**31 - 1
        bench.simulator.acc[1] = -(2**31)
        bench.simulator.inp[0] = 1
        bench.simulator.wgt[0, :, 0] = 1
        bench.simulator.wgt[1, :, 0] = -1
        bench.set_micro_ops([MicroOp(0, 0, 0), MicroOp(1, 0, 1)])
        bench.run(Gemm(uop_end=2))
        assert (bench.simulator.acc[0] == -(2**31)).all()
        assert (bench.simulator.acc[1] == 2**31 - 1).all()

    def test_the_sum_of_products_itself_wraps_around(self) -> None:
        config = Config(log_inp_width=5, log_wgt_width=5, log_inp_buff_size=17)
        bench = Bench(config)
        bench.simulator.inp[0] = 2**31 - 1
        bench.simulator.wgt[0] = 2**31 - 1
        bench.set_micro_ops([MicroOp(0)])
        bench.run(Gemm(uop_end=1))
        assert (bench.simulator.acc[0] == wrapped(16 * (2**31 - 1) ** 2)).all()

    def test_reset_zeroes_what_the_loops_reach_and_reads_nothing(self, bench: Bench) -> None:
        bench.simulator.acc[:] = 9
        bench.set_micro_ops([MicroOp(1, 15, 15)])
        bench.run(Gemm(reset=True, uop_end=1, iter_out=3, dst_factor_out=2, src_factor_out=9))
        assert (bench.simulator.acc == 0).all(axis=(1, 2)).nonzero()[0].tolist() == [1, 3, 5]

    def test_more_steps_than_are_computed_at_a_time(self, bench: Bench) -> None:
        bench.simulator.inp[0] = 1
        bench.simulator.wgt[0] = 1
        bench.set_micro_ops([MicroOp(0), MicroOp(1), MicroOp(0)])
        bench.run(Gemm(uop_end=3, iter_out=50, iter_in=51))
        assert (bench.simulator.acc[0] == 2 * 50 * 51 * 4).all()
        assert (bench.simulator.acc[1] == 50 * 51 * 4).all()

    @pytest.mark.parametrize(
        "gemm", [Gemm(uop_end=1, iter_out=0), Gemm(uop_end=1, iter_in=0), Gemm()]
    )
    def test_no_turn_is_no_operation(self, bench: Bench, gemm: Gemm) -> None:
        bench.simulator.acc[:] = 9
        bench.simulator.inp[:] = 1
        bench.simulator.wgt[:] = 1
        bench.set_micro_ops([MicroOp(15, 15, 15)])
        bench.run(gemm)
        assert (bench.simulator.acc == 9).all()

    @given(
        micro_op_lists,
        st.tuples(*[st.integers(0, 3)] * 2),
        st.tuples(*[st.integers(0, 2)] * 6),
        st.integers(0, 2**32 - 1),
    )
    def test_any_loops_do_as_the_pseudo_code_says(
        self, micro_ops: list[MicroOp], turns: tuple[int, int], factors: tuple[int, ...], seed: int
    ) -> None:
        bench = Bench()
        random = np.random.default_rng(seed)
        bench.simulator.acc[:] = acc_pattern(seed)
        bench.simulator.inp[:] = random.integers(-128, 128, bench.simulator.inp.shape)
        bench.simulator.wgt[:] = random.integers(-128, 128, bench.simulator.wgt.shape)
        bench.set_micro_ops(micro_ops)
        gemm = Gemm(
            uop_end=len(micro_ops),
            iter_out=turns[0],
            iter_in=turns[1],
            dst_factor_out=factors[0],
            dst_factor_in=factors[1],
            src_factor_out=factors[2],
            src_factor_in=factors[3],
            wgt_factor_out=factors[4],
            wgt_factor_in=factors[5],
        )
        expected = gemm_reference(bench, gemm, micro_ops)
        bench.run(gemm)
        assert bench.simulator.acc.tolist() == expected


def shifted(value: int, amount: int) -> int:
    if amount >= 0:
        return value >> (amount % 32)
    return wrapped(value << (-amount % 32))


FORMULAS: Mapping[AluOpcode, Callable[[int, int], int]] = {
    AluOpcode.MIN: min,
    AluOpcode.MAX: max,
    AluOpcode.ADD: lambda a, b: wrapped(a + b),
    AluOpcode.SHR: shifted,
    AluOpcode.MUL: lambda a, b: wrapped(a * b),
}


def alu_reference(bench: Bench, alu: Alu, micro_ops: Sequence[MicroOp]) -> list[list[list[int]]]:
    """The pseudo-code of the platform's document, on Python integers."""
    acc: list[list[list[int]]] = bench.simulator.acc.tolist()
    formula = FORMULAS[alu.alu_opcode]
    for e0 in range(alu.iter_out):
        for e1 in range(alu.iter_in):
            for micro_op in micro_ops[alu.uop_bgn : alu.uop_end]:
                d = micro_op.dst + e0 * alu.dst_factor_out + e1 * alu.dst_factor_in
                s = micro_op.src + e0 * alu.src_factor_out + e1 * alu.src_factor_in
                acc[d] = [
                    [
                        formula(acc[d][b][o], alu.imm if alu.use_imm else acc[s][b][o])
                        for o in range(TINY.block_out)
                    ]
                    for b in range(TINY.batch)
                ]
    return acc


class TestAlu:
    @pytest.mark.parametrize("opcode", AluOpcode)
    def test_immediates(self, bench: Bench, opcode: AluOpcode) -> None:
        for imm in (-32768, -33, -32, -31, -1, 0, 1, 9, 31, 32, 33, 32767):
            bench.simulator.acc[:] = acc_pattern()
            bench.set_micro_ops([MicroOp(0)])
            bench.run(Alu(alu_opcode=opcode, use_imm=True, imm=imm, uop_end=1))
            expected = [FORMULAS[opcode](value, imm) for value in acc_pattern()[0].ravel().tolist()]
            assert bench.simulator.acc[0].ravel().tolist() == expected, imm
            np.testing.assert_array_equal(bench.simulator.acc[1:], acc_pattern()[1:], str(imm))

    def test_shifts_in_figures(self, bench: Bench) -> None:
        amounts = [1, 31, 32, 33, -1, -4, -31, -32, -33, 0, -(2**31), 2**31 - 1]
        values = [-5, -5, -5, -5, 3, 0x10000001, 1, 7, 7, 9, 6, -8]
        bench.simulator.acc[0].ravel()[:12] = values
        bench.simulator.acc[1].ravel()[:12] = amounts
        bench.set_micro_ops([MicroOp(0, 1)])
        bench.run(Alu(alu_opcode=AluOpcode.SHR, uop_end=1))
        shown = bench.simulator.acc[0].ravel()[:12].tolist()
        assert shown == [-3, -1, -5, -3, 6, 0x10, -(2**31), 7, 14, 9, 6, -1]

    def test_multiplication_keeps_the_low_half(self, bench: Bench) -> None:
        bench.simulator.acc[0].ravel()[:4] = [0x10001, -(2**31), 123456789, -7]
        bench.simulator.acc[1].ravel()[:4] = [0x10001, -1, 987654321, 6]
        bench.set_micro_ops([MicroOp(0, 1)])
        bench.run(Alu(alu_opcode=AluOpcode.MUL, uop_end=1))
        expected = [0x20001, -(2**31), wrapped(123456789 * 987654321), -42]
        assert bench.simulator.acc[0].ravel()[:4].tolist() == expected

    def test_micro_ops_see_what_earlier_ones_wrote(self, bench: Bench) -> None:
        bench.simulator.acc[:4, 0, 0] = [1, 10, 100, 1000]
        upwards = [MicroOp(1, 0), MicroOp(2, 1), MicroOp(3, 2)]
        bench.set_micro_ops(upwards)
        bench.run(Alu(alu_opcode=AluOpcode.ADD, uop_end=3))
        assert bench.simulator.acc[:4, 0, 0].tolist() == [1, 11, 111, 1111]

    def test_micro_ops_do_not_see_what_later_ones_write(self, bench: Bench) -> None:
        bench.simulator.acc[:4, 0, 0] = [1, 10, 100, 1000]
        downwards = [MicroOp(3, 2), MicroOp(2, 1), MicroOp(1, 0)]
        bench.set_micro_ops(downwards)
        bench.run(Alu(alu_opcode=AluOpcode.ADD, uop_end=3))
        assert bench.simulator.acc[:4, 0, 0].tolist() == [1, 11, 110, 1100]

    def test_a_repeated_destination_collects(self, bench: Bench) -> None:
        bench.simulator.acc[:4, 0, 0] = [0, 3, -5, 7]
        bench.set_micro_ops([MicroOp(0, 1)])
        bench.run(Alu(alu_opcode=AluOpcode.ADD, uop_end=1, iter_out=3, src_factor_out=1))
        assert bench.simulator.acc[0, 0, 0] == 5

    def test_an_element_may_be_added_to_itself(self, bench: Bench) -> None:
        bench.simulator.acc[2:4, 0, 0] = [21, 2**30]
        bench.set_micro_ops([MicroOp(2, 2), MicroOp(3, 3)])
        bench.run(Alu(alu_opcode=AluOpcode.ADD, uop_end=2))
        assert bench.simulator.acc[2:4, 0, 0].tolist() == [42, -(2**31)]

    def test_an_immediate_leaves_the_source_unread(self, bench: Bench) -> None:
        bench.set_micro_ops([MicroOp(0, 15)])
        bench.run(
            Alu(
                alu_opcode=AluOpcode.ADD,
                use_imm=True,
                imm=4,
                uop_end=1,
                iter_in=2,
                dst_factor_in=1,
                src_factor_in=15,
            )
        )
        assert bench.simulator.acc[:3, 0, 0].tolist() == [4, 4, 0]

    @given(
        st.sampled_from(AluOpcode),
        st.none() | st.integers(-32768, 32767),
        micro_op_lists,
        st.tuples(*[st.integers(0, 3)] * 2),
        st.tuples(*[st.integers(0, 2)] * 4),
        st.integers(0, 2**32 - 1),
    )
    def test_any_loops_do_as_the_pseudo_code_says(
        self,
        opcode: AluOpcode,
        imm: int | None,
        micro_ops: list[MicroOp],
        turns: tuple[int, int],
        factors: tuple[int, ...],
        seed: int,
    ) -> None:
        bench = Bench()
        bench.simulator.acc[:] = acc_pattern(seed)
        bench.set_micro_ops(micro_ops)
        alu = Alu(
            alu_opcode=opcode,
            use_imm=imm is not None,
            imm=imm or 0,
            uop_end=len(micro_ops),
            iter_out=turns[0],
            iter_in=turns[1],
            dst_factor_out=factors[0],
            dst_factor_in=factors[1],
            src_factor_out=factors[2],
            src_factor_in=factors[3],
        )
        expected = alu_reference(bench, alu, micro_ops)
        bench.run(alu)
        assert bench.simulator.acc.tolist() == expected

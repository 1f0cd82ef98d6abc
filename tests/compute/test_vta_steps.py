"""What the fast engine keeps of a stream: steps that work on the same accumulators, and zeroes that
need not be written."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.fast import steps
from potash_device.vta.fast.paths import available
from potash_device.vta.isa import Alu, AluOpcode, Gemm, Instruction, Load, MicroOp, Store
from potash_device.vta.stream import Order
from support.vta import BASE, CONFIGS
from support.vta_engines import Pair, finished, kernels

DEFAULT = Config.default()
SIZE = 150
"""Elements of a plane: more than two pieces."""
PLACES = st.sampled_from((0, SIZE, 2 * SIZE, 2 * SIZE, 1, SIZE - 1, SIZE // 2, 3 * SIZE + 7))
MICRO_OPS = [MicroOp(0), MicroOp(0, 600), *(MicroOp(x, 600 + x // 50) for x in range(SIZE))]
"""One for each loop, and a plane of which each third has its own operand."""


@st.composite
def operations(draw: st.DrawFn) -> Alu:
    """An operation on a plane, or on most of it, with a number, elements or another plane."""
    opcode, target = draw(st.sampled_from(AluOpcode)), draw(PLACES)
    fields: dict[str, Any] = {"alu_opcode": opcode, "iter_out": 2, "dst_factor_out": target}
    # The first iteration of the outer loop is the plane at 0, the second one at the target.
    kind = draw(st.integers(0, 4))
    if kind < 2:
        count = draw(st.sampled_from((SIZE, SIZE, SIZE - 1)))
        fields |= {"iter_in": count, "dst_factor_in": 1, "uop_end": 1}
        if kind:
            fields |= {"src_factor_out": draw(PLACES)}
            fields |= {"src_factor_in": draw(st.sampled_from((0, 1, 1, 2)))}
        else:
            fields |= {"use_imm": True, "imm": draw(st.integers(-40, 40))}
    elif kind == 2:
        fields |= {"iter_in": 3, "dst_factor_in": 50, "uop_bgn": 2, "uop_end": 52}
        fields |= {"src_factor_in": draw(st.integers(0, 2)), "src_factor_out": draw(PLACES)}
    else:
        fields |= {"iter_in": 1, "uop_bgn": 2, "uop_end": 2 + SIZE}
        if kind == 4:
            fields |= {"uop_bgn": 1, "uop_end": 2, "iter_in": SIZE, "dst_factor_in": 1}
    return Alu(**fields)


@given(st.lists(operations(), min_size=2, max_size=12), st.sampled_from((0, 1, 3)))
def test_operations_on_the_same_planes(stream: list[Alu], config: int) -> None:
    """Whatever is read and written there, by whichever of them; and again, with the steps kept."""
    core = CONFIGS[config]
    if config:
        small = [MicroOp(x) for x in range(8)]
        shrunk: list[Instruction] = [
            Alu(
                alu_opcode=one.alu_opcode,
                use_imm=one.use_imm,
                imm=one.imm,
                uop_end=1,
                iter_in=6,
                dst_factor_in=1,
                src_factor_in=one.src_factor_in % 2,
                iter_out=2,
                dst_factor_out=one.dst_factor_out % 8,
                src_factor_out=one.src_factor_out % 8,
            )
            for one in stream
        ]
        pair = Pair(core, micro_ops=small)
        for _ in range(2):
            pair.check(finished(*shrunk))
        return
    pair = Pair(core, micro_ops=MICRO_OPS)
    for _ in range(2):
        assert pair.check(finished(*stream)).refusal is None


THIRD = 33
"""Elements of a third of one of three planes, which each have operands of their own."""
NEGATIVE, POSITIVE, SAME = 3 * 3 * THIRD, 3 * 3 * THIRD + 3, 3 * 3 * THIRD + 6
"""Where operands are for each third: of any sign, positive, and one for all."""
MINIMUM, MAXIMUM, ADD, SHIFT, PRODUCT = AluOpcode
PHRASES: tuple[tuple[tuple[AluOpcode, str, str], ...], ...] = (
    ((ADD, "x", "a"), (MAXIMUM, "x", "b"), (MINIMUM, "x", "c")),
    ((MAXIMUM, "x", "b"), (MINIMUM, "x", "c")),
    ((PRODUCT, "y", "0"), (ADD, "y", "x"), (PRODUCT, "y", "a"), (SHIFT, "y", "b")),
    *(
        ((PRODUCT, "z", "0"), (ADD, "z", "x"), (PRODUCT, "z", "a"), (ADD, "y", "z"), *last)
        for last in ((), ((SHIFT, "y", "b"),))
    ),
    *(
        ((PRODUCT, "x", "a"), (ADD, "x", "y"), *added, *shifted)
        for added in ((), ((ADD, "x", "b"),))
        for shifted in ((), ((SHIFT, "x", "c"),))
    ),
    ((ADD, "x", "a"), (SHIFT, "x", "b")),
    *(
        ((PRODUCT, "y", "0"), (ADD, "y", "x"), (SHIFT, "y", "a"), *left, (ADD, "x", "y"))
        for left in ((), ((SHIFT, "y", "left"),))
    ),
    ((PRODUCT, "y", "0"), (ADD, "y", "x")),
    ((MINIMUM, "x", "y"),),
    ((SHIFT, "x", "y"),),
)
"""What loops have, as opcodes, targets and operands."""
PLANES_OF_LOOPS = st.sampled_from(((0, 1, 2), (1, 0, 2))) | st.tuples(*[st.integers(0, 2)] * 3)
"""Three of them, or less."""


@st.composite
def phrases(draw: st.DrawFn) -> list[tuple[AluOpcode, int, int | str, int]]:
    """Opcodes, planes, and numbers or the kind of an operand with the element where it begins."""
    found = []
    for phrase in draw(st.lists(st.sampled_from(PHRASES), min_size=1, max_size=6)):
        planes = dict(zip("xyz", draw(PLANES_OF_LOOPS), strict=True))
        for opcode, target, operand in phrase[draw(st.sampled_from((0, 0, 0, 1))) :]:
            kind: int | str = 0 if operand == "0" else -draw(st.integers(1, 31))
            first = 0
            if operand in planes:
                kind, first = "plane", planes[operand] * 3 * THIRD
            elif operand in "abc":
                kinds = st.sampled_from(("thirds", "thirds", "all"))
                kind = draw(kinds) if draw(st.booleans()) else draw(st.integers(-3, 40))
                first = SAME if kind == "all" else draw(st.sampled_from((POSITIVE, NEGATIVE)))
            found.append((opcode, planes[target], kind, first))
    return found


@given(phrases(), st.sampled_from(available(DEFAULT)))
def test_operations_that_stand_together_at_the_end_of_a_convolution(
    found: list[tuple[AluOpcode, int, int | str, int]], path: str
) -> None:
    """With one operand for all elements, or for each third; in any order, and with any part of the
    planes being the same."""
    micro_ops = [MicroOp(POSITIVE)]
    stream = [
        # From 0 to 40.
        Alu(alu_opcode=opcode, use_imm=True, imm=imm, uop_end=1, iter_in=4, dst_factor_in=1)
        for opcode, imm in ((SHIFT, 26), (MAXIMUM, 0), (ADD, 9))
    ]
    for opcode, plane, operand, first in found:
        fields: dict[str, Any] = {"alu_opcode": opcode, "uop_bgn": len(micro_ops)}
        target = plane * 3 * THIRD
        if operand == "thirds":
            micro_ops += [MicroOp(target + x, first) for x in range(THIRD)]
            fields |= {"iter_in": 3, "dst_factor_in": THIRD, "src_factor_in": 1}
        else:
            micro_ops.append(MicroOp(target, first))
            fields |= {"iter_in": 3 * THIRD, "dst_factor_in": 1}
            if isinstance(operand, int):
                fields |= {"use_imm": True, "imm": operand}
            else:
                fields |= {"src_factor_in": operand == "plane"}
        stream.append(Alu(uop_end=len(micro_ops), **fields))
    pair = Pair(DEFAULT, path=path, micro_ops=micro_ops)
    for _ in range(2):
        assert pair.check(finished(*stream)).refusal is None


@st.composite
def accumulations(draw: st.DrawFn) -> Instruction:
    """A GEMM, which resets or multiplies, or what reads and writes accumulators."""
    count = draw(st.sampled_from((1, 4, 9, 16)))
    if draw(st.integers(0, 4)) == 0:
        # What is stored is at the end of DRAM, behind what is loaded.
        at = draw(st.integers(0, 30))
        shared: dict[str, Any] = {"sram_base": at, "y_size": 1, "x_size": count}
        if draw(st.booleans()):
            return Load(memory_type=MemoryId.ACC_8BIT, dram_base=BASE // 16, **shared)
        return Store(memory_type=MemoryId.OUT, dram_base=BASE // 16 + 200, **shared)
    if draw(st.integers(0, 4)) == 0:
        return Alu(
            alu_opcode=AluOpcode.ADD, use_imm=True, imm=3, uop_end=1, iter_in=count, dst_factor_in=1
        )
    return Gemm(
        reset=draw(st.booleans()),
        uop_bgn=draw(st.integers(0, 3)),
        uop_end=draw(st.integers(4, 6)),
        iter_out=draw(st.integers(1, 3)),
        iter_in=count,
        dst_factor_out=draw(st.sampled_from((0, 1, 4, 9, 16))),
        dst_factor_in=draw(st.sampled_from((0, 1, 1, 2))),
        src_factor_in=draw(st.integers(0, 2)),
        wgt_factor_out=draw(st.integers(0, 1)),
    )


@given(
    st.sampled_from(available(DEFAULT)),
    st.lists(accumulations(), min_size=2, max_size=10),
    st.lists(st.sampled_from((0, 0, 0, 1, 5)), min_size=6, max_size=6),
)
def test_accumulators_are_zero_where_they_were_reset(
    path: str, stream: list[Instruction], places: list[int]
) -> None:
    """Before products, where these use all of them, some of them, or some twice."""
    micro_ops = [MicroOp(dst, 7 + number, number) for number, dst in enumerate(places)]
    pair = Pair(DEFAULT, path=path, micro_ops=micro_ops, order=Order.PROGRAM)
    for _ in range(2):
        assert pair.check(finished(*stream)).refusal is None


@given(st.data(), st.sampled_from(available(DEFAULT)))
def test_lines_of_positions(data: st.DataObject, path: str) -> None:
    """Rows of an image with the same weights, and rows that are nearly so; of accumulators that are
    zero and of others, of which some belong to two rows."""
    columns, taps, lines = (data.draw(st.integers(1, most)) for most in (17, 5, 4))
    down, along = data.draw(st.integers(0, 20)), data.draw(st.integers(-3, 9))
    other = data.draw(st.sampled_from((-1, -1, *range(lines))))
    micro_ops = [
        MicroOp(line * down + (line == other == 1), 40 + line * along + tap, tap + (line == other))
        for line in range(lines)
        for tap in range(taps)
    ]
    micro_ops = [
        MicroOp(one.dst + x, one.src + x, one.wgt) for one in micro_ops for x in range(columns)
    ]
    blocks = data.draw(st.sampled_from((1, 2, 5)))
    shared: dict[str, Any] = {"uop_end": len(micro_ops), "iter_out": blocks, "dst_factor_out": 90}
    gemm = Gemm(
        **shared,
        iter_in=data.draw(st.integers(1, 3)),
        src_factor_in=30,
        wgt_factor_in=7,
        src_factor_out=data.draw(st.sampled_from((0, 21))),
        wgt_factor_out=30,
    )
    stream = [Gemm(reset=True, iter_in=1, **shared), gemm, gemm][data.draw(st.integers(0, 1)) :]
    pair = Pair(DEFAULT, path=path, micro_ops=micro_ops)
    for _ in range(2):
        pair.check(finished(*stream))


def test_rows_of_an_image_are_one_step() -> None:
    micro_ops = [
        MicroOp(14 * row + x, 18 * row + x + tap, tap)
        for row in range(14)
        for tap in range(5)
        for x in range(14)
    ]
    pair = Pair(DEFAULT, micro_ops=micro_ops)
    pair.check(finished(Gemm(uop_end=len(micro_ops), iter_out=1, iter_in=1)))
    (program,) = pair.fast._programs.values()
    assert program.plan is not None and len(program.plan.steps.steps) == 1


@pytest.mark.parametrize("transposed", (False, True))
def test_the_example_of_positions_is_one_step(transposed: bool) -> None:
    """Two weights at three positions, by rows or by columns: three positions and two pairs."""
    micro_ops = [MicroOp(x, x + tap, tap) for tap in range(2) for x in range(3)]
    if transposed:
        micro_ops.sort(key=lambda one: one.dst)
    pair = Pair(DEFAULT, micro_ops=micro_ops)
    pair.check(finished(Gemm(uop_end=6, iter_out=1, iter_in=1)))
    (program,) = pair.fast._programs.values()
    assert program.plan is not None
    found = program.plan.steps
    assert found.steps[:, [steps.COUNT, steps.PAIRS]].tolist() == [[3, 2]]
    assert found.pairs.tolist() == [[0, 0], [1, 1]]


@settings(max_examples=40, deadline=None)
@given(kernels(), st.sampled_from((1, 2, 7)))
def test_a_stream_with_more_steps_than_there_is_room_for(
    kernel: tuple[Gemm | Alu, list[MicroOp]], room: int
) -> None:
    instruction, micro_ops = kernel
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MOST_STEPS", "STEPS_AT_ONCE"):
            patch.setattr(f"potash_device.vta.fast.simulator.{name}", room)
        pair = Pair(DEFAULT, micro_ops=micro_ops)
        for _ in range(2):
            assert pair.check(finished(instruction, instruction)).refusal is None


def test_what_is_before_an_instruction_for_which_there_is_no_room_is_executed() -> None:
    # 64 x 250 steps, as no two of the elements are adjacent; there is room for all micro-ops, all
    # accumulators, and one more. As in a network of 120 000 instructions.
    first = Alu(
        alu_opcode=AluOpcode.ADD, use_imm=True, imm=5, uop_end=1, iter_in=600, dst_factor_in=1
    )
    many = Alu(
        alu_opcode=AluOpcode.MAX,
        use_imm=True,
        imm=-7,
        uop_bgn=1,
        uop_end=65,
        iter_in=250,
        dst_factor_in=3,
    )
    micro_ops = [MicroOp(0), *(MicroOp(700 + x * 37 % 64 * 9) for x in range(64))]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MOST_STEPS", "STEPS_AT_ONCE"):
            patch.setattr(f"potash_device.vta.fast.simulator.{name}", 1)
        pair = Pair(DEFAULT, micro_ops=micro_ops)
        for _ in range(2):
            assert pair.check(finished(first, many, first)).refusal is None


def test_a_stream_with_more_pairs_than_there_is_room_for() -> None:
    # Of each of these, 64 x 200 pairs.
    gemm = Gemm(uop_end=64, iter_in=200, src_factor_in=1)
    micro_ops = [MicroOp(0, x % 5, x % 7) for x in range(64)]
    pair = Pair(DEFAULT, micro_ops=micro_ops, step_limit=1 << 21)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("potash_device.vta.fast.simulator.MOST_PAIRS", 1 << 15)
        pair.check(finished(*[gemm] * 4))
        pair.check(finished(gemm))


def test_micro_ops_that_a_stream_loads_are_left_in_their_buffer() -> None:
    """Also where the steps are kept, with others beside them and with others in DRAM."""
    pair = Pair(DEFAULT, micro_ops=[MicroOp(x) for x in range(9)])
    load = Load(
        memory_type=MemoryId.UOP, sram_base=3, dram_base=BASE // 4, y_size=1, x_size=2, x_pad_1=1
    )
    alu = Alu(alu_opcode=AluOpcode.ADD, use_imm=True, imm=1, uop_bgn=3, uop_end=5)
    stream = finished(load, alu)
    for number in range(4):
        for dram in pair.drams:
            dram[:8] = np.array([number // 2, 5], "<u4").tobytes()
        pair.readable.uop[6] = 70 + number
        pair.fast.adopt(pair.readable)
        assert pair.check(stream).refusal is None

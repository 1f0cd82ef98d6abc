"""What the fast engine keeps of a stream: steps that work on the same accumulators, and zeroes that
need not be written."""

from typing import Any

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
    ((PRODUCT, "x", "a"), (PRODUCT, "y", "b"), (ADD, "x", "y")),
    ((PRODUCT, "y", "0"), (ADD, "y", "x")),
    ((MINIMUM, "x", "y"),),
    ((SHIFT, "x", "y"),),
)
"""What loops have, as opcodes, targets and operands."""
PLANES_OF_LOOPS = st.sampled_from(((0, 1, 2), (1, 0, 2))) | st.tuples(*[st.integers(0, 2)] * 3)
"""Three of them, or less."""


@st.composite
def phrases(draw: st.DrawFn) -> list["Operation"]:
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


Operation = tuple[AluOpcode, int, int | str, int]


def operands_above_zero(micro_ops: list[MicroOp]) -> list[Alu]:
    """Operations that make the positive operands numbers from 9 to 40."""
    micro_ops.append(MicroOp(POSITIVE))
    return [
        Alu(alu_opcode=opcode, use_imm=True, imm=imm, uop_end=1, iter_in=4, dst_factor_in=1)
        for opcode, imm in ((SHIFT, 26), (MAXIMUM, 0), (ADD, 9))
    ]


def operations_of(found: list[Operation], micro_ops: list[MicroOp]) -> list[Alu]:
    """Instructions for phrases, whose micro-ops are added to `micro_ops`."""
    stream = []
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
    return stream


@given(phrases(), st.sampled_from(available(DEFAULT)))
def test_operations_that_stand_together_at_the_end_of_a_convolution(
    found: list[Operation], path: str
) -> None:
    """With one operand for all elements, or for each third; in any order, and with any part of the
    planes being the same."""
    micro_ops: list[MicroOp] = []
    stream = [*operands_above_zero(micro_ops), *operations_of(found, micro_ops)]
    pair = Pair(DEFAULT, path=path, micro_ops=micro_ops)
    for _ in range(2):
        assert pair.check(finished(*stream)).refusal is None


CLAMPS, SCALES, LASTS, JOINS, ROUNDS, SIGNS, WEIGHS = (
    PHRASES[begin:end]
    for begin, end in ((0, 2), (2, 3), (3, 5), (5, 9), (9, 10), (10, 12), (12, 13))
)
PLANE = 3 * THIRD


@st.composite
def ends(draw: st.DrawFn) -> list[Operation]:
    """The end of a convolution or of an addition, whose result is in the first plane; most often
    one without shifts to the left, and without operations on other planes."""
    kinds = [CLAMPS, SCALES, *[LASTS] * draw(st.integers(0, 4)), JOINS]
    kinds += draw(st.sampled_from(((), (ROUNDS,), (SIGNS, ROUNDS))))
    if draw(st.integers(0, 4)) == 0:
        kinds = [WEIGHS, ROUNDS, CLAMPS]
    found: list[Operation] = []
    other = draw(st.integers(0, 12))
    for number, kind in enumerate(kinds):
        planes = dict(
            zip("xyz", draw(PLANES_OF_LOOPS) if number == other else range(3), strict=True)
        )
        for opcode, target, operand in draw(st.sampled_from(kind)):
            if operand in planes:
                found.append((opcode, planes[target], "plane", planes[operand] * PLANE))
                continue
            kinds_of_operand = st.sampled_from(("thirds", "thirds", "all", "number"))
            of_operand = "number" if operand in ("0", "left") else draw(kinds_of_operand)
            imm = {"0": 0, "left": -3}.get(operand, draw(st.integers(0, 40)))
            first = draw(st.sampled_from((POSITIVE, POSITIVE, POSITIVE, POSITIVE, NEGATIVE)))
            first = SAME if of_operand == "all" and draw(st.booleans()) else first
            found.append(
                (opcode, planes[target], imm if of_operand == "number" else of_operand, first)
            )
    return found


def moved(kind: type[Load] | type[Store], memory: MemoryId, at: int, count: int) -> Instruction:
    """A transfer of `count` elements between ACC from `at` on and DRAM: in one line, or in two that
    are apart in DRAM."""
    lines = 2 if count % 2 == 0 else 1
    shape: dict[str, Any] = {
        "y_size": lines,
        "x_size": count // lines,
        "x_stride": count // lines + lines - 1,
    }
    first = -(-BASE // DEFAULT.element_bytes(memory)) + (200 if kind is Store else 0)
    return kind(memory_type=memory, sram_base=at, dram_base=first, **shape)


@st.composite
def uses(draw: st.DrawFn, micro_ops: list[MicroOp]) -> Instruction:
    """What may follow the end of a convolution: a STORE of its results or of other elements, or
    what reads or overwrites some of them."""
    kind = draw(st.integers(0, 9))
    at = draw(st.sampled_from((0, 0, 0, 1, 7, THIRD, 2 * THIRD, PLANE - 1, PLANE, 2 * PLANE)))
    count = draw(st.sampled_from((1, 2, 14, THIRD, PLANE - at, PLANE, 2 * THIRD)))
    count = max(min(count, 3 * PLANE - at), 1)
    if kind < 5:
        return moved(Store, MemoryId.OUT, at, count)
    if kind == 5:
        return moved(Load, draw(st.sampled_from((MemoryId.ACC_8BIT, MemoryId.INP))), at, count)
    micro_ops.append(MicroOp(at, draw(st.sampled_from((at, 0, PLANE, 2 * PLANE, 500))), 3))
    loop: dict[str, Any] = {"uop_bgn": len(micro_ops) - 1, "uop_end": len(micro_ops)}
    loop |= {"iter_in": count, "dst_factor_in": 1}
    if kind < 8:
        return Gemm(reset=draw(st.booleans()), src_factor_in=1, **loop)
    imm: dict[str, Any] = draw(
        st.sampled_from(({}, {"use_imm": True}, {"use_imm": True, "imm": 2}))
    )
    opcode = draw(st.sampled_from((ADD, PRODUCT)))
    return Alu(alu_opcode=opcode, src_factor_in=draw(st.integers(0, 1)), **imm, **loop)


@given(st.data(), st.sampled_from(available(DEFAULT)), st.sampled_from((1, 1, 2)))
def test_results_that_are_stored_are_in_acc_if_they_are_needed(
    data: st.DataObject, path: str, threads: int
) -> None:
    micro_ops: list[MicroOp] = []
    stream: list[Instruction] = [*operands_above_zero(micro_ops)]
    for _ in range(data.draw(st.integers(1, 3))):
        stream += operations_of(data.draw(ends()), micro_ops)
        stream += [data.draw(uses(micro_ops)) for _ in range(data.draw(st.integers(1, 4)))]
    pair = Pair(DEFAULT, path=path, micro_ops=micro_ops, order=Order.PROGRAM, threads=threads)
    for _ in range(3):
        assert pair.check(finished(*stream)).refusal is None


ALL: dict[str, Any] = {"uop_end": 1, "iter_in": 3 * PLANE, "dst_factor_in": 1}
OVERWRITTEN: list[Instruction] = [Gemm(reset=True, **ALL)]
STORED = moved(Store, MemoryId.OUT, 0, PLANE)
ELSEWHERE = Alu(alu_opcode=ADD, use_imm=True, imm=3, uop_bgn=2, uop_end=3)


@pytest.mark.parametrize(
    ("following", "narrowed", "live"),
    [
        pytest.param([STORED, *OVERWRITTEN], 1, 0, id="stored, and overwritten"),
        pytest.param([STORED, STORED, *OVERWRITTEN], 1, 0, id="stored twice"),
        pytest.param(
            [moved(Load, MemoryId.INP, 0, 5), STORED, *OVERWRITTEN], 1, 0, id="after a load"
        ),
        pytest.param([moved(Store, MemoryId.OUT, 5, 14), *OVERWRITTEN], 1, 0, id="a part"),
        pytest.param([STORED], 1, 1, id="left at the end"),
        pytest.param([STORED, Gemm(**ALL), *OVERWRITTEN], 1, 1, id="products are added"),
        *(
            pytest.param(
                [STORED, Alu(alu_opcode=PRODUCT, use_imm=True, imm=imm, **ALL), *OVERWRITTEN],
                1,
                imm,
                id=f"multiplied by {imm}",
            )
            for imm in (0, 1)
        ),
        pytest.param(
            [STORED, ELSEWHERE, Alu(alu_opcode=ADD, uop_bgn=1, uop_end=2), *OVERWRITTEN],
            1,
            1,
            id="an operand",
        ),
        pytest.param([STORED, *OVERWRITTEN, STORED], 1, 0, id="stored again when overwritten"),
        pytest.param(
            [moved(Load, MemoryId.ACC_8BIT, 500, 1), ELSEWHERE, STORED, *OVERWRITTEN],
            1,
            0,
            id="after other operations",
        ),
        pytest.param(
            [moved(Load, MemoryId.ACC_8BIT, 7, 1), STORED, *OVERWRITTEN], 0, 1, id="loaded in part"
        ),
        pytest.param(
            [STORED, moved(Store, MemoryId.OUT, PLANE, 3), *OVERWRITTEN],
            1,
            1,
            id="with another plane",
        ),
        pytest.param(
            [STORED, moved(Load, MemoryId.ACC_8BIT, 0, 3 * PLANE - 1)], 1, 1, id="but for the last"
        ),
        pytest.param([*OVERWRITTEN, STORED], 0, 0, id="overwritten before"),
        pytest.param([moved(Store, MemoryId.OUT, 0, PLANE + 1)], 0, 1, id="more than the plane"),
    ],
)
def test_accumulators_are_narrowed_where_they_are_stored(
    following: list[Instruction], narrowed: int, live: int
) -> None:
    phrases = [CLAMPS[0], SCALES[0], LASTS[1], JOINS[3]]
    found: list[Operation] = [
        (
            opcode,
            "xyz".index(target),
            "plane" if operand in "xyz" else 0 if operand == "0" else "all",
            "xyz".index(operand) * PLANE if operand in "xyz" else POSITIVE,
        )
        for phrase in phrases
        for opcode, target, operand in phrase
    ]
    micro_ops = [MicroOp(0), MicroOp(500, 2 * PLANE + 7), MicroOp(501)]
    stream = [*operations_of(found, micro_ops), *following]
    pair = Pair(DEFAULT, micro_ops=micro_ops, order=Order.PROGRAM)
    assert pair.check(finished(*stream)).refusal is None
    plan = next(reversed(pair.fast._programs.values())).plan
    assert plan is not None
    group = plan.steps.steps[0]
    assert group[steps.MEMBERS] == len(found)
    assert [group[steps.NARROWED], group[steps.LIVE]] == [narrowed, live]


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

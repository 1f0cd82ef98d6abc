"""The fast engine does what the readable simulator does, bit for bit, and refuses what it
refuses."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.fast.compiling import Number, entry
from potash_device.vta.fast.paths import available
from potash_device.vta.fast.pieces import with_immediate, with_source
from potash_device.vta.fast.simulator import FastSimulator
from potash_device.vta.isa import (
    Alu,
    AluOpcode,
    Dependencies,
    Gemm,
    Instruction,
    Load,
    MicroOp,
    Store,
)
from potash_device.vta.stream import Order
from support.amx import MODEL
from support.vta import BASE, CONFIGS
from support.vta_engines import DRAM_ELEMENTS, Pair, finished, kernels, micro_op_lists, streams

DEFAULT = Config.default()
PATHS = available(DEFAULT)
POP_PREV, POP_NEXT = Dependencies.POP_PREV, Dependencies.POP_NEXT
PUSH_PREV, PUSH_NEXT = Dependencies.PUSH_PREV, Dependencies.PUSH_NEXT


class TestAnyStream:
    @given(st.data())
    def test_on_the_default_core(self, data: Any) -> None:
        micro_ops = data.draw(micro_op_lists(DEFAULT))
        stream = data.draw(streams(DEFAULT, len(micro_ops)))
        path = data.draw(st.sampled_from(PATHS))
        order = data.draw(st.sampled_from(Order))
        Pair(DEFAULT, path=path, micro_ops=micro_ops, order=order).check(stream)

    @pytest.mark.parametrize("config", CONFIGS[1:])
    @settings(max_examples=15, deadline=None)
    @given(st.data())
    def test_on_other_cores(self, config: Config, data: Any) -> None:
        micro_ops = data.draw(micro_op_lists(config))
        stream = data.draw(streams(config, len(micro_ops)))
        Pair(config, micro_ops=micro_ops).check(stream)

    @given(st.binary(min_size=16, max_size=48))
    def test_of_any_bytes(self, stream: bytes) -> None:
        Pair(CONFIGS[1]).check_bytes(stream)


@given(st.sampled_from(PATHS), kernels())
def test_any_kernel(path: str, kernel: tuple[Gemm | Alu, list[MicroOp]]) -> None:
    instruction, micro_ops = kernel
    outcome = Pair(DEFAULT, path=path, micro_ops=micro_ops).check(finished(instruction))
    assert outcome.refusal is None


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("memory", [memory for memory in MemoryId if memory != MemoryId.OUT])
def test_a_load_is_what_is_multiplied(path: str, memory: MemoryId) -> None:
    for pads in ((0, 0, 0, 0), (0, 0, 1, 2), (1, 2, 0, 0), (2, 1, 3, 1)):
        for x_stride in (3, 4):
            check_load(path, memory, pads, x_stride)


def check_load(path: str, memory: MemoryId, pads: tuple[int, ...], x_stride: int) -> None:
    pair = Pair(DEFAULT, path=path, micro_ops=[MicroOp(8, x, x) for x in range(40)])
    load = Load(
        memory_type=memory,
        sram_base=2,
        dram_base=-(-BASE // DEFAULT.element_bytes(memory)),
        y_size=2,
        x_size=3,
        x_stride=x_stride,
        y_pad_0=pads[0],
        y_pad_1=pads[1],
        x_pad_0=pads[2],
        x_pad_1=pads[3],
    )
    pair.check(finished(load, Gemm(uop_end=40)))


class TestGemm:
    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize(
        ("inp", "wgt"), [(-128, -128), (-128, 127), (127, -128), (127, 127), (-1, -128)]
    )
    def test_the_ends_of_the_range(self, path: str, inp: int, wgt: int) -> None:
        pair = Pair(DEFAULT, path=path, micro_ops=[MicroOp(0), MicroOp(1, 1)])
        pair.readable.inp[:] = inp
        pair.readable.wgt[:] = wgt
        pair.readable.acc[:] = 2**31 - 1
        pair.fast.adopt(pair.readable)
        pair.check(finished(Gemm(uop_end=2, iter_in=3)))
        total = (2**31 - 1 + 3 * 16 * inp * wgt + 2**31) % 2**32 - 2**31
        assert (pair.fast.acc[:2] == total).all()

    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize(
        ("micro_ops", "loops"),
        [
            # two blocks of weights whose accumulators overlap
            ([MicroOp(x, x) for x in range(9)], {"iter_out": 3, "dst_factor_out": 4, "wgt": 1}),
            # INP indices that go back, and that pass the field's end
            ([MicroOp(x, 40 - x) for x in range(9)], {}),
            ([MicroOp(x, (2044 + x) % 2048) for x in range(9)], {}),
            # fields that come to their ends, so that the words still grow by equal steps
            ([MicroOp((2044 + x) % 2048, x // 4) for x in range(8)], {}),
            ([MicroOp(x, (2044 + x) % 2048, x // 4) for x in range(8)], {}),
            ([MicroOp((2044 + x) % 2048, x // 4, k) for x in range(8) for k in range(2)], {}),
            # the products of a position stand together
            ([MicroOp(x, x + k, k) for x in range(15) for k in range(3)], {}),
            # the same, but the last one differs
            ([MicroOp(x, x + k + (x == 14), k) for x in range(15) for k in range(3)], {}),
            ([MicroOp(x, x + k, k) for k in range(3) for x in range(15)][:-1], {}),
            # other weights for each position
            ([MicroOp(x, 0, x) for x in range(20)], {"iter_in": 15, "dst_factor_in": 20}),
            # one micro-op, and loops that go on or stand still
            ([MicroOp(3, 4, 5)], {"iter_out": 29, "dst_factor_out": 2, "src": 1, "iter_in": 7}),
            ([MicroOp(3, 4, 5)], {"iter_in": 29, "dst_factor_in": 1, "iter_out": 9, "wgt": 2}),
            # more products than the table has room for
            ([MicroOp(0, x % 5, x % 7) for x in range(64)], {"iter_out": 500, "iter_in": 2}),
        ],
    )
    def test_kernels_at_the_edge(
        self, path: str, micro_ops: list[MicroOp], loops: dict[str, int]
    ) -> None:
        names = {"src": "src_factor_out", "wgt": "wgt_factor_out"}
        factors: dict[str, Any] = {names.get(name, name): value for name, value in loops.items()}
        pair = Pair(DEFAULT, path=path, micro_ops=micro_ops, step_limit=1 << 17)
        outcome = pair.check(finished(Gemm(uop_end=len(micro_ops), **factors)))
        assert outcome.refusal is None

    def test_reserved_bits_of_a_micro_op_are_no_index(self) -> None:
        pair = Pair(CONFIGS[1])
        pair.readable.uop[:] = 0xFFFFF000
        pair.fast.adopt(pair.readable)
        assert pair.check(finished(Gemm(uop_end=8))).refusal is None


class TestAlu:
    @pytest.mark.parametrize("opcode", AluOpcode)
    @pytest.mark.parametrize(
        ("dst", "src", "steps"),
        [
            pytest.param(100, 100, (1, 1), id="itself"),
            pytest.param(100, 99, (1, 1), id="what the step before wrote"),
            pytest.param(100, 101, (1, 1), id="what the next step writes"),
            pytest.param(100, 97, (1, 1), id="what was written three steps ago"),
            pytest.param(100, 7, (1, 0), id="one element for all"),
            pytest.param(100, 120, (1, 0), id="one of them for all"),
            pytest.param(100, 100, (1, 0), id="the first of them for all"),
            pytest.param(100, 139, (1, 0), id="the last of them for all"),
            pytest.param(100, 140, (1, 0), id="the one behind them for all"),
            pytest.param(100, 50, (0, 1), id="many into one"),
            pytest.param(100, 90, (2, 3), id="other steps"),
        ],
    )
    def test_steps_see_what_steps_before_them_wrote(
        self, opcode: AluOpcode, dst: int, src: int, steps: tuple[int, int]
    ) -> None:
        pair = Pair(DEFAULT, micro_ops=[MicroOp(dst, src)])
        alu = Alu(
            alu_opcode=opcode, uop_end=1, iter_in=40, dst_factor_in=steps[0], src_factor_in=steps[1]
        )
        assert pair.check(finished(alu)).refusal is None

    @pytest.mark.parametrize("opcode", AluOpcode)
    @pytest.mark.parametrize("amount", [-(2**31), -33, -32, -31, -1, 0, 1, 31, 32, 33, 2**31 - 1])
    def test_operands_of_any_size(self, opcode: AluOpcode, amount: int) -> None:
        pair = Pair(DEFAULT, micro_ops=[MicroOp(0, 1)])
        pair.readable.acc[1] = amount
        pair.fast.adopt(pair.readable)
        pair.check(finished(Alu(alu_opcode=opcode, uop_end=1)))
        if -(2**15) <= amount < 2**15:
            pair.check(finished(Alu(alu_opcode=opcode, uop_end=1, use_imm=True, imm=amount)))

    @pytest.mark.parametrize("count", [1, 13, 14, 40, 57])
    def test_a_chain_of_operations_sees_its_own_results(self, count: int) -> None:
        """Numbers, the elements themselves, others, and those with one that went through a chain."""
        pair = Pair(DEFAULT, micro_ops=[MicroOp(0, 0), MicroOp(0, 100), MicroOp(100, 0)])
        add, multiply = AluOpcode.ADD, AluOpcode.MUL
        numbers: dict[str, Any] = {"iter_in": count, "dst_factor_in": 1, "use_imm": True, "imm": 3}
        elements: dict[str, Any] = {"iter_in": count, "dst_factor_in": 1, "src_factor_in": 1}
        each: list[dict[str, Any]] = [{"uop_bgn": at, "uop_end": at + 1} for at in range(3)]
        own, other, back = each
        chain = [
            Alu(alu_opcode=add, **own, **numbers),
            Alu(alu_opcode=add, **own, **elements),
            Alu(alu_opcode=multiply, **own, **elements),
            Alu(alu_opcode=add, **other, **elements),
            Alu(alu_opcode=multiply, **back, **elements),
            Alu(alu_opcode=add, **other, **elements),
        ]
        assert pair.check(finished(*chain)).refusal is None

    def test_fields_that_come_to_their_ends_are_no_contiguous_elements(self) -> None:
        # 2047 and 0 in ACC, whose words grow by what one element more in both makes
        pair = Pair(DEFAULT, micro_ops=[MicroOp(2047, 0), MicroOp(0, 2)])
        pair.check(finished(Alu(alu_opcode=AluOpcode.ADD, uop_end=2)))


class TestEdges:
    """The last that fits and the first that does not, for whatever has an end."""

    @pytest.mark.parametrize("beyond", [0, 1])
    @pytest.mark.parametrize("memory", [memory for memory in MemoryId if memory != MemoryId.OUT])
    @pytest.mark.parametrize("config", CONFIGS)
    def test_of_a_buffer(self, config: Config, memory: MemoryId, beyond: int) -> None:
        depth = config.depth(memory)
        load = Load(
            memory_type=memory,
            sram_base=depth - 1,
            dram_base=-(-BASE // config.element_bytes(memory)),
            y_size=1,
            x_size=1,
            x_stride=1,
            x_pad_1=beyond,
        )
        refusal = Pair(config).check(finished(load)).refusal
        name = memory.name
        reason = f"element {depth} is past the {depth} of {name}"
        assert refusal == ((0, reason) if beyond else None)

    @pytest.mark.parametrize("beyond", [0, 1])
    @pytest.mark.parametrize("kind", [Load, Store])
    def test_of_dram(self, kind: type[Load] | type[Store], beyond: int) -> None:
        memory = MemoryId.OUT if kind is Store else MemoryId.INP
        pair = Pair(DEFAULT)
        elements = len(pair.drams[0]) // 16
        for first in (BASE // 16 - beyond, BASE // 16 + elements - 7 + beyond):
            instruction = kind(memory_type=memory, dram_base=first, y_size=3, x_size=1, x_stride=3)
            refusal = pair.check(finished(instruction)).refusal
            assert (refusal is not None) == bool(beyond)

    @pytest.mark.parametrize("threads", [1, 2])
    def test_of_the_numbers_of_elements(self, threads: int) -> None:
        base = (1 << 32) * 16 - DEFAULT.alignment * DRAM_ELEMENTS
        pair = Pair(DEFAULT, base=base, threads=threads)
        first, last = base // 16, (1 << 32) - 5
        sizes: dict[str, Any] = {"y_size": 1, "x_size": 5, "x_stride": 5}
        stream: list[Instruction] = []
        for place in (first, last):
            stream += [
                Load(memory_type=MemoryId.INP, dram_base=place, sram_base=8, **sizes),
                Load(memory_type=MemoryId.ACC_8BIT, dram_base=place, sram_base=4, **sizes),
                Store(memory_type=MemoryId.OUT, dram_base=last - 9, sram_base=6, **sizes),
            ]
        for _ in range(3):
            assert pair.check(finished(*stream)).refusal is None

    @pytest.mark.parametrize("beyond", [0, 1])
    @pytest.mark.parametrize("field", ["dst", "src", "wgt"])
    @pytest.mark.parametrize("loop", ["out", "in"])
    def test_of_an_index(self, field: str, loop: str, beyond: int) -> None:
        config = CONFIGS[1]  # 16 elements of each
        pair = Pair(
            config, micro_ops=[MicroOp(1, 1, 1), MicroOp(3 + beyond, 3 + beyond, 3 + beyond)]
        )
        factors: dict[str, Any] = {f"iter_{loop}": 3, f"{field}_factor_{loop}": 6}
        refusals = [pair.check(finished(Gemm(uop_end=2, **factors))).refusal]
        if field != "wgt":
            alu = Alu(alu_opcode=AluOpcode.ADD, uop_end=2, **factors)
            refusals.append(pair.check(finished(alu)).refusal)
        assert [refusal is not None for refusal in refusals] == [bool(beyond)] * len(refusals)

    @pytest.mark.parametrize("beyond", [0, 1])
    def test_of_the_micro_ops_and_of_the_steps(self, beyond: int) -> None:
        depth = CONFIGS[1].depth(MemoryId.UOP)
        pair = Pair(CONFIGS[1], micro_ops=[MicroOp(0)] * depth, step_limit=depth * 4)
        last = pair.check(finished(Gemm(uop_end=depth + beyond)))
        assert (last.refusal is not None) == bool(beyond)
        steps = finished(Gemm(uop_end=depth, iter_in=3), Gemm(uop_end=depth), Gemm(uop_end=beyond))
        assert (pair.check(steps).refusal is not None) == bool(beyond)


def _put(pair: Pair, offset: int, data: bytes) -> None:
    for dram in pair.drams:
        dram[offset : offset + len(data)] = data


class TestMemoryThatChanges:
    """A stream is known by its bytes; what it works on, micro-ops too, is read when it runs."""

    load = Load(memory_type=MemoryId.UOP, dram_base=BASE // 4, y_size=1, x_size=2, x_stride=2)

    def test_other_micro_ops_for_the_same_stream(self) -> None:
        pair = Pair(DEFAULT)
        stream = finished(self.load, Gemm(uop_end=2, iter_in=4, dst_factor_in=1))
        left = []
        for micro_ops in ([MicroOp(0, 1, 2), MicroOp(9, 8, 7)], [MicroOp(0, 3), MicroOp(0, 5)]):
            for place, micro_op in enumerate(micro_ops):
                _put(pair, 4 * place, micro_op.encode(DEFAULT).to_bytes(4, "little"))
            left.append(pair.check(stream).buffers["acc"])
        assert left[0] != left[1]

    def test_micro_ops_that_lead_out_of_a_buffer_the_second_time(self) -> None:
        pair = Pair(DEFAULT)
        stream = finished(self.load, Gemm(uop_end=2, iter_in=2, dst_factor_in=1))
        _put(pair, 0, bytes(8))
        assert pair.check(stream).refusal is None
        _put(pair, 4, MicroOp(2047).encode(DEFAULT).to_bytes(4, "little"))
        assert pair.check(stream).refusal == (1, "dst index 2048 is past the 2048 elements of ACC")

    def test_a_stream_that_writes_its_own_micro_ops(self) -> None:
        pair = Pair(DEFAULT, micro_ops=[MicroOp(3)])
        store = Store(
            memory_type=MemoryId.OUT, dram_base=BASE // 16, y_size=1, x_size=1, x_stride=1
        )
        # a store has to be first, and to be waited for
        stream: list[Instruction] = [
            Store(**{**store.__dict__, "dependencies": PUSH_PREV}),
            Load(**{**self.load.__dict__, "dependencies": POP_NEXT}),
            Gemm(uop_end=1),
        ]
        pair.readable.acc[0] = [5, 8, *[0] * 14]
        pair.fast.adopt(pair.readable)
        outcome = pair.check(finished(*stream))
        assert outcome.refusal is None
        assert pair.fast.uop[0] == 5 | 8 << 8


class TestHazards:
    """Figure 5: two phases of load, multiply and store that share every buffer."""

    @pytest.mark.parametrize("path", (None, "loops"))
    @pytest.mark.parametrize(
        ("raw", "war", "results"),
        [
            # Loads run ahead of what reads them, multiplications of what stores them: both results
            # are those of the second phase, once per multiplication.
            pytest.param(False, False, ("second twice", "second twice"), id="none"),
            # Waiting for what one reads does not keep anybody from overwriting it.
            pytest.param(True, False, ("second twice", "second twice"), id="RAW only"),
            pytest.param(True, True, ("first", "first and second"), id="RAW and WAR"),
        ],
    )
    def test_results(
        self, path: str | None, raw: bool, war: bool, results: tuple[str, str]
    ) -> None:
        pair = Pair(DEFAULT, path=path, micro_ops=[MicroOp(0)])
        pair.readable.acc[:] = 0
        pair.fast.adopt(pair.readable)
        random = np.random.default_rng(5)
        inputs = random.integers(-9, 9, (2, 16)).astype(np.int8)
        weights = random.integers(-9, 9, (2, 16, 16)).astype(np.int8)
        _put(pair, 0, inputs.tobytes())
        _put(pair, 256, weights.tobytes())
        products = [weights[phase].astype(int) @ inputs[phase] for phase in range(2)]
        pair.check(finished(*self._phases(raw=raw, war=war)))
        expected = {
            "first": products[0],
            "first and second": products[0] + products[1],
            "second twice": 2 * products[1],
        }
        stored = np.frombuffer(pair.drams[1][1024:1056], np.int8).reshape(2, 16)
        for phase, result in enumerate(results):
            assert stored[phase].tolist() == expected[result].astype(np.int8).tolist()

    def _phases(self, *, raw: bool, war: bool) -> Sequence[Instruction]:
        none = Dependencies.NONE
        size = {"y_size": 1, "x_size": 1, "x_stride": 1}
        stream: list[Instruction] = []
        for phase in range(2):
            # The second phase waits for the first one to be done with the buffers.
            again = war and phase == 1
            once = war and phase == 0
            stream += [
                Load(
                    memory_type=MemoryId.INP,
                    dram_base=BASE // 16 + phase,
                    dependencies=POP_NEXT if again else none,
                    **size,
                ),
                Load(
                    memory_type=MemoryId.WGT,
                    dram_base=(BASE + 256) // 256 + phase,
                    dependencies=PUSH_NEXT if raw else none,
                    **size,
                ),
                Gemm(
                    uop_end=1,
                    dependencies=(POP_PREV | PUSH_NEXT if raw else none)
                    | (PUSH_PREV if once else none)
                    | (POP_NEXT if again else none),
                ),
                Store(
                    memory_type=MemoryId.OUT,
                    dram_base=(BASE + 1024) // 16 + phase,
                    dependencies=(POP_PREV if raw else none) | (PUSH_PREV if once else none),
                    **size,
                ),
            ]
        return stream


class TestPaths:
    def test_a_path_that_is_not_there_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no VTA path 'vnni512'; there is loops"):
            FastSimulator(CONFIGS[1], memoryview(bytearray(4096)), path="vnni512")

    def test_every_core_and_processor_has_the_loops(self) -> None:
        for config in CONFIGS:
            assert [name for name in available(config) if name != MODEL][-1] == "loops"
        assert [name for name in PATHS if name != MODEL][-2:] == ["portable", "loops"]

    def test_a_processor_that_compiled_code_must_not_know_has_only_portable_ones(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("numba.config.CPU_FEATURES", "")
        assert available(DEFAULT) == ("portable", "loops")
        monkeypatch.setattr("numba.config.CPU_FEATURES", "+sse2,+avx2,-avx512f")
        assert available(DEFAULT) == ("avx2", "portable", "loops")

    @pytest.mark.parametrize("path", PATHS)
    def test_buffers_come_out_as_they_went_in(self, path: str) -> None:
        pair = Pair(DEFAULT, path=path, seed=3)
        for name in ("uop", "inp", "wgt", "acc"):
            given, found = getattr(pair.readable, name), getattr(pair.fast, name)
            assert found.dtype == given.dtype
            assert np.array_equal(found, given)
        pair.fast.reset()
        assert not any(getattr(pair.fast, name).any() for name in ("uop", "inp", "wgt", "acc"))


@entry
def _with_immediate(target: Any, opcode: Number, imm: Number) -> None:
    with_immediate(target, opcode, imm)


@entry
def _with_source(target: Any, source: Any, opcode: Number) -> None:
    with_source(target, source, opcode)


def test_an_opcode_that_an_alu_lacks_is_refused_there() -> None:
    values, lacking = np.arange(32, dtype=np.int32), len(AluOpcode)
    before = values.copy()
    operations: tuple[Callable[[], object], ...] = (
        lambda: _with_immediate(values, lacking, np.int32(3)),
        lambda: _with_source(values[:16], values[16:], lacking),
    )
    for operate in operations:
        with pytest.raises(NotImplementedError):
            operate()
    assert (values == before).all()


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

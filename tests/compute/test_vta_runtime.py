"""The runtime's instructions and dependences, and whole computations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_device.vta.assembly import assemble
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_device.vta.isa import Alu, Dependencies, Gemm, Load, Store
from potash_firmware.vta_runtime import (
    AluKernel,
    AluOpcode,
    Buffer,
    GemmKernel,
    Loop,
    MemoryId,
    MicroOp,
    Runtime,
    Stage,
    StreamError,
)
from support.vta import TINY, executed

LOAD, COMPUTE, STORE = Stage.LOAD, Stage.COMPUTE, Stage.STORE
POP_PREV, POP_NEXT = Dependencies.POP_PREV, Dependencies.POP_NEXT
PUSH_PREV, PUSH_NEXT = Dependencies.PUSH_PREV, Dependencies.PUSH_NEXT


@pytest.fixture
def runtime() -> Runtime:
    return Runtime(Core.create(Config.default(), 1 << 20))


def filled(runtime: Runtime, data: bytes) -> Buffer:
    buffer = runtime.alloc(len(data))
    buffer.view[:] = data
    return buffer


class TestComputations:
    def test_an_addition_of_bytes(self, runtime: Runtime) -> None:
        random = np.random.default_rng(0)
        left, right = random.integers(-128, 128, (2, 4096), dtype=np.int8)
        a, b, out = (filled(runtime, v.tobytes()) for v in (left, right, np.zeros_like(left)))
        rows = 4096 // 16
        runtime.load_2d(a, MemoryId.ACC_8BIT, sram=0, offset=0, x_size=rows)
        runtime.load_2d(b, MemoryId.ACC_8BIT, sram=rows, offset=0, x_size=rows)
        both = (Loop(rows, dst=1, src=1),)
        alone = (Loop(rows, dst=1),)
        runtime.push_alu(AluKernel(AluOpcode.ADD, (MicroOp(0, rows),), both))
        runtime.push_alu(AluKernel(AluOpcode.MIN, (MicroOp(0),), alone, immediate=127))
        runtime.push_alu(AluKernel(AluOpcode.MAX, (MicroOp(0),), alone, immediate=-128))
        runtime.dep_push(COMPUTE, STORE)
        runtime.dep_pop(COMPUTE, STORE)
        runtime.store_2d(out, sram=0, offset=0, x_size=rows)
        runtime.synchronize()
        expected = np.clip(left.astype(int) + right.astype(int), -128, 127)
        np.testing.assert_array_equal(np.frombuffer(out.view, np.int8), expected)

    def test_a_tiled_matrix_product_with_two_contexts(self, runtime: Runtime) -> None:
        """Loads of one tile may overtake the product of the other; the tokens keep them right."""
        random = np.random.default_rng(1)
        m, k, n = 32, 64, 48
        left = random.integers(-8, 8, (m, k), dtype=np.int8)
        right = random.integers(-8, 8, (n, k), dtype=np.int8)
        blocks = right.reshape(n // 16, 16, k // 16, 16).transpose(0, 2, 1, 3)
        a = filled(runtime, left.tobytes())
        w = filled(runtime, np.ascontiguousarray(blocks).tobytes())
        out = runtime.alloc(m * n)
        rows = 8
        each_block = (Loop(3, dst=rows),)
        for _ in range(2):
            runtime.dep_push(COMPUTE, LOAD)
            runtime.dep_push(STORE, COMPUTE)
        for tile in range(m // rows):
            context = tile % 2
            inp, wgt, acc = context * 512, context * 64, context * 256
            runtime.dep_pop(COMPUTE, LOAD)
            runtime.load_2d(
                a, MemoryId.INP, sram=inp, offset=tile * rows * 4, x_size=4, y_size=rows
            )
            runtime.load_2d(w, MemoryId.WGT, sram=wgt, offset=0, x_size=12)
            runtime.dep_push(LOAD, COMPUTE)
            runtime.dep_pop(STORE, COMPUTE)
            runtime.dep_pop(LOAD, COMPUTE)
            accumulators = tuple(MicroOp(acc + r) for r in range(rows))
            products = tuple(MicroOp(acc + r, inp + r * 4, wgt) for r in range(rows))
            loops = (Loop(3, dst=rows, wgt=4), Loop(4, src=1, wgt=1))
            runtime.push_gemm(GemmKernel(accumulators, each_block, reset=True))
            runtime.push_gemm(GemmKernel(products, loops))
            runtime.dep_push(COMPUTE, LOAD)
            runtime.push_alu(AluKernel(AluOpcode.SHR, accumulators, each_block, 4))
            runtime.dep_push(COMPUTE, STORE)
            runtime.dep_pop(COMPUTE, STORE)
            for block in range(3):
                runtime.store_2d(
                    out, sram=acc + block * rows, offset=block * m + tile * rows, x_size=rows
                )
            runtime.dep_push(STORE, COMPUTE)
        for _ in range(2):
            runtime.dep_pop(COMPUTE, LOAD)
            runtime.dep_pop(STORE, COMPUTE)
        runtime.synchronize()
        product = (left.astype(np.int64) @ right.astype(np.int64).T) >> 4
        expected = product.astype(np.int8).reshape(m, 3, 16).transpose(1, 0, 2)
        np.testing.assert_array_equal(np.frombuffer(out.view, np.int8).reshape(3, m, 16), expected)

    def test_rows_apart_and_pads(self, runtime: Runtime) -> None:
        source = filled(runtime, bytes(range(16 * 6)))
        out = runtime.alloc(16 * 8)
        runtime.load_2d(
            source,
            MemoryId.ACC_8BIT,
            sram=3,
            offset=1,
            x_size=1,
            y_size=2,
            x_stride=3,
            x_pad=(1, 0),
            y_pad=(0, 1),
        )
        runtime.dep_push(COMPUTE, STORE)
        runtime.dep_pop(COMPUTE, STORE)
        runtime.store_2d(out, sram=3, offset=1, x_size=3, y_size=2, x_stride=4)
        runtime.synchronize()
        element = [bytes(range(16 * i, 16 * i + 16)) for i in range(6)]
        gap = bytes(16)
        rows = [gap, gap, element[1], gap, gap, element[4], gap, gap]
        assert bytes(out.view) == b"".join(rows)


class TestListingOne:
    """The vector addition of "VTA: An Open Hardware-Software Stack for Deep Learning", listing 1:
    64 elements of each operand, call by call."""

    @pytest.fixture
    def vectors(self, runtime: Runtime) -> tuple[Buffer, Buffer, Buffer]:
        random = np.random.default_rng(11)
        left, right = random.integers(-(2**31), 2**31, (2, 64 * 16))
        a, b = (filled(runtime, v.astype("<i4").tobytes()) for v in (left, right))
        return a, b, runtime.alloc(64 * 16)

    @pytest.fixture(autouse=True)
    def listing(self, runtime: Runtime, vectors: tuple[Buffer, Buffer, Buffer]) -> None:
        a, b, c = vectors
        runtime.load_2d(a, MemoryId.ACC, sram=0, offset=0, x_size=64, y_size=1, x_stride=64)
        runtime.load_2d(b, MemoryId.ACC, sram=64, offset=0, x_size=64, y_size=1, x_stride=64)
        kernel = AluKernel(AluOpcode.ADD, (MicroOp(0, 64, 0),), (Loop(64, 1, 1, 0),))
        runtime.push_alu(kernel)
        runtime.dep_push(COMPUTE, STORE)
        runtime.dep_pop(COMPUTE, STORE)
        runtime.store_2d(c, sram=0, offset=0, x_size=64, y_size=1, x_stride=64)

    def test_it_adds(self, runtime: Runtime, vectors: tuple[Buffer, Buffer, Buffer]) -> None:
        runtime.synchronize()
        a, b, c = (
            np.frombuffer(buffer.view, "<i4" if i < 2 else "i1") for i, buffer in enumerate(vectors)
        )
        expected = (a.astype(np.int64) + b).astype(np.int8)
        np.testing.assert_array_equal(c, expected)

    def test_the_instructions_that_it_becomes(self, runtime: Runtime) -> None:
        """Buffers stand one behind the other from 0x1000 on, the micro-op behind them."""
        assert (
            runtime.dump()
            == "     0: load acc dram_base=0x40 y_size=1 x_size=64 x_stride=64  # COMPUTE: 0x1000 to 0x1fff\n     1: load acc sram_base=0x40 dram_base=0x80 y_size=1 x_size=64 x_stride=64  # COMPUTE: 0x2000 to 0x2fff\n     2: load uop dram_base=0xd00 y_size=1 x_size=1 x_stride=1  # COMPUTE: 0x3400 to 0x3403\n        #       0: dst=0 src=64 wgt=0\n     3: alu add uop_end=1 iter_out=64 iter_in=1 dst_factor_out=1 src_factor_out=1 push_next  # COMPUTE: 64 micro-ops\n     4: store out dram_base=0x300 y_size=1 x_size=64 x_stride=64 pop_prev  # STORE: 0x3000 to 0x33ff"
        )

    def test_its_dump_runs_as_a_stream(
        self, runtime: Runtime, vectors: tuple[Buffer, Buffer, Buffer]
    ) -> None:
        text = runtime.dump() + "\nfinish"
        runtime.core.execute(assemble(text.splitlines(), runtime.config))
        by_hand = bytes(vectors[2].view)
        vectors[2].view[:] = bytes(64 * 16)
        runtime.synchronize()
        assert bytes(vectors[2].view) == by_hand
        assert any(by_hand)

    def test_nothing_waits_after_it(self, runtime: Runtime) -> None:
        runtime.synchronize()
        assert runtime.dump() == ""


class TestInstructions:
    def test_loops_are_outer_first(self, runtime: Runtime) -> None:
        runtime.push_gemm(GemmKernel((MicroOp(1, 2, 3),), (Loop(4, 5, 6, 7), Loop(8, 9, 10, 11))))
        runtime.push_alu(AluKernel(AluOpcode.SHR, (MicroOp(1, 2, 3),), (Loop(4, 5, 6),), -3))
        runtime.push_alu(AluKernel(AluOpcode.MUL, (MicroOp(1, 2, 3),)))
        load, gemm, shift, multiply = runtime.instructions
        assert isinstance(load, Load)
        assert (load.memory_type, load.sram_base, load.x_size) == (MemoryId.UOP, 0, 1)
        assert gemm == Gemm(
            uop_end=1,
            iter_out=4,
            iter_in=8,
            dst_factor_out=5,
            dst_factor_in=9,
            src_factor_out=6,
            src_factor_in=10,
            wgt_factor_out=7,
            wgt_factor_in=11,
        )
        assert shift == Alu(
            alu_opcode=AluOpcode.SHR,
            use_imm=True,
            imm=-3,
            uop_end=1,
            iter_out=4,
            dst_factor_out=5,
            src_factor_out=6,
        )
        assert multiply == Alu(alu_opcode=AluOpcode.MUL, uop_end=1)

    def test_immediate_zero_is_an_immediate(self, runtime: Runtime) -> None:
        runtime.push_alu(AluKernel(AluOpcode.MAX, (MicroOp(0),), immediate=0))
        alu = runtime.instructions[-1]
        assert isinstance(alu, Alu)
        assert alu.use_imm

    def test_physical_addresses_become_elements(self, runtime: Runtime) -> None:
        runtime.alloc(1)
        buffer = runtime.alloc(4096)
        assert buffer.physical == 0x1100
        for memory, first in (
            (MemoryId.INP, 0x110),
            (MemoryId.WGT, 0x11),
            (MemoryId.ACC, 0x44),
            (MemoryId.ACC_8BIT, 0x110),
        ):
            runtime.load_2d(buffer, memory, sram=7, offset=2, x_size=3)
            load = runtime.instructions[-1]
            assert load == Load(
                memory_type=memory, sram_base=7, dram_base=first + 2, y_size=1, x_size=3, x_stride=3
            )

    @pytest.mark.parametrize(
        ("sizes", "reason"),
        [
            ({"offset": 0, "x_size": 5}, "INP elements 0 to 4 exceed a VTA buffer of 64"),
            ({"offset": 4, "x_size": 1}, "elements 4 to 4"),
            ({"offset": -1, "x_size": 1}, "elements -1 to -1"),
            ({"offset": 0, "x_size": 1, "y_size": 2, "x_stride": 4}, "elements 0 to 4"),
            ({"offset": 0, "x_size": -1}, "x_size is -1"),
            ({"offset": 0, "x_size": 1, "sram": -1}, "sram_base is -1"),
            ({"offset": 0, "x_size": 1, "x_pad": (0, 16)}, "x_pad_1 is 16"),
        ],
    )
    def test_a_load_outside_its_buffer_or_encoding_is_refused(
        self, runtime: Runtime, sizes: dict[str, int], reason: str
    ) -> None:
        buffer = runtime.alloc(64)
        with pytest.raises(ValueError, match=reason):
            runtime.load_2d(buffer, MemoryId.INP, **({"sram": 0} | sizes))  # type: ignore[arg-type]  # as a table
        assert runtime.instructions == ()

    def test_a_store_outside_its_buffer_is_refused(self, runtime: Runtime) -> None:
        with pytest.raises(ValueError, match="OUT elements 3 to 4"):
            runtime.store_2d(runtime.alloc(64), sram=0, offset=3, x_size=2)

    @pytest.mark.parametrize("memory", [MemoryId.UOP, MemoryId.OUT])
    def test_only_tensors_are_loaded(self, runtime: Runtime, memory: MemoryId) -> None:
        with pytest.raises(ValueError, match="not loaded from a buffer"):
            runtime.load_2d(runtime.alloc(64), memory, sram=0, offset=0, x_size=1)

    @pytest.mark.parametrize(
        ("kernel", "reason"),
        [
            (AluKernel(AluOpcode.ADD, ()), "1 to 8192 micro-ops, not 0"),
            (AluKernel(AluOpcode.ADD, (MicroOp(0),) * 8193), "not 8193"),
            (AluKernel(AluOpcode.ADD, (MicroOp(2048),)), "dst is 2048"),
            (AluKernel(AluOpcode.ADD, (MicroOp(0),), (Loop(1),) * 3), "at most 2 loops, not 3"),
            (AluKernel(AluOpcode.ADD, (MicroOp(0),), (Loop(1 << 14),)), "iter_out is 16384"),
            (AluKernel(AluOpcode.ADD, (MicroOp(0),), immediate=40000), "imm is 40000"),
        ],
    )
    def test_an_impossible_kernel_is_refused(
        self, runtime: Runtime, kernel: AluKernel, reason: str
    ) -> None:
        with pytest.raises(ValueError, match=reason):
            runtime.push_alu(kernel)
        runtime.synchronize()


class TestDependences:
    def kinds(self, runtime: Runtime) -> list[tuple[type, Dependencies]]:
        return [(type(i), i.dependencies) for i in runtime.instructions]

    def test_a_push_joins_the_last_instruction_of_its_module(self, runtime: Runtime) -> None:
        buffer = runtime.alloc(64)
        runtime.load_2d(buffer, MemoryId.INP, sram=0, offset=0, x_size=1)
        runtime.load_2d(buffer, MemoryId.ACC, sram=0, offset=0, x_size=1)
        runtime.dep_push(LOAD, COMPUTE)
        runtime.dep_push(COMPUTE, STORE)
        runtime.dep_push(COMPUTE, LOAD)
        assert self.kinds(runtime) == [(Load, PUSH_NEXT), (Load, PUSH_NEXT | PUSH_PREV)]

    def test_a_pop_joins_the_next_instruction_of_its_module(self, runtime: Runtime) -> None:
        buffer = runtime.alloc(64)
        runtime.dep_pop(LOAD, COMPUTE)
        runtime.dep_pop(STORE, COMPUTE)
        runtime.dep_pop(COMPUTE, STORE)
        runtime.load_2d(buffer, MemoryId.INP, sram=0, offset=0, x_size=1)
        runtime.load_2d(buffer, MemoryId.ACC, sram=0, offset=0, x_size=1)
        runtime.store_2d(buffer, sram=0, offset=0, x_size=1)
        assert self.kinds(runtime) == [
            (Load, Dependencies.NONE),
            (Load, POP_PREV | POP_NEXT),
            (Store, POP_PREV),
        ]

    def test_without_an_instruction_to_join_a_no_operation_carries_it(
        self, runtime: Runtime
    ) -> None:
        runtime.dep_push(COMPUTE, LOAD)
        runtime.dep_push(COMPUTE, LOAD)
        runtime.dep_pop(COMPUTE, LOAD)
        runtime.dep_pop(COMPUTE, LOAD)
        runtime.dep_push(LOAD, COMPUTE)
        assert runtime.instructions == (
            Load(memory_type=MemoryId.UOP, dependencies=PUSH_PREV),
            Load(memory_type=MemoryId.UOP, dependencies=PUSH_PREV),
            Load(memory_type=MemoryId.INP, dependencies=POP_NEXT),
            # the second pop had to come before the push
            Load(memory_type=MemoryId.INP, dependencies=POP_NEXT | PUSH_NEXT),
        )

    def test_finish_waits_for_loads_and_stores(self, runtime: Runtime) -> None:
        buffer = runtime.alloc(64)
        runtime.load_2d(buffer, MemoryId.INP, sram=0, offset=0, x_size=1)
        runtime.store_2d(buffer, sram=0, offset=0, x_size=1)
        assert executed(runtime) == ["Load INP", "Store OUT", "Finish"]

    @pytest.mark.parametrize(
        ("giver", "taker"),
        [(LOAD, STORE), (STORE, LOAD), (LOAD, LOAD), (COMPUTE, COMPUTE), (STORE, STORE)],
    )
    def test_a_queue_that_is_not_there_is_refused(
        self, runtime: Runtime, giver: Stage, taker: Stage
    ) -> None:
        with pytest.raises(ValueError, match="no token queue"):
            runtime.dep_push(giver, taker)
        with pytest.raises(ValueError, match="no token queue"):
            runtime.dep_pop(giver, taker)
        assert runtime.instructions == ()

    def test_a_pop_without_a_push_is_a_deadlock_and_the_next_stream_is_clean(
        self, runtime: Runtime
    ) -> None:
        runtime.dep_pop(LOAD, COMPUTE)
        with pytest.raises(StreamError, match="deadlock"):
            runtime.synchronize()
        assert runtime.instructions == ()
        runtime.synchronize()

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(
                    [(LOAD, COMPUTE), (COMPUTE, LOAD), (COMPUTE, STORE), (STORE, COMPUTE)]
                ),
                st.booleans(),
                st.sampled_from(Stage),
            ),
            max_size=20,
        )
    )
    def test_pops_after_their_pushes_never_deadlock(
        self, steps: list[tuple[tuple[Stage, Stage], bool, Stage]]
    ) -> None:
        runtime = Runtime(Core.create(TINY, 8192))
        buffer = runtime.alloc(64)
        tokens = dict.fromkeys([queue for queue, _, _ in steps], 0)
        for queue, pops, stage in steps:
            if pops and tokens[queue]:
                runtime.dep_pop(*queue)
                tokens[queue] -= 1
            elif not pops:
                runtime.dep_push(*queue)
                tokens[queue] += 1
            match stage:
                case Stage.LOAD:
                    runtime.load_2d(buffer, MemoryId.INP, sram=0, offset=0, x_size=1)
                case Stage.COMPUTE:
                    runtime.load_2d(buffer, MemoryId.ACC, sram=0, offset=0, x_size=1)
                case Stage.STORE:
                    runtime.store_2d(buffer, sram=0, offset=0, x_size=1)
        runtime.synchronize()

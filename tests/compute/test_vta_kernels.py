"""What the runtime keeps: buffers in DRAM, micro-kernels there and in the core."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_device.vta.encoding import InstructionError
from potash_device.vta.isa import Alu, Load
from potash_device.vta.simulator import Event
from potash_firmware.vta_runtime import (
    AluKernel,
    AluOpcode,
    GemmKernel,
    Loop,
    MemoryId,
    MicroOp,
    Runtime,
    Stage,
    StreamError,
    VtaMemoryError,
)
from potash_firmware.vta_runtime.buffers import Spans
from potash_firmware.vta_runtime.kernels import encode_micro_ops
from support.vta import TINY, Bench, executed

LOAD, COMPUTE, STORE = Stage.LOAD, Stage.COMPUTE, Stage.STORE


@pytest.fixture
def runtime() -> Runtime:
    return Runtime(Core.create(Config.default(), 1 << 20))


def add(*dst: int) -> AluKernel:
    """A kernel with as many micro-ops as there are destinations."""
    return AluKernel(AluOpcode.ADD, tuple(MicroOp(d) for d in dst), immediate=1)


@given(
    st.lists(
        st.tuples(st.integers(0, 2047), st.integers(0, 2047), st.integers(0, 1023)), min_size=1
    )
)
def test_micro_ops_are_encoded_together_as_each_alone(values: list[tuple[int, int, int]]) -> None:
    micro_ops, config = [MicroOp(*one) for one in values], Config.default()
    each = [one.encode(config) for one in micro_ops]
    assert encode_micro_ops(micro_ops, config) == struct.pack(f"<{len(each)}I", *each)


@pytest.mark.parametrize("wrong", [MicroOp(2048), MicroOp(0, -1), MicroOp(0, 0, 1 << 70)])
def test_a_micro_op_among_others_that_cannot_be_encoded_is_named(wrong: MicroOp) -> None:
    with pytest.raises(InstructionError, match="is (2048|-1|1180591620717411303424), outside 0 to"):
        encode_micro_ops([MicroOp(1), wrong], Config.default())


def test_kernels_that_come_and_go_are_not_taken_for_each_other(runtime: Runtime) -> None:
    """Objects that are gone leave their identities to others."""
    wanted = []
    for number in range(300):
        runtime.push_alu(AluKernel(AluOpcode.ADD, (MicroOp(number % 7),), immediate=number))
        wanted.append(number)
    alu = [one for one in runtime.instructions if isinstance(one, Alu)]
    assert [one.imm for one in alu] == wanted
    begins = {one.imm % 7: one.uop_bgn for one in alu}
    assert len(set(begins.values())) == 7
    assert all(one.uop_bgn == begins[one.imm % 7] for one in alu)


class TestMicroKernels:
    """TINY's micro-op buffer holds eight micro-ops."""

    @pytest.fixture
    def runtime(self) -> Runtime:
        return Runtime(Core.create(TINY, 8192))

    def test_a_kernel_is_loaded_once(self, runtime: Runtime) -> None:
        runtime.push_alu(add(0, 1))
        runtime.push_alu(add(0, 1))
        runtime.push_gemm(GemmKernel((MicroOp(0), MicroOp(1)), reset=True))
        assert executed(runtime) == ["Load UOP", "Alu", "Alu", "Gemm", "Finish"]
        runtime.push_alu(add(0, 1))
        assert executed(runtime) == ["Alu", "Finish"]

    def test_the_least_recently_used_makes_room(self, runtime: Runtime) -> None:
        first, second, third = add(0, 1, 2), add(3, 4, 5), add(6, 7, 8)
        for kernel in (first, second, first, third, first):
            runtime.push_alu(kernel)
        swaps = ["Load UOP", "Alu", "Load UOP", "Alu", "Alu", "Load UOP", "Alu", "Alu", "Finish"]
        assert executed(runtime) == swaps
        runtime.push_alu(second)
        assert executed(runtime) == ["Load UOP", "Alu", "Finish"]

    def test_a_kernel_as_large_as_the_buffer_drives_all_others_out(self, runtime: Runtime) -> None:
        runtime.push_alu(add(0))
        runtime.push_alu(add(*range(8)))
        runtime.push_alu(add(0))
        assert executed(runtime).count("Load UOP") == 3

    def test_swapped_kernels_compute_what_they_say(self, runtime: Runtime) -> None:
        out = runtime.alloc(16 * 16)
        runtime.push_gemm(GemmKernel((MicroOp(0),), (Loop(16, dst=1),), reset=True))
        counts = [0] * 16
        random = np.random.default_rng(5)
        for _ in range(40):
            kernel = [int(d) for d in random.integers(0, 16, random.integers(1, 9))]
            runtime.push_alu(add(*kernel))
            for destination in kernel:
                counts[destination] += 1
        runtime.dep_push(COMPUTE, STORE)
        runtime.dep_pop(COMPUTE, STORE)
        runtime.store_2d(out, sram=0, offset=0, x_size=16)
        runtime.synchronize()
        assert list(out.view[::16]) == counts

    @given(
        st.lists(
            st.lists(st.integers(0, 15), min_size=1, max_size=8).map(tuple) | st.none(), max_size=24
        )
    )
    def test_a_kernel_s_micro_ops_are_there_whenever_it_executes(
        self, kernels: list[tuple[int, ...] | None]
    ) -> None:
        """Whatever was swapped out for whatever; None ends a stream."""
        bench = Bench(size=8192)
        core = Core(TINY, bench.dram)
        runtime = Runtime(core)
        waiting: list[tuple[int, ...]] = []
        fetched: dict[int, int] = {}
        held: dict[int, int] = {}

        def look(event: Event) -> None:
            match event.instruction:
                case Load(memory_type=MemoryId.UOP, x_size=size) as load if size:
                    at = load.dram_base * 4 - core.base
                    words = struct.unpack_from(f"<{size}I", core.dram, at)
                    held.update(enumerate(words, load.sram_base))
                    fetched[load.dram_base] = fetched.get(load.dram_base, 0) + 1
                case Alu(uop_bgn=begin, uop_end=end):
                    # A micro-op of TINY has its destination in its low four bits.
                    assert tuple(held[place] for place in range(begin, end)) == waiting.pop(0)

        core.trace = look
        for kernel in [*kernels, None]:
            if kernel is None:
                runtime.synchronize()
                assert not waiting
            else:
                runtime.push_alu(add(*kernel))
                waiting.append(kernel)
        # Each was put into DRAM once, at a place of its own.
        assert len(fetched) == len({kernel for kernel in kernels if kernel is not None})

    def test_after_a_failed_stream_kernels_are_loaded_again(self, runtime: Runtime) -> None:
        runtime.push_alu(add(1))
        runtime.dep_pop(LOAD, COMPUTE)
        with pytest.raises(StreamError):
            runtime.synchronize()
        runtime.push_alu(add(1))
        assert executed(runtime) == ["Load UOP", "Alu", "Finish"]

    def test_their_copies_in_dram_make_room_for_buffers(self, runtime: Runtime) -> None:
        for destination in range(16):
            runtime.push_alu(add(destination))
        runtime.synchronize()
        assert runtime.alloc(8192).size == 8192
        with pytest.raises(VtaMemoryError):
            runtime.push_alu(add(0))


class TestBuffers:
    def test_they_are_zeroed_aligned_and_apart(self, runtime: Runtime) -> None:
        buffers = [runtime.alloc(size) for size in (1, 255, 256, 257, 1000)]
        ends = [buffer.physical + buffer.size for buffer in buffers]
        assert all(buffer.physical % 256 == 0 for buffer in buffers)
        assert all(end <= after.physical for end, after in zip(ends, buffers[1:], strict=False))
        for buffer in buffers:
            buffer.view[:] = b"\xff" * buffer.size
            buffer.free()
        assert bytes(runtime.alloc(2048).view) == bytes(2048)

    def test_the_view_is_the_cores_dram(self, runtime: Runtime) -> None:
        buffer = runtime.alloc(16)
        buffer.view[:4] = b"VTA!"
        offset = buffer.physical - runtime.core.base
        assert bytes(runtime.core.dram[offset : offset + 4]) == b"VTA!"

    def test_dram_that_is_full_is_said_to_be(self, runtime: Runtime) -> None:
        with pytest.raises(VtaMemoryError, match="no room for 1048577 more bytes"):
            runtime.alloc((1 << 20) + 1)
        whole = runtime.alloc(1 << 20)
        with pytest.raises(MemoryError):
            runtime.alloc(1)
        with pytest.raises(VtaMemoryError):
            runtime.synchronize()
        whole.free()
        runtime.alloc(1 << 20)

    @pytest.mark.parametrize("size", [0, -1])
    def test_an_empty_buffer_is_refused(self, runtime: Runtime, size: int) -> None:
        with pytest.raises(ValueError, match="at least one byte"):
            runtime.alloc(size)

    def test_a_freed_buffer_is_of_no_use(self, runtime: Runtime) -> None:
        buffer = runtime.alloc(64)
        buffer.free()
        buffer.free()
        with pytest.raises(ValueError, match="was freed"):
            _ = buffer.view
        with pytest.raises(ValueError, match="was freed"):
            runtime.load_2d(buffer, MemoryId.INP, sram=0, offset=0, x_size=1)
        whole = runtime.alloc(1 << 20)
        assert whole.physical == 0x1000

    def test_memory_that_a_waiting_stream_names_is_not_given_out(self, runtime: Runtime) -> None:
        out = runtime.alloc(64)
        runtime.store_2d(out, sram=0, offset=0, x_size=4)
        out.free()
        assert runtime.alloc(64).physical != 0x1000
        runtime.synchronize()
        assert runtime.alloc(64).physical == 0x1000

    def test_closing_gives_back_what_the_runtime_took(self) -> None:
        core = Core.create(Config.default(), 4096)
        with Runtime(core) as runtime:
            runtime.push_alu(add(0))
        assert runtime.instructions == ()
        assert runtime.alloc(4096).physical == 0x1000

    @given(st.lists(st.integers(-4, 9), max_size=60))
    def test_spans_are_exact(self, steps: list[int]) -> None:
        """Against a set of taken places: positive numbers take, others give back."""
        spans, taken, pieces = Spans(24), set[int](), list[tuple[int, int]]()
        for step in steps:
            if step > 0:
                start = spans.take(step)
                free = [at for at in range(24 - step + 1) if taken.isdisjoint(range(at, at + step))]
                assert start == (free[0] if free else None)
                if start is not None:
                    pieces.append((start, step))
                    taken.update(range(start, start + step))
            elif pieces:
                start, size = pieces.pop(step % len(pieces))
                spans.give_back(start, size)
                taken.difference_update(range(start, start + size))

"""Streams whose steps several threads execute: the same bits, in DRAM and in every buffer."""

import gc
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash.models import networks
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.core import Core
from potash_device.vta.fast.binding import Bound
from potash_device.vta.fast.division import Division
from potash_device.vta.fast.paths import available
from potash_device.vta.fast.simulator import FastSimulator
from potash_device.vta.fast.team import Pace
from potash_device.vta.isa import (
    Alu,
    AluOpcode,
    Gemm,
    Instruction,
    Load,
    MicroOp,
    Store,
    encode_stream,
)
from potash_device.vta.stream import Order
from potash_firmware.apu.models import DRAM_BYTES
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.runtime import Model
from potash_firmware.vta_runtime import Runtime
from support.vta import BASE, CONFIGS
from support.vta_engines import Pair, finished, micro_op_lists, streams

DEFAULT = Config.default()
ROOM = 384
"""Elements of OUT that a pair's DRAM has room for."""
MICRO_OPS = [MicroOp(0, x % 3, x % 2) for x in range(4)]
"""Of ACC, INP and WGT; and one of ACC alone."""


def halves(draw: st.DrawFn, size: int) -> int:
    """Where a buffer of a tile begins: at one of two places, most often."""
    return draw(st.sampled_from((0, size, 0, size, 3)))


def in_dram(draw: st.DrawFn, memory: MemoryId, elements: int) -> int:
    """The first of some elements, anywhere in a pair's DRAM."""
    size = DEFAULT.element_bytes(memory)
    first = -(-BASE // size)
    return first + draw(st.integers(0, ROOM * 16 // size - elements))


@st.composite
def tiles(draw: st.DrawFn) -> list[Instruction]:
    """What schedules make for a tile, or most of it: loads, products, operations and a store."""
    acc, inp, wgt = halves(draw, 32), halves(draw, 16), halves(draw, 2)
    count = draw(st.integers(1, 9))
    made: list[Instruction] = []
    if draw(st.integers(0, 4)):
        lines = draw(st.integers(1, 3))
        made.append(
            Load(
                memory_type=MemoryId.INP,
                sram_base=inp,
                dram_base=in_dram(draw, MemoryId.INP, 60),
                y_size=lines,
                x_size=5,
                x_stride=draw(st.sampled_from((5, 20))),
                x_pad_0=draw(st.integers(0, 1)),
            )
        )
    if draw(st.integers(0, 3)):
        first = in_dram(draw, MemoryId.WGT, 3)
        made.append(
            Load(memory_type=MemoryId.WGT, sram_base=wgt, dram_base=first, y_size=1, x_size=3)
        )
    start = draw(st.integers(0, 5))
    whole: dict[str, Any] = {"uop_end": 1, "iter_in": count, "dst_factor_in": 1}
    # The loop that does not turn moves the micro-ops to the tile's places: it has one iteration
    # more, which comes first and works on what is at the beginning of the buffers.
    if start == 0:
        memory = draw(st.sampled_from((MemoryId.ACC, MemoryId.ACC_8BIT)))
        first = in_dram(draw, memory, count)
        made.append(
            Load(memory_type=memory, sram_base=acc, dram_base=first, y_size=1, x_size=count)
        )
    elif start < 4:
        made.append(Gemm(reset=True, iter_out=2, dst_factor_out=acc, **whole))
    elif start == 4:
        zero: dict[str, Any] = {"alu_opcode": AluOpcode.MUL, "use_imm": True, "imm": 0}
        made.append(Alu(iter_out=2, dst_factor_out=acc, **zero, **whole))
    for _ in range(draw(st.integers(0, 2))):
        made.append(
            Gemm(
                uop_end=draw(st.integers(1, 4)),
                iter_out=2,
                iter_in=count,
                dst_factor_out=acc,
                dst_factor_in=1,
                src_factor_out=inp,
                src_factor_in=draw(st.integers(0, 1)),
                wgt_factor_out=wgt,
            )
        )
    for _ in range(draw(st.integers(0, 3))):
        opcode = draw(st.sampled_from(AluOpcode))
        operand: dict[str, Any] = {"use_imm": True, "imm": draw(st.integers(-9, 9))}
        if draw(st.booleans()):
            operand = {
                "src_factor_out": draw(st.sampled_from((acc, acc + count, 0))),
                "src_factor_in": draw(st.integers(0, 1)),
            }
        made.append(Alu(alu_opcode=opcode, iter_out=2, dst_factor_out=acc, **operand, **whole))
    if draw(st.integers(0, 5)):
        made.append(
            Store(
                memory_type=MemoryId.OUT,
                sram_base=acc,
                dram_base=in_dram(draw, MemoryId.OUT, count),
                y_size=1,
                x_size=count,
            )
        )
    return made


def settle() -> list[Instruction]:
    """Loads of all that tiles use, so that nothing is left of what was there before."""
    return [
        Load(
            memory_type=memory,
            dram_base=-(-BASE // DEFAULT.element_bytes(memory)),
            y_size=1,
            x_size=size,
            y_pad_1=3,
        )
        for memory, size in ((MemoryId.INP, 40), (MemoryId.WGT, 8), (MemoryId.ACC, 64))
    ]


def division_of(fast: FastSimulator) -> Division | None:
    """That of the stream which has run last."""
    return next(reversed(fast._programs.values())).division


@given(
    st.lists(tiles(), min_size=2, max_size=7),
    st.sampled_from((2, 2, 3)),
    st.booleans(),
    st.sampled_from(available(DEFAULT)),
)
def test_tiles(made: list[list[Instruction]], threads: int, settled: bool, path: str) -> None:
    """Which may need what others have stored, or left in a buffer; or overwrite it."""
    pair = Pair(DEFAULT, path=path, micro_ops=MICRO_OPS, order=Order.PROGRAM, threads=threads)
    stream = [*(settle() if settled else []), *(one for tile in made for one in tile)]
    for _ in range(4):
        assert pair.check(finished(*stream)).refusal is None
    assert division_of(pair.fast) is not None


@pytest.mark.parametrize("config", (DEFAULT, CONFIGS[1], CONFIGS[3]))
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_stream(config: Config, data: Any) -> None:
    """Also one that is refused, or that writes its own micro-ops."""
    micro_ops = data.draw(micro_op_lists(config))
    pair = Pair(config, micro_ops=micro_ops, threads=2)
    stream = data.draw(streams(config, len(micro_ops)))
    for _ in range(3):
        pair.check(stream)


def tile(number: int) -> list[Instruction]:
    """A tile that uses the same places as all others, and depends on none."""
    loads = [
        Load(
            memory_type=memory,
            dram_base=BASE // DEFAULT.element_bytes(memory) + number % 8,
            y_size=1,
            x_size=size,
        )
        for memory, size in ((MemoryId.INP, 12), (MemoryId.WGT, 2))
    ]
    work: dict[str, Any] = {"iter_in": 9, "dst_factor_in": 1}
    return [
        *loads,
        Gemm(reset=True, uop_end=1, **work),
        Gemm(uop_end=4, src_factor_in=1, **work),
        Store(
            memory_type=MemoryId.OUT, dram_base=BASE // 16 + 200 + 9 * number, y_size=1, x_size=9
        ),
    ]


@pytest.mark.parametrize("threads", (2, 3, 4))
def test_independent_tiles_are_divided_evenly(threads: int) -> None:
    pair = Pair(DEFAULT, micro_ops=MICRO_OPS, order=Order.PROGRAM, threads=threads)
    stream = [one for number in range(12) for one in tile(number)]
    for _ in range(3):
        pair.check(finished(*stream))
    division = division_of(pair.fast)
    assert division is not None
    assert [part.steps.size for part in division.parts] == [4 * 12 // threads] * threads
    # Nobody waits for anybody.
    assert all((part.waits < 0).all() for part in division.parts)
    # The last thread has what the core holds at the end.
    assert {one.thread for one in division.left} == {threads - 1}


def check_waits(stream: list[Instruction]) -> list[bool]:
    """Whether each of two threads ever waits for the other one."""
    pair = Pair(DEFAULT, micro_ops=MICRO_OPS, order=Order.PROGRAM, threads=2)
    for _ in range(4):
        pair.check(finished(*stream))
    division = division_of(pair.fast)
    assert division is not None
    return [bool((part.waits >= 0).any()) for part in division.parts]


def test_what_another_thread_has_stored_is_waited_for() -> None:
    stream = [one for number in range(4) for one in tile(number)]
    for number in range(4):
        # The last tile's output is the first one's input.
        stored = BASE // 16 + 200 + 9 * (3 - number)
        its = Load(memory_type=MemoryId.INP, dram_base=stored, y_size=1, x_size=9)
        stream += [its, *tile(8 + number)[1:]]
    assert check_waits(stream) == [True, True]


def test_what_another_thread_loads_is_not_overwritten_before() -> None:
    stream = [one for number in range(4) for one in tile(number)]
    for number in range(4):
        over = BASE // 16 + 32 + 4 * number  # the weights of the first ones
        its = Store(memory_type=MemoryId.OUT, dram_base=over, y_size=1, x_size=9)
        stream += [*tile(4 + number)[:-1], its]
    assert check_waits(stream) == [False, True]


def test_micro_ops_that_lead_out_are_refused_before_anything_changes() -> None:
    """Those of a stream that has been divided before."""
    pair = Pair(DEFAULT, micro_ops=MICRO_OPS, order=Order.PROGRAM, threads=2)
    load = Load(memory_type=MemoryId.UOP, dram_base=BASE // 4 + 1500, y_size=1, x_size=4)
    for dram in pair.drams:
        dram[6000:6016] = np.array([x % 3 << 11 for x in range(4)], "<u4").tobytes()
    stream = finished(load, *[one for number in range(6) for one in tile(number)])
    for _ in range(2):
        assert pair.check(stream).refusal is None
    assert division_of(pair.fast) is not None
    for dram in pair.drams:
        dram[6012:6016] = np.array([2044], "<u4").tobytes()
    before = bytes(pair.drams[1])
    for _ in range(2):
        refusal = pair.check(stream).refusal
        assert refusal is not None and "past the 2048 elements of ACC" in refusal[1]
    assert bytes(pair.drams[1]) == before


def test_threads_that_cannot_be_started_are_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    pair = Pair(DEFAULT, micro_ops=MICRO_OPS, order=Order.PROGRAM, threads=2)
    stream = finished(*[one for number in range(6) for one in tile(number)])
    for _ in range(3):
        pair.check(stream)


def test_after_an_interrupt_there_are_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that waited for the one that was interrupted end."""
    pair = Pair(DEFAULT, micro_ops=MICRO_OPS, order=Order.PROGRAM, threads=2)
    stream = [one for number in range(4) for one in tile(number)]
    for number in range(4):
        stored = BASE // 16 + 200 + 9 * (3 - number)
        its = Load(memory_type=MemoryId.INP, dram_base=stored, y_size=1, x_size=9)
        stream += [its, *tile(8 + number)[1:]]
    for _ in range(2):
        pair.check(finished(*stream))
    assert pair.fast._team is not None
    (other,) = pair.fast._team._threads

    call = Bound.__call__

    def interrupted(bound: Bound, *numbers: int) -> int:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return call(bound, *numbers)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Bound, "__call__", interrupted)
        pair.fast.execute(encode_stream(finished(*stream), DEFAULT))
    gc.collect()
    other.join(10)
    assert not other.is_alive()
    pair.drams[1][:] = pair.drams[0]
    pair.fast.adopt(pair.readable)
    for _ in range(3):
        pair.check(finished(*stream))
    assert pair.fast._team is not None


def test_a_layer_of_a_network() -> None:
    model = networks.make("resnet18-c2")
    inputs = np.random.default_rng(9).integers(-128, 128, 56 * 56 * 64, np.int8).tobytes()

    def outputs(model: Model) -> bytes:
        output = memoryview(bytearray(1 << 18))
        return bytes(output[: model(inputs, output)])

    wanted = outputs(Model(model, delegate=None, reference=True))
    core = Core.create(DEFAULT, DRAM_BYTES, engine="fast", threads=2)
    assert isinstance(core._engine, FastSimulator)
    core._engine.worth, core._engine.divided_at = 1, 2
    with Runtime(core) as runtime:
        delegated = Model(model, delegate=VtaDelegate(runtime))
        for _ in range(4):
            assert outputs(delegated) == wanted
    division = division_of(core._engine)
    assert division is not None
    sizes = sorted(part.steps.size for part in division.parts)
    assert sizes[0] > sizes[1] * 0.7


def test_threads_that_take_longer_are_tried_more_rarely() -> None:
    pace, divided = Pace(), 0
    pace.took(1.0, divided=False)
    for _ in range(300):
        one = not pace.rests()
        divided += one
        pace.took(2.0 if one else 1.0, divided=one)
    assert 6 <= divided <= 10
    while pace.rests():
        pass
    pace.took(0.5, divided=True)
    assert not any(pace.rests() for _ in range(100))

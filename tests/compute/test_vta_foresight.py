"""Micro-ops that lead out of a buffer are seen before anything executes, unless the stream itself
may have written them; on every engine."""

from dataclasses import replace
from typing import Any

import pytest

from potash_device.vta.config import MemoryId
from potash_device.vta.core import Core
from potash_device.vta.engines import ENGINES
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
    encode_stream,
)
from potash_device.vta.stream import Order, StreamError
from support.vta import BASE, TINY

POP_PREV, PUSH_NEXT = Dependencies.POP_PREV, Dependencies.PUSH_NEXT

SIZE = 1024
ONE: dict[str, Any] = {"y_size": 1, "x_size": 1}

GOOD, BAD = MicroOp(14), MicroOp(15)
STEP = Alu(alu_opcode=AluOpcode.ADD, use_imm=True, imm=1, uop_end=1, iter_in=2, dst_factor_in=1)
"""Adds to the element that a micro-op names and to the one behind it; TINY has 16."""

PAST = "dst index 16 is past the 16 elements of ACC"


def at(offset: int, memory: MemoryId) -> int:
    return (BASE + offset) // TINY.element_bytes(memory)


def load_micro_op(offset: int, **fields: Any) -> Load:
    return Load(memory_type=MemoryId.UOP, dram_base=at(offset, MemoryId.UOP), **ONE, **fields)


def store(offset: int, **fields: Any) -> Store:
    return Store(memory_type=MemoryId.OUT, dram_base=at(offset, MemoryId.OUT), **ONE, **fields)


class Board:
    """DRAM with a good micro-op at 0, a bad one at 4, and at 16 and 32 what makes `store` write the
    one and the other."""

    def __init__(self, engine: str, order: Order = Order.PROGRAM) -> None:
        self.memory = bytearray(SIZE)
        for place, micro_op in ((0, GOOD), (4, BAD), (16, GOOD), (32, BAD)):
            self.memory[place : place + 4] = micro_op.encode(TINY).to_bytes(4, "little")
        self.before = bytes(self.memory)
        self.core = Core(TINY, memoryview(self.memory), BASE, engine=engine, order=order)

    def run(self, *stream: Instruction) -> None:
        self.core.execute(encode_stream([*stream, Finish()], TINY))

    def refused(self, *stream: Instruction) -> StreamError:
        with pytest.raises(StreamError, match=PAST) as caught:
            self.run(*stream)
        return caught.value

    @property
    def untouched(self) -> bool:
        """Whether nothing has changed, in DRAM or in ACC."""
        if bytes(self.memory) != self.before:
            return False
        everything = Store(
            memory_type=MemoryId.OUT, dram_base=at(512, MemoryId.OUT), y_size=1, x_size=16
        )
        self.run(everything)
        return not any(self.memory[512:768])


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def board(engine: str) -> Board:
    return Board(engine)


def eight_bit(offset: int) -> Load:
    return Load(memory_type=MemoryId.ACC_8BIT, dram_base=at(offset, MemoryId.ACC_8BIT), **ONE)


class TestForeseen:
    def test_nothing_is_stored_before_a_micro_op_that_leads_out(self, board: Board) -> None:
        error = board.refused(eight_bit(16), store(64), load_micro_op(4), STEP)
        assert error.index == 3
        assert board.untouched

    def test_the_order_is_the_one_in_which_it_executes(self, engine: str) -> None:
        """The STORE stands before the load of what it overwrites and executes behind it."""
        board = Board(engine, Order.TOKENS)
        waits = store(0, dependencies=POP_PREV)
        gives = replace(STEP, dependencies=PUSH_NEXT)
        assert board.refused(waits, load_micro_op(4), gives).index == 2
        assert board.untouched

    def test_micro_ops_of_an_earlier_stream_are_known(self, board: Board) -> None:
        board.run(load_micro_op(4))
        assert board.refused(store(64), STEP).index == 1
        assert board.untouched

    def test_a_stream_that_ran_before_is_looked_at_again_with_other_micro_ops(
        self, board: Board
    ) -> None:
        stream = (load_micro_op(0), STEP, store(64))
        for _ in range(4):
            board.run(*stream)
        good = bytes(board.memory[:4])
        board.memory[:4] = BAD.encode(TINY).to_bytes(4, "little")
        assert board.refused(*stream).index == 1
        board.memory[:4] = good
        board.run(*stream)

    def test_a_stream_that_ran_before_is_looked_at_again_with_another_buffer(
        self, board: Board
    ) -> None:
        board.run(load_micro_op(0))
        for _ in range(4):
            board.run(STEP)
        board.run(load_micro_op(4))
        assert board.refused(STEP).index == 0

    def test_pads_are_known(self, board: Board) -> None:
        beside = Load(
            memory_type=MemoryId.UOP, sram_base=1, dram_base=at(4, MemoryId.UOP), x_pad_0=2, **ONE
        )
        zeroes = replace(STEP, uop_end=3)
        board.run(beside, zeroes)
        past_it = replace(STEP, uop_end=4)
        assert board.refused(store(64), past_it).index == 1

    def test_products_are_foreseen_too(self, board: Board) -> None:
        out_of_inp = Gemm(uop_end=1, iter_in=2, src_factor_in=15, iter_out=2, src_factor_out=1)
        with pytest.raises(StreamError, match="src index 16 is past the 16 elements of INP"):
            board.run(load_micro_op(0), store(64), out_of_inp)
        out_of_wgt = Gemm(uop_end=1, iter_in=2, wgt_factor_in=15, iter_out=2, wgt_factor_out=1)
        with pytest.raises(StreamError, match="wgt index 16 is past the 16 elements of WGT"):
            board.run(load_micro_op(0), store(64), out_of_wgt)
        assert board.untouched

    def test_a_refused_stream_leaves_the_micro_ops_as_they_were(self, board: Board) -> None:
        board.run(load_micro_op(0))
        board.refused(load_micro_op(4), STEP)
        board.run(STEP)


class TestNotRefused:
    def test_a_bad_micro_op_that_is_replaced_in_time(self, board: Board) -> None:
        board.run(load_micro_op(4), store(64), load_micro_op(0), STEP)

    def test_a_bad_micro_op_that_the_stream_overwrites_in_dram(self, board: Board) -> None:
        """What stands in DRAM before says nothing about what is loaded: zero, a good one."""
        board.run(eight_bit(16), store(0), load_micro_op(4), STEP)
        assert bytes(board.memory[:16]) == GOOD.encode(TINY).to_bytes(16, "little")

    def test_stores_on_both_sides_of_a_bad_micro_op(self, board: Board) -> None:
        """Between them all counts as written, so it is seen as it runs."""
        stores = store(64), store(96)
        moved = Load(memory_type=MemoryId.UOP, dram_base=at(80, MemoryId.UOP), **ONE)
        board.memory[80:84] = BAD.encode(TINY).to_bytes(4, "little")
        board.memory[64] = 0xA5
        assert board.refused(*stores, moved, STEP).index == 3
        assert board.memory[64] == 0


def test_a_micro_op_that_the_stream_itself_writes_is_seen_as_it_runs(board: Board) -> None:
    """It cannot be known before; the instruction changes nothing, those before it have run."""
    error = board.refused(eight_bit(32), store(0), load_micro_op(0), STEP)
    assert error.index == 3
    assert board.memory[0] == 15
    assert bytes(board.memory[16:]) == board.before[16:]

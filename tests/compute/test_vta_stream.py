"""Tokens, the order that they allow, and their deadlocks."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_device.vta.config import MemoryId
from potash_device.vta.isa import Dependencies, Finish, Instruction, Load, Stage, Store
from potash_device.vta.stream import Order, StreamError, canonical_order, execution_order
from support.vta import Bench, compute, load, store

POP_PREV, POP_NEXT = Dependencies.POP_PREV, Dependencies.POP_NEXT
PUSH_PREV, PUSH_NEXT = Dependencies.PUSH_PREV, Dependencies.PUSH_NEXT


class TestOrder:
    def test_without_tokens_load_goes_first_then_compute_then_store(self) -> None:
        stream: list[Instruction] = [store(), compute(), load(), store(), load(), Finish()]
        assert canonical_order(stream) == [2, 4, 1, 5, 0, 3]

    def test_tokens_hold_a_module_back(self) -> None:
        stream: list[Instruction] = [
            load(PUSH_NEXT),
            compute(POP_PREV | PUSH_NEXT),
            store(POP_PREV | PUSH_PREV),
            compute(POP_NEXT | PUSH_PREV),
            load(POP_NEXT | PUSH_NEXT),
            Finish(dependencies=POP_PREV),
        ]
        assert canonical_order(stream) == [0, 1, 2, 3, 4, 5]

    def test_load_runs_ahead_as_far_as_its_tokens_last(self) -> None:
        stream: list[Instruction] = [
            compute(PUSH_PREV),
            compute(PUSH_PREV),
            compute(POP_PREV),
            compute(POP_PREV),
            load(POP_NEXT | PUSH_NEXT),
            load(POP_NEXT | PUSH_NEXT),
            store(),
            Finish(),
        ]
        # compute gives two tokens and then waits; store has nothing to wait for
        assert canonical_order(stream) == [0, 1, 6, 4, 5, 2, 3, 7]

    def test_a_missing_dependence_has_one_defined_wrong_result(self) -> None:
        bench = Bench()
        bench.put(0, np.full((1, 2, 8), 3, np.int32))
        read = Load(
            memory_type=MemoryId.ACC,
            dram_base=bench.element(MemoryId.ACC, 0),
            y_size=1,
            x_size=1,
            x_stride=1,
        )
        write = Store(
            memory_type=MemoryId.OUT,
            dram_base=bench.element(MemoryId.OUT, 64),
            y_size=1,
            x_size=1,
            x_stride=1,
        )
        bench.run(write, read)
        assert list(bench.dram[64:80]) == [3] * 16


class TestProgramOrder:
    def test_tokens_are_ignored(self) -> None:
        stream: list[Instruction] = [
            store(POP_PREV),
            compute(PUSH_PREV | POP_PREV | POP_NEXT),
            load(PUSH_PREV | PUSH_NEXT),
            Finish(dependencies=POP_NEXT),
        ]
        assert list(execution_order(stream, Order.PROGRAM)) == [0, 1, 2, 3]
        with pytest.raises(StreamError):
            execution_order(stream, Order.TOKENS)

    @pytest.mark.parametrize(
        ("stream", "index", "reason"),
        [
            ([], 0, "does not end with FINISH"),
            ([load(), compute()], 1, "does not end with FINISH"),
            ([Finish(), load(), Finish()], 0, "FINISH is not the last"),
        ],
    )
    def test_it_still_ends_with_finish(
        self, stream: list[Instruction], index: int, reason: str
    ) -> None:
        with pytest.raises(StreamError, match=reason) as caught:
            execution_order(stream, Order.PROGRAM)
        assert caught.value.index == index

    def test_a_store_before_its_load_stores_what_was_there(self) -> None:
        """The same two instructions in token order end the other way round (above)."""
        bench = Bench(order=Order.PROGRAM)
        bench.put(0, np.full((1, 2, 8), 3, np.int32))
        bench.simulator.acc[0] = 9
        one: dict[str, Any] = {"y_size": 1, "x_size": 1}
        read = Load(memory_type=MemoryId.ACC, dram_base=bench.element(MemoryId.ACC, 0), **one)
        write = Store(memory_type=MemoryId.OUT, dram_base=bench.element(MemoryId.OUT, 64), **one)
        bench.run(write, read)
        assert list(bench.dram[64:80]) == [9] * 16
        assert (bench.simulator.acc[0] == 3).all()


ALLOWED = {
    Stage.LOAD: POP_NEXT | PUSH_NEXT,
    Stage.COMPUTE: POP_PREV | POP_NEXT | PUSH_PREV | PUSH_NEXT,
    Stage.STORE: POP_PREV | PUSH_PREV,
}
no_operations = st.builds(
    lambda make, bits: make(bits & ALLOWED[make().stage]),
    st.sampled_from([load, compute, store]),
    st.builds(Dependencies, st.integers(0, 15)),
)


def most_that_can_run(stream: list[Instruction]) -> set[int]:
    """Every instruction that runs at all, whatever the order: a module's next instruction may
    always run as soon as its tokens are there, and nobody else takes them."""
    ran: set[int] = set()

    def given_and_taken(giver: Stage, taker: Stage) -> int:
        gives, takes = (PUSH_NEXT, POP_PREV) if giver < taker else (PUSH_PREV, POP_NEXT)
        done = [stream[index] for index in ran]
        return sum(i.stage is giver and gives in i.dependencies for i in done) - sum(
            i.stage is taker and takes in i.dependencies for i in done
        )

    while True:
        for stage in reversed(Stage):
            waiting = [i for i, one in enumerate(stream) if one.stage is stage and i not in ran]
            if not waiting:
                continue
            needs = stream[waiting[0]].dependencies
            before, after = Stage(max(stage - 1, 0)), Stage(min(stage + 1, 2))
            if POP_PREV in needs and not given_and_taken(before, stage):
                continue
            if POP_NEXT in needs and not given_and_taken(after, stage):
                continue
            ran.add(waiting[0])
            break
        else:
            return ran


@given(st.lists(no_operations, max_size=12))
def test_a_stream_deadlocks_only_where_every_order_does(head: list[Instruction]) -> None:
    stream = [*head, Finish()]
    stuck = set(range(len(stream))) - most_that_can_run(stream)
    try:
        order = canonical_order(stream)
    except StreamError as error:
        assert error.index == min(stuck)
        return
    assert not stuck
    assert sorted(order) == list(range(len(stream)))
    for stage in Stage:
        own = [index for index in order if stream[index].stage is stage]
        assert own == sorted(own)


class TestRefusedOrder:
    @pytest.mark.parametrize(
        ("stream", "index", "reason"),
        [
            ([], 0, "does not end with FINISH"),
            ([load(), compute()], 1, "does not end with FINISH"),
            ([load(), Finish(), compute()], 1, "FINISH is not the last"),
            ([Finish(), Finish()], 0, "FINISH is not the last"),
            ([Finish(), load()], 0, "FINISH is not the last"),
            ([load(POP_PREV), Finish()], 0, "LOAD has no neighbour"),
            ([load(), load(PUSH_PREV), Finish()], 1, "LOAD has no neighbour"),
            ([store(POP_NEXT), Finish()], 0, "STORE has no neighbour"),
            ([store(PUSH_NEXT), Finish()], 0, "STORE has no neighbour"),
            ([Finish(dependencies=POP_PREV)], 0, "COMPUTE waits for a token from LOAD"),
            ([Finish(dependencies=POP_NEXT)], 0, "COMPUTE waits for a token from STORE"),
            ([load(POP_NEXT), Finish()], 0, "LOAD waits for a token from COMPUTE"),
            ([load(), store(POP_PREV), Finish()], 1, "STORE waits for a token from COMPUTE"),
            # one token, two takers
            (
                [load(PUSH_NEXT), compute(POP_PREV), compute(POP_PREV), Finish()],
                2,
                "COMPUTE waits for a token from LOAD",
            ),
            # each waits for what the other would give afterwards
            (
                [load(POP_NEXT | PUSH_NEXT), compute(POP_PREV | PUSH_PREV), Finish()],
                0,
                "LOAD waits for a token from COMPUTE",
            ),
            # the token that an instruction gives does not serve itself
            (
                [compute(), compute(POP_NEXT | PUSH_NEXT), store(POP_PREV | PUSH_PREV), Finish()],
                1,
                "COMPUTE waits for a token from STORE",
            ),
            # both tokens or none
            (
                [load(PUSH_NEXT), compute(POP_PREV | POP_NEXT), Finish()],
                1,
                "COMPUTE waits for a token from STORE",
            ),
        ],
    )
    def test_index_and_reason(self, stream: list[Instruction], index: int, reason: str) -> None:
        with pytest.raises(StreamError, match=reason) as caught:
            canonical_order(stream)
        assert caught.value.index == index
        assert str(caught.value) == f"instruction {index}: {caught.value.reason}"

    def test_nothing_runs_of_a_stream_that_would_stop_half_way(self) -> None:
        bench = Bench()
        bench.simulator.acc[:] = 7
        zero = Load(memory_type=MemoryId.ACC, x_size=1, y_pad_0=1)
        with pytest.raises(StreamError, match="deadlock"):
            bench.run(zero, compute(POP_PREV))
        assert (bench.simulator.acc == 7).all()

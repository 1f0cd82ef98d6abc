"""The VTA's clock: cycles worked out by hand from the documented model."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.vta import timing
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.isa import (
    Alu,
    AluOpcode,
    Dependencies,
    Finish,
    Gemm,
    Instruction,
    Load,
    Stage,
    Store,
    encode_stream,
)
from potash_device.vta.stream import StreamError
from potash_device.vta.timing.parameters import ParameterError, Parameters
from potash_device.vta.timing.result import Kind, Moments, Stall, Timing, Token, tokens
from support.vta import CONFIGS, TINY
from support.vta_clock import facts, simulate
from support.vta_engines import streams

DEFAULT = Config.default()
LOAD, COMPUTE, STORE = Stage
NONE, POP_PREV, POP_NEXT, PUSH_PREV, PUSH_NEXT = (
    Dependencies.NONE,
    Dependencies.POP_PREV,
    Dependencies.POP_NEXT,
    Dependencies.PUSH_PREV,
    Dependencies.PUSH_NEXT,
)

PLAIN = Parameters(
    latency=10,
    burst_cycles=0,
    decode=0,
    token_cycles=1,
    gemm_fill=0,
    gemm_drain=0,
    alu_fill=0,
    alu_drain=0,
)
"""8 bytes a cycle: an instruction is fetched in 2 cycles, the first of them at 12."""


def inp(elements: int, dependencies: Dependencies = NONE) -> Load:
    """2 beats for each element of 16 bytes, and 10 cycles for the row."""
    return Load(memory_type=MemoryId.INP, y_size=1, x_size=elements, dependencies=dependencies)


def acc(elements: int) -> Load:
    """8 beats for each element of 64 bytes, and 10 cycles for the row; of COMPUTE."""
    return Load(memory_type=MemoryId.ACC, y_size=1, x_size=elements)


def out(elements: int, dependencies: Dependencies = NONE) -> Store:
    """2 beats for each element of 16 bytes, and 10 cycles for the row."""
    return Store(memory_type=MemoryId.OUT, y_size=1, x_size=elements, dependencies=dependencies)


def gemm(steps: int, dependencies: Dependencies = NONE) -> Gemm:
    """A cycle for each step."""
    return Gemm(uop_end=1, iter_in=steps, dependencies=dependencies)


def clocked(*stream: Instruction, parameters: Parameters = PLAIN) -> Timing:
    """The stream and FINISH; the clock, compiled or not, and the readable one agree on it."""
    whole = [*stream, Finish()]
    found = timing.run(DEFAULT, parameters, whole)
    interpreted = timing.run(DEFAULT, parameters, whole, compiled=False)
    for expected in (interpreted, simulate(DEFAULT, parameters, whole)):
        assert np.array_equal(found.moments, expected.moments)
        assert np.array_equal(found.facts, expected.facts)
    return found


def spans(found: Timing) -> list[tuple[int, int]]:
    """When each instruction began, and when its module was free again."""
    return [(one.moments.start, one.moments.end) for one in found]


class TestAnInstruction:
    ODD = Parameters(
        bus_bytes=8,
        latency=11,
        burst_bytes=64,
        burst_cycles=3,
        token_cycles=7,
        gemm_interval=2,
        gemm_fill=13,
        gemm_drain=17,
        alu_interval=3,
        alu_immediate_interval=5,
        alu_fill=19,
        alu_drain=23,
    )
    LOOPS: ClassVar[dict[str, Any]] = {"uop_bgn": 2, "uop_end": 6, "iter_out": 2, "iter_in": 3}
    PADDED = Load(
        memory_type=MemoryId.INP, x_size=5, y_size=2, x_stride=9, y_pad_0=1, x_pad_0=1, x_pad_1=2
    )

    @pytest.mark.parametrize(
        ("instruction", "kind", "cycles", "beats", "size", "products"),
        [
            # 24 steps, 6 turns: 24 * 2 + 6 * 17 + 13
            (Gemm(**LOOPS), Kind.GEMM, 163, 0, 0, 24),
            (Gemm(**LOOPS, reset=True), Kind.RESET, 163, 0, 0, 0),
            # 24 * 3 + 6 * 23 + 19
            (Alu(**LOOPS, alu_opcode=AluOpcode.ADD), Kind.ALU, 229, 0, 0, 0),
            # 24 * 5 + 6 * 23 + 19
            (Alu(**LOOPS, alu_opcode=AluOpcode.ADD, use_imm=True), Kind.ALU, 277, 0, 0, 0),
            # Rows of 80 bytes: 10 beats, 2 bursts of 3, latency 11; a row of 8 pads, and 2 of 3.
            (PADDED, Kind.INP, 2 * (10 + 6 + 11) + 8 + 6, 20, 160, 0),
            # 256 bytes: 32 beats, 4 bursts
            (Load(memory_type=MemoryId.WGT, x_size=1, y_size=1), Kind.WGT, 55, 32, 256, 0),
            # 12 bytes take 2 beats.
            (Load(memory_type=MemoryId.UOP, x_size=3, y_size=1), Kind.UOP, 16, 2, 12, 0),
            (Load(memory_type=MemoryId.ACC_8BIT, x_size=1, y_size=1), Kind.ACC, 16, 2, 16, 0),
            (out(4), Kind.OUT, 8 + 3 + 11, 8, 64, 0),
            # Nothing but zeroes: no channel.
            (Load(memory_type=MemoryId.INP, x_size=2, y_pad_0=3), Kind.INP, 6, 0, 0, 0),
            (Load(memory_type=MemoryId.INP, y_size=5), Kind.TOKENS, 7, 0, 0, 0),
            (Finish(), Kind.TOKENS, 7, 0, 0, 0),
        ],
    )
    def test_it_takes_what_its_parameters_say(
        self,
        instruction: Instruction,
        kind: Kind,
        cycles: int,
        beats: int,
        size: int,
        products: int,
    ) -> None:
        found = facts(DEFAULT, self.ODD, instruction)
        assert found == (instruction.stage, kind, 0, cycles, beats, size, products)

    def test_decoding_comes_before_work_and_not_before_tokens(self) -> None:
        found = clocked(gemm(5), parameters=replace(PLAIN, decode=4))
        assert spans(found) == [(12, 21), (21, 22)]
        assert found.busy[COMPUTE] == 9 + 1


def test_an_instruction_waits_for_its_fetch_its_token_and_its_module() -> None:
    found = clocked(inp(1, PUSH_NEXT), gemm(5, POP_PREV))
    load, product, finish = found
    # fetched, free, previous, start, granted, done, end
    assert load.moments == Moments(12, 0, 12, 12, 12, 24, 24)
    assert product.moments == Moments(14, 0, 24, 24, 24, 29, 29)
    assert finish.moments == Moments(16, 29, 29, 29, 29, 30, 30)
    assert found.cycles == 30
    assert found.stalls[COMPUTE] == {
        Stall.FETCH: 14,
        Stall.PREVIOUS: 10,
        Stall.NEXT: 0,
        Stall.CHANNEL: 0,
        Stall.TOKEN_QUEUE: 0,
    }
    assert found.work[COMPUTE] == {Kind.GEMM: 5, Kind.TOKENS: 1}
    assert (found.busy[LOAD], found.idle[LOAD]) == (12, 6)
    assert found.utilisation == 5 / 30
    assert found.operations == 5 * 2 * 16 * 16
    assert found.seconds == 30 / 100e6
    assert (found.read_bytes, found.written_bytes) == (16, 0)
    assert tokens(found) == [Token((LOAD, COMPUTE), 0, 24, 1, 24)]


def test_with_one_buffer_loading_and_computing_take_turns() -> None:
    found = clocked(
        inp(5, PUSH_NEXT),
        gemm(20, POP_PREV | PUSH_PREV),
        inp(5, POP_NEXT | PUSH_NEXT),
        gemm(20, POP_PREV),
    )
    assert spans(found) == [(12, 32), (32, 52), (52, 72), (72, 92), (92, 93)]
    assert found.stalls[LOAD][Stall.NEXT] == 20
    assert found.stalls[COMPUTE][Stall.PREVIOUS] == (32 - 14) + 20


def test_with_two_buffers_one_loads_while_the_other_is_computed_with() -> None:
    found = clocked(inp(5, PUSH_NEXT), gemm(20, POP_PREV), inp(5, PUSH_NEXT), gemm(20, POP_PREV))
    assert spans(found) == [(12, 32), (32, 52), (32, 52), (52, 72), (72, 73)]
    assert found.stalls[LOAD][Stall.NEXT] == 0
    assert found.stalls[COMPUTE][Stall.PREVIOUS] == 32 - 14


def test_a_token_from_the_next_module_is_waited_for_after_that_from_the_previous() -> None:
    found = clocked(inp(1, PUSH_NEXT), out(5, PUSH_PREV), gemm(1, POP_PREV | POP_NEXT))
    product = list(found)[2]
    assert product.moments[:4] == (16, 0, 24, 34)
    assert found.stalls[COMPUTE][Stall.PREVIOUS] == 24 - 16
    assert found.stalls[COMPUTE][Stall.NEXT] == 34 - 24


def test_a_full_command_queue_stops_the_fetch() -> None:
    loads = [inp(5)] * 5
    deep = clocked(*loads)
    assert [one.moments.fetched for one in deep] == [12, 14, 16, 18, 20, 22]
    assert (deep.fetch_stall, spans(deep)[-1]) == (0, (22, 23))
    found = clocked(*loads, parameters=replace(PLAIN, command_queue=2))
    # The fourth has room when the second begins, the fifth when the third does.
    assert [one.moments.fetched for one in found] == [12, 14, 16, 34, 54, 56]
    assert found.fetch_stall == 34
    assert spans(found) == [(12, 32), (32, 52), (52, 72), (72, 92), (92, 112), (56, 57)]
    assert found.stalls[COMPUTE][Stall.FETCH] == 56


def test_load_and_compute_share_a_memory_channel() -> None:
    load, compute, _ = found = clocked(inp(5), acc(1))
    assert load.moments[3:] == (12, 12, 32, 32)
    # It asks at 14 and has the channel once the 10 beats are through, not after the latency.
    assert compute.moments[3:] == (14, 22, 40, 40)
    assert found.stalls[COMPUTE][Stall.CHANNEL] == 8
    assert found.busy[COMPUTE] == 18 + 1


def test_who_asks_first_has_the_channel_first() -> None:
    compute, load, _ = clocked(acc(1), inp(5))
    assert compute.moments.granted == 12
    assert load.moments.granted == 12 + 8


def test_stores_have_a_channel_of_their_own() -> None:
    load, store, _ = clocked(inp(5), out(5))
    assert load.moments[3:] == (12, 12, 32, 32)
    assert store.moments[3:] == (14, 14, 34, 34)


def test_a_full_token_queue_keeps_its_giver() -> None:
    stream = gemm(100), inp(1, PUSH_NEXT), inp(1, PUSH_NEXT), gemm(5, POP_PREV), gemm(5, POP_PREV)
    deep = clocked(*stream)
    assert spans(deep)[1:3] == [(14, 26), (26, 38)]
    found = clocked(*stream, parameters=replace(PLAIN, token_queue=1))
    assert spans(found) == [(12, 112), (14, 26), (26, 112), (112, 117), (117, 122), (122, 123)]
    assert found.stalls[LOAD][Stall.TOKEN_QUEUE] == 112 - 38
    assert [token[1:] for token in tokens(found)] == [(1, 26, 3, 112), (2, 112, 4, 117)]


def test_a_token_that_nobody_takes_is_left_over() -> None:
    (token,) = tokens(clocked(inp(1, PUSH_NEXT)))
    assert (token.giver, token.taker) == (0, None)


class TestRefusals:
    @pytest.fixture(params=[True, False], ids=["compiled", "interpreted"])
    def compiled(self, request: pytest.FixtureRequest) -> bool:
        return bool(request.param)

    @pytest.mark.parametrize(
        ("code", "said"),
        [
            (b"", "instruction 0: the stream does not end with FINISH"),
            (b"\3" + bytes(15) + b"\3", "instruction 1: the stream ends after 1 of its bytes"),
            (b"\7" + bytes(15), "instruction 0: opcode 7 does not exist"),
            (bytes(16), "instruction 0: the stream does not end with FINISH"),
            (
                (b"\3" + bytes(15)) * 2,
                "instruction 0: FINISH is not the last instruction of the stream",
            ),
            (
                encode_stream([inp(1, POP_PREV), Finish()], DEFAULT),
                "instruction 0: LOAD has no neighbour for 1",
            ),
            (
                encode_stream([out(1, PUSH_NEXT), Finish()], DEFAULT),
                "instruction 0: STORE has no neighbour for 8",
            ),
            (
                encode_stream([gemm(1), inp(1, POP_NEXT), Finish()], DEFAULT),
                "instruction 1: deadlock: LOAD waits for a token from COMPUTE that never comes",
            ),
        ],
    )
    def test_a_stream_that_cannot_run_has_no_time(
        self, code: bytes, said: str, compiled: bool
    ) -> None:
        with pytest.raises(StreamError) as caught:
            timing.run(DEFAULT, PLAIN, code, compiled=compiled)
        assert str(caught.value) == said

    def test_queues_may_be_too_short_for_a_stream(self, compiled: bool) -> None:
        stream: list[Instruction] = [
            gemm(1, POP_PREV),
            gemm(1),
            gemm(1),
            inp(1, PUSH_NEXT),
            Finish(),
        ]
        for depth in (1, 2):
            with pytest.raises(StreamError, match=f"command queues of {depth} instructions") as at:
                timing.run(DEFAULT, replace(PLAIN, command_queue=depth), stream, compiled=compiled)
            assert at.value.index == 0
        enough = replace(PLAIN, command_queue=3)
        assert timing.run(DEFAULT, enough, stream, compiled=compiled).cycles == 34

    def test_a_stream_may_take_longer_than_anybody_waits(self, compiled: bool) -> None:
        # Each a little less than 2^57 cycles.
        slow = replace(PLAIN, gemm_interval=1 << 16)
        one = Gemm(uop_end=8192, iter_out=16383, iter_in=16383)
        assert timing.run(DEFAULT, slow, [one] * 8 + [Finish()], compiled=compiled).cycles > 1 << 59
        with pytest.raises(StreamError, match="instruction 8: .* more than 1152921504606846976"):
            timing.run(DEFAULT, slow, [one] * 9 + [Finish()], compiled=compiled)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("bus_bytes", 0),
            ("latency", -1),
            ("latency", 1 << 17),
            ("gemm_interval", 1.5),
            ("token_queue", True),
            ("clock", 0.0),
            ("clock", float("nan")),
        ],
    )
    def test_a_core_that_cannot_be_built_is_none(self, name: str, value: Any) -> None:
        with pytest.raises(ParameterError):
            replace(PLAIN, **{name: value})


small = st.integers(0, 6)
few = st.integers(1, 5)
parameters_of_any_core = st.builds(
    Parameters,
    bus_bytes=st.sampled_from((1, 4, 8, 24, 64)),
    latency=st.integers(0, 60),
    burst_bytes=st.sampled_from((16, 100, 2048)),
    burst_cycles=small,
    decode=small,
    token_cycles=few,
    gemm_interval=few,
    gemm_fill=small,
    gemm_drain=small,
    alu_interval=few,
    alu_immediate_interval=few,
    alu_fill=small,
    alu_drain=small,
    command_queue=st.integers(1, 4) | st.just(512),
    token_queue=st.integers(1, 3) | st.just(1024),
)


@st.composite
def busy_streams(draw: st.DrawFn) -> list[Instruction]:
    """Rounds of loads, kernels and stores whose tokens can be had, in a stream long enough for
    queues to fill."""
    moved = st.integers(0, 12)
    found: list[Instruction] = []
    for _ in range(draw(st.integers(1, 12))):
        deps = draw(st.sampled_from((NONE, PUSH_NEXT)))
        taken = POP_PREV if deps else NONE
        on = draw(st.sampled_from((NONE, PUSH_NEXT)))
        round_: list[Instruction] = [
            inp(draw(moved), deps),
            *[acc(draw(moved)) for _ in range(draw(st.integers(0, 2)))],
            gemm(draw(st.integers(0, 40)), taken | on),
            out(draw(moved), POP_PREV if on else NONE),
        ]
        found += round_
    return [*found, Finish()]


class TestAgainstTheReadableClock:
    @settings(max_examples=40, deadline=None)
    @given(st.data())
    def test_both_say_the_same_of_any_stream(self, data: st.DataObject) -> None:
        config = data.draw(st.sampled_from(CONFIGS))
        parameters = data.draw(parameters_of_any_core)
        stream = data.draw(
            busy_streams()
            if config == DEFAULT
            else streams(config, min(4, config.depth(MemoryId.UOP)))
        )
        clocks: list[Callable[..., Timing]] = [
            simulate,
            timing.run,
            partial(timing.run, compiled=False),
        ]
        first, *others = (self._outcome(one, config, parameters, stream) for one in clocks)
        assert all(other == first for other in others)

    def _outcome(
        self,
        clock: Callable[..., Timing],
        config: Config,
        parameters: Parameters,
        stream: list[Instruction],
    ) -> tuple[str, Any, Any]:
        try:
            found = clock(config, parameters, stream)
        except StreamError as error:
            return str(error), None, None
        return "", found.moments.tolist(), found.facts.tolist()

    def test_elements_have_the_size_that_the_core_gives_them(self) -> None:
        # INP has 8 bytes and WGT 32: 1 and 4 beats.
        for memory, beats in ((MemoryId.INP, 1), (MemoryId.WGT, 4), (MemoryId.ACC, 8)):
            stream: list[Instruction] = [Load(memory_type=memory, x_size=1, y_size=1), Finish()]
            assert timing.run(TINY, PLAIN, stream).facts[0][4] == beats


class TestProperties:
    @settings(max_examples=40, deadline=None)
    @given(busy_streams(), parameters_of_any_core)
    def test_a_module_s_cycles_are_work_waits_and_rest(
        self, stream: list[Instruction], parameters: Parameters
    ) -> None:
        try:
            found = timing.run(DEFAULT, parameters, stream)
        except StreamError:
            return
        for stage in Stage:
            parts = (found.busy[stage], *found.stalls[stage].values(), found.idle[stage])
            assert min(parts) >= 0
            assert sum(parts) == found.cycles

    @settings(max_examples=40, deadline=None)
    @given(busy_streams(), parameters_of_any_core)
    def test_an_instruction_s_moments_follow_one_another(
        self, stream: list[Instruction], parameters: Parameters
    ) -> None:
        try:
            found = timing.run(DEFAULT, parameters, stream)
        except StreamError:
            return
        assert (np.diff(found.moments[:, 1:], axis=1) >= 0).all()
        assert (found.moments[:, 0] <= found.moments[:, 2]).all()

    @given(
        busy_streams(),
        parameters_of_any_core,
        st.sampled_from(
            (
                ("bus_bytes", 2),
                ("command_queue", 2),
                ("token_queue", 2),
                ("latency", 0),
                ("gemm_drain", 0),
                ("decode", 0),
            )
        ),
    )
    def test_a_better_core_is_never_slower_where_reads_do_not_compete(
        self, stream: list[Instruction], parameters: Parameters, better: tuple[str, int]
    ) -> None:
        """With competing reads another order may be a worse one, as in any schedule by list."""
        alone = [one for one in stream if not (isinstance(one, Load) and one.stage is COMPUTE)]
        name, factor = better
        improved = replace(parameters, **{name: getattr(parameters, name) * factor})
        try:
            before = timing.run(DEFAULT, parameters, alone).cycles
        except StreamError:
            return
        assert timing.run(DEFAULT, improved, alone).cycles <= before

"""Streams that would execute more micro-ops than a core allows are cut into several."""

from collections import Counter

import numpy as np
import pytest

from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_device.vta.encoding import INSTRUCTION_BYTES
from potash_device.vta.isa import Alu, Finish, Gemm, Instruction, decode
from potash_device.vta.stream import POPS, PUSHES, TOKEN_QUEUES, StreamError, TokenQueue
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.runtime import Model
from potash_firmware.tflite.streams import split
from potash_firmware.vta_runtime import Runtime
from support.graph_builder import FusedActivation, GraphBuilder, Padding
from support.tflite import reference

SHAPE = (1, 12, 12, 20)
X = np.random.default_rng(3).integers(-128, 128, SHAPE, np.int8)
CONFIG = Config.default()


def network() -> bytes:
    random = np.random.default_rng(4)
    graph = GraphBuilder()
    x = y = graph.tensor(SHAPE, 0.05, -7)
    for zero_point in (4, 9):
        weights = random.integers(-127, 128, (20, 3, 3, 20)).astype(np.int8)
        w = graph.constant(weights, 0.005)
        activation = FusedActivation.RELU
        y = graph.conv2d(y, w, None, 0.05, zero_point, padding=Padding.SAME, activation=activation)
    y = graph.add(y, x, 0.07, 3)
    return graph.finish([x], [graph.max_pool2d(y, 2)])


def decoded(code: bytes) -> list[Instruction]:
    return [
        decode(int.from_bytes(code[at : at + INSTRUCTION_BYTES], "little"), CONFIG)
        for at in range(0, len(code), INSTRUCTION_BYTES)
    ]


def run(limit: int, engine: str = "fast") -> tuple[bytes, tuple[bytes, ...], list[list[int]]]:
    """The output, the streams, and the nodes whose instructions are in each."""
    core = Core(CONFIG, memoryview(bytearray(1 << 22)), step_limit=limit, engine=engine)
    with Runtime(core) as runtime:
        delegate = VtaDelegate(runtime)
        output = bytearray(1 << 12)
        loaded = Model(network(), delegate=delegate)
        length = loaded(X.tobytes(), memoryview(output))
        streams = delegate.streams
        for one in streams:
            assert one.marks[0].first == 0
            assert all(mark.first < mark.end for mark in one.marks)
            assert all(a.end == b.first for a, b in zip(one.marks, one.marks[1:], strict=False))
        nodes = [[mark.node.index for mark in one.marks] for one in streams]
        return bytes(output[:length]), tuple(one.code for one in streams), nodes


def steps(code: bytes) -> int:
    return sum(one.steps for one in decoded(code) if isinstance(one, Gemm | Alu))


def test_a_stream_that_is_short_enough_stays_as_it_is() -> None:
    output, (code,), nodes = run(1 << 28)
    assert output == reference(network(), (X,))
    assert nodes == [[0, 1, 2, 3]]
    assert [piece.code for piece in split(code, CONFIG, steps(code))] == [code]
    first, second = split(code, CONFIG, steps(code) - 1)
    assert (first.first, second.end) == (0, len(decoded(code)))
    assert first.end == second.first


@pytest.mark.parametrize("engine", ["fast", "readable"])
@pytest.mark.parametrize("limit", [5200, 8000, 12000])
def test_pieces_of_a_stream_give_the_same(limit: int, engine: str) -> None:
    _, (whole,), _ = run(1 << 28)
    output, streams, nodes = run(limit, engine)
    assert output == reference(network(), (X,))
    assert len(streams) >= steps(whole) / limit > 1
    assert all(steps(code) <= limit for code in streams)
    assert sum(map(steps, streams)) == steps(whole)
    # Each node is in one run of streams, and all are there.
    order = [node for its in nodes for node in its]
    assert order == sorted(order) and set(order) == {0, 1, 2, 3}
    for code in streams:
        assert left_tokens(code) == Counter()


def left_tokens(code: bytes) -> Counter[TokenQueue]:
    """Tokens that a stream gives and does not take."""
    tokens: Counter[TokenQueue] = Counter()
    for instruction in decoded(code):
        for bit in instruction.dependencies & POPS:
            tokens[TOKEN_QUEUES[instruction.stage, bit]] -= 1
        for bit in instruction.dependencies & PUSHES:
            tokens[TOKEN_QUEUES[instruction.stage, bit]] += 1
    assert isinstance(instruction, Finish)
    return Counter({queue: count for queue, count in tokens.items() if count})


def test_one_instruction_that_is_too_long_is_refused_as_ever() -> None:
    with pytest.raises(StreamError, match="executes more than 1 micro-ops"):
        run(1)

"""Hostile models: the job fails and says why, the APU and other jobs go on."""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from csd_spec.descriptors import LogEntryType, encode_arguments
from csd_spec.opcodes import Operation
from csd_spec.status import StatusId
from potash.models.networks import make
from support.apu import Board, board, program
from support.bpf import call, exit_, insn
from support.graph_builder import GraphBuilder

ADD = Path(__file__).parents[2] / "examples" / "add"
PRINT = 1
FOREVER = program(call(PRINT), insn(0x05, offset=-1), exit_)
MODEL = make("add-64", 3)
INPUT = bytes(range(128))


@pytest.fixture(scope="module")
def booted() -> Iterator[Board]:
    with board() as made:
        yield made


@pytest.fixture
def apu(booted: Board) -> Board:
    booted.reset_controller()
    booted.enable()
    for accelerator in (0, 3):
        booted.forget_log(accelerator)
    assert booted.send_firmware((ADD / "program.o").read_bytes()) == 0
    return booted


def run(apu: Board, model: bytes, inputs: bytes, room: int = 64) -> StatusId:
    """Give the model to the addition example, which runs any; what became of the job."""
    data = model + inputs
    assert apu.send_data(data + bytes(-len(data) % 4)) == 0
    lengths = [struct.pack("<I", length) for length in (len(model), room)]
    assert apu.control(Operation.START, arguments=encode_arguments(lengths)) == 0
    return StatusId(apu.wait().status)


def crashing() -> tuple[bytes, bytes]:
    """A model that is right, and the input with which its kernel divides what cannot be divided:
    the remainder of -2^31 by -1, for which an x86 processor has no answer.
    """
    graph = GraphBuilder()
    x = graph.tensor((4,), dtype=np.int32)
    ones = graph.constant(np.full(4, -1, np.int32))
    y = graph.operator(
        schema.BuiltinOperator.FLOOR_MOD, (x, ones), graph.tensor((4,), dtype=np.int32)
    )
    return graph.finish((x,), (y,)), np.full(4, -(1 << 31), np.int32).tobytes()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86 traps this division")
def test_where_tensorflow_lite_crashes_only_that_job_fails(apu: Board) -> None:
    apu.send_firmware(FOREVER, accelerator=3)
    apu.send_data(b"looping\0", 3)
    assert apu.control(Operation.START, 3) == 0
    apu.until_so(lambda: LogEntryType.PROGRAM_OUTPUT in apu.log_types(3))
    process, other = apu.process.pid, apu.worker(3)
    model, inputs = crashing()
    assert run(apu, model, inputs, room=16) == StatusId.FAILED
    (text,) = apu.log_texts(LogEntryType.PROCESS_LOST)
    assert "SIGFPE" in text
    assert apu.status(3).status == StatusId.RUNNING
    assert (apu.process.pid, apu.worker(3)) == (process, other)
    assert apu.control(Operation.STOP, 3) == 0
    assert run(apu, MODEL, INPUT) == StatusId.DONE
    # The same model is harmless with another input.
    assert run(apu, model, struct.pack("<4i", 5, -6, 7, 0), room=16) == StatusId.DONE
    assert apu.read_data(16) == bytes(16)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (MODEL[: len(MODEL) // 2], "damaged"),
        (bytes(600), "this is not a TensorFlow Lite model"),
        (MODEL.replace(b"TFL3", b"TFL2"), "this is not a TensorFlow Lite model"),
    ],
)
def test_a_model_that_is_refused_fails_its_job_with_the_reason(
    apu: Board, model: bytes, reason: str
) -> None:
    assert run(apu, MODEL, INPUT) == StatusId.DONE
    worker = apu.worker(0)
    assert run(apu, model, INPUT) == StatusId.FAILED
    assert any(reason in entry.text for entry in apu.log(retain=True).entries)
    assert apu.worker(0) == worker  # Its process has not even noticed.
    assert run(apu, MODEL, INPUT) == StatusId.DONE

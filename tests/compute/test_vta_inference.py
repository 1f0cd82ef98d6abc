"""What is said of a model's modelled time is of the streams that it runs."""

import numpy as np
import pytest

from potash.models.networks import make
from potash.vta.inference import Clocked, infer
from potash_device.vta.config import Config
from potash_device.vta.timing import run
from potash_device.vta.timing.parameters import CHISEL, PYNQ, PYNQ_CORE, Parameters
from potash_firmware.tflite.capi import BuiltinOperator
from potash_firmware.tflite.runtime import Model
from support.tflite import bench, reference

MODEL = make("conv-conv-add")
PICTURE = np.random.default_rng(7).integers(-128, 128, (1, 10, 10, 3), np.int8)
ROOM = 10 * 10 * 32


def test_the_delegate_s_streams_are_what_the_core_executes() -> None:
    with bench() as vta:
        model = Model(MODEL, delegate=vta.delegate, reference=True)
        streams = vta.delegate.streams
        vta.streams.clear()
        output = memoryview(bytearray(ROOM))
        assert output[: model(PICTURE.tobytes(), output)] == reference(MODEL, [PICTURE])
        assert vta.streams == [stream.code for stream in streams]
        assert vta.delegate.streams == streams
        del model
        assert vta.delegate.streams == ()


@pytest.mark.parametrize("config", [Config.default(), PYNQ_CORE])
@pytest.mark.parametrize("parameters", [PYNQ, CHISEL])
def test_the_cycles_are_those_of_the_clock(config: Config, parameters: Parameters) -> None:
    found = infer(MODEL, PICTURE.tobytes(), config=config, parameters=parameters)
    assert found.output == reference(MODEL, [PICTURE])
    with bench(config) as vta:
        kept = Model(MODEL, delegate=vta.delegate, reference=True)
        codes = [stream.code for stream in vta.delegate.streams]
        del kept
    alone = [run(config, parameters, code, compiled=False) for code in codes]
    assert found.modelled.cycles == sum(one.cycles for one in alone) > 0
    assert found.modelled.instructions == sum(map(len, alone)) == sum(map(len, codes)) // 16


def test_every_cycle_belongs_to_one_node() -> None:
    found = infer(MODEL, PICTURE.tobytes())
    assert sum(cycles for _, cycles in found.cycles) == found.modelled.cycles
    assert all(cycles > 0 for _, cycles in found.cycles)
    (first, _), (second, _), *_ = found.cycles
    assert first.operator == second.operator == BuiltinOperator.CONV_2D
    for one in found.streams:
        assert Clocked(one.timing, one.marks[:1]).cycles == [(one.marks[0].node, one.timing.cycles)]


def test_a_node_ends_with_the_last_of_its_instructions() -> None:
    found = infer(MODEL, PICTURE.tobytes())
    (stream, *_) = found.streams
    first, *others = stream.marks
    assert others
    until = max(one.moments.end for one in stream.timing if one.index < first.end)
    assert stream.cycles[0] == (first.node, until)


def test_several_inferences_take_one_after_the_other() -> None:
    one = infer(MODEL, PICTURE.tobytes()).modelled
    many = one.times(600)
    assert (many.cycles, many.instructions) == (600 * one.cycles, 600 * one.instructions)
    assert many.seconds == pytest.approx(600 * one.cycles / 100e6)

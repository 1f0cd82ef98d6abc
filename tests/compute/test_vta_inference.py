"""What is said of a model's modelled time is of the streams that it runs."""

import numpy as np
import pytest

from potash.vta.inference import RecordingCore, infer
from potash_device.vta.config import Config
from potash_device.vta.isa import Stage, decode
from potash_device.vta.timing import CHISEL, PYNQ, PYNQ_CORE, Parameters, run
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.runtime import Model
from potash_firmware.tflite.writer import add_model
from potash_firmware.vta_runtime import Runtime
from support.tflite import bench, reference

SHAPE = (1, 5000)
MODEL = add_model(SHAPE, scales=(0.5, 0.25, 0.75), zero_points=(1, 2, 3))
LEFT, RIGHT = np.random.default_rng(7).integers(-128, 128, (2, *SHAPE), np.int8)
INPUTS = LEFT.tobytes() + RIGHT.tobytes()


def test_a_stream_is_what_the_core_executes() -> None:
    core = RecordingCore(Config.default(), 1 << 22)
    with bench() as vta, Runtime(core) as runtime:
        wanted = vta.infer(MODEL, (LEFT, RIGHT), LEFT.size)
        output = bytearray(LEFT.size)
        Model(MODEL, delegate=VtaDelegate(runtime))(INPUTS, memoryview(output))
    assert output == wanted == reference(MODEL, (LEFT, RIGHT))
    (stream,) = core.streams
    found = [
        decode(int.from_bytes(stream[at : at + 16], "little"), core.config)
        for at in range(0, len(stream), 16)
    ]
    # The core says what it does in the order in which it does it, module by module.
    for stage in Stage:
        executed = [one for one in vta.executed if one.stage is stage]
        assert executed == [one for one in found if one.stage is stage]


@pytest.mark.parametrize("config", [Config.default(), PYNQ_CORE])
@pytest.mark.parametrize("parameters", [PYNQ, CHISEL])
def test_the_cycles_are_those_of_the_clock(config: Config, parameters: Parameters) -> None:
    found = infer(MODEL, INPUTS, config=config, parameters=parameters)
    assert found.output == reference(MODEL, (LEFT, RIGHT))
    core = RecordingCore(config, 1 << 22)
    with Runtime(core) as runtime:
        Model(MODEL, delegate=VtaDelegate(runtime))(INPUTS, memoryview(bytearray(LEFT.size)))
    alone = [run(config, parameters, stream, compiled=False) for stream in core.streams]
    assert found.modelled.cycles == sum(one.cycles for one in alone) > LEFT.size / 16
    assert found.modelled.instructions == sum(map(len, alone))


def test_several_inferences_take_one_after_the_other() -> None:
    one = infer(MODEL, INPUTS).modelled
    many = one.times(600)
    assert (many.cycles, many.instructions) == (600 * one.cycles, 600 * one.instructions)
    assert many.seconds == pytest.approx(600 * one.cycles / 100e6)

"""The published example on the machine that runs programs, with both roundings."""

import numpy as np

from csd_spec.program import Context
from potash_firmware.apu.models import Models
from potash_firmware.bpf import Services, buffer_layout, load_program
from potash_firmware.tflite.lowering import Rounding
from support.bpf import run_program
from support.platform_example import LEFT, OUTPUT, PLATFORM_OUTPUT, RIGHT, model, program
from support.tflite import bench, reference

SIZE = 4096
VECTORS = [np.frombuffer(vector, np.int8) for vector in (LEFT, RIGHT)]


def test_its_program_gets_what_tensorflow_lite_makes_of_its_model() -> None:
    given = model() + LEFT + RIGHT
    layout = buffer_layout(SIZE, SIZE)
    memory = bytearray(layout.size)
    memory[layout.input_offset : layout.input_offset + len(given)] = given
    models = Models({})
    outcome = run_program(
        load_program(program()),
        memoryview(memory),
        input_size=SIZE,
        output_size=SIZE,
        input_length=SIZE,  # a page of local storage
        services=Services(lambda text: None, models.infer_apu, models.infer_vta),
        context=Context(b""),
    )
    assert outcome.return_value == 2**64 - 1
    output = memory[layout.output_offset : layout.output_offset + SIZE]
    assert output == OUTPUT.ljust(SIZE, b"\0")
    assert reference(model(), VECTORS) == OUTPUT


def test_the_platform_s_rounding_gives_its_last_firmware_s_output() -> None:
    with bench(rounding=Rounding.ALKALI) as vta:
        assert vta.infer(model(), VECTORS, len(PLATFORM_OUTPUT)) == PLATFORM_OUTPUT
        assert vta.delegate.nodes_run

"""The network of `examples/digits`: its training, what it is quantised to, and what it
recognises."""

from __future__ import annotations

import runpy
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csd_spec.descriptors import encode_arguments
from csd_spec.program import Context, Processor
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_firmware.bpf import Services, buffer_layout, load_program
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.interpreter import Interpreter, OpResolverType
from potash_firmware.tflite.runtime import Model
from potash_firmware.vta_runtime import Runtime
from support.bpf import run_program
from support.tflite import reference

FOLDER = Path(__file__).parents[2] / "examples" / "digits"
MODEL = (FOLDER / "model.tflite").read_bytes()
IMAGES = np.frombuffer((FOLDER / "images.bin").read_bytes(), np.int8).reshape(-1, 64)
LABELS = np.frombuffer((FOLDER / "labels.bin").read_bytes(), np.uint8)


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "train.py"))


def test_the_gradients_are_those_of_small_differences(script: dict[str, Any]) -> None:
    random = np.random.default_rng(1)
    network = script["Network"].fresh(random)
    images, labels = random.random((3, 8, 8, 1)), np.array([1, 0, 9])
    _, found = script["gradients"](network, images, labels)
    step = 1e-6
    for values, slopes in zip(network.arrays(), found, strict=True):
        assert values.shape == slopes.shape
        for place in random.integers(0, values.size, 12):
            kept = values.flat[place]
            around = []
            for moved in (kept + step, kept - step):
                values.flat[place] = moved
                around.append(script["loss"](script["forward"](network, images).scores, labels)[0])
            values.flat[place] = kept
            assert (around[0] - around[1]) / 2 / step == pytest.approx(
                slopes.flat[place], abs=1e-7, rel=1e-4
            )


def test_what_is_trained_and_quantised_scores_as_it_did_before(script: dict[str, Any]) -> None:
    images = (IMAGES[:200].reshape(-1, 8, 8, 1).astype(np.float64) + 128) / 255
    labels = LABELS[:200].astype(np.int64)
    network = script["train"](images, labels, epochs=3)
    scores = script["forward"](network, images).scores
    assert (scores.argmax(axis=1) == labels).mean() > 0.6
    interpreter = Interpreter(
        model_content=script["quantized"](network, images),
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
    )
    interpreter.allocate_tensors()
    (given,), (taken,) = interpreter.get_input_details(), interpreter.get_output_details()
    scale, zero = taken["quantization"]
    assert given["quantization"] == pytest.approx((1 / 255, -128))
    for image, wanted in zip(script["as_bytes"](images), scores, strict=True):
        interpreter.set_tensor(given["index"], image[np.newaxis])
        interpreter.invoke()
        found = scale * (interpreter.get_tensor(taken["index"])[0].astype(float) - zero)
        # A handful of the output's 256 steps is what int8 costs.
        assert np.abs(found - wanted).max() < 6 * scale


def test_training_depends_on_the_seed_alone(script: dict[str, Any]) -> None:
    images, labels = np.random.default_rng(3).random((40, 8, 8, 1)), np.arange(40) % 10
    first, again, other = (
        script["train"](images, labels, epochs=1, seed=seed).last.tobytes() for seed in (5, 5, 6)
    )
    assert first == again != other


def test_the_network_takes_the_images_for_what_they_show() -> None:
    assert len(IMAGES) == len(LABELS) == 600
    found = [np.frombuffer(reference(MODEL, [image]), np.int8).argmax() for image in IMAGES]
    assert (np.array(found) == LABELS).mean() >= 0.96


def test_the_delegate_scores_images_as_the_reference_kernels_do() -> None:
    """A tenth of them: the example's demo, which is a test too, takes all 600."""
    core = Core.create(Config.default(), 1 << 22, engine="fast")
    delegate = VtaDelegate(Runtime(core))
    on_vta = Model(MODEL, delegate=delegate, reference=True)
    alone = Model(MODEL, delegate=None, reference=True)
    for image in IMAGES[::10]:
        found, wanted = bytearray(10), bytearray(10)
        assert on_vta(image.tobytes(), memoryview(found)) == 10
        alone(image.tobytes(), memoryview(wanted))
        assert found == wanted
    assert delegate.nodes_run >= 3 * len(IMAGES[::10])


@pytest.mark.slow
def test_the_training_makes_a_network_as_good_as_the_committed_one(script: dict[str, Any]) -> None:
    pytest.importorskip("sklearn", reason="the images come with scikit-learn: potash[digits]")
    made = script["make"]()
    # These do not depend on the arithmetic of the machine.
    assert made["images.bin"] == IMAGES.tobytes() and made["labels.bin"] == LABELS.tobytes()
    found = [np.frombuffer(reference(made["model.tflite"], [one]), np.int8) for one in IMAGES]
    assert (np.array([one.argmax() for one in found]) == LABELS).mean() >= 0.96


SIZE = 4096
LAYOUT = buffer_layout(SIZE, SIZE)


def classified(*arguments: int, data: bytes, room: int = SIZE) -> tuple[int, bytes, list[str]]:
    """What the program returns, hands out and prints with a model that gives its input back."""
    memory = bytearray(LAYOUT.size)
    memory[LAYOUT.input_offset : LAYOUT.input_offset + len(data)] = data
    printed: list[str] = []
    loaded: list[bytes] = []

    def load(model: memoryview, processor: Processor) -> Any:
        assert processor is Processor.VTA
        loaded.append(bytes(model))

        def run(given: memoryview, output: memoryview) -> int:
            output[:] = given
            return len(output)

        return run

    def never(model: memoryview, given: memoryview, output: memoryview) -> int:
        raise AssertionError

    outcome = run_program(
        load_program((FOLDER / "program.o").read_bytes()),
        memoryview(memory),
        input_size=SIZE,
        output_size=SIZE,
        input_length=len(data),
        output_length=room,
        services=Services(printed.append, never, never, load_model=load),
        context=Context(encode_arguments([struct.pack("<I", one) for one in arguments])),
    )
    start = LAYOUT.output_offset
    length = outcome.output_length
    assert length is not None and loaded in ([], [b"model"])
    return outcome.return_value, bytes(memory[start : start + length]), printed


def test_the_program_hands_out_the_first_of_the_highest_scores() -> None:
    scores = [[0, 5, -3], [-128, -128, -127], [7, 7, 7], [-2, -1, -1], [127, -128, 0]]
    data = b"model" + np.array(scores, np.int8).tobytes()
    value, output, printed = classified(5, 3, len(scores), 3, data=data)
    assert (value, list(output)) == (0, [1, 2, 0, 1, 0])
    assert printed == ["digits: images classified: 5"]


@pytest.mark.parametrize(
    "arguments",
    [(), (5, 3, 5), (5, 3, 6, 3), (6, 3, 5, 3), (5, 3, 5, 0), (5, 3, 5, 257), (5, 2**32 - 1, 5, 3)],
)
def test_the_program_says_what_it_wants(arguments: tuple[int, ...]) -> None:
    value, output, printed = classified(*arguments, data=b"model" + bytes(15))
    assert (value, output) == (1, b"") and printed[0].startswith("digits: the arguments are")


def test_the_program_needs_a_byte_for_each_image() -> None:
    value, output, printed = classified(5, 3, 5, 3, data=b"model" + bytes(15), room=4)
    assert (value, output) == (2, b"")
    assert printed == ["digits: there is not a byte of output for each image"]

"""The program of `examples/resnet18` with a model that is played, and the picture that it is
given."""

from __future__ import annotations

import runpy
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csd_spec.descriptors import encode_arguments
from csd_spec.program import Context
from potash_firmware.bpf import Services, buffer_layout, load_program
from support.bpf import run_program

FOLDER = Path(__file__).parents[2] / "examples" / "resnet18"
SIZE = 4096
LAYOUT = buffer_layout(SIZE, SIZE)


def classified(
    scores: list[int], *arguments: int, data: bytes = b"modelpicture"
) -> tuple[int, bytes, list[str]]:
    """What the program returns, hands out and prints where the model gives these scores."""
    memory = bytearray(LAYOUT.size)
    memory[LAYOUT.input_offset : LAYOUT.input_offset + len(data)] = data
    printed: list[str] = []

    def infer(model: memoryview, given: memoryview, output: memoryview) -> int:
        assert (bytes(model), bytes(given)) == (b"model", b"picture")
        output[:] = np.array(scores, np.int8).tobytes()
        return len(output)

    def never(model: memoryview, given: memoryview, output: memoryview) -> int:
        raise AssertionError

    outcome = run_program(
        load_program((FOLDER / "program.o").read_bytes()),
        memoryview(memory),
        input_size=SIZE,
        output_size=SIZE,
        input_length=len(data),
        services=Services(printed.append, never, infer),
        context=Context(encode_arguments([struct.pack("<I", one) for one in arguments])),
    )
    start = LAYOUT.output_offset
    assert outcome.output_length is not None
    return outcome.return_value, bytes(memory[start : start + outcome.output_length]), printed


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([5, 4, 3, 2, 1, 0, -1], [0, 1, 2, 3, 4]),
        ([-1, 0, 1, 2, 3, 4, 5], [6, 5, 4, 3, 2]),
        ([7, 7, 7, 7, 7, 7, 7], [0, 1, 2, 3, 4]),
        ([-128, 127, -128, 127, 0, -128, -128], [1, 3, 4, 0, 2]),
        ([3, -5], [0, 1]),
        ([-100], [0]),
    ],
)
def test_the_program_prints_the_five_highest_scores(scores: list[int], best: list[int]) -> None:
    value, output, printed = classified(scores, 5, len(scores))
    assert (value, output) == (0, np.array(scores, np.int8).tobytes())
    assert printed == [f"resnet18: class {one} has {scores[one]}" for one in best]


def test_the_program_and_python_choose_the_same_classes() -> None:
    random = np.random.default_rng(5)
    best = script()["_best"]
    for spread in (1, 5, 127):
        scores = random.integers(-spread, spread + 1, 1000).astype(np.int8)
        _, output, printed = classified(scores.tolist(), 5, 1000)
        assert [int(line.split()[2]) for line in printed] == best(output)


@pytest.mark.parametrize("arguments", [(), (5,), (13, 10), (5, 0), (5, SIZE + 1)])
def test_the_program_says_what_it_wants(arguments: tuple[int, ...]) -> None:
    value, output, printed = classified([1], *arguments)
    assert (value, output) == (1, b"") and printed[0].startswith("resnet18: the arguments are")


def script() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "example.py"))


def test_the_picture_is_what_the_model_takes() -> None:
    made = script()
    pixels = made["picture"]()
    assert (pixels.shape, pixels.dtype) == ((224, 224, 3), np.uint8)
    # ImageNet's mean colour is the zero point; a scale more is a step more.
    mean = np.rint(made["MEAN"] * 255).astype(np.uint8)
    given = np.frombuffer(made["as_bytes"](np.broadcast_to(mean, (224, 224, 3))), np.int8)
    assert np.abs(given.astype(int) - made["PICTURE_ZERO_POINT"]).max() <= 1
    values = np.frombuffer(made["as_bytes"](pixels), np.int8)
    assert values.size == made["PICTURE"] and values.std() > 20

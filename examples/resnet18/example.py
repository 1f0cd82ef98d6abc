"""The picture that `program.c` classifies, and what TensorFlow Lite's reference kernels say of it.

    python examples/resnet18/example.py

writes `input.bin`, which is the model and the picture, and `expected.bin` beside this file, and
`picture.ppm` for eyes.
"""

import struct
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from potash.models.networks import CLASSES, PICTURE_SCALE, PICTURE_ZERO_POINT, make
from potash_firmware.tflite.interpreter import Interpreter, OpResolverType

FOLDER = Path(__file__).parent
SIDE, COLOURS = 224, 3
PICTURE = SIDE * SIDE * COLOURS
"""Bytes of the picture."""
PLACES = 5

MEAN = np.array([0.485, 0.456, 0.406])
DEVIATION = np.array([0.229, 0.224, 0.225])
"""Of red, green and blue in ImageNet's photographs, from 0 to 1."""

SKY, HORIZON, SUN, SNOW = (58, 110, 190), (250, 200, 150), (255, 236, 160), (235, 240, 245)
FAR, NEAR, WATER = (96, 104, 130), (38, 70, 48), (40, 84, 120)

Pixels: TypeAlias = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]


def picture() -> Pixels:
    """A sunset over mountains and a lake: 224x224, red, green and blue, all by whole numbers."""
    rows, columns = np.indices((SIDE, SIDE))
    down = rows[..., np.newaxis]
    pixels = (np.array(SKY) * (150 - down) + np.array(HORIZON) * down) // 150

    def paint(where: np.ndarray[Any, np.dtype[np.bool_]], colour: tuple[int, int, int]) -> None:
        pixels[where] = colour

    paint((rows - 96) ** 2 + (columns - 150) ** 2 < 24**2, SUN)
    ridge = np.minimum(abs(columns - 70) + 52, abs(columns - 176) * 3 // 4 + 80)
    paint(rows > ridge, FAR)
    paint((rows > ridge) & (rows < 78 + (columns * 37 % 11)), SNOW)
    paint(rows > 120 + abs(columns * 3 % 40 - 20) // 4, NEAR)
    paint(rows > 150, WATER)
    glitter = (rows > 150) & (abs(columns - 150) < (rows - 140) // 2)
    paint(glitter & ((rows * 7 + columns // 9) % 5 < 2), SUN)
    hazy = 64 + pixels // 2
    return hazy.clip(0, 255).astype(np.uint8)


def as_bytes(pixels: Pixels) -> bytes:
    """A picture as the model takes it."""
    reals = (pixels / 255 - MEAN) / DEVIATION
    steps = np.rint(reals / PICTURE_SCALE) + PICTURE_ZERO_POINT
    values: bytes = steps.clip(-128, 127).astype(np.int8).tobytes()
    return values


def input_data() -> bytes:
    """The model, and the picture behind it."""
    return make("resnet18") + as_bytes(picture())


def arguments(data: bytes) -> list[bytes]:
    """What the program is started with."""
    return [struct.pack("<I", number) for number in (len(data) - PICTURE, CLASSES)]


def expected(data: bytes) -> bytes:
    """The score of each class."""
    interpreter = Interpreter(
        model_content=data[:-PICTURE], experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    (given,), (scores,) = interpreter.get_input_details(), interpreter.get_output_details()
    values = np.frombuffer(data, np.int8, offset=len(data) - PICTURE)
    interpreter.set_tensor(given["index"], values.reshape(given["shape"]))
    interpreter.invoke()
    found: bytes = interpreter.get_tensor(scores["index"]).tobytes()
    return found


def describe(data: bytes, output: bytes) -> list[str]:
    """What to show of it."""
    scores = np.frombuffer(output, np.int8)
    return [f"class {found} has {scores[found]}" for found in _best(output)]


def figures(data: bytes, output: bytes) -> dict[str, Any]:
    """The same for programs."""
    return {"classes": _best(output)}


def needed(data: bytes) -> int:
    """Bytes that a host would read to do it itself: the picture. The model it has."""
    return PICTURE


def inference(data: bytes) -> tuple[bytes, bytes, int]:
    """The model that the program runs, its input, and how often it does."""
    return data[:-PICTURE], data[-PICTURE:], 1


def _best(output: bytes) -> list[int]:
    """The classes with the highest scores, of equal ones the first."""
    order = np.argsort(-np.frombuffer(output, np.int8).astype(int), kind="stable")
    return [int(one) for one in order[:PLACES]]


if __name__ == "__main__":
    made = input_data()
    shown = f"P6 {SIDE} {SIDE} 255\n".encode() + picture().tobytes()
    for name, content in (
        ("input.bin", made),
        ("expected.bin", expected(made)),
        ("picture.ppm", shown),
    ):
        (FOLDER / name).write_bytes(content)

"""The digits that `program.c` classifies, and what TensorFlow Lite's reference kernels say of them.

    python examples/digits/example.py

writes `input.bin`, which is the model and the images, and `expected.bin` beside this file.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np

from potash_firmware.tflite.interpreter import Interpreter, OpResolverType

FOLDER = Path(__file__).parent
IMAGE = 8 * 8
"""Bytes of an image."""
CLASSES = 10

MODEL = (FOLDER / "model.tflite").read_bytes()
LABELS = (FOLDER / "labels.bin").read_bytes()
"""What each image shows, as its writer said."""


def input_data() -> bytes:
    """The model, and the images behind it."""
    return MODEL + (FOLDER / "images.bin").read_bytes()


def arguments(data: bytes) -> list[bytes]:
    """What the program is started with."""
    numbers = (len(MODEL), IMAGE, len(_images(data)), CLASSES)
    return [struct.pack("<I", number) for number in numbers]


def expected(data: bytes) -> bytes:
    """For each image the class with the highest score."""
    interpreter = Interpreter(
        model_content=data[: len(MODEL)], experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    (given,), (scores,) = interpreter.get_input_details(), interpreter.get_output_details()
    found = bytearray()
    for image in _images(data):
        interpreter.set_tensor(given["index"], image.reshape(given["shape"]))
        interpreter.invoke()
        found.append(int(interpreter.get_tensor(scores["index"]).argmax()))
    return bytes(found)


def describe(data: bytes, output: bytes) -> list[str]:
    """What to show of it."""
    right, whole = _right(output), len(LABELS)
    rows = [f"{digit:7} {_row(output, digit)}" for digit in range(CLASSES)]
    return [
        "written taken for",
        " " * 8 + " ".join(f"{digit:4}" for digit in range(CLASSES)),
        *rows,
        f"accuracy {right / whole:.2%}: {right} of {whole} images, none of which the training saw",
    ]


def figures(data: bytes, output: bytes) -> dict[str, Any]:
    """The same for programs."""
    return {"accuracy": _right(output) / len(LABELS), "images": len(LABELS)}


def needed(data: bytes) -> int:
    """Bytes that a host would read to do it itself: the images. The model it has."""
    return len(data) - len(MODEL)


def inference(data: bytes) -> tuple[bytes, bytes, int]:
    """The model that the program runs, one of its inputs, and how often it does."""
    images = _images(data)
    return MODEL, images[0].tobytes(), len(images)


def _images(data: bytes) -> np.ndarray[tuple[int, int], np.dtype[np.int8]]:
    return np.frombuffer(data, np.int8, offset=len(MODEL)).reshape(-1, IMAGE)


def _right(output: bytes) -> int:
    return sum(found == label for found, label in zip(output, LABELS, strict=True))


def _row(output: bytes, digit: int) -> str:
    taken = [found for found, label in zip(output, LABELS, strict=True) if label == digit]
    return " ".join(f"{taken.count(other) or '.':>4}" for other in range(CLASSES))


if __name__ == "__main__":
    made = input_data()
    for name, content in (("input.bin", made), ("expected.bin", expected(made))):
        (FOLDER / name).write_bytes(content)

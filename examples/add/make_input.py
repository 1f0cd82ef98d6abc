"""Make `input.bin`, `expected.bin` and the figures in `example.toml`.

    python examples/add/make_input.py

The input is a TensorFlow Lite model that adds two int8 vectors, followed by the vectors. The
expected output is what TensorFlow Lite's own reference kernels make of it, on the processor that
runs this.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from potash_firmware.tflite.interpreter import Interpreter, OpResolverType
from potash_firmware.tflite.writer import add_model

Vector = npt.NDArray[np.int8]

ELEMENTS = 1024

# With 5/16, 3/16 and 6/16 the sum is (5 left + 3 right) / 6 steps of the output: some sums lie half
# way between two steps, some beyond the int8 range, and two of the factors are no binary fractions.
SCALES = (5 / 16, 3 / 16, 6 / 16)
ZERO_POINTS = (3, -7, 5)

CORNERS = np.array([[-128, -128, 127, 127, 0, 3], [-128, 127, -128, 127, 0, -7]], np.int8)


def vectors() -> tuple[Vector, Vector]:
    """The corners of the range, then values in an order that pairs them up differently."""
    index = np.arange(ELEMENTS)
    left = (index * 73 + 19).astype(np.uint8).view(np.int8)
    right = (index * index * 5 + index * 151).astype(np.uint8).view(np.int8)
    left[: CORNERS.shape[1]], right[: CORNERS.shape[1]] = CORNERS
    return left, right


def reference(model: bytes, left: Vector, right: Vector) -> Vector:
    """The sum by TensorFlow Lite's reference kernels."""
    interpreter = Interpreter(
        model_content=model, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    for details, values in zip(interpreter.get_input_details(), (left, right), strict=True):
        interpreter.set_tensor(details["index"], values.reshape(details["shape"]))
    interpreter.invoke()
    result: Vector = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    return result


def make() -> dict[str, bytes]:
    """The files' contents by name."""
    model = add_model((1, ELEMENTS), scales=SCALES, zero_points=ZERO_POINTS)
    left, right = vectors()
    expected = reference(model, left, right).tobytes()
    description = f"""\
# What the program of this folder is run on. Written by make_input.py.
program = "program.o"
input = "input.bin"
expected = "expected.bin"

# The block at which the input is stored when the device works on local storage.
lba = 0

# The program's arguments, 32 bits each: the length of the model and that of the output, in bytes.
arguments = [{len(model)}, {len(expected)}]

# The vectors are int8.
elements = {ELEMENTS}
"""
    return {
        "input.bin": model + left.tobytes() + right.tobytes(),
        "expected.bin": expected,
        "example.toml": description.encode(),
    }


if __name__ == "__main__":
    for name, content in make().items():
        (Path(__file__).parent / name).write_bytes(content)

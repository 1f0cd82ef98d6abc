"""Shapes for models whose file leaves some open, as height and width of pictures of any size.

They are written into the file in place of the open ones, so that every tool and the drive find the
same model. Source: `tflite/schema/schema.fbs`.
"""

import struct
from collections.abc import Sequence

from ai_edge_litert import schema_py_generated as schema

from potash.sdk.errors import PotashError
from potash_firmware.tflite.interpreter import Interpreter
from potash_firmware.tflite.runtime import Model, TensorReport

_SHAPE, _SIGNATURE = 4, 18
"""Slots of a tensor's fields."""


def parse(text: str) -> tuple[int, ...]:
    """A shape such as 1x224x224x3. Raises ValueError."""
    extents = text.split("x")
    if not all(one.isascii() and one.isdigit() and 0 < int(one) < 1 << 31 for one in extents):
        raise ValueError(f"{text!r} is not a shape; write one as 1x224x224x3")
    return tuple(map(int, extents))


def with_shapes(model: bytes, shapes: Sequence[tuple[int, ...]]) -> bytes:
    """The model with these shapes of its inputs, in their order, and of all tensors whose shapes
    depend on those alone. Raises PotashError, ModelError."""
    inputs = Model(model, delegate=None).inputs
    if len(shapes) != len(inputs):
        inputs_of = f"{len(inputs)} input{'s' * (len(inputs) != 1)}"
        raise PotashError(f"the model has {inputs_of}, and --shape is given {len(shapes)} times")
    for tensor, shape in zip(inputs, shapes, strict=True):
        _check(tensor, shape)
    changed = bytearray(model)
    graph = schema.Model.GetRootAs(changed, 0).Subgraphs(0)
    for at, shape in enumerate(shapes):
        for slot in (_SHAPE, _SIGNATURE):
            _write(changed, graph.Tensors(graph.Inputs(at)), slot, shape)
    Model(bytes(changed), delegate=None)  # refuses what TensorFlow Lite cannot prepare
    interpreter = Interpreter(model_content=bytes(changed))
    interpreter.allocate_tensors()
    for details in interpreter.get_tensor_details():
        if details["index"] < graph.TensorsLength():
            _write(changed, graph.Tensors(details["index"]), _SHAPE, details["shape"])
    return bytes(changed)


def _check(tensor: TensorReport, shape: tuple[int, ...]) -> None:
    fixed = [None if at in tensor.open else one for at, one in enumerate(tensor.shape)]
    fits = len(shape) == len(fixed) and all(
        one in (None, mine) for one, mine in zip(fixed, shape, strict=True)
    )
    if not fits:
        pattern = "x".join("?" if one is None else str(one) for one in fixed) or "none"
        raise PotashError(
            f"input {tensor.name!r} has the shape {pattern}, which {'x'.join(map(str, shape))} is "
            "not one of"
        )


def _write(model: bytearray, tensor: schema.Tensor, slot: int, shape: Sequence[int]) -> None:
    """Write a vector of extents where the file has one of as many."""
    table = tensor._tab
    offset = table.Offset(slot)
    if offset and table.VectorLen(offset) == len(shape):
        struct.pack_into(f"<{len(shape)}i", model, table.Vector(offset), *map(int, shape))

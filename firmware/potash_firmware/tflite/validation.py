"""What a model must be before native code sees it.

TensorFlow Lite verifies that a flatbuffer is well formed, but it aborts the process on parameters
that its kernels check with an assertion, and it believes the sizes that a model gives. This module
reads the model with the schema's accessors, in bounded time whatever the bytes are, and refuses what
can be known to be wrong. What only shows while a model runs is for the process around it to survive.
"""

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.quantization import QuantizationError, quantize_addition

# Accessors of the generated schema classes, which are untyped.
Table: TypeAlias = Any

FILE_IDENTIFIER = b"TFL3"
SCHEMA_VERSION = 3
SMALLEST_MODEL = 8

RANK_LIMIT = 32
TABLE_LIMIT = 1 << 17
BYTE_LIMIT = 1 << 26
MEMORY_LIMIT = 1 << 30

OPTIONAL = -1


class ModelError(ValueError):
    """The model, its input or its output is not right; the message says what, in one sentence."""


class TypeInfo(NamedTuple):
    """A tensor type's size in bits, and the zero points that a quantised one may have."""

    bits: int
    zero_points: range | None = None


_TYPES: Mapping[int, TypeInfo] = {
    schema.TensorType.FLOAT32: TypeInfo(32),
    schema.TensorType.FLOAT16: TypeInfo(16),
    schema.TensorType.BFLOAT16: TypeInfo(16),
    schema.TensorType.FLOAT64: TypeInfo(64),
    schema.TensorType.COMPLEX64: TypeInfo(64),
    schema.TensorType.COMPLEX128: TypeInfo(128),
    schema.TensorType.BOOL: TypeInfo(8),
    schema.TensorType.INT4: TypeInfo(4, range(-8, 8)),
    schema.TensorType.INT8: TypeInfo(8, range(-128, 128)),
    schema.TensorType.UINT8: TypeInfo(8, range(256)),
    schema.TensorType.INT16: TypeInfo(16, range(-(1 << 15), 1 << 15)),
    schema.TensorType.UINT16: TypeInfo(16, range(1 << 16)),
    schema.TensorType.INT32: TypeInfo(32, range(-(1 << 31), 1 << 31)),
    schema.TensorType.UINT32: TypeInfo(32),
    schema.TensorType.INT64: TypeInfo(64),
    schema.TensorType.UINT64: TypeInfo(64),
}

# What add.cc and sub.cc shift operands left by, for the types that they scale.
_ADDITION_LEFT_SHIFT: Mapping[int, int] = {
    schema.TensorType.INT8: 20,
    schema.TensorType.UINT8: 20,
    schema.TensorType.INT16: 15,
}


class _Budget:
    """Counts what is looked at: many offsets may lead to one place, so the size bounds nothing."""

    def __init__(self) -> None:
        self.tables = TABLE_LIMIT
        self.bytes = BYTE_LIMIT

    def take(self, count: int, what: str) -> range:
        """The indices of `count` tables or numbers."""
        self.tables -= count
        if count < 0 or self.tables < 0:
            raise ModelError(f"the model has too many {what}")
        return range(count)

    def read(self, count: int, what: str) -> None:
        """Look at `count` bytes at once."""
        self.bytes -= count
        if self.bytes < 0:
            raise ModelError(f"the model has too long {what}")


def validate(model: bytes) -> None:
    """Raises ModelError for a model that is known to fail, or to make TensorFlow Lite abort."""
    if len(model) < SMALLEST_MODEL or model[4:8] != FILE_IDENTIFIER:
        raise ModelError("this is not a TensorFlow Lite model")
    try:
        _validate_model(schema.Model.GetRootAs(model, 0), len(model))
    except (struct.error, IndexError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError("the model is damaged: an offset in it leads outside") from error


def _validate_model(model: Table, size: int) -> None:
    if model.Version() != SCHEMA_VERSION:
        raise ModelError(f"the model has schema version {model.Version()}, not {SCHEMA_VERSION}")
    budget = _Budget()
    codes = [model.OperatorCodes(at) for at in budget.take(model.OperatorCodesLength(), "codes")]
    operators = [max(code.BuiltinCode(), code.DeprecatedBuiltinCode()) for code in codes]
    buffers = [
        model.Buffers(at).DataLength() for at in budget.take(model.BuffersLength(), "buffers")
    ]
    if any(length > size for length in buffers):
        raise ModelError("the model is damaged: a buffer is longer than the model")
    if not model.SubgraphsLength():
        raise ModelError("the model has no graph")
    for at in budget.take(model.SubgraphsLength(), "graphs"):
        _validate_graph(model.Subgraphs(at), operators, buffers, budget)


def _validate_graph(
    graph: Table, operators: list[int], buffers: list[int], budget: _Budget
) -> None:
    tensors = [graph.Tensors(at) for at in budget.take(graph.TensorsLength(), "tensors")]
    memory = 0
    for tensor in tensors:
        memory += _validate_tensor(tensor, buffers, budget)
        if memory > MEMORY_LIMIT:
            raise ModelError(f"the model's tensors take more than {MEMORY_LIMIT} bytes")

    def check(indices: range, get: Callable[[int], int], lowest: int = 0) -> list[int]:
        named = [get(at) for at in indices]
        for index in named:
            if not lowest <= index < len(tensors):
                raise ModelError(f"the model names tensor {index} of {len(tensors)}")
        return named

    def check_writable(indices: list[int]) -> None:
        for index in indices:
            # Its memory is the model's own, which whoever gave the model may share.
            if index != OPTIONAL and buffers[tensors[index].Buffer()]:
                raise ModelError(f"the model writes to tensor {_name(tensors[index])}, a constant")

    check_writable(check(budget.take(graph.InputsLength(), "inputs"), graph.Inputs))
    check(budget.take(graph.OutputsLength(), "outputs"), graph.Outputs)
    for at in budget.take(graph.OperatorsLength(), "operators"):
        operator = graph.Operators(at)
        if operator.OpcodeIndex() >= len(operators):
            raise ModelError(
                f"operator {at} names code {operator.OpcodeIndex()}, which is not there"
            )
        inputs = check(budget.take(operator.InputsLength(), "inputs"), operator.Inputs, OPTIONAL)
        outputs = check(
            budget.take(operator.OutputsLength(), "outputs"), operator.Outputs, OPTIONAL
        )
        check_writable(outputs)
        check_operator = _OPERATORS.get(operators[operator.OpcodeIndex()])
        if check_operator is not None:
            check_operator(
                at,
                [tensors[index] for index in inputs if index != OPTIONAL],
                [tensors[index] for index in outputs if index != OPTIONAL],
            )


def _validate_tensor(tensor: Table, buffers: list[int], budget: _Budget) -> int:
    """The bytes that the tensor takes beside the model; 0 for a constant, which is in it."""
    name = _name(tensor)
    budget.read(len(name), "names")
    if tensor.Buffer() >= len(buffers):
        raise ModelError(
            f"tensor {name} has its data in buffer {tensor.Buffer()} of {len(buffers)}"
        )
    if tensor.ShapeLength() > RANK_LIMIT:
        raise ModelError(f"tensor {name} has {tensor.ShapeLength()} dimensions")
    shape: list[int] = [tensor.Shape(at) for at in budget.take(tensor.ShapeLength(), "dimensions")]
    if any(extent < 0 for extent in shape):
        raise ModelError(f"tensor {name} has the shape {shape}")
    _validate_quantization(tensor, name, budget)
    if buffers[tensor.Buffer()] or tensor.Type() not in _TYPES:
        return 0
    return math.prod(shape) * _TYPES[tensor.Type()].bits // 8


def _validate_quantization(tensor: Table, name: str, budget: _Budget) -> None:
    quantization = tensor.Quantization()
    info = _TYPES.get(tensor.Type())
    if quantization is None or info is None or info.zero_points is None:
        return
    budget.read(4 * quantization.ScaleLength() + 8 * quantization.ZeroPointLength(), "scales")
    scales = quantization.ScaleAsNumpy() if quantization.ScaleLength() else np.zeros(0)
    if not (np.isfinite(scales).all() and (scales >= 0).all()):
        raise ModelError(f"tensor {name} has a scale that is not a positive number")
    points = quantization.ZeroPointAsNumpy() if quantization.ZeroPointLength() else np.zeros(0)
    allowed = info.zero_points
    if ((points < allowed.start) | (points >= allowed.stop)).any():
        raise ModelError(f"tensor {name} has a zero point that its type cannot hold")


def _validate_addition(index: int, inputs: list[Table], outputs: list[Table]) -> None:
    if len(inputs) != 2 or len(outputs) != 1:
        raise ModelError(f"operator {index} adds {len(inputs)} tensors to {len(outputs)}")
    # The kernel makes the output of the inputs' type, whatever the model calls it.
    left_shift = _ADDITION_LEFT_SHIFT.get(inputs[0].Type())
    if left_shift is None:
        return
    left, right, output = (_scale(tensor) for tensor in (*inputs, *outputs))
    try:
        quantize_addition(left, right, output, left_shift)
    except QuantizationError as error:
        raise ModelError(f"operator {index} cannot be scaled: {error}") from None


_OPERATORS: Mapping[int, Callable[[int, list[Table], list[Table]], None]] = {
    schema.BuiltinOperator.ADD: _validate_addition,
    schema.BuiltinOperator.SUB: _validate_addition,
}


def _scale(tensor: Table) -> float:
    quantization = tensor.Quantization()
    if quantization is None or quantization.ScaleLength() != 1:
        return 0.0
    return float(quantization.Scale(0))


def _name(tensor: Table) -> str:
    try:
        return repr((tensor.Name() or b"").decode())
    except UnicodeDecodeError:
        raise ModelError("the model is damaged: the name of a tensor is not UTF-8") from None

"""Validating a model before native code reads it.

TensorFlow Lite verifies that a flatbuffer is well formed, but it aborts the process on parameters
that its kernels check with an assertion, and it trusts the sizes that a model gives. This module
reads the model with the schema's accessors, in bounded time whatever the bytes are, and refuses
what can be known to be wrong. Errors that show only while a model runs may end the process that
runs it.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.capi import OPERATOR_NAMES
from potash_firmware.tflite.validation.operators import (
    NO_SCALES,
    Array,
    Call,
    CheckError,
    Scales,
    TensorView,
    called_graphs,
    check_operator,
)

# Accessors of the generated schema classes, which are untyped.
Table: TypeAlias = Any
Data: TypeAlias = Array | None

FILE_IDENTIFIER = b"TFL3"
SCHEMA_VERSION = 3
SMALLEST_MODEL = 8

RANK_LIMIT = 32
TABLE_LIMIT = 1 << 17
BYTE_LIMIT = 1 << 26
MEMORY_LIMIT = 1 << 30

OPTIONAL = -1


class ModelError(ValueError):
    """The model, its input or its output is invalid; the message is one sentence."""


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


class _Budget:
    """Counts what is read: many offsets may lead to the same data, so the size bounds nothing."""

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
        """Take `count` bytes from the budget. Raises ModelError."""
        self.bytes -= count
        if self.bytes < 0:
            raise ModelError(f"the model has too long {what}")


def validate(model: bytes) -> None:
    """Raises ModelError for a model that is known to fail, or to make TensorFlow Lite abort."""
    if len(model) < SMALLEST_MODEL or model[4:8] != FILE_IDENTIFIER:
        raise ModelError("this is not a TensorFlow Lite model")
    with reading():
        _validate_model(schema.Model.GetRootAs(model, 0), model)


@contextmanager
def reading() -> Iterator[None]:
    """A context for the schema's accessors: raises ModelError for what these raise where an offset
    leads anywhere."""
    try:
        yield
    except (struct.error, IndexError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError("the model is damaged: an offset in it leads outside") from error


def _validate_model(model: Table, contents: bytes) -> None:
    if model.Version() != SCHEMA_VERSION:
        raise ModelError(f"the model has schema version {model.Version()}, not {SCHEMA_VERSION}")
    budget = _Budget()
    codes = [model.OperatorCodes(at) for at in budget.take(model.OperatorCodesLength(), "codes")]
    operators = [max(code.BuiltinCode(), code.DeprecatedBuiltinCode()) for code in codes]
    buffers = [
        data_of(model.Buffers(at), contents) for at in budget.take(model.BuffersLength(), "buffers")
    ]
    if buffers:
        # TensorFlow Lite never takes data from this one.
        buffers[0] = None
    if not model.SubgraphsLength():
        raise ModelError("the model has no graph")
    calls = [
        _validate_graph(model.Subgraphs(at), operators, buffers, budget)
        for at in budget.take(model.SubgraphsLength(), "graphs")
    ]
    try:
        TopologicalSorter(dict(enumerate(calls))).prepare()
    except CycleError:
        # A graph that calls itself, directly or through others, would never return.
        raise ModelError("the model's graphs call each other in a circle") from None


def data_of(buffer: Table, contents: bytes) -> Data:
    """A buffer's bytes, in its table or behind all tables."""
    if buffer.Offset() <= 1:
        if buffer.DataLength() > len(contents):
            raise ModelError("the model is damaged: a buffer is longer than the model")
        return buffer.DataAsNumpy() if buffer.DataLength() else None
    if not buffer.DataIsNone():
        raise ModelError("the model is damaged: a buffer has two pieces of data")
    if buffer.Offset() + buffer.Size() > len(contents):
        raise ModelError("the model is damaged: a buffer ends after the model")
    size = buffer.Size()
    return np.frombuffer(contents, np.uint8, size, buffer.Offset()) if size else None


def _validate_graph(
    graph: Table, operators: list[int], buffers: list[Data], budget: _Budget
) -> set[int]:
    """The graphs that its operators call."""
    tensors = []
    called: set[int] = set()
    memory = 0
    variables = set()
    for at in budget.take(graph.TensorsLength(), "tensors"):
        table = graph.Tensors(at)
        tensors.append(_validate_tensor(table, buffers, budget))
        memory += _memory(tensors[-1])
        if memory > MEMORY_LIMIT:
            raise ModelError(f"the model's tensors take more than {MEMORY_LIMIT} bytes")
        if table.IsVariable():
            variables.add(at)

    def check(indices: range, get: Callable[[int], int], lowest: int = 0) -> list[int]:
        named = [get(at) for at in indices]
        for index in named:
            if not lowest <= index < len(tensors):
                raise ModelError(f"the model names tensor {index} of {len(tensors)}")
        return named

    # Whose values are known, at the point of the graph that has been reached.
    known = variables | {
        at for at, one in enumerate(tensors) if one.data is not None or one.elements == 0
    }

    def write(indices: list[int]) -> None:
        for index in indices:
            if index == OPTIONAL:
                continue
            if tensors[index].data is not None or index in variables:
                # A constant's memory is the model's own, which its sender may share;
                # a variable's is not among what is planned for outputs.
                what = "a variable" if index in variables else "a constant"
                raise ModelError(f"the model writes to tensor {tensors[index].name}, {what}")
            known.add(index)

    def read(indices: list[int], reader: str) -> None:
        for index in indices:
            if index != OPTIONAL and index not in known:
                # That memory may hold another's data.
                raise ModelError(f"{reader} tensor {tensors[index].name} before it has a value")

    its_inputs = check(budget.take(graph.InputsLength(), "inputs"), graph.Inputs)
    for at in set(range(len(tensors))).difference(its_inputs, known):
        if _is_open(graph.Tensors(at), budget):
            tensors[at] = replace(tensors[at], shape=())
    write(its_inputs)
    given = check(budget.take(graph.OutputsLength(), "outputs"), graph.Outputs)
    for at in budget.take(graph.OperatorsLength(), "operators"):
        operator = graph.Operators(at)
        if operator.OpcodeIndex() >= len(operators):
            raise ModelError(
                f"operator {at} names code {operator.OpcodeIndex()}, which is not there"
            )
        code = operators[operator.OpcodeIndex()]
        inputs = check(budget.take(operator.InputsLength(), "inputs"), operator.Inputs, OPTIONAL)
        outputs = check(
            budget.take(operator.OutputsLength(), "outputs"), operator.Outputs, OPTIONAL
        )
        name = f"operator {at} ({OPERATOR_NAMES.get(code, code)})"
        read(inputs, f"{name} reads")
        write(outputs)
        views = [
            tuple(None if index == OPTIONAL else tensors[index] for index in indices)
            for indices in (inputs, outputs)
        ]
        called |= called_graphs(operator)
        try:
            check_operator(
                code,
                operator.BuiltinOptionsType(),
                operator.BuiltinOptions(),
                Call(views[0], views[1], None),
            )
        except CheckError as error:
            raise ModelError(f"{name} {error}") from None
    read(given, "the model gives")
    return called


def _validate_tensor(tensor: Table, buffers: list[Data], budget: _Budget) -> TensorView:
    name = _name(tensor)
    budget.read(len(name), "names")
    if tensor.Buffer() >= len(buffers):
        raise ModelError(
            f"tensor {name} has its data in buffer {tensor.Buffer()} of {len(buffers)}"
        )
    if tensor.ExternalBuffer():
        raise ModelError(f"tensor {name} has its data in another file")
    if tensor.ShapeLength() > RANK_LIMIT:
        raise ModelError(f"tensor {name} has {tensor.ShapeLength()} dimensions")
    shape = tuple(int(tensor.Shape(at)) for at in budget.take(tensor.ShapeLength(), "dimensions"))
    if any(extent < 0 for extent in shape):
        raise ModelError(f"tensor {name} has the shape {list(shape)}")
    scales = _validate_quantization(tensor, name, shape, budget)
    view = TensorView(
        name=name, type=tensor.Type(), shape=shape, scales=scales, data=buffers[tensor.Buffer()]
    )
    info = _TYPES.get(view.type)
    if view.data is not None and info is not None and tensor.Sparsity() is None:
        size = -(-view.elements * info.bits // 8)
        if len(view.data) != size:
            raise ModelError(
                f"tensor {name} takes {size} bytes, and the model has {len(view.data)} for it"
            )
    return view


def _memory(tensor: TensorView) -> int:
    """The bytes that it takes beside the model; 0 for a constant, which is in it."""
    if tensor.data is not None or tensor.type not in _TYPES:
        return 0
    return tensor.elements * _TYPES[tensor.type].bits // 8


def _is_open(tensor: Table, budget: _Budget) -> bool:
    """True if the tensor's shape in the file has a 1 in place of an extent that is not known
    before a run."""
    extents = budget.take(tensor.ShapeSignatureLength(), "dimensions")
    return any(tensor.ShapeSignature(at) < 0 for at in extents)


def _validate_quantization(
    tensor: Table, name: str, shape: tuple[int, ...], budget: _Budget
) -> Scales:
    quantization = tensor.Quantization()
    info = _TYPES.get(tensor.Type())
    if quantization is None or info is None or info.zero_points is None:
        return NO_SCALES
    count, points_count = quantization.ScaleLength(), quantization.ZeroPointLength()
    budget.read(4 * count + 8 * points_count, "scales")
    scales = quantization.ScaleAsNumpy() if count else np.zeros(0, np.float32)
    if not (np.isfinite(scales).all() and (scales >= 0).all()):
        raise ModelError(f"tensor {name} has a scale that is not a positive number")
    if count and points_count != count:
        raise ModelError(f"tensor {name} has {count} scales and {points_count} zero points")
    points = quantization.ZeroPointAsNumpy() if points_count else np.zeros(0)
    allowed = info.zero_points
    if ((points < allowed.start) | (points >= allowed.stop)).any():
        raise ModelError(f"tensor {name} has a zero point that its type cannot hold")
    axis = quantization.QuantizedDimension()
    if count > 1 and not (0 <= axis < len(shape) and shape[axis] == count):
        raise ModelError(
            f"tensor {name} has {count} scales along axis {axis} of the shape {list(shape)}"
        )
    if not count:
        return NO_SCALES
    return Scales(count, float(scales.min()), float(scales.max()), axis)


def _name(tensor: Table) -> str:
    try:
        return repr((tensor.Name() or b"").decode())
    except UnicodeDecodeError:
        raise ModelError("the model is damaged: the name of a tensor is not UTF-8") from None

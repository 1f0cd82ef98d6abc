"""Operators that ai-edge-quantizer leaves in float32 between a DEQUANTIZE and a QUANTIZE, though
TensorFlow Lite has them for int8: PRELU, LEAKY_RELU, and some whose values are their input's. NEG
and SQUARE become products: the kernel of NEG for int8 leaves zero points out, and there is none of
SQUARE.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema

Code = schema.BuiltinOperator
_MOVES = frozenset(
    {
        *(Code.DEPTH_TO_SPACE, Code.SPACE_TO_DEPTH, Code.EXPAND_DIMS, Code.SQUEEZE),
        *(Code.REDUCE_MAX, Code.REDUCE_MIN),
    }
)
_PRODUCTS = frozenset({Code.NEG, Code.SQUARE})
_RESCALES = _PRODUCTS | {Code.PRELU, Code.LEAKY_RELU}
"""Those whose output has a scale of its own."""


def rejoin(tables: Any) -> None:
    """Have such operators of a quantised model's first graph take and give int8."""
    graph = tables.subgraphs[0]
    codes = [max(one.builtinCode, one.deprecatedBuiltinCode) for one in tables.operatorCodes]
    makers = {int(output): one for one in graph.operators for output in one.outputs}
    for operator in graph.operators:
        code = codes[operator.opcodeIndex]
        if code not in _MOVES | _RESCALES:
            continue
        maker, output = makers.get(int(operator.inputs[0])), int(operator.outputs[0])
        readers = [one for one in graph.operators if output in one.inputs]
        if (
            maker is None
            or codes[maker.opcodeIndex] != Code.DEQUANTIZE
            or output in graph.outputs
            or any(codes[one.opcodeIndex] != Code.QUANTIZE for one in readers)
        ):
            continue
        source, target = graph.tensors[maker.inputs[0]], graph.tensors[output]
        results = [graph.tensors[one.outputs[0]] for one in readers]
        if any(one.type != schema.TensorType.INT8 for one in (source, *results)):
            continue
        if code in _RESCALES and not results:
            continue
        if code == Code.PRELU and not _make_int8(tables, graph, operator):
            continue
        if code in _PRODUCTS:
            other = maker.inputs[0]
            if code == Code.NEG:
                minus_one = np.array([-1], np.int8)
                other = _constant(tables, graph, b"minus one", minus_one, 1.0)
            operator.inputs = [operator.inputs[0], other]
            _multiply(tables, operator)
            codes.append(Code.MUL)
        operator.inputs = [maker.inputs[0], *operator.inputs[1:]]
        target.type = schema.TensorType.INT8
        target.quantization = (source if code in _MOVES else results[0]).quantization
    _drop_idle(graph, codes)


def _make_int8(tables: Any, graph: Any, operator: Any) -> bool:
    """Give a PRELU factors in int8, with one scale; whether it could be done."""
    factors = graph.tensors[operator.inputs[1]]
    data = tables.buffers[factors.buffer].data
    if data is None or factors.type != schema.TensorType.FLOAT32:
        return False
    values = np.frombuffer(bytes(data), np.float32)
    scale = float(np.abs(values).max(initial=0)) / 127 or 1.0
    whole = np.rint(values / scale).astype(np.int8).reshape(factors.shape)
    made = _constant(tables, graph, factors.name + b"_int8", whole, scale)
    operator.inputs = [operator.inputs[0], made]
    return True


def _constant(tables: Any, graph: Any, name: bytes, values: npt.NDArray[Any], scale: float) -> int:
    """A tensor with a scale; its number."""
    made, buffer = schema.TensorT(), schema.BufferT()
    buffer.data = values.reshape(-1).view(np.uint8)
    tables.buffers.append(buffer)
    made.name, made.shape, made.type = name, list(values.shape), schema.TensorType.INT8
    made.buffer = len(tables.buffers) - 1
    made.quantization = schema.QuantizationParametersT()
    made.quantization.scale = np.array([scale], np.float32)
    made.quantization.zeroPoint = np.zeros(1, np.int64)
    graph.tensors.append(made)
    return len(graph.tensors) - 1


def _multiply(tables: Any, operator: Any) -> None:
    """Make a product of an operator of one input."""
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = Code.MUL
    code.version = 2
    tables.operatorCodes.append(code)
    operator.opcodeIndex = len(tables.operatorCodes) - 1
    operator.builtinOptionsType = schema.BuiltinOptions.MulOptions
    operator.builtinOptions = schema.MulOptionsT()


def _drop_idle(graph: Any, codes: list[int]) -> None:
    """Leave out a QUANTIZE to the same numbers, and a DEQUANTIZE that nothing reads."""
    same = {}
    for operator in graph.operators:
        if codes[operator.opcodeIndex] == Code.QUANTIZE:
            before, after = int(operator.inputs[0]), int(operator.outputs[0])
            if after not in graph.outputs and _alike(graph.tensors[before], graph.tensors[after]):
                same[after] = before
    for operator in graph.operators:
        operator.inputs = [same.get(int(index), int(index)) for index in operator.inputs]
    read = {index for operator in graph.operators for index in operator.inputs}
    read |= {int(index) for index in graph.outputs}
    graph.operators = [
        one
        for one in graph.operators
        if int(one.outputs[0]) in read
        or codes[one.opcodeIndex] not in (Code.DEQUANTIZE, Code.QUANTIZE)
    ]


def _alike(one: Any, other: Any) -> bool:
    """Whether two tensors of int8 have the same scale and zero point."""
    if one.type != schema.TensorType.INT8 or other.type != schema.TensorType.INT8:
        return False
    its, others = one.quantization, other.quantization
    return bool(
        np.array_equal(its.scale, others.scale) and np.array_equal(its.zeroPoint, others.zeroPoint)
    )

"""Models as ai-edge-quantizer takes them, whichever converter wrote them.

Weights in float16, or without their zeroes, are made float32 by an operator each, which is run here
once for all. Operator codes of older files are in a field of a byte.
"""

from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.interpreter import Interpreter, OpResolverType
from potash_firmware.tflite.writer import FILE_IDENTIFIER

OPTIONAL = -1
"""In place of a tensor that is left out."""
_FOLDED = frozenset({schema.BuiltinOperator.DEQUANTIZE, schema.BuiltinOperator.DENSIFY})


def unpacked(model: bytes) -> Any:
    """A model's tables, with all of its constants in them."""
    tables = schema.ModelT.InitFromPackedBuf(model, 0)
    for buffer in tables.buffers:
        if buffer.offset > 1:
            buffer.data = np.frombuffer(model, np.uint8, buffer.size, buffer.offset)
            buffer.offset = buffer.size = 0
    for code in tables.operatorCodes:
        code.builtinCode = max(code.builtinCode, code.deprecatedBuiltinCode)
    return tables


def folded(model: bytes) -> Any:
    """A model's tables, with all of its constants in float32."""
    tables = unpacked(model)
    for graph in tables.subgraphs:
        _fold(tables, graph)
    used = {tensor.buffer for graph in tables.subgraphs for tensor in graph.tensors}
    used |= {entry.buffer for entry in tables.metadata or ()}
    for at in set(range(len(tables.buffers))) - used:
        tables.buffers[at].data = None
    return tables


def packed(tables: Any) -> bytes:
    """The file of a model's tables."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(tables.Pack(builder), FILE_IDENTIFIER)
    return bytes(builder.Output())


def _fold(tables: Any, graph: Any) -> None:
    """Replace what makes float32 of constants by what it makes."""
    known = {
        at
        for at, tensor in enumerate(graph.tensors)
        if tensor.buffer and tables.buffers[tensor.buffer].data is not None
    }
    left, folded = [], []
    for operator in graph.operators:
        code = tables.operatorCodes[operator.opcodeIndex].builtinCode
        if code in _FOLDED and known.issuperset(operator.inputs):
            folded.append(operator)
            known.update(operator.outputs)
        else:
            left.append(operator)
    made = [int(operator.outputs[0]) for operator in folded]
    for index, values in zip(made, _values(tables, graph, folded, made), strict=True):
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(values.tobytes(), np.uint8)
        tables.buffers.append(buffer)
        graph.tensors[index].buffer = len(tables.buffers) - 1
    graph.operators = left
    read = {index for operator in left for index in operator.inputs} | set(graph.outputs)
    _drop(tables, graph, {index for one in folded for index in one.inputs} - read)


def _drop(tables: Any, graph: Any, unused: set[int]) -> None:
    """Leave tensors out."""
    if not unused:
        return
    left = [at for at in range(len(graph.tensors)) if at not in unused]
    numbers = {old: new for new, old in enumerate(left)} | {OPTIONAL: OPTIONAL}

    def renumbered(indices: Any) -> list[int] | None:
        return None if indices is None else [numbers[int(index)] for index in indices]

    graph.tensors = [graph.tensors[at] for at in left]
    graph.inputs, graph.outputs = renumbered(graph.inputs), renumbered(graph.outputs)
    for operator in graph.operators:
        operator.inputs = renumbered(operator.inputs)
        operator.outputs = renumbered(operator.outputs)
        operator.intermediates = renumbered(operator.intermediates)
    number = next(at for at, one in enumerate(tables.subgraphs) if one is graph)
    for signature in tables.signatureDefs or ():
        if signature.subgraphIndex == number:
            for entry in (*(signature.inputs or ()), *(signature.outputs or ())):
                entry.tensorIndex = numbers[entry.tensorIndex]


def _values(tables: Any, graph: Any, operators: list[Any], outputs: list[int]) -> list[Any]:
    """What operators on constants give."""
    if not operators:
        return []
    part = schema.ModelT()
    part.version, part.operatorCodes, part.buffers = (
        tables.version,
        tables.operatorCodes,
        tables.buffers,
    )
    its = schema.SubGraphT()
    its.tensors, its.operators, its.inputs, its.outputs = graph.tensors, operators, [], outputs
    part.subgraphs = [its]
    interpreter = Interpreter(
        model_content=packed(part), experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    interpreter.invoke()
    return [interpreter.get_tensor(index) for index in outputs]

"""Models as ai-edge-quantizer takes them, whichever converter wrote them.

Weights in float16, or without their zeroes, are made float32 by an operator each, which is run here
once for all. So are operators that compute shapes from shapes, as of a batch that the file leaves
open; then all shapes behind them are written into the file, too. Operator codes of older files are
in a field of a byte.
"""

from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.interpreter import Interpreter, OpResolverType
from potash_firmware.tflite.writer import packed

OPTIONAL = -1
"""Number of an optional tensor that is left out."""
_Code = schema.BuiltinOperator
_FOLDED = frozenset({_Code.DEQUANTIZE, _Code.DENSIFY})
_SHAPES = frozenset({_Code.SHAPE, _Code.RANK})
"""Operators whose results depend on their input's shape alone."""
_SELECTIONS = frozenset({_Code.WHERE, _Code.UNIQUE, _Code.CUSTOM})
"""Operators that may give as many values as there are of a kind."""
_POSSIBLE_SHAPES = frozenset(
    {schema.TensorType.INT32, schema.TensorType.INT64, schema.TensorType.STRING}
)
_FUNCTIONS = frozenset(
    {
        *(_Code.ADD, _Code.CAST, _Code.CONCATENATION, _Code.DIV, _Code.EXPAND_DIMS, _Code.FILL),
        *(_Code.FLOOR_DIV, _Code.FLOOR_MOD, _Code.GATHER, _Code.MAXIMUM, _Code.MINIMUM, _Code.MUL),
        *(_Code.PACK, _Code.RANGE, _Code.REDUCE_MAX, _Code.REDUCE_MIN, _Code.REDUCE_PROD),
        *(_Code.RESHAPE, _Code.SLICE, _Code.SPLIT, _Code.SPLIT_V, _Code.SQUEEZE),
        *(_Code.STRIDED_SLICE, _Code.SUB, _Code.SUM, _Code.TILE, _Code.UNPACK, *_SHAPES),
    }
)
"""Operators that compute shapes."""


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
    if len(tables.subgraphs) == 1:
        _fold_shapes(tables)
    used = {tensor.buffer for graph in tables.subgraphs for tensor in graph.tensors}
    used |= {entry.buffer for entry in tables.metadata or ()}
    for at in set(range(len(tables.buffers))) - used:
        tables.buffers[at].data = None
    return tables


def _fold(tables: Any, graph: Any) -> None:
    """Replace what makes float32 of constants by what it makes."""
    known, folded = _constants(tables, graph), []
    for operator in graph.operators:
        if _code(tables, operator) in _FOLDED and known.issuperset(operator.inputs):
            folded.append(operator)
            known.update(operator.outputs)
    made = [int(operator.outputs[0]) for operator in folded]
    if made:
        interpreter = _run(_part(tables, graph, folded, made))
        _replace(tables, graph, folded, {at: interpreter.get_tensor(at) for at in made})


def _fold_shapes(tables: Any) -> None:
    """Replace what computes shapes from shapes by what it computes, and write the shapes that come
    of it, where no shape depends on an input's values."""
    (graph,) = tables.subgraphs
    codes = [_code(tables, operator) for operator in graph.operators]
    if not _SHAPES.intersection(codes):
        return
    known, folded = _constants(tables, graph), []
    for operator, code in zip(graph.operators, codes, strict=True):
        unknown = set(operator.inputs) - known - {OPTIONAL}
        if code in _SHAPES or (code in _FUNCTIONS and not unknown):
            folded.append(operator)
            known.update(operator.outputs)
        elif code in _SELECTIONS or any(
            graph.tensors[index].type in _POSSIBLE_SHAPES for index in unknown
        ):
            # A shape may depend on values.
            return
    interpreter = _run(packed(tables), preserved=True)
    made = {int(index) for operator in folded for index in operator.outputs}
    values = {index: interpreter.get_tensor(index) for index in made}
    for index, tensor in enumerate(graph.tensors):
        if index not in known:
            tensor.shape = interpreter._get_tensor_details(index, 0)["shape"]
            tensor.shapeSignature = None
    _replace(tables, graph, folded, values)


def _code(tables: Any, operator: Any) -> int:
    return int(tables.operatorCodes[operator.opcodeIndex].builtinCode)


def _constants(tables: Any, graph: Any) -> set[int]:
    """The tensors whose values are in the file."""
    return {
        at
        for at, tensor in enumerate(graph.tensors)
        if tensor.buffer and tables.buffers[tensor.buffer].data is not None
    }


def _replace(tables: Any, graph: Any, folded: list[Any], values: dict[int, Any]) -> None:
    """Leave operators out, whose results are constants now."""
    for index, its in values.items():
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(its.tobytes(), np.uint8)
        tables.buffers.append(buffer)
        tensor = graph.tensors[index]
        tensor.buffer, tensor.shape, tensor.shapeSignature = (
            len(tables.buffers) - 1,
            its.shape,
            None,
        )
    gone = {id(operator) for operator in folded}
    graph.operators = [one for one in graph.operators if id(one) not in gone]
    read = {index for operator in graph.operators for index in operator.inputs}
    read |= {*graph.inputs, *graph.outputs}
    touched = {index for one in folded for index in (*one.inputs, *one.outputs)}
    made = {index for operator in graph.operators for index in operator.outputs}
    _drop(tables, graph, touched - read - made - {OPTIONAL})


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


def _part(tables: Any, graph: Any, operators: list[Any], outputs: list[int]) -> bytes:
    """A model of some operators on constants."""
    part = schema.ModelT()
    part.version, part.operatorCodes, part.buffers = (
        tables.version,
        tables.operatorCodes,
        tables.buffers,
    )
    its = schema.SubGraphT()
    its.tensors, its.operators, its.inputs, its.outputs = graph.tensors, operators, [], outputs
    part.subgraphs = [its]
    return packed(part)


def _run(model: bytes, preserved: bool = False) -> Interpreter:
    """A model after a run on zeroes."""
    interpreter = Interpreter(
        model_content=model,
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        experimental_preserve_all_tensors=preserved,
    )
    interpreter.allocate_tensors()
    interpreter.invoke()
    return interpreter

"""Variables of a model, which keep a tensor from one run to the next.

READ_VARIABLE copies as many bytes as the variable has into an output of the size that the file
gives. Were that larger, the model would give what happens to be in the memory behind.

Source: `tflite/kernels/read_variable.cc`.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.validation import ModelError

_Code = schema.BuiltinOperator
_OTHER_SIZE = "the model reads a variable as a tensor of another size"


class Assigned(NamedTuple):
    """A tensor of the first graph that a variable is set to, and the elements that it must have."""

    tensor: int
    elements: int


def assigned(model: bytes) -> tuple[Assigned, ...]:
    """What a valid model sets the variables to that it reads.

    Raises ModelError where it is known that a variable is read as a tensor of another size, and
    where it is not known which variable is read.
    """
    its = schema.Model.GetRootAs(model, 0)
    codes = [
        max(one.BuiltinCode(), one.DeprecatedBuiltinCode())
        for one in map(its.OperatorCodes, range(its.OperatorCodesLength()))
    ]
    if _Code.READ_VARIABLE not in codes:
        return ()
    read: defaultdict[object, set[int]] = defaultdict(set)
    written = []
    for number in range(its.SubgraphsLength()):
        graph = its.Subgraphs(number)
        handles: dict[int, object] = {}
        for code, operator in _operators(graph, codes):
            if code == _Code.VAR_HANDLE:
                handles[operator.Outputs(0)] = _name(operator)
            elif code in (_Code.READ_VARIABLE, _Code.ASSIGN_VARIABLE):
                handle = handles.get(operator.Inputs(0))
                if handle is None:
                    raise ModelError("the model has a variable whose name is not known")
                if code == _Code.ASSIGN_VARIABLE:
                    written.append((handle, number, operator.Inputs(1)))
                elif not _is_open(tensor := graph.Tensors(operator.Outputs(0))):
                    read[handle].add(_elements(tensor))
    found = []
    for handle, number, index in written:
        tensor = its.Subgraphs(number).Tensors(index)
        for elements in read[handle]:
            if number == 0:
                found.append(Assigned(index, elements))
            elif not tensor.Buffer() or _elements(tensor) != elements:
                # Of what another graph computes, it cannot be seen how large it is.
                raise ModelError(_OTHER_SIZE)
    return tuple(found)


def check(interpreter: Any, every: tuple[Assigned, ...]) -> None:
    """Raises ModelError where a run has set a variable to a tensor of another size than it must
    have."""
    for index, elements in every:
        shape = interpreter._get_tensor_details(index, 0)["shape"]
        if math.prod(int(extent) for extent in shape) != elements:
            raise ModelError(_OTHER_SIZE)


def _operators(graph: Any, codes: list[int]) -> Iterator[tuple[int, Any]]:
    for at in range(graph.OperatorsLength()):
        operator = graph.Operators(at)
        yield codes[operator.OpcodeIndex()], operator


def _name(operator: Any) -> tuple[bytes, bytes]:
    """What identifies a variable."""
    options, table = schema.VarHandleOptions(), operator.BuiltinOptions()
    if table is None:
        raise ModelError("the model has a variable without a name")
    options.Init(table.Bytes, table.Pos)
    return options.Container() or b"", options.SharedName() or b""


def _elements(tensor: Any) -> int:
    return math.prod(tensor.Shape(at) for at in range(tensor.ShapeLength()))


def _is_open(tensor: Any) -> bool:
    """Whether TensorFlow Lite gives it the size of the variable."""
    return any(tensor.ShapeSignature(at) < 0 for at in range(tensor.ShapeSignatureLength()))

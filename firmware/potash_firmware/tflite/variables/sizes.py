"""Whether variables are read with the size that they have.

READ_VARIABLE copies as many bytes as the variable has into an output of the size that the file
gives. Were that larger, the model would give what happens to be in the memory behind.

Source: `tflite/kernels/read_variable.cc`.
"""

import math
from collections import defaultdict
from typing import Any, NamedTuple

from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.validation import ModelError
from potash_firmware.tflite.variables.accesses import Name, read

_OTHER_SIZE = "the model reads a variable as a tensor of another size"


class Assigned(NamedTuple):
    """A tensor of the first graph that a variable is set to, and the elements that it must have."""

    tensor: int
    elements: int
    node: int
    """The one that sets the variable."""


def assigned(model: bytes) -> tuple[Assigned, ...]:
    """What a valid model sets the variables to that it reads.

    Raises ModelError where it is known that a variable is read as a tensor of another size, and
    where it is not known which variable is read.
    """
    its = schema.Model.GetRootAs(model, 0)
    variables = read(its)
    if variables is None:
        return ()
    sizes: defaultdict[Name, set[int]] = defaultdict(set)
    for one in variables.accesses:
        tensor = its.Subgraphs(one.place[0]).Tensors(one.tensor)
        if one.reads and not _is_open(tensor):
            sizes[one.variable].add(_elements(tensor))
    found = []
    for one in variables.accesses:
        graph, node = one.place
        tensor = its.Subgraphs(graph).Tensors(one.tensor)
        for elements in () if one.reads else sizes[one.variable]:
            if graph == 0:
                found.append(Assigned(one.tensor, elements, node))
            elif not tensor.Buffer() or _elements(tensor) != elements:
                # Of what another graph computes, it cannot be seen how large it is.
                raise ModelError(_OTHER_SIZE)
    return tuple(found)


def check(interpreter: Any, every: tuple[Assigned, ...]) -> None:
    """Raises ModelError where a run has set a variable to a tensor of another size than it must
    have."""
    for index, elements, _ in every:
        shape = interpreter._get_tensor_details(index, 0)["shape"]
        if math.prod(int(extent) for extent in shape) != elements:
            raise ModelError(_OTHER_SIZE)


def _elements(tensor: Any) -> int:
    return math.prod(tensor.Shape(at) for at in range(tensor.ShapeLength()))


def _is_open(tensor: Any) -> bool:
    """Whether TensorFlow Lite gives it the size of the variable."""
    return any(tensor.ShapeSignature(at) < 0 for at in range(tensor.ShapeSignatureLength()))

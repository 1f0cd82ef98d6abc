"""The operators of a model that make the handles of variables, read variables and set them, and
whether a model keeps something from one run to the next.

A handle is a tensor, which a model could compute. Here it has to be what one VAR_HANDLE gives, so
that it is known which variable is meant.

READ_VARIABLE copies as many bytes as the variable has into an output of the size that the file
gives. Were that larger, the model would give what happens to be in the memory behind.

Sources: `tflite/kernels/var_handle.cc`, `read_variable.cc`, `assign_variable.cc`;
`tflite/schema/schema.fbs`.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.capi import BuiltinOperator
from potash_firmware.tflite.validation.model import ModelError, reading

Table: TypeAlias = Any
"""An accessor of the generated schema classes, which are untyped."""

Place: TypeAlias = tuple[int, int]
"""A graph's number, and a node's in it."""

Name: TypeAlias = tuple[bytes, bytes]
"""Identity of a variable: the name of its container and its own."""

_OTHER_SIZE = "the model reads a variable as a tensor of another size"

_STATEFUL = frozenset(
    {
        schema.BuiltinOperator.ASSIGN_VARIABLE,
        schema.BuiltinOperator.CALL,
        schema.BuiltinOperator.CALL_ONCE,
        schema.BuiltinOperator.CUSTOM,
        schema.BuiltinOperator.DELEGATE,
        schema.BuiltinOperator.HASHTABLE,
        schema.BuiltinOperator.HASHTABLE_FIND,
        schema.BuiltinOperator.HASHTABLE_IMPORT,
        schema.BuiltinOperator.HASHTABLE_SIZE,
        schema.BuiltinOperator.MULTINOMIAL,
        schema.BuiltinOperator.RANDOM_STANDARD_NORMAL,
        schema.BuiltinOperator.RANDOM_UNIFORM,
        schema.BuiltinOperator.READ_VARIABLE,
        schema.BuiltinOperator.STABLEHLO_CUSTOM_CALL,
        schema.BuiltinOperator.STABLEHLO_RNG_BIT_GENERATOR,
        schema.BuiltinOperator.VAR_HANDLE,
    }
)
"""Operators with resources, with random numbers, and of which nothing is known."""


class Operator(NamedTuple):
    """An operator of a graph."""

    code: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    table: Table


class Access(NamedTuple):
    """A READ_VARIABLE or an ASSIGN_VARIABLE."""

    place: Place
    reads: bool
    variable: Name
    tensor: int
    """The tensor that is read, or that the variable is set to."""


class Variables(NamedTuple):
    """A model's accesses to variables."""

    handles: Mapping[Place, Name]
    """The variable of each VAR_HANDLE."""
    accesses: tuple[Access, ...]
    """All accesses, in the order of each graph."""
    escaped: frozenset[Name]
    """Variables whose handles other operators or the callers of a graph get, too."""


def read(model: Table) -> Variables | None:
    """Accesses of a valid `schema.Model` to variables; None if it reads none. Raises ModelError if
    it is not known which variable an operator means."""
    with reading():
        return _read(model)


def _read(model: Table) -> Variables | None:
    if BuiltinOperator.READ_VARIABLE not in _codes(model):
        return None
    graphs = operators(model)
    handles: dict[Place, Name] = {}
    accesses: list[Access] = []
    escaped: set[Name] = set()
    for number, graph in enumerate(graphs):
        names = _names(graph)
        its = model.Subgraphs(number)
        escaped |= {names[at] for at in map(its.Outputs, range(its.OutputsLength())) if at in names}
        for at, one in enumerate(graph):
            place = number, at
            rest: Sequence[int] = one.inputs
            if one.code == BuiltinOperator.VAR_HANDLE:
                handles[place] = names[one.outputs[0]]
            elif one.code in (BuiltinOperator.READ_VARIABLE, BuiltinOperator.ASSIGN_VARIABLE):
                reads = one.code == BuiltinOperator.READ_VARIABLE
                if (len(one.inputs), len(one.outputs)) != ((1, 1) if reads else (2, 0)):
                    raise ModelError("the model has a variable with inputs that it should not have")
                handle, *rest = one.inputs
                if handle not in names:
                    raise ModelError("the model has a variable whose name is not known")
                tensor = one.outputs[0] if reads else rest[0]
                accesses.append(Access(place, reads, names[handle], tensor))
            escaped |= {names[tensor] for tensor in rest if tensor in names}
    return Variables(handles, tuple(accesses), frozenset(escaped))


def operators(model: Table) -> list[list[Operator]]:
    """The operators of each graph of a valid `schema.Model`."""
    codes = _codes(model)
    return [
        [
            Operator(
                codes[one.OpcodeIndex()],
                tuple(map(one.Inputs, range(one.InputsLength()))),
                tuple(map(one.Outputs, range(one.OutputsLength()))),
                one,
            )
            for one in map(graph.Operators, range(graph.OperatorsLength()))
        ]
        for graph in map(model.Subgraphs, range(model.SubgraphsLength()))
    ]


def _codes(model: Table) -> list[int]:
    return [
        max(one.BuiltinCode(), one.DeprecatedBuiltinCode())
        for one in map(model.OperatorCodes, range(model.OperatorCodesLength()))
    ]


def _names(graph: Sequence[Operator]) -> dict[int, Name]:
    """The variable of each handle of a graph. Raises ModelError."""
    names: dict[int, Name] = {}
    for one in graph:
        if one.code == BuiltinOperator.VAR_HANDLE:
            if len(one.outputs) != 1 or one.outputs[0] in names:
                raise ModelError("the model has a variable without a handle of its own")
            names[one.outputs[0]] = _name(one.table)
    for one in graph:
        if one.code != BuiltinOperator.VAR_HANDLE and not names.keys().isdisjoint(one.outputs):
            raise ModelError("the model has a variable whose name is not known")
    return names


def _name(operator: Table) -> Name:
    """The variable of a VAR_HANDLE. Raises ModelError."""
    table, options = operator.BuiltinOptions(), schema.VarHandleOptions()
    if table is None or operator.BuiltinOptionsType() != schema.BuiltinOptions.VarHandleOptions:
        raise ModelError("the model has a variable without a name")
    options.Init(table.Bytes, table.Pos)
    # To TensorFlow Lite they are strings of C.
    container, own = (
        (one or b"").partition(b"\0")[0] for one in (options.Container(), options.SharedName())
    )
    return container, own


class Assigned(NamedTuple):
    """A tensor of the first graph that a variable is set to, and the elements that it must have."""

    tensor: int
    elements: int
    node: int
    """The one that sets the variable."""


def assigned(model: bytes) -> tuple[Assigned, ...]:
    """Assignments of a valid model to the variables that it reads. Raises ModelError if a variable
    is known to be read as a tensor of another size, or if it is not known which variable is
    read."""
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
    """True if TensorFlow Lite gives the tensor the size of the variable."""
    return any(tensor.ShapeSignature(at) < 0 for at in range(tensor.ShapeSignatureLength()))


def keeps_state(model: bytes) -> bool:
    """True if a valid model keeps state from one run to the next, or may do so."""
    its = schema.Model.GetRootAs(model, 0)
    codes = (its.OperatorCodes(at) for at in range(its.OperatorCodesLength()))
    if any(max(one.BuiltinCode(), one.DeprecatedBuiltinCode()) in _STATEFUL for one in codes):
        return True
    graphs = (its.Subgraphs(at) for at in range(its.SubgraphsLength()))
    return any(
        graph.Tensors(at).IsVariable() for graph in graphs for at in range(graph.TensorsLength())
    )

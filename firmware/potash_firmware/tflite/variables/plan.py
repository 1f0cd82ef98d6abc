"""Decides, from a model's file, which of its variables the accelerator can keep.

The value of a variable has to be known when the first graph reads it: it is the one that the first
graph has set or, in the first run, the constant that is set by its *initialiser*, a graph that
only one CALL_ONCE of the first graph runs.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.capi import Array, BuiltinOperator
from potash_firmware.tflite.validation.model import data_of, reading
from potash_firmware.tflite.validation.operators import called_graphs
from potash_firmware.tflite.variables.accesses import (
    Access,
    Name,
    Operator,
    Place,
    Table,
    Variables,
    operators,
    read,
)

OTHERS_USE_IT = "other operators, or callers of a graph, get the variable's handle"
OTHER_GRAPHS = "other graphs than the first one and an initialiser use the variable"
NO_CONSTANT = "the variable's initial value is not a constant of int8"
TOO_EARLY = "the variable is used before it has a value"
OTHER_WORK = "its graph does more than set variables that the VTA keeps"
NUMBERED_OTHERWISE = "TensorFlow Lite does not show all graphs of the model"

_NOT_SHOWN = b"VALIDATION:"
"""Delegates do not see graphs whose names begin so."""


@dataclass(frozen=True, eq=False)
class Variable:
    """A variable that the accelerator can keep."""

    initial: Array | None
    """Its value before the first run; None where each run sets it before it reads it."""
    accesses: tuple[int, ...]
    """The nodes of the first graph that read and set it, in their order."""
    places: frozenset[Place]
    """All nodes that have to do with it."""


Decision: TypeAlias = Variable | str
"""A variable, or why the accelerator does not keep it."""


class Plan(NamedTuple):
    """Decisions about a model's variables."""

    variables: Mapping[Place, Decision]
    """The decision about each VAR_HANDLE, READ_VARIABLE and ASSIGN_VARIABLE."""
    calls: Mapping[Place, frozenset[Place] | None]
    """The nodes that the accelerator has to keep to do the work of each CALL_ONCE; None if it
    cannot."""


NO_PLAN = Plan({}, {})
"""The plan of a model that reads no variables."""


def plan(model: bytes) -> Plan:
    """The plan for a valid model. Raises ModelError as `accesses.read`."""
    its = schema.Model.GetRootAs(model, 0)
    found = read(its)
    if found is None:
        return NO_PLAN
    graphs = operators(its)
    initialisers = _initialisers(graphs)
    calls = {
        (number, at): None
        for number, graph in enumerate(graphs)
        for at, one in enumerate(graph)
        if one.code == BuiltinOperator.CALL_ONCE
    }
    works = {
        (0, at): frozenset((number, node) for node in range(len(graphs[number])))
        for number, at in initialisers.items()
    }
    with reading():
        hidden = any(
            (graph.Name() or b"").startswith(_NOT_SHOWN)
            for graph in map(its.Subgraphs, range(its.SubgraphsLength()))
        )
    variables: dict[Place, Decision] = {}
    for name, places in _places(found).items():
        accesses = [one for one in found.accesses if one.variable == name]
        if hidden:
            decision: Decision = NUMBERED_OTHERWISE
        elif name in found.escaped:
            decision = OTHERS_USE_IT
        else:
            decision = _decide(its, model, accesses, frozenset(places), initialisers)
        variables |= dict.fromkeys(places, decision)
    return Plan(variables, {**calls, **works})


def _places(found: Variables) -> Mapping[Name, Sequence[Place]]:
    places: defaultdict[Name, list[Place]] = defaultdict(list)
    for place, name in found.handles.items():
        places[name].append(place)
    for one in found.accesses:
        places[one.variable].append(one.place)
    return places


def _initialisers(graphs: Sequence[Sequence[Operator]]) -> Mapping[int, int]:
    """The graphs that a CALL_ONCE of the first one runs, and nothing else; with its number."""
    callers: defaultdict[int, list[tuple[Place, int]]] = defaultdict(list)
    for number, graph in enumerate(graphs):
        for at, one in enumerate(graph):
            for called in called_graphs(one.table):
                callers[called].append(((number, at), one.code))
    found = {}
    for called, by in callers.items():
        (number, at), code = by[0]
        here = number == 0 and 0 < called < len(graphs)
        if len(by) == 1 and here and code == BuiltinOperator.CALL_ONCE:
            found[called] = at
    return found


def _decide(
    its: Table,
    model: bytes,
    accesses: Sequence[Access],
    places: frozenset[Place],
    initialisers: Mapping[int, int],
) -> Decision:
    if any(graph and graph not in initialisers for graph, _ in places):
        return OTHER_GRAPHS
    first = [one for one in accesses if one.place[0] == 0]
    before = [one for one in accesses if one.place[0] != 0]
    order = tuple(one.place[1] for one in first)
    if not before:
        if first and first[0].reads:
            return TOO_EARLY
        return Variable(None, order, places)
    if len(before) > 1 or before[0].reads:
        return NO_CONSTANT
    graph, _ = before[0].place
    if first and initialisers[graph] > order[0]:
        return TOO_EARLY
    tensor = its.Subgraphs(graph).Tensors(before[0].tensor)
    if tensor.Type() != schema.TensorType.INT8 or not tensor.Buffer() or tensor.Sparsity():
        return NO_CONSTANT
    data = data_of(its.Buffers(tensor.Buffer()), model)
    if data is None:
        return NO_CONSTANT
    shape = [tensor.Shape(at) for at in range(tensor.ShapeLength())]
    return Variable(data.view(np.int8).reshape(shape), order, places)

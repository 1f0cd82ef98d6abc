"""The variables of a model that a delegate takes over, and what it makes of a partition's nodes
that read and set them.

Inside a partition a variable is no memory but a value: a READ_VARIABLE gives the tensor that the
last ASSIGN_VARIABLE before it has taken, and the first ones give what the last run has left. So
nothing is copied, and it does not matter when values are computed. What a run leaves for the next
one is copied at its end (`partition`). All accesses to a variable have to be in one partition, in
the order that the file gives: between partitions, TensorFlow Lite keeps the order of those nodes
alone that it runs itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from potash_firmware.tflite.capi import Array, BuiltinOperator, Node, Tensor
from potash_firmware.tflite.lowering import Keep, Layouts, Lowering, Placement, Refusal
from potash_firmware.tflite.operators import checks, moves
from potash_firmware.tflite.packing import NO_MARGIN
from potash_firmware.tflite.variables.accesses import Place
from potash_firmware.tflite.variables.plan import OTHER_WORK, Plan, Variable

OPERATORS = frozenset(
    {
        BuiltinOperator.ASSIGN_VARIABLE,
        BuiltinOperator.CALL_ONCE,
        BuiltinOperator.READ_VARIABLE,
        BuiltinOperator.VAR_HANDLE,
    }
)

NOT_KNOWN = "the model is not known to the delegate"
OTHER_SHAPES = "the variable has tensors of several shapes"
SEVERAL_PARTITIONS = "the variable is used in several partitions"

_FIRST = -2
"""Numbers of tensors from here downwards are those of states; -1 is an input that is left out."""


class VariableState(NamedTuple):
    """A variable's value between runs of a partition: a tensor, and its values before the first
    run."""

    tensor: Tensor
    initial: Array


class Call:
    """The work of a CALL_ONCE: its graph's effect takes place when the partition is made."""


Work: TypeAlias = Lowering | Variable | Call
"""A claimed node's work: a computation, an access to a variable, or a CALL_ONCE."""


class Claims:
    """The choice of the nodes that access variables and that a delegate claims."""

    def __init__(self, plan: Plan, left: Mapping[Place, str]) -> None:
        """Choose for a model with this plan. The nodes in `left` are not claimed."""
        self._calls = plan.calls
        self._decisions = dict(plan.variables)
        for place, why in left.items():
            self._leave(place, why)

    def check(self, graph: int, nodes: Iterable[Node]) -> None:
        """Leave the variables whose tensors in the first graph the accelerator cannot keep."""
        seen: dict[Variable, Tensor] = {}
        for node in nodes if graph == 0 else ():
            variable = self._decisions.get((graph, node.index))
            if not isinstance(variable, Variable) or node.operator == BuiltinOperator.VAR_HANDLE:
                continue
            try:
                tensor = checks.quantized(_value(node))
                known = seen.setdefault(variable, tensor)
                checks.same_scale(known, tensor)
                initial = known if variable.initial is None else variable.initial
                if not tensor.shape == known.shape == initial.shape:
                    raise Refusal(OTHER_SHAPES)
            except Refusal as refusal:
                self._leave((graph, node.index), str(refusal))

    def work(self, graph: int, node: Node) -> Variable | Refusal | Call:
        """The work of a node whose operator is one of `OPERATORS`; a Refusal if it is not
        claimed."""
        place = graph, node.index
        if node.operator == BuiltinOperator.CALL_ONCE:
            others = self._calls.get(place)
            kept = others is not None and all(
                isinstance(self._decisions.get(one), Variable) for one in others
            )
            return Call() if kept else Refusal(OTHER_WORK)
        decision = self._decisions.get(place, NOT_KNOWN)
        return decision if isinstance(decision, Variable) else Refusal(decision)

    def split(self, graph: int, indices: Sequence[int]) -> Mapping[Place, str]:
        """Nodes that cannot be claimed, each with the reason, where a partition of these nodes does
        not have all accesses to a variable, in their order."""
        found: dict[Place, str] = {}
        for variable in {self._decisions.get((graph, index)) for index in indices}:
            if graph == 0 and isinstance(variable, Variable):
                here = tuple(index for index in indices if index in variable.accesses)
                if here and here != variable.accesses:
                    found |= dict.fromkeys(variable.places, SEVERAL_PARTITIONS)
        return found

    def _leave(self, place: Place, why: str) -> None:
        variable = self._decisions.get(place)
        if isinstance(variable, Variable):
            self._decisions |= dict.fromkeys(variable.places, why)


def resolve(
    graph: int, nodes: Sequence[tuple[Node, Work]]
) -> tuple[list[tuple[Node, Lowering]], list[VariableState]]:
    """The nodes of a partition that have something to do, and what it keeps between runs."""
    resolved: list[tuple[Node, Lowering]] = []
    states: dict[Variable, VariableState] = {}
    values: dict[Variable, Tensor] = {}
    last: dict[Variable, Node] = {}
    for node, work in nodes:
        if isinstance(work, Lowering):
            resolved.append((node, work))
        elif isinstance(work, Call) or graph != 0:
            # An initialiser's effect takes place when the partition of the first graph is made.
            continue
        elif node.operator == BuiltinOperator.READ_VARIABLE:
            output = _value(node)
            assert output is not None
            if work not in values:
                assert work.initial is not None
                values[work] = replace(output, index=_FIRST - len(states))
                states[work] = VariableState(values[work], work.initial)
            copy = replace(node, inputs=(values[work],))
            resolved.append((copy, moves.same_surface(output)))
        elif node.operator == BuiltinOperator.ASSIGN_VARIABLE:
            value = _value(node)
            assert value is not None
            values[work], last[work] = value, node
    for variable, node in last.items():
        if variable in states:
            kept = replace(node, inputs=(values[variable], states[variable].tensor))
            resolved.append((kept, Lowering(_keep)))
    return resolved, list(states.values())


def without_values(graph: int, nodes: Iterable[tuple[Node, Work]]) -> set[int]:
    """The outputs that a partition has no values for: handles, and those of initialisers."""
    return {
        tensor.index
        for node, work in nodes
        if not isinstance(work, Lowering)
        and (graph != 0 or node.operator == BuiltinOperator.VAR_HANDLE)
        for tensor in node.outputs
        if tensor is not None
    }


def _keep(given: Layouts) -> Placement:
    value, state = given
    assert state is not None
    layout = value or state
    return Placement((layout.with_margin(NO_MARGIN), None), (), Keep())


def _value(node: Node) -> Tensor | None:
    """The tensor that is read, or that the variable is set to."""
    return node.outputs[0] if node.operator == BuiltinOperator.READ_VARIABLE else node.inputs[1]

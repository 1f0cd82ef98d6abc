"""Whether a model's outputs depend on more than its inputs.

Source: `tflite/schema/schema.fbs`.
"""

from ai_edge_litert import schema_py_generated as schema

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


def keeps_state(model: bytes) -> bool:
    """Whether a valid model keeps something from one run to the next, or may do so."""
    its = schema.Model.GetRootAs(model, 0)
    codes = (its.OperatorCodes(at) for at in range(its.OperatorCodesLength()))
    if any(max(one.BuiltinCode(), one.DeprecatedBuiltinCode()) in _STATEFUL for one in codes):
        return True
    graphs = (its.Subgraphs(at) for at in range(its.SubgraphsLength()))
    return any(
        graph.Tensors(at).IsVariable() for graph in graphs for at in range(graph.TensorsLength())
    )

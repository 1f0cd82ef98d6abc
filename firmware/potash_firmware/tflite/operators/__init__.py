"""The operators that the delegate takes over: one module, and one row of this table, for each.

An operator says why it cannot take a node (`supports`) and makes once what does not depend on the
activations (`plan`); the partition runs it.
"""

from collections.abc import Mapping
from types import MappingProxyType

from potash_firmware.tflite.capi import BuiltinOperator, Node
from potash_firmware.tflite.operators import (
    add,
    average_pool_2d,
    conv2d,
    depthwise_conv2d,
    extremes,
    fully_connected,
    max_pool_2d,
    mean,
    mul,
    rectifiers,
    sub,
)
from potash_firmware.tflite.plans import Operator, Settings

OPERATORS: Mapping[int, Operator] = MappingProxyType(
    {
        BuiltinOperator.ADD: Operator(add.supports, add.plan),
        BuiltinOperator.AVERAGE_POOL_2D: Operator(average_pool_2d.supports, average_pool_2d.plan),
        BuiltinOperator.CONV_2D: Operator(conv2d.supports, conv2d.plan),
        BuiltinOperator.DEPTHWISE_CONV_2D: Operator(
            depthwise_conv2d.supports, depthwise_conv2d.plan
        ),
        BuiltinOperator.FULLY_CONNECTED: Operator(fully_connected.supports, fully_connected.plan),
        BuiltinOperator.MAXIMUM: Operator(extremes.supports, extremes.plan),
        BuiltinOperator.MAX_POOL_2D: Operator(max_pool_2d.supports, max_pool_2d.plan),
        BuiltinOperator.MEAN: Operator(mean.supports, mean.plan),
        BuiltinOperator.MINIMUM: Operator(extremes.supports, extremes.plan),
        BuiltinOperator.MUL: Operator(mul.supports, mul.plan),
        BuiltinOperator.RELU: Operator(rectifiers.supports, rectifiers.plan),
        BuiltinOperator.RELU6: Operator(rectifiers.supports, rectifiers.plan),
        BuiltinOperator.RELU_N1_TO_1: Operator(rectifiers.supports, rectifiers.plan),
        BuiltinOperator.SUB: Operator(sub.supports, sub.plan),
    }
)


def refusal(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this node; None when it does."""
    operator = OPERATORS.get(node.operator)
    if operator is None:
        return "the VTA has no kernel for this operator"
    return operator.supports(node, settings)

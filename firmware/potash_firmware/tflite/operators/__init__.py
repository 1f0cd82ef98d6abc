"""The operators that the delegate takes over: one module, and one row of this table, for each.

An operator says why it cannot take a node (`supports`) and makes once what does not depend on the
activations (`plan`); the partition runs it. Other packages may lend operators (`added`).
"""

import functools
from collections.abc import Mapping
from importlib import metadata
from types import MappingProxyType

from potash_firmware.tflite.capi import BuiltinOperator, Node
from potash_firmware.tflite.operators import (
    add,
    added,
    average_pool_2d,
    concatenation,
    conv2d,
    depthwise_conv2d,
    extremes,
    fully_connected,
    max_pool_2d,
    mean,
    mul,
    pad,
    rectifiers,
    reshape,
    sub,
    transpose,
)
from potash_firmware.tflite.plans import Operator, Settings

OPERATORS: Mapping[int, Operator] = MappingProxyType(
    {
        BuiltinOperator.ADD: Operator(add.supports, add.plan),
        BuiltinOperator.AVERAGE_POOL_2D: Operator(average_pool_2d.supports, average_pool_2d.plan),
        BuiltinOperator.CONCATENATION: Operator(concatenation.supports, concatenation.plan),
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
        BuiltinOperator.PAD: Operator(pad.supports, pad.plan),
        BuiltinOperator.RELU: Operator(rectifiers.supports, rectifiers.plan),
        BuiltinOperator.RELU6: Operator(rectifiers.supports, rectifiers.plan),
        BuiltinOperator.RELU_N1_TO_1: Operator(rectifiers.supports, rectifiers.plan),
        BuiltinOperator.RESHAPE: Operator(reshape.supports, reshape.plan),
        BuiltinOperator.SUB: Operator(sub.supports, sub.plan),
        BuiltinOperator.TRANSPOSE: Operator(transpose.supports, transpose.plan),
    }
)


def operator(code: int) -> Operator | None:
    """The operator of a `TfLiteBuiltinOperator`, ours or another package's."""
    return OPERATORS.get(code) or lent().operators.get(code)


@functools.cache
def lent() -> added.Found:
    """The operators of the packages that are installed; looked for once in a process."""
    return added.collect(metadata.entry_points(group=added.GROUP), OPERATORS)


def refusal(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this node; None when it does."""
    its = operator(node.operator)
    if its is None:
        return "the VTA has no kernel for this operator"
    try:
        return its.supports(node, settings)
    except Exception as error:
        if node.operator in OPERATORS:
            raise
        return f"the operator of another package failed: {error or type(error).__name__}"

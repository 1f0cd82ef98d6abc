"""The operators that the delegate runs on the VTA, by their code in TensorFlow Lite.

A row is a function `lower(node, settings)`, which prepares a node once or refuses it. Other
installed packages may add operators (`added`).
"""

import functools
from collections.abc import Mapping
from importlib import metadata
from types import MappingProxyType

from potash_firmware.tflite.capi import BuiltinOperator, Node
from potash_firmware.tflite.lowering import Lower, Lowering, Refusal, Settings
from potash_firmware.tflite.operators import (
    added,
    addition,
    concatenation,
    conv2d,
    extremes,
    fully_connected,
    mean,
    mul,
    pad,
    pooling,
    rectifiers,
    reshape,
    transpose,
)
from potash_firmware.tflite.quantization import QuantizationError
from potash_firmware.vta_runtime.schedules import ScheduleError

OPERATORS: Mapping[int, Lower] = MappingProxyType(
    {
        BuiltinOperator.ADD: addition.lower,
        BuiltinOperator.AVERAGE_POOL_2D: pooling.lower_average,
        BuiltinOperator.CONCATENATION: concatenation.lower,
        BuiltinOperator.CONV_2D: conv2d.lower,
        BuiltinOperator.DEPTHWISE_CONV_2D: conv2d.lower_depthwise,
        BuiltinOperator.FULLY_CONNECTED: fully_connected.lower,
        BuiltinOperator.MAXIMUM: extremes.lower,
        BuiltinOperator.MAX_POOL_2D: pooling.lower_max,
        BuiltinOperator.MEAN: mean.lower,
        BuiltinOperator.MINIMUM: extremes.lower,
        BuiltinOperator.MUL: mul.lower,
        BuiltinOperator.PAD: pad.lower,
        BuiltinOperator.RELU: rectifiers.lower,
        BuiltinOperator.RELU6: rectifiers.lower,
        BuiltinOperator.RELU_N1_TO_1: rectifiers.lower,
        BuiltinOperator.RESHAPE: reshape.lower,
        BuiltinOperator.SUB: addition.lower,
        BuiltinOperator.TRANSPOSE: transpose.lower,
    }
)


@functools.cache
def installed() -> added.Found:
    """The operators of installed packages; searched for once in a process."""
    return added.collect(metadata.entry_points(group=added.GROUP), OPERATORS)


def lower(node: Node, settings: Settings) -> Lowering | Refusal:
    """The node prepared for the VTA, or why the VTA does not run it."""
    its = OPERATORS.get(node.operator) or installed().operators.get(node.operator)
    if its is None:
        return Refusal("the VTA has no kernel for this operator")
    try:
        return its(node, settings)
    except Refusal as refusal:
        return refusal
    except (QuantizationError, ScheduleError) as error:
        return Refusal(str(error))
    except Exception as error:
        if node.operator in OPERATORS:
            raise
        return Refusal(f"the operator of another package failed: {error or type(error).__name__}")

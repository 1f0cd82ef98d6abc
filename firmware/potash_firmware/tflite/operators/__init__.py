"""The operators that the delegate runs on the VTA, by their code in TensorFlow Lite.

A row is a function `lower(node, settings)`, which prepares a node once or refuses it. Other
installed packages may add operators (`added`).
"""

import functools
from collections.abc import Mapping
from importlib import metadata
from types import MappingProxyType

from potash_firmware.tflite.capi import BuiltinOperator, Node
from potash_firmware.tflite.lowering import Layouts, Lower, Lowering, Placement, Refusal, Settings
from potash_firmware.tflite.operators import (
    added,
    addition,
    convolution,
    copies,
    moves,
    pointwise,
    pooling,
    resizing,
    slices,
    tables,
    transposed,
)
from potash_firmware.tflite.quantization import QuantizationError
from potash_firmware.vta_runtime.schedules import ScheduleError

OPERATORS: Mapping[int, Lower] = MappingProxyType(
    {
        BuiltinOperator.ADD: addition.lower,
        BuiltinOperator.AVERAGE_POOL_2D: pooling.lower_average,
        BuiltinOperator.CONCATENATION: moves.lower_concatenation,
        BuiltinOperator.CONV_2D: convolution.lower,
        BuiltinOperator.DEPTHWISE_CONV_2D: convolution.lower,
        BuiltinOperator.DEPTH_TO_SPACE: slices.lower_blocks,
        BuiltinOperator.EXPAND_DIMS: slices.lower_rank,
        BuiltinOperator.FULLY_CONNECTED: convolution.lower_fully_connected,
        BuiltinOperator.GATHER: copies.lower_gather,
        BuiltinOperator.HARD_SWISH: tables.lower,
        BuiltinOperator.LEAKY_RELU: tables.lower,
        BuiltinOperator.LOGISTIC: tables.lower,
        BuiltinOperator.MAXIMUM: pointwise.lower_extreme,
        BuiltinOperator.MAX_POOL_2D: pooling.lower_max,
        BuiltinOperator.MEAN: pooling.lower_mean,
        BuiltinOperator.MINIMUM: pointwise.lower_extreme,
        BuiltinOperator.MIRROR_PAD: copies.lower_mirror,
        BuiltinOperator.MUL: pointwise.lower_mul,
        BuiltinOperator.PACK: moves.lower_pack,
        BuiltinOperator.PAD: copies.lower_pad,
        BuiltinOperator.PRELU: tables.lower_prelu,
        BuiltinOperator.QUANTIZE: tables.lower,
        BuiltinOperator.REDUCE_MAX: pooling.lower_extreme,
        BuiltinOperator.REDUCE_MIN: pooling.lower_extreme,
        BuiltinOperator.RELU: pointwise.lower_rectifier,
        BuiltinOperator.RELU6: pointwise.lower_rectifier,
        BuiltinOperator.RELU_N1_TO_1: pointwise.lower_rectifier,
        BuiltinOperator.RESHAPE: moves.lower_reshape,
        BuiltinOperator.RESIZE_BILINEAR: resizing.lower,
        BuiltinOperator.RESIZE_NEAREST_NEIGHBOR: resizing.lower,
        BuiltinOperator.RSQRT: tables.lower,
        BuiltinOperator.SPACE_TO_DEPTH: slices.lower_blocks,
        BuiltinOperator.SPLIT: slices.lower_split,
        BuiltinOperator.SPLIT_V: slices.lower_split,
        BuiltinOperator.SQRT: tables.lower,
        BuiltinOperator.SQUEEZE: slices.lower_rank,
        BuiltinOperator.STRIDED_SLICE: slices.lower_strided_slice,
        BuiltinOperator.SUB: addition.lower,
        BuiltinOperator.TANH: tables.lower,
        BuiltinOperator.TRANSPOSE: moves.lower_transpose,
        BuiltinOperator.TRANSPOSE_CONV: transposed.lower,
    }
)


@functools.cache
def installed() -> added.Found:
    """The operators of installed packages and of extensions; searched for once in a process."""
    return added.collect(metadata.entry_points(group=added.GROUP), OPERATORS)


def check_names(names: Mapping[str, object]) -> None:
    """Raise ValueError for an operator of an extension that TensorFlow Lite does not have, or that
    Potash has; `names` says what registers each."""
    for name, registered in names.items():
        try:
            added.code_of(name, OPERATORS)
        except ValueError as error:
            raise ValueError(f"the operator {registered} cannot be used: {error}") from None


def lower(node: Node, settings: Settings) -> Lowering | Refusal:
    """The node prepared for the VTA, or why the VTA does not run it."""
    its = OPERATORS.get(node.operator) or installed().operators.get(node.operator)
    if its is None:
        return Refusal("the VTA has no kernel for this operator")
    try:
        found = its(node, settings)
        return found if node.operator in OPERATORS else added.checked(node, found, settings.config)
    except Refusal as refusal:
        # Its frames would keep the interpreter, in a circle.
        return refusal.with_traceback(None)
    except (QuantizationError, ScheduleError) as error:
        return Refusal(str(error))
    except Exception as error:
        if node.operator in OPERATORS:
            raise
        return Refusal(added.why_failed(error))


def lower_later(node: Node, settings: Settings) -> Lowering:
    """A node that is known to run on the VTA, prepared only if it has to be placed."""

    def place(given: Layouts) -> Placement:
        found = lower(node, settings)
        if isinstance(found, Refusal):
            raise found
        return found.place(given)

    return Lowering(place)

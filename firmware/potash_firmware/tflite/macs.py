"""Multiply-accumulate operations of a model's nodes, for what the application processor runs.

Counted from the shapes that tensors have once they are allocated. An operator without products
counts as one operation for each element of its largest tensor, one that moves nothing as none.
Nodes of subgraphs other than the first are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

Shape = Sequence[int]

FREE = frozenset({"RESHAPE", "EXPAND_DIMS", "SQUEEZE", "SHAPE", "DELEGATE"})
"""Operators that only give a tensor another shape, and what stands for other nodes."""


def count(interpreter: Any, claimed: Collection[int] = ()) -> int:
    """Those of all nodes of an interpreter's first graph but the `claimed`, which a delegate runs.

    `interpreter` is one of TensorFlow Lite whose tensors are allocated.
    """
    shapes = {
        one["index"]: tuple(map(int, one["shape"])) for one in interpreter.get_tensor_details()
    }
    return sum(
        of_node(
            node["op_name"],
            [shapes.get(index, ()) for index in node["inputs"]],
            [shapes.get(index, ()) for index in node["outputs"]],
        )
        for node in interpreter._get_ops_details()
        if node["index"] not in claimed
    )


def of_node(operator: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Those of one node, by the shapes of its tensors."""
    if operator in FREE:
        return 0
    products = _PRODUCTS.get(operator)
    if products is not None:
        try:
            return products(inputs, outputs)
        except (ValueError, IndexError):
            pass  # its tensors have no shapes that such an operator has
    return max((math.prod(shape) for shape in (*inputs, *outputs)), default=0)


def _convolution(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    _, height, width, channels = inputs[1]
    return math.prod(outputs[0]) * height * width * channels


def _depthwise(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    _, height, width, _ = inputs[1]
    return math.prod(outputs[0]) * height * width


def _transposed(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    channels, height, width, _ = inputs[1]
    return math.prod(inputs[2]) * height * width * channels


def _matrices(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Either operand may be transposed: sizes n·k, k·m and n·m of each give k."""
    batches = math.prod(outputs[0][:-2])
    left, right, product = (math.prod(one[-2:]) for one in (*inputs[:2], outputs[0]))
    return batches * math.isqrt(left * right * product)


_PRODUCTS: Mapping[str, Callable[[Sequence[Shape], Sequence[Shape]], int]] = {
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _depthwise,
    "TRANSPOSE_CONV": _transposed,
    "FULLY_CONNECTED": lambda inputs, outputs: math.prod(outputs[0]) * inputs[1][-1],
    "BATCH_MATMUL": _matrices,
}

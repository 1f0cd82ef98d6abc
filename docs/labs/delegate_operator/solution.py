"""Lab 6, solved: RELU_0_TO_1 is a change of the zero point, a maximum and a minimum."""

import math

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Steps
from potash_firmware.tflite.capi import Node
from potash_firmware.tflite.lowering import Lowering, Refusal, Settings
from potash_firmware.tflite.operators import elementwise


def lower(node: Node, settings: Settings) -> Lowering | Refusal:
    """min(max(x, 0), 1) of each value x, where input and output have the same scale."""
    (source,), output = elementwise.tensors(node, settings, 1, "a rectifier from 0 to 1")
    if source.scale != output.scale:
        return Refusal("the scales of the rectifier differ")
    zero = output.zero_point
    one = zero + math.floor(1 / output.scale + 0.5)  # std::round, of what is above 0

    def emit(steps: Steps, first: object, other: object) -> None:
        steps.add(AluOpcode.ADD, zero - source.zero_point)
        steps.add(AluOpcode.MAX, max(zero, -128))
        steps.add(AluOpcode.MIN, min(one, 127))

    return elementwise.lowering([source], output, settings, emit)

"""Lab 6: lower RELU_0_TO_1 to the VTA. This one leaves every node to TensorFlow Lite."""

from potash_firmware.tflite.capi import Node
from potash_firmware.tflite.lowering import Lowering, Refusal, Settings


def lower(node: Node, settings: Settings) -> Lowering | Refusal:
    """min(max(x, 0), 1) of each value x, where input and output have the same scale."""
    return Refusal("it is to be written")

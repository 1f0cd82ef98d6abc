"""What operators ask of a node before they look closer: each gives a reason against it, or None."""

from collections.abc import Iterable

from potash_device.vta.config import Config, MemoryId
from potash_firmware.tflite.capi import Allocation, Node, Tensor, TensorType
from potash_firmware.tflite.plans import Settings
from potash_firmware.tflite.quantization import INT8_MAX, INT8_MIN


def core(config: Config) -> str | None:
    """Whether the core computes with int8 tensors that one operator leaves as the next takes them."""
    if any(config.value_bits(memory) != 8 for memory in (MemoryId.INP, MemoryId.WGT)):
        return "the VTA's inputs and weights are not 8 bits wide"
    if config.value_bits(MemoryId.OUT) != 8:
        return "the VTA's outputs are not 8 bits wide"
    if config.block_in != config.block_out:
        return "the VTA's blocks of inputs and outputs differ"
    return None


def arity(node: Node, inputs: Iterable[int], what: str) -> str | None:
    """Whether it has one output and as many inputs as one of `inputs` says."""
    if len(node.inputs) not in inputs or len(node.outputs) != 1 or node.outputs[0] is None:
        return f"{what} has other inputs and outputs than it should"
    return None


def quantized(tensor: Tensor | None) -> str | None:
    """Whether it is int8 with one scale and zero point, and of a size that is known."""
    if tensor is None:
        return "an input is left out"
    if tensor.type != TensorType.INT8:
        return f"tensor {tensor.name!r} is not int8"
    if tensor.variable:
        return f"tensor {tensor.name!r} is a variable"
    if tensor.allocation == Allocation.DYNAMIC:
        return f"the shape of tensor {tensor.name!r} is not known before it runs"
    if tensor.size == 0:
        return f"tensor {tensor.name!r} has no values"
    if tensor.scale == 0:
        return f"tensor {tensor.name!r} has no scale for the whole of it"
    if not INT8_MIN <= tensor.zero_point <= INT8_MAX:
        return f"the zero point of tensor {tensor.name!r} is not an int8"
    return None


def numbers(tensor: Tensor | None) -> str | None:
    """Whether it holds integers that are known beforehand, such as axes."""
    if tensor is None:
        return "an input is left out"
    if tensor.constant is None or tensor.type not in (TensorType.INT32, TensorType.INT64):
        return f"tensor {tensor.name!r} does not hold constant integers"
    return None


def moving(node: Node, settings: Settings, inputs: Iterable[int], what: str) -> str | None:
    """Whether its first input and its output are int8 and of one scale, so that values move only."""
    reason = first(
        (
            core(settings.config),
            arity(node, inputs, what),
            *map(quantized, (*node.inputs[:1], *node.outputs)),
        )
    )
    if reason is not None:
        return reason
    source, output = node.inputs[0], node.outputs[0]
    assert source and output
    return same_scale(source, output)


def same_scale(source: Tensor, output: Tensor) -> str | None:
    """Whether values of both stand for the same numbers."""
    if (source.scale, source.zero_point) != (output.scale, output.zero_point):
        return f"tensors {source.name!r} and {output.name!r} differ in scale or zero point"
    return None


def first(reasons: Iterable[str | None]) -> str | None:
    """The first reason that there is."""
    return next((reason for reason in reasons if reason is not None), None)

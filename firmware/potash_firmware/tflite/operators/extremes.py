"""MINIMUM and MAXIMUM of two int8 tensors: of the quantised values as they are, whatever their
scales.

Source: `tflite/kernels/maximum_minimum.cc`, `internal/reference/maximum_minimum.h`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Steps
from potash_firmware.tflite.capi import BuiltinOperator, Node
from potash_firmware.tflite.lowering import Lowering, Settings
from potash_firmware.tflite.operators import elementwise
from potash_firmware.tflite.operators.elementwise import Operand

_OPCODES: Mapping[int, AluOpcode] = MappingProxyType(
    {BuiltinOperator.MINIMUM: AluOpcode.MIN, BuiltinOperator.MAXIMUM: AluOpcode.MAX}
)


def lower(node: Node, settings: Settings) -> Lowering:
    """Raises Refusal."""
    sources, output = elementwise.tensors(node, settings, 2, "an extreme of two tensors")

    def emit(steps: Steps, _first: int, other: Operand | None) -> None:
        assert other is not None
        steps.add(_OPCODES[node.operator], other)

    return elementwise.lowering(sources, output, settings, emit)

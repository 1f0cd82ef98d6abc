"""MINIMUM and MAXIMUM of two int8 tensors: of the quantised values as they are, whatever their scales.

Source: `tflite/kernels/maximum_minimum.cc`, `internal/reference/maximum_minimum.h`.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Steps
from potash_firmware.tflite.capi import BuiltinOperator, Node
from potash_firmware.tflite.operators import elementwise
from potash_firmware.tflite.operators.elementwise import Emit, Operand
from potash_firmware.tflite.packing import Layout
from potash_firmware.tflite.plans import Plan, Settings

_OPCODES: Mapping[int, AluOpcode] = MappingProxyType(
    {BuiltinOperator.MINIMUM: AluOpcode.MIN, BuiltinOperator.MAXIMUM: AluOpcode.MAX}
)


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this node; None when it does."""
    reason = elementwise.refusal(node, settings, 2, "an extreme of two tensors")
    return reason or elementwise.room(node, settings, _emit(node))


def plan(node: Node, settings: Settings, given: Sequence[Layout | None]) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    return elementwise.plan(node, settings, given, _emit(node))


def _emit(node: Node) -> Emit:
    def emit(steps: Steps, _first: int, other: Operand | None) -> None:
        assert other is not None
        steps.add(_OPCODES[node.operator], other)

    return emit

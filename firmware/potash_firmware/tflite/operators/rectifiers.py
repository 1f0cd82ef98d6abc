"""RELU, RELU6 and RELU_N1_TO_1 of an int8 tensor: scaled to the output's scale, and clamped.

Source: `tflite/kernels/activations.cc` (QuantizedReluX), `internal/reference/reference_ops.h` (ReluX).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic import lines
from potash_firmware.tflite.arithmetic.requantization import Scale, Steps, requantize
from potash_firmware.tflite.capi import Activation, BuiltinOperator, Node
from potash_firmware.tflite.operators import elementwise
from potash_firmware.tflite.operators.elementwise import VALUES, Emit, Operand
from potash_firmware.tflite.packing import Layout
from potash_firmware.tflite.plans import Plan, Settings
from potash_firmware.tflite.quantization import (
    QuantizationError,
    activation_range,
    quantize_multiplier,
    single_precision_ratio,
)
from potash_firmware.vta_runtime.schedules import Plane

_CLAMPS: Mapping[int, Activation] = MappingProxyType(
    {
        BuiltinOperator.RELU: Activation.RELU,
        BuiltinOperator.RELU_N1_TO_1: Activation.RELU_N1_TO_1,
        BuiltinOperator.RELU6: Activation.RELU6,
    }
)
_REACH = 1 << 8
"""Values without their zero point are below it."""
_SCRATCH = (Plane(1), Plane(2))


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this rectifier; None when it does."""
    reason = elementwise.refusal(node, settings, 1, "a rectifier")
    if reason is not None:
        return reason
    try:
        return elementwise.room(node, settings, _emit(node, settings))
    except QuantizationError as error:
        return str(error)


def plan(node: Node, settings: Settings, given: Sequence[Layout | None]) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    return elementwise.plan(node, settings, given, _emit(node, settings))


def _emit(node: Node, settings: Settings) -> Emit:
    """Raises QuantizationError where TensorFlow Lite fails."""
    source, output = node.inputs[0], node.outputs[0]
    assert source and output
    limits = activation_range(_CLAMPS[node.operator], output.scale, output.zero_point)
    real = single_precision_ratio((source.scale,), output.scale)
    multiplier = quantize_multiplier(real)
    scale = Scale.of(
        [multiplier], output.zero_point, *limits, settings.rounding.elsewhere, reach=_REACH
    )
    zero_point = source.zero_point

    def emit(steps: Steps, _first: int, _other: Operand | None) -> None:
        line = lines.fit((real,), (VALUES,), scale.clamped((VALUES - zero_point)[:, None])[:, 0])
        if line is not None:
            lines.emit_each(steps, [line])
            return
        steps.add(AluOpcode.ADD, -zero_point)
        requantize(steps, scale, _SCRATCH)

    return emit

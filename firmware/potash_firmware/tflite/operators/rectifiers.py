"""RELU, RELU6 and RELU_N1_TO_1 of an int8 tensor: scaled to the output's scale, and clamped.

Source: `tflite/kernels/activations.cc` (QuantizedReluX), `internal/reference/reference_ops.h`
(ReluX).
"""

from collections.abc import Mapping
from types import MappingProxyType

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic import lines
from potash_firmware.tflite.arithmetic.requantization import Scale, Steps, requantize
from potash_firmware.tflite.capi import Activation, BuiltinOperator, Node
from potash_firmware.tflite.lowering import Lowering, Settings
from potash_firmware.tflite.operators import elementwise
from potash_firmware.tflite.operators.elementwise import VALUES, Operand
from potash_firmware.tflite.quantization import (
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


def lower(node: Node, settings: Settings) -> Lowering:
    """Raises Refusal, QuantizationError."""
    (source,), output = elementwise.tensors(node, settings, 1, "a rectifier")
    limits = activation_range(_CLAMPS[node.operator], output.scale, output.zero_point)
    real = single_precision_ratio((source.scale,), output.scale)
    multiplier = quantize_multiplier(real)
    rounding = settings.rounding.elsewhere
    scale = Scale.of([multiplier], output.zero_point, *limits, rounding, reach=_REACH)

    def emit(steps: Steps, _first: int, _other: Operand | None) -> None:
        wanted = scale.clamped((VALUES - source.zero_point)[:, None])[:, 0]
        line = lines.fit((real,), (VALUES,), wanted)
        if line is not None:
            lines.emit_each(steps, [line])
            return
        steps.add(AluOpcode.ADD, -source.zero_point)
        requantize(steps, scale, _SCRATCH)

    return elementwise.lowering([source], output, settings, emit)

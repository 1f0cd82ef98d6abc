"""MAX_POOL_2D of int8: the largest value of each window, clamped by the fused activation.

Source: `tflite/kernels/pooling.cc`, `internal/reference/integer_ops/pooling.h`.
"""

from collections.abc import Sequence

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Steps
from potash_firmware.tflite.capi import Node
from potash_firmware.tflite.operators import pooling
from potash_firmware.tflite.packing import Layout
from potash_firmware.tflite.plans import Builder, Compute, Plan, Settings
from potash_firmware.tflite.quantization import QuantizationError
from potash_firmware.vta_runtime.schedules import Pooling, ScheduleError, Surface, pool2d


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this pooling; None when it does."""
    reason = pooling.refusal(node, settings)
    if reason is not None:
        return reason
    try:
        _pooling(node, settings)
    except (QuantizationError, ScheduleError) as error:
        return str(error)
    return None


def plan(node: Node, settings: Settings, given: Sequence[Layout | None]) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    source, output = pooling.tensors(node)
    its = _pooling(node, settings)

    def emit(
        builder: Builder, inputs: Sequence[Surface | None], outputs: Sequence[Surface]
    ) -> None:
        (image,) = inputs
        assert image is not None
        its.emit(builder.runtime, image, outputs[0])

    return Plan((Layout.image(source.shape),), (Layout.image(output.shape),), Compute(emit))


def _pooling(node: Node, settings: Settings) -> Pooling:
    steps = Steps()
    pooling.clamp(steps, node)
    return pool2d(pooling.shape(node, settings.config), settings.config, AluOpcode.MAX, steps.steps)

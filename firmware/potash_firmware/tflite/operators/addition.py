"""What ADD and SUB have in common.

The reference kernels (`tflite/kernels/add.cc`, `sub.cc`, `internal/reference/add.h`) bring both
operands to one scale, shifted left by 20 bits, add them, and scale the sum down to the output. All
that comes of it is known beforehand for the 65536 pairs of values, so that mostly one line does it
(`lines`). Else the operands are scaled as there.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.capi import ClampOptions, Node
from potash_firmware.tflite.operators import elementwise, lines
from potash_firmware.tflite.operators.requantization import Scale, Steps, requantize
from potash_firmware.tflite.packing import Layout
from potash_firmware.tflite.plans import Plan, Rounding, Settings
from potash_firmware.tflite.quantization import (
    INT8_MAX,
    INT8_MIN,
    Multiplier,
    QuantizationError,
    activation_range,
    quantize_addition,
)
from potash_firmware.vta_runtime.schedules import TILE, Plane

LEFT_SHIFT = 20
"""What the operands are shifted left by before they are scaled (`add.cc`, for int8)."""
_REACH = 1 << 28
"""Sums are below it: each operand is below 2^8 * 2^20 / 2."""
SUMS = 256
"""Sums whose steps are kept."""

_LEFT, _RIGHT, *_SCRATCH = (TILE, Plane(1), Plane(2), Plane(3))
_VALUES = np.arange(INT8_MIN, INT8_MAX + 1, dtype=np.int64)


class Quantization(NamedTuple):
    """A tensor's scale and zero point."""

    scale: float
    zero_point: int


def supports(node: Node, settings: Settings, sign: int, what: str) -> str | None:
    """Why the VTA does not run left + sign * right; None when it does."""
    reason = elementwise.refusal(node, settings, 2, what)
    if reason is not None:
        return reason
    if not isinstance(node.options, ClampOptions):
        return f"{what} has no options"
    try:
        steps = _steps(node, settings, sign)
    except QuantizationError as error:
        return str(error)
    return elementwise.room(steps, 2, settings.config)


def plan(node: Node, settings: Settings, given: Sequence[Layout | None], sign: int) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    return elementwise.plan(node, settings, given, _steps(node, settings, sign))


def _steps(node: Node, settings: Settings, sign: int) -> Steps:
    """What is done to the operands. Raises QuantizationError."""
    left, right = node.inputs
    output = node.outputs[0]
    assert left and right and output and isinstance(node.options, ClampOptions)
    limits = activation_range(node.options.activation, output.scale, output.zero_point)
    operands = [Quantization(tensor.scale, tensor.zero_point) for tensor in (left, right, output)]
    return _sum(*operands, limits, settings.rounding, sign)


@functools.lru_cache(SUMS)
def _sum(
    left: Quantization,
    right: Quantization,
    output: Quantization,
    limits: tuple[int, int],
    rounding: Rounding,
    sign: int,
) -> Steps:
    factors = quantize_addition(left.scale, right.scale, output.scale, LEFT_SHIFT)
    scale = Scale.of([factors.output], output.zero_point, *limits, rounding, reach=_REACH)
    operands = ((left, factors.left, _LEFT), (right, factors.right, _RIGHT))
    first, second = (
        Scale.of([factor], 0, 0, 0, rounding, reach=_REACH).scaled(
            (_VALUES - its.zero_point) << LEFT_SHIFT
        )
        for its, factor, _ in operands
    )
    wanted = scale.clamped((first[:, None] + sign * second)[..., None])[..., 0]
    slopes = left.scale / output.scale, sign * right.scale / output.scale
    line = lines.fit(slopes, (_VALUES[:, None], _VALUES), wanted)
    steps = Steps()
    if line is not None:
        lines.emit(steps, line, (_LEFT, _RIGHT))
        return steps
    for its, factor, plane in operands:
        _scale_operand(steps, factor, its.zero_point, plane, rounding)
    if sign < 0:
        steps.add(AluOpcode.MUL, -1, _RIGHT)
    steps.add(AluOpcode.ADD, _RIGHT)
    requantize(steps, scale, (_RIGHT, *_SCRATCH))
    return steps


def _scale_operand(
    steps: Steps, factor: Multiplier, zero_point: int, plane: Plane, rounding: Rounding
) -> None:
    """Append the scaling of an operand that is shifted left by `LEFT_SHIFT`.

    With v = q - z below 2^8 and the significand a * 2^16 + b, b signed, the product shifted right by
    31 bits is v * a * 2^5 + v * b / 2^11.
    """
    low_bits = 1 << 16
    lower = (factor.significand + low_bits // 2) % low_bits - low_bits // 2
    upper = (factor.significand - lower) // low_bits
    shift = -factor.shift
    scratch = _SCRATCH[0]
    if zero_point:
        steps.add(AluOpcode.ADD, -zero_point, plane)
    if lower:
        steps.copy(plane, scratch)
        steps.add(AluOpcode.MUL, lower, scratch)
        if rounding is Rounding.EXACT or not shift:
            steps.add(AluOpcode.ADD, 1 << 10, scratch)
        steps.add(AluOpcode.SHR, 11, scratch)
    steps.add(AluOpcode.MUL, upper, plane)
    steps.add(AluOpcode.SHR, -5, plane)
    if lower:
        steps.add(AluOpcode.ADD, scratch, plane)
    if shift:
        if rounding is Rounding.EXACT:
            steps.copy(plane, scratch)
            steps.add(AluOpcode.SHR, 31, scratch)
            steps.add(AluOpcode.ADD, scratch, plane)
        steps.add(AluOpcode.ADD, 1 << shift - 1, plane)
        steps.add(AluOpcode.SHR, shift, plane)

"""MUL, MINIMUM and MAXIMUM of two int8 tensors, RELU, RELU6 and RELU_N1_TO_1 of one.

Sources: `tflite/kernels/mul.cc`, `maximum_minimum.cc`, `activations.cc` (QuantizedReluX), and their
reference kernels in `internal/reference`.
"""

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic import lines
from potash_firmware.tflite.arithmetic.ramps import Scale, Values
from potash_firmware.tflite.arithmetic.requantization import Steps, requantize
from potash_firmware.tflite.capi import Activation, BuiltinOperator, Node
from potash_firmware.tflite.lowering import Lowering, Rounding, Settings
from potash_firmware.tflite.operators import checks, elementwise
from potash_firmware.tflite.operators.elementwise import OTHER, VALUES, Operand, Quantization
from potash_firmware.tflite.quantization import (
    activation_range,
    quantize_multiplier,
    single_precision_ratio,
)
from potash_firmware.vta_runtime.schedules import Plane

LINES = 2048
"""Lines that are cached."""
_MUL_REACH = 1 << 16
"""Products are below it."""
_MUL_SCRATCH = (OTHER, Plane(2), Plane(3))


class Product(NamedTuple):
    """Quantisation of a product."""

    left: Quantization
    right: Quantization
    output: Quantization
    limits: tuple[int, int]
    rounding: Rounding

    @property
    def real(self) -> float:
        """The multiplier, in single precision as in the kernel."""
        return single_precision_ratio((self.left.scale, self.right.scale), self.output.scale)

    @property
    def scale(self) -> Scale:
        """The scaling of the product. Raises QuantizationError where it leaves 32 bits."""
        multiplier = quantize_multiplier(self.real)
        return Scale.of(
            [multiplier], self.output.zero_point, *self.limits, self.rounding, reach=_MUL_REACH
        )


def lower_mul(node: Node, settings: Settings) -> Lowering:
    """MUL. Raises Refusal, QuantizationError."""
    what = "a multiplication"
    sources, target = elementwise.tensors(node, settings, 2, what)
    left, right = operands = [Quantization.of(tensor) for tensor in sources]
    output = Quantization.of(target)
    limits = activation_range(checks.options(node, what).activation, *output)
    its = Product(left, right, output, limits, settings.rounding.elsewhere)
    scale = its.scale

    def emit(steps: Steps, first: int, other: Operand | None) -> None:
        assert other is not None
        one, another = operands[first], operands[1 - first]
        if isinstance(other, np.ndarray):
            factors = other - another.zero_point
            each = [_constant_line(its, one.zero_point, int(factor)) for factor in factors]
            if all(each):
                lines.emit_each(steps, [line for line in each if line])
                return
            other = factors
        elif another.zero_point:
            if not isinstance(other, Plane):
                steps.copy(other, OTHER)
            steps.add(AluOpcode.ADD, -another.zero_point, OTHER)
            other = OTHER
        if one.zero_point:
            steps.add(AluOpcode.ADD, -one.zero_point)
        steps.add(AluOpcode.MUL, other)
        every = _products(VALUES - left.zero_point, VALUES - right.zero_point)
        _scale_down(steps, scale, its.real, every, _MUL_SCRATCH)

    return elementwise.lowering(sources, target, settings, emit)


def _scale_down(
    steps: Steps, scale: Scale, slope: float, arguments: Values, scratch: Sequence[Plane]
) -> None:
    """Append the steps that scale the tile, which holds one of `arguments` (in ascending order),
    and clamp it; `slope`, which is positive, is the approximate factor. Raises QuantizationError as
    `requantize` does."""
    levels = scale.clamped(arguments[:, None])[:, 0]
    line = lines.fit((slope,), (arguments,), levels)
    if line is not None:
        lines.emit_each(steps, [line])
        return
    # If x is clamped first, it is smaller, so the factor may be larger.
    least = int(arguments[levels == levels[0]].max())
    most = int(arguments[levels == levels[-1]].min())
    inside = (arguments >= least) & (arguments <= most)
    line = lines.fit((slope,), (arguments[inside],), levels[inside], clamped=False)
    if line is not None:
        steps.add(AluOpcode.MAX, least)
        steps.add(AluOpcode.MIN, most)
        lines.emit_each(steps, [line])
        return
    requantize(steps, scale, scratch)


def _products(left: Values, right: Values) -> Values:
    """All products of two values, in order."""
    every = np.multiply.outer(left, right).reshape(-1)
    lowest = int(every.min())
    return np.flatnonzero(np.bincount(every - lowest)) + lowest


@functools.lru_cache(LINES)
def _constant_line(its: Product, zero_point: int, factor: int) -> lines.Line | None:
    """The line of what has this zero point, times a constant."""
    wanted = its.scale.clamped(((VALUES - zero_point) * factor)[:, None])[:, 0]
    return lines.fit((its.real * factor,), (VALUES,), wanted)


_OPCODES: Mapping[int, AluOpcode] = MappingProxyType(
    {BuiltinOperator.MINIMUM: AluOpcode.MIN, BuiltinOperator.MAXIMUM: AluOpcode.MAX}
)


def lower_extreme(node: Node, settings: Settings) -> Lowering:
    """MINIMUM and MAXIMUM, of the values as they are, whatever their scales. Raises Refusal."""
    sources, output = elementwise.tensors(node, settings, 2, "an extreme of two tensors")

    def emit(steps: Steps, _first: int, other: Operand | None) -> None:
        assert other is not None
        steps.add(_OPCODES[node.operator], other)

    return elementwise.lowering(sources, output, settings, emit)


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


def lower_rectifier(node: Node, settings: Settings) -> Lowering:
    """RELU and its kind: scaled to the output's scale, and clamped. Raises Refusal,
    QuantizationError."""
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

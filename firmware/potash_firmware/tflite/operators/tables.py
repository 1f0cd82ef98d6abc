"""Operators of one int8 tensor, value by value: QUANTIZE, which takes and gives uint8, too,
LOGISTIC, TANH, HARD_SWISH, LEAKY_RELU, SQRT, RSQRT and PRELU.

Whatever such an operator computes, it is a table of 256 results, or one for each channel. The
reference kernel itself makes it when a node is lowered. The ALU then has the same results from a
line, or from one with bends (`arithmetic.pieces`).

A byte of uint8 is loaded as if it were of int8, and the low 8 bits of a sum are stored: what the
steps are between is the number minus 128.

Sources: `tflite/kernels/quantize.cc`, `activations.cc`, `elementwise.cc`.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic import lines, pieces
from potash_firmware.tflite.arithmetic.ramps import Scale, Values
from potash_firmware.tflite.arithmetic.requantization import Steps, requantize
from potash_firmware.tflite.capi import NUMPY_TYPES, BuiltinOperator, Node, TensorType
from potash_firmware.tflite.lowering import Layouts, Lowering, Placement, Refusal, Settings
from potash_firmware.tflite.operators import checks, elementwise
from potash_firmware.tflite.operators.elementwise import VALUES, Operand, Quantization
from potash_firmware.tflite.packing import Layout
from potash_firmware.tflite.quantization import (
    INT8_MAX,
    INT8_MIN,
    quantize_multiplier,
    single_precision_ratio,
)
from potash_firmware.tflite.writer import ModelBuilder
from potash_firmware.vta_runtime.schedules import TILE, Plane

TABLES = 1024
"""Tables that are cached."""
_SCRATCH = (Plane(1), Plane(2))
_SAME = lines.Line((1,), 0, 0, INT8_MIN, INT8_MAX)
"""The line that changes nothing."""


class Function(NamedTuple):
    """An operator on a value; `alpha` is the option of LEAKY_RELU."""

    operator: int
    version: int
    source: Quantization
    output: Quantization
    alpha: float = 0.0
    source_type: int = TensorType.INT8
    output_type: int = TensorType.INT8


def lower(node: Node, settings: Settings) -> Lowering:
    """An operator without other inputs. Raises Refusal."""
    types = checks.BYTES if node.operator == BuiltinOperator.QUANTIZE else checks.INT8
    (source,), output = elementwise.tensors(node, settings, 1, _NAMES[node.operator], types)
    alpha = node.options.alpha if node.options else 0.0
    quantizations = Quantization.of(source), Quantization.of(output)
    its = Function(node.operator, node.version, *quantizations, alpha, source.type, output.type)

    def emit(steps: Steps, _first: int, _other: Operand | None) -> None:
        found = _fitted(its)
        if found is None:
            raise Refusal("its results take the VTA too many steps")
        if source.type != output.type and found == _SAME:
            # To a byte, 128 more is 128 less.
            steps.add(AluOpcode.ADD, 128)
            return
        if source.type == TensorType.UINT8:
            steps.add(AluOpcode.ADD, 128)
            steps.add(AluOpcode.SHR, -24)
            steps.add(AluOpcode.SHR, 24)
        if isinstance(found, lines.Line):
            lines.emit_each(steps, [found])
        else:
            pieces.emit(steps, found, _SCRATCH)
        if output.type == TensorType.UINT8:
            steps.add(AluOpcode.ADD, 128)

    return elementwise.lowering([source], output, settings, emit)


_NAMES: Mapping[int, str] = MappingProxyType(
    {
        BuiltinOperator.HARD_SWISH: "a hard swish",
        BuiltinOperator.LEAKY_RELU: "a leaky rectifier",
        BuiltinOperator.LOGISTIC: "a logistic function",
        BuiltinOperator.QUANTIZE: "a quantisation",
        BuiltinOperator.RSQRT: "a reciprocal square root",
        BuiltinOperator.SQRT: "a square root",
        BuiltinOperator.TANH: "a hyperbolic tangent",
    }
)


@functools.lru_cache(TABLES)
def _fitted(its: Function) -> lines.Line | pieces.Pieces | None:
    """The line of an operator, or the one with bends."""
    wanted = _table(its, ())[:, 0]
    slope = its.source.scale / its.output.scale
    return lines.fit((slope,), (VALUES,), wanted) or pieces.fit(wanted)


def _table(its: Function, others: Sequence[tuple[Values, Quantization]]) -> Values:
    """The results of the reference kernel for each value and channel: [256, channels]. `others` are
    further inputs, with a number for each channel. Raises Refusal where it has none."""
    # Here, as it loads TensorFlow Lite.
    from potash_firmware.tflite.interpreter import Interpreter, OpResolverType

    channels = max((values.size for values, _ in others), default=1)
    model = ModelBuilder()
    shape = (len(VALUES), channels)
    kinds = [NUMPY_TYPES[one] for one in (its.source_type, its.output_type)]
    before, after = (checks.BYTES[one] for one in (its.source_type, its.output_type))
    x = model.tensor("x", shape, kinds[0], scale=its.source.scale, zero_point=its.source.zero_point)
    inputs = [x]
    for values, (scale, zero_point) in others:
        inputs.append(
            model.tensor("other", (channels,), scale=scale, zero_point=zero_point, data=values)
        )
    y = model.tensor("y", shape, kinds[1], scale=its.output.scale, zero_point=its.output.zero_point)
    kind, options = _options(its)
    model.operator(
        its.operator, inputs, (y,), options_type=kind, options=options, version=its.version
    )
    try:
        kernel = Interpreter(
            model_content=model.build((x,), (y,)),
            experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        )
        kernel.allocate_tensors()
        kernel.set_tensor(x, np.broadcast_to(VALUES[:, None] + before, shape).astype(kinds[0]))
        kernel.invoke()
    except (RuntimeError, ValueError):
        raise Refusal("TensorFlow Lite does not run it by itself") from None
    found: Values = kernel.get_tensor(y).astype(np.int64) - after
    return found


def _options(its: Function) -> tuple[int, Any]:
    """The table of options in the schema."""
    if its.operator != BuiltinOperator.LEAKY_RELU:
        return schema.BuiltinOptions.NONE, None
    options = schema.LeakyReluOptionsT()
    options.alpha = its.alpha
    return schema.BuiltinOptions.LeakyReluOptions, options


def lower_prelu(node: Node, settings: Settings) -> Lowering:
    """PRELU with a factor for each channel, or one for all: two lines, or as it is defined. Raises
    Refusal, QuantizationError."""
    what = "a rectifier with factors"
    (source,), output = checks.tensors(node, (2,), what, 1)
    (_, factors), _ = checks.tensors(node, (2,), what)
    channels = output.shape[-1] if output.shape else 1
    if source.shape != output.shape or factors.constant is None:
        raise Refusal("the rectifier's factors are no constants, or give another shape")
    if factors.size not in (1, channels) or factors.shape[-1:] not in ((factors.size,), ()):
        raise Refusal("the rectifier has other factors than one for each channel")
    its = Function(node.operator, node.version, Quantization.of(source), Quantization.of(output))
    numbers = factors.constant.reshape(-1).astype(np.int64)
    distinct, which = np.unique(numbers, return_inverse=True)
    table = _table(its, [(distinct, Quantization.of(factors))])
    bent = _bent(table, its.source.zero_point)
    exact = None if bent else _Rectifier.of(its, Quantization.of(factors), table, distinct)

    def emit(steps: Steps, _first: int, _other: Operand | None) -> None:
        if bent:
            bent.emit(steps, its.source.zero_point, which)
        elif exact:
            exact.emit(steps, numbers)

    # Numbers for each channel are for images.
    layout = Layout.image(output.shape) if factors.size > 1 else None
    made = elementwise.lowering([source], output, settings, emit, layout)

    def place(given: Layouts) -> Placement:
        placement = made.place(given[:1])
        return replace(placement, inputs=(*placement.inputs, None))

    return Lowering(place)


class _Bent(NamedTuple):
    """Two lines for each channel, one below the bend and one above."""

    below: Values
    above: Values
    offsets: Values
    shift: int

    def emit(self, steps: Steps, bend: int, which: Values) -> None:
        """Append the lines; `which` are those of each channel."""
        steps.copy(TILE, _ABOVE)
        steps.add(AluOpcode.MAX, bend, _ABOVE)
        steps.add(AluOpcode.MIN, bend)
        steps.add(AluOpcode.MUL, self.below[which])
        steps.add(AluOpcode.MUL, self.above[which], _ABOVE)
        steps.add(AluOpcode.ADD, _ABOVE)
        steps.add(AluOpcode.ADD, self.offsets[which])
        steps.add(AluOpcode.SHR, self.shift)
        steps.add(AluOpcode.MAX, INT8_MIN)
        steps.add(AluOpcode.MIN, INT8_MAX)


class _Rectifier(NamedTuple):
    """PRELU as it is defined: values above zero are scaled, those below are multiplied first."""

    its: Function
    factor_zero_point: int
    above: lines.Line
    below: Scale

    @classmethod
    def of(
        cls, its: Function, factors: Quantization, table: Values, distinct: Values
    ) -> "_Rectifier":
        """Raises Refusal, QuantizationError where the ALU cannot have the bits."""
        (source, zero_point), (output, out_zero_point) = its.source, its.output
        # As in the kernel, all in single precision.
        slope = single_precision_ratio((source,), output)
        limits = INT8_MIN - out_zero_point, INT8_MAX - out_zero_point
        up = Scale.of([quantize_multiplier(slope)], 0, *limits, reach=_REACH)
        real = single_precision_ratio((source, factors.scale), output)
        down = Scale.of([quantize_multiplier(real)], 0, *limits, reach=_REACH)
        x = VALUES - zero_point
        positive = np.arange(x[-1] + 1)
        above = lines.fit((slope,), (positive,), up.clamped(positive[:, None])[:, 0])
        products = np.minimum(x, 0)[:, None] * (distinct - factors.zero_point)
        results = down.clamped(products) + up.clamped(np.maximum(x, 0)[:, None])
        if above is None or not (np.clip(results, *limits) + out_zero_point == table).all():
            raise Refusal("the rectifier is another one than the VTA's")
        return cls(its, factors.zero_point, above, down)

    def emit(self, steps: Steps, factors: Values) -> None:
        """Append it, with a factor for each channel."""
        line = self.above
        if self.its.source.zero_point:
            steps.add(AluOpcode.ADD, -self.its.source.zero_point)
        steps.copy(TILE, _ABOVE)
        steps.add(AluOpcode.MIN, 0)
        steps.add(AluOpcode.MUL, factors - self.factor_zero_point)
        requantize(steps, self.below, (Plane(1), Plane(2), Plane(4)))
        steps.add(AluOpcode.MAX, 0, _ABOVE)
        steps.add(AluOpcode.MUL, line.factors[0], _ABOVE)
        steps.add(AluOpcode.ADD, line.offset, _ABOVE)
        steps.add(AluOpcode.SHR, line.shift, _ABOVE)
        if line.below:
            steps.add(AluOpcode.MAX, line.low, _ABOVE)
        steps.add(AluOpcode.MIN, line.high, _ABOVE)
        steps.add(AluOpcode.ADD, _ABOVE)
        steps.add(AluOpcode.ADD, self.its.output.zero_point)
        steps.add(AluOpcode.MAX, INT8_MIN)
        steps.add(AluOpcode.MIN, INT8_MAX)


_ABOVE = Plane(3)
_REACH = 1 << 16
"""Products are below it."""
_BENT_SHIFTS = (20, 18, 16, 14)
_NEAR_HALF = 2.0 ** -np.arange(7, 14, 2)
_HEIGHTS = np.concatenate((np.linspace(0.02, 0.98, 33), 0.5 + _NEAR_HALF, 0.5 - _NEAR_HALF))
"""Heights above the result at which a line is tried at the bend. Many products are halves if scales
are short, and are rounded away from zero."""
_FAR = 1e6
"""A number beyond all limits."""


def _bent(table: Values, zero_point: int) -> _Bent | None:
    """Lines that give the table [256, channels], clamped to int8; None where none are found."""
    floor = np.where(table == INT8_MIN, -_FAR, table)
    ceiling = np.where(table == INT8_MAX, _FAR, table + 1.0)
    middle = table[zero_point - INT8_MIN]
    distance = (VALUES - zero_point)[:, None]
    slopes, rooms = [], []
    for side in (distance < 0, distance > 0):
        where = side[:, 0]
        steps = distance[where]
        if not where.any():
            slopes.append(np.zeros((len(_HEIGHTS), table.shape[1])))
            rooms.append(np.ones((len(_HEIGHTS), table.shape[1])))
            continue
        ends = [
            (bound[where] - (middle + _HEIGHTS[:, None])[:, None]) / steps
            for bound in (floor, ceiling)
        ]
        least = np.minimum(*ends).max(axis=1)
        most = np.maximum(*ends).min(axis=1)
        slopes.append((least + most) / 2)
        rooms.append(most - least)
    best = np.minimum(*rooms).argmax(axis=0)
    channels = np.arange(table.shape[1])
    for shift in _BENT_SHIFTS:
        below, above, heights = (
            np.rint(one * 2.0**shift).astype(np.int64)
            for one in (*(one[best, channels] for one in slopes), middle + _HEIGHTS[best])
        )
        its = _Bent(below, above, heights - (below + above) * zero_point, shift)
        if _gives(its, table, zero_point):
            return its
    return None


def _gives(its: _Bent, table: Values, zero_point: int) -> bool:
    x = VALUES[:, None]
    sums = (
        its.below * np.minimum(x, zero_point) + its.above * np.maximum(x, zero_point) + its.offsets
    )
    results = np.clip(sums >> its.shift, INT8_MIN, INT8_MAX)
    return bool((results == table).all() and np.abs(sums).max() < 1 << 31)

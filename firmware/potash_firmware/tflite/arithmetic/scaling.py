"""Scaling of one accumulator that has few possible values, with a line where there is one."""

from collections.abc import Sequence

import numpy as np

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic import lines
from potash_firmware.tflite.arithmetic.ramps import Scale, Values
from potash_firmware.tflite.arithmetic.requantization import Steps, requantize
from potash_firmware.vta_runtime.schedules import Plane


def scale_down(
    steps: Steps, scale: Scale, slope: float, arguments: Values, scratch: Sequence[Plane]
) -> None:
    """Append the steps that scale the tile, which holds one of `arguments` (in ascending order),
    and clamp it; `slope`, which is positive, is the approximate factor.

    Raises QuantizationError as `requantize` does.
    """
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


def products(left: Values, right: Values) -> Values:
    """All products of two values, in order."""
    every = np.multiply.outer(left, right).reshape(-1)
    lowest = int(every.min())
    return np.flatnonzero(np.bincount(every - lowest)) + lowest

"""AVERAGE_POOL_2D of int8: the sum of each window, divided by how many values it has in the image.

Windows at the borders have fewer values, so that the output is done in rectangles of windows with
equally many. Source: `tflite/kernels/pooling.cc`, `internal/reference/integer_ops/pooling.h`.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.division import divide
from potash_firmware.tflite.arithmetic.requantization import Steps
from potash_firmware.tflite.capi import Array, Node
from potash_firmware.tflite.operators import pooling
from potash_firmware.tflite.packing import Layout, Margin
from potash_firmware.tflite.plans import Builder, Compute, Plan, Settings
from potash_firmware.tflite.quantization import QuantizationError
from potash_firmware.vta_runtime.schedules import (
    Plane,
    Pooling,
    ScheduleError,
    Surface,
    Sweep,
    pool2d,
)

MOST_PARTS = 1024
"""With more rectangles than that the stream would be long for what it does."""

SCRATCH = (Plane(1), Plane(2))


class Part(NamedTuple):
    """The windows of one rectangle, and what of the output lies outside of it."""

    pooling: Pooling
    vectors: tuple[Array, ...]
    outside: Margin


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this pooling; None when it does."""
    reason = pooling.refusal(node, settings)
    if reason is not None:
        return reason
    try:
        _parts(node, settings)
    except (QuantizationError, ScheduleError) as error:
        return str(error)
    return None


def plan(node: Node, settings: Settings, given: Sequence[Layout | None]) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    source, output = pooling.tensors(node)
    parts = _parts(node, settings)

    def emit(
        builder: Builder, inputs: Sequence[Surface | None], outputs: Sequence[Surface]
    ) -> None:
        (image,) = inputs
        assert image is not None
        for part in parts:
            channels = [
                builder.channels(np.broadcast_to(vector, source.shape[-1]))
                for vector in part.vectors
            ]
            target = outputs[0].grown(*(-places for places in part.outside))
            part.pooling.emit(builder.runtime, image, target, channels=channels)

    return Plan((Layout.image(source.shape),), (Layout.image(output.shape),), Compute(emit))


def _parts(node: Node, settings: Settings) -> list[Part]:
    shape = pooling.shape(node, settings.config)
    down, across = list(_runs(shape.down)), list(_runs(shape.across))
    if len(down) * len(across) > MOST_PARTS:
        raise ScheduleError("the pooling has windows of too many sizes at its borders")
    parts = []
    for (top, rows, height), (left, columns, width) in itertools.product(down, across):
        steps = Steps()
        divide(steps, height * width, SCRATCH)
        pooling.clamp(steps, node)
        below = shape.down.windows - top - rows.windows
        right = shape.across.windows - left - columns.windows
        its = shape._replace(down=rows, across=columns)
        parts.append(
            Part(
                pool2d(its, settings.config, AluOpcode.ADD, steps.steps),
                tuple(steps.vectors),
                Margin(top, below, left, right),
            )
        )
    return parts


def _runs(sweep: Sweep) -> Iterator[tuple[int, Sweep, int]]:
    """Adjacent windows with equally many places in the image: the first, they, and how many."""
    windows = range(sweep.windows)
    places = itertools.groupby(windows, lambda first: len(sweep.seen(first, 1, sweep.taps)))
    for count, its in places:
        first, *others = its
        before = sweep.before - first * sweep.stride
        yield first, sweep._replace(windows=1 + len(others), before=before), count

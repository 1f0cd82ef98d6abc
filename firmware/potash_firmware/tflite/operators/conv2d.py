"""CONV_2D of int8, with weights of int8 and a scale for each output channel.

Source: `tflite/kernels/conv.cc`, `internal/reference/integer_ops/conv.h`.
"""

from collections.abc import Sequence

from potash_firmware.tflite.capi import Node, Tensor
from potash_firmware.tflite.operators import windowed
from potash_firmware.tflite.packing import Layout
from potash_firmware.tflite.plans import Plan, Settings
from potash_firmware.vta_runtime.schedules import layouts


def _refusal(source: Tensor, weights: Tensor) -> str | None:
    if len(weights.shape) != 4 or weights.shape[-1] != source.shape[-1]:
        return "the convolution is one of groups of channels"
    return None


_KIND = windowed.Kind(
    what="a convolution",
    refusal=_refusal,
    channel_axis=0,
    by_channel=lambda weights: weights,
    packed=lambda weights, _, config: layouts.pack_ohwi(weights, config),
)


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this convolution; None when it does."""
    return windowed.supports(_KIND, node, settings)


def plan(node: Node, settings: Settings, given: Sequence[Layout | None]) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    return windowed.plan(_KIND, node, settings)

"""DEPTHWISE_CONV_2D of int8: every input channel has kernels of its own.

The core multiplies blocks of channels with blocks of channels, so that a block of weights has
numbers on a diagonal only.

Source: `tflite/kernels/depthwise_conv.cc`, `internal/reference/integer_ops/depthwise_conv.h`.
"""

from collections.abc import Sequence

import numpy as np

from potash_device.vta.config import Config
from potash_firmware.tflite.capi import Array, Node, Tensor
from potash_firmware.tflite.operators import windowed
from potash_firmware.tflite.packing import Layout
from potash_firmware.tflite.plans import Plan, Settings
from potash_firmware.vta_runtime.schedules import Conv2d, layouts


def _refusal(_source: Tensor, weights: Tensor) -> str | None:
    if len(weights.shape) != 4 or weights.shape[0] != 1:
        return "the weights have another shape than they should"
    return None


def _packed(weights: Array, shape: Conv2d, config: Config) -> Array:
    """Weights [1][h][w][O] as those of a convolution that sees a block of channels.

    Output o sees channel o / multiplier, and of that channel's block the place that it has there.
    """
    _, height, width, channels = weights.shape
    block = config.block_in
    whole = np.zeros((channels, block, height, width), weights.dtype)
    outputs = np.arange(channels)
    whole[outputs, outputs // shape.multiplier % block] = weights[0].transpose(2, 0, 1)
    return layouts.pack_oihw(whole, config)


_KIND = windowed.Kind(
    what="a depthwise convolution",
    refusal=_refusal,
    channel_axis=3,
    by_channel=lambda weights: weights[0].transpose(2, 0, 1),
    packed=_packed,
    depthwise=True,
)


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this convolution; None when it does."""
    return windowed.supports(_KIND, node, settings)


def plan(node: Node, settings: Settings, given: Sequence[Layout | None]) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    return windowed.plan(_KIND, node, settings)

"""Moving channels to any lane by a product with weights of one and zero: PAD.

A product of int8 with 1 is exact, so that no scaling follows. Other channels get a number.
"""

import numpy as np

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Steps
from potash_firmware.tflite.capi import Node, Tensor
from potash_firmware.tflite.lowering import Lowering, Settings
from potash_firmware.tflite.operators import convolution
from potash_firmware.tflite.packing import Layout, Margin
from potash_firmware.vta_runtime.schedules import Conv2d, layouts


def pad_channels(
    node: Node, settings: Settings, source: Tensor, output: Tensor, margin: Margin, before: int
) -> Lowering:
    """PAD with `before` channels and others behind, and around images: a product with ones.

    Raises Refusal, ScheduleError.
    """
    image = Layout.image(source.shape)
    images, height, width, channels = image.sizes
    outputs = output.shape[-1]
    shape = Conv2d(
        images,
        channels,
        height + margin.top + margin.bottom,
        width + margin.left + margin.right,
        outputs,
        (1, 1),
    )
    weights = np.zeros((outputs, 1, 1, channels), np.int8)
    weights[before : before + channels, 0, 0] = np.eye(channels, dtype=np.int8)
    steps = Steps()
    added = np.where(weights.any(axis=(1, 2, 3)), 0, source.zero_point).astype(np.int64)
    steps.add(AluOpcode.ADD, added)
    return convolution.lowering(
        node,
        settings,
        "a padding",
        shape,
        steps,
        lambda: layouts.pack_ohwi(weights, settings.config),
        (image, Layout.image(output.shape)),
        margin,
    )

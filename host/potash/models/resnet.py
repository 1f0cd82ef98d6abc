"""The convolutions of ResNet-18.

Sources: "VTA: An Open Hardware-Software Stack for Deep Learning", table 1, whose names they have;
He et al., "Deep Residual Learning for Image Recognition", table 1.
"""

from collections.abc import Mapping
from typing import NamedTuple

from potash_firmware.tflite.windows import same_padding
from potash_firmware.vta_runtime.schedules import Conv2d


class Layer(NamedTuple):
    """A convolution of a square image, with the padding SAME."""

    size: int
    channels: int
    kernel: int
    stride: int
    outputs: int
    times: int
    """Number of the network's layers with this shape. C3 is not counted."""

    @property
    def shape(self) -> Conv2d:
        """The layer as a shape for the accelerator's scheduler."""
        padding = same_padding(self.size, self.kernel, self.stride)
        return Conv2d(
            images=1,
            in_channels=self.channels,
            height=self.size,
            width=self.size,
            out_channels=self.outputs,
            kernel=(self.kernel, self.kernel),
            stride=(self.stride, self.stride),
            padding=(*padding, *padding),
        )


LAYERS: Mapping[str, Layer] = {
    "C1": Layer(224, 3, 7, 2, 64, 1),
    "C2": Layer(56, 64, 3, 1, 64, 4),
    "C3": Layer(56, 64, 1, 1, 64, 0),
    "C4": Layer(56, 64, 3, 2, 128, 1),
    "C5": Layer(56, 64, 1, 2, 128, 1),
    "C6": Layer(28, 128, 3, 1, 128, 3),
    "C7": Layer(28, 128, 3, 2, 256, 1),
    "C8": Layer(28, 128, 1, 2, 256, 1),
    "C9": Layer(14, 256, 3, 1, 256, 3),
    "C10": Layer(14, 256, 3, 2, 512, 1),
    "C11": Layer(14, 256, 1, 2, 512, 1),
    "C12": Layer(7, 512, 3, 1, 512, 3),
}

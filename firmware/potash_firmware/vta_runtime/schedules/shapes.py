"""The sizes of an operation, independent of any schedule.

A convolution here is that of neural networks: the kernel is not mirrored.
"""

from dataclasses import dataclass, fields, replace
from functools import cache

from potash_device.vta.config import Config


class ScheduleError(ValueError):
    """An operation that has no schedule: a shape that does not exist, or a core too small for
    it."""


def blocks(count: int, block: int) -> int:
    """Number of blocks that `count` values take."""
    return -(-count // block)


@cache
def _most_blocks(out_channels: int, multiplier: int, block_in: int, block_out: int) -> int:
    """Blocks of input channels that a block of output channels has values of, at most."""
    firsts = range(0, out_channels, block_out)
    ends = (min(first + block_out, out_channels) - 1 for first in firsts)
    return 1 + max(
        end // multiplier // block_in - first // multiplier // block_in
        for first, end in zip(firsts, ends, strict=True)
    )


@dataclass(frozen=True)
class Conv2d:
    """`images` of `in_channels` x `height` x `width`, and `out_channels` kernels.

    `stride`, `dilation` are (down, across); `padding` is (top, bottom, left, right), of zeroes. A
    `depthwise` one has kernels for each channel of the input, which are applied to that channel
    only: its first `out_channels / in_channels` outputs are those of the first channel, and so on.
    Raises ScheduleError where there is no output.
    """

    images: int
    in_channels: int
    height: int
    width: int
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    depthwise: bool = False

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name != "depthwise"):
            value = getattr(self, name)
            low = 0 if name == "padding" else 1
            if min(value if isinstance(value, tuple) else (value,)) < low:
                raise ScheduleError(f"{name} of a convolution must be at least {low}, not {value}")
        if min(self.out_height, self.out_width) < 1:
            raise ScheduleError("the convolution's kernel is larger than its padded image")
        if self.depthwise and self.out_channels % self.in_channels:
            raise ScheduleError("a depthwise convolution has equally many kernels for each channel")

    @property
    def multiplier(self) -> int:
        """Kernels for each input channel of a depthwise convolution."""
        return self.out_channels // self.in_channels

    @property
    def out_height(self) -> int:
        reach = (self.kernel[0] - 1) * self.dilation[0] + 1
        return (self.height + sum(self.padding[:2]) - reach) // self.stride[0] + 1

    @property
    def out_width(self) -> int:
        reach = (self.kernel[1] - 1) * self.dilation[1] + 1
        return (self.width + sum(self.padding[2:]) - reach) // self.stride[1] + 1

    @property
    def products(self) -> int:
        """Multiplications that it takes, padding included: half the operations."""
        pixels = self.images * self.out_height * self.out_width
        taps = self.kernel[0] * self.kernel[1]
        return pixels * self.out_channels * (1 if self.depthwise else self.in_channels) * taps

    def groups(self, config: Config) -> int:
        """Number of groups of images: an element holds a row of each of BATCH images."""
        return blocks(self.images, config.batch)

    def in_blocks(self, config: Config) -> int:
        """Blocks of BLOCK_IN input channels."""
        return blocks(self.in_channels, config.block_in)

    def out_blocks(self, config: Config) -> int:
        """Blocks of BLOCK_OUT output channels."""
        return blocks(self.out_channels, config.block_out)

    def depth(self, config: Config) -> int:
        """Blocks of input channels that a block of output channels depends on, at most."""
        if not self.depthwise:
            return self.in_blocks(config)
        return _most_blocks(self.out_channels, self.multiplier, config.block_in, config.block_out)

    def first_block(self, config: Config, out_block: int) -> int:
        """The first of the `depth` blocks of input channels of a block of output channels."""
        if not self.depthwise:
            return 0
        first = out_block * config.block_out // self.multiplier // config.block_in
        return min(first, self.in_blocks(config) - self.depth(config))

    def is_single(self, config: Config) -> bool:
        """True if blocks of output channels are computed one by one, as the next one's inputs are
        not the next block."""
        same = config.block_in == config.block_out and self.multiplier == 1
        return self.depthwise and not same

    def flattened(self) -> "Conv2d":
        """The shape with all pixels in one row, if each window is a single pixel."""
        plain = self.kernel == (1, 1) == self.stride and not any(self.padding)
        if not plain:
            return self
        pixels = self.height * self.width
        return replace(self, height=1, width=pixels)

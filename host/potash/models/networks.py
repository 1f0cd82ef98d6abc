"""The networks that `potash model make` writes, by name.

The small ones are the set that the platform tests its delegate with ("Alkali CSD platform
documentation", section on delegated operators): sums of many sizes, convolutions of many shapes and
two networks of both. The layers C1 to C12 of ResNet-18 are those of "VTA: An Open Hardware-Software
Stack for Deep Learning", table 1. Whole networks are ResNet-18 (He et al., "Deep Residual Learning
for Image Recognition", table 1) and one like MobileNetV2 (Sandler et al., "MobileNetV2: Inverted
Residuals and Linear Bottlenecks", table 2). Their weights are random, not trained: they compute as
much as the trained ones, and classify nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import NamedTuple

from potash.models import resnet
from potash.models.builder import GraphBuilder, Padding
from potash.models.layers import Activations, Layers, Random
from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress, silent
from potash_firmware.tflite.writer import FusedActivation

RELU, RELU6 = FusedActivation.RELU, FusedActivation.RELU6

ADD_SIZES = (1, 4, 16, 25, 64, 256, 1024, 4096, 8192, 10000, 200007)

SMALL_SIZE, LARGE_SIZE = 10, 224
CONV_CHANNELS = (1, 3, 32)
CONV_OUTPUTS = (32, 256)
CONV_KERNELS = (3, 5, 11)
CONV_STRIDES = (1, 3)
CONV_PADDINGS = (0, 2)

CLASSES = 1000
PICTURES = 2
"""A network's scales are made for so many pictures."""
PICTURE_SCALE, PICTURE_ZERO_POINT = 0.0186584, -14
"""A photograph whose channels have been normalised as ImageNet's usually are."""

RESNET_STAGES = (64, 128, 256, 512)
RESNET_BLOCKS = 2

MOBILENET_STAGES = (
    # Expansion, channels, blocks, stride of the first.
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class Network(NamedTuple):
    """A model that can be made: what it is, and how."""

    summary: str
    make: Callable[[int, Progress], bytes]
    """Makes the model from a seed."""


class Conv(NamedTuple):
    """One convolution of a square image, with `padding` zeroes around it by a PAD; with None the
    padding is SAME."""

    size: int
    channels: int
    kernel: int
    stride: int
    outputs: int
    padding: int | None = None

    @property
    def name(self) -> str:
        return (
            f"conv2d-s{self.size}-c{self.channels}-k{self.kernel}-st{self.stride}"
            f"-p{self.padding}-o{self.outputs}"
        )

    @property
    def summary(self) -> str:
        where = "SAME" if self.padding is None else self.padding
        return (
            f"{self.size}x{self.size}x{self.channels}, {self.kernel}x{self.kernel} to "
            f"{self.outputs} channels, stride {self.stride}, padding {where}"
        )


def add_model(size: int, seed: int = 0, progress: Progress = silent) -> bytes:
    """ADD of two tensors of `size` values, with scales and zero points by the seed."""
    random = Random(seed)
    left, right = random.reals(0.01, 0.1, 2).tolist()
    zero_points = (random.bytes(3) // 4).tolist()
    graph = GraphBuilder(f"add-{size}")
    a = graph.tensor((1, size), left, zero_points[0])
    b = graph.tensor((1, size), right, zero_points[1])
    return graph.finish((a, b), (graph.add(a, b, (left + right, zero_points[2])),))


def conv_model(
    name: str, conv: Conv, activation: FusedActivation, seed: int = 0, progress: Progress = silent
) -> bytes:
    """A convolution, whose input is any bytes at all."""
    layers = Layers(name, seed, progress)
    x = _noise(layers, conv.size, conv.channels)
    if conv.padding:
        x = layers.pad(x, conv.padding)
    padding = Padding.SAME if conv.padding is None else Padding.VALID
    y = layers.conv2d(
        x, conv.outputs, conv.kernel, stride=conv.stride, padding=padding, activation=activation
    )
    return layers.finish(y)


def conv_add(seed: int = 0, progress: Progress = silent) -> bytes:
    """Two convolutions of one picture, and their sum."""
    layers = Layers("conv-add", seed, progress)
    x = _noise(layers, SMALL_SIZE, 3)
    return layers.finish(layers.add(layers.conv2d(x, 32, 3), layers.conv2d(x, 32, 1)))


def conv_conv_add(seed: int = 0, progress: Progress = silent) -> bytes:
    """A residual block: a convolution, one on top of it, and the sum of both."""
    layers = Layers("conv-conv-add", seed, progress)
    x = layers.conv2d(_noise(layers, SMALL_SIZE, 3), 32, 3, activation=RELU)
    return layers.finish(layers.add(layers.conv2d(x, 32, 3), x, RELU))


def resnet18(seed: int = 0, progress: Progress = silent) -> bytes:
    """ResNet-18 for 224x224 pictures. Where a stride meets padding, the padding is a PAD, even on
    all sides, as in what is converted from PyTorch; else SAME is the same."""
    layers = Layers("resnet18", seed, progress)
    x = _photographs(layers)
    x = layers.conv2d(layers.pad(x, 3), 64, 7, stride=2, padding=Padding.VALID, activation=RELU)
    # Nothing is below zero after a ReLU, so zeroes around it are never the largest.
    x = layers.max_pool2d(layers.pad(x, 1), 3, stride=2)
    for stage, channels in enumerate(RESNET_STAGES):
        for block in range(RESNET_BLOCKS):
            x = _residual(layers, x, channels, halve=stage > 0 and block == 0)
    return layers.finish(layers.fully_connected(layers.mean(x), CLASSES))


def mobilenet(seed: int = 0, progress: Progress = silent) -> bytes:
    """A network of MobileNetV2's shape, of width 1 and for 224x224 pictures."""
    layers = Layers("mobilenet-v2", seed, progress)
    x = layers.conv2d(_photographs(layers), 32, 3, stride=2, activation=RELU6)
    for expansion, channels, blocks, stride in MOBILENET_STAGES:
        for block in range(blocks):
            x = _bottleneck(layers, x, expansion, channels, stride if block == 0 else 1)
    x = layers.conv2d(x, 1280, 1, activation=RELU6)
    return layers.finish(layers.fully_connected(layers.mean(x), CLASSES))


def _residual(layers: Layers, x: Activations, channels: int, *, halve: bool) -> Activations:
    if halve:
        y = layers.conv2d(
            layers.pad(x, 1), channels, 3, stride=2, padding=Padding.VALID, activation=RELU
        )
        x = layers.conv2d(x, channels, 1, stride=2, padding=Padding.VALID)
    else:
        y = layers.conv2d(x, channels, 3, activation=RELU)
    return layers.add(layers.conv2d(y, channels, 3), x, RELU)


def _bottleneck(
    layers: Layers, x: Activations, expansion: int, channels: int, stride: int
) -> Activations:
    inputs = x.tensor.shape[3]
    y = layers.conv2d(x, inputs * expansion, 1, activation=RELU6) if expansion > 1 else x
    y = layers.depthwise_conv2d(y, 3, stride=stride, activation=RELU6)
    y = layers.conv2d(y, channels, 1)
    return layers.add(y, x) if stride == 1 and inputs == channels else y


def _noise(layers: Layers, size: int, channels: int) -> Activations:
    return layers.input(layers.random.bytes(1, size, size, channels), 1 / 64, 3)


def _photographs(layers: Layers) -> Activations:
    pictures = layers.random.pictures(PICTURES, LARGE_SIZE, 3)
    return layers.input(pictures, PICTURE_SCALE, PICTURE_ZERO_POINT)


CONVS = (
    Conv(4, 1, 3, 1, 1, padding=0),
    *(
        Conv(size, channels, kernel, stride, outputs, padding)
        for size, channels, kernel, stride, padding, outputs in product(
            (SMALL_SIZE, LARGE_SIZE),
            CONV_CHANNELS,
            CONV_KERNELS,
            CONV_STRIDES,
            CONV_PADDINGS,
            CONV_OUTPUTS,
        )
        if size > kernel and padding <= kernel // 2
    ),
)
"""The platform's convolutions."""


def _networks() -> Iterator[tuple[str, Network]]:
    for size in ADD_SIZES:
        yield f"add-{size}", Network(f"ADD of {size} values", partial(add_model, size))
    for conv in CONVS:
        make = partial(conv_model, conv.name, conv, FusedActivation.NONE)
        yield conv.name, Network(f"CONV_2D of {conv.summary}", make)
    yield "conv-add", Network("two CONV_2D of one picture, and ADD", conv_add)
    yield "conv-conv-add", Network("CONV_2D, another on top, and ADD of both", conv_conv_add)
    for layer, sizes in resnet.LAYERS.items():
        name, conv = f"resnet18-{layer.lower()}", Conv(*sizes[:5])
        make = partial(conv_model, name, conv, RELU)
        yield name, Network(f"ResNet-18's {layer}: {conv.summary}", make)
    yield "resnet18", Network("ResNet-18 for 224x224x3 pictures, 1000 classes", resnet18)
    yield (
        "mobilenet-v2",
        Network("MobileNetV2 of width 1 for 224x224x3 pictures, 1000 classes", mobilenet),
    )


NETWORKS: Mapping[str, Network] = dict(_networks())


def make(name: str, seed: int = 0, progress: Progress = silent) -> bytes:
    """The model of that name. Raises PotashError where there is none."""
    network = NETWORKS.get(name)
    if network is None:
        raise PotashError(f"there is no network {name}; potash model list names them")
    return network.make(seed, progress)

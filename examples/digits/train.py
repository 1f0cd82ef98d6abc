"""Train the network of this folder, and write it as a quantised model with the images to try it on.

    pip install 'potash[digits]'
    python examples/digits/train.py

writes `model.tflite`, `images.bin` and `labels.bin` beside this file. scikit-learn gives the 1797
handwritten digits of 8x8 pixels (UCI ML, "Optical Recognition of Handwritten Digits"); everything
else is numpy, in float64 and with one seed, so that the same machine makes the same files again.

    3x3 convolution to 16 channels, ReLU; 3x3 convolution to 32 with stride 2, ReLU; 10 scores

The int8 model follows Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", section 3: activations with the ranges that the training images
show, a scale for each channel of a convolution's weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.windows import same_padding
from potash_firmware.tflite.writer import FusedActivation, ModelBuilder

Array = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.int8]
Labels = npt.NDArray[np.int64]

SEED = 1797
SIDE, CLASSES = 8, 10
HELD_OUT = 600
"""Images that the training does not see: what the example classifies."""
EPOCHS, BATCH = 80, 32
STEP, FIRST_DECAY, SECOND_DECAY, TINY = 3e-3, 0.9, 0.999, 1e-8
"""Adam's numbers (Kingma and Ba, algorithm 1)."""

DARKEST = 16.0
"""A pixel is 0 to 16 in scikit-learn's data, 0 to 1 for the network."""
IMAGE_SCALE, IMAGE_ZERO = 1 / 255, -128
"""What a byte of an image stands for: scale * (byte - zero point)."""


@dataclass
class Network:
    """Weights as TensorFlow Lite has them: output channels first, input channels last."""

    first: Array
    first_bias: Array
    second: Array
    second_bias: Array
    last: Array
    last_bias: Array

    @classmethod
    def fresh(cls, random: np.random.Generator) -> Self:
        """Random weights, as large as leaves activations their size (He et al.)."""

        def weights(*shape: int) -> Array:
            return random.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)

        return cls(
            weights(16, 3, 3, 1),
            np.zeros(16),
            weights(32, 3, 3, 16),
            np.zeros(32),
            weights(CLASSES, SIDE // 2 * (SIDE // 2) * 32),
            np.zeros(CLASSES),
        )

    def arrays(self) -> list[Array]:
        """All that is learned."""
        return [getattr(self, one.name) for one in fields(self)]


class Activations(NamedTuple):
    """What a batch of images is at each step; `scores` has a row for each image."""

    first: Array
    second: Array
    scores: Array


def convolve(images: Array, weights: Array, bias: Array, stride: int) -> Array:
    """A 3x3 convolution with TensorFlow's SAME padding, of images [batch, row, column, channel]."""
    return np.tensordot(_windows(images, stride), weights, ((3, 4, 5), (3, 1, 2))) + bias


def forward(network: Network, images: Array) -> Activations:
    """The network on images [batch, 8, 8, 1]."""
    first = np.maximum(convolve(images, network.first, network.first_bias, 1), 0)
    second = np.maximum(convolve(first, network.second, network.second_bias, 2), 0)
    flat = second.reshape(len(images), -1)
    return Activations(first, second, flat @ network.last.T + network.last_bias)


def loss(scores: Array, labels: Labels) -> tuple[float, Array]:
    """The mean cross-entropy of the scores' softmax, and its gradient by the scores."""
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    value = -np.log(shares[rows, labels]).mean()
    shares[rows, labels] -= 1
    return float(value), shares / len(labels)


def gradients(network: Network, images: Array, labels: Labels) -> tuple[float, list[Array]]:
    """The loss of a batch, and its gradient by each of the network's arrays, in their order."""
    seen = forward(network, images)
    value, scores = loss(seen.scores, labels)
    flat = seen.second.reshape(len(images), -1)
    back = (scores @ network.last).reshape(seen.second.shape) * (seen.second > 0)
    second, second_bias, back = _convolution_gradients(seen.first, network.second, back, 2)
    first, first_bias, _ = _convolution_gradients(images, network.first, back * (seen.first > 0), 1)
    return value, [first, first_bias, second, second_bias, scores.T @ flat, scores.sum(axis=0)]


def train(images: Array, labels: Labels, *, epochs: int = EPOCHS, seed: int = SEED) -> Network:
    """A network that has learned the images, by Adam with a step that goes down to nothing."""
    random = np.random.default_rng(seed)
    network = Network.fresh(random)
    arrays = network.arrays()
    means, squares = ([np.zeros_like(one) for one in arrays] for _ in range(2))
    total = epochs * -(-len(images) // BATCH)
    for step_number, batch in enumerate(_batches(len(images), epochs, random), start=1):
        _, slopes = gradients(network, _moved(images[batch], random), labels[batch])
        step = STEP * (1 - (step_number - 1) / total)
        for values, slope, mean, square in zip(arrays, slopes, means, squares, strict=True):
            mean += (1 - FIRST_DECAY) * (slope - mean)
            square += (1 - SECOND_DECAY) * (slope**2 - square)
            size = np.sqrt(square / (1 - SECOND_DECAY**step_number)) + TINY
            values -= step * mean / (1 - FIRST_DECAY**step_number) / size
    return network


def _batches(count: int, epochs: int, random: np.random.Generator) -> Iterator[Labels]:
    for _ in range(epochs):
        order = random.permutation(count)
        yield from (order[at : at + BATCH] for at in range(0, count, BATCH))


def _moved(images: Array, random: np.random.Generator) -> Array:
    """The images, every other one moved by up to a pixel: more digits than were written."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    corners = random.integers(0, 3, (len(images), 2))
    corners[random.random(len(images)) < 0.5] = 1
    moved = [
        one[row : row + SIDE, column : column + SIDE]
        for one, (row, column) in zip(padded, corners, strict=True)
    ]
    return np.stack(moved)


def _windows(images: Array, stride: int) -> Array:
    """[batch, row, column, channel, 3, 3]: what each output pixel sees."""
    down, across = (same_padding(size, 3, stride) for size in images.shape[1:3])
    padded = np.pad(images, ((0, 0), down, across, (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    return seen[:, ::stride, ::stride]


def _convolution_gradients(
    images: Array, weights: Array, back: Array, stride: int
) -> tuple[Array, Array, Array]:
    """By the weights, the bias and the images, from the gradient by the output."""
    by_weights = np.tensordot(back, _windows(images, stride), ((0, 1, 2), (0, 1, 2)))
    (top, bottom), (left, right) = (same_padding(size, 3, stride) for size in images.shape[1:3])
    count, rows, columns, channels = images.shape
    padded = np.zeros((count, rows + top + bottom, columns + left + right, channels))
    height, width = (extent * stride for extent in back.shape[1:3])
    for row, column in np.ndindex(3, 3):
        place = padded[:, row : row + height : stride, column : column + width : stride]
        place += np.tensordot(back, weights[:, row, column], (3, 0))
    by_images = padded[:, top : top + rows, left : left + columns]
    return by_weights.transpose(0, 2, 3, 1), back.sum(axis=(0, 1, 2)), by_images


class Range(NamedTuple):
    """What an int8 value of a tensor stands for: scale * (value - zero)."""

    scale: float
    zero: int


def range_of(values: Array) -> Range:
    """The range that spans the values, and zero, which it has exactly."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    scale = float(np.float32((high - low) / 255))
    return Range(scale, round(-128 - low / scale))


def quantized(network: Network, images: Array) -> bytes:
    """The int8 model, with activations calibrated on `images`."""
    seen = forward(network, images)
    builder = ModelBuilder("handwritten digits")
    image = Range(IMAGE_SCALE, IMAGE_ZERO)
    first = range_of(seen.first)
    second = range_of(seen.second)
    scores = range_of(seen.scores)
    flat_shape = (1, network.last.shape[1])

    def activation(name: str, values: Array, its: Range) -> int:
        shape = (1, *values.shape[1:])
        return builder.tensor(name, shape, scale=its.scale, zero_point=its.zero)

    def convolution(
        given: int, output: int, name: str, weights: Array, bias: Array, stride: int, its: Range
    ) -> None:
        scales = (np.abs(weights).max(axis=(1, 2, 3)) / 127).astype(np.float32)
        options = schema.Conv2DOptionsT()
        options.padding = schema.Padding.SAME
        options.strideH = options.strideW = stride
        options.fusedActivationFunction = FusedActivation.RELU
        builder.operator(
            schema.BuiltinOperator.CONV_2D,
            (given, *_constants(builder, name, weights, bias, scales, its)),
            (output,),
            options_type=schema.BuiltinOptions.Conv2DOptions,
            options=options,
            version=3,
        )

    at = activation("image", images, image)
    tensors = [at]
    tensors.append(activation("first", seen.first, first))
    convolution(tensors[0], tensors[1], "first", network.first, network.first_bias, 1, image)
    tensors.append(activation("second", seen.second, second))
    convolution(tensors[1], tensors[2], "second", network.second, network.second_bias, 2, first)
    reshape = schema.ReshapeOptionsT()
    reshape.newShape = list(flat_shape)
    shape = builder.tensor("shape", (2,), np.int32, data=flat_shape)
    tensors.append(builder.tensor("flat", flat_shape, scale=second.scale, zero_point=second.zero))
    builder.operator(
        schema.BuiltinOperator.RESHAPE,
        (tensors[2], shape),
        (tensors[3],),
        options_type=schema.BuiltinOptions.ReshapeOptions,
        options=reshape,
    )
    tensors.append(activation("scores", seen.scores, scores))
    scale = np.array([np.abs(network.last).max() / 127], np.float32)
    builder.operator(
        schema.BuiltinOperator.FULLY_CONNECTED,
        (tensors[3], *_constants(builder, "last", network.last, network.last_bias, scale, second)),
        (tensors[4],),
        options_type=schema.BuiltinOptions.FullyConnectedOptions,
        options=schema.FullyConnectedOptionsT(),
        version=4,
    )
    return builder.build((tensors[0],), (tensors[4],))


def _constants(
    builder: ModelBuilder,
    name: str,
    weights: Array,
    bias: Array,
    scales: npt.NDArray[np.float32],
    given: Range,
) -> tuple[int, int]:
    """The tensors of an operator's weights and bias, with one scale or one for each channel."""
    along = scales.reshape(-1, *[1] * (weights.ndim - 1))
    values = np.clip(np.rint(weights / along), -127, 127)
    sums = np.float32(given.scale) * scales
    return (
        builder.tensor(f"{name} weights", weights.shape, scale=scales.tolist(), data=values),
        builder.tensor(
            f"{name} bias", bias.shape, np.int32, scale=sums.tolist(), data=np.rint(bias / sums)
        ),
    )


def digits() -> tuple[Array, Labels]:
    """scikit-learn's images [1797, 8, 8, 1], from 0 to 1, and what they show, in a fixed
    disorder."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(SEED).permutation(len(found.target))
    images = np.asarray(found.images, np.float64)[order, :, :, np.newaxis] / DARKEST
    return images, np.asarray(found.target, np.int64)[order]


def as_bytes(images: Array) -> Bytes:
    """The images as the model takes them."""
    return (np.rint(images / IMAGE_SCALE) + IMAGE_ZERO).astype(np.int8)


def make() -> dict[str, bytes]:
    """The files' contents by name."""
    images, labels = digits()
    network = train(images[HELD_OUT:], labels[HELD_OUT:])
    return {
        "model.tflite": quantized(network, images[HELD_OUT:]),
        "images.bin": as_bytes(images[:HELD_OUT]).tobytes(),
        "labels.bin": labels[:HELD_OUT].astype(np.uint8).tobytes(),
    }


if __name__ == "__main__":
    for name, content in make().items():
        (Path(__file__).parent / name).write_bytes(content)

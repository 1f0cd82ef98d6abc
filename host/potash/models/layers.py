"""Layers with random weights, and scales that fit them.

A network is built from its input on, and every layer computes its output for some images as it is
added. The range of the values gives the scales, and the sums of a convolution in each channel give
what batch normalisation would have learnt: weights' scales and biases are such that each channel
has a spread of its own, and neither vanishes nor saturates.

Nothing depends on the machine: weights are the bits of a generator whose stream is frozen, sums are
whole numbers, exact in any order, and what is not whole comes of single IEEE operations.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from potash.models.builder import GraphBuilder, Padding, Quantisation, Tensor, Window
from potash.sdk.progress import Progress, silent
from potash_firmware.tflite.windows import same_padding
from potash_firmware.tflite.writer import FusedActivation

Int8 = npt.NDArray[np.int8]
Sums = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

LOW, HIGH = -128, 127
STEPS = HIGH - LOW
GAIN = (0.5, 1.5)
"""The range of channels' standard deviations."""
OFFSET = (-0.5, 0.5)
"""A channel's mean, in standard deviations."""
WINDOW_VALUES = 1 << 21
"""Number of values of windows that are multiplied together."""
BOUNDS = {
    FusedActivation.NONE: (-math.inf, math.inf),
    FusedActivation.RELU: (0.0, math.inf),
    FusedActivation.RELU6: (0.0, 6.0),
}


class Random:
    """Random numbers by a seed. NumPy freezes the stream of a bit generator, not what is made of
    it."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def bytes(self, *shape: int) -> Int8:
        """Values from -128 to 127."""
        count = math.prod(shape)
        raw = self._bits.random_raw(-(-count // 8)).astype("<u8")
        return raw.view(np.int8)[:count].reshape(shape)

    def weights(self, *shape: int) -> Int8:
        """Values from -127 to 127: weights are symmetric."""
        return np.maximum(self.bytes(*shape), np.int8(-HIGH))

    def reals(self, low: float, high: float, count: int) -> Reals:
        """Values from `low` to below `high`."""
        fractions: Reals = (self._bits.random_raw(count) >> 11).astype(np.float64) * 2.0**-53
        return low + (high - low) * fractions

    def pictures(self, count: int, size: int, channels: int) -> Int8:
        """Pictures with something in them at each scale, as photographs have: N×H×W×C."""
        total = np.zeros((count, size, size, channels), np.int64)
        for octave in range(max(1, size.bit_length() - 1)):
            pieces = 1 << octave
            noise = self.bytes(count, pieces, pieces, channels).astype(np.int64)
            at = np.arange(size) * pieces // size
            total += noise[:, at][:, :, at]
        spread = max(int(np.abs(total).max()), 1)
        return (total * HIGH // spread).astype(np.int8)


class Activations(NamedTuple):
    """A tensor of the network, and its values for the pictures, which may be several."""

    tensor: Tensor
    values: Int8

    @property
    def scale(self) -> float:
        return self.tensor.quantisation[0]

    @property
    def centred(self) -> Sums:
        """The values without the zero point."""
        return self.values.astype(np.int64) - self.tensor.zero_point

    @property
    def reals(self) -> Reals:
        """The real values."""
        return self.centred.astype(np.float64) * self.scale


class Layers:
    """A network in int8, layer by layer."""

    def __init__(self, name: str, seed: int, progress: Progress = silent) -> None:
        self.random = Random(seed)
        self._graph = GraphBuilder(name)
        self._inputs: list[Tensor] = []
        self._progress = progress
        self._label = f"making {name}"

    def input(self, pictures: Int8, scale: float, zero_point: int = 0) -> Activations:
        """The network's input: a tensor for one of the `pictures`."""
        tensor = self._graph.tensor((1, *pictures.shape[1:]), scale, zero_point)
        self._inputs.append(tensor)
        return Activations(tensor, pictures)

    def conv2d(
        self,
        x: Activations,
        channels: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: Padding = Padding.SAME,
        activation: FusedActivation = FusedActivation.NONE,
    ) -> Activations:
        """A convolution and its batch normalisation."""
        weights = self.random.weights(channels, kernel, kernel, x.tensor.shape[3])
        products = math.prod(weights.shape[1:])
        # Whole numbers up to 2**24 are exact in float32, which takes half the time.
        exact = np.float32 if products * STEPS * HIGH <= 1 << 24 else np.float64
        matrix = weights.reshape(channels, -1).T.astype(exact)
        sums = [
            (windows.reshape(-1, products) @ matrix).astype(np.int64)
            for windows in _windows(x.centred.astype(exact), kernel, stride, padding)
        ]
        return self._convolution(x, weights, sums, Window(stride, padding, activation))

    def depthwise_conv2d(
        self,
        x: Activations,
        kernel: int,
        *,
        stride: int = 1,
        activation: FusedActivation = FusedActivation.NONE,
    ) -> Activations:
        """A convolution of each channel by itself, and its batch normalisation."""
        channels = x.tensor.shape[3]
        weights = self.random.weights(1, kernel, kernel, channels)
        down = weights[0].reshape(-1, channels).astype(np.int64)
        sums = [
            (windows.reshape(-1, kernel * kernel, channels) * down).sum(1)
            for windows in _windows(x.centred, kernel, stride, Padding.SAME)
        ]
        window = Window(stride, Padding.SAME, activation)
        return self._convolution(x, weights, sums, window, depthwise=True)

    def fully_connected(self, x: Activations, outputs: int) -> Activations:
        """The classifier: no normalisation, one scale for all weights."""
        inputs = x.tensor.shape[-1]
        weights = self.random.weights(outputs, inputs)
        sums = np.rint(x.centred.astype(np.float64) @ weights.T.astype(np.float64))
        factor = float(np.float32(1 / (HIGH * math.sqrt(inputs))))
        constant = self._graph.constant(weights, factor)
        spread = max(int(np.abs(sums).max()), 1)
        bias = np.rint(self.random.reals(*OFFSET, outputs) * spread / 4).astype(np.int32)
        reals = ((sums + bias) * (x.scale * factor)).astype(np.float64)
        output, values = _quantised(reals)
        biases = self._graph.bias(bias, x.tensor, constant)
        return self._activations(
            self._graph.fully_connected(x.tensor, constant, biases, output), values
        )

    def add(
        self,
        left: Activations,
        right: Activations,
        activation: FusedActivation = FusedActivation.NONE,
    ) -> Activations:
        """The sum of two tensors of one shape."""
        output, values = _quantised(left.reals + right.reals, activation)
        return self._activations(
            self._graph.add(left.tensor, right.tensor, output, activation), values
        )

    def pad(self, x: Activations, border: int) -> Activations:
        """Zeroes around the picture."""
        paddings = ((0, 0), (border, border), (border, border), (0, 0))
        values = np.pad(x.values, paddings, constant_values=x.tensor.zero_point)
        return self._activations(self._graph.pad(x.tensor, paddings), values)

    def max_pool2d(self, x: Activations, size: int, *, stride: int) -> Activations:
        """The largest value of each window; there is no padding."""
        channels = x.tensor.shape[3]
        rows = [
            windows.reshape(-1, size * size, channels).max(1)
            for windows in _windows(x.values, size, stride, Padding.VALID)
        ]
        tensor = self._graph.max_pool2d(x.tensor, size, stride)
        values = np.concatenate(rows).reshape(len(x.values), *tensor.shape[1:])
        return self._activations(tensor, values)

    def mean(self, x: Activations) -> Activations:
        """The mean over height and width: N×C."""
        pixels = x.tensor.shape[1] * x.tensor.shape[2]
        reals: Reals = x.centred.sum((1, 2)).astype(np.float64) * (x.scale / pixels)
        output, values = _quantised(reals)
        return self._activations(self._graph.mean(x.tensor, output), values)

    def finish(self, *outputs: Activations) -> bytes:
        """The model's bytes."""
        return self._graph.finish(self._inputs, [output.tensor for output in outputs])

    def _activations(self, tensor: Tensor, values: Int8) -> Activations:
        self._progress(self._label, None)
        return Activations(tensor, values)

    def _convolution(
        self,
        x: Activations,
        weights: Int8,
        rows: Sequence[Sums],
        window: Window,
        *,
        depthwise: bool = False,
    ) -> Activations:
        """A convolution with `rows` of sums in each channel."""
        axis = 3 if depthwise else 0
        size = window.extents(x.tensor.shape[1:3], weights.shape[1])
        sums = np.concatenate(rows).reshape(len(x.values), *size, weights.shape[axis])
        scales, bias, output, values = self._normalise(x, sums, window.activation)
        constant = self._graph.constant(weights, scales, axis)
        biases = self._graph.bias(bias, x.tensor, constant)
        tensor = self._graph.conv2d(x.tensor, constant, biases, window, output, depthwise=depthwise)
        return self._activations(tensor, values)

    def _normalise(
        self, x: Activations, sums: Sums, activation: FusedActivation
    ) -> tuple[list[float], npt.NDArray[np.int32], Quantisation, Int8]:
        """Scales of the weights and biases that give each channel a spread and a mean of its
        own."""
        channels = sums.shape[-1]
        gains = self.random.reals(*GAIN, channels)
        offsets = self.random.reals(*OFFSET, channels)
        samples = sums.reshape(-1, channels)
        means = samples.sum(0) // len(samples)
        spreads = np.sqrt(((samples - means) ** 2).sum(0) / len(samples))
        spreads = np.maximum(spreads, 1.0)
        scales = (gains / (spreads * x.scale)).astype(np.float32)
        bias = np.rint(offsets * spreads).astype(np.int64) - means
        reals: Reals = (sums + bias) * (scales.astype(np.float64) * x.scale)
        quantisation, values = _quantised(reals, activation)
        return scales.tolist(), bias.astype(np.int32), quantisation, values


def _quantised(
    reals: Reals, activation: FusedActivation = FusedActivation.NONE
) -> tuple[Quantisation, Int8]:
    """Scale and zero point that just hold what the activation leaves of the values, and these."""
    clamped = np.clip(reals, *BOUNDS[activation])
    low, high = min(float(clamped.min()), 0.0), max(float(clamped.max()), 0.0)
    scale = float(np.float32((high - low) / STEPS)) or 1.0
    zero_point = min(max(round(LOW - low / scale), LOW), HIGH)
    values = np.clip(np.rint(clamped / scale) + zero_point, LOW, HIGH).astype(np.int8)
    return (scale, zero_point), values


def _windows(
    values: npt.NDArray[Any], kernel: int, stride: int, padding: Padding
) -> Iterator[npt.NDArray[Any]]:
    """Inputs of the windows, (rows)×W×(kernel)×(kernel)×C, some rows of the output at a time."""
    height, width = values.shape[1:3]
    if padding is Padding.SAME:
        around = [same_padding(extent, kernel, stride) for extent in (height, width)]
        values = np.pad(values, ((0, 0), *around, (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(values, (kernel, kernel), (1, 2))
    seen = seen[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)
    step = max(1, WINDOW_VALUES // max(math.prod(seen.shape[2:]), 1))
    for image in seen:
        for row in range(0, len(image), step):
            yield image[row : row + step]

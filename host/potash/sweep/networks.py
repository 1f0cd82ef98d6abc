"""Networks for comparisons: their convolutions and matrix products, each as often as it
occurs.

Source: TensorFlow Lite's `schema.fbs`.
"""

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from ai_edge_litert import schema_py_generated as schema

from csd_spec.reporting import Count, Key, Positive
from potash.models.resnet import LAYERS
from potash.sdk.errors import PotashError, restated
from potash_firmware.tflite.capi import OPERATOR_NAMES
from potash_firmware.tflite.validation import ModelError, validate
from potash_firmware.tflite.windows import same_padding
from potash_firmware.vta_runtime.schedules import Conv2d, ScheduleError

LARGEST_MODEL = 1 << 30
MOST_PRODUCTS = 1 << 40
"""Multiplications of a layer: its stream has to fit into memory."""


class Network(NamedTuple):
    """A network of a sweep."""

    name: Annotated[str, "The network's name."]
    shapes: Mapping[Conv2d, int]
    """Number of occurrences of each layer."""
    left_out: Annotated[
        Mapping[str, Positive],
        "Operators omitted because no schedule supports them, with the number of each.",
    ]

    @property
    def layers(self) -> Annotated[Count, Key(before="left_out")]:
        """Number of convolutions and matrix products, each counted as often as it occurs."""
        return sum(self.shapes.values())

    @property
    def distinct(self) -> Annotated[Count, Key("shapes", before="left_out")]:
        """Number of different shapes among the layers."""
        return len(self.shapes)

    @property
    def operations(self) -> Annotated[Count, Key(before="left_out")]:
        """Number of multiplications and additions, including padding."""
        return sum(2 * shape.products * count for shape, count in self.shapes.items())


def network(name: str) -> Network:
    """ResNet-18, a layer of it, or the model in a file that ends in .tflite. Raises PotashError."""
    if name == "resnet18":
        return Network(name, {one.shape: one.times for one in LAYERS.values() if one.times}, {})
    if name in LAYERS:
        return Network(name, {LAYERS[name].shape: 1}, {})
    if not name.endswith(".tflite"):
        raise PotashError(
            f"{name!r} is not a network; there are resnet18, its layers {', '.join(LAYERS)}, and "
            "files that end in .tflite"
        )
    path = Path(name)
    with restated(OSError, f"{path} cannot be read"):
        if path.stat().st_size > LARGEST_MODEL:
            raise PotashError(f"{path} is larger than any model")
        model = path.read_bytes()
    try:
        validate(model)
        return of_model(path.name, model)
    except (ModelError, ScheduleError) as error:
        raise PotashError(f"{path}: {error}") from None
    except (struct.error, AttributeError, IndexError, TypeError, ValueError):
        # What the drive's own validation has no use for, it does not look at.
        raise PotashError(f"{path}: the model is damaged") from None


def of_model(name: str, model: bytes) -> Network:
    """The network of a TensorFlow Lite model that `validate` has taken. Raises ModelError where a
    convolution contradicts itself, ScheduleError where it has no output."""
    tables = schema.ModelT.InitFromPackedBuf(model, 0)
    codes = [max(one.builtinCode, one.deprecatedBuiltinCode) for one in tables.operatorCodes or ()]
    shapes: Counter[Conv2d] = Counter()
    left_out: Counter[str] = Counter()
    for graph in tables.subgraphs or ():
        for operator in graph.operators or ():
            kind = codes[operator.opcodeIndex]
            read = _READERS.get(kind)
            found = None if read is None else read(graph, operator)
            if found is None:
                left_out[OPERATOR_NAMES.get(kind, f"operator {kind}")] += 1
            elif found.products > MOST_PRODUCTS:
                raise ModelError(
                    f"a layer has {found.products} products, more than a sweep can time"
                )
            else:
                shapes[found] += 1
    if not shapes:
        raise ModelError("the model has no convolution and no matrix product")
    return Network(name, dict(shapes), dict(sorted(left_out.items())))


def _convolution(graph: Any, operator: Any, *, depthwise: bool = False) -> Conv2d | None:
    """CONV_2D: an image of NHWC and kernels of OHWI, or DEPTHWISE_CONV_2D, whose are of 1HWO. None
    where its channels are grouped."""
    image, kernels = _extents(graph, operator)
    if len(image) != 4 or len(kernels) != 4:
        raise ModelError(f"a convolution of {image} with {kernels} is none")
    images, height, width, channels = image
    first, down, across, last = kernels
    if not depthwise and last != channels:
        return None
    options = operator.builtinOptions
    stride = options.strideH, options.strideW
    dilation = options.dilationHFactor, options.dilationWFactor
    padding = (0, 0, 0, 0)
    if options.padding == schema.Padding.SAME:
        above_below = same_padding(height, down, stride[0], dilation[0])
        padding = (*above_below, *same_padding(width, across, stride[1], dilation[1]))
    out_channels, kernel = last if depthwise else first, (down, across)
    return Conv2d(
        images, channels, height, width, out_channels, kernel, stride, padding, dilation, depthwise
    )


def _product(graph: Any, operator: Any) -> Conv2d | None:
    """FULLY_CONNECTED, as the delegate lowers it: each row of the input is an image of a pixel."""
    values, weights = _extents(graph, operator)
    if len(weights) != 2 or math.prod(values) % weights[1]:
        raise ModelError(f"a matrix product of {values} with {weights} is none")
    outputs, inputs = weights
    return Conv2d(math.prod(values) // inputs, inputs, 1, 1, outputs, (1, 1))


def _extents(graph: Any, operator: Any) -> Sequence[tuple[int, ...]]:
    """The shapes of an operator's first two inputs."""
    inputs = [] if operator.inputs is None else operator.inputs[:2]
    if len(inputs) < 2 or min(inputs) < 0:
        raise ModelError("a convolution or matrix product lacks its image or its weights")
    shapes = [graph.tensors[at].shape for at in inputs]
    found = [() if shape is None else tuple(map(int, shape)) for shape in shapes]
    for extents in found:
        if min(extents, default=0) < 1:
            raise ModelError(f"a tensor has the shape {list(extents)}, which is not fixed")
    return found


_READERS: Mapping[int, Callable[[Any, Any], Conv2d | None]] = {
    schema.BuiltinOperator.CONV_2D: _convolution,
    schema.BuiltinOperator.DEPTHWISE_CONV_2D: partial(_convolution, depthwise=True),
    schema.BuiltinOperator.FULLY_CONNECTED: _product,
}


def distinct(networks: Iterable[Network]) -> list[Conv2d]:
    return list(dict.fromkeys(shape for one in networks for shape in one.shapes))

"""Operators that copy int8 values or add the zero point: PAD, MIRROR_PAD and GATHER.

What is around an image is a margin, and channels are put between others by a product with ones. The
host does the rest.

Sources: `tflite/kernels/pad.cc`, `mirror_pad.cc`, `gather.cc`.
"""

from collections.abc import Callable

import numpy as np

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Steps
from potash_firmware.tflite.capi import Array, Mirror, Node, Tensor
from potash_firmware.tflite.lowering import (
    Alias,
    Arrange,
    Layouts,
    Lowering,
    Placement,
    Refusal,
    Settings,
)
from potash_firmware.tflite.operators import checks, convolution, elementwise
from potash_firmware.tflite.packing import NO_MARGIN, Layout, Margin, Sizes
from potash_firmware.vta_runtime.schedules import Conv2d, layouts

MOST_WEIGHTS = 1 << 16
"""Maximum number of weights of a product with ones: the square of the number of channels."""


def _padded(node: Node) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
    """The input, the output, and how much there is before and after each axis. Raises Refusal."""
    (source,), output = checks.tensors(node, (2,), "a padding", 1)
    checks.same_scale(source, output)
    numbers, pads = checks.numbers(node.inputs[1]), node.inputs[1]
    if pads is None or pads.shape != (len(source.shape), 2):
        raise Refusal("the padding has other numbers than two for each axis")
    if min(numbers, default=0) < 0:
        raise Refusal("the padding is negative")
    each = list(zip(numbers[::2], numbers[1::2], strict=True))
    if output.shape != tuple(map(sum, zip(source.shape, *zip(*each, strict=True), strict=True))):
        raise Refusal("the padding's output has another shape than it should")
    return source, output, each


def lower_pad(node: Node, settings: Settings) -> Lowering:
    """PAD around images with the zero point, which is what a margin holds: the output is the
    input's surface with a part of its margin. Raises Refusal."""
    source, output, each = _padded(node)
    spatial = [number for pair in each[-3:-1] for number in pair] if len(each) >= 3 else []
    margin, total = Margin(*spatial), sum(map(sum, each))
    if total > sum(spatial):
        if total > sum(spatial) + sum(each[-1]):
            raise Refusal("the padding is one of other axes than height, width and channels")
        if source.shape[-1] * output.shape[-1] <= MOST_WEIGHTS:
            return _pad_channels(node, settings, source, output, margin, each[-1][0])
        if source.size > source.shape[-1]:
            zero_point = source.zero_point
            return _arranged(
                source,
                Layout.image(output.shape),
                lambda values: np.pad(values, each, constant_values=zero_point),
            )
        before, after = each[-1]
        margin = Margin(left=before, right=after)
        work = Alias(lambda surface: surface.grown(*margin), margin.plus)
        return Lowering.fixed((_row(source), None), (_row(output),), work)
    work = Alias(lambda surface: surface.grown(*margin), margin.plus)
    return Lowering.fixed((Layout.image(source.shape), None), (Layout.image(output.shape),), work)


def _pad_channels(
    node: Node, settings: Settings, source: Tensor, output: Tensor, margin: Margin, before: int
) -> Lowering:
    """PAD with `before` channels and others behind, and around images: a product with weights of
    one and zero, which is exact, so that no scaling follows. Raises Refusal, ScheduleError."""
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


def lower_mirror(node: Node, settings: Settings) -> Lowering:
    """MIRROR_PAD. Raises Refusal."""
    source, output, each = _padded(node)
    mode = checks.options(node, "a padding").mode
    if mode not in (Mirror.REFLECT, Mirror.SYMMETRIC):
        raise Refusal("the padding has another mode than the known ones")
    seen = 1 if mode == Mirror.REFLECT else 0
    if any(max(pads) > extent - seen for pads, extent in zip(each, source.shape, strict=True)):
        raise Refusal("the padding has more than it mirrors")
    row = source.shape[-1:] == (source.size,)
    return _arranged(
        source,
        _row(output) if row else Layout.image(output.shape),
        lambda values: np.pad(values, each, "reflect" if seen else "symmetric"),
    )


def lower_gather(node: Node, settings: Settings) -> Lowering:
    """GATHER of constant places. Raises Refusal."""
    what = "a gather"
    (source,), output = checks.tensors(node, (2,), what, 1)
    checks.same_scale(source, output)
    options, rank = checks.options(node, what), len(source.shape)
    checks.numbers(node.inputs[1])
    if options.batch_dims or not -rank <= options.axis < rank:
        raise Refusal("the gather is along no axis, or another one for each image")
    assert node.inputs[1] is not None and node.inputs[1].constant is not None
    axis, places = options.axis % rank, node.inputs[1].constant
    before, extent, behind = source.shape[:axis], source.shape[axis], source.shape[axis + 1 :]
    if not (0 <= places.min(initial=0) and places.max(initial=0) < extent):
        raise Refusal("the gather is of places that its input does not have")
    if output.shape != (*before, *places.shape, *behind):
        raise Refusal("the gather's output has another shape than it should")
    layout = elementwise.images_or_flat(output, settings.config)
    return _arranged(source, layout, lambda values: np.take(values, places, axis))


def _row(tensor: Tensor) -> Layout:
    """Each value as a pixel of one row."""
    return Layout(Sizes(1, 1, tensor.size, 1))


def _arranged(source: Tensor, output: Layout, arrange: Callable[[Array], Array]) -> Lowering:
    """An arrangement of the first input by the host, whatever layout that has."""

    def place(given: Layouts) -> Placement:
        first, *others = given
        layout = first.with_margin(NO_MARGIN) if first else Layout.image(source.shape)
        return Placement((layout, *[None] * len(others)), (output,), Arrange(arrange))

    return Lowering(place)

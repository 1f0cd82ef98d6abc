"""RESHAPE of int8: the same values in the same order, and so the same surface.

A tensor of any shape may have a layout of images of any sizes, so that nothing is done until a node
wants another layout. The output's shape is the one asked for. Source: `tflite/kernels/reshape.cc`.
"""

from potash_firmware.tflite.capi import Node, Tensor
from potash_firmware.tflite.lowering import (
    Alias,
    Layouts,
    Lowering,
    Placement,
    Refusal,
    Settings,
)
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.packing import NO_MARGIN, Layout


def lower(node: Node, settings: Settings) -> Lowering:
    """Raises Refusal."""
    (source,), output = checks.tensors(node, settings, (1, 2), "a reshape", 1)
    checks.same_scale(source, output)
    if source.size != output.size:
        raise Refusal("the reshape's output has another size than its input")
    return same_surface(output)


def same_surface(output: Tensor) -> Lowering:
    """The output is the first input."""

    def place(given: Layouts) -> Placement:
        first, *others = given
        # Without a layout it gets the one that the output's readers are likely to want.
        layout = first.with_margin(NO_MARGIN) if first else Layout.image(output.shape)
        work = Alias(lambda surface: surface, lambda margin: margin)
        return Placement((layout, *[None] * len(others)), (layout,), work)

    return Lowering(place)

"""RESHAPE of int8: the same values in the same order, and so the same surface.

A tensor of any shape may lie as images of any sizes, so that nothing is done until a node wants it to
lie otherwise; the shape that is asked for is the output's. Source: `tflite/kernels/reshape.cc`.
"""

from collections.abc import Sequence

from potash_firmware.tflite.capi import Node
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.packing import NO_MARGIN, Layout
from potash_firmware.tflite.plans import Alias, Plan, Settings


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this node; None when it does."""
    return checks.moving(node, settings, (1, 2), "a reshape") or (
        None if _fits(node) else "the reshape's output has another size than its input"
    )


def plan(node: Node, settings: Settings, given: Sequence[Layout | None]) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    output = node.outputs[0]
    assert output
    lies, *others = given
    # What nobody has laid out yet lies as the output's readers are likely to want it.
    layout = lies.with_margin(NO_MARGIN) if lies else Layout.image(output.shape)
    return Plan((layout, *[None] * len(others)), (layout,), same_surface())


def same_surface() -> Alias:
    """The output is the input."""
    return Alias(lambda surface: surface, lambda margin: margin)


def _fits(node: Node) -> bool:
    source, output = node.inputs[0], node.outputs[0]
    assert source and output
    return source.size == output.size

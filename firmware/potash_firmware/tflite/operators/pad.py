"""PAD of int8 around images: the zero point, which is what a margin holds anyway.

The output is the input's surface with so much of its margin, and nobody computes it.
Source: `tflite/kernels/pad.cc`.
"""

from collections.abc import Sequence

from potash_firmware.tflite.capi import Node, Tensor
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.packing import Layout, Margin
from potash_firmware.tflite.plans import Alias, Plan, Settings


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this padding; None when it does."""
    reason = checks.moving(node, settings, (2,), "a padding") or checks.numbers(node.inputs[1])
    if reason is not None:
        return reason
    source, pads, output = _tensors(node)
    if pads.shape != (len(source.shape), 2):
        return "the padding has other numbers than two for each axis"
    its = _pads(pads)
    if min(map(min, its), default=0) < 0:
        return "the padding takes away"
    wanted = tuple(
        extent + before + after for extent, (before, after) in zip(source.shape, its, strict=True)
    )
    if wanted != output.shape:
        return "the padding's output has another shape than it should"
    spatial = its[-3:-1] if len(its) >= 3 else []
    if sum(map(sum, its)) > sum(map(sum, spatial)):
        return "the padding is one of other axes than height and width"
    return None


def plan(node: Node, settings: Settings, given: Sequence[Layout | None]) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    source, pads, output = _tensors(node)
    margin = Margin()
    if len(source.shape) >= 3:
        *_, down, across, _ = _pads(pads)
        margin = Margin(*down, *across)
    work = Alias(lambda surface: surface.grown(*margin), margin.plus)
    return Plan((Layout.image(source.shape), None), (Layout.image(output.shape),), work)


def _tensors(node: Node) -> tuple[Tensor, Tensor, Tensor]:
    """The image, the paddings, and the output."""
    source, pads = node.inputs
    output = node.outputs[0]
    assert source and pads and output
    return source, pads, output


def _pads(pads: Tensor) -> list[tuple[int, int]]:
    """Before and behind each axis."""
    assert pads.constant is not None
    return [(int(before), int(behind)) for before, behind in pads.constant]

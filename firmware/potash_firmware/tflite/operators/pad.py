"""PAD of int8 around images: the zero point, which is what a margin holds anyway.

The output is the input's surface with a part of its margin, and nothing is computed.
Source: `tflite/kernels/pad.cc`.
"""

from potash_firmware.tflite.capi import Node
from potash_firmware.tflite.lowering import Alias, Lowering, Refusal, Settings
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.packing import Layout, Margin


def lower(node: Node, settings: Settings) -> Lowering:
    """Raises Refusal."""
    (source,), output = checks.tensors(node, settings, (2,), "a padding", 1)
    checks.same_scale(source, output)
    numbers, pads = checks.numbers(node.inputs[1]), node.inputs[1]
    if pads is None or pads.shape != (len(source.shape), 2):
        raise Refusal("the padding has other numbers than two for each axis")
    if min(numbers, default=0) < 0:
        raise Refusal("the padding is negative")
    each = list(zip(numbers[::2], numbers[1::2], strict=True))
    if output.shape != tuple(map(sum, zip(source.shape, *zip(*each, strict=True), strict=True))):
        raise Refusal("the padding's output has another shape than it should")
    spatial = [number for pair in each[-3:-1] for number in pair] if len(each) >= 3 else []
    if sum(numbers) > sum(spatial):
        raise Refusal("the padding is one of other axes than height and width")
    margin = Margin(*spatial)
    work = Alias(lambda surface: surface.grown(*margin), margin.plus)
    layouts = Layout.image(source.shape), Layout.image(output.shape)
    return Lowering.fixed((layouts[0], None), layouts[1:], work)

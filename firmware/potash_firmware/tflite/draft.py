"""The first two passes of `partition`: which layouts tensors have, and which margins."""

from dataclasses import dataclass, field
from typing import NamedTuple

from potash_device.vta.config import Config, MemoryId
from potash_firmware.tflite.capi import Node, Tensor
from potash_firmware.tflite.lowering import Alias, Compute, Lowering, Placement
from potash_firmware.tflite.packing import NO_MARGIN, Layout, Margin, Sizes
from potash_firmware.tflite.partition_cache import Layouts
from potash_firmware.vta_runtime.schedules import layouts


class Copy(NamedTuple):
    """A tensor in one of its layouts. Aliases have their own."""

    tensor: int
    sizes: Sizes
    spread: tuple[int, ...] | None = None
    memory: MemoryId = MemoryId.OUT
    """Memory type of its elements, if they are not those of OUT."""


def _emitted_before(_: object, *__: object) -> None:
    raise AssertionError("what was kept has these instructions")


@dataclass
class Draft:
    """The layouts of a partition's tensors, and their margins."""

    config: Config
    placements: list[tuple[Node, Placement]] = field(default_factory=list)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    """Each tensor's first layout."""
    memories: dict[int, MemoryId] = field(default_factory=dict)
    """Memory type of each tensor's elements."""
    margins: dict[Copy, Margin] = field(default_factory=dict)

    def add(self, node: Node, lowering: Lowering, kept: Layouts | None) -> None:
        """Place a node, in the layouts that were `kept` where its instructions were too."""
        for tensor in (*node.inputs, *node.outputs):
            if tensor is not None:
                self.tensors[tensor.index] = tensor
        given = [self.layouts.get(tensor.index) if tensor else None for tensor in node.inputs]
        if kept is None:
            placement = lowering.place(given)
        else:
            work = Compute(_emitted_before, kept.multiplies)
            placement = Placement(kept.inputs, kept.outputs, work)
        memory = self.memory(placement)
        for tensor, layout in zip(node.inputs, placement.inputs, strict=True):
            if tensor is not None and layout is not None:
                home = Layout.image(tensor.shape) if layout.spread else layout
                self.layouts.setdefault(tensor.index, home)
                self.memories.setdefault(tensor.index, memory)
        for tensor, layout in zip(node.outputs, placement.outputs, strict=True):
            assert tensor is not None
            self.layouts[tensor.index] = layout
            self.memories[tensor.index] = MemoryId.OUT
        self.placements.append((node, placement))

    def memory(self, placement: Placement) -> MemoryId:
        """Memory type of the elements of a node's packed inputs: OUT if they are the same."""
        if not isinstance(placement.work, Compute):
            return MemoryId.OUT
        memory = placement.work.memory(self.config)
        return MemoryId.OUT if layouts.alike(memory, MemoryId.OUT, self.config) else memory

    def spread_margins(self) -> None:
        """Give each copy a margin that is wide enough for all its readers."""
        for node, placement in reversed(self.placements):
            for tensor, layout in zip(node.inputs, placement.inputs, strict=True):
                if tensor is None or layout is None:
                    continue
                margin = layout.margin
                if isinstance(placement.work, Alias):
                    (output,) = node.outputs
                    assert output is not None
                    margin = placement.work.margin(
                        self.margin(Copy(output.index, placement.outputs[0].sizes))
                    )
                copy = Copy(tensor.index, layout.sizes, layout.spread, self.memory(placement))
                self.margins[copy] = self.margin(copy).joined(margin)

    def margin(self, copy: Copy) -> Margin:
        """The margin of a copy."""
        return self.margins.get(copy, NO_MARGIN)

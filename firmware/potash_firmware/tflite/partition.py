"""Adjacent nodes as streams: placed and compiled once, then run any number of times.

Three passes make it. Forwards, each node decides about the layouts of its tensors; a tensor for
which two nodes need different layouts has both, and is converted from the first to the other.
Backwards, the margins that readers need are added up. Forwards again, memory is allocated. Then the
nodes append their instructions, unless those were cached earlier. The streams, with their
constants, stay in the accelerator's memory. Where there is no room for all tensors at once, those
that are never needed together share memory. The values of variables between runs have memory of
their own, and change at the end of a run.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from potash_device.trace import COMPUTE
from potash_device.vta.config import MemoryId
from potash_firmware.tflite.border import Port, copies
from potash_firmware.tflite.capi import OPERATOR_NAMES, Array, CData, Node, Tensor, ffi, view
from potash_firmware.tflite.draft import Copy, Draft
from potash_firmware.tflite.lowering import (
    Alias,
    Arrange,
    Builder,
    Compute,
    Emit,
    Inputs,
    Keep,
    Lowering,
    Placement,
)
from potash_firmware.tflite.packing import NO_MARGIN, Layout, Sizes, around, moved, pack, unpack
from potash_firmware.tflite.partition_cache import Compiled, Layouts, Piece, Record, Span, Streams
from potash_firmware.tflite.streams import Stream, streams_of
from potash_firmware.tflite.variables.claims import VariableState
from potash_firmware.vta_runtime import Buffer, Runtime, Share, VtaMemoryError
from potash_firmware.vta_runtime.buffers import settle
from potash_firmware.vta_runtime.schedules import Surface, fill, layouts, move

if TYPE_CHECKING:
    from potash_device.vta.fast.binding import Bound

Lowered: TypeAlias = tuple[Node, Lowering]


class ShapeError(Exception):
    """A tensor has another shape than when the partition was made; the message says which."""


class Job(NamedTuple):
    """A node that is to append its instructions."""

    node: Node
    emit: Emit
    inputs: Inputs
    outputs: Sequence[Surface]


class SourceTensor(NamedTuple):
    """A tensor in one of its layouts, and its shape."""

    surface: Surface
    sizes: Sizes
    shape: tuple[int, ...]


class Arrangement(NamedTuple):
    """Values that are permuted: unpacked, arranged, packed."""

    sources: tuple[SourceTensor, ...]
    arrange: Callable[..., Array]
    target: Surface
    sizes: Sizes


class Kept(NamedTuple):
    """The assignment of a variable at the end of a run."""

    node: Node
    source: SourceTensor
    state: Copy


@dataclass(slots=True)
class Partition:
    """A partition: what the core runs for its nodes, and its memory."""

    runtime: Runtime
    builder: Builder
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    steps: tuple[Stream | Arrangement, ...]
    copies: tuple["Bound | None", "Bound | None"] | None = None
    """Compiled code that packs the inputs, and that unpacks the outputs."""

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams among the steps."""
        return tuple(step for step in self.steps if isinstance(step, Stream))

    def run(self, tensors: CData) -> None:
        """Compute the outputs from the inputs, which are among TensorFlow Lite's `tensors`.

        Raises StreamError, ShapeError.
        """
        core, config = self.runtime.core, self.runtime.config
        if self.copies is None and core.is_compiled:
            self.copies = copies(self.inputs, config), copies(self.outputs, config)
        packing, unpacking = self.copies or (None, None)
        first = int(ffi.cast("intptr_t", tensors))
        if packing is None or packing(first, 1) < 0:
            for port in self.inputs:
                pack(_values(port, tensors), port.sizes, port.surface, config)
        for step in self.steps:
            match step:
                case Stream(code, marks):
                    if COMPUTE.sink is not None:
                        nodes = [
                            (OPERATOR_NAMES.get(node.operator, str(node.operator)), node.index, *at)
                            for node, *at in marks
                        ]
                        COMPUTE.sink("tflite.nodes", {"nodes": nodes})
                    core.execute(code)
                case Arrangement():
                    values = [
                        unpack(one.surface, one.sizes, config).reshape(one.shape)
                        for one in step.sources
                    ]
                    pack(step.arrange(*values), step.sizes, step.target, config)
        if unpacking is None or unpacking(first, 0) < 0:
            for port in self.outputs:
                unpack(port.surface, port.sizes, config, _values(port, tensors))

    def close(self) -> None:
        """Free the accelerator's memory."""
        self.builder.close()


def _values(port: Port, tensors: CData) -> Array:
    """A tensor's values; those of uint8 are reinterpreted as int8. Raises ShapeError."""
    values, tensor = view(tensors + port.tensor.index), port.tensor
    if values.shape != tensor.shape:
        raise ShapeError(
            f"tensor {tensor.name!r} has the shape {values.shape}, and not {tensor.shape} as when "
            "the model was loaded"
        )
    return values.view(np.int8)


def build(
    lowered: Sequence[Lowered],
    states: Sequence[VariableState],
    inputs: Sequence[int],
    outputs: Sequence[int],
    runtime: Runtime,
    record: Record,
    name: str | None,
) -> Partition:
    """Make a partition of nodes, which keeps some states, and whose border are the tensors `inputs`
    and `outputs`, from what `record` has under that name, or add it there; with None, it has
    nothing to do with it. Raises VtaMemoryError where the accelerator's memory is too small for
    it."""
    nodes = [node for node, _ in lowered]
    kept = None if name is None else record.compiled(name)
    if kept is not None and kept.suits(nodes):
        with suppress(_UnusableError):
            return _build(lowered, states, inputs, outputs, runtime, kept)[0]
    partition, compiled = _build(lowered, states, inputs, outputs, runtime, None)
    if name is not None:
        record.add(name, compiled)
    return partition


def _build(
    lowered: Sequence[Lowered],
    states: Sequence[VariableState],
    inputs: Sequence[int],
    outputs: Sequence[int],
    runtime: Runtime,
    kept: Compiled | None,
) -> tuple[Partition, Compiled]:
    """A partition from what was `kept`, or made anew where that is None. Raises _UnusableError."""
    draft = Draft(runtime.config)
    layouts = kept.layouts if kept else [None] * len(lowered)
    for (node, lowering), its in zip(lowered, layouts, strict=True):
        draft.add(node, lowering, its)
    draft.spread_margins()
    with suppress(VtaMemoryError, _UnusableError):
        return _assembled(draft, Builder(runtime), states, inputs, outputs, kept, shared=False)
    # The core has to fill margins then, so that this is not the first thing that is tried.
    return _assembled(draft, Builder(runtime), states, inputs, outputs, kept, shared=True)


def _assembled(
    draft: "Draft",
    builder: Builder,
    states: Sequence[VariableState],
    inputs: Sequence[int],
    outputs: Sequence[int],
    kept: Compiled | None,
    *,
    shared: bool,
) -> tuple[Partition, Compiled]:
    """Raises _UnusableError, VtaMemoryError."""
    try:
        assembly = _Assembly(draft, builder, shared)
        partition = assembly.finish(states, inputs, outputs, kept)
        return partition, assembly.compiled
    except BaseException:
        builder.runtime.close()
        builder.close()
        raise


class _UnusableError(Exception):
    """A cached partition is for other streams or tensors, or does not fit into the memory."""


class _Assembly:
    """The third pass."""

    def __init__(self, draft: Draft, builder: Builder, shared: bool) -> None:
        self._draft = draft
        self._builder = builder
        self._shared = shared
        """Tensors that are never needed together share memory."""
        self._surfaces: dict[Copy, Surface] = {}
        self._steps: list[tuple[Job, ...] | Arrangement] = []
        self._jobs: list[Job] = []
        self._kept: list[Kept] = []

    def finish(
        self,
        states: Sequence[VariableState],
        inputs: Sequence[int],
        outputs: Sequence[int],
        kept: Compiled | None,
    ) -> Partition:
        """Assemble the partition, with the instructions that were `kept` or new ones."""
        entries = [
            self._home(index)
            for index in inputs
            if index in self._draft.layouts and self._draft.tensors[index].constant is None
        ]
        for state in states:
            copy = self._home(state.tensor.index)
            self._surfaces[copy] = surface = self._lasting(copy)
            pack(state.initial, copy.sizes, surface, self._builder.config)
        for copy in entries:
            self._make(self._draft.placements[0][0], copy)
        for node, placement in self._draft.placements:
            self._add(node, placement)
        # Handles of variables have no values.
        exits = [self._home(index) for index in outputs if index in self._draft.layouts]
        self._keep(exits)
        self._end_stream()
        settle(
            self._buffers(entries, exits), self._builder.allocate, self._builder.config.alignment
        )
        streams = iter(self._streams(kept))
        steps: list[Stream | Arrangement] = []
        for step in self._steps:
            steps += [step] if isinstance(step, Arrangement) else next(streams)
        return Partition(
            runtime=self._builder.runtime,
            builder=self._builder,
            inputs=tuple(map(self._port, entries)),
            outputs=tuple(map(self._port, exits)),
            steps=tuple(steps),
        )

    def _buffers(self, entries: Sequence[Copy], exits: Sequence[Copy]) -> Iterator[list[Buffer]]:
        """The buffers that each step needs; before the first step the inputs, after the last one
        the outputs."""
        yield [self._surfaces[copy].buffer for copy in entries]
        for step in self._steps:
            if isinstance(step, Arrangement):
                yield [step.target.buffer, *(source.surface.buffer for source in step.sources)]
            else:
                for job in step:
                    yield [one.buffer for one in (*job.inputs, *job.outputs) if one is not None]
        yield [self._surfaces[copy].buffer for copy in exits]

    def _add(self, node: Node, placement: Placement) -> None:
        memory = self._draft.memory(placement)
        inputs = [
            None if tensor is None or layout is None else self._reach(node, tensor, layout, memory)
            for tensor, layout in zip(node.inputs, placement.inputs, strict=True)
        ]
        copies = [
            Copy(tensor.index, layout.sizes)
            for tensor, layout in zip(node.outputs, placement.outputs, strict=True)
            if tensor is not None
        ]
        match placement.work:
            case Compute(emit):
                outputs = [self._make(node, copy) for copy in copies]
                self._jobs.append(Job(node, emit, inputs, outputs))
            case Alias(surface):
                (source,) = (one for one in inputs if one is not None)
                self._surfaces[copies[0]] = surface(source)
            case Arrange(arrange):
                sources = tuple(
                    SourceTensor(surface, layout.sizes, tensor.shape)
                    for tensor, layout, surface in zip(
                        node.inputs, placement.inputs, inputs, strict=True
                    )
                    if tensor and layout and surface
                )
                target = self._make(node, copies[0])
                self._arrange(Arrangement(sources, arrange, target, copies[0].sizes))
            case Keep():
                (tensor, state), (layout, _) = node.inputs, placement.inputs
                assert tensor and state and layout and inputs[0]
                value = SourceTensor(inputs[0], layout.sizes, tensor.shape)
                self._kept.append(Kept(node, value, self._home(state.index)))

    def _keep(self, exits: Sequence[Copy]) -> None:
        """Set variables, when nothing else needs what they were. What they are set to, and what the
        partition gives, may be what one of them was."""
        kept = [one for one in self._kept if one.source.surface != self._surfaces[one.state]]
        old = {id(self._surfaces[one.state].buffer): one.node for one in kept}

        def saved(source: SourceTensor) -> SourceTensor:
            node = old.get(id(source.surface.buffer))
            return source if node is None else self._saved(node, source)

        kept = [one._replace(source=saved(one.source)) for one in kept]
        for copy in exits:
            its = SourceTensor(
                self._surfaces[copy], copy.sizes, self._draft.tensors[copy.tensor].shape
            )
            self._surfaces[copy] = saved(its).surface
        for node, source, state in kept:
            self._move(node, source, self._surfaces[state], state.sizes)

    def _saved(self, node: Node, source: SourceTensor) -> SourceTensor:
        """A copy of a tensor, in memory of its own."""
        config, layout = self._builder.config, Layout(source.sizes)
        target = layout.surface(self._builder.allocate(layout.bytes(config)), config)
        self._move(node, source, target, source.sizes)
        return source._replace(surface=target)

    def _home(self, index: int) -> Copy:
        sizes, memory = self._draft.layouts[index].sizes, self._draft.memories[index]
        return Copy(index, sizes, memory=memory)

    def _port(self, copy: Copy) -> Port:
        return Port(self._draft.tensors[copy.tensor], self._surfaces[copy], copy.sizes)

    def _make(self, node: Node, copy: Copy) -> Surface:
        """Memory for a copy, its margin filled; that of a share by the core, each time."""
        config, tensor = self._builder.config, self._draft.tensors[copy.tensor]
        layout = self._layout(copy)
        # The core stores elements of OUT alone.
        fills = layout.margin == NO_MARGIN or copy.memory == MemoryId.OUT
        if self._shared and tensor.constant is None and fills:
            share = Share(layout.bytes(config, copy.memory))
            surface = layout.surface(share, config, copy.memory)
            if margin := [one for one in around(surface, layout.margin) if one.extent.elements]:

                def emit(builder: Builder, _inputs: object, _outputs: object) -> None:
                    fill(builder.runtime, margin, tensor.zero_point)

                self._jobs.append(Job(node, emit, (), (surface,)))
        else:
            surface = self._lasting(copy)
        self._surfaces[copy] = surface
        return surface

    def _lasting(self, copy: Copy) -> Surface:
        """Memory that no other copy has, its margin filled."""
        config, layout = self._builder.config, self._layout(copy)
        buffer = self._builder.allocate(layout.bytes(config, copy.memory))
        if layout.margin != NO_MARGIN:
            kind = layouts.value_type(config, copy.memory)
            np.frombuffer(buffer.view, kind)[:] = self._draft.tensors[copy.tensor].zero_point
        return layout.surface(buffer, config, copy.memory)

    def _layout(self, copy: Copy) -> Layout:
        return Layout(copy.sizes, self._draft.margin(copy))

    def _reach(self, node: Node, tensor: Tensor, layout: Layout, memory: MemoryId) -> Surface:
        """A tensor's surface in a layout, to which it is converted where it has no copy in it
        yet."""
        copy = Copy(tensor.index, layout.sizes, layout.spread, memory)
        if copy not in self._surfaces:
            shape = layout.spread or tensor.shape

            def spread(values: Array) -> Array:
                return np.broadcast_to(values, shape)

            target = self._make(node, copy)
            if tensor.constant is not None:
                pack(spread(tensor.constant), copy.sizes, target, self._builder.config)
            else:
                home = self._home(tensor.index)
                source = SourceTensor(self._surfaces[home], home.sizes, tensor.shape)
                if copy.spread:
                    self._arrange(Arrangement((source,), spread, target, copy.sizes))
                else:
                    self._move(node, source, target, copy.sizes)
        return self._surfaces[copy]

    def _move(self, node: Node, source: SourceTensor, target: Surface, sizes: Sizes) -> None:
        """Copy a tensor to a surface in other sizes: on the VTA where whole elements move."""
        surface = source.surface
        axes = moved(surface, source.sizes, target, sizes, self._builder.config)
        if axes is None:
            self._arrange(Arrangement((source,), lambda values: values, target, sizes))
            return
        found = axes

        def emit(builder: Builder, _inputs: object, _outputs: object) -> None:
            move(builder.runtime, surface, target, found)

        self._jobs.append(Job(node, emit, (surface,), (target,)))

    def _arrange(self, step: Arrangement) -> None:
        self._end_stream()
        self._steps.append(step)

    def _end_stream(self) -> None:
        if self._jobs:
            self._steps.append(tuple(self._jobs))
            self._jobs.clear()

    def _streams(self, kept: Compiled | None) -> list[list[Stream]]:
        """The instructions of the jobs, kept or compiled: where those of a group are too many for
        one stream they are several."""
        groups = [step for step in self._steps if not isinstance(step, Arrangement)]
        self.compiled = self._compiled(groups) if kept is None else kept
        streams = self.compiled.streams if kept is None else self._relocated(kept, groups)
        runtime = self._builder.runtime
        return [
            list(streams_of([job.node for job in jobs], *one, runtime))
            for jobs, one in zip(groups, streams, strict=True)
        ]

    def _compiled(self, groups: Sequence[Sequence[Job]]) -> Compiled:
        """The jobs' instructions, made now."""
        buffers = self._builder.buffers
        begin = len(buffers)
        streams = tuple(self._compile(jobs) for jobs in groups)
        return Compiled(
            streams,
            tuple(Span(one.physical, one.size) for one in buffers[:begin]),
            tuple(Piece(one.physical, bytes(one.view)) for one in buffers[begin:]),
            tuple(
                Layouts(its.inputs, its.outputs, its.work.multiplies)
                if isinstance(its.work, Compute)
                else None
                for _, its in self._draft.placements
            ),
        )

    def _compile(self, jobs: Sequence[Job]) -> tuple[bytes, tuple[int, ...]]:
        """A stream, and how many instructions each job has in it."""
        counts = []
        for job in jobs:
            before = self._builder.runtime.length
            job.emit(self._builder, job.inputs, job.outputs)
            counts.append(self._builder.runtime.length - before)
        return self._builder.stream(), tuple(counts)

    def _relocated(self, kept: Compiled, groups: Sequence[Sequence[Job]]) -> Streams:
        """Instructions that were kept, relocated to the memory that is free now, which is filled as
        it was when they were made. Raises _UnusableError."""
        buffers = self._builder.buffers
        jobs, sizes = [len(group) for group in groups], [one.size for one in buffers]
        if not kept.fits(jobs, sizes):
            raise _UnusableError
        try:
            for piece in kept.pieces:
                self._builder.allocate(len(piece.contents)).view[:] = piece.contents
        except VtaMemoryError:
            raise _UnusableError from None
        streams = kept.relocated([one.physical for one in buffers], self._builder.config)
        if streams is None:
            raise _UnusableError
        return streams

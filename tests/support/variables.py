"""Models with variables, which another graph sets in the first run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.writer import ModelBuilder
from support.graph_builder import GraphBuilder, Tensor
from support.model_fuzz import packed, unpacked

OPERATOR, OPTIONS = schema.BuiltinOperator, schema.BuiltinOptions


def handle(
    graph: ModelBuilder,
    name: str,
    kind: int = OPTIONS.VarHandleOptions,
    of: int = schema.TensorType.RESOURCE,
) -> int:
    """The handle of a variable, of another type or with other options if wanted."""
    made = graph.tensor(f"handle of {name!r}", (1,), np.int32)
    graph._graph.tensors[made].type = of
    options = schema.VarHandleOptionsT()
    options.container, options.sharedName = "", name
    graph.operator(OPERATOR.VAR_HANDLE, (), (made,), options_type=kind, options=options)
    return made


def call_once(graph: ModelBuilder, number: int = 1) -> None:
    """Have that graph run in the first run."""
    options = schema.CallOnceOptionsT()
    options.initSubgraphIndex = number
    kind = OPTIONS.CallOnceOptions
    graph.operator(OPERATOR.CALL_ONCE, (), (), options_type=kind, options=options)


def joined(first: bytes, *others: bytes) -> bytes:
    """One model with the graphs of several."""
    whole = unpacked(first)
    for other in map(unpacked, others):
        buffers, codes = len(whole.buffers), len(whole.operatorCodes)
        whole.buffers += other.buffers
        whole.operatorCodes += other.operatorCodes
        for graph in other.subgraphs:
            for tensor in graph.tensors:
                tensor.buffer += buffers if tensor.buffer else 0
            for operator in graph.operators:
                operator.opcodeIndex += codes
            whole.subgraphs.append(graph)
    return packed(whole)


class Stateful(GraphBuilder):
    """A graph that begins with a CALL_ONCE of another one, which sets its variables."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GraphBuilder()
        """The other one."""
        call_once(self._writer)

    def variable(self, name: str, initial: npt.ArrayLike | None = None, **kind: Any) -> int:
        """The handle of a variable with these values before the first run."""
        if initial is not None:
            values = self.first.constant(np.asarray(initial), 0.05)
            self.set(handle(self.first._writer, name), values, self.first)
        return handle(self._writer, name, **kind)

    def read(self, variable: int, shape: Sequence[int], zero_point: int = 0) -> Tensor:
        """The tensor that a variable holds."""
        made = self.tensor(shape, 0.05, zero_point)
        self._writer.operator(OPERATOR.READ_VARIABLE, (variable,), (made.index,))
        return made

    def set(self, variable: int, value: Tensor, graph: GraphBuilder | None = None) -> None:
        """Have a variable hold a tensor, by this graph or another one."""
        its = (graph or self)._writer
        its.operator(OPERATOR.ASSIGN_VARIABLE, (variable, value.index), ())

    def slice(self, x: Tensor, begin: Sequence[int], end: Sequence[int]) -> Tensor:
        """The part of a tensor from `begin` on, before `end`."""
        numbers = [self.constant(np.array(one, np.int32)) for one in (begin, end, [1] * len(end))]
        shape = [last - first for first, last in zip(begin, end, strict=True)]
        output = self.tensor(shape, x.scale, x.zero_point)
        options = schema.StridedSliceOptionsT()
        return self.operator(OPERATOR.STRIDED_SLICE, (x, *numbers), output, options)

    def finish(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bytes:
        return joined(super().finish(inputs, outputs), self.first._writer.build((), ()))

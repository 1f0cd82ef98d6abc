"""Graphs of operators that only move values, run whole on the VTA."""

import math
from collections.abc import Callable, Sequence

from potash_device.vta.config import Config
from potash_firmware.tflite.runtime import Model, inspect
from support.graph_builder import GraphBuilder, Tensor
from support.tflite import Bench, bench, reference
from support.tflite_values import SMALL, spread

CONFIGS = (Config.default(), SMALL)

Make = Callable[[GraphBuilder, Tensor], Tensor]


def run(
    make: Make, shape: Sequence[int], config: Config = CONFIGS[0], zero_point: int = -7
) -> tuple[Bench, list[str]]:
    """Run what `make` adds to an input of that shape: all on the VTA, in one partition, with the
    reference's bytes. Gives the VTA, and the partition's steps."""
    graph = GraphBuilder()
    x = graph.tensor(shape, 0.05, zero_point)
    y = make(graph, x)
    model, inputs = graph.finish([x], [y]), [spread(shape)]
    with bench(config) as vta:
        assert [report.reason for report in inspect(model, vta.delegate) if report.reason] == []
        assert vta.infer(model, inputs, math.prod(y.shape)) == reference(model, inputs)
        loaded = Model(model, delegate=vta.delegate, reference=True)
        ((_, partition),) = vta.delegate._session.partitions.values()
        names = [type(step).__name__ for step in partition.steps]
        del loaded
        return vta, names

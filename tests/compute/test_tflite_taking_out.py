"""Operators that take values out of a tensor or order them anew: the reference's bytes, and no more
work than it takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash_device.vta.config import Config
from potash_firmware.tflite.capi import BuiltinOperator
from support.graph_builder import GraphBuilder, Tensor
from support.tflite import bench, reference
from support.tflite_moves import CONFIGS, Make, run
from support.tflite_values import spread


def moved(code: int, shape: Sequence[int], options: object = None, *others: object) -> Make:
    def make(graph: GraphBuilder, x: Tensor) -> Tensor:
        inputs = [x, *(graph.constant(np.array(one, np.int32)) for one in others)]
        output = graph.tensor(shape, 0.05, -7)
        version = 2 if code == BuiltinOperator.STRIDED_SLICE else 1
        return graph.operator(code, inputs, output, options, version=version)

    return make


@pytest.mark.parametrize("config", CONFIGS)
class TestTakingOut:
    @pytest.mark.parametrize(
        ("shape", "size", "steps"),
        [
            ((1, 3, 4, 64), 2, ["Stream"]),
            ((2, 2, 3, 128), 2, ["Stream"]),
            ((1, 2, 2, 144), 3, ["Stream"]),
            ((1, 3, 4, 12), 2, ["Arrangement"]),
            ((1, 1, 1, 96), 2, None),
        ],
    )
    def test_between_depth_and_space(
        self, shape: Sequence[int], size: int, steps: list[str] | None, config: Config
    ) -> None:
        images, height, width, channels = shape
        wide = images, height * size, width * size, channels // size**2
        for name, before, after in (("DepthToSpace", shape, wide), ("SpaceToDepth", wide, shape)):
            options = getattr(schema, f"{name}OptionsT")()
            options.blockSize = size
            code = {"DepthToSpace": BuiltinOperator.DEPTH_TO_SPACE}.get(
                name, BuiltinOperator.SPACE_TO_DEPTH
            )
            _, found = run(moved(code, after, options), before, config)
            assert steps is None or found == steps

    @pytest.mark.parametrize(
        ("shape", "begin", "end", "step", "masks", "after"),
        [
            ((1, 6, 5, 20), (0, 1, 2, 0), (1, 5, 4, 20), (1, 1, 1, 1), {}, (1, 4, 2, 20)),
            (
                (2, 6, 5, 32),
                (0, 0, 1, 0),
                (0, 0, 0, 0),
                (1, 2, 3, 1),
                {"endMask": 15},
                (2, 3, 2, 32),
            ),
            ((1, 4, 4, 48), (0, 0, 0, 16), (1, 4, 4, 32), (1, 1, 1, 1), {}, (1, 4, 4, 16)),
            ((1, 4, 4, 48), (0, 0, 0, 5), (1, 4, 4, 32), (1, 1, 1, 2), {}, (1, 4, 4, 14)),
            ((1, 6, 40), (0, -2, 0), (1, 6, 40), (1, 1, 1), {}, (1, 2, 40)),
            ((5, 40), (2, 0), (0, 0), (1, 1), {"shrinkAxisMask": 1, "endMask": 2}, (40,)),
            ((7,), (1,), (-1,), (2,), {"beginMask": 1}, (3,)),
        ],
    )
    def test_slices(
        self,
        shape: Sequence[int],
        begin: Sequence[int],
        end: Sequence[int],
        step: Sequence[int],
        masks: dict[str, int],
        after: Sequence[int],
        config: Config,
    ) -> None:
        options = schema.StridedSliceOptionsT()
        for name in ("beginMask", "endMask", "ellipsisMask", "newAxisMask", "shrinkAxisMask"):
            setattr(options, name, masks.get(name, 0))
        run(moved(BuiltinOperator.STRIDED_SLICE, after, options, begin, end, step), shape, config)

    def test_ranks(self, config: Config) -> None:
        run(moved(BuiltinOperator.EXPAND_DIMS, (3, 1, 20), None, 1), (3, 20), config)
        options = schema.SqueezeOptionsT()
        options.squeezeDims = np.array([1], np.int32)
        run(moved(BuiltinOperator.SQUEEZE, (3, 20), options), (3, 1, 20), config)

    @pytest.mark.parametrize(
        ("shape", "axis", "sizes"),
        [
            ((1, 4, 4, 48), 3, (16, 16, 16)),
            ((1, 4, 6, 20), 2, (2, 2, 2)),
            ((1, 5, 2, 40), -3, (1, 4)),
            ((1, 4, 4, 40), -1, (32, 8)),
            ((6, 40), 1, (16, 24)),
        ],
    )
    def test_splits(
        self, shape: Sequence[int], axis: int, sizes: Sequence[int], config: Config
    ) -> None:
        graph = GraphBuilder()
        x = graph.tensor(shape, 0.05, 4)
        outputs = []
        for size in sizes:
            its = list(shape)
            its[axis] = size
            outputs.append(graph.tensor(its, 0.05, 4))
        along = graph.constant(np.array(axis, np.int32))
        if len(set(sizes)) == 1:
            options: Any = schema.SplitOptionsT()
            inputs = [along, x]
            code = BuiltinOperator.SPLIT
        else:
            options = schema.SplitVOptionsT()
            inputs = [x, graph.constant(np.array(sizes, np.int32)), along]
            code = BuiltinOperator.SPLIT_V
        options.numSplits = len(sizes)
        graph.operator(code, inputs, outputs[0], options, others=outputs[1:], version=2)
        model = graph.finish([x], outputs)
        values = spread(shape)
        with bench(config) as vta:
            assert vta.infer(model, [values], values.size) == reference(model, [values])
            assert vta.reasons == [None]

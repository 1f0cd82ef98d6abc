"""Random networks through the delegate: the reference kernels' bytes, whoever reads what and how.

Each network runs on one of two cores, with several inputs one behind the other; what the VTA does
not take runs on the reference kernels. `python -m pytest -m slow` takes many more of them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_device.vta.fast import compiling
from potash_firmware.tflite import partition
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.interpreter import Interpreter, OpResolverType
from potash_firmware.tflite.runtime import Model
from potash_firmware.vta_runtime import Runtime, VtaMemoryError
from support.graph_builder import GraphBuilder
from support.tflite import litert_only, reference
from support.tflite_graphs import Network, network
from support.tflite_values import SMALL, spread

pytestmark = litert_only

CONFIGS = (Config.default(), SMALL)
BUFFERS = {"LOG_INP_BUFF_SIZE": 13, "LOG_WGT_BUFF_SIZE": 15, "LOG_ACC_BUFF_SIZE": 14}
OTHERS = {
    "wider outputs": {"LOG_BLOCK_IN": 3, "LOG_BLOCK_OUT": 4, **BUFFERS},
    "wider inputs": {"LOG_BLOCK_IN": 4, "LOG_BLOCK_OUT": 3, **BUFFERS},
    "16 bits": {"LOG_INP_WIDTH": 4},
    "outputs of 32 bits": {"LOG_OUT_WIDTH": 5},
    "all of it": {
        "LOG_BATCH": 1,
        "LOG_BLOCK_IN": 3,
        "LOG_BLOCK_OUT": 2,
        "LOG_INP_WIDTH": 4,
        "LOG_WGT_WIDTH": 4,
        "LOG_OUT_WIDTH": 5,
        **BUFFERS,
        "LOG_WGT_BUFF_SIZE": 14,
    },
}
"""Cores whose outputs are not inputs as they are."""
SLOW, AT_ONCE = 20_000, 500


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    compiling.cache_folder()  # the engine is compiled already
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def run(model: Model, its: Network, seed: int) -> None:
    inputs = its.inputs(seed)
    expected = reference(its.model, inputs)
    output = bytearray(len(expected))
    length = model(b"".join(values.tobytes() for values in inputs), memoryview(output))
    assert length == len(expected)
    assert bytes(output) == expected, its.operators


def check(seed: int, config: Config, dram_bytes: int = 1 << 22) -> Counter[bool]:
    """Run a network twice; how many of its nodes the VTA took and left."""
    its = network(seed)
    with Runtime(Core.create(config, dram_bytes)) as runtime:
        delegate = VtaDelegate(runtime)
        model = Model(its.model, delegate=delegate, reference=True)
        taken = Counter(one.reason is None for one in itertools.chain(*delegate.decisions))
        for again in range(2):
            run(model, its, 7 * seed + again)
        del model
        decisions, room = delegate.decisions, runtime.alloc(64)
        # What was kept is relocated.
        model = Model(its.model, delegate=delegate, reference=True)
        assert delegate.decisions == decisions or dram_bytes < 1 << 20
        run(model, its, 7 * seed + 2)
        del model
        room.free()
        assert delegate.partitions == 0
        runtime.close()
        # All memory is one free piece again.
        assert len(runtime._heap._spans._free) == 1
    return taken


@pytest.mark.parametrize("config", CONFIGS, ids=["1x16x16", "2x8x8"])
def test_random_networks_give_the_references_bytes(config: Config) -> None:
    taken: Counter[bool] = Counter()
    for seed in range(5):
        taken += check(2 * seed + CONFIGS.index(config), config)
    # What runs elsewhere proves nothing.
    assert taken[True] > 4 * taken[False] > 0


@pytest.mark.parametrize("keys", OTHERS.values(), ids=OTHERS)
def test_other_cores_give_the_same(keys: dict[str, int]) -> None:
    taken: Counter[bool] = Counter()
    for seed in range(300, 302):
        taken += check(seed + 10 * list(OTHERS.values()).index(keys), Config.from_mapping(keys))
    assert taken[True] > 4 * taken[False]


@pytest.mark.parametrize("log_bytes", [10, 12, 14, 16])
def test_with_little_memory_they_give_the_same(log_bytes: int) -> None:
    for seed in range(log_bytes, log_bytes + 2):
        check(seed, CONFIGS[seed % 2], 1 << log_bytes)


@pytest.mark.parametrize("config", CONFIGS, ids=["1x16x16", "2x8x8"])
def test_tensors_that_are_never_needed_together_share_memory(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With margins, in several streams, run again, and relocated: whatever the memory held."""
    assembled, tried = partition._assembled, Counter[bool]()

    def without_room(*arguments: Any, shared: bool) -> Any:
        tried[shared] += 1
        if not shared:
            raise VtaMemoryError
        return assembled(*arguments, shared=True)

    monkeypatch.setattr(partition, "_assembled", without_room)
    for seed in range(200 + CONFIGS.index(config), 208, 2):
        check(seed, config)
    assert tried[True] == tried[False] > 6


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1000 + SLOW, AT_ONCE))
def test_many_random_networks(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        others = [Config.from_mapping(keys) for keys in OTHERS.values()]
        config = others[seed % len(others)] if seed % 3 == 0 else CONFIGS[seed % 2]
        check(seed, config, 1 << (22 if seed % 5 else 15))


def test_models_that_share_a_delegate_come_and_go() -> None:
    """Loaded, run and dropped in any order, some of them twice at once, from what was kept."""
    random = np.random.default_rng(4)
    nets = [network(seed) for seed in range(100, 104)]
    with Runtime(Core.create(CONFIGS[0], 1 << 20)) as runtime:
        delegate = VtaDelegate(runtime)
        alive: list[tuple[Model, Network]] = []
        for step in range(30):
            match random.integers(3):
                case 0 if len(alive) < 5:
                    its = nets[int(random.integers(len(nets)))]
                    alive.append((Model(its.model, delegate=delegate, reference=True), its))
                case 1 if len(alive) > 1:
                    del alive[int(random.integers(len(alive)))]
                case _ if alive:
                    run(*alive[int(random.integers(len(alive)))], step)
        alive.clear()
        assert delegate.partitions == 0
        runtime.close()
        assert len(runtime._heap._spans._free) == 1


def test_a_model_is_prepared_anew_for_other_shapes() -> None:
    """As `Interpreter.resize_tensor_input` does it: nothing of the earlier shapes is left."""
    random = np.random.default_rng(0)
    graph = GraphBuilder()
    x = graph.tensor((1, 5, 5, 3), 0.05, 3)
    weights = graph.constant(random.integers(-99, 99, (8, 3, 3, 3)).astype(np.int8), 0.005)
    model = graph.finish([x], [graph.max_pool2d(graph.conv2d(x, weights, None, 0.05, 1), 2)])

    def results(delegates: list[VtaDelegate]) -> Iterator[bytes]:
        interpreter = Interpreter(
            model_content=model,
            experimental_delegates=delegates,
            experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        )
        (given,), (wanted,) = interpreter.get_input_details(), interpreter.get_output_details()
        for shape in ((1, 5, 5, 3), (2, 7, 9, 3), (1, 5, 5, 3)):
            interpreter.resize_tensor_input(given["index"], shape)
            interpreter.allocate_tensors()
            interpreter.set_tensor(given["index"], spread(shape))
            interpreter.invoke()
            yield interpreter.get_tensor(wanted["index"]).tobytes()

    with Runtime(Core.create(CONFIGS[0], 1 << 20)) as runtime:
        delegate = VtaDelegate(runtime)
        assert list(results([delegate])) == list(results([]))
        assert delegate.nodes_run == 6 and delegate.partitions == 0

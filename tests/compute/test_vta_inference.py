"""What is said of a model's modelled time is of the streams that it runs."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from potash.models.networks import make
from potash.sdk.errors import PotashError
from potash.vta.inference import infer, time_nodes
from potash_device.vta.config import CORES, Config
from potash_device.vta.isa import Stage
from potash_device.vta.timing import run
from potash_device.vta.timing.parameters import CHISEL, PYNQ, Parameters
from potash_device.vta.timing.result import Kind
from potash_firmware.tflite.capi import BuiltinOperator
from potash_firmware.tflite.runtime import Model
from support.graph_builder import GraphBuilder
from support.tflite import bench, reference
from support.tflite_graphs import Network, network

MODEL = make("conv-conv-add")
PICTURE = np.random.default_rng(7).integers(-128, 128, (1, 10, 10, 3), np.int8)
ROOM = 10 * 10 * 32


def test_the_delegate_s_streams_are_what_the_core_executes() -> None:
    with bench() as vta:
        model = Model(MODEL, delegate=vta.delegate, reference=True)
        streams = vta.delegate.streams
        vta.streams.clear()
        output = memoryview(bytearray(ROOM))
        assert output[: model(PICTURE.tobytes(), output)] == reference(MODEL, [PICTURE])
        assert vta.streams == [stream.code for stream in streams]
        assert vta.delegate.streams == streams
        del model
        assert vta.delegate.streams == ()


@pytest.mark.parametrize("config", [Config.default(), CORES["paper"]])
@pytest.mark.parametrize("parameters", [PYNQ, CHISEL])
def test_the_cycles_are_those_of_the_clock(config: Config, parameters: Parameters) -> None:
    found = infer(MODEL, PICTURE.tobytes(), config=config, parameters=parameters)
    assert found.output == reference(MODEL, [PICTURE])
    with bench(config) as vta:
        kept = Model(MODEL, delegate=vta.delegate, reference=True)
        codes = [stream.code for stream in vta.delegate.streams]
        del kept
    alone = [run(config, parameters, code, compiled=False) for code in codes]
    assert found.modelled.cycles == sum(one.cycles for one in alone) > 0
    assert found.modelled.instructions == sum(map(len, alone)) == sum(map(len, codes)) // 16


def test_every_cycle_belongs_to_one_node() -> None:
    found = infer(MODEL, PICTURE.tobytes())
    assert sum(cycles for _, cycles in found.cycles) == found.modelled.cycles
    assert all(cycles > 0 for _, cycles in found.cycles)
    (first, _), (second, _), *_ = found.cycles
    assert first.operator == second.operator == BuiltinOperator.CONV_2D
    for one in found.streams:
        assert one.marks[-1].end == len(one.timing)


def test_a_node_ends_with_the_last_of_its_instructions() -> None:
    found = infer(MODEL, PICTURE.tobytes())
    (stream, *_) = found.streams
    first, *others = stream.marks
    assert others
    until = max(one.moments.end for one in stream.timing if one.index < first.end)
    node, part = stream.parts[0]
    assert (node, part.cycles) == (first.node, until)


def test_several_inferences_take_one_after_the_other() -> None:
    one = infer(MODEL, PICTURE.tobytes()).modelled
    many = one.times(600)
    assert (many.cycles, many.instructions) == (600 * one.cycles, 600 * one.instructions)
    assert many.seconds == pytest.approx(600 * one.cycles / 100e6)


SHAPES = (
    Config.default(),
    Config(log_block_in=5, log_block_out=5),
    # Outputs are not inputs here, so the host moves values between nodes.
    Config(log_block_in=3, log_uop_buff_size=14, log_inp_buff_size=13, log_wgt_buff_size=16),
)


@pytest.mark.parametrize("config", SHAPES)
@pytest.mark.parametrize("seed", [None, *range(6)])
def test_the_nodes_of_a_model_take_what_a_whole_run_takes(config: Config, seed: int | None) -> None:
    net = Network(MODEL, ((1, 10, 10, 3),), ()) if seed is None else network(seed)
    with bench(config, 1 << 24) as vta:
        vta.infer(net.model, net.inputs(1), 1 << 20)
        whole = [run(config, CHISEL, code, compiled=False) for code in vta.streams]
        decided = list(chain(*vta.delegate.decisions))
    found = time_nodes(net.model, config, CHISEL)
    assert [layer.node for layer in found.layers] == decided
    assert [layer.time is not None for layer in found.layers] == [one.claimed for one in decided]
    nodes = [layer.time for layer in found.layers if layer.time]
    for total in ("cycles", "instructions", "products", "read_bytes", "written_bytes"):
        assert sum(getattr(one, total) for one in nodes) == sum(
            getattr(one, total) for one in whole
        )
    assert found.cycles == sum(one.cycles for one in whole)
    for one in nodes:
        for module in one.modules.values():
            spent = (module.busy, *module.waits.values(), module.done)
            assert min(spent) >= 0 and sum(spent) == one.cycles
            assert module.busy == sum(module.work.values())
    # But for tokens, which pass while the node before ends, all work is a node's.
    for stage in Stage:
        for kind in set(Kind) - {Kind.TOKENS}:
            work = sum(one.work[stage].get(kind, 0) for one in whole)
            assert sum(one.work[stage].get(kind, 0) for one in nodes) == work


def test_a_node_s_module_waits_until_the_first_of_its_own_instructions() -> None:
    found = time_nodes(MODEL, Config.default(), PYNQ)
    with bench() as vta:
        kept = Model(MODEL, delegate=vta.delegate, reference=True)
        (stream,) = vta.delegate.streams
        del kept
    whole = list(run(Config.default(), PYNQ, stream.code))
    begin = 0
    for layer, mark in zip(found.layers, stream.marks, strict=True):
        own = whole[mark.first : mark.end]
        end = max(one.moments.end for one in own)
        assert layer.time is not None and layer.time.cycles == end - begin
        stores = [one for one in own if one.facts.stage == Stage.STORE and one.facts.beats]
        module = layer.time.modules["STORE"]
        assert module.work["OUT"] == sum(
            one.moments.done - one.moments.granted + 4 for one in stores
        )
        assert layer.time.read_bytes == sum(
            one.facts.size for one in own if one.facts.kind != Kind.OUT
        )
        begin = end


def test_the_module_that_is_busy_most_is_the_bound() -> None:
    # 1 x 1 outputs of many weights: LOAD has more to do than the multiplier.
    graph = GraphBuilder()
    x = graph.tensor((1, 512), 0.1, 0)
    weights = np.ones((512, 512), np.int8)
    model = graph.finish([x], [graph.fully_connected(x, graph.constant(weights, 0.1), None, 1.0)])
    layers = [time_nodes(one, Config.default(), PYNQ).layers[0] for one in (MODEL, model)]
    assert [layer.time and layer.time.bound for layer in layers] == ["COMPUTE", "LOAD"]
    assert layers[1].time is not None and layers[1].gops == pytest.approx(
        2 * 512 * 512 / layers[1].time.seconds / 1e9
    )
    assert layers[1].time.utilisation == 32 * 32 / layers[1].time.cycles


def test_a_node_without_instructions_takes_no_time() -> None:
    graph = GraphBuilder()
    x = graph.tensor((1, 4, 4, 16), 0.1, 0)
    y = graph.reshape(graph.relu(x, 0.1, -128), (1, 256))
    relu, reshape = time_nodes(graph.finish([x], [y]), Config.default(), PYNQ).layers
    assert relu.time is not None and relu.time.cycles > 0
    if reshape.time is not None:
        assert (reshape.time.cycles, reshape.time.bound, reshape.gops) == (0, None, None)


def test_queues_that_are_too_short_for_a_stream_are_named() -> None:
    with pytest.raises(PotashError, match="these parameters: instruction 39: deadlock"):
        time_nodes(MODEL, Config.default(), replace(PYNQ, command_queue=1, token_queue=1))

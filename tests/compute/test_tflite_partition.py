"""Partitions: planned once, kept on disk, as large as the accelerator's memory lets them be."""

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from potash_device import cache
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_device.vta.fast import compiling
from potash_firmware.tflite import delegate as tflite_delegate
from potash_firmware.tflite import partition_cache
from potash_firmware.tflite import runtime as tflite_runtime
from potash_firmware.tflite.arithmetic import lines
from potash_firmware.tflite.capi import Node
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.interpreter import Interpreter
from potash_firmware.tflite.lowering import Layouts, Lowering, Placement, Refusal, Settings
from potash_firmware.tflite.operators import addition, convolution, lower
from potash_firmware.tflite.partition_cache import Record
from potash_firmware.tflite.runtime import Model, inspect
from potash_firmware.vta_runtime import Runtime
from potash_firmware.vta_runtime.schedules import Convolution
from support.graph_builder import GraphBuilder, Padding
from support.tflite import Int8, bench, reference
from support.variables import Stateful

SHAPE = (1, 9, 9, 20)


def chain(layers: int = 3, seed: int = 0) -> bytes:
    """Convolutions one behind the other, of which the second one pads."""
    random = np.random.default_rng(seed)
    graph = GraphBuilder()
    x = y = graph.tensor(SHAPE, 0.05, -7)
    for number in range(layers):
        weights = random.integers(-127, 128, (20, 3, 3, 20)).astype(np.int8)
        padding = Padding.SAME if number % 2 else Padding.VALID
        w = graph.constant(weights, 0.005)
        y = graph.conv2d(y, w, None, 0.05, number * 3, padding=padding)
    return graph.finish([x], [y])


def data(seed: int = 0) -> Int8:
    return np.random.default_rng(seed).integers(-128, 128, SHAPE, np.int8)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    compiling.cache_folder()  # the engine is compiled already
    root = tmp_path / "cache"
    monkeypatch.setattr(cache, "folder", lambda of: root / of)
    return root


def run(model: bytes, inputs: Int8, dram_bytes: int = 1 << 22) -> bytes:
    with Runtime(Core.create(Config.default(), dram_bytes)) as runtime:
        output = bytearray(1 << 12)
        length = Model(model, delegate=VtaDelegate(runtime))(inputs.tobytes(), memoryview(output))
        return bytes(output[:length])


def test_a_partition_is_compiled_once_and_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain()
    with Runtime(Core.create(Config.default(), 1 << 22)) as runtime:
        loaded = Model(model, delegate=VtaDelegate(runtime))
        monkeypatch.setattr(runtime, "push_gemm", None)
        executed: list[bytes] = []
        execute = runtime.core.execute

        def watched(code: bytes) -> None:
            executed.append(code)
            execute(code)

        monkeypatch.setattr(runtime.core, "execute", watched)
        for seed in range(3):
            output = bytearray(980)
            length = loaded(data(seed).tobytes(), memoryview(output))
            assert bytes(output[:length]) == reference(model, [data(seed)])
        assert len(executed) == 3
        assert len(set(executed)) == 1


def test_what_was_compiled_is_kept(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain()
    expected = run(model, data())
    assert expected == reference(model, [data()])
    assert len(list((own_cache / partition_cache.MODELS.kind).iterdir())) == 1
    monkeypatch.setattr(Convolution, "emit", None)
    assert run(model, data()) == expected
    with pytest.raises(TypeError):
        # Another model was not.
        run(chain(seed=1), data())


def test_what_was_compiled_begins_with_the_initial_state(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Stateful()
    state = graph.variable("state", data(1))
    x, old = graph.tensor(SHAPE, 0.05), graph.read(state, SHAPE)
    weights = np.random.default_rng(2).integers(-127, 128, (20, 3, 3, 20)).astype(np.int8)
    y = graph.conv2d(graph.maximum(x, old), graph.constant(weights, 0.005), None, 0.05)
    graph.set(state, y)
    model = graph.finish([x], [y])

    def twice() -> list[bytes]:
        # Beside memory that another partition has, so that it is elsewhere each time.
        with Runtime(Core.create(Config.default(), 1 << 22)) as runtime:
            found, delegate = [], VtaDelegate(runtime)
            models = [Model(model, delegate=delegate) for _ in range(2)]
            for one in models * 2:
                output = bytearray(1 << 12)
                one(data().tobytes(), memoryview(output))
                found.append(bytes(output))
            del models, one
            return found

    first, same, second, again = twice()
    assert first == same != second == again
    assert first[: data().nbytes] == reference(model, [data()])
    assert len(list((own_cache / partition_cache.MODELS.kind).iterdir())) == 1
    monkeypatch.setattr(Convolution, "emit", None)
    assert twice() == [first, same, second, again]


def chain_with_moves() -> bytes:
    """As `chain`, with nodes that only permute, rename or repeat values."""
    random = np.random.default_rng(3)
    graph = GraphBuilder()
    x = graph.tensor(SHAPE, 0.05, -7)
    w = graph.constant(random.integers(-127, 128, (20, 3, 3, 20)).astype(np.int8), 0.005)
    y = graph.conv2d(x, w, None, 0.05, 3, padding=Padding.SAME)
    y = graph.transpose(y, (0, 3, 1, 2))
    y = graph.reshape(y, (1, 81, 1, 20))
    y = graph.add(y, graph.constant(random.integers(-9, 9, 20).astype(np.int8), 0.05), 0.07, 1)
    return graph.finish([x], [y])


@pytest.mark.parametrize("model", [chain(), chain_with_moves()], ids=["chain", "moves"])
def test_a_model_that_is_known_is_neither_validated_nor_requantised(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, model: bytes
) -> None:
    expected = run(model, data())
    assert expected == reference(model, [data()])
    monkeypatch.setattr(tflite_runtime, "validate", None)
    monkeypatch.setattr(tflite_delegate, "lower", None)
    monkeypatch.setattr(convolution, "requantize", None)
    monkeypatch.setattr(addition, "requantize", None)
    monkeypatch.setattr(lines, "fit", None)
    assert run(model, data()) == expected


def test_what_is_collected_is_the_same_where_another_process_has_kept_it_meanwhile(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = chain()
    first = partition_cache.collected(lambda: run(model, data()))
    assert first and not (own_cache / partition_cache.MODELS.kind).exists()
    expected = run(model, data())
    assert partition_cache.collected(lambda: run(model, data())) == first
    # As a worker that may read no file.
    monkeypatch.setattr(partition_cache.MODELS, "load", lambda _: None)
    monkeypatch.setattr(Convolution, "emit", None)
    partition_cache.lend(record_name(model), first)
    assert run(model, data()) == expected


def test_what_is_known_of_a_model_is_not_used_for_another_interpreter(own_cache: Path) -> None:
    """Whose graph has the same shapes, and other weights."""
    with Runtime(Core.create(Config.default(), 1 << 22)) as runtime:
        delegate = VtaDelegate(runtime)
        run(chain(), data())
        Model(chain(), delegate=delegate)
        with pytest.raises(OSError), delegate.recalled(chain()):
            raise OSError
        interpreter = Interpreter(model_content=chain(seed=1), experimental_delegates=[delegate])
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], data())
        interpreter.invoke()
        (output,) = interpreter.get_output_details()
        found = interpreter.get_tensor(output["index"])
        assert found.tobytes() == reference(chain(seed=1), [data()])
        del interpreter


def test_another_rounding_or_core_is_another_partition(own_cache: Path) -> None:
    model = chain()
    for config in (Config.default(), Config.from_mapping({"LOG_ACC_BUFF_SIZE": 16})):
        with Runtime(Core.create(config, 1 << 22)) as runtime:
            Model(model, delegate=VtaDelegate(runtime))
    assert len(list((own_cache / partition_cache.MODELS.kind).iterdir())) == 2


@pytest.mark.parametrize("room", [1, 4096, 70_000])
def test_kept_instructions_are_relocated(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Nothing is compiled again where buffers are at other addresses."""
    model = chain()
    run(model, data())
    monkeypatch.setattr(Convolution, "emit", None)
    with Runtime(Core.create(Config.default(), 1 << 22)) as runtime:
        taken = runtime.alloc(room)
        taken.view[:] = b"\xa5" * room
        loaded = Model(model, delegate=VtaDelegate(runtime))
        for seed in range(2):
            output = bytearray(980)
            length = loaded(data(seed).tobytes(), memoryview(output))
            assert bytes(output[:length]) == reference(model, [data(seed)])
        assert bytes(taken.view) == b"\xa5" * room


def test_kept_instructions_work_where_other_memory_is_free(own_cache: Path) -> None:
    model = chain()
    expected = run(model, data())
    with Runtime(Core.create(Config.default(), 1 << 22)) as runtime:
        delegate = VtaDelegate(runtime)
        first = Model(chain(seed=1), delegate=delegate)
        second = Model(model, delegate=delegate)
        for loaded, its in ((first, chain(seed=1)), (second, model)):
            output = bytearray(980)
            length = loaded(data().tobytes(), memoryview(output))
            assert bytes(output[:length]) == reference(its, [data()])
        assert reference(model, [data()]) == expected


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, None])
def test_a_damaged_file_is_as_good_as_none(own_cache: Path, damage: bytes | None) -> None:
    model = chain()
    expected = run(model, data())
    (file,) = (own_cache / partition_cache.MODELS.kind).iterdir()
    file.write_bytes(file.read_bytes()[:-1] if damage is None else damage)
    assert run(model, data()) == expected


def test_kept_instructions_are_relocated_where_only_a_tensor_has_moved(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = chain()
    with Runtime(Core.create(Config.default(), 1 << 22)) as runtime:
        delegate = VtaDelegate(runtime)

        def places() -> list[tuple[int, int]]:
            ((_, partition),) = delegate._session.partitions.values()
            return [(buffer.physical, buffer.size) for buffer in partition.builder.buffers]

        loaded = Model(model, delegate=delegate)
        ((_, size), *_) = places()
        del loaded
        room = runtime.alloc(size)
        loaded = Model(model, delegate=delegate)
        before = places()
        del loaded
        # The first tensor has to go to where `room` was, and all the rest is free.
        assert runtime.alloc(size).physical == before[0][0]
        room.free()
        monkeypatch.setattr(Convolution, "emit", None)
        loaded = Model(model, delegate=delegate)
        assert places()[0] != before[0] and sorted(places()[1:]) == sorted(before[1:])
        output = bytearray(980)
        length = loaded(data().tobytes(), memoryview(output))
        assert bytes(output[:length]) == reference(model, [data()])


NONE: dict[str, Any] = {"streams": [], "tensors": [], "pieces": [], "layouts": [None] * 3}
NUMBERS = [[0, 0, 0, 0], [0, 0, 0, 0], None]
HEADS: dict[str, object] = {
    "no object": [],
    "no streams": {"tensors": [], "pieces": [], "layouts": [None] * 3},
    "a stream without numbers": {**NONE, "streams": [["a", [1]]]},
    "a count below zero": {**NONE, "streams": [[0, [-1]]]},
    "more than there is": {**NONE, "streams": [[1 << 70, [1]]]},
    "half an instruction": {**NONE, "streams": [[8, [0]]]},
    "more jobs' instructions than there are": {**NONE, "streams": [[16, [9]]]},
    "a buffer of no bytes": {**NONE, "pieces": [[4096, 0]]},
    "a layout of no numbers": {**NONE, "layouts": [[[["a"] * 3], [NUMBERS], True]] * 3},
    "layouts of too few numbers": {**NONE, "layouts": [[[[[0], [0], None]], [NUMBERS], True]] * 3},
    "other streams": {**NONE, "streams": [[16, [0]]] * 3},
    "other layouts": {**NONE, "layouts": [[[NUMBERS, None, None], [NUMBERS], True]] * 3},
    "layouts of other inputs": {**NONE, "layouts": [[[NUMBERS], [NUMBERS], True]] * 3},
    "layouts that do not say whether they multiply": {
        **NONE,
        "layouts": [[[NUMBERS], [NUMBERS], 1]] * 3,
    },
    "layouts of other nodes": {**NONE, "layouts": []},
    "nothing": NONE,
}
READABLE = {name for name in HEADS if "other" in name or name == "nothing"}


BEHIND = {
    "half an instruction": 8,
    "more jobs' instructions than there are": 16,
    "other streams": 48,
}
"""Bytes behind the head, where there are as many as it says."""


@pytest.mark.parametrize("head", [*HEADS, "nesting", "no length", "no JSON"])
def test_a_partition_that_was_never_kept_is_as_good_as_none(own_cache: Path, head: str) -> None:
    """Under the right digest: only whoever runs Potash can have put it there."""
    model = chain()
    expected = run(model, data())
    (file,) = (own_cache / partition_cache.MODELS.kind).iterdir()
    name = record_name(model)
    assert name == file.stem
    text = {"nesting": b"[" * 100_000, "no JSON": b"{", "no length": b" "}.get(head)
    text = text or json.dumps(HEADS[head]).encode()
    contents = len(text).to_bytes(8, "little") + text + bytes(BEHIND.get(head, 0))
    record = Record(name)
    (partition,) = [one for one in record._parts if record.compiled(one) is not None]
    record._parts[partition] = b"" if head == "no length" else contents
    record._new_code = partition_cache.LEAST
    record.store()
    assert (Record(name).compiled(partition) is not None) == (head in READABLE)
    assert run(model, data()) == expected
    # And it has been mended.
    assert Record(name).compiled(partition) not in (None, record.compiled(partition))


@pytest.mark.parametrize(
    "contents",
    [b"", b"\1", bytes(8), b"\2" + bytes(7) + b"[]more", b"\x0a" + bytes(7) + b'[["a", 9]]'],
)
def test_a_record_that_was_never_kept_is_as_good_as_none(own_cache: Path, contents: bytes) -> None:
    expected = run(chain(), data())
    name = record_name(chain())
    partition_cache.MODELS.keep(name, contents)
    assert not Record(name).known
    assert run(chain(), data()) == expected
    assert Record(name).known


@pytest.mark.parametrize("reasons", [b"", b"[]", b"{", b"[[0]]", b'[["a", null]]', b"[[0, 1]]"])
def test_decisions_that_were_never_kept_are_as_good_as_none(
    own_cache: Path, reasons: bytes
) -> None:
    expected = run(chain(), data())
    record = Record(record_name(chain()))
    (graph,) = [one for one in record._parts if record.reasons(one)]
    record._parts[graph] = reasons
    record._new_code = partition_cache.LEAST
    record.store()
    assert run(chain(), data()) == expected


def record_name(model: bytes) -> str:
    return partition_cache.name_of_model(model, Settings(Config.default()))


def test_what_raises_while_it_is_placed_or_compiled_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    calls = 0

    def lowered(node: Node, settings: Settings) -> Lowering | Refusal:
        found = lower(node, settings)
        assert isinstance(found, Lowering)
        return Lowering(lambda given: fails(found, given))

    def fails(found: Lowering, given: Layouts) -> Placement:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError("the second one")
        return found.place(given)

    def emits(*_: object, **__: object) -> None:
        raise OSError("no instructions")

    with Runtime(Core.create(Config.default(), 1 << 22)) as runtime:
        delegate = VtaDelegate(runtime)
        before = free(runtime)
        with monkeypatch.context() as patch:
            patch.setattr(tflite_delegate, "lower", lowered)
            with pytest.raises(OSError, match="the second one"):
                Model(chain(), delegate=delegate)
        with monkeypatch.context() as patch:
            patch.setattr(Convolution, "emit", emits)
            with pytest.raises(OSError, match="no instructions"):
                Model(chain(), delegate=delegate)
        assert free(runtime) == before and delegate.partitions == 0
        output = bytearray(980)
        length = Model(chain(), delegate=delegate)(data().tobytes(), memoryview(output))
        assert bytes(output[:length]) == reference(chain(), [data()])


def images(layers: int) -> bytes:
    """Convolutions of padded images one behind the other, and the sum of the first and the last."""
    random = np.random.default_rng(layers)
    graph = GraphBuilder()
    x = y = graph.tensor((1, 30, 30, 16), 0.05, -7)
    outputs = []
    for number in range(layers):
        w = graph.constant(random.integers(-9, 10, (16, 3, 3, 16)).astype(np.int8), 0.02)
        y = graph.conv2d(y, w, None, 0.05, number - 5, padding=Padding.SAME)
        outputs.append(y)
    return graph.finish([x], [graph.add(outputs[0], y, 0.06, 3)])


def test_more_tensors_than_the_memory_holds_are_one_stream(own_cache: Path) -> None:
    # Each of twelve takes 16 KiB, and of those three are needed at once.
    model = images(11)
    for seed in range(2):
        values = np.random.default_rng(seed).integers(-128, 128, (1, 30, 30, 16), np.int8)
        # The second time from what was kept.
        with Runtime(Core.create(Config.default(), 1 << 17)) as runtime:
            delegate = VtaDelegate(runtime)
            loaded = Model(model, delegate=delegate)
            assert all(one.claimed for one in delegate.decisions[0]) and len(delegate.streams) == 1
            for _ in range(2):
                output = bytearray(values.size)
                loaded(values.tobytes(), memoryview(output))
                assert output == reference(model, [values])
            del loaded


def test_what_was_tried_and_had_no_room_is_gone_at_once() -> None:
    gc.disable()
    try:
        with Runtime(Core.create(Config.default(), 1 << 15)) as runtime:
            delegate = VtaDelegate(runtime)
            before = free(runtime)
            loaded = Model(chain(6), delegate=delegate)
            assert delegate.partitions == 1
            del loaded
            assert delegate.partitions == 0 and free(runtime) == before
    finally:
        gc.enable()


def free(runtime: Runtime) -> list[tuple[int, int]]:
    """The free pieces of a runtime's memory."""
    return list(runtime._heap._spans._free)


@pytest.mark.parametrize("log_bytes", [13, 15, 16])
def test_what_has_no_room_stays_on_the_cpu(log_bytes: int) -> None:
    model = chain(6)
    with bench(dram_bytes=1 << log_bytes) as vta:
        reports = inspect(model, vta.delegate)
        assert vta.infer(model, [data()], 1 << 12) == reference(model, [data()])
    claimed = [report.claimed for report in reports]
    assert not all(claimed)
    assert any(claimed) == (log_bytes > 13)
    assert {report.reason for report in reports if not report.claimed} == {
        "the VTA's memory has no room for it"
    }


def test_memory_is_given_back_with_the_model() -> None:
    with Runtime(Core.create(Config.default(), 1 << 18)) as runtime:
        delegate = VtaDelegate(runtime)
        for seed in range(6):
            loaded = Model(chain(3, seed), delegate=delegate)
            assert {decision.reason for decision in delegate.decisions[0]} == {None}
            del loaded

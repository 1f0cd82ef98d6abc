"""Partitions: planned once, kept on disk, as large as the accelerator's memory lets them be."""

from pathlib import Path

import numpy as np
import pytest

from potash.models.builder import GraphBuilder, Padding
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_firmware import cache
from potash_firmware.tflite import kept
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.runtime import Model, inspect
from potash_firmware.vta_runtime import Runtime
from potash_firmware.vta_runtime.schedules import Convolution
from support.tflite import Int8, bench, reference

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
    assert len(list((own_cache / kept.FOLDER).iterdir())) == 1
    monkeypatch.setattr(Convolution, "emit", None)
    assert run(model, data()) == expected
    with pytest.raises(TypeError):
        # Another model was not.
        run(chain(seed=1), data())


def test_another_rounding_or_core_is_another_partition(own_cache: Path) -> None:
    model = chain()
    for config in (Config.default(), Config.from_mapping({"LOG_ACC_BUFF_SIZE": 16})):
        with Runtime(Core.create(config, 1 << 22)) as runtime:
            Model(model, delegate=VtaDelegate(runtime))
    assert len(list((own_cache / kept.FOLDER).iterdir())) == 2


def test_kept_instructions_are_made_again_where_other_memory_is_free(own_cache: Path) -> None:
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
    (file,) = (own_cache / kept.FOLDER).iterdir()
    file.write_bytes(file.read_bytes()[:-1] if damage is None else damage)
    assert run(model, data()) == expected


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

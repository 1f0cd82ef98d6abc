"""Models that stay loaded in a worker: once loaded, bounded, and nothing else than loaded anew."""

from collections.abc import Iterator

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from csd_spec.program import Processor
from potash_firmware.apu import models as apu_models
from potash_firmware.apu.models import Models
from potash_firmware.tflite import runtime
from potash_firmware.tflite.validation import ModelError
from potash_firmware.tflite.variables.accesses import keeps_state
from potash_firmware.tflite.writer import ModelBuilder
from support.graph_builder import GraphBuilder
from support.tflite import reference

SHAPE = (1, 8, 8, 16)


def convolution(seed: int = 0, channels: int = 16) -> bytes:
    random = np.random.default_rng(seed)
    graph = GraphBuilder()
    x = graph.tensor(SHAPE, 0.05, -7)
    weights = random.integers(-127, 128, (channels, 3, 3, 16)).astype(np.int8)
    return graph.finish([x], [graph.conv2d(x, graph.constant(weights, 0.005), None, 0.05, seed)])


def data(seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.int8]]:
    return np.random.default_rng(seed).integers(-128, 128, SHAPE, np.int8)


def accumulating(operator: int | None = None) -> bytes:
    """A sum that is added to a variable, or another operator on the same input."""
    builder = ModelBuilder()
    x = builder.tensor("x", (4,), scale=0.1)
    y = builder.tensor("y", (4,), scale=0.1)
    if operator is None:
        state = builder.tensor("state", (4,), scale=0.1, variable=True)
        builder.operator(schema.BuiltinOperator.ADD, [x, state], [y])
    else:
        builder.operator(operator, [x], [y])
    return builder.build([x], [y])


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """The models that were loaded, in order."""
    seen: list[bytes] = []

    class Watched(runtime.Model):
        def __init__(self, model: bytes, **options: object) -> None:
            seen.append(model)
            super().__init__(model, **options)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(runtime, "Model", Watched)
    yield seen


def infer(models: Models, model: bytes, seed: int = 0, on: Processor = Processor.VTA) -> bytes:
    run = models.infer_vta if on is Processor.VTA else models.infer_apu
    output = memoryview(bytearray(1 << 12))
    length = run(memoryview(model), memoryview(data(seed).tobytes()), output)
    return bytes(output[:length])


def test_a_model_that_runs_again_is_not_loaded_again(loads: list[bytes]) -> None:
    models, others = Models({}), [convolution(0), convolution(1)]
    for seed in range(3):
        for model in others:
            assert infer(models, model, seed) == reference(model, [data(seed)])
    assert loads == others
    # The processor rounds differently.
    on_apu = infer(models, others[0], on=Processor.APU)
    assert on_apu == infer(Models({}), others[0], on=Processor.APU)
    assert loads[2:] == [others[0]] * 2


def test_what_a_program_opens_is_its_own(loads: list[bytes]) -> None:
    models, model = Models({}), convolution()
    infer(models, model)
    models.load(memoryview(model), Processor.VTA)
    assert loads == [model] * 2


def test_the_one_used_longest_ago_goes_first(loads: list[bytes]) -> None:
    models = Models({})
    several = [convolution(seed) for seed in range(apu_models.KEPT + 1)]
    for model in (*several[:-1], several[0], several[-1]):
        infer(models, model)
    del loads[:]
    for model in (several[0], several[-1], several[1]):
        infer(models, model)
    assert loads == [several[1]]


def test_models_that_stay_loaded_have_so_many_bytes(
    loads: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    models, first, second = Models({}), convolution(0), convolution(1)
    monkeypatch.setattr(apu_models, "KEPT_BYTES", len(first) + len(second) - 1)
    for model in (first, second, second, first):
        infer(models, model)
    assert loads == [first, second, first]
    monkeypatch.setattr(apu_models, "KEPT_BYTES", len(first) - 1)
    for _ in range(2):
        infer(models, second)
    assert loads[3:] == [second] * 2


def test_they_make_room_for_one_that_needs_it(
    loads: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its nodes would run elsewhere, and round differently."""
    monkeypatch.setattr(apu_models, "DRAM_BYTES", 1 << 17)
    models = Models({})
    several = [convolution(seed, channels=256) for seed in range(3)]
    for model in several:
        output = memoryview(bytearray(1 << 15))
        length = models.infer_vta(memoryview(model), memoryview(data().tobytes()), output)
        assert output[:length] == reference(model, [data()])
        assert all(one.claimed for graph in models._make_delegate().decisions for one in graph)
    assert len(loads) > len(several)


def test_one_that_fails_is_loaded_anew_and_fails_with_its_own_error(loads: list[bytes]) -> None:
    models, model = Models({}), convolution()
    expected = infer(models, model)
    with pytest.raises(ModelError, match="takes 1024 bytes of input, and gets 4"):
        models.infer_vta(memoryview(model), memoryview(bytes(4)), memoryview(bytearray(1 << 12)))
    with pytest.raises(ModelError, match="not a TensorFlow Lite model"):
        infer(models, b"no model")
    assert infer(models, model) == expected


def test_one_that_keeps_something_is_loaded_each_time(loads: list[bytes]) -> None:
    models, model = Models({}), accumulating()
    outputs = set()
    for _ in range(2):
        output = memoryview(bytearray(4))
        models.infer_apu(memoryview(model), memoryview(bytes([1, 2, 3, 4])), output)
        outputs.add(bytes(output))
    assert loads == [model] * 2 and len(outputs) == 1


def test_what_keeps_something() -> None:
    operators = schema.BuiltinOperator
    assert keeps_state(accumulating())
    for operator in (operators.VAR_HANDLE, operators.RANDOM_UNIFORM, operators.CUSTOM):
        assert keeps_state(accumulating(operator))
    for operator in (operators.RELU, operators.SOFTMAX):
        assert not keeps_state(accumulating(operator))

"""Models as bytes: their inputs and outputs, and what is refused before native code sees it."""

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import flatbuffers
import numpy as np
import numpy.typing as npt
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.runtime import Model, ModelError, infer, inspect
from potash_firmware.tflite.validation import model as validation
from potash_firmware.tflite.writer import ModelBuilder, add_model
from support.tflite import bench, litert_only, reference

MODEL = add_model((64,), scales=(0.05, 0.031, 0.07), zero_points=(3, -7, 5))
INPUT = bytes(range(128))


def run(model: bytes, inputs: bytes = INPUT, room: int = 64) -> bytes:
    output = bytearray(b"\xa5" * room)
    length = infer(model, inputs, memoryview(output), delegate=None, reference=True)
    return bytes(output[:length])


def refused(model: bytes, inputs: bytes = INPUT, room: int = 64) -> str:
    """The message of the ModelError, after a look whether the output was left alone."""
    output = bytearray(b"\xa5" * room)
    with pytest.raises(ModelError) as caught:
        infer(model, inputs, memoryview(output), delegate=None, reference=True)
    assert output == b"\xa5" * room
    message = str(caught.value)
    assert message and "\n" not in message
    return message


def test_a_model_runs_without_the_delegate() -> None:
    left, right = np.frombuffer(INPUT, np.int8).reshape(2, 64)
    assert run(MODEL) == reference(MODEL, (left, right))


def test_the_fast_kernels_run_when_the_reference_is_not_asked_for() -> None:
    output = bytearray(64)
    assert infer(MODEL, INPUT, memoryview(output), delegate=None) == 64
    fast, exact = np.frombuffer(output, np.int8), np.frombuffer(run(MODEL), np.int8)
    assert np.abs(fast.astype(int) - exact).max() <= 1


def sums(beside: str = "") -> bytes:
    """SUM of int8, of which the reference kernel has a result of its own, and an operator that has
    no reference kernel."""
    builder = ModelBuilder()
    x = builder.tensor("x", (1, 4, 8), scale=0.1, zero_point=3)
    axis = builder.tensor("axis", (1,), np.int32, data=np.array([1], np.int32))
    y = builder.tensor("y", (1, 8), scale=0.1, zero_point=3)
    options = schema.ReducerOptionsT()
    kind = schema.BuiltinOptions.ReducerOptions
    code = schema.BuiltinOperator.SUM
    builder.operator(code, [x, axis], [y], options_type=kind, options=options, version=2)
    if not beside:
        return builder.build([x], [y])
    if beside == "HASHTABLE":
        table, z = (builder.tensor(name, (1,), np.int32) for name in ("table", "z"))
        builder._graph.tensors[table].type = schema.TensorType.RESOURCE
        builder._graph.tensors[z].type = schema.TensorType.INT64
        its = schema.HashtableOptionsT()
        its.keyDtype, its.valueDtype = schema.TensorType.INT64, schema.TensorType.STRING
        kind = schema.BuiltinOptions.HashtableOptions
        builder.operator(
            schema.BuiltinOperator.HASHTABLE, [], [table], options_type=kind, options=its
        )
        builder.operator(schema.BuiltinOperator.HASHTABLE_SIZE, [table], [z])
        return builder.build([x], [y, z])
    real = builder.tensor("real", (4,), np.float32)
    more = []
    if beside == "SEGMENT_SUM":
        more.append(builder.tensor("ids", (4,), np.int32, data=np.array([0, 0, 1, 1], np.int32)))
    z = builder.tensor("z", (2,) if more else (4,), np.float32)
    builder.operator(getattr(schema.BuiltinOperator, beside), [real, *more], [z])
    return builder.build([x, real], [y, z])


REALS = np.array([-1.5, -0.25, 0.5, 2.75], np.float32)


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ("ELU", np.where(REALS < 0, np.expm1(REALS), REALS)),
        ("CEIL", np.array([-1, 0, 1, 3], np.float32)),
        ("ROUND", np.array([-2, 0, 0, 3], np.float32)),
        ("SEGMENT_SUM", np.array([-1.75, 3.25], np.float32)),
        ("HASHTABLE", np.array([0], np.int64)),
    ],
)
def test_other_kernels_run_only_the_nodes_that_have_no_reference_kernel(
    beside: str, expected: npt.NDArray[np.float32]
) -> None:
    values = np.random.default_rng(0).integers(-20, 20, (1, 4, 8), np.int8)
    model, given = sums(beside), values.tobytes() + REALS.tobytes()
    room, output = 8 + expected.nbytes, bytearray(8)
    found = run(model, given, room)
    assert found[:8] == reference(sums(), (values,))
    np.testing.assert_allclose(np.frombuffer(found[8:], expected.dtype), expected, rtol=1e-5)
    infer(sums(), values.tobytes(), memoryview(output), delegate=None)
    assert output != found[:8]  # the kernel does differ
    names = Model(model, delegate=None, reference=True).without_reference
    assert names == {beside, *(["HASHTABLE_SIZE"] if beside == "HASHTABLE" else [])}
    with bench() as vta:
        assert len(inspect(model, vta.delegate)) == 3 - (beside != "HASHTABLE")
        assert run_on(vta.delegate, model, given, room) == found


def run_on(delegate: VtaDelegate, model: bytes, inputs: bytes, room: int) -> bytes:
    output = bytearray(room)
    infer(model, inputs, memoryview(output), delegate=delegate, reference=True)
    return bytes(output)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_hold_model_and_input(kind: type) -> None:
    assert run(kind(MODEL), kind(INPUT)) == run(MODEL)


def several() -> bytes:
    """Two inputs and two outputs of different sizes, named in another order than they are made."""
    builder = ModelBuilder()
    small, large, small_out, large_out = (
        builder.tensor(name, (size,), scale=0.5)
        for name, size in (("small", 3), ("large", 5), ("small_out", 3), ("large_out", 5))
    )
    builder.operator(schema.BuiltinOperator.RELU, (small,), (small_out,))
    builder.add(large, large, large_out)
    return builder.build((large, small), (large_out, small_out))


def test_inputs_and_outputs_follow_the_models_order() -> None:
    inputs = np.array([1, 2, 3, -4, 70, 8, -9, 10], np.int8).tobytes()
    expected = np.array([2, 4, 6, -8, 127, 8, 0, 10], np.int8).tobytes()
    with bench() as vta:
        output = bytearray(100)
        length = infer(several(), inputs, memoryview(output), delegate=vta.delegate, reference=True)
        assert output[:length] == expected
        assert not any(output[length:])


def test_input_filled_up_to_a_block_is_taken() -> None:
    assert run(MODEL, INPUT + bytes(4096 - len(INPUT))) == run(MODEL)


def test_input_that_is_too_short_is_refused() -> None:
    assert refused(MODEL, INPUT[:-1]) == "the model takes 128 bytes of input, and gets 127"


def test_output_that_is_too_small_is_refused() -> None:
    assert refused(MODEL, room=63) == (
        "the model gives 64 bytes of output, and there is room for 63"
    )


@pytest.mark.parametrize("model", [b"", b"TFL3", bytes(64), b"\x7fELF" + bytes(100), MODEL[4:]])
def test_what_is_not_a_model_is_refused(model: bytes) -> None:
    assert refused(model) == "this is not a TensorFlow Lite model"


def test_every_truncated_model_is_refused() -> None:
    for length in range(0, len(MODEL), 8):
        refused(MODEL[:length])


def with_scales(*scales: float) -> bytes:
    return add_model((64,), scales=(scales[0], scales[1], scales[2]))


@pytest.mark.parametrize(
    "model",
    [
        with_scales(0.0, 0.0, 0.1),
        with_scales(0.1, 0.1, 0.0),
        with_scales(0.1, float("nan"), 0.1),
        with_scales(0.1, float("inf"), 0.1),
        with_scales(-0.1, 0.1, 0.1),
        with_scales(3e38, 3e38, 3e38),
        # The sum would have to be scaled up.
        with_scales(1.0, 1.0, 1e-7),
    ],
)
def test_scales_on_which_tensorflow_lite_aborts_are_refused(model: bytes) -> None:
    refused(model)


def test_an_addition_into_another_type_is_scaled_as_its_inputs_are() -> None:
    builder = ModelBuilder()
    a, b = (builder.tensor(name, (64,), scale=0.1) for name in "ab")
    total = builder.tensor("total", (64,), np.float32)
    builder.add(a, b, total)
    assert refused(builder.build((a, b), (total,)), room=256).startswith(
        "operator 0 (ADD) cannot be scaled"
    )


def test_a_zero_point_outside_its_type_is_refused() -> None:
    model = add_model((64,), scales=(0.1, 0.1, 0.1), zero_points=(0, 128, 0))
    assert refused(model) == "tensor 'right' has a zero point that its type cannot hold"


def graph(shape: tuple[int, ...], inputs: tuple[int, ...], outputs: tuple[int, ...]) -> bytes:
    builder = ModelBuilder()
    for name in ("a", "b"):
        builder.tensor(name, shape, scale=0.1)
    builder.operator(schema.BuiltinOperator.RELU, inputs, outputs)
    return builder.build((0,), (1,))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (graph((4,), (7,), (1,)), "the model names tensor 7 of 2"),
        (graph((4,), (0,), (-2,)), "the model names tensor -2 of 2"),
        (graph((-4,), (0,), (1,)), "tensor 'a' has the shape [-4]"),
        (graph((1,) * 40, (0,), (1,)), "tensor 'a' has 40 dimensions"),
        (graph((1 << 30, 4), (0,), (1,)), "the model's tensors take more than 1073741824 bytes"),
        (ModelBuilder().build((0,), ()), "the model names tensor 0 of 0"),
    ],
    ids=["input", "output", "negative", "rank", "size", "graph input"],
)
def test_a_graph_that_contradicts_itself_is_refused(model: bytes, message: str) -> None:
    assert refused(model) == message


def constant_model(inputs: tuple[int, ...], outputs: tuple[int, ...]) -> bytes:
    builder = ModelBuilder()
    builder.tensor("a", (4,), scale=0.1)
    builder.tensor("constant", (4,), scale=0.1, data=[1, 2, 3, 4])
    builder.operator(schema.BuiltinOperator.RELU, inputs, outputs)
    return builder.build(inputs, outputs)


@pytest.mark.parametrize("model", [constant_model((0,), (1,)), constant_model((1,), (0,))])
def test_a_model_that_writes_to_a_constant_is_refused(model: bytes) -> None:
    before = bytearray(model)
    assert refused(model) == "the model writes to tensor 'constant', a constant"
    assert model == before


def test_additions_that_wait_for_each_other_are_refused() -> None:
    builder = ModelBuilder()
    x, a, b = (builder.tensor(name, (4,), scale=0.1) for name in "xab")
    builder.add(x, b, a)
    builder.add(x, a, b)
    model = builder.build((x,), (b,))
    with bench() as vta, pytest.raises(ModelError, match="reads tensor 'b' before"):
        vta.infer(model, (np.zeros(4, np.int8),), 4)


def test_text_is_refused() -> None:
    builder = ModelBuilder()
    tensor = builder.tensor("words", (4,))
    model = bytearray(builder.build((tensor,), (tensor,)))
    table = schema.Model.GetRootAs(model, 0).Subgraphs(0).Tensors(0)._tab
    type_field = 6
    model[table.Pos + table.Offset(type_field)] = schema.TensorType.STRING
    assert refused(bytes(model)) == "the input 'words' is text, which has no fixed size"


# In a process of its own: what gets through to an abort ends that one.
CORRUPTIONS = """
import random
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.runtime import Model, ModelError, infer
from potash_firmware.tflite.writer import add_model
from potash_firmware.vta_runtime import Runtime

model = add_model((64,), scales=(0.05, 0.031, 0.07), zero_points=(3, -7, 5))
delegate = VtaDelegate(Runtime(Core.create(Config.default(), 1 << 20)))
draw = random.Random(20)
ran = refused = 0
for _ in range(200):
    damaged = bytearray(model)
    for _ in range(draw.choice((1, 1, 2, 4))):
        damaged[draw.randrange(len(model))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
    try:
        infer(damaged, bytes(128), memoryview(bytearray(64)), delegate=delegate, reference=True)
        ran += 1
    except ModelError:
        refused += 1
assert ran and refused, (ran, refused)
"""


@litert_only
def test_damaged_models_are_refused_and_end_no_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CORRUPTIONS], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]


def repeating_model(name: str, tensor_count: int, graph_count: int) -> bytes:
    """A model that names one tensor, and one graph with all of them, many times over."""
    builder = flatbuffers.Builder(1024)

    def repeated(start: Callable[[flatbuffers.Builder, int], int], table: int, count: int) -> int:
        start(builder, count)
        for _ in range(count):
            builder.PrependUOffsetTRelative(table)
        return int(builder.EndVector())

    tensor = schema.TensorT()
    tensor.name = name
    tensors = repeated(schema.SubGraphStartTensorsVector, tensor.Pack(builder), tensor_count)
    schema.SubGraphStart(builder)
    schema.SubGraphAddTensors(builder, tensors)
    graph = schema.SubGraphEnd(builder)
    graphs = repeated(schema.ModelStartSubgraphsVector, graph, graph_count)
    buffers = repeated(schema.ModelStartBuffersVector, schema.BufferT().Pack(builder), 1)
    schema.ModelStart(builder)
    schema.ModelAddVersion(builder, 3)
    schema.ModelAddSubgraphs(builder, graphs)
    schema.ModelAddBuffers(builder, buffers)
    builder.Finish(schema.ModelEnd(builder), b"TFL3")
    return bytes(builder.Output())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (repeating_model("x", 100, 1000), "the model has too many tensors"),
        (repeating_model("x" * (1 << 16), 200, 1), "the model has too long names"),
    ],
    ids=["tables", "names"],
)
def test_a_small_model_that_is_long_to_read_is_refused(
    model: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With limits of a sixteenth, up to which it takes a second and more."""
    monkeypatch.setattr(validation, "TABLE_LIMIT", validation.TABLE_LIMIT >> 4)
    monkeypatch.setattr(validation, "BYTE_LIMIT", validation.BYTE_LIMIT >> 4)
    assert len(model) < 100_000
    assert refused(model) == message


def test_the_committed_example_is_what_its_script_makes() -> None:
    folder = Path(__file__).parents[2] / "examples" / "add"
    made = runpy.run_path(str(folder / "make_input.py"))["make"]()
    assert {name: (folder / name).read_bytes() for name in made} == made


def test_the_example_comes_out_of_the_vta_as_expected() -> None:
    folder = Path(__file__).parents[2] / "examples" / "add"
    data, expected = (folder / "input.bin").read_bytes(), (folder / "expected.bin").read_bytes()
    length = len(data) - 2 * len(expected)
    output = bytearray(len(expected))
    with bench() as vta:
        infer(data[:length], data[length:], memoryview(output), delegate=vta.delegate)
        assert vta.delegate.nodes_run == 1
    assert output == expected


def vectors(seed: int) -> tuple[bytes, bytes, bytes]:
    """The input of MODEL, and of one that adds 16 values, and what comes of the first."""
    data = np.random.default_rng(seed).integers(-128, 128, (2, 64), np.int8)
    return data.tobytes(), data[:, :16].tobytes(), reference(MODEL, (data[0], data[1]))


def ran(model: Model, inputs: bytes) -> bytes:
    output = bytearray(64)
    return bytes(output[: model(inputs, memoryview(output))])


def test_a_model_is_loaded_once_and_run_on_many_inputs() -> None:
    with bench() as vta:
        model = Model(MODEL, delegate=vta.delegate, reference=True)
        for seed in range(20):
            inputs, _, expected = vectors(seed)
            assert ran(model, inputs) == expected
        assert vta.delegate.nodes_run == 20


def test_models_that_share_a_delegate_take_turns() -> None:
    other = add_model((16,), scales=(0.5, 0.25, 1.0))
    with bench() as vta:
        first, second = (Model(data, delegate=vta.delegate) for data in (MODEL, other))
        for seed in range(5):
            inputs, small, expected = vectors(seed)
            left, right = np.frombuffer(small, np.int8).reshape(2, 16)
            assert ran(first, inputs) == expected
            assert ran(second, small) == reference(other, (left, right))
            with pytest.raises(ModelError):
                Model(b"no model", delegate=vta.delegate)
            with pytest.raises(ModelError):
                first(inputs[:-1], memoryview(bytearray(64)))
        assert vta.delegate.partitions == 2
        del second
        assert vta.delegate.partitions == 1
        assert ran(first, inputs) == expected


def test_a_model_whose_stream_failed_runs_again() -> None:
    inputs, _, expected = vectors(1)
    with bench() as vta:
        model = Model(MODEL, delegate=vta.delegate)
        whole, vta.core.execute = vta.core.execute, fails  # type: ignore[method-assign]  # as one that the hardware refuses
        with pytest.raises(ArithmeticError):
            model(inputs, memoryview(bytearray(64)))
        vta.core.execute = whole  # type: ignore[method-assign]  # and back
        assert ran(model, inputs) == expected


def fails(stream: bytes) -> None:
    raise ArithmeticError


def test_an_openings_failure_leaves_room_for_the_next() -> None:
    for _ in range(50):
        with pytest.raises(ModelError):
            Model(MODEL[:-8], delegate=None)
    assert ran(Model(MODEL, delegate=None), INPUT)

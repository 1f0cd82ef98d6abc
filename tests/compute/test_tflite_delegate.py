"""What the delegate claims, what it leaves and why, and that nothing is lost or kept behind it."""

import ctypes
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash_device import cache
from potash_device.vta.config import Config
from potash_device.vta.stream import StreamError
from potash_firmware.tflite import delegate, operators
from potash_firmware.tflite.capi import Array, BuiltinOperator, Node
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.interpreter import Interpreter, OpResolverType
from potash_firmware.tflite.lowering import Lowering, Refusal, Settings
from potash_firmware.tflite.operators import addition as adder
from potash_firmware.tflite.partition import Partition
from potash_firmware.tflite.runtime import ModelError, inspect
from potash_firmware.tflite.writer import FusedActivation, ModelBuilder, add_model
from support.graph_builder import GraphBuilder
from support.tflite import Bench, bench, nothing_kept, reference

__all__ = ["nothing_kept"]

SCALES = (0.05, 0.031, 0.07)
LEFT = np.arange(-128, 128, dtype=np.int8)
RIGHT = LEFT[::-1].copy()


def simple_model() -> bytes:
    return add_model((256,), scales=SCALES, zero_points=(3, -7, 5))


def chain(middle: int | None) -> bytes:
    """x + y, then an operator that the VTA has not (or none), then + y again."""
    builder = ModelBuilder()
    x = builder.tensor("x", (256,), scale=0.05, zero_point=3)
    y = builder.tensor("y", (256,), scale=0.031, zero_point=-7)
    first = builder.tensor("first", (256,), scale=0.07, zero_point=5)
    last = builder.tensor("last", (256,), scale=0.09, zero_point=1)
    builder.add(x, y, first)
    if middle is not None:
        changed = builder.tensor("changed", (256,), scale=0.07, zero_point=5)
        builder.operator(middle, (first,), (changed,))
        first = changed
    builder.add(first, y, last)
    return builder.build((x, y), (last,))


def test_an_addition_is_claimed_and_runs_as_vta_instructions() -> None:
    with bench() as vta:
        result = vta.infer(simple_model(), (LEFT, RIGHT), 256)
        assert result == reference(simple_model(), (LEFT, RIGHT))
        (node,) = inspect(simple_model(), vta.delegate)
        assert (node.graph, node.node, node.operator) == (0, 0, "ADD")
        assert node.claimed and node.reason is None
        assert vta.delegate.nodes_run == 1
        assert vta.counts["Alu"] >= 2 * 6
        assert vta.counts["Finish"] == 1


def test_adjacent_nodes_become_one_partition_with_the_tensor_between_them_inside() -> None:
    partitions = []

    with bench() as vta:
        vta.core.observer = lambda *_: partitions.append(vta.delegate.partitions)
        assert vta.infer(chain(None), (LEFT, RIGHT), 256) == reference(chain(None), (LEFT, RIGHT))
        assert vta.delegate.nodes_run == 2
        assert set(partitions) == {1}
        assert vta.delegate.partitions == 0


def test_an_operator_without_a_kernel_runs_on_tensorflow_lite_between_two_partitions() -> None:
    model = chain(schema.BuiltinOperator.ABS)
    with bench() as vta:
        assert vta.infer(model, (LEFT, RIGHT), 256) == reference(model, (LEFT, RIGHT))
        assert vta.delegate.nodes_run == 2
        reports = inspect(model, vta.delegate)
    assert [(report.operator, report.claimed) for report in reports] == [
        ("ADD", True),
        ("ABS", False),
        ("ADD", True),
    ]
    assert reports[1].reason == "the VTA has no kernel for this operator"


def addition(
    shapes: Sequence[Sequence[int]] = ((4,), (4,), (4,)),
    dtype: type[np.generic] = np.int8,
    activation: FusedActivation = FusedActivation.NONE,
    scales: Sequence[float | Sequence[float] | None] = SCALES,
) -> bytes:
    builder = ModelBuilder()
    tensors = [
        builder.tensor(name, shape, dtype, scale=scale)
        for name, shape, scale in zip(("a", "b", "sum"), shapes, scales, strict=True)
    ]
    builder.add(tensors[0], tensors[1], tensors[2], activation)
    return builder.build(tensors[:2], tensors[2:])


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (addition(dtype=np.float32, scales=(None, None, None)), "tensor 'a' is not int8"),
        (addition(dtype=np.int32, scales=(None, None, None)), "tensor 'a' is not int8"),
        (addition(dtype=np.uint8), "tensor 'a' is not int8"),
        (addition(activation=FusedActivation.TANH), "the fused activation 4 is not a clamp"),
    ],
    ids=["float32", "int32", "uint8", "tanh"],
)
def test_what_the_vta_does_not_do_is_left_with_a_reason(model: bytes, reason: str) -> None:
    with bench() as vta:
        (report,) = inspect(model, vta.delegate)
        assert not report.claimed
        assert report.reason == reason


def test_a_left_addition_still_runs() -> None:
    model = addition(dtype=np.float32, scales=(None, None, None))
    inputs = (np.arange(4, dtype=np.float32), np.arange(4, dtype=np.float32))
    with bench() as vta:
        assert vta.infer(model, inputs, 16) == reference(model, inputs)
        assert vta.delegate.nodes_run == 0
        assert vta.executed == []


def test_a_core_that_cannot_add_is_not_asked_to() -> None:
    with bench(Config(log_acc_buff_size=8)) as vta:
        (report,) = inspect(simple_model(), vta.delegate)
        assert report.reason == "the VTA's accumulator memory is too small"
        assert vta.infer(simple_model(), (LEFT, RIGHT), 256) == reference(
            simple_model(), (LEFT, RIGHT)
        )


def test_one_delegate_serves_one_model_after_another() -> None:
    with bench() as vta:
        for model in (simple_model(), chain(None), chain(schema.BuiltinOperator.ABS)):
            assert vta.infer(model, (LEFT, RIGHT), 256) == reference(model, (LEFT, RIGHT))
        assert len(inspect(simple_model(), vta.delegate)) == 1


class Breakdown(BaseException):
    """Not even an Exception: as an interrupt from the keyboard is not."""


def break_kernel(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(self: Partition, array: Callable[[int], Array]) -> None:
        raise error

    monkeypatch.setattr(Partition, "run", run)


@pytest.mark.parametrize("kind", [Breakdown, ZeroDivisionError])
def test_a_kernel_that_fails_surfaces_its_own_exception(
    monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    error = kind("in run")
    with bench() as vta:
        with monkeypatch.context() as patch:
            break_kernel(patch, error)
            with pytest.raises(kind) as caught:
                vta.infer(simple_model(), (LEFT, RIGHT), 256)
            assert caught.value is error
        assert vta.infer(simple_model(), (LEFT, RIGHT), 256) == reference(
            simple_model(), (LEFT, RIGHT)
        )


@pytest.mark.parametrize("phase", ["lower", "place"])
def test_a_failure_while_claiming_surfaces_too(monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    def fail(*_: object) -> Any:
        raise Breakdown(phase)

    lower = fail if phase == "lower" else lambda *_: Lowering(fail)
    monkeypatch.setattr(operators, "OPERATORS", {BuiltinOperator.ADD: lower})
    with bench() as vta, pytest.raises(Breakdown, match=phase):
        vta.infer(simple_model(), (LEFT, RIGHT), 256)


def test_each_node_is_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = []

    def counted(node: Node, settings: Settings) -> Lowering | Refusal:
        lowered.append(node.index)
        return adder.lower(node, settings)

    monkeypatch.setattr(operators, "OPERATORS", {BuiltinOperator.ADD: counted})
    model = chain(schema.BuiltinOperator.ABS)
    with bench() as vta:
        assert vta.infer(model, (LEFT, RIGHT), 256) == reference(model, (LEFT, RIGHT))
        claimed = [
            one.node for (graph,) in [vta.delegate.decisions] for one in graph if not one.reason
        ]
        assert lowered == claimed


def test_what_a_dram_has_no_room_for_runs_on_tensorflow_lite() -> None:
    expected = reference(simple_model(), (LEFT, RIGHT))
    with bench(dram_bytes=1024) as vta:
        assert vta.infer(simple_model(), (LEFT, RIGHT), 256) == expected
        assert vta.delegate.nodes_run == 0


def test_a_core_that_fails_half_way_does_not_spoil_the_next_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # What an earlier run compiled and cached is not compiled.
    monkeypatch.setattr(cache, "folder", lambda of: tmp_path / of)
    with bench() as vta:
        push, calls = vta.runtime._push, []

        def fail_once(kernel: Any) -> int:
            calls.append(kernel)
            if len(calls) == 10:
                raise StreamError(10, "made up")
            return push(kernel)

        monkeypatch.setattr(vta.runtime, "_push", fail_once)
        with pytest.raises(StreamError, match="made up"):
            vta.infer(simple_model(), (LEFT, RIGHT), 256)
        assert vta.executed == []
        assert vta.infer(simple_model(), (LEFT, RIGHT), 256) == reference(
            simple_model(), (LEFT, RIGHT)
        )
        with bench() as fresh:
            fresh.infer(simple_model(), (LEFT, RIGHT), 256)
            assert vta.counts == fresh.counts


def test_a_delegate_lives_and_ends_with_its_interpreter_without_the_collector() -> None:
    with bench() as vta:
        gc.collect()
        gc.disable()
        try:
            short_lived = VtaDelegate(vta.runtime)
            watched = weakref.ref(short_lived)
            interpreter = Interpreter(
                model_content=simple_model(), experimental_delegates=[short_lived]
            )
            interpreter.allocate_tensors()
            del short_lived
            interpreter.invoke()
            alive = watched()
            assert alive is not None
            assert alive.nodes_run == 1
            del alive, interpreter
            assert watched() is None
        finally:
            gc.enable()


class Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2` (mallinfo(3))."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            [
                "arena",
                "ordblks",
                "smblks",
                "hblks",
                "hblkhd",
                "usmblks",
                "fsmblks",
                "uordblks",
                "fordblks",
                "keepcost",
            ]
        )
    )


def allocated() -> int:
    """Bytes of native memory in use; what the process holds beside that, malloc may keep."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


def heavy_model(size: int) -> bytes:
    """An addition for the VTA, and two tensors of `size` bytes beside it."""
    builder = ModelBuilder()
    x = builder.tensor("x", (256,), scale=0.05)
    total = builder.tensor("total", (256,), scale=0.1)
    ballast, changed = (builder.tensor(name, (size,), scale=0.1) for name in ("in", "out"))
    builder.add(x, x, total)
    builder.operator(schema.BuiltinOperator.ABS, (ballast,), (changed,))
    return builder.build((x, ballast), (total, changed))


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="counts memory with glibc's mallinfo2"
)
def test_fifty_runs_leave_nothing_behind() -> None:
    size = 1 << 20
    model = heavy_model(size)
    inputs = (LEFT, np.zeros(size, np.int8))
    kinds = (Bench, VtaDelegate, delegate.Session, Partition, Interpreter)

    def run() -> None:
        with bench() as vta:
            vta.infer(model, inputs, size + 256)
            assert vta.delegate.nodes_run == 1

    for _ in range(5):
        run()
    gc.collect()
    memory = allocated()
    for _ in range(50):
        run()
    gc.collect()
    assert [thing for thing in gc.get_objects() if isinstance(thing, kinds)] == []
    # A leaked interpreter keeps at least its two large tensors.
    assert allocated() - memory < 50 * size // 10


def test_resizing_an_input_decides_and_plans_anew() -> None:
    with bench() as vta:
        interpreter = Interpreter(
            model_content=simple_model(),
            experimental_delegates=[vta.delegate],
            experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        )
        inputs = [details["index"] for details in interpreter.get_input_details()]
        output = interpreter.get_output_details()[0]["index"]
        # The third pair is of a tensor and a number.
        for sizes, runs in (((256, 256), 1), ((40, 40), 2), ((40, 1), 3), ((8, 8), 4)):
            values = LEFT[: sizes[0]], RIGHT[: sizes[1]]
            for index, array in zip(inputs, values, strict=True):
                interpreter.resize_tensor_input(index, array.shape)
            interpreter.allocate_tensors()
            for index, array in zip(inputs, values, strict=True):
                interpreter.set_tensor(index, array)
            interpreter.invoke()
            pairs = [np.broadcast_to(array, (sizes[0],)) for array in values]
            padded = [np.resize(array, 256) for array in pairs]
            expected = reference(simple_model(), padded)[: sizes[0]]
            assert interpreter.get_tensor(output).tobytes() == expected
            assert vta.delegate.nodes_run == runs


def test_importing_the_delegate_loads_no_interpreter() -> None:
    script = """
import sys
import potash_firmware.tflite
import potash_firmware.tflite.delegate
assert not any("interpreter" in name for name in sys.modules if name.startswith("ai_edge"))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


def test_a_model_error_is_a_value_error() -> None:
    assert issubclass(ModelError, ValueError)


def test_what_tensorflow_lite_refuses_is_refused_with_the_delegate_too() -> None:
    """Five channels are no four of a pixel each. A second attempt would hide that, and crash."""
    graph = GraphBuilder()
    x = graph.tensor((1, 2, 2, 5), 0.1)
    options = schema.DepthToSpaceOptionsT()
    options.blockSize = 2
    output = graph.tensor((1, 4, 4, 1), 0.1)
    y = graph.operator(schema.BuiltinOperator.DEPTH_TO_SPACE, [x], output, options)
    with bench() as vta, pytest.raises(ModelError, match="depth_to_space.*failed to prepare"):
        inspect(graph.finish([x], [y]), vta.delegate)

"""Networks that keep state on the VTA: every call gives what TensorFlow Lite's reference kernels
give, whatever is read and set in which order."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_firmware.tflite.delegate import NO_ROOM, VtaDelegate
from potash_firmware.tflite.interpreter import Interpreter, OpResolverType
from potash_firmware.tflite.runtime import Model, ModelError, inspect
from potash_firmware.tflite.variables import claims, plan
from potash_firmware.vta_runtime import Runtime
from support.graph_builder import GraphBuilder, Padding, Tensor
from support.model_fuzz import packed, unpacked
from support.tflite import Int8, bench, nothing_kept  # noqa: F401
from support.variables import OPERATOR, Stateful, call_once, handle, joined

SHAPE = (1, 3, 2, 20)
SIZE = 120
STRANGE = replace(Config.default(), log_out_width=4)
"""A core whose outputs are not inputs as they are, so that the host converts."""

Wiring = Callable[[Stateful, Tensor], Sequence[Tensor]]
"""What a graph makes of its input: its outputs."""


def inputs(count: int = 4) -> list[Int8]:
    return list(np.random.default_rng(1).integers(-128, 128, (count, *SHAPE), np.int8))


def initial(seed: int = 0) -> Int8:
    return np.random.default_rng(seed).integers(-128, 128, SHAPE, np.int8)


def built(wire: Wiring) -> bytes:
    graph = Stateful()
    x = graph.tensor(SHAPE, 0.05)
    return graph.finish([x], wire(graph, x))


def expected(model: bytes, runs: Sequence[Int8]) -> list[bytes]:
    """What TensorFlow Lite alone gives in each run."""
    plain = Interpreter(
        model_content=model, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    plain.allocate_tensors()
    (given,), wanted = plain.get_input_details(), plain.get_output_details()
    found = []
    for values in runs:
        plain.set_tensor(given["index"], values)
        plain.invoke()
        found.append(b"".join(plain.get_tensor(one["index"]).tobytes() for one in wanted))
    return found


def given(model: Model, runs: Sequence[Int8]) -> list[bytes]:
    """What a loaded model gives in each run."""
    found = []
    for values in runs:
        output = memoryview(bytearray(1 << 13))
        found.append(bytes(output[: model(values.tobytes(), output)]))
    return found


def delayed(graph: Stateful, x: Tensor) -> Sequence[Tensor]:
    """What the last run got."""
    state = graph.variable("state", initial())
    old = graph.read(state, SHAPE)
    graph.set(state, x)
    return [old]


def shifted(graph: Stateful, x: Tensor) -> Sequence[Tensor]:
    """What the last three runs got, each in the place of the one before."""
    states = [graph.variable(name, initial(at)) for at, name in enumerate("abc")]
    old = [graph.read(state, SHAPE) for state in states]
    for state, value in zip(states, [x, *old], strict=False):
        graph.set(state, value)
    return [*old, graph.maximum(old[0], old[2])]


def swapped(graph: Stateful, x: Tensor) -> Sequence[Tensor]:
    """Two variables that change places; one is as it was before and after, a third stays."""
    a, b, c = (graph.variable(name, initial(at)) for at, name in enumerate("abc"))
    first, other, third = (graph.read(state, SHAPE) for state in (a, b, c))
    graph.set(a, other)
    graph.set(b, first)
    graph.set(c, third)
    return [first, graph.minimum(other, x), third]


def counted(graph: Stateful, x: Tensor) -> Sequence[Tensor]:
    """Read, set, read, set to a constant, read, and set again."""
    state = graph.variable("state", initial())
    first = graph.read(state, SHAPE)
    graph.set(state, graph.maximum(first, x))
    second = graph.read(state, SHAPE)
    graph.set(state, graph.constant(initial(5), 0.05))
    third = graph.read(state, SHAPE)
    graph.set(state, graph.minimum(second, third))
    return [second, third]


def padded(graph: Stateful, x: Tensor) -> Sequence[Tensor]:
    """A convolution with the padding SAME reads the variable as it is; the layout of what it is
    set to is another, and its last value is a constant."""
    random = np.random.default_rng(2)
    a, b = graph.variable("a", initial()), graph.variable("b", initial(1))
    weights = graph.constant(random.integers(-127, 128, (20, 3, 3, 20)).astype(np.int8), 0.005)
    old = graph.read(a, SHAPE, 3)
    made = graph.conv2d(old, weights, None, 0.05, 3, padding=Padding.SAME)
    graph.set(a, graph.reshape(graph.transpose(made, (0, 3, 1, 2)), SHAPE))
    last = graph.read(b, SHAPE)
    graph.set(b, graph.constant(initial(7), 0.05))
    return [made, graph.maximum(last, x)]


def streamed(graph: Stateful, x: Tensor) -> Sequence[Tensor]:
    """A window over the last rows, as in wake words."""
    state = graph.variable("state", initial())
    window = graph.concatenation([graph.read(state, SHAPE), x], 1)
    graph.set(state, graph.slice(window, (0, 3, 0, 0), (1, 6, 2, 20)))
    return [graph.max_pool2d(window, (6, 2), padding=Padding.VALID)]


def unread(graph: Stateful, x: Tensor) -> Sequence[Tensor]:
    """Variables that no run reads before it sets them, or at all."""
    a, b = graph.variable("a"), graph.variable("b", initial())
    graph.set(a, x)
    graph.set(b, x)
    return [graph.maximum(graph.read(a, SHAPE), graph.constant(initial(3), 0.05))]


@pytest.mark.parametrize("config", [Config.default(), STRANGE], ids=["default", "strange"])
@pytest.mark.parametrize(
    "wire", [delayed, shifted, swapped, counted, padded, streamed, unread], ids=lambda f: f.__name__
)
def test_every_call_gives_what_the_reference_kernels_give(wire: Wiring, config: Config) -> None:
    model = built(wire)
    with bench(config) as vta:
        loaded = Model(model, delegate=vta.delegate, reference=True)
        assert set(vta.reasons) == {None}
        assert given(loaded, inputs()) == expected(model, inputs())
        del loaded


def tangled(seed: int) -> bytes:
    """A graph that reads, sets and computes at random."""
    draw = np.random.default_rng(seed)
    graph = Stateful()
    names = "abcd"[: draw.integers(1, 5)]
    states = [graph.variable(name, initial(at)) for at, name in enumerate(names)]
    values = [graph.tensor(SHAPE, 0.05)]
    for _ in range(draw.integers(4, 16)):
        state = states[draw.integers(len(states))]
        one, other = (values[draw.integers(len(values))] for _ in range(2))
        match draw.integers(6):
            case 0 | 1:
                values.append(graph.read(state, SHAPE))
            case 2 | 3:
                graph.set(state, one)
            case 4:
                values.append(graph.maximum(one, other))
            case 5:
                values.append(graph.reshape(graph.reshape(one, (1, SIZE)), SHAPE))
    for state in states:
        values.append(graph.read(state, SHAPE))
    outputs = [values[at] for at in draw.integers(1, len(values), 3)]
    return graph.finish(values[:1], list(dict.fromkeys(outputs)))


@pytest.mark.parametrize("seed", range(12))
def test_the_order_of_the_graph_holds(seed: int) -> None:
    model = tangled(seed)
    with bench() as vta:
        loaded = Model(model, delegate=vta.delegate, reference=True)
        assert set(vta.reasons) == {None}
        assert given(loaded, inputs()) == expected(model, inputs())
        del loaded


def test_models_begin_anew_and_beside_each_other() -> None:
    model = built(shifted)
    runs = inputs()
    with Runtime(Core.create(Config.default(), 1 << 22, engine="readable")) as runtime:
        delegate = VtaDelegate(runtime)
        first = Model(model, delegate=delegate)
        found = given(first, runs[:2])
        other = Model(model, delegate=delegate)
        assert given(other, runs[1:]) == expected(model, runs[1:])
        assert found + given(first, runs[2:]) == expected(model, runs)
        del first, other


LARGE = list(np.random.default_rng(3).integers(-128, 128, (3, 1, 32, 32, 64), np.int8))


def large() -> bytes:
    """A model with a variable and a dozen other tensors of 64 KiB."""
    graph = Stateful()
    shape = LARGE[0].shape
    state = graph.variable("state", LARGE[2])
    x = y = graph.tensor(shape, 0.05)
    old = graph.read(state, shape)
    for number in range(5, -1, -1):
        y = graph.add(y, old, 0.05, number)
        y = graph.max_pool2d(y, 3, stride=1, padding=Padding.SAME)
    graph.set(state, y)
    return graph.finish([x], [graph.max_pool2d(y, 32, padding=Padding.VALID)])


def test_states_outlast_runs_where_tensors_share_memory() -> None:
    model = large()
    with bench(dram_bytes=600 << 10) as vta:
        loaded = Model(model, delegate=vta.delegate, reference=True)
        assert set(vta.reasons) == {None}
        assert given(loaded, LARGE) == expected(model, LARGE)
        del loaded


# What stays on TensorFlow Lite. The results are the same.


def softmax(graph: Stateful, x: Tensor) -> Tensor:
    """A node that the VTA does not run."""
    options = schema.SoftmaxOptionsT()
    options.beta = 1.0
    return graph.operator(OPERATOR.SOFTMAX, (x,), graph.tensor(SHAPE, 1 / 256, -128), options)


def divided(graph: Stateful, x: Tensor) -> Sequence[Tensor]:
    """One variable is set behind what the VTA does not run, the other one before."""
    a, b = graph.variable("a", initial()), graph.variable("b", initial(1))
    old, other = graph.read(a, SHAPE), graph.read(b, SHAPE)
    graph.set(b, graph.maximum(other, x))
    soft = softmax(graph, old)
    graph.set(a, graph.add(soft, x, 0.05))
    return [soft, graph.maximum(old, other)]


def of_floats(graph: Stateful, x: Tensor) -> Sequence[Tensor]:
    state = graph.variable("floats", np.zeros(SHAPE, np.float32))
    old = graph.tensor(SHAPE)
    graph._writer.operator(OPERATOR.READ_VARIABLE, (state,), (old.index,))
    graph.set(state, graph.operator(OPERATOR.DEQUANTIZE, (x,), graph.tensor(SHAPE)))
    return [old, *delayed(graph, x)]


def set_twice(graph: Stateful, x: Tensor) -> Sequence[Tensor]:
    """And so does this one: it gives the second value."""
    graph.variable("state", initial(2))
    return delayed(graph, x)


def of_two_shapes(graph: Stateful, x: Tensor) -> Sequence[Tensor]:
    state = graph.variable("state", initial())
    old = graph.read(state, SHAPE)
    graph.set(state, graph.reshape(x, (1, SIZE)))
    return [old]


def of_two_scales(graph: Stateful, x: Tensor) -> Sequence[Tensor]:
    state = graph.variable("state", initial())
    old = graph.read(state, SHAPE, 7)
    graph.set(state, x)
    return [old]


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize(
    ("wire", "reason", "claimed"),
    [
        (divided, claims.SEVERAL_PARTITIONS, "b"),
        (of_floats, plan.NO_CONSTANT, "state"),
        (set_twice, plan.NO_CONSTANT, None),
        (of_two_shapes, claims.OTHER_SHAPES, None),
        (of_two_scales, "differ in scale or zero point", None),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_what_the_vta_does_not_keep_stays_where_it_is(
    wire: Wiring, reason: str, claimed: str | None, reference: bool
) -> None:
    model = built(wire)
    with bench() as vta:
        loaded = Model(model, delegate=vta.delegate, reference=reference)
        assert given(loaded, inputs()) == expected(model, inputs())
        nodes = vta.delegate.decisions
        variables = [node for graph in nodes for node in graph if "VARIABLE" in node.operator]
        kept = [node for node in variables if node.claimed]
        # Read, set, and set by the other graph.
        assert len(kept) == (3 if claimed else 0)
        assert all(node.claimed or reason in str(node.reason) for node in variables)
        calls = [node for node in nodes[0] if node.operator == "CALL_ONCE"]
        assert {call.reason for call in calls} == {plan.OTHER_WORK}
        del loaded


def renamed(model: bytes, name: str) -> bytes:
    """A model whose second graph has that name."""
    whole = unpacked(model)
    whole.subgraphs[1].name = name
    return packed(whole)


def moved(model: bytes, number: int) -> bytes:
    """A model whose first graph calls the other one as its operator of that number."""
    whole = unpacked(model)
    operators = whole.subgraphs[0].operators
    operators.insert(number, operators.pop(0))
    return packed(whole)


def used_elsewhere() -> bytes:
    """A model of which a third graph, that nothing runs, reads the variable."""
    other = GraphBuilder()
    made = other.tensor(SHAPE, 0.05)
    its = handle(other._writer, "state")
    other._writer.operator(OPERATOR.READ_VARIABLE, (its,), (made.index,))
    return joined(built(delayed), other.finish([], [made]))


def with_two_calls() -> bytes:
    """A model of which a third graph, that nothing runs, runs the one that sets the variable."""
    other = GraphBuilder()
    call_once(other._writer)
    return joined(built(delayed), other._writer.build((), ()))


def with_its_handle() -> bytes:
    """A model that gives its variable's handle to its caller."""
    whole = unpacked(built(delayed))
    first = whole.subgraphs[0]
    (name,) = (at for at, one in enumerate(first.tensors) if b"handle" in one.name)
    first.outputs = [*first.outputs, name]
    return packed(whole)


def without_a_value() -> bytes:
    """A model that reads a variable first."""
    graph = Stateful()
    x = graph.tensor(SHAPE, 0.05)
    state = graph.variable("state")
    old = graph.read(state, SHAPE)
    graph.set(state, x)
    return graph.finish([x], [old])


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (renamed(built(delayed), "VALIDATION:"), plan.NUMBERED_OTHERWISE),
        (moved(built(delayed), 2), plan.TOO_EARLY),
        (without_a_value(), plan.TOO_EARLY),
        (used_elsewhere(), plan.OTHER_GRAPHS),
        (with_two_calls(), plan.OTHER_GRAPHS),
        (with_its_handle(), plan.OTHERS_USE_IT),
    ],
    ids=["a hidden graph", "late", "no value", "another graph", "another call", "handle"],
)
def test_no_variable_is_kept_of_which_not_all_is_known(model: bytes, reason: str) -> None:
    found = plan.plan(model)
    assert set(found.variables.values()) == {reason}
    with bench() as vta:
        nodes = inspect(model, vta.delegate)
        assert not any(node.claimed for node in nodes if "VAR" in node.operator)


@pytest.mark.parametrize("number", [-1, 0, 2])
def test_a_call_of_a_graph_that_is_not_there_is_refused(number: int) -> None:
    whole = unpacked(built(delayed))
    whole.subgraphs[0].operators[0].builtinOptions.initSubgraphIndex = number
    with bench() as vta, pytest.raises(ModelError):
        inspect(packed(whole), vta.delegate)


def test_a_variable_without_room_is_left_as_a_whole() -> None:
    model = large()
    with bench(dram_bytes=200 << 10) as vta:
        loaded = Model(model, delegate=vta.delegate, reference=True)
        assert given(loaded, LARGE) == expected(model, LARGE)
        assert NO_ROOM in vta.reasons
        nodes = vta.delegate.decisions[0]
        assert not any(node.claimed for node in nodes if "VARIABLE" in node.operator)
        del loaded


def test_an_interpreter_without_the_model_keeps_no_variables() -> None:
    model = built(shifted)
    with bench() as vta:
        interpreter = Interpreter(model_content=model, experimental_delegates=[vta.delegate])
        interpreter.allocate_tensors()
        assert claims.NOT_KNOWN in vta.reasons
        assert not any(node.claimed for node in vta.delegate.decisions[0] if "VAR" in node.operator)
        del interpreter

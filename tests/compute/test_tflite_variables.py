"""Variables, which keep a tensor from one run to the next: no run gives what is in other memory."""

from collections.abc import Sequence

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.runtime import Model, ModelError
from potash_firmware.tflite.validation import validate
from potash_firmware.tflite.writer import ModelBuilder
from support.tflite import bench
from support.variables import OPERATOR, OPTIONS, call_once, handle, joined


class Graph(ModelBuilder):
    """A graph with variables."""

    def assign(self, handle: int, value: int) -> None:
        self.operator(OPERATOR.ASSIGN_VARIABLE, (handle, value), ())

    def read(self, handle: int, shape: Sequence[int]) -> int:
        made = self.tensor("read", shape, scale=0.5)
        self.operator(OPERATOR.READ_VARIABLE, (handle,), (made,))
        return made


def stored(size: int, between: int | None = None) -> bytes:
    """A model that assigns its input of four values, in the file `between` if given, and gives
    `size` values of the variable."""
    graph = Graph()
    state = handle(graph, "state")
    x = value = graph.tensor("x", (4,), scale=0.5)
    if between:
        value = graph.tensor("value", (between,), scale=0.5)
        graph.operator(OPERATOR.RELU, (x,), (value,))
    graph.assign(state, value)
    return graph.build((x,), (graph.read(state, (size,)),))


X = np.array([1, 2, 3, 4], np.int8)


@pytest.mark.parametrize("reference", [True, False])
def test_a_variable_is_read_as_it_was_assigned(reference: bool) -> None:
    output = bytearray(4)
    model = Model(stored(4), delegate=None, reference=reference)
    assert model(X.tobytes(), memoryview(output)) == 4
    assert output == X.tobytes()


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize(("size", "between"), [(4000, None), (2, None), (4000, 4000)])
def test_nothing_is_given_of_what_is_behind_a_variable(
    size: int, between: int | None, reference: bool
) -> None:
    output = bytearray(5000)
    model = Model(stored(size, between), delegate=None, reference=reference)
    try:
        given = model(X.tobytes(), memoryview(output))
    except ModelError as error:
        assert str(error) == "the model reads a variable as a tensor of another size"
        assert output == bytes(5000)
    else:
        # The fast kernels follow the variable's size where the file lies about it.
        assert between and not reference and given == 4


@pytest.mark.parametrize("between", [None, 4000])
def test_the_vta_keeps_no_variable_that_is_read_as_another_size(between: int | None) -> None:
    output = bytearray(5000)
    with bench() as vta, pytest.raises(ModelError, match="a tensor of another size"):
        model = stored(4000, between)
        Model(model, delegate=vta.delegate, reference=True)(X.tobytes(), memoryview(output))
    assert output == bytes(5000)


def two_names(first: str, other: str, kind: int = OPTIONS.VarHandleOptions) -> bytes:
    """A model that assigns its input of four values, and reads 4000 of a variable that it has not
    set, unless TensorFlow Lite takes both names for one."""
    graph = Graph()
    handles = [handle(graph, name, kind) for name in (first, other)]
    x = graph.tensor("x", (4,), scale=0.5)
    graph.assign(handles[0], x)
    return graph.build((x,), (graph.read(handles[1], (4000,)),))


def computed() -> bytes:
    """A model that makes the handle of one variable that of the next, and reads that one."""
    graph = Graph()
    large = handle(graph, "large", of=schema.TensorType.INT32)
    x = graph.tensor("x", (4,), scale=0.5)
    graph.assign(handle(graph, "small"), x)
    graph.assign(large, graph.tensor("zeroes", (4000,), scale=0.5, data=np.zeros(4000)))
    one, nought = (graph.tensor(str(number), (), np.int32, data=number) for number in (1, 0))
    graph.add(one, nought, large)
    return graph.build((x,), (graph.read(large, (4000,)),))


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize(
    "model",
    [
        two_names("state\0one", "state\0other"),
        two_names("one", "other", OPTIONS.HashtableOptions),
        computed(),
    ],
    ids=["names that end early", "other options", "a handle that is computed"],
)
def test_no_variable_is_read_under_another_name(model: bytes, reference: bool) -> None:
    output = bytearray(5000)
    with pytest.raises(ModelError):
        Model(model, delegate=None, reference=reference)(X.tobytes(), memoryview(output))
    assert output == bytes(5000)


def test_a_handle_from_elsewhere_is_refused() -> None:
    graph = Graph()
    number = graph.tensor("handle", (1,), np.int32, data=[0])
    model = graph.build((), (graph.read(number, (4,)),))
    with pytest.raises(ModelError):
        Model(model, delegate=None)


def initialised(size: int) -> bytes:
    """A model that adds its input to a variable, which another graph sets to `size` values."""
    graph, other = Graph(), Graph()
    call_once(graph)
    state = handle(graph, "state")
    x, y = (graph.tensor(name, (4,), scale=0.5) for name in "xy")
    graph.add(graph.read(state, (4,)), x, y)
    graph.assign(state, y)
    zeroes = other.tensor("zeroes", (size,), scale=0.5, data=np.full(size, 7))
    other.assign(handle(other, "state"), zeroes)
    return joined(graph.build((x,), (y,)), other.build((), ()))


def test_state_is_kept_between_runs_with_the_vta() -> None:
    model = initialised(4)
    validate(model)
    with bench() as vta:
        loaded = Model(model, delegate=vta.delegate, reference=True)
        output = bytearray(4)
        for times in (1, 2, 3):
            assert loaded(X.tobytes(), memoryview(output)) == 4
            assert np.frombuffer(output, np.int8).tolist() == (7 + times * X).tolist()
        # The ADD, and four that call another graph, name, read and set the variable.
        assert vta.delegate.nodes_run == 15
        del loaded


def test_what_initialises_a_variable_has_its_size() -> None:
    with pytest.raises(ModelError, match="a tensor of another size"):
        Model(initialised(3), delegate=None)

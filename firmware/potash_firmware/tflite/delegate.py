"""The TensorFlow Lite delegate: takes over the nodes that the VTA has kernels for.

TensorFlow Lite asks a delegate through C callbacks (`tflite/core/c/common.h`): Prepare sees the
graph and claims nodes, then every run of adjacent claimed nodes becomes one kernel with init,
invoke and free. The callbacks here are stateless; what they need travels in the `void *` that C
gives them, as a cffi handle. Nothing may unwind through native code, which would end the process:
an exception is kept in the session, the callback reports an error, and the interpreter's caller
calls `VtaDelegate.raise_failure`, since TensorFlow Lite itself only reports that something failed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from potash_device.trace import COMPUTE
from potash_firmware.tflite.capi import (
    INIT_FAILED,
    OPERATOR_NAMES,
    Allocation,
    BuiltinOperator,
    CData,
    Node,
    Status,
    TensorType,
    callback,
    ffi,
    read_execution_plan,
    read_ints,
    read_node,
)
from potash_firmware.tflite.decisions import NodeReport
from potash_firmware.tflite.lowering import Refusal, Rounding, Settings
from potash_firmware.tflite.operators import OPERATORS, lower, lower_later
from potash_firmware.tflite.operators.added import OperatorError
from potash_firmware.tflite.partition import Partition, ShapeError, build
from potash_firmware.tflite.partition_cache import (
    Record,
    name_of_graph,
    name_of_model,
    name_of_partition,
)
from potash_firmware.tflite.streams import Stream
from potash_firmware.tflite.variables.claims import OPERATORS as VARIABLES
from potash_firmware.tflite.variables.claims import Claims, Work, resolve, without_values
from potash_firmware.tflite.variables.plan import NO_PLAN, Plan
from potash_firmware.vta_runtime import Runtime, VtaMemoryError

Result = TypeVar("Result")
ALLOW_DYNAMIC_TENSORS = 1  # kTfLiteDelegateFlagsAllowDynamicTensors
UNPREPARED = "failed to prepare"
"""TensorFlow Lite says so of a node that it refuses; a delegate must not hide that."""
NO_ROOM = "the VTA's memory has no room for it"
OTHER_SHAPES = "its tensors have other shapes when it runs than in the file"

_INTEGERS = frozenset({TensorType.INT32, TensorType.INT64})
"""Types of tensors that hold shapes."""
_CONSTANT = frozenset({Allocation.MMAP_RO, Allocation.PERSISTENT_RO})


class SplitError(Exception):
    """A partition has some accesses to a variable only; fewer nodes are claimed next time."""


@dataclass(slots=True)
class Session:
    """State that the callbacks of one delegate share."""

    runtime: Runtime
    settings: Settings
    decisions: dict[int, tuple[NodeReport, ...]] = field(default_factory=dict)
    """The last decisions about each graph, by its context's address."""
    partitions: dict[int, tuple[CData, Partition]] = field(default_factory=dict)
    """Handles and partitions, by the handle's address, which TensorFlow Lite keeps."""
    lowered: dict[int, tuple[Node, Work]] = field(default_factory=dict)
    """The nodes that are claimed in the graph that is being decided about, by their numbers."""
    left: dict[tuple[int, int], str] = field(default_factory=dict)
    """Nodes that are not to be claimed, by their graphs and numbers, and why."""
    claims: Claims = field(default_factory=lambda: Claims(NO_PLAN, {}))
    """The claimed nodes that read or write variables."""
    unsure: set[tuple[int, int]] = field(default_factory=set)
    """Nodes that probably find other shapes than those in the file, likewise, if any do."""
    record: Record = field(default_factory=Record)
    """The record of the model from earlier runs."""
    names: dict[int, str] = field(default_factory=dict)
    """The names of graphs in the record, by their numbers."""
    failure: BaseException | None = None
    nodes_run: int = 0

    def graph(self, context: CData) -> int:
        """The number of a graph, in the order in which they are shown."""
        known = list(self.decisions)
        address = int(ffi.cast("intptr_t", context))
        return known.index(address) if address in known else len(known)

    def guarded(self, action: Callable[[], Result], failed: Result) -> Result:
        """Do `action`; give `failed` and keep the exception when it raises one."""
        try:
            return action()
        except BaseException as error:  # noqa: BLE001
            # Whatever it is, it must not unwind into native code. The first one is the cause.
            self.failure = self.failure or error
            return failed


class Kernel(NamedTuple):
    """A partition, as TensorFlow Lite keeps it."""

    session: Session
    partition: Partition
    graph: int
    nodes: tuple[int, ...]


class VtaDelegate:
    """A delegate that runs nodes on a VTA: `Interpreter(..., experimental_delegates=[delegate])`.

    The interpreter keeps it, and it keeps what native code points to; both go when the interpreter
    does. It serves interpreters one at a time, in the thread that owns `runtime`.
    """

    def __init__(self, runtime: Runtime, rounding: Rounding = Rounding.EXACT) -> None:
        self._session = Session(runtime, Settings(runtime.config, rounding))
        self._handle = ffi.new_handle(self._session)
        self._native = ffi.new("TfLiteDelegate *")
        self._native.data_ = self._handle
        self._native.Prepare = _prepare_delegate
        self._dynamic = False

    def _get_native_delegate_pointer(self) -> int:
        # What ai_edge_litert.interpreter.Interpreter asks of a delegate.
        return self._pointer

    def apply(self, interpreter: Any) -> None:
        """Claim nodes of an interpreter that has no delegate and no tensors yet, after `begin`.

        Without flags, tensors have their shapes before the delegate is asked, and a graph with
        dynamic ones is refused: only when it runs is it known what shapes tensors have behind
        those. By then tensors before them have their shapes, and the others those of the file,
        which partitions check when they run. Raises RuntimeError.
        """
        # As its constructor does, which would end at the first refusal.
        interpreter._delegates = [self]
        try:
            interpreter._interpreter.ModifyGraphWithDelegate(self._pointer)
        except RuntimeError as error:
            if self._session.decisions or self._session.failure or UNPREPARED in str(error):
                raise
            self._native.flags, self._dynamic = ALLOW_DYNAMIC_TENSORS, True
            try:
                interpreter._interpreter.ModifyGraphWithDelegate(self._pointer)
            finally:
                self._native.flags = 0

    @property
    def _pointer(self) -> int:
        return int(ffi.cast("intptr_t", self._native))

    @property
    def decisions(self) -> tuple[tuple[NodeReport, ...], ...]:
        """Decisions about the nodes of each graph that was seen, in the order of the nodes."""
        return tuple(self._session.decisions.values())

    @property
    def nodes_run(self) -> int:
        """Number of nodes that have run on the VTA so far."""
        return self._session.nodes_run

    @property
    def partitions(self) -> int:
        """Number of partitions that live interpreters hold."""
        return len(self._session.partitions)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams of live interpreters' partitions, in their order."""
        return tuple(stream for _, stream in self.streams_of_graphs)

    @property
    def streams_of_graphs(self) -> list[tuple[int, Stream]]:
        """Each of the streams, with the number of the graph that it is of."""
        kernels = (ffi.from_handle(handle) for handle, _ in self._session.partitions.values())
        return [(kernel.graph, stream) for kernel in kernels for stream in kernel.partition.streams]

    @property
    def left(self) -> Mapping[tuple[int, int], str]:
        """Nodes, by their graphs and numbers, with which the last attempt at a model failed, and
        why: `begin` takes them for the next one."""
        return self._session.left

    @property
    def unsure(self) -> tuple[Mapping[tuple[int, int], str], ...]:
        """Nodes whose shapes depend on values and may differ from those in the file, named as in
        `left`: first those that probably do, then all."""
        if not self._dynamic:
            return ()
        every = {(graph, node.node) for graph, nodes in enumerate(self.decisions) for node in nodes}
        return tuple(dict.fromkeys(nodes, OTHER_SHAPES) for nodes in (self._session.unsure, every))

    @contextmanager
    def recalled(self, model: bytes) -> Iterator[bool]:
        """A context for loading a model, which uses what is kept of it on disk, and keeps there
        what is new; whether that model was loaded before, and so is valid."""
        session = self._session
        session.record = record = Record(name_of_model(model, session.settings))
        try:
            yield record.known
            record.store()
        finally:
            # Another interpreter's graph may look the same.
            session.record = Record()

    def begin(
        self, left: Mapping[tuple[int, int], str] = MappingProxyType({}), plan: Plan = NO_PLAN
    ) -> None:
        """Forget the decisions for an earlier interpreter, and its failure; the nodes in `left` are
        not claimed, and of the model's variables those that `plan` has."""
        self._session.left = dict(left)
        self._session.claims = Claims(plan, left)
        self._session.decisions.clear()
        self._session.unsure.clear()
        self._dynamic = False
        self._session.failure = None

    def raise_failure(self) -> None:
        """Raise, once, the exception that a callback met; return when there was none."""
        failure, self._session.failure = self._session.failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            # Its traceback has this frame in it, and others in which the interpreter is.
            del failure


def _claim(session: Session, context: CData, delegate: CData) -> int:
    """Decide about a graph's nodes. Partitions are made of those that are claimed before this
    returns, so that each node is lowered once."""
    graph = session.graph(context)
    nodes = [read_node(context, index) for index in read_execution_plan(context)]
    left = [node.index for node in nodes if (graph, node.index) in session.left]
    session.unsure |= {(graph, node.index) for node in _behind_shapes(nodes)}
    session.names[graph] = name = name_of_graph(nodes, left)
    known = session.record.reasons(name)
    reasons: dict[int, str | None] = {}
    lowered: dict[int, tuple[Node, Work]] = {}
    session.claims.check(graph, nodes)
    for node in nodes:
        reason = session.left.get((graph, node.index)) or known.get(node.index)
        if reason is None:
            found: Work | Refusal
            if node.operator in VARIABLES:
                found = session.claims.work(graph, node)
            else:
                found = (lower_later if node.index in known else lower)(node, session.settings)
            if isinstance(found, Refusal):
                reason = str(found)
            else:
                lowered[node.index] = node, found
        reasons[node.index] = reason
    if not known:
        # What another package's operators depend on is not known.
        own = {node.index: reasons[node.index] for node in nodes if node.operator in OPERATORS}
        session.record.decide(name, own)
    session.decisions[int(ffi.cast("intptr_t", context))] = tuple(
        NodeReport(
            graph,
            node.index,
            OPERATOR_NAMES.get(node.operator, str(node.operator)),
            node.version,
            "vta" if reasons[node.index] is None else "cpu",
            reasons[node.index],
        )
        for node in nodes
    )
    if not lowered:
        return Status.OK
    chosen = ffi.new("TfLiteIntArray *", [len(lowered), list(lowered)])
    replace = context.ReplaceNodeSubsetsWithDelegateKernels
    session.lowered = lowered
    try:
        return int(replace(context, _REGISTRATION[0], chosen, delegate))
    finally:
        session.lowered = {}


def _behind_shapes(nodes: Sequence[Node]) -> Sequence[Node]:
    """The nodes behind the first one whose output probably has a shape that depends on values:
    TensorFlow Lite prepares none of them before it is known."""
    for at, node in enumerate(nodes):
        if any(one and one.allocation == Allocation.DYNAMIC for one in node.outputs) or any(
            one and one.type in _INTEGERS and one.allocation not in _CONSTANT for one in node.inputs
        ):
            return nodes[at + 1 :]
    return ()


def _make_partition(session: Session, context: CData, params: CData) -> CData:
    graph = session.graph(context)
    indices = read_ints(params.nodes_to_replace)
    if split := session.claims.split(graph, indices):
        session.left |= split
        raise SplitError
    nodes = [session.lowered[index] for index in indices]
    border = read_ints(params.input_tensors), read_ints(params.output_tensors)
    name = None
    if all(node.operator in OPERATORS or node.operator in VARIABLES for node, _ in nodes):
        name = name_of_partition(session.names[graph], indices, *border)
    lowered, states = resolve(graph, nodes)
    try:
        partition = build(lowered, states, *border, session.runtime, session.record, name)
    except OperatorError as error:
        session.left |= {(graph, error.node): str(error)}
        raise
    except VtaMemoryError:
        # The other half may fit; `runtime` makes the interpreter again.
        half = indices[len(indices) // 2 :]
        session.left |= {(graph, index): NO_ROOM for index in half}
        raise
    computed = {port.tensor.index for port in partition.outputs}
    if rest := set(border[1]) - computed - without_values(graph, nodes):
        partition.close()
        raise AssertionError(f"no node of the partition computes tensor {min(rest)}")
    kernel = Kernel(session, partition, graph, indices)
    handle = ffi.new_handle(kernel)
    session.partitions[int(ffi.cast("intptr_t", handle))] = handle, partition
    return handle


@callback("int(TfLiteContext *, TfLiteDelegate *)", Status.ERROR)
def _prepare_delegate(context: CData, delegate: CData) -> int:
    session: Session = ffi.from_handle(delegate.data_)
    return session.guarded(lambda: _claim(session, context, delegate), int(Status.ERROR))


@callback("void *(TfLiteContext *, const char *, size_t)", INIT_FAILED)
def _init(context: CData, buffer: CData, _length: int) -> CData:
    params = ffi.cast("TfLiteDelegateParams *", buffer)
    session: Session = ffi.from_handle(params.delegate.data_)
    return session.guarded(lambda: _make_partition(session, context, params), INIT_FAILED)


@callback("void(TfLiteContext *, void *)")
def _free(_context: CData, data: CData) -> None:
    if data == INIT_FAILED:
        return
    kernel: Kernel = ffi.from_handle(data)
    kernel.partition.close()
    del kernel.session.partitions[int(ffi.cast("intptr_t", data))]


@callback("int(TfLiteContext *, TfLiteNode *)", Status.ERROR)
def _prepare(_context: CData, node: CData) -> int:
    # Not every version of TensorFlow Lite looks at what `_init` returns.
    return Status.ERROR if node.user_data == INIT_FAILED else Status.OK


@callback("int(TfLiteContext *, TfLiteNode *)", Status.ERROR)
def _invoke(context: CData, node: CData) -> int:
    kernel: Kernel = ffi.from_handle(node.user_data)
    return kernel.session.guarded(lambda: _run(kernel, context), int(Status.ERROR))


def _run(kernel: Kernel, context: CData) -> int:
    session, nodes = kernel.session, kernel.nodes
    with COMPUTE.span("tflite.partition", nodes=len(nodes)):
        try:
            kernel.partition.run(context.tensors)
        except ShapeError:
            session.left = {(kernel.graph, index): OTHER_SHAPES for index in nodes}
            raise
    session.nodes_run += len(nodes)
    return Status.OK


_NAME = ffi.new("char[]", b"PotashVta")
# Constant: TensorFlow Lite copies it for each partition.
_REGISTRATION = ffi.new(
    "TfLiteRegistration *",
    {
        "init": _init,
        "free": _free,
        "prepare": _prepare,
        "invoke": _invoke,
        "builtin_code": BuiltinOperator.DELEGATE,
        "custom_name": _NAME,
        "version": 1,
    },
)

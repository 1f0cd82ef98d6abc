"""Running a model: bytes in, bytes out, on TensorFlow Lite with the VTA as a delegate.

This is the application processor's inference call. A model's inputs are contiguous, in the model's
order and each in its tensor's memory layout; so are the outputs. More input than the model takes is
no error: input from local storage is padded to whole blocks.

Multiply-accumulate operations are counted from the shapes that tensors have once they are
allocated. An operator without products counts as one operation for each element of its largest
tensor, one that moves nothing as none. Nodes of subgraphs other than the first are not counted.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias, TypeVar

import numpy as np

from csd_spec.reporting import Amount, Count
from potash_firmware.tflite import reference as kernels
from potash_firmware.tflite.capi import OPERATOR_NAMES, Array, Node
from potash_firmware.tflite.decisions import NodeReport
from potash_firmware.tflite.delegate import SplitError, VtaDelegate
from potash_firmware.tflite.interpreter import Interpreter
from potash_firmware.tflite.operators.added import OperatorError
from potash_firmware.tflite.partition import ShapeError
from potash_firmware.tflite.validation import ModelError, validate
from potash_firmware.tflite.variables import accesses
from potash_firmware.tflite.variables.accesses import keeps_state
from potash_firmware.tflite.variables.plan import plan
from potash_firmware.vta_runtime import VtaMemoryError

__all__ = ["Model", "ModelError", "NodeReport", "TensorReport", "infer", "inspect"]

BytesLike: TypeAlias = bytes | bytearray | memoryview
Details: TypeAlias = dict[str, Any]
Result = TypeVar("Result")
Left: TypeAlias = Mapping[tuple[int, int], str]
"""Nodes that are not claimed, as `VtaDelegate.begin` takes them."""
Shape = Sequence[int]

NO_REASON = "it does not say why; there may be too little memory"
"""The reason if TensorFlow Lite gives none, as its kernels do for memory that they do not get."""
WITHOUT_MACS = frozenset({"RESHAPE", "EXPAND_DIMS", "SQUEEZE", "SHAPE", "DELEGATE"})
"""Operators that only change a tensor's shape, and the one that stands for other nodes."""


class RefusedError(ModelError):
    """TensorFlow Lite says no."""


@dataclass(frozen=True, slots=True)
class TensorReport:
    """An input or an output of a model."""

    name: Annotated[str, "The tensor's name in the model."]
    dtype: Annotated[str, "Type of an element, by NumPy's name."]
    shape: Annotated[Sequence[Count], "Number of elements in each dimension; empty for a scalar."]
    bytes: Annotated[Count, "Size in memory in bytes."]
    scale: Annotated[Amount | None, "The scale; null if it is not quantised."]
    zero_point: Annotated[int | None, "The zero point; null if it is not quantised."]
    open: Annotated[Sequence[Count], "The axes whose extents the file leaves open."]


class Model:
    """A model that has been loaded; run it as often as there are inputs.

    `delegate` takes what it can, TensorFlow Lite's kernels the rest: the reference ones with
    `reference`, else the fast ones, which round differently and take as many `threads` as they want
    if nothing is said. Models that share a delegate run one at a time. Raises ModelError for a
    model that cannot run.
    """

    def __init__(
        self,
        model: BytesLike,
        *,
        delegate: VtaDelegate | None,
        reference: bool = False,
        threads: int | None = None,
    ) -> None:
        self._delegate = delegate
        self._contents = bytes(model)
        self._load = functools.partial(_prepare, self._contents, delegate, reference, threads)
        self._interpreter = self._load()
        self._assigned = self._checked()
        self._left: Left = {}
        self._has_run = False
        self._macs: int | None = None
        self._inputs = self._interpreter.get_input_details()
        self._input_sizes = [_size(details, "input") for details in self._inputs]

    @property
    def inputs(self) -> tuple[TensorReport, ...]:
        """The model's inputs, in order."""
        return tuple(_report(details, "input") for details in self._inputs)

    @property
    def outputs(self) -> tuple[TensorReport, ...]:
        """The model's outputs, in order; a shape that depends on values is known after a run."""
        return tuple(
            _report(details, "output") for details in self._interpreter.get_output_details()
        )

    @property
    def input_length(self) -> int:
        """Bytes of all inputs."""
        return sum(self._input_sizes)

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations of the nodes that the delegate does not run."""
        if self._macs is None:
            graphs = () if self._delegate is None else self._delegate.decisions
            first = graphs[0] if graphs else ()
            claimed = {one.node for one in first if one.claimed}
            self._macs = count_macs(self._interpreter, claimed)
        return self._macs

    @property
    def without_reference(self) -> frozenset[str]:
        """The operators that have no reference kernel, if the model was to run on those; others
        run them."""
        return kernels.lacked(self._interpreter)

    @functools.cached_property
    def is_function(self) -> bool:
        """True if the outputs depend on nothing but the inputs."""
        return not keeps_state(self._contents)

    @property
    def as_loaded(self) -> bool:
        """True if no run has found shapes other than those in the file."""
        return not self._left

    def __call__(self, inputs: BytesLike, output: memoryview) -> int:
        """Run it on `inputs`; give the number of bytes written to the beginning of `output`. Raises
        ModelError for what does not fit its buffers, leaving `output` alone, and whatever the VTA
        raises."""
        total = sum(self._input_sizes)
        if total > len(inputs):
            raise ModelError(f"the model takes {total} bytes of input, and gets {len(inputs)}")
        while True:
            try:
                return self._run(inputs, output)
            except ShapeError as error:
                # Where shapes depend on values, those in the file may be others: then fewer nodes
                # are claimed. Later on, a new interpreter would have lost the variables.
                if not self._reloaded():
                    raise ModelError(str(error)) from None
            except RefusedError:
                # TensorFlow Lite may have refused a node that reads what a partition gives, which
                # has the file's shape.
                if not self._reloaded():
                    raise

    def _reloaded(self) -> bool:
        """Load it again where it has not run yet, with fewer nodes that are claimed: whether there
        are any to leave."""
        if self._has_run or self._delegate is None:
            return False
        for unsure in (*self._delegate.unsure, {}):
            left = {**self._left, **self._delegate.left, **unsure}
            if len(left) > len(self._left):
                self._left = left
                self._interpreter = self._load(left)
                self._assigned = self._checked()
                return True
        return False

    def _checked(self) -> tuple[accesses.Assigned, ...]:
        """Variables to check after each run, as the delegate has not made sure of them."""
        assigned = accesses.assigned(self._contents)
        graphs = () if self._delegate is None else self._delegate.decisions
        claimed = {one.node for one in graphs[0] if one.claimed} if graphs else set()
        return tuple(one for one in assigned if one.node not in claimed)

    def _run(self, inputs: BytesLike, output: memoryview) -> int:
        interpreter = self._interpreter
        # Before the work as well as after it, when shapes that depend on the values are known too.
        _check_output(interpreter.get_output_details(), len(output))

        def work() -> list[Array]:
            offset = 0
            for details, size in zip(self._inputs, self._input_sizes, strict=True):
                values = np.frombuffer(inputs, np.uint8, size, offset).view(details["dtype"])
                interpreter.set_tensor(details["index"], values.reshape(details["shape"]))
                offset += size
            interpreter.invoke()
            return [
                interpreter.get_tensor(item["index"]) for item in interpreter.get_output_details()
            ]

        results = _native(work, self._delegate)
        accesses.check(interpreter, self._assigned)
        self._has_run = True
        total = _check_output(interpreter.get_output_details(), len(output))
        offset = 0
        for values in results:
            output[offset : offset + values.nbytes] = values.tobytes()
            offset += values.nbytes
        return total


def infer(
    model: BytesLike,
    inputs: BytesLike,
    output: memoryview,
    *,
    delegate: VtaDelegate | None,
    reference: bool = False,
) -> int:
    """Load `model` as `Model` does and run it once, with what that raises."""
    return Model(model, delegate=delegate, reference=reference)(inputs, output)


def inspect(model: BytesLike, delegate: VtaDelegate) -> tuple[NodeReport, ...]:
    """All nodes of `model`, with those that the delegate runs, and reasons. Raises ModelError."""
    _prepare(bytes(model), delegate, reference=True, threads=None)
    return tuple(itertools.chain(*delegate.decisions))


def _prepare(
    model: bytes,
    delegate: VtaDelegate | None,
    reference: bool,
    threads: int | None,
    left: Left = MappingProxyType({}),
) -> Interpreter:
    def make() -> Interpreter:
        if reference:
            interpreter = kernels.load(model, threads)
        else:
            interpreter = Interpreter(model_content=model, num_threads=threads)
        if delegate is not None:
            delegate.apply(interpreter)
        interpreter.allocate_tensors()
        return interpreter

    if delegate is None:
        validate(model)
        return _native(make, None)
    with delegate.recalled(model) as valid:
        if not valid:
            validate(model)
        variables = plan(model)
        delegate.begin(left, variables)
        while True:
            try:
                return _native(make, delegate)
            except (VtaMemoryError, SplitError, OperatorError):
                # It takes fewer nodes now, and in the end none.
                delegate.begin({**left, **delegate.left}, variables)


def _native(action: Callable[[], Result], delegate: VtaDelegate | None) -> Result:
    """Call into TensorFlow Lite; what a callback of the delegate raised comes before its
    verdict."""
    try:
        result = action()
    except (RuntimeError, ValueError) as error:
        if delegate is not None:
            delegate.raise_failure()
        raise RefusedError(f"TensorFlow Lite refuses the model: {_sentence(error)}") from None
    if delegate is not None:
        delegate.raise_failure()
    return result


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()) or NO_REASON


def _check_output(details: Iterable[Details], size: int) -> int:
    total = sum(_size(item, "output") for item in details)
    if total > size:
        raise ModelError(f"the model gives {total} bytes of output, and there is room for {size}")
    return total


def _report(details: Details, what: str) -> TensorReport:
    scale, zero_point = details["quantization"]
    return TensorReport(
        name=str(details["name"]),
        dtype=np.dtype(details["dtype"]).name,
        shape=tuple(int(extent) for extent in details["shape"]),
        bytes=_size(details, what),
        scale=float(scale) or None,
        zero_point=int(zero_point) if scale else None,
        open=tuple(at for at, one in enumerate(details["shape_signature"]) if one < 0),
    )


def _size(details: Details, what: str) -> int:
    """The bytes of a tensor as it is now. Raises ModelError where elements have no fixed size."""
    width = np.dtype(details["dtype"]).itemsize
    if width == 0 or np.dtype(details["dtype"]).hasobject:
        raise ModelError(f"the {what} {details['name']!r} is text, which has no fixed size")
    return math.prod(int(extent) for extent in details["shape"]) * width


def count_macs(interpreter: Any, claimed: Collection[int] = ()) -> int:
    """The multiply-accumulate operations of all nodes of an interpreter's first graph but the
    `claimed`, which a delegate runs.

    `interpreter` is one of TensorFlow Lite whose tensors are allocated.
    """
    shapes = {
        one["index"]: tuple(map(int, one["shape"])) for one in interpreter.get_tensor_details()
    }
    return sum(
        macs_of_node(
            node["op_name"],
            [shapes.get(index, ()) for index in node["inputs"]],
            [shapes.get(index, ()) for index in node["outputs"]],
        )
        for node in interpreter._get_ops_details()
        if node["index"] not in claimed
    )


def macs_of(node: Node) -> int:
    """The multiply-accumulate operations of a node that a delegate was shown."""
    inputs, outputs = (
        [() if tensor is None else tensor.shape for tensor in tensors]
        for tensors in (node.inputs, node.outputs)
    )
    return macs_of_node(OPERATOR_NAMES.get(node.operator, ""), inputs, outputs)


def macs_of_node(operator: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """The multiply-accumulate operations of one node, by the shapes of its tensors."""
    if operator in WITHOUT_MACS:
        return 0
    products = _PRODUCTS.get(operator)
    if products is not None:
        try:
            return products(inputs, outputs)
        except (ValueError, IndexError):
            pass  # its tensors have no shapes that such an operator has
    return max((math.prod(shape) for shape in (*inputs, *outputs)), default=0)


def _convolution(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    _, height, width, channels = inputs[1]
    return math.prod(outputs[0]) * height * width * channels


def _depthwise(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    _, height, width, _ = inputs[1]
    return math.prod(outputs[0]) * height * width


def _transposed(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    channels, height, width, _ = inputs[1]
    return math.prod(inputs[2]) * height * width * channels


def _matrices(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Either operand may be transposed: sizes n·k, k·m and n·m of each give k."""
    batches = math.prod(outputs[0][:-2])
    left, right, product = (math.prod(one[-2:]) for one in (*inputs[:2], outputs[0]))
    return batches * math.isqrt(left * right * product)


_PRODUCTS: Mapping[str, Callable[[Sequence[Shape], Sequence[Shape]], int]] = {
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _depthwise,
    "TRANSPOSE_CONV": _transposed,
    "FULLY_CONNECTED": lambda inputs, outputs: math.prod(outputs[0]) * inputs[1][-1],
    "BATCH_MATMUL": _matrices,
}

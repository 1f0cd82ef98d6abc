"""Operators that other packages add to Potash's own.

A package that is installed beside Potash names each in its entry points, under the name that it has
in TensorFlow Lite's schema:

    [project.entry-points."potash.operators"]
    ABS = "my_package:lower"

and the object there is a function, a `potash_firmware.tflite.lowering.Lower`. One that cannot be
used is left out, and `Found.problems` says why; its nodes then run on TensorFlow Lite. So does a
node whose lowering fails or is wrong (`checked`).

Source of the mechanism: "Entry points specification", packaging.python.org.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import numpy as np

from potash_device.vta.config import Config
from potash_firmware import extensions
from potash_firmware.tflite import OPERATOR_GROUP
from potash_firmware.tflite.capi import OPERATOR_CODES, Array, Node
from potash_firmware.tflite.lowering import (
    Alias,
    Arrange,
    Builder,
    Compute,
    Emit,
    Inputs,
    Lower,
    Lowering,
    Placement,
    Refusal,
)
from potash_firmware.tflite.packing import fit
from potash_firmware.tflite.validation import ModelError
from potash_firmware.vta_runtime import VtaMemoryError
from potash_firmware.vta_runtime.schedules import Surface

GROUP = OPERATOR_GROUP


Result = TypeVar("Result")


class OperatorError(ModelError):
    """The operator of another package failed at a node, or did not compute its output."""

    def __init__(self, node: int, why: str) -> None:
        super().__init__(why)
        self.node = node


@dataclass(frozen=True)
class Found:
    """The operators by code, and what is wrong with the others, a sentence each."""

    operators: Mapping[int, Lower]
    problems: tuple[str, ...]


def collect(points: Iterable[metadata.EntryPoint], own: Container[int]) -> Found:
    """The operators of some entry points, and of this process's extensions. Two of one name are
    both left out, and so is one that is among the codes of Potash's `own`."""
    points = sorted(points, key=lambda point: (point.name, point.value))
    extended = extensions.programs.operators
    names = Counter((*extended, *(point.name for point in points)))
    operators: dict[int, Lower] = {}
    problems = []
    for name, one in extended.items():
        try:
            if names[name] > 1:
                raise ValueError("another package has one of that name")
            operators[code_of(name, own)] = one.function
        except ValueError as error:
            problems.append(f"the operator {one} is left out: {error}")
    for point in points:
        package = point.dist.name if point.dist is not None else point.module
        try:
            if names[point.name] > 1:
                raise ValueError("another package has one of that name")
            operators[code_of(point.name, own)] = _load(point)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is another package's code
            why = str(error) or type(error).__name__
            problems.append(f"the operator {point.name} of {package} is left out: {why}")
    return Found(operators, tuple(problems))


def sources(point: metadata.EntryPoint) -> list[Path]:
    """Sources of the package of an entry point: its folders, or its one file."""
    try:
        spec = find_spec(point.module.partition(".")[0])
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(folder) for folder in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.has_location and spec.origin else []


def why_failed(error: Exception) -> str:
    """The reason why a node is not run with another package's operator, which raised `error`."""
    return f"the operator of another package failed: {error or type(error).__name__}"


def checked(node: Node, found: object, config: Config) -> Lowering | Refusal:
    """Check the result of another package's operator for a node. Functions of the lowering raise
    OperatorError if they fail, or leave any part of the output as it was. Raises TypeError for what
    is neither a Lowering nor a Refusal."""
    if isinstance(found, Refusal):
        return found
    if not isinstance(found, Lowering):
        raise TypeError(f"it returned {found!r}, which is neither a Lowering nor a Refusal")
    lowering = found

    def attempt(action: Callable[[], Result]) -> Result:
        try:
            return action()
        except (OperatorError, VtaMemoryError):
            raise
        except Exception as error:
            raise OperatorError(node.index, why_failed(error)) from error

    def require(met: bool, wrong: str) -> None:
        if not met:
            raise ValueError(wrong)

    def check(placement: Placement) -> Placement:
        require(isinstance(placement, Placement), "its place() returned no Placement")
        inputs, outputs, work = placement.inputs, placement.outputs, placement.work
        require(
            fit(inputs, node.inputs) and fit(outputs, node.outputs) and None not in outputs,
            "its layouts have other sizes than the tensors",
        )
        one = sum(layout is not None for layout in inputs) == len(outputs) == 1
        match work:
            case Compute():
                return replace(placement, work=replace(work, emit=emit(work)))
            case Alias() if one:
                return replace(placement, work=replace(work, surface=alias(work, placement)))
            case Arrange() if len(outputs) == 1:
                return replace(placement, work=Arrange(arrange(work)))
        raise ValueError(f"its work is {type(work).__name__}, with other tensors than that takes")

    def emit(work: Compute) -> Emit:
        def act(builder: Builder, inputs: Inputs, outputs: Sequence[Surface]) -> None:
            begin = builder.runtime.length
            work.emit(builder, inputs, outputs)
            stored = builder.runtime.stored_since(begin)
            for surface in outputs:
                first = surface.buffer.physical // config.element_bytes(surface.memory)
                places = (surface.place(*at) for at in np.ndindex(*surface.extent))
                require(
                    all(first + place in stored for place in places),
                    "its instructions do not store the whole output",
                )

        return lambda *given: attempt(lambda: act(*given))

    def alias(work: Alias, placement: Placement) -> Callable[[Surface], Surface]:
        def act(source: Surface) -> Surface:
            surface = work.surface(source)
            expected = placement.outputs[0].surface(source.buffer, config).extent
            require(
                surface.buffer is source.buffer and surface.extent == expected,
                "its surface is not the output's",
            )
            return surface

        return lambda source: attempt(lambda: act(source))

    def arrange(work: Arrange) -> Callable[..., Array]:
        def act(values: Sequence[Array]) -> Array:
            arranged = work.arrange(*values)
            output = node.outputs[0]
            require(
                isinstance(arranged, np.ndarray)
                and output is not None
                and arranged.size == output.size,
                "its arrangement has another size than the output",
            )
            return arranged

        return lambda *values: attempt(lambda: act(values))

    return Lowering(lambda given: attempt(lambda: check(lowering.place(given))))


def code_of(name: str, own: Container[int]) -> int:
    """The code of an operator that is not among Potash's `own`. Raises ValueError."""
    if name not in OPERATOR_CODES:
        raise ValueError("TensorFlow Lite has no operator of that name")
    if OPERATOR_CODES[name] in own:
        raise ValueError("Potash has that operator itself")
    return OPERATOR_CODES[name]


def _load(point: metadata.EntryPoint) -> Lower:
    """Raises whatever the package raises, and TypeError for what is no operator."""
    lower: Lower = point.load()
    if not callable(lower):
        raise TypeError(f"{point.value} is not a function")
    return lower

"""Operators that other packages lend to the delegate, beside Potash's own.

A package that is installed beside Potash names each in its entry points, under the name that it has
in TensorFlow Lite's schema:

    [project.entry-points."potash.operators"]
    ABS = "my_package:ABS"

and the object there is a `potash_firmware.tflite.plans.Operator`. One that cannot be used is left
out, and `Found.problems` says why; its nodes then run on TensorFlow Lite.

Source of the mechanism: "Entry points specification", packaging.python.org.
"""

import functools
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata

from potash_firmware.tflite.plans import Operator

GROUP = "potash.operators"


@functools.cache
def codes() -> Mapping[str, int]:
    """TensorFlow Lite's operators by their names in its schema, which is loaded for it."""
    from ai_edge_litert import schema_py_generated as schema

    named = vars(schema.BuiltinOperator).items()
    return {name: code for name, code in named if not name.startswith("_")}


@dataclass(frozen=True)
class Found:
    """What there is, by code, and what is wrong with the rest, a sentence each."""

    operators: Mapping[int, Operator]
    problems: tuple[str, ...]


def collect(points: Iterable[metadata.EntryPoint], own: Container[int]) -> Found:
    """The operators behind some entry points. Two of one name are both left out, and so is one that
    is among the codes of Potash's `own`."""
    points = sorted(points, key=lambda point: (point.name, point.value))
    names = Counter(point.name for point in points)
    operators: dict[int, Operator] = {}
    problems = []
    for point in points:
        package = point.dist.name if point.dist is not None else point.module
        try:
            if names[point.name] > 1:
                raise ValueError("another package has one of that name")
            its = _load(point, own)
            operators[codes()[point.name]] = its
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is somebody else's code
            why = str(error) or type(error).__name__
            problems.append(f"the operator {point.name} of {package} is left out: {why}")
    return Found(operators, tuple(problems))


def _load(point: metadata.EntryPoint, own: Container[int]) -> Operator:
    """Raises whatever the package raises, and ValueError or TypeError for what is no operator."""
    if point.name not in codes():
        raise ValueError("TensorFlow Lite has no operator of that name")
    if codes()[point.name] in own:
        raise ValueError("Potash has that operator itself")
    operator = point.load()
    if not isinstance(operator, Operator):
        raise TypeError(f"{point.value} is not an Operator")
    return operator

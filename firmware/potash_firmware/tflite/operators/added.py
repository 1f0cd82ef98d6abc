"""Operators that other packages add to Potash's own.

A package that is installed beside Potash names each in its entry points, under the name that it has
in TensorFlow Lite's schema:

    [project.entry-points."potash.operators"]
    ABS = "my_package:lower"

and the object there is a function, a `potash_firmware.tflite.lowering.Lower`. One that cannot be
used is left out, and `Found.problems` says why; its nodes then run on TensorFlow Lite.

Source of the mechanism: "Entry points specification", packaging.python.org.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from potash_firmware.tflite import OPERATOR_GROUP
from potash_firmware.tflite.capi import OPERATOR_CODES
from potash_firmware.tflite.lowering import Lower

GROUP = OPERATOR_GROUP


@dataclass(frozen=True)
class Found:
    """The operators by code, and what is wrong with the others, a sentence each."""

    operators: Mapping[int, Lower]
    problems: tuple[str, ...]


def collect(points: Iterable[metadata.EntryPoint], own: Container[int]) -> Found:
    """The operators of some entry points. Two of one name are both left out, and so is one that
    is among the codes of Potash's `own`."""
    points = sorted(points, key=lambda point: (point.name, point.value))
    names = Counter(point.name for point in points)
    operators: dict[int, Lower] = {}
    problems = []
    for point in points:
        package = point.dist.name if point.dist is not None else point.module
        try:
            if names[point.name] > 1:
                raise ValueError("another package has one of that name")
            operators[OPERATOR_CODES[point.name]] = _load(point, own)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is another package's code
            why = str(error) or type(error).__name__
            problems.append(f"the operator {point.name} of {package} is left out: {why}")
    return Found(operators, tuple(problems))


def sources(point: metadata.EntryPoint) -> list[Path]:
    """Where the package of an entry point has its sources: its folders, or its one file."""
    try:
        spec = find_spec(point.module.partition(".")[0])
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(folder) for folder in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.has_location and spec.origin else []


def _load(point: metadata.EntryPoint, own: Container[int]) -> Lower:
    """Raises whatever the package raises, and ValueError or TypeError for what is no operator."""
    if point.name not in OPERATOR_CODES:
        raise ValueError("TensorFlow Lite has no operator of that name")
    if OPERATOR_CODES[point.name] in own:
        raise ValueError("Potash has that operator itself")
    lower: Lower = point.load()
    if not callable(lower):
        raise TypeError(f"{point.value} is not a function")
    return lower

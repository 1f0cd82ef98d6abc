"""Helpers that other packages provide to programs.

An installed package declares each helper as an entry point with the helper's name in C:

    [project.entry-points."potash.helpers"]
    popcount = "my_package:POPCOUNT"

The object is an `AddedHelper`. A helper that cannot be used is omitted, with the reason in
`found().problems`; only programs that call it are affected.

Source of the mechanism: "Entry points specification", packaging.python.org.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from potash_firmware import extensions
from potash_firmware.bpf.arena import Arena
from potash_firmware.bpf.errors import Fault, FaultKind
from potash_firmware.bpf.interpreter import Helper

if TYPE_CHECKING:
    from importlib import metadata

GROUP = "potash.helpers"
NUMBERS = extensions.HELPER_NUMBERS


@dataclass(frozen=True)
class AddedHelper:
    """A function for programs, and the number that they call it by.

    `call(arena, r1, r2, r3, r4, r5)` gives r0; it takes memory by `arena.bytes_at(address, size,
    write=…)`, which checks it. Whatever it raises ends the program with a fault that says so. It
    runs in the worker of each accelerator, so it keeps nothing from one call to the next.
    """

    number: int
    call: Callable[[Arena, int, int, int, int, int], int]


@dataclass(frozen=True)
class Added:
    """A helper with its name and the package that it comes from."""

    name: str
    package: str
    helper: AddedHelper

    def bound(self, arena: Arena) -> Helper:
        """The helper over the memory of one run, as the machine wants it."""

        def call(*registers: int) -> int:
            try:
                return operator.index(self.helper.call(arena, *registers))
            except Fault:
                raise
            except Exception as error:
                why = str(error) or type(error).__name__
                reason = f"{self.name}: {why}"
                raise Fault(FaultKind.HELPER_FAILED, None, None, reason) from error

        return call


@dataclass(frozen=True)
class Found:
    """The helpers that were found, by number, and a sentence for each that cannot be used."""

    helpers: Mapping[int, Added]
    problems: tuple[str, ...]

    @property
    def names(self) -> Mapping[str, int]:
        """Number by name, as the linker wants them."""
        return {added.name: number for number, added in self.helpers.items()}


@functools.cache
def found() -> Found:
    """The helpers of the packages that are installed, and of this process's extensions; looked for
    once in a process."""
    # A fifth of what the APU imports, which looks for none.
    from importlib import metadata

    return collect(metadata.entry_points(group=GROUP))


def collect(points: Iterable[metadata.EntryPoint]) -> Found:
    """The helpers behind some entry points, and of extensions. Two that claim one name or number
    are both left out."""
    loaded = [
        Added(one.name, one.place[0], AddedHelper(one.number, one.function))
        for one in extensions.programs.helpers.values()
    ]
    problems: list[str] = []
    for point in sorted(points, key=lambda point: (point.name, point.value)):
        package = point.dist.name if point.dist is not None else point.module
        try:
            loaded.append(Added(point.name, package, _load(point)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is somebody else's code
            why = str(error) or type(error).__name__
            problems.append(f"the helper {point.name} of {package} is left out: {why}")
    names = Counter(added.name for added in loaded)
    numbers = Counter(added.helper.number for added in loaded)
    kept = {}
    for added in loaded:
        number = added.helper.number
        if names[added.name] == numbers[number] == 1:
            kept[number] = added
            continue
        claimed = f"name {added.name}" if names[added.name] > 1 else f"number {number}"
        others = (one for one in loaded if one is not added)
        who = [
            f"{one.name} of {one.package}"
            for one in others
            if one.name == added.name or one.helper.number == number
        ]
        problems.append(
            f"the helper {added.name} of {added.package} is left out: the {claimed} is also that "
            f"of {', '.join(who)}"
        )
    return Found(kept, tuple(problems))


def _load(point: metadata.EntryPoint) -> AddedHelper:
    """Raises whatever the package raises, and ValueError or TypeError for what is no helper."""
    helper = point.load()
    if not isinstance(helper, AddedHelper):
        raise TypeError(f"{point.value} is not an AddedHelper")
    extensions.check_helper(point.name, helper.number)
    return helper

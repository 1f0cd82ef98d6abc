"""The argument of an experiment's functions: a point, with its parameters and its drives."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from potash.experiment import models
from potash.sdk.device import Device
from potash.sdk.transport import HostClock
from potash_firmware.ftl.interface import Ftl

T = TypeVar("T")


@dataclass(eq=False)
class Point:
    """One combination of parameters, in one repetition.

    Attributes:
        parameters: values by name; `point["name"]` is short for one of them.
        drives: the drives, open.
        files: contents of the experiment's files by name; a program in C is an object file.
        seed: this repetition's seed.
        clock: the host's clock in modelled time; None where time is the machine's.
        random: random numbers from the seed, the same for each function.
    """

    parameters: Mapping[str, int | float | str | bool]
    drives: Sequence[Device]
    files: Mapping[str, bytes]
    seed: int
    clock: HostClock | None
    _model: Mapping[str, Any] = field(default_factory=dict)
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)

    def __getitem__(self, name: str) -> int | float | str | bool:
        return self.parameters[name]

    def model(self, **keys: Any) -> Ftl:
        """A new drive of [model], with further keys of a profile. Raises TimingError and
        FtlError."""
        return models.build({**self._model, **keys})

    @property
    def now(self) -> int:
        """Nanoseconds of the clock that is measured by."""
        return time.monotonic_ns() if self.clock is None else self.clock.now

    def compute(self, nanoseconds: float) -> None:
        """Let the host's processor be busy for so long, in modelled time. Elsewhere the processor
        takes what it takes."""
        if self.clock is not None:
            self.clock.now += round(nanoseconds)

    def each(self, work: Callable[[Device], T]) -> list[T]:
        """Do `work` with every drive at the same time; its results, in the order of drives."""
        if self.clock is None:
            with ThreadPoolExecutor(len(self.drives)) as threads:
                return list(threads.map(work, self.drives))
        # Drives do not depend on each other, so one after another from the same time is the same.
        began, ended, found = self.clock.now, [], []
        for drive in self.drives:
            self.clock.now = began
            found.append(work(drive))
            ended.append(self.clock.now)
        self.clock.now = max(ended)
        return found

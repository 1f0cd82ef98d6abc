"""Stops of the guest: while a job's emulation is behind the guest's own time.

A job holds the guest from the moment at which guest time since its start has come up with what it
has modelled so far, and releases it when the model is ahead by a quantum. Single commands hold
nobody: they take less time than a stop.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from potash_firmware.rpu.deadlines import GuestClock
from potash_firmware.waiting import earliest

QUANTUM = 5_000_000
"""Nanoseconds by which the model has to be ahead before the guest goes on."""

MARGIN = 500_000
"""Nanoseconds before guest time comes up with a job: as long as a stop takes to begin."""

LEAST = 1_000_000
"""Nanoseconds of guest time that a job may take without a stop, which takes about as long."""

POLL = 0.001
"""Seconds between two looks at what a job has modelled, while the guest stands still for it."""


class Connection(Protocol):
    """A descriptor to wait for."""

    def fileno(self) -> int: ...

    @property
    def wants_write(self) -> bool: ...


class Standstill(Protocol):
    """Stops the guest; only `close` ever waits."""

    over: bool
    """The guest has stood still for too long and goes on, until every holder has released it."""

    def attach(self) -> None: ...

    def hold(self, holder: Hashable) -> None: ...

    def release(self, holder: Hashable) -> None: ...

    @property
    def source(self) -> Connection | None: ...

    @property
    def timeout(self) -> float | None: ...

    def service(self) -> None: ...

    def close(self) -> None: ...


class RunningJob(NamedTuple):
    """A job that a worker is at: it began at `start`, nanoseconds of guest time, and has modelled
    so many nanoseconds since. It is none any more as soon as its end is known."""

    key: Hashable
    start: int
    modelled: int


@dataclass(eq=False)
class Holding:
    """Has `standstill` hold the guest for those of `jobs` that are behind.

    `fail` ends the jobs for which the guest has stood still too long.
    """

    standstill: Standstill
    clock: GuestClock
    jobs: Callable[[], Iterable[RunningJob]]
    fail: Callable[[], None]
    _holders: set[Hashable] = field(default_factory=set, init=False)
    _failed: set[Hashable] = field(default_factory=set, init=False)
    """Jobs that were failed, and have not ended yet."""
    _attached: bool = field(default=False, init=False)
    _next: int | None = field(default=None, init=False)
    """Nanoseconds of guest time at which some job may have to hold the guest."""

    @property
    def timeout(self) -> float | None:
        """Seconds until `service` has something to do by itself."""
        limits = [self.standstill.timeout]
        if self._holders:
            limits.append(POLL)
        if self._next is not None and self.clock.frozen is None:
            limits.append(max(0, self._next - self.clock.now()) / 1e9)
        return earliest(*limits)

    def service(self, *, connected: bool) -> None:
        """Decide anew; `connected` while some host has the device."""
        still = self.standstill
        if connected and not self._attached:
            still.attach()
        self._attached = connected
        still.service()
        if still.over and self._holders:
            self._failed |= self._holders
            self._keep(set())
            self.fail()
        now = self.clock.now()
        holders: set[Hashable] = set()
        failed: set[Hashable] = set()
        self._next = None
        for key, start, modelled in self.jobs():
            if key in self._failed:
                failed.add(key)
                continue
            if key in self._holders and start + modelled - now < QUANTUM:
                holders.add(key)
                continue
            due = max(start + LEAST, start + modelled - MARGIN)
            if due <= now:
                holders.add(key)
            else:
                self._next = due if self._next is None else min(self._next, due)
        self._failed = failed
        self._keep(holders)

    def _keep(self, holders: set[Hashable]) -> None:
        for key in holders - self._holders:
            self.standstill.hold(key)
        for key in self._holders - holders:
            self.standstill.release(key)
        self._holders = holders

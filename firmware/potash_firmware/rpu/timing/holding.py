"""Stops of the guests: while the emulation is behind their own time.

All guests of a drive are stopped together, or none of them; "the guest" are all that use it. A job
holds the guest from the moment at which guest time since its start has come up with what it
has modelled so far, and releases it when the model is ahead by a quantum. With `scheduler`,
commands hold it likewise: one whose time has come while the media still work on it, until they
have ended; and the queues, while the loop does not come up with them. What the loop cannot see, as
it is in a long step or has no processor, is left to `Standstill.expect`.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol

from potash_firmware.rpu.deadlines import GuestClock
from potash_firmware.rpu.scheduler import Scheduler
from potash_firmware.waiting import earliest

QUANTUM = 5_000_000
"""Nanoseconds by which the model has to be ahead before the guest goes on."""

MARGIN = 500_000
"""Nanoseconds before guest time comes up with a job: as long as a stop takes to begin."""

COMMAND_MARGIN = 2_000_000
"""Nanoseconds before a command's time: as long as a stop takes to begin and to end."""

LEAST = 1_000_000
"""Nanoseconds of guest time that a job or a command may take without a stop, which takes about as
long."""

POLL = 0.001
"""Seconds between two looks at what a job has modelled, while the guest stands still for it."""

SLOW_ROUNDS = 2
"""Rounds of the queues in a row that took longer than `LEAST`, after which the guest is stopped
before the next: nothing can ask for a stop within a round. One alone may have waited for a
processor."""


class Connection(Protocol):
    """A descriptor to wait for."""

    def fileno(self) -> int: ...

    @property
    def wants_write(self) -> bool: ...


class Standstill(Protocol):
    """Stops the guest; only `close` ever waits."""

    able: bool
    """The guest can be stopped: all processes that use the drive can."""

    over: bool
    """The guest has stood still for too long and goes on, until every holder has released it."""

    @property
    def uncertain(self) -> bool:
        """The guest may run while its clock stands: a stop begins, or has just ended."""

    late_since: int
    """The time of the host in nanoseconds at which the guest was stopped as the device did not keep
    to `expect`; 0 if it was not, or the device has seen it."""

    def attach(self, clients: Sequence[Hashable | None]) -> None:
        """Connect to the guests of these processes, which are at the sockets."""

    def expect(self, due: int | None) -> None:
        """Stop the guest unless this is called again by `due`, a guest time; None ends that."""

    def hold(self, holder: Hashable) -> None: ...

    def release(self, holder: Hashable) -> None: ...

    @property
    def sources(self) -> Sequence[Connection]: ...

    @property
    def timeout(self) -> float | None: ...

    def service(self) -> None: ...

    def close(self) -> None: ...


class Running(NamedTuple):
    """A job or a command that is being emulated: it began at `start`, nanoseconds of guest time,
    and has modelled so many nanoseconds since. It is none any more as soon as its end is known."""

    key: Hashable
    start: int
    modelled: int


@dataclass(eq=False)
class Cause:
    """Jobs, or commands, that hold the guest through `standstill`, and how often and how long they
    have."""

    standstill: Standstill
    holders: set[Hashable] = field(default_factory=set)
    given_up: set[Hashable] = field(default_factory=set)
    """Holders for which the guest has stood still too long, and which have not ended yet."""
    stops: int = 0
    _stopped: int = 0
    _since: int = 0

    @property
    def stopped(self) -> int:
        """Nanoseconds of the host for which the guest has been held."""
        return self._stopped + (time.monotonic_ns() - self._since if self.holders else 0)

    def keep(self, holders: set[Hashable], since: int | None = None) -> None:
        """Hold the guest for these alone; it has stood since then already."""
        before, stopped = self.holders, self.stopped
        for key in holders - before:
            self.standstill.hold(key)
        for key in before - holders:
            self.standstill.release(key)
        if holders and not before:
            self.stops, self._since = self.stops + 1, since or time.monotonic_ns()
        elif before and not holders:
            self._stopped = stopped
        self.holders = holders

    def decide(self, running: Iterable[Running], now: int, margin: int) -> int | None:
        """Hold the guest for those that are behind. Returns when others may be, in guest time."""
        holders: set[Hashable] = set()
        given_up: set[Hashable] = set()
        following: int | None = None
        for key, start, modelled in running:
            if key in self.given_up:
                given_up.add(key)
                continue
            if key in self.holders and start + modelled - now < QUANTUM:
                holders.add(key)
                continue
            due = max(start + LEAST, start + modelled - margin)
            if due <= now:
                holders.add(key)
            else:
                following = due if following is None else min(following, due)
        self.given_up = given_up
        self.keep(holders)
        return following


class Holding:
    """Has `standstill` hold the guest for those of `running` jobs that are behind, and for the
    commands of `scheduler` if there is one.

    `fail` ends the jobs for which the guest has stood still too long.
    """

    def __init__(
        self,
        standstill: Standstill,
        clock: GuestClock,
        running: Callable[[], Iterable[Running]],
        fail: Callable[[], None],
        scheduler: Scheduler | None = None,
    ) -> None:
        self.standstill = standstill
        self.clock = clock
        self.jobs, self.commands = Cause(standstill), Cause(standstill)
        self._running = running
        self._fail = fail
        self._scheduler = scheduler
        if scheduler is not None:
            scheduler.emulated = {}
        self._clients: Sequence[Hashable | None] = ()
        self._next: float | None = None
        """Nanoseconds of guest time at which some job or command may have to hold the guest."""
        self._busy_since: int | None = None
        """Guest time from which on the loop has had more to do after each pass."""
        self._slow_rounds = 0

    @property
    def may_fetch(self) -> bool:
        """It is known when commands come that are fetched now. Others would complete too early."""
        return not self.standstill.uncertain

    @property
    def timeout(self) -> float | None:
        """Seconds until `service` has something to do by itself."""
        limits = [self.standstill.timeout]
        if self.jobs.holders:
            limits.append(POLL)
        if self._next is not None and self.clock.frozen is None:
            limits.append(max(0, self._next - self.clock.now()) / 1e9)
        return earliest(*limits)

    def service(self, clients: Sequence[Hashable | None], *, busy: bool = False) -> None:
        """Decide anew; `clients` are the processes at the device's sockets, None where there is
        none, and it is `busy` if more is waiting to be done already."""
        still = self.standstill
        if clients != self._clients:
            self._clients = clients
            still.attach(clients)
        still.service()
        if still.late_since:
            self.commands.keep({*self.commands.holders, "step"}, still.late_since)
            still.late_since = 0
        if still.over:
            failed = bool(self.jobs.holders)
            for cause in (self.jobs, self.commands):
                cause.given_up |= cause.holders
                cause.keep(set())
            if failed:
                self._fail()
        now = self.clock.now()
        if not busy:
            self._busy_since = None
        elif self._busy_since is None:
            self._busy_since = now
        self._next = earliest(
            self.jobs.decide(self._running() if still.able else (), now, MARGIN),
            self.commands.decide(self._emulated(), now, COMMAND_MARGIN),
        )
        self._expect()

    def _expect(self, due: float = inf) -> None:
        """Have the guest stopped unless this is called again by `LEAST` after `due`, or after the
        next deadline if that is sooner."""
        scheduler, clock = self._scheduler, self.clock
        if scheduler is None or not self.standstill.able:
            return
        heap = scheduler.deadlines.heap
        if heap and heap[0][0] < due:
            due = heap[0][0]
        runs = due < inf and clock.frozen is None
        self.standstill.expect(int(due) + LEAST if runs else None)

    def _emulated(self) -> Iterator[Running]:
        """Commands that are behind, or may be.

        While no other thread works on a command, none is: what it then waits for may be the guest.
        """
        scheduler = self._scheduler
        if scheduler is None or scheduler.emulated is None or not self.standstill.able:
            return
        if self._busy_since is not None:
            yield Running("queues", self._busy_since, 0)
        if scheduler.waiting:
            for steps, (start, due) in scheduler.emulated.items():
                yield Running(steps, start, due - start)

    def serve(self, serve: Callable[[], int]) -> int:
        """Serve the queues, whose commands may all be slow; the next `service` decides anew.

        Returns the number of commands, as `serve`.
        """
        if self._scheduler is None or not self.standstill.able:
            return serve()
        if self._slow_rounds >= SLOW_ROUNDS:
            self.commands.keep({*self.commands.holders, "round"})
        began = time.monotonic_ns()
        self._expect(self.clock.now())
        executed = serve()
        self._expect()
        slow = time.monotonic_ns() - began > LEAST
        self._slow_rounds = self._slow_rounds + 1 if slow else 0
        return executed

"""Compute units that share out the modelled time of a processor to tasks.

A pool has a number of units, each of which runs one task at a time, and a scheduler that says which
task a unit takes next. The length of a task becomes known only while it is emulated, so a pool goes
on in modelled time only as far as is known for each of its units: what it decides does not depend
on how fast the emulation is. Pools whose tasks share a device go on together (`timeline`). Times
are ns, of any clock; nothing in here waits.

At one instant, tasks reach their ends first, then slices of time end, then tasks arrive, each in
the order of units or of arrival; after each of these, units that are free take tasks.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

log = logging.getLogger(__name__)

MOST_UNITS = 64


class Ahead(NamedTuple):
    """The time of its unit that a task surely takes next, in ns.

    Then it reaches a point, which is the end or a wait for a device; or nothing is known yet.
    """

    ns: int
    is_point: bool


@dataclass(eq=False)
class Task:
    """A task of a pool."""

    arrived: int
    priority: int = 0
    """The larger, the more urgent."""
    program: int = 0
    """The index of its program."""
    namespace: int = 0
    """The compute namespace in which it is executed."""
    loaded: bool = False
    """A host has loaded its program, which the device does not define."""
    done: int = 0
    """Time of units that it has had."""
    start: int | None = None
    """The time at which it first had a unit."""
    end: int | None = None
    waits: bool = False
    """It waits for a device, with its unit or without, and `Pool.resume` says until when."""
    waits_until: int = 0
    """The time until which it waits for a device otherwise."""
    dropped: int | None = None
    """The time at which it was given up, with a unit."""

    def ahead(self) -> Ahead:
        """Its next time on a unit, from `done` on."""
        raise NotImplementedError

    def reached(self, at: int) -> int | None:
        """It has reached its point at that time. Returns when it goes on, which does not count
        where it `waits`; None at its end."""
        raise NotImplementedError


@dataclass(eq=False)
class Unit:
    """A unit, and the task that it runs."""

    number: int
    task: Task | None = None
    since: int = 0
    """The time from which on the task runs; it lies ahead while it waits for a device."""
    until: int | None = None
    """The end of its slice of time."""


class Choice(NamedTuple):
    """A task that is ready, and the free unit that is to run it."""

    task: Task
    unit: Unit


class UnitScheduler(Protocol):
    """The choice of tasks for units. `slice` is the time for which a task has a unit before others
    get their turn; None where it has it until it ends."""

    slice: int | None
    common: bool
    """True if all compute namespaces share the units; else each of them has so many."""

    def pick(self, ready: Sequence[Task], units: Sequence[Unit], now: int) -> Choice | None:
        """The task that runs next, and where. `ready` is not empty, in the order of arrival (or of
        the end of the last slice), and some unit has no task. None leaves the rest idle until
        something else happens."""

    def preempt(self, task: Task, units: Sequence[Unit], now: int) -> Unit | None:
        """The unit that is to stop its task, as `task` has come and all have one; None if none."""


class Fifo:
    """First come, first served."""

    slice: int | None = None
    common: bool = False

    def pick(self, ready: Sequence[Task], units: Sequence[Unit], now: int) -> Choice | None:
        return Choice(ready[0], next(unit for unit in units if unit.task is None))

    def preempt(self, task: Task, units: Sequence[Unit], now: int) -> Unit | None:
        return None


class RoundRobin(Fifo):
    """In turn, for a slice of time each."""

    def __init__(self, slice_ns: int) -> None:
        self.slice = slice_ns


class Priority(Fifo):
    """The most urgent first; one that is more urgent takes the unit of the least urgent."""

    def pick(self, ready: Sequence[Task], units: Sequence[Unit], now: int) -> Choice | None:
        most_urgent = max(ready, key=lambda task: (task.priority, -task.arrived))
        return super().pick([most_urgent], units, now)

    def preempt(self, task: Task, units: Sequence[Unit], now: int) -> Unit | None:
        least, _, unit = min(
            (running.priority, -running.arrived, unit.number)
            for unit in units
            if (running := unit.task) is not None
        )
        return units[unit] if least < task.priority else None


HOST = "host"
"""The group of the programs that a host has loaded."""


class Grouped(Fifo):
    """The first units are reserved for groups: `reserved` has the number of units of each. A group
    is of indexes of programs, of namespaces ("namespace3"), and of `HOST`; a task is in the first
    one of which it can be. All others share the other units."""

    def __init__(self, reserved: Sequence[tuple[frozenset[int | str], int]]) -> None:
        self._group = {member: number for number, (group, _) in enumerate(reserved)
                       for member in group}  # fmt: skip
        self.common = any(isinstance(member, str) and member != HOST for member in self._group)
        self._of_unit = [number for number, (_, units) in enumerate(reserved) for _ in range(units)]
        self.reserved = len(self._of_unit)

    def pick(self, ready: Sequence[Task], units: Sequence[Unit], now: int) -> Choice | None:
        free: dict[int | None, Unit] = {}
        for unit in units:
            if unit.task is None:
                reserved = unit.number < self.reserved
                free.setdefault(self._of_unit[unit.number] if reserved else None, unit)
        for task in ready:
            group = self._group_of(task)
            if group in free:
                return Choice(task, free[group])
        return None

    def _group_of(self, task: Task) -> int | None:
        members = [task.program, f"namespace{task.namespace}", *[HOST] * task.loaded]
        return min((self._group[name] for name in members if name in self._group), default=None)


class Kind(IntEnum):
    """Kinds of events of an instant, in their order."""

    UNKNOWN = 0
    """It is not known what a task does from then on."""
    POINT = 1
    SLICE = 2
    ARRIVAL = 3


class Event(NamedTuple):
    """The next step of a pool."""

    at: int
    kind: Kind
    number: int
    """The number of the unit."""


class Pool:
    """So many units, which share their tasks; without a scheduler, first come is first served."""

    def __init__(self, units: int = 1, scheduler: UnitScheduler | None = None) -> None:
        self.scheduler = scheduler or Fifo()
        self.units = [Unit(number) for number in range(units)]
        self.ready: list[Task] = []
        """Tasks that wait for a unit."""
        self.now = 0
        """The time until which it is decided what units do."""
        self.complain: Callable[[str], None] = log.error
        """Called once, with what a scheduler does that none may do; then `Fifo` decides."""
        self._arriving: deque[Task] = deque()

    def arrive(self, task: Task) -> None:
        """A task arrives, not before those that have arrived."""
        self._arriving.append(task)

    def drop(self, task: Task, now: int) -> None:
        """A task that has not ended never will: nobody waits for it any more."""
        if any(unit.task is task for unit in self.units):
            task.dropped = now
        elif task in self._arriving:
            self._arriving.remove(task)
        elif task in self.ready:
            self.ready.remove(task)

    @property
    def busy(self) -> bool:
        """Some task has not ended, or has a unit that was given up."""
        units = (unit.task is not None for unit in self.units)
        return bool(self.ready or self._arriving) or any(units)

    @property
    def following(self) -> Event | None:
        """Its next step; None if there is none before a task is resumed."""
        events = [
            event
            for unit in self.units
            if unit.task is not None and (event := self._of_unit(unit, unit.task)) is not None
        ]
        if self._arriving:
            events.append(Event(self._arriving[0].arrived, Kind.ARRIVAL, 0))
        return min(events, default=None)

    def take(self, event: Event) -> None:
        """Take the step `following`, which is known."""
        self.now = max(self.now, event.at)
        self._happen(event)
        self._assign(self.now)

    def resume(self, task: Task, at: int) -> None:
        """A task goes on that `waits`."""
        task.waits, task.waits_until = False, at
        for unit in self.units:
            if unit.task is task:
                unit.since = at

    def _of_unit(self, unit: Unit, task: Task) -> Event | None:
        if task.dropped is not None:
            return Event(max(self.now, task.dropped), Kind.POINT, unit.number)
        if task.waits:
            return None
        ns, is_point = task.ahead()
        at = unit.since + ns
        if unit.until is not None:
            over = max(unit.until, unit.since)
            if over < at or (over == at and not is_point):
                return Event(over, Kind.SLICE, unit.number)
        return Event(at, Kind.POINT if is_point else Kind.UNKNOWN, unit.number)

    def _happen(self, event: Event) -> None:
        at, unit = event.at, self.units[event.number]
        if event.kind is Kind.ARRIVAL:
            task = self._arriving.popleft()
            self.ready.append(task)
            if all(unit.task is not None for unit in self.units):
                self._preempt(task, at)
            return
        assert unit.task is not None
        task = unit.task
        if task.dropped is not None:
            unit.task = None
            return
        self._count(unit, task, at)
        if event.kind is Kind.SLICE:
            if self.ready:
                unit.task = None
                self.ready.append(task)
            else:
                unit.until = at + (self.scheduler.slice or 0)
        elif (resumed := task.reached(at)) is not None:
            unit.since = task.waits_until = max(at, resumed)
        else:
            task.end, unit.task = at, None

    def _count(self, unit: Unit, task: Task, at: int) -> None:
        """Count the time that a task has had its unit until then."""
        if not task.waits:
            task.done += max(0, at - unit.since)
            unit.since = max(at, unit.since)

    def _preempt(self, task: Task, at: int) -> None:
        try:
            unit = self.scheduler.preempt(task, self.units, at)
            if unit is not None and unit not in self.units:
                raise ValueError(f"preempt returns {unit!r:.60}, which is no unit")
        except Exception as error:  # noqa: BLE001 - it may be a user's code
            self._complain(error)
            return
        if unit is not None and unit.task is not None and unit.task.dropped is None:
            self._count(unit, unit.task, at)
            self.ready.append(unit.task)
            unit.task = None

    def _assign(self, at: int) -> None:
        """Have free units take tasks."""
        while self.ready and any(unit.task is None for unit in self.units):
            choice = self._pick(at)
            if choice is None:
                return
            task, unit = choice
            self.ready.remove(task)
            unit.task, unit.since = task, max(at, task.waits_until)
            unit.until = None if self.scheduler.slice is None else at + self.scheduler.slice
            if task.start is None:
                task.start = at

    def _pick(self, at: int) -> Choice | None:
        try:
            choice = self.scheduler.pick(tuple(self.ready), self.units, at)
            if choice is None:
                if all(unit.task is None for unit in self.units):
                    raise ValueError("pick chooses no task, and nothing runs that could end")
                return None
            task, unit = choice
            if task not in self.ready or unit not in self.units or unit.task is not None:
                raise ValueError(
                    "pick chooses a task that is not ready, or a unit that is not free"
                )
            return Choice(task, unit)
        except Exception as error:  # noqa: BLE001 - it may be a user's code
            self._complain(error)
            return self.scheduler.pick(self.ready, self.units, at)

    def _complain(self, error: Exception) -> None:
        """Say what is wrong with the scheduler, and go on without it."""
        self.complain(
            f"the scheduler {type(self.scheduler).__name__} fails, and first come is first served"
            f" from now on: {error}"
        )
        self.scheduler = Fifo()

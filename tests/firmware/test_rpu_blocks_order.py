"""The order of commands on the same blocks: random ones, ends of their work in any order, commands
that are aborted or held; against the literal rule that conflicting commands go on as they come."""

import random
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count, product
from typing import Any

import pytest

from potash_firmware.rpu.deadlines import Deadlines, GuestClock
from potash_firmware.rpu.media_work import BlocksInFlight
from potash_firmware.rpu.scheduler import Scheduler, Task


@dataclass(eq=False)
class Access:
    """What a command does with blocks; `number` is its place among all."""

    number: int
    writes: bool
    alone: bool
    ranges: tuple[tuple[int, int], ...]

    def conflicts(self, other: "Access", *, writes_alone: bool) -> bool:
        same_kind = self.writes == other.writes and not (self.writes and writes_alone)
        if same_kind and not (self.alone or other.alone):
            return False
        return any(
            first < start + size and start < first + length
            for (first, length), (start, size) in product(self.ranges, other.ranges)
        )


class Drive:
    """Commands that wait, and whose work is in flight."""

    def __init__(self, chance: random.Random, *, writes_alone: bool) -> None:
        self.chance, self.writes_alone = chance, writes_alone
        self.blocks = BlocksInFlight(writes_alone=writes_alone)
        self.scheduler = Scheduler(Deadlines(GuestClock()), submit=lambda _: Future())
        self.tasks: list[Task] = []
        self.numbers = count()
        self.waiting: dict[Access, bool] = {}
        """What waits for its turn, and whether that is of an odd command."""
        self.in_flight: dict[Future[Any], Access] = {}
        self.held = False
        """No odd command goes on."""
        self.overtaken = 0

    def begin(self) -> None:
        """Begin a command of one part or several, one after the other."""
        odd = bool(self.chance.randrange(2))
        task = Task(
            self.scheduler, self.steps(odd), lambda *_: None, paused=lambda: self.held and odd
        )
        self.tasks.append(task)
        task.go_on()

    def access(self) -> Access:
        chance = self.chance
        spans = [
            (chance.randrange(64) * 512, chance.choice((512, 4096, 16384)))
            for _ in range(chance.choice((1, 1, 1, 3)))
        ]
        if chance.random() < 0.02:
            spans = [(0, 4 << 20)]  # more areas than are told apart
        number = next(self.numbers)
        return Access(number, chance.random() < 0.5, chance.random() < 0.1, tuple(spans))

    def steps(self, odd: bool) -> Generator[Any, Any, None]:
        blocks, alone = self.blocks, self.writes_alone
        for _ in range(self.chance.choice((1, 1, 4))):
            access = self.access()
            self.waiting[access] = odd
            try:
                yield from blocks.turns(access.ranges, writes=access.writes, alone=access.alone)
            finally:
                del self.waiting[access]
            others = self.in_flight.values()
            assert not any(access.conflicts(other, writes_alone=alone) for other in others)
            self.overtaken += sum(
                earlier.number < access.number and access.conflicts(earlier, writes_alone=alone)
                for earlier in self.waiting
            )
            work: Future[Any] = Future()
            self.in_flight[work] = access
            blocks.add(work, access.ranges, writes=access.writes, alone=access.alone)
            yield work

    def end(self, most: int) -> None:
        """Have some work end, as one pass of the firmware finds it."""
        ended = self.chance.sample([*self.in_flight], min(len(self.in_flight), most))
        for work in ended:
            del self.in_flight[work]
            work.set_result(None)
            self.blocks.discard(work)
            self.scheduler.ended(work)
        self.scheduler.run()
        self.blocks.wake()
        self.scheduler.run()

    def abort(self) -> None:
        self.chance.choice(self.tasks).cancel()

    def go_on(self, *, held: bool) -> None:
        """Hold commands of odd number from now on, or no longer."""
        self.held = held
        if not held:
            self.scheduler.resume()
            self.scheduler.run()


@pytest.mark.parametrize("writes_alone", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_conflicting_commands_go_on_as_they_have_come(seed: int, writes_alone: bool) -> None:
    chance = random.Random(seed)
    drive = Drive(chance, writes_alone=writes_alone)
    for _ in range(300):
        if chance.random() < 0.5 or not drive.tasks:
            drive.begin()
        elif chance.random() < 0.1:
            drive.abort()
        else:
            drive.end(chance.randint(1, 8))
    while drive.in_flight:
        drive.end(100)
    assert not drive.waiting and drive.overtaken == 0


@pytest.mark.parametrize("seed", range(5))
def test_held_commands_keep_nobody_waiting(seed: int) -> None:
    chance = random.Random(seed)
    drive = Drive(chance, writes_alone=False)
    for number in range(300):
        if number % 50 == 0:
            drive.go_on(held=not drive.held)
        if chance.random() < 0.5:
            drive.begin()
        else:
            drive.end(chance.randint(1, 8))
    drive.held = True
    while drive.in_flight:
        drive.end(100)
    assert all(drive.waiting.values())
    drive.go_on(held=False)
    while drive.in_flight:
        drive.end(100)
    assert not drive.waiting

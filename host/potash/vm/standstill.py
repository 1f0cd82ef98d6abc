"""Stands a guest still, for a device that has to do what takes longer here than on modelled
hardware.

QEMU's `stop` and `cont` stop all clocks of a guest but for the RTC. Several holders may want a
stop: it begins with the first one and ends with the last. A stop of somebody else (a user at
another monitor, or another device of the same guest) is not ended here; one that somebody else ends
too early begins again.

The offset of guest time from the host's monotonic clock is read from the HPET, whose main counter
counts the time in which the machine runs (IA-PC HPET specification 1.0a, 2.3): the times of QEMU's
events, which serve where there is no HPET, are up to 0.2 ms wrong each time, always to one side.
"""

import logging
import re
import select
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from potash.vm.errors import GuestError
from potash.vm.qmp import Message, Monitor, event_time

log = logging.getLogger(__name__)

DEFAULT_LIMIT = 300
"""Seconds of a stop after which the guest goes on, whoever still wants it."""

HPET_CAPABILITIES = 0xFED00000
"""Revision and vendor in the lower 32 bits, the counter's period in femtoseconds in the upper."""
HPET_COUNTER = 0xFED000F0
INTEL = 0x8086
LONGEST_PERIOD = 0x05F5E100
"""Femtoseconds: the specification's maximum."""

READS = 4
QUICK = 300_000
"""Nanoseconds in which a read of the counter is good enough not to be repeated."""
TOLERANCE = 1_000_000
"""Nanoseconds by which the counter may say that a guest was stopped for less than no time."""
LATE = 1_000_000_000
"""Nanoseconds by which it may say that a stop was longer than was seen: the clock stops before the
processors do, of which the event tells, and it may be another device's stop."""

END_LIMIT = 2.0
"""Seconds that a device which ends waits for its guest to go on."""

_WORDS = re.compile(r":\s*0x([0-9a-fA-F]{8})\s+0x([0-9a-fA-F]{8})")


class Clock(Protocol):
    """Guest time: the host's monotonic clock less an offset, both in nanoseconds."""

    @property
    def offset(self) -> int: ...

    def now(self) -> int: ...

    def freeze(self) -> None:
        """Stand still, until `thaw`; again has no effect."""

    def thaw(self, offset: int) -> None:
        """Go on with this offset."""


class Bounds(NamedTuple):
    """Between which the host's clock less the counter lies, in ns."""

    low: int
    high: int


_Request = tuple[str, Mapping[str, Any] | None]
_Talk = Generator[_Request | None, Message, None]
_NOTHING: Message = {}


class Standstill:
    """The one that stops a guest on behalf of a device; its `service` belongs in the device's loop.

    Args:
        path: socket of a monitor that has no other client. QEMU need not listen yet.
        clock: guest time; is frozen from before a stop until after its end, so that it is never
            ahead of the guest's own.
        limit: seconds that a stop may last.
        wall: nanoseconds of the clock that guest time is derived from.
        realtime: seconds of the clock that QEMU's events have their times of.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        limit: float = DEFAULT_LIMIT,
        *,
        wall: Callable[[], int] = time.monotonic_ns,
        realtime: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._clock = clock
        self._limit = limit
        self._wall = wall
        self._realtime = realtime
        self._holders: set[object] = set()
        self._monitor: Monitor | None = None
        self.over = False
        """A stop has lasted longer than the limit; until the last holder has released it."""
        self.stops = 0
        """Stops that have begun here."""
        self._forget()

    def _forget(self) -> None:
        self._idle = False
        self._running = False
        self._runs = False
        """The guest's clock is known to run: it begins to after the event RESUME."""
        self._ours = False
        self._began = 0
        """When the stop was sent that lasts."""
        self._stopped_at: int | None = None
        """When the guest was stopped, by QEMU's event."""
        self._gap = 0
        """Nanoseconds of stops since the clock was set, by QEMU's events."""
        self._since: int | None = None
        """The earliest time at which the first of them can have begun."""
        self._unsettled = False
        self._period: int | None = None
        self._origin: int | None = None
        """Guest time at which the counter was 0."""

    # What the device asks for.

    def hold(self, holder: object) -> None:
        """Have the guest stand still soon; does not wait. Again has no effect."""
        self._holders.add(holder)
        self._go_on()

    def release(self, holder: object) -> None:
        """Have it go on, unless others still hold it."""
        self._holders.discard(holder)
        if not self._holders:
            self.over = False
        self._go_on()

    @property
    def stands(self) -> bool:
        """The guest is known to be stopped, by whomever."""
        return self._idle and not self._running

    def attach(self) -> None:
        """A guest has been given the device: find its monitor, unless that is there already."""
        if self._monitor is not None:
            return
        self._forget()
        try:
            self._monitor = Monitor(self._path, self._take)
        except OSError as error:
            log.warning(
                "the guest will not stand still: no QEMU listens at %s (%s)",
                self._path,
                error.strerror,
            )
            return
        self._talk = self._converse()
        next(self._talk)

    # For the device's loop.

    @property
    def source(self) -> Monitor | None:
        """What is to be waited for, if anything."""
        return self._monitor

    @property
    def timeout(self) -> float | None:
        """Seconds until `service` has something to do by itself."""
        if not (self._ours and self._wanted):
            return None
        return max(0.0, self._limit - (self._wall() - self._began) / 1e9)

    def service(self) -> None:
        """Do what can be done without waiting."""
        if self._monitor is None:
            return
        if self.timeout == 0.0:
            self.over = True
            log.error(
                "the guest stood still for %g seconds and goes on; what it was stopped for fails",
                self._limit,
            )
        try:
            self._monitor.service()
        except GuestError as error:
            self._lose(error)
        self._go_on()

    def close(self) -> None:
        """Let the guest go on, and leave its monitor; waits for that, for two seconds at most."""
        self._holders.clear()
        deadline = time.monotonic() + END_LIMIT
        self._go_on()
        while self._monitor is not None and (self._ours or not self._idle):
            left = deadline - time.monotonic()
            if left <= 0:
                log.warning("the guest may still stand: QEMU does not answer")
                break
            select.select((self._monitor,), (), (), left)
            self.service()
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None

    # The conversation.

    @property
    def _wanted(self) -> bool:
        return bool(self._holders) and not self.over

    def _go_on(self) -> None:
        """Go on with the conversation where it waits for something to be wanted."""
        if self._idle and self._monitor is not None:
            self._say(_NOTHING)

    def _take(self, message: Message) -> None:
        if self._monitor is None:
            return  # It was left at the message before.
        if "event" in message:
            self._take_event(message)
        elif not self._idle:
            self._say(message)

    def _say(self, answer: Message) -> None:
        assert self._monitor is not None
        try:
            request = self._talk.send(answer)
            if request is not None:
                self._monitor.send(*request)
        except GuestError as error:
            self._lose(error)

    def _lose(self, error: GuestError) -> None:
        """The monitor is gone, or of no use: guest time goes on from where it is."""
        if self._monitor is None:
            return
        idle = self._idle and not self._holders and self._since is None
        log.log(
            logging.DEBUG if idle else logging.WARNING,
            "the guest stands still no more: %s",
            error.reason,
        )
        self._monitor.close()
        self._monitor = None
        if self._since is not None:
            self._clock.thaw(self._wall() - self._clock.now())
        self._forget()

    def _take_event(self, event: Message) -> None:
        if event["event"] == "STOP":
            if self._since is None:
                self._stopped_elsewhere(self._when(event))
            elif self._stopped_at is None:
                self._stopped_at = self._when(event)
            self._running = False
        elif event["event"] == "RESUME":
            if self._stopped_at is not None:
                self._gap += max(0, self._when(event) - self._stopped_at)
                self._stopped_at = None
            self._running = self._unsettled = True
            self._ours = self._runs = False

    def _stopped_elsewhere(self, at: int) -> None:
        self._since = self._stopped_at = at
        self._clock.freeze()

    def _when(self, event: Message) -> int:
        """When an event happened, in nanoseconds of the host's monotonic clock."""
        at = event_time(event)
        age = 0.0 if at is None else max(0.0, self._realtime() - at)
        return self._wall() - round(age * 1e9)

    def _converse(self) -> _Talk:
        """What is said to a monitor: gives commands, and takes their answers.

        Gives None where it waits: for the greeting, and then for something to be wanted.
        """
        greeting = yield None
        if "QMP" not in greeting:
            raise GuestError(f"the socket {self._path} is not a monitor of QEMU")
        yield from self._ask("qmp_capabilities")
        status = yield from self._ask("query-status")
        self._running = isinstance(status, dict) and status.get("running") is True
        if not self._running and self._stopped_at is None:
            self._stopped_elsewhere(self._wall())
        low, high = yield from self._words(HPET_CAPABILITIES)
        if low >> 16 == INTEL and 0 < high <= LONGEST_PERIOD:
            self._period = high
        self._unsettled = self._runs = self._running
        while True:
            if self._wanted and self._running:
                yield from self._stop()
            elif self._unsettled:
                yield from self._settle()
            elif self._ours and not self._wanted:
                yield from self._ask("cont")
                self._ours, self._runs = False, True
            else:
                self._idle = True
                yield None
                self._idle = False

    def _ask(
        self, command: str, arguments: Mapping[str, Any] | None = None
    ) -> Generator[_Request, Message, Any]:
        answer = yield command, arguments
        if "return" not in answer:
            error = answer.get("error")
            reason = error.get("desc") if isinstance(error, dict) else answer
            raise GuestError(f"QEMU refuses {command}: {reason}")
        return answer["return"]

    def _words(self, address: int) -> Generator[_Request, Message, tuple[int, int]]:
        """The lower and the upper word of a register, at a physical address; zeros for none."""
        line = f"xp /2wx {address:#x}"
        text = yield from self._ask("human-monitor-command", {"command-line": line})
        found = _WORDS.search(text) if isinstance(text, str) else None
        return (int(found[1], 16), int(found[2], 16)) if found else (0, 0)

    def _stop(self) -> Generator[_Request, Message, None]:
        self._began = self._wall()
        if self._since is None:
            self._since = self._began
        self._clock.freeze()
        yield from self._ask("stop")
        self._ours, self._running = True, False
        self.stops += 1

    def _settle(self) -> Generator[_Request, Message, None]:
        """The guest runs: find the offset of its clock."""
        self._unsettled = False
        before = self._clock.offset
        latest = self._wall()
        ahead = yield from self._compare() if self._period else _no_bounds()
        if not self._running:
            return  # Its next end finds it.
        since = latest if self._since is None else self._since
        offset = before + min(self._gap, latest - since)
        if ahead is not None:
            middle, slack = sum(ahead) // 2, TOLERANCE + ahead.high - ahead.low
            found = None if self._origin is None else middle - self._origin
            if found is not None and -slack <= found - before <= latest - since + LATE:
                offset = found
            else:  # the first time, or it was reset, or halted
                self._origin = middle - offset
        if self._unsettled:
            return  # It was stopped meanwhile.
        self._since, self._gap = None, 0
        self._clock.thaw(offset)

    def _compare(self) -> Generator[_Request, Message, Bounds | None]:
        """Compare the host's clock with the counter, by a quick read of it or some slow ones.

        After a RESUME of somebody else's the clock may not run yet, so two reads have to agree.
        """
        found: Bounds | None = None
        agree = 0
        for _ in range(READS):
            if not self._running:
                return None
            before = self._wall()
            low, high = yield from self._words(HPET_COUNTER)
            after = self._wall()
            assert self._period is not None
            counter = (high << 32 | low) * self._period // 1_000_000
            read = Bounds(before - counter, after - counter)
            if found is None or read.low >= found.high or read.high <= found.low:
                found, agree = read, 1
            else:
                found = Bounds(max(found.low, read.low), min(found.high, read.high))
                agree += 1
            if after - before <= QUICK and agree > (not self._runs):
                break
        return found


def _no_bounds() -> Generator[_Request, Message, None]:
    return
    yield

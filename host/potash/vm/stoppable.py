"""A guest that is stopped through its monitor, and its time.

QEMU's `stop` halts the processors and the virtual clock, to which all clocks of the guest but the
RTC belong, and `cont` lets them go on. Guest time is the host's monotonic clock less an offset, to
which each stop adds its duration.

A stop that was requested elsewhere (by a user at another monitor, or by another device of the same
guest) is not ended here, unless it was requested while the guest was stopped already, which cannot
be noticed. A stop that was requested here and is ended elsewhere is requested again.

The offset is measured with QEMU's HPET, whose main counter follows the virtual clock (registers:
IA-PC HPET specification 1.0a, section 2.3). It is read while the guest is stopped, which is exact,
and the time of QEMU's event RESUME says when the clock has started again. After a stop that was
ended elsewhere, the counter is read while the clock runs. Where there is no HPET, the times of
QEMU's events alone are used, which are up to 0.2 ms wrong each time, always in the same direction.
"""

import logging
import re
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from potash.vm.errors import GuestError
from potash.vm.qmp import Message, Monitor, connected, event_time
from potash.vm.watch import MARK

log = logging.getLogger(__name__)

HPET_CAPABILITIES = 0xFED00000
"""Guest-physical address of the register with the revision and vendor in the lower 32 bits, and the
counter's period in femtoseconds in the upper."""
HPET_COUNTER = 0xFED000F0
"""Guest-physical address of the main counter."""
INTEL = 0x8086
LONGEST_PERIOD = 0x05F5E100
"""Femtoseconds: the specification's maximum."""

READS = 4
"""Reads of the counter for one measurement, at most."""
QUICK = 500_000
"""Nanoseconds within which a read of the counter is exact enough not to be repeated."""
TOLERANCE = 1_000_000
"""Nanoseconds by which a stop may be negative by the counter: the error of a measurement."""
LATE = 1_000_000_000
"""Nanoseconds that a stop may be longer by the counter than by the events. The clock stops before
the event STOP, which is sent when the processors have stopped; and this monitor may get no events
of a stop by another device of the guest."""

STARTED = 50_000
"""Nanoseconds after the event RESUME in which the clock starts, unless QEMU loses its processor."""
PROMPT = 1_000_000
"""Nanoseconds after that event in which QEMU's answer comes, unless it may have lost it."""

ANSWER_LIMIT = 5_000_000_000
"""Nanoseconds without an answer of QEMU after which nobody waits for it."""

_WORDS = re.compile(r":\s*0x([0-9a-fA-F]{8})\s+0x([0-9a-fA-F]{8})")


class Clock(Protocol):
    """Guest time: the host's monotonic clock less an offset, both in nanoseconds."""

    seconds: Callable[[], float]
    """The host's clock."""

    @property
    def offset(self) -> int: ...

    @property
    def frozen(self) -> int | None:
        """The time at which the clock stands; None while time passes."""

    def now(self) -> int: ...

    def freeze(self) -> None:
        """Stand still, until `thaw`. Has no effect if it does already."""

    def advance(self, to: int) -> None:
        """Stand at a later time than so far: the guest was stopped only then."""

    def thaw(self, offset: int) -> None:
        """Continue with this offset."""


class Bounds(NamedTuple):
    """Bounds of the difference between the host's clock and the counter, in nanoseconds."""

    low: int
    high: int


_Request = tuple[str, Mapping[str, Any] | None]
_Conversation = Generator[_Request | None, Message, None]
_NO_MESSAGE: Message = {}


class StoppableGuest:
    """A guest with a monitor, and the conversation with that; it never waits.

    Args:
        path: socket of a monitor that has no other client.
        clock: guest time. It is frozen from before a stop until after its end, so that it is not
            ahead of the guest's own; for a stop requested elsewhere it may be, until QEMU reports
            the stop.
        late: the time at which the device's watch has stopped the guest (see `Watch.stopped`).
        on_stop: called before a stop is requested.
        wall: nanoseconds of the host's monotonic clock, from which guest time is derived.
        realtime: seconds of the clock that QEMU uses for the times of events.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        late: Callable[[], int],
        on_stop: Callable[[], None],
        *,
        wall: Callable[[], int],
        realtime: Callable[[], float],
    ) -> None:
        self.path = path
        self.clock = clock
        self._late = late
        self._on_stop = on_stop
        self._wall = wall
        self._realtime = realtime
        self.monitor: Monitor | None = None
        self.present = False
        """The guest uses the drive."""
        self.held = False
        """The guest is to be stopped."""
        self.watched = False
        """The device's watch stops the guest, too."""
        self.stops = 0
        """Number of stops that were begun here."""
        self._forget()

    def _forget(self) -> None:
        self.greeted = False
        """The monitor is one of QEMU's, and the state of the guest is known."""
        self.idle = False
        """The conversation waits for a request of the device."""
        self._asked_at = self._wall()
        """The time at which it began to wait for QEMU."""
        self._overdue = self._changed = False
        self.taken_over = 0
        """The latest stop by the watch that is a stop of this guest's here."""
        self._running = False
        """The guest runs, by QEMU's last answer or event."""
        self._clock_runs = False
        """The guest's clock is known to run: it starts some time after the event RESUME."""
        self.stopped_here = False
        """The guest was stopped here, and has not continued since."""
        self.began = 0
        """The time at which the current stop was requested."""
        self._stopped_at: int | None = None
        """The time at which the guest was stopped, by QEMU's event."""
        self._stopped_for = 0
        """Total duration of stops since the clock was set, in nanoseconds, by QEMU's events."""
        self._since: int | None = None
        """The earliest time at which the first of these stops can have begun."""
        self._unsettled = False
        """The guest has continued since its clock's offset was measured last."""
        self._counter_period: int | None = None
        self._origin: int | None = None
        """Guest time at which the counter was 0."""
        self._stands_at: int | None = None
        """The guest's time while it is stopped, by the counter."""
        self._resumed_at: int | None = None
        """The time at which the guest has continued last, by QEMU's event."""

    @property
    def stands(self) -> bool:
        """True once the guest is stopped, here or elsewhere, and no request is in progress."""
        return self.idle and not self._running

    @property
    def stands_elsewhere(self) -> bool:
        """The guest was stopped, but neither here nor by the watch."""
        return not (self._running or self.stopped_here or self._stopped_by_watch)

    @property
    def uncertain(self) -> bool:
        """The guest may run while its clock stands here: a stop begins, or has just ended."""
        return self._since is not None and not self.stands

    @property
    def answer_due(self) -> int | None:
        """The time by which QEMU has to answer; None while nobody waits for that."""
        if self.monitor is None or self.idle or self._overdue:
            return None
        return self._asked_at + ANSWER_LIMIT

    @property
    def ready(self) -> bool:
        """The guest can be stopped: it has a monitor, which answers."""
        return self.greeted and not self._overdue

    def attach(self) -> None:
        """Connect to the monitor of the guest that has attached, unless there is a connection."""
        if self.monitor is not None:
            return
        self._forget()
        try:
            self.monitor = Monitor(connected(self.path), self._receive)
        except OSError as error:
            log.warning(
                "the guest will not stand still: no QEMU listens at %s (%s)",
                self.path,
                error.strerror,
            )
            return
        self._conversation = self._converse()
        next(self._conversation)

    def service(self) -> bool:
        """Send and receive what is possible without waiting. Returns True if anything changed."""
        if self.monitor is None:
            return False
        self._changed = False
        try:
            self.monitor.service()
        except GuestError as error:
            self._lose(error)
        if (due := self.answer_due) is not None and self._wall() >= due:
            self._overdue = self._changed = True
            log.warning("no guest is stopped: QEMU does not answer at %s", self.path)
        return self._changed

    def proceed(self) -> None:
        """Continue the conversation if it waits for a request of the device."""
        if self.idle and self.monitor is not None:
            self._send(_NO_MESSAGE)

    def close(self) -> None:
        if self.monitor is not None:
            self.monitor.close()
            self.monitor = None

    # The conversation.

    def _receive(self, message: Message) -> None:
        if self.monitor is None:
            return  # The message before has ended the connection.
        self._changed = True
        if "event" in message:
            self._handle_event(message)
        elif not self.idle and message.get("id") != MARK:
            self._send(message)

    def _send(self, answer: Message) -> None:
        assert self.monitor is not None
        try:
            request = self._conversation.send(answer)
            self._overdue = False
            if request is not None:
                self._asked_at = self._wall()
                self.monitor.send(*request)
        except GuestError as error:
            self._lose(error)

    def _lose(self, error: GuestError) -> None:
        """Disconnect from a monitor that is gone or unusable; guest time continues from there."""
        if self.monitor is None:
            return
        idle = self.idle and not self.held and self._since is None
        log.log(
            logging.DEBUG if idle else logging.WARNING,
            "the guest stands still no more: %s",
            error.reason,
        )
        self.close()
        if self._since is not None:
            self.clock.freeze()
            self.clock.thaw(self._wall() - self.clock.now())
        self._forget()
        self._changed = True

    def _handle_event(self, event: Message) -> None:
        if event["event"] == "STOP":
            if self._stopped_at is None:
                self._has_stopped(self._when(event))
            self._running = False
        elif event["event"] == "RESUME":
            if self._stopped_at is not None:
                self._stopped_for += max(0, self._when(event) - self._stopped_at)
                self._stopped_at = None
            self._running = self._unsettled = True
            self.stopped_here = self._clock_runs = False
            self._stands_at, self._resumed_at = None, self._when(event)

    def _has_stopped(self, at: int) -> None:
        self._since = at if self._since is None else self._since
        self._stopped_at = at
        self.clock.freeze()

    def _when(self, event: Message) -> int:
        """The time of an event, in nanoseconds of the host's monotonic clock."""
        at = event_time(event)
        age = 0.0 if at is None else max(0.0, self._realtime() - at)
        return self._wall() - round(age * 1e9)

    def _converse(self) -> _Conversation:
        """The conversation with a monitor: yields commands, and is sent their answers.

        It yields None where it waits: for the greeting, and later for a request of the device.
        """
        greeting = yield None
        if "QMP" not in greeting:
            raise GuestError(f"the socket {self.path} is not a monitor of QEMU")
        yield from self._ask("qmp_capabilities")
        status = yield from self._ask("query-status")
        self._running = isinstance(status, dict) and status.get("running") is True
        if not self._running and self._stopped_at is None:
            self._has_stopped(self._wall())
        low, high = yield from self._words(HPET_CAPABILITIES)
        if low >> 16 == INTEL and 0 < high <= LONGEST_PERIOD:
            self._counter_period = high
        self._unsettled = self._clock_runs = self._running
        self.greeted = True
        while True:
            if (self.held and self._running) or self._stopped_by_watch:
                yield from self._stop()
            elif self._unsettled:
                yield from self._settle()
            elif self.stopped_here and not self.held:
                yield from self._continue()
            else:
                self.idle = True
                yield None
                self.idle = False

    @property
    def _stopped_by_watch(self) -> bool:
        """The guest was stopped as the device was late, which is yet to be taken over."""
        return self.watched and self._late() not in (0, self.taken_over)

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
        """The lower and the upper word of a register at a physical address; zeros where there is
        none."""
        line = f"xp /2wx {address:#x}"
        text = yield from self._ask("human-monitor-command", {"command-line": line})
        found = _WORDS.search(text) if isinstance(text, str) else None
        return (int(found[1], 16), int(found[2], 16)) if found else (0, 0)

    def _stop(self) -> Generator[_Request, Message, None]:
        self.began = self._wall()
        if self._since is None:
            self._since = self.began
        self.clock.freeze()
        self.stopped_here, self.taken_over = True, self._late()
        self._on_stop()
        yield from self._ask("stop")  # again, if the device was late
        self.stopped_here, self._running = True, False
        self.stops += 1
        self._stands_at = None
        if self._counter_period and self._origin is not None:
            low, high = yield from self._words(HPET_COUNTER)
            at = self._nanoseconds(low, high) + self._origin
            latest = self._wall() - self.clock.offset
            if not self._running and self.clock.now() - TOLERANCE <= at <= latest + TOLERANCE:
                self._stands_at = at
                self.clock.advance(at)

    def _continue(self) -> Generator[_Request, Message, None]:
        """Let the guest go on, whose clock then goes on from where it is known to stand."""
        stands_at, self._resumed_at = self._stands_at, None
        yield from self._ask("cont")
        self.stopped_here, self._clock_runs = False, True
        if stands_at is None or self._resumed_at is None:
            return
        offset = self._resumed_at + STARTED - stands_at
        if self._wall() - self._resumed_at > PROMPT:
            # Deadlines pass meanwhile, by a clock that is not ahead of the guest's.
            self.clock.thaw(self._wall() - stands_at)
            ahead = yield from self._compare()
            self.clock.freeze()
            if ahead is None or self._origin is None:
                return
            offset = min(max(offset, ahead.low - self._origin), ahead.high - self._origin)
        if self._running:
            self._unsettled = False
            self._set_offset(offset)

    def _set_offset(self, offset: int) -> None:
        self._since, self._stopped_for = None, 0
        self.clock.thaw(offset)

    def _nanoseconds(self, low: int, high: int) -> int:
        """The time that a value of the counter is."""
        assert self._counter_period is not None
        return (high << 32 | low) * self._counter_period // 1_000_000

    def _settle(self) -> Generator[_Request, Message, None]:
        """Measure the offset of the guest's clock after the guest has continued."""
        self._unsettled = False
        before = self.clock.offset
        latest = self._wall()
        ahead = (yield from self._compare()) if self._counter_period else None
        if not self._running:
            return  # It has been stopped again, and is measured after that stop.
        since = latest if self._since is None else self._since
        offset = before + min(self._stopped_for, latest - since)
        if ahead is not None:
            middle, slack = sum(ahead) // 2, TOLERANCE + ahead.high - ahead.low
            found = None if self._origin is None else middle - self._origin
            # A plausible stop is not negative, and no longer than the time since it began.
            if found is not None and -slack <= found - before <= latest - since + LATE:
                offset = found
            else:  # the first measurement, or the counter was reset or halted
                self._origin = middle - offset
        if self._unsettled:
            return  # It was stopped and has continued meanwhile: measure again.
        self._set_offset(offset)

    def _compare(self) -> Generator[_Request, Message, Bounds | None]:
        """Read the counter until a read is quick enough, READS times at most; combine the bounds.

        After a RESUME that was requested elsewhere, the clock may not run yet, so a quick read
        counts only if it agrees with the one before.
        """
        found: Bounds | None = None
        agree = 0
        for _ in range(READS):
            if not self._running:
                return None
            before = self._wall()
            low, high = yield from self._words(HPET_COUNTER)
            after = self._wall()
            counter = self._nanoseconds(low, high)
            read = Bounds(before - counter, after - counter)
            if found is None or read.low >= found.high or read.high <= found.low:
                found, agree = read, 1
            else:
                found = Bounds(max(found.low, read.low), min(found.high, read.high))
                agree += 1
            if after - before <= QUICK and agree > (not self._clock_runs):
                break
        return found

"""The RPU's end of the mailbox: host commands on their way to the APU and back.

A command holds a transfer slot from its request to its reply, also one that moves no data and one
that a reset has forgotten: the APU may still be writing to it, and no host can fill the mailbox.

Source: Alkali CSD platform documentation, section 4.3.1.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Self

from nvme_spec.status import Status
from potash_firmware.mailbox import (
    MailboxError,
    RpuPort,
    SharedBuffers,
    is_returned,
    tag_number,
    value_of,
)
from potash_firmware.mailbox.messages import (
    CONTROLLER_RESET,
    ERASE,
    NEXT_HOST,
    NO_SLOT,
    Alive,
    Executed,
    Ping,
    ProgramChecked,
    Reply,
    Request,
    Reset,
    ResetScope,
    ToApu,
    ToRpu,
)
from potash_firmware.mailbox.shared import SLOTS
from potash_firmware.rpu.accelerators.apu_engine import ApuEngine
from potash_firmware.rpu.deadlines import NO_TIMER, Deadlines, Timer
from potash_firmware.rpu.scheduler import Signal, Steps, Wait

log = logging.getLogger(__name__)

TAG_LIMIT = 1 << 32

PATIENCE = 2.5
"""Seconds in which an APU that was asked something says nothing before it is asked whether it is
there, and as many after that before it is given up: it answers everything immediately, but for what
waits for a job's end. A device that was stopped together with it receives the second answer."""

START_PATIENCE = 30.0
"""The first of these while it has yet to say that it has started, on however busy a machine."""


class Slot:
    """A transfer slot that a command holds: a context manager, at whose end the slot is free, or
    as soon as the APU has answered."""

    def __init__(self, number: int, free: Callable[[int], None]) -> None:
        self.number = number
        self.answered = Signal()
        """Brings the reply."""
        self.asked = False
        self._free = free
        self._is_left = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.asked and not self.answered.sent:
            self._is_left = True
        else:
            self._free(self.number)

    def answer(self, reply: Reply) -> None:
        """The APU has answered what was asked."""
        self.answered.send(reply)
        if self._is_left:
            self._free(self.number)


NO_SCOPE = ResetScope(0)


@dataclass(eq=False)
class PendingReset:
    """Resets of one controller, or of all, that the APU has yet to get, or has not answered."""

    controller: int | None
    scope: ResetScope = NO_SCOPE
    engines: tuple[int, ...] = ()
    tag: int | None = None
    """Tag of the newest that was sent."""
    requests: int = -1
    """The number of requests before that."""


class ApuLink:
    """Requests in flight, free slots, and the port while an APU is there."""

    def __init__(self, buffers: SharedBuffers, timers: Deadlines) -> None:
        self.buffers = buffers
        self.port: RpuPort | None = None
        self._resets: dict[int | None, PendingReset] = {}
        """The resets that the APU has yet to get, or has not answered, by controller, or None for
        those of all."""
        self._requests = 0
        """The number of requests: a reset serves for the next one if it has not changed."""
        self.sent = 0
        self.received = 0
        """Messages, of all APUs that there have been."""
        self._erasures: list[Signal] = []
        self._tags = count()
        self._free = list(range(SLOTS))
        self._stale: set[int] = set()
        """Slots in use that hold what is a former host's."""
        self._slot_waiters: deque[Signal] = deque()
        self._in_flight: dict[int, Slot] = {}
        self.timers = timers
        self._timer: Timer = NO_TIMER
        """The time at which to check an APU that owes an answer."""
        self._silent_since = 0
        """The time at which the APU last sent a message, or got a request while it owed no other
        answer, in nanoseconds."""
        self._started = False
        """The APU has said something."""
        self._pinged = False
        """It was probed, and has sent nothing since."""
        self.engine = ApuEngine(self.send, self._new_tag, self._asking)

    # The APU comes and goes.

    def connect(self, port: RpuPort) -> None:
        """An APU has started, with the configuration that the last one had.

        A reset that the last one did not hear, or did not finish, is the first message to it.
        """
        self.port = port
        self._started = self._pinged = False
        self._silent_since = self.timers.clock.now()
        for reset in self._resets.values():
            self._send_reset(reset)
        self.engine.connected()
        if self._is_asked:
            self._watch()

    def disconnect(self) -> None:
        """The APU is gone: every request that it had fails."""
        if self.port is not None:
            self.port.close()
            self.port = None
        self.engine.disconnected()
        for reset in self._resets.values():
            reset.tag = None
        for tag in list(self._in_flight):
            self._answered(_failure(tag))
        self._end_erasures()  # the next APU does that before it answers anything

    def kill(self) -> None:
        """End the APU's process, as if it had died: none of its messages is received any more."""
        if self.port is not None:
            self.port.close()

    @property
    def lost(self) -> bool:
        """The APU has closed its end and is not disconnected yet."""
        return self.port is not None and self.port.closed

    @property
    def in_flight(self) -> int:
        """Requests that the APU has not answered."""
        return len(self._in_flight)

    # Supervision of an APU that owes an answer.

    def _check(self) -> None:
        """Ask an APU that owes an answer and says nothing whether it is there, then give it up."""
        if self.port is None or self.port.closed or not self._is_asked:
            return
        now = self.timers.clock.now()
        if now >= self._patient_until:
            if self._pinged:
                log.error("the APU does not answer any more, and is ended")
                self.kill()
                return
            self._pinged = True
            self._silent_since = now
            self.send(Ping(self._new_tag()))
        self._watch()

    @property
    def _patient_until(self) -> int:
        patience = PATIENCE if self._started or self._pinged else START_PATIENCE
        return self._silent_since + round(patience * 1e9)

    def _watch(self) -> None:
        self._timer.cancel()
        self._timer = self.timers.call(self._patient_until, self._check)

    @property
    def _is_asked(self) -> bool:
        """The APU owes an answer."""
        if self._in_flight or self.engine.asked:
            return True
        return any(reset.tag is not None for reset in self._resets.values())

    def _asking(self) -> None:
        """Something is asked, which has its time from now on."""
        if not self._is_asked:
            self._silent_since = self.timers.clock.now()
        if self._timer.over:
            self._watch()

    def _new_tag(self) -> int:
        return next(self._tags) % TAG_LIMIT

    # Slots.

    def slot(self) -> Steps[Slot]:
        """Wait for a free slot, in the order of asking."""
        if self._free and not self._slot_waiters:
            return Slot(self._free.pop(), self._free_slot)
        waiter = Signal()
        self._slot_waiters.append(waiter)
        try:
            number = yield Wait(waiter)
        except GeneratorExit:
            if waiter.sent:
                self._free_slot(waiter.value)
            else:
                self._slot_waiters.remove(waiter)
            raise
        return Slot(number, self._free_slot)

    def _free_slot(self, number: int) -> None:
        if number in self._stale:
            self._stale.remove(number)
            self.buffers.clear_slot(number)
        if self._slot_waiters:
            self._slot_waiters.popleft().send(number)
        else:
            self._free.append(number)

    # Messages.

    def request(
        self,
        slot: Slot,
        *,
        admin: bool,
        opcode: int,
        nsid: int,
        cdws: tuple[int, int, int, int, int, int],
        length: int,
        controller: int = 0,
    ) -> int:
        """Send a command that holds `slot`, which is answered exactly once; the request's tag."""
        self._asking()
        tag = self._new_tag()
        slot.asked = True
        self._in_flight[tag] = slot
        if self.port is None:
            self._answered(_failure(tag))
        else:
            self._requests += 1
            number = slot.number if length else NO_SLOT
            self.send(Request(tag, admin, opcode, nsid, cdws, number, length, controller))
        return tag

    def _answered(self, reply: Reply) -> None:
        self._in_flight.pop(reply.tag).answer(reply)

    def take_over(self) -> None:
        """The buffers are about to hold what the next APU begins with, which is not to be reset."""
        self.disconnect()
        self._resets.clear()

    @property
    def started(self) -> bool:
        """The APU has said something."""
        return self.port is not None and self._started

    @property
    def idle(self) -> bool:
        """The APU owes no answer, and nothing of it waits here."""
        return not (self._is_asked or self.engine.ended)

    def reset(
        self, *, next_host: bool = False, controller: int | None = None, engines: Iterable[int] = ()
    ) -> None:
        """A controller was reset, or all: have every job of theirs stopped and forgotten.

        Where the `next_host` may be another one, nothing of this one's is left: buffers, firmware,
        logs, transfer slots, and what programs of the compute namespaces `engines` have left.
        """
        if next_host:
            self._stale = set(range(SLOTS)) - set(self._free)
            for slot in self._free:
                self.buffers.clear_slot(slot)
        scope = NEXT_HOST if next_host else CONTROLLER_RESET
        self._reset(scope, controller, tuple(engines))

    def erase(self) -> Signal:
        """Have the accelerators forget the user data that they hold; sent when they have.

        Without an APU that is now: the next one forgets before it answers.
        """
        self._reset(ERASE)
        erased = Signal()
        if self.port is None:
            erased.send()
        else:
            self._erasures.append(erased)
        return erased

    def _reset(
        self, scope: ResetScope, controller: int | None = None, engines: tuple[int, ...] = ()
    ) -> None:
        """Send a reset.

        A host may reset as often as it likes. One that the APU has yet to answer serves for the
        next as well, if nothing was asked in between.
        """
        reset = self._resets.setdefault(controller, PendingReset(controller))
        more = scope & ~reset.scope or set(engines) - set(reset.engines)
        reset.scope |= scope
        reset.engines = engines
        if reset.tag is None or more or reset.requests != self._requests:
            self._send_reset(reset, scope)

    def _send_reset(self, reset: "PendingReset", scope: ResetScope | None = None) -> None:
        if self.port is None:
            return
        self._asking()
        reset.tag, reset.requests = self._new_tag(), self._requests
        only = () if reset.controller is None else (reset.controller, *reset.engines)
        self.send(Reset(reset.tag, scope or reset.scope, only))

    @property
    def resetting(self) -> int | None:
        """Tag of the newest reset that the APU has not answered yet."""
        tags = [reset.tag for reset in self._resets.values() if reset.tag is not None]
        return max(tags, default=None)

    def is_resetting(self, controller: int) -> bool:
        """The APU has not answered a reset of the controller, or of all, yet: what it asks for is
        of before."""
        resets = (self._resets.get(None), self._resets.get(controller))
        return any(reset is not None and reset.tag is not None for reset in resets)

    def reset_done(self, tag: int) -> None:
        """The APU has answered a reset; only the newest of each controller counts."""
        for controller, reset in list(self._resets.items()):
            if reset.tag == tag:
                del self._resets[controller]
                if controller is None:
                    self._end_erasures()

    def _end_erasures(self) -> None:
        for erased in self._erasures:
            erased.send()
        self._erasures.clear()

    def send(self, message: ToApu | bytes) -> None:
        """Send a message, which may be encoded. An APU that has stopped reading is treated as
        gone."""
        assert self.port is not None
        self.sent += 1
        try:
            if isinstance(message, bytes):
                self.port.send_encoded(message)
            else:
                self.port.send(message)
        except MailboxError as error:
            log.error("the APU is given up: %s", error)
            self.port.close()

    def has_message(self) -> bool:
        """True if `messages` has something to give."""
        return self.port is not None and self.port.has_message()

    def messages(self) -> Iterator[ToRpu]:
        """The APU's messages since the last call, but for answers, which go to who has asked."""
        while self.port is not None and not self.port.closed:
            data = self.port.receive_encoded()
            if data is None:
                break
            try:
                returned = self.port.is_plain and is_returned(data)
                message = None if returned else self.port.decode(data)
            except MailboxError as error:
                log.error("a message from the APU is dropped: %s", error)
                continue
            self.received += 1
            self._silent_since, self._pinged = self.timers.clock.now(), False
            if not self._started:  # it had longer until now
                self._started = True
                if not self._timer.over:
                    self._watch()
            if message is None:
                self.engine.returned(tag_number(data), value_of(data))
            elif isinstance(message, Alive):
                continue
            elif isinstance(message, Executed | ProgramChecked):
                self.engine.answered(message)
            elif not isinstance(message, Reply):
                yield message
            elif message.tag in self._in_flight:
                self._answered(message)
            else:
                log.error("the APU has answered %#x, which nobody asked", message.tag)


def _failure(tag: int) -> Reply:
    return Reply(tag, Status.INTERNAL_ERROR, dnr=False)

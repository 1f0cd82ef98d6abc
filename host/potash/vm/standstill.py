"""Stops the guests of a device whose emulation takes longer than the modelled hardware would.

When a job is emulated more slowly than the modelled hardware would execute it, a guest would
measure the emulation. So all guests of the device are stopped until the emulation is no longer
behind, each through the monitor of its sockets (`stoppable.py`). While a client has no monitor, no
guest is stopped, as that client would see the others' stops as time of the drive.

Several holders may request a stop: it begins with the first one and ends when the last has released
it.

Between the request of a stop and its end, each guest's clock advances by a millisecond or so, and
the device's clock by the least of these. So no guest sees a deadline too early, and one whose clock
ran for longer sees what was in flight over the stop later by the difference. A guest that was
stopped elsewhere does not count while others run.
"""

import logging
import select
import time
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from pathlib import Path

from potash.vm.defaults import STILL_LIMIT
from potash.vm.qmp import Monitor
from potash.vm.stoppable import Clock, StoppableGuest
from potash.vm.watch import Watch

log = logging.getLogger(__name__)

END_LIMIT = 2.0
"""Seconds that `close` waits, at most, for the guests to continue."""


class Standstill:
    """Stops the guests of a device, whose loop calls `service`.

    Args:
        monitors: path of the monitor of each socket of the device, or of one for all sockets. A
            monitor has no other client. QEMU need not listen yet.
        clock: guest time. It is frozen from before a stop until after its end, so that it is not
            ahead of a guest's own; for a stop requested elsewhere it may be, until QEMU reports
            the stop.
        limit: seconds that a stop may last.
        watched: let a process stop the guests while the device is late (see `expect`).
        wall: nanoseconds of the host's monotonic clock, from which guest time is derived.
        realtime: seconds of the clock that QEMU uses for the times of events.
    """

    def __init__(
        self,
        monitors: Sequence[Path],
        clock: Clock,
        limit: float = STILL_LIMIT,
        *,
        watched: bool = False,
        wall: Callable[[], int] = time.monotonic_ns,
        realtime: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._limit = limit
        self._wall = wall
        self._holders: set[Hashable] = set()
        self.over = False
        """A stop was longer than the limit, and a holder has not released it yet."""
        self.able = False
        """All processes that use the drive can be stopped, and there is one."""
        self.late_since = 0
        """The host's time of the last stop as the device was late; the device sets it to 0."""
        self._watch: Watch | None = None
        if watched:
            try:
                self._watch = Watch(limit)
                clock.seconds = self._watch.seconds
            except OSError as error:
                log.warning("no long step will stop the guest: %s", error.strerror)
        paths = dict.fromkeys(monitors)
        self._guests = [
            StoppableGuest(
                path,
                clock if len(paths) == 1 else copy(clock),
                lambda: 0 if self._watch is None else self._watch.stopped,
                self._inform_watch,
                wall=wall,
                realtime=realtime,
            )
            for path in paths
        ]
        self._monitors = monitors
        self._leads: dict[StoppableGuest, int] = {}
        """The guests that the clock follows, and how far theirs are ahead of it."""
        self._shared = False
        """Several processes use sockets of one monitor."""
        self._held_since = 0
        """The time at which a stop has begun, as the watch knows it; 0 without a stop."""

    # Requests of the device.

    def hold(self, holder: Hashable) -> None:
        """Request a stop, without waiting. Has no effect if `holder` holds the guests already."""
        self._holders.add(holder)
        self._proceed()

    def release(self, holder: Hashable) -> None:
        """Let the guests continue, unless others still hold them."""
        self._holders.discard(holder)
        if not self._holders:
            self.over = False
        self._proceed()

    def expect(self, due: int | None) -> None:
        """Announce the guest time at which the device calls this again at the latest; the guests
        are stopped if it does not. None if it need not."""
        if self._watch is not None:
            due = due if self.able else None
            self._watch.expect(0 if due is None else due + self._clock.offset)

    def attach(self, clients: Sequence[Hashable | None]) -> None:
        """Connect to the monitors of guests that have attached. `clients` are the processes at the
        sockets, in their order."""
        monitors, self._shared = self._monitors, False
        for guest in self._guests:
            users = {
                client
                for place, client in enumerate(clients)
                if client is not None and monitors[place % len(monitors)] == guest.path
            }
            guest.present = bool(users)
            if users:
                guest.service()  # The monitor of the guest before may have ended.
                guest.attach()
            if len(users) > 1:
                self._shared = True
                log.warning("no guest is stopped while several use %s", guest.path)
        self._proceed()

    @property
    def stops(self) -> int:
        """Number of stops of guests that were begun here."""
        return sum(guest.stops for guest in self._guests)

    @property
    def stands(self) -> bool:
        """True once all guests are stopped, here or elsewhere, and no request is in progress."""
        return all(guest.stands for guest in self._guests if guest.present)

    @property
    def uncertain(self) -> bool:
        """A guest may run while the clock stands: a stop begins, or has just ended."""
        for guest in self._guests:  # in each pass of the device's loop
            if guest.uncertain and guest.present and guest.ready:
                return True
        return self._late

    # For the device's loop.

    @property
    def sources(self) -> Sequence[Monitor]:
        """The monitors that the device's loop has to wait for."""
        return [guest.monitor for guest in self._guests if guest.monitor is not None]

    @property
    def timeout(self) -> float | None:
        """Seconds until `service` has to be called without an event; None for no limit."""
        due = [at for guest in self._guests if (at := guest.answer_due) is not None]
        if self._is_held and (since := self._stopped_since):
            due.append(since + round(self._limit * 1e9))
        return max(0, min(due) - self._wall()) / 1e9 if due else None

    def service(self) -> None:
        """Send and receive what is possible without waiting."""
        changed = False
        if self._is_held and (since := self._stopped_since):
            changed = self.over = self._wall() - since >= self._limit * 1e9
        if changed:
            log.error(
                "the guest stood still for %g seconds and goes on; what it was stopped for fails",
                self._limit,
            )
        for guest in self._guests:
            changed |= guest.service()
        if changed or self._late:
            self._proceed()

    def close(self) -> None:
        """Let the guests continue, for which this waits at most END_LIMIT, and disconnect."""
        self._holders.clear()
        deadline = time.monotonic() + END_LIMIT
        self._proceed()
        while any(guest.stopped_here or not guest.idle for guest in self._guests if guest.monitor):
            left = deadline - time.monotonic()
            if left <= 0:
                log.warning("the guest may still stand: QEMU does not answer")
                break
            select.select(self.sources, (), (), left)
            self.service()
        for guest in self._guests:
            guest.close()
        if self._watch is not None:
            self._clock.seconds = time.monotonic
            self._watch.close()
            self._watch = None

    # Between the guests.

    @property
    def _is_held(self) -> bool:
        return self.able and bool(self._holders) and not self.over

    @property
    def _stopped_since(self) -> int:
        """The time at which the stop of a guest was requested that is stopped here; 0 without."""
        return min((guest.began for guest in self._guests if guest.stopped_here), default=0)

    @property
    def _late(self) -> bool:
        """The guests were stopped as the device was late, which is yet to be taken over."""
        return self._watch is not None and self._watch.stopped > 0

    def _proceed(self) -> None:
        """Decide whether the guests are held, and continue what waits for that."""
        present = [guest for guest in self._guests if guest.present]
        self.able = bool(present) and not self._shared and all(guest.ready for guest in present)
        if not self.able:
            self.expect(None)
        for guest in self._guests:
            guest.held = self._is_held and guest.present
            guest.proceed()
        self._inform_watch()
        self._follow()

    def _take_over(self, watch: Watch) -> None:
        """Take over the stop of the watch when all guests are stopped here that it has stopped."""
        guests = [guest for guest in self._guests if guest.watched and guest.monitor is not None]
        if any(guest.ready and guest.taken_over != watch.stopped for guest in guests):
            return
        self._follow()
        self._clock.freeze()
        self.late_since, self._held_since = watch.take(), 0
        for guest in guests:
            guest.stopped_here |= not guest.ready  # which continues when QEMU answers
        if not guests:
            self._clock.thaw(self._wall() - self._clock.now())

    def _inform_watch(self) -> None:
        """Have the watch know since when guests are stopped here, and which it stops itself."""
        watch = self._watch
        if watch is None:
            return
        if watch.stopped:
            self._take_over(watch)
        since = self._stopped_since
        if since != self._held_since:
            self._held_since = since
            watch.hold(since)
        if watch.stopped:
            return
        watched = [
            guest
            for guest in self._guests
            if guest.stopped_here  # or else runs, as another's stop must not end here
            or (guest.present and guest.greeted and not guest.stands_elsewhere)
        ]
        if watched != [guest for guest in self._guests if guest.watched]:
            for guest in self._guests:
                guest.watched = guest in watched
            watch.use([guest.monitor.fileno() for guest in watched if guest.monitor is not None])

    def _follow(self) -> None:
        """Have the clock follow those of several guests. It stands while any of them does, at the
        time of the one that is behind the others."""
        if len(self._guests) == 1:
            return  # They have one clock.
        clock, leads = self._clock, self._leads
        guests = [guest for guest in self._guests if guest.present and guest.ready]
        some_run = any(guest.clock.frozen is None for guest in guests)
        followed = [guest for guest in guests if not (some_run and guest.stands_elsewhere)]
        for guest in leads.keys() - followed:
            del leads[guest]
        for guest in followed:
            if guest not in leads and (guest.clock.frozen is None or not leads):
                leads[guest] = guest.clock.now() - clock.now()
        if any(guest.clock.frozen is not None for guest in leads):
            clock.freeze()
            clock.advance(min(guest.clock.now() - lead for guest, lead in leads.items()))
        elif leads or clock.frozen is not None:
            offsets = [guest.clock.offset + lead for guest, lead in leads.items()]
            clock.freeze()
            clock.thaw(max(offsets, default=self._wall() - clock.now()))
        if clock.frozen is None and not any(guest.uncertain for guest in leads):
            # The next stop begins with all clocks in step.
            leads.update({guest: clock.offset - guest.clock.offset for guest in leads})

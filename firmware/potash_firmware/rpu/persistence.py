"""Persistent state: the health log's counters, saved features, and whether the last shutdown was
clean.

The media executor writes it to the board's sidecar: nothing here waits, except at power-on and
power-off, when no host is served. Counters are written once a minute while they change; saved
features are written before their command completes.

Source: NVM Express Base Specification 2.0, section 5.16.1.3 (SMART / Health Information, which
"shall be retained across power cycles"), 5.27 (Set Features, SV), 3.6 (shutdown).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from nvme_spec.persistent_events import HardwareError, HardwareErrorCode, SmartSnapshot
from potash_device.media.errors import MediaError
from potash_device.media.sidecar import Sidecar
from potash_device.saved import Section
from potash_firmware.rpu.deadlines import NO_TIMER, Deadlines, Timer
from potash_firmware.rpu.extension_state import States
from potash_firmware.rpu.logs.health import SAMPLE
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.reports import DriveReports
from potash_firmware.rpu.scheduler import Scheduler, Steps

log = logging.getLogger(__name__)

INTERVAL = 60.0
"""Seconds between two records of counters that change."""

EVENT_INTERVAL = 1.0
"""Seconds after which an event is on record, and all that have come with it."""

SNAPSHOT_INTERVAL = 24 * 3600.0
"""Seconds between two snapshots of the health log among the persistent events."""

SHUTDOWN: Section[bool] = Section("shutdown", bool)
"""The sidecar's section that records a clean shutdown."""


@dataclass(eq=False, repr=False)
class Persistence:
    """The records of a drive in `sidecar`.

    One of `timers` has the next record. A drive on which nothing happens is recorded once a day:
    the first change after a record, which `sample` notices, makes the next one due earlier.

    `began` is called once everything is restored at power-on.
    """

    sidecar: Sidecar
    scheduler: Scheduler
    reports: DriveReports
    states: States
    began: Callable[[], None]
    timers: Deadlines
    clock: Callable[[], float]
    sample_at: float = 0.0
    """The time from which on the loop is to call `sample`."""
    _timer: Timer = NO_TIMER
    _due: float = 0.0
    _recorded: int = 0
    _changed: bool = False
    """Something has happened since the last record."""
    _snapshot_at: float = 0.0
    saving: bool = False
    """A record is being written."""
    parts: list[Part] = field(default_factory=list)
    """All parts, in the order in which a power cycle reaches them."""
    _counting: list[Part] = field(default_factory=list)
    """The few parts whose changes count: while commands are waited for, each pass asks."""
    _users: set[int] = field(default_factory=set)
    """The controllers whose hosts may write."""

    def add(self, *parts: Part) -> None:
        """These are parts of the drive."""
        self.parts += parts
        self._counting += [part for part in parts if type(part).changes is not Part.changes]

    def power_on(self) -> None:
        """Read what was recorded, and count this power cycle. Raises ExtensionError where there is
        the state of an extension that is not loaded."""
        self._due = self.clock() + INTERVAL
        clean = self.sidecar.get(SHUTDOWN) is not False
        for part in self.parts:
            part.restore(clean=clean)
        self.reports.health.power_cycles += 1
        if not clean:
            self.reports.health.unsafe_shutdowns += 1
            self.reports.persistent_events.add(
                HardwareError(code=HardwareErrorCode.UNSAFE_SHUTDOWN)
            )
            log.warning("the drive was not shut down before its power went")
        self.began()
        self._snapshot()
        self.sidecar.put(SHUTDOWN, False)
        self._record()
        self._try_to_save()

    def power_off(self, *, clean: bool) -> None:
        """The last record; `clean` when everything acknowledged is on stable storage."""
        self._record()
        if clean:
            self.sidecar.put(SHUTDOWN, True)
        self._try_to_save()

    def in_use(self, controller: int) -> None:
        """The host of a controller uses the drive, which may have been shut down before."""
        self._users.add(controller)
        if self.sidecar.get(SHUTDOWN):
            self.sidecar.put(SHUTDOWN, False)
            self._due, self._changed = self.clock(), True
            self._schedule()

    def unused(self, controller: int) -> None:
        """The session of a controller's host has ended."""
        self._users.discard(controller)

    def shut_down(self, controller: int) -> Callable[[], None]:
        """A function to be called, where it may wait, once a shutdown of a controller has flushed
        the media. The drive is shut down with the last one that is in use."""
        self._users.discard(controller)
        is_last = not self._users
        self._record()

        def save() -> None:
            if is_last:
                self.sidecar.put(SHUTDOWN, True)
            self._try_to_save()

        return save

    def record(self) -> Callable[[], None]:
        """A function to be called, where it may wait, to record everything as it is now."""
        self._record()
        return self._try_to_save

    def mark_as_taken(self) -> None:
        """Have a new record, by which others see that the drive is used here; waits for it."""
        self._record()
        self._try_to_save()

    def hurry(self) -> None:
        """Something is worth a record soon."""
        self._due, self._changed = min(self._due, self.clock() + EVENT_INTERVAL), True
        self._schedule()

    def sample(self, now: float) -> None:
        """Sample how busy the drive is, and whether there is something to record."""
        self.reports.health.sample()
        if not self._changed and self._activity() != self._recorded:
            self._changed = True
            self._schedule()
        self.sample_at = now + SAMPLE if self._changed and not self.reports.health.waited else now

    def _schedule(self) -> None:
        """Make the next record, now or when it is due, unless one is being written."""
        self._timer.cancel()
        if self.saving:
            return
        # A snapshot waits for the next record, and causes one where nothing else does.
        due = self._due if self._changed else max(self._due, self._snapshot_at)
        left = due - self.clock()
        if left > 0:
            self._timer = self.timers.after(left, self._schedule)
        else:
            self.scheduler.start(self._save())

    def _activity(self) -> int:
        """Changes with everything that is worth a record."""
        return sum(part.changes for part in self._counting)

    def _snapshot(self) -> None:
        """The health log as it is now, among the persistent events."""
        self._snapshot_at = self.clock() + SNAPSHOT_INTERVAL
        self.reports.persistent_events.add(
            SmartSnapshot(smart=self.reports.controllers[0].smart_log())
        )

    def _record(self) -> None:
        self._recorded, self._changed = self._activity(), False
        self._due = self.clock() + INTERVAL
        self._schedule()
        for part in self.parts:
            part.record()

    def _save(self) -> Steps[None]:
        self.saving = True
        if self.clock() >= self._snapshot_at:
            self._snapshot()
        self._record()
        yield self._try_to_save
        self.saving = False
        self._schedule()

    def _try_to_save(self) -> None:
        try:
            self.sidecar.save()
        except MediaError:
            pass  # The sidecar has said so; what comes later may have better luck.
        try:
            self.states.save()
        except MediaError as error:
            log.error("the states of extensions are not saved: %s", error.strerror)

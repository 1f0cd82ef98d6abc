"""The persistent event log: events of the drive, over resets and power cycles.

The newest events that fit are stored in the sidecar. A host reads them from a *reporting context*,
which is a copy that later events do not change.

Source: NVM Express Base Specification 2.0, section 5.16.1.14 (Persistent Event Log)."""

import base64
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from nvme_spec import persistent_events
from nvme_spec.status import NvmeError, Status
from potash_device.media.sidecar import Sidecar
from potash_device.saved import Section
from potash_firmware.rpu.part import Part

log = logging.getLogger(__name__)

SECTION: Section[str] = Section("events", str)
"""The sidecar's section of all events as they are in the log, the oldest first, in base 64."""

SIZE_LIMIT = 16 << 10
"""Bytes of events that are stored, which is room for a few hundred resets or thirty snapshots."""

MIN_INTERVAL = 1.0
"""Seconds between two events of a type that a host causes as often as it likes."""

FREQUENT = frozenset(
    {
        persistent_events.PersistentEventType.POWER_ON_OR_RESET,
        persistent_events.PersistentEventType.TIMESTAMP_CHANGE,
        persistent_events.PersistentEventType.HARDWARE_ERROR,
        persistent_events.PersistentEventType.TELEMETRY_LOG_CREATED,
    }
)

SUPPORTED = frozenset(persistent_events.PersistentEventType) - {
    persistent_events.PersistentEventType.SET_FEATURE,
    persistent_events.PersistentEventType.VENDOR_SPECIFIC,
}


@dataclass(eq=False, repr=False)
class PersistentEvents(Part):
    """The events of one drive.

    `timestamp` gives the Timestamp feature's value, as its structure is laid out in memory.
    """

    sidecar: Sidecar
    clock: Callable[[], float]
    timestamp: Callable[[], int]
    changes: int = 0
    on_add: Callable[[], None] = lambda: None
    _events: deque[bytes] = field(default_factory=deque)
    _size: int = 0
    _last: dict[persistent_events.PersistentEventType, float] = field(default_factory=dict)

    def restore(self, *, clean: bool | None = None) -> None:
        """Have what was stored, and nothing else."""
        self._events.clear()
        self._size = 0
        for event in _events(self.sidecar.get(SECTION)):
            self._keep(event)

    def add(self, data: persistent_events.EventData) -> None:
        now = self.clock()
        if data.TYPE in FREQUENT and now - self._last.get(data.TYPE, -MIN_INTERVAL) < MIN_INTERVAL:
            return
        self._last[data.TYPE] = now
        header = persistent_events.EventHeader(
            type=data.TYPE,
            revision=persistent_events.EVENT_REVISION,
            ehl=persistent_events.EHL,
            pit=persistent_events.PortType.NONE,
            timestamp=self.timestamp(),
            el=len(data),
        )
        self._keep(bytes(header) + bytes(data))
        self.changes += 1
        self.sidecar.put(SECTION, base64.b64encode(b"".join(self._events)).decode())
        self.on_add()

    def _keep(self, event: bytes) -> None:
        self._events.append(event)
        self._size += len(event)
        while self._size > SIZE_LIMIT:
            self._size -= len(self._events.popleft())

    def log(self, header: persistent_events.PersistentEventHeader) -> bytes:
        """The log as it is now, the newest event first; `header` says of the device what it begins
        with."""
        supported = sum(1 << event_type for event_type in SUPPORTED)
        header.tnev = len(self._events)
        header.tll = persistent_events.PersistentEventHeader.SIZE + self._size
        header.revision = persistent_events.LOG_REVISION
        header.lhl = persistent_events.LHL
        header.timestamp = self.timestamp()
        header.seb = supported.to_bytes(32, "little")
        return bytes(header) + b"".join(reversed(self._events))


@dataclass(eq=False, repr=False)
class ReportingContext(Part):
    """The reporting context of one controller, while there is one: a copy of the log."""

    events: PersistentEvents
    _context: bytes | None = None
    _generation: int = 0

    def establish(self, header: persistent_events.PersistentEventHeader) -> bytes:
        """The log as it is now, held until it is released.

        `header` says of the device what the log begins with. Raises NvmeError where a context is.
        """
        if self._context is not None:
            raise NvmeError(
                Status.COMMAND_SEQUENCE_ERROR, "a reporting context is established already"
            )
        self._generation = header.generation = (self._generation + 1) & 0xFFFF
        self._context = self.events.log(header)
        return self._context

    @property
    def context(self) -> bytes:
        """The log as it was when the context was established. Raises NvmeError without one."""
        if self._context is None:
            raise NvmeError(Status.COMMAND_SEQUENCE_ERROR, "no reporting context is established")
        return self._context

    def header(self, header: persistent_events.PersistentEventHeader) -> bytes:
        """The log's header, of the context that there is or else of a new one."""
        if self._context is None:
            return self.establish(header)[: persistent_events.PersistentEventHeader.SIZE]
        held = persistent_events.PersistentEventHeader(
            self._context[: persistent_events.PersistentEventHeader.SIZE]
        )
        held.rci = persistent_events.REPORTING_CONTEXT_EXISTS | persistent_events.NVM_SUBSYSTEM_PORT
        return bytes(held)

    def release(self) -> None:
        """The host has read what it wanted."""
        self._context = None

    def reset(self, *, next_host: bool = False) -> None:
        self._context = None


def _events(section: str | None) -> list[bytes]:
    try:
        stored = base64.b64decode(section or "", validate=True)
    except ValueError:
        stored = b"?"
    events: list[bytes] = []
    at = 0
    while at < len(stored):
        end = at + persistent_events.EventHeader.SIZE
        if end <= len(stored):
            end += persistent_events.EventHeader(stored[at:end]).el
        if end > len(stored) or stored[at + 2] != persistent_events.EHL:
            log.warning("the persistent event log is damaged, so it begins anew")
            break
        events.append(stored[at:end])
        at = end
    return events

"""Asynchronous events, the requests that wait for them, which log page each refers to, which bit of
the Asynchronous Event Configuration lets it through, and which of Identify Controller announces it.

After an event is reported, further events of its type wait until the host has read its log page. An
event that is already pending is not queued again.

Source: NVM Express Base Specification 2.0, section 5.2 (Asynchronous Event Request command),
5.27.1.8 and figure 275 (OAES); Zoned Namespace Command Set Specification 1.1, figures 42 to 44."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import NamedTuple

from nvme_spec import logs
from nvme_spec.features import AsyncEventConfiguration, FeatureId
from nvme_spec.identify.capabilities import Oaes
from nvme_spec.logs import AsyncEvent
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.features.values import Features
from potash_firmware.rpu.logs.errors import ErrorLog
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.scheduler import Signal

REQUEST_LIMIT = 4
"""Outstanding requests; AERL in Identify Controller is one less, being 0's based."""

QUEUE_LIMIT = 64
"""Events queued while nobody asks; the log pages hold what does not fit."""


class AsyncEvents(Part):
    """The events of one controller and the requests that wait for them."""

    def __init__(self) -> None:
        self._requests: deque[Signal] = deque()
        self.queued: deque[AsyncEvent] = deque()
        """Events that no request has brought to the host."""
        self._silent: dict[int, AsyncEvent] = {}
        """The event of each type whose log page the host has to read first."""

    def reset(self, *, next_host: bool = False) -> None:
        self._requests.clear()
        self.queued.clear()
        self._silent.clear()

    @property
    def waiting(self) -> int:
        return len(self._requests)

    def save(self) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """The queued events as numbers, and the events that types are silent for."""
        silent = tuple((kind, event.encode()) for kind, event in self._silent.items())
        return tuple(event.encode() for event in self.queued), silent

    def load(self, events: Iterable[int], silent: Iterable[tuple[int, int]]) -> None:
        """Have these events and no others, whatever requests wait."""
        self.queued = deque(map(AsyncEvent, tuple(events)[:QUEUE_LIMIT]))
        self._silent = {kind: AsyncEvent(event) for kind, event in silent}

    def request(self) -> Signal:
        """A new request, which brings an event. Raises NvmeError when too many wait already."""
        if len(self._requests) == REQUEST_LIMIT:
            raise NvmeError(Status.AER_LIMIT, f"{REQUEST_LIMIT} event requests wait already")
        request = Signal()
        self._requests.append(request)
        return request

    def withdraw(self, request: Signal) -> None:
        """Forget a request, if it is one that waits."""
        if request in self._requests:
            self._requests.remove(request)

    def add(self, event: AsyncEvent) -> bool:
        """Something happened. False where it does not count: the same waits already."""
        if event in self.queued or len(self.queued) >= QUEUE_LIMIT:
            return False
        self.queued.append(event)
        return True

    def drop(self, unwanted: Callable[[AsyncEvent], bool]) -> None:
        """Forget the events that wait and that the host does not want."""
        self.queued = deque(event for event in self.queued if not unwanted(event))

    def log_was_read(self, log_page: int, nsid: int) -> None:
        """The host has read a log page, or that of a namespace, without retaining its event."""

        def is_over(event: AsyncEvent) -> bool:
            return event.log_page == log_page and event.nsid in (0, nsid)

        self._silent = {kind: event for kind, event in self._silent.items() if not is_over(event)}
        self.drop(is_over)

    def deliver(self) -> None:
        """Answer the requests that can be, each with dwords 0 and 1 of its completion."""
        for event in list(self.queued):
            if not self._requests:
                return
            if event.type in self._silent:
                continue
            self.queued.remove(event)
            self._silent[event.type] = event
            self._requests.popleft().send(event.encode())


class Notice(NamedTuple):
    """The configuration bit that enables a notice, and the log page that belongs to it."""

    configured_by: int
    log_page: logs.LogPage
    announced_by: Oaes = Oaes(0)


NOTICES = {
    logs.NoticeEvent.NAMESPACE_ATTRIBUTE_CHANGED: Notice(
        AsyncEventConfiguration.namespace_attributes.mask,
        logs.LogPage.CHANGED_NAMESPACE_LIST,
        Oaes.NAMESPACE_ATTRIBUTES,
    ),
    logs.NoticeEvent.FIRMWARE_ACTIVATION_STARTING: Notice(
        AsyncEventConfiguration.firmware_activation.mask,
        logs.LogPage.FIRMWARE_SLOT,
        Oaes.FIRMWARE_ACTIVATION,
    ),
    logs.NoticeEvent.ASYMMETRIC_ACCESS_CHANGE: Notice(
        AsyncEventConfiguration.asymmetric_access.mask,
        logs.LogPage.ASYMMETRIC_NAMESPACE_ACCESS,
        Oaes.ASYMMETRIC_ACCESS,
    ),
    logs.NoticeEvent.REACHABILITY_ASSOCIATION_CHANGE: Notice(
        AsyncEventConfiguration.reachability_associations.mask,
        logs.LogPage.REACHABILITY_ASSOCIATIONS,
        Oaes.REACHABILITY,
    ),
    # Announced by the telemetry bit of LPA.
    logs.NoticeEvent.TELEMETRY_LOG_CHANGED: Notice(
        AsyncEventConfiguration.telemetry.mask, logs.LogPage.TELEMETRY_CONTROLLER
    ),
    logs.NoticeEvent.ZONE_DESCRIPTOR_CHANGED: Notice(
        AsyncEventConfiguration.zone_descriptors.mask,
        logs.LogPage.CHANGED_ZONE_LIST,
        Oaes.ZONE_DESCRIPTOR,
    ),
}
"""The notices that the device gives; it cannot give another one."""

OPTIONAL_EVENTS = reduce(or_, (notice.announced_by for notice in NOTICES.values()))
"""OAES of Identify Controller; those of reachability and zones are for drives with such
namespaces, and that of asymmetric access for drives that report it."""

_HEALTH = {
    logs.CriticalWarning.SPARE_BELOW_THRESHOLD: logs.SmartEvent.SPARE_BELOW_THRESHOLD,
    logs.CriticalWarning.TEMPERATURE: logs.SmartEvent.TEMPERATURE_THRESHOLD,
}
"""Every other warning is one of reliability."""


@dataclass(eq=False, repr=False)
class Alerts(Part):
    """The alerts of one controller. Each call says whether the event is to reach the host.

    `warning` gives the critical warnings.
    """

    events: AsyncEvents
    errors: ErrorLog
    features: Features
    warning: Callable[[], logs.CriticalWarning]
    _warned: logs.CriticalWarning = field(default_factory=lambda: logs.CriticalWarning(0))

    def reset(self, *, next_host: bool = False) -> None:
        """A new session is notified again of what still deserves a warning."""
        self._warned = logs.CriticalWarning(0)

    def save(self) -> int:
        """Warnings of which the host was notified."""
        return int(self._warned)

    def load(self, warned: int) -> None:
        """Go on from what the host was notified of."""
        self._warned = logs.CriticalWarning(warned & logs.CriticalWarning(-1))

    def notice(self, what: logs.NoticeEvent, nsid: int = 0) -> bool:
        """Something happened that the host may want to know, in a namespace if it is about one.

        Raises KeyError for what never does.
        """
        notice = NOTICES[what]
        if not self._configuration & notice.configured_by:
            return False
        return self.events.add(
            logs.AsyncEvent(
                type=logs.AsyncEventType.NOTICE, info=what, log_page=notice.log_page, nsid=nsid
            )
        )

    def error(self, what: logs.ErrorEvent, status: int | None = None) -> bool:
        """Something failed; the most applicable `status` makes an entry of the error log.

        A command that fails has an entry of its own. There is none for each repetition, as a host
        could bury all others.
        """
        added = self.events.add(
            logs.AsyncEvent(
                type=logs.AsyncEventType.ERROR, info=what, log_page=logs.LogPage.ERROR_INFORMATION
            )
        )
        if added and status is not None:
            self.errors.add_event(status)
        return added

    def vendor(self, info: int, log_page: int) -> bool:
        """A vendor specific event; no feature masks these."""
        return self.events.add(
            logs.AsyncEvent(type=logs.AsyncEventType.VENDOR_SPECIFIC, info=info, log_page=log_page)
        )

    def health(self) -> None:
        """Check the critical warnings: the host is notified of one that was not there before.

        To be called when something has changed on either side, the device's or the host's.
        """
        warning = self.warning() & self._enabled_warnings
        new, self._warned = warning & ~self._warned, warning
        for bit in new:
            self.events.add(
                logs.AsyncEvent(
                    type=logs.AsyncEventType.SMART,
                    info=_health_event(bit),
                    log_page=logs.LogPage.SMART,
                )
            )

    def configured(self) -> None:
        """The host has changed the configuration: events that it has disabled are dropped."""
        configuration = self._configuration
        enabled: dict[int, set[int]] = {
            logs.AsyncEventType.NOTICE: {
                what for what, notice in NOTICES.items() if configuration & notice.configured_by
            },
            logs.AsyncEventType.SMART: {_health_event(bit) for bit in self._enabled_warnings},
        }
        self.events.drop(
            lambda event: event.type in enabled and event.info not in enabled[event.type]
        )
        self.health()

    @property
    def _configuration(self) -> int:
        return self.features.get(FeatureId.ASYNCHRONOUS_EVENT_CONFIGURATION)

    @property
    def _enabled_warnings(self) -> logs.CriticalWarning:
        return logs.CriticalWarning(AsyncEventConfiguration(self._configuration).smart)


def _health_event(warning: logs.CriticalWarning) -> logs.SmartEvent:
    return _HEALTH.get(warning, logs.SmartEvent.RELIABILITY)

"""Asynchronous events, and the requests that wait for them.

After an event is reported, further events of its type wait until the host has read its log page. An
event that is already pending is not queued again.

Source: NVM Express Base Specification 2.0, section 5.2 (Asynchronous Event Request command).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from nvme_spec.logs import AsyncEvent
from nvme_spec.status import NvmeError, Status

REQUEST_LIMIT = 4
"""Outstanding requests; AERL in Identify Controller is one less, being 0's based."""

QUEUE_LIMIT = 64
"""Events queued while nobody asks; the log pages hold what does not fit."""


class AsyncEvents:
    """The events of one controller and the tokens of the requests that wait for them."""

    def __init__(self) -> None:
        self._requests: deque[object] = deque()
        self._events: deque[AsyncEvent] = deque()
        self._silent: dict[int, AsyncEvent] = {}
        """The event of each type whose log page the host has to read first."""

    def clear(self) -> None:
        self._requests.clear()
        self._events.clear()
        self._silent.clear()

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._requests)

    def save(self) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """The queued events as numbers, and the events that types are silent for."""
        silent = tuple((kind, event.encode()) for kind, event in self._silent.items())
        return tuple(one.encode() for one in self._events), silent

    def load(self, events: Iterable[int], silent: Iterable[tuple[int, int]]) -> None:
        """Have these events and no others, whatever requests wait."""
        self._events = deque(map(AsyncEvent, tuple(events)[:QUEUE_LIMIT]))
        self._silent = {kind: AsyncEvent(event) for kind, event in silent}

    def request(self) -> object:
        """A new request's token. Raises NvmeError when too many wait already."""
        if len(self._requests) == REQUEST_LIMIT:
            raise NvmeError(Status.AER_LIMIT, f"{REQUEST_LIMIT} event requests wait already")
        token = object()
        self._requests.append(token)
        return token

    def withdraw(self, token: object) -> bool:
        """Forget a request; False when `token` is not one that waits."""
        if token not in self._requests:
            return False
        self._requests.remove(token)
        return True

    def add(self, event: AsyncEvent) -> bool:
        """Something happened. False where it does not count: the same waits already."""
        if event in self._events or len(self._events) >= QUEUE_LIMIT:
            return False
        self._events.append(event)
        return True

    def drop(self, unwanted: Callable[[AsyncEvent], bool]) -> None:
        """Forget the events that wait and that the host does not want."""
        self._events = deque(event for event in self._events if not unwanted(event))

    def log_was_read(self, log_page: int, nsid: int) -> None:
        """The host has read a log page, or that of a namespace, without retaining its event."""

        def is_over(event: AsyncEvent) -> bool:
            return event.log_page == log_page and event.nsid in (0, nsid)

        self._silent = {kind: one for kind, one in self._silent.items() if not is_over(one)}
        self.drop(is_over)

    def deliver(self) -> Iterator[tuple[object, int]]:
        """Requests that can be answered now, each with dwords 0 and 1 of its
        completion."""
        for event in list(self._events):
            if not self._requests:
                return
            if event.type in self._silent:
                continue
            self._events.remove(event)
            self._silent[event.type] = event
            yield self._requests.popleft(), event.encode()

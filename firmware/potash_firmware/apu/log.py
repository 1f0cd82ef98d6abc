"""An accelerator's log, and the snapshots that hold still while a host reads in two steps.

Alkali CSD platform documentation, sections 4.2.1 (Get Log Page) and 4.3.1 (the Retain Asynchronous
Event flag).
"""

from collections import deque
from collections.abc import Callable

from csd_spec.descriptors import LogEntry, LogEntryType, LogPage

Clock = Callable[[], float]
"""Seconds since the epoch."""


class Log:
    """The latest `capacity` entries; how many older ones were dropped is counted."""

    def __init__(self, capacity: int, text_limit: int, clock: Clock) -> None:
        self._entries: deque[LogEntry] = deque(maxlen=capacity)
        self._text_limit = text_limit
        self._clock = clock
        self._lost = 0

    def add(self, kind: LogEntryType, text: str = "") -> None:
        """Note that something happened now; long text is cut."""
        if len(self._entries) == self._entries.maxlen:
            self._lost += 1
        now = int(self._clock() * 1000)
        self._entries.append(LogEntry(now, kind, text[: self._text_limit]))

    def clear(self) -> None:
        self._entries.clear()
        self._lost = 0

    def page(self) -> LogPage:
        """Everything there is, the oldest first."""
        return LogPage(tuple(self._entries), min(self._lost, 0xFFFF_FFFF))


class Snapshot:
    """The log as a read with the Retain flag saw it, until a read without the flag."""

    def __init__(self) -> None:
        self._held: bytes | None = None

    def read(self, current: Callable[[], bytes], *, retain: bool) -> bytes:
        """The bytes held, or else the current ones; `retain` holds them for the next read."""
        data = current() if self._held is None else self._held
        self._held = data if retain else None
        return data

    def release(self) -> None:
        self._held = None

"""Threads for work that may block on storage, so that the device's loop never blocks.

The work accesses only private buffers and the media. Guest memory belongs to the loop's thread, so
a reset of the controller does not have to wait for this work."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Self

THREADS = 4

FLUSH_THREADS = 2
"""Threads that only flush: media that hang in a flush hold no other work up."""


class MediaExecutor:
    """A context manager; `fileno()` becomes readable when `finished()` has something to give."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._flushes: ThreadPoolExecutor | None = None
        self._wake = -1
        self._finished: deque[Future[Any]] = deque()

    def __enter__(self) -> Self:
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="media")
        self._flushes = ThreadPoolExecutor(FLUSH_THREADS, thread_name_prefix="flush")
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for what was submitted, then release threads and descriptor."""
        if self._pool is not None and self._flushes is not None:
            self._pool.shutdown(wait=True)
            self._flushes.shutdown(wait=True)
            self._pool = self._flushes = None
            os.close(self._wake)
            self._wake = -1

    def fileno(self) -> int:
        return self._wake

    def submit(self, call: Callable[[], Any], *, flushes: bool = False) -> Future[Any]:
        """Have `call` made on another thread; its future comes back through `finished`.

        `flushes` says that it only flushes, and may wait for other flushes alone.
        """
        pool = self._flushes if flushes else self._pool
        if pool is None:
            raise RuntimeError("the media executor is not open")
        future: Future[Any] = pool.submit(call)
        future.add_done_callback(self._done)
        return future

    def finished(self) -> Iterator[Future[Any]]:
        """Everything that has ended since the last call, in the order of its ending."""
        with suppress(BlockingIOError):  # what an earlier call left is here all the same
            os.eventfd_read(self._wake)
        while self._finished:
            yield self._finished.popleft()

    def _done(self, future: Future[Any]) -> None:
        self._finished.append(future)
        os.eventfd_write(self._wake, 1)

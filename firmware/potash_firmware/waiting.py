"""Waiting for descriptors: any number of them, of any value, for as short as a tick of the loop.

select(2) knows no descriptor from 1024 on, and epoll_wait(2) no time below a millisecond. So it is
epoll that waits for everything, and select that waits for epoll where the time is limited.
"""

import select
from collections.abc import Collection, Sequence
from typing import Protocol, Self

READ = select.EPOLLIN
WRITE = select.EPOLLOUT

_FD_SETSIZE = 1024

_COARSE = 0.05
"""Seconds from which on a millisecond does not matter."""
_LONGEST = 86_400.0
"""Maximum seconds of one wait: the kernel counts milliseconds in 32 bits, and a job may claim to
take longer."""


def earliest(*limits: float | None) -> float | None:
    """The shortest of these times; None, which is no limit, if there is none."""
    return min((one for one in limits if one is not None), default=None)


class Pollable(Protocol):
    def fileno(self) -> int: ...


class Waiting:
    """The descriptors of the last wait, and an epoll descriptor for them; a context manager.

    Make it early: where its own descriptor is 1024 or more, waits end at whole milliseconds.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._exact = self._epoll.fileno() < _FD_SETSIZE
        self._sources: list[tuple[Pollable | int, int]] = []
        self._fds: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()

    def wait(
        self, sources: Sequence[tuple[Pollable | int, int]], limit: float | None
    ) -> Collection[int]:
        """The descriptors that are ready, after `limit` seconds, or a day, at most; none then.

        `sources` come with READ, WRITE or both. Closed objects must be removed from them, and a
        descriptor that is opened again must belong to another object, even if it has the same
        number.
        """
        if sources != self._sources:
            self._change(sources)
        if limit and limit < _COARSE and self._exact:
            if not select.select((self._epoll,), (), (), limit)[0]:
                return ()
            limit = 0.0
        return [fd for fd, _ in self._epoll.poll(limit and min(limit, _LONGEST))]

    def _change(self, sources: Sequence[tuple[Pollable | int, int]]) -> None:
        for fd in self._fds:
            try:
                self._epoll.unregister(fd)
            except OSError:
                pass  # It was closed, which takes it out.
        self._fds = [one if isinstance(one, int) else one.fileno() for one, _ in sources]
        for fd, (_, events) in zip(self._fds, sources, strict=True):
            self._epoll.register(fd, events)
        self._sources = list(sources)

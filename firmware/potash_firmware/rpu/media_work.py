"""What the media are doing, and what becomes of it when they cannot.

`BlocksInFlight` keeps commands that the media executor works on apart where they touch the same
blocks: what is atomic to the host (AWUN in Identify: one block) is not so to a file, of which one
thread may read half of what another one is writing. `MediaFailures` turns an error of the system
into what the host is told: a status, an entry with its LBA, the health log.

Source: NVM Command Set Specification 1.0, section 2.1.4 (atomic operation), and section 2.1 (media
and data integrity errors); NVM Express Base Specification 2.0, section 5.16.1.3 (SMART).
"""

import errno
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from nvme_spec.status import NvmeError, Status
from potash_device.media import Media, MediaError

log = logging.getLogger(__name__)

LOG_INTERVAL = 60.0
"""Seconds before the same kind of failure is worth another line."""

_MAY_PASS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN, errno.EINTR})
"""Failures that a retry may not see."""


class BlocksInFlight:
    """Bytes of one namespace that the media executor reads or writes.

    True when a command has to look before it touches a block of the namespace.
    """

    def __init__(self) -> None:
        self._ranges: dict[Future[Any], tuple[bool, bool, tuple[tuple[int, int], ...]]] = {}
        self.watched = False
        """Not every block of the namespace can simply be read and written."""
        self.closed: Status | None = None
        """Why no command may touch the blocks now, as one that tries is told."""

    def __bool__(self) -> bool:
        return self.watched or bool(self._ranges) or self.closed is not None

    @property
    def futures(self) -> "set[Future[Any]]":
        """All work that is in flight."""
        return set(self._ranges)

    def add(
        self,
        future: "Future[Any]",
        ranges: Iterable[tuple[int, int]],
        *,
        writes: bool,
        alone: bool = False,
    ) -> None:
        """`future` works on `ranges` of first byte and length, `alone` if nobody else may."""
        self._ranges[future] = (writes, alone, tuple(ranges))

    def discard(self, future: "Future[Any]") -> None:
        """`future` has ended."""
        self._ranges.pop(future, None)

    def in_the_way(
        self, first: int, length: int, *, writes: bool, alone: bool = False
    ) -> "set[Future[Any]]":
        """Work that must end before a command may touch these bytes.

        Reads and writes are kept apart from each other. Two writes need not be: the system makes
        each call of pwritev(2) one step for every other one on the same file.
        """
        return {
            future
            for future, (also_writes, also_alone, ranges) in self._ranges.items()
            if (alone or also_alone or writes != also_writes)
            and any(start < first + length and first < start + size for start, size in ranges)
        }


class MediaFailures:
    """The failures of one controller's media.

    `on_failure` is called for each, `on_loss` once for media that have lost data.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        on_failure: Callable[[], None],
        on_loss: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._on_failure = on_failure
        self._on_loss = on_loss
        self._told: dict[tuple[int, int, int | None], float] = {}
        self._lost: set[int] = set()

    def reading(self, nsid: int, error: MediaError, lba: int) -> NvmeError:
        """A read of namespace `nsid` has failed at `lba`; what its command ends with."""
        return self._failure(Status.UNRECOVERED_READ_ERROR, nsid, error, lba)

    def writing(self, nsid: int, media: Media, error: MediaError, lba: int) -> NvmeError:
        """A write or a flush has failed at `lba` (0 for a flush)."""
        if error.errno == errno.EROFS:
            if not media.read_only:
                log.error("namespace %d is read-only from now on: %s", nsid, error.strerror)
                media.read_only = True
            return NvmeError(
                Status.NAMESPACE_WRITE_PROTECTED, detail=f"namespace {nsid} is read-only"
            )
        if media.lost is not None and nsid not in self._lost:
            self._lost.add(nsid)
            log.critical(
                "namespace %d has lost what was written since its last flush, and takes no more: %s",
                nsid, error.strerror,
            )  # fmt: skip
            self._on_loss()
        return self._failure(Status.WRITE_FAULT, nsid, error, lba)

    def _failure(self, status: Status, nsid: int, error: MediaError, lba: int) -> NvmeError:
        self._on_failure()
        key, now = (nsid, status, error.errno), self._clock()
        if now >= self._told.get(key, now):
            self._told[key] = now + LOG_INTERVAL
            log.error("namespace %d, block %d: %s", nsid, lba, error.strerror)
        return NvmeError(
            status, dnr=error.errno not in _MAY_PASS, detail=str(error.strerror), lba=lba
        )

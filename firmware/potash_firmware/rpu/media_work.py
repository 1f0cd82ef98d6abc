"""Work on the media executor, and the ordering of commands on the same blocks.

`BlocksInFlight` serialises commands on the same blocks: a write of one block is atomic to the host
(AWUN), but not to a file, of which one thread can read half of what another one is writing.

Source: NVM Command Set Specification 1.0, section 2.1 (media and data integrity errors) and 2.1.4
(atomic operation); NVM Express Base Specification 2.0, section 5.16.1.3 (SMART)."""

import errno
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_device.media.executor import MediaExecutor
from potash_device.media.store import Media
from potash_device.media.values import ValueStore
from potash_device.trace import Trace
from potash_firmware.rpu.scheduler import Signal, Wait

log = logging.getLogger(__name__)

T = TypeVar("T")

LOG_INTERVAL = 60.0
"""Seconds before the same kind of failure is worth another line."""

_MAY_PASS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN, errno.EINTR})
"""Failures that a retry may not see."""


AREA = 4096
"""Bytes of an area. Of commands that wait, those in the same area count as being on the same
blocks: there may be too many to compare each with each."""
AREAS = 256
"""Areas that a command is in, unless it is EVERYWHERE."""
EVERYWHERE = -1


def _areas(ranges: Iterable[tuple[int, int]]) -> Collection[int]:
    """The areas that ranges of first byte and length are in."""
    found: set[int] = set()
    for first, length in ranges:
        areas = range(first // AREA, (first + length - 1) // AREA + 1)
        if len(areas) + len(found) > AREAS:
            return (EVERYWHERE,)
        found.update(areas)
    return found


class Waiter(NamedTuple):
    """A command that waits for its turn, until no work is left; then its signal is sent."""

    turn: int
    left: set[Future[Any]]
    signal: Signal


class BlocksInFlight:
    """Bytes of one namespace that the media executor reads or writes.

    A namespace that is formatted, detached or deleted gets another object, while the one that
    commands of before refer to stays closed: their ranges may mean other blocks now.
    """

    def __init__(self, *, writes_alone: bool = False) -> None:
        self._ranges: dict[Future[Any], tuple[bool, bool, tuple[tuple[int, int], ...]]] = {}
        self._waiting: dict[tuple[int, bool], OrderedDict[int, set[Future[Any]]]] = {}
        """Turns of commands that wait to read (False) or to write (True) in an area, the first one
        first, and the work that each waits for."""
        self._waiters: defaultdict[Future[Any], list[Waiter]] = defaultdict(list)
        """Commands that wait for the end of some work."""
        self._ready: dict[int, Signal] = {}
        """The turns of those that wait for nothing any more, until they are woken."""
        self._turn = count()
        self._closed: Status | None = None
        self.busy = False
        """A command has to see what is there before it touches a block of the namespace."""
        self.writes_alone = writes_alone
        """A write is of several steps, so not even two writes may be made at the same time."""

    @property
    def closed(self) -> Status | None:
        """The status of commands that touch the blocks while none may; None otherwise."""
        return self._closed

    @closed.setter
    def closed(self, status: Status | None) -> None:
        self._closed = status
        self.busy = bool(self._ranges) or status is not None

    def require_open(self) -> None:
        """Raise NvmeError while no command may touch the blocks."""
        if self._closed is not None:
            raise NvmeError(self._closed, "no command may touch these blocks now", dnr=False)

    def replaced(self) -> "BlocksInFlight":
        """The object for commands from now on; those that refer to this one are refused."""
        after = BlocksInFlight(writes_alone=self.writes_alone)
        after.closed = self._closed
        self.closed = self._closed or Status.INVALID_FIELD  # no longer an active namespace
        return after

    @property
    def futures(self) -> "set[Future[Any]]":
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
        self.busy = True

    def discard(self, future: "Future[Any]") -> bool:
        """`future` has ended, or is in nobody's way. True if `wake` has to follow."""
        self._ranges.pop(future, None)
        self.busy = bool(self._ranges) or self._closed is not None
        for waiter in self._waiters.pop(future, ()):
            waiter.left.discard(future)
            if not waiter.left:
                self._ready[waiter.turn] = waiter.signal
        return bool(self._ready)

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
            if (alone or also_alone or writes != also_writes or (writes and self.writes_alone))
            and any(start < first + length and first < start + size for start, size in ranges)
        }

    def turns(
        self, ranges: Iterable[tuple[int, int]], *, writes: bool, alone: bool = False
    ) -> Iterator[Wait]:
        """Waits of a command, one after the other, before it may touch `ranges`. Raises NvmeError
        when no command may.

        Conflicting commands go on in the order in which they have come, so that nobody's work,
        however much of it, keeps others from blocks. For that, a command waits for the work that
        those before it wait for, and never for a command, which may be aborted, or held. A command
        that has work in flight itself must not wait.
        """
        ranges = tuple(ranges)
        mine: list[tuple[int, bool]] = []
        turn = next(self._turn)
        try:
            while True:
                self.require_open()
                found: set[Future[Any]] = set()
                for first, length in ranges:
                    found |= self.in_the_way(first, length, writes=writes, alone=alone)
                follows = False
                if self._waiting:
                    both = alone or (writes and self.writes_alone)
                    for kind in (False, True) if both else (not writes,):
                        awaited = self._awaited(_areas(ranges), kind, turn)
                        follows = follows or awaited is not None
                        found |= awaited or set()
                if not found and not follows:
                    return
                mine = mine or [
                    (area, kind)
                    for area in _areas(ranges)
                    for kind in ((False, True) if alone else (writes,))
                ]
                for key in mine:
                    self._waiting.setdefault(key, OrderedDict())[turn] = found
                waiter = Waiter(turn, found, Signal())
                for future in found:
                    self._waiters[future].append(waiter)
                if not found:
                    self._ready[turn] = waiter.signal
                yield Wait(waiter.signal)
        finally:
            for key in mine:
                if (waiting := self._waiting.get(key)) is not None:
                    waiting.pop(turn, None)
                    if not waiting:
                        del self._waiting[key]

    def _awaited(
        self, areas: Collection[int], writes: bool, turn: int
    ) -> "set[Future[Any]] | None":
        """The work that the first commands wait for which wait to read or to write in these areas
        and have come before a turn; nothing if they are about to go on, None without any."""
        found: set[Future[Any]] | None = None
        keys: Collection[tuple[int, bool]] = [(area, writes) for area in (*areas, EVERYWHERE)]
        if EVERYWHERE in areas:
            keys = [key for key in self._waiting if key[1] is writes]
        for key in keys:
            waiting = self._waiting.get(key)
            while waiting and (first := next(iter(waiting))) < turn:
                if waiting[first] or first in self._ready:
                    found = (found or set()) | waiting[first]
                    break
                del waiting[first]  # it was woken, and is held
        return found

    def wake(self) -> None:
        """Have commands go on that wait for nothing any more, in the order of their turns."""
        ready, self._ready = self._ready, {}
        for _, signal in sorted(ready.items()):
            signal.send()


class MediaWork:
    """The work of one controller on the media executor, or that of the whole `drive`."""

    def __init__(
        self, executor: MediaExecutor, trace: Trace, drive: "MediaWork | None" = None
    ) -> None:
        self.executor = executor
        self._trace = trace
        self.unfinished: set[Future[Any]] = set()
        """Work in flight, of whatever time: no reset recalls it."""
        self._blocks: dict[Future[Any], BlocksInFlight] = {} if drive is None else drive._blocks
        self._shared: dict[Hashable, Future[Any]] = {} if drive is None else drive._shared
        self.touched: dict[BlocksInFlight, None] = {} if drive is None else drive.touched
        """Blocks for which commands wait that may go on."""
        self._all: list[MediaWork] = [self] if drive is None else drive._all
        """The work of the drive and of its controllers."""
        if drive is not None:
            self._all.append(self)

    @property
    def any_unfinished(self) -> bool:
        """The drive or some controller has work in flight."""
        for each in self._all:  # after each command of a host that is polled
            if each.unfinished:
                return True
        return False

    @property
    def every(self) -> "set[Future[Any]]":
        """The work in flight of the drive and of all controllers."""
        return set().union(*(each.unfinished for each in self._all))

    def submit(self, call: Callable[[], T], *, flushes: bool = False) -> "Future[T]":
        """Have `call` made where it may block; its future is to be waited for.

        `flushes` says that it only flushes media.
        """
        if self._trace.sink is not None:
            call = self._traced(call)
        future: Future[T] = self.executor.submit(call, flushes=flushes)
        self.unfinished.add(future)
        return future

    def on_blocks(
        self,
        in_flight: BlocksInFlight,
        ranges: Iterable[tuple[int, int]],
        call: Callable[[], T],
        *,
        writes: bool,
        alone: bool = False,
    ) -> "Future[T]":
        """Submit a call that touches `ranges` of first byte and length."""
        future = self.submit(call)
        in_flight.add(future, ranges, writes=writes, alone=alone)
        self._blocks[future] = in_flight
        return future

    def shared_flush(self, key: Hashable, call: Callable[[], T]) -> "Future[T]":
        """A flush that begins from now on: one for all that ask for the same `key` meanwhile.

        So a host cannot fill the media's threads with flushes, however long one takes.
        """
        future = self._shared.get(key)
        if future is None or future.running() or future.done():
            future = self._shared[key] = self.submit(call, flushes=True)
        return future

    def finished(self, future: "Future[Any]") -> None:
        """Some work has ended, be it of others: it is in nobody's way any more."""
        for each in self._all:
            each.unfinished.discard(future)
        if self._shared:
            for key in [key for key, work in self._shared.items() if work is future]:
                del self._shared[key]
        in_flight = self._blocks.pop(future, None)
        if in_flight is not None and in_flight.discard(future):
            self.touched[in_flight] = None

    def wake(self) -> None:
        """Have commands go on that have waited for blocks, when those have gone on whose work has
        ended."""
        while self.touched:
            self.touched.popitem()[0].wake()

    def _traced(self, call: Callable[[], T]) -> Callable[[], T]:
        function = call.func if isinstance(call, partial) else call
        trace, what = self._trace, _named(getattr(function, "__qualname__", type(call).__name__))

        def traced() -> T:
            with trace.span("media.work", what=what):
                return call()

        return traced


def _named(qualified: str) -> str:
    """The name of a piece of work in traces: that of its function or of its handler."""
    parts = [part for part in qualified.split(".") if not part.startswith("<")]
    named = not qualified.endswith("<lambda>")
    return parts[-1].strip("_") if named or len(parts) < 2 else parts[-2]


@dataclass(eq=False, repr=False)
class MediaFailures:
    """The failures of a drive's media.

    `on_failure` is called for each, `on_loss` once for media that have lost data.
    """

    clock: Callable[[], float]
    on_failure: Callable[[], None]
    on_loss: Callable[[], None]
    _logged: dict[tuple[int, int, int | None], float] = field(default_factory=dict)
    _lost: set[int] = field(default_factory=set)

    def reading(self, nsid: int, error: MediaError, lba: int) -> NvmeError:
        """A read of namespace `nsid` has failed at `lba`; what its command ends with."""
        return self._failure(Status.UNRECOVERED_READ_ERROR, nsid, error, lba)

    def unreadable(self, nsid: int, lba: int | None) -> NvmeError:
        """Modelled flash has too many bit errors to read a block of namespace `nsid`, or a value if
        there is no `lba`."""
        error = MediaError(errno.EIO, "the flash has too many bit errors")
        if lba is None:
            return self._failure(Status.UNRECOVERED_ERROR, nsid, error, 0)
        return self.reading(nsid, error, lba)

    def writing(
        self, nsid: int, media: Media | ValueStore, error: MediaError, lba: int
    ) -> NvmeError:
        """A write or a flush has failed at `lba` (0 for a flush)."""
        if error.errno == errno.EROFS:
            if not (media.read_only or media.protected):
                log.error("namespace %d is read-only from now on: %s", nsid, error.strerror)
                media.read_only = True
            return NvmeError(Status.NAMESPACE_WRITE_PROTECTED, f"namespace {nsid} is read-only")
        if media.lost is not None and nsid not in self._lost:
            self._lost.add(nsid)
            log.critical(
                "namespace %d has lost writes since its last flush, and takes no more: %s",
                nsid, error.strerror,
            )  # fmt: skip
            self.on_loss()
        return self._failure(Status.WRITE_FAULT, nsid, error, lba)

    def values(self, nsid: int, store: ValueStore, error: MediaError, *, writes: bool) -> NvmeError:
        """An access to the values of namespace `nsid` has failed."""
        if not writes:
            return self._failure(Status.UNRECOVERED_ERROR, nsid, error, 0)
        failed = self.writing(nsid, store, error, 0)
        if failed.status == Status.WRITE_FAULT:  # which is none of this command set
            full = error.errno == errno.ENOSPC
            failed.status = Status.CAPACITY_EXCEEDED if full else Status.INTERNAL_ERROR
        return failed

    def unprotected(self, nsid: int, error: NvmeError) -> NvmeError:
        """The error of a command whose data does not match its protection information."""
        return self._failure(error.status, nsid, MediaError(None, error.detail), error.lba)

    def _failure(self, status: int, nsid: int, error: MediaError, lba: int) -> NvmeError:
        self.on_failure()
        key, now = (nsid, status, error.errno), self.clock()
        if now >= self._logged.get(key, now):
            self._logged[key] = now + LOG_INTERVAL
            log.error("namespace %d, block %d: %s", nsid, lba, error.strerror)
        return NvmeError(status, str(error.strerror), dnr=error.errno not in _MAY_PASS, lba=lba)

"""Calls of a drive's translation layer to the rest of the firmware: notices, and moved blocks.

Notices outlive power cycles in the sidecar. A page is copied by one write of the media, so a drive
that is killed meanwhile has the old data or the new: the media have data by logical block.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from csd_spec.notices import MOST_BYTES, MOST_NOTICES, Notice, NoticeLog
from csd_spec.opcodes import LogPage
from nvme_spec.status import NvmeError
from potash_device.flash.rates import PAGE
from potash_device.media.errors import MediaError
from potash_device.media.sidecar import Sidecar
from potash_device.media.store import Media
from potash_device.saved import Number, Section
from potash_firmware.rpu.media_work import BlocksInFlight, MediaFailures, MediaWork
from potash_firmware.rpu.namespaces.inventory import Inventory
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.scheduler import Scheduler, Steps
from potash_wire.records import U8

if TYPE_CHECKING:
    from potash_firmware.rpu.timing.modelled import ModelledTime

log = logging.getLogger(__name__)

MOST_MOVES = 256
"""Pages that are to be copied at once."""


class SavedNotices(TypedDict, total=False):
    """All notices that there were; of the latest, time, kind and data in hexadecimal."""

    count: Number
    notices: list[tuple[Number, U8, str]]


SECTION: Section[SavedNotices] = Section("notices", SavedNotices)
"""The sidecar's section."""


class Upcalls(Part):
    """The `potash_firmware.ftl.interface.Upcalls` of one drive; `event` gives the hosts a vendor
    specific event with a log page."""

    def __init__(
        self,
        timing: ModelledTime,
        namespaces: Inventory,
        media_work: MediaWork,
        failures: MediaFailures,
        event: Callable[[int, int], None],
        scheduler: Scheduler,
        sidecar: Sidecar,
    ) -> None:
        self._timing, self._namespaces, self._media_work = timing, namespaces, media_work
        self._failures, self._event = failures, event
        self._scheduler, self._sidecar = scheduler, sidecar
        self.on_notice: Callable[[], None] = lambda: None
        """Called when there is a new notice."""
        self._count = 0
        self._notices: deque[Notice] = deque(maxlen=MOST_NOTICES)
        self._moves = 0
        timing.drive.upcalls = self

    # Notices.

    def notify(self, kind: int, data: bytes) -> None:
        """Add a notice to the log page, and raise its event. Raises ValueError."""
        if not 0 <= kind < 1 << 8 or len(data) > MOST_BYTES:
            raise ValueError(f"a notice has a kind of 0 to 255, and {MOST_BYTES} bytes at most")
        self._add(self._timing.clock.now(), kind, bytes(data))
        self._event(kind, LogPage.NOTICES)
        self.on_notice()

    def _add(self, time: int, kind: int, data: bytes) -> None:
        padded = data.ljust(MOST_BYTES, b"\0")
        self._notices.append(Notice(self._count, time, kind, len(data), padded))
        self._count += 1

    @property
    def log(self) -> NoticeLog:
        """The log page."""
        return NoticeLog(count=self._count, notices=tuple(self._notices))

    @property
    def changes(self) -> int:
        return self._count

    def record(self) -> None:
        notices = [
            (notice.time, notice.kind, notice.data[: notice.length].hex())
            for notice in self._notices
        ]
        self._sidecar.put(SECTION, SavedNotices(count=self._count, notices=notices))

    def restore(self, *, clean: bool | None = None) -> None:
        saved = self._sidecar.get(SECTION) or {}
        latest = saved.get("notices", [])[-MOST_NOTICES:]
        self._notices.clear()
        self._count = max(0, saved.get("count", 0) - len(latest))
        for time, kind, text in latest:
            self._add(time, kind, _bytes(text)[:MOST_BYTES])

    # Moved blocks.

    def remap(self, source: int, destination: int) -> None:
        """Copy a page of the drive, after commands in flight on both pages, and before those that
        come later. Raises ValueError for pages that are not whole, of one namespace, and without
        metadata or zones, and RuntimeError where too many are to be copied already."""
        if self._moves == MOST_MOVES:
            raise RuntimeError(f"{MOST_MOVES} pages are to be copied already")
        (nsid, first), (other, second) = map(self._timing.owner, (source, destination))
        namespace = self._namespaces.blocks.get(nsid)
        if namespace is None or nsid != other:
            raise ValueError(f"the pages {source} and {destination} are not of one namespace")
        shape = namespace.shape
        if shape.metadata.size or shape.zones or (max(first, second) + 1) * PAGE > shape.data_size:
            raise ValueError(f"these pages of namespace {nsid} have metadata or zones, or no end")
        self._moves += 1
        self._scheduler.start(self._move(namespace, first * PAGE, second * PAGE))

    def _move(self, namespace: Namespace, source: int, destination: int) -> Steps[None]:
        in_flight, ranges = namespace.in_flight, [(source, PAGE), (destination, PAGE)]
        moved: Future[None] = Future()  # what commands and moves that come later wait for
        before = _in_the_way(in_flight, ranges)
        in_flight.add(moved, ranges, writes=True, alone=True)
        try:
            yield before
            in_flight.require_open()
            copy = partial(_copy, namespace.media, source, destination)
            yield self._media_work.submit(copy)
        except MediaError as error:
            lba = destination // namespace.block_size
            self._failures.writing(namespace.nsid, namespace.media, error, lba)
        except NvmeError as error:  # the namespace is formatted, or gone
            log.info("a page of namespace %d was not copied: %s", namespace.nsid, error.detail)
        finally:
            self._moves -= 1
            if in_flight.discard(moved):
                self._media_work.touched[in_flight] = None
            moved.set_result(None)
            self._scheduler.ended(moved)


def _in_the_way(
    in_flight: BlocksInFlight, ranges: Iterable[tuple[int, int]]
) -> set[Future[object]]:
    """Work that has to end before these ranges are copied."""
    return {
        future
        for first, length in ranges
        for future in in_flight.in_the_way(first, length, writes=True, alone=True)
    }


def _copy(media: Media, source: int, destination: int) -> None:
    """Copy a page. Blocks. Raises MediaError."""
    page = bytearray(PAGE)
    media.read_into([memoryview(page)], source)
    media.write_from([memoryview(page)], destination)


def _bytes(text: str) -> bytes:
    """Bytes from hexadecimal; none for another text."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""

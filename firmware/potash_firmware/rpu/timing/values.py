"""The modelled time of key value namespaces: values in a log on flash, and an index of the keys.

The flash translation layer has the pages of the log, and writes and relocates them as all others.
Values that fill no page are in the drive's memory, as in a write buffer, until a page is full of
them, or is flushed. The index has the keys, and says which pages their values have. It is in DRAM,
and costs no time, or on flash: there a key has an entry in one page, which each command reads, and
which Store, Delete and the move of a value write.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from nvme_spec.status import NvmeError, Status
from potash_device.flash.profile import PAGE
from potash_firmware.ftl.requests import Op
from potash_firmware.mailbox.messages import Read
from potash_firmware.rpu.namespaces.inventory import Inventory
from potash_firmware.rpu.namespaces.key_value import KeyValueNamespace
from potash_firmware.rpu.namespaces.value_log import PlacedValue, ValueLog
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.scheduler import Later
from potash_firmware.rpu.timing.jobs import Timed
from potash_firmware.rpu.timing.modelled import ModelledTime, UnreadableError

log = logging.getLogger(__name__)


MOST_READS = 1 << 17
"""Reads of one program that take time."""


class Charge(NamedTuple):
    """A command that changes a value: the time at which it completes, and the value that it stores;
    None if it stores none."""

    due: int | Later
    value: PlacedValue | None = None


@dataclass
class ValueCounters:
    """Numbers of bytes since the start, of all namespaces."""

    stored: int = 0
    """Bytes of values that hosts have stored."""
    written: int = 0
    """Bytes of pages of logs that were written, moved values and what is empty included."""
    moved: int = 0
    """Bytes of values that were moved within logs."""
    index: int = 0
    """Bytes of pages of indexes that were written."""

    @property
    def write_amplification(self) -> float:
        """Bytes written for each byte of values; 0 before any."""
        return (self.written + self.index) / self.stored if self.stored else 0.0


class ValueTime(Part):
    """The modelled time of the key value namespaces of one drive."""

    def __init__(
        self, timing: ModelledTime, namespaces: Inventory, *, index_on_flash: bool
    ) -> None:
        self._timing = timing
        self._namespaces = namespaces
        self._index_on_flash = index_on_flash
        self.counters = ValueCounters()

    def restore(self, *, clean: bool | None = None) -> None:
        """Write the values that there are, in the order of their keys."""
        for namespace in self._namespaces.values:
            namespace.log = None
            placed, sizes = self._log(namespace), namespace.media.sizes()
            if sizes:
                self._timing.trim(namespace.nsid, [(0, self._timing.size(namespace.nsid))])
            for key, size in sizes:
                if not placed.has_room(size):
                    log.warning(
                        "namespace %d has values for which the modelled flash has no room",
                        namespace.nsid,
                    )
                    break
                placed.placed[key] = placed.put(key, size)
            self._write(namespace, placed.take_full() + placed.flush(), self._timing.clock.now())
        self.counters = ValueCounters()

    def read(self, namespace: KeyValueNamespace, key: bytes, length: int = 0) -> int | Later:
        """The time at which the host has the first `length` bytes of a value; without any, at which
        it knows whether there is one. Raises NvmeError."""
        return self._timing.transfers.cross(self.fetch(namespace, key, length), length)

    def add_reads(
        self,
        timed: Timed,
        namespace: KeyValueNamespace,
        key: bytes,
        length: int,
        at: int,
        moved: int,
    ) -> None:
        """A program has read the first `length` bytes of a value, or has looked a key up, `at` a
        time as in `Read`: have it wait for the flash that it has read."""
        ranges = [(self._entry(namespace, key), PAGE)] if self._index_on_flash else []
        pages = self._on_flash(namespace, key, length)
        ranges += [(first * PAGE, count * PAGE) for first, count in _runs(pages)]
        reads = timed.reads
        if reads:  # a worker may state any time
            at, moved = max(at, reads[-1].at), max(moved, reads[-1].moved)
        for first, size in ranges[: max(0, MOST_READS - len(reads))]:
            reads.append(Read(at, namespace.nsid, first, size, moved))

    def fetch(self, namespace: KeyValueNamespace, key: bytes, length: int) -> int:
        """The same as `read`, for bytes that stay in the drive if the link has shares."""
        at = self._look_up(namespace, key)
        pages = self._on_flash(namespace, key, length)
        return self._read(namespace, pages, at) if pages else self._without_data(at)

    def _on_flash(self, namespace: KeyValueNamespace, key: bytes, length: int) -> list[int]:
        """The pages of the first bytes of a value that are not in the drive's memory."""
        values = self._log(namespace)
        if (value := values.placed.get(key)) is None:
            return []
        return [page for page in value.pages[: -(-length // PAGE)] if not values.is_open(page)]

    def exists(self, namespace: KeyValueNamespace, key: bytes) -> bool:
        """True if there is a value for `key`."""
        return key in self._log(namespace).placed

    def store(self, namespace: KeyValueNamespace, key: bytes, size: int) -> Charge:
        """Begin to store a value, which `end` ends. Raises NvmeError."""
        values = self._log(namespace)
        at = self._look_up(namespace, key)
        while not values.has_room(size):
            self._clean(namespace, at)
        value = values.put(key, size)
        try:
            due = self._write_full(namespace, at)
            due = max(due, self._update(namespace, key, at))
        except NvmeError:
            self._release(namespace, value)
            raise
        return Charge(self._timing.transfers.cross(due, size, inwards=True), value)

    def delete(self, namespace: KeyValueNamespace, key: bytes) -> Charge:
        """Begin to delete a value, which `end` ends. Raises NvmeError."""
        at = self._look_up(namespace, key)
        if not self.exists(namespace, key) or not self._index_on_flash:
            return Charge(self._without_data(at))
        return Charge(self._update(namespace, key, at))

    def end(
        self, namespace: KeyValueNamespace, key: bytes, charge: Charge, *, changed: bool
    ) -> None:
        """A value was stored or deleted; or it was not, and is what it was before."""
        placed = self._log(namespace).placed
        old = placed.pop(key, None) if changed else charge.value
        if changed and charge.value is not None:
            placed[key] = charge.value
            self.counters.stored += charge.value.size
        if old is not None:
            self._release(namespace, old)

    def flush(self) -> int:
        """The time at which all earlier writes are on flash, blocks included. Raises NvmeError."""
        for namespace in self._namespaces.values:
            self._write(namespace, self._log(namespace).flush(), self._timing.clock.now())
        return self._timing.flush()

    def _clean(self, namespace: KeyValueNamespace, at: int) -> None:
        """Have more room in the log. Raises NvmeError where there is none to gain."""
        cleaned = self._log(namespace).clean()
        if cleaned is None:
            raise NvmeError(
                Status.CAPACITY_EXCEEDED, "the modelled flash has no pages for the value"
            )
        self.counters.moved += cleaned.size
        try:
            at = self._read(namespace, cleaned.pages, at)
        except UnreadableError as error:  # a read of the value reports it
            at = error.due
        self._write_full(namespace, at)
        entries = {self._entry(namespace, key): key for key in sorted(cleaned.keys)}
        for key in entries.values():  # one for each page
            self._update(namespace, key, self._look_up(namespace, key))
        self._trim(namespace, cleaned.pages)

    def _release(self, namespace: KeyValueNamespace, value: PlacedValue) -> None:
        self._trim(namespace, self._log(namespace).release(value))

    def _trim(self, namespace: KeyValueNamespace, pages: list[int]) -> None:
        runs = [(first * PAGE, count * PAGE) for first, count in _runs(pages)]
        self._timing.trim(namespace.nsid, runs)

    def _read(self, namespace: KeyValueNamespace, pages: list[int], at: int) -> int:
        """The time at which pages, one or more, have been read."""
        return max(
            self._timing.charge(namespace.nsid, Op.READ, first * PAGE, count * PAGE, at)
            for first, count in _runs(pages)
        )

    def _write_full(self, namespace: KeyValueNamespace, at: int) -> int:
        """The time at which pages that have become full are written; all, if writes are to be
        durable."""
        values = self._log(namespace)
        pages = values.take_full()
        if namespace.write_through:
            pages += values.flush()
        return self._write(namespace, pages, at)

    def _without_data(self, at: int) -> int:
        """The time at which a command completes that moves no data, and has its key at `at`."""
        profile, factor = self._timing.drive.profile, self._timing.factor
        begins = self._timing.clock.now()
        begins += (profile.submission_ns + profile.other_command_ns) * factor
        return max(begins, at) + profile.completion_ns * factor

    def _log(self, namespace: KeyValueNamespace) -> ValueLog:
        if namespace.log is None:
            pages = self._timing.size(namespace.nsid) // PAGE
            superblock = self._timing.drive.profile.superblock_pages
            namespace.log = ValueLog(namespace.shape, pages, superblock)
        return namespace.log

    def _look_up(self, namespace: KeyValueNamespace, key: bytes) -> int:
        """The time at which the entry of a key has been read."""
        now = self._timing.clock.now()
        if not self._index_on_flash:
            return now
        return self._timing.charge(namespace.nsid, Op.READ, self._entry(namespace, key), PAGE, now)

    def _update(self, namespace: KeyValueNamespace, key: bytes, at: int) -> int:
        """The time at which the entry of a key has been written."""
        if not self._index_on_flash:
            return at
        self.counters.index += PAGE
        return self._timing.write(namespace.nsid, self._entry(namespace, key), PAGE, after=at)

    def _entry(self, namespace: KeyValueNamespace, key: bytes) -> int:
        """The first byte of the page with the entry of a key."""
        return zlib.crc32(key) % self._log(namespace).index * PAGE

    def _write(self, namespace: KeyValueNamespace, pages: list[int], at: int) -> int:
        """The time at which pages of the log have been written, or else values are in memory."""
        if not pages:
            return self._without_data(at)
        self.counters.written += len(pages) * PAGE
        return max(
            self._timing.write(
                namespace.nsid, first * PAGE, count * PAGE, after=at, fua=namespace.write_through
            )
            for first, count in _runs(pages)
        )


def _runs(pages: list[int]) -> Iterable[tuple[int, int]]:
    """First page and number of pages that follow each other."""
    begin = 0
    for end, page in enumerate(pages, 1):
        if end == len(pages) or pages[end] != page + 1:
            yield pages[begin], end - begin
            begin = end

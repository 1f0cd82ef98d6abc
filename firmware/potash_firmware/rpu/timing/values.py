"""The modelled time of key value namespaces: values in pages of flash, and an index of the keys.

A value takes whole logical pages; the flash translation layer writes them to the end of its log and
relocates them as it does all others. The index has the keys, and says which pages their values
have. It is in DRAM, and costs no time, or on flash: there a key has an entry in one page, which
each command reads, and which Store and Delete write.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from nvme_spec.status import NvmeError, Status
from potash_device.flash.profile import PAGE
from potash_firmware.ftl.requests import Op
from potash_firmware.mailbox.messages import Read
from potash_firmware.rpu.namespaces.inventory import Namespaces
from potash_firmware.rpu.namespaces.key_value import KeyValueNamespace
from potash_firmware.rpu.namespaces.value_pages import Pages, ValuePages
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.scheduler import Later
from potash_firmware.rpu.timing.jobs import Timed
from potash_firmware.rpu.timing.modelled import ModelledTime

log = logging.getLogger(__name__)


MOST_READS = 1 << 17
"""Reads of one program that take time."""


class Charge(NamedTuple):
    """A command that changes a value: the time at which it completes, and the pages of the value
    that it stores; None if it stores none."""

    due: int | Later
    pages: Pages | None = None


class ValueTime(Part):
    """The modelled time of the key value namespaces of one drive."""

    def __init__(
        self, timing: ModelledTime, namespaces: Namespaces, *, index_on_flash: bool
    ) -> None:
        self._timing = timing
        self._namespaces = namespaces
        self._index_on_flash = index_on_flash

    def restore(self, *, clean: bool | None = None) -> None:
        """Place the values that there are, in the order of their keys."""
        for namespace in self._namespaces.values:
            pages = namespace.pages = ValuePages(namespace.shape.flash_size)
            sizes = namespace.media.sizes()
            for key, size in sizes:
                found = pages.take(size)
                if found is None:
                    log.warning(
                        "namespace %d has values for which the modelled flash has no room",
                        namespace.nsid,
                    )
                    break
                pages.placed[key] = found
            if sizes:
                self._timing.trim(namespace.nsid, [(0, namespace.shape.flash_size)])
            for placed in filter(None, pages.placed.values()):
                self._write(namespace, placed, self._timing.clock.now())

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
        pages = self._of(namespace).placed.get(key, [])[: -(-length // PAGE)]
        ranges += [(first * PAGE, count * PAGE) for first, count in _runs(pages)]
        reads = timed.reads
        if reads:  # a worker may state any time
            at, moved = max(at, reads[-1].at), max(moved, reads[-1].moved)
        for first, size in ranges[: max(0, MOST_READS - len(reads))]:
            reads.append(Read(at, namespace.nsid, first, size, moved))

    def fetch(self, namespace: KeyValueNamespace, key: bytes, length: int) -> int:
        """The same as `read`, for bytes that stay in the drive if the link has shares."""
        at = self._look_up(namespace, key)
        pages = self._of(namespace).placed.get(key, [])
        ends = [
            self._timing.charge(namespace.nsid, Op.READ, first * PAGE, count * PAGE, at)
            for first, count in _runs(pages[: -(-length // PAGE)])
        ]
        return max(ends, default=self._without_data(at))

    def exists(self, namespace: KeyValueNamespace, key: bytes) -> bool:
        """True if there is a value for `key`."""
        return key in self._of(namespace).placed

    def store(self, namespace: KeyValueNamespace, key: bytes, size: int) -> Charge:
        """Begin to store a value, which `end` ends. Raises NvmeError."""
        at = self._look_up(namespace, key)
        pages = self._of(namespace).take(size)
        if pages is None:
            raise NvmeError(
                Status.CAPACITY_EXCEEDED, "the modelled flash has no pages for the value"
            )
        try:
            written = self._write(namespace, pages, at) if pages else self._without_data(at)
            due = max(written, self._update(namespace, key, at))
            return Charge(self._timing.transfers.cross(due, size, inwards=True), pages)
        except NvmeError:
            self._of(namespace).release(pages)
            raise

    def delete(self, namespace: KeyValueNamespace, key: bytes) -> Charge:
        """Begin to delete a value, which `end` ends. Raises NvmeError."""
        at = self._look_up(namespace, key)
        if key not in self._of(namespace).placed or not self._index_on_flash:
            return Charge(self._without_data(at))
        return Charge(self._update(namespace, key, at))

    def end(
        self, namespace: KeyValueNamespace, key: bytes, charge: Charge, *, changed: bool
    ) -> None:
        """A value was stored or deleted; or it was not, and is what it was before."""
        pages = self._of(namespace)
        old = pages.placed.pop(key, []) if changed else charge.pages or []
        if changed and charge.pages is not None:
            pages.placed[key] = charge.pages
        runs = [(first * PAGE, count * PAGE) for first, count in _runs(old)]
        self._timing.trim(namespace.nsid, runs)
        pages.release(old)

    def _without_data(self, at: int) -> int:
        """The time at which a command completes that moves no data, and has its key at `at`."""
        profile, factor = self._timing.drive.profile, self._timing.factor
        begins = self._timing.clock.now()
        begins += (profile.submission_ns + profile.other_command_ns) * factor
        return max(begins, at) + profile.completion_ns * factor

    def _of(self, namespace: KeyValueNamespace) -> ValuePages:
        if namespace.pages is None:
            namespace.pages = ValuePages(namespace.shape.flash_size)
        return namespace.pages

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
        return self._timing.write(namespace.nsid, self._entry(namespace, key), PAGE, after=at)

    def _entry(self, namespace: KeyValueNamespace, key: bytes) -> int:
        """The first byte of the page with the entry of a key."""
        return zlib.crc32(key) % self._of(namespace).index * PAGE

    def _write(self, namespace: KeyValueNamespace, pages: Pages, at: int) -> int:
        return max(
            self._timing.write(
                namespace.nsid,
                first * PAGE,
                count * PAGE,
                after=at,
                fua=namespace.write_through,
            )
            for first, count in _runs(pages)
        )


def _runs(pages: Pages) -> Iterable[tuple[int, int]]:
    """First page and number of pages that follow each other."""
    if not pages:
        return
    begins = [
        0,
        *(at for at, (page, following) in enumerate(pairwise(pages), 1) if following != page + 1),
    ]
    for begin, end in pairwise([*begins, len(pages)]):
        yield pages[begin], end - begin

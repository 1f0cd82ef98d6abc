"""Work on the store of a key value namespace, for commands and for running programs."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from nvme_spec.key_value import SHORTEST_LISTED, encode_keys
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_device.media.values import ValueStore
from potash_firmware.rpu.host_reservations import HostReservations
from potash_firmware.rpu.media_work import MediaFailures, MediaWork
from potash_firmware.rpu.namespaces.inventory import Namespaces
from potash_firmware.rpu.namespaces.key_value import KeyValueNamespace
from potash_firmware.rpu.namespaces.reachability import Reachability
from potash_firmware.rpu.reservations import Access
from potash_firmware.rpu.scheduler import Steps

T = TypeVar("T")

AT_ONCE = 16 << 10
"""Bytes that are stored or retrieved in memory without the media executor."""

LISTED_COST = 16
"""Bytes of a value that take as long as one of a list."""


def listed(store: ValueStore, first: bytes, size: int) -> bytes:
    """A list of the keys from `first` on, of at most `size` bytes; waits. Raises MediaError."""
    return encode_keys(store.keys(first, size // SHORTEST_LISTED), size)


def range_of(namespace: KeyValueNamespace, key: bytes) -> tuple[tuple[int, int]]:
    """The range for `BlocksInFlight` of a key."""
    return ((zlib.crc32(key) % namespace.size, 1),)


@dataclass(eq=False, repr=False)
class ValueAccess:
    """The access of one controller to the values of its namespaces."""

    namespaces: Namespaces
    reservations: HostReservations
    reachability: Reachability
    media_work: MediaWork
    failures: MediaFailures

    def readable(self, access: Access, nsid: int, reader: int | None) -> KeyValueNamespace:
        """A namespace that may be accessed for namespace `reader`, or for a job if that is None.
        Raises NvmeError."""
        namespace = self.namespaces.attached.get(nsid)
        if not isinstance(namespace, KeyValueNamespace):
            raise NvmeError(
                Status.INVALID_NAMESPACE, f"no namespace {nsid:#x} with keys is attached"
            )
        self.namespaces.require_accessible(nsid)
        namespace.in_flight.require_open()
        self.reservations.require(nsid, access)
        if reader is not None:
            self.reachability.require(reader, nsid)
        return namespace

    def work(
        self,
        namespace: KeyValueNamespace,
        key: bytes,
        call: Callable[[], T],
        size: int,
        *,
        writes: bool = False,
    ) -> Steps[T]:
        """Call the store, about `size` bytes: here if they are few, in memory, and nothing else
        uses it, or else on the media executor. Raises NvmeError."""
        store, in_flight = namespace.media, namespace.in_flight
        try:
            if size <= AT_ONCE and store.path is None and not in_flight.busy:
                return call()
            ranges = range_of(namespace, key)
            work = self.media_work.on_blocks(in_flight, ranges, call, writes=writes)
            yield work
        except MediaError as error:
            raise self.failures.values(namespace.nsid, store, error, writes=writes) from None
        return work.result()

"""Copy Values: values of key value namespaces to a memory namespace (`csd_spec.values`).

So a program of a compute namespace filters and aggregates values that no host has seen. The media
executor copies about a MiB at a time, between which other commands are served.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from csd_spec import values
from nvme_spec.key_value import LONGEST_KEY
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_device.media.values import ValueStore
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.command_sets.memory.access import AT_ONCE
from potash_firmware.rpu.command_sets.memory.copy import destination
from potash_firmware.rpu.command_sets.nvm.blocks import require_queue
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.key_value import KeyValueNamespace
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from potash_firmware.rpu.reservations import Access

MOST_AT_ONCE = 4096
"""Values that one step copies, however small they are."""


class Copied(NamedTuple):
    """The result of a step: what it has copied, in how many bytes, and the key to go on with."""

    values: list[tuple[bytes, int]]
    """Keys, and sizes of their values."""
    size: int
    following: bytes
    full: bool
    """There was no room for the next value."""


def copy_values(controller: Controller, command: Command) -> Steps:
    """Copy the values of the source ranges, one after another, as far as there is room."""
    namespace, fields = destination(controller, command, {0})
    listed = controller.transfer.receive(command, values.SOURCE_SIZE * (fields.nr_z + 1))
    sources = list(values.ValueSource.decode_list(listed))
    for source in sources:
        _check(controller, namespace, source)
    rest = namespace.memory.bytes[fields.sdaddr : fields.sdaddr + fields.length]
    count, full, fetched = 0, False, 0
    for source in sources:
        left, first = source.count, source.first
        while left and not full:
            copied = yield from _step(controller, source, first, left, rest)
            count += len(copied.values)
            rest = rest[copied.size :]
            controller.statistics.moved += copied.size
            fetched = max(fetched, _fetched(controller, source.nsid, copied))
            full = copied.full
            if not copied.values:
                break
            left, first = left - len(copied.values), copied.following
            require_queue(command)
            controller.namespaces.of_kind(MemoryNamespace, command.entry.nsid)  # deleted?
    if controller.timing is not None:
        moved = fields.length - len(rest)
        due = controller.timing.transfers.memory(moved, after=fetched)
        yield from controller.scheduler.until(due)
    return count | (fields.length - len(rest)) << 32


def _check(controller: Controller, target: MemoryNamespace, source: values.ValueSource) -> None:
    """Raise NvmeError for a source range whose values cannot be copied."""
    if source.key_length > LONGEST_KEY or source.flags > values.SourceFlag.PLAIN:
        raise NvmeError(
            Status.INVALID_FIELD, "a key length or flags of a source range are not valid"
        )
    controller.values.readable(Access.READ, source.nsid, target.nsid)


def _step(
    controller: Controller, source: values.ValueSource, first: bytes, most: int, target: memoryview
) -> Generator[Any, Any, Copied]:
    """Copy some of the values of a source range. Raises NvmeError."""
    namespace = controller.namespaces.of_kind(KeyValueNamespace, source.nsid)
    namespace.in_flight.require_open()
    store, plain = namespace.media, bool(source.flags)
    whole = ((0, namespace.size),)
    job = controller.media_work.on_blocks(
        namespace.in_flight, whole, lambda: _copy(store, first, most, target, plain), writes=False
    )
    try:
        yield job
    except MediaError as error:
        raise controller.failures.values(source.nsid, store, error, writes=False) from None
    copied: Copied = job.result()
    return copied


def _copy(store: ValueStore, first: bytes, most: int, target: memoryview, plain: bool) -> Copied:
    copied: list[tuple[bytes, int]] = []
    size, following = 0, first
    for key, value in store.pairs_from(first, min(most, MOST_AT_ONCE), min(len(target), AT_ONCE)):
        content = value if plain else values.record(key, value)
        end = size + len(content)
        if end > len(target):
            return Copied(copied, size, key, full=True)
        target[size:end] = content
        size, following = end, key + b"\0"
        copied.append((key, len(value)))
    return Copied(copied, size, following, full=False)


def _fetched(controller: Controller, nsid: int, copied: Copied) -> int:
    """The time at which the modelled drive has read values, 0 without a model. Raises NvmeError."""
    times = controller.value_time
    if times is None:
        return 0
    namespace = controller.namespaces.of_kind(KeyValueNamespace, nsid)
    return max((times.fetch(namespace, key, size) for key, size in copied.values), default=0)

"""Store, Retrieve, Delete, Exist and List.

The media executor works on the store of values with private buffers; this thread alone copies to
and from guest memory. Small values in memory are stored and retrieved by this thread: that takes
30 microseconds, and passing them on to another thread takes several times as long.

Source: NVM Express Key Value Command Set Specification 1.0d, section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nvme_spec.key_value import LIST_HEADER_SIZE, LONGEST_KEY, KeyValueCommand
from nvme_spec.status import NvmeError, Status
from potash_device.media.values import Stored
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.command_sets.nvm import read_write
from potash_firmware.rpu.command_sets.nvm.blocks import in_turn
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.flushing import require_not_formatting
from potash_firmware.rpu.namespaces.key_value import KeyValueNamespace
from potash_firmware.rpu.transfer import check_size
from potash_firmware.rpu.value_work import LISTED_COST, listed, range_of

if TYPE_CHECKING:  # it takes NumPy
    from potash_firmware.rpu.timing.values import Charge

T = TypeVar("T")

_REFUSED = {Stored.EXISTS: Status.KEY_EXISTS, Stored.FULL: Status.CAPACITY_EXCEEDED}


class Target(NamedTuple):
    """The namespace and the fields of a command."""

    namespace: KeyValueNamespace
    fields: KeyValueCommand
    key: bytes


def store(controller: Controller, command: Command) -> Steps:
    """Store a value, in place of any that the key has."""
    namespace, fields, key = _target(controller, command)
    if fields.size > namespace.shape.max_value:
        raise NvmeError(
            Status.INVALID_VALUE_SIZE,
            f"{fields.size} bytes; the longest value has {namespace.shape.max_value}",
        )
    value = controller.transfer.receive(command, fields.size)
    put = partial(
        namespace.media.store,
        key,
        value,
        must_exist=fields.must_exist,
        must_not_exist=fields.must_not_exist,
    )
    if controller.value_time is None:
        stored = yield from _change(controller, namespace, key, put, fields.size)
    else:
        yield from _turn(namespace, key, writes=True)
        times = controller.value_time
        exists = times.exists(namespace, key)
        if (fields.must_exist and not exists) or (fields.must_not_exist and exists):
            due = times.read(namespace, key)
            steps = _change(controller, namespace, key, put)
            stored = yield from controller.scheduler.not_before(due, steps)
        else:
            begun = partial(times.store, namespace, key, fields.size)
            steps = _change(controller, namespace, key, put, fields.size)
            stored = yield from _timed(controller, namespace, key, steps, begun, Stored.DONE)
    if stored is Stored.ABSENT:
        raise _absent(key)
    if stored is not Stored.DONE:
        raise NvmeError(_REFUSED[stored], stored.value)
    controller.health.count_write(fields.size)
    return None


def retrieve(controller: Controller, command: Command) -> Steps:
    """A value to guest memory, or its first bytes; its size is in dword 0."""
    namespace, fields, key = _target(controller, command)
    controller.transfer.views(command, fields.size, write=True)  # refused before it is read
    get = partial(namespace.media.retrieve, key, fields.size)
    found = yield from _read(controller, namespace, key, get, fields.size)
    if found is None:
        raise _absent(key)
    value, size = found
    views = controller.transfer.views(command, fields.size, write=True)
    controller.transfer.scatter(command, views, value)
    controller.health.count_read(len(value))
    return size


def delete(controller: Controller, command: Command) -> Steps:
    """Delete a key; whether one that does not exist is an error is a feature's value."""
    namespace, _, key = _target(controller, command)
    remove = partial(namespace.media.delete, key)
    if controller.value_time is None:
        deleted = yield from _change(controller, namespace, key, remove)
    else:
        yield from _turn(namespace, key, writes=True)
        begun = partial(controller.value_time.delete, namespace, key)
        steps = _change(controller, namespace, key, remove)
        deleted = yield from _timed(controller, namespace, key, steps, begun, True)
    if not deleted and namespace.absent_is_error:
        raise _absent(key)
    return None


def exist(controller: Controller, command: Command) -> Steps:
    """Succeed if the key exists."""
    namespace, _, key = _target(controller, command)
    if not (yield from _read(controller, namespace, key, partial(namespace.media.exists, key))):
        raise _absent(key)
    return None


def list_keys(controller: Controller, command: Command) -> Steps:
    """Keys to guest memory, in ascending order of their bytes, from the command's key on, until the
    buffer is full. A command without a key begins with the first one."""
    namespace, fields, first = _target(controller, command, least=0)
    if fields.size < LIST_HEADER_SIZE:
        raise NvmeError(Status.INVALID_FIELD, f"{fields.size} bytes have no room for a list")
    check_size(fields.size)
    controller.transfer.views(command, fields.size, write=True)
    get = partial(listed, namespace.media, first, fields.size)
    keys = yield from _read(controller, namespace, first, get, size=fields.size * LISTED_COST)
    views = controller.transfer.views(command, fields.size, write=True)
    controller.transfer.scatter(command, views, keys)
    return None


def flush(controller: Controller, command: Command) -> Steps:
    """Complete when all that was acknowledged before is on stable storage."""
    namespace = controller.namespaces.of_kind(KeyValueNamespace, command.entry.nsid)
    require_not_formatting(namespace)
    return read_write.flush_all(controller, [namespace])


def _target(controller: Controller, command: Command, *, least: int = 1) -> Target:
    """Raises NvmeError for a namespace without keys, and for a key that no namespace has."""
    namespace = controller.namespaces.of_kind(KeyValueNamespace, command.entry.nsid)
    fields = KeyValueCommand.decode(command.entry)
    if fields.key_length > LONGEST_KEY:
        raise NvmeError(Status.INVALID_FIELD, f"a key has at most {LONGEST_KEY} bytes")
    if fields.key_length < least:
        raise NvmeError(Status.INVALID_KEY_SIZE, "a key has at least one byte")
    return Target(namespace, fields, fields.key)


def _absent(key: bytes) -> NvmeError:
    return NvmeError(Status.KV_KEY_DOES_NOT_EXIST, f"key {key.hex()} does not exist")


def _change(
    controller: Controller,
    namespace: KeyValueNamespace,
    key: bytes,
    change: Callable[[], T],
    size: int = 0,
) -> Generator[Any, Any, T]:
    """Change the store, durably if the host has switched the volatile write cache off."""

    def durably() -> T:
        result = change()
        namespace.media.flush()
        return result

    made = durably if namespace.write_through else change
    return (yield from controller.values.work(namespace, key, made, size, writes=True))


def _timed(
    controller: Controller,
    namespace: KeyValueNamespace,
    key: bytes,
    change: Generator[Any, Any, T],
    begun: Callable[[], Charge],
    done: T,
) -> Generator[Any, Any, T]:
    """Change the store, and complete when the modelled drive has; `done` is the result of a change
    that was made."""
    assert controller.value_time is not None
    times, charge = controller.value_time, begun()

    def steps() -> Generator[Any, Any, T]:
        changed = False
        try:
            result = yield from change
            changed = result == done
        except GeneratorExit:  # nobody waits for the change any more, which is made
            changed = True
            raise
        finally:
            times.end(namespace, key, charge, changed=changed)
        return result

    return (yield from controller.scheduler.not_before(charge.due, steps()))


def _read(
    controller: Controller,
    namespace: KeyValueNamespace,
    key: bytes,
    get: Callable[[], T],
    length: int = 0,
    size: int = 0,
) -> Generator[Any, Any, T]:
    """Read from the store: a key and at most so many bytes of its value, or what takes as long as
    `size` bytes."""
    work = controller.values.work(namespace, key, get, size or length)
    if controller.value_time is None:
        return (yield from work)
    yield from _turn(namespace, key, writes=False)
    try:
        due = controller.value_time.read(namespace, key, length)
    except NvmeError as error:  # of which one for unreadable flash says when it is found
        yield from controller.scheduler.until(getattr(error, "due", None))
        raise
    return (yield from controller.scheduler.not_before(due, work))


def _turn(namespace: KeyValueNamespace, key: bytes, *, writes: bool) -> Steps:
    """Wait for commands on the key that came before, which decide what its pages are. Raises
    NvmeError if the namespace was formatted or detached meanwhile."""
    in_flight, ranges = namespace.in_flight, range_of(namespace, key)
    yield from in_turn(in_flight, ranges, writes=writes)
    return None

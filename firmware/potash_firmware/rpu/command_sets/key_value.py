"""Store, Retrieve, Delete, Exist and List.

The media executor works on the store of values with private buffers; this thread alone copies to
and from guest memory.

Source: NVM Express Key Value Command Set Specification 1.0d, section 3.2.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from nvme_spec.key_value import (
    LIST_HEADER_SIZE,
    LONGEST_KEY,
    SHORTEST_LISTED,
    KeyValueCommand,
    encode_keys,
)
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_device.media.values import Stored
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.command_sets.nvm import read_write
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.flushing import require_not_formatting
from potash_firmware.rpu.namespaces.key_value import WHOLE, KeyValueNamespace
from potash_firmware.rpu.transfer import check_size

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
    stored = yield from _change(controller, namespace, put)
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
    found = yield from _work(controller, namespace, get, writes=False)
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
    deleted = yield from _change(controller, namespace, partial(namespace.media.delete, key))
    if not deleted and namespace.absent_is_error:
        raise _absent(key)
    return None


def exist(controller: Controller, command: Command) -> Steps:
    """Succeed if the key exists."""
    namespace, _, key = _target(controller, command)
    get = partial(namespace.media.exists, key)
    if not (yield from _work(controller, namespace, get, writes=False)):
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
    get = partial(namespace.media.keys, first, fields.size // SHORTEST_LISTED)
    keys = yield from _work(controller, namespace, get, writes=False)
    views = controller.transfer.views(command, fields.size, write=True)
    controller.transfer.scatter(command, views, encode_keys(keys, fields.size))
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
    controller: Controller, namespace: KeyValueNamespace, change: Callable[[], T]
) -> Generator[Any, Any, T]:
    """Change the store, durably if the host has switched the volatile write cache off."""

    def durably() -> T:
        result = change()
        namespace.media.flush()
        return result

    made = durably if namespace.write_through else change
    return (yield from _work(controller, namespace, made, writes=True))


def _work(
    controller: Controller, namespace: KeyValueNamespace, call: Callable[[], T], *, writes: bool
) -> Generator[Any, Any, T]:
    """Have the media executor call the store. Raises NvmeError."""
    work = controller.media_work.on_blocks(namespace.in_flight, WHOLE, call, writes=writes)
    try:
        yield work
    except MediaError as error:
        raise controller.failures.values(
            namespace.nsid, namespace.media, error, writes=writes
        ) from None
    return work.result()

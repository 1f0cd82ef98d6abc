"""Datagrams: their kinds, which are registered by `message`, and their encoding.

The first byte is the kind; the fields of that kind follow, little endian, as
`potash_wire.records` stores them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

from potash_firmware.mailbox.shared import MailboxError
from potash_wire.records import Record, WireError

T = TypeVar("T")

Kinds = dict[int, Record[Any]]
"""Records of messages, by the first byte of a datagram."""

KINDS: Kinds = {}
"""The records of all messages."""
RECORDS: dict[type[Any], Record[Any]] = {}


@dataclass_transform(frozen_default=True)
def fields(declared: type[T]) -> type[T]:
    """A dataclass that mypy takes for a frozen one. To freeze it would take as long again when its
    module is imported, and for each message that is made."""
    return dataclass(slots=True)(declared)


@dataclass_transform(frozen_default=True)
def message(kind: int) -> Callable[[type[T]], type[T]]:
    """Make a class a dataclass, and the message of a kind, stored as its annotations say."""

    def register(declared: type[T]) -> type[T]:
        made = fields(declared)
        KINDS[kind] = RECORDS[made] = Record(made, prefix=kind)
        return made

    return register


def encode(message: Any) -> bytes:
    """One datagram. Raises MailboxError if a field's value is out of range."""
    try:
        return RECORDS[type(message)].encode(message)
    except WireError as error:
        raise MailboxError(str(error)) from None


def kinds_of(*messages: type[Any]) -> Kinds:
    """The records of some messages, for a receiver that `decode` is to read no others for."""
    return {kind: record for kind, record in KINDS.items() if record in map(RECORDS.get, messages)}


def decode(data: bytes, kinds: Kinds = KINDS) -> Any:
    """The message in a datagram. Raises MailboxError for anything that `encode` did not make, and
    for a message that is not of one of the `kinds`, before its fields are decoded."""
    record = kinds.get(data[0]) if data else None
    if record is None:
        start = data[:1].hex() or "nothing"
        raise MailboxError(f"a datagram starts with {start}, which is no kind of message here")
    try:
        return record.decode(data)
    except WireError as error:
        raise MailboxError(str(error)) from None

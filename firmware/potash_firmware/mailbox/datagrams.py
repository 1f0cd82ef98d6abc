"""How messages become datagrams: a kind in the first byte, then the fields, little endian."""

from collections.abc import Callable
from typing import Any, TypeVar

from potash_wire.records import Record, WireError

Message = TypeVar("Message", bound=type[Any])


class MailboxError(Exception):
    """A message, a port or a shared buffer is not what the two processors agreed on."""


KINDS: dict[int, Record[Any]] = {}
"""By the first byte."""
RECORDS: dict[type[Any], Record[Any]] = {}


def datagram(kind: int) -> Callable[[Message], Message]:
    """Make a class the message of a kind; its fields say how they are stored."""

    def register(message: Message) -> Message:
        KINDS[kind] = RECORDS[message] = Record(message, first=kind)
        return message

    return register


def encode(message: Any) -> bytes:
    """One datagram. Raises MailboxError where a field's value has no place in it."""
    try:
        return RECORDS[type(message)].encode(message)
    except WireError as error:
        raise MailboxError(str(error)) from None


def decode(data: bytes) -> Any:
    """The message in a datagram. Raises MailboxError for anything that `encode` did not make."""
    record = KINDS.get(data[0]) if data else None
    if record is None:
        raise MailboxError(f"a datagram starts with {data[:1].hex() or 'nothing'}, no known kind")
    try:
        return record.decode(data)
    except WireError as error:
        raise MailboxError(str(error)) from None

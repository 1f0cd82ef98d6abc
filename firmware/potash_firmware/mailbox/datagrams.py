"""How messages become datagrams: a kind in the first byte, then the fields, little endian."""

import struct
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

Message = TypeVar("Message", bound=type[Any])


class MailboxError(Exception):
    """A message, a port or a shared buffer is not what the two processors agreed on."""


class Codec(NamedTuple):
    """How a kind of message is packed and unpacked; unpacking raises MailboxError, struct.error."""

    message: type[Any]
    pack: Callable[[Any], bytes]
    unpack: Callable[[bytes], Any]


CODECS: dict[int, Codec] = {}
"""By the first byte."""
PACKERS: dict[type[Any], Callable[[Any], bytes]] = {}


def datagram(kind: int, layout: str = "") -> Callable[[Message], Message]:
    """Make a class the message of a kind.

    With a layout, its fields are numbers in the order of the datagram; else it has `pack`, which
    gives all bytes, and `unpack`, which takes them.
    """

    def register(message: Message) -> Message:
        codec = Codec(message, message.pack, message.unpack) if not layout else _plain(message)
        CODECS[kind], PACKERS[message] = codec, codec.pack
        return message

    def _plain(message: type[Any]) -> Codec:
        form, names = struct.Struct(layout), [one.name for one in fields(message)]
        return Codec(
            message,
            lambda m: form.pack(kind, *(getattr(m, name) for name in names)),
            lambda data: message(*form.unpack(data)[1:]),
        )

    return register

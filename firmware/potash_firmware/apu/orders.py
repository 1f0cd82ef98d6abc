"""The messages between the service and the nursery, in datagrams as those of the mailbox."""

from typing import NamedTuple, cast

from potash_firmware.mailbox import datagrams
from potash_firmware.mailbox.datagrams import datagram, encode
from potash_wire.records import I32, U64

__all__ = ["encode"]

MAX_ORDER = 4096

CHECKER = -1
"""In an accelerator's place: make a process that checks one program."""

ENGINE = -2
"""Likewise: make a worker for a compute namespace."""


@datagram(80)
class Spawn(NamedTuple):
    """Make a worker for an accelerator; the datagram carries the worker's end of its channel."""

    serial: U64
    accelerator: I32


@datagram(81)
class Kill(NamedTuple):
    """Kill a worker that was made before; one that is gone already is left in peace."""

    serial: U64


@datagram(82)
class Exited(NamedTuple):
    """A worker is gone: its exit code, or the number of the signal that ended it, negated."""

    serial: U64
    code: I32


def decode(data: bytes) -> Spawn | Kill | Exited:
    return cast(Spawn | Kill | Exited, datagrams.decode(data))

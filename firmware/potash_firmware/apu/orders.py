"""The messages between the service and the nursery: one JSON array in each datagram."""

import json
from typing import NamedTuple

MAX_ORDER = 4096


CHECKER = -1
"""In an accelerator's place: make a process that checks one program."""

ENGINE = -2
"""Likewise: make a worker for a compute namespace."""


class Spawn(NamedTuple):
    """Make a worker for an accelerator; the datagram carries the worker's end of its channel."""

    serial: int
    accelerator: int


class Kill(NamedTuple):
    """Kill a worker that was made before; one that is gone already is left in peace."""

    serial: int


class Exited(NamedTuple):
    """A worker is gone: its exit code, or the number of the signal that ended it, negated."""

    serial: int
    code: int


_KINDS = {kind.__name__: kind for kind in (Spawn, Kill, Exited)}


def encode(message: Spawn | Kill | Exited) -> bytes:
    return json.dumps([type(message).__name__, *message]).encode()


def decode(data: bytes) -> Spawn | Kill | Exited:
    name, *fields = json.loads(data)
    return _KINDS[name]._make(fields)

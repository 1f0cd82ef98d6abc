"""A device of vfio-user that can be migrated, and the messages of its features."""

from __future__ import annotations

import struct

from pyvfio_user.device import Operation
from pyvfio_user.migration import Migration, State
from support.vfio_user import DEVICE_FEATURE, Recorder, command

GET, SET, PROBE = 1 << 16, 1 << 17, 1 << 18


class Movable:
    """A device's `migration` that writes down what it is asked."""

    pre_copy = True
    initial = State.RUNNING

    def __init__(self) -> None:
        self.arcs: list[tuple[int, int]] = []
        self.state = b""
        self.pending: Operation | None = None
        """What the next change returns."""
        self.fail: OSError | None = None

    def change(self, before: State, after: State) -> Operation | None:
        self.arcs.append((before, after))
        if self.fail is not None:
            raise self.fail
        pending, self.pending = self.pending, None
        return pending

    def read(self, size: int) -> bytes:
        data, self.state = self.state[:size], self.state[size:]
        return data

    def write(self, data: bytes) -> None:
        self.state += data


class MovableRecorder(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.migration: Migration = Movable()


def feature(flags: int, data: bytes = b"", room: int = 4096) -> bytes:
    return command(DEVICE_FEATURE, struct.pack("<II", room, flags) + data)

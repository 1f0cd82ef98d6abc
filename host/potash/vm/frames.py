"""The frames of the control channel between host and guest.

One byte stream each way carries any number of commands side by side. A frame is its kind, a zero,
the command's channel and its length, then that many bytes. No sockets here: bytes in, frames out,
so the same few lines serve both ends, the guest's included (where Python is slow: standard library
only, and little of it).
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

HEADER = struct.Struct("<BxHI")
LARGEST = 1 << 20
"""The largest payload, in bytes; a longer one means that the stream is not of this protocol."""
WINDOW = 1 << 18
"""Maximum bytes of a command's input that have been sent and that it has not read yet."""
PORT = "potash.control"
"""The name of the virtio-serial port that the frames travel through."""


class Kind(IntEnum):
    """The kind of a frame. Channel 0 is the agent itself, others are commands."""

    HELLO = 0  # both ways: JSON with a nonce, which the guest returns to show that it lives
    RUN = 1  # to the guest: JSON of a `Command`
    INPUT = 2  # to the guest: standard input; empty at its end
    TAKEN = 3  # to the host: i32, bytes of input that the command has taken
    OUTPUT = 4  # to the host: standard output
    ERRORS = 5  # to the host: standard error
    SIGNAL = 6  # to the guest: i32, for the command's process group
    RESIZE = 7  # to the guest: JSON of the rows and columns of its terminal
    EXIT = 8  # to the host: i32, the exit code, or minus the signal; the channel is free again
    PING = 9  # to the guest: answered by the same bytes in a PONG
    PONG = 10


class Frame(NamedTuple):
    kind: int
    channel: int
    data: bytes


class FrameError(Exception):
    """The byte stream does not hold frames."""


def encode(kind: int, channel: int, data: bytes = b"") -> bytes:
    """The bytes of a frame; `data` has at most `LARGEST` bytes."""
    return HEADER.pack(kind, channel, len(data)) + data


def number(value: int) -> bytes:
    """The data of a frame that carries a number."""
    return value.to_bytes(4, "little", signed=True)


def carried_number(frame: Frame) -> int:
    """The number that a frame carries. Raises FrameError where it carries something else."""
    if len(frame.data) != 4:
        raise FrameError(f"a frame of kind {frame.kind} has {len(frame.data)} bytes")
    return int.from_bytes(frame.data, "little", signed=True)


class Decoder:
    """Cuts a byte stream, which arrives in pieces of any size, into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add received bytes, and yield the frames that are complete. Raises FrameError where a
        header announces more than `LARGEST` bytes."""
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= HEADER.size:
                kind, channel, length = HEADER.unpack_from(self._buffer, start)
                if length > LARGEST:
                    raise FrameError(f"a frame of {length} bytes is longer than any can be")
                end = start + HEADER.size + length
                if end > len(self._buffer):
                    break
                data = bytes(self._buffer[start + HEADER.size : end])
                start = end
                yield Frame(kind, channel, data)
        finally:
            del self._buffer[:start]

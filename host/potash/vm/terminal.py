"""This process's own terminal, connected to a command in the guest."""

import contextlib
import os
import termios
from collections.abc import Iterator

from potash.vm.channel import Channel, Command, Sink

POLL_INTERVAL = 0.25
"""Seconds between two polls of the terminal's size."""


def descriptor_sink(descriptor: int) -> Sink:
    """A sink that writes all data to a descriptor, unbuffered."""

    def sink(data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]

    return sink


def size() -> tuple[int, int]:
    """The terminal's rows and columns: its own, as LINES and COLUMNS do not follow it."""
    try:
        columns, rows = os.get_terminal_size()
    except OSError:
        return 24, 80
    return rows, columns


@contextlib.contextmanager
def restored(descriptor: int) -> Iterator[None]:
    """Restore the terminal's settings after the block."""
    before = termios.tcgetattr(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


def follow(channel: Channel, command: Command) -> int:
    """Follow a command on a terminal to its end, and report every change of this terminal's size to
    it.

    The size is polled, as a signal handler could interrupt the sending of a frame.
    """
    last = size()
    while command.code is None:
        channel.step(channel.clock() + POLL_INTERVAL)
        if command.code is None and size() != last:
            last = size()
            command.resize(*last)
    return command.code

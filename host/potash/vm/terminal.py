"""This process's own terminal, connected to a command in the guest."""

import contextlib
import os
import termios
import tty
from collections.abc import Iterator

from potash.vm.channel import Channel, Command, Sink

POLL_INTERVAL = 0.25
"""Seconds between two polls of the terminal's size."""


def descriptor_sink(descriptor: int) -> Sink:
    """A sink that writes all of it to a descriptor, at once."""

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
def raw(descriptor: int) -> Iterator[None]:
    """The terminal passes every key on, Ctrl-C too, until the block ends."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


def follow(channel: Channel, command: Command) -> int:
    """Follow a command on a terminal to its end, passing on every change of this one's size.

    The size is polled: a signal handler could come in the middle of a frame.
    """
    known = size()
    while command.code is None:
        channel.step(channel.clock() + POLL_INTERVAL)
        if command.code is None and size() != known:
            known = size()
            command.resize(*known)
    return command.code

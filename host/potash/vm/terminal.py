"""This process's own terminal, lent to a command in the guest."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import termios
import tty
from collections.abc import Iterator
from types import FrameType

from potash.vm.channel import Command, Sink


def descriptor_sink(descriptor: int) -> Sink:
    """A sink that writes all of it to a descriptor, at once."""

    def sink(data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]

    return sink


def size() -> tuple[int, int]:
    """The terminal's rows and columns."""
    columns, rows = shutil.get_terminalsize()
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


@contextlib.contextmanager
def following_size(command: Command) -> Iterator[None]:
    """Tell a command's terminal whenever this one changes its size."""

    def changed(_number: int, _frame: FrameType | None) -> None:
        command.resize(*size())

    before = signal.signal(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)

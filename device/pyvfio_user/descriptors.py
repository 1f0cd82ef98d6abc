"""Letting go of descriptors that a client has sent, without waiting for it.

close(2) may wait: for the peer of a TCP socket that lingers, or for the server of a file in FUSE.
What a client has no reason to send is closed in a thread that nobody waits for, and so is a socket
with messages that were never received, whose descriptors the system closes with it."""

import fcntl
import os
import socket
import struct
import termios
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

MAX_CLOSING = 32
"""Threads in which a close has not ended yet, from which on nothing more is taken of clients."""

EVENTFD_LINK = "anon_inode:[eventfd]"
"""The link in /proc of an eventfd's descriptor."""

_closing: set[threading.Thread] = set()


def may_receive() -> bool:
    """True if a message's descriptors could be closed: false while too many closes are pending."""
    return len(_closing) < MAX_CLOSING


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors, those that may take long in a thread."""
    slow = []
    for fd in fds:
        if _is_quick(fd):
            os.close(fd)
        else:
            slow.append(fd)
    if slow:
        _close_in_thread(*(partial(os.close, fd) for fd in slow))


def close_socket(sock: socket.socket) -> None:
    """Close a UNIX socket, which the other end notices immediately."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    # Nothing can come any more now. A descriptor comes with a byte at least.
    unread = fcntl.ioctl(sock, termios.FIONREAD, struct.pack("i", 0))
    if struct.unpack("i", unread)[0]:
        _close_in_thread(sock.close)
    else:
        sock.close()


def is_eventfd(fd: int) -> bool:
    return os.readlink(f"/proc/self/fd/{fd}") == EVENTFD_LINK


def _is_quick(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return is_eventfd(fd)
    return True  # only files in memory have seals


def _close_in_thread(*closes: Callable[[], None]) -> None:
    def run() -> None:
        for close in closes:
            with suppress(OSError):  # the descriptor is gone nevertheless
                close()
        _closing.discard(thread)

    thread = threading.Thread(target=run, name="close", daemon=True)
    _closing.add(thread)
    thread.start()

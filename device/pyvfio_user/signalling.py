"""Signalling an eventfd that is somebody else's, without ever waiting for it.

write(2) blocks while the counter is full, which its other owner can make it at any moment;
O_NONBLOCK belongs to the file that both share, and RWF_NOWAIT is not for eventfds. The kernel's own
signal at the end of an asynchronous request never waits: so a signal is a read of no bytes with
IOCB_FLAG_RESFD.

Sources: io_submit(2), eventfd(2), linux/aio_abi.h."""

import ctypes
import functools
import os
import platform
import select
import struct
import sys
from contextlib import suppress
from typing import NamedTuple

_CALLS = {"x86_64": (206, 208, 209), "aarch64": (0, 4, 2)}
"""Numbers of io_setup, io_getevents and io_submit; glibc has no functions for them."""

_REQUESTS = 64
"""Requests whose ends the kernel keeps until they are taken."""

_IOCB = struct.Struct("<QIIHhIQQqQII")
_IOCB_CMD_PREAD = 0
_IOCB_FLAG_RESFD = 1
_EVENT_SIZE = 32


class _Context(NamedTuple):
    """This process's asynchronous requests."""

    libc: ctypes.CDLL
    number: int
    getevents: int
    submit: int
    ended: ctypes.Array[ctypes.c_char]

    def take_ended(self) -> None:
        """Make room for further requests: how they ended is of no interest."""
        self.libc.syscall(
            ctypes.c_long(self.getevents),
            ctypes.c_ulong(self.number),
            ctypes.c_long(0),
            ctypes.c_long(_REQUESTS),
            self.ended,
            None,
        )


@functools.cache
def _context() -> _Context | None:
    """None where the kernel, or what confines this process, does not let it have one."""
    calls = _CALLS.get(platform.machine())
    if calls is None or sys.maxsize < 1 << 32:
        return None
    setup, getevents, submit = calls
    libc = ctypes.CDLL(None)
    libc.syscall.restype = ctypes.c_long
    number = ctypes.c_ulong(0)
    if libc.syscall(ctypes.c_long(setup), ctypes.c_long(_REQUESTS), ctypes.byref(number)) != 0:
        return None
    ended = ctypes.create_string_buffer(_REQUESTS * _EVENT_SIZE)
    return _Context(libc, number.value, getevents, submit, ended)


os.register_at_fork(after_in_child=_context.cache_clear)


class Signal:
    """Adds one to the counter of `eventfd`, which it does not own, when it is called.

    Calling it neither waits nor raises; a counter that is full has been signalled. Where there are
    no asynchronous requests, a counter is looked at before it is written to: its other owner can
    still make that write wait by filling it in between.
    """

    __slots__ = ("_context", "_eventfd", "_keep", "_poll", "_submit")

    def __init__(self, eventfd: int) -> None:
        self._eventfd = eventfd
        self._poll = select.poll()
        self._poll.register(eventfd, select.POLLOUT)
        self._context = context = _context()
        if context is None:
            return
        # The read fails, as eight bytes are what an eventfd gives, but a request that fails ends
        # too.
        request = _IOCB.pack(
            0, 0, 0, _IOCB_CMD_PREAD, 0, eventfd, 0, 0, 0, 0, _IOCB_FLAG_RESFD, eventfd
        )
        iocb = ctypes.create_string_buffer(request, len(request))
        pointer = ctypes.c_void_p(ctypes.addressof(iocb))
        self._keep = (iocb, pointer)
        # Each interrupt passes here: arguments that are C values already save 0.5 µs.
        self._submit = functools.partial(
            context.libc.syscall,
            ctypes.c_long(context.submit),
            ctypes.c_ulong(context.number),
            ctypes.c_long(1),
            ctypes.byref(pointer),
        )

    def __call__(self) -> None:
        context = self._context
        if context is not None:
            if self._submit() == 1:
                return
            context.take_ended()
            if self._submit() == 1:
                return
        if self._poll.poll(0):
            with suppress(OSError):
                os.eventfd_write(self._eventfd, 1)

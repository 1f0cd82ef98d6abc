"""Signals that end a device, and the thread that waits for them."""

import ctypes
import os
import select
import signal
from typing import Self

_PR_SET_TIMERSLACK = 29


def wake_on_time() -> None:
    """Have this thread's short waits end when they should.

    The kernel lets timeouts be 50 µs late, to wake the processor less often (prctl(2),
    PR_SET_TIMERSLACK); a tick may be shorter than that.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)


class StopSignals:
    """SIGINT, SIGTERM and SIGHUP as something to wait for; a context manager.

    A SIGHUP that is ignored, as under nohup(1), stays ignored. Enter it before the device is
    announced: whoever knows of it may end it immediately.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        numbers = [number for number in self.NUMBERS if number != signal.SIGHUP or not ignored]
        self._before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def fileno(self) -> int:
        return self._reader

    def came(self) -> bool:
        """True if one of these signals has come, and not only others, such as a timer's."""
        return not set(os.read(self._reader, select.PIPE_BUF)).isdisjoint(self.NUMBERS)

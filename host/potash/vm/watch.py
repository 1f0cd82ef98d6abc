"""A process that stops the guests of a device while that takes too long for one step.

A device asks for stops in its loop, so none can begin within a step: garbage collection by a flash
translation layer in Python, a page of a slow disk, or a moment without a processor. This process
has copies of the device's connections to QEMU's monitors. It sends `stop` to all of them when the
device has not come back by the time that it announced, and the device takes the stop over when it
does come back. If the device is killed, or does not come back within the limit of a stop, this
process sends `cont`.

It also has the threads of QEMU, of the device and its own wait less for a processor on a busy
machine: since Linux 6.12, a thread can say for how long it wants one at once (sched_setattr(2),
`sched_runtime`); the shorter that is, the sooner it is its turn. It needs no privilege, and its
share of the processors stays the same. Older kernels ignore it.

Both processes share four words of memory. Run as a file, this is the process's program; it imports
no package, as it has to start quickly.
"""

import contextlib
import ctypes
import mmap
import os
import platform
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence

DUE, HELD, STOPPED, ASLEEP = range(4)
"""The shared words, of which the first three are times of the host's monotonic clock in
nanoseconds, or 0: when the device comes back at the latest; when it has stopped the guest itself;
when the process has, which the device sets to 0 again; and 1 while the process waits for a message
of the device."""
WORDS = 4

MOST_MONITORS = 16
"""Monitors of a device: one for each controller."""

LOOK = 0.0005
"""Seconds between two looks at the words."""
LINGER = 20
"""Looks in vain after which the process waits for a message."""
GRACE = 1_000_000_000
"""Nanoseconds beyond the limit of a stop, within which a device that runs ends the stop itself."""
END_LIMIT = 2.0
"""Seconds that the process may take to end."""

SLICE = 100_000
"""Nanoseconds for which a thread wants a processor at once: the least that Linux takes."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The system call's number; few C libraries have a function for it."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""Size, policy, flags, nice value, priority, runtime, deadline and period."""

MARK = "watch"
"""The identifier of this process's commands, by which the device tells their answers from those of
its own."""
LAST = "watch, last"
"""The identifier of its last command."""


class Watch:
    """The device's side, with the process; a stop lasts `limit` seconds at most. Raises OSError."""

    def __init__(self, limit: float) -> None:
        self._latest = 0.0
        memory = os.memfd_create("potash-watch", os.MFD_CLOEXEC)
        self._control, theirs = socket.socketpair()
        try:
            os.ftruncate(memory, mmap.PAGESIZE)
            self._map = mmap.mmap(memory, mmap.PAGESIZE)
            self._words = memoryview(self._map).cast("q")
            command = [sys.executable, "-I", "-S", __file__, str(theirs.fileno()), str(memory)]
            self._process = subprocess.Popen(
                [*command, str(round(limit * 1e9))],
                pass_fds=(theirs.fileno(), memory),
                stdin=subprocess.DEVNULL,
            )
        except OSError:
            self._control.close()
            raise
        finally:
            theirs.close()
            os.close(memory)
        self._control.setblocking(False)

    @property
    def pid(self) -> int:
        """The identifier of the process."""
        return self._process.pid

    def use(self, monitors: Sequence[int]) -> None:
        """Stop guests through the connections with these descriptors, and no others, from now
        on."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [b"m"], monitors)

    def expect(self, due: int) -> None:
        """Announce when the device calls this again at the latest; 0 if it need not."""
        self._set(DUE, due)

    def hold(self, since: int) -> None:
        """Announce when the device has stopped a guest itself; 0 once all guests continue."""
        self._set(HELD, since)

    def _set(self, word: int, value: int) -> None:
        words = self._words
        words[word] = value
        if value and words[ASLEEP]:
            words[ASLEEP] = 0
            with contextlib.suppress(OSError):
                self._control.send(b"w")

    @property
    def stopped(self) -> int:
        """The time at which the process has stopped the guests, until `take`; 0 if it has not."""
        return self._words[STOPPED]

    def take(self) -> int:
        """Take over the stop of the process. Returns when it began; 0 if there is none."""
        self._words[DUE] = self._words[HELD] = 0
        stopped, self._words[STOPPED] = self._words[STOPPED], 0
        return stopped

    def seconds(self) -> float:
        """The host's monotonic clock, which stands at the time of a stop until it is taken over."""
        stopped = self._words[STOPPED]
        self._latest = max(self._latest, stopped / 1e9) if stopped else time.monotonic()
        return self._latest

    def close(self) -> None:
        """End the process, which lets the guests continue if they are stopped."""
        self._control.close()
        try:
            self._process.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._words.release()
        self._map.close()


def main(control: socket.socket, words: memoryview, limit: int) -> None:
    """Watch a device until it closes its end of `control`."""
    monitors: list[socket.socket] = []
    given_up = quiet = 0
    while True:
        now, stopped, due = time.monotonic_ns(), words[STOPPED], words[DUE]
        since = stopped or words[HELD]
        if not monitors:
            pass
        elif since:
            if now - since > limit + (0 if stopped else GRACE) and given_up != since:
                given_up = since
                _tell(monitors, "cont")
        elif due and now >= due:
            words[STOPPED] = now
            _tell(monitors, "stop")
        quiet = 0 if due or since else quiet + 1
        if quiet > LINGER:
            words[ASLEEP] = 1
        asleep = quiet > LINGER and not words[DUE] and not words[HELD]
        if not select.select((control,), (), (), None if asleep else LOOK)[0]:
            continue
        words[ASLEEP] = quiet = 0
        data, descriptors, _, _ = socket.recv_fds(control, 64, MOST_MONITORS)
        if not data:
            break
        if b"m" not in data:
            continue
        before, monitors = monitors, [socket.socket(fileno=each) for each in descriptors]
        if words[STOPPED]:  # at this very moment, and the device leaves guests that have left
            _tell([each for each in before if not _is_among(each, monitors)], "cont")
        for monitor in before:
            monitor.close()
        for monitor in monitors:
            credentials = monitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            for pid in (os.getpid(), os.getppid(), struct.unpack("3i", credentials)[0]):
                shorten_slices(pid)
    if words[STOPPED] or words[HELD]:
        _end(monitors)


def _is_among(monitor: socket.socket, others: Iterable[socket.socket]) -> bool:
    """True where one of these is a copy of a connection."""
    inode = os.fstat(monitor.fileno()).st_ino
    return any(os.fstat(other.fileno()).st_ino == inode for other in others)


def shorten_slices(pid: int) -> None:
    """Give all threads of a process short slices, but for those with a policy of their own, such as
    real time. Has no effect where that is not possible."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return
    call = ctypes.CDLL(None).syscall
    with contextlib.suppress(OSError):  # it has ended, or cannot be seen from here
        for thread in map(int, os.listdir(f"/proc/{pid}/task")):
            if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                nice = os.getpriority(os.PRIO_PROCESS, thread)
                values = (_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, SLICE, 0, 0)
                call(number, thread, _ATTRIBUTES.pack(*values), 0)


def _end(monitors: Sequence[socket.socket]) -> None:
    """Let the guests continue, and wait for the answers: QEMU may not read what comes just before
    the end of a connection."""
    _tell(monitors, "cont", LAST)
    deadline = time.monotonic() + END_LIMIT / 2
    for monitor in monitors:
        answers = b""
        with contextlib.suppress(OSError):
            while LAST.encode() not in answers and (left := deadline - time.monotonic()) > 0:
                if select.select((monitor,), (), (), left)[0]:
                    data = monitor.recv(1 << 16)
                    if not data:
                        break
                    answers += data


def _tell(monitors: Iterable[socket.socket], command: str, identifier: str = MARK) -> None:
    line = b'{"execute": "%s", "id": "%s"}\n' % (command.encode(), identifier.encode())
    for monitor in monitors:
        with contextlib.suppress(OSError):  # QEMU has ended, as the device sees
            monitor.send(line)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends after its device
    main(
        socket.socket(fileno=int(sys.argv[1])),
        memoryview(mmap.mmap(int(sys.argv[2]), mmap.PAGESIZE)).cast("q"),
        int(sys.argv[3]),
    )

"""A QEMU process, with its monitor and console.

It is given descriptors instead of paths (socket pairs for its monitor and for the control channel,
memory for its console), so that no socket or file can be left behind, and it ends with this
process.
"""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Self

from potash.vm.errors import GuestError
from potash.vm.parent_death import dies_with_parent
from potash.vm.qemu import DEVICE_MONITOR, Qemu, channel_arguments
from potash.vm.qmp import Message, Qmp, event_time

TAIL_LINES = 20
TAIL_BYTES = 8192
STOPPED_POLL = 1.0
"""Seconds between two checks of who has stopped the guest."""


class Machine:
    """A QEMU process, with options of the machine and of its start; a context manager."""

    qmp: Qmp
    """Its monitor."""
    control: socket.socket
    """The host's end of the stream to the guest's agent."""

    def __init__(self, qemu: Qemu, arguments: Sequence[str]) -> None:
        self._qemu = qemu
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._owned = contextlib.ExitStack()
        self._pauses = Pauses()
        self._look_at = 0.0
        """The time of the next check of who has stopped the guest."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            monitor, their_monitor = _pair(stack)
            self.control, their_control = _pair(stack)
            self._console = _memory(stack, "console")
            self._said = _memory(stack, "said")
            theirs = (their_monitor.fileno(), their_control.fileno(), self._console)
            command = [*self._qemu.command, *self._arguments, *channel_arguments(*theirs)]
            self._process = subprocess.Popen(
                dies_with_parent(command),
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                pass_fds=theirs,
                # Ctrl-C at the terminal is for this process only.
                start_new_session=True,
            )
            stack.callback(self._end)
            their_monitor.close()
            their_control.close()
            self.qmp = Qmp(monitor, self._pauses.take)
            try:
                self.qmp.negotiate()
            except GuestError as error:
                raise self.failure(error.reason) from error
            self._owned = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def runs_kernel(self) -> bool:
        """True while its processor is in 64-bit mode, which SeaBIOS never enters."""
        registers = {"command-line": "info registers"}
        return "RIP=" in self.qmp.execute("human-monitor-command", registers)

    def seconds(self) -> float:
        """The time of the guest, from any origin: it stands still while the guest is stopped."""
        self.qmp.poll_events()
        if self._pauses.stopped and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + STOPPED_POLL
            # The machine's end is reported elsewhere.
            with contextlib.suppress(GuestError):
                self._end_orphaned_stop()
        return self._pauses.now

    def _end_orphaned_stop(self) -> None:
        """Let the guest continue where a device was killed that may have stopped it.

        Its monitor then has no client. Another device that holds the guest stops it again.
        """
        for device in self.qmp.execute("query-chardev"):
            name, end = device["label"], device["filename"]
            if name.startswith(DEVICE_MONITOR) and end.startswith("disconnected:"):
                self.qmp.execute("cont")
                return

    def console(self, lines: int = TAIL_LINES) -> str:
        """The last lines of output of the guest and of QEMU itself."""
        text = _tail(self._console) + _tail(self._said)
        return "\n".join(text.replace("\r", "").splitlines()[-lines:])

    def failure(self, reason: str) -> GuestError:
        """An error whose message ends with the console."""
        return GuestError(reason, self.console())

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _pair(stack: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    here, there = socket.socketpair()
    stack.callback(here.close)
    stack.callback(there.close)
    return here, there


def _memory(stack: contextlib.ExitStack, name: str) -> int:
    descriptor = os.memfd_create(f"potash-{name}", os.MFD_CLOEXEC)
    stack.callback(os.close, descriptor)
    return descriptor


def _tail(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    data = os.pread(descriptor, TAIL_BYTES, max(0, size - TAIL_BYTES))
    return data.decode(errors="replace")


class Pauses:
    """The guest's stops, from QEMU's events STOP and RESUME, by the host's monotonic `clock`, in
    seconds, and by `realtime`, which the events' times are of."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, realtime: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._realtime = realtime
        self._stopped_at: float | None = None
        self._total = 0.0

    @property
    def stopped(self) -> bool:
        return self._stopped_at is not None

    @property
    def now(self) -> float:
        """Seconds of the guest's time, from any origin; constant while it is stopped."""
        return (self._clock() if self._stopped_at is None else self._stopped_at) - self._total

    def take(self, event: Message) -> None:
        """Handle an event; only STOP and RESUME have an effect."""
        if event.get("event") == "STOP" and self._stopped_at is None:
            self._stopped_at = self._when(event)
        elif event.get("event") == "RESUME" and self._stopped_at is not None:
            self._total += max(0.0, self._when(event) - self._stopped_at)
            self._stopped_at = None

    def _when(self, event: Message) -> float:
        at = event_time(event)
        return self._clock() - (0.0 if at is None else max(0.0, self._realtime() - at))

"""The host's end of the control channel: it starts commands in the guest and follows them.

Every wait notices the end of the guest: while a command is silent, the agent is pinged, and a guest
that does not answer is an error.
"""

import itertools
import json
import os
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from potash.sdk.errors import restated
from potash.vm import frames
from potash.vm.errors import GuestError, GuestTimeout

PIECE = 1 << 16
QUIET = 5.0
"""Seconds of silence after which the agent is pinged."""
ENTROPY = 32

Sink = Callable[[bytes], object]
"""A function that receives a stream, piece by piece, such as `file.write`."""


class Readable(Protocol):
    def fileno(self) -> int: ...


Input = bytes | Readable | None
"""A command's standard input: bytes, something with a descriptor, or nothing."""


def discard(_data: bytes) -> None:
    """A `Sink` that ignores its data."""


class Command:
    """A command that runs in the guest. `code` is its exit code when it has ended, minus the
    signal's number when a signal ended it."""

    def __init__(
        self, channel: "Channel", number: int, stdin: Input, stdout: Sink, stderr: Sink
    ) -> None:
        self._channel = channel
        self.number = number
        self.sinks: dict[int, Sink] = {frames.Kind.OUTPUT: stdout, frames.Kind.ERRORS: stderr}
        self.source = None if isinstance(stdin, bytes) or stdin is None else stdin
        self.left = memoryview(stdin) if isinstance(stdin, bytes) else memoryview(b"")
        self.in_flight = 0
        self.fed = False
        self.code: int | None = None

    def signal(self, number: int) -> None:
        self._channel.send(frames.Kind.SIGNAL, self.number, frames.number(number))

    def resize(self, rows: int, columns: int) -> None:
        self._channel.send(frames.Kind.RESIZE, self.number, json.dumps((rows, columns)).encode())

    def wait(self, timeout: float | None = None) -> int:
        """Follow the command to its end: its exit code, or minus the number of the signal that
        ended it. Raises GuestTimeout where it still runs after `timeout` seconds, or the guest no
        longer answers, and GuestError where the guest has ended."""
        deadline = None if timeout is None else self._channel.clock() + timeout
        while self.code is None:
            if deadline is not None and self._channel.clock() >= deadline:
                raise GuestTimeout(f"the command did not end within {timeout:g} seconds")
            self._channel.step(deadline)
        return self.code


class Channel:
    """The stream to the agent; it does not own the socket.

    The guest may send nothing for `life_limit` seconds. All limits are measured by `clock`, the
    guest's time in seconds: while it stands still, no limit passes.
    """

    def __init__(
        self,
        stream: socket.socket,
        life_limit: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self.clock = clock
        self._decoder = frames.Decoder()
        self._outgoing = bytearray()
        self._commands: dict[int, Command] = {}
        self._numbers = itertools.cycle(range(1, 1 << 16))
        self._life_limit = life_limit
        self._quiet = min(QUIET, life_limit / 4)
        self._last_received = self.clock()
        self._last_ping = 0.0
        self._nonce = ""
        self._greeting = ""

    def greet(self, limit: float) -> None:
        """Wait for the agent's answer to a greeting, which sets the guest's time and its random
        state. Raises GuestTimeout where there is no answer within `limit` seconds."""
        self._nonce = os.urandom(8).hex()
        greeting = {
            "nonce": self._nonce,
            "time_ns": time.time_ns(),
            "entropy": os.urandom(ENTROPY).hex(),
        }
        self.send(frames.Kind.HELLO, 0, json.dumps(greeting).encode())
        deadline = self.clock() + limit
        while self._nonce not in self._greeting:
            if self.clock() >= deadline:
                raise GuestTimeout(f"the guest showed no life within {limit:g} seconds")
            self._last_received = self.clock()
            self.step(deadline)

    def start(
        self,
        argv: Sequence[str],
        *,
        stdin: Input = None,
        stdout: Sink = discard,
        stderr: Sink = discard,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        terminal: tuple[int, int] | None = None,
    ) -> Command:
        """Start a command in the guest, on a pseudo-terminal of `terminal` rows and columns if that
        is given, whose output is `stdout`. Raises ValueError for no words, or one with a zero byte
        in it, and GuestError where the guest has ended."""
        if not argv or any("\0" in word for word in argv):
            raise ValueError("a command is one word or more, none with a zero byte")
        channel = next(one for one in self._numbers if one not in self._commands)
        command = Command(self, channel, stdin, stdout, stderr)
        request = {"argv": list(argv), "env": dict(env or {}), "cwd": cwd, "terminal": terminal}
        self._commands[channel] = command
        self.send(frames.Kind.RUN, channel, json.dumps(request).encode())
        self._last_received = self.clock()
        self._feed(command)
        return command

    def send(self, kind: int, channel: int, data: bytes = b"") -> None:
        """Queue one frame, and send what the stream takes now.

        Waiting for the stream here could be a deadlock, as the agent may wait until its own output
        is read. The queue is bounded by the commands' windows.
        """
        self._outgoing += frames.encode(kind, channel, data)
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outgoing:
                sent = self._stream.send(self._outgoing[:PIECE], socket.MSG_DONTWAIT)
                del self._outgoing[:sent]
        except BlockingIOError:
            return
        except OSError as error:
            raise GuestError("the guest has ended") from error

    def step(self, deadline: float | None) -> None:
        """Wait for something to happen, and handle it; returns at the latest at the deadline."""
        waiting = select.poll()
        waiting.register(self._stream, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        feeding: dict[int, Command] = {}
        for command in self._commands.values():
            if command.source is not None and not command.fed and command.in_flight < frames.WINDOW:
                descriptor = command.source.fileno()
                feeding[descriptor] = command
                waiting.register(descriptor, select.POLLIN)
        now = self.clock()
        until = now + self._quiet if deadline is None else min(deadline, now + self._quiet)
        for descriptor, _events in waiting.poll(max(0.0, until - now) * 1000 + 1):
            if descriptor in feeding:
                self._feed_from(feeding[descriptor], descriptor)
            else:
                self._receive()
                self._flush()
        self._ping()

    def _receive(self) -> None:
        try:
            data = self._stream.recv(1 << 18, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise GuestError("the guest has ended") from error
        if not data:
            raise GuestError("the guest has ended")
        self._last_received = self.clock()
        with restated(frames.FrameError, "the guest's agent makes no sense", GuestError):
            for frame in self._decoder.feed(data):
                self._handle(frame)

    def _handle(self, frame: frames.Frame) -> None:
        if frame.kind == frames.Kind.HELLO:
            self._greeting = frame.data.decode(errors="replace")
            return
        command = self._commands.get(frame.channel)
        if command is None:
            return
        if frame.kind in command.sinks:
            command.sinks[frame.kind](frame.data)
        elif frame.kind == frames.Kind.TAKEN:
            command.in_flight -= frames.carried_number(frame)
            self._feed(command)
        elif frame.kind == frames.Kind.EXIT:
            command.code = frames.carried_number(frame)
            del self._commands[frame.channel]

    def _feed(self, command: Command) -> None:
        """Send as much of input that is in memory as the window has room for."""
        if command.source is not None or command.fed:
            return
        while command.left and command.in_flight < frames.WINDOW:
            self._input(command, bytes(command.left[:PIECE]))
            command.left = command.left[PIECE:]
        if not command.left:
            self._input(command, b"")

    def _feed_from(self, command: Command, descriptor: int) -> None:
        try:
            data = os.read(descriptor, PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._input(command, data)

    def _input(self, command: Command, data: bytes) -> None:
        command.in_flight += len(data)
        command.fed = not data
        self.send(frames.Kind.INPUT, command.number, data)

    def _ping(self) -> None:
        now = self.clock()
        if now - self._last_received > self._life_limit:
            raise GuestTimeout("the guest stopped answering")
        if now - max(self._last_received, self._last_ping) > self._quiet / 2:
            self._last_ping = now
            self.send(frames.Kind.PING, 0)

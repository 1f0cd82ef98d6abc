"""QEMU's own control protocol, as far as a guest's life needs it.

QEMU Machine Protocol Specification (docs/interop/qmp-spec.rst): one JSON object a line; a greeting,
then commands answered by "return" or "error", with events in between. `Monitor` is for a process
that must not wait, as a device serves its guest meanwhile: a command is sent without waiting, and
its answer comes in a later `service`. While a processor of the guest waits for the device's answer
to a register access, QEMU does not answer `stop`, so waiting for that here would be a deadlock.
"""

import contextlib
import json
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from potash.sdk.errors import PotashError
from potash.vm.errors import GuestError, GuestTimeout

LIMIT = 30.0
"""Seconds that a command may take; QEMU's main loop answers immediately unless something is
wrong."""

GREETING_LIMIT = 2.0
"""Seconds within which a monitor without another client greets, while QEMU's main loop runs."""

PIECE = 1 << 16
LONGEST = 1 << 20
"""Maximum bytes of a message; a peer that sends more without a line's end is not a monitor."""

LATEST = 1 << 40
"""The latest time of an event, in seconds of the realtime clock."""

Message = Mapping[str, Any]


def encoded(command: str, arguments: Mapping[str, Any] | None = None) -> bytes:
    return json.dumps({"execute": command, "arguments": dict(arguments or {})}).encode() + b"\n"


class Messages:
    """The decoder of a monitor's stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with `data`. Raises GuestError for anything that is not a
        message."""
        self._buffer += data
        while True:
            line, end, rest = self._buffer.partition(b"\n")
            if not end:
                if len(line) > LONGEST:
                    raise GuestError("QEMU's monitor sends something that is not a message")
                return
            self._buffer = rest
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                raise GuestError("QEMU's monitor sends something that is not a message")
            yield message


def event_time(event: Message) -> float | None:
    """The time of an event, in seconds of the realtime clock; None where it has none."""
    stamp = event.get("timestamp")
    if not isinstance(stamp, dict):
        return None
    seconds, microseconds = stamp.get("seconds"), stamp.get("microseconds")
    if not isinstance(seconds, int) or not isinstance(microseconds, int):
        return None
    if not 0 <= seconds <= LATEST or not 0 <= microseconds < 1_000_000:
        return None  # QEMU says -1 where it cannot tell
    return seconds + microseconds / 1e6


def connected(path: Path) -> socket.socket:
    """A connection to the UNIX socket that QEMU listens at. Raises OSError where it does not."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.setblocking(False)
        stream.connect(str(path))
    except BaseException:
        stream.close()
        raise
    return stream


class Monitor:
    """A connection to a monitor, of which this is the only client.

    `service` calls `on_message` with the greeting, each answer and each event.
    """

    def __init__(self, stream: socket.socket, on_message: Callable[[Message], object]) -> None:
        self._on_message = on_message
        self._messages = Messages()
        self._outgoing = bytearray()
        self._stream = stream
        stream.setblocking(False)

    def fileno(self) -> int:
        """Readable when `service` has something to do; writable, too, where `wants_write`."""
        return self._stream.fileno()

    @property
    def wants_write(self) -> bool:
        return bool(self._outgoing)

    def send(self, command: str, arguments: Mapping[str, Any] | None = None) -> None:
        """Send a command of QEMU's QMP reference; answers come in the order of commands.

        Raises GuestError where QEMU has ended.
        """
        self._outgoing += encoded(command, arguments)
        self._flush()

    def service(self) -> None:
        """Send pending commands, and report received messages. Raises GuestError when QEMU has
        ended."""
        self._flush()
        while True:
            try:
                data = self._stream.recv(PIECE)
            except BlockingIOError:
                return
            except OSError as error:
                raise GuestError("QEMU has ended") from error
            if not data:
                raise GuestError("QEMU has ended")
            for message in self._messages.feed(data):
                self._on_message(message)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)  # another process may have a copy
        self._stream.close()

    def _flush(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: self._stream.send(self._outgoing)]
        except BlockingIOError:
            return
        except OSError as error:
            raise GuestError("QEMU has ended") from error


class Qmp(Monitor):
    """A client that waits for answers, on a connected socket.

    `execute` and `poll_events` call `on_event` with each event.
    """

    def __init__(
        self, stream: socket.socket, on_event: Callable[[Message], object] = lambda _event: None
    ) -> None:
        self._received: deque[Message] = deque()
        self._on_event = on_event
        super().__init__(stream, self._received.append)

    def negotiate(self) -> None:
        """Leave the negotiation mode that every connection starts in."""
        greeting = self._receive(time.monotonic() + LIMIT)
        if "QMP" not in greeting:
            raise GuestError("QEMU's monitor does not greet as it should")
        self.execute("qmp_capabilities")

    def execute(
        self, command: str, arguments: Mapping[str, Any] | None = None, limit: float = LIMIT
    ) -> Any:
        """Run a command of QEMU's QMP reference and return what it returns.

        Raises GuestError where QEMU refuses it, has ended, or does not answer in `limit` seconds.
        """
        deadline = time.monotonic() + limit
        self.send(command, arguments)
        while True:
            answer = self._receive(deadline)
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise GuestError(f"QEMU refuses {command}: {answer['error'].get('desc')}")
            self._on_event(answer)

    def poll_events(self) -> None:
        """Report the events that have arrived, without waiting."""
        with contextlib.suppress(GuestError):  # The next command finds that QEMU has ended.
            self.service()
        while self._received:
            self._on_event(self._received.popleft())

    def _receive(self, deadline: float) -> Message:
        while not self._received:
            poll = select.poll()
            poll.register(self, select.POLLIN | select.POLLOUT * self.wants_write)
            if not poll.poll(max(0, (deadline - time.monotonic()) * 1000)):
                raise GuestTimeout("QEMU does not answer")
            try:
                self.service()
            except GuestError:
                if not self._received:
                    raise
        return self._received.popleft()


def require_monitor(path: Path) -> None:
    """Refuse a path where there is something other than a monitor of QEMU; QEMU may also start
    later. Raises PotashError."""
    if not path.exists():
        return
    if not path.is_socket():
        raise PotashError(f"{path} is not a socket; QEMU makes one with -qmp unix:PATH,server=on")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.settimeout(GREETING_LIMIT)
        try:
            stream.connect(str(path))
        except ConnectionRefusedError:
            return  # A QEMU has left it behind; the next one makes it anew.
        except OSError as error:
            raise PotashError(f"{path}: {error.strerror or error}") from None
        messages, greeting = Messages(), None
        deadline = time.monotonic() + GREETING_LIMIT
        with contextlib.suppress(OSError, GuestError):
            while greeting is None and time.monotonic() < deadline:
                data = stream.recv(PIECE)
                greeting = next(messages.feed(data), None) if data else {}
        if not greeting or "QMP" not in greeting:
            raise PotashError(
                f"who listens at {path} does not greet as QEMU's monitor does (QMP), or has "
                "another client already"
            )

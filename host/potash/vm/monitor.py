"""QEMU's monitor for a process that must not wait for it: a device serves its guest meanwhile.

A command is sent at once and answered by a later `service`. While a processor of the guest waits
for the device's answer to a register access, QEMU answers no `stop`: whoever waited here for that
would wait for ever.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from potash.sdk.errors import PotashError
from potash.vm.errors import GuestError
from potash.vm.qmp import Message, Messages, encoded

PIECE = 1 << 16
GREETING_LIMIT = 2.0
"""Seconds in which a monitor that is free greets, while QEMU's main loop runs."""


class Monitor:
    """A connection to a monitor's socket, of which this is the only client.

    Args:
        path: of the UNIX socket that QEMU listens at.
        on_message: called in `service` with the greeting, each answer and each event.

    Raises:
        OSError: on creation: nobody listens there.
    """

    def __init__(self, path: Path, on_message: Callable[[Message], object]) -> None:
        self._on_message = on_message
        self._messages = Messages()
        self._outgoing = bytearray()
        self._stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._stream.setblocking(False)
            self._stream.connect(str(path))
        except BaseException:
            self._stream.close()
            raise

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
        """Send what is left, and pass on what has come. Raises GuestError at QEMU's end."""
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
        self._stream.close()

    def _flush(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: self._stream.send(self._outgoing)]
        except BlockingIOError:
            return
        except OSError as error:
            raise GuestError("QEMU has ended") from error


def require_monitor(path: Path) -> None:
    """Refuse what is there and is no monitor of QEMU's; QEMU may also start later.

    Raises:
        PotashError: with a sentence for the user.
    """
    if not path.exists():
        return
    if not path.is_socket():
        raise PotashError(f"{path} is no socket; QEMU makes one with -qmp unix:PATH,server=on")
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

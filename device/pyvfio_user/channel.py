"""The client's end of a connection: commands out, their replies in, and answers to what the server
asks meanwhile.

Source: `docs/interop/vfio-user.rst` in QEMU's sources, section "Protocol Specification".
"""

from __future__ import annotations

import array
import errno
import itertools
import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Protocol, Self, TypeVar

from pyvfio_user import dma_client
from pyvfio_user.connection import MAX_MSG_FDS
from pyvfio_user.descriptors import close_all
from pyvfio_user.payloads import REGION_ACCESS
from pyvfio_user.protocol import (
    DEFAULT_MAX_TRANSFER,
    HEADER,
    Command,
    Header,
    ProtocolError,
    encode_command,
)

_MESSAGE_IDS = 1 << 16


class _Decodable(Protocol):
    @classmethod
    def decode(cls, payload: bytes) -> Self: ...


_Decoded = TypeVar("_Decoded", bound=_Decodable)


class VfioUserError(OSError):
    """A command failed; `errno` is the server's, or ETIMEDOUT, ECONNRESET, EPROTO of our own."""


class Channel:
    """A connection to the server at the socket `path`, once connected; a command takes at most
    `timeout` seconds. Its methods raise VfioUserError, as those of `Client` do."""

    def __init__(self, path: str | os.PathLike[str], timeout: float) -> None:
        self.path = os.fspath(path)
        self.twin: socket.socket | None = None
        """Where the server's commands come, if not at the first socket."""
        self.windows = dma_client.MessageWindows()
        """The memory that the server may ask for."""
        self.max_transfer = DEFAULT_MAX_TRANSFER
        """Bytes that the server takes in one access to a region."""
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._ids: Iterator[int] = itertools.cycle(range(_MESSAGE_IDS))
        self._unanswered: dict[int, Command] = {}
        self._received = bytearray()
        self._fds: list[int] | None = None
        """Descriptors of the reply that is awaited; None: the kernel may drop any."""

    def connect(self) -> None:
        """Raises OSError where nobody listens."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self._timeout)
            sock.connect(self.path)
        except BaseException:
            sock.close()
            raise
        self._socket = sock

    def close(self) -> None:
        """Close the sockets, and forget the memory."""
        for one in (self._socket, self.twin):
            if one is not None:
                one.close()
        self._socket = self.twin = None
        self.windows.clear()

    def answer(self, seconds: float, until: int | None = None) -> bool:
        """Do what the server asks, for so long or until a descriptor is readable; whether it is."""
        deadline = time.monotonic() + seconds
        while True:
            ready = self._ready(deadline, *([] if until is None else [until]))
            if not ready:
                return False
            if until in ready:
                return True
            self._answer_ready(ready)

    def command_fds(self, command: Command, payload: bytes) -> tuple[bytes, list[int]]:
        """As `command`, with the file descriptors of the reply, which are the caller's."""
        self._fds = []
        try:
            reply = self.command(command, payload)
            fds, self._fds = self._fds, []
            return reply, fds
        finally:
            close_all(self._fds)
            self._fds = None

    def command(self, command: Command, payload: bytes, fds: Sequence[int] = ()) -> bytes:
        """Send a command and return the payload of its reply.

        An exception such as KeyboardInterrupt may leave a command without having read its reply:
        the next command then reads and discards it.
        """
        message_id = self.send(command, payload, fds)
        deadline = time.monotonic() + self._timeout
        while True:
            header, reply = self._receive_message(command, deadline)
            if not header.is_reply and header.command in dma_client.DMA_COMMANDS:
                self._reply(header, reply)
                continue
            if not header.is_reply or header.message_id not in self._unanswered:
                raise self.broken(errno.EPROTO, f"what came is no reply to {command.name}")
            expected = self._unanswered.pop(header.message_id)
            if header.command != expected:
                raise self.broken(errno.EPROTO, f"what came is no reply to {expected.name}")
            if header.message_id == message_id:
                break
            if self._fds:
                close_all(self._fds)
                self._fds.clear()
        if header.is_error:
            number = header.error or errno.EIO
            raise VfioUserError(number, f"{command.name} failed: {os.strerror(number)}")
        return reply

    def send(
        self,
        command: Command,
        payload: bytes,
        fds: Sequence[int] = (),
        *,
        no_reply: bool = False,
    ) -> int:
        """Send a whole message; its ID."""
        sock = self._connected()
        message_id = next(self._ids)
        message = encode_command(message_id, command, payload, no_reply=no_reply)
        if not no_reply:
            self._unanswered[message_id] = command
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sock.settimeout(self._timeout)
            sent = sock.sendmsg([message], ancillary, socket.MSG_NOSIGNAL)
            if sent < len(message):
                sock.sendall(memoryview(message)[sent:], socket.MSG_NOSIGNAL)
        except TimeoutError:
            raise self.broken(errno.ETIMEDOUT, "the server does not read") from None
        except (BrokenPipeError, ConnectionError) as error:
            raise self.broken(errno.ECONNRESET, f"the server is gone: {error}") from None
        return message_id

    def _receive_message(self, command: Command, deadline: float) -> tuple[Header, bytes]:
        """The next message's header and payload, taken from what has come once it is whole."""
        self._receive(HEADER.size, deadline)
        header = self.decode(Header, bytes(self._received[: HEADER.size]))
        size = header.size - HEADER.size
        if size > REGION_ACCESS.size + max(self.max_transfer, DEFAULT_MAX_TRANSFER):
            raise self.broken(errno.EPROTO, f"a reply to {command.name} cannot have {size} bytes")
        self._receive(header.size, deadline)
        payload = bytes(self._received[HEADER.size : header.size])
        del self._received[: header.size]
        return header, payload

    def _receive(self, size: int, deadline: float) -> None:
        sock = self._connected()
        while len(self._received) < size:
            remaining = deadline - time.monotonic()
            try:
                if remaining <= 0:
                    raise TimeoutError
                if self.twin is not None:
                    while sock.fileno() not in (ready := self._ready(deadline)):
                        if not ready:
                            raise TimeoutError
                        self._answer_ready(ready)
                sock.settimeout(remaining)
                if self._fds is None:
                    piece = sock.recv(size - len(self._received))
                else:
                    piece, fds, _, _ = socket.recv_fds(
                        sock, size - len(self._received), MAX_MSG_FDS, socket.MSG_CMSG_CLOEXEC
                    )
                    self._fds += fds
                    if len(self._fds) > MAX_MSG_FDS:
                        raise self.broken(errno.EPROTO, "too many file descriptors with a reply")
            except TimeoutError:
                reason = f"no reply within {self._timeout} seconds"
                raise self.broken(errno.ETIMEDOUT, reason) from None
            except ConnectionError as error:
                raise self.broken(errno.ECONNRESET, f"the server is gone: {error}") from None
            if not piece:
                raise self.broken(errno.ECONNRESET, "the server closed the connection")
            self._received += piece

    def _ready(self, deadline: float, *others: int) -> set[int]:
        """Which of our sockets, and of others, are readable before `deadline`."""
        twin = () if self.twin is None else (self.twin.fileno(),)
        return dma_client.readable((self._connected().fileno(), *twin, *others), deadline)

    def _answer_ready(self, ready: set[int]) -> None:
        """Answer a command at a socket that is readable; at ours nothing else may come."""
        if self.twin is None or self.twin.fileno() not in ready:
            deadline = time.monotonic() + self._timeout
            header, payload = self._receive_message(Command.DMA_READ, deadline)
            if not header.is_reply:
                self._reply(header, payload)
            elif self._unanswered.pop(header.message_id, None) is None:
                raise self.broken(errno.EPROTO, "a reply came to no command")
            return
        try:
            self.windows.answer_at(self.twin, self._timeout)
        except ProtocolError as error:
            raise self.broken(errno.EPROTO, str(error)) from None
        except OSError as error:
            raise self.broken(errno.ECONNRESET, f"the server is gone: {error}") from None

    def _reply(self, header: Header, payload: bytes) -> None:
        sock = self._connected()
        try:
            sock.settimeout(self._timeout)
            sock.sendall(self.windows.answer(header, payload), socket.MSG_NOSIGNAL)
        except OSError as error:
            raise self.broken(errno.ECONNRESET, f"the server is gone: {error}") from None

    def decode(self, kind: type[_Decoded], payload: bytes) -> _Decoded:
        try:
            return kind.decode(payload)
        except ProtocolError as error:
            raise self.broken(errno.EPROTO, str(error)) from None

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise VfioUserError(errno.ENOTCONN, f"not connected to {self.path}")
        return self._socket

    def broken(self, number: int, reason: str) -> VfioUserError:
        """The stream has no meaning any more."""
        self.close()
        return VfioUserError(number, reason)

"""The client's end of a connection: commands out, their replies in, and answers to what the server
asks meanwhile.

Source: `docs/interop/vfio-user.rst` in QEMU's sources, section "Protocol Specification".
"""

import array
import errno
import itertools
import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Protocol, Self, TypeVar

from pyvfio_user import dma_client, protocol
from pyvfio_user.connection import MAX_MSG_FDS
from pyvfio_user.descriptors import close_all
from pyvfio_user.payloads import REGION_ACCESS

_MESSAGE_IDS = 1 << 16
_SENT_WHOLE = 1 << 12
"""Bytes of a message that a socket never takes in part."""
_FD_ROOM = socket.CMSG_SPACE(MAX_MSG_FDS * array.array("i").itemsize)


class _Decodable(Protocol):
    @classmethod
    def decode(cls, payload: bytes) -> Self: ...


_Decoded = TypeVar("_Decoded", bound=_Decodable)
_Piece = tuple[bytes, list[tuple[int, int, bytes]], int, object]
"""Bytes, ancillary data, flags and address, as `recvmsg` returns them."""


class VfioUserError(OSError):
    """A command failed; `errno` is the server's, or ETIMEDOUT, ECONNRESET, EPROTO of our own."""


class Channel:
    """A connection to the server at the socket `path`, once connected; a command takes at most
    `timeout` seconds. Its methods raise VfioUserError, as those of `Client` do."""

    def __init__(self, path: str | os.PathLike[str], timeout: float) -> None:
        self.path = os.fspath(path)
        self.twin: socket.socket | None = None
        """The socket for the server's commands, if that is not the first one."""
        self.windows = dma_client.MessageWindows()
        """The memory that the server may ask for."""
        self.max_transfer = protocol.DEFAULT_MAX_TRANSFER
        """Bytes that the server takes in one access to a region."""
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._ids: Iterator[int] = itertools.cycle(range(_MESSAGE_IDS))
        self._unanswered: dict[int, protocol.Command] = {}
        self._pieces: list[_Piece] = []
        """The pieces of the next message that were received."""
        self._fd_room = 0
        """Bytes for the descriptors of the awaited reply; the kernel drops those without room."""

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
        """Close the sockets and what came by them, and forget the memory."""
        close_all(self._descriptors())
        self._pieces.clear()
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

    def command_fds(self, command: protocol.Command, payload: bytes) -> tuple[bytes, list[int]]:
        """Send a command; returns the reply and its file descriptors, which the caller closes."""
        self._fd_room = _FD_ROOM
        try:
            return self._exchange(command, payload, ())
        finally:
            self._fd_room = 0

    def command(self, command: protocol.Command, payload: bytes, fds: Sequence[int] = ()) -> bytes:
        """Send a command and return the payload of its reply.

        An exception such as KeyboardInterrupt may leave a command without having read its reply:
        the next command then reads and discards it.
        """
        return self._exchange(command, payload, fds)[0]

    def _exchange(
        self, command: protocol.Command, payload: bytes, fds: Sequence[int]
    ) -> tuple[bytes, list[int]]:
        message_id = self.send(command, payload, fds)
        deadline = time.monotonic() + self._timeout
        while True:
            header, reply, reply_fds = self._receive_message(command, deadline)
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
            close_all(reply_fds)
        if header.is_error:
            close_all(reply_fds)
            number = header.error or errno.EIO
            raise VfioUserError(number, f"{command.name} failed: {os.strerror(number)}")
        return reply, reply_fds

    def send(
        self,
        command: protocol.Command,
        payload: bytes,
        fds: Sequence[int] = (),
        *,
        no_reply: bool = False,
    ) -> int:
        """Send a whole message; its ID."""
        sock = self._connected()
        message_id = next(self._ids)
        message = protocol.encode_command(message_id, command, payload, no_reply=no_reply)
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
        except BaseException:
            # The kernel takes a small message whole or not at all; the rest of another is missing.
            if len(message) > _SENT_WHOLE:
                self.close()
            raise
        return message_id

    def _receive_message(
        self, command: protocol.Command, deadline: float
    ) -> tuple[protocol.Header, bytes, list[int]]:
        """The next message's header, payload and descriptors, taken once it is whole."""
        header = self.decode(
            protocol.Header, self._receive(protocol.HEADER.size, deadline)[: protocol.HEADER.size]
        )
        size = header.size - protocol.HEADER.size
        if size > REGION_ACCESS.size + max(self.max_transfer, protocol.DEFAULT_MAX_TRANSFER):
            raise self.broken(errno.EPROTO, f"a reply to {command.name} cannot have {size} bytes")
        message = self._receive(header.size, deadline)
        fds = self._descriptors()
        if len(fds) > MAX_MSG_FDS:
            raise self.broken(errno.EPROTO, "too many file descriptors with a reply")
        self._pieces.clear()
        return header, message[protocol.HEADER.size :], fds

    def _descriptors(self) -> list[int]:
        """The descriptors that have come with the next message."""
        fds = array.array("i")
        for _, ancillary, _, _ in self._pieces:
            for _, _, data in ancillary:
                fds.frombytes(data)
        return fds.tolist()

    def _receive(self, size: int, deadline: float) -> bytes:
        """At least the first `size` bytes of the next message; they are kept until it is taken."""
        sock = self._connected()
        while (missing := size - sum(len(piece[0]) for piece in self._pieces)) > 0:
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
                # One call from Python's view: a signal's handler, which may raise, runs before
                # bytes are received or after they are kept.
                self._pieces.extend(
                    map(sock.recvmsg, (missing,), (self._fd_room,), (socket.MSG_CMSG_CLOEXEC,))
                )
            except TimeoutError:
                reason = f"no reply within {self._timeout} seconds"
                raise self.broken(errno.ETIMEDOUT, reason) from None
            except ConnectionError as error:
                raise self.broken(errno.ECONNRESET, f"the server is gone: {error}") from None
            if not self._pieces[-1][0]:
                raise self.broken(errno.ECONNRESET, "the server closed the connection")
        return b"".join(piece[0] for piece in self._pieces)

    def _ready(self, deadline: float, *others: int) -> set[int]:
        """The own and other sockets that become readable before `deadline`."""
        twin = () if self.twin is None else (self.twin.fileno(),)
        return dma_client.readable((self._connected().fileno(), *twin, *others), deadline)

    def _answer_ready(self, ready: set[int]) -> None:
        """Answer a command at a socket that is readable; at the own one nothing else may come."""
        if self.twin is None or self.twin.fileno() not in ready:
            deadline = time.monotonic() + self._timeout
            header, payload, _ = self._receive_message(protocol.Command.DMA_READ, deadline)
            if not header.is_reply:
                self._reply(header, payload)
            elif self._unanswered.pop(header.message_id, None) is None:
                raise self.broken(errno.EPROTO, "a reply came to no command")
            return
        try:
            self.windows.answer_at(self.twin, self._timeout)
        except protocol.ProtocolError as error:
            raise self.broken(errno.EPROTO, str(error)) from None
        except OSError as error:
            raise self.broken(errno.ECONNRESET, f"the server is gone: {error}") from None

    def _reply(self, header: protocol.Header, payload: bytes) -> None:
        sock = self._connected()
        try:
            sock.settimeout(self._timeout)
            sock.sendall(self.windows.answer(header, payload), socket.MSG_NOSIGNAL)
        except OSError as error:
            raise self.broken(errno.ECONNRESET, f"the server is gone: {error}") from None

    def decode(self, kind: type[_Decoded], payload: bytes) -> _Decoded:
        try:
            return kind.decode(payload)
        except protocol.ProtocolError as error:
            raise self.broken(errno.EPROTO, str(error)) from None

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise VfioUserError(errno.ENOTCONN, f"not connected to {self.path}")
        return self._socket

    def broken(self, number: int, reason: str) -> VfioUserError:
        """The stream has no meaning any more."""
        self.close()
        return VfioUserError(number, reason)

"""The server's end of a client's socket: whole messages in, whole replies out, never waiting.

The kernel ends a read behind the data that descriptors came with (unix(7), "Ancillary messages"),
so those of one read belong to the last message that begins in it; a read that completes a message
takes not a byte more, so every read begins where a message may. Descriptors inside a message are
refused. A client that sends several messages with descriptors in one sendmsg(2) harms nobody but
itself."""

import array
import os
import socket
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from typing import NamedTuple, Self

from pyvfio_user.descriptors import close_all, close_socket, may_receive
from pyvfio_user.protocol import HEADER, TYPE_MASK, Header, MessageType, ProtocolError

MAX_MSG_FDS = 8
"""File descriptors in one message; QEMU refuses a server that wants more than 16."""
MAX_UNSENT_FDS = 64
"""File descriptors in replies that wait for room, each of which is one more of this process."""
READ_SIZE = 1 << 16
"""Bytes asked for at a time where no message has been begun."""

_FD_SIZE = array.array("i").itemsize
_MOST_FDS = 253
"""Descriptors that the kernel passes with one message. There is room for all of them: the kernel
would close those without room itself, while this process waits."""
_ANCILLARY_SIZE = socket.CMSG_SPACE(_MOST_FDS * _FD_SIZE)


class Disconnected(Exception):
    """The client is gone."""


class Message(NamedTuple):
    """A command from the client. `payload` is valid until the next one is received.

    The descriptors in `fds` are the receiver's, who closes them.
    """

    message_id: int
    command: int
    flags: int
    payload: memoryview
    fds: list[int]


class Reply(NamedTuple):
    """A reply of the client to a command of the server's, `error` being its errno.

    `payload` is valid until the next message is received.
    """

    message_id: int
    command: int
    flags: int
    error: int
    payload: memoryview


_NO_FDS: list[int] = []
_REPLY = int(MessageType.REPLY)


class _Unsent(NamedTuple):
    """The rest of a message that waits for room, and duplicates of the descriptors that go with it
    where nothing of it has been sent."""

    data: memoryview
    fds: list[int]


def _ignore(reply: Reply) -> None:
    pass


class Connection:
    """One connected, non-blocking stream socket, which it owns.

    `max_message` is the size of the longest message that is read, header included; `max_queued` how
    many bytes may wait for a client that does not read them. `on_reply` is given the replies that
    `receive` comes across, to messages whose identifiers are among `awaited`.
    """

    def __init__(self, sock: socket.socket, *, max_message: int, max_queued: int) -> None:
        self._socket = sock
        self._max_message = max_message
        self._max_queued = max_queued
        self._buffer = memoryview(bytearray(max(max_message, READ_SIZE)))
        self._batch = [self._buffer[:READ_SIZE]]
        self._start = 0
        self._end = 0
        self._fds = _NO_FDS
        self._fds_end = 0
        self._unsent: deque[_Unsent] = deque()
        self._unsent_size = 0
        self.awaited: Container[int] = ()
        self.on_reply: Callable[[Reply], None] = _ignore

    def like(self, sock: socket.socket) -> Self:
        """Another socket, with the same limits."""
        return type(self)(sock, max_message=self._max_message, max_queued=self._max_queued)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket, and the descriptors that nobody has taken."""
        close_all(self._fds)
        self._fds = _NO_FDS
        for unsent in self._unsent:
            close_all(unsent.fds)
        self._unsent.clear()
        close_socket(self._socket)
        # A megabyte, which would wait for the garbage collector where something refers to this.
        self._buffer, self._batch = memoryview(b""), []
        self._start = self._end = 0

    @property
    def has_message(self) -> bool:
        """True if a whole message has been read, which `receive` returns immediately."""
        size = self._next_size()
        return size is not None and self._end - self._start >= size

    def receive(self) -> Message | None:
        """The next command, or None when the socket has no whole one; replies go to `on_reply`.
        Raises ProtocolError for what cannot be the beginning of a message, after which the stream
        has no meaning any more, and Disconnected."""
        # Every register access passes here: the header is parsed in place, not as a Header.
        while True:
            start = self._start
            available = self._end - start
            if available >= HEADER.size:
                message_id, command, size, flags, error = HEADER.unpack_from(self._buffer, start)
                kind = flags & TYPE_MASK
                if not HEADER.size <= size <= self._max_message or (
                    kind and (kind != _REPLY or message_id not in self.awaited)
                ):
                    self._refuse(start)
                if available >= size:
                    self._start = end = start + size
                    fds = _NO_FDS
                    if self._fds and end >= self._fds_end:
                        fds, self._fds = self._fds, _NO_FDS
                    payload = self._buffer[start + HEADER.size : end]
                    if not kind:
                        return Message(message_id, command, flags, payload, fds)
                    if fds:
                        close_all(fds)
                        raise ProtocolError("file descriptors came with a reply")
                    self.on_reply(Reply(message_id, command, flags, error, payload))
                    continue
            if not self._fill():
                return None

    def send(self, message: bytes, fds: Sequence[int] = ()) -> None:
        """Send a whole message, now or as the client makes room for it.

        It goes out with one system call, because some clients cannot take a header in pieces, and
        the file descriptors `fds`, which stay the caller's, with its first byte. Raises
        ProtocolError for a client that has left too many replies unread, and Disconnected.
        """
        sent = 0 if self._unsent else self._send(message, fds)
        if sent < len(message):
            kept = [] if sent else self._keep(fds)
            self._unsent.append(_Unsent(memoryview(message)[sent:], kept))
            self._unsent_size += len(message) - sent
            if self._unsent_size > self._max_queued:
                raise ProtocolError(
                    f"the client has left {self._unsent_size} bytes of replies unread"
                )

    def _keep(self, fds: Sequence[int]) -> list[int]:
        waiting = sum(len(unsent.fds) for unsent in self._unsent) if fds else 0
        if waiting + len(fds) > MAX_UNSENT_FDS:
            raise ProtocolError(f"the client has left {waiting} file descriptors unread")
        return _duplicated(fds)

    def wants_write(self) -> bool:
        """True if messages wait for room in the socket."""
        return bool(self._unsent)

    @property
    def unsent(self) -> int:
        """Bytes that wait for room in the socket."""
        return self._unsent_size

    def flush(self) -> bool:
        """Send what waits, as far as there is room; whether anything went. Raises Disconnected."""
        progress = False
        while self._unsent:
            data, fds = self._unsent[0]
            sent = self._send(data, fds)
            if not sent:
                break
            progress = True
            self._unsent_size -= sent
            close_all(fds)
            if sent == len(data):
                self._unsent.popleft()
            else:
                self._unsent[0] = _Unsent(data[sent:], [])
        return progress

    def _send(self, data: bytes | memoryview, fds: Sequence[int]) -> int:
        try:
            if fds:
                return socket.send_fds(self._socket, [data], fds, socket.MSG_NOSIGNAL)
            return self._socket.send(data, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise Disconnected(f"the client cannot be written to: {error.strerror}") from None

    def _next_size(self) -> int | None:
        """The size of the message that the buffer begins with, once its header is there."""
        if self._end - self._start < HEADER.size:
            return None
        return int(HEADER.unpack_from(self._buffer, self._start)[2])

    def _fill(self) -> bool:
        """Read once, in to the end of a message begun or else of many; whether anything came."""
        if self._start == self._end:
            self._start = self._end = 0
            into, begun = self._batch, False
        else:
            self._move_to_front()
            wanted = self._next_size() or HEADER.size
            into, begun = [self._buffer[self._end : wanted]], True
        try:
            count, ancillary, flags, _ = self._socket.recvmsg_into(
                into, _ANCILLARY_SIZE, socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise Disconnected(f"the client cannot be read from: {error.strerror}") from None
        self._end += count
        if ancillary or flags & socket.MSG_CTRUNC:
            self._take_fds(_descriptors(ancillary), flags, begun=begun)
        if not count:
            raise Disconnected(
                "the client closed the connection"
                + (f" {self._end} bytes into a message" if self._end else "")
            )
        return True

    def _take_fds(self, fds: list[int], flags: int, *, begun: bool) -> None:
        """Keep the descriptors of a read for the message that they belong to."""
        # Those of a message begun earlier count, too, though no message will ever take them.
        self._fds = [*self._fds, *fds] or _NO_FDS
        self._fds_end = self._end
        if len(self._fds) > MAX_MSG_FDS or flags & socket.MSG_CTRUNC:
            raise ProtocolError(
                f"a message came with more than {MAX_MSG_FDS} file descriptors, or with more than"
                " this process may open"
            )
        if not may_receive():
            raise ProtocolError("too many descriptors of clients take long to close")
        if begun and fds:
            raise ProtocolError("file descriptors came in the middle of a message")

    def _move_to_front(self) -> None:
        """Move what has been read of a message to where the whole of it has room."""
        start = self._start
        if start:
            rest = bytes(self._buffer[start : self._end])
            self._buffer[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
            self._fds_end -= start

    def _refuse(self, start: int) -> None:
        header = Header.decode(self._buffer[start : start + HEADER.size])
        if header.flags & TYPE_MASK != MessageType.COMMAND:
            raise ProtocolError("the client replied to a message that it was not sent")
        raise ProtocolError(
            f"a message of {header.size} bytes is longer than {self._max_message}, the longest"
        )


def _duplicated(fds: Sequence[int]) -> list[int]:
    """Duplicates of `fds`; Disconnected where this process may open no more."""
    duplicates: list[int] = []
    try:
        for fd in fds:
            duplicates.append(os.dup(fd))
    except OSError as error:
        close_all(duplicates)
        raise Disconnected(f"a reply's descriptors cannot be kept: {error.strerror}") from None
    return duplicates


def _descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % _FD_SIZE])
    return list(fds)

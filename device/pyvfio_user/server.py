"""The server: a socket, one client at a time, and one message a step.

Its owner waits for `fileno` and calls `step` until that has nothing more to do. A client that
breaks the protocol, or does not read its replies, loses its connection, and the next one is served.

Where a device reaches its client's memory by messages (`dma_messages`), commands come while it
waits for the replies, in the middle of whatever it is doing:

- Those that change nothing under it (reads and writes of its regions, interrupts, maps, and unmaps
  of what is not mapped here) are handled at once, as the client's processors may be waiting for
  them.
- One that stops the device (a reset, bus mastering switched off) or takes memory away, and all that
  come behind it, are kept: the transfer ends with AccessFault, further ones do too, and the next
  `step` handles what was kept, in its order. So is the end of the connection.
- In a callback, which is the handling of an earlier command, all are kept, so that no callback
  begins in another; the transfer goes on as long as none of them wants a reply.

`has_message` says that there is something to do though `fileno` may not.
"""

import errno
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from pyvfio_user.connection import Connection, Disconnected, Message
from pyvfio_user.descriptors import close_all, close_socket, may_receive
from pyvfio_user.device import Device
from pyvfio_user.dma_messages import DmaMessages
from pyvfio_user.memory import MAX_MAPPINGS
from pyvfio_user.payloads import REGION_ACCESS
from pyvfio_user.protocol import HEADER, MessageFlags, ProtocolError
from pyvfio_user.session import MAX_TRANSFER, Session
from pyvfio_user.socket_path import listen, unlink

MAX_MESSAGE = HEADER.size + REGION_ACCESS.size + MAX_TRANSFER
"""The longest message: a REGION_WRITE of the largest transfer."""
MAX_QUEUED = 4 * MAX_MESSAGE
"""Bytes of replies that a client may leave unread before it loses its connection."""
BACKLOG = 8
"""Clients that wait for the present one to leave, or to be turned away."""
_PROCESS = struct.Struct("i8x")
"""struct ucred (unix(7)), of which the process is of interest."""
NEGOTIATION_TIME = 5.0
"""Seconds in which a client has to negotiate its version, which is the first thing to do."""
ACCEPT_PAUSE = 0.5
"""Seconds before the next try where the system has no descriptor, or memory, for a client."""


def _silent(reason: str) -> None:
    pass


class Server:
    """Serves `device` at the socket `path`, once entered as a context manager.

    `on_disconnect` is called with a sentence about why each client's connection ended; `on_refuse`,
    why one was not served at all. A client can map `max_dma_maps` windows of its memory at a time.
    With `trust_memory`, its memory need not be sealed, and may be in huge pages: a client that
    makes a file smaller ends this process with SIGBUS. Memory that cannot be mapped is reached by
    messages, for which everything else waits, unless `messages` is False: it is refused then.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        device: Device,
        *,
        on_disconnect: Callable[[str], None] = _silent,
        on_refuse: Callable[[str], None] = _silent,
        max_dma_maps: int = MAX_MAPPINGS,
        trust_memory: bool = False,
        messages: bool = True,
    ) -> None:
        self.path = os.fspath(path)
        self._device = device
        self._on_disconnect = on_disconnect
        self._on_refuse = on_refuse
        self._max_dma_maps = max_dma_maps
        self._trust_memory, self._by_messages = trust_memory, messages
        self._listener: socket.socket | None = None
        self._identity = (0, 0)
        self._connection: Connection | None = None
        self._peer = 0
        self._session: Session | None = None
        self._messages: DmaMessages | None = None
        self._kept: deque[Message] = deque()
        """Commands that came in the middle of a transfer, with descriptors that this side owns."""
        self._handling = False
        self._limit: float | None = None
        """Time at which the connection ends unless the client has negotiated; None for no limit."""
        self._accept_at = 0.0

    def __enter__(self) -> Self:
        """Listen. Raises OSError: EADDRINUSE where the path is in use or is no socket."""
        self._listener, self._identity = listen(self.path, BACKLOG)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the client's connection, stop listening, and remove the socket from its path."""
        if self._listener is None:
            return
        try:
            self._end("the server closed the connection")
            self._accept_at = 0.0
            self.turn_away("the server is closing")
        finally:
            self._listener.close()
            self._listener = None
            unlink(self.path, self._identity)

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def peer(self) -> int | None:
        """The process that has connected, by its identifier; None without a client."""
        return self._peer if self._connection is not None else None

    @property
    def has_message(self) -> bool:
        """True if `step` has work, even if `fileno` is not readable."""
        if self._connection is None:
            return False
        return bool(self._kept or self._failure) or self._connection.has_message

    def fileno(self) -> int:
        """Descriptor to wait for: the client's socket; without a client, the listening one."""
        if self._connection is not None:
            return self._connection.fileno()
        if self._listener is None:
            raise ValueError("the server is not listening")
        return self._listener.fileno()

    @property
    def listener(self) -> int:
        """The listening socket's descriptor, -1 without one; see `turn_away`."""
        return self._listener.fileno() if self._listener is not None else -1

    @property
    def sources(self) -> list[Connection | socket.socket]:
        """Sockets to wait for, for an owner that refuses further clients.

        The client's socket if there is one, as `fileno`, and the listening one behind it, except
        while accepting has to pause.
        """
        if self._accept_at and time.monotonic() >= self._accept_at:
            self._accept_at = 0.0
        waiting: list[Connection | socket.socket] = []
        if self._connection is not None:
            waiting.append(self._connection)
        if self._listener is not None and not self._accept_at:
            waiting.append(self._listener)
        return waiting

    @property
    def timeout(self) -> float | None:
        """Seconds until `expire` or `step` has something to do though nothing comes; None:
        never."""
        if self._limit is None and not self._accept_at:
            return None
        due = min(one for one in (self._limit, self._accept_at) if one)
        return max(0.0, due - time.monotonic())

    def expire(self) -> None:
        """End the connection of a client that does not negotiate in time, or that has failed."""
        if self._limit is not None and time.monotonic() >= self._limit:
            silent = f"the client did not negotiate within {NEGOTIATION_TIME:g} seconds"
            self._end(self._failure or silent)

    def turn_away(self, reason: str = "there is a client already") -> None:
        """Close the connections that wait to be accepted: whoever made them learns at once.

        An owner that does so calls it when `listener` is readable and `step` has nothing to do, or
        it would turn away whom the client has left its place to.
        """
        for _ in range(BACKLOG + 1):
            waiting = self._take()
            if waiting is None:
                return
            close_socket(waiting)
            self._on_refuse(reason)

    def wants_write(self) -> bool:
        """True if replies wait for `fileno` to become writable."""
        return self._connection is not None and self._connection.wants_write()

    def step(self) -> bool:
        """Accept a client or do what one message asks, without waiting; whether there was any.

        Call it until it returns False before waiting for `fileno`: several messages are read at
        once, and what is read does not make `fileno` readable again.
        """
        # Doorbells pass here: the property `_failure` takes 0.1 µs.
        connection, session, messages = self._connection, self._session, self._messages
        if connection is None or session is None or messages is None:
            return self._accept()
        try:
            if messages.failure:
                raise Disconnected(messages.failure)
            flushed = connection.wants_write() and connection.flush()
            message = self._take_kept() if self._kept else connection.receive()
            if message is None:
                return flushed
            self._handling = True
            try:
                self._handle(connection, session, message)
            finally:
                self._handling = False
            if self._limit is not None and session.attached:
                self._limit = None
        except (Disconnected, ProtocolError) as error:
            self._end(str(error))
        return True

    def _handle(self, connection: Connection, session: Session, message: Message) -> None:
        try:
            reply = session.handle(message)
        finally:
            if message.fds:
                close_all(message.fds)
        if reply is not None:
            connection.send(reply, session.fds)
            if session.fds:
                session.sent()

    def _interleave(self, message: Message) -> bool:
        """A command has come in the middle of a transfer: handle it, or keep it and say False."""
        connection, session = self._connection, self._session
        assert connection is not None and session is not None
        if not self._handling and not self._kept and session.may_interleave(message):
            self._handle(connection, session, message)
            return True
        self._kept.append(message._replace(payload=memoryview(bytes(message.payload))))
        return self._handling and bool(message.flags & MessageFlags.NO_REPLY)

    def _failed(self) -> None:
        """The connection has to be ended: `expire` does so where its owner forgets to step."""
        self._limit = time.monotonic()

    def _take_kept(self) -> Message:
        message = self._kept.popleft()
        if not self._kept and self._messages is not None:
            self._messages.interrupted = False
        return message

    @property
    def _failure(self) -> str:
        return self._messages.failure if self._messages is not None else ""

    def drain(self, limit: int) -> int:
        """Do up to `limit` steps, as long as there is anything to do; returns their number."""
        for done in range(limit):
            if not self.step():
                return done
        return limit

    def _accept(self) -> bool:
        client = self._take()
        if client is None:
            return False
        client.setblocking(False)
        (self._peer,) = _PROCESS.unpack_from(
            client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PROCESS.size)
        )
        connection = Connection(client, max_message=MAX_MESSAGE, max_queued=MAX_QUEUED)
        self._messages = DmaMessages(connection, self._interleave, self._failed)
        self._connection = connection
        self._session = Session(
            self._device,
            self._reply,
            self._max_dma_maps,
            self._messages if self._by_messages else None,
            trust_memory=self._trust_memory,
        )
        self._limit = time.monotonic() + NEGOTIATION_TIME
        return True

    def _reply(self, reply: bytes) -> None:
        if self._connection is not None:
            with suppress(Disconnected, ProtocolError):  # which the next step finds, too
                self._connection.send(reply)

    def _take(self) -> socket.socket | None:
        """The next client that has connected; None where there is none, or none can be had."""
        if self._listener is None:
            raise ValueError("the server is not listening")
        if self._accept_at and time.monotonic() < self._accept_at:
            return None
        self._accept_at = 0.0
        try:
            if not may_receive():
                raise OSError(errno.EMFILE, "too many descriptors of clients take long to close")
            return self._listener.accept()[0]
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return None
        except OSError as error:
            # It may stay so for long, and the listening socket readable with it.
            self._accept_at = time.monotonic() + ACCEPT_PAUSE
            self._on_refuse(f"nobody can be accepted for now: {error.strerror}")
            return None

    def _end(self, reason: str) -> None:
        connection, session = self._connection, self._session
        if self._messages is not None:
            self._messages.close()
        self._connection = self._session = self._messages = self._limit = None
        while self._kept:
            close_all(self._kept.popleft().fds)
        if connection is None or session is None:
            return
        connection.close()
        session.close()
        self._on_disconnect(reason)

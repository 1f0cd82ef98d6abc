"""The server: a socket, one client at a time, and one message a step.

The server waits for nothing. Its owner waits, for `fileno` to become readable (or writable while
`wants_write`), and calls `step` until that has nothing more to do. A client that breaks the
protocol, or does not read its replies, loses its connection, and the next one is served; the
device's state is the device's, and stays.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Self

from pyvfio_user.connection import Connection, Disconnected, close_all
from pyvfio_user.device import Device, InterruptLines, Irq, Region
from pyvfio_user.memory import AddressSpace
from pyvfio_user.payloads import REGION_ACCESS
from pyvfio_user.places import listen, unlink
from pyvfio_user.protocol import HEADER, ProtocolError
from pyvfio_user.session import MAX_TRANSFER, Session

__all__ = ["AddressSpace", "Device", "InterruptLines", "Irq", "Region", "Server"]

MAX_MESSAGE = HEADER.size + REGION_ACCESS.size + MAX_TRANSFER
"""The longest message: a REGION_WRITE of the largest transfer."""
MAX_QUEUED = 4 * MAX_MESSAGE
"""Bytes of replies that a client may leave unread before it loses its connection."""
BACKLOG = 8
"""Clients that wait for the present one to leave."""


def _silent(reason: str) -> None:
    pass


class Server:
    """Serves `device` at the socket `path`, once entered as a context manager.

    `on_disconnect` is told, in one sentence, why each client's connection ended.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        device: Device,
        *,
        on_disconnect: Callable[[str], None] = _silent,
    ) -> None:
        self.path = os.fspath(path)
        self._device = device
        self._on_disconnect = on_disconnect
        self._listener: socket.socket | None = None
        self._identity = (0, 0)
        self._connection: Connection | None = None
        self._session: Session | None = None

    def __enter__(self) -> Self:
        """Listen. Raises OSError: EADDRINUSE where the path is in use or is no socket."""
        self._listener, self._identity = listen(self.path, BACKLOG)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the client's connection, stop listening, and remove the socket from its path."""
        if self._listener is None:
            return
        try:
            self._end("the server closed the connection")
        finally:
            self._listener.close()
            self._listener = None
            unlink(self.path, self._identity)

    @property
    def connected(self) -> bool:
        """Whether there is a client."""
        return self._connection is not None

    @property
    def has_message(self) -> bool:
        """Whether `step` has a whole message to go on with, whatever `fileno` says."""
        return self._connection is not None and self._connection.has_message

    def fileno(self) -> int:
        """What to wait for: the client's socket, or while there is none the listening one."""
        if self._connection is not None:
            return self._connection.fileno()
        if self._listener is None:
            raise ValueError("the server is not listening")
        return self._listener.fileno()

    def wants_write(self) -> bool:
        """Whether replies wait for `fileno` to become writable."""
        return self._connection is not None and self._connection.wants_write()

    def step(self) -> bool:
        """Accept a client or do what one message asks, without waiting; whether there was any.

        Call it until it returns False before waiting for `fileno`: several messages are read at
        once, and what is read does not make `fileno` readable again.
        """
        connection, session = self._connection, self._session
        if connection is None or session is None:
            return self._accept()
        try:
            flushed = connection.wants_write() and connection.flush()
            message = connection.receive()
            if message is None:
                return flushed
            try:
                reply = session.handle(message)
            finally:
                if message.fds:
                    close_all(message.fds)
            if reply is not None:
                connection.send(reply)
        except (Disconnected, ProtocolError) as error:
            self._end(str(error))
        return True

    def drain(self, limit: int) -> int:
        """Up to `limit` steps, as long as there is anything to do; how many there were."""
        for done in range(limit):
            if not self.step():
                return done
        return limit

    def _accept(self) -> bool:
        if self._listener is None:
            raise ValueError("the server is not listening")
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        client.setblocking(False)
        self._connection = Connection(client, max_message=MAX_MESSAGE, max_queued=MAX_QUEUED)
        self._session = Session(self._device)
        return True

    def _end(self, reason: str) -> None:
        """The client is gone, or must go."""
        connection, session = self._connection, self._session
        self._connection = self._session = None
        if connection is None or session is None:
            return
        connection.close()
        session.close()
        self._on_disconnect(reason)

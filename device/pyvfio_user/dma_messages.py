"""The client's memory by messages: DMA_READ and DMA_WRITE, where nothing can be mapped.

A transfer sends all of its messages before it waits for the replies, and while it waits it goes on
serving the client, whose processors may hold what its replies need: QEMU answers in its main loop,
under a lock that a processor has while it reads a register. Which commands that may be is their
handler's to say. One that has to come after the transfer ends it, with AccessFault, and is the next
to be handled; until then every further transfer is refused.

A client that does not answer within `REPLY_TIME`, or sends commands without end instead, loses its
connection; one that has never answered, within `FIRST_REPLY_TIME`, as some never do.

Source: QEMU's `docs/interop/vfio-user.rst`, sections "VFIO_USER_DMA_READ", "VFIO_USER_DMA_WRITE"
and "Socket"."""

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyvfio_user.connection import Connection, Disconnected, Message, Reply
from pyvfio_user.protocol import (
    DEFAULT_MAX_TRANSFER,
    HEADER,
    Buffer,
    Command,
    MessageFlags,
    MessageType,
    ProtocolError,
)

REPLY_TIME = 5.0
"""Seconds that a transfer may take."""
FIRST_REPLY_TIME = 1.0
"""Seconds that a transfer may take of a client that has answered none yet."""
UNANSWERED = "the client did not answer a DMA message within "
"""The beginning of the reason why the connection of such a client ends."""
MOST_READ = 1 << 15
"""Bytes that are asked for in one DMA_READ. QEMU (11.1 too) takes a reply for sent of which only a
part has had room in its socket; Linux sends up to 48 KiB wholly or not at all."""
MOST_AWAITED = 1024
"""Replies that are outstanding at a time."""
SEND_AHEAD = 1 << 20
"""Bytes that wait for room in the socket, from which on nothing is added to them."""
MOST_COMMANDS = 4 << 20
"""Bytes of the client's commands that are handled, or kept, during one transfer."""
LEAST_TRANSFER = 512
"""Bytes that a client must take in a message for its memory to be reached so at all."""

DMA_ACCESS = struct.Struct("<QQ")
"""Address, count: DMA_READ, the reply to DMA_WRITE, and what comes before data."""


class TransferError(Exception):
    """A transfer has not happened, or not wholly."""


@dataclass(eq=False, slots=True)
class _Transfer:
    """The unfinished part of a transfer, and its result."""

    unanswered: int = 0
    failure: str = ""


@dataclass(eq=False, slots=True)
class _Awaited:
    """A message whose reply is still to come; `into` is where a DMA_READ's bytes belong."""

    transfer: _Transfer
    command: int
    address: int
    count: int
    into: memoryview | None


class DmaMessages:
    """Transfers from and to the memory of the client at `connection`; `failed` is called where it
    has to be ended.

    `handle` is given each command that comes meanwhile, and says whether it has been handled; if
    not, it keeps the command, and the transfer ends. Not for several threads.
    """

    def __init__(
        self, connection: Connection, handle: Callable[[Message], bool], failed: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._channel = connection
        self._handle = handle
        self._failed = failed
        self._max_transfer = DEFAULT_MAX_TRANSFER
        self._awaited: dict[int, _Awaited] = {}
        self._next_id = 0
        self._answers = False
        """The client has replied to some message."""
        self._active = False
        self._listen(connection)
        self.interrupted = False
        """A command of the client comes before any further transfer."""
        self.failure = ""
        """The reason why the connection has to be ended."""

    def negotiated(self, max_transfer: int) -> None:
        """The client takes as many bytes in a message."""
        self._max_transfer = min(max_transfer, DEFAULT_MAX_TRANSFER)

    def use_twin_socket(self) -> socket.socket:
        """Send the client its commands at a second socket; its end of that. Raises OSError where
        there is none to be had."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        self._connection.awaited = ()
        self._channel = self._connection.like(ours)
        self._listen(self._channel)
        return theirs

    def close(self) -> None:
        """Close what is not its owner's: the second socket."""
        if self._channel is not self._connection:
            self._channel.close()

    def _listen(self, channel: Connection) -> None:
        channel.awaited = self._awaited
        channel.on_reply = self._take

    @property
    def possible(self) -> bool:
        """True if the client accepts messages of a usable size."""
        return self._max_transfer >= LEAST_TRANSFER

    def read(self, wanted: Sequence[tuple[int, memoryview]]) -> None:
        """Fill buffers, each with the client's bytes from an address on. Raises TransferError."""
        self._run(Command.DMA_READ, wanted)

    def write(self, pieces: Sequence[tuple[int, Buffer]]) -> None:
        """Write bytes to addresses, in this order. Raises TransferError."""
        self._run(Command.DMA_WRITE, pieces)

    def _take(self, reply: Reply) -> None:
        """A reply has come to a message that waits for one. Raises ProtocolError."""
        awaited = self._awaited.pop(reply.message_id)
        if awaited.command != reply.command:
            raise ProtocolError("the client replied to a message that it was not sent")
        self._answers = True
        transfer, payload = awaited.transfer, reply.payload
        transfer.unanswered -= 1
        if reply.flags & MessageFlags.ERROR:
            transfer.failure = f"the client refuses it (errno {reply.error})"
        elif awaited.into is not None:
            if _names(payload, awaited) and len(payload) == DMA_ACCESS.size + awaited.count:
                awaited.into[:] = payload[DMA_ACCESS.size :]
            else:
                transfer.failure = "the client's reply is about something else"
        elif payload and not (_names(payload, awaited) and len(payload) == DMA_ACCESS.size):
            # QEMU replies with the header alone.
            transfer.failure = "the client's reply is about something else"

    def _run(self, command: Command, pieces: Sequence[tuple[int, Buffer]]) -> None:
        if self._active:
            raise TransferError("another transfer is under way")
        if self.interrupted:
            raise TransferError("a command of the client has to be handled first")
        transfer = _Transfer()
        self._active = True
        try:
            most = MOST_READ if command == Command.DMA_READ else self._max_transfer
            messages = _messages(pieces, min(most, self._max_transfer))
            self._exchange(transfer, command, messages)
        except (Disconnected, ProtocolError) as error:
            self.failure = str(error)
            self.interrupted = True
            self._failed()
            raise TransferError(self.failure) from None
        finally:
            self._active = False
        if transfer.failure:
            raise TransferError(transfer.failure)

    def _exchange(
        self, transfer: _Transfer, command: Command, messages: Iterator[tuple[int, memoryview]]
    ) -> None:
        """Send everything and await the replies, whatever they are. Raises TransferError where the
        client's own command comes first, Disconnected, ProtocolError."""
        limit = REPLY_TIME if self._answers else min(FIRST_REPLY_TIME, REPLY_TIME)
        deadline = time.monotonic() + limit
        commands = 0
        following = next(messages, None)
        while following is not None or transfer.unanswered:
            while following is not None and self._has_room():
                self._send(transfer, command, *following)
                following = next(messages, None)
            message = self._receive()
            if message is not None:
                commands += HEADER.size + len(message.payload)
                if commands > MOST_COMMANDS:
                    raise ProtocolError("the client sends commands without end, and no reply")
                if not self._handle(message):
                    self.interrupted = True
                    if following is not None or transfer.unanswered:
                        raise TransferError("a command of the client comes first")
            elif following is not None and self._has_room():
                continue
            elif (following is not None or transfer.unanswered) and not self._wait(
                deadline - time.monotonic()
            ):
                raise Disconnected(f"{UNANSWERED}{limit:g} seconds")

    def _has_room(self) -> bool:
        return self._channel.unsent < SEND_AHEAD and len(self._awaited) < MOST_AWAITED

    def _send(self, transfer: _Transfer, command: Command, address: int, data: memoryview) -> None:
        while self._next_id in self._awaited:
            self._next_id = self._next_id + 1 & 0xFFFF
        message_id, self._next_id = self._next_id, self._next_id + 1 & 0xFFFF
        count = len(data)
        into = data if command == Command.DMA_READ else None
        body: Buffer = b"" if into is not None else data
        size = HEADER.size + DMA_ACCESS.size + len(body)
        header = HEADER.pack(message_id, command, size, MessageType.COMMAND, 0)
        self._awaited[message_id] = _Awaited(transfer, command, address, count, into)
        transfer.unanswered += 1
        self._channel.send(b"".join((header, DMA_ACCESS.pack(address, count), body)))

    def _receive(self) -> Message | None:
        """A command that has come; replies are taken on the way."""
        if self._channel is not self._connection and self._channel.receive() is not None:
            raise ProtocolError("a command came at the socket for commands to the client")
        return self._connection.receive()

    def _wait(self, seconds: float) -> bool:
        """Wait until a socket is ready, and send what waited for room; whether one was in time."""
        poll = select.poll()
        for one in {self._connection, self._channel}:
            poll.register(one, select.POLLIN | (select.POLLOUT if one.wants_write() else 0))
        if seconds <= 0 or not poll.poll(1000 * seconds):
            return False
        for one in {self._connection, self._channel}:
            if one.wants_write():
                one.flush()
        return True


def _messages(pieces: Sequence[tuple[int, Buffer]], most: int) -> Iterator[tuple[int, memoryview]]:
    """Address and bytes of each message, which has `most` at most."""
    for address, piece in pieces:
        view = memoryview(piece)
        for at in range(0, len(view), most):
            yield address + at, view[at : at + most]


def _names(payload: Buffer, awaited: _Awaited) -> bool:
    """True if a reply begins with the address and count of the request."""
    if len(payload) < DMA_ACCESS.size:
        return False
    return DMA_ACCESS.unpack_from(payload) == (awaited.address, awaited.count)

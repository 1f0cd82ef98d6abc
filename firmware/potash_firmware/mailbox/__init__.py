"""The mailbox between RPU and APU: the interface that the firmware of both processors shares.

Its two ends are a connected pair of sockets for datagrams, and never wait. Messages that the socket
does not accept immediately are queued. The number of commands in flight is that of the transfer
slots, so the queue is full only if the other end does not read any more. `messages` and `values`
define the contents of datagrams.
"""

import dataclasses
import os
import select
import socket
from collections import deque
from typing import Generic, Self, TypeVar, cast, get_args

from csd_spec.values import KEY_SIZE
from potash_device.trace import COMPUTE, Trace
from potash_firmware.mailbox import datagrams, messages
from potash_firmware.mailbox.messages import (
    EXECUTED,
    NO_DESCRIPTOR,
    Execute,
    Outcome,
    WithDescriptor,
)
from potash_firmware.mailbox.shared import ArenaPlan, MailboxError, SharedBuffers

__all__ = [
    "ApuPort", "ArenaPlan", "MailboxError", "RpuPort", "SharedBuffers", "is_returned", "nsid_of",
    "pair", "returned", "tag_number", "tag_of", "tagged", "untagged", "value_of",
]  # fmt: skip

Sent = TypeVar("Sent", bound=messages.Message)
Received = TypeVar("Received", bound=messages.Message)

QUEUE_LIMIT = 1024


class _Port(Generic[Sent, Received]):
    """One end; owns its socket. A context manager."""

    KINDS: datagrams.Kinds
    """The messages that come to this end."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._socket.setblocking(False)
        self._unsent: deque[tuple[bytes, int]] = deque()
        """Datagrams, each with the descriptor that is sent along, which this end owns."""
        self._deaf = False
        """The other end receives nothing any more; earlier messages from it may still be here."""
        self.closed = False
        """True once the other end is closed: nothing is received or sent any more."""
        self.trace: Trace = COMPUTE
        """The points that this end's messages pass."""

    @classmethod
    def adopt(cls, fd: int) -> Self:
        """The end that another process handed over as `fd`. Raises MailboxError."""
        try:
            end = socket.socket(fileno=fd)
        except OSError as error:
            raise MailboxError(f"descriptor {fd} is no mailbox: {error.strerror}") from None
        if (end.family, end.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
            end.detach()
            raise MailboxError(f"descriptor {fd} is a socket, but no mailbox")
        return cls(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the socket; calling it again does nothing."""
        self._socket.close()
        self._drop_unsent()
        self.closed = True

    def fileno(self) -> int:
        """The descriptor to wait on; -1 after `close`."""
        return self._socket.fileno()

    def wants_write(self) -> bool:
        """True while messages wait for the socket to take them: call `flush` when it can."""
        return bool(self._unsent)

    def send(self, message: Sent) -> None:
        """Send a message, now or as soon as the socket accepts it, in order. Raises MailboxError
        for a message with a field out of range, and when the peer has left too many unread.
        Messages to a closed end are dropped."""
        descriptor = NO_DESCRIPTOR
        if isinstance(message, WithDescriptor) and message.descriptor != NO_DESCRIPTOR:
            descriptor = message.descriptor
        self.send_encoded(datagrams.encode(message), descriptor)

    def send_encoded(self, data: bytes, descriptor: int = NO_DESCRIPTOR) -> None:
        """Send a message that is encoded already, otherwise as `send`."""
        if self.closed or self._deaf:
            return
        if self.trace.sink is not None:
            self.trace.sink("mailbox.send", describe(datagrams.decode(data)))
        if len(self._unsent) >= QUEUE_LIMIT:
            raise MailboxError(f"the other processor leaves {QUEUE_LIMIT} messages unread")
        if descriptor != NO_DESCRIPTOR:
            descriptor = os.dup(descriptor)
        self._unsent.append((data, descriptor))
        self.flush()

    def flush(self) -> None:
        """Send as many queued messages as the socket accepts."""
        while self._unsent and not self.closed:
            data, descriptor = self._unsent[0]
            try:
                if descriptor == NO_DESCRIPTOR:
                    self._socket.send(data, socket.MSG_NOSIGNAL)
                else:
                    socket.send_fds(self._socket, [data], [descriptor], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                self._deaf = True
                self._drop_unsent()
                return
            self._unsent.popleft()
            _close(descriptor)

    def _drop_unsent(self) -> None:
        while self._unsent:
            _close(self._unsent.popleft()[1])

    def receive(self) -> Received | None:
        """The next message, or None when there is none yet (or, when `closed`, none any more).
        Raises MailboxError for a datagram that is none of this end's messages. It is dropped, and
        the next call continues with the one after it."""
        data = self.receive_encoded()
        return None if data is None else self.decode(data)

    def receive_encoded(self) -> bytes | None:
        """The next datagram, which is not checked, or None as for `receive`."""
        if self.closed:
            return None
        try:
            data = self._receive()
        except BlockingIOError:
            return None
        if not data:
            # An empty datagram looks like the end of the connection, and is never sent.
            self.closed = True
            self._drop_unsent()
            return None
        return data

    @property
    def is_plain(self) -> bool:
        """The last datagram came without a descriptor, and is not traced."""
        return self.trace.sink is None

    def decode(self, data: bytes) -> Received:
        """The message in the datagram that was received last. Raises MailboxError."""
        message = self._message(data)
        if self.trace.sink is not None:
            self.trace.sink("mailbox.receive", describe(message))
        return message

    def _receive(self) -> bytes:
        try:
            return self._take()
        except ConnectionResetError:
            # The peer has closed its end with unread messages. The system reports that once, before
            # it returns the messages that the peer has sent.
            return self._take()

    def _take(self) -> bytes:
        """One datagram; without room for descriptors, the system closes those that come with it."""
        return self._socket.recv(messages.MAX_DATAGRAM + 1)

    def _message(self, data: bytes) -> Received:
        return cast(Received, datagrams.decode(data, self.KINDS))


def _close(descriptor: int) -> None:
    if descriptor != NO_DESCRIPTOR:
        os.close(descriptor)


def describe(message: messages.Message) -> dict[str, object]:
    """A message's name and fields, for traces; bytes are hexadecimal, and end with those of a
    key."""
    fields = dataclasses.asdict(message)
    shown = {
        name: value[:KEY_SIZE].hex() if isinstance(value, bytes) else value
        for name, value in fields.items()
    }
    return {"message": type(message).__name__, **shown}


class RpuPort(_Port[messages.ToApu, messages.ToRpu]):
    """The RPU's end: sends requests, receives replies."""

    KINDS = datagrams.kinds_of(*get_args(messages.ToRpu))

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end)
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def has_message(self) -> bool:
        """True if `receive` has something to give, or the other end is closed."""
        return not self.closed and bool(self._poll.poll(0))


class ApuPort(_Port[messages.ToRpu, messages.ToApu]):
    """The APU's end: receives requests, and the descriptors of what is shared; sends replies."""

    KINDS = datagrams.kinds_of(*get_args(messages.ToApu))
    _descriptor = NO_DESCRIPTOR
    """The descriptor that came with the datagram that is being decoded."""

    def _take(self) -> bytes:
        data, descriptors, _, _ = socket.recv_fds(self._socket, messages.MAX_DATAGRAM + 1, 1)
        self._descriptor = descriptors[0] if descriptors else NO_DESCRIPTOR
        return data

    @property
    def is_plain(self) -> bool:
        return self._descriptor == NO_DESCRIPTOR and super().is_plain

    def _message(self, data: bytes) -> messages.ToApu:
        descriptor, self._descriptor = self._descriptor, NO_DESCRIPTOR
        try:
            message = super()._message(data)
            expected = isinstance(message, WithDescriptor)
            if isinstance(message, Execute):
                expected = message.data_length > 0
            if expected != (descriptor != NO_DESCRIPTOR):
                found = "comes without its" if expected else "brings a"
                raise MailboxError(f"a {type(message).__name__} message {found} descriptor")
        except MailboxError:
            _close(descriptor)
            raise
        if descriptor == NO_DESCRIPTOR:
            return message
        return dataclasses.replace(cast(WithDescriptor, message), descriptor=descriptor)


def pair() -> tuple[RpuPort, ApuPort]:
    """Both ends of a new mailbox."""
    rpu, apu = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return RpuPort(rpu), ApuPort(apu)


# Encoded messages about executions: what is read of them, or changed, without decoding them.


def tag_of(data: bytes) -> bytes:
    """The bytes of the tag of an encoded message that has one."""
    return data[4:8]


def tag_number(data: bytes) -> int:
    """The tag of an encoded message that has one."""
    return int.from_bytes(data[4:8], "little")


def tagged(data: bytes, tag: int) -> bytes:
    """An encoded message with another tag."""
    return data[:4] + tag.to_bytes(4, "little") + data[8:]


def nsid_of(data: bytes) -> int:
    """The namespace of an encoded `Execute`."""
    return int.from_bytes(data[8:12], "little")


def untagged(data: bytes) -> bytes:
    """An encoded message without its tag: two that are equal otherwise ask for the same."""
    return data[:4] + data[8:]


_RETURNED = bytes((EXECUTED, Outcome.RETURNED, 0, 0))


def returned(tag: bytes, value: int) -> bytes:
    """An encoded `Executed`: a program has returned `value`. `tag` are the bytes of its tag."""
    return _RETURNED + tag + value.to_bytes(8, "little")


def is_returned(data: bytes) -> bool:
    """True if `data` is what `returned` gives for some tag and value."""
    return len(data) == 16 and data[:4] == _RETURNED


def value_of(data: bytes) -> int:
    """The value in what `returned` gives."""
    return int.from_bytes(data[8:], "little")

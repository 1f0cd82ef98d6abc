"""The client's answers to DMA_READ and DMA_WRITE: memory that the device reaches by messages.

Source: QEMU's `docs/interop/vfio-user.rst`, sections "VFIO_USER_DMA_READ" and
"VFIO_USER_DMA_WRITE".
"""

import errno
import math
import select
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pyvfio_user import protocol
from pyvfio_user.dma_messages import DMA_ACCESS

DMA_COMMANDS = (protocol.Command.DMA_READ, protocol.Command.DMA_WRITE)
"""Commands from the server to its client."""


class _Window(NamedTuple):
    memory: memoryview
    readable: bool
    writable: bool


class MessageWindows:
    """Windows by their first address, each with the memory that it shows."""

    def __init__(self) -> None:
        self._windows: dict[int, _Window] = {}

    def __bool__(self) -> bool:
        return bool(self._windows)

    def add(self, address: int, memory: memoryview, *, readable: bool, writable: bool) -> None:
        self._windows[address] = _Window(memory.cast("B"), readable, writable)

    def remove(self, address: int, size: int) -> None:
        """Forget the windows inside a range."""
        for start, window in list(self._windows.items()):
            if address <= start and start + len(window.memory) <= address + size:
                del self._windows[start]

    def clear(self) -> None:
        self._windows.clear()

    def answer(self, header: protocol.Header, payload: bytes) -> bytes:
        """Do what a command of the server asks; the reply to send, empty if it wants none.

        It is an error with EINVAL for a payload without sense, E2BIG for too much, EFAULT where
        there is no one window with all of the bytes, EPERM where that is not for it, and ENOTSUP
        for any other command.
        """
        try:
            data = self._answer(header.command, payload)
        except OSError as error:
            reply = protocol.encode_error(
                header.message_id, header.command, error.errno or errno.EIO
            )
        else:
            reply = protocol.encode_reply(header.message_id, header.command, data)
        return b"" if header.flags & protocol.MessageFlags.NO_REPLY else reply

    def answer_at(self, sock: socket.socket, seconds: float) -> None:
        """Receive a command, and reply to it, each in so long. Raises OSError, ProtocolError."""
        sock.settimeout(seconds)
        header, payload = _receive_command(sock)
        sock.sendall(self.answer(header, payload), socket.MSG_NOSIGNAL)

    def _answer(self, command: int, payload: bytes) -> bytes:
        if command not in DMA_COMMANDS:
            raise OSError(errno.ENOTSUP, "the server has no such command")
        if len(payload) < DMA_ACCESS.size:
            raise OSError(errno.EINVAL, "the access is cut short")
        address, count = DMA_ACCESS.unpack_from(payload)
        data = payload[DMA_ACCESS.size :]
        if len(data) != (count if command == protocol.Command.DMA_WRITE else 0):
            raise OSError(errno.EINVAL, "the data are not as long as it says")
        if count > protocol.DEFAULT_MAX_TRANSFER:
            raise OSError(errno.E2BIG, f"{count} bytes are too much for one message")
        named = payload[: DMA_ACCESS.size]
        for start, window in self._windows.items():
            if start <= address and address + count <= start + len(window.memory):
                found = window.memory[address - start : address - start + count]
                if not (
                    window.writable if command == protocol.Command.DMA_WRITE else window.readable
                ):
                    raise OSError(errno.EPERM, "the window is not for that")
                if command == protocol.Command.DMA_READ:
                    return named + bytes(found)
                found[:] = data
                return named
        raise OSError(errno.EFAULT, f"{count} bytes at {address:#x} are in no window")


def take_twin_socket(capabilities: Mapping[str, Any], fds: list[int]) -> socket.socket | None:
    """The second socket that a server offers, out of the descriptors that came; None without one.
    Raises ProtocolError."""
    offered = capabilities.get("twin_socket", {})
    if not offered.get("supported"):
        return None
    index = offered.get("fd_index")
    if not isinstance(index, int) or not 0 <= index < len(fds):
        raise protocol.ProtocolError("the server offers a second socket and sends none")
    return socket.socket(fileno=fds.pop(index))


def readable(fds: Iterable[int], deadline: float) -> set[int]:
    """The descriptors that are readable before `deadline`, of the monotonic clock; may be none."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    left = max(0.0, deadline - time.monotonic())
    return {fd for fd, _ in poll.poll(math.ceil(1000 * left))}


def _receive_command(sock: socket.socket) -> tuple[protocol.Header, bytes]:
    header = protocol.Header.decode(_received(sock, protocol.HEADER.size))
    size = header.size - protocol.HEADER.size
    if header.is_reply or size > DMA_ACCESS.size + protocol.DEFAULT_MAX_TRANSFER:
        raise protocol.ProtocolError(f"what came, with {size} bytes, is no command of the server's")
    return header, _received(sock, size)


def _received(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("its second socket is closed")
        data += piece
    return bytes(data)

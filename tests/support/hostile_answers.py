"""What a client that means harm answers when a device asks for its memory."""

from __future__ import annotations

import os
import random
import select
import socket
import stat
import struct
import threading
from typing import Self

from support import vfio_user as wire
from support.hostile import MEMORY


class Answers:
    """A thread that answers a server's DMA_READ and DMA_WRITE, wrongly now and then.

    It alone reads the client's socket, from entering to leaving, and a second socket that comes
    with a reply. It keeps the replies.
    """

    def __init__(self, client: wire.RawClient, rng: random.Random, memory: memoryview) -> None:
        self.replies: list[wire.Reply] = []
        self.answered = 0
        self._client, self._memory = client, memory
        self._rng = random.Random(rng.random())
        self._sockets = {client.socket: bytearray()}
        """What has been received of a message, for each socket."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        del self._sockets[self._client.socket]
        for second in self._sockets:
            second.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for readable in select.select([*self._sockets], [], [], 0.01)[0]:
                if not self._receive(readable):
                    return

    def _receive(self, sock: socket.socket) -> bool:
        """Take what has come; False when the connection is over."""
        try:
            piece, fds, _, _ = socket.recv_fds(sock, 1 << 20, 8, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        for fd in fds:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                self._sockets[socket.socket(fileno=fd)] = bytearray()
            else:
                os.close(fd)
        received = self._sockets[sock]
        received += piece
        while len(received) >= 16:
            identity, number, size, flags, error = struct.unpack_from("<HHIII", received)
            if len(received) < size:
                break
            payload = bytes(received[16:size])
            del received[:size]
            if flags & 0xF:
                self.replies.append(wire.Reply(identity, number, flags, error, payload))
            else:
                self._answer(sock, identity, number, payload)
        return bool(piece)

    def _answer(self, sock: socket.socket, identity: int, number: int, payload: bytes) -> None:
        rng = self._rng
        address, count = struct.unpack_from("<QQ", payload)
        inside = number in (wire.DMA_READ, wire.DMA_WRITE) and address + count <= MEMORY
        error = 0 if inside else 14
        body = b"" if error else payload[:16]
        if inside and number == wire.DMA_WRITE:
            self._memory[address : address + count] = payload[16:]
        elif inside:
            body += bytes(self._memory[address : address + count])
        if rng.random() < 0.02:
            kind = rng.randrange(7)
            if kind == 0:
                return
            error = rng.choice((5, 0xFFFF_FFFF)) if kind == 1 else error
            identity = rng.getrandbits(16) if kind == 2 else identity
            body = body[: rng.randrange(len(body) + 1)] if kind == 3 else body
            body = struct.pack("<QQ", count, address) + body[16:] if kind == 4 else body
            number = rng.choice((9, 11, 12)) if kind == 5 else number
            sock = rng.choice([*self._sockets]) if kind == 6 else sock
        answer = wire.header(identity, number, len(body), 0x21 if error else 1, error) + body
        try:
            sock.sendall(answer)
            self.answered += 1
        except OSError:
            pass  # the server has ended the connection, or reads nothing any more

"""The client's end of DMA_READ and DMA_WRITE, with a device that reaches its memory by them."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyvfio_user.client import Client, VfioUserError
from pyvfio_user.sealed_memory import SealedMemory
from pyvfio_user.server import Server
from support.vfio_user import Recorder, Reply, command, header, serving, socket_path

DMA_READ, DMA_WRITE = 11, 12
PAGE = 4096
RAM = 0x10_0000
MSIX = 2


class Copier(Recorder):
    """Turns memory to upper case, as an address and a length in BAR 0 say, and interrupts."""

    def region_write(self, region: int, offset: int, data: bytes) -> None:
        super().region_write(region, offset, data)
        assert self.memory is not None and self.lines is not None
        address, length = struct.unpack("<QQ", data)
        text = b"".join(self.memory.views(address, length))
        views = self.memory.views(address, length, write=True)
        at = 0
        for view in views:
            view[:] = text[at : at + len(view)].upper()
            at += len(view)
        self.memory.store(views)
        self.lines.trigger(MSIX, 0)


@pytest.fixture(params=[False, True], ids=["one socket", "two sockets"])
def client(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Client]:
    server = Server(socket_path(tmp_path), Copier())
    with server, serving(server), Client(server.path, twin_socket=request.param) as client:
        client.negotiate()
        assert ("twin_socket" in client.capabilities) is request.param
        yield client


def test_a_client_answers_while_it_waits(client: Client) -> None:
    content = bytearray(b"hello, world".ljust(PAGE, b"\0"))
    client.dma_map(RAM, PAGE, None, memory=memoryview(content))
    client.region_write(0, 0, struct.pack("<QQ", RAM, 12))
    assert content.rstrip(b"\0") == b"HELLO, WORLD"


def test_a_transfer_may_be_longer_than_a_message_and_cross_windows(client: Client) -> None:
    first, second = bytearray(b"a" * (1 << 20)), bytearray(b"b" * (3 << 19))
    client.dma_map(RAM, len(first), None, memory=memoryview(first))
    client.dma_map(RAM + len(first), len(second), None, memory=memoryview(second))
    client.region_write(0, 0, struct.pack("<QQ", RAM + 1, len(first) + len(second) - 2))
    assert first == b"a" + b"A" * (len(first) - 1)
    assert second == b"B" * (len(second) - 1) + b"b"


def test_a_transfer_goes_on_as_replies_make_room(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyvfio_user.dma_messages.MOST_AWAITED", 3)
    content = bytearray(b"a" * (1 << 20))
    client.dma_map(RAM, len(content), None, memory=memoryview(content))
    client.region_write(0, 0, struct.pack("<QQ", RAM, len(content)))
    assert content == b"A" * len(content)


def test_windows_of_both_kinds_lie_side_by_side(client: Client) -> None:
    content = bytearray(b"left".rjust(PAGE))
    with SealedMemory(PAGE) as sealed:
        sealed.view[:5] = b"right"
        client.dma_map(RAM, PAGE, None, memory=memoryview(content))
        client.dma_map(RAM + PAGE, PAGE, sealed.fd)
        client.region_write(0, 0, struct.pack("<QQ", RAM + PAGE - 4, 9))
        assert content.endswith(b" LEFT")
        assert bytes(sealed.view[:6]) == b"RIGHT\0"


def test_a_client_answers_while_it_waits_for_an_interrupt(client: Client) -> None:
    content = bytearray(b"posted".ljust(PAGE, b"\0"))
    client.dma_map(RAM, PAGE, None, memory=memoryview(content))
    done = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        client.set_irqs(MSIX, 0, [done])
        client.region_write(0, 0, struct.pack("<QQ", RAM, 6), posted=True)
        assert client.answer(5.0, done)
        assert content.startswith(b"POSTED")
        os.eventfd_read(done)
        assert not client.answer(0.0, done)
    finally:
        os.close(done)


def test_what_a_window_is_not_for_is_refused(client: Client) -> None:
    content = bytearray(b"x" * PAGE)
    client.dma_map(RAM, PAGE, None, writable=False, memory=memoryview(content))
    with pytest.raises(VfioUserError) as caught:
        client.region_write(0, 0, struct.pack("<QQ", RAM, 4))
    assert caught.value.errno == errno.EFAULT
    assert content == b"x" * PAGE


@pytest.mark.parametrize("everything", [False, True])
def test_what_was_unmapped_is_not_reached(client: Client, everything: bool) -> None:
    content = bytearray(b"x" * PAGE)
    client.dma_map(RAM, PAGE, None, memory=memoryview(content))
    if everything:
        client.dma_unmap_all()
    else:
        client.dma_unmap(RAM, PAGE)
    with pytest.raises(VfioUserError):
        client.region_write(0, 0, struct.pack("<QQ", RAM, 4))
    client.dma_map(RAM, PAGE, None, memory=memoryview(content))
    client.region_write(0, 0, struct.pack("<QQ", RAM, 4))
    assert content.startswith(b"XXXXx")


def _answer(server: socket.socket, message: bytes) -> Reply:
    """What a client answers to a command."""
    server.sendall(message)
    data = server.recv(1 << 16)
    message_id, number, size, flags, error = struct.unpack_from("<HHIII", data)
    assert size == len(data)
    return Reply(message_id, number, flags, error, data[16:])


ACCESSES: list[tuple[int, bytes, bytes | int]] = [
    (DMA_READ, struct.pack("<QQ", RAM, 4), b"abcd"),
    (DMA_READ, struct.pack("<QQ", RAM + PAGE - 1, 1), b"\0"),
    (DMA_READ, struct.pack("<QQ", RAM + PAGE - 1, 2), errno.EFAULT),
    (DMA_READ, struct.pack("<QQ", RAM - 1, 2), errno.EFAULT),
    (DMA_READ, struct.pack("<QQ", (1 << 64) - 1, 2), errno.EFAULT),
    (DMA_READ, struct.pack("<QQ", RAM, (1 << 20) + 1), errno.E2BIG),
    (DMA_READ, struct.pack("<QQ", RAM, 4) + b"x", errno.EINVAL),
    (DMA_READ, bytes(15), errno.EINVAL),
    (DMA_WRITE, struct.pack("<QQ", RAM + 8, 2) + b"yz", b""),
    (DMA_WRITE, struct.pack("<QQ", RAM, 4) + b"yz", errno.EINVAL),
    (DMA_WRITE, struct.pack("<QQ", RAM + PAGE, 1) + b"y", errno.EFAULT),
    (DMA_WRITE, struct.pack("<QQ", RAM + 2 * PAGE, 1) + b"y", errno.EPERM),
]


def test_a_client_s_answers_on_the_wire(tmp_path: Path) -> None:
    """Sections "VFIO_USER_DMA_READ" and "VFIO_USER_DMA_WRITE"."""
    content = bytearray(b"abcd".ljust(PAGE, b"\0"))
    path = socket_path(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        with Client(path) as client:
            server, _ = listener.accept()
            with server:
                found: list[Reply] = []

                def serve() -> None:
                    for message_id in range(2):
                        server.recv(1 << 16)
                        server.sendall(header(message_id, 2, 0, 1))
                    for number, payload, _ in ACCESSES:
                        found.append(_answer(server, command(number, payload, message_id=77)))
                    server.close()

                thread = threading.Thread(target=serve)
                thread.start()
                client.dma_map(RAM, PAGE, None, memory=memoryview(content))
                client.dma_map(
                    RAM + 2 * PAGE, PAGE, None, writable=False, memory=memoryview(bytes(PAGE))
                )
                with pytest.raises(VfioUserError, match="closed"):
                    client.answer(5.0)
                thread.join()
    for (number, payload, expected), reply in zip(ACCESSES, found, strict=True):
        failed = isinstance(expected, int)
        assert (reply.message_id, reply.command) == (77, number)
        assert (reply.flags, reply.error) == ((0x21, expected) if failed else (1, 0))
        assert reply.payload == (b"" if isinstance(expected, int) else payload[:16] + expected)
    assert content[:12] == b"abcd\0\0\0\0yz\0\0"


@pytest.mark.parametrize("index", ["0", "-1", "true", "null"])
def test_a_second_socket_that_did_not_come_ends_the_connection(tmp_path: Path, index: str) -> None:
    path = socket_path(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        with Client(path, twin_socket=True) as client:
            server, _ = listener.accept()
            with server:
                twin = (
                    f'{{"capabilities":{{"twin_socket":{{"supported":true,"fd_index":{index}}}}}}}'
                )
                payload = struct.pack("<HH", 0, 1) + twin.encode() + b"\0"
                server.sendall(header(0, 1, len(payload), 1) + payload)
                with pytest.raises(VfioUserError) as caught:
                    client.negotiate()
                assert caught.value.errno == errno.EPROTO

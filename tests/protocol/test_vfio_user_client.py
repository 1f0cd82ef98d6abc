"""The client: against the server on a thread, and against servers that misbehave."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyvfio_user.client import Client, VfioUserError
from pyvfio_user.payloads import DeviceInfo, IrqInfo, RegionInfo, Version
from pyvfio_user.protocol import IrqSetFlags
from pyvfio_user.sealed_memory import SealedMemory
from pyvfio_user.server import Server
from support.interrupting import interrupted_at
from support.vfio_user import (
    NO_REPLY,
    Recorder,
    eventfd_value,
    leaked,
    open_descriptors,
    serving,
    socket_path,
)

PAGE = 4096


@pytest.fixture
def device() -> Recorder:
    return Recorder()


@pytest.fixture
def client(tmp_path: Path, device: Recorder) -> Iterator[Client]:
    with (
        Server(socket_path(tmp_path), device) as server,
        serving(server),
        Client(server.path) as client,
    ):
        client.negotiate()
        yield client


def test_a_device_is_found_out_about(tmp_path: Path, device: Recorder) -> None:
    with (
        Server(socket_path(tmp_path), device) as server,
        serving(server),
        Client(server.path) as client,
    ):
        capabilities = {
            "max_msg_fds": 8,
            "max_data_xfer_size": 1 << 20,
            "max_dma_maps": 65535,
            "write_multiple": True,
        }
        assert client.negotiate() == Version(0, 1, capabilities)
        assert client.max_transfer == 1 << 20
        assert client.device_info() == DeviceInfo(16, 3, 9, 5)
        assert client.region_info(2) == RegionInfo(32, 1, 2, 0, 0x1000, 0)
        assert client.irq_info(2) == IrqInfo(16, 9, 2, 16)


def test_regions_are_written_and_read(client: Client, device: Recorder) -> None:
    client.region_write(0, 0x10, b"waited")
    client.region_write(0, 0x20, b"posted", posted=True)
    client.region_write_multi([(0, 0x30, b"a"), (7, 0x40, b"bcdefghi")])
    client.region_write_multi([(0, 0x31, b"j")], posted=True)
    assert client.region_read(0, 0x10, 6) == b"waited"
    assert client.region_read(0, 0x20, 6) == b"posted"
    assert client.region_read(0, 0x30, 2) == b"aj"
    assert client.region_read(7, 0x40, 8) == b"bcdefghi"
    client.device_reset()
    assert device.calls[-1] == ("reset",)


def test_a_large_access_passes_whole(client: Client, device: Recorder) -> None:
    data = bytes(range(256)) * 64
    client.region_write(0, 0, data)
    assert client.region_read(0, 0, 0x4000) == data


def test_memory_is_shared_and_taken_back(client: Client, device: Recorder) -> None:
    with SealedMemory(4 * PAGE) as memory:
        memory.view[PAGE : PAGE + 5] = b"guest"
        client.dma_map(0x10_0000, 2 * PAGE, memory.fd, PAGE)
        client.dma_map(0x20_0000, PAGE, None, writable=False)
        assert device.memory is not None
        view = device.memory.view(0x10_0000, 6, write=True)
        assert bytes(view[:5]) == b"guest"
        view[:6] = b"device"
        assert bytes(memory.view[PAGE : PAGE + 6]) == b"device"
        with pytest.raises(VfioUserError) as caught:
            client.dma_map(0x10_1000, PAGE, memory.fd)
        assert caught.value.errno == errno.EEXIST
        assert "DMA_MAP" in str(caught.value)
        with pytest.raises(VfioUserError) as caught:
            client.dma_unmap(0x10_0000, PAGE)
        assert caught.value.errno == errno.EINVAL
        client.dma_unmap(0x10_0000, 3 * PAGE)
        client.dma_unmap(0x10_0000, 2 * PAGE)
        client.dma_map(0x10_0000, PAGE, memory.fd)
        client.dma_unmap_all()
        client.dma_map(0x20_0000, PAGE, memory.fd)


def test_more_eventfds_than_fit_a_message_go_out_in_chunks_that_never_mix(
    client: Client, device: Recorder
) -> None:
    fds = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(16)]
    wanted = [None if vector in (3, 4, 11) else fd for vector, fd in enumerate(fds)]
    client.set_irqs(2, 0, wanted)
    # 3 with, 2 without, 6 with, 1 without, 4 with.
    assert device.calls.count(("irqs_changed", 2)) == 5
    assert device.lines is not None
    heard = [device.lines.trigger(2, vector) for vector in range(16)]
    assert heard == [fd is not None for fd in wanted]
    assert [eventfd_value(fd) for fd in fds] == [int(fd is not None) for fd in wanted]
    client.set_irqs(2, 0, fds)
    assert device.calls.count(("irqs_changed", 2)) == 7  # 8 and 8
    assert all(device.lines.trigger(2, vector) for vector in range(16))
    client.control_irqs(IrqSetFlags.ACTION_TRIGGER, 2, 9, 1)
    assert (eventfd_value(fds[8]), eventfd_value(fds[9])) == (1, 2)
    client.disable_irqs(2)
    assert not device.lines.enabled(2, 0)
    for fd in fds:
        os.close(fd)


def test_an_error_leaves_the_connection_in_use(client: Client, device: Recorder) -> None:
    for failing in (
        lambda: client.region_read(0, 0x4000, 1),
        lambda: client.region_write(2, 0, b"read-only"),
        lambda: client.region_info(9),
        lambda: client.set_irqs(1, 0, [None]),
    ):
        with pytest.raises(VfioUserError) as caught:
            failing()
        assert caught.value.errno == errno.EINVAL
    assert client.device_info().num_regions == 9


def test_nothing_is_left_open_at_either_side(tmp_path: Path, device: Recorder) -> None:
    before = open_descriptors()
    eventfd = os.eventfd(0, os.EFD_CLOEXEC)
    with Server(socket_path(tmp_path), device) as server, serving(server):
        for _ in range(3):
            with Client(server.path) as client, SealedMemory(PAGE) as memory:
                client.negotiate()
                client.dma_map(0, PAGE, memory.fd)
                client.set_irqs(2, 0, [eventfd])
    os.close(eventfd)
    device.memory = device.lines = None
    assert not leaked(before)


def test_nobody_listens(tmp_path: Path) -> None:
    before = open_descriptors()
    client = Client(socket_path(tmp_path))
    with pytest.raises(VfioUserError) as caught:
        client.device_info()
    assert caught.value.errno == errno.ENOTCONN
    with pytest.raises(FileNotFoundError):
        client.__enter__()
    assert not leaked(before)


@contextmanager
def _fake(tmp_path: Path, behave: Callable[[socket.socket], None]) -> Iterator[Path]:
    """A server that does what `behave` does with its one client's socket, and then closes it."""
    path = socket_path(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                behave(client)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield path
        finally:
            thread.join()


def _reply(message_id: int, command: int, payload: bytes, flags: int = 1) -> bytes:
    return struct.pack("<HHIII", message_id, command, 16 + len(payload), flags, 0) + payload


INFO = struct.pack("<IIII", 16, 3, 9, 5)


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        (b"", errno.ECONNRESET),
        (_reply(0, 4, INFO)[:20], errno.ECONNRESET),
        (_reply(1, 4, INFO), errno.EPROTO),  # another message's
        (_reply(0, 5, INFO), errno.EPROTO),  # another command's
        (_reply(0, 4, INFO, flags=0), errno.EPROTO),  # no reply
        (_reply(0, 4, INFO[:-1]), errno.EPROTO),
        (_reply(0, 4, INFO + b"\0"), errno.EPROTO),
        (struct.pack("<HHIII", 0, 4, 3, 1, 0), errno.EPROTO),
        (struct.pack("<HHIII", 0, 4, 0xFFFF_FFFF, 1, 0), errno.EPROTO),
    ],
)
def test_what_is_no_reply_ends_the_connection(tmp_path: Path, answer: bytes, number: int) -> None:
    def behave(peer: socket.socket) -> None:
        assert len(peer.recv(1000)) == 32
        peer.sendall(answer)

    with _fake(tmp_path, behave) as path, Client(path) as client:
        with pytest.raises(VfioUserError) as caught:
            client.device_info()
        assert caught.value.errno == number
        with pytest.raises(VfioUserError) as caught:
            client.device_info()
        assert caught.value.errno == errno.ENOTCONN


def test_an_error_without_a_number_is_an_error(tmp_path: Path) -> None:
    """Section "Header": the errno may be zero even if the error bit is set."""

    def behave(peer: socket.socket) -> None:
        peer.recv(1000)
        peer.sendall(_reply(0, 13, b"", flags=0x21))

    with _fake(tmp_path, behave) as path, Client(path) as client:
        with pytest.raises(VfioUserError) as caught:
            client.device_reset()
        assert caught.value.errno == errno.EIO


def test_a_reply_in_pieces_is_whole(tmp_path: Path) -> None:
    def behave(peer: socket.socket) -> None:
        peer.recv(1000)
        for byte in _reply(0, 4, INFO):
            peer.sendall(bytes([byte]))

    with _fake(tmp_path, behave) as path, Client(path) as client:
        assert client.device_info() == DeviceInfo(16, 3, 9, 5)


def test_a_server_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    gone = threading.Event()

    def behave(peer: socket.socket) -> None:
        peer.recv(1000)
        peer.sendall(_reply(0, 4, INFO)[:10])
        gone.wait(10)

    with _fake(tmp_path, behave) as path, Client(path, timeout=0.05) as client:
        with pytest.raises(VfioUserError) as caught:
            client.device_info()
        assert caught.value.errno == errno.ETIMEDOUT
        gone.set()


def test_a_server_that_does_not_read_is_given_up(tmp_path: Path) -> None:
    gone = threading.Event()

    def behave(peer: socket.socket) -> None:
        gone.wait(10)

    with _fake(tmp_path, behave) as path, Client(path, timeout=0.05) as client:
        with pytest.raises(VfioUserError) as caught:
            for _ in range(100_000):
                client.region_write(0, 0, bytes(4096), posted=True)
        assert caught.value.errno == errno.ETIMEDOUT
        gone.set()


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack("<HH", 1, 0),
        struct.pack("<HH", 0, 2),
        struct.pack("<HH", 0, 1) + b"nonsense\0",
        struct.pack("<HH", 0, 1) + b'{"capabilities":{"max_msg_fds":"8"}}\0',
    ],
)
def test_a_server_of_another_version_is_refused(tmp_path: Path, answer: bytes) -> None:
    def behave(peer: socket.socket) -> None:
        peer.recv(1000)
        peer.sendall(_reply(0, 1, answer))

    with _fake(tmp_path, behave) as path, Client(path) as client:
        with pytest.raises(VfioUserError) as caught:
            client.negotiate()
        assert caught.value.errno == errno.EPROTO


def test_posted_writes_say_that_they_want_no_reply(tmp_path: Path) -> None:
    seen = bytearray()

    def behave(peer: socket.socket) -> None:
        while piece := peer.recv(1000):
            seen.extend(piece)

    with _fake(tmp_path, behave) as path, Client(path) as client:
        client.region_write(0, 0x1000, b"\1\0\0\0", posted=True)
        client.close()
    assert bytes(seen) == (
        struct.pack("<HHIII", 0, 10, 36, NO_REPLY, 0)
        + struct.pack("<QII", 0x1000, 0, 4)
        + b"\1\0\0\0"
    )


def test_a_command_follows_one_that_was_interrupted_anywhere(
    client: Client, device: Recorder
) -> None:
    """As by Ctrl-C, before any instruction of the client's: a superset of where Python looks."""
    client.region_write(0, 0, b"12345678")
    before = open_descriptors()
    for instruction in itertools.count():
        if not interrupted_at(instruction, ("pyvfio_user",), lambda: client.region_read(0, 0, 8)):
            break
        assert client.region_read(0, 4, 4) == b"5678", instruction
    assert instruction > 300
    assert open_descriptors() == before


def _region(argsz: int = 32, flags: int = 7, size: int = PAGE, offset: int = 0) -> bytes:
    return struct.pack("<IIIIQQ", argsz, flags, 0, 32 if flags & 8 else 0, size, offset)


def _areas(*areas: tuple[int, int]) -> bytes:
    count = struct.pack("<HHIII", 1, 1, 0, len(areas), 0)
    return count + b"".join(struct.pack("<QQ", *area) for area in areas)


@pytest.mark.parametrize(
    ("payload", "descriptors"),
    [
        (_region(), 0),
        (_region(), 2),
        (_region(), 9),
        (_region(size=2 * PAGE), 1),
        (_region(size=0), 1),
        (_region(offset=PAGE), 1),
        (_region(offset=100), 1),
        (_region(offset=(1 << 64) - PAGE), 1),
        (_region(flags=15) + _areas((0, 100)), 1),
        (_region(flags=15) + _areas((PAGE, PAGE)), 1),
        (_region(flags=15) + _areas((0, PAGE), (0, 1 << 63)), 1),
        (_region(flags=15) + _areas((0, PAGE))[:-1], 1),
        (_region(argsz=64), 1),
        (_region()[:-1], 1),
    ],
    ids=lambda value: value if isinstance(value, int) else value.hex()[:24],
)
def test_a_region_that_cannot_be_mapped_ends_the_connection(
    tmp_path: Path, payload: bytes, descriptors: int
) -> None:
    """Whatever a server says of it, nothing outside of its file is mapped, and nothing leaks."""
    before = open_descriptors()
    memory = SealedMemory(PAGE)

    def behave(sock: socket.socket) -> None:
        for message_id in range(2):
            if not sock.recv(48):
                break
            message = _reply(message_id, 5, payload)
            socket.send_fds(sock, [message], [memory.fd] * descriptors)
        sock.recv(1)

    with _fake(tmp_path, behave) as path, Client(path) as client:
        with pytest.raises(VfioUserError) as caught:
            client.map_region(0)
        assert caught.value.errno == errno.EPROTO
        with pytest.raises(VfioUserError) as caught:
            client.device_info()
        assert caught.value.errno == errno.ENOTCONN
    memory.close()
    assert not leaked(before)


@pytest.mark.parametrize(("index", "count"), [(1, 1), (0xFFFF_FFFF, 1), (0, 2)])
def test_sub_regions_without_their_descriptors_end_the_connection(
    tmp_path: Path, index: int, count: int
) -> None:
    before = open_descriptors()
    eventfd = os.eventfd(0, os.EFD_CLOEXEC)

    def behave(sock: socket.socket) -> None:
        sock.recv(32)
        entry = struct.pack("<QQIIIIQ", 0, 4, index, 0, 0, 0, 0)
        message = _reply(0, 6, struct.pack("<IIII", 16, 0, 0, count) + entry)
        socket.send_fds(sock, [message], [eventfd])
        sock.recv(1)

    with _fake(tmp_path, behave) as path, Client(path) as client:
        with pytest.raises(VfioUserError) as caught:
            client.region_io_fds(0)
        assert caught.value.errno == errno.EPROTO
    os.close(eventfd)
    assert not leaked(before)

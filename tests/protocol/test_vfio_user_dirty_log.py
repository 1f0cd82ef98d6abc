"""The log of what a device writes to its client's memory, on the wire."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyvfio_user.sealed_memory import SealedMemory
from pyvfio_user.server import Server
from support.movable import GET, SET, MovableRecorder, feature
from support.vfio_user import RawClient, dma_map, negotiated, socket_path

ADDRESS = 0x10_0000
SIZE = 1 << 20


@pytest.fixture
def device() -> MovableRecorder:
    return MovableRecorder()


@pytest.fixture
def client(device: MovableRecorder, tmp_path: Path) -> Iterator[RawClient]:
    with Server(socket_path(tmp_path), device) as server, negotiated(server) as client:
        yield client


def logging(address: int, size: int, page_size: int = 4096, room: int = 4096) -> bytes:
    return feature(GET | 8, struct.pack("<QQQ", address, size, page_size), room)


@pytest.fixture
def memory(client: RawClient) -> Iterator[SealedMemory]:
    with SealedMemory(SIZE) as memory:
        assert not client.ask(dma_map(ADDRESS, SIZE), [memory.fd]).failed
        yield memory


def start(client: RawClient, page_size: int = 4096, *ranges: tuple[int, int]) -> int:
    data = struct.pack("<QII", page_size, len(ranges), 0)
    data += b"".join(struct.pack("<QQ", *one) for one in ranges)
    reply = client.ask(feature(SET | 6, data))
    assert not reply.failed
    assert reply.payload[16:] == data[8:]
    return int(struct.unpack_from("<Q", reply.payload, 8)[0])


def test_what_is_written_is_reported_once(
    client: RawClient, device: MovableRecorder, memory: SealedMemory
) -> None:
    assert device.memory is not None
    device.memory.view(ADDRESS, 4096, write=True)
    assert start(client) == 4096
    device.memory.view(ADDRESS + 3 * 4096 - 1, 2, write=True)  # pages 2 and 3
    device.memory.views(ADDRESS + 65 * 4096, 1, write=True)
    device.memory.views_of([(ADDRESS + 70 * 4096, 4), (ADDRESS + 71 * 4096, 4)], write=True)
    device.memory.view(ADDRESS + 9 * 4096, 4096)
    words = 1 << 2 | 1 << 3, 1 << 65 - 64 | 1 << 70 - 64 | 1 << 71 - 64
    asked = struct.pack("<QQQ", ADDRESS, 72 * 4096, 4096)
    reply = client.ask(logging(ADDRESS, 72 * 4096))
    assert reply.payload == struct.pack("<II", 8 + 24 + 16, GET | 8) + asked + struct.pack(
        "<QQ", *words
    )
    assert client.ask(logging(ADDRESS, 72 * 4096)).payload[-16:] == bytes(16)


def test_views_are_dropped_before_a_report(
    client: RawClient, device: MovableRecorder, memory: SealedMemory
) -> None:
    """A device that keeps its views until memory changes writes nothing behind the log's back."""
    start(client)
    assert device.memory is not None
    device.calls.clear()
    memory_of_device = device.memory

    def changed() -> None:
        memory_of_device.view(ADDRESS, 1, write=True)

    device.on_memory_changed = changed
    reply = client.ask(logging(ADDRESS, 4096))
    assert device.calls == [("memory_changed",)]
    assert reply.payload[-8:] == struct.pack("<Q", 1), "a view taken meanwhile counts"


@pytest.mark.parametrize(
    ("page_size", "bits"), [(1 << 13, 0b10), (1 << 12, 0b100), (1 << 11, 0b110000), (1 << 20, 0b1)]
)
def test_a_report_has_pages_of_any_size(
    client: RawClient, device: MovableRecorder, memory: SealedMemory, page_size: int, bits: int
) -> None:
    assert start(client, 512) == 4096
    assert device.memory is not None
    device.memory.view(ADDRESS + 2 * 4096, 1, write=True)
    reply = client.ask(logging(ADDRESS, 4 * 4096, page_size))
    assert reply.payload[-8:] == struct.pack("<Q", bits)


def test_a_report_is_of_its_range_alone(
    client: RawClient, device: MovableRecorder, memory: SealedMemory
) -> None:
    start(client, 4096, (ADDRESS, SIZE))
    assert device.memory is not None
    device.memory.view(ADDRESS, 3 * 4096, write=True)
    assert client.ask(logging(ADDRESS + 4096, 4096)).payload[-8:] == struct.pack("<Q", 1)
    assert client.ask(logging(ADDRESS, 3 * 4096)).payload[-8:] == struct.pack("<Q", 0b101)


def test_a_report_of_a_part_of_a_page_does_not_forget_the_rest(
    client: RawClient, device: MovableRecorder, memory: SealedMemory
) -> None:
    start(client)
    assert device.memory is not None
    device.memory.view(ADDRESS, 2 * 4096, write=True)
    assert client.ask(logging(ADDRESS + 2048, 4096, 2048)).payload[-8:] == struct.pack("<Q", 0b11)
    assert client.ask(logging(ADDRESS, 8192)).payload[-8:] == struct.pack("<Q", 0b11)
    assert client.ask(logging(ADDRESS, 8192)).payload[-8:] == bytes(8)


def test_logging_that_is_started_again_goes_on(
    client: RawClient, device: MovableRecorder, memory: SealedMemory
) -> None:
    start(client)
    assert device.memory is not None
    device.memory.view(ADDRESS, 1, write=True)
    start(client, 8192, (ADDRESS, SIZE))
    device.memory.view(ADDRESS + 4096, 1, write=True)
    assert client.ask(logging(ADDRESS, 8192)).payload[-8:] == struct.pack("<Q", 0b11)


@pytest.mark.parametrize(
    "request_",
    [
        logging(ADDRESS, 0),
        logging(ADDRESS, 4096, 0),
        logging(ADDRESS, 4096, 3 << 12),
        logging(2**64 - 4096, 8192),
        logging(ADDRESS, 4096, room=8 + 24 + 7),
        logging(0, 2**50, room=2**32 - 1),
        feature(GET | 8, bytes(23)),
        feature(SET | 6, bytes(15)),
        feature(SET | 6, struct.pack("<QII", 5000, 0, 0)),
        feature(SET | 6, struct.pack("<QII", 4096, 2**32 - 1, 0)),
        feature(SET | 6, struct.pack("<QIIQQ", 4096, 1, 0, 2**64 - 1, 2)),
    ],
)
def test_malformed_logging_leaves_the_log(
    client: RawClient, device: MovableRecorder, memory: SealedMemory, request_: bytes
) -> None:
    start(client)
    assert device.memory is not None
    device.memory.view(ADDRESS, 1, write=True)
    assert client.ask(request_).error == errno.EINVAL
    assert client.ask(logging(ADDRESS, 4096)).payload[-8:] == struct.pack("<Q", 1)


def test_without_logging_there_is_no_report(client: RawClient, memory: SealedMemory) -> None:
    assert client.ask(logging(ADDRESS, 4096)).error == errno.EINVAL
    start(client)
    assert not client.ask(feature(SET | 7)).failed
    assert client.ask(logging(ADDRESS, 4096)).error == errno.EINVAL

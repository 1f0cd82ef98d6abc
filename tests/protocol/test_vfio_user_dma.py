"""DMA_READ and DMA_WRITE on the wire: memory that cannot be mapped, and what comes in between.

Numbers are those of vfio-user.rst, written out again. Replies are put into the socket before the
device asks, which is the same to it as a client that is quick.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyvfio_user import dma_messages
from pyvfio_user.memory import AccessFault, AddressSpace
from pyvfio_user.sealed_memory import SealedMemory
from pyvfio_user.server import Server
from support.vfio_user import (
    DEVICE_RESET,
    NO_REPLY,
    QEMU_VERSION,
    SET_IRQS,
    VERSION,
    RawClient,
    Recorder,
    Reply,
    command,
    dma_map,
    header,
    region_read,
    region_write,
    socket_path,
)

DMA_READ, DMA_WRITE = 11, 12
PAGE = 4096
RAM = 0x10_0000
SIZE = 1 << 20
CONFIG = 7


@pytest.fixture
def client(server: Server) -> Iterator[RawClient]:
    """A client whose memory has no descriptor, and takes 4 KiB in a message."""
    with RawClient(server) as client:
        limits = b'{"capabilities":{"max_data_xfer_size":4096}}\0'
        assert not client.ask(command(VERSION, struct.pack("<HH", 0, 1) + limits)).failed
        assert not client.ask(dma_map(RAM, SIZE)).failed
        yield client


@pytest.fixture
def memory(client: RawClient, device: Recorder) -> AddressSpace:
    assert device.memory is not None
    device.calls.clear()
    return device.memory


def answer(
    message_id: int, number: int, address: int, count: int, data: bytes = b"", flags: int = 1
) -> bytes:
    """The reply to a DMA_READ or a DMA_WRITE."""
    payload = struct.pack("<QQ", address, count) + data
    return header(message_id, number, len(payload), flags) + payload


def asked(client: RawClient) -> list[Reply]:
    """What the server has sent."""
    return client.replies()


def test_a_view_is_fetched(client: RawClient, memory: AddressSpace) -> None:
    client.send(answer(0, DMA_READ, RAM + 16, 4, b"abcd"))
    view = memory.view(RAM + 16, 4)
    assert bytes(view) == b"abcd"
    assert view.readonly
    assert asked(client) == [Reply(0, DMA_READ, 0, 0, struct.pack("<QQ", RAM + 16, 4))]


@pytest.mark.parametrize("payload", [struct.pack("<QQ", RAM, 4), b""], ids=["text", "QEMU"])
def test_what_is_written_is_sent_when_it_is_stored(
    client: RawClient, memory: AddressSpace, payload: bytes
) -> None:
    view = memory.view(RAM, 4, write=True)
    view[:] = b"wxyz"
    assert asked(client) == []
    client.send(header(0, DMA_WRITE, len(payload), 1) + payload)
    memory.store([view])
    assert asked(client) == [Reply(0, DMA_WRITE, 0, 0, struct.pack("<QQ", RAM, 4) + b"wxyz")]


def test_only_what_is_asked_for_is_stored(client: RawClient, memory: AddressSpace) -> None:
    views = [memory.view(at, 4, write=True) for at in (RAM, RAM + PAGE, RAM + 2 * PAGE)]
    for view in views:
        view[:] = b"wxyz"
    client.send(header(0, DMA_WRITE, 0, 1) + header(1, DMA_WRITE, 0, 1))
    memory.store(views, 6)
    assert [one.payload for one in asked(client)] == [
        struct.pack("<QQ", RAM, 4) + b"wxyz",
        struct.pack("<QQ", RAM + PAGE, 2) + b"wx",
    ]


def test_a_long_transfer_is_many_messages_whose_replies_come_in_any_order(
    client: RawClient, memory: AddressSpace
) -> None:
    """None is longer than the client's max_data_xfer_size, and all go out before a reply."""
    for at, size in ((2, 100), (1, PAGE), (0, PAGE)):
        client.send(answer(at, DMA_READ, RAM + at * PAGE, size, bytes([at]) * size))
    assert bytes(memory.view(RAM, 2 * PAGE + 100)) == b"\0" * PAGE + b"\1" * PAGE + b"\2" * 100
    assert [struct.unpack("<QQ", one.payload) for one in asked(client)] == [
        (RAM, PAGE),
        (RAM + PAGE, PAGE),
        (RAM + 2 * PAGE, 100),
    ]


def test_ranges_are_fetched_together(client: RawClient, memory: AddressSpace) -> None:
    client.send(answer(1, DMA_READ, RAM + 64, 2, b"cd") + answer(0, DMA_READ, RAM, 2, b"ab"))
    views = memory.views_of([(RAM, 2), (RAM + 64, 2)])
    assert [bytes(view) for view in views] == [b"ab", b"cd"]


@pytest.mark.parametrize(
    "reply",
    [
        header(0, DMA_READ, 0, 0x21, errno.EFAULT),
        answer(0, DMA_READ, RAM, 4, b"abc"),
        answer(0, DMA_READ, RAM, 3, b"abc"),
        answer(0, DMA_READ, RAM, 5, b"abcde"),
        answer(0, DMA_READ, RAM + 1, 4, b"abcd"),
        header(0, DMA_READ, 0, 1),
        header(0, DMA_READ, 15, 1) + bytes(15),
    ],
    ids=["error", "short", "less", "more", "elsewhere", "empty", "cut"],
)
def test_memory_that_the_client_does_not_give_faults(
    client: RawClient, memory: AddressSpace, reply: bytes
) -> None:
    client.send(reply)
    with pytest.raises(AccessFault):
        memory.view(RAM, 4)
    client.send(answer(1, DMA_READ, RAM, 4, b"abcd"))
    assert bytes(memory.view(RAM, 4)) == b"abcd"


@pytest.mark.parametrize(
    "reply",
    [
        header(0, DMA_WRITE, 0, 0x21, errno.EPERM),
        answer(0, DMA_WRITE, RAM, 3),
        answer(0, DMA_WRITE, RAM, 4, b"x"),
    ],
    ids=["error", "less", "longer"],
)
def test_memory_that_the_client_does_not_take_faults(
    client: RawClient, memory: AddressSpace, reply: bytes
) -> None:
    client.send(reply)
    with pytest.raises(AccessFault):
        memory.store([memory.view(RAM, 4, write=True)])


@pytest.mark.parametrize(
    "reply",
    [
        answer(1, DMA_READ, RAM, 4, b"abcd"),
        answer(0, DMA_WRITE, RAM, 4),
        header(0, DMA_READ, 1 << 31, 1),
        header(0, DMA_READ, 0, 2),
    ],
    ids=["identifier", "command", "size", "type"],
)
def test_a_reply_to_nothing_ends_the_connection(
    client: RawClient, memory: AddressSpace, ended: list[str], reply: bytes
) -> None:
    client.send(reply)
    with pytest.raises(AccessFault):
        memory.view(RAM, 4)
    assert ended == []
    client.pump()
    assert len(ended) == 1
    assert client.server.connected is False


def test_a_reply_has_no_descriptors(
    client: RawClient, memory: AddressSpace, ended: list[str]
) -> None:
    client.send(answer(0, DMA_READ, RAM, 4, b"abcd"), [0])
    with pytest.raises(AccessFault):
        memory.view(RAM, 4)
    client.pump()
    assert "descriptors" in ended[0]


def test_a_second_reply_ends_the_connection(
    client: RawClient, memory: AddressSpace, ended: list[str]
) -> None:
    client.send(2 * answer(0, DMA_READ, RAM, 4, b"abcd"))
    with pytest.raises(AccessFault):
        memory.view(RAM, 4)
    client.pump()
    assert "replied" in ended[0]


def test_silence_ends_the_connection(
    client: RawClient, memory: AddressSpace, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dma_messages, "REPLY_TIME", 0.05)
    with pytest.raises(AccessFault):
        memory.view(RAM, 4)
    with pytest.raises(AccessFault):  # at once, and without another message
        memory.view(RAM, 4)
    assert len(asked(client)) == 1
    client.pump()
    assert "did not answer" in ended[0]


def test_replies_that_never_come_are_not_waited_for_without_end(
    client: RawClient, memory: AddressSpace, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of transfers that were given up."""
    monkeypatch.setattr(dma_messages, "REPLY_TIME", 0.05)
    monkeypatch.setattr(dma_messages, "MOST_AWAITED", 2)
    for _ in range(2):
        client.send(command(DEVICE_RESET))
        with pytest.raises(AccessFault):
            memory.view(RAM, 4)
        client.pump()
    assert len([one for one in asked(client) if one.command == DMA_READ]) == 2
    with pytest.raises(AccessFault):
        memory.view(RAM, 4)
    client.pump()
    assert "did not answer" in ended[0]


def test_commands_without_end_end_the_connection(
    client: RawClient, memory: AddressSpace, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dma_messages, "MOST_COMMANDS", 1000)
    client.send(100 * region_write(0, b"abcd", flags=NO_REPLY))
    with pytest.raises(AccessFault):
        memory.view(RAM, 4)
    client.pump()
    assert "without end" in ended[0]


def test_a_failed_connection_expires(
    client: RawClient, memory: AddressSpace, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its owner waits for a message that never comes."""
    monkeypatch.setattr(dma_messages, "REPLY_TIME", 0.05)
    assert client.server.timeout is None
    with pytest.raises(AccessFault):
        memory.view(RAM, 4)
    assert client.server.timeout == 0.0 and not ended
    client.server.expire()
    assert "did not answer" in ended[0] and not client.server.connected


def test_a_client_that_leaves_is_heard_of_after_the_transfer(
    client: RawClient, memory: AddressSpace, device: Recorder, ended: list[str]
) -> None:
    client.socket.close()
    with pytest.raises(AccessFault):
        memory.view(RAM, 4)
    assert device.calls == [] == ended
    assert client.server.has_message
    client.pump()
    assert device.calls == [("detached",)]


def test_what_changes_nothing_is_handled_in_the_middle(
    client: RawClient, memory: AddressSpace, device: Recorder
) -> None:
    """A processor of the client's may hold what its reply needs until it has read a register."""
    unmap = command(3, struct.pack("<IIQQ", 24, 0, 0, PAGE))
    vectors = command(SET_IRQS, struct.pack("<IIIII", 20, 0x21, 2, 0, 0))
    client.send(
        region_read(0, 4)
        + region_write(8, b"door", flags=NO_REPLY)
        + vectors
        + dma_map(0, PAGE)
        + unmap
        + answer(0, DMA_READ, RAM, 4, b"abcd")
    )
    assert bytes(memory.view(RAM, 4)) == b"abcd"
    assert device.calls == [
        ("read", 0, 0, 4),
        ("write", 0, 8, b"door"),
        ("irqs_changed", 2),
        ("memory_changed",),
        ("memory_changed",),
    ]
    assert [(one.command, one.flags) for one in asked(client)] == [
        (DMA_READ, 0), (9, 1), (8, 1), (2, 1), (3, 1),
    ]  # fmt: skip


STOPPING = {
    "reset": (command(DEVICE_RESET), ("reset",)),
    "config": (region_write(4, b"\0\0", region=CONFIG), ("write", CONFIG, 4, b"\0\0")),
    "unmap": (command(3, struct.pack("<IIQQ", 24, 0, 0, PAGE)), ("memory_changed",)),
    "longer": (command(3, struct.pack("<IIQQ", 24, 0, 0, PAGE) + b"x"), ("memory_changed",)),
    "all": (command(3, struct.pack("<IIQQ", 24, 2, 0, 0)), ("memory_changed",)),
}


@pytest.mark.parametrize("kind", STOPPING)
def test_what_stops_the_device_ends_the_transfer_and_comes_next(
    client: RawClient, memory: AddressSpace, device: Recorder, kind: str
) -> None:
    message, call = STOPPING[kind]
    with SealedMemory(PAGE) as sealed:
        assert not client.ask(dma_map(0, PAGE), [sealed.fd]).failed
    device.calls.clear()
    client.send(region_read(0, 4) + message + region_read(8, 4))
    for _ in range(2):
        with pytest.raises(AccessFault):
            memory.view(RAM, 4)
    assert device.calls == [("read", 0, 0, 4)]
    assert client.server.has_message
    client.pump()
    assert device.calls == [("read", 0, 0, 4), call, ("read", 0, 8, 4)]
    assert not memory.interrupted
    if kind != "all":
        # The reply to what was given up is taken for what it is.
        late = answer(0, DMA_READ, RAM, 4, b"late")
        client.send(late + answer(1, DMA_READ, RAM, 4, b"abcd"))
        assert bytes(memory.view(RAM, 4)) == b"abcd"


def test_a_transfer_that_is_complete_is_not_ended(
    client: RawClient, memory: AddressSpace, device: Recorder
) -> None:
    client.send(answer(0, DMA_READ, RAM, 4, b"abcd") + command(DEVICE_RESET))
    assert bytes(memory.view(RAM, 4)) == b"abcd"
    client.pump()
    assert device.calls == [("reset",)]


class Reading(Recorder):
    """A device that reads memory in a callback, as it should not."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bytes | str] = []

    def region_write(self, region: int, offset: int, data: bytes) -> None:
        super().region_write(region, offset, data)
        if offset == 0 and self.memory is not None:
            try:
                self.seen.append(bytes(self.memory.view(RAM, 4)))
            except AccessFault as fault:
                self.seen.append(fault.reason)


@pytest.mark.parametrize("wants_reply", [False, True])
def test_no_callback_begins_in_another(tmp_path: Path, wants_reply: bool) -> None:
    device = Reading()
    with Server(socket_path(tmp_path), device) as server, RawClient(server) as client:
        assert not client.ask(command(VERSION, struct.pack("<HH", 0, 1))).failed
        assert not client.ask(dma_map(RAM, SIZE)).failed
        flags = 0 if wants_reply else NO_REPLY
        client.send(
            region_write(0, b"goes", flags=NO_REPLY)
            + region_write(8, b"next", flags=flags)
            + answer(0, DMA_READ, RAM, 4, b"abcd")
        )
        client.pump()
        if wants_reply:
            assert device.seen != [b"abcd"]
        else:
            assert device.seen == [b"abcd"]
        written = [call[2] for call in device.calls if call[0] == "write"]
        assert written == [0, 8]
        assert server.connected


def test_memory_without_a_usable_file_is_reached_too(
    client: RawClient, memory: AddressSpace
) -> None:
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, PAGE)
    with SealedMemory(PAGE) as sealed:
        for number, fd in enumerate((unsealed, sealed.fd)):
            at = 2 * PAGE * number
            assert not client.ask(dma_map(at, 2 * PAGE), [fd]).failed
            client.send(answer(number, DMA_READ, at, 4, b"abcd"))
            assert bytes(memory.view(at, 4)) == b"abcd"
            assert [one.command for one in asked(client)] == [DMA_READ]
    os.close(unsealed)


def test_rights_are_kept(client: RawClient, memory: AddressSpace) -> None:
    for at, flags in ((0, 1), (PAGE, 2), (2 * PAGE, 0)):
        assert not client.ask(dma_map(at, PAGE, flags=flags)).failed
    for at, write in ((0, True), (PAGE, False), (2 * PAGE, False), (2 * PAGE, True)):
        with pytest.raises(AccessFault):
            memory.view(at, 4, write=write)
    assert asked(client) == []


def test_a_client_that_takes_next_to_nothing_is_not_asked(server: Server, device: Recorder) -> None:
    with RawClient(server) as client:
        limits = b'{"capabilities":{"max_data_xfer_size":511}}\0'
        assert not client.ask(command(VERSION, struct.pack("<HH", 0, 1) + limits)).failed
        assert not client.ask(dma_map(RAM, SIZE)).failed
        assert device.memory is not None
        with pytest.raises(AccessFault):
            device.memory.view(RAM, 4)


def _twin(client: RawClient, proposal: bytes) -> tuple[bytes, list[int]]:
    """What comes of a VERSION: its reply and descriptors."""
    client.send(command(VERSION, struct.pack("<HH", 0, 1) + proposal))
    client.pump()
    data, fds, _, _ = socket.recv_fds(client.socket, 4096, 8)
    return data, fds


def test_commands_to_the_client_have_a_second_socket(server: Server, device: Recorder) -> None:
    """Section "VFIO_USER_VERSION", twin_socket."""
    with RawClient(server) as client:
        data, fds = _twin(client, b'{"capabilities":{"twin_socket":{"supported":true}}}\0')
        expected = b'{"capabilities":{"twin_socket":{"supported":true,"fd_index":0}}}\0'
        assert data[20:] == expected
        assert len(fds) == 1
        with socket.socket(fileno=fds[0]) as twin:
            assert not client.ask(dma_map(RAM, SIZE)).failed
            twin.sendall(answer(0, DMA_READ, RAM, 4, b"abcd"))
            assert device.memory is not None
            assert bytes(device.memory.view(RAM, 4)) == b"abcd"
            assert twin.recv(4096) == command(DMA_READ, struct.pack("<QQ", RAM, 4), message_id=0)
            assert asked(client) == []


@pytest.mark.parametrize("wrong", ["reply at the first", "command at the second", "closed"])
def test_each_socket_is_for_one_direction(
    server: Server, device: Recorder, ended: list[str], wrong: str
) -> None:
    with RawClient(server) as client:
        _, fds = _twin(client, b'{"capabilities":{"twin_socket":{"supported":true}}}\0')
        with socket.socket(fileno=fds[0]) as twin:
            assert not client.ask(dma_map(RAM, SIZE)).failed
            if wrong == "reply at the first":
                client.send(answer(0, DMA_READ, RAM, 4, b"abcd"))
            elif wrong == "command at the second":
                twin.sendall(region_read(0, 4))
            else:
                twin.close()
            assert device.memory is not None
            with pytest.raises(AccessFault):
                device.memory.view(RAM, 4)
        client.pump()
        assert len(ended) == 1


@pytest.mark.parametrize(
    "proposal",
    [
        b'{"capabilities":{"twin_socket":{"supported":false}}}\0',
        b'{"capabilities":{"twin_socket":{}}}\0',
        b'{"capabilities":{"twin_socket":{"supported":true},"max_msg_fds":0}}\0',
    ],
)
def test_there_is_no_second_socket_unless_it_is_wanted(server: Server, proposal: bytes) -> None:
    with RawClient(server) as client:
        data, fds = _twin(client, proposal)
        assert fds == []
        assert b"twin_socket" not in data


def test_no_reply_is_longer_than_a_socket_takes_at_once(server: Server, device: Recorder) -> None:
    """QEMU drops the rest of one that is, whatever it says of max_data_xfer_size."""
    with RawClient(server) as client:
        assert not client.ask(command(VERSION, QEMU_VERSION)).failed
        assert not client.ask(dma_map(RAM, SIZE)).failed
        for number in range(3):
            at = RAM + 32768 * number
            client.send(answer(number, DMA_READ, at, 32768, bytes([number]) * 32768))
        assert device.memory is not None
        view = device.memory.view(RAM, 3 * 32768)
        assert bytes(view) == b"\0" * 32768 + b"\1" * 32768 + b"\2" * 32768

"""Clients that break the protocol: the server replies or disconnects, and nothing is left
behind."""

from __future__ import annotations

import errno
import os
import random
import resource
import struct
from pathlib import Path

import pytest

from pyvfio_user.device import Region
from pyvfio_user.irqs import Irq
from pyvfio_user.memory import AccessFault
from pyvfio_user.sealed_memory import SealedMemory
from pyvfio_user.server import MAX_MESSAGE, MAX_QUEUED, Server
from support.vfio_user import (
    NO_REPLY,
    QEMU_VERSION,
    REGION_READ,
    VERSION,
    RawClient,
    Recorder,
    command,
    dma_map,
    eventfd_value,
    leaked,
    negotiated,
    open_descriptors,
    region_write,
    set_irqs,
    socket_path,
)

PAGE = 4096
READ = command(REGION_READ, struct.pack("<QII", 0, 0, 4))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client of these tests replies where it is asked for memory."""
    monkeypatch.setattr("pyvfio_user.dma_messages.REPLY_TIME", 0.05)


def _still_serves(server: Server) -> None:
    """The next client has nothing of the one before."""
    with negotiated(server) as client:
        assert client.ask(READ).flags == 1
    while server.step():
        pass
    assert not server.connected


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack("<HHIII", 1, 9, 15, 0, 0), "shorter"),
        (struct.pack("<HHIII", 1, 9, 0, 0, 0), "shorter"),
        (struct.pack("<HHIII", 1, 9, MAX_MESSAGE + 1, 0, 0), "the longest"),
        (struct.pack("<HHIII", 1, 9, 0xFFFF_FFFF, 0, 0), "the longest"),
        (struct.pack("<HHIII", 1, 9, 32, 1, 0), "replied"),
        (struct.pack("<HHIII", 1, 9, 32, 2, 0), "type"),
    ],
    ids=["15 bytes", "0 bytes", "1 too long", "4 GiB", "reply", "type"],
)
def test_a_stream_that_has_no_meaning_is_ended_with_a_reason(
    server: Server, ended: list[str], data: bytes, reason: str
) -> None:
    with negotiated(server) as client:
        client.send(region_write(0, b"abcd") + data)
        client.pump()
        assert [reply.flags for reply in client.replies()] == [1]
        assert client.disconnected
    assert len(ended) == 1
    assert reason in ended[0]
    _still_serves(server)


def test_messages_may_come_a_byte_at_a_time(server: Server, device: Recorder) -> None:
    with negotiated(server) as client, SealedMemory(PAGE) as memory:
        for byte in region_write(8, b"slow") + READ:
            client.send(bytes([byte]))
            client.pump()
        assert [reply.command for reply in client.replies()] == [10, 9]
        assert device.calls[1:] == [("write", 0, 8, b"slow"), ("read", 0, 0, 4)]
        mapping = dma_map(0, PAGE)
        client.send(mapping[:1], [memory.fd])
        client.pump()
        for byte in mapping[1:]:
            client.send(bytes([byte]))
            client.pump()
        assert [reply.flags for reply in client.replies()] == [1]
        assert device.memory is not None
        assert len(device.memory.view(0, PAGE, write=True)) == PAGE


def test_a_message_cut_off_by_the_client_s_death_is_not_acted_on(
    server: Server, device: Recorder, ended: list[str]
) -> None:
    message = region_write(0, b"abcd")
    for cut in (1, 15, 16, 17, 32, len(message) - 1):
        with negotiated(server) as client:
            client.send(message[:cut])
            client.pump()
            assert server.connected
        client.pump()
        assert f"{cut} bytes into a message" in ended[-1]
    assert {call[0] for call in device.calls} == {"attached", "detached"}
    _still_serves(server)


def test_a_large_write_arrives_whole_between_small_ones(tmp_path: Path) -> None:
    """It is longer than a socket's buffer and than one read."""
    size = 1 << 20
    device = Recorder(regions={0: Region(size)}, irqs={0: Irq(1)})
    data = random.Random(1).randbytes(size)
    stream = memoryview(
        region_write(0, b"abcd", flags=NO_REPLY)
        + region_write(0, data, flags=NO_REPLY)
        + region_write(0, b"efgh", flags=NO_REPLY)
        + READ
    )
    with Server(socket_path(tmp_path), device) as server, negotiated(server) as client:
        while stream:
            try:
                stream = stream[client.socket.send(stream) :]
            except BlockingIOError:
                client.pump()
        client.pump()
        assert [call[2:] for call in device.calls[1:4]] == [(0, b"abcd"), (0, data), (0, b"efgh")]
        (reply,) = client.replies()
        assert reply.payload[16:] == b"efgh"


def test_replies_wait_for_a_slow_reader_and_keep_their_order(
    server: Server, device: Recorder
) -> None:
    device.bytes[0][:] = random.Random(2).randbytes(0x4000)
    count, size = 100, 16 + 16 + 0x4000  # 1.6 MB of replies: several times what a socket holds
    rounds = 2 * MAX_QUEUED // (count * size) + 1
    with negotiated(server) as client:
        for _ in range(rounds):
            for number in range(count):
                payload = struct.pack("<QII", 0, 0, 0x4000)
                client.send(command(REGION_READ, payload, message_id=number))
                client.pump()
            assert server.wants_write()
            received = bytearray()
            while len(received) < count * size:
                received += client.socket.recv(100_000)
                client.pump()
            assert not server.wants_write()
            for number in range(count):
                message = received[number * size : (number + 1) * size]
                assert struct.unpack_from("<HHIII", message) == (number, 9, size, 1, 0)
                assert message[32:] == device.bytes[0]


def test_a_client_that_never_reads_is_ended_before_its_replies_fill_memory(
    server: Server, ended: list[str]
) -> None:
    with negotiated(server) as client:
        read = command(REGION_READ, struct.pack("<QII", 0, 0, 0x4000))
        for _ in range(2 * MAX_QUEUED // 0x4000):
            if not server.connected:
                break
            client.send(read)
            client.pump()
        assert not server.connected
    assert "unread" in ended[0]
    _still_serves(server)


# --- File descriptors


def test_descriptors_belong_to_the_message_they_came_with_however_many_are_read_at_once(
    server: Server, device: Recorder
) -> None:
    """Posted writes, maps and interrupts queue up, as in QEMU's memory transactions."""
    eventfds = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2)]
    with SealedMemory(PAGE) as one, SealedMemory(PAGE) as two, negotiated(server) as client:
        one.view[:3], two.view[:3] = b"one", b"two"
        post = region_write(0, b"abcd", flags=NO_REPLY)
        client.send(post)
        client.send(dma_map(0, PAGE), [one.fd])
        client.send(dma_map(PAGE, PAGE), [two.fd])
        client.send(post)
        client.send(post)
        client.send(dma_map(2 * PAGE, PAGE))
        client.send(set_irqs(0x24, 2, 0, 2), eventfds)
        client.send(post + post)
        client.send(dma_map(3 * PAGE, PAGE), [one.fd])
        client.pump()
        assert [reply.flags for reply in client.replies()] == [1] * 5
        assert device.memory is not None and device.lines is not None
        for page, content in [(0, b"one"), (1, b"two"), (3, b"one")]:
            assert bytes(device.memory.view(page * PAGE, 3, write=False)) == content
        with pytest.raises(AccessFault):
            device.memory.view(2 * PAGE, 1, write=False)
        assert device.lines.trigger(2, 1)
        assert [eventfd_value(fd) for fd in eventfds] == [0, 1]
        assert device.calls.count(("write", 0, 0, b"abcd")) == 5
    for fd in eventfds:
        os.close(fd)


def test_descriptors_stay_with_a_message_that_is_read_in_parts(
    server: Server, device: Recorder
) -> None:
    post, mapping = region_write(0, b"abcd", flags=NO_REPLY), dma_map(0, PAGE)
    with SealedMemory(PAGE) as memory, negotiated(server) as client:
        client.send(post)
        client.send(mapping[:20], [memory.fd])
        client.pump()
        assert client.replies() == []
        client.send(mapping[20:])
        client.send(post[:10])
        client.pump()
        assert [reply.flags for reply in client.replies()] == [1]
        # What completes one message is queued before another one's descriptors.
        client.send(post[10:])
        client.send(dma_map(PAGE, PAGE), [memory.fd])
        client.pump()
        assert [reply.flags for reply in client.replies()] == [1]
        assert device.memory is not None
        for address in (0, PAGE):
            assert len(device.memory.view(address, PAGE, write=True)) == PAGE
        assert device.calls.count(("write", 0, 0, b"abcd")) == 2


def test_descriptors_of_several_messages_in_one_sendmsg_count_to_the_last(
    server: Server, device: Recorder
) -> None:
    with SealedMemory(PAGE) as memory, negotiated(server) as client:
        held = open_descriptors()
        client.send(dma_map(0, PAGE) + dma_map(PAGE, PAGE), [memory.fd, memory.fd])
        client.pump()
        assert [reply.error for reply in client.replies()] == [0, errno.EINVAL]
        client.send(dma_map(PAGE, PAGE) + dma_map(2 * PAGE, PAGE), [memory.fd])
        client.pump()
        assert [reply.error for reply in client.replies()] == [0, 0]
        assert device.memory is not None
        assert len(device.memory.view(2 * PAGE, PAGE, write=True)) == PAGE
        for address in (0, PAGE):
            with pytest.raises(AccessFault):
                device.memory.view(address, 1, write=False)
        assert len(leaked(held)) == 1  # the mapping's own
    _still_serves(server)


def test_descriptors_that_nobody_asked_for_are_closed(server: Server) -> None:
    with SealedMemory(PAGE) as memory, negotiated(server) as client:
        held = open_descriptors()
        assert client.ask(READ, [memory.fd] * 3).flags == 1
        assert client.ask(command(99), [memory.fd] * 8).failed
        client.send(region_write(0, b"abcd", flags=NO_REPLY), [memory.fd])
        client.pump()
        assert client.ask(dma_map(0, 0), [memory.fd]).failed
        assert not leaked(held)


def test_too_many_descriptors_end_the_connection(server: Server, ended: list[str]) -> None:
    before = open_descriptors()
    with SealedMemory(PAGE) as memory:
        for message in (dma_map(0, PAGE), READ, READ[:3]):
            with negotiated(server) as client:
                client.send(message, [memory.fd] * 9)
                client.pump()
                assert client.disconnected
            assert "file descriptors" in ended[-1]
    assert not leaked(before)
    _still_serves(server)


def test_descriptors_in_the_middle_of_a_message_end_the_connection(
    server: Server, ended: list[str]
) -> None:
    before = open_descriptors()
    message = dma_map(0, PAGE)
    with SealedMemory(PAGE) as memory:
        for cut in (1, 15, 16, 30):
            with negotiated(server) as client:
                client.send(message[:cut])
                client.pump()
                client.send(message[cut:], [memory.fd])
                client.pump()
                assert client.disconnected
            assert "middle" in ended[-1]
    assert not leaked(before)
    _still_serves(server)


def test_descriptors_that_come_twice_with_a_message_are_all_closed(
    server: Server, ended: list[str]
) -> None:
    before = open_descriptors()
    message = dma_map(0, PAGE)
    with SealedMemory(PAGE) as memory:
        for cut, count in ((1, 1), (16, 8), (30, 9)):
            with negotiated(server) as client:
                client.send(message[:cut], [memory.fd])
                client.pump()
                client.send(message[cut:], [memory.fd] * count)
                client.pump()
                assert client.disconnected
            assert "file descriptors" in ended[-1]
    assert not leaked(before)
    _still_serves(server)


def test_descriptors_of_a_message_that_never_ends_are_closed(server: Server) -> None:
    before = open_descriptors()
    with SealedMemory(PAGE) as memory:
        for cut in (1, 15, 16, 30):
            with negotiated(server) as client:
                client.send(dma_map(0, PAGE)[:cut], [memory.fd])
                client.pump()
            client.pump()
    assert not leaked(before)
    _still_serves(server)


def test_descriptors_before_the_version_are_closed(server: Server) -> None:
    before = open_descriptors()
    with SealedMemory(PAGE) as memory:
        with RawClient(server) as client:
            client.send(dma_map(0, PAGE), [memory.fd])
            client.pump()
            assert client.disconnected
        with RawClient(server) as client:
            assert client.ask(command(VERSION, QEMU_VERSION), [memory.fd]).flags == 1
        client.pump()
    assert not leaked(before)


def test_received_descriptors_are_not_inherited(server: Server, device: Recorder) -> None:
    with SealedMemory(PAGE) as memory, negotiated(server) as client:
        before = open_descriptors()
        eventfd = os.eventfd(0, os.EFD_CLOEXEC)
        came: dict[int, bool] = {}
        device.on_memory_changed = lambda: came.update(
            (fd, os.get_inheritable(fd)) for fd in leaked(before) if fd != eventfd
        )
        client.ask(dma_map(0, PAGE), [memory.fd])
        assert len(came) == 2  # the one that came, and the mapping's
        assert not any(came.values())
        client.ask(set_irqs(0x24, 2, 0, 1), [eventfd])
        kept = set(leaked(before)) - {eventfd}
        assert len(kept) == 2
        assert not any(os.get_inheritable(fd) for fd in kept)
        os.close(eventfd)


def test_a_process_that_is_out_of_descriptors_ends_the_connection_and_lives(
    server: Server, ended: list[str]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with SealedMemory(PAGE) as memory, negotiated(server) as client:
        client.send(dma_map(0, PAGE), [memory.fd] * 4)
        highest = max(open_descriptors()) + 1
        filler = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
        try:
            while True:
                try:
                    filler.append(os.dup(memory.fd))
                except OSError:
                    break
            os.close(filler.pop())
            client.pump()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in filler:
                os.close(fd)
        assert client.disconnected
    assert "file descriptors" in ended[0]
    _still_serves(server)

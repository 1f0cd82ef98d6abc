"""The mailbox's ends never wait, never mix messages up, and notice a peer that is gone."""

import os
import socket
from collections.abc import Iterator

import pytest

from potash_firmware.mailbox import QUEUE_LIMIT, ApuPort, MailboxError, RpuPort, datagrams, pair
from potash_firmware.mailbox.messages import (
    Execute,
    Forget,
    Message,
    Reply,
    Request,
    Reset,
    ShareMemory,
)

CDWS = (0, 1, 2, 3, 4, 5)


@pytest.fixture
def ends() -> Iterator[tuple[RpuPort, ApuPort]]:
    rpu, apu = pair()
    with rpu, apu:
        yield rpu, apu


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, ApuPort]]:
    """A port whose other end sends whatever a test likes."""
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, ApuPort(other) as port:
        yield mine, port


def test_messages_arrive_whole_and_in_order(ends: tuple[RpuPort, ApuPort]) -> None:
    rpu, apu = ends
    sent = [Request(tag, False, 0x81, 1, CDWS, 2, 64) for tag in range(5)]
    for message in sent:
        rpu.send(message)
    assert [apu.receive() for _ in sent] == sent
    assert apu.receive() is None
    assert not apu.closed
    apu.send(Reply(3, 0x002, True, 9, 8))
    assert rpu.receive() == Reply(3, 0x002, True, 9, 8)


def test_a_full_socket_queues_and_flush_loses_nothing(ends: tuple[RpuPort, ApuPort]) -> None:
    rpu, apu = ends
    sent = 0
    while not rpu.wants_write():
        rpu.send(Reset(sent))
        sent += 1
    for _ in range(10):
        rpu.send(Reset(sent))
        sent += 1
    received: list[Message] = []
    while len(received) < sent:
        message = apu.receive()
        if message is None:
            assert rpu.wants_write()
            rpu.flush()
        else:
            received.append(message)
    assert received == [Reset(tag) for tag in range(sent)]
    assert not rpu.wants_write()


def test_a_peer_that_never_reads_is_an_error_not_endless_memory(
    ends: tuple[RpuPort, ApuPort],
) -> None:
    rpu, _ = ends
    while not rpu.wants_write():
        rpu.send(Reset(0))
    with pytest.raises(MailboxError, match="unread"):
        for _ in range(QUEUE_LIMIT + 1):
            rpu.send(Reset(0))


def test_the_end_of_the_peer_is_seen_after_its_last_message(ends: tuple[RpuPort, ApuPort]) -> None:
    rpu, apu = ends
    apu.send(Reply(1, 0))
    apu.close()
    assert rpu.receive() == Reply(1, 0)
    assert rpu.receive() is None
    assert rpu.closed
    rpu.send(Reset(1))
    assert not rpu.wants_write()


@pytest.mark.parametrize("then_send", [False, True])
def test_what_a_peer_answered_arrives_even_when_it_left_requests_unread(
    ends: tuple[RpuPort, ApuPort], then_send: bool
) -> None:
    rpu, apu = ends
    for tag in (1, 2):
        rpu.send(Reset(tag))
    assert apu.receive() == Reset(1)
    apu.send(Reply(1, 0))
    apu.close()
    if then_send:
        rpu.send(Reset(3))
        rpu.send(Reset(4))
    assert rpu.receive() == Reply(1, 0)
    assert rpu.receive() is None
    assert rpu.closed and not rpu.wants_write()


def test_a_malformed_datagram_is_dropped_and_the_next_one_read(
    raw: tuple[socket.socket, ApuPort], ends: tuple[RpuPort, ApuPort]
) -> None:
    peer, port = raw
    peer.send(b"\xff rubbish")
    peer.send(bytes(5000))
    peer.send(b"\x02\x04\0\0\x2a\0\0\0")
    peer.send(b"\x02\x01\0\0\x2a\0\0\0")
    for _ in range(3):
        with pytest.raises(MailboxError):
            port.receive()
    assert port.receive() == Reset(42)


def test_a_message_for_the_other_side_is_refused(raw: tuple[socket.socket, ApuPort]) -> None:
    peer, port = raw
    peer.send(b"\x06\0\0\0\x2a\0\0\0")
    with pytest.raises(MailboxError, match="no kind of message"):
        port.receive()


def test_only_a_mailbox_can_be_adopted() -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(MailboxError):
            ApuPort.adopt(reader)
        os.fstat(reader)  # still the caller's
    finally:
        os.close(reader)
        os.close(writer)
    stream, other = socket.socketpair()
    with stream, other, pytest.raises(MailboxError, match="no mailbox"):
        ApuPort.adopt(stream.fileno())


def test_a_descriptor_goes_with_its_message(ends: tuple[RpuPort, ApuPort]) -> None:
    rpu, apu = ends
    memory = os.memfd_create("shared")
    rpu.send(ShareMemory(256, 4096, memory))
    rpu.send(Forget(256))
    os.write(memory, b"the same memory")
    received = apu.receive()
    assert isinstance(received, ShareMemory)
    assert received.descriptor not in (-1, memory)
    assert os.pread(received.descriptor, 15, 0) == b"the same memory"
    assert apu.receive() == Forget(256)
    os.close(memory)
    os.close(received.descriptor)


def test_a_descriptor_waits_with_its_message(ends: tuple[RpuPort, ApuPort]) -> None:
    rpu, apu = ends
    before = len(os.listdir("/proc/self/fd"))
    while not rpu.wants_write():
        rpu.send(Reset(0))
    memory = os.memfd_create("shared")
    rpu.send(ShareMemory(256, 4096, memory))
    os.close(memory)
    while (message := apu.receive()) is not None:
        rpu.flush()
        if isinstance(message, ShareMemory):
            os.close(message.descriptor)
            break
    assert len(os.listdir("/proc/self/fd")) == before


def test_unsent_descriptors_are_closed_with_the_port() -> None:
    rpu, apu = pair()
    before = len(os.listdir("/proc/self/fd"))
    while not rpu.wants_write():
        rpu.send(Reset(0))
    memory = os.memfd_create("shared")
    rpu.send(ShareMemory(256, 4096, memory))
    os.close(memory)
    rpu.close()
    apu.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2


@pytest.mark.parametrize(
    ("message", "descriptors"),
    [(ShareMemory(256, 4096), 0), (Execute(1, 3, 0, data_length=1), 0), (Forget(256), 1)],
)
def test_a_message_without_its_descriptor_or_with_another_is_refused(
    raw: tuple[socket.socket, ApuPort], message: Message, descriptors: int
) -> None:
    mine, port = raw
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(mine, [datagrams.encode(message)], [0] * descriptors)
    with pytest.raises(MailboxError, match="descriptor"):
        port.receive()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_rpu_takes_no_descriptors() -> None:
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, RpuPort(other) as port:
        before = len(os.listdir("/proc/self/fd"))
        socket.send_fds(mine, [datagrams.encode(Reply(1, 0))], [0])
        assert port.receive() == Reply(1, 0)
        assert len(os.listdir("/proc/self/fd")) == before

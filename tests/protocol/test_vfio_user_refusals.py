"""Clients that wait, that say nothing, and whose descriptors take long to close."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from pyvfio_user import descriptors, server
from pyvfio_user.sealed_memory import SealedMemory
from pyvfio_user.server import Server
from support.vfio_user import (
    GET_INFO,
    QEMU_VERSION,
    VERSION,
    RawClient,
    Recorder,
    command,
    dma_map,
    leaked,
    negotiated,
    open_descriptors,
    region_read,
    socket_path,
)

INFO = command(GET_INFO, struct.pack("<IIII", 16, 0, 0, 0))
PAGE = 4096


class Told(NamedTuple):
    """A server, and what its owner was told."""

    server: Server
    refused: list[str]
    ended: list[str]


@pytest.fixture
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    refused: list[str] = []
    ended: list[str] = []
    path = socket_path(tmp_path_factory.mktemp("s"))
    with Server(
        path, Recorder(), on_disconnect=ended.append, on_refuse=refused.append
    ) as listening:
        yield Told(listening, refused, ended)


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """A block in which this process can open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filler: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_descriptors()) + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                filler.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in filler:
            os.close(fd)


# --- More clients than one


def test_who_comes_while_there_is_a_client_learns_it_at_once(told: Told) -> None:
    before = open_descriptors()
    with negotiated(told.server) as client, contextlib.ExitStack() as stack:
        others = [stack.enter_context(RawClient(told.server)) for _ in range(4)]
        others[0].send(command(VERSION, QEMU_VERSION))
        told.server.turn_away()
        assert all(other.disconnected for other in others)
        assert told.refused == ["there is a client already"] * 4
        assert not client.ask(region_read(0, 4)).failed
    told.server.drain(10)
    assert not leaked(before)


def test_what_is_waited_for_is_the_client_and_those_who_come(told: Told) -> None:
    listener = told.server.listener
    assert [one.fileno() for one in told.server.sources] == [listener]
    with negotiated(told.server):
        assert [one.fileno() for one in told.server.sources] == [told.server.fileno(), listener]
    told.server.close()
    assert told.server.sources == [] and told.server.listener == -1


@pytest.mark.parametrize("begun", [b"", command(VERSION, QEMU_VERSION)[:20]])
def test_a_client_that_does_not_negotiate_loses_its_place(
    told: Told, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(server, "NEGOTIATION_TIME", 0.02)
    assert told.server.timeout is None
    with RawClient(told.server) as silent:
        silent.send(begun)
        told.server.step()
        told.server.expire()
        assert told.server.connected
        assert told.server.timeout is not None and told.server.timeout <= 0.02
        while told.server.timeout:
            time.sleep(told.server.timeout)
        told.server.expire()
        assert silent.disconnected
    assert told.ended == ["the client did not negotiate within 0.02 seconds"]
    with negotiated(told.server) as client:
        assert told.server.timeout is None
        told.server.expire()
        assert not client.ask(region_read(0, 4)).failed


def test_a_process_without_descriptors_takes_the_next_client_when_it_has_one(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ACCEPT_PAUSE", 0.02)
    with RawClient(told.server) as client:
        with no_descriptors():
            assert not told.server.step()
            assert told.server.sources == []  # what is readable all the time would keep it busy
            assert told.server.timeout
        assert len(told.refused) == 1 and "Too many open files" in told.refused[0]
        while told.server.timeout:
            time.sleep(told.server.timeout)
        assert told.server.sources
        assert not client.negotiate().failed


# --- Descriptors that take long to close


@pytest.fixture
def lingering() -> Iterator[int]:
    """A TCP socket with unsent data, whose last close(2) waits for its peer (socket(7),
    SO_LINGER)."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    one.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            one.send(bytes(1 << 20))
    before = threading.active_count()
    yield one.fileno()
    one.detach()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()  # with a reset, for which the one who lingers need not wait
    for thread in tuple(descriptors._closing):
        thread.join(3.0)
    assert threading.active_count() <= before


def _lingers() -> None:
    """What was asked for is done, and the close has not ended, which takes a minute."""
    assert any(thread.is_alive() for thread in descriptors._closing)


def test_a_socket_that_lingers_holds_nobody_up(told: Told, lingering: int) -> None:
    with negotiated(told.server) as client:
        client.send(INFO, [lingering])
        os.close(lingering)
        client.pump()
        _lingers()
        assert [reply.failed for reply in client.replies()] == [False]


def test_nor_does_one_that_was_never_received(told: Told, lingering: int) -> None:
    """The system closes what is in a socket's queue when the socket is closed."""
    with negotiated(told.server) as client:
        client.send(struct.pack("<HHIII", 1, 1, 3, 0, 0))  # a header that ends the connection
        client.send(INFO, [lingering])
        os.close(lingering)
        client.pump()
        _lingers()
        assert client.disconnected


def test_nor_does_one_among_more_than_a_message_may_have(told: Told, lingering: int) -> None:
    """The system closes what it has no room for."""
    with SealedMemory(PAGE) as memory, negotiated(told.server) as client:
        client.send(INFO, [*([memory.fd] * 40), lingering])
        os.close(lingering)
        client.pump()
        _lingers()
        assert client.disconnected


def test_nor_does_one_of_a_client_that_is_turned_away(told: Told, lingering: int) -> None:
    with negotiated(told.server), RawClient(told.server) as other:
        other.send(INFO, [lingering])
        os.close(lingering)
        told.server.turn_away()
        _lingers()
        assert other.disconnected


def test_nothing_is_taken_while_too_much_is_being_closed(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_descriptors()
    with SealedMemory(PAGE) as memory, negotiated(told.server) as client:
        monkeypatch.setattr(descriptors, "_closing", {object() for _ in range(32)})
        monkeypatch.setattr(server, "ACCEPT_PAUSE", 0.02)
        client.send(dma_map(0, PAGE), [memory.fd])
        client.pump()
        assert client.disconnected
        with RawClient(told.server) as other:
            assert not told.server.step()
            assert not told.server.connected and len(told.refused) == 1
            monkeypatch.setattr(descriptors, "_closing", set())
            time.sleep(told.server.timeout or 0.0)
            assert not other.negotiate().failed
    told.server.drain(10)
    assert not leaked(before)

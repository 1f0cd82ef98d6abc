"""The fork server's side of what workers have compiled."""

import os
import selectors
import socket
import struct

import pytest

from potash_firmware.apu import channel
from potash_firmware.apu.compile_service import CompileConnection
from potash_firmware.apu.fork_server import Child, ForkServer
from support.apu import CONFIG

ANSWER = struct.Struct("<iI")
PROGRAM = 1


def request(number: int) -> bytes:
    return struct.pack("<IIq", PROGRAM, 0, number)


def test_a_request_is_served_that_comes_before_the_last_cache_writer_is_reaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker asks again as soon as it has its answer, and the last cache writer has not ended yet."""

    def answer(connection: CompileConnection, kind: int, length: int, number: int) -> None:
        connection._mine.send(ANSWER.pack(0, number))

    monkeypatch.setattr(CompileConnection, "_compile", answer)
    connection = CompileConnection(CONFIG)
    worker = connection.its
    worker.send(request(5))
    first = connection.serve()
    assert first is not None
    assert worker.recv(100) == ANSWER.pack(0, 5)
    worker.send(request(6))
    assert connection.serve() is None
    assert os.waitpid(first, 0)[1] == 0
    second = connection.ended(0)
    assert second is not None
    assert worker.recv(100) == ANSWER.pack(0, 6)
    assert os.waitpid(second, 0)[1] == 0
    assert connection.ended(0) is None
    connection.close()


def test_a_connection_is_not_served_after_its_worker_has_been_reaped() -> None:
    """What one look at the selector has found may have gone by its turn, and the fork server goes
    on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fork_server = ForkServer(ours, lambda *_: None, CONFIG)
    with ours, theirs, selectors.DefaultSelector() as fork_server._selector:
        connection = CompileConnection(CONFIG)
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        child = fork_server._children[1] = Child(1, pid, os.pidfd_open(pid), connection)
        for one in (child.pidfd, connection):
            fork_server._selector.register(one, selectors.EVENT_READ, one)
        connection.its.send(request(5))
        fork_server._reap(child)
        fork_server._asked(connection)
        assert channel.decode_exit(theirs.recv(100)) == channel.Exited(1, 0)

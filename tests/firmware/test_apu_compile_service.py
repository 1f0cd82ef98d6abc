"""The fork server's side of what workers have compiled."""

import os
import socket
from dataclasses import replace

import pytest

from potash_firmware.apu import channel
from potash_firmware.apu.compile_service import (
    CompileAnswer,
    CompileConnection,
    CompileRequest,
    RequestKind,
)
from potash_firmware.apu.fork_server import ForkServer
from potash_firmware.mailbox.datagrams import decode, encode
from support.apu import CONFIG


def request(number: int) -> bytes:
    return encode(CompileRequest(RequestKind.PROGRAM, 0, number))


def test_a_request_is_served_that_comes_before_the_last_cache_writer_is_reaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker asks again as soon as it has its answer, and the last cache writer has not ended yet."""

    def answer(connection: CompileConnection, request: CompileRequest) -> None:
        connection._socket.send(encode(CompileAnswer(failed=False, length=request.number)))

    monkeypatch.setattr(CompileConnection, "_compile", answer)
    connection = CompileConnection(CONFIG)
    worker = connection.worker_socket
    worker.send(request(5))
    first = connection.serve()
    assert first is not None
    assert decode(worker.recv(100)) == CompileAnswer(failed=False, length=5)
    worker.send(request(6))
    assert connection.serve() is None
    assert os.waitpid(first, 0)[1] == 0
    second = connection.ended(0)
    assert second is not None
    assert decode(worker.recv(100)) == CompileAnswer(failed=False, length=6)
    assert os.waitpid(second, 0)[1] == 0
    assert connection.ended(0) is None
    connection.close()


@pytest.mark.parametrize(
    "said", [b"x", b"\x54\x63" + bytes(16), encode(CompileAnswer(failed=True))]
)
def test_anything_else_starts_nothing(said: bytes) -> None:
    connection = CompileConnection(CONFIG)
    connection.worker_socket.send(said)
    assert connection.serve() is None
    assert not connection.busy
    connection.close()


def test_a_connection_is_not_served_after_its_worker_has_been_reaped() -> None:
    """What one look at the selector has found may be gone before it is handled."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        fork_server = ForkServer(ours, lambda *_: None, CONFIG)
        connection = CompileConnection(CONFIG)
        fork_server._workers[1] = 0
        connection.worker_socket.send(request(5))
        fork_server._worker_exited(1, connection, 3)
        fork_server._serve_compilation(connection)
        assert channel.decode_exit(theirs.recv(100)) == channel.Exited(1, 3)


def test_few_compilations_go_on_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each accelerator; with compute namespaces alone, one."""
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for config, expected in ((CONFIG, [1, 2]), (replace(CONFIG, accelerators=()), [1, 2, 3])):
            fork_server = ForkServer(ours, lambda *_: None, config)
            for pid in (1, 2, 3, 4, 5):
                connection = fork_server._cache_writers[pid] = CompileConnection(config)
                if pid < 5:
                    connection.close()
            fork_server._end_abandoned()
            assert killed == expected
            killed.clear()
            connection.close()

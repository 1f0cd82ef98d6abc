"""The server's socket: whose it is, what lies at its path already, and what closing leaves."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from pyvfio_user.server import Server
from support.vfio_user import (
    RawClient,
    Recorder,
    leaked,
    negotiated,
    open_descriptors,
    region_read,
    socket_path,
)

PAGE = 4096


def test_the_socket_is_the_owner_s_alone_whatever_the_umask(
    tmp_path: Path, device: Recorder
) -> None:
    before = os.umask(0)
    try:
        with Server(socket_path(tmp_path), device):
            mode = socket_path(tmp_path).stat().st_mode
            assert stat.S_ISSOCK(mode)
            assert stat.S_IMODE(mode) == 0o600
    finally:
        os.umask(before)
    assert not socket_path(tmp_path).exists()


def test_a_path_that_is_served_is_left_alone(tmp_path: Path, server: Server) -> None:
    before = open_descriptors()
    with pytest.raises(OSError) as caught, Server(server.path, Recorder()):
        pass
    assert caught.value.errno == errno.EADDRINUSE
    assert str(server.path) in str(caught.value)
    assert not leaked(before)
    server.drain(10)  # the look whether anybody is there
    with negotiated(server) as client:
        assert not client.ask(region_read(0, 4)).failed


def test_a_path_whose_backlog_is_full_is_served_too(server: Server) -> None:
    waiting: list[socket.socket] = []
    try:
        with pytest.raises(BlockingIOError):
            while len(waiting) < 100:
                waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                waiting[-1].setblocking(False)
                waiting[-1].connect(server.path)
        with pytest.raises(OSError) as caught:
            Server(server.path, Recorder()).__enter__()
        assert caught.value.errno == errno.EADDRINUSE
        assert Path(server.path).is_socket()
    finally:
        for sock in waiting:
            sock.close()


def test_a_stale_socket_is_replaced(tmp_path: Path, device: Recorder) -> None:
    path = socket_path(tmp_path)
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(path))
    dead.close()
    assert path.is_socket()
    with Server(path, device) as server, negotiated(server):
        pass


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_socket_is_left_alone(tmp_path: Path, device: Recorder, kind: str) -> None:
    path, target = socket_path(tmp_path), tmp_path / "target"
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(target)
    with pytest.raises(OSError) as caught, Server(path, device):
        pass
    assert caught.value.errno == errno.EADDRINUSE
    assert os.path.lexists(path) and not path.is_socket()
    assert not target.exists()


def test_a_path_that_cannot_be_is_an_error_and_leaves_nothing(
    tmp_path: Path, device: Recorder
) -> None:
    before = open_descriptors()
    for path in (tmp_path / "missing" / "s", tmp_path / ("x" * 200)):
        with pytest.raises(OSError):
            Server(path, device).__enter__()
    assert not leaked(before)


def test_closing_removes_its_own_socket_and_no_other(tmp_path: Path, device: Recorder) -> None:
    path = socket_path(tmp_path)
    with Server(path, device):
        path.unlink()
        path.write_text("somebody else's")
    assert path.read_text() == "somebody else's"
    path.unlink()
    with Server(path, device):
        path.unlink()


def test_closing_detaches_the_client(tmp_path: Path, device: Recorder) -> None:
    before = open_descriptors()
    reasons: list[str] = []
    server = Server(socket_path(tmp_path), device, on_disconnect=reasons.append)
    assert not leaked(before)
    with server:
        client = RawClient(server)
        client.negotiate()
    assert device.calls == [("attached",), ("detached",)]
    assert client.disconnected
    assert len(reasons) == 1
    client.socket.close()
    server.close()
    device.memory = device.lines = None
    assert not leaked(before)
    with pytest.raises(ValueError):
        server.fileno()

"""The nursery's side of what workers have compiled."""

import os
import selectors
import socket
import struct

import pytest

from potash_firmware.apu import orders
from potash_firmware.apu.nursery import Child, Nursery
from potash_firmware.apu.workshop import Desk
from support.apu import CONFIG

ANSWER = struct.Struct("<iI")
PROGRAM = 1


def request(number: int) -> bytes:
    return struct.pack("<IIq", PROGRAM, 0, number)


def test_a_request_is_served_that_comes_before_the_last_cache_writer_is_reaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker asks again as soon as it has its answer, and the last cache writer has not ended yet."""

    def answer(desk: Desk, kind: int, length: int, number: int) -> None:
        desk._mine.send(ANSWER.pack(0, number))

    monkeypatch.setattr(Desk, "_compile", answer)
    desk = Desk(CONFIG)
    worker = desk.its
    worker.send(request(5))
    first = desk.serve()
    assert first is not None
    assert worker.recv(100) == ANSWER.pack(0, 5)
    worker.send(request(6))
    assert desk.serve() is None
    assert os.waitpid(first, 0)[1] == 0
    second = desk.ended(0)
    assert second is not None
    assert worker.recv(100) == ANSWER.pack(0, 6)
    assert os.waitpid(second, 0)[1] == 0
    assert desk.ended(0) is None
    desk.close()


def test_a_desk_is_not_served_after_its_worker_has_been_reaped() -> None:
    """What one look at the selector has found may have gone by its turn, and the nursery goes
    on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nursery = Nursery(ours, lambda *_: None, CONFIG)
    with ours, theirs, selectors.DefaultSelector() as nursery._selector:
        desk = Desk(CONFIG)
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        child = nursery._children[1] = Child(1, pid, os.pidfd_open(pid), desk)
        for one in (child.pidfd, desk):
            nursery._selector.register(one, selectors.EVENT_READ, one)
        desk.its.send(request(5))
        nursery._reap(child)
        nursery._asked(desk)
        assert orders.decode(theirs.recv(100)) == orders.Exited(1, 0)

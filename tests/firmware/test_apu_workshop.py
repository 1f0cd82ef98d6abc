"""The nursery's side of what workers have compiled."""

import os
import struct

import pytest

from potash_firmware.apu.workshop import Desk
from support.apu import CONFIG

ANSWER = struct.Struct("<iI")
PROGRAM = 1


def request(number: int) -> bytes:
    return struct.pack("<IIq", PROGRAM, 0, number)


def test_a_request_is_served_that_comes_before_the_last_keeper_is_reaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker asks again as soon as it has its answer, and the keeper is still on its way out."""

    def answer(desk: Desk, kind: int, length: int, number: int) -> None:
        desk._mine.send(ANSWER.pack(0, number))

    monkeypatch.setattr(Desk, "_keep", answer)
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

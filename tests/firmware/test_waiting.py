"""What the device's loop waits with."""

import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from potash_firmware.waiting import READ, WRITE, Waiting


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    with Waiting() as waiting:
        yield waiting


def test_what_can_be_read_or_written_is_ready(waiting: Waiting) -> None:
    one, other = socket.socketpair()
    reader, writer = os.pipe()
    with one, other:
        assert not waiting.wait([(one, READ), (reader, READ)], 0.0)
        other.send(b"x")
        assert list(waiting.wait([(one, READ), (reader, READ)], None)) == [one.fileno()]
        os.write(writer, b"x")
        assert set(waiting.wait([(one, READ), (reader, READ)], 1.0)) == {one.fileno(), reader}
        assert list(waiting.wait([(other, READ | WRITE)], 0.0)) == [other.fileno()]
        assert not waiting.wait([(other, READ)], 0.0)
    os.close(reader)
    os.close(writer)


def test_a_new_socket_of_an_old_number_is_heard(waiting: Waiting) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            one, other = socket.socketpair()
            stack.callback(other.close)
            with one:
                other.send(b"x")
                assert list(waiting.wait([(one, READ)], 1.0)) == [one.fileno()]
    assert not waiting.wait([], 0.0)


def test_waits_may_be_shorter_than_a_millisecond(waiting: Waiting) -> None:
    shortest = 1.0
    for _ in range(20):
        began = time.monotonic()
        assert not waiting.wait([], 200e-6)
        shortest = min(shortest, time.monotonic() - began)
    assert 200e-6 <= shortest < 900e-6


def test_descriptors_may_have_any_number() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip("this process may not have so many descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    one, other = socket.socketpair()
    held = [os.dup(0) for _ in range(1100)]
    try:
        with one, other, socket.fromfd(one.fileno(), one.family, one.type) as high:
            assert high.fileno() >= 1024
            other.send(b"x")
            with Waiting() as late:
                assert list(late.wait([(high, READ)], 0.5)) == [high.fileno()]
                assert not late.wait([], 200e-6)
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_limit_may_be_longer_than_the_kernel_can_wait(waiting: Waiting) -> None:
    one, other = socket.socketpair()
    with one, other:
        other.send(b"x")
        for limit in (2.0**31, 1e15):
            assert list(waiting.wait([(one, READ)], limit)) == [one.fileno()]

"""Whatever a client sends, the server replies to or ends: random messages."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyvfio_user.device import IoEventFd, Region
from pyvfio_user.migration import State
from pyvfio_user.payloads import Area
from pyvfio_user.sealed_memory import SealedMemory
from pyvfio_user.server import Server
from support.vfio_user import (
    NO_REPLY,
    REGION_READ,
    RawClient,
    Recorder,
    command,
    leaked,
    negotiated,
    open_descriptors,
    socket_path,
)

PAGE = 4096
READ = command(REGION_READ, struct.pack("<QII", 0, 0, 4))


class Migration:
    """A `migration` that takes every state and gives back what it was given."""

    pre_copy = True
    initial = State.RUNNING

    def __init__(self) -> None:
        self.state = b""

    def change(self, before: State, after: State) -> None:
        pass

    def read(self, size: int) -> bytes:
        data, self.state = self.state[:size], self.state[size:]
        return data

    def write(self, data: bytes) -> None:
        self.state = data


def _device(memory: SealedMemory, eventfd: int) -> Recorder:
    """A device with everything that a client can ask for."""
    ioeventfds = (IoEventFd(eventfd, 0, 4), IoEventFd(eventfd, 8, 8, datamatch=1))
    device = Recorder(
        {
            0: Region(4 * PAGE, ioeventfds=ioeventfds),
            2: Region(PAGE, writable=False, fd=memory.fd),
            4: Region(4 * PAGE, fd=memory.fd, areas=(Area(0, PAGE), Area(2 * PAGE, PAGE))),
            7: Region(PAGE),
        }
    )
    device.migration = Migration()  # type: ignore[attr-defined]  # which makes it one that has it
    return device


def _still_serves(server: Server) -> None:
    """The next client has nothing of the one before."""
    with negotiated(server) as client:
        assert client.ask(READ).flags == 1
    while server.step():
        pass
    assert not server.connected


NUMBERS = st.sampled_from(
    [0, 1, 2, 7, 9, 16, 0x3FFF, 0x4000, PAGE, 0xFFFF_FFFF, 1 << 63, (1 << 64) - PAGE, (1 << 64) - 1]
)
COMMANDS = st.integers(0, 20)
FLAGS = st.sampled_from([0, NO_REPLY, NO_REPLY, 0x20, 0xFFFF_FFF0])


def _u32(value: int) -> bytes:
    return struct.pack("<I", value & 0xFFFF_FFFF)


FIELDS = st.one_of(
    st.binary(max_size=24), NUMBERS.map(_u32), NUMBERS.map(lambda value: struct.pack("<Q", value))
)
MAPS = st.builds(
    lambda *fields: struct.pack("<IIQQQ", *fields),
    st.just(32),
    st.integers(0, 4),
    st.sampled_from([0, PAGE, 4 * PAGE, 1 << 63]),
    NUMBERS,
    NUMBERS,
)
UNMAPS = st.builds(
    lambda *fields: struct.pack("<IIQQ", *fields), st.just(24), st.integers(0, 3), NUMBERS, NUMBERS
)
IRQ_SETS = st.builds(
    lambda flags, index, start, count, data: (
        struct.pack("<IIIII", 20, flags, index, start, count) + data
    ),
    st.sampled_from([0x21, 0x22, 0x24, 0x24, 0x0A, 0x11]),
    st.integers(0, 5),
    st.integers(0, 17),
    st.integers(0, 17),
    st.sampled_from([b"", b"", b"\1", b"\0\1"]),
)
WRITES = st.builds(
    lambda offset, region, data: struct.pack("<QII", offset, region, len(data)) + data,
    NUMBERS,
    st.integers(0, 9),
    st.binary(max_size=12),
)
READS = st.builds(
    lambda *fields: struct.pack("<QII", *fields),
    NUMBERS,
    st.integers(0, 9),
    st.sampled_from([0, 1, 4, PAGE, 1 << 20, 0xFFFF_FFFF]),
)
MULTI_WRITES = st.lists(
    st.builds(
        lambda *fields: struct.pack("<QII8s", *fields),
        NUMBERS,
        st.integers(0, 9),
        st.integers(0, 9),
        st.binary(max_size=8),
    ),
    max_size=3,
).map(lambda writes: struct.pack("<Q", len(writes)) + b"".join(writes))
FEATURES = st.builds(
    lambda argsz, feature, method, data: struct.pack("<II", argsz, method << 16 | feature) + data,
    st.sampled_from([8, 16, 64, 4096]),
    st.sampled_from([1, 2, 2, 6, 7, 8, 9]),
    st.integers(0, 7),
    st.one_of(
        st.sampled_from([1, 2, 3, 4, 6, 0, 7]).map(lambda state: struct.pack("<II", state, 0)),
        st.lists(NUMBERS, max_size=4).map(lambda words: struct.pack(f"<{len(words)}Q", *words)),
    ),
)
STATES = st.builds(
    lambda claimed, data: struct.pack("<II", 8 + len(data), claimed) + data,
    st.sampled_from([0, 4, 4, 64, 1 << 20, 0xFFFF_FFFF]),
    st.sampled_from([b"", b"data"]),
)
QUESTIONS = st.builds(
    lambda argsz, index, rest: struct.pack("<III", argsz, 0, index).ljust(rest, b"\0"),
    st.sampled_from([0, 16, 32, 56, 80, 4096, 0xFFFF_FFFF]),
    st.integers(0, 9),
    st.sampled_from([12, 16, 32, 80]),
)
ANYTHING = st.lists(FIELDS, max_size=8).map(b"".join)

FDS: st.SearchStrategy[list[int]] = st.one_of(
    st.just([]), st.just([0]), st.lists(st.integers(0, 3), max_size=9)
)
MESSAGES = st.one_of(
    *(
        st.tuples(st.just(number), FLAGS, payload, FDS)
        for number, payload in {2: MAPS, 3: UNMAPS, 8: IRQ_SETS, 9: READS}.items()
    ),
    *(
        st.tuples(st.just(number), FLAGS, payload, st.just([]))
        for number, payload in {
            4: QUESTIONS,
            5: QUESTIONS,
            6: QUESTIONS,
            7: QUESTIONS,
            10: WRITES,
            13: st.just(b""),
            15: MULTI_WRITES,
            16: FEATURES,
            17: STATES,
            18: STATES,
        }.items()
    ),
    st.tuples(COMMANDS, FLAGS, ANYTHING, FDS),
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=st.booleans(),
    messages=st.lists(MESSAGES, max_size=12),
    tail=st.binary(max_size=40),
    cuts=st.lists(st.integers(1, 60), max_size=4),
)
def test_whatever_a_client_sends_the_server_replies_or_disconnects(
    tmp_path: Path,
    first: bool,
    messages: list[tuple[int, int, bytes, list[int]]],
    tail: bytes,
    cuts: list[int],
) -> None:
    path = socket_path(tmp_path)
    memory = SealedMemory(4 * PAGE)
    reader, writer = os.pipe()
    sendable = [memory.fd, os.eventfd(0, os.EFD_CLOEXEC), reader, writer]
    device = _device(memory, sendable[1])
    with Server(path, device) as server:
        before = open_descriptors()
        with RawClient(server) as client:
            if first:
                client.negotiate()
            for number, (command_number, flags, payload, fds) in enumerate(messages):
                message = command(command_number, payload, message_id=number, flags=flags)
                cut = cuts[number % len(cuts)] if cuts else len(message)
                try:
                    client.send(message[:cut], [sendable[fd] for fd in fds])
                    if number % 3 == 0:
                        client.pump()
                    if message[cut:]:
                        client.send(message[cut:])
                except BrokenPipeError:
                    break
            client.pump()
            if server.connected:
                expected = [n for n, m in enumerate(messages) if not m[1] & NO_REPLY]
                answered = [reply.message_id for reply in client.replies()]
                assert answered == expected
            else:
                client.replies()
                assert client.disconnected
            if tail and server.connected:
                client.send(tail)
                client.pump()
        while server.step():
            pass
        assert not server.connected
        attached = device.calls.count(("attached",))
        assert attached == device.calls.count(("detached",)) <= 1
        for call in device.calls:
            if call[0] in ("read", "write"):
                assert attached
                _, region, offset, what = call
                assert isinstance(region, int) and isinstance(offset, int)
                size = what if isinstance(what, int) else len(what)  # type: ignore[arg-type]
                assert 0 < size and offset + size <= device.regions[region].size
        device.memory = device.lines = None
        assert not leaked(before)
        _still_serves(server)
    memory.close()
    for fd in sendable[1:]:
        os.close(fd)

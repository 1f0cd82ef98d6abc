"""DEVICE_FEATURE, MIG_DATA_READ and MIG_DATA_WRITE on the wire, and the log of a device's writes.

Numbers are those of vfio-user.rst, written out again: features 1, 2, 6, 7 and 8; GET 10000h, SET
20000h, PROBE 40000h; the states ERROR 0, STOP 1, RUNNING 2, STOP_COPY 3, RESUMING 4, PRE_COPY 6.
"""

from __future__ import annotations

import errno
import itertools
import struct
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from pyvfio_user.client import Client, VfioUserError
from pyvfio_user.device import Pending, finish
from pyvfio_user.migration import Feature, FeatureFlags, MigrationFlags, State
from pyvfio_user.sealed_memory import SealedMemory
from pyvfio_user.server import Server
from support.movable import GET, PROBE, SET, Movable, MovableRecorder, feature
from support.vfio_user import (
    DEVICE_FEATURE,
    DEVICE_RESET,
    RawClient,
    Recorder,
    command,
    dma_map,
    negotiated,
    region_read,
    serving,
    socket_path,
)

MIG_DATA_READ, MIG_DATA_WRITE = 17, 18
ERROR, STOP, RUNNING, STOP_COPY, RESUMING, PRE_COPY = 0, 1, 2, 3, 4, 6

ADDRESS = 0x10_0000
SIZE = 1 << 20


@pytest.fixture
def device() -> MovableRecorder:
    return MovableRecorder()


@pytest.fixture
def movable(device: MovableRecorder) -> Movable:
    assert isinstance(device.migration, Movable)
    return device.migration


@pytest.fixture
def client(device: MovableRecorder, tmp_path: Path) -> Iterator[RawClient]:
    with Server(socket_path(tmp_path), device) as server, negotiated(server) as client:
        yield client


def set_state(state: int) -> bytes:
    return feature(SET | 2, struct.pack("<II", state, 0))


def state_of(client: RawClient) -> int:
    reply = client.ask(feature(GET | 2))
    argsz, flags, state, _ = struct.unpack("<IIII", reply.payload)
    assert (argsz, flags) == (16, GET | 2)
    return int(state)


def test_the_flags_name_the_states(client: RawClient, movable: Movable) -> None:
    assert client.ask(feature(GET | 1)).payload == struct.pack("<IIQ", 16, GET | 1, 1 | 4)
    movable.pre_copy = False
    assert client.ask(feature(GET | 1)).payload == struct.pack("<IIQ", 16, GET | 1, 1)


@pytest.mark.parametrize(
    ("flags", "supported"),
    [
        (1 | GET, True),
        (1, True),
        (1 | SET, False),
        (2 | GET | SET, True),
        (6 | SET, True),
        (6 | GET, False),
        (7 | SET, True),
        (8 | GET, True),
        (8 | GET | SET, False),
        (0 | GET, False),
        (3 | SET, False),
        (9 | GET, False),
    ],
)
def test_a_probe_says_what_is_supported(client: RawClient, flags: int, supported: bool) -> None:
    reply = client.ask(feature(flags | PROBE))
    if supported:
        assert reply.payload == struct.pack("<II", 4096, flags | PROBE)
    else:
        assert (reply.failed, reply.error) == (True, errno.EINVAL)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes(7),
        struct.pack("<II", 4096, 2),  # neither GET nor SET
        struct.pack("<III", 4096, GET | SET | 2, 1),
        struct.pack("<II", 4096, 1 << 19 | GET | 1),
        struct.pack("<II", 15, GET | 1),  # no room for the reply
        struct.pack("<II", 15, GET | 2),
        struct.pack("<IIII", 15, SET | 2, STOP, 0),
        struct.pack("<II", 7, PROBE | GET | 1),
        struct.pack("<III", 8, PROBE | GET | 1, 0),
        struct.pack("<III", 4096, SET | 2, STOP),  # half of the data
        struct.pack("<IIII", 4096, SET | 2, ERROR, 0),
        struct.pack("<IIII", 4096, SET | 2, 5, 0),  # RUNNING_P2P
        struct.pack("<IIII", 4096, SET | 2, 8, 0),
    ],
)
def test_malformed_requests_change_nothing(
    client: RawClient, movable: Movable, payload: bytes
) -> None:
    reply = client.ask(command(DEVICE_FEATURE, payload))
    assert (reply.failed, reply.error) == (True, errno.EINVAL)
    assert (movable.arcs, state_of(client)) == ([], RUNNING)


ARCS = {
    (RUNNING, STOP),
    (STOP_COPY, STOP),
    (RESUMING, STOP),
    (PRE_COPY, RUNNING),
    (STOP, RUNNING),
    (RUNNING, PRE_COPY),
    (STOP, STOP_COPY),
    (PRE_COPY, STOP_COPY),
    (STOP, RESUMING),
}
"""Section "Direct State Transitions"."""

REACHED = {STOP: [STOP], RUNNING: [], STOP_COPY: [STOP_COPY], RESUMING: [RESUMING]}


@pytest.mark.parametrize("pre_copy", [True, False])
def test_every_transition_takes_the_shortest_way(
    client: RawClient, movable: Movable, pre_copy: bool
) -> None:
    """As the section "Complex State Transitions" says, found here by trying every way."""
    movable.pre_copy = pre_copy
    states = [STOP, RUNNING, STOP_COPY, RESUMING, *([PRE_COPY] if pre_copy else [])]
    arcs = {arc for arc in ARCS if pre_copy or PRE_COPY not in arc}

    def shortest(before: int, after: int) -> list[tuple[int, int]] | None:
        for length in range(5):
            for inner in itertools.product({STOP, RUNNING, RESUMING}, repeat=length):
                way = list(itertools.pairwise((before, *inner, after)))
                if arcs.issuperset(way):
                    return way
        return None

    for before, after in itertools.permutations(states, 2):
        client.ask(command(DEVICE_RESET))
        if before != RUNNING:
            assert not client.ask(set_state(before)).failed
        movable.arcs.clear()
        # "The STOP_COPY -> PRE_COPY transition is explicitly not allowed".
        way = None if (before, after) == (STOP_COPY, PRE_COPY) else shortest(before, after)
        assert client.ask(set_state(after)).failed == (way is None), (before, after)
        assert movable.arcs == (way or []), (before, after)
        assert state_of(client) == (before if way is None else after)
        assert not client.ask(set_state(state_of(client))).failed, "a state leads to itself"


def test_without_pre_copy_nothing_leads_to_it(client: RawClient, movable: Movable) -> None:
    movable.pre_copy = False
    assert client.ask(set_state(PRE_COPY)).error == errno.EINVAL
    assert movable.arcs == []


def test_a_state_is_read_to_its_end(client: RawClient, movable: Movable) -> None:
    read = command(MIG_DATA_READ, struct.pack("<II", 8 + 4, 4))
    assert client.ask(read).error == errno.EINVAL, "while the device runs"
    client.ask(set_state(STOP_COPY))
    movable.state = b"abcdef"
    assert client.ask(read).payload == struct.pack("<II", 12, 4) + b"abcd"
    assert client.ask(read).payload == struct.pack("<II", 10, 2) + b"ef"
    assert client.ask(read).payload == struct.pack("<II", 8, 0)


@pytest.mark.parametrize(
    "payload",
    [struct.pack("<II", 11, 4), struct.pack("<II", 8, 0), struct.pack("<II", 2**32 - 1, 2**32 - 1)],
)
def test_a_read_has_room_for_what_it_asks(
    client: RawClient, movable: Movable, payload: bytes
) -> None:
    client.ask(set_state(STOP_COPY))
    movable.state = b"abcdef"
    assert client.ask(command(MIG_DATA_READ, payload)).error == errno.EINVAL
    assert movable.state == b"abcdef"


def test_a_state_is_written_in_pieces(client: RawClient, movable: Movable) -> None:
    def write(data: bytes, size: int | None = None) -> bytes:
        size = len(data) if size is None else size
        return command(MIG_DATA_WRITE, struct.pack("<II", 8 + len(data), size) + data)

    assert client.ask(write(b"abc")).error == errno.EINVAL, "while the device runs"
    client.ask(set_state(RESUMING))
    assert client.ask(write(b"abc")).payload == b""
    assert client.ask(write(b"def", size=4)).error == errno.EINVAL
    assert not client.ask(write(b"def")).failed
    assert movable.state == b"abcdef"


def test_a_state_that_makes_no_sense_is_an_error_until_a_reset(
    client: RawClient, movable: Movable
) -> None:
    client.ask(set_state(RESUMING))
    movable.fail = OSError(errno.EBADMSG, "no state")
    assert client.ask(set_state(RUNNING)).error == errno.EBADMSG
    movable.fail = None
    assert state_of(client) == ERROR
    assert client.ask(set_state(STOP)).error == errno.EINVAL
    client.ask(command(DEVICE_RESET))
    assert state_of(client) == RUNNING


def test_another_change_that_fails_leaves_the_state(client: RawClient, movable: Movable) -> None:
    movable.fail = OSError(errno.EBUSY, "not now")
    assert client.ask(set_state(STOP_COPY)).error == errno.EBUSY
    assert state_of(client) == RUNNING


def test_the_reply_waits_for_the_device(client: RawClient, movable: Movable) -> None:
    """Other messages are answered meanwhile; the rest of the way is taken afterwards."""
    pending = movable.pending = Future()
    client.send(set_state(STOP_COPY))
    client.pump()
    assert client.replies() == []
    assert state_of(client) == RUNNING
    assert not client.ask(region_read(0, 4)).failed
    finish(pending)
    (reply,) = client.replies()
    assert (reply.command, reply.failed) == (DEVICE_FEATURE, False)
    assert reply.payload == struct.pack("<IIII", 4096, SET | 2, STOP_COPY, 0)
    assert movable.arcs == [(RUNNING, STOP), (STOP, STOP_COPY)]


def test_one_change_at_a_time(client: RawClient, movable: Movable) -> None:
    pending = movable.pending = Future()
    client.send(set_state(STOP))
    client.pump()
    assert client.ask(set_state(STOP_COPY)).error == errno.EBUSY
    finish(pending, errno.ETIMEDOUT)
    assert [one.error for one in client.replies()] == [errno.ETIMEDOUT]
    assert state_of(client) == RUNNING


def test_the_earlier_form_of_a_future_still_serves(client: RawClient, movable: Movable) -> None:
    """`pyvfio_user.Pending` is deprecated."""
    kind, outcomes = Pending, list[int]()
    with pytest.deprecated_call():
        pending = movable.pending = kind()
    pending.then(outcomes.append)
    client.send(set_state(STOP))
    client.pump()
    assert client.replies() == []
    pending.finish(errno.EBUSY)
    pending.finish()
    assert [one.error for one in client.replies()] == [errno.EBUSY]
    assert outcomes == [errno.EBUSY]


def test_what_cannot_be_done_any_more_is_refused(
    device: MovableRecorder, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log that a client asks for ends while the device releases its memory."""
    pending: Future[None] = Future()
    start = feature(
        SET | Feature.DMA_LOGGING_START, struct.pack("<QIIQQ", 4096, 1, 0, ADDRESS, SIZE)
    )
    report = feature(GET | Feature.DMA_LOGGING_REPORT, struct.pack("<QQQ", ADDRESS, SIZE, 4096))
    assert not client.ask(start).failed
    monkeypatch.setattr(device, "memory_changed", lambda: pending)
    client.send(report)
    client.send(feature(SET | Feature.DMA_LOGGING_STOP))
    client.pump()
    assert [one.failed for one in client.replies()] == [False]
    finish(pending)
    assert [one.failed for one in client.replies()] == [True]


def test_a_reset_ends_a_change(client: RawClient, movable: Movable) -> None:
    pending = movable.pending = Future()
    client.send(set_state(STOP))
    client.send(command(DEVICE_RESET))
    client.pump()
    assert [(one.command, one.error) for one in client.replies()] == [
        (DEVICE_FEATURE, errno.ECANCELED),
        (DEVICE_RESET, 0),
    ]
    finish(pending)
    assert client.replies() == []
    assert state_of(client) == RUNNING


def test_a_client_that_leaves_is_not_waited_for(
    device: MovableRecorder, movable: Movable, tmp_path: Path
) -> None:
    pending = movable.pending = Future()
    with Server(socket_path(tmp_path), device) as server:
        with negotiated(server) as client:
            client.send(set_state(STOP_COPY))
            client.pump()
        client.pump()
        with negotiated(server) as other:
            finish(pending)
            assert movable.arcs == [(RUNNING, STOP)]  # nothing is called after `detached`
            assert other.replies() == []
            assert state_of(other) == RUNNING


def test_other_replies_wait_where_the_device_asks_for_it(
    device: MovableRecorder, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SealedMemory(SIZE) as memory:
        client.ask(dma_map(ADDRESS, SIZE), [memory.fd])
    waiting: dict[str, Future[None]] = {"reset": Future(), "memory_changed": Future()}
    for name, pending in waiting.items():
        monkeypatch.setattr(device, name, lambda pending=pending: pending)
    client.send(command(DEVICE_RESET))
    client.send(command(3, struct.pack("<IIQQ", 24, 0, ADDRESS, SIZE)))
    client.pump()
    assert client.replies() == []
    finish(waiting["memory_changed"])
    finish(waiting["reset"])
    assert [(one.command, one.failed) for one in client.replies()] == [(3, False), (13, False)]


@pytest.mark.parametrize("failure", [0, errno.ENOMEM])
def test_a_map_waits_where_the_device_asks_for_it(
    device: MovableRecorder, client: RawClient, monkeypatch: pytest.MonkeyPatch, failure: int
) -> None:
    """A window that it refuses then is closed, and no other one that has come in its place."""
    pending: Future[None] = Future()
    monkeypatch.setattr(device, "memory_changed", lambda: pending)
    assert device.memory is not None
    with SealedMemory(SIZE) as memory:
        client.send(dma_map(ADDRESS, SIZE), [memory.fd])
        client.pump()
        assert client.replies() == []
        assert device.memory.is_mapped(ADDRESS, SIZE)
        finish(pending, failure)
        assert [(one.command, one.error) for one in client.replies()] == [(2, failure)]
        assert device.memory.is_mapped(ADDRESS, SIZE) is not bool(failure)
        refused: Future[None] = Future()
        pending = Future()
        finish(pending)
        client.ask(command(3, struct.pack("<IIQQ", 24, 0, ADDRESS, SIZE)))
        pending = refused
        client.send(dma_map(ADDRESS, SIZE), [memory.fd])
        client.pump()
        pending = Future()
        finish(pending)
        client.ask(command(3, struct.pack("<IIQQ", 24, 0, ADDRESS, SIZE)))
        client.ask(dma_map(ADDRESS, SIZE), [memory.fd])
        finish(refused, errno.ENOMEM)
        assert device.memory.is_mapped(ADDRESS, SIZE)


# Both ends, and devices that cannot be migrated.


def test_the_client_moves_a_state(tmp_path: Path) -> None:
    source, target = MovableRecorder(), MovableRecorder()
    assert isinstance(source.migration, Movable)
    assert isinstance(target.migration, Movable)
    source.migration.state = state = bytes(range(256)) * 700
    paths = [tmp_path / "a", tmp_path / "b"]
    with (
        Server(paths[0], source) as first,
        Server(paths[1], target) as second,
        serving(first),
        serving(second),
    ):
        with Client(paths[0]) as a, Client(paths[1]) as b:
            for client in (a, b):
                client.negotiate()
                assert (
                    client.migration.flags() == MigrationFlags.STOP_COPY | MigrationFlags.PRE_COPY
                )
                assert client.migration.supports(Feature.DMA_LOGGING_REPORT, FeatureFlags.GET)
                assert not client.migration.supports(Feature.MIGRATION, FeatureFlags.SET)
            b.migration.load(a.migration.save())
            assert a.migration.state is State.STOP_COPY
            assert b.migration.state is State.RUNNING
            assert b.migration.start_log(4096, [(0, 1 << 20)]) == 4096
            assert b.migration.written(0, 1 << 20) == []
            b.migration.stop_log()
        assert target.migration.state == state


def test_a_device_without_migration_has_no_features(tmp_path: Path) -> None:
    with Server(socket_path(tmp_path), Recorder()) as server, negotiated(server) as client:
        for request in (feature(GET | 1), feature(PROBE | 6), set_state(STOP)):
            assert client.ask(request).error == errno.EINVAL
        for number in (MIG_DATA_READ, MIG_DATA_WRITE):
            assert client.ask(command(number, bytes(8))).error == errno.ENOTSUP


def test_the_client_says_that_a_device_cannot_be_migrated(tmp_path: Path) -> None:
    path = socket_path(tmp_path)
    with Server(path, Recorder()) as server, serving(server), Client(path) as client:
        client.negotiate()
        with pytest.raises(VfioUserError) as failure:
            client.migration.flags()
        assert failure.value.errno == errno.EINVAL

"""States of a drive that are damaged or hostile: refused, with a drive as after a reset."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from random import Random

import pytest

from potash_device.media.store import MemoryMedia
from potash_firmware.rpu.migration.saved import join, split
from pyvfio_user.migration import State
from support.migration import finish, load, save, stop, write
from support.nvme_host import DATA, Host

WRITE = 0x01
SET_FEATURES, AER = 0x09, 0x0C


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        yield host


def refused(host: Host, state: bytes) -> OSError:
    with pytest.raises(OSError) as failure:
        load(host, state)
    return failure.value


def assert_as_after_reset(host: Host) -> None:
    assert host.rpu.migration.stopped
    assert (host.ready, host.fatal) == (False, False)
    assert not host.board.queues.completions
    host.board.reset()
    assert_works(host)


def assert_works(host: Host) -> None:
    host.enable()
    queue = host.create_io_queue()
    assert host.command(queue, WRITE, nsid=1, prp1=DATA).status == 0


def test_every_truncated_state_is_refused(host: Host) -> None:
    host.enable()
    state = save(host)
    with Host() as other:
        for size in (0, 1, 23, 24, 40, len(state) // 2, len(state) - 1):
            assert refused(other, state[:size]).errno == 22
        refused(other, state + b"\0")
        assert_as_after_reset(other)


def parts(state: bytes) -> dict[str, bytes]:
    return {name: bytes(content) for name, content in split(state).items()}


def joined(sections: dict[str, bytes]) -> bytes:
    return join({name: [content] for name, content in sections.items()})


Edit = Callable[[dict[str, bytes]], None]


def _record(**edits: object) -> Edit:
    """Another value in the record: by the index of its field."""

    def edit(sections: dict[str, bytes]) -> None:
        record = json.loads(sections["drive"])
        for at, value in edits.items():
            *path, last = (int(one) for one in at[1:].split("_"))
            part = record
            for one in path:
                part = part[one]
            part[last] = value
        sections["drive"] = json.dumps(record).encode()

    return edit


def _drop(name: str) -> Edit:
    def edit(sections: dict[str, bytes]) -> None:
        del sections[name]

    return edit


def _put(name: str, content: bytes) -> Edit:
    return lambda sections: sections.update({name: content})


def sidecar(record: bytes, number: int) -> bytes:
    """A piece of memory that is a sidecar's page."""
    page = struct.pack("<8sIIQ", b"PTSHSIDE", 1, len(record), number) + record
    page += struct.pack("<I", zlib.crc32(page))
    return struct.pack("<QQ", 0, len(page)) + page


@pytest.mark.parametrize(
    "edit",
    [
        _drop("drive"),
        _put("drive", b"[" * 100_000),
        _put("drive", b"[" + b"[]," * (1 << 20) + b"[]]"),
        _put("sidecar", sidecar(b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}", 2)),
        _put("sidecar", sidecar(b"{}", (1 << 64) - 1)),
        _put("drive", b"{}"),
        _put("drive", b"\xff"),
        _put("other", b""),
        _drop("apu-state"),
        _put("media1", bytes(15)),
        _put("media1", struct.pack("<QQ", 1 << 20, 1) + b"x"),
        _put("media1", struct.pack("<QQ", 0, 1 << 62) + b"x"),
        _record(_0_0="another"),
        _record(_1=[]),
        _record(_1_0_2=5),
        _record(_2=[]),
        _record(_3=999),
        _record(_4_0="AAAA"),
        _record(_4_3_0=[]),
        _record(_4_3_0_0_2=1),
        _record(_4_3_0_0_5=16),
        _record(_4_3_0_0_7=2),
        _record(_4_3_0_0_3=64),
        _record(_4_3_0_0_1=1),
        _record(_4_3_1_0_3=7),
        _record(_4_3_1_0_4=-1),
        _record(_4_3_1_0_4=1 << 64),
        _record(_4_3_1_0_4=True),
        _record(_4_3_1_0_4=1.5),
        _record(_4_3_2=[1, 2]),
        _record(_4_3_2=[1]),
        _record(_4_5=[65]),
        _record(_5="NOTHING"),
        _record(_5="DISABLED"),
        _record(_5="FAILED"),
        _record(_6_0=[[1, 0, 0, 1 << 32, ""]]),
        _record(_6_0=[[0x77, 0, 0, 0, ""]]),
        _record(_7=[[0, "AAAA"]]),
        _record(_7=[[5, "AAAA"]]),
        _record(_15=3),
        _record(_17=[[1 << 40, "AAAA"]]),
        _record(_19=[[1, [], []]]),
    ],
)
def test_a_state_that_makes_no_sense_is_refused(host: Host, edit: Edit) -> None:
    host.enable()
    host.create_io_queue()
    state = save(host)
    sections = parts(state)
    assert set(sections) == {"drive", "media1", "sidecar", "flash", "apu-state", "apu-arena0"}
    edit(sections)
    with Host() as other:
        assert refused(other, joined(sections)).errno == 22
        assert_as_after_reset(other)


def test_an_unchanged_state_is_taken_in_that_test(host: Host) -> None:
    host.enable()
    host.create_io_queue()
    sections = parts(save(host))
    _record(_4_3_1_0_4=0)(sections)
    with Host() as other:
        load(other, joined(sections))


def test_an_arena_of_another_size_is_taken_where_it_holds_nothing(host: Host) -> None:
    sections = parts(save(host))
    _record(_2_0_1=167776256)(sections)  # that of version 1.0
    with Host() as other:
        load(other, joined(sections))
    sections["apu-arena0"] = struct.pack("<QQ", 0, 1) + b"x"
    with Host() as other:
        assert "other accelerators" in str(refused(other, joined(sections)))


VALUES: tuple[object, ...] = (0, 1, 2, 255, 4096, 1 << 16, 1 << 32, (1 << 64) - 1, 1 << 64, -1, 0.5, None, True, "", "A",
          "QUJD", "\u20ac", [], [0], [[0, 0]], {}, "READY", "FAILED", "ENABLING")  # fmt: skip


def _places(value: object, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Where the parts of a record are."""
    if isinstance(value, list):
        for at, part in enumerate(value):
            yield (*path, at)
            yield from _places(part, (*path, at))


@pytest.mark.parametrize("seed", range(4))
def test_no_record_ends_the_device(host: Host, seed: int) -> None:
    """Whatever is in it: it is taken, or refused as it should be, and a reset helps."""
    random = Random(seed)
    host.enable()
    queue = host.create_io_queue(1, 4)
    for cid in range(3):
        host.place(host.admin, AER, 0x50 + cid)
    host.ring(host.admin)
    host.service()
    for cid in range(4):  # one completion waits for room
        write(host, queue, cid % 3, cid, b"x")
        host.ring(queue)
        finish(host)
    host.command(host.admin, SET_FEATURES, 9, cdws=(0x0B, 0x11F))
    sections = parts(save(host))
    record = json.loads(sections["drive"])
    places = list(_places(record))
    taken = 0
    with Host() as other:
        for _ in range(150):
            changed = json.loads(sections["drive"])
            for *path, last in random.sample(places, random.choice((1, 1, 2))):
                part = changed
                try:
                    for at in path:
                        part = part[at]
                    same = [one for one in VALUES if type(one) is type(part[last])]
                    part[last] = random.choice(same if same and random.random() < 0.7 else VALUES)
                except (IndexError, KeyError, TypeError):
                    continue  # the other change has removed it
            state = joined({**sections, "drive": json.dumps(changed).encode()})
            try:
                load(other, state)
            except OSError as error:
                assert error.errno == 22, error
            else:
                taken += 1
            finish(other)
            other.board.reset()
        assert_works(other)
    assert 0 < taken < 150


def test_another_namespace_is_another_drive(host: Host) -> None:
    state = save(host)
    with Host({1: MemoryMedia.create(2 << 20)}) as other:
        refused(other, state)


def test_no_more_is_taken_than_a_state_can_have(host: Host) -> None:
    stop(host)
    host.rpu.migration.change(State.STOP, State.RESUMING)
    with pytest.raises(OSError, match="too large"):
        for _ in range(1 << 16):
            host.rpu.migration.write(bytes(1 << 20))

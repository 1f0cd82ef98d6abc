"""The feature Namespace Write Protection (Base 2.0, section 8.12)."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from potash_device.media.file import FileMedia
from potash_device.media.sidecar import SIDECAR_SIZE
from potash_device.media.store import MemoryMedia
from support.nvme_host import PAGE, Host, Queue, SlowMedia

FLUSH, WRITE, READ, WRITE_UNCORRECTABLE, COMPARE, WRITE_ZEROES, DSM = 0, 1, 2, 4, 5, 8, 9
VERIFY, COPY = 0xC, 0x19
GET_LOG, IDENTIFY, SET_FEATURES, GET_FEATURES, EVENT_REQUEST = 2, 6, 9, 0xA, 0xC
NAMESPACE_MANAGEMENT, FORMAT, SANITIZE = 0xD, 0x80, 0x84
WRITE_PROTECTION = 0x84
PROTECTED, INVALID_FIELD, NOT_SAVEABLE = 0x20, 0x02, 0x10D
DEALLOCATE = 1 << 2
SIZE = 1 << 20


@pytest.fixture
def host() -> Iterator[Host]:
    with Host({nsid: MemoryMedia.create(SIZE) for nsid in (1, 2)}) as host:
        host.enable()
        host.create_io_queue()
        yield host


def protect(host: Host, nsid: int, state: int, fid: int = WRITE_PROTECTION) -> int:
    return host.command(host.admin, SET_FEATURES, nsid=nsid, cdws=(fid, state)).status


def state(host: Host, nsid: int) -> int:
    answer = host.command(host.admin, GET_FEATURES, nsid=nsid, cdws=(WRITE_PROTECTION,))
    assert answer.status == 0
    return answer.dw0


def nsattr(host: Host, nsid: int) -> int:
    assert host.command(host.admin, IDENTIFY, nsid=nsid, cdws=(0,)).status == 0
    return host.data(100)[99]


def content(host: Host, nsid: int) -> bytes:
    found = bytearray(SIZE)
    host.media[nsid].read_into([memoryview(found)], 0)
    return bytes(found)


def writes(host: Host, queue: Queue, nsid: int) -> set[int]:
    """The statuses of every command that changes blocks."""
    found = set()
    for opcode in (WRITE, WRITE_ZEROES, WRITE_UNCORRECTABLE):
        found.add(host.command(queue, opcode, nsid=nsid, cdws=(7, 0, 0)).status)
    host.put(struct.pack("<IIQ", 0, 1, 7))
    found.add(host.command(queue, DSM, nsid=nsid, cdws=(0, DEALLOCATE)).status)
    host.put(struct.pack("<8xQH14x", 3, 0))
    found.add(host.command(queue, COPY, nsid=nsid, cdws=(7, 0, 0)).status)
    return found


def test_a_controller_says_that_it_has_it(host: Host) -> None:
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0
    assert host.data(532)[531] == 1
    supported = host.command(host.admin, GET_FEATURES, nsid=1, cdws=(3 << 8 | WRITE_PROTECTION,))
    assert supported.dw0 == 0b110  # changeable, of a namespace, not saveable


def test_no_command_changes_a_protected_namespace(host: Host, queue: Queue) -> None:
    host.put(b"\1" * PAGE)
    assert host.command(queue, WRITE, nsid=1, cdws=(7, 0, 0)).status == 0
    before = content(host, 1)
    assert protect(host, 1, 1) == 0
    assert (state(host, 1), state(host, 2)) == (1, 0)
    assert (nsattr(host, 1), nsattr(host, 2)) == (1, 0)
    assert writes(host, queue, 1) == {PROTECTED}
    assert host.command(host.admin, FORMAT, nsid=1).status == PROTECTED
    assert host.command(host.admin, FORMAT, nsid=0xFFFFFFFF).status == PROTECTED
    assert host.command(host.admin, SANITIZE, cdws=(2,)).status == PROTECTED
    assert host.command(host.admin, NAMESPACE_MANAGEMENT, nsid=1, cdws=(1,)).status == PROTECTED
    assert content(host, 1) == before
    # What only reads goes on, and so does the other namespace.
    host.put(b"\1" * PAGE)
    for opcode in (READ, COMPARE, VERIFY, FLUSH):
        assert host.command(queue, opcode, nsid=1, cdws=(7, 0, 0)).status == 0
    host.put(struct.pack("<IIQ", 0, 1, 7))
    assert host.command(queue, DSM, nsid=1, cdws=(0, 0)).status == 0
    assert writes(host, queue, 2) == {0}


def test_its_end_lets_everything_be_written_again(host: Host, queue: Queue) -> None:
    assert protect(host, 1, 1) == 0
    assert writes(host, queue, 1) == {PROTECTED}
    assert protect(host, 1, 0) == 0
    assert (state(host, 1), nsattr(host, 1)) == (0, 0)
    assert writes(host, queue, 1) == {0}


def test_all_namespaces_at_once_are_no_fault_of_the_media(host: Host, queue: Queue) -> None:
    assert protect(host, 0xFFFFFFFF, 1) == 0
    assert writes(host, queue, 1) == writes(host, queue, 2) == {PROTECTED}
    assert host.command(host.admin, GET_LOG, cdws=(127 << 16 | 2,)).status == 0
    assert host.data(1) == b"\0"  # no critical warning


def test_other_states_are_refused(host: Host, queue: Queue) -> None:
    for wrong in (2, 3, 7):
        assert protect(host, 1, wrong) == INVALID_FIELD
    assert protect(host, 1, 1, WRITE_PROTECTION | 1 << 31) == NOT_SAVEABLE
    assert protect(host, 3, 1) != 0
    assert writes(host, queue, 1) == {0}


def test_it_outlives_resets_and_power_cycles(tmp_path: Path) -> None:
    def start() -> Host:
        media = {nsid: FileMedia.open(tmp_path / str(nsid), SIZE) for nsid in (1, 2)}
        return Host(media, sidecar=FileMedia.open(tmp_path / "s", SIDECAR_SIZE))

    with start() as host:
        host.enable()
        assert protect(host, 2, 1) == 0
        host.disable()
        host.enable()
        assert writes(host, host.create_io_queue(), 2) == {PROTECTED}
    for expected in (PROTECTED, 0):
        with start() as host:
            host.enable()
            queue = host.create_io_queue()
            assert (writes(host, queue, 1), writes(host, queue, 2)) == ({0}, {expected})
            assert protect(host, 2, 0) == 0


def test_what_was_written_before_is_durable_when_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Host({1: FileMedia.open(tmp_path / "1", SIZE)}) as host:
        host.enable()
        queue = host.create_io_queue()
        assert host.command(queue, WRITE, nsid=1).status == 0
        flushed: list[bool] = []
        flush = FileMedia.flush

        def watched(media: FileMedia) -> None:
            if media is host.media[1]:
                flushed.append(media.protected)
            flush(media)

        monkeypatch.setattr(FileMedia, "flush", watched)
        assert protect(host, 1, 1) == 0
        assert flushed == [True]


def test_a_write_on_its_way_is_refused_or_flushed() -> None:
    with Host({1: SlowMedia.create(SIZE)}) as host:
        host.enable()
        queue = host.create_io_queue()
        host.place(queue, WRITE, 7, nsid=1)
        host.ring(queue)
        host.service()
        host.place(host.admin, SET_FEATURES, 8, nsid=1, cdws=(WRITE_PROTECTION, 1))
        host.ring(host.admin)
        host.service()
        assert not host.reap(host.admin)
        host.executor.run_next()
        host.service()
        assert [(one.cid, one.status) for one in host.reap(queue)] == [(7, PROTECTED)]
        assert not host.reap(host.admin)
        host.executor.run_all()
        host.service()
        assert [(one.cid, one.status) for one in host.reap(host.admin)] == [(8, 0)]


def test_the_host_is_told_that_the_namespace_has_changed(host: Host) -> None:
    host.command(host.admin, SET_FEATURES, cdws=(0xB, 1 << 8))
    host.place(host.admin, EVENT_REQUEST, 40)
    host.ring(host.admin)
    host.service()
    host.place(host.admin, SET_FEATURES, 41, nsid=1, cdws=(WRITE_PROTECTION, 1))
    host.ring(host.admin)
    host.service()
    host.executor.run_all()
    host.service()
    assert {(one.cid, one.dw0) for one in host.reap(host.admin)} == {(40, 0x0004_0002), (41, 0)}

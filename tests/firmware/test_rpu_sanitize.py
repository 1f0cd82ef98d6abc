"""Sanitize: everything is gone, durably, whatever happens in between; and what a host may do
then."""

import os
import struct
from pathlib import Path
from typing import NamedTuple

import pytest

from potash_device.media.errors import MediaError
from potash_device.media.store import Media
from support.namespaces import (
    ALL,
    ATTACH,
    EVENT_REQUEST,
    FORMAT,
    GET_LOG,
    IDENTIFY,
    MANAGE,
    READ,
    SANITIZE,
    SELF_TEST,
    SET_FEATURES,
    WRITE,
    attach,
    begin,
    finish,
    identify,
    io,
    log_page,
    powered,
    steps,
)
from support.nvme_host import PAGE, Host

EXIT, BLOCK_ERASE, OVERWRITE, CRYPTO = 1, 2, 3, 4
AUSE, INVERT, NDAS = 1 << 3, 1 << 8, 1 << 9
W = b"w" * PAGE


class Log(NamedTuple):
    """Base 2.0, section 5.16.1.25."""

    progress: int
    state: int
    passes: int
    erased: int
    dword10: int


def log(host: Host) -> Log:
    page = log_page(host, 0x81, 512)
    return decode(page)


def decode(page: bytes) -> Log:
    progress, status, dword10 = struct.unpack_from("<HHI", page)
    return Log(progress, status & 7, status >> 3 & 31, status >> 8 & 1, dword10)


def fill(host: Host) -> None:
    """Something in every namespace, one of which is not attached."""
    if 1 not in host.io:
        host.create_io_queue()
    for nsid in (1, 2):
        assert io(host, WRITE, nsid, 100, W) == 0
    assert attach(host, 2, sel=1).status == 0


def contents(host: Host) -> list[bytes]:
    return [os.pread(media.fd, media.size, 0) for media in host.board.storage.media.values()]


def start(host: Host, dword10: int, pattern: int = 0) -> None:
    """Give the command and let it be answered; nothing is sanitized yet."""
    begin(host, host.admin, SANITIZE, cdws=(dword10, pattern))
    host.executor.run_next()
    host.service()
    assert [one.status for one in host.reap(host.admin)] == [0]


@pytest.mark.parametrize(
    ("dword10", "pattern", "left"),
    [
        (BLOCK_ERASE, 0, b"\0\0\0\0"),
        (BLOCK_ERASE | NDAS, 0, b"\0\0\0\0"),
        (OVERWRITE | 1 << 4, 0xDEADBEEF, b"\0\0\0\0"),
        (OVERWRITE | 1 << 4 | NDAS, 0xDEADBEEF, b"\xef\xbe\xad\xde"),
        (OVERWRITE | 2 << 4 | NDAS | INVERT, 0xDEADBEEF, b"\x10\x41\x52\x21"),
        (OVERWRITE | 3 << 4 | NDAS | INVERT, 0xDEADBEEF, b"\xef\xbe\xad\xde"),
        (OVERWRITE | 3 << 4 | NDAS | AUSE, 0, b"\0\0\0\0"),
        (OVERWRITE | NDAS | INVERT, 1, b"\xfe\xff\xff\xff"),  # 16 passes.
    ],
)
def test_everything_is_gone(dword10: int, pattern: int, left: bytes) -> None:
    with powered() as host:
        fill(host)
        done = host.command(host.admin, SANITIZE, cdws=(dword10, pattern))
        assert done.status == 0
        assert contents(host) == [left * (1 << 18)] * 2
        passes = (dword10 >> 4 & 15 or 16) if dword10 & 7 == OVERWRITE else 0
        assert log(host) == (0xFFFF, 1, passes, 1, dword10)
        assert io(host, WRITE, 1, 3, W) == 0
        assert log(host) == (0xFFFF, 1, passes, 0, dword10)


def test_blocks_that_are_not_to_be_deallocated_keep_their_room(tmp_path: Path) -> None:
    with powered(tmp_path / "drive") as host:
        for dword10, room in ((BLOCK_ERASE, 0), (BLOCK_ERASE | NDAS, 1 << 20), (BLOCK_ERASE, 0)):
            assert host.command(host.admin, SANITIZE, cdws=(dword10,)).status == 0
            assert os.fstat(host.media[1].fd).st_blocks * 512 >= room
            assert room or os.fstat(host.media[1].fd).st_blocks == 0


def test_a_drive_that_was_never_sanitized_says_so_and_what_it_can() -> None:
    with powered() as host:
        assert log(host) == (0xFFFF, 0, 0, 0, 0)
        page = log_page(host, 0x81, 512)
        times = struct.unpack_from("<6I", page, 8)
        assert times[2] == times[5] == 0xFFFFFFFF
        assert all(0 < one < 100 for one in (*times[:2], *times[3:5]))
        assert int.from_bytes(identify(host, 1)[328:332], "little") == 0x4000_0006


@pytest.mark.parametrize("dword10", [0, CRYPTO, 5, 6, 7])
def test_operations_that_are_not_there(dword10: int) -> None:
    with powered() as host:
        fill(host)
        before = contents(host)
        assert host.command(host.admin, SANITIZE, cdws=(dword10,)).status == 0x002
        assert contents(host) == before
        assert log(host).state == 0


def test_leaving_a_failure_mode_that_is_not_there_does_nothing() -> None:
    with powered() as host:
        assert host.command(host.admin, SANITIZE, cdws=(EXIT,)).status == 0
        assert log(host).state == 0


def test_it_is_not_for_media_that_take_no_writes_nor_beside_waiting_firmware() -> None:
    with powered() as host:
        host.media[2].read_only = True
        assert host.command(host.admin, SANITIZE, cdws=(BLOCK_ERASE,)).status == 0x020
        host.media[2].read_only = False
        assert host.command(host.admin, 0x11, cdws=(1023, 0)).status == 0
        assert host.command(host.admin, 0x10, cdws=(1 << 3 | 2,)).status == 0
        assert host.command(host.admin, SANITIZE, cdws=(BLOCK_ERASE,)).status == 0x111


REFUSED_ADMIN = (FORMAT, MANAGE, ATTACH, SELF_TEST, SANITIZE, 0x10, 0x11, 0xC0, 0xC2, 0xC6)


def test_while_it_goes_on_a_host_may_do_little() -> None:
    with powered() as host:
        fill(host)
        start(host, OVERWRITE | 2 << 4)
        queue = host.io[1]
        for opcode in REFUSED_ADMIN:
            begin(host, host.admin, opcode, nsid=1, cdws=(2,))
            assert [(one.status, one.dnr) for one in host.reap(host.admin)] == [(0x01D, False)]
        begin(host, host.admin, GET_LOG, nsid=0, cdws=(0xC0,))
        assert [one.status for one in host.reap(host.admin)] == [0x01D]
        for opcode, status in ((READ, 0x01D), (WRITE, 0x01D), (9, 0x01D), (0x88, 0x01D)):
            begin(host, queue, opcode, nsid=1)
            assert [one.status for one in host.reap(queue)] == [status]
        for opcode, dword10 in ((IDENTIFY, 1), (GET_LOG, 127 << 16 | 2), (SET_FEATURES, 0xB)):
            begin(host, host.admin, opcode, cdws=(dword10,))
            assert [one.status for one in host.reap(host.admin)] == [0]
        begin(host, queue, 0, 7, nsid=1)
        finish(host)
        assert [(one.cid, one.status) for one in host.reap(queue)] == [(7, 0)]
        assert io(host, READ, 1) == 0
        assert log(host).state == 1


@pytest.mark.parametrize("dword10", [BLOCK_ERASE, OVERWRITE | 2 << 4])
def test_a_namespace_cannot_be_write_protected_while_it_goes_on(dword10: int) -> None:
    with powered() as host:
        fill(host)
        start(host, dword10)
        begin(host, host.admin, SET_FEATURES, nsid=1, cdws=(0x84, 1))
        assert [(one.status, one.dnr) for one in host.reap(host.admin)] == [(0x01D, False)]
        finish(host)
        assert log(host).state == 1


def test_progress_grows_and_passes_are_counted() -> None:
    with powered() as host:
        fill(host)
        start(host, OVERWRITE | 3 << 4)
        seen = []
        for _ in steps(host):
            begin(host, host.admin, GET_LOG, 2, cdws=(127 << 16 | 0x81,))
            host.reap(host.admin)
            seen.append(decode(host.data(512)))
        assert [one.progress for one in seen] == sorted(one.progress for one in seen)
        assert {(one.state, one.passes) for one in seen} == {(2, 0), (2, 1), (2, 2), (2, 3), (1, 3)}
        assert len({one.progress for one in seen}) > 5


def test_what_was_begun_ends_before_it_begins() -> None:
    with powered() as host:
        queue = host.create_io_queue()
        assert host.command(host.admin, SET_FEATURES, cdws=(6, 0)).status == 0
        host.put(W)
        begin(host, queue, WRITE, 7, nsid=1)
        begin(host, host.admin, SANITIZE, cdws=(BLOCK_ERASE,))
        host.executor.run_next(1)
        host.service()
        assert [one.status for one in host.reap(host.admin)] == [0]
        assert len(host.executor.waiting) == 1
        finish(host)
        assert [one.status for one in host.reap(queue)] == [0]
        assert not any(contents(host)[0])


def test_its_end_is_an_event() -> None:
    with powered() as host:
        begin(host, host.admin, EVENT_REQUEST, 0x70)
        start(host, BLOCK_ERASE)
        assert host.reap(host.admin) == []
        finish(host)
        assert [(one.cid, one.dw0) for one in host.reap(host.admin)] == [(0x70, 0x81_01_06)]


@pytest.mark.parametrize("cut", range(0, 12, 2))
def test_no_reset_ends_it(cut: int) -> None:
    with powered() as host:
        fill(host)
        start(host, OVERWRITE | 2 << 4)
        for done in steps(host):
            if done > cut:
                break
        host.disable()
        host.enable()
        host.create_io_queue()
        begin(host, host.io[1], READ, nsid=1)
        if host.executor.waiting:
            assert [one.status for one in host.reap(host.io[1])][:1] in ([0x01D], [0])
        finish(host)
        host.reap(host.io[1])
        assert log(host)[:3] == (0xFFFF, 1, 2)
        assert not any(b"".join(contents(host)))
        assert io(host, READ, 1) == 0


@pytest.mark.parametrize("cut", range(16))
def test_no_power_cycle_ends_it(tmp_path: Path, cut: int) -> None:
    """Once it was acknowledged, everything is gone before a block can be read or written."""
    with powered(tmp_path / "drive") as host:
        fill(host)
        begin(host, host.admin, SANITIZE, cdws=(OVERWRITE | 2 << 4 | NDAS, 0x20202020))
        for done in steps(host):
            if done == cut:
                break
        acknowledged = [one.status for one in host.reap(host.admin)] == [0]
        assert acknowledged or cut == 0
        host.executor.waiting.clear()
    with powered(tmp_path / "drive") as host:
        if acknowledged and host.executor.waiting:
            begin(host, host.admin, FORMAT, nsid=1, cdws=(1,))
            assert [one.status for one in host.reap(host.admin)] == [0x01D]
            finish(host)
        if acknowledged:
            assert log(host)[:3] == (0xFFFF, 1, 2)
            assert contents(host) == [b" " * (1 << 20)] * 2
        else:
            assert contents(host)[0][100 * PAGE : 101 * PAGE] in (W, b" " * PAGE, bytes(PAGE))


def failing(host: Host, monkeypatch: pytest.MonkeyPatch, dword10: int) -> None:
    """An operation that fails in the middle."""
    with monkeypatch.context() as patch:

        def punch(media: Media, offset: int, length: int) -> None:
            raise MediaError.of(OSError(5, "no"), "erasing", offset)

        patch.setattr(Media, "punch", punch)
        assert host.command(host.admin, SANITIZE, cdws=(dword10,)).status == 0
    assert log(host).state == 3


def test_a_restricted_operation_that_fails_has_to_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with powered(tmp_path / "drive") as host:
        fill(host)
        failing(host, monkeypatch, BLOCK_ERASE)
        for opcode in REFUSED_ADMIN:
            if opcode != SANITIZE:
                done = host.command(host.admin, opcode, nsid=1, cdws=(2,))
                assert (done.status, done.dnr) == (0x01C, True)
        assert io(host, READ, 1) == 0x01C
        assert host.command(host.io[1], 0, nsid=ALL).status == 0
    with powered(tmp_path / "drive") as host:  # No power cycle leads out of it.
        host.create_io_queue()
        assert io(host, READ, 1) == 0x01C
        for dword10 in (EXIT, BLOCK_ERASE | AUSE):
            assert host.command(host.admin, SANITIZE, cdws=(dword10,)).status == 0x01C
        assert host.command(host.admin, SANITIZE, cdws=(BLOCK_ERASE,)).status == 0
        assert log(host).state == 1
        assert io(host, READ, 1) == 0


def test_the_failure_mode_of_an_unrestricted_operation_can_be_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with powered(tmp_path / "drive") as host:
        fill(host)
        failing(host, monkeypatch, BLOCK_ERASE | AUSE)
        assert io(host, READ, 1) == 0x01C
        assert host.command(host.admin, SANITIZE, cdws=(EXIT,)).status == 0
        assert io(host, READ, 1) == 0
        assert log(host).state == 3
    with powered(tmp_path / "drive") as host:
        host.create_io_queue()
        assert io(host, READ, 1) == 0


def test_an_operation_that_cannot_be_remembered_does_not_begin() -> None:
    with powered() as host:
        fill(host)
        before = contents(host)
        host.sidecar.media.read_only = True
        done = host.command(host.admin, SANITIZE, cdws=(BLOCK_ERASE,))
        assert (done.status, done.dnr) == (0x006, False)
        host.sidecar.media.read_only = False
        assert contents(host) == before
        assert io(host, READ, 1) == 0
        assert log(host).state == 0


def test_an_end_that_cannot_be_remembered_is_a_failure() -> None:
    """The next start would do it again, and what was written since would be gone."""
    with powered() as host:
        fill(host)
        start(host, BLOCK_ERASE)
        host.sidecar.media.read_only = True
        finish(host)
        assert log(host).state == 3
        assert io(host, READ, 1) == 0x01C
        host.sidecar.media.read_only = False
        assert host.command(host.admin, SANITIZE, cdws=(BLOCK_ERASE,)).status == 0
        assert io(host, READ, 1) == 0


def test_everything_erased_is_not_believed_after_a_crash(tmp_path: Path) -> None:
    with powered(tmp_path / "drive") as host:
        assert host.command(host.admin, SANITIZE, cdws=(BLOCK_ERASE,)).status == 0
        host.rpu.power_off(clean=True)
    with powered(tmp_path / "drive") as host:
        assert log(host).erased == 1
    with powered(tmp_path / "drive") as host:
        assert log(host).erased == 0


@pytest.mark.parametrize(
    "section",
    [
        [],
        {"state": 9, "failed": False, "command": [2, 0], "passes": 0, "erased": None},
        {"state": 2, "failed": False, "command": [2], "passes": 0, "erased": None},
        {"state": 2, "failed": 1, "command": [2, 0], "passes": 0, "erased": None},
        {"state": 2, "failed": False, "command": [-1, 0], "passes": 0, "erased": None},
        {"state": 2, "failed": False, "command": [2, 1 << 32], "passes": 0, "erased": None},
        {"state": 2, "failed": False, "command": [2, 0], "passes": 17, "erased": None},
    ],
)
def test_what_makes_no_sense_in_the_sidecar_is_left_out(tmp_path: Path, section: object) -> None:
    with powered(tmp_path / "drive") as host:
        fill(host)
        host.sidecar.put("sanitize", section)
        host.sidecar.save()
        before = contents(host)
    with powered(tmp_path / "drive") as host:
        assert log(host) == (0xFFFF, 0, 0, 0, 0)
        assert contents(host) == before

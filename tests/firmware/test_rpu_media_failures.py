"""What the host hears when the media cannot: a status, the health log, an entry, a line, no end."""

import errno
import logging
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from potash_device.media.file import FileMedia
from potash_device.media.store import Media, MemoryMedia
from potash_firmware.mailbox.messages import WriteBack, WriteBackDone
from potash_firmware.rpu.persistence import SHUTDOWN
from support.nvme_host import DATA, PAGE, Cqe, Host, Queue

FLUSH, WRITE, READ = 0, 1, 2
IDENTIFY, GET_LOG, SET_FEATURES, EVENT_REQUEST = 6, 2, 9, 0xC
FUA = 1 << 30
SIZE = 1 << 20

RELIABILITY, READ_ONLY = 1 << 2, 1 << 3
"""Critical warnings."""


class FailingMedia(MemoryMedia):
    """Memory whose system calls fail as the test says; each access goes through the executor."""

    failing = 0

    def read_at_once(self, views: Sequence[memoryview], offset: int) -> bool:
        return False

    def write_at_once(self, views: Sequence[memoryview], offset: int) -> bool:
        return False


@pytest.fixture
def media() -> FailingMedia:
    return FailingMedia.create(SIZE)


@pytest.fixture
def host(media: FailingMedia) -> Iterator[Host]:
    with Host({1: media}) as host:
        host.enable()
        host.create_io_queue()
        yield host


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Iterator["Failing"]:
    yield Failing(monkeypatch)


class Failing:
    """Makes system calls on media fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def on(self, media: Media, call: str, code: int, *, times: int = 1 << 30) -> None:
        """The next `times` calls of `os.call` on these media end with `code`."""
        real = getattr(os, call)
        left = [times]

        def fake(fd: int, *arguments: object) -> object:
            if fd == media.fd and left[0]:
                left[0] -= 1
                raise OSError(code, os.strerror(code))
            return real(fd, *arguments)

        self._patch.setattr(os, call, fake)

    def stop(self) -> None:
        self._patch.undo()


def health(host: Host) -> tuple[int, int]:
    """Critical warning, and media errors."""
    assert host.command(host.admin, GET_LOG, cdws=(127 << 16 | 2,)).status == 0
    page = host.data(512)
    return page[0], int.from_bytes(page[160:176], "little")


def newest_error(host: Host) -> tuple[int, int, int, int]:
    """Queue, status, LBA and namespace of the newest entry of the error log."""
    assert host.command(host.admin, GET_LOG, cdws=(15 << 16 | 1,)).status == 0
    _, sqid, _, status, _, lba, nsid = struct.unpack("<QHHHHQI", host.data(28))
    return sqid, status >> 1 & 0x7FF, lba, nsid


def attributes(host: Host, nsid: int = 1) -> int:
    """NSATTR."""
    assert host.command(host.admin, IDENTIFY, nsid=nsid).status == 0
    return host.data(1, DATA + 99)[0]


def write(host: Host, queue: Queue, lba: int, *, flags: int = 0, nsid: int = 1) -> Cqe:
    return host.command(queue, WRITE, nsid=nsid, cdws=(lba, 0, flags))


@pytest.mark.parametrize(
    ("call", "opcode", "code", "status", "dnr"),
    [
        ("preadv", READ, errno.EIO, 0x281, True),
        ("preadv", READ, errno.ENOMEM, 0x281, False),
        ("pwritev", WRITE, errno.EIO, 0x280, True),
        ("pwritev", WRITE, errno.ENOSPC, 0x280, False),
        ("pwritev", WRITE, errno.EDQUOT, 0x280, False),
    ],
)
def test_an_error_of_the_system_is_a_media_error_with_its_block(
    host: Host,
    queue: Queue,
    media: FailingMedia,
    fail: Failing,
    caplog: pytest.LogCaptureFixture,
    call: str,
    opcode: int,
    code: int,
    status: int,
    dnr: bool,
) -> None:
    fail.on(media, call, code)
    completion = host.command(queue, opcode, nsid=1, cdws=(7, 0, 0))
    assert (completion.status, completion.dnr) == (status, dnr)
    assert newest_error(host) == (1, status, 7, 1)
    assert health(host) == (0, 1)
    (line,) = caplog.records
    assert line.levelno == logging.ERROR
    assert "namespace 1, block 7" in line.getMessage()
    assert os.strerror(code) in line.getMessage()
    fail.stop()
    assert host.command(queue, opcode, nsid=1, cdws=(7, 0, 0)).status == 0


def test_many_failures_are_one_line_a_minute(
    host: Host, queue: Queue, media: FailingMedia, fail: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    fail.on(media, "preadv", errno.EIO)
    for _ in range(20):
        assert host.command(queue, READ, nsid=1).status == 0x281
    assert len(caplog.records) == 1
    assert health(host) == (0, 20)
    host.now += 61
    assert host.command(queue, READ, nsid=1).status == 0x281
    assert len(caplog.records) == 2


def test_a_lost_flush_is_never_forgotten(
    host: Host, queue: Queue, media: FailingMedia, fail: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    """Linux reports it once; a second fdatasync would succeed, and the host would believe it."""
    host.place(host.admin, EVENT_REQUEST, 99)
    host.ring(host.admin)
    assert write(host, queue, 3).status == 0
    fail.on(media, "fdatasync", errno.EIO, times=1)
    completion = host.command(queue, FLUSH, nsid=1)
    assert (completion.status, completion.dnr) == (0x280, True)
    assert [(one.cid, one.dw0) for one in host.reap(host.admin)] == [(99, 2 << 16 | 1)]
    fail.stop()
    for opcode, flags in ((FLUSH, 0), (WRITE, 0), (WRITE, FUA)):
        assert host.command(queue, opcode, nsid=1, cdws=(3, 0, flags)).status == 0x280
    assert host.command(queue, READ, nsid=1, cdws=(3, 0, 0)).status == 0
    assert health(host) == (RELIABILITY | READ_ONLY, 4)
    assert attributes(host) == 1
    host.disable()
    host.enable()
    host.create_io_queue()
    assert host.command(host.io[1], FLUSH, nsid=1).status == 0x280
    critical = [line for line in caplog.records if line.levelno == logging.CRITICAL]
    assert len(critical) == 1


def test_a_lost_write_with_fua_is_lost_for_flush_too(
    host: Host, queue: Queue, media: FailingMedia, fail: Failing
) -> None:
    fail.on(media, "fdatasync", errno.EIO, times=1)
    assert write(host, queue, 0, flags=FUA).status == 0x280
    assert host.command(queue, FLUSH, nsid=1).status == 0x280


def test_a_shutdown_whose_flush_fails_ends_and_says_so(
    host: Host, media: FailingMedia, fail: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    fail.on(media, "fdatasync", errno.EIO, times=1)
    host.write32(0x14, 4 << 20 | 6 << 16 | 1 << 14 | 1)
    host.service()
    host.executor.run_all()
    host.service()
    assert host.read32(0x1C) >> 2 & 3 == 2
    assert "lost" in caplog.text
    host.sidecar.load()
    assert host.sidecar.get(SHUTDOWN) is False


def test_an_event_that_the_host_does_not_want_is_kept_from_it(
    host: Host, queue: Queue, media: FailingMedia, fail: Failing
) -> None:
    assert host.command(host.admin, SET_FEATURES, cdws=(0x0B, 0)).status == 0
    host.place(host.admin, EVENT_REQUEST, 99)
    host.ring(host.admin)
    fail.on(media, "fdatasync", errno.EIO, times=1)
    assert host.command(queue, FLUSH, nsid=1).status == 0x280
    assert host.reap(host.admin) == []


def test_one_namespace_that_fails_leaves_the_others(fail: Failing) -> None:
    media = {1: FailingMedia.create(SIZE), 2: FailingMedia.create(SIZE)}
    with Host(media) as host:
        host.enable()
        queue = host.create_io_queue()
        flushed: list[int] = []
        real = os.fdatasync

        def fdatasync(fd: int) -> None:
            if fd == media[1].fd:
                raise OSError(errno.EIO, "broken")
            flushed.append(fd)
            real(fd)

        fail._patch.setattr(os, "fdatasync", fdatasync)
        assert host.command(queue, FLUSH, nsid=0xFFFFFFFF).status == 0x280
        assert flushed == [media[2].fd]
        assert write(host, queue, 0, nsid=1).status == 0x280
        assert write(host, queue, 0, nsid=2, flags=FUA).status == 0
        assert health(host)[0] == RELIABILITY
        assert (attributes(host, 1), attributes(host, 2)) == (1, 0)


@pytest.mark.parametrize("flags", [0, FUA])
def test_read_only_media_refuse_writes_and_are_no_media_error(tmp_path: Path, flags: int) -> None:
    path = tmp_path / "media"
    path.write_bytes(b"r" * SIZE)
    with Host({1: FileMedia.open(path, read_only=True)}) as host:
        host.enable()
        queue = host.create_io_queue()
        completion = write(host, queue, 1, flags=flags)
        assert (completion.status, completion.dnr) == (0x020, True)
        assert host.command(queue, FLUSH, nsid=1).status == 0
        host.clear(DATA, PAGE)
        assert host.command(queue, READ, nsid=1).status == 0
        assert host.data(PAGE) == b"r" * PAGE
        assert health(host) == (READ_ONLY, 0)
        assert attributes(host) == 1
    assert path.read_bytes() == b"r" * SIZE


def test_a_file_system_that_turns_read_only_turns_the_namespace_so(
    host: Host, queue: Queue, media: FailingMedia, fail: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    assert attributes(host) == 0
    fail.on(media, "pwritev", errno.EROFS)
    for _ in range(3):
        assert write(host, queue, 0).status == 0x020
    assert (attributes(host), health(host)) == (1, (READ_ONLY, 0))
    assert len(caplog.records) == 1


def test_a_file_that_was_cut_cannot_be_read_past_its_end(tmp_path: Path) -> None:
    path = tmp_path / "media"
    with Host({1: FileMedia.open(path, SIZE)}) as host:
        host.enable()
        queue = host.create_io_queue()
        os.truncate(path, 2 * PAGE)
        prp2 = DATA + PAGE
        completion = host.command(queue, READ, nsid=1, prp2=prp2, cdws=(1, 0, 1))
        assert completion.status == 0x281
        assert newest_error(host) == (1, 0x281, 2, 1)
        assert host.command(queue, READ, nsid=1, prp2=prp2, cdws=(0, 0, 1)).status == 0
        assert write(host, queue, 2).status == 0x280


def test_a_full_disk_is_a_write_fault_and_reads_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/full stands for it: whatever is written there finds no space left (full(4))."""
    path = tmp_path / "media"
    media = FileMedia.open(path, SIZE)
    with Host({1: media}) as host, open("/dev/full", "r+b", buffering=0) as full:
        host.enable()
        queue = host.create_io_queue()
        real = os.pwritev

        def pwritev(fd: int, views: Sequence[memoryview], *_: int) -> int:
            assert fd == media.fd
            return os.writev(full.fileno(), views)

        monkeypatch.setattr(os, "pwritev", pwritev)
        for _ in range(3):
            completion = write(host, queue, 0)
            assert (completion.status, completion.dnr) == (0x280, False)
        assert host.command(queue, READ, nsid=1).status == 0
        assert health(host) == (0, 3)
        monkeypatch.setattr(os, "pwritev", real)
        assert write(host, queue, 0).status == 0


def test_a_job_s_output_that_cannot_be_written_is_a_media_error(
    host: Host, media: FailingMedia, fail: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    apu = host.connect_apu()
    fail.on(media, "pwritev", errno.ENOSPC)
    apu.send(WriteBack(5, 0, 0, ((1, 2 * PAGE, PAGE),)))
    host.service()
    host.executor.run_all()
    host.service()
    answer = apu.receive()
    assert answer == WriteBackDone(5, errno.ENOSPC)
    assert health(host) == (0, 1)
    assert "block 2" in caplog.text


def test_a_job_s_output_is_written_before_the_next_apu_starts_and_is_not_reported_to_it(
    host: Host,
) -> None:
    """Each APU counts its tags from 1, so it would take the answer for its own job's."""
    apu = host.connect_apu()
    apu.send(WriteBack(1, 0, 0, ((1, 0, PAGE),)))
    host.service()
    apu.close()
    host.link.disconnect()
    host.service()
    assert not host.rpu.apu_may_start
    host.executor.run_all()
    host.service()
    assert host.rpu.apu_may_start
    apu = host.connect_apu()
    host.service()
    while (message := apu.receive()) is not None:
        assert not isinstance(message, WriteBackDone)


@pytest.mark.parametrize(("cache", "durable"), [(1, False), (0, True)])
def test_a_job_s_output_is_durable_like_any_write(
    host: Host, media: FailingMedia, fail: Failing, cache: int, durable: bool
) -> None:
    assert host.command(host.admin, SET_FEATURES, cdws=(0x06, cache)).status == 0
    apu = host.connect_apu()
    fail.on(media, "fdatasync", errno.EIO)
    apu.send(WriteBack(5, 0, 0, ((1, 0, PAGE),)))
    host.service()
    host.executor.run_all()
    host.service()
    assert apu.receive() == WriteBackDone(5, errno.EIO if durable else 0)


def test_a_read_waits_for_the_write_of_its_blocks_and_for_no_other(
    host: Host, queue: Queue
) -> None:
    """Else it could see half of a block, which AWUN = 0 rules out."""
    host.put(b"w" * PAGE)
    host.place(queue, WRITE, 1, nsid=1, cdws=(4, 0, 0))
    host.ring(queue)
    host.service()
    for cid, lba in ((2, 4), (3, 5)):
        host.place(queue, READ, cid, nsid=1, prp1=DATA + cid * PAGE, cdws=(lba, 0, 0))
    host.ring(queue)
    host.service()
    assert len(host.executor.waiting) == 2
    host.executor.run_next(1)
    host.service()
    assert [one.cid for one in host.reap(queue)] == [3]
    host.executor.run_all()
    host.service()
    host.executor.run_all()
    host.service()
    assert [one.cid for one in host.reap(queue)] == [1, 2]
    assert host.data(PAGE, DATA + 2 * PAGE) == b"w" * PAGE


def test_a_read_waits_for_a_job_s_output(host: Host, queue: Queue) -> None:
    apu = host.connect_apu()
    apu.send(WriteBack(5, 0, 0, ((1, 4 * PAGE, PAGE),)))
    host.service()
    host.place(queue, READ, 1, nsid=1, cdws=(4, 0, 0))
    host.ring(queue)
    host.service()
    assert len(host.executor.waiting) == 1
    for _ in range(2):
        host.executor.run_all()
        host.service()
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(1, 0)]


def test_a_shutdown_flushes_what_waited_for_blocks(
    host: Host, queue: Queue, media: FailingMedia, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that was fetched before the shutdown, and begins after the read before it."""
    order: list[str] = []
    for name in ("preadv", "pwritev", "fdatasync"):
        real = getattr(os, name)

        def noted(fd: int, *rest: object, name: str = name, real: Callable[..., int] = real) -> int:
            if fd == media.fd:
                order.append(name)
            return real(fd, *rest)

        monkeypatch.setattr(os, name, noted)
    host.place(queue, READ, 1, nsid=1, prp1=DATA + PAGE)
    host.place(queue, WRITE, 2, nsid=1)
    host.ring(queue)
    host.service()
    host.write32(0x14, 4 << 20 | 6 << 16 | 1 << 14 | 1)
    for _ in range(3):
        host.service()
        host.executor.run_all()
    host.service()
    assert order == ["preadv", "pwritev", "fdatasync"]
    assert host.read32(0x1C) >> 2 & 3 == 2


def test_a_write_waits_for_the_read_of_its_blocks(host: Host, queue: Queue) -> None:
    host.place(queue, READ, 1, nsid=1, prp1=DATA + PAGE, cdws=(4, 0, 0))
    host.place(queue, WRITE, 2, nsid=1, cdws=(4, 0, 0))
    host.place(queue, WRITE, 3, nsid=1, cdws=(4, 0, 0))
    host.ring(queue)
    host.service()
    assert len(host.executor.waiting) == 1
    host.executor.run_all()
    host.service()
    assert len(host.executor.waiting) == 2  # Writes do not wait for each other.
    host.executor.run_all()
    host.service()
    assert [one.cid for one in host.reap(queue)] == [1, 2, 3]


def test_a_reset_forgets_what_waits_for_blocks_and_waits_for_what_has_begun(
    host: Host, queue: Queue
) -> None:
    host.place(queue, WRITE, 1, nsid=1)
    host.place(queue, READ, 2, nsid=1, prp1=DATA + PAGE)
    host.ring(queue)
    host.service()
    host.disable()
    host.begin_enable()
    host.service()
    assert not host.ready
    host.executor.run_all()
    host.service()
    assert host.ready
    again = host.create_io_queue()
    assert host.command(again, READ, nsid=1).status == 0


@pytest.mark.parametrize("at_once", [True, False])
def test_blocks_of_a_truncated_file_do_not_come_back_as_zeroes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    path = tmp_path / "drive"
    media = FileMedia.open(path, 64 * PAGE)
    with Host({1: media}) as host:
        host.enable()
        queue = host.create_io_queue()
        if not at_once:
            monkeypatch.setattr(media, "write_at_once", lambda *_: False)
        assert write(host, queue, 3).status == 0
        os.truncate(path, PAGE)
        completion = write(host, queue, 63)
        assert (completion.status, completion.dnr) == (0x280, True)
        assert host.command(queue, READ, nsid=1, cdws=(3, 0, 0)).status == 0x281
        assert host.command(queue, READ, nsid=1, cdws=(0, 0, 0)).status == 0
        assert path.stat().st_size == PAGE
        warning, errors = health(host)
        assert warning == RELIABILITY | READ_ONLY and errors == 2

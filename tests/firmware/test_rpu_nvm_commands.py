"""Reads, writes and flushes, from the entry in memory to the blocks and back."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from potash_device.media.file import FileMedia
from support.nvme_host import DATA, PAGE, Host, Queue

FLUSH, WRITE, READ = 0, 1, 2
FUA = 1 << 30


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        host.enable()
        host.create_io_queue()
        yield host


def test_what_is_written_is_read_back(host: Host, queue: Queue) -> None:
    content = os.urandom(3 * PAGE)
    host.put(content)
    prps = DATA + 16 * PAGE
    host.put(b"".join((DATA + n * PAGE).to_bytes(8, "little") for n in (1, 2)), prps)
    assert host.command(queue, WRITE, nsid=1, prp2=prps, cdws=(5, 0, 2)).status == 0
    host.clear(DATA, 3 * PAGE)
    assert host.command(queue, READ, nsid=1, prp2=prps, cdws=(5, 0, 2)).status == 0
    assert host.data(3 * PAGE) == content


@pytest.mark.parametrize(
    ("opcode", "fields", "status"),
    [
        (READ, {"nsid": 1, "cdws": (256, 0, 0)}, 0x080),
        (READ, {"nsid": 1, "cdws": (255, 0, 1), "prp2": DATA + PAGE}, 0x080),
        (READ, {"nsid": 1, "cdws": (0, 1 << 31, 0)}, 0x080),
        (WRITE, {"nsid": 1, "cdws": (0xFFFFFFFF, 0xFFFFFFFF, 0)}, 0x080),
        (READ, {"nsid": 2}, 0x002),
        (READ, {"nsid": 65}, 0x00B),
        (WRITE, {"nsid": 0}, 0x00B),
        (READ, {"nsid": 0xFFFFFFFF}, 0x00B),
        (READ, {"nsid": 1, "cdws": (0, 0, 128)}, 0x002),
        (WRITE, {"nsid": 1, "cdws": (0, 0, 1 << 20)}, 0x002),
        (READ, {"nsid": 1, "flags": 3 << 6}, 0x002),
        (WRITE, {"nsid": 1, "flags": 3}, 0x002),
        (READ, {"nsid": 1, "prp1": DATA + 2}, 0x013),
        (READ, {"nsid": 1, "cdws": (0, 0, 1), "prp2": DATA + 8}, 0x013),
        (READ, {"nsid": 1, "prp1": 1 << 40}, 0x004),
        (WRITE, {"nsid": 1, "prp1": (4 << 20) - 8, "prp2": 4 << 20}, 0x004),
        (0x7F, {"nsid": 1}, 0x001),
        (FLUSH, {"nsid": 9}, 0x002),
        (FLUSH, {"nsid": 65}, 0x00B),
    ],
)
def test_a_bad_field_gets_its_status_and_changes_nothing(
    host: Host, queue: Queue, opcode: int, fields: dict[str, int], status: int
) -> None:
    host.put(b"\xa5" * PAGE)
    completion = host.command(queue, opcode, **fields)
    assert completion.status == status
    assert host.data(PAGE) == b"\xa5" * PAGE
    assert os.pread(host.media[1].fd, 1 << 20, 0) == bytes(1 << 20)


@pytest.mark.parametrize("offset", [0, 4, 512, 4092])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_any_offset_in_the_first_page_moves_the_same_bytes(
    host: Host, queue: Queue, offset: int, blocks: int
) -> None:
    content = os.urandom(blocks * PAGE)
    os.pwrite(host.media[1].fd, content, 0)
    prps = DATA + 64 * PAGE
    host.put(b"".join((DATA + n * PAGE).to_bytes(8, "little") for n in (1, 2, 3)), prps)
    pages = -(-(offset + blocks * PAGE) // PAGE)
    prp2 = 0 if pages == 1 else DATA + PAGE if pages == 2 else prps
    completion = host.command(
        queue, READ, nsid=1, prp1=DATA + offset, prp2=prp2, cdws=(0, 0, blocks - 1)
    )
    assert completion.status == 0
    assert host.data(len(content), DATA + offset) == content


def test_a_chained_prp_list_is_followed(host: Host, queue: Queue) -> None:
    """A list that starts near its page's end goes on in the page that its last entry names."""
    blocks = 20
    content = os.urandom(blocks * PAGE)
    os.pwrite(host.media[1].fd, content, 0)
    first, second = DATA + 64 * PAGE + PAGE - 4 * 8, DATA + 65 * PAGE
    pages = [DATA + n * PAGE for n in range(1, blocks)]
    host.put(b"".join(p.to_bytes(8, "little") for p in (*pages[:3], second)), first)
    host.put(b"".join(p.to_bytes(8, "little") for p in pages[3:]), second)
    assert host.command(queue, READ, nsid=1, prp2=first, cdws=(0, 0, blocks - 1)).status == 0
    assert host.data(len(content)) == content


def test_a_write_with_fua_is_flushed_before_it_completes(tmp_path: Path) -> None:
    order: list[str] = []

    class Recording(FileMedia):
        def write_from(self, views: object, offset: int) -> None:
            order.append("write")

        def flush(self) -> None:
            order.append("flush")

    with Host({1: Recording.open(tmp_path / "media", 1 << 20)}) as host:
        host.enable()
        queue = host.create_io_queue()
        host.place(queue, WRITE, 1, nsid=1, cdws=(0, 0, FUA))
        host.ring(queue)
        host.service()
        assert host.reap(queue) == []
        host.executor.run_all()
        assert order == ["write", "flush"]
        host.service()
        assert [one.status for one in host.reap(queue)] == [0]


def test_switching_the_write_cache_off_makes_every_write_durable(tmp_path: Path) -> None:
    flushed: list[bool] = []

    class Recording(FileMedia):
        def flush(self) -> None:
            flushed.append(True)

    with Host({1: Recording.open(tmp_path / "media", 1 << 20)}) as host:
        host.enable()
        queue = host.create_io_queue()
        assert host.command(host.admin, 0x09, cdws=(0x06, 0)).status == 0
        assert host.command(queue, WRITE, nsid=1).status == 0
        assert flushed


def test_a_media_error_is_a_status_and_the_drive_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "media"
    with Host({1: FileMedia.open(path, 1 << 20)}) as host:
        host.enable()
        queue = host.create_io_queue()
        path.open("r+b").truncate(4096)
        assert host.command(queue, READ, nsid=1, cdws=(1, 0, 0)).status == 0x281
        assert host.command(queue, READ, nsid=1, cdws=(0, 0, 0)).status == 0
        smart = host.command(host.admin, 0x02, nsid=0xFFFFFFFF, cdws=(127 << 16 | 2,))
        assert smart.status == 0
        assert int.from_bytes(host.data(16, DATA + 160), "little") == 1


def test_completions_wait_for_room_and_none_is_lost(host: Host) -> None:
    """A host that does not take completions gets them all once it does."""
    queue = host.create_io_queue(2, size=4)
    for cid in range(3):
        host.place(queue, READ, cid, nsid=1)
    host.ring(queue)
    host.service()
    assert [one.cid for one in host.reap(queue, ring=False)] == [0, 1, 2]
    for cid in range(3, 6):
        host.place(queue, READ, cid, nsid=1)
    host.ring(queue)
    host.service()
    assert host.reap(queue, ring=False) == []
    host.write32(0x1000 + 8 * 2 + 4, queue.head)
    host.service()
    assert [one.cid for one in host.reap(queue)] == [3, 4, 5]


def test_a_read_waits_for_a_write_of_the_same_blocks_and_of_no_others(
    host: Host, queue: Queue
) -> None:
    """It would otherwise see half of the write, though the media itself answers at once."""
    host.put(b"n" * PAGE)
    host.place(queue, WRITE, 1, nsid=1, cdws=(0, 0, FUA))
    host.place(queue, READ, 2, nsid=1, prp1=DATA + PAGE)
    host.place(queue, READ, 3, nsid=1, prp1=DATA + 2 * PAGE, cdws=(9, 0, 0))
    host.ring(queue)
    host.service()
    assert [one.cid for one in host.reap(queue)] == [3]
    host.executor.run_all()
    host.service()
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(1, 0), (2, 0)]
    assert host.data(PAGE, DATA + PAGE) == b"n" * PAGE


def test_flushes_that_wait_are_one_flush_of_the_media(host: Host, queue: Queue) -> None:
    """So no number of them keeps other commands from the media, however long one takes."""
    for cid in range(14):
        host.place(queue, FLUSH, cid, nsid=1)
    host.ring(queue)
    host.service()
    assert len(host.executor.waiting) == 1
    host.executor.run_all()
    host.service()
    assert sorted((one.cid, one.status) for one in host.reap(queue)) == [(n, 0) for n in range(14)]
    assert host.command(queue, FLUSH, 20, nsid=1).status == 0


def test_a_flush_that_comes_while_one_is_at_work_is_another(
    host: Host, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written after that began has to be stable too (NVM 1.0, section 3.2.1)."""
    flushed: list[int] = []

    def flush() -> None:
        flushed.append(len(flushed))
        if len(flushed) == 1:
            host.place(queue, FLUSH, 2, nsid=1)
            host.ring(queue)
            host.service()

    monkeypatch.setattr(host.media[1], "flush", flush)
    host.place(queue, FLUSH, 1, nsid=1)
    host.ring(queue)
    host.service()
    host.executor.run_next()
    host.service()
    assert [one.cid for one in host.reap(queue)] == [1]
    host.executor.run_all()
    host.service()
    assert [one.cid for one in host.reap(queue)] == [2]
    assert flushed == [0, 1]

"""Compare, Verify, Write Zeroes, Dataset Management and Copy: what they do, and what they refuse.

Statuses are those of the NVM Command Set Specification 1.0; the blocks are looked at in the media,
behind the drive's back.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from potash_device.media.file import FileMedia
from potash_device.media.shapes import NamespaceShape
from potash_device.media.store import Media, MemoryMedia
from support.nvme_host import DATA, PAGE, Cqe, Host, Queue

WRITE, READ, COMPARE, WRITE_ZEROES, DSM, VERIFY, COPY = 1, 2, 5, 8, 9, 0xC, 0x19
SET_FEATURES = 9
FUA, LR, DEAC, AD = 1 << 30, 1 << 31, 1 << 25, 1 << 2
SIZE = 1 << 20
BLOCKS = SIZE // PAGE


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        host.enable()
        host.create_io_queue()
        yield host


def fill(media: Media) -> bytes:
    """Put something else in every block; all of it."""
    content = b"".join(bytes([n]) * PAGE for n in range(1, media.size // PAGE))
    content = content.ljust(media.size, b"\xff")
    os.pwrite(media.fd, content, 0)
    return content


def content(media: Media) -> bytes:
    return os.pread(media.fd, media.size, 0)


def deallocate(host: Host, queue: Queue, *ranges: tuple[int, int], attributes: int = AD) -> Cqe:
    host.put(b"".join(struct.pack("<IIQ", 0, count, lba) for lba, count in ranges))
    return host.command(queue, DSM, nsid=1, cdws=(len(ranges) - 1, attributes))


def copy(host: Host, queue: Queue, to: int, *ranges: tuple[int, int], flags: int = 0) -> Cqe:
    """Ranges are the first block and how many."""
    entries = [struct.pack("<8xQH14x", lba, count - 1) for lba, count in ranges]
    host.put(b"".join(entries))
    prp2 = DATA + PAGE if len(entries) > PAGE // 32 else 0
    return host.command(
        queue, COPY, nsid=1, prp2=prp2, cdws=(to, 0, len(ranges) - 1 | flags, 0, 0, 0)
    )


# Compare.


def test_compare_tells_equal_from_different(host: Host, queue: Queue) -> None:
    fill(host.media[1])
    host.put(b"\x03" * PAGE + b"\x04" * PAGE)
    where: dict[str, Any] = {"nsid": 1, "prp2": DATA + PAGE, "cdws": (2, 0, 1)}
    assert host.command(queue, COMPARE, **where).status == 0
    host.put(b"\x00", DATA + 2 * PAGE - 1)
    completion = host.command(queue, COMPARE, **where)
    assert (completion.status, completion.dnr) == (0x285, True)
    assert host.command(host.admin, 0x02, cdws=(15 << 16 | 1,)).status == 0
    assert struct.unpack_from("<Q", host.data(24), 16) == (3,), "the log names the block"
    # Data Units Read and Host Read Commands have those of Compare (Base 2.0, section 5.16.1.3).
    assert host.command(host.admin, 0x02, nsid=0xFFFF_FFFF, cdws=(127 << 16 | 2,)).status == 0
    units, reads = (int.from_bytes(host.data(80)[at : at + 16], "little") for at in (32, 64))
    assert (units, reads) == (1, 2)


def test_compare_waits_for_a_write_of_the_same_blocks(host: Host, queue: Queue) -> None:
    host.put(b"n" * PAGE)
    host.place(queue, WRITE, 1, nsid=1, cdws=(0, 0, FUA))
    host.place(queue, COMPARE, 2, nsid=1)
    host.ring(queue)
    for _ in range(3):
        host.service()
        host.executor.run_all()
    host.service()
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(1, 0), (2, 0)]


# Verify.


def test_verify_reads_more_than_a_transfer_could_move(tmp_path: Path) -> None:
    with Host({1: FileMedia.open(tmp_path / "media", 64 << 20)}) as host:
        host.enable()
        queue = host.create_io_queue()
        os.pwrite(host.media[1].fd, b"x" * (16 << 20), 0)
        host.place(queue, VERIFY, 1, nsid=1, cdws=(0, 0, (64 << 20) // PAGE - 1))
        host.ring(queue)
        host.service()
        steps = 0
        while host.executor.waiting:
            assert len(host.executor.waiting) == 1, "one step at a time"
            host.executor.run_next()
            host.service()
            steps += 1
        assert [one.status for one in host.reap(queue)] == [0]
        assert steps == 16


def test_verify_finds_what_the_media_cannot_give(tmp_path: Path) -> None:
    path = tmp_path / "media"
    with Host({1: FileMedia.open(path, SIZE)}) as host:
        host.enable()
        queue = host.create_io_queue()
        path.open("r+b").truncate(10 * PAGE)
        assert host.command(queue, VERIFY, nsid=1, cdws=(0, 0, 9)).status == 0
        assert host.command(queue, VERIFY, nsid=1, cdws=(0, 0, 10)).status == 0x281


# Write Zeroes.


@pytest.mark.parametrize("flags", [0, DEAC, FUA, DEAC | FUA | LR])
def test_write_zeroes_leaves_zeroes_and_nothing_else_changed(
    host: Host, queue: Queue, flags: int
) -> None:
    media = host.media[1]
    before = fill(media)
    assert host.command(queue, WRITE_ZEROES, nsid=1, cdws=(5, 0, 2 | flags)).status == 0
    assert content(media) == before[: 5 * PAGE] + bytes(3 * PAGE) + before[8 * PAGE :]
    holes = [] if not flags & DEAC else [(5 * PAGE, 3 * PAGE)]
    data = media.data_ranges(0, SIZE)
    assert data == ([(0, 5 * PAGE), (8 * PAGE, SIZE - 8 * PAGE)] if holes else [(0, SIZE)])


def test_write_zeroes_is_not_bound_by_the_transfer_size(tmp_path: Path) -> None:
    with Host({1: FileMedia.open(tmp_path / "media", 256 << 20)}) as host:
        host.enable()
        queue = host.create_io_queue()
        os.pwrite(host.media[1].fd, b"x" * PAGE, (256 << 20) - PAGE)
        assert host.command(queue, WRITE_ZEROES, nsid=1, cdws=(0, 0, DEAC | 0xFFFF)).status == 0
        assert os.pread(host.media[1].fd, PAGE, (256 << 20) - PAGE) == bytes(PAGE)


# Dataset Management.


def test_deallocated_blocks_read_zeroes_and_take_no_room(tmp_path: Path) -> None:
    path = tmp_path / "media"
    with Host({1: FileMedia.open(path, SIZE)}) as host:
        host.enable()
        queue = host.create_io_queue()
        before = fill(host.media[1])
        os.fsync(host.media[1].fd)
        taken = path.stat().st_blocks
        assert deallocate(host, queue, (10, 2), (100, 0), (250, 6)).status == 0
        after = bytearray(before)
        after[10 * PAGE : 12 * PAGE] = bytes(2 * PAGE)
        after[250 * PAGE :] = bytes(6 * PAGE)
        assert content(host.media[1]) == after
        assert taken - path.stat().st_blocks == 8 * PAGE // 512


def test_256_ranges_are_all_deallocated(host: Host, queue: Queue) -> None:
    media = host.media[1]
    fill(media)
    assert deallocate(host, queue, *((lba, 1) for lba in range(256))).status == 0
    assert content(media) == bytes(SIZE)


def test_hints_without_deallocation_change_nothing(host: Host, queue: Queue) -> None:
    before = fill(host.media[1])
    assert deallocate(host, queue, (0, 100), attributes=3).status == 0
    assert content(host.media[1]) == before


def test_one_range_that_is_wrong_keeps_all_from_being_deallocated(host: Host, queue: Queue) -> None:
    before = fill(host.media[1])
    for bad in ((BLOCKS, 1), (BLOCKS - 1, 2), (1 << 63, 1), (0, 0xFFFFFFFF)):
        assert deallocate(host, queue, (0, 1), bad).status == 0x080
    assert content(host.media[1]) == before


# Copy.


def test_copy_gathers_ranges_in_order(host: Host, queue: Queue) -> None:
    before = fill(host.media[1])
    assert copy(host, queue, 20, (5, 2), (1, 1), (200, 3)).status == 0
    moved = b"".join(before[n * PAGE : (n + 1) * PAGE] for n in (5, 6, 1, 200, 201, 202))
    assert content(host.media[1]) == before[: 20 * PAGE] + moved + before[26 * PAGE :]


@pytest.mark.parametrize("to", [8, 10, 11, 13])
def test_copy_onto_its_own_source_reads_before_it_writes(host: Host, queue: Queue, to: int) -> None:
    before = fill(host.media[1])
    assert copy(host, queue, to, (10, 4)).status == 0
    moved = before[10 * PAGE : 14 * PAGE]
    assert content(host.media[1]) == before[: to * PAGE] + moved + before[(to + 4) * PAGE :]


@pytest.mark.parametrize(
    ("to", "ranges", "flags", "status"),
    [
        (0, [(0, 1)] * 128, 0, 0),
        (0, [(0, 1)] * 129, 0, 0x183),
        (0, [(0, 128)] * 2, 0, 0),
        (0, [(0, 129)], 0, 0x183),
        (0, [(0, 128), (0, 128), (0, 1)], 0, 0x183),
        (BLOCKS - 1, [(0, 2)], 0, 0x080),
        (0, [(0, 1), (BLOCKS - 1, 2)], 0, 0x080),
        (0, [(0, 1)], 2 << 8, 0x002),
        (0, [(0, 1)], 0xF << 12, 0),
        (0, [(0, 1)], 0xF << 26, 0),
        (0, [(0, 1)], 1 << 20, 0x002),
        (0, [(0, 1)], FUA | LR, 0),
    ],
)
def test_the_limits_of_copy(
    host: Host, queue: Queue, to: int, ranges: list[tuple[int, int]], flags: int, status: int
) -> None:
    before = fill(host.media[1])
    assert copy(host, queue, to, *ranges, flags=flags).status == status
    assert status == 0 or content(host.media[1]) == before


# What they have in common.


@pytest.mark.parametrize("opcode", [COMPARE, VERIFY, WRITE_ZEROES, 4])
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"nsid": 1, "cdws": (BLOCKS, 0, 0)}, 0x080),
        ({"nsid": 1, "cdws": (BLOCKS - 1, 0, 1)}, 0x080),
        ({"nsid": 1, "cdws": (0xFFFFFFFF, 0xFFFFFFFF, 0)}, 0x080),
        ({"nsid": 2}, 0x002),
        ({"nsid": 0}, 0x00B),
        ({"nsid": 0xFFFFFFFF}, 0x00B),
        ({"nsid": 1, "flags": 3 << 6}, 0x002),
        ({"nsid": 1, "flags": 3}, 0x002),
    ],
)
def test_a_bad_field_gets_its_status_and_changes_nothing(
    host: Host, queue: Queue, opcode: int, fields: dict[str, int], status: int
) -> None:
    before = fill(host.media[1])
    completion = host.command(queue, opcode, **fields)
    assert (completion.status, completion.dnr) == (status, True)
    assert content(host.media[1]) == before
    assert host.command(queue, READ, nsid=1).status == 0


def test_compare_moves_no_more_than_other_transfers(host: Host, queue: Queue) -> None:
    assert host.command(queue, COMPARE, nsid=1, cdws=(0, 0, 128)).status == 0x002
    assert host.command(queue, COMPARE, nsid=1, prp1=1 << 40).status == 0x004
    assert host.command(queue, DSM, nsid=1, prp1=1 << 40).status == 0x004
    assert host.command(queue, COPY, nsid=1, prp1=1 << 40).status == 0x004


def test_read_only_media_are_changed_by_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "media"
    path.write_bytes(b"r" * SIZE)
    with Host({1: FileMedia.open(path, read_only=True)}) as host:
        host.enable()
        queue = host.create_io_queue()
        for opcode, cdws in ((WRITE_ZEROES, ()), (WRITE_ZEROES, (0, 0, DEAC)), (4, ())):
            assert host.command(queue, opcode, nsid=1, cdws=cdws).status == 0x020
        assert deallocate(host, queue, (0, 1)).status == 0x020
        assert copy(host, queue, 0, (1, 1)).status == 0x020
        assert host.command(queue, VERIFY, nsid=1).status == 0
        host.put(b"r" * PAGE)
        assert host.command(queue, COMPARE, nsid=1).status == 0
    assert path.read_bytes() == b"r" * SIZE


class Counting(MemoryMedia):
    """Memory that says in which order it was used."""

    def __init__(self, *args: int, **named: bool) -> None:
        super().__init__(*args, **named)
        self.done: list[str] = []

    def flush(self) -> None:
        self.done.append("flush")

    def punch(self, offset: int, length: int) -> None:
        self.done.append("punch")

    def write_zeroes(self, offset: int, length: int) -> None:
        self.done.append("zeroes")

    def write_from(self, views: object, offset: int) -> None:
        self.done.append("write")

    def read_into(self, views: object, offset: int) -> None:
        self.done.append("read")

    def verify(self, offset: int, length: int) -> None:
        self.done.append("verify")


@pytest.mark.parametrize(
    ("opcode", "dword12", "order"),
    [
        (READ, FUA, ["flush", "read"]),
        (COMPARE, FUA, ["flush", "read"]),
        (VERIFY, FUA, ["flush", "verify"]),
        (WRITE_ZEROES, FUA, ["zeroes", "flush"]),
        (WRITE_ZEROES, FUA | DEAC, ["punch", "flush"]),
        (WRITE_ZEROES, 0, ["zeroes"]),
        (COPY, FUA, ["read", "write", "flush"]),
        (COPY, 0, ["read", "write"]),
    ],
)
def test_fua_reaches_stable_storage_before_it_completes(
    opcode: int, dword12: int, order: list[str]
) -> None:
    media = Counting.create(SIZE)
    with Host({1: media}) as host:
        host.enable()
        queue = host.create_io_queue()
        media.done.clear()
        assert host.command(queue, opcode, nsid=1, cdws=(0, 0, dword12)).status == 0
        assert media.done == order


def test_without_a_write_cache_all_of_it_is_durable() -> None:
    media = Counting.create(SIZE)
    with Host({1: media}) as host:
        host.enable()
        queue = host.create_io_queue()
        assert host.command(host.admin, SET_FEATURES, cdws=(0x06, 0)).status == 0
        for opcode, cdws in ((WRITE_ZEROES, ()), (COPY, ()), (DSM, (0, AD))):
            media.done.clear()
            assert host.command(queue, opcode, nsid=1, cdws=cdws).status == 0
            assert media.done[-1] == "flush"


@pytest.mark.parametrize("block_size", [512, 4096])
def test_identify_says_what_there_is(block_size: int) -> None:
    """Offsets of NVM Command Set 1.0, figure 97, and of NVMe Base 2.0, figure 275."""
    with Host(shapes={1: NamespaceShape(1 << 20, block_size)}) as host:
        host.enable()
        assert host.command(host.admin, 0x06, nsid=1).status == 0
        page = host.data(PAGE)
        assert page[24] == 0b10000 | (0b100 if block_size == 4096 else 0), "NSFEAT"
        assert page[33] == 0b1001, "DLFEAT: zeroes, and DEAC works"
        preferred = 4096 // block_size - 1
        assert struct.unpack_from("<5H", page, 64) == (preferred,) * 5
        mssrl, mcl, msrc = struct.unpack_from("<HIB", page, 74)
        assert (mssrl, mcl, msrc) == ((512 << 10) // block_size, (1 << 20) // block_size, 127)
        assert host.command(host.admin, 0x06, cdws=(1,)).status == 0
        page = host.data(PAGE)
        oncs, fuses = struct.unpack_from("<HH", page, 520)
        assert oncs & 0b110001111 == 0b110001111
        assert fuses == 1
        assert struct.unpack_from("<HH", page, 532) == (0, 3), (
            "ACWU of one block, copy formats 0, 1"
        )
        assert struct.unpack_from("<H", page, 256)[0] & 1 << 9, "Get LBA Status"


def test_a_queue_that_is_deleted_ends_a_long_command(tmp_path: Path) -> None:
    """Its next step would come after the deletion was called complete."""
    with Host({1: FileMedia.open(tmp_path / "media", 256 << 20)}) as host:
        host.enable()
        queue = host.create_io_queue()
        host.place(queue, WRITE_ZEROES, 7, nsid=1, cdws=(0, 0, 0xFFFF))
        host.ring(queue)
        host.service()
        host.place(host.admin, 0x00, 8, cdws=(1,))
        host.ring(host.admin)
        host.service()
        assert host.reap(host.admin) == []
        host.executor.run_next()
        host.service()
        assert not host.executor.waiting
        assert [(one.cid, one.status) for one in host.reap(queue)] == [(7, 0x008)]
        assert [one.status for one in host.reap(host.admin)] == [0]


def test_a_reset_ends_a_long_command_at_its_next_step(tmp_path: Path) -> None:
    with Host({1: FileMedia.open(tmp_path / "media", 256 << 20)}) as host:
        host.enable()
        queue = host.create_io_queue()
        host.place(queue, WRITE_ZEROES, 7, nsid=1, cdws=(0, 0, 0xFFFF))
        host.ring(queue)
        host.service()
        host.disable()
        host.begin_enable()
        host.service()
        assert not host.ready, "the step that has begun is waited for"
        host.executor.run_next()
        host.service()
        assert host.ready and not host.executor.waiting
        assert host.reap(host.admin) == []

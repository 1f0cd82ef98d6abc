"""Blocks that a host has made uncorrectable: until they are written, and over power cycles."""

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvme_spec.status import Status
from potash_device.media.errors import MediaError
from potash_device.media.file import FileMedia
from potash_device.media.shapes import NamespaceShape
from potash_device.media.sidecar import SIDECAR_SIZE
from potash_device.media.store import MemoryMedia
from potash_firmware.mailbox.messages import ReadCheck, ReadChecked, WriteBack
from potash_firmware.rpu.namespaces.uncorrectable import MOST_RANGES, UncorrectableBlocks
from potash_firmware.rpu.namespaces.uncorrectable_record import SECTION
from support.nvme_host import DATA, PAGE, Cqe, Host, Queue

FLUSH, WRITE, READ, UNCORRECTABLE, COMPARE, ZEROES, DSM, VERIFY, COPY = 0, 1, 2, 4, 5, 8, 9, 12, 25
GET_LBA_STATUS = 0x86
SCAN, TRACKED = 0x10 << 24, 0x11 << 24
SIZE = 1 << 20


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        host.enable()
        host.create_io_queue()
        yield host


def on(host: Host, queue: Queue, opcode: int, lba: int, count: int = 1, flags: int = 0) -> Cqe:
    prp2 = DATA + PAGE if count == 2 else 0
    return host.command(queue, opcode, nsid=1, prp2=prp2, cdws=(lba, 0, count - 1 | flags))


def uncorrectable(host: Host, rl: int = 0, action: int = TRACKED) -> list[tuple[int, int]]:
    """What Get LBA Status lists."""
    answered = host.command(host.admin, GET_LBA_STATUS, nsid=1, cdws=(0, 0, 1023, action | rl))
    assert answered.status == 0
    count, reason = struct.unpack_from("<IB", host.data(8))
    assert reason == 2
    page = host.data(16 * count, DATA + 8)
    return [(lba, blocks) for lba, blocks in struct.iter_unpack("<QI4x", page)]


def newest_error(host: Host) -> tuple[int, int]:
    """Status and LBA."""
    assert host.command(host.admin, 0x02, cdws=(15 << 16 | 1,)).status == 0
    _, _, _, status, _, lba = struct.unpack("<QHHHHQ", host.data(24))
    return status >> 1 & 0x7FF, lba


def test_every_way_of_reading_fails_and_names_the_first_bad_block(host: Host, queue: Queue) -> None:
    assert on(host, queue, UNCORRECTABLE, 5, 3).status == 0
    for opcode in (READ, COMPARE, VERIFY):
        completion = on(host, queue, opcode, 4, 2)
        assert (completion.status, completion.dnr) == (0x281, True)
        assert newest_error(host) == (0x281, 5)
    host.put(struct.pack("<8xQH14x", 6, 0))
    assert on(host, queue, COPY, 100).status == 0x281
    for lba in (4, 8):
        assert on(host, queue, READ, lba).status == 0
    smart = host.command(host.admin, 0x02, cdws=(127 << 16 | 2,))
    assert smart.status == 0
    assert host.data(1, DATA + 160) == b"\0", "what the host asked for is no media error"


@pytest.mark.parametrize("flags", [0, 1 << 30])
def test_a_write_makes_its_blocks_good_and_no_others(host: Host, queue: Queue, flags: int) -> None:
    assert on(host, queue, UNCORRECTABLE, 5, 5).status == 0
    host.put(b"w" * (2 * PAGE))
    assert on(host, queue, WRITE, 6, 2, flags).status == 0
    assert uncorrectable(host) == [(5, 1), (8, 2)]
    assert on(host, queue, READ, 6, 2).status == 0
    assert host.data(2 * PAGE) == b"w" * (2 * PAGE)
    for lba in (5, 8, 9):
        assert on(host, queue, READ, lba).status == 0x281


def test_zeroes_and_copies_are_writes_and_deallocation_is_none(host: Host, queue: Queue) -> None:
    assert on(host, queue, UNCORRECTABLE, 10, 4).status == 0
    host.put(struct.pack("<IIQ", 0, 4, 10))
    assert host.command(queue, DSM, nsid=1, cdws=(0, 4)).status == 0
    assert uncorrectable(host) == [(10, 4)]
    assert on(host, queue, ZEROES, 10).status == 0
    assert on(host, queue, ZEROES, 11, 1, 1 << 25).status == 0
    host.put(struct.pack("<8xQH14x", 50, 0))
    assert on(host, queue, COPY, 12).status == 0
    assert uncorrectable(host) == [(13, 1)]


def test_a_job_s_output_makes_its_blocks_good(host: Host, queue: Queue) -> None:
    apu = host.connect_apu()
    assert on(host, queue, UNCORRECTABLE, 1, 3).status == 0
    apu.send(WriteBack(1, 0, 0, ((1, PAGE, PAGE), (1, 2 * PAGE, 100))))
    host.service()
    host.executor.run_all()
    host.service()
    host.executor.run_all()
    host.service()
    assert uncorrectable(host) == [(2, 2)]


@pytest.mark.parametrize("how", ["power cycle", "kill"])
def test_they_outlive_a_power_cycle(tmp_path: Path, how: str) -> None:
    def files() -> tuple[FileMedia, FileMedia]:
        return (
            FileMedia.open(tmp_path / "media", SIZE),
            FileMedia.open(tmp_path / "sidecar", SIDECAR_SIZE),
        )

    media, sidecar = files()
    with Host({1: media}, sidecar=sidecar) as host:
        host.enable()
        queue = host.create_io_queue()
        assert on(host, queue, UNCORRECTABLE, 5, 5).status == 0
        host.put(b"w" * PAGE)
        assert on(host, queue, WRITE, 7).status == 0
        if how == "power cycle":
            host.rpu.power_off(clean=True)
    media, sidecar = files()
    with Host({1: media}, sidecar=sidecar) as host:
        host.enable()
        queue = host.create_io_queue()
        assert uncorrectable(host) == [(5, 2), (8, 2)]
        assert on(host, queue, READ, 5).status == 0x281
        assert on(host, queue, READ, 7).status == 0
        assert host.data(PAGE) == b"w" * PAGE


def test_a_reset_changes_nothing_about_them(host: Host, queue: Queue) -> None:
    assert on(host, queue, UNCORRECTABLE, 5).status == 0
    host.disable()
    host.enable()
    assert on(host, host.create_io_queue(), READ, 5).status == 0x281


def test_a_read_waits_until_marks_that_it_sees_are_saved(host: Host, queue: Queue) -> None:
    """A process that is killed before has taken back nothing that a host was told."""
    for cid, opcode in enumerate((UNCORRECTABLE, READ), 1):
        host.place(queue, opcode, cid, nsid=1, cdws=(5,))
    host.ring(queue)
    host.service()
    assert host.reap(queue) == []
    host.executor.run_all()
    host.service()
    assert [(done.cid, done.status) for done in host.reap(queue)] == [(1, 0), (2, 0x281)]


def test_a_controller_is_ready_again_once_marks_of_before_are_saved(
    host: Host, queue: Queue
) -> None:
    host.place(queue, UNCORRECTABLE, 1, nsid=1, cdws=(5,))
    host.ring(queue)
    host.service()
    host.disable()
    host.begin_enable()
    host.service()
    assert not host.ready
    host.executor.run_all()
    host.service()
    assert host.ready


def test_a_job_is_told_of_them_before_it_reads(host: Host, queue: Queue) -> None:
    """Namespace 1 has blocks of 4096 bytes; ranges need not be whole blocks."""
    apu = host.connect_apu()

    def asked(nsid: int, *ranges: tuple[int, int]) -> tuple[int, int]:
        apu.send(ReadCheck(7, nsid, ranges))
        host.service()
        answer = apu.receive()
        assert isinstance(answer, ReadChecked)
        assert answer.tag == 7
        return answer.error, answer.at

    assert asked(1, (0, 1 << 20)) == (0, 0)
    assert on(host, queue, UNCORRECTABLE, 5).status == 0
    assert asked(1, (0, 4096), (4 * 4096, 8192)) == (errno.EIO, 5 * 4096)
    assert asked(1, (5 * 4096 + 4095, 1)) == (errno.EIO, 5 * 4096)
    assert asked(1, (0, 5 * 4096), (6 * 4096, 4096)) == (0, 0)
    assert asked(9, (4096, 1)) == (errno.ENODEV, 4096)
    host.rpu.controller.namespaces.blocks[1].in_flight.closed = Status.FORMAT_IN_PROGRESS
    assert asked(1, (0, 512)) == (errno.EBUSY, 0)


def test_what_was_kept_and_makes_no_sense_is_left_out() -> None:
    good, bad = [[5, 1], [250, 6]], [[-1, 2], [3], "x", [255, 2], [7, 0]]
    kept = {"1/0": [*good, *bad], "1": [[1, 1]], "1/1": [[2, 1]], "2/0": [[0, 1]], "x": 3}
    sidecar = MemoryMedia.create(SIDECAR_SIZE)
    with Host(sidecar=sidecar) as host:
        host.sidecar.put("uncorrectable", kept)
        host.rpu.power_on()
        host.enable()
        assert uncorrectable(host) == [(5, 1), (250, 6)]


def test_the_write_that_heals_is_durable_before_the_blocks_count_as_good() -> None:
    """Otherwise a loss of power could bring back what was there before they were uncorrectable."""
    order: list[str] = []

    class Noting(MemoryMedia):
        def write_from(self, views: object, offset: int) -> None:
            order.append(f"{self.what} written")

        def flush(self) -> None:
            order.append(f"{self.what} flushed")

        what = "blocks"

    class NotingSidecar(Noting):
        what = "sidecar"

        def read_into(self, views: object, offset: int) -> None:
            pass

    sidecar = NotingSidecar.create(SIDECAR_SIZE)
    with Host({1: Noting.create(SIZE)}, sidecar=sidecar) as host:
        host.enable()
        queue = host.create_io_queue()
        assert on(host, queue, UNCORRECTABLE, 5).status == 0
        order.clear()
        assert on(host, queue, WRITE, 5).status == 0
        assert order == ["blocks written", "blocks flushed", "sidecar written", "sidecar flushed"]


def test_a_sidecar_that_cannot_be_written_is_told_and_tried_again_by_flush() -> None:
    class Failing(MemoryMedia):
        failing = False

        def write_from(self, views: object, offset: int) -> None:
            if self.failing:
                raise MediaError(errno.ENOSPC, "full")
            super().write_from(views, offset)  # type: ignore[arg-type]  # as it came

    sidecar = Failing.create(SIDECAR_SIZE)
    with Host(sidecar=sidecar) as host:
        host.enable()
        queue = host.create_io_queue()
        sidecar.failing = True
        completion = on(host, queue, UNCORRECTABLE, 5)
        assert (completion.status, completion.dnr) == (0x280, False)
        assert host.command(queue, FLUSH, nsid=1).status == 0x280
        sidecar.failing = False
        assert host.command(queue, FLUSH, nsid=1).status == 0
        host.sidecar.load()
        assert host.sidecar.get(SECTION) == {"1/0": [(5, 1)]}


def test_the_list_has_an_end_and_nothing_beyond_it_is_promised() -> None:
    size = (2 * MOST_RANGES + 10) * 512
    shapes = {1: NamespaceShape(size, 512)}
    with Host({1: MemoryMedia.create(size)}, shapes=shapes) as host:
        host.enable()
        queue = host.create_io_queue()
        for number in range(MOST_RANGES):
            host.rpu.controller.namespaces.blocks[1].uncorrectable.add(2 * number, 1)
        assert on(host, queue, UNCORRECTABLE, 2 * MOST_RANGES + 2).status == 0x280
        assert on(host, queue, READ, 2 * MOST_RANGES + 2).status == 0
        assert on(host, queue, UNCORRECTABLE, 2 * MOST_RANGES - 1, 2).status == 0
        assert on(host, queue, WRITE, 2 * MOST_RANGES - 1).status == 0x280, "it would cut one in 2"
        assert on(host, queue, WRITE, 2 * MOST_RANGES).status == 0
        assert on(host, queue, WRITE, 0).status == 0
        assert on(host, queue, UNCORRECTABLE, 2 * MOST_RANGES + 2).status == 0


# Get LBA Status.


@pytest.mark.parametrize(
    ("cdws", "status"),
    [
        ((0, 0, 1023, TRACKED | 1), 0),
        ((256, 0, 1023, TRACKED), 0x080),
        ((255, 0, 1023, TRACKED | 2), 0x080),
        ((0xFFFFFFFF, 0xFFFFFFFF, 1023, TRACKED | 1), 0x080),
        ((0, 0, 1023, 0), 0x002),
        ((0, 0, 1023, 0x12 << 24), 0x002),
        ((0, 0, 0x1FFFF + 1, TRACKED), 0x002),
        ((0, 0, 0xFFFFFFFF, TRACKED), 0x002),
    ],
)
def test_get_lba_status_refuses_what_it_cannot_do(
    host: Host, cdws: tuple[int, ...], status: int
) -> None:
    assert host.command(host.admin, GET_LBA_STATUS, nsid=1, cdws=cdws).status == status
    assert host.command(host.admin, GET_LBA_STATUS, nsid=65, cdws=cdws).status == 0x00B


def test_get_lba_status_says_that_there_is_more_than_room(host: Host, queue: Queue) -> None:
    for lba in (1, 3, 5):
        assert on(host, queue, UNCORRECTABLE, lba).status == 0
    host.put(b"\xaa" * 64)
    asked = (2, 0, 6, TRACKED)
    assert host.command(host.admin, GET_LBA_STATUS, nsid=1, cdws=asked).status == 0
    first = struct.pack("<IB3xQI4x", 1, 1, 3, 1)
    assert host.data(64) == first + bytes(4) + b"\xaa" * 36
    assert host.command(host.admin, GET_LBA_STATUS, nsid=1, cdws=(2, 0, 0, TRACKED)).status == 0
    assert host.data(4) == bytes(4)


def test_a_scan_finds_what_nobody_knew(tmp_path: Path) -> None:
    path = tmp_path / "media"
    with Host({1: FileMedia.open(path, SIZE)}) as host:
        host.enable()
        queue = host.create_io_queue()
        assert on(host, queue, UNCORRECTABLE, 2).status == 0
        os.truncate(path, SIZE - 3 * PAGE)
        assert uncorrectable(host) == [(2, 1)]
        assert uncorrectable(host, action=SCAN) == [(2, 1), (253, 3)]
        assert uncorrectable(host, rl=254, action=SCAN) == [(2, 1), (253, 1)]
        os.truncate(path, SIZE)
        assert uncorrectable(host, action=SCAN) == [(2, 1)]


# The ranges by themselves, against a set.

step = st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 12))


@given(st.lists(step, max_size=20), st.integers(0, 40), st.integers(1, 12))
def test_ranges_are_what_a_set_would_be(
    steps: list[tuple[bool, int, int]], lba: int, count: int
) -> None:
    ranges, model = UncorrectableBlocks(), set[int]()
    for add, first, length in steps:
        blocks = set(range(first, first + length))
        before = len(ranges)
        if add:
            touched = ranges.touches(first, length)
            ranges.add(first, length)
            assert len(ranges) <= before or not touched
        else:
            split = ranges.splits(first, length)
            ranges.remove(first, length)
            assert (len(ranges) > before) == split
        model = model | blocks if add else model - blocks
    assert {n for first, size in ranges.ranges() for n in range(first, first + size)} == model
    assert len(ranges) == sum(n - 1 not in model for n in model)
    inside = model & set(range(lba, lba + count))
    assert ranges.first_in(lba, count) == min(inside, default=None)
    cut = ranges.ranges(lba, count)
    assert {n for first, size in cut for n in range(first, first + size)} == inside
    again = UncorrectableBlocks()
    again.restore(ranges.ranges(), 100)
    assert again.ranges() == ranges.ranges()

"""Format NVM: block sizes, contents that are gone, and what happens in the middle of it."""

import os
import struct
from pathlib import Path

import pytest

from potash_device.media.errors import MediaError
from potash_device.media.store import Media
from support.namespaces import (
    ALL,
    EVENT_REQUEST,
    FORMAT,
    GET_LOG,
    READ,
    SET_FEATURES,
    WRITE,
    Namespace,
    attach,
    begin,
    finish,
    format_,
    identify,
    io,
    log_page,
    namespace,
    powered,
    steps,
)
from support.nvme_host import DATA, PAGE, Host, Queue

FLUSH = 0
MIB = 1 << 20
W = b"w" * PAGE


def is_empty(media: Media) -> bool:
    return not any(os.pread(media.fd, media.size, 0))


def test_a_format_gives_another_block_size_and_empty_blocks(tmp_path: Path) -> None:
    with powered(tmp_path / "drive") as host:
        host.create_io_queue()
        assert io(host, WRITE, 1, 3, W) == 0
        assert format_(host, 1, 0).status == 0
        assert namespace(host, 1, 0) == Namespace(2048, 0, 0, 0x80, MIB, (9, 12))
        assert is_empty(host.media[1])
        assert io(host, WRITE, 1, 2047, W) == 0
        assert io(host, READ, 1, 2048) == 0x080
        assert os.pread(host.media[1].fd, 512, 2047 * 512) == W[:512]
        assert namespace(host, 2, 0) == Namespace(2048, 0, 0, 0x80, MIB, (9, 12))
    with powered(tmp_path / "drive") as host:
        assert namespace(host, 1, 0) == Namespace(2048, 0, 0, 0x80, MIB, (9, 12))


@pytest.mark.parametrize("ses", [0, 1])
def test_all_attached_namespaces_are_formatted_by_the_broadcast_value(ses: int) -> None:
    with powered() as host:
        host.create_io_queue()
        for nsid in (1, 2):
            assert io(host, WRITE, nsid, 3, W) == 0
        assert attach(host, 2, sel=1).status == 0
        assert format_(host, ALL, 1, ses).status == 0
        assert is_empty(host.media[1])
        assert not is_empty(host.media[2])
        assert attach(host, 2).status == 0
        assert format_(host, ALL, 1, ses).status == 0
        assert is_empty(host.media[2])
        assert [namespace(host, nsid, 0).format for nsid in (1, 2)] == [1, 1]  # type: ignore[union-attr]  # both there


@pytest.mark.parametrize(
    ("nsid", "dword10", "status"),
    [
        (1, 14, 0x10A),  # No such LBA format.
        (1, 15, 0x10A),
        (1, 1 << 12, 0x10A),  # LBAFU.
        (1, 1 | 1 << 5, 0x10A),  # Protection information without metadata.
        (1, 8, 0x10A),  # An extended format, which the host has not enabled.
        (1, 1 | 2 << 9, 0x002),  # Cryptographic erase.
        (1, 1 | 3 << 9, 0x002),
        (0, 1, 0x00B),
        (3, 1, 0x002),
        (65, 1, 0x00B),
    ],
)
def test_what_a_format_cannot_have_changes_nothing(nsid: int, dword10: int, status: int) -> None:
    with powered() as host:
        host.create_io_queue()
        assert io(host, WRITE, 1, 0, W) == 0
        done = host.command(host.admin, FORMAT, nsid=nsid, cdws=(dword10,))
        assert (done.status, done.dnr) == (status, True)
        assert io(host, READ, 1) == 0
        assert host.data(PAGE) == W


def test_a_format_is_for_no_namespace_that_takes_no_writes() -> None:
    with powered() as host:
        host.media[2].read_only = True
        assert format_(host, 2, 0).status == 0x020
        assert format_(host, ALL, 0).status == 0x020
        assert namespace(host, 1, 0).format == 1  # type: ignore[union-attr]  # it is there


def test_while_it_formats_its_blocks_are_closed_and_others_are_not() -> None:
    with powered() as host:
        queue = host.create_io_queue()
        begin(host, host.admin, FORMAT, nsid=1, cdws=(0,))
        for nsid, status in ((1, 0x084), (2, 0)):
            for opcode in (FLUSH, WRITE, READ):
                begin(host, queue, opcode, nsid=nsid, prp1=DATA)
                if opcode == FLUSH and not status:
                    host.executor.run_next(1)  # before anything that is to be done for the format
                    host.service()
                (done,) = host.reap(queue)
                assert (done.status, done.dnr) == (status, False)
        seen = set()
        for _ in steps(host):
            if host.executor.waiting:
                begin(host, host.admin, 6, 9, nsid=1)
                assert [one.cid for one in host.reap(host.admin)] == [9]
                seen.add((host.data(27)[26], host.data(33)[32]))
        assert (0, 0x80 | 100) in seen  # The new format, and all of it to be done.
        assert [one.status for one in host.reap(host.admin)] == [0]
        assert io(host, READ, 1) == 0


def test_a_namespace_cannot_be_write_protected_while_it_is_formatted() -> None:
    with powered() as host:
        host.create_io_queue()
        begin(host, host.admin, FORMAT, 1, nsid=1, cdws=(0,))
        begin(host, host.admin, SET_FEATURES, 2, nsid=1, cdws=(0x84, 1))
        assert [(one.cid, one.status) for one in host.reap(host.admin)] == [(2, 0x084)]
        finish(host)
        assert [(one.cid, one.status) for one in host.reap(host.admin)] == [(1, 0)]
        assert io(host, READ, 1) == 0


def test_no_flush_reaches_the_files_that_a_format_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Media] = []
    with powered() as host:
        queue = host.create_io_queue()
        begin(host, queue, FLUSH, 1, nsid=1)
        begin(host, host.admin, FORMAT, 2, nsid=1, cdws=(0,))
        assert len(host.executor.waiting) == 1  # the flush, for which the format waits
        host.executor.run_next()
        host.service()
        monkeypatch.setattr(Media, "flush", lambda media: flushed.append(media))
        begin(host, queue, FLUSH, 3, nsid=ALL)
        host.executor.run_next(1)
        host.write32(0x14, 4 << 20 | 6 << 16 | 1 << 14 | 1)  # CC.SHN
        host.service()
        assert len(host.executor.waiting) == 2
        host.executor.run_next(1)
        assert (flushed.count(host.media[1]), flushed.count(host.media[2])) == (0, 2)
        finish(host)
        assert host.media[1] in flushed
        assert [one.status for one in host.reap(queue)] == [0, 0]


def test_a_step_that_was_held_meanwhile_is_not_taken_on_blocks_that_are_formatted() -> None:
    with powered() as host:
        queue = host.create_io_queue()
        begin(host, queue, 0x08, 1, nsid=1, cdws=(0, 0, 1 << 30))  # Write Zeroes, then a flush
        begin(host, host.admin, FORMAT, 2, nsid=1, cdws=(0,))
        host.master(False)
        host.executor.run_next()
        host.service()
        assert len(host.executor.waiting) == 1  # of the format
        host.master()
        host.service()
        assert [(one.status, one.dnr) for one in host.reap(queue)] == [(0x084, False)]
        assert len(host.executor.waiting) == 1
        finish(host)
        assert [one.status for one in host.reap(host.admin)] == [0]


def held_over(host: Host, opcode: int, *cdws: int, sends: bytes = b"", flags: int = 0) -> Queue:
    """Begin a command behind one that reads block 3, and a Format; both end, with nothing of the
    first done yet, as Bus Master Enable is 0 until then."""
    queue = host.io[1]
    if sends:
        host.put(sends)
    begin(host, queue, 0x05, 1, nsid=1, prp1=DATA + PAGE, cdws=(3, 0, 0))  # Compare block 3
    begin(host, queue, opcode, 2, nsid=1, cdws=cdws, flags=flags)
    begin(host, host.admin, FORMAT, 3, nsid=1, cdws=(0,))  # 512 bytes
    host.master(False)
    finish(host)
    assert host.rpu.controller.namespaces.blocks[1].block_size == 512
    host.master()
    host.service()
    return queue


@pytest.mark.parametrize(
    ("opcode", "cdws", "sends"),
    [
        (0x01, (3, 0, 1 << 30), b""),
        (0x08, (3, 0, 0), b""),
        (0x09, (1, 4), struct.pack("<IIQIIQ", 0, 1, 3, 0, 1, 9)),
        (0x19, (3, 0, 0), struct.pack("<QQII", 0, 8, 0, 0).ljust(32, b"\0")),
    ],
    ids=["write", "write-zeroes", "dataset-management", "copy"],
)
def test_a_command_that_was_held_does_not_use_the_offsets_of_the_format_before(
    opcode: int, cdws: tuple[int, ...], sends: bytes
) -> None:
    with powered() as host:
        host.create_io_queue()
        queue = held_over(host, opcode, *cdws, sends=sends)
        assert not host.executor.waiting
        assert [(one.cid, one.status, one.dnr) for one in host.reap(queue)][1:] == [
            (2, 0x084, False)
        ]
        assert is_empty(host.media[1])
        assert io(host, WRITE, 1, 3, W) == 0


def test_a_command_that_was_held_is_not_for_a_namespace_that_was_made_since() -> None:
    with powered() as host:
        queue = host.create_io_queue()
        host.put(struct.pack("<IIQIIQ", 0, 1, 3, 0, 1, 9))
        begin(host, queue, 0x09, 1, nsid=1, cdws=(1, 4))  # Dataset Management, of two ranges
        begin(host, host.admin, 0x0D, 2, nsid=1, cdws=(1,))  # Delete
        host.master(False)
        finish(host)
        host.master()
        host.service()
        assert not host.executor.waiting
        assert [one.status for one in host.reap(queue)] == [0x002]
        assert [one.status for one in host.reap(host.admin)] == [0]


def test_what_was_begun_ends_before_the_blocks_are_erased() -> None:
    with powered() as host:
        queue = host.create_io_queue()
        assert host.command(host.admin, SET_FEATURES, cdws=(6, 0)).status == 0
        host.put(W)
        begin(host, queue, WRITE, 7, nsid=1)
        begin(host, host.admin, FORMAT, 8, nsid=1, cdws=(1,))
        assert len(host.executor.waiting) == 1
        finish(host)
        assert [one.status for one in (*host.reap(queue), *host.reap(host.admin))] == [0, 0]
        assert is_empty(host.media[1])


def events(host: Host) -> list[int]:
    return [one.dw0 for one in host.reap(host.admin) if one.cid >= 0x70]


def test_a_host_is_told_of_namespaces_that_change() -> None:
    with powered() as host:
        assert host.command(host.admin, SET_FEATURES, cdws=(0xB, 1 << 8)).status == 0
        for cid in (0x70, 0x71):
            host.place(host.admin, EVENT_REQUEST, cid)
        begin(host, host.admin, FORMAT, nsid=2, cdws=(1,))
        finish(host)
        assert events(host) == [0x04_00_02]
        begin(host, host.admin, GET_LOG, 2, cdws=(1023 << 16 | 4,))
        assert host.data(8) == b"\2\0\0\0\0\0\0\0"
        assert events(host) == []
        begin(host, host.admin, FORMAT, 3, nsid=1, cdws=(0,))
        finish(host)
        assert events(host) == [0x04_00_02]


@pytest.mark.parametrize("cut", range(8))
def test_a_device_that_is_killed_in_the_middle_is_as_before_or_formatted(
    tmp_path: Path, cut: int
) -> None:
    """At each step: old format with old contents, or the new one with none."""
    with powered(tmp_path / "drive") as host:
        host.create_io_queue()
        assert io(host, WRITE, 1, 3, W) == 0
        begin(host, host.admin, FORMAT, nsid=1, cdws=(0,))
        for done in steps(host):
            if done == cut:
                break
        answered = [one.status for one in host.reap(host.admin)]
        host.executor.waiting.clear()
    with powered(tmp_path / "drive") as host:
        found = namespace(host, 1, 0)
        assert found is not None
        if found.format == 1:
            assert not answered
            assert os.pread(host.media[1].fd, PAGE, 3 * PAGE) == W
        else:
            assert is_empty(host.media[1])
        assert "erase" not in (tmp_path / "drive" / "namespaces.toml").read_text()


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_reset_in_the_middle_forgets_the_command_and_not_the_format(cut: int) -> None:
    with powered() as host:
        host.create_io_queue()
        assert io(host, WRITE, 1, 3, W) == 0
        begin(host, host.admin, FORMAT, nsid=1, cdws=(0,))
        for done in steps(host):
            if done == cut:
                break
        host.disable()
        host.enable()
        finish(host)
        assert host.reap(host.admin) == []
        assert is_empty(host.media[1])
        host.create_io_queue()
        assert io(host, READ, 1, 2047) == 0


def test_a_format_that_fails_leaves_blocks_that_nobody_may_touch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would be erased by the device's next start, with what was written meanwhile."""
    with powered() as host:
        host.create_io_queue()
        with monkeypatch.context() as patch:

            def punch(media: Media, offset: int, length: int) -> None:
                raise MediaError.of(OSError(5, "no"), "erasing", 0)

            patch.setattr(Media, "punch", punch)
            assert format_(host, 1, 0).status == 0x280
        assert io(host, READ, 1) == 0x082
        assert io(host, READ, 2) == 0
        assert format_(host, 1, 0).status == 0
        assert io(host, READ, 1) == 0


def test_a_list_that_cannot_be_written_leaves_everything_as_it_was(tmp_path: Path) -> None:
    with powered(tmp_path / "drive") as host:
        host.create_io_queue()
        assert io(host, WRITE, 1, 0, W) == 0
        (tmp_path / "drive" / "namespaces.toml.new").mkdir()
        done = format_(host, 1, 0)
        assert (done.status, done.dnr) == (0x006, False)
        assert io(host, READ, 1) == 0
        assert host.data(PAGE) == W
        assert namespace(host, 1, 0).format == 1  # type: ignore[union-attr]  # it is there


def test_uncorrectable_blocks_are_good_after_a_format(tmp_path: Path) -> None:
    with powered(tmp_path / "drive") as host:
        host.create_io_queue()
        assert host.command(host.io[1], 4, nsid=1, cdws=(5,)).status == 0
        assert io(host, READ, 1, 5) == 0x281
        assert format_(host, 1, 1).status == 0
        assert io(host, READ, 1, 5) == 0
    with powered(tmp_path / "drive") as host:
        host.create_io_queue()
        assert io(host, READ, 1, 5) == 0


def test_uncorrectable_blocks_are_what_they_were_or_good_when_a_format_is_cut(
    tmp_path: Path,
) -> None:
    """Block 5 of 4096 bytes must not become a bad block 5 of 512."""
    for cut in range(1, 20):
        drive = tmp_path / f"{cut}"
        with powered(drive) as host:
            host.create_io_queue()
            assert host.command(host.io[1], 4, nsid=1, cdws=(5,)).status == 0
            begin(host, host.admin, FORMAT, nsid=1, cdws=(0,))
            done = next((number for number in steps(host) if number == cut), None)
            host.executor.waiting.clear()
        with powered(drive) as host:
            host.create_io_queue()
            assert host.executor.waiting == type(host.executor.waiting)()
            old = namespace(host, 1, 0).format == 1  # type: ignore[union-attr]  # it is there
            assert io(host, READ, 1, 5) == (0x281 if old else 0)
            assert host.command(host.io[1], 0, nsid=1).status == 0
        with powered(drive) as host:
            host.create_io_queue()
            assert io(host, READ, 1, 5) == (0x281 if old else 0)
        if done is None:
            return
    raise AssertionError("the format has no end")


SET, GET, SAVE = SET_FEATURES, 0x0A, 1 << 31


def ranges_of(host: Host, nsid: int) -> int:
    """The blocks of the first LBA range, and how long the host waits for bad blocks."""
    assert host.command(host.admin, GET, nsid=nsid, cdws=(3,)).status == 0
    blocks = int.from_bytes(host.data(8, DATA + 24), "little")
    done = host.command(host.admin, GET, nsid=nsid, cdws=(5,))
    assert done.status == 0
    return blocks << 16 | done.dw0


def set_ranges(host: Host, nsid: int) -> None:
    host.put(bytes(24) + (7).to_bytes(8, "little") + bytes(32))
    assert host.command(host.admin, SET, nsid=nsid, cdws=(3, 0)).status == 0
    assert host.command(host.admin, SET, nsid=nsid, cdws=(SAVE | 5, 9)).status == 0


@pytest.mark.parametrize("lbaf", [0, 1])
def test_what_a_host_says_of_blocks_is_void_when_they_get_another_size(
    tmp_path: Path, lbaf: int
) -> None:
    kept = 7 << 16 | 9
    with powered(tmp_path / "drive") as host:
        set_ranges(host, 1)
        set_ranges(host, 2)
        assert format_(host, 1, lbaf).status == 0
        after = kept if lbaf == 1 else 2048 << 16
        assert (ranges_of(host, 1), ranges_of(host, 2)) == (after, kept)
        assert attach(host, 2, sel=1).status == 0
    with powered(tmp_path / "drive") as host:  # A namespace that is not attached keeps its own.
        assert attach(host, 2).status == 0
        assert (ranges_of(host, 1), ranges_of(host, 2)) == (after, kept)


def test_the_effects_say_what_a_format_does() -> None:
    with powered() as host:
        page = log_page(host, 5, PAGE)
        entry = int.from_bytes(page[4 * FORMAT : 4 * FORMAT + 4], "little")
        assert entry & 0b111 == 0b111
        assert identify(host, 1)[524] == 0

"""Blocks with metadata, and protection information in it, as a host sees them."""

import os
import struct
from pathlib import Path

import pytest

from potash_firmware.rpu.accelerators.write_back import write_bytes
from support.metadata import (
    ALL_CHECKS,
    APP,
    BUFFER,
    COMPARE,
    COPY,
    DSM,
    FORMATS,
    GUARD,
    PRACT,
    REF,
    STC,
    VERIFY,
    WRITE_ZEROES,
    formatted,
    io,
    noise,
    read,
    write,
)
from support.namespaces import FORMAT, READ, SET_FEATURES, WRITE, identify, log_page, powered
from support.nvme_host import DATA
from support.protection import Format, crc16, crc32c, crc64

SMALL = Format(2, 512, 8)


def test_the_oracle_agrees_with_the_standards_own_values() -> None:
    up = bytes(range(256)) * 16
    contents = bytes(4096), b"\xff" * 4096, up, up[::-1]
    assert [crc32c(one) for one in contents] == [0x98F94189, 0x25C1FE13, 0x9C71FE32, 0x214941A8]
    assert [crc64(one) for one in contents] == [
        0x6482D367_EB22B64E,
        0xC0DDBA73_02ECA3AC,
        0x3E729F5F_6750449C,
        0x9A2DF64B_8E9E517E,
    ]
    assert crc16(b"123456789") == 0xD0DB  # the check value of CRC-16/T10-DIF


@pytest.mark.parametrize(
    ("kind", "protection"), [(one, at % 3 + 1) for at, one in enumerate(FORMATS)]
)
def test_what_the_controller_makes_is_what_the_standard_draws(
    kind: Format, protection: int
) -> None:
    data = noise(2 * kind.block)
    other = [noise(kind.metadata - kind.size, 3), noise(kind.metadata - kind.size, 5)]
    bits = {16: 32, 32: 80, 64: 48}[kind.guard]
    storage = 0xA5C3 << bits - kind.tag_bits if kind.tag_bits else 0
    first = 3 if protection == 1 else 0xFFFF if kind.guard == 64 else 9
    with formatted(kind, protection) as host:
        sent = b"".join(
            bytes(kind.size) + one if kind.first else one + bytes(kind.size) for one in other
        )
        tags = {"space": storage | first, "app": 0x1234}
        assert write(host, kind, 3, data, sent, flags=PRACT, **tags) == 0
        expected = b"".join(
            kind.protected(
                data[at * kind.block :][: kind.block], other[at], 0x1234, storage | first + at
            )
            for at in range(2)
        )
        # Checked and passed on; then not checked at all; then sent back by the host.
        assert read(host, kind, 3, 2, flags=ALL_CHECKS | STC, **tags) == (data, expected)
        assert read(host, kind, 3, 2) == (data, expected)
        if kind.metadata == kind.size:
            stripped = read(host, kind, 3, 2, flags=PRACT | ALL_CHECKS | STC, **tags)
            assert stripped == (data, bytes(len(expected)))
        else:
            assert read(host, kind, 3, 2, flags=PRACT | GUARD, **tags) == (data, expected)
        again = {**tags, "space": storage | (first if protection != 1 else 7)}
        moved = b"".join(
            kind.protected(
                data[at * kind.block :][: kind.block], other[at], 0x1234, again["space"] + at
            )
            for at in range(2)
        )
        assert write(host, kind, 7, data, moved, flags=ALL_CHECKS | STC, **again) == 0
        assert read(host, kind, 7, 2, flags=ALL_CHECKS | STC, **again) == (data, moved)
        assert io(host, VERIFY, kind, 7, 2, flags=ALL_CHECKS | STC, **again).status == 0
        assert io(host, COMPARE, kind, 7, 2, flags=ALL_CHECKS | STC, **again).status == 0


@pytest.mark.parametrize(("flags", "status"), [(GUARD, 0x282), (APP, 0x283), (REF, 0x284)])
def test_a_check_finds_the_first_block_that_is_wrong(flags: int, status: int) -> None:
    data = noise(4 * 512)
    with formatted(SMALL, 2) as host:
        tags = {"space": 100, "app": 7}
        good = [SMALL.protected(data[at * 512 :][:512], b"", 7, 100 + at) for at in range(4)]
        wrong = {
            GUARD: SMALL.information(crc16(data[1024:1536]) ^ 1, 7, 102),
            APP: SMALL.information(crc16(data[1024:1536]), 8, 102),
            REF: SMALL.information(crc16(data[1024:1536]), 7, 101),
        }[flags]
        sent = b"".join([*good[:2], wrong, good[3]])
        # What the host sends is refused, and nothing is written.
        assert write(host, SMALL, 8, data, sent, flags=flags, **tags) == status
        assert log_page(host, 1, 64)[16:24] == (10).to_bytes(8, "little"), "the block"
        assert read(host, SMALL, 8, 4) == (bytes(2048), b"\xff" * 32)
        # What is on the media is, for every command that reads it.
        assert write(host, SMALL, 8, data, sent, **tags) == 0
        for opcode in (READ, COMPARE, VERIFY):
            host.put(data)
            host.put(sent, BUFFER)
            done = io(host, opcode, SMALL, 8, 4, flags=flags, **tags)
            assert (done.status, done.dnr) == (status, True), opcode
            assert log_page(host, 1, 64)[16:24] == (10).to_bytes(8, "little"), opcode
        others = ALL_CHECKS & ~flags
        assert read(host, SMALL, 8, 4, flags=others, **tags) == (data, sent)
        # An application tag of FFFFh has nobody check anything.
        escape = SMALL.information(0, 0xFFFF, 0)
        assert write(host, SMALL, 10, data[:512], escape, flags=ALL_CHECKS, **tags) == 0
        assert read(host, SMALL, 8, 4, flags=ALL_CHECKS, **tags)[0][1024:1536] == data[:512]


def test_bits_of_the_application_tag_that_are_masked_are_not_compared() -> None:
    with formatted(SMALL, 1) as host:
        assert write(host, SMALL, 0, noise(512), b"", flags=PRACT, app=0x12F4) == 0
        assert io(host, VERIFY, SMALL, 0, flags=APP, app=0x1204, mask=0xFF0F).status == 0
        assert io(host, VERIFY, SMALL, 0, flags=APP, app=0x1204, mask=0xFF1F).status == 0x283


def test_storage_tags_are_checked_apart_from_the_reference_tag() -> None:
    kind = Format(10, 4096, 16, 64, 16)
    with formatted(kind, 2) as host:
        assert write(host, kind, 1, noise(4096), b"", flags=PRACT, space=0xABCD << 32 | 5) == 0
        other = 0xABCC << 32 | 5
        assert io(host, VERIFY, kind, 1, flags=STC, space=other).status == 0x288
        assert io(host, VERIFY, kind, 1, flags=REF | GUARD, space=other).status == 0
        assert io(host, VERIFY, kind, 1, flags=REF | STC, space=0xABCD << 32 | 4).status == 0x284


def test_a_reference_tag_of_type_1_is_that_of_the_block() -> None:
    with formatted(SMALL, 1) as host:
        for opcode in (READ, WRITE, COMPARE, VERIFY):
            assert io(host, opcode, SMALL, 9, flags=REF, space=8).status == 0x181, opcode
        assert io(host, VERIFY, SMALL, 9, flags=REF, space=9).status == 0
        assert io(host, VERIFY, SMALL, 9, flags=GUARD, space=8).status == 0


def test_reference_tags_begin_again_after_the_last() -> None:
    with formatted(SMALL, 2) as host:
        assert write(host, SMALL, 0, noise(1024), b"", flags=PRACT, space=0xFFFF_FFFF) == 0
        _, metadata = read(host, SMALL, 0, 2, flags=REF, space=0xFFFF_FFFF)
        assert (metadata[4:8], metadata[12:16]) == (b"\xff" * 4, bytes(4))


@pytest.mark.parametrize("protection", [0, 1])
def test_metadata_behind_each_block(protection: int) -> None:
    kind = Format(3, 512, 16)
    with formatted(kind, protection, extended=True) as host:
        assert identify(host, 0, 1)[26] == 0x13
        blocks = [noise(512, 3), noise(512, 9)]
        other = [b"first___", b"second__"]
        sent = b"".join(
            block + kind.protected(block, mine, 7, at)
            for at, (block, mine) in enumerate(zip(blocks, other, strict=True))
        )
        checks = ALL_CHECKS if protection else 0
        host.put(sent)
        assert io(host, WRITE, kind, 0, 2, flags=checks, app=7, mptr=0).status == 0
        host.clear(DATA, 8192)
        assert io(host, READ, kind, 0, 2, flags=checks, app=7, mptr=0).status == 0
        assert host.data(len(sent)) == sent
        assert io(host, COMPARE, kind, 0, 2, flags=checks, app=7, mptr=0).status == 0
        host.put(b"F", DATA + 512)  # the other metadata of the first block
        status = 0x282 if protection else 0x285
        assert io(host, COMPARE, kind, 0, 2, flags=checks, app=7, mptr=0).status == status
        if protection:  # compared, but for the protection information
            assert io(host, COMPARE, kind, 0, 2, app=7, mptr=0).status == 0x285
            host.put(b"f", DATA + 512)
            host.put(b"x", DATA + 520)
            assert io(host, COMPARE, kind, 0, 2, app=7, mptr=0).status == 0


def test_extended_blocks_count_for_the_largest_transfer() -> None:
    with formatted(Format(5, 4096, 8), 0, extended=True) as host:
        assert io(host, READ, Format(5, 4096, 8), 0, 128).status == 0x002
    with formatted(Format(5, 4096, 8), 1, extended=True) as host:
        assert io(host, VERIFY, Format(5, 4096, 8), 0, 64).status == 0


def test_unwritten_blocks_are_not_checked() -> None:
    with formatted(SMALL, 1) as host:
        assert read(host, SMALL, 5, flags=GUARD | APP, app=1) == (bytes(512), b"\xff" * 8)
        assert write(host, SMALL, 5, noise(512), b"", flags=PRACT, space=5) == 0
        host.put(struct.pack("<IIQ", 0, 1, 5))
        assert host.command(host.io[1], DSM, nsid=1, cdws=(0, 4)).status == 0
        assert read(host, SMALL, 5, flags=GUARD) == (bytes(512), b"\xff" * 8)
        # Write Zeroes: made, or such that is not checked; deallocated, it is unwritten.
        assert io(host, WRITE_ZEROES, SMALL, 5, 2, flags=PRACT, space=5, app=3).status == 0
        assert read(host, SMALL, 5, 2, flags=ALL_CHECKS, space=5, app=3) == (
            bytes(1024),
            SMALL.information(0, 3, 5) + SMALL.information(0, 3, 6),
        )
        assert io(host, WRITE_ZEROES, SMALL, 5).status == 0
        assert read(host, SMALL, 5, flags=GUARD) == (bytes(512), b"\xff" * 8)
        assert io(host, WRITE_ZEROES, SMALL, 6, flags=1 << 25).status == 0
        assert read(host, SMALL, 6, flags=GUARD) == (bytes(512), b"\xff" * 8)
        for flags in (GUARD, APP, REF):
            assert io(host, WRITE_ZEROES, SMALL, 5, flags=flags, space=5).status == 0x181


def test_what_cannot_be_asked() -> None:
    with formatted(SMALL, 1) as host:
        assert io(host, COMPARE, SMALL, 0, flags=PRACT).status == 0x181
        assert io(host, VERIFY, SMALL, 0, flags=PRACT).status == 0x002
        for mptr in (0, BUFFER + 2, BUFFER + 1):
            assert io(host, READ, SMALL, 0, mptr=mptr).status == 0x002
        assert io(host, READ, SMALL, 0, mptr=1 << 40).status == 0x004
        assert io(host, WRITE, SMALL, 0, 2, mptr=(4 << 20) - 12).status == 0x004
        assert io(host, READ, SMALL, 0, flags=PRACT, mptr=0).status == 0, "none is moved"


@pytest.mark.parametrize(
    ("dword", "status"),
    [(14, 0x10A), (1 | 1 << 5, 0x10A), (5 | 4 << 5, 0x10A), (10 | 1 << 5, 0x10A), (1 | 1 << 4, 0)],
)
def test_formats_that_there_are_not(dword: int, status: int) -> None:
    with formatted(SMALL, 1) as host:
        done = host.command(host.admin, FORMAT, nsid=1, cdws=(dword,))
        assert done.status == status
        page = identify(host, 0, 1)
        assert (page[26], page[29]) == ((2, 1) if status else (1, 0))


def test_a_host_that_does_not_know_extended_formats_cannot_use_them() -> None:
    kind = Format(8, 4096, 16, 64)
    with formatted(kind, 1) as host:
        host.put(bytes(512))
        assert host.command(host.admin, SET_FEATURES, cdws=(0x16,)).status == 0
        assert io(host, READ, kind, 0, flags=PRACT).status == 0x00B
        assert host.command(host.admin, FORMAT, nsid=1, cdws=(8 | 1 << 5,)).status == 0x10A
        assert host.command(host.admin, FORMAT, nsid=1, cdws=(1,)).status == 0


@pytest.mark.parametrize("replaced", [False, True])
def test_copy_within_a_namespace(replaced: bool) -> None:
    data = noise(1024)
    with formatted(SMALL, 2) as host:
        assert write(host, SMALL, 3, data, b"", flags=PRACT, space=50, app=1) == 0
        act = 8 if replaced else 0
        ranges = struct.pack("<8xQH6xIHH", 3, 1, 50, 1, 0xFFFF)

        def copy(flags: int, space: int, content: bytes = ranges) -> int:
            host.put(content)
            dword = (act | 7) << 12 | act << 26 | flags
            dwords = (20, 0, dword, 0, space, 0xFFFF << 16 | 2)
            return host.command(host.io[1], COPY, nsid=1, cdws=dwords).status

        assert copy(0, 90) == 0
        space, app = (90, 2) if replaced else (50, 1)
        found = read(host, SMALL, 20, 2, flags=ALL_CHECKS, space=space, app=app)
        assert found == (
            data,
            b"".join(
                SMALL.protected(data[at * 512 :][:512], b"", app, space + at) for at in range(2)
            ),
        )
        # Checked where it comes from, and unless it is replaced where it goes to.
        assert copy(0, 90, struct.pack("<8xQH6xIHH", 3, 1, 51, 1, 0xFFFF)) == 0x284
        assert copy(1 << 26, 90) == (0 if replaced else 0x284)
        assert copy(8 << 26 if not replaced else 8 << 12 ^ 8 << 12, 90) == (0 if replaced else 2)
        assert copy(1 << 8, 90) == 0x00B, "source ranges for other guards"


def test_copy_with_tags_of_80_bits() -> None:
    kind = Format(11, 4096, 16, 32, 16)
    with formatted(kind, 2) as host:
        tag = 0x1234 << 64 | 0x0102_0304_0506_0708
        assert write(host, kind, 3, noise(4096), b"", flags=PRACT, space=tag) == 0
        for space, status in ((tag, 0), (tag ^ 1 << 40, 0x284)):
            host.put(struct.pack("<8xQH8x10sHH", 3, 0, space.to_bytes(10, "big"), 0, 0))
            dwords = (9, 0, 1 << 8 | 7 << 12)
            assert host.command(host.io[1], COPY, nsid=1, cdws=dwords).status == status
        assert read(host, kind, 9) == read(host, kind, 3)


def test_compare_and_write() -> None:
    with formatted(SMALL, 1) as host:
        old, new = noise(512, 3), noise(512, 4)
        assert write(host, SMALL, 4, old, b"", flags=PRACT, space=4) == 0
        for at, block in ((0, old), (1, new)):
            host.put(block, DATA + at * 4096)
            host.put(SMALL.protected(block, b"", 0, 4), BUFFER + at * 64)
        queue = host.io[1]
        for opcode, fuse, at in ((COMPARE, 1, 0), (WRITE, 2, 1)):
            host.place(
                queue,
                opcode,
                10 + at,
                nsid=1,
                flags=fuse,
                prp1=DATA + at * 4096,
                first=(0, 0, BUFFER + at * 64, 0),
                cdws=(4, 0, ALL_CHECKS, 0, 4, 0xFFFF << 16),
            )
        host.ring(queue)
        host.service()
        host.executor.run_all()
        host.service()
        assert sorted((one.cid, one.status) for one in host.reap(queue)) == [(10, 0), (11, 0)]
        assert read(host, SMALL, 4) == (new, SMALL.protected(new, b"", 0, 4))


def test_a_bit_that_turns_on_the_media_is_found() -> None:
    kind = Format(5, 4096, 8)
    with formatted(kind, 1) as host:
        assert write(host, kind, 6, noise(8192), b"", flags=PRACT, space=6) == 0
        media = host.media[1]
        (byte,) = os.pread(media.fd, 1, 7 * 4096 + 99)
        os.pwrite(media.fd, bytes([byte ^ 4]), 7 * 4096 + 99)
        before = log_page(host, 2, 512)[160]
        for opcode in (READ, VERIFY):
            assert io(host, opcode, kind, 6, 2, flags=GUARD | REF, space=6).status == 0x282
            assert log_page(host, 1, 64)[16] == 7
        assert log_page(host, 2, 512)[160] == before + 2, "media errors"
        assert io(host, READ, kind, 6, flags=GUARD | REF, space=6).status == 0


def test_metadata_in_a_segment_of_its_own() -> None:
    with formatted(SMALL, 1) as host:
        host.put(noise(512))
        host.put(struct.pack("<QI3xB", DATA, 512, 0), DATA + 0x8000)
        host.put(struct.pack("<QI3xB", BUFFER + 1, 8, 0), DATA + 0x9000)
        host.put(SMALL.protected(noise(512), b"", 0, 2), BUFFER + 1)

        def write_sgl(mptr: int) -> int:
            return host.command(
                host.io[1],
                WRITE,
                nsid=1,
                flags=2 << 6,
                prp1=DATA,
                prp2=512,
                first=(0, 0, mptr, 0),
                cdws=(2, 0, GUARD | REF, 0, 2, 0),
            ).status

        assert write_sgl(DATA + 0x9000) == 0
        assert read(host, SMALL, 2, flags=ALL_CHECKS, space=2, app=0)[0] == noise(512)
        assert write_sgl(DATA + 0x9004) == 0x002
        host.put(struct.pack("<QI3xB", BUFFER, 7, 0), DATA + 0x9000)
        assert write_sgl(DATA + 0x9000) == 0x010, "Metadata SGL Length Invalid"


def test_a_format_is_remembered(tmp_path: Path) -> None:
    folder = tmp_path / "drive"
    data = noise(4096)
    with powered(folder) as host:
        host.create_io_queue()
        dword = 6 | 1 << 4 | 2 << 5 | 1 << 8
        assert host.command(host.admin, FORMAT, nsid=1, cdws=(dword,)).status == 0
        kind = Format(6, 4096, 16, first=True)
        host.put(data + bytes(16))
        assert io(host, WRITE, kind, 3, flags=PRACT, space=9).status == 0
    with powered(folder) as host:
        host.create_io_queue()
        page = identify(host, 0, 1)
        assert (page[26], page[29]) == (0x16, 0x0A)
        assert io(host, READ, kind, 3, flags=GUARD | REF, space=9).status == 0
        assert host.data(4096) == data
        assert host.command(host.admin, FORMAT, nsid=1, cdws=(1,)).status == 0
        assert not list(folder.glob("*.metadata"))
        assert io(host, READ, kind, 3).status == 0


def test_what_the_drive_writes_itself_is_protected() -> None:
    with formatted(SMALL, 1) as host:
        assert write(host, SMALL, 4, noise(2048), b"", flags=PRACT, space=4, app=9) == 0
        write_bytes(host.rpu.controller.namespaces.blocks[1], 5 * 512 - 3, memoryview(b"output"))
        expected = bytearray(noise(2048))
        expected[509:515] = b"output"
        assert read(host, SMALL, 4, 2, flags=ALL_CHECKS, space=4)[0] == expected[:1024]
        assert read(host, SMALL, 6, 2, flags=ALL_CHECKS, space=6, app=9)[0] == expected[1024:]


def test_writes_of_the_same_blocks_are_made_one_after_the_other() -> None:
    """Each is of two steps, so a block could have the metadata of another write."""
    with formatted(SMALL, 0) as host:
        for lba, content in ((7, b"a"), (7, b"b"), (8, b"c")):
            host.put(content * 512)
            host.put(content * 8, BUFFER)
            cid = ord(content)
            host.place(
                host.io[1], WRITE, cid, nsid=1, first=(0, 0, BUFFER, 0), cdws=(lba, 0, 1 << 30)
            )
            host.ring(host.io[1])
            host.service()
        assert len(host.executor.waiting) == 2, "the first and the third"
        host.executor.run_all()
        host.service()
        host.executor.run_all()
        host.service()
        assert sorted(one.status for one in host.reap(host.io[1])) == [0, 0, 0]
        assert read(host, SMALL, 7) in ((b"c" * 512, b"c" * 8), (b"b" * 512, b"b" * 8))

"""Zoned namespaces: the figures of the Zoned Namespace Command Set 1.1, by literal bytes."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from potash_device.media.shapes import ZoneLimits
from potash_firmware.rpu.settings import RpuSettings
from support.memory import asked as identified
from support.memory import identify
from support.nvme_host import DATA, Host
from support.zones import (
    APPEND,
    BLOCK,
    BLOCKS,
    BOUNDARY,
    CAPACITY,
    CLOSE,
    CLOSED,
    COMPARE,
    DEALLOCATE,
    EMPTY,
    EXPLICIT,
    EXTEND,
    FINISH,
    FLUSH,
    FULL,
    IMPLICIT,
    INVALID_FIELD,
    INVALID_TRANSITION,
    INVALID_WRITE,
    IS_FULL,
    NO_POINTER,
    OFFLINE,
    OPEN,
    OUT_OF_RANGE,
    READ,
    RECEIVE,
    RESET,
    TOO_MANY_ACTIVE,
    TOO_MANY_OPEN,
    UNCORRECTABLE,
    VERIFY,
    ZEROES,
    Zone,
    asked,
    copy,
    decoded,
    powered,
    read,
    report,
    send,
    states,
    write,
    zone,
)

ACTIVE, OPENED = 32, 16
"""MAR and MOR of a namespace with that many zones."""


@pytest.fixture
def host() -> Iterator[Host]:
    with powered() as found:
        yield found


def test_identify(host: Host) -> None:
    page = identify(host, 0x05, 1, 2)
    assert struct.unpack_from("<HHII", page) == (0, 1, 7, 7)  # ZOC, OZCS, MAR, MOR
    assert not any(page[12:2816])
    # Blocks of 512 bytes and of 4096: zone size, and 64 bytes of descriptor extension.
    assert struct.unpack_from("<QB7xQB7x", page, 2816) == (128, 1, 16, 1)
    assert not any(page[2848:])
    assert identify(host, 0x06, csi=2) == bytes(4096)  # ZASL 0: as MDTS
    size, capacity = struct.unpack_from("<QQ", identify(host, 0x00, 1))
    assert (size, capacity) == (8 * BLOCKS, 8 * CAPACITY)
    assert page_of_formats(host) == (1, struct.pack("<HBBHBB", 0, 9, 0, 0, 12, 0), 0, 0)
    assert identify(host, 0x03, 1)[20:28] == bytes([4, 1, 0, 0, 2, 0, 0, 0])
    assert struct.unpack_from("<QQQ", identify(host, 0x1C)) == (0b101, 0b1, 0)
    assert identified(host, 0x05, 1, 3) == INVALID_FIELD


def page_of_formats(host: Host) -> tuple[int, bytes, int, int]:
    """NLBAF, the formats, and metadata and protection capabilities."""
    page = identify(host, 0x00, 1)
    return page[25], page[128:136], page[27], page[28]


def test_no_format_has_metadata(host: Host) -> None:
    for lbaf in (2, 5):
        assert host.command(host.admin, 0x80, nsid=1, cdws=(lbaf,)).status == 0x10A


def test_a_new_namespace_has_empty_zones(host: Host) -> None:
    count, zones = report(host)
    assert count == 8
    assert zones == [Zone(EMPTY, CAPACITY, n * BLOCKS, n * BLOCKS, 0) for n in range(8)]


def test_writes_move_the_pointer_until_the_zone_is_full(host: Host) -> None:
    for at in range(CAPACITY):
        assert zone(host, 2)[:1] == ((IMPLICIT if at else EMPTY),)
        assert zone(host, 2).pointer == 2 * BLOCKS + at
        assert write(host, 2 * BLOCKS + at, fill=at + 1).status == 0
    assert zone(host, 2) == Zone(FULL, CAPACITY, 2 * BLOCKS, NO_POINTER, 0)
    assert write(host, 2 * BLOCKS + CAPACITY).status == IS_FULL
    assert [read(host, 2 * BLOCKS + at)[0] for at in range(BLOCKS)] == [*range(1, 13), 0, 0, 0, 0]


@pytest.mark.parametrize("opcode", [1, ZEROES, UNCORRECTABLE])
def test_a_write_begins_at_the_pointer(host: Host, opcode: int) -> None:
    assert write(host, 0, 2).status == 0
    for lba in (0, 1, 3, BLOCKS - 1):
        assert write(host, lba, opcode=opcode).status == INVALID_WRITE
    assert write(host, 2, opcode=opcode).status == 0
    assert zone(host, 0).pointer == 3
    for at in range(3, CAPACITY - 1):
        assert write(host, at).status == 0
    assert write(host, CAPACITY - 1, 2, opcode=opcode).status == BOUNDARY
    assert zone(host, 0).pointer == CAPACITY - 1


def test_an_append_says_where_it_went(host: Host) -> None:
    for at in range(CAPACITY):
        done = write(host, 3 * BLOCKS, fill=at + 1, opcode=APPEND)
        assert (done.status, done.dw0, done.dw1) == (0, 3 * BLOCKS + at, 0)
    assert write(host, 3 * BLOCKS, opcode=APPEND).status == IS_FULL
    assert read(host, 3 * BLOCKS + 7) == bytes([8]) * BLOCK
    assert write(host, 4 * BLOCKS + 1, opcode=APPEND).status == INVALID_FIELD
    assert write(host, 8 * BLOCKS, opcode=APPEND).status == OUT_OF_RANGE
    for _ in range(CAPACITY - 1):
        assert write(host, 7 * BLOCKS, opcode=APPEND).status == 0
    assert write(host, 7 * BLOCKS, 2, opcode=APPEND).status == BOUNDARY


def test_a_zone_whose_capacity_is_its_size_does_not_spill_into_the_next(host: Host) -> None:
    """The block behind a full zone's last one is another zone's first."""
    zones = next(iter(host.rpu.controller.namespaces.zoned)).zones
    zones.capacity = zones.size
    for _ in range(BLOCKS):
        assert write(host, 0, opcode=APPEND).status == 0
    assert write(host, 0, opcode=APPEND).status == IS_FULL
    assert zone(host, 1).state == EMPTY


def test_memory_that_is_not_there_moves_no_pointer(host: Host) -> None:
    done = host.command(host.io[1], 1, nsid=1, prp1=1 << 40, cdws=(0, 0, 0))
    assert done.status == 4  # Data Transfer Error
    assert zone(host, 0) == Zone(EMPTY, CAPACITY, 0, 0, 0)


def test_reads_cross_zones(host: Host) -> None:
    write(host, BLOCKS, fill=7)
    assert asked(host, READ, BLOCKS - 1, 1).status == 0
    assert host.data(2 * BLOCK) == bytes(BLOCK) + b"\x07" * BLOCK
    assert asked(host, VERIFY, 0, BLOCKS + 3).status == 0
    assert asked(host, COMPARE, BLOCKS - 1, 1).status == 0
    assert asked(host, READ, 8 * BLOCKS, 0).status == OUT_OF_RANGE  # the zones' records


def test_actions_on_one_zone(host: Host) -> None:
    assert send(host, OPEN, BLOCKS) == 0
    assert zone(host, 1).state == EXPLICIT
    assert send(host, OPEN, BLOCKS) == 0
    assert send(host, CLOSE, BLOCKS) == 0
    assert zone(host, 1) == Zone(CLOSED, CAPACITY, BLOCKS, BLOCKS, 0)
    assert send(host, CLOSE, BLOCKS) == 0
    assert write(host, BLOCKS).status == 0
    assert zone(host, 1).state == IMPLICIT
    assert send(host, FINISH, BLOCKS) == 0
    assert zone(host, 1).state == FULL
    assert [send(host, one, BLOCKS) for one in (OPEN, CLOSE, OFFLINE, EXTEND)] == 4 * [
        INVALID_TRANSITION
    ]
    assert send(host, FINISH, BLOCKS) == send(host, RESET, BLOCKS) == send(host, RESET, BLOCKS) == 0
    assert zone(host, 1) == Zone(EMPTY, CAPACITY, BLOCKS, BLOCKS, 0)
    assert send(host, CLOSE, BLOCKS) == INVALID_TRANSITION
    assert read(host, BLOCKS) == bytes(BLOCK)


def test_actions_on_all_zones(host: Host) -> None:
    for number in range(4):
        write(host, number * BLOCKS)
    send(host, CLOSE, 0)
    assert send(host, OPEN, every=True) == 0
    assert states(host) == [EXPLICIT, IMPLICIT, IMPLICIT, IMPLICIT, *[EMPTY] * 4]
    assert send(host, CLOSE, 12345, every=True) == 0
    assert states(host) == [*[CLOSED] * 4, *[EMPTY] * 4]
    assert send(host, FINISH, every=True) == 0
    assert states(host) == [*[FULL] * 4, *[EMPTY] * 4]
    assert send(host, OFFLINE, every=True) == 0
    assert send(host, RESET, every=True) == 0
    assert states(host) == [EMPTY] * 8
    assert read(host, 0) == bytes(BLOCK)
    assert send(host, EXTEND, every=True) == INVALID_FIELD


@pytest.mark.parametrize("action", [0, 6, 0x11, 0xFF])
def test_actions_that_are_reserved(host: Host, action: int) -> None:
    assert send(host, action) == INVALID_FIELD


def test_an_action_names_the_first_block_of_a_zone(host: Host) -> None:
    for lba in (1, BLOCKS - 1, 8 * BLOCKS, (1 << 64) - 1):
        assert send(host, OPEN, lba) == INVALID_FIELD


def test_a_descriptor_extension_makes_a_zone_active(host: Host) -> None:
    host.put(b"hello".ljust(64, b"!"))
    assert send(host, EXTEND, BLOCKS) == 0
    assert zone(host, 1) == Zone(CLOSED, CAPACITY, BLOCKS, BLOCKS, 0x80)
    done = asked(host, RECEIVE, BLOCKS, 4096 // 4 - 1, 1)
    count, zones = decoded(host.data(4096), 128)
    assert (done.status, count, len(zones)) == (0, 7, 7)
    assert host.data(4096)[128:192] == b"hello".ljust(64, b"!")
    send(host, RESET, BLOCKS)
    assert zone(host, 1).attributes == 0


def test_reports_select_by_state(host: Host) -> None:
    write(host, 0)
    send(host, OPEN, BLOCKS)
    send(host, FINISH, 2 * BLOCKS)
    write(host, 3 * BLOCKS)
    send(host, CLOSE, 3 * BLOCKS)
    found = {
        option: [one.first // BLOCKS for one in report(host, options=option)[1]]
        for option in (*range(8), 9)
    }
    assert found == {
        0: [*range(8)], 1: [4, 5, 6, 7], 2: [0], 3: [1], 4: [3], 5: [2], 6: [], 7: [], 9: [],
    }  # fmt: skip
    assert report(host, 2 * BLOCKS + 3, 1) == report(host, 3 * BLOCKS, 1)
    assert [asked(host, RECEIVE, 0, 15, one << 8).status for one in (8, 0xA, 0x3F, 0xFF)] == 4 * [
        INVALID_FIELD
    ]
    assert asked(host, RECEIVE, 0, 15, 2).status == INVALID_FIELD
    assert asked(host, RECEIVE, 8 * BLOCKS, 15).status == OUT_OF_RANGE


def test_a_report_counts_what_there_is_or_what_it_has(host: Host) -> None:
    for size, listed in ((64, 0), (128, 1), (188, 1), (192, 2)):
        assert [n := report(host, size=size)[0], len(report(host, size=size)[1])] == [8, listed], n
        assert report(host, partial=True, size=size)[0] == listed


def test_the_controller_closes_a_zone_that_it_has_opened() -> None:
    with powered(zones=40) as host:
        for number in range(OPENED):
            assert write(host, number * BLOCKS).status == 0
        assert write(host, 1).status == 0  # zone 0 was written last
        assert write(host, OPENED * BLOCKS).status == 0
        states = [one.state for one in report(host)[1]]
        assert states == [IMPLICIT, CLOSED, *[IMPLICIT] * (OPENED - 1), *[EMPTY] * 23]


def test_a_namespace_has_limits_of_its_own() -> None:
    with powered(limits=ZoneLimits(3, 1, cross_zone_reads=False)) as host:
        assert struct.unpack_from("<HHII", identify(host, 0x05, 1, 2)) == (0, 0, 2, 0)
        assert [send(host, OPEN, number * BLOCKS) for number in (0, 1)] == [0, TOO_MANY_OPEN]
        assert send(host, CLOSE, 0) == 0
        assert [write(host, number * BLOCKS).status for number in (1, 2)] == [0, 0]
        assert states(host)[:3] == [CLOSED, CLOSED, IMPLICIT]
        assert write(host, 3 * BLOCKS).status == TOO_MANY_ACTIVE
        for opcode in (READ, VERIFY, COMPARE):
            assert asked(host, opcode, BLOCKS - 1, 0).status in (0, 0x285)
            assert asked(host, opcode, BLOCKS - 1, 1).status == BOUNDARY
        assert copy(host, 2 * BLOCKS + 1, (BLOCKS - 1, 2)) == BOUNDARY


def test_an_append_has_a_limit() -> None:
    with powered(settings=RpuSettings(append_limit=8192)) as host:
        assert identify(host, 0x06, csi=2)[:2] == bytes([1, 0])
        assert write(host, 0, 2, opcode=APPEND).status == 0
        assert asked(host, APPEND, 0, 2).status == INVALID_FIELD
        assert zone(host, 0).pointer == 2


def test_limits_of_open_and_active_zones() -> None:
    with powered(zones=40) as host:
        page = identify(host, 0x05, 1, 2)
        assert struct.unpack_from("<II", page, 4) == (ACTIVE - 1, OPENED - 1)
        for number in range(OPENED):
            assert send(host, OPEN, number * BLOCKS) == 0
        before = report(host)
        assert send(host, OPEN, OPENED * BLOCKS) == TOO_MANY_OPEN
        assert write(host, OPENED * BLOCKS).status == TOO_MANY_OPEN
        assert write(host, OPENED * BLOCKS, opcode=APPEND).status == TOO_MANY_OPEN
        assert report(host) == before
        for number in range(OPENED, ACTIVE):
            assert send(host, EXTEND, number * BLOCKS) == 0
        assert send(host, OPEN, every=True) == TOO_MANY_OPEN
        send(host, CLOSE, every=True)
        before = report(host)
        assert send(host, OPEN, ACTIVE * BLOCKS) == TOO_MANY_ACTIVE
        assert write(host, ACTIVE * BLOCKS).status == TOO_MANY_ACTIVE
        assert send(host, EXTEND, ACTIVE * BLOCKS) == TOO_MANY_ACTIVE
        assert send(host, OPEN, every=True) == TOO_MANY_OPEN
        assert report(host) == before
        assert send(host, FINISH, ACTIVE * BLOCKS) == 0
        assert send(host, RESET, 0) == 0
        assert write(host, 35 * BLOCKS).status == 0


def test_a_copy_goes_to_a_write_pointer(host: Host) -> None:
    write(host, 0, 2, fill=5)
    assert copy(host, BLOCKS, (0, 2), (1, 1)) == 0
    assert zone(host, 1) == Zone(IMPLICIT, CAPACITY, BLOCKS, BLOCKS + 3, 0)
    assert read(host, BLOCKS + 2) == b"\x05" * BLOCK
    assert copy(host, BLOCKS, (0, 2)) == INVALID_WRITE
    assert copy(host, BLOCKS + 3, (0, 10)) == BOUNDARY
    assert zone(host, 1).pointer == BLOCKS + 3


def test_other_commands(host: Host) -> None:
    assert asked(host, FLUSH, 0).status == 0
    host.put(struct.pack("<IIQ", 0, 1, 0))
    assert asked(host, DEALLOCATE, 4 << 32).status == 0


def test_there_are_no_fused_operations(host: Host) -> None:
    queue = host.io[1]
    host.place(queue, COMPARE, 1, flags=1, nsid=1, prp1=DATA, cdws=(0, 0, 0))
    host.place(queue, 1, 2, flags=2, nsid=1, prp1=DATA, cdws=(0, 0, 0))
    host.ring(queue)
    host.service()
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(1, 0xA), (2, 0xA)]
    assert zone(host, 0).state == EMPTY


def test_an_uncorrectable_block_is_gone_with_a_reset(host: Host) -> None:
    assert write(host, 0, opcode=UNCORRECTABLE).status == 0
    assert asked(host, READ, 0, 0).status == 0x281
    assert send(host, RESET) == 0
    assert read(host, 0) == bytes(BLOCK)


def test_zones_outlive_a_power_cycle(tmp_path: Path) -> None:
    path = tmp_path / "drive"
    with powered(path) as host:
        for number in range(4):
            write(host, number * BLOCKS, 2, fill=number + 1)
        host.put(b"extension".ljust(64))
        send(host, EXTEND, 4 * BLOCKS)
        send(host, OPEN, 5 * BLOCKS)
        send(host, CLOSE, BLOCKS)
        send(host, FINISH, 2 * BLOCKS)
        send(host, RESET, 3 * BLOCKS)
    with powered(path) as host:
        assert [one.state for one in report(host)[1]] == [
            CLOSED, CLOSED, FULL, EMPTY, CLOSED, EMPTY, EMPTY, EMPTY,
        ]  # fmt: skip
        assert zone(host, 0).pointer == 2
        assert asked(host, RECEIVE, 4 * BLOCKS, 63, 1).status == 0
        assert host.data(192)[128:] == b"extension".ljust(64)
        assert write(host, 2, fill=9).status == 0
        assert [read(host, at)[0] for at in range(4)] == [1, 1, 9, 0]

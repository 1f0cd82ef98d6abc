"""Zones that a drive changes by itself, or wants changed: the list, the event, recommendations; and
zones of a drive that is moved."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from csd_spec.faults import Fault, FaultKind
from potash_device.media.drive import Drive
from potash_device.media.shapes import ZoneLimits
from potash_firmware.rpu.namespaces.zones import ZoneChanges
from support.memory import identify
from support.migration import moved
from support.nvme_host import DATA, Host
from support.zones import (
    BLOCK,
    BLOCKS,
    CAPACITY,
    CLOSE,
    DEALLOCATE,
    EMPTY,
    EXPLICIT,
    FINISH,
    FLUSH,
    FULL,
    IMPLICIT,
    INVALID_FIELD,
    INVALID_TRANSITION,
    INVALID_WRITE,
    NO_POINTER,
    OFFLINE,
    OPEN,
    READ,
    READ_ONLY,
    RESET,
    Zone,
    asked,
    copy,
    powered,
    read,
    report,
    send,
    shape,
    states,
    write,
    zone,
)


@pytest.fixture
def host() -> Iterator[Host]:
    with powered() as found:
        yield found


def test_zones_move_with_the_drive_as_they_are(host: Host) -> None:
    write(host, 0, fill=3)
    send(host, OPEN, BLOCKS)
    write(host, 2 * BLOCKS)
    send(host, CLOSE, 2 * BLOCKS)
    write(host, 3 * BLOCKS)
    protect(host, 1)
    protect(host, 0)
    write(host, 4 * BLOCKS)
    send(host, OPEN, 5 * BLOCKS)
    before = report(host)
    with Drive.open(None, (shape(),)) as drive, Host(drive=drive) as other:
        moved(host, other)
        assert report(other) == before
        assert [one.state for one in before[1]][:6] == [FULL] * 4 + [IMPLICIT, EXPLICIT]
        assert changed_zones(other) == [4, 0, BLOCKS, 2 * BLOCKS, 3 * BLOCKS]
        assert read(other, 0) == b"\x03" * BLOCK
        assert write(other, 4 * BLOCKS + 1).status == 0
        assert write(other, 5 * BLOCKS + 1).status == INVALID_WRITE


def changed_zones(host: Host, nsid: int = 1, *, retain: bool = False) -> list[int]:
    """The Changed Zone List without its unused entries: their number, and first blocks."""
    done = host.command(
        host.admin, 2, nsid=nsid, prp1=DATA, cdws=(1023 << 16 | retain << 15 | 0xBF,)
    )
    assert done.status == 0, hex(done.status)
    count, *zones = struct.unpack("<512Q", host.data(4096))
    used = 0 if count == 0xFFFF else count
    assert not any(zones[used:])
    return [count, *zones[:used]]


def protect(host: Host, state: int) -> None:
    """Set the feature Namespace Write Protection Config."""
    assert host.command(host.admin, 9, nsid=1, cdws=(0x84, state)).status == 0


def events(host: Host) -> list[tuple[int, int]]:
    """Dwords 0 and 1 of the events that the drive has for the host; no request is left."""
    host.place(host.admin, 0xC, 0x77)
    host.ring(host.admin)
    host.service()
    found = [(one.dw0, one.dw1) for one in host.reap(host.admin)]
    if not found:
        host.place(host.admin, 8, 1, cdws=(0x77 << 16,))  # Abort
        host.ring(host.admin)
        host.service()
        assert len(host.reap(host.admin)) == 2
    return found


def test_the_drive_recommends_to_finish_and_to_reset_zones_that_are_left_alone() -> None:
    with powered(limits=ZoneLimits(finish_after=5, reset_after=9)) as host:
        assert host.command(host.admin, 9, cdws=CONFIGURE).status == 0

        def after(seconds: int) -> list[int]:
            """The attributes of the first zones, and whether there was an event."""
            for _ in range(seconds):
                host.now += 1
                host.service()
            happened = events(host)
            assert happened in ([], [(ZONES_CHANGED, 1)])
            if happened:
                changed_zones(host)
            return [zone(host, number).attributes for number in range(3)] + [len(happened)]

        write(host, 0)
        send(host, OPEN, BLOCKS)
        send(host, FINISH, 2 * BLOCKS)
        assert after(3) == [0, 0, 0, 0]
        write(host, 1)
        assert after(4) == [0, 2, 0, 1]
        assert after(4) == [2, 2, 4, 1]
        write(host, 2)
        send(host, FINISH, BLOCKS)
        send(host, RESET, 2 * BLOCKS)
        assert after(1) == [0, 0, 0, 0]
        assert after(10) == [2, 4, 0, 1]


ZONES_CHANGED = 0xBF << 16 | 0xEF << 8 | 2
CONFIGURE = (0x0B, 1 << 27)


def test_changed_zones_are_listed_and_are_an_event_of_their_namespace(host: Host) -> None:
    assert struct.unpack_from("<I", identify(host, 0x01), 92)[0] >> 27 & 1  # OAES
    assert changed_zones(host) == [0]
    write(host, BLOCKS)
    send(host, OPEN, 3 * BLOCKS)
    send(host, FINISH, 4 * BLOCKS)
    assert changed_zones(host) == [0]  # all by commands on these zones
    protect(host, 1)
    assert [one.state for one in report(host)[1]][1:5] == [FULL, EMPTY, FULL, FULL]
    assert changed_zones(host, retain=True) == [2, BLOCKS, 3 * BLOCKS]
    assert events(host) == []
    assert host.command(host.admin, 9, cdws=CONFIGURE).status == 0
    assert events(host) == [(ZONES_CHANGED, 1)]
    assert changed_zones(host) == [2, BLOCKS, 3 * BLOCKS]
    assert changed_zones(host) == [0]
    assert host.command(host.admin, 9, cdws=CONFIGURE).status == 0
    assert events(host) == []


RECOMMEND_FINISH, RECOMMEND_RESET = 1 << 1, 1 << 2


def attributes(host: Host) -> list[int]:
    return [one.attributes for one in report(host)[1]]


def test_a_reset_of_full_zones_is_recommended_until_it_is_done_or_no_longer_needed(
    host: Host,
) -> None:
    assert host.command(host.admin, 9, cdws=CONFIGURE).status == 0
    for number in range(4):
        write(host, number * BLOCKS)
    send(host, FINISH, 0)
    send(host, FINISH, BLOCKS)
    faults = host.rpu.controller.faults
    fault = faults.add(Fault(FaultKind.RESET_RECOMMENDED, lba=BLOCKS + 3, blocks=2 * BLOCKS))
    assert attributes(host) == [0, RECOMMEND_RESET, 0, 0, 0, 0, 0, 0]
    assert events(host) == [(ZONES_CHANGED, 1)]
    assert changed_zones(host) == [1, BLOCKS]
    # A zone that becomes full is one of them, too.
    send(host, FINISH, 2 * BLOCKS)
    assert events(host) == [(ZONES_CHANGED, 1)]
    assert changed_zones(host) == [1, 2 * BLOCKS]
    assert attributes(host) == [0, RECOMMEND_RESET, RECOMMEND_RESET, 0, 0, 0, 0, 0]
    assert [one.first for one in report(host, options=9)[1]] == [BLOCKS, 2 * BLOCKS]
    # The host follows the recommendation for one, and the drive does not need it for the other.
    send(host, RESET, BLOCKS)
    assert attributes(host) == [0, 0, RECOMMEND_RESET, 0, 0, 0, 0, 0]
    assert events(host) == []
    faults.clear(fault)
    assert attributes(host) == [0] * 8
    assert events(host) == [(ZONES_CHANGED, 1)]
    assert changed_zones(host) == [1, 2 * BLOCKS]
    assert report(host, options=9)[0] == 0


def test_finishing_active_zones_is_recommended(host: Host) -> None:
    write(host, 0)
    send(host, OPEN, BLOCKS)
    write(host, 2 * BLOCKS)
    send(host, CLOSE, 2 * BLOCKS)
    write(host, 3 * BLOCKS)
    send(host, FINISH, 3 * BLOCKS)
    host.rpu.controller.faults.add(Fault(FaultKind.FINISH_RECOMMENDED, nsid=1))
    assert attributes(host) == [RECOMMEND_FINISH] * 3 + [0] * 5
    assert changed_zones(host) == [3, 0, BLOCKS, 2 * BLOCKS]
    for first in range(0, 3 * BLOCKS, BLOCKS):
        send(host, FINISH, first)
    assert attributes(host) == [0] * 8
    assert host.command(host.admin, 0x80, nsid=1, cdws=(1,)).status == 0  # Format
    write(host, BLOCKS)
    assert attributes(host) == [0, RECOMMEND_FINISH] + [0] * 6
    assert changed_zones(host) == [1, BLOCKS]


def test_recommendations_are_not_on_the_media(tmp_path: Path) -> None:
    path = tmp_path / "drive"
    with powered(path) as host:
        write(host, 0)
        send(host, FINISH, 0)
        host.rpu.controller.faults.add(Fault(FaultKind.RESET_RECOMMENDED))
        assert attributes(host)[0] == RECOMMEND_RESET
    with powered(path) as host:
        assert zone(host, 0)[0] == FULL
        assert attributes(host) == [0] * 8


def test_the_changed_zone_list_is_of_one_zoned_namespace(host: Host) -> None:
    for nsid, status in ((0, 0xB), (2, INVALID_FIELD), (0xFFFF_FFFF, 0xB)):
        done = host.command(host.admin, 2, nsid=nsid, cdws=(15 << 16 | 0xBF,))
        assert done.status == status


def test_more_changed_zones_than_the_list_holds() -> None:
    with powered(zones=512) as host:
        (namespace,) = host.rpu.controller.namespaces.zoned
        namespace.zones.changes = ZoneChanges(range(511))
        assert changed_zones(host) == [511, *range(0, 511 * BLOCKS, BLOCKS)]
        namespace.zones.changes = ZoneChanges(range(512))
        assert changed_zones(host) == [0xFFFF]


def test_zones_of_media_that_have_lost_writes_are_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with powered(tmp_path / "drive") as host:
        assert host.command(host.admin, 9, cdws=CONFIGURE).status == 0
        write(host, 0, fill=3)

        def fails(_: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fails)
            assert asked(host, FLUSH, 0).status == 0x280
        assert states(host) == [READ_ONLY] * 8
        assert (ZONES_CHANGED, 1) in events(host)
        assert changed_zones(host) == [8, *range(0, 8 * BLOCKS, BLOCKS)]
        assert write(host, 1).status != 0
        assert read(host, 0) == b"\x03" * BLOCK


def test_a_damaged_record_makes_its_zone_read_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "drive"
    with powered(path) as host:
        write(host, 0, fill=3)
        write(host, BLOCKS, fill=4)
    with path.open("r+b") as file:
        file.seek(8 * BLOCKS * BLOCK + 3)
        file.write(b"?")
    with powered(path) as host:
        assert "the records of 1 zones are damaged" in caplog.text
        assert zone(host, 0)[:4] == (0xD, CAPACITY, 0, NO_POINTER)
        assert changed_zones(host) == [1, 0]  # one zone, whose first block is 0
        assert read(host, 0) == b"\x03" * BLOCK
        assert write(host, 1).status == 0x1BA
        assert send(host, RESET) == INVALID_TRANSITION
        assert send(host, OFFLINE) == send(host, OFFLINE) == 0
        assert asked(host, READ, 0, 0).status == write(host, 1).status == 0x1BB
        assert copy(host, BLOCKS + 1, (0, 1)) == 0x1BB
        host.put(struct.pack("<IIQIIQ", 0, 1, BLOCKS, 0, 1, 0))
        assert [asked(host, DEALLOCATE, ad << 32 | 1).status for ad in (0, 4)] == [0x1BB] * 2
        assert zone(host, 1).pointer == BLOCKS + 1
        assert host.command(host.admin, 0x80, nsid=1, cdws=(0,)).status == 0  # Format, 512 bytes
        assert report(host)[1][0] == Zone(EMPTY, 96, 0, 0, 0)
        assert host.command(host.io[1], 1, nsid=1, prp1=DATA, cdws=(0, 0, 1)).status == 0
        assert report(host)[1][0].pointer == 2

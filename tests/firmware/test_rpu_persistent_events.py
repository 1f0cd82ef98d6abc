"""The persistent event log: what is noted, how a host reads it, and what it outlives."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from nvme_spec.persistent_events import FormatStarted
from potash_device.media.file import FileMedia
from potash_device.media.sidecar import SIDECAR_SIZE
from potash_firmware import __version__
from support.nvme_host import CC, DATA, PAGE, Host

GET_LOG, SET_FEATURES, DOWNLOAD, COMMIT, IDENTIFY = 0x02, 0x09, 0x11, 0x10, 0x06
READ, ESTABLISH, RELEASE, HEADER = 0, 1, 2, 3
"""Actions, bits 9:8 of CDW10."""

REVISION = f"{__version__:8}".encode()

SNAPSHOT, FIRMWARE, TIMESTAMP, RESET, HARDWARE, FORMAT, TELEMETRY = 1, 2, 3, 4, 5, 7, 0xC
UNSAFE_SHUTDOWN, FATAL = 8, 9

Start = Callable[[], Host]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def start() -> Host:
        return Host(sidecar=FileMedia.open(tmp_path / "sidecar", SIDECAR_SIZE))

    return start


def ask(host: Host, action: int, size: int = 512, offset: int = 0) -> int:
    cdws = ((size // 4 - 1) << 16 | action << 8 | 0x0D, 0, offset)
    return host.command(host.admin, GET_LOG, cdws=cdws).status


def log(host: Host) -> bytes:
    """The whole log, read as nvme-cli does: establish, read in pieces, release."""
    assert ask(host, ESTABLISH) == 0
    (length,) = struct.unpack_from("<Q", host.data(512), 8)
    found = b""
    for at in range(0, length, 256):
        assert ask(host, READ, 256, at) == 0
        found += host.data(256)
    assert ask(host, RELEASE) == 0
    return found[:length]


def events(host: Host) -> list[tuple[int, bytes]]:
    """Type and data of each event, the newest first; the headers as figure 225 has them."""
    page = log(host)
    found, at = [], 512
    while at < len(page):
        kind, revision, ehl, pit, cntlid = struct.unpack_from("<BBBBH", page, at)
        vsil, size = struct.unpack_from("<HH", page, at + 20)
        assert (revision, ehl, pit, cntlid, vsil) == (1, 21, 3, 0, 0)
        found.append((kind, page[at + 24 : at + 24 + size]))
        at += 24 + size
    assert struct.unpack_from("<I", page, 4) == (len(found),)
    return found


def kinds(host: Host) -> list[int]:
    return [kind for kind, _ in events(host)]


def restart(host: Host) -> None:
    host.disable()
    host.now += 5
    host.enable()


def test_the_log_begins_with_what_the_device_is(host: Host) -> None:
    page = log(host)
    assert (page[0], page[16], struct.unpack_from("<H", page, 18)) == (0x0D, 3, (492,))
    assert struct.unpack_from("<QHH", page, 44) == (1, 0x1B96, 0x1B96)
    assert page[56:76] == b"POTASH0001          "
    assert page[76:104] == b"Potash computational storage"
    assert page[116:129] == b"nqn.2014-08.o"
    supported = [bit for bit in range(256) if page[480 + bit // 8] >> bit % 8 & 1]
    assert supported == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0xA, 0xC, 0xD]
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0
    assert host.data(1, DATA + 261)[0] & 1 << 4  # LPA
    assert host.data(4, DATA + 352) == b"\x01\0\0\0"  # PELS, in units of 64 KiB


def test_power_on_is_an_event_with_a_snapshot_and_first_use_is_none(host: Host) -> None:
    (snapshot, smart), (reset, how) = events(host)
    assert (snapshot, reset) == (SNAPSHOT, RESET)
    assert (smart[1:3], smart[3]) == ((313).to_bytes(2, "little"), 100)
    assert int.from_bytes(smart[112:128], "little") == 1
    assert how[:8] == REVISION
    assert struct.unpack_from("<HBB12xIQQ", how, 8) == (0, 0, 0, 1, 0, 0)


def test_a_reset_is_an_event_and_says_whether_it_activated_firmware(host: Host) -> None:
    host.now += 7
    restart(host)
    assert kinds(host) == [RESET, SNAPSHOT, RESET]
    host.put(b"PTSHFW1\0" + b"9.8.7\0\0\0" + bytes(112))
    assert host.command(host.admin, DOWNLOAD, cdws=(31, 0)).status == 0
    assert host.command(host.admin, COMMIT, cdws=(3 | 1 << 3,)).status == 0
    restart(host)
    (reset, how), (firmware, committed) = events(host)[:2]
    assert (reset, firmware) == (RESET, FIRMWARE)
    assert how[:8] == b"9.8.7   "
    assert struct.unpack_from("<HBB", how, 8) == (0, 1, 0)
    assert committed == REVISION + b"9.8.7   " + bytes([1, 3, 0, 0, 0, 0])


def test_a_commit_that_fails_is_an_event_with_its_status(host: Host) -> None:
    assert host.command(host.admin, COMMIT, cdws=(2,)).status == 0x107
    kind, committed = events(host)[0]
    assert kind == FIRMWARE
    assert committed == REVISION + b" " * 8 + bytes([0, 2, 1, 7, 0, 0])


def test_controller_fatal_status_is_an_event(host: Host) -> None:
    host.disable()
    host.write32(0x24, 0)  # AQA: no admin queue can be that small
    host.write32(CC, 4 << 20 | 6 << 16 | 1)
    host.service()
    assert host.fatal
    host.disable()
    host.now += 5
    host.enable()
    assert kinds(host)[:2] == [RESET, HARDWARE]
    assert events(host)[1][1] == struct.pack("<HH", FATAL, 0)


def test_a_host_that_resets_without_pause_does_not_fill_the_log(host: Host) -> None:
    for _ in range(20):
        host.disable()
        host.now += 0.1
        host.enable()
    assert kinds(host).count(RESET) == 2  # one a second


def test_what_happens_while_a_host_reads_is_not_in_what_it_reads(host: Host) -> None:
    assert ask(host, ESTABLISH) == 0
    before = host.data(512)
    host.rpu.controller.reports.persistent_events.add(FormatStarted(nsid=1))
    assert ask(host, READ) == 0
    assert host.data(512) == before
    assert ask(host, RELEASE) == 0
    assert kinds(host)[0] == FORMAT
    assert struct.unpack_from("<H", before, 372) == (1,)  # the generation
    assert struct.unpack_from("<H", log(host), 372) == (3,)


def test_a_context_is_established_once_and_read_while_it_lasts(host: Host) -> None:
    assert ask(host, READ) == 0x00C
    assert ask(host, RELEASE) == 0
    assert ask(host, ESTABLISH) == 0
    assert ask(host, ESTABLISH) == 0x00C
    assert ask(host, READ) == 0
    restart(host)  # a controller reset releases it
    assert ask(host, READ) == 0x00C
    assert ask(host, ESTABLISH, offset=1 << 20) == 0x002
    assert ask(host, READ) == 0x00C  # nothing was established for that


def test_release_gives_no_data(host: Host) -> None:
    host.put(b"\xa5" * PAGE)
    assert ask(host, RELEASE) == 0
    assert host.data(PAGE) == b"\xa5" * PAGE


def test_the_header_alone_establishes_a_context_or_says_that_there_is_one(host: Host) -> None:
    """LSP 11b is announced by bit 0 of what is specific to the page."""
    assert host.command(host.admin, GET_LOG, cdws=(255 << 16,)).status == 0
    assert host.data(4, DATA + 4 * 0x0D) == b"\x01\0\x01\0"
    assert ask(host, HEADER, 1024) == 0
    page = host.data(1024)
    assert page[512:] == bytes(512)
    assert page[374:378] == bytes(4)
    assert ask(host, HEADER) == 0
    assert struct.unpack_from("<I", host.data(512), 374) == (1 << 18 | 1 << 16,)
    assert ask(host, READ) == 0


def test_events_outlive_a_power_cycle(start: Start) -> None:
    with start() as host:
        host.enable()
        host.rpu.controller.reports.persistent_events.add(FormatStarted(nsid=9, fna=1, cdw10=0x200))
        host.now += 2  # killed after that: an event is on record a second later
        host.service()
        host.executor.run_all()
    with start() as host:
        host.enable()
        found = events(host)
        assert [kind for kind, _ in found] == [SNAPSHOT, RESET, HARDWARE, FORMAT, SNAPSHOT, RESET]
        assert found[2][1] == struct.pack("<HH", UNSAFE_SHUTDOWN, 0)
        assert found[3][1] == struct.pack("<IB3xI", 9, 1, 0x200)


def test_a_new_timestamp_is_an_event_with_the_one_before(host: Host) -> None:
    restart(host)
    year_2020, year_2021 = 1_577_836_800_000, 1_609_459_200_000
    host.now += 2.5
    host.put(year_2020.to_bytes(8, "little"))
    assert host.command(host.admin, SET_FEATURES, cdws=(0x0E,)).status == 0
    host.now += 1.5
    host.put(year_2021.to_bytes(8, "little"))
    assert host.command(host.admin, SET_FEATURES, cdws=(0x0E,)).status == 0
    (new, old) = (data for kind, data in events(host) if kind == TIMESTAMP)
    set_by_host = 1 << 49
    assert struct.unpack("<QQ", old) == (7500, 7500)
    assert struct.unpack("<QQ", new) == (year_2020 + 1500 | set_by_host, 9000)
    assert host.command(host.admin, SET_FEATURES, prp1=1 << 40, cdws=(0x0E,)).status != 0
    assert kinds(host).count(TIMESTAMP) == 2


def test_a_day_later_there_is_a_snapshot(host: Host) -> None:
    host.now += 24 * 3600
    host.service()
    assert kinds(host)[0] == SNAPSHOT
    host.now += 3600
    host.service()
    assert kinds(host).count(SNAPSHOT) == 2


def test_the_oldest_events_make_room_for_new_ones(start: Start) -> None:
    with start() as host:
        host.enable()
        for nsid in range(1, 2000):
            host.rpu.controller.reports.persistent_events.add(FormatStarted(nsid=nsid))
        page = log(host)
        assert len(page) <= 512 + (16 << 10) <= 64 << 10
        newest = struct.unpack_from("<I", page, 512 + 24)
        assert newest == (1999,)
        host.now += 2
        host.service()
        host.executor.run_all()
    with start() as host:  # and the sidecar has room for them all
        host.enable()
        assert kinds(host)[3:].count(FORMAT) > 300


@pytest.mark.parametrize(
    "section",
    [17, "?", [], "AAAA", "BAEVAwAA", "A" * 40],
    ids=["number", "no base 64", "list", "short", "cut", "zeroes"],
)
def test_a_sidecar_with_nonsense_is_a_log_that_begins_anew(section: object) -> None:
    with Host() as host:
        host.sidecar.put("events", section)
        host.rpu.power_on()  # without a shutdown before, which is the first event
        host.enable()
        assert kinds(host) == [SNAPSHOT, HARDWARE]


def test_telemetry_that_a_host_creates_is_an_event(host: Host) -> None:
    assert host.command(host.admin, GET_LOG, cdws=(127 << 16 | 1 << 8 | 7,)).status == 0
    header = host.data(512)
    assert events(host)[0] == (TELEMETRY, header)


def test_format_and_sanitize_are_events_when_they_begin_and_when_they_end(host: Host) -> None:
    assert host.command(host.admin, 0x80, nsid=1, cdws=(0,)).status == 0
    assert host.command(host.admin, 0x80, nsid=3, cdws=(1,)).status == 0x002
    assert host.command(host.admin, 0x84, cdws=(2,)).status == 0
    while host.executor.waiting:
        host.executor.run_all()
        host.service()
    (ended, how), (began, what), *formats = events(host)[:6]
    assert (ended, began) == (0xA, 9)
    assert struct.unpack_from("<HHH", how) == (0xFFFF, 1 << 8 | 1, 0)  # erased, and a success
    assert struct.unpack("<III", what) == (1 << 30 | 6, 2, 0)
    assert formats == [
        (8, struct.pack("<IBBHI", 3, 0, 1, 0, 0x002 << 1)),
        (7, struct.pack("<IB3xI", 3, 0, 1)),
        (8, struct.pack("<IBBHI", 1, 0, 0, 0, 0)),
        (7, struct.pack("<IB3xI", 1, 0, 0)),
    ]


def test_a_deleted_and_a_created_namespace_are_events(host: Host) -> None:
    assert host.command(host.admin, 0x0D, nsid=1, cdws=(1,)).status == 0
    host.put(struct.pack("<QQ10xB", 100, 100, 1).ljust(PAGE, b"\0"))
    assert host.command(host.admin, 0x0D, cdws=(0,)).dw0 == 1
    (_, created), (_, deleted) = [one for one in events(host) if one[0] == 6]
    assert struct.unpack_from("<I4xQ8xQB", created) == (0, 100, 100, 1)
    assert struct.unpack_from("<I", created, 44) == (1,)
    assert deleted == struct.pack("<I40xI", 1, 1)

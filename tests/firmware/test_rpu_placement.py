"""Flexible data placement, by the bytes of NVM Express Base 2.1, figures 279 to 289."""

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from potash.cli.device.modelled_time import modelled
from potash.sections import TimeSection
from potash_device.media.drive import Drive
from potash_device.media.file import FileMedia
from potash_device.media.shapes import NamespaceShape
from potash_device.media.sidecar import SIDECAR_SIZE
from potash_device.media.store import MemoryMedia
from potash_firmware.ftl.drive import Drive as ModelledDrive
from potash_firmware.ftl.requests import Op
from potash_firmware.rpu.placement import SECTION, PlacementSettings
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.timing.modelled import TimeSettings
from support.drive_reference import Reference
from support.modelled_time import PROFILE, completions
from support.nvme_host import DATA, PAGE, Cqe, Host, Queue
from support.placement import (
    COMPARE,
    CONFIGURATIONS,
    COPY,
    DIRECTIVE_RECEIVE,
    DIRECTIVE_SEND,
    EVENTS,
    GET_FEATURES,
    GET_LOG,
    HANDLES,
    IDENTIFY,
    INVALID_FIELD,
    INVALID_IDENTIFIER,
    INVALID_LIST,
    INVALID_LOG_PAGE,
    INVALID_OPCODE,
    MANAGE,
    MANAGEMENT_RECEIVE,
    MANAGEMENT_SEND,
    NOT_FULLY_WRITTEN,
    PLACEMENT,
    PLACEMENT_EVENTS,
    READ,
    SEQUENCE_ERROR,
    SET_FEATURES,
    SETTINGS,
    STATISTICS,
    UNIT,
    USAGE,
    VERIFY,
    WRITE,
    WRITE_UNCORRECTABLE,
    WRITE_ZEROES,
    ZONE_APPEND,
    enable,
    events,
    log,
    statistics,
    status,
    update,
    write,
)
from support.zones import shape


@pytest.fixture
def host() -> Iterator[Host]:
    with Host({1: MemoryMedia.create(4 << 20)}, SETTINGS) as host:
        host.enable()
        host.create_io_queue()
        yield host


def test_a_controller_says_what_it_has(host: Host) -> None:
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0
    page = host.data(4096)
    (ctratt,) = struct.unpack_from("<I", page, 96)
    assert ctratt & (1 << 19 | 1 << 4) == 1 << 19 | 1 << 4
    assert struct.unpack_from("<H", page, 340) == (1,)
    assert struct.unpack_from("<H", page, 256)[0] & 1 << 5
    assert host.command(host.admin, IDENTIFY, nsid=1, cdws=(0,)).status == 0
    assert struct.unpack_from("<H", host.data(104), 102) == (1,)
    assert host.command(host.admin, IDENTIFY, cdws=(0x19,)).status == 0
    assert struct.unpack_from("<3H", host.data(6)) == (1, 1, 0)
    feature = host.command(host.admin, GET_FEATURES, cdws=(PLACEMENT, 1))
    assert (feature.status, feature.dw0) == (0, 1)


def test_configurations_and_usage(host: Host) -> None:
    page = log(host, CONFIGURATIONS, 96)
    assert struct.unpack_from("<HBxI", page) == (0, 0, 16 + 80)
    size, attributes, vendor, groups, handles, most, namespaces, unit, limit = struct.unpack_from(
        "<HBBIHHIQI", page, 16
    )
    assert (size, attributes, vendor, groups, handles, most) == (80, 0x90, 0, 1, 3, 2)
    assert (namespaces, unit, limit) == (64, UNIT, 0)
    assert page[80:92] == b"\1\0\0\0" * 3
    assert log(host, USAGE, 32) == struct.pack("<H6x", 3) + b"\1\0\0\0\0\0\0\0" * 3


def test_writes_fill_the_units_of_their_handles(host: Host, queue: Queue) -> None:
    whole = UNIT // PAGE
    assert status(host, queue) == [(one, one, 0, whole) for one in range(3)]
    assert write(host, queue, 0).status == 0
    assert write(host, queue, 1, 0).status == 0
    assert write(host, queue, 2, 2, count=2).status == 0
    assert [one[3] for one in status(host, queue)] == [whole - 2, whole, whole - 2]
    for lba in range(whole - 2):
        assert write(host, queue, lba, 2).status == 0
    assert [one[3] for one in status(host, queue)] == [whole - 2, whole, whole]
    assert statistics(host) == ((whole + 2) * PAGE, (whole + 2) * PAGE, 0)


def test_reads_and_zeroes_take_no_room_and_copies_do(host: Host, queue: Queue) -> None:
    assert host.command(queue, READ, nsid=1).status == 0
    assert host.command(queue, WRITE_ZEROES, nsid=1).status == 0
    assert statistics(host)[0] == 0
    host.put(struct.pack("<8xQH14x", 3, 0))
    assert host.command(queue, COPY, nsid=1, cdws=(7, 0, 0)).status == 0
    assert statistics(host)[0] == PAGE


@pytest.mark.parametrize("opcode", [READ, COMPARE, VERIFY, WRITE_ZEROES, WRITE_UNCORRECTABLE])
def test_reserved_bits_are_no_directive(host: Host, queue: Queue, opcode: int) -> None:
    """fio leaves them set in the reads that verify its writes."""
    host.clear(DATA, PAGE)
    assert host.command(queue, opcode, nsid=1, cdws=(0, 0, 0xF << 20, 1 << 16)).status == 0


def test_copy_places_data_too(host: Host, queue: Queue) -> None:
    whole = UNIT // PAGE
    host.put(struct.pack("<8xQH14x", 3, 0))
    assert host.command(queue, COPY, nsid=1, cdws=(7, 0, 2 << 20, 1 << 16)).status == 0
    assert [one[3] for one in status(host, queue)] == [whole, whole - 1, whole]


@pytest.mark.parametrize("opcode", [WRITE, COPY])
def test_other_directives_are_refused(host: Host, queue: Queue, opcode: int) -> None:
    host.put(struct.pack("<8xQH14x", 3, 0))
    assert host.command(queue, opcode, nsid=1, cdws=(0, 0, 1 << 20)).status == INVALID_FIELD


def test_zone_append_places_data_too() -> None:
    with Drive.open(None, (shape(),)) as drive, Host(settings=SETTINGS, drive=drive) as host:
        host.css = 6
        host.enable()
        queue = host.create_io_queue()
        assert host.command(queue, ZONE_APPEND, nsid=1, cdws=(0, 0, 2 << 20, 2 << 16)).status == 0
        refused = host.command(queue, ZONE_APPEND, nsid=1, cdws=(0, 0, 1 << 20))
        assert refused.status == INVALID_FIELD
        placement = host.rpu.controller.placement
        assert placement is not None
        assert [UNIT - placement.available(handle) for handle in range(3)] == [0, 0, PAGE]


def test_an_update_begins_other_units(host: Host, queue: Queue) -> None:
    whole = UNIT // PAGE
    for identifier in range(3):
        assert write(host, queue, identifier, identifier).status == 0
    assert update(host, queue, 0, 2) == 0
    assert [one[3] for one in status(host, queue)] == [whole, whole - 1, whole]
    for wrong in ((3,), (0, 1, 2, 0)):
        assert update(host, queue, *wrong) == INVALID_FIELD
    for operation in (0, 2, 0xFF):
        for opcode in (MANAGEMENT_RECEIVE, MANAGEMENT_SEND):
            answer = host.command(queue, opcode, nsid=1, cdws=(operation, 15))
            assert answer.status == INVALID_FIELD


def test_events_come_for_the_handles_that_the_host_wants(host: Host, queue: Queue) -> None:
    assert write(host, queue, 0, 9).status == 0  # to the first handle
    assert [one[3] for one in status(host, queue)] == [UNIT // PAGE - 1, *[UNIT // PAGE] * 2]
    assert events(host) == []
    assert enable(host, 0, INVALID_IDENTIFIER, NOT_FULLY_WRITTEN) == 0
    assert write(host, queue, 0, 9).status == 0
    assert write(host, queue, 0, 1).status == 0
    assert update(host, queue, 0, 1) == 0
    assert update(host, queue, 0) == 0
    expected = [(INVALID_IDENTIFIER, 7, 9, 1, 0), (NOT_FULLY_WRITTEN, 7, 0, 1, 0)]
    assert events(host) == expected
    assert log(host, EVENTS, 4096) == bytes(4096)  # the controller's
    assert enable(host, 0, INVALID_IDENTIFIER, on=False) == 0
    assert write(host, queue, 0, 9).status == 0
    assert events(host) == expected
    answer = host.command(host.admin, GET_FEATURES, nsid=1, cdws=(PLACEMENT_EVENTS, 8 << 16))
    assert (answer.status, answer.dw0) == (0, 6)
    assert host.data(16) == bytes((0, 1, 1, 0, 2, 0, 3, 0, 0x80, 0, 0x81, 0, 0, 0, 0, 0))
    assert enable(host, 0, 0, 1, 2, 3, 0x80, 0x81) == 0
    assert enable(host, 3, INVALID_IDENTIFIER) == INVALID_FIELD
    assert enable(host, 0, 4) == INVALID_FIELD


def test_the_newest_events_are_kept(host: Host, queue: Queue) -> None:
    assert enable(host, 0, INVALID_IDENTIFIER) == 0
    for identifier in range(10, 80):
        assert write(host, queue, 0, identifier).status == 0
    assert [one[2] for one in events(host)] == list(range(17, 80))


def test_directives(host: Host) -> None:
    answer = host.command(host.admin, DIRECTIVE_RECEIVE, nsid=1, cdws=(1023, 1))
    assert answer.status == 0
    page = host.data(4096)
    assert [page[at] for at in (0, 32, 64)] == [0b101] * 3
    assert not any(page[at] for at in range(4096) if at not in (0, 32, 64))
    for cdw11 in (0x0101, 0x0201, 0x0002):
        refused = host.command(host.admin, DIRECTIVE_RECEIVE, nsid=1, cdws=(1023, cdw11))
        assert refused.status == INVALID_FIELD
    assert host.command(host.admin, DIRECTIVE_SEND, nsid=1, cdws=(0, 1)).status == INVALID_FIELD


def test_what_names_another_group_or_changes_the_drive_is_refused(host: Host) -> None:
    for lid in (9, CONFIGURATIONS, USAGE, STATISTICS, EVENTS):
        for group in (0, 2):
            cdws = (15 << 16 | lid, group << 16)
            assert host.command(host.admin, GET_LOG, cdws=cdws).status == INVALID_FIELD
    cases: tuple[tuple[tuple[int, ...], int], ...] = (
        ((PLACEMENT, 1, 1), 0),
        ((PLACEMENT, 1, 0), SEQUENCE_ERROR),
        ((PLACEMENT, 1, 0x101), SEQUENCE_ERROR),
        ((PLACEMENT, 2, 1), INVALID_FIELD),
    )
    for feature, expected in cases:
        assert host.command(host.admin, SET_FEATURES, cdws=feature).status == expected


def test_the_endurance_group_counts_in_billions_of_bytes(host: Host, queue: Queue) -> None:
    assert write(host, queue, 0).status == 0
    page = log(host, 9, 512)
    assert page[3] == 100
    assert int.from_bytes(page[64:80], "little") == 1
    assert int.from_bytes(page[112:128], "little") == 1
    assert int.from_bytes(page[160:176], "little") == 4 << 20


def test_a_drive_without_placement_has_none_of_it() -> None:
    with Host() as host:
        host.enable()
        queue = host.create_io_queue()
        for opcode in (DIRECTIVE_RECEIVE, DIRECTIVE_SEND):
            assert host.command(host.admin, opcode, nsid=1).status == INVALID_OPCODE
        for opcode in (MANAGEMENT_RECEIVE, MANAGEMENT_SEND):
            assert host.command(queue, opcode, nsid=1, cdws=(1,)).status == INVALID_OPCODE
        assert write(host, queue, 0, 0).status == INVALID_FIELD
        for lid in (9, CONFIGURATIONS, USAGE, STATISTICS, EVENTS):
            answer = host.command(host.admin, GET_LOG, cdws=(15 << 16 | lid, 1 << 16))
            assert answer.status == INVALID_LOG_PAGE
        for fid in (PLACEMENT, PLACEMENT_EVENTS):
            for opcode in (GET_FEATURES, SET_FEATURES):
                answer = host.command(host.admin, opcode, nsid=1, cdws=(fid, 1, 1))
                assert answer.status == INVALID_FIELD
        assert host.command(host.admin, IDENTIFY, cdws=(0x19,)).status == INVALID_FIELD


def create(host: Host, *handles: int, count: int | None = None) -> Cqe:
    data = bytearray(4096)
    struct.pack_into("<QQ", data, 0, 256, 256)
    struct.pack_into("<H", data, 392, len(handles) if count is None else count)
    struct.pack_into(f"<{len(handles)}H", data, 512, *handles)
    host.put(bytes(data))
    return host.command(host.admin, MANAGE)


def test_namespaces_get_the_handles_that_the_host_lists(tmp_path: Path) -> None:
    (tmp_path / "drive").mkdir()

    shapes = (NamespaceShape(1 << 20, handles=(1,)),)
    path = tmp_path / "drive"
    with (
        Drive.open(path, shapes, capacity=8 << 20) as drive,
        Host(settings=SETTINGS, drive=drive) as host,
    ):
        host.enable()
        for wrong in ((3,), (0, 0), (2, 200)):
            assert create(host, *wrong).status == INVALID_LIST
        assert create(host, count=129).status == INVALID_LIST
        made = create(host, 2, 1)
        assert (made.status, made.dw0) == (0, 2)
        made = create(host)
        assert (made.status, made.dw0) == (0, 3)
        assert create(host).status == INVALID_LIST  # none is left for the drive to choose
        assert create(host, 0).status == INVALID_LIST  # which it has chosen for itself
    with Drive.open(path) as drive, Host(settings=SETTINGS, drive=drive) as host:
        host.enable()
        page = log(host, USAGE, 32)
        assert [page[at] for at in (8, 16, 24)] == [2, 1, 1]
        for nsid in (2, 3):
            host.put(struct.pack("<HH", 1, 0))
            assert host.command(host.admin, 0x15, nsid=nsid).status == 0
        queue = host.create_io_queue()
        assert [one[:2] for one in status(host, queue, 2)] == [(0, 2), (1, 1)]
        assert [one[:2] for one in status(host, queue, 3)] == [(0, 0)]


def test_what_was_counted_outlives_a_power_cycle(tmp_path: Path) -> None:
    def start() -> Host:
        media = {1: FileMedia.open(tmp_path / "1", 4 << 20)}
        return Host(media, SETTINGS, sidecar=FileMedia.open(tmp_path / "s", SIDECAR_SIZE))

    with start() as host:
        host.enable()
        queue = host.create_io_queue()
        assert enable(host, 0, INVALID_IDENTIFIER) == 0
        assert write(host, queue, 0, 5).status == 0
        assert write(host, queue, 0, 2).status == 0
        before = statistics(host), status(host, queue), events(host)
        host.rpu.power_off(clean=True)
    with start() as host:
        host.enable()
        queue = host.create_io_queue()
        assert (statistics(host), status(host, queue), events(host)) == before
        assert write(host, queue, 0, 6).status == 0
        assert [one[2] for one in events(host)] == [5, 6]


@pytest.mark.parametrize(
    "state",
    [
        [], {"written": -1, "moved": 0, "erased": 0}, {"used": [UNIT, "a", -1]}, {"enabled": [7]},
        {"enabled": [[9, "x"]], "events": [[1], ["a"] * 5, [1 << 70] * 5, 3], "used": 1},
    ],
)  # fmt: skip
def test_a_record_that_makes_no_sense_is_left_out(host: Host, queue: Queue, state: object) -> None:
    placement = host.rpu.controller.placement
    assert placement is not None
    host.sidecar.put(SECTION, state)
    placement.restore()
    assert statistics(host) == (0, 0, 0)
    assert events(host) == []
    assert status(host, queue) == [(one, one, 0, UNIT // PAGE) for one in range(3)]


@pytest.mark.parametrize("isolated", [False, True])
def test_a_handle_of_a_modelled_drive_is_a_stream(isolated: bool) -> None:
    profile = replace(PROFILE, streams=3, blocks=PROFILE.blocks + 4, isolated=isolated)
    drive, expected = ModelledDrive(profile), ModelledDrive(profile)
    settings = RpuSettings(placement=PlacementSettings(3, UNIT), time=TimeSettings(drive))
    unit = profile.superblock_pages
    with Host({1: MemoryMedia.create(1 << 20)}, settings) as host:
        host.enable()
        queue = host.create_io_queue()

        def timed(cid: int, opcode: int, *cdws: int) -> int:
            began = round(host.now * 1e9)
            host.place(queue, opcode, cid, nsid=1, cdws=cdws)
            host.ring(queue)
            host.service()
            return completions(host, queue)[cid] - began

        for page, identifier in enumerate((2, 2, 0, 9)):
            now = round(host.now * 1e9)
            stream = identifier if identifier < 3 else 0
            due = expected.submit(now, Op.WRITE, page, 1, stream) - now
            assert timed(page, WRITE, page, 0, 2 << 20, identifier << 16) == due
        assert drive.state.filled[:5].tolist() == [2, 0, 2, 0, 0]
        assert [one.host for one in drive.streams] == [2, 0, 2]
        assert log(host, CONFIGURATIONS, 96)[80:92] == bytes([1 + isolated, 0, 0, 0]) * 3
        assert [one[3] for one in status(host, queue)] == [unit - 2, unit, unit - 2]
        host.put(struct.pack("<H", 2))
        now = round(host.now * 1e9)
        assert timed(11, MANAGEMENT_SEND, 1) == expected.submit(now, Op.CLOSE, stream=2) - now
        assert drive.state.open[2] == -1
        placement = host.rpu.controller.placement
        assert placement is not None
        assert placement.statistics.hbmw == 4 * PAGE
        assert placement.statistics.mbmw == 4 * PAGE
        assert placement.unit == unit * PAGE


def handles(host: Host) -> list[tuple[int, ...]]:
    """Bytes of each handle: of the host, on flash, moved, padding."""
    page = log(host, HANDLES, 16 + 3 * 32)
    assert page[:16] == bytes([1, 0, 3]) + bytes(13)
    return [struct.unpack_from("<4Q", page, at) for at in range(16, len(page), 32)]


def test_handles_count_what_hosts_write(host: Host, queue: Queue) -> None:
    for identifier, count in ((2, 1), (0, 2), (2, 2), (9, 1)):
        assert write(host, queue, 0, identifier, count).status == 0
    assert handles(host) == [(3 * PAGE, 3 * PAGE, 0, 0), (0,) * 4, (3 * PAGE, 3 * PAGE, 0, 0)]
    assert statistics(host)[:2] == (6 * PAGE, 6 * PAGE)
    answer = host.command(host.admin, GET_LOG, cdws=(15 << 16 | HANDLES, 0, 128))
    assert answer.status == INVALID_FIELD  # an offset behind the page


@pytest.mark.parametrize("isolated", [False, True])
def test_handles_of_a_modelled_drive_count_what_it_moves(isolated: bool, tmp_path: Path) -> None:
    """Against the drive in plain Python, which counts pages of each stream itself. The counters go
    on after a power cycle, in which the drive's own begin again."""
    profile = replace(PROFILE, streams=3, blocks=PROFILE.blocks + 4, isolated=isolated)
    reference, random = Reference(profile), np.random.default_rng(1)

    def write_all(expected: list[list[int]]) -> None:
        with Host(
            {1: FileMedia.open(tmp_path / "1", 1 << 20)},
            RpuSettings(
                placement=PlacementSettings(3, UNIT), time=TimeSettings(ModelledDrive(profile))
            ),
            sidecar=FileMedia.open(tmp_path / "s", SIDECAR_SIZE),
        ) as host:
            host.enable()
            queue = host.create_io_queue()
            for cid in range(900):
                page, handle = (
                    int(random.integers(0, 240)),
                    int(random.choice(3, p=(0.7, 0.2, 0.1))),
                )
                fua = int(random.random() < 0.1)
                reference.submit(reference.now, Op.WRITE, page, 1, handle, bool(fua))
                cdws = (page, 0, fua << 30 | 2 << 20, handle << 16)
                host.place(queue, WRITE, cid, nsid=1, cdws=cdws)
                host.ring(queue)
                host.service()
                assert completions(host, queue)
            for counted, pages in zip(expected, reference.by_stream, strict=True):
                counted[0] += pages[0] * PAGE
                counted[1] += sum(pages) * PAGE
                counted[2] += pages[1] * PAGE
                counted[3] += pages[2] * PAGE
            assert handles(host) == [tuple(counted) for counted in expected]
            written, media, _ = statistics(host)
            assert written == sum(counted[0] for counted in expected)
            assert media == sum(counted[1] for counted in expected)
            host.rpu.power_off(clean=True)

    expected = [[0] * 4 for _ in range(3)]
    write_all(expected)
    assert min(counted[2] for counted in expected) > 0
    reference = Reference(profile)
    write_all(expected)


def test_zones_with_superblocks_of_their_own_are_of_no_handle() -> None:
    section = TimeSection("modelled", "tlc")
    with Drive.open(None, (shape(),)) as drive:
        time = modelled(section, drive, placement=SETTINGS.placement)
        with Host(settings=replace(SETTINGS, time=time), drive=drive) as host:
            host.css = 6
            host.enable()
            queue = host.create_io_queue()
            host.place(queue, ZONE_APPEND, 1, nsid=1, cdws=(0, 0, 2 << 20, 2 << 16))
            host.ring(queue)
            host.service()
            assert completions(host, queue)
            assert handles(host) == [(0,) * 4] * 3
            assert statistics(host)[0] == PAGE

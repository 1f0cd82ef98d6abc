"""A drive whose flash translation layer is an extension's: what its commands do, and a host sees."""

import json
import logging
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from csd_spec.notices import MOST_NOTICES, PAGE_SIZE, NoticeLog
from nvme_spec.status import Status
from potash_device.flash.profile import Profile
from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from potash_firmware.ftl.custom import CustomFtl
from potash_firmware.rpu.placement import PlacementSettings
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.timing.modelled import TimeSettings
from support import zones
from support.extended import settings
from support.modelled_time import PROFILE, completions, modelled, timing_of
from support.nvme_host import DATA, PAGE, Host, Queue

GET_LOG_PAGE, ASYNC_EVENT, WRITE, READ, DSM, FORMAT = 0x02, 0x0C, 0x01, 0x02, 0x09, 0x80
SHAPES = (NamespaceShape(160 * 4096, 4096), NamespaceShape(80 * 4096, 4096))
MICRO = 1000

MINE = """
    from potash_firmware.ftl.requests import Op

    asked = []

    @ftl
    class Mine:
        def __init__(self, profile):
            self.profile = profile
        def submit(self, time, op, first, count, stream, fua, hint):
            asked.append((op, first, count))
            if op is Op.WRITE and first == 3:
                raise ValueError("no place for 3")
            return time + 1000 * count

    @log_page(0xC5, name="Requests", size=4)
    def requests(drive):
        return len(asked).to_bytes(4, "little")
"""


def layered(folder: Path, text: str, profile: Profile = PROFILE) -> RpuSettings:
    """The settings of a drive with an extension, and its translation layer Mine."""
    found = settings(folder, text)
    assert found.extensions is not None
    drive = CustomFtl(found.extensions.ftls["Mine"], profile)
    return replace(found, time=TimeSettings(drive))


def write(host: Host, queue: Queue, page: int) -> dict[int, int]:
    """When a write of a page completes."""
    host.place(queue, WRITE, 1, nsid=1, cdws=(page, 0, 0))
    host.ring(queue)
    host.service()
    return completions(host, queue)


def test_commands_take_its_time_and_the_drive_goes_on_where_it_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Host(settings=layered(tmp_path, MINE)) as host:
        host.enable()
        queue = host.create_io_queue()
        assert write(host, queue, 0) == {1: MICRO}
        failed = host.command(queue, WRITE, nsid=1, cdws=(3, 0, 0))
        assert (failed.status, failed.dnr) == (Status.INTERNAL_ERROR, False)
        assert write(host, queue, 4) == {1: 2 * MICRO}
        (line,) = [one.message for one in caplog.records if one.levelno == logging.ERROR]
        assert line.startswith("Mine: ") and "mine.py, line 14: ValueError: no place for 3" in line
        # The health log and the drive's own log have defaults for what the class does not report.
        for lid in (0x02, 0xC1):
            assert (
                host.command(host.admin, GET_LOG_PAGE, nsid=1, cdws=(127 << 16 | lid,)).status == 0
            )
        extensions = host.rpu.controller.settings.extensions
        assert extensions is not None
        listed = [str(one) for one in extensions.listed]
        assert listed == ["log page C5h, Requests", "flash translation layer, Mine"]


def test_zones_are_like_other_blocks_to_one_that_knows_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with zones.powered(zones=4, settings=layered(tmp_path, MINE)) as host:
        assert "the FTL knows no zones" in caplog.text
        assert timing_of(host).held.zones == ()


HINTS = """
    import json
    from potash_firmware.ftl.requests import Op

    seen = []

    @ftl
    class Mine:
        data = True
        def __init__(self, profile):
            pass
        def submit(self, time, op, first, count, stream, fua, hint):
            if op is Op.WRITE:
                data = bytes(hint.data[:2]).hex(), len(hint.data)
                seen.append([first, count, *hint[:8], data, hint.offset])
            return time

    @log_page(0xC5, name="Hints", size=4096)
    def hints(drive):
        return json.dumps(seen).encode()
"""
PLAIN = [0, None, None, 0, 0, 0, False, False]


def hints(host: Host) -> list[list[Any]]:
    """What the translation layer has seen: page, number of pages, hint, data and offset."""
    host.put(bytes(4096))
    done = host.command(host.admin, GET_LOG_PAGE, nsid=0, cdws=(1023 << 16 | 0xC5,))
    assert done.status == 0
    found: list[list[Any]] = json.loads(host.data(4096).rstrip(b"\0"))
    return found


@pytest.mark.parametrize(
    ("dwords", "fields"),
    [
        ((0, 0, 0), PLAIN),
        # Frequency, latency, sequential and incompressible of CDW13.
        ((0, 0, 0x5), [0, None, True, 0, 5, 0, False, False]),
        ((0, 0, 0xE2), [0, None, False, 0, 2, 2, True, True]),
        ((0, 0, 0x86), [0, None, None, 0, 6, 0, False, True]),
        # The vendor specific directive.
        ((0, 15 << 20, 0x1234 << 16), [0, None, None, 0x1234, 0, 0, False, False]),
        ((0xABCD_0007, 15 << 20, 0x1234 << 16), [0, None, None, 0xABCD1234, 0, 0, False, False]),
        # Command dword 3 without it.
        ((0xABCD_0000, 0, 0), PLAIN),
    ],
)
def test_a_write_has_a_hint(
    dwords: tuple[int, int, int], fields: list[object], tmp_path: Path
) -> None:
    with Host(settings=layered(tmp_path, HINTS)) as host:
        host.enable()
        queue = host.create_io_queue()
        host.put(b"\xab\xcd" * 2048)
        cdw3, cdw12, cdw13 = dwords
        done = host.command(queue, WRITE, nsid=1, first=(0, cdw3), cdws=(5, 0, cdw12, cdw13))
        assert done.status == 0
        assert hints(host) == [[5, 1, *fields, ["abcd", 4096], 0]]


def test_dataset_management_says_what_later_writes_are(tmp_path: Path) -> None:
    with Host(settings=layered(tmp_path, HINTS)) as host:
        host.enable()
        queue = host.create_io_queue()
        # Attributes, blocks, first block: frequent writes, of low latency, in order.
        host.put(struct.pack("<IIQ", 1 << 9 | 3 << 4 | 4, 3, 6))
        assert host.command(queue, DSM, nsid=1, cdws=(0, 0)).status == 0
        for page, dsm in ((5, 0), (6, 0), (8, 2), (9, 0)):
            assert host.command(queue, WRITE, nsid=1, cdws=(page, 0, 0, dsm)).status == 0
        assert [row[2:10] for row in hints(host)] == [
            PLAIN,
            [0, None, True, 0, 4, 3, True, False],
            [0, None, False, 0, 2, 0, False, False],  # what the write itself says
            PLAIN,
        ]
        # What is formatted is of another host.
        assert host.command(host.admin, FORMAT, nsid=1, cdws=(0,)).status == 0
        assert host.command(queue, WRITE, nsid=1, cdws=(6, 0, 0, 0)).status == 0
        assert hints(host)[-1][2:10] == PLAIN


def test_a_write_to_a_zone_names_it(tmp_path: Path) -> None:
    with zones.powered(zones=4, settings=layered(tmp_path, HINTS)) as host:
        assert zones.write(host, 2 * zones.BLOCKS).status == 0
        (row,) = hints(host)
        assert row[:4] == [2 * zones.BLOCKS, 1, 0, 2] and row[-2] == ["0101", 4096]


def test_a_write_with_a_placement_handle_names_its_stream(tmp_path: Path) -> None:
    profile = replace(PROFILE, streams=3)
    placed = replace(layered(tmp_path, HINTS, profile), placement=PlacementSettings(3))
    with Host(settings=placed) as host:
        host.enable()
        queue = host.create_io_queue()
        for handle in (0, 2):
            cdws = (5, 0, 2 << 20, handle << 16)
            assert host.command(queue, WRITE, nsid=1, cdws=cdws).status == 0
        assert [row[2] for row in hints(host)] == [0, 2]


def test_other_drives_have_no_vendor_specific_directive() -> None:
    with Host(settings=modelled()) as host:
        host.enable()
        done = host.command(host.create_io_queue(), WRITE, nsid=1, cdws=(0, 0, 15 << 20))
        assert done.status == Status.INVALID_FIELD


CALLING = """
    from potash_firmware.ftl.requests import Op

    @ftl
    class Mine:
        def __init__(self, profile):
            pass
        def submit(self, time, op, first, count, stream, fua, hint):
            if op is Op.WRITE and hint.host >> 8 == 1:
                self.notify(hint.host & 0xFF, b"page %d" % first)
            elif op is Op.WRITE and hint.host >> 8 == 2:
                self.remap(first, hint.host & 0xFF)
            elif op is Op.WRITE and hint.host >> 8 == 3:
                {more}
            return time
"""
NOTICES = 0xCF


def hinted(host: Host, queue: Queue, page: int, hint: int, fill: bytes = b"\0") -> int:
    """The status of a write with a hint."""
    host.put(fill * 4096)
    cdws = (page, 0, 15 << 20, hint << 16)
    return host.command(queue, WRITE, nsid=1, cdws=cdws).status


def notices(host: Host, *, retained: bool = False) -> NoticeLog:
    cdw10 = (PAGE_SIZE // 4 - 1) << 16 | retained << 15 | NOTICES
    second = DATA + 4096
    done = host.command(host.admin, GET_LOG_PAGE, nsid=0, prp1=DATA, prp2=second, cdws=(cdw10,))
    assert done.status == 0
    return NoticeLog.decode(host.data(PAGE_SIZE))


MOVING = """
    from potash_firmware.ftl.requests import Op

    @ftl
    class Mine:
        def __init__(self, profile):
            pass
        def submit(self, time, op, first, count, stream, fua, hint):
            if op is Op.READ and first == 2:
                self.remap(0, 1)
            return time + 1000
"""


def test_a_burst_waits_for_a_page_that_one_of_its_commands_has_moved(tmp_path: Path) -> None:
    with Host(settings=layered(tmp_path, MOVING)) as host:
        host.enable()
        queue = host.create_io_queue()
        for page, fill in enumerate((b"a", b"b", b"c")):
            host.put(fill * PAGE)
            assert host.command(queue, WRITE, nsid=1, cdws=(page, 0, 0)).status == 0
        host.executor.run_all()
        for cid, page in enumerate((0, 2, 1, 0)):
            at = DATA + cid * PAGE
            host.place(queue, READ, cid, nsid=1, prp1=at, cdws=(page, 0, 0))
        host.ring(queue)
        host.service()
        while host.goes_on():
            host.executor.run_all()
            host.service()
        assert sorted(one.cid for one in host.reap(queue)) == [0, 1, 2, 3]
        assert host.data(4 * PAGE)[::PAGE] == b"acaa"


def test_notices_are_events_and_a_log_page(tmp_path: Path) -> None:
    calling = layered(tmp_path, CALLING.format(more="pass"))
    path = tmp_path / "drive"
    with Drive.open(path, SHAPES) as drive, Host(settings=calling, drive=drive) as host:
        host.enable()
        queue = host.create_io_queue()
        assert notices(host) == NoticeLog()
        host.place(host.admin, ASYNC_EVENT, 9)
        host.ring(host.admin)
        assert hinted(host, queue, 5, 0x107) == 0
        (event,) = host.reap(host.admin)
        assert (event.cid, event.dw0) == (9, NOTICES << 16 | 7 << 8 | 7)
        log = notices(host)
        (one,) = log.notices
        assert (log.count, one.number, one.kind, one.data[: one.length]) == (1, 0, 7, b"page 5")
        for page in range(MOST_NOTICES):
            assert hinted(host, queue, page, 0x1FF) == 0
        log = notices(host)
        assert log.count == MOST_NOTICES + 1 and len(log.notices) == MOST_NOTICES
        assert log.notices[-1].data[:7] == b"page 15"
        host.now += 60
        host.service()  # which records it; then the drive is killed
        host.executor.run_all()
    with Drive.open(path) as drive, Host(settings=calling, drive=drive) as host:
        host.enable()
        assert notices(host) == log
        # A record that makes no sense is left out as far as it does not.
        upcalls = host.rpu.controller.upcalls
        assert upcalls is not None
        saved = [[7, 1, "x"], [7, 1, "ab" * 999], [-1, 256, 3]]
        host.sidecar.put("notices", {"count": 3, "notices": saved})
        upcalls.restore()
        assert [one.length for one in notices(host).notices] == [0, 256, 0]
    # A drive without such a translation layer has no such page.
    with Host(settings=modelled()) as host:
        host.enable()
        done = host.command(host.admin, GET_LOG_PAGE, nsid=0, cdws=(NOTICES,))
        assert done.status == Status.INVALID_LOG_PAGE


def test_moves_of_the_same_pages_are_made_in_their_order(tmp_path: Path) -> None:
    more = "[self.remap(*pair) for pair in [(5, 9)] * 3 + [(9, 10), (10, 11), (0, 9), (7, 7)] * 2]"
    calling = layered(tmp_path, CALLING.format(more=more))
    with (
        Drive.open(None, SHAPES) as drive,
        Host(settings=calling, drive=drive) as host,
    ):
        host.enable()
        queue = host.create_io_queue()
        assert hinted(host, queue, 5, 0, b"a") == 0
        assert hinted(host, queue, 0, 0x300, b"b") == 0
        for page, fill in ((5, b"a"), (9, b"\0"), (10, b"\0"), (11, b"\0"), (0, b"b")):
            assert host.command(queue, READ, nsid=1, cdws=(page, 0, 0)).status == 0
            assert host.data(4096) == fill * 4096


def test_a_page_that_is_remapped_is_found_at_another_one(tmp_path: Path) -> None:
    calling = layered(tmp_path, CALLING.format(more="pass"))
    with (
        Drive.open(None, SHAPES) as drive,
        Host(settings=calling, drive=drive) as host,
    ):
        host.enable()
        queue = host.create_io_queue()
        assert hinted(host, queue, 5, 0, b"a") == 0
        # What is there before the write that the layer is called for is what is copied.
        assert hinted(host, queue, 5, 0x209, b"b") == 0
        for page, fill in ((9, b"a"), (5, b"b")):
            assert host.command(queue, READ, nsid=1, cdws=(page, 0, 0)).status == 0
            assert host.data(4096) == fill * 4096


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("self.remap(0, 1 << 70)", "ValueError: the drive has no pages 0 and"),
        ("self.remap('a', 1)", "TypeError"),
        ("self.remap(0, 200)", "the pages 0 and 200 are not of one namespace"),
        ("self.remap(0, 250)", "no namespace has the page 250"),
        ("[self.remap(0, 1) for _ in range(257)]", "256 pages are to be copied already"),
        ("self.notify(256, b'')", "a notice has a kind of 0 to 255"),
        ("self.notify(1, bytes(257))", "256 bytes at most"),
        ("self.notify(1, 'text')", "TypeError"),
        ("self.notify(1, b''); self.remap(0, 1); 1 / 0", "ZeroDivisionError"),
    ],
)
def test_calls_that_are_impossible_fail_the_command(
    more: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calling = layered(tmp_path, CALLING.format(more=more))
    with Drive.open(None, SHAPES) as drive, Host(settings=calling, drive=drive) as host:
        host.enable()
        queue = host.create_io_queue()
        assert hinted(host, queue, 5, 0x300, b"a") == Status.INTERNAL_ERROR
        (line,) = [one.message for one in caplog.records if one.levelno == logging.ERROR]
        assert re.search(f"^Mine: .*mine.py, line .*{said}", line)
        assert hinted(host, queue, 5, 0, b"a") == 0
        assert "ZeroDivisionError" not in said or notices(host).count == 0

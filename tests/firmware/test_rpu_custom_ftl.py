"""A drive whose flash translation layer is an extension's: what its commands do, and a host sees."""

import json
import logging
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvme_spec.status import Status
from potash_firmware.ftl.custom import CustomFtl
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.timing.modelled import TimeSettings
from support import zones
from support.extended import settings
from support.modelled_time import PROFILE, completions, modelled, timing_of
from support.nvme_host import Host, Queue

GET_LOG_PAGE, WRITE, DSM = 0x02, 0x01, 0x09
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


def layered(folder: Path, text: str) -> RpuSettings:
    """The settings of a drive with an extension, and its translation layer Mine."""
    found = settings(folder, text)
    assert found.extensions is not None
    drive = CustomFtl(found.extensions.ftls["Mine"], PROFILE)
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


def test_a_write_to_a_zone_names_it(tmp_path: Path) -> None:
    with zones.powered(zones=4, settings=layered(tmp_path, HINTS)) as host:
        assert zones.write(host, 2 * zones.BLOCKS).status == 0
        (row,) = hints(host)
        assert row[:4] == [2 * zones.BLOCKS, 1, 0, 2] and row[-2] == ["0101", 4096]


def test_other_drives_have_no_vendor_specific_directive() -> None:
    with Host(settings=modelled()) as host:
        host.enable()
        done = host.command(host.create_io_queue(), WRITE, nsid=1, cdws=(0, 0, 15 << 20))
        assert done.status == Status.INVALID_FIELD

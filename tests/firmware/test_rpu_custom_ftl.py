"""A drive whose flash translation layer is an extension's: what its commands do, and a host sees."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from nvme_spec.status import Status
from potash_firmware.ftl.custom import CustomFtl
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.timing.modelled import TimeSettings
from support import zones
from support.extended import settings
from support.modelled_time import PROFILE, completions, timing_of
from support.nvme_host import Host, Queue

GET_LOG_PAGE, WRITE, READ = 0x02, 0x01, 0x02
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

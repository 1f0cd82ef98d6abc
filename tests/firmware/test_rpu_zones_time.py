"""Zones in modelled time: each has superblocks of its own, which its reset erases."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from potash.cli.device.modelled_time import keep, modelled
from potash.sdk.errors import PotashError
from potash.sections import TimeSection
from potash_device.flash.profile import PAGE
from potash_device.flash.scaling import ZoneShape
from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape, WriteAreas
from potash_device.trace import Trace
from potash_firmware.ftl.interface import Held
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.timing.modelled import ModelledTime, TimeSettings
from potash_firmware.rpu.timing.report import timing_log
from support.drive_time import problems
from support.modelled_time import flash_of, timing_of
from support.modelled_time import modelled as modelled_drive
from support.nvme_host import DATA, Host
from support.zones import (
    BLOCKS,
    CAPACITY,
    COMMIT,
    COPY,
    FINISH,
    FLUSH,
    OPEN,
    READ,
    RESET,
    WITH_AREA,
    WRITE,
    ZEROES,
    powered,
    shape,
)

ZONES = 8
SECTION = TimeSection("modelled", "tlc", zone_width=4)


def host_of(drive: Drive, section: TimeSection = SECTION) -> Iterator[Host]:
    settings = RpuSettings(time=modelled(section, drive))
    with Host(settings=settings, drive=drive) as host:
        host.css = 6
        host.enable()
        host.create_io_queue()
        yield host


@pytest.fixture
def host() -> Iterator[Host]:
    with Drive.open(None, (shape(ZONES),)) as drive:
        yield from host_of(drive)


def took(host: Host, opcode: int, slba: int, *more: int) -> int:
    """The modelled nanoseconds of a command, which succeeds."""
    queue, began = host.io[1], round(host.now * 1e9)
    host.place(queue, opcode, 7, nsid=1, prp1=DATA, prp2=DATA + 4096, cdws=(slba, 0, *more))
    host.ring(queue)
    host.service()
    while host.executor.waiting or host.deadline is not None:
        host.executor.run_all()
        if host.deadline is not None:
            host.now = max(host.now, host.deadline / 1e9)
        host.service()
    (done,) = host.reap(queue)
    assert done.status == 0
    return round(host.now * 1e9) - began


def fill(host: Host, *zones: int) -> None:
    """Write all blocks of zones, which are side by side, alternately."""
    for at in range(CAPACITY):
        for zone in zones:
            took(host, WRITE, zone * BLOCKS + at, 0)


def test_zones_that_are_reset_amplify_nothing(host: Host) -> None:
    drive = timing_of(host).drive
    superblocks = -(-CAPACITY // drive.profile.superblock_pages)
    fill(host, *range(ZONES))
    for turn in range(4):
        for zone in (turn, turn + 2):
            took(host, 0x79, zone * BLOCKS, 0, RESET)
        fill(host, turn, turn + 2)
    assert drive.counters.host == (ZONES + 8) * CAPACITY
    assert drive.counters.write_amplification == 1
    assert drive.counters.erased == 8 * superblocks


def test_actions_take_the_time_of_the_flash(host: Host) -> None:
    drive = timing_of(host).drive
    nothing = took(host, 0x79, 0, 0, RESET)
    assert took(host, WRITE, 0, 0) < drive.profile.program_ns[0]
    assert took(host, 0x79, 0, 0, FINISH) >= drive.profile.program_ns[0]
    assert drive.counters.padding == drive.profile.superblock_pages - 1
    assert took(host, READ, 0, 0) >= drive.profile.read_ns[0]
    assert took(host, 0x79, 0, 0, RESET) >= nothing + drive.profile.erase_ns
    assert took(host, READ, 0, 0) < drive.profile.read_ns[0]
    assert took(host, ZEROES, 0, 0) < drive.profile.program_ns[0]
    assert drive.counters.host == 2


def test_overwrites_in_a_random_write_area_cost_no_flash() -> None:
    areas = WriteAreas(4 * PAGE, 2 * PAGE)
    with Drive.open(None, (shape(ZONES, areas),)) as drive:
        for host in host_of(drive):
            flash, send = timing_of(host).drive, 0x79
            took(host, send, 0, 0, OPEN | WITH_AREA)
            for lba in (0, 3, 0, 1, 2, 0):
                assert took(host, WRITE, lba, 0) < flash.profile.program_ns[0]
            host.put(struct.pack("<8xQH14x", 0, 0))
            took(host, COPY, 1, 0)
            assert flash.counters[:4] == (7, 0, 0, 0)
            assert (flash.counters.area_writes, flash.counters.commits) == (7, 0)
            took(host, send, 1, 0, COMMIT)
            assert flash.counters.commits == 2
            took(host, WRITE, 6, 0)  # one behind the area, whose end is at 6
            assert (flash.counters.host, flash.counters.commits) == (8, 4)
            assert took(host, send, 0, 0, FINISH) >= flash.profile.program_ns[0]
            assert flash.counters.commits == 7
            assert flash.counters.padding == -7 % flash.profile.superblock_pages
            assert timing_of(host).programmed == (7 + flash.counters.padding) * PAGE
            assert took(host, READ, 6, 0) >= flash.profile.read_ns[0]
            took(host, send, 0, 0, RESET)
            assert flash.counters.erased == 1


def test_an_empty_zone_that_is_finished_erases_no_other(host: Host) -> None:
    timing = timing_of(host)
    fill(host, 0, 5)
    held = timing.held
    took(host, 0x79, 3 * BLOCKS, 0, FINISH)
    assert timing.held == held
    assert timing.drive.counters.erased == 0


def test_zones_are_where_they_were_after_a_power_cycle(tmp_path: Path) -> None:
    path = tmp_path / "drive"
    with Drive.open(path, (shape(ZONES),)) as drive:
        for host in host_of(drive):
            fill(host, 0, 5)
            held = timing_of(host).held
            assert [(nsid, zone) for nsid, zone, _ in held.zones] == [(1, 0), (1, 5)]
            keep(timing_of(host), drive)
    with Drive.open(path) as drive:
        for host in host_of(drive):
            timing = timing_of(host)
            assert timing.held == held
            took(host, 0x79, 5 * BLOCKS, 0, RESET)
            assert timing.held.zones == held.zones[:1]
            assert timing.drive.counters.erased == -(
                -CAPACITY // timing.drive.profile.superblock_pages
            )


def test_zones_that_are_gone_keep_no_superblocks(host: Host) -> None:
    """A state may be of before a namespace of the same size has got other zones, or none."""
    fill(host, 0, 5, 7)
    before = timing_of(host)
    pieces, (kept, beyond, other) = before.held
    held = Held(pieces, (kept, beyond._replace(zone=ZONES), other._replace(nsid=2)))
    after = ModelledTime(
        TimeSettings(before.drive, held=held),
        {1: shape(ZONES).data_size},
        {1: ZoneShape(ZONES, BLOCKS * PAGE, CAPACITY * PAGE)},
        before.clock,
        before.lateness,
        Trace(),
    )
    assert after.held.zones == (kept,)
    assert set(flash_of(before).state.zone.tolist()) == {-1, kept.stream}


def test_zones_without_superblocks_are_like_other_blocks(caplog: pytest.LogCaptureFixture) -> None:
    """A drive that was not made for zones may have fewer superblocks than zones."""
    areas = WriteAreas(4 * PAGE, 2 * PAGE)
    with powered(zones=16, settings=modelled_drive(), areas=areas) as host:
        assert "not enough superblocks for zones of namespace 1" in caplog.text
        drive = timing_of(host).drive
        assert took(host, WRITE, 0, 0) > 0
        took(host, 0x79, 0, 0, RESET)
        assert drive.counters.erased == 0
        took(host, 0x79, 0, 0, OPEN | WITH_AREA)
        for lba in (1, 1, 5):
            took(host, WRITE, lba, 0)
        took(host, 0x79, 3, 0, COMMIT)
        assert (drive.counters.host, drive.counters.area_writes) == (4, 0)


def test_small_writes_of_zones_gather_in_slc(tmp_path: Path) -> None:
    """What was flushed is on flash, and in the SLC buffer or its zone after a power cycle, too."""
    section, path = replace(SECTION, zone_slc=50), tmp_path / "drive"
    with Drive.open(path, (shape(ZONES),)) as drive:
        for host in host_of(drive, section):
            for zone in range(ZONES):
                took(host, WRITE, zone * BLOCKS, 0)
            model = flash_of(timing_of(host))
            profile, before = model.profile, timing_log(timing_of(host))
            assert before.slc_programs == ZONES // profile.unit_pages
            assert took(host, FLUSH, 0) >= profile.slc_unit_ns
            assert took(host, WRITE, 1, 1 << 30) >= profile.slc_unit_ns  # FUA
            log = timing_log(timing_of(host))
            assert log.slc_programs == before.slc_programs + 2
            assert (log.slc, log.folded, log.host) == (2, 0, ZONES + 1)  # of a unit each
            places = model.state.places.copy()
            keep(timing_of(host), drive)
    with Drive.open(path) as drive:
        for host in host_of(drive, section):
            model = flash_of(timing_of(host))
            assert (model.state.places == places).all()
            took(host, 0x79, 0, 0, FINISH)
            log = timing_log(timing_of(host))
            assert (log.slc, log.folded, log.relocated) == (1, 2, 2)
            for zone in range(1, ZONES):
                took(host, 0x79, zone * BLOCKS, 0, RESET)
            assert (model.state.staged == -1).all()
            log = timing_log(timing_of(host))
            assert (log.slc, log.folded) == (0, 2)
    # The device was killed: its zones are newer than the stored state, which has their pages in the
    # buffer.
    with Drive.open(path) as drive:
        for host in host_of(drive, section):
            model = flash_of(timing_of(host))
            assert (model.state.places == places).all()
            for zone in range(1, ZONES):
                took(host, WRITE, zone * BLOCKS, 0)
                took(host, READ, zone * BLOCKS, 0)
            took(host, 0x79, 0, 0, RESET)
            assert problems(profile, model.state) == []
            assert (model.state.places >= 0).sum() == ZONES - 1


def test_an_slc_buffer_without_zones_is_said_to_be_none(caplog: pytest.LogCaptureFixture) -> None:
    with Drive.open(None, (NamespaceShape(64 << 20),)) as drive:
        modelled(replace(SECTION, zone_slc=50), drive)
    assert "zone_slc changes nothing: the drive has no zones" in caplog.text


@pytest.mark.parametrize(
    ("drive", "share", "said"),
    [
        ("femu", 50, "--drive femu: zone_slc needs cells of several bits, and blocks of enough"),
        ("tlc", 600, "--drive tlc: zone_slc is 600; it must be a whole number, 0 to 500"),
        ("tlc.npz", 50, "--drive tlc.npz: it has its own SLC cache and spare flash"),
    ],
)
def test_an_slc_buffer_that_cannot_be_is_refused(drive: str, share: int, said: str) -> None:
    with (
        Drive.open(None, (shape(ZONES),)) as media,
        pytest.raises(PotashError, match=f"^{re.escape(said)}"),
    ):
        modelled(TimeSection("modelled", drive, zone_slc=share), media)

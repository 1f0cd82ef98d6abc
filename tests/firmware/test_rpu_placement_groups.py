"""Several reclaim groups, events of the controller, and data placement that a host disables."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from potash_device.media.store import MemoryMedia
from potash_firmware.ftl.drive import Drive as ModelledDrive
from potash_firmware.rpu.placement import SECTION, PlacementSettings
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.timing.modelled import TimeSettings
from support.modelled_time import PROFILE, completions
from support.nvme_host import PAGE, Host, Queue
from support.placement import (
    CONFIGURATIONS,
    EVENTS,
    GET_FEATURES,
    GET_LOG,
    INVALID_FIELD,
    INVALID_IDENTIFIER,
    MANAGE,
    MANAGEMENT_RECEIVE,
    NOT_FULLY_WRITTEN,
    PLACEMENT,
    SEQUENCE_ERROR,
    SET_FEATURES,
    SETTINGS,
    STATISTICS,
    UNIT,
    USAGE,
    WRITE,
    enable,
    events,
    log,
    status,
    update,
    write,
)

GROUPS = 3
REALLOCATED, FDP_DISABLED = 0x80, 0x029


@pytest.fixture
def host() -> Iterator[Host]:
    settings = RpuSettings(placement=PlacementSettings(2, UNIT, GROUPS))
    with Host({1: MemoryMedia.create(4 << 20)}, settings) as host:
        host.enable()
        host.create_io_queue()
        yield host


def identifier(group: int, handle: int) -> int:
    """With two bits for the group (RGIF)."""
    return group << 14 | handle


def test_a_handle_has_a_unit_in_each_group(host: Host, queue: Queue) -> None:
    _, attributes, _, groups, handles, most = struct.unpack_from(
        "<HBBIHH", log(host, CONFIGURATIONS, 96), 16
    )
    assert (attributes, groups, handles, most) == (0x90 | 2, GROUPS, 2, GROUPS * 2 - 1)
    whole = UNIT // PAGE
    places = [(group, handle) for group in range(GROUPS) for handle in range(2)]
    assert status(host, queue) == [(identifier(*each), each[1], 0, whole) for each in places]
    for group, handle in ((0, 0), (2, 1), (2, 1), (1, 0)):
        assert write(host, queue, 0, identifier(group, handle)).status == 0
    used = {each: 0 for each in places} | {(0, 0): 1, (2, 1): 2, (1, 0): 1}
    assert [row[3] for row in status(host, queue)] == [whole - used[each] for each in places]
    assert update(host, queue, identifier(2, 1)) == 0
    used[2, 1] = 0
    assert [row[3] for row in status(host, queue)] == [whole - used[each] for each in places]
    for wrong in (identifier(3, 0), identifier(0, 2)):
        assert update(host, queue, wrong) == INVALID_FIELD
    page = log(host, 0xCE, 16 + 2 * 32)
    assert [struct.unpack_from("<Q", page, at)[0] // PAGE for at in (16, 48)] == [2, 2]


def test_events_name_the_group(host: Host, queue: Queue) -> None:
    assert enable(host, 0, INVALID_IDENTIFIER, NOT_FULLY_WRITTEN) == 0
    assert enable(host, 1, NOT_FULLY_WRITTEN) == 0
    assert write(host, queue, 0, identifier(3, 1)).status == 0  # there is no such group
    assert write(host, queue, 0, identifier(2, 1)).status == 0
    assert update(host, queue, identifier(2, 1)) == 0
    page = log(host, EVENTS, 4096, lsp=1)
    found = [struct.unpack_from("<HH", page, at + 32) for at in (64, 128)]
    assert [event[0] for event in events(host)] == [INVALID_IDENTIFIER, NOT_FULLY_WRITTEN]
    assert found == [(0, 0), (2, 1)]


def test_a_controller_reports_what_it_moves() -> None:
    profile = replace(PROFILE, streams=2, blocks=PROFILE.blocks + 4, isolated=True)
    drive, random = ModelledDrive(profile), np.random.default_rng(3)
    settings = RpuSettings(placement=PlacementSettings(2, UNIT), time=TimeSettings(drive))
    with Host({1: MemoryMedia.create(1 << 20)}, settings) as host:
        host.enable()
        queue = host.create_io_queue()
        for cid in range(1040):
            if cid == 1000:
                before = drive.streams[1].relocated
                assert before > 0
                assert enable(host, 1, REALLOCATED) == 0
            lba, handle = int(random.integers(0, 240)), int(random.integers(0, 2))
            host.place(queue, WRITE, cid, nsid=1, cdws=(lba, 0, 2 << 20, handle << 16))
            host.ring(queue)
            host.service()
            assert completions(host, queue)
        moved = drive.streams[1].relocated - before
        assert moved > 0 and drive.streams[0].relocated > 0
        page = log(host, EVENTS, 4096)
        (count,) = struct.unpack_from("<I", page)
        found = [struct.unpack_from("<BB16xH", page, at) for at in range(64, 64 + 64 * count, 64)]
        handles = {
            struct.unpack_from("<HH", page, at + 32) for at in range(64, 64 + 64 * count, 64)
        }
        assert handles == {(0, 1)}  # the host has not asked for events of the other handle
        assert {event[:2] for event in found} == {(REALLOCATED, 1 << 2)}
        # 4096 bytes are one block; the log has the latest 63 events.
        assert count == 63 or sum(event[2] for event in found) == moved
        assert 0 < sum(event[2] for event in found) <= moved
        assert log(host, EVENTS, 64, lsp=1)[:4] == bytes(4)


def test_events_of_an_older_drive_are_there(host: Host) -> None:
    placement = host.rpu.controller.placement
    assert placement is not None
    host.sidecar.put(SECTION, {"events": [[INVALID_IDENTIFIER, 7, 99, 1, 1]]})
    placement.restore()
    assert [event[0:1] + event[2:] for event in events(host)] == [(INVALID_IDENTIFIER, 7, 1, 1)]


def change(host: Host, value: int) -> int:
    return host.command(host.admin, SET_FEATURES, cdws=(PLACEMENT, 1, value)).status


def delete(host: Host, nsid: int) -> int:
    return host.command(host.admin, MANAGE, nsid=nsid, cdws=(1,)).status


def create(host: Host) -> int:
    host.put(struct.pack("<QQ", 64, 64).ljust(384, b"\0"))
    made = host.command(host.admin, MANAGE, cdws=(0,))
    assert made.status == 0
    host.put(struct.pack("<HH", 1, 0))
    assert host.command(host.admin, 0x15, nsid=made.dw0).status == 0
    return made.dw0


def test_a_host_disables_data_placement(tmp_path: Path) -> None:
    path = tmp_path / "drive"
    path.mkdir()
    with (
        Drive.open(path, (NamespaceShape(1 << 20),), capacity=8 << 20) as drive,
        Host(settings=SETTINGS, drive=drive) as host,
    ):
        host.enable()
        assert change(host, 0) == SEQUENCE_ERROR
        assert delete(host, 1) == 0
        assert change(host, 3) == INVALID_FIELD
        assert change(host, 0) == 0
    with Drive.open(path) as drive, Host(settings=SETTINGS, drive=drive) as host:
        host.enable()
        assert host.command(host.admin, GET_FEATURES, cdws=(PLACEMENT, 1)).dw0 == 0
        nsid, queue = create(host), host.create_io_queue()
        assert write(host, queue, 0).status == 0
        assert write(host, queue, 0, 0).status == INVALID_FIELD
        answer = host.command(queue, MANAGEMENT_RECEIVE, nsid=nsid, cdws=(1, 127))
        assert answer.status == FDP_DISABLED
        for lid in (USAGE, STATISTICS, EVENTS):
            done = host.command(host.admin, GET_LOG, cdws=(15 << 16 | lid, 1 << 16))
            assert done.status == FDP_DISABLED
        assert log(host, CONFIGURATIONS, 96)[:1] == b"\0"
        assert enable(host, 0, NOT_FULLY_WRITTEN) == FDP_DISABLED
        assert change(host, 1) == SEQUENCE_ERROR
        assert delete(host, nsid) == 0
        assert change(host, 1) == 0
        assert create(host) == nsid
        assert write(host, queue, 0, 0).status == 0
        assert len(status(host, queue, nsid)) == 1

"""Saved values at the limits of what they are declared as, and beyond: no drive fails by them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from errno import EINVAL
from itertools import islice
from typing import Any

import pytest

from potash_device.saved import SECTIONS
from potash_firmware.rpu.migration.saved import SavedDrive, join, split
from potash_firmware.rpu.placement import PlacementSettings
from potash_firmware.rpu.settings import RpuSettings
from support.compute import BUILT_IN, MEMORY, ComputeHost
from support.migration import finish, load, save, write
from support.nvme_host import Host
from support.saved import changes, sample

GET_LOG, SET_FEATURES, GET_FEATURES, AER, SELF_TEST = 0x02, 0x09, 0x0A, 0x0C, 0x14
WRITE_UNCORRECTABLE = 0x04
SAVE = 1 << 31
SETTINGS = RpuSettings(placement=PlacementSettings(handles=2))

EVERY = 41
"""One change of as many is tried."""
INTERNAL_ERROR = 0x006


def use(host: Host) -> None:
    """Have the drive say all that it was loaded with."""
    host.enable()
    # Of telemetry and of the persistent events also a new one (LSP 1).
    for lid in (
        *range(0x01, 0x12),
        1 << 8 | 0x07,
        1 << 8 | 0x0D,
        0x20,
        0x21,
        0x22,
        0x23,
        0x80,
        0x81,
        0xBF,
    ):
        nsid = 0xFFFF_FFFF if lid == 2 else 0
        log = host.command(host.admin, GET_LOG, nsid=nsid, cdws=(1023 << 16 | lid, 1))
        assert log.status != INTERNAL_ERROR, lid
    for fid in range(1, 0x20):
        for select in (0, 2):
            got = host.command(host.admin, GET_FEATURES, nsid=1, cdws=(fid | select << 8,))
            assert got.status != INTERNAL_ERROR, fid
    kept = host.command(host.admin, SET_FEATURES, cdws=(SAVE | 4, 330))
    assert kept.status == 0


@pytest.fixture(params=[EVERY, pytest.param(1, marks=pytest.mark.slow)])
def every(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def kept(host: Host) -> object:
    """What outlives a reset."""
    health = host.rpu.controller.health.save()
    memories = [os.pread(media.fd, media.size, 0) for media in host.media.values()]
    return health, host.flash.images, memories


def used(host: Host) -> dict[str, Any]:
    """The sidecar's sections of a drive that has something in most of them."""
    host.enable()
    queue = host.create_io_queue()
    assert host.command(queue, WRITE_UNCORRECTABLE, nsid=1, cdws=(5, 0, 1)).status == 0
    assert host.command(host.admin, SET_FEATURES, cdws=(SAVE | 4, 330)).status == 0
    assert host.command(host.admin, SELF_TEST, cdws=(1,)).status == 0
    host.rpu.controller.internal_fault("a test")
    host.rpu.power_off(clean=True)
    sections = json.loads(json.dumps(host.sidecar._sections))
    assert isinstance(sections, dict)
    return sections


def test_no_sidecar_ends_a_drive(every: int) -> None:
    with Host(settings=SETTINGS) as host:
        sections = used(host)
    for section in list(SECTIONS.values()):
        value = sections.get(section) or sample(section.kind)
        for changed in islice(changes(section.kind, value), 0, None, every):
            with Host(settings=SETTINGS) as host:
                for name, one in {**sections, section: changed}.items():
                    host.sidecar.put(name, one)
                host.sidecar.save()
                host.sidecar.load()
                host.flash.load()
                host.rpu.power_on()
                use(host)
                host.rpu.power_off(clean=True)


def plain() -> Host:
    return Host(settings=SETTINGS)


def with_commands(host: Host) -> None:
    """Commands that wait, one for room in its completion queue, and features."""
    queue = host.create_io_queue(1, 4)
    host.place(host.admin, AER, 0x50)
    host.ring(host.admin)
    host.service()
    for cid in range(4):
        write(host, queue, cid % 3, cid, b"x")
        host.ring(queue)
        finish(host)
    host.command(host.admin, SET_FEATURES, 9, cdws=(0x0B, 0x11F))


def with_programs(host: Host) -> None:
    """A program of which the middle lacks, and a memory range set."""
    assert isinstance(host, ComputeHost)
    for at in (0, 128):
        assert host.load(BUILT_IN, bytes(64), psize=192, loff=at).status == 0
    assert host.create_set((MEMORY, 4096, 8192)).status == 0


@pytest.mark.parametrize(
    ("make", "prepare"), [(plain, with_commands), (ComputeHost, with_programs)]
)
def test_no_state_ends_a_drive(
    make: Callable[[], Host],
    prepare: Callable[[Host], None],
    every: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    with make() as host:
        host.enable()
        prepare(host)
        state = {name: [bytes(one)] for name, one in split(save(host)).items()}
    taken = refused = 0
    with make() as host:
        record = json.loads(state["drive"][0])
        for changed in (record, *islice(changes(SavedDrive, record), 0, None, every)):
            before = kept(host)
            try:
                load(host, join({**state, "drive": [json.dumps(changed).encode()]}))
            except OSError as error:
                assert error.errno == EINVAL
                assert changed is not record
                refused += 1
                assert kept(host) == before
            else:
                taken += 1
                finish(host)
            host.board.reset()
            finish(host)
            use(host)
            save(host)
            host.board.reset()
    assert taken and refused
    assert not [one for one in caplog.records if one.exc_info]

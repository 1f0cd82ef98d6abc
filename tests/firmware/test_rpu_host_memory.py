"""The host memory buffer: what a host may set, and what the cache of the mapping makes of it."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from nvme_spec.features import FeatureId
from nvme_spec.host_memory import HostMemoryAttributes
from nvme_spec.identify.structures import IdentifyController
from nvme_spec.opcodes import AdminOpcode
from potash_device.flash.profile import ENTRIES, Profile
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.requests import REQUEST, Op
from support.controllers import controllers
from support.modelled_time import PROFILE, modelled, timing_of
from support.nvme_host import DATA, PAGE, Host

LIST = DATA + 8 * PAGE
CACHED = replace(PROFILE, blocks=400, capacity=40 << 20, mapping_cache=2 * PAGE)
"""Ten translation pages, two of which are in the drive's memory."""
PAGES = 4


def random_requests(count: int, seed: int) -> np.ndarray:
    source, requests = random.Random(seed), np.zeros(count, REQUEST)
    requests["op"] = [source.choice((Op.READ, Op.WRITE)) for _ in range(count)]
    requests["first"] = [source.randrange(CACHED.logical_pages) for _ in range(count)]
    requests["time"], requests["count"] = np.arange(count) * 10**6, 1
    return requests


def served(profile: Profile, host: int) -> Drive:
    drive = Drive(profile)
    drive.resize_cache(0, host)
    drive.run(random_requests(600, 1))
    return drive


def test_the_cache_of_a_drive_is_larger_by_what_the_host_gives() -> None:
    assert CACHED.translation_pages == -(-CACHED.logical_pages // ENTRIES) == 10
    plain, given = served(CACHED, 0), served(CACHED, PAGES * PAGE)
    larger = served(replace(CACHED, mapping_cache=(2 + PAGES) * PAGE), 0)
    assert given.counters == larger.counters
    assert given.counters.misses < plain.counters.misses
    assert served(CACHED, 100 * PAGE).counters.misses == 10


def test_what_was_changed_is_on_flash_before_memory_is_given_back() -> None:
    drive = served(CACHED, PAGES * PAGE)
    dirty = int((drive.state.cached[:, 2] > 0).sum())
    assert dirty > 2
    before = drive.counters
    end = drive.resize_cache(10**10, 0)
    after = drive.counters
    assert after.translation - before.translation == dirty
    assert end >= 10**10
    assert drive.resize_cache(10**11, 0) == 10**11  # there is nothing in it
    assert drive.counters.translation == after.translation
    drive.state.flash.now[0] = 10**11
    requests = random_requests(300, 2)
    requests["time"] += 10**11
    drive.run(requests)
    assert (drive.state.cached_at >= 0).sum() == 2


def test_a_full_drive_collects_garbage_for_it() -> None:
    drive = Drive(CACHED)
    drive.resize_cache(0, 8 * PAGE)
    now = 0
    for seed in range(40):
        requests = random_requests(1000, seed)
        requests["op"], requests["time"] = Op.WRITE, now + np.arange(1000) * 10**6
        now = int(requests["time"][-1])
        drive.run(requests)
        assert drive.resize_cache(now, (seed % 2) * 8 * PAGE) >= now
    assert drive.counters.erased > 0
    assert (drive.state.places >= -1).all()


@pytest.fixture
def host() -> Iterator[Host]:
    settings = replace(modelled(CACHED), host_memory=PAGES * PAGE)
    with Host(settings=settings) as host:
        host.enable()
        yield host


def descriptors(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<QII", address, size, 0) for address, size in entries)


def enable(host: Host, size: int, *entries: tuple[int, int], count: int | None = None) -> int:
    host.put(descriptors(*entries), LIST)
    count = len(entries) if count is None else count
    cdws = (FeatureId.HOST_MEMORY_BUFFER, 1, size, LIST & 0xFFFF_FFFF, LIST >> 32, count)
    return host.command(host.admin, AdminOpcode.SET_FEATURES, cdws=cdws).status


def disable(host: Host) -> int:
    cdws = (FeatureId.HOST_MEMORY_BUFFER, 0)
    return host.command(host.admin, AdminOpcode.SET_FEATURES, cdws=cdws).status


def rows(host: Host) -> int:
    drive = timing_of(host).drive
    assert isinstance(drive, Drive)
    return int(drive.state.cached.shape[0])


def asked(host: Host) -> tuple[int, HostMemoryAttributes]:
    cdws = (FeatureId.HOST_MEMORY_BUFFER,)
    done = host.command(host.admin, AdminOpcode.GET_FEATURES, prp1=DATA, cdws=cdws)
    assert done.status == 0
    return done.dw0, HostMemoryAttributes(host.data(HostMemoryAttributes.SIZE))


def test_a_host_gives_memory_and_takes_it_back(host: Host) -> None:
    host.command(host.admin, AdminOpcode.IDENTIFY, prp1=DATA, cdws=(1,))
    said = IdentifyController(host.data(4096))
    assert (said.hmpre, said.hmmin, said.hmmaxd) == (PAGES, 1, 256)
    assert rows(host) == 2
    assert asked(host)[0] == 0
    assert enable(host, 3, (0x10_0000, 2), (0x20_0000, 1)) == 0
    assert rows(host) == 5
    enabled, attributes = asked(host)
    assert (enabled, attributes.hsize, attributes.hmdla, attributes.hmdlec) == (1, 3, LIST, 2)
    assert enable(host, 1, (0x10_0000, 1)) == 0x00C  # Command Sequence Error
    assert disable(host) == 0
    assert (rows(host), asked(host)[0]) == (2, 0)
    # More than is preferred is not used.
    assert enable(host, 100, (0x10_0000, 100)) == 0
    assert rows(host) == 2 + PAGES


def test_a_reset_gives_the_memory_back(host: Host) -> None:
    assert enable(host, 2, (0x10_0000, 2)) == 0
    host.disable()
    assert rows(host) == 2
    host.enable()
    assert asked(host)[0] == 0


def test_the_cache_uses_the_buffers_of_all_controllers() -> None:
    settings = replace(modelled(CACHED), host_memory=3 * PAGE)
    with controllers(2, settings=settings) as (first, second):
        assert enable(first, 2, (0x10_0000, 2)) == 0
        assert (rows(first), asked(second)[0]) == (4, 0)
        assert enable(second, 3, (0x10_0000, 3)) == 0
        assert rows(first) == 7
        first.disable()
        assert (rows(second), asked(second)[0]) == (5, 1)
        assert disable(second) == 0
        assert rows(second) == 2


def test_lists_that_make_no_sense_are_refused(host: Host) -> None:
    for size, entries, count in (
        (1, [(0x10_0000, 2)], None),
        (1, [(0x10_0008, 1)], None),
        (0, [(0x10_0000, 0)], None),
        (1, [], 0),
        (1, [(0x10_0000, 1)], 257),
    ):
        assert enable(host, size, *entries, count=count) == 0x002, (size, entries, count)
    assert rows(host) == 2


def test_other_drives_have_no_such_feature() -> None:
    with Host(settings=modelled(CACHED)) as host:
        host.enable()
        assert enable(host, 1, (0x10_0000, 1)) == 0x002

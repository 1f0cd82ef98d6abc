"""What outlives a power cycle, and what a device that is killed loses of it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from potash_device.media.file import FileMedia
from potash_device.media.sidecar import SIDECAR_SIZE
from support.nvme_host import CC, CSTS, DATA, Host

FLUSH, WRITE, READ = 0, 1, 2
GET_LOG, SET_FEATURES, GET_FEATURES = 2, 9, 0xA
SAVE = 1 << 31
SAVED, CAPABILITIES = 2, 3

DAY = 24 * 3600
"""Seconds between two snapshots of the health log, the only thing that an idle device records."""

NORMAL, ABRUPT = 1, 2
"""Shutdown notifications."""

Start = Callable[[], Host]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start the device, with the sidecar that the one before has left."""

    def start() -> Host:
        return Host(sidecar=FileMedia.open(tmp_path / "sidecar", SIDECAR_SIZE))

    return start


def health(host: Host) -> dict[str, int]:
    assert host.command(host.admin, GET_LOG, cdws=(127 << 16 | 2,)).status == 0
    page = host.data(512)
    offsets = {
        "units read": 32,
        "units written": 48,
        "reads": 64,
        "writes": 80,
        "power cycles": 112,
        "hours": 128,
        "unsafe": 144,
        "media errors": 160,
        "errors": 176,
    }
    return {name: int.from_bytes(page[at : at + 16], "little") for name, at in offsets.items()}


def shut_down(host: Host, how: int = NORMAL) -> None:
    host.write32(CC, 4 << 20 | 6 << 16 | how << 14 | 1)
    host.service()
    host.executor.run_all()
    host.service()
    assert host.read32(CSTS) >> 2 & 3 == 2


def get(host: Host, fid: int, select: int = 0, value: int = 0, nsid: int = 0) -> int:
    completion = host.command(host.admin, GET_FEATURES, nsid=nsid, cdws=(select << 8 | fid, value))
    assert completion.status == 0
    return completion.dw0


def test_counters_go_on_after_a_power_cycle(start: Start) -> None:
    with start() as host:
        host.enable()
        queue = host.create_io_queue()
        for _ in range(3):
            assert host.command(queue, WRITE, nsid=1).status == 0
        assert host.command(queue, READ, nsid=1).status == 0
        assert host.command(queue, 0x7F, nsid=1).status == 0x001
        host.now += 2 * 3600
        host.rpu.power_off(clean=True)
    with start() as host:
        host.enable()
        queue = host.create_io_queue()
        assert host.command(queue, READ, nsid=1).status == 0
        host.now += 3600
        found = health(host)
    assert (found["writes"], found["reads"], found["errors"]) == (3, 2, 1)
    assert (found["units written"], found["units read"]) == (1, 1)
    assert (found["power cycles"], found["hours"], found["unsafe"]) == (2, 3, 0)


def unsafe_shutdowns_after(start: Start, end: Callable[[Host], None]) -> int:
    with start() as host:
        host.enable()
        host.create_io_queue()
        end(host)
    with start() as host:
        host.enable()
        return health(host)["unsafe"]


def nothing(host: Host) -> None:
    """The process is killed."""


def reset_and_enable_again(host: Host) -> None:
    shut_down(host)
    host.disable()
    host.enable()
    host.executor.run_all()


def shut_down_half_way(host: Host) -> None:
    host.write32(CC, 4 << 20 | 6 << 16 | NORMAL << 14 | 1)
    host.service()


@pytest.mark.parametrize(
    ("end", "unsafe"),
    [
        (nothing, 1),
        (shut_down, 0),
        (lambda host: shut_down(host, ABRUPT), 0),
        (lambda host: host.rpu.power_off(clean=True), 0),
        (lambda host: host.rpu.power_off(clean=False), 1),
        (shut_down_half_way, 1),
        (reset_and_enable_again, 1),
        (lambda host: host.board.detached(), 1),
    ],
    ids=["killed", "normal", "abrupt", "ended", "failed", "half-way", "used again", "unplugged"],
)
def test_a_power_cycle_without_a_completed_shutdown_is_unsafe(
    start: Start, end: Callable[[Host], None], unsafe: int
) -> None:
    assert unsafe_shutdowns_after(start, end) == unsafe


def test_counters_are_recorded_once_a_minute_while_something_happens(start: Start) -> None:
    with start() as host:
        host.enable()
        queue = host.create_io_queue()
        assert host.rpu.timeout == DAY
        assert host.command(queue, WRITE, nsid=1).status == 0
        assert host.rpu.timeout == 60
        host.now += 59
        host.service()
        assert not host.executor.waiting
        host.now += 1
        assert host.rpu.timeout == 0
        host.service()
        assert len(host.executor.waiting) == 1
        assert host.command(queue, WRITE, nsid=1).status == 0  # The record was on its way.
        assert host.rpu.timeout == 60
        host.now += 59
        host.service()
        assert not host.executor.waiting
    with start() as host:  # It was killed: one record lies behind, and what came after it is lost.
        host.enable()
        assert health(host)["writes"] == 1


def test_an_idle_device_records_nothing(start: Start) -> None:
    with start() as host:
        host.enable()
        host.now += 3600
        host.service()
        assert not host.executor.waiting
        assert host.rpu.timeout == DAY - 3600


def test_a_snapshot_that_is_due_between_two_records_waits_for_the_next(start: Start) -> None:
    with start() as host:
        host.enable()
        queue = host.create_io_queue()
        host.now += DAY - 10
        assert host.command(queue, WRITE, nsid=1).status == 0
        host.now += 10
        host.service()
        timeout = host.rpu.timeout
        assert timeout is not None and timeout > 0
        host.now += timeout
        host.service()
        assert len(host.executor.waiting) == 1


SAVEABLE = {0x01: 5, 0x04: 300, 0x06: 0, 0x08: 0x0203, 0x0A: 1, 0x0B: 0x1}


def test_saved_features_come_back_after_a_reset_and_a_power_cycle(start: Start) -> None:
    with start() as host:
        host.enable()
        for fid, value in SAVEABLE.items():
            assert get(host, fid, CAPABILITIES) == 5
            assert host.command(host.admin, SET_FEATURES, cdws=(SAVE | fid, value)).status == 0
            other = value ^ 1
            assert host.command(host.admin, SET_FEATURES, cdws=(fid, other)).status == 0
            assert (get(host, fid), get(host, fid, SAVED)) == (other, value)
        host.disable()
        host.enable()
        assert {fid: get(host, fid) for fid in SAVEABLE} == SAVEABLE
    with start() as host:
        host.enable()
        assert {fid: get(host, fid) for fid in SAVEABLE} == SAVEABLE
        assert {fid: get(host, fid, SAVED) for fid in SAVEABLE} == SAVEABLE
        assert get(host, 0x01, 1) == 4


def test_a_saved_value_is_kept_for_each_sensor_and_each_namespace(start: Start) -> None:
    under = 1 << 20
    with start() as host:
        host.enable()
        for value in (310, under | 270):
            assert host.command(host.admin, SET_FEATURES, cdws=(SAVE | 4, value)).status == 0
        saved = host.command(host.admin, SET_FEATURES, nsid=0xFFFFFFFF, cdws=(SAVE | 5, 9))
        assert saved.status == 0
    with start() as host:
        host.enable()
        assert (get(host, 4), get(host, 4, value=under) & 0xFFFF) == (310, 270)
        assert get(host, 5, nsid=1) == 9


def test_a_feature_is_saved_when_its_command_ends_and_not_before(start: Start) -> None:
    with start() as host:
        host.enable()
        host.place(host.admin, SET_FEATURES, 1, cdws=(SAVE | 6, 0))
        host.ring(host.admin)
        host.service()
        assert host.reap(host.admin) == []
    with start() as host:
        host.enable()
        assert get(host, 6) == 1


def test_a_feature_that_cannot_be_saved_is_an_error_that_may_pass(start: Start) -> None:
    with start() as host:
        host.enable()
        host.sidecar.media.read_only = True
        completion = host.command(host.admin, SET_FEATURES, cdws=(SAVE | 6, 0))
        assert (completion.status, completion.dnr) == (0x006, False)
        host.sidecar.media.read_only = False
        assert host.command(host.admin, SET_FEATURES, cdws=(SAVE | 6, 0)).status == 0


def test_a_feature_that_is_refused_is_not_saved(start: Start) -> None:
    with start() as host:
        host.enable()
        bad = 2 << 20  # No kind of threshold.
        assert host.command(host.admin, SET_FEATURES, cdws=(SAVE | 4, bad)).status == 0x002
        assert host.command(host.admin, SET_FEATURES, cdws=(SAVE | 9, 1)).status == 0x10D
        host.disable()
        host.enable()
        assert get(host, 4) == 343


@pytest.mark.parametrize(
    "sections",
    [
        {"health": [1], "features": {}, "firmware": 3, "shutdown": "yes"},
        {"health": {"reads": -1, "writes": 1 << 200, "errors": "x"}, "features": [1, [2]]},
        {"features": [[6, 0, 0, -1], [6, 0, 0, 1 << 33], [7, 0, 0, 1], [99, 0, 0, 1], [6, 0]]},
        {"firmware": {"active": 3, "slots": {"2": [1], "3": [1 << 40, "x", "y"], "4": 5}}},
        {"firmware": {"active": 2, "slots": {"2": [4096, "rev", "zz" * 32]}}},
    ],
)
def test_what_makes_no_sense_in_the_sidecar_is_left_out(
    start: Start, sections: dict[str, object]
) -> None:
    with start() as host:
        for name, section in sections.items():
            host.sidecar.put(name, section)
        host.sidecar.save()
    with start() as host:
        host.enable()
        found = health(host)
        assert (found["reads"], found["writes"], found["errors"]) == (0, 0, 0)
        assert (get(host, 6), host.flash.active) == (1, 1)


def test_a_damaged_sidecar_costs_the_counters_and_nothing_else(
    start: Start, tmp_path: Path
) -> None:
    with start() as host:
        host.enable()
        assert host.command(host.admin, SET_FEATURES, cdws=(SAVE | 6, 0)).status == 0
        host.rpu.power_off(clean=True)
    (tmp_path / "sidecar").write_bytes(os.urandom(SIDECAR_SIZE))
    with start() as host:
        host.enable()
        assert (get(host, 6), health(host)["power cycles"]) == (1, 1)
        assert host.data(1, DATA)[0] == 0

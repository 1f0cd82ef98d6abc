"""The Keep Alive Timer, by a clock of the test's own (NVMe Base 2.0, section 3.9 and 5.27.1.12)."""

import pytest

from support.nvme_host import Host

GET_LOG, SET_FEATURES, GET_FEATURES, KEEP_ALIVE = 2, 9, 0xA, 0x18
KATO = 0x0F


def set_timer(host: Host, milliseconds: int) -> int:
    """Set the timer; what it has become."""
    assert host.command(host.admin, SET_FEATURES, cdws=(KATO, milliseconds)).status == 0
    return host.command(host.admin, GET_FEATURES, cdws=(KATO,)).dw0


@pytest.mark.parametrize(
    ("wanted", "granted"),
    [(0, 0), (1, 100), (100, 100), (101, 200), (5000, 5000), (0xFFFFFFFF, 0xFFFFFFA0)],
)
def test_the_timer_is_rounded_up_to_whole_steps(host: Host, wanted: int, granted: int) -> None:
    assert set_timer(host, wanted) == granted


def test_a_host_that_is_silent_for_too_long_finds_a_fatal_status(host: Host) -> None:
    set_timer(host, 2000)
    assert host.rpu.timeout == 2.0
    host.now += 1.9
    host.service()
    assert not host.fatal
    host.now += 0.1
    host.service()
    assert host.fatal
    host.place(host.admin, KEEP_ALIVE, 5)
    host.ring(host.admin)
    host.service()
    assert host.reap(host.admin) == []
    assert host.rpu.controller.keep_alive.timeout is None


def test_the_error_log_says_why(host: Host) -> None:
    set_timer(host, 100)
    host.now += 1
    host.service()
    host.disable()
    host.enable()
    assert not host.fatal
    assert host.command(host.admin, GET_LOG, cdws=(15 << 16 | 1,)).status == 0
    entry = host.data(16)
    assert entry[8:12] == b"\xff" * 4
    assert int.from_bytes(entry[12:14], "little") >> 1 == 0x019


def test_each_keep_alive_begins_the_time_anew_and_nothing_else_does(host: Host) -> None:
    set_timer(host, 2000)
    for _ in range(5):
        host.now += 1.5
        assert host.command(host.admin, KEEP_ALIVE).status == 0
    host.now += 1.5
    assert host.command(host.admin, GET_FEATURES, cdws=(KATO,)).dw0 == 2000
    host.now += 0.5
    host.service()
    assert host.fatal


def test_without_a_timer_a_keep_alive_does_nothing(host: Host) -> None:
    assert host.command(host.admin, KEEP_ALIVE).status == 0
    assert host.rpu.controller.keep_alive.timeout is None
    host.now += 1e6
    host.service()
    assert not host.fatal


def test_zero_stops_the_timer_and_so_does_a_reset(host: Host) -> None:
    set_timer(host, 1000)
    set_timer(host, 0)
    host.now += 10
    host.service()
    assert not host.fatal
    set_timer(host, 1000)
    host.disable()
    host.enable()
    host.now += 10
    host.service()
    assert not host.fatal
    assert host.command(host.admin, GET_FEATURES, cdws=(KATO,)).dw0 == 0

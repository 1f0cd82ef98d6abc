"""Limits of what a guest does, while it is stopped: with made-up clocks, and in a guest."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from potash.vm.errors import GuestTimeout
from potash.vm.guest import Guest
from potash.vm.machine import Pauses
from support.vm import local_channel


def event(name: str, at: float | None) -> dict[str, object]:
    stamp = {} if at is None else {"seconds": int(at), "microseconds": round(at % 1 * 1e6)}
    return {"event": name, "timestamp": stamp}


def test_a_stop_takes_no_time_and_begins_when_it_did_not_when_it_was_heard_of() -> None:
    now = 100.0
    pauses = Pauses(lambda: now, lambda: now + 5000.0)
    pauses.take(event("RESUME", 5090.0))  # of its start
    assert pauses.now == 100.0
    now = 110.0
    pauses.take(event("STOP", 5103.0))
    pauses.take(event("STOP", 5104.0))
    assert pauses.now == pytest.approx(103.0)
    now = 200.0
    assert pauses.now == pytest.approx(103.0)
    pauses.take(event("RESUME", 5193.0))
    assert pauses.now == pytest.approx(110.0)
    pauses.take(event("NIC_RX_FILTER_CHANGED", None))
    pauses.take(event("STOP", None))  # without a time it is of now
    now = 300.0
    assert pauses.now == pytest.approx(110.0)


def test_limits_of_commands_and_signs_of_life_are_of_the_guest_s_time() -> None:
    """The clock stands while the command runs, far beyond both limits in the host's time."""
    with local_channel(life_limit=0.2) as channel:
        frozen = time.monotonic()
        channel.clock = lambda: frozen
        assert channel.start(["sleep", "1"]).wait(0.5) == 0
        channel.clock = time.monotonic
        with pytest.raises(GuestTimeout):
            channel.start(["sleep", "30"]).wait(0.1)


def test_a_stopped_guest_neither_hangs_nor_is_late(guest: Guest) -> None:
    """It is stopped for longer than it may be silent, and than its command may take."""
    channel = guest.channel
    life_limit, channel._life_limit = channel._life_limit, 1.0
    quiet, channel._quiet = channel._quiet, 0.2
    try:
        command = guest.start(["sh", "-c", "sleep 0.3; echo done"])
        guest.machine.qmp.execute("stop")
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            channel.step(channel.clock() + 0.1)
        guest.machine.qmp.execute("cont")
        assert command.wait(1.5) == 0
    finally:
        channel._life_limit, channel._quiet = life_limit, quiet


def test_ctrl_c_does_not_wait_for_a_stopped_guest(guest: Guest) -> None:
    command = guest.start(["sleep", "1000"])
    guest.machine.qmp.execute("stop")
    try:
        interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            interrupt.start()
            command.wait()
        command.signal(signal.SIGTERM)  # is kept
    finally:
        interrupt.join()
        guest.machine.qmp.execute("cont")
    assert command.wait(30.0) == -signal.SIGTERM

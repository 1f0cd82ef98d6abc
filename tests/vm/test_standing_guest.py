"""A guest that stands still hundreds of times: its clocks, and what its kernel says of it."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from potash.vm.errors import GuestError
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from potash.vm.standstill import Standstill
from support.played_monitor import PlainClock

CLOCKS = ("MONOTONIC", "MONOTONIC_RAW", "BOOTTIME", "REALTIME")
TELL = f"""
import sys, time
for _ in sys.stdin:
    print(*(time.clock_gettime_ns(getattr(time, "CLOCK_" + name)) for name in {CLOCKS}), flush=True)
"""
MS = 1_000_000


class Told:
    """A process of the guest's that tells its clocks."""

    def __init__(self, guest: Guest, clock: PlainClock) -> None:
        self._clock = clock
        self._guest = guest
        self._said = bytearray()
        self._asking, theirs = socket.socketpair()
        self.command = guest.start(
            ["python3", "-s", "-u", "-c", TELL], stdin=theirs, stdout=self._said.extend
        )

    def ahead(self) -> tuple[list[int], int]:
        """The guest's clocks less the device's, and how far off that may be, all in ns: of the
        quickest of some answers."""
        return min((self._once() for _ in range(40)), key=lambda one: one[1])

    def _once(self) -> tuple[list[int], int]:
        self._said.clear()
        before = self._clock.now()
        self._asking.sendall(b"\n")
        while b"\n" not in self._said:
            self._guest.channel.step(self._guest.channel.clock() + 5)
        after = self._clock.now()
        middle = (before + after) // 2
        return [int(word) - middle for word in self._said.split()], (after - before) // 2


class Device:
    """What a device has of its guest: a clock, and what stops the one for the other."""

    def __init__(self, monitor: Path, *, watched: bool = False) -> None:
        self.clock = PlainClock(time.monotonic_ns)
        self.still = Standstill([monitor], self.clock, watched=watched)

    def serve(self, until: Callable[[], bool], *others: Device) -> None:
        """Do what the loops of this one and others do, until something is so."""
        deadline = time.monotonic() + 30.0
        stills = [one.still for one in (self, *others)]
        while not until():
            sources = [source for one in stills for source in one.sources]
            assert len(sources) == len(stills) and time.monotonic() < deadline
            select.select(sources, (), (), 0.1)
            for one in stills:
                one.service()

    def settled(self) -> bool:
        [guest] = self.still._guests
        return guest.idle and not guest.stands and self.clock.frozen is None

    def stand(self, seconds: float = 0.0) -> None:
        """Stop the guest once."""
        self.still.hold(self)
        self.serve(lambda: self.still.stands)
        time.sleep(seconds)
        self.still.release(self)
        self.serve(self.settled)


@contextmanager
def standing(
    images: GuestImages, folder: Path, count: int = 1, *, watched: bool = False
) -> Iterator[tuple[Guest, list[Device]]]:
    """A guest with so many devices that stop it."""
    monitors = [folder / f"{number},a" for number in range(count)]
    devices = [Device(monitor, watched=watched) for monitor in monitors]
    with Guest(images, monitors=monitors) as guest, ExitStack() as stack:
        for device in devices:
            device.still.attach([1])
            stack.callback(device.still.close)
            device.serve(device.settled)
        yield guest, devices


@pytest.mark.parametrize("pairs", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_all_clocks_of_a_guest_agree_with_the_device_s(
    images: GuestImages, tmp_path: Path, pairs: int
) -> None:
    with standing(images, tmp_path) as (guest, [device]):
        still, clock = device.still, device.clock
        told = Told(guest, clock)
        guest.capture(["dmesg", "-c"])
        before, unsure = told.ahead()
        hardware = float(guest.capture(["cat", "/sys/class/rtc/rtc0/since_epoch"]).stdout)
        began = clock.now()
        device.stand(2.5)
        for number in range(pairs):
            device.stand(0.01 if number % 10 == 0 else 0.0)
            if number % 100 == 99:
                guest.channel.step(guest.channel.clock() + 0.01)
        after, more = told.ahead()
        passed = (clock.now() - began) / 1e9
        found = float(guest.capture(["cat", "/sys/class/rtc/rtc0/since_epoch"]).stdout)
        said = guest.capture(["dmesg"]).stdout
    assert still.stops == pairs + 1 and clock.offset > 2500 * MS
    for name, first, last in zip(CLOCKS, before, after, strict=True):
        assert abs(last - first) <= MS + unsure + more, name
    assert abs(found - hardware - passed) < 1.6  # whole seconds of a clock that stood, too
    assert said == b""


def test_a_long_step_stops_a_guest_and_the_end_of_its_device_does_not_leave_it_stopped(
    images: GuestImages, tmp_path: Path
) -> None:
    def wait_until(running: bool) -> None:
        deadline = time.monotonic() + 30.0
        while guest.machine.qmp.execute("query-status")["running"] is not running:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    with standing(images, tmp_path, watched=True) as (guest, [device]):
        still, clock = device.still, device.clock
        told = Told(guest, clock)
        before, unsure = told.ahead()
        for _ in range(10):
            still.expect(clock.now())
            wait_until(False)
            time.sleep(0.1)
            device.serve(lambda: device.settled() and not still.uncertain)
            assert guest.machine.qmp.execute("query-status")["running"]
        after, more = told.ahead()
        assert abs(after[0] - before[0]) <= MS + unsure + more
        assert clock.offset > 1000 * MS
        still.expect(clock.now())
        wait_until(False)
        assert still._watch is not None
        still._watch._control.close()
        wait_until(True)


def test_two_devices_stop_one_guest(images: GuestImages, tmp_path: Path) -> None:
    chance = random.Random(7)
    with standing(images, tmp_path, 2) as (guest, devices):
        told = [Told(guest, device.clock) for device in devices]
        before = [one.ahead() for one in told]
        held = [False, False]
        for _ in range(60):
            which = chance.randrange(2)
            device, other = devices[which], devices[1 - which]
            held[which] = not held[which]
            (device.still.hold if held[which] else device.still.release)(device)
            if any(held):
                device.serve(lambda: all(one.still.stands for one in devices), other)
            else:
                device.serve(lambda: all(one.settled() for one in devices), other)
            time.sleep(chance.choice([0, 0.002, 0.02]))
        for device in devices:
            device.still.release(device)
        devices[0].serve(lambda: all(one.settled() for one in devices), devices[1])
        for one, (first, unsure) in zip(told, before, strict=True):
            last, more = one.ahead()
            assert abs(last[0] - first[0]) <= MS + unsure + more
        assert all(device.still.stops for device in devices)


def test_a_guest_that_is_killed_while_it_is_stopped(
    images: GuestImages, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        pytest.raises(GuestError, match="the guest has ended"),
        standing(images, tmp_path) as (guest, [device]),
    ):
        device.still.hold(device)
        device.serve(lambda: device.still.stands)
        assert guest.machine.pid is not None
        os.kill(guest.machine.pid, signal.SIGKILL)
        while device.still.sources:
            device.still.service()
        before = device.clock.now()
        time.sleep(0.001)
        assert device.clock.now() > before
        device.still.release(device)
    assert "the guest stands still no more: QEMU has ended" in caplog.messages

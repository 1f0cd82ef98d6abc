"""A guest that stands still hundreds of times: its clocks, and what its kernel says of it."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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
            ["python3", "-s", "-u", "-c", TELL],
            stdin=theirs,
            stdout=self._said.extend,
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


@contextmanager
def standing(images: GuestImages, folder: Path) -> Iterator[tuple[Guest, Standstill, PlainClock]]:
    clock = PlainClock(time.monotonic_ns)
    still = Standstill(folder / "a,b", clock)
    with Guest(images, monitors=[folder / "a,b"]) as guest:
        still.attach()
        serve(still, lambda: still._idle)
        try:
            yield guest, still, clock
        finally:
            still.close()


def serve(still: Standstill, until: Callable[[], bool], limit: float = 30.0) -> None:
    deadline = time.monotonic() + limit
    while not until():
        assert still.source is not None and time.monotonic() < deadline
        select.select((still.source,), (), (), 0.1)
        still.service()


def stand(still: Standstill, seconds: float = 0.0) -> None:
    still.hold(still)
    serve(still, lambda: still.stands)
    time.sleep(seconds)
    still.release(still)
    serve(still, lambda: still._idle and not still.stands)


@pytest.mark.parametrize("pairs", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_all_clocks_of_a_guest_agree_with_the_device_s(
    images: GuestImages, tmp_path: Path, pairs: int
) -> None:
    with standing(images, tmp_path) as (guest, still, clock):
        told = Told(guest, clock)
        guest.capture(["dmesg", "-c"])
        before, unsure = told.ahead()
        hardware = float(guest.capture(["cat", "/sys/class/rtc/rtc0/since_epoch"]).stdout)
        began = clock.now()
        stand(still, 2.5)
        for number in range(pairs):
            stand(still, 0.01 if number % 10 == 0 else 0.0)
            if number % 100 == 99:
                guest.channel.step(guest.channel.clock() + 0.01)
        after, more = told.ahead()
        passed = (clock.now() - began) / 1e9
        found = float(guest.capture(["cat", "/sys/class/rtc/rtc0/since_epoch"]).stdout)
        said = guest.capture(["dmesg"]).stdout
    assert still.stops == pairs + 1 and still.frozen_ns > 2500 * MS
    for name, first, last in zip(CLOCKS, before, after, strict=True):
        assert abs(last - first) <= MS + unsure + more, name
    assert abs(found - hardware - passed) < 1.6  # whole seconds of a clock that stood, too
    assert said == b""

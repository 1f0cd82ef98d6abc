"""The process that stops a guest while its device is late, and kills of either."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from potash.vm import standstill
from potash.vm.watch import _ATTRIBUTES, _SCHED_SETATTR, SLICE, Watch, shorten_slices
from support.played_monitor import PlayedMonitor, PlayedWatch, Scene, Wall, scene

MS = 1_000_000
TESTS = Path(__file__).parent.parent


@contextmanager
def watched(limit: float = 300.0) -> Iterator[tuple[Watch, Callable[[], str]]]:
    """A process with a monitor, and a function that waits for the next command at that; it is empty
    when the process has ended."""
    ours, theirs = socket.socketpair()
    ours.settimeout(30.0)
    with ours, closing(Watch(limit)) as watch:
        with theirs:
            watch.use([theirs.fileno()])
        lines = ours.makefile("rb")

        def told() -> str:
            line = lines.readline()
            if b"last" in line:
                ours.sendall(line)  # an answer with the same identifier
            return json.loads(line)["execute"] if line else ""

        yield watch, told
        watch.take()
        watch.hold(0)


def test_a_device_that_is_late_has_its_guest_stopped_until_it_takes_over() -> None:
    with watched() as (watch, told):
        for _ in range(3):
            began = time.monotonic_ns()
            watch.expect(began)
            assert told() == "stop"
            assert watch.stopped >= began
            at = watch.seconds()
            assert at * 1e9 == pytest.approx(watch.stopped, abs=1000)
            time.sleep(0.001)
            assert watch.seconds() == at
            assert watch.take() == pytest.approx(at * 1e9, abs=1000)
            assert watch.seconds() > at and watch.stopped == 0
            time.sleep(0.02)  # long enough for the process to fall asleep, or not
    assert told() == ""


def test_the_clock_never_goes_back_to_the_time_of_the_stop() -> None:
    with watched() as (watch, told):
        latest = watch.seconds()
        watch.expect(1)
        told()
        assert watch.seconds() >= latest


@pytest.mark.parametrize("held", [False, True])
def test_a_device_that_hangs_lets_its_guest_go_on_at_the_limit(held: bool) -> None:
    with watched(limit=0.01) as (watch, told):
        if held:
            watch.hold(time.monotonic_ns() - 2000 * MS)
            watch.expect(0)
        else:
            watch.expect(1)
            assert told() == "stop"
        assert told() == "cont"


@pytest.mark.parametrize("how", ["stopped", "held", "running"])
def test_a_device_that_is_killed_leaves_no_guest_stopped(how: str) -> None:
    with watched() as (watch, told):
        if how == "stopped":
            watch.expect(1)
            assert told() == "stop"
        elif how == "held":
            watch.hold(time.monotonic_ns())
        watch._control.close()
        assert told() == ("" if how == "running" else "cont")


def test_the_process_stops_the_guests_that_use_the_device_and_no_others() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    with ExitStack() as stack, closing(Watch(300.0)) as watch:
        for sockets in pairs:
            for each in sockets:
                stack.enter_context(each)
                each.settimeout(30.0)

        def told(*numbers: int) -> list[str]:
            return [json.loads(pairs[number][0].recv(4096))["execute"] for number in numbers]

        for numbers in ((0, 1), (1, 2), (2,)):
            watch.use([pairs[number][1].fileno() for number in numbers])
            watch.expect(1)
            assert told(*numbers) == ["stop"] * len(numbers)
            watch.take()
        watch.use([])
        watch.expect(1)
        time.sleep(0.02)
        assert watch.stopped == 0
        watch.use([pairs[number][1].fileno() for number in (0, 1)])
        assert told(0, 1) == ["stop"] * 2
        watch.use([pairs[1][1].fileno()])  # the other one has just left
        assert told(0) == ["cont"]
        watch._control.close()
        assert told(1) == ["cont"]


@contextmanager
def late(folder: Path) -> Iterator[tuple[Scene, PlayedWatch]]:
    with scene(folder) as it:
        watch = PlayedWatch(it.wall)
        it.still._watch = watch  # type: ignore[assignment]
        it.clock.seconds = watch.seconds
        it.attach()
        yield it, watch


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("over", [False, True])
def test_a_step_that_takes_too_long_takes_no_time_of_the_guest(
    tmp_path: Path, killed: bool, over: bool
) -> None:
    """Even if the process is killed before it sends the command, or has let the guest go on."""
    with late(tmp_path) as (it, watch):
        for _ in range(5):
            it.pass_ns(3 * MS)
            before = it.clock.now()
            it.still.expect(before + MS)
            assert watch.due == it.wall() + MS
            it.wall.ns += MS
            stopped = watch.stopped = it.wall()
            if not killed:
                it.wall.ns += MS
                it.qemu.stop()
            it.wall.ns += 100 * MS
            if over:
                it.qemu.cont()
                it.wall.ns += 20 * MS
            assert it.clock.now() == before + MS and it.still.uncertain
            it.settle()
            assert it.still.late_since == stopped
            assert it.qemu.running and it.clock.frozen is None
            assert abs(it.error) < MS // 2 and watch.held == 0
            assert not it.still.uncertain


def test_a_monitor_that_is_gone_does_not_leave_the_clock_stopped(tmp_path: Path) -> None:
    with late(tmp_path) as (it, watch):
        for vanishes in (True, False):
            before = it.clock.now()
            watch.stopped = it.wall()
            if vanishes:
                it.qemu.vanish()
            it.wall.ns += 7 * MS
            assert it.clock.now() == before
            it.settle()
            it.wall.ns += MS
            assert it.clock.now() == before + MS and watch.stopped == 0
            it.still.expect(it.clock.now())
            assert watch.due == 0


def test_a_process_that_cannot_be_started_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    it = Scene(tmp_path)
    with it.qemu:
        still = standstill.Standstill([tmp_path / "none"], it.clock, watched=True)
        still.expect(1)
        still.close()
    assert caplog.messages == ["no long step will stop the guest: No such file or directory"]


def test_threads_get_short_slices_and_keep_their_policy_and_nice_value() -> None:
    size = _ATTRIBUTES.size
    for policy, nice in ((os.SCHED_OTHER, 3), (os.SCHED_BATCH, 0)):
        with subprocess.Popen(["sleep", "60"]) as process:
            os.setpriority(os.PRIO_PROCESS, process.pid, nice)
            os.sched_setscheduler(process.pid, policy, os.sched_param(0))
            shorten_slices(process.pid)
            found = ctypes.create_string_buffer(size)
            ctypes.CDLL(None).syscall(
                _SCHED_SETATTR[platform.machine()] + 1, process.pid, found, size, 0
            )
            process.kill()
        _, found_policy, _, found_nice, _, runtime, _, _ = _ATTRIBUTES.unpack(found.raw)
        assert (found_policy, found_nice) == (policy, nice)
        assert policy == os.SCHED_BATCH or runtime in (0, SLICE)  # 0 before Linux 6.12
    shorten_slices(process.pid)


@pytest.mark.parametrize("victim", ["device", "process", "both"])
def test_kills_at_any_moment_leave_no_guest_stopped(tmp_path: Path, victim: str) -> None:
    """A device that holds one guest, or two, and is late again and again, with monitors as of QEMU.

    Where both are killed, the monitors have lost their client, upon which `potash guest` acts.
    """
    chance = random.Random(victim)
    wall = Wall()
    for count in (1, 2):
        paths = [tmp_path / f"monitor{count}{number}" for number in range(count)]
        with ExitStack() as stack:
            guests = [stack.enter_context(PlayedMonitor(path, wall)) for path in paths]
            device = subprocess.Popen(
                [sys.executable, "-m", "support.late_device", *paths],
                cwd=TESTS,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert device.stdin is not None and device.stdout is not None
            with device:
                process = int(device.stdout.readline())
                limit = time.monotonic() + 30.0
                until = limit
                ended = threading.Event()
                while not ended.is_set() or sum(qemu.serve() for qemu in guests):
                    wall.ns = time.monotonic_ns()
                    for qemu in guests:
                        qemu.serve()
                    if until == limit and all(qemu.commands for qemu in guests):
                        until = time.monotonic() + chance.uniform(0.0, 0.1)
                    if time.monotonic() >= until and not ended.is_set():
                        if victim != "device":
                            os.kill(process, signal.SIGKILL)
                        if victim != "process":
                            device.kill()
                        ended.set()
                        device.stdin.close()
                while any(qemu.attached for qemu in guests):
                    assert time.monotonic() < limit
                    for qemu in guests:
                        qemu.serve()
        for qemu in guests:
            assert qemu.running or victim == "both"
            assert "stop" in qemu.commands

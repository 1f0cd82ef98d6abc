"""A guest that stands still, with a monitor that the test plays in made-up time."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash.sdk.errors import PotashError
from potash.vm import standstill
from potash.vm.qmp import require_monitor
from potash.vm.stoppable import STARTED, TOLERANCE
from support.played_monitor import Scene, scene

MS = 1_000_000


@contextmanager
def answering(it: Scene) -> Iterator[None]:
    """QEMU answers in a thread, to one that waits for it."""
    ended = threading.Event()

    def serve() -> None:
        while not ended.wait(0.001):
            it.qemu.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_stop_begins_with_the_first_holder_and_ends_with_the_last(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        it.still.hold("a")
        it.still.hold("b")
        it.settle()
        assert it.qemu.commands == ["stop"] and it.still.stands
        it.still.release("a")
        it.settle()
        assert it.still.stands
        it.still.release("b")
        it.settle()
        assert it.qemu.commands == ["stop", "cont"] and not it.still.stands
        assert it.still.stops == 1


def test_guest_time_stands_while_the_guest_does_and_is_never_ahead_of_it(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        it.qemu.lag = 40_000  # the clock starts that much after the event
        last = 0
        for _ in range(50):
            it.pass_ns(3 * MS)
            it.still.hold(it)
            it.settle()
            before = it.clock.now()
            assert before <= it.qemu.guest_ns
            it.pass_ns(300 * MS)
            assert it.clock.now() == before
            it.still.release(it)
            it.settle()
            assert it.clock.frozen is None
            # By half of what the first read of the counter took, and by when the clock starts.
            assert abs(it.error) <= it.qemu.latency // 2 + STARTED
            if last:
                assert abs(it.error - last) <= 2000  # which adds up to nothing; events have µs
            last = it.error
        assert it.clock.offset == pytest.approx(50 * 300 * MS, rel=0.01)


def test_without_an_hpet_the_events_times_serve(tmp_path: Path) -> None:
    with scene(tmp_path, hpet=False) as it:
        for _ in range(10):
            it.still.hold(it)
            it.pass_ns(40 * MS)
            it.still.release(it)
            it.settle()
            assert abs(it.error) < 10_000  # events have microseconds
        it.qemu.lag = 150_000
        for _ in range(10):
            it.still.hold(it)
            it.pass_ns(40 * MS)
            it.still.release(it)
            it.settle()
        assert it.error == pytest.approx(10 * 2 * 150_000, rel=0.05)  # which they cannot know


def test_a_counter_that_is_reset_or_halted_is_not_believed(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        it.pass_ns(5000 * MS)
        it.qemu.reset_counter()
        it.still.hold(it)
        it.pass_ns(100 * MS)
        it.still.release(it)
        it.settle()
        assert abs(it.error) < TOLERANCE
        it.pass_ns(5000 * MS)
        it.qemu.hpet = False  # reads give zeros from now on
        it.still.hold(it)
        it.pass_ns(100 * MS)
        it.still.release(it)
        it.settle()
        assert abs(it.error) < TOLERANCE


def test_a_slow_read_of_the_counter_is_repeated_and_the_quickest_counts(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        it.qemu.stop()
        it.settle()
        it.qemu.read_latencies = [4 * MS, 600_000, 2 * MS, MS, 9 * MS]
        it.qemu.cont()
        it.settle()
        assert it.qemu.read_latencies == [9 * MS]
        assert abs(it.error) <= 300_010


def test_the_clock_stands_at_the_time_at_which_the_guest_was_stopped(tmp_path: Path) -> None:
    """The guest runs until QEMU has stopped it: what it asks for meanwhile may be later than the
    clock says, and is left until that is known; likewise when it goes on."""
    with scene(tmp_path) as it:
        assert not it.still.uncertain
        it.still.hold(it)
        before = it.clock.now()
        assert it.still.uncertain
        it.settle()
        assert it.still.stands and not it.still.uncertain
        assert it.clock.now() > before and abs(it.error) <= it.qemu.latency // 2
        it.still.release(it)
        assert it.still.uncertain
        it.settle()
        assert not it.still.uncertain
        it.qemu.reset_counter()
        it.still.hold(it)
        before = it.clock.now()
        it.settle()
        assert it.clock.now() == before and not it.still.uncertain


def test_a_stop_is_measured_while_it_lasts_and_not_after_it(tmp_path: Path) -> None:
    """So deadlines pass again as soon as QEMU has answered."""
    with scene(tmp_path) as it:
        it.still.hold(it)
        it.pass_ns(10 * MS)
        it.qemu.read_latencies = [9 * MS]
        it.still.release(it)
        it.settle()
        assert it.qemu.read_latencies == [9 * MS]
        assert it.clock.frozen is None and abs(it.error) <= STARTED


@pytest.mark.parametrize("lag", [40_000, 3 * MS])
@pytest.mark.parametrize("late", [0, 5 * MS])
def test_a_clock_that_may_have_started_late_is_read(tmp_path: Path, lag: int, late: int) -> None:
    """On a busy machine, QEMU may lose its processor between the event and the start of the clock,
    and the device may lose its own."""
    with scene(tmp_path) as it:
        for _ in range(5):
            it.still.hold(it)
            it.pass_ns(10 * MS)
            it.qemu.lag = lag
            it.still.release(it)
            it.qemu.serve()
            it.qemu.lag = 0
            it.wall.ns += late
            it.still.service()
            if late:  # deadlines pass while the counter is read
                assert it.clock.frozen is None and it.still.uncertain
                it.wall.ns += MS
                assert it.error <= 0
            it.settle()
            assert it.clock.frozen is None
            assert -STARTED <= it.error <= it.qemu.latency // 2 + 10


def test_a_clock_that_stops_and_goes_on_long_after_the_events_is_believed(tmp_path: Path) -> None:
    """As on a busy machine, at which processors take long to pause."""
    with scene(tmp_path) as it:
        for _ in range(5):
            it.qemu.lag = 8 * MS
            it.qemu.stop()
            it.pass_ns(30 * MS)
            it.qemu.cont(started=False)
            it.pass_ns(2 * MS)
            it.qemu.start_clock()
            it.settle()
            it.pass_ns(100 * MS)
        it.qemu.lag = 0
        it.still.hold(it)
        it.pass_ns(10 * MS)
        it.still.release(it)
        it.settle()
        assert abs(it.error) <= it.qemu.latency


def test_a_stop_of_somebody_else_is_left_to_them(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        it.qemu.stop()
        it.settle()
        before = it.clock.now()
        it.still.hold(it)
        it.pass_ns(100 * MS)
        assert it.still.stands and it.clock.now() == before
        it.still.release(it)
        it.settle()
        assert it.qemu.commands == [] and not it.qemu.running
        it.qemu.cont()
        it.settle()
        assert abs(it.error) < MS and it.clock.frozen is None


def test_who_lets_the_guest_go_on_while_it_is_held_sees_it_stopped_again(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        it.still.hold(it)
        it.pass_ns(10 * MS)
        it.qemu.cont()
        it.pass_ns(20 * MS)
        assert it.qemu.commands == ["stop", "stop"] and not it.qemu.running
        it.still.release(it)
        it.settle()
        assert it.qemu.running and abs(it.error) < MS


def test_a_guest_that_is_paused_at_first_is_not_started(tmp_path: Path) -> None:
    with scene(tmp_path, running=False) as it:
        it.still.hold(it)
        it.pass_ns(10 * MS)
        it.still.release(it)
        it.settle()
        assert it.qemu.commands == []
        it.qemu.cont()
        it.settle()
        assert abs(it.error) < MS


def test_a_stop_ends_at_its_limit_and_the_next_one_begins_as_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with scene(tmp_path, limit=2.0) as it:
        it.still.hold(it)
        it.settle()
        assert it.still.timeout == pytest.approx(2.0, abs=0.01)
        it.pass_ns(1900 * MS)
        assert it.still.stands and not it.still.over
        it.pass_ns(200 * MS)
        assert it.still.over and it.qemu.running
        assert caplog.messages == [
            "the guest stood still for 2 seconds and goes on; what it was stopped for fails"
        ]
        it.still.hold("another")
        it.settle()
        assert it.qemu.running
        it.still.release(it)
        it.still.release("another")
        it.still.hold(it)
        it.settle()
        assert it.still.stands


def test_a_guest_that_vanishes_while_it_is_stopped_leaves_the_clock_to_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with scene(tmp_path) as it:
        it.still.hold(it)
        it.pass_ns(10 * MS)
        before = it.clock.now()
        it.qemu.vanish()
        it.settle()
        it.pass_ns(5 * MS)
        assert it.clock.now() == before + 5 * MS
        assert caplog.messages == ["the guest stands still no more: QEMU has ended"]
        assert not it.still.sources
        it.still.release(it)
        it.attach()  # the next one
        it.still.hold(it)
        it.settle()
        assert it.still.stands


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "QEMU's monitor sends something that is not a message"),
        (b'{"hello": 1}\r\n', "is not a monitor of QEMU"),
        (b'{"return": {}}\r\n{"return": {}}\r\n', "is not a monitor of QEMU"),
        (b"[" * 100_000 + b"\n", "QEMU's monitor sends something that is not a message"),
    ],
)
def test_who_is_no_qemu_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, said: bytes, reason: str
) -> None:
    made = Scene(tmp_path)
    with made.qemu:
        made.qemu.greeting = said
        made.attach()
        made.still.hold(made)
        made.settle()
        [message] = caplog.messages
        assert message.endswith(reason)
        assert not made.still.sources and made.clock.frozen is None


@pytest.mark.parametrize("refused", ["stop", "cont", "query-status"])
def test_a_refusal_ends_it_with_qemu_s_own_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, refused: str
) -> None:
    made = Scene(tmp_path)
    with made.qemu:
        made.qemu.refuses = {refused}
        made.attach()
        made.still.hold(made)
        made.settle()
        made.still.release(made)
        made.settle()
        assert caplog.messages == [
            f"the guest stands still no more: QEMU refuses {refused}: not now"
        ]
        assert made.clock.frozen is None


def test_the_device_s_end_lets_the_guest_go_on(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        it.still.hold(it)
        it.settle()
        with answering(it):
            it.still.close()
        assert it.qemu.running


def test_the_device_s_end_does_not_wait_for_a_qemu_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(standstill, "END_LIMIT", 0.05)
    with scene(tmp_path) as it:
        it.still.hold(it)
        it.settle()
        it.qemu.mute = True
        it.still.close()
    assert caplog.messages == ["the guest may still stand: QEMU does not answer"]


def test_nobody_there_is_a_warning_and_no_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = Scene(tmp_path)
    made.qemu.__exit__()
    made.path.unlink()
    made.attach()
    made.still.hold(made)
    made.pass_ns(10 * MS)
    assert made.clock.now() == made.wall()
    assert "no QEMU listens at" in caplog.text


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["hold a", "release a", "hold b", "release b", "stop", "cont"]),
            st.integers(0, 20 * MS),
        ),
        max_size=30,
    )
)
@settings(max_examples=60)
def test_whoever_stops_and_goes_on_the_clocks_agree(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    with scene(tmp_path_factory.mktemp("scene")) as it:
        held: set[str] = set()
        for step, ns in steps:
            match step.split():
                case ["hold", who]:
                    it.still.hold(who)
                    held.add(who)
                case ["release", who]:
                    it.still.release(who)
                    held.discard(who)
                case ["stop"]:
                    it.qemu.stop()
                case ["cont"]:
                    it.qemu.cont()
            it.settle()
            assert not (held and it.qemu.running)
            it.pass_ns(ns)
            assert it.still.stands is not it.qemu.running
            assert abs(it.error) < MS
            if it.qemu.running:
                assert it.clock.frozen is None


_NUMBERS = st.integers(-2, 2) | st.just(10**400) | st.floats() | st.text(max_size=3)
_STAMPS = st.fixed_dictionaries({"seconds": _NUMBERS, "microseconds": _NUMBERS})
_VALUES: st.SearchStrategy[object] = (
    st.none() | st.booleans() | _NUMBERS | st.just({"running": True}) | st.just([])
)
_SAID = st.one_of(
    st.fixed_dictionaries({"return": _VALUES | st.just("0: 0x8086a201 0x00989680")}),
    st.fixed_dictionaries({"error": _VALUES | st.just({"desc": "no"})}),
    st.fixed_dictionaries(
        {"event": st.sampled_from(["STOP", "RESUME", "RESET"]) | _VALUES},
        optional={"timestamp": _STAMPS | _VALUES},
    ),
    _VALUES,
).map(lambda said: json.dumps(said).encode() + b"\n") | st.binary(max_size=20)


@given(st.lists(st.tuples(_SAID, st.sampled_from(["hold", "release", "serve", "pass"]))))
def test_whatever_a_monitor_says_the_device_goes_on(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bytes, str]]
) -> None:
    """Between and instead of QEMU's own answers."""
    with scene(tmp_path_factory.mktemp("scene")) as it:
        for said, step in steps:
            if it.qemu.attached:
                it.qemu.say(said)
            it.still.service()
            match step:
                case "hold":
                    it.still.hold(it)
                case "release":
                    it.still.release(it)
                case "serve":
                    it.qemu.serve()
                case "pass":
                    it.wall.ns += MS
            assert it.clock.now() <= it.wall()
        it.still.release(it)
        it.qemu.vanish()
        it.still.service()
        it.still.service()
        assert not it.still.sources
        assert it.clock.frozen is None


def test_a_path_that_cannot_be_a_monitor_is_refused(tmp_path: Path) -> None:
    require_monitor(tmp_path / "later")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(PotashError, match="is not a socket"):
        require_monitor(file)
    with scene(tmp_path) as it, answering(it):
        it.still.close()
        require_monitor(it.path)
        it.qemu.greeting = b"220 mail\r\n"
        with pytest.raises(PotashError, match="does not greet as QEMU's monitor does"):
            require_monitor(it.path)
    left = tmp_path / "left"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left))
    require_monitor(left)

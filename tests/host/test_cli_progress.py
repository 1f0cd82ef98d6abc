"""Progress of commands on standard error, on a terminal and elsewhere."""

import io
import sys
import threading
from pathlib import Path

import pytest

from potash.cli import progress
from potash.cli.progress import ERASE, Reporter
from potash.vm import drive
from potash_device.vta.fast import compiling


class Stream(io.StringIO):
    """A stream that says when something was written."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal
        self.written = threading.Event()

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)

    def take(self) -> str:
        """The text since the last call."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of reporters, which only `show` asks for, as their threads are not started."""
    now = [100.0]
    monkeypatch.setattr(progress, "PATIENCE", 2.0)
    monkeypatch.setattr("potash.cli.progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr(threading.Thread, "start", lambda _: None)
    monkeypatch.setattr(threading.Thread, "join", lambda _: None)
    return now


def test_a_terminal_has_one_line_after_two_seconds(clock: list[float]) -> None:
    stream = Stream(terminal=True)
    reporter = Reporter(stream, steps=True)
    reporter("sending", 0.5)
    reporter.show(101.9)
    assert stream.take() == ""
    reporter.show(102.1)
    assert stream.take() == f"{ERASE}sending: 50%"
    reporter("running", None)
    reporter.show(104.0)
    assert stream.take() == f"{ERASE}running: 4 s"
    output = io.StringIO()
    reporter.write("done", output)
    assert (stream.take(), output.getvalue()) == (ERASE, "done\n")
    reporter.close()
    assert stream.take() == ""


def test_elsewhere_a_line_is_written_now_and_then(clock: list[float]) -> None:
    stream = Stream(terminal=False)
    reporter = Reporter(stream)
    reporter("sending", 0.0)
    for seconds in (1, 2, 3, 11, 12):
        reporter("sending", seconds / 12)
        reporter.show(100.0 + seconds)
    assert stream.take() == "potash: sending: 17%\npotash: sending: 100%\n"


def test_elsewhere_steps_are_written_as_they_begin(clock: list[float]) -> None:
    stream = Stream(terminal=False)
    reporter = Reporter(stream, steps=True)
    for seconds, step in ((0, "one"), (1, "one"), (1.5, "two"), (3, "two"), (4, "two")):
        clock[0] = 100.0 + seconds
        reporter(step, None)
        reporter.show(clock[0])
    assert stream.take() == "potash: one\npotash: two\npotash: two: 4 s\n"


def test_a_step_that_compiles_says_so(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    @compiling.entry
    def double(x: int) -> int:
        return 2 * x

    def compiled(self: object, function: object) -> None:
        seen.append(compiling.is_compiling)
        reporter.show(102.0)
        raise KeyboardInterrupt

    monkeypatch.setattr("numba.core.compiler.Compiler.compile_extra", compiled)
    stream = Stream(terminal=False)
    reporter = Reporter(stream)
    reporter("timing", None)
    with pytest.raises(KeyboardInterrupt):
        double(1)
    assert seen == [True] and not compiling.is_compiling
    assert stream.take() == "potash: timing (compiling the simulator, once): 2 s\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_block_shows_that_it_runs(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(terminal=terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with progress.ticking("thinking"):
        assert stream.written.wait(60)
    assert "thinking: 0 s" in stream.getvalue()
    assert stream.getvalue().endswith(ERASE if terminal else "\n")


def test_nobody_is_shown_anything_where_standard_error_is_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", None)
    with progress.showing(steps=True) as reporter:
        reporter("thinking", None)
        reporter.write("said")
    assert capsys.readouterr() == ("", "")


def test_a_device_that_compiles_while_it_starts_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = 'echo "$1" >&2; echo other >&2; while [ ! -e "$2" ]; do sleep 0.01; done; echo up'
    said, shown = "potash: preparing (compiling the simulator, once): 2 s", tmp_path / "shown"
    command = ["sh", "-c", script, "sh", said, str(shown)]
    monkeypatch.setattr(drive, "dies_with_parent", lambda _: command)
    monkeypatch.setattr(drive, "LOOK", 0.01)
    stream = Stream(terminal=False)
    monkeypatch.setattr(sys, "stderr", stream)
    stream.written.set = shown.touch  # type: ignore[method-assign]  # when it is shown, it starts
    with drive.device_process(tmp_path / "socket"):
        assert stream.take() == said + "\n"

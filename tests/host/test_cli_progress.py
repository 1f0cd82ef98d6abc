"""Progress on a terminal of what has no progress of its own."""

import io
import sys
import threading

import pytest

from potash.cli import progress


class Terminal(io.StringIO):
    """Says when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


def test_a_block_shows_that_it_runs_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with progress.ticking("thinking"):
        assert terminal.written.wait(60)
    assert "thinking: 0 s" in terminal.getvalue()
    assert terminal.getvalue().endswith(progress.ERASE)


def test_where_there_is_no_terminal_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with progress.ticking("thinking"):
        threading.Event().wait(2 * progress.INTERVAL)
    assert capsys.readouterr() == ("", "")

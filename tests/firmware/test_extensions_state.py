"""States of extensions, which outlive power cycles and move with a drive."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nvme_spec.status import Status
from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from potash_firmware import extension_files, extension_limits
from potash_firmware.extension_limits import ExtensionError
from support.extended import extended, settings
from support.migration import load, save
from support.nvme_host import Host

COUNTER = """
    counter = state("counter", default=dict)

    @admin_command(0xC4, name="Count", data="none")
    def count(drive, command):
        value = counter(drive)
        value["count"] = value.get("count", 0) + 1
        if command.cdw10:
            counter.set(drive, {1: 2})
        if command.cdw11:
            yield drive.save()
        return value["count"]
"""


@contextmanager
def powered(folder: Path, text: str, media: Path) -> Iterator[Host]:
    """A drive with files, whose power comes, and an extension."""
    shapes = [] if media.exists() else [NamespaceShape(1 << 20)]
    with (
        Drive.open(media, shapes) as drive,
        Host(settings=settings(folder, text), drive=drive) as host,
    ):
        host.enable()
        yield host


def counted(host: Host, *cdws: int) -> int:
    """The next number of the drive's counter."""
    done = host.command(host.admin, 0xC4, cdws=cdws)
    assert done.status == 0
    return done.dw0


def test_state_outlives_power_cycles(tmp_path: Path, caplog: Any) -> None:
    media = tmp_path / "drive"
    saved = tmp_path / "drive.extensions.json"
    with powered(tmp_path, COUNTER, media) as host:
        assert (counted(host), saved.exists()) == (1, False)
        assert (counted(host, 0, 1), saved.exists()) == (2, True)
        assert saved.stat().st_mode & 0o777 == 0o600  # as that of the media
        assert counted(host) == 3
        host.rpu.power_off(clean=True)
    with powered(tmp_path, COUNTER, media) as host:
        assert counted(host) == 4
        host.rpu.power_off(clean=True)
    with powered(tmp_path, COUNTER, media) as host:
        assert counted(host) == 5
        assert counted(host, 1) == 6  # and is no JSON any more
        assert host.command(host.admin, 0xC4, cdws=(1, 1)).status == Status.INTERNAL_ERROR
        host.rpu.power_off(clean=True)
        assert "the state 'counter' of" in caplog.text and "keys are texts" in caplog.text
    with powered(tmp_path, COUNTER, media) as host:
        assert counted(host) == 5


def test_state_is_saved_whatever_changes_it(tmp_path: Path) -> None:
    """Also in an object that all defaults share, and when a command is closed."""
    text = """
    SHARED = {}
    held = state("held", default=lambda: SHARED)

    @admin_command(0xC4, name="Wait", data="none")
    def wait(drive, command):
        try:
            yield drive.sleep(1e9)
        finally:
            held(drive)["closed"] = True
    """
    with powered(tmp_path, text, tmp_path / "drive") as host:
        host.place(host.admin, 0xC4, 1)
        host.ring(host.admin)
        for _ in range(3):  # records
            host.now += 61
            host.service()
            host.executor.run_all()
            host.service()
        host.disable()
        host.service()
        host.now += 61
        host.service()
        host.executor.run_all()
        assert '{"closed": true}' in (tmp_path / "drive.extensions.json").read_text()


def test_a_default_that_takes_too_long_holds_no_record_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(extension_limits, "STEP_LIMIT", 0.05)
    text = """
    calls = []

    def value():
        calls.append(0)
        while len(calls) > 3:  # not while the drive starts
            pass
        return 0

    slow = state("slow", default=value)
    """
    with powered(tmp_path, text, tmp_path / "drive") as host:
        host.rpu.power_off(clean=True)
    assert "the state 'slow' of" in caplog.text and "it takes too long" in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "",
            r"version 1 of the state 'counter' of .*mine.py, an extension: start it with --extend",
        ),
        ('counter = state("counter", version=2, default=dict)', "version 1 .* has version 2 now"),
    ],
)
def test_a_drive_with_state_wants_the_extension(tmp_path: Path, text: str, said: str) -> None:
    media = tmp_path / "drive"
    with powered(tmp_path, COUNTER, media) as host:
        counted(host, 0, 1)
    with pytest.raises(ExtensionError, match=said), powered(tmp_path, text, media):
        pass


def test_state_moves_with_the_drive(tmp_path: Path) -> None:
    with extended(tmp_path, COUNTER) as source:
        source.enable()
        assert counted(source) == 1 and counted(source) == 2
        state = save(source)
        with extended(tmp_path, COUNTER) as host:
            host.memory.view[:] = source.memory.view
            host.admin = source.admin
            load(host, state)
            assert counted(host) == 3
        with Host() as host, pytest.raises(OSError, match=r"state 'counter' of .*mine.py"):
            load(host, state)


def test_a_file_that_was_changed_within_a_second_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "mine.py"
    for lid in (0xC7, 0xC8):
        file.write_text(
            "from potash.extend import log_page\n"
            f"@log_page({lid}, name='Mine', size=4)\ndef mine(drive): pass\n"
        )
        os.utime(file, (1, 1))
        assert list(extension_files.load([str(file)]).pages) == [lid]

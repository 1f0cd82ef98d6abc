"""`potash guest --kernel … --disk …`: a system that knows nothing of Potash, at the terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from potash.cli.app import run_app
from potash.vm.images import GuestImages
from potash.vm.rootfs import Archive
from support.terminal import until
from support.vm import PotashGuest, processes_with

LIMIT = 60.0
COMMAND = [sys.executable, "-m", "potash.cli.main", "guest"]

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
until [ -b /dev/nvme0n1 ]; do usleep 10000; done
echo "told: $(cat /proc/cmdline)"
echo "virtio disks: $(cat /sys/bus/virtio/devices/*/device | tr '\\n' ' ')"
printf kept | dd of=/dev/nvme0n1 bs=4096 seek=3 conv=sync,fsync 2>/dev/null
echo ready
read line
echo "heard: $line"
poweroff -f
"""


@pytest.fixture(scope="module")
def initrd(images: GuestImages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file system with busybox in it, and nothing of ours."""
    (busybox, *_) = sorted((images.cache.root / "trees").glob("*/usr/bin/busybox"))
    archive = Archive()
    for name in ("proc", "sys", "dev"):
        archive.directory(name)
    archive.device("dev/console", 5, 1, 0o600)
    archive.copy(busybox, "bin/busybox", 0o755)
    archive.file("init", INIT.encode(), 0o755)
    path = tmp_path_factory.mktemp("own") / "initrd"
    with path.open("wb") as stream:
        archive.write(stream)
    return path


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return dict(os.environ, TMPDIR=str(scratch))


@pytest.fixture
def options(images: GuestImages, initrd: Path, tmp_path: Path) -> list[str]:
    for name in ("first", "other"):
        (tmp_path / name).write_bytes(name.encode().ljust(1 << 20, b"\0"))
    return [
        *("--kernel", str(images.kernel), "--initrd", str(initrd)),
        *("--append", "console=ttyS0 quiet panic=-1 mine=1"),
        *("--disk", str(tmp_path / "first"), "--disk", f"{tmp_path / 'other'},rw"),
        *("--media", str(tmp_path / "media"), "--size", "8M"),
    ]


@contextlib.contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive a test that fails."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def test_it_boots_with_its_disks_and_the_drive(
    options: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    with running(
        [*COMMAND, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        said = until(process.stdout.fileno(), b"ready")
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        rest, errors = process.communicate(timeout=LIMIT)
    assert (process.returncode, errors) == (0, b"")
    assert b"told: console=ttyS0 quiet panic=-1 mine=1\r\n" in said
    assert b"virtio disks: 0x0002 0x0002 \r\n" in said  # "block device", of the virtio standard
    assert b"heard: hello" in rest
    assert (tmp_path / "media").read_bytes()[3 * 4096 :][:4] == b"kept"
    assert os.listdir(environment["TMPDIR"]) == []


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("how", ["keys", "signal"])
def test_it_ends_by_keys_or_by_a_signal_and_leaves_the_terminal_as_it_was(
    environment: dict[str, str], tmp_path: Path, terminal: tuple[int, int], how: str
) -> None:
    ours, theirs = terminal
    (tmp_path / "disk").write_bytes(boot_sector(STAY).ljust(1 << 20, b"\0"))
    before = termios.tcgetattr(theirs)
    with running(
        [*COMMAND, "--size", "1M", "--disk", str(tmp_path / "disk")],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        said = until(ours, b"11")
        assert b"Ctrl-A X ends it" in said
        assert processes_with(environment["TMPDIR"])
        if how == "keys":
            os.write(ours, b"\x03")  # Ctrl-C is the system's own
            os.write(ours, b"\x01x")
        else:
            process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == (0 if how == "keys" else 128 + signal.SIGTERM)
    assert termios.tcgetattr(theirs) == before
    assert processes_with(environment["TMPDIR"]) == []
    assert os.listdir(environment["TMPDIR"]) == []


RESET = b"\xb0\xfe\xe6\x64\xf4"
"""mov al, FEh; out 64h, al; hlt: a reset by the keyboard controller."""
STAY = b"\xeb\xfe"
"""jmp $"""


def boot_sector(end: bytes) -> bytes:
    """Writes itself to the second sector of the first two disks by the BIOS, and says how that
    went.

    In 8086 code, with the carry flag of INT 13h, AH=03h as a digit on the serial port.
    """
    code = b"\x31\xdb\x8e\xdb\x8e\xc3"  # xor bx, bx; mov ds, bx; mov es, bx
    for drive in (0x80, 0x81):
        code += b"\xb8\x01\x03\xb9\x02\x00"  # mov ax, 0301h (write 1); mov cx, 2 (sector 2)
        code += bytes([0xBA, drive, 0x00])  # mov dx, drive (head 0)
        code += b"\xbb\x00\x7c\xcd\x13"  # mov bx, 7C00h; int 13h
        code += b"\xb0\x30\x14\x00"  # mov al, "0"; adc al, 0
        code += b"\xba\xf8\x03\xee"  # mov dx, 3F8h; out dx, al
    code += b"\xb0\x0a\xee"  # mov al, 10; out dx, al
    return (code + end).ljust(510, b"\0") + b"\x55\xaa"


def test_a_disk_boots_by_itself_and_only_what_may_be_written_is(
    tmp_path: Path, potash_guest: PotashGuest
) -> None:
    first = boot_sector(RESET).ljust(1 << 20, b"\0")
    (tmp_path / "first").write_bytes(first)
    (tmp_path / "other").write_bytes(bytes(1 << 20))
    disks = ("--disk", tmp_path / "first", "--disk", f"{tmp_path / 'other'},rw")
    done = potash_guest("--size", "1M", *disks)
    assert (done.returncode, done.stderr) == (0, "")
    assert "10\n" in done.stdout
    assert (tmp_path / "first").read_bytes() == first
    assert (tmp_path / "other").read_bytes()[512:1024] == boot_sector(RESET)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kernel", "{file}", "--", "true"], "need Potash's own guest"),
        (["--kernel", "{file}", "--share", "."], "need Potash's own guest"),
        (["--append", "quiet"], "--initrd and --append are for --kernel"),
        (["--disk", "{file}", "--append", "quiet"], "--initrd and --append are for --kernel"),
        (["--kernel", "/nothing"], "does not exist"),
        (["--disk", "/nothing,rw"], "'/nothing' is not a file with a disk in it"),
    ],
)
def test_what_makes_no_sense_together_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (tmp_path / "file").write_bytes(b"no kernel")
    assert run_app(["guest", *(word.format(file=tmp_path / "file") for word in words)]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_what_qemu_does_not_take_is_one_sentence(
    tmp_path: Path, images: GuestImages, potash_guest: PotashGuest
) -> None:
    (tmp_path / "file").write_bytes(b"no kernel")
    done = potash_guest("--kernel", tmp_path / "file")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("potash: QEMU does not run the system: ")

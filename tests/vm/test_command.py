"""`potash guest` as a user calls it, in a process of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from potash.cli.app import run_app
from support.processes import descendants, name
from support.terminal import until
from support.vm import WAITING, PotashGuest, processes_with

LIMIT = 120.0
COMMAND = [sys.executable, "-m", "potash.cli.main", "guest"]
ADD = Path(__file__).parents[2] / "examples" / "add"

pytestmark = pytest.mark.usefixtures("images")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One whose temporary folder is the test's own, so that what is left behind shows."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return dict(os.environ, TMPDIR=str(scratch))


def test_the_example_runs_in_the_guest_on_a_drive_with_memory_in_bars(
    tmp_path: Path, potash_guest: PotashGuest
) -> None:
    run = "POTASH_PROGRESS=steps potash run /dev/nvme0n1 program.o input.bin /tmp/out --lba 0"
    run += " --arg 520 --arg 1024"
    bars = "cd /sys/bus/pci/drivers/nvme/0000:* && stat -c %s resource2 resource4"
    done = potash_guest(
        *("--cmb", "2M:sqs", "--memory-namespace", "64K", "--memory-bar"),
        *("--share", ADD, "--collect", f"/tmp/out:{tmp_path / 'out'}"),
        *("--", "sh", "-c", f"cd /share/add && {run} && {bars}"),
    )
    assert (done.returncode, done.stderr) == (0, "program: add: running the model\n")
    assert done.stdout.split()[-2:] == ["2097152", "65536"]
    assert (tmp_path / "out").read_bytes() == (ADD / "expected.bin").read_bytes()


def test_a_command_s_streams_and_exit_code_are_the_command_s_and_its_blocks_stay(
    environment: dict[str, str], tmp_path: Path, potash_guest: PotashGuest
) -> None:
    """They are there the next time, in a guest of another size."""
    media = tmp_path / "blocks"
    drive = ("--media", str(media), "--size", "32M")
    script = (
        "blockdev --getsize64 /dev/nvme0n1; echo err >&2;"
        "dd of=/dev/nvme0n1 bs=4096 seek=5 status=none && exit 41"
    )
    first = subprocess.run(
        [*COMMAND, *drive, "--", "sh", "-c", script],
        input=b"kept",
        capture_output=True,
        env=environment,
        timeout=LIMIT,
        check=False,
    )
    assert (first.returncode, first.stdout) == (41, b"33554432\n")
    assert first.stderr.removeprefix(WAITING.encode()) == b"err\n"
    assert os.listdir(environment["TMPDIR"]) == []
    assert media.read_bytes()[5 * 4096 :][:4] == b"kept"
    shape = ("--cpus", "2", "--memory", "768M")
    read = "nproc; dd if=/dev/nvme0n1 bs=1 skip=20480 count=4 status=none"
    done = potash_guest(*drive, *shape, "--", "sh", "-c", read)
    assert done.stdout == "2\nkept"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--memory", "1M"),
        ("--collect", "relative:out"),
        ("--share", "/nowhere/at/all"),
        ("--cpus", "0"),
        ("--share", "/etc", "--share", "/usr/../etc"),
    ],
)
def test_a_wrong_option_is_a_usage_error_before_anything_starts(arguments: tuple[str, ...]) -> None:
    assert run_app(["guest", *arguments, "--", "true"]) == 2


def test_a_drive_that_does_not_start_is_one_sentence(
    tmp_path: Path, potash_guest: PotashGuest
) -> None:
    done = potash_guest("--media", tmp_path / "no" / "folder", "--", "true")
    assert done.returncode == 1
    assert done.stderr.startswith("potash: the drive does not start: ")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def started(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`potash guest` in the middle of a command."""
    argv = [*COMMAND, "--", "sh", "-c", "echo up; exec sleep 600"]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, env=environment, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"up\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_command(
    started: subprocess.Popen[bytes], environment: dict[str, str], number: signal.Signals
) -> None:
    """Neither Ctrl-C nor its death."""
    below = descendants(started.pid)
    assert set(below) & set(processes_with("qemu-system"))
    assert "potash-apu" in map(name, below)
    descriptors = [os.pidfd_open(pid) for pid in below]
    os.killpg(started.pid, number)
    if number is signal.SIGINT:
        assert started.wait(LIMIT) == 128 + number
        assert os.listdir(environment["TMPDIR"]) == []
    for descriptor in descriptors:
        with open(descriptor) as process:
            assert select.select([process], [], [], LIMIT)[0]


def test_a_terminal_gets_a_shell_with_a_terminal(environment: dict[str, str]) -> None:
    pid, terminal = pty.fork()
    if not pid:
        os.execve(sys.executable, COMMAND, environment)
    try:
        until(terminal, b"# ")
        os.write(terminal, b"echo $((6*7)) $(tty)\r")
        until(terminal, b"42 /dev/pts/0")
        # What says so is what is interrupted: a shell about to start it might miss the interrupt.
        os.write(terminal, b"sh -c 'echo now; exec sleep 600'\r")
        until(terminal, b"now\r\n")
        os.write(terminal, b"\x03")
        until(terminal, b"# ")
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("<HHHH", 50, 132, 0, 0))
        os.write(terminal, b"until [ \"$(stty size)\" = '50 132' ]; do :; done; echo $((6*8))\r")
        until(terminal, b"48\r\n")
        os.write(terminal, b"exit 7\r")
        until(terminal, b"exit 7")
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 7
    finally:
        os.close(terminal)
    assert os.listdir(environment["TMPDIR"]) == []

"""What goes wrong in anybody's first hour: each is one sentence that says what to do, and whatever
is interrupted leaves nothing behind."""

import errno
import os
import resource
import signal
import socket as sockets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from potash.cli.app import run_app
from potash.vm.drive import device_process
from support.processes import descendants, runs

EXAMPLE = Path(__file__).parents[2] / "examples" / "add"
JOB = [str(EXAMPLE / "program.o"), str(EXAMPLE / "input.bin")]
LENGTHS = ["--arg", "520", "--arg", "1024"]
LIMIT = 60.0

Said = Callable[..., str]


@pytest.fixture
def said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Said:
    """Runs a command that must fail, in an empty folder, and gives its one sentence."""
    monkeypatch.chdir(tmp_path)

    def fail(*arguments: object) -> str:
        capsys.readouterr()
        assert run_app([*map(str, arguments)]) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        (line,) = shown.err.splitlines()
        assert line.startswith("potash: ")
        return line.removeprefix("potash: ")

    return fail


def test_a_device_that_is_not_there(said: Said) -> None:
    advice = "give one such as /dev/nvme0n1, or vfio-user:SOCKET where potash serve runs"
    assert said("run", "/dev/nvme77n1", *JOB, "out") == (
        f"cannot open /dev/nvme77n1: No such file or directory; {advice}"
    )
    assert said("acc", "identify", "") == f"cannot open '': No such file or directory; {advice}"
    assert said("acc", "identify", "/dev/null").endswith("give one such as /dev/nvme0n1")
    assert said("acc", "identify", JOB[0]) == (
        f"{JOB[0]} is not a device; give one such as /dev/nvme0n1"
    )
    assert said("acc", "identify", "vfio-user:none") == (
        "no device listens at none; start one with: potash serve --socket none"
    )
    assert not Path("out").exists()


def test_a_device_that_this_user_may_not_open(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(path: object, *_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr("potash.sdk.ioctl.os.open", refuses)
    assert said("acc", "identify", "/dev/nvme0") == (
        "cannot open /dev/nvme0: Permission denied; run this as root"
    )


def test_a_socket_that_somebody_uses(said: Said, socket: Path) -> None:
    assert said("serve", "--socket", socket).endswith("another process serves this socket")


def test_a_drive_without_memory(said: Said, drive: str) -> None:
    advice = "the device has no memory namespace; potash serve --memory-namespace makes one"
    assert said("slm", "list", drive) == advice
    assert said("slm", "read", drive, "out", "--data-len", "4") == advice


@pytest.mark.parametrize("command", ["input", "output", "grant"])
def test_a_namespace_that_is_not_there(said: Said, drive: str, command: str) -> None:
    assert said("acc", command, drive, "-n", "7", "0:1") == (
        "the device has no namespace 7; those that it has: 1"
    )


def test_a_socket_where_none_can_be(said: Said, tmp_path: Path) -> None:
    assert said("serve", "--socket", "none/s") == (
        f"the device cannot listen at {tmp_path}/none/s: there is no folder {tmp_path}/none; "
        "make it, or choose another place"
    )
    long = tmp_path / ("x" * 108)
    length = len(str(long))
    assert said("serve", "--socket", long).endswith(
        f"the path has {length} bytes, and 107 are the most; choose a shorter one"
    )
    Path("file").touch()
    assert said("serve", "--socket", "file").endswith("the path is not a socket")
    assert os.listdir() == ["file"]


def test_a_socket_that_a_killed_device_has_left_is_used_again(tmp_path: Path) -> None:
    with sockets.socket(sockets.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "s"))
    with device_process(tmp_path / "s", "--size", "16M"):
        assert run_app(["acc", "identify", f"vfio-user:{tmp_path / 's'}"]) == 0


def test_a_full_disk_is_named_with_the_file_that_it_has_no_room_for(
    said: Said, drive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said("run", drive, *JOB, "/dev/full", *LENGTHS) == (
        "/dev/full cannot be written: No space left on device; choose another place"
    )
    assert "choose another place" in said("run", drive, *JOB, "none/out", *LENGTHS)
    # The drive goes on.
    assert run_app(["run", drive, *JOB, "out", *LENGTHS]) == 0
    assert Path("out").read_bytes() == (EXAMPLE / "expected.bin").read_bytes()


@pytest.mark.parametrize("arguments", [["--help"], ["vta", "info", "--json"]])
def test_a_full_disk_behind_standard_output(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "potash.cli", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == (
        "potash: No space left on device where the output goes, or temporary files (TMPDIR)\n"
    )


SERVE_TWICE = """
import os
from pathlib import Path
from potash.cli.app import run_app

line = ["serve", "--socket", "s", "--media", "new"]
assert run_app(line) == 1 and os.listdir() == []
Path("new").touch()
assert run_app(line) == 1 and os.listdir() == ["new"], "a file that was there is its owner's"
"""


def test_media_that_there_is_no_room_for_leave_no_file(tmp_path: Path) -> None:
    """A limit on files' sizes stands for a small disk, on which a hole would have room."""
    done = subprocess.run(
        [sys.executable, "-c", SERVE_TWICE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16)),
    )
    assert done.returncode == 0, done.stderr
    reason = "a file there has to be below 131072 bytes (file system, or ulimit -f)"
    assert done.stderr == 2 * f"potash: cannot use media new: {reason}; choose a smaller size\n"


def working(folder: Path) -> bool:
    """A drive has been started."""
    return any(folder.glob("potash-*/drive"))


BENCH = ["bench", "nvme", "--pairs", "50"]
"""It works for minutes, so that no signal comes after its end."""


@pytest.mark.parametrize(
    ("arguments", "at_work", "number", "whole"),
    [
        # A key at a terminal is for everybody in the foreground.
        (BENCH, working, signal.SIGINT, True),
        (BENCH, working, signal.SIGTERM, False),
        (["demo", "grep", "--embedded"], None, signal.SIGINT, False),
        (["demo", "add", "--embedded"], None, signal.SIGHUP, True),
        (["guest", "--", "sleep", "60"], working, signal.SIGINT, True),
        (["doctor", "--no-boot"], None, signal.SIGTERM, False),
    ],
)
def test_what_is_interrupted_leaves_nothing_behind(
    tmp_path: Path,
    arguments: list[str],
    at_work: Callable[[Path], bool] | None,
    number: signal.Signals,
    whole: bool,
) -> None:
    """`at_work` says whether a command is at work, of which there are processes by then."""
    with subprocess.Popen(
        [sys.executable, "-m", "potash.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + LIMIT
        try:
            while not ((at_work is None or at_work(tmp_path)) and descendants(process.pid)):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.01)
            started = descendants(process.pid)
            (os.killpg if whole else os.kill)(process.pid, number)
            _, wrong = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert b"Traceback" not in wrong
    if number is signal.SIGINT:
        assert wrong.decode().splitlines()[-1] == "potash: interrupted"
    assert not list(tmp_path.rglob("*"))
    while alive := [pid for pid in started if runs(pid)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.01)


ENTRY = """
import potash.cli.app
from potash.cli.main import main

class Interrupted:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt

def run(arguments):
    if arguments:
        raise RuntimeError("a bug")
    type("Made", (), {"field": Interrupted()})

potash.cli.app.run_app = run
main()
"""


def test_an_interrupt_while_a_class_is_made_is_one_and_a_bug_is_not_hidden() -> None:
    def entry(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", ENTRY, *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )

    interrupted = entry()
    assert (interrupted.returncode, interrupted.stderr) == (130, "potash: interrupted\n")
    broken = entry("anything")
    assert broken.returncode == 1
    assert broken.stderr.endswith("RuntimeError: a bug\n")


LATE = """
import os, sys, potash.cli.app, potash.cli.main

number = int(sys.argv[1])

def interrupt(*_):
    os.kill(os.getpid(), number)

potash.cli.app.run_app = interrupt if sys.argv[2] == "twice" else lambda _: 0
potash.cli.main._drop_unwritten = interrupt
potash.cli.main.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["twice", "late"])
def test_a_signal_does_not_change_how_a_command_has_ended(
    number: signal.Signals, when: str
) -> None:
    """Neither a second one, nor one that comes after the command's work."""
    done = subprocess.run(
        [sys.executable, "-c", LATE, str(int(number)), when],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    interrupted = when == "twice"
    said = "potash: interrupted\n" if interrupted and number is signal.SIGINT else ""
    assert (done.returncode, done.stderr) == (128 + number if interrupted else 0, said)


UNHEARD = """
import os, sys, time
import potash.cli.app
from potash.cli.main import main

number = int(sys.argv[1])

class Final:
    def __del__(self):
        os.kill(os.getpid(), number)

def run(arguments):
    if arguments[1] == "finalizer":
        Final()
    try:
        if arguments[1] == "library":
            os.kill(os.getpid(), number)
        if arguments[1] == "text":
            exec("os.kill(os.getpid(), number)")
        time.sleep(10)
    except (Exception, SystemExit):
        time.sleep(10)
    return 0

potash.cli.app.run_app = run
main()
"""


@pytest.mark.parametrize("where", ["finalizer", "library", "text"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_where_exceptions_are_lost(
    number: signal.Signals, where: str, tmp_path: Path
) -> None:
    """As while numba and llvmlite are imported, which compile in callbacks of C, and while a text
    is executed, as for a dataclass: after that Python ends a process by SIGINT."""
    (tmp_path / "unheard.py").write_text(UNHEARD)
    done = subprocess.run(
        [sys.executable, "-m", "unheard", str(number.value), where],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    said = "potash: interrupted\n" if number is signal.SIGINT else ""
    assert (done.returncode, done.stderr) == (128 + number, said)


def test_under_nohup_a_closed_terminal_ends_nothing(tmp_path: Path) -> None:
    """SIGHUP stays ignored where whoever starts the command has it ignored."""
    script = (
        "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "import potash.cli.main as entry; import potash.cli.app as app;"
        "app.run_app = lambda _: print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN);"
        "entry.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout == "True\n"

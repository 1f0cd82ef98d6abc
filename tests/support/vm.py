"""What the tests of the guest share: an agent at the other end of a socket pair, and the images."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from potash.programs.examples import examples_folder
from potash.vm import images
from potash.vm.channel import Channel
from potash.vm.errors import PackagesUnavailable
from potash.vm.guest import Captured, Guest

AGENT = """
import sys
from potash.vm.agent import Agent
agent = Agent(int(sys.argv[1]), lambda greeting: None)
try:
    agent.serve()
finally:
    agent.close()
"""

WAITING = "potash: waiting for another process that prepares the guest\n"
"""What a command may say first on standard error, where another test prepares one."""

FORKED = """#!/bin/sh
mkfifo /tmp/potash.$$ && (echo $$ > /tmp/potash) && read code < /tmp/potash.$$
rm /tmp/potash.$$
exit $code
"""
"""What is `potash` in a guest that `fork_commands` has prepared.

It asks from a process of its own: `echo` would make the pipe the shell's standard output for a
moment, and who is asked takes over that of the shell.
"""

FORKING = """
import ctypes, importlib, os, signal, sys
import potash.cli.app
from potash.cli.main import main
from potash.sdk import ioctl

PIDFD_GETFD = 438

def become(caller):
    process = os.pidfd_open(caller)
    for descriptor in range(3):
        theirs = ctypes.CDLL(None).syscall(PIDFD_GETFD, process, descriptor, 0)
        os.dup2(theirs, descriptor)
        os.close(theirs)
    os.close(process)
    os.chdir(f"/proc/{caller}/cwd")
    with open(f"/proc/{caller}/environ") as variables:
        os.environ.update(line.split("=", 1) for line in variables.read().split("\\0")[:-1])
    with open(f"/proc/{caller}/cmdline") as words:
        sys.argv[:] = words.read().split("\\0")[1:-1]  # behind the shell that reads the script

for name in sys.argv[1:]:
    importlib.import_module(f"potash.cli.drive.{name}")
with open(os.open("/tmp/potash", os.O_RDWR)) as asking:  # it has no end
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in asking:
        if os.fork():
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        become(int(line))
        code = 1
        try:
            main()
        except SystemExit as end:
            code = end.code
        finally:
            with open(f"/tmp/potash.{int(line)}", "w") as answer:
                print(code, file=answer)
        os._exit(0)
"""


class PotashGuest(Protocol):
    """Carries out `potash guest` with some words, and nothing to read."""

    def __call__(self, *words: object) -> subprocess.CompletedProcess[str]: ...


@contextlib.contextmanager
def agent_process() -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """The guest's agent in a process of its own (which sets no clock), and the stream to it."""
    ours, theirs = socket.socketpair()
    roots = os.pathsep.join(path for path in sys.path if path)
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=dict(os.environ, PYTHONPATH=roots),
        )
        theirs.close()
        try:
            yield ours, process
        finally:
            ours.close()
            process.kill()
            process.wait()


@contextlib.contextmanager
def local_channel(life_limit: float = 30.0) -> Iterator[Channel]:
    """A greeted channel to an agent on this machine."""
    with agent_process() as (stream, _process):
        channel = Channel(stream, life_limit)
        channel.greet(30.0)
        yield channel


def guest_images() -> images.GuestImages | str:
    """The images, or the reason why there can be none here."""
    try:
        return images.prepare()
    except PackagesUnavailable as error:
        return str(error)


def processes_with(word: str) -> list[int]:
    """The processes whose command line holds a word."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def fork_commands(guest: Guest, *names: str) -> None:
    """Let `potash` in a guest be forked from a process that has imported it, with these commands.

    Python takes a second to start in an emulated one. What is at /usr/bin stays as it was.
    """
    script = "cat > /usr/local/bin/potash && chmod +x /usr/local/bin/potash && mkfifo /tmp/potash"
    assert guest.run(["sh", "-c", script], FORKED.encode()) == 0
    guest.start(["python3", "-s", "-c", FORKING, *names])


def each(guest: Guest, *commands: Sequence[str]) -> list[Captured]:
    """What comes of commands, one after the other; Potash's show no progress, which depends on how
    busy the machine is."""
    quiet = ("env", f"POTASH_PROGRESS={os.environ['POTASH_PROGRESS']}")
    return [
        guest.capture((*quiet, *words) if words[0] == "potash" else words, timeout=120.0)
        for words in commands
    ]


LIMIT = 120
"""Seconds for a compiler, or a command in a guest."""


def said(guest: Guest, *argv: str, stdin: bytes | None = None) -> str:
    """What a command that must succeed prints in a guest."""
    done = guest.capture(argv, stdin, timeout=LIMIT)
    assert done.code == 0, (argv, done)
    return done.stdout.decode()


def shell(guest: Guest, script: str) -> str:
    """What a script that must succeed prints in a guest."""
    return said(guest, "sh", "-ec", script)


def identify(guest: Guest, number: int) -> None:
    """Tell the drive which host a guest is."""
    script = "nvme set-feature /dev/nvme0 -f 0x81 --value=1 -l 16 -d /tmp/host"
    shell(guest, f"printf 'host %011d' {number} > /tmp/host; {script}")


def await_access(guest: Guest, *states: str) -> None:
    """Wait until Linux has read the states of each path's ANA group, of which an event notifies
    it."""
    until = time.monotonic() + LIMIT
    while (found := shell(guest, "cat /sys/block/nvme0c?n1/ana_state").split()) != [*states]:
        assert time.monotonic() < until, found
        time.sleep(0.05)


EXAMPLES = examples_folder()


def built(name: str, folder: Path, sources: Path = EXAMPLES / "c") -> None:
    """Build an example, or another program, in C."""
    # Zig links against a list of glibc's symbols; all of musl, it would compile first, in 45 s,
    # and its own runtime, which no program as small as this needs, in 3 s.
    build = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu", "-rtlib=none"]
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-o", str(folder / name)]
    flags += ["-I", str(EXAMPLES / "include")]
    subprocess.run([*build, *flags, str(sources / f"{name}.c")], check=True, timeout=LIMIT)

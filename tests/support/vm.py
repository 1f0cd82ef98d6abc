"""What the tests of the guest share: an agent at the other end of a socket pair, and the images."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

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

ONE_BY_ONE = """
import json, os, sys, tempfile
from potash.cli.drive import acc, fault, fw, run
from potash.cli.main import main
from potash.sdk import ioctl

def become(words):
    if words[0] != "potash":
        os.execvp(words[0], words)
    sys.argv[:] = words
    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(end.code)

while True:
    with open("/tmp/ask") as asking:
        commands = json.load(asking)
    done = []
    for words in commands:
        files = [tempfile.TemporaryFile() for _ in range(2)]
        process = os.fork()
        if not process:
            for descriptor, file in enumerate(files, 1):
                os.dup2(file.fileno(), descriptor)
            become(words)
        _, status = os.waitpid(process, 0)
        said = [os.pread(file.fileno(), 1 << 20, 0).decode("latin-1") for file in files]
        done.append([os.waitstatus_to_exitcode(status), *said])
    with open("/tmp/answer", "w") as answering:
        json.dump(done, answering)
"""


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


def prepare_each(guest: Guest) -> None:
    """Start in a guest what `each` asks: Python takes seconds to start in an emulated one."""
    assert guest.run(["mkfifo", "/tmp/ask", "/tmp/answer"]) == 0
    guest.start(["python3", "-s", "-c", ONE_BY_ONE])


def each(guest: Guest, *commands: Sequence[str]) -> list[Captured]:
    """What comes of commands, one after the other, each in a process of its own.

    Those of `potash` are forked from one that has imported them.
    """
    argv = ["sh", "-c", "cat > /tmp/ask && cat /tmp/answer"]
    done = guest.capture(argv, json.dumps(commands).encode(), timeout=120.0)
    assert (done.code, done.stderr) == (0, b""), done
    return [
        Captured(code, out.encode("latin-1"), err.encode("latin-1"))
        for code, out, err in json.loads(done.stdout)
    ]

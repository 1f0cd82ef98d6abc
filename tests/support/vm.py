"""What the tests of the guest share: an agent at the other end of a socket pair, and the images."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from potash.vm import images
from potash.vm.channel import Channel
from potash.vm.errors import PackagesUnavailable

AGENT = """
import sys
from potash.vm.agent import Agent
agent = Agent(int(sys.argv[1]), lambda greeting: None)
try:
    agent.serve()
finally:
    agent.close()
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

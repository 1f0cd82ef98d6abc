"""Policies from a user's file, each in a process of its own, so that none can hold up a drive.

Python ends a policy of its own code that takes too long, but not a call into C that does not
return, such as `sorted(iter(int, 1))`. A process can be ended: it has a limit of processor time for
each decision, which does not depend on what else the machine does, and one of memory. A time limit
is the last resort, against a policy that sleeps.

Run as a module, this is the process: it gets questions from the drive, and answers in JSON.
"""

import importlib.util
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

from potash_device.flash.profile import ProfileError
from potash_firmware.ftl import policies
from potash_firmware.ftl.policies import Foreign, PolicyError, Superblocks

METHODS = {"gc": "victim", "wear": "victim", "allocation": "order"}
"""The method of each kind of policy."""
MOST_SECONDS = 2.0
"""Processor time of a decision in seconds; loading the file may take ten times as long."""
LONGEST = 4.0
"""Seconds that the drive waits for a decision; ten times as many for loading. Meanwhile a device
serves nobody, and who waits for one of its registers gives up after 5 s."""
MOST_MEMORY = 4 << 30
"""Bytes of the process's address space."""
MOST_ANSWER = 1 << 20
"""Bytes, of an order of all dies that a drive may have."""
LOADING = 10
"""Times the limits of a decision."""


class Isolated(Foreign):
    """The policy CLASS of a kind in `FILE:CLASS`. Raises ProfileError where there is none."""

    def __init__(self, kind: str, name: str) -> None:
        self.name = name
        self._kind = kind
        self._connection, theirs = Pipe()
        limits = {"instructions": policies.MOST_INSTRUCTIONS, "seconds": MOST_SECONDS}
        asked = json.dumps({"kind": kind, "name": name, "memory": MOST_MEMORY, **limits})
        # No folder of the caller's becomes one to import from.
        command = [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), asked]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(theirs.fileno(),),
                # NumPy's threads take memory for each processor.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                # A key at the terminal is for the drive, which ends this process.
                process_group=0,
            )
        self._end = weakref.finalize(self, _end, self._process, self._connection)
        try:
            self._answer("load", LOADING)
        except PolicyError as error:
            self._end()
            raise ProfileError(str(error)) from None

    def victim(self, superblocks: Superblocks) -> Any:
        """Raises PolicyError."""
        return self._ask(tuple(superblocks))

    def order(self, channels: int, dies: int) -> Any:
        """Raises PolicyError."""
        return self._ask((channels, dies))

    def _ask(self, question: Sequence[object]) -> Any:
        try:
            self._connection.send_bytes(pickle.dumps(question))
        except OSError:
            raise PolicyError(self._kind, self._ended("decide", 1)) from None
        return self._answer("decide", 1)

    def _answer(self, doing: str, times: int) -> Any:
        try:
            line = self._line(LONGEST * times)
        except (EOFError, OSError):
            raise PolicyError(self._kind, self._ended(doing, times)) from None
        if line is None:
            self._end()
            most = f"{LONGEST * times:g} s"
            raise PolicyError(
                self._kind, f"the policy {self.name} took more than {most} to {doing}"
            )
        match _decoded(line):
            case {"error": str(error)}:
                raise PolicyError(self._kind, error)
            case {"answer": answer}:
                return answer
        self._end()  # the policy has written to its process's socket itself
        raise PolicyError(self._kind, f"the policy {self.name} answered nonsense")

    def _line(self, seconds: float) -> bytes | None:
        """Input up to the end of a line; None if that takes longer. Raises EOFError."""
        deadline, line = time.monotonic() + seconds, b""
        while not line.endswith(b"\n"):
            if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                return None
            piece = os.read(self._connection.fileno(), MOST_ANSWER)
            line += piece
            if not piece or len(line) > MOST_ANSWER:
                raise EOFError
        return line

    def _ended(self, doing: str, times: int) -> str:
        """The reason for a missing answer."""
        self._end()
        code = self._process.returncode
        if code == -signal.SIGPROF:
            most = f"{MOST_SECONDS * times:g} s of processor time"
            return f"the policy {self.name} took more than {most} to {doing}"
        how = signal.Signals(-code).name if code < 0 else f"code {code}"
        return f"the policy {self.name} ended its process with {how}"


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    """A process that has not ended by itself is killed."""
    connection.close()
    try:
        process.wait(0.1 if process.poll() is None else 0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _decoded(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def loaded(kind: str, name: str) -> object:
    """The policy of a file, which is run. Raises ProfileError."""
    file, _, class_name = name.rpartition(":")
    # The module has the file's name, as an error of the policy is to give it.
    spec = importlib.util.spec_from_file_location(file, file)
    if spec is None or spec.loader is None:
        raise ProfileError(f"{file} is no file of Python")
    module = sys.modules[file] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found: object = getattr(module, class_name)()
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())[:200]
        raise ProfileError(f"{name}: {type(error).__name__}: {said}") from error
    if not callable(getattr(found, METHODS[kind], None)):
        raise ProfileError(f"{name} has no method {METHODS[kind]}")
    return found


def main(
    connection: Connection, kind: str, name: str, memory: int, instructions: int, seconds: float
) -> None:
    """Load the policy, and answer questions until the drive is gone. Raises EOFError then."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the drive is asked to end
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    policies.MOST_INSTRUCTIONS = instructions
    policy = question = answer = None
    while True:
        # What the signal does by default ends the process, wherever that is.
        signal.setitimer(signal.ITIMER_PROF, seconds if policy else seconds * LOADING)
        try:
            if policy is None:
                policy = loaded(kind, name)
            else:
                answer = _decision(kind, policy, question)
            said: dict[str, object] = {"answer": answer}
        except (PolicyError, ProfileError) as error:
            said = {"error": str(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(connection.fileno(), json.dumps(said).encode() + b"\n")
        question = pickle.loads(connection.recv_bytes())


def _decision(kind: str, policy: Any, question: Any) -> object:
    if kind == "allocation":
        return policies.ordered(policy, *question)
    return policies.chosen(kind, policy, Superblocks(*question))


if __name__ == "__main__":
    try:
        main(Connection(int(sys.argv[1])), **json.loads(sys.argv[2]))
    except (EOFError, OSError):
        os._exit(0)

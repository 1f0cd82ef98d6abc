"""Devices in processes that are forked from one that has imported what they need, which takes
Python longer than most tests take.

Tests of commands start these as users do. Here are the devices beside which tests run: `use` has
`potash.vm.drive` and `potash.devices` fork them. Run as a file, this is the process that is forked,
of which each process of tests has one.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn, Self

from potash import devices
from potash.cli.device.drives import import_devices
from potash.vm import drive
from potash_firmware.apu.process import die_with_parent, keep_open

LONGEST = 1 << 17
"""Bytes of a request, most of which are environment variables."""
DESCRIPTORS = 64
LONGEST_LINE = 4096
AT_START = ("PYTHONPATH", "NUMBA_", "LD_", "OMP_", "OPENBLAS_")
"""Beginnings of the names of variables that are read when Python or a library starts."""


STARTED = dict(os.environ)
_starting = threading.Lock()


class Forked:
    """A forked process, with what is used of `subprocess.Popen`."""

    def __init__(
        self,
        request: Mapping[str, object],
        descriptors: Sequence[int],
        stdin: IO[bytes] | None,
        stdout: IO[bytes] | None,
    ) -> None:
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None
        reading, writing = os.pipe2(os.O_CLOEXEC)
        self._reports = open(reading, "rb", buffering=0)  # noqa: SIM115 - `wait` closes it
        try:
            socket.send_fds(server(), [json.dumps(request).encode()], [writing, *descriptors])
        finally:
            os.close(writing)
        self.pid = int(self._reports.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout):
            if stream:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            reports = select.poll()
            reports.register(self._reports, select.POLLIN)
            if not reports.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            with self._reports:
                self.returncode = int(self._reports.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(
                ProcessLookupError
            ):  # it is not reported yet that it has ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def popen(
    command: list[str],
    *,
    stdin: int,
    stdout: int,
    stderr: IO[bytes] | None,
    start_new_session: bool,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
) -> Forked | subprocess.Popen[bytes]:
    """As `subprocess.Popen`, which starts all but `dies_with_parent` with `python [-P] -m MODULE`,
    and that where it would not run as the process that is forked."""
    variables = dict(os.environ if env is None else env)
    if sys.executable not in command[1:] or _at_start(variables) != _at_start(STARTED):
        return subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=stderr, env=env, pass_fds=pass_fds,
            start_new_session=start_new_session,
        )  # fmt: skip
    assert start_new_session
    words = command[command.index(sys.executable, 1) + 1 :]
    at = words.index("-m") + 1
    request = {
        "module": words[at],
        "arguments": words[at + 1 :],
        "path": [] if "-P" in words[:at] else [os.getcwd()],
        "directory": os.getcwd(),
        "environment": variables,
        "descriptors": [0, 1, 2, *pass_fds],
    }
    with contextlib.ExitStack() as stack:
        ours_in, its_in = _stream(stdin, "wb", stack)
        ours_out, its_out = _stream(stdout, "rb", stack)
        its_err = 2 if stderr is None else stderr.fileno()
        return Forked(request, [its_in, its_out, its_err, *pass_fds], ours_in, ours_out)


def _at_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(AT_START)}


def _stream(kind: int, mode: str, stack: contextlib.ExitStack) -> tuple[IO[bytes] | None, int]:
    """This process's end of a pipe, if there is to be one, and the descriptor of the other end."""
    if kind == subprocess.DEVNULL:
        null = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, null)
        return None, null
    assert kind == subprocess.PIPE
    reading, writing = os.pipe2(os.O_CLOEXEC)
    ours, its = (writing, reading) if mode == "wb" else (reading, writing)
    stack.callback(os.close, its)
    return open(ours, mode), its


def server() -> socket.socket:
    """The socket of the process that is forked, which the first who asks starts."""
    with _starting:
        return _started()


@functools.cache
def _started() -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        command = [sys.executable, "-P", __file__, str(its.fileno()), " " * LONGEST_LINE]
        descriptors = [its.fileno()]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=descriptors, env=STARTED)
    return ours


def use() -> None:
    """Have the devices of tests be forked."""
    forking: Any = SimpleNamespace(**vars(subprocess) | {"Popen": popen})
    for module in (drive, devices):
        setattr(module, "subprocess", forking)  # noqa: B010 - it is no name that they export


def _main(control: socket.socket) -> None:
    """Fork processes, and report their exit codes, until nobody can ask for more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a key at the terminal is for the tests
    import_devices(modelled=True)
    events = select.poll()
    events.register(control, select.POLLIN)
    running: dict[int, tuple[int, int]] = {}
    """The process, and where its exit code is reported, by the process's descriptor."""
    while True:
        for ready, _ in events.poll():
            if ready != control.fileno():
                pid, reported = running.pop(ready)
                events.unregister(ready)
                os.close(ready)
                _report(reported, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(reported)
                continue
            message, received, _, _ = socket.recv_fds(control, LONGEST, DESCRIPTORS)
            if not message:
                return
            parent = os.getpid()
            pid = os.fork()
            if not pid:
                die_with_parent(parent)
                _become(json.loads(message), received[1:])
            _report(received[0], pid)
            process = os.pidfd_open(pid)
            running[process] = pid, received[0]
            events.register(process, select.POLLIN)
            for descriptor in received[1:]:
                os.close(descriptor)


def _report(descriptor: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, f"{number}\n".encode())


def _show(words: Sequence[str]) -> None:
    """Have these be the command line of this process, by which tests find it (proc(5))."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    shown = "\0".join(words).encode().ljust(end - start, b"\0")
    ctypes.memmove(start, shown, end - start)


def _become(request: dict[str, Any], received: list[int]) -> NoReturn:
    """Do as `python -m` does, with the descriptors of the request in place of those `received`."""
    os.setsid()
    numbers = request["descriptors"]
    above = [fcntl.fcntl(each, fcntl.F_DUPFD, max(numbers) + 1) for each in received]
    for descriptor, number in zip(above, numbers, strict=True):
        os.dup2(descriptor, number)
    keep_open(numbers)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = request["path"]
    sys.argv = [request["module"], *request["arguments"]]
    _show(sys.argv)
    importlib.import_module(request["module"]).main()
    sys.exit()


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))

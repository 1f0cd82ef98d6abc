"""The APU's process, which the device starts, ends, and restarts when it dies."""

import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import IO, NamedTuple, Self

from potash_firmware.apu.config import DESCRIPTORS_AT_ONCE, Config, format_descriptors
from potash_firmware.apu.process import Forked, close_others, fork

RESTART_DELAY = 0.05
LONGEST_RESTART_DELAY = 5.0
"""Seconds before an APU that died is started again; doubled while it dies at once."""

REAP_INTERVAL = 0.01
"""Seconds between polls of a process that was killed and has not exited yet."""

STEADY_AFTER = 10.0
"""Seconds after which an APU counts as started for good."""

_VARIABLES = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV", "XDG_CACHE_HOME"})
_PREFIXES = ("LC_", "LD_", "PYTHON", "POTASH_", "NUMBA_", "OMP_", "OPENBLAS_", "COVERAGE_")


def environment() -> dict[str, str]:
    """The environment of an APU and its workers: what they need of the device's, which can hold its
    user's secrets."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _VARIABLES or name.startswith(_PREFIXES)
    }


def in_memory(variables: Mapping[str, str]) -> IO[str]:
    """A file in memory with environment variables, for another process: an object in JSON."""
    file = os.fdopen(os.memfd_create("environment"), "w+", encoding="utf-8")
    json.dump(dict(variables), file)
    file.seek(0)
    return file


class _Prepared(NamedTuple):
    """A forked APU that waits for its descriptors."""

    process: Forked
    connection: socket.socket


_prepared: _Prepared | None = None


def prepare() -> None:
    """Fork the process that becomes the first APU.

    It shares this one's memory. So this is only for a process that has not read anything of its
    user yet. Raises OSError.
    """
    global _prepared
    from potash_firmware.apu.main import run_forked  # which a device alone does not import

    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def run() -> None:
        close_others([its.fileno()])
        run_forked(its)

    with its:
        _prepared = _Prepared(Forked(fork(run)), ours)


class ApuProcess:
    """The APU's process while there is one; a context manager that leaves none behind."""

    def __init__(self, config: Config, descriptors: Mapping[str, int]) -> None:
        self._config = config
        self._descriptors = dict(descriptors)
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._may_start_at = 0.0
        self._delay = RESTART_DELAY
        self._started_at = 0.0
        self.starts = 0
        """Number of processes started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The process's identifier; None while there is none."""
        return self._process.pid if self._process is not None else None

    def wait_before_start(self) -> float:
        """Seconds until the next start is allowed, or until it is worth asking again."""
        if self._process is not None:
            if self._process.poll() is None:
                return REAP_INTERVAL
            self._process = None
        return max(0.0, self._may_start_at - time.monotonic())

    def start(self, mailbox: int) -> None:
        """Run the APU with the descriptor `mailbox` as its end. Raises OSError."""
        self._started_at = time.monotonic()
        shared = self._config.share()
        named = {"mailbox": mailbox, "config": shared, **self._descriptors}
        try:
            self._process = _started_before(named) or _executed(named)
        finally:
            os.close(shared)
        self.starts += 1

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def replace(self, config: Config, descriptors: Mapping[str, int]) -> None:
        """End the process without waiting; the next one gets these."""
        self._config = config
        self._descriptors = dict(descriptors)
        if self._process is not None:
            self._process.kill()
        self._may_start_at = 0.0
        self._delay = RESTART_DELAY

    def give_up(self) -> None:
        """End the process without waiting, and allow the next one only when it is gone.

        A process that is waiting for a disk ends when the disk answers, for which the device's loop
        must not wait. If it was short-lived, or never came to life, the next one comes later.
        """
        if self._process is not None:
            self._process.kill()
        now = time.monotonic()
        if now - self._started_at > STEADY_AFTER:
            self._delay = RESTART_DELAY
        self._may_start_at = now + self._delay
        self._delay = min(2 * self._delay, LONGEST_RESTART_DELAY)


def _executed(named: Mapping[str, int]) -> subprocess.Popen[bytes]:
    """An APU as a new process with these descriptors. Raises OSError."""
    command = [sys.executable, "-P", "-m", "potash_firmware.apu"]
    command += ["--parent", str(os.getpid()), "--fds", format_descriptors(named)]
    return subprocess.Popen(
        command,
        pass_fds=tuple(named.values()),
        stdin=subprocess.DEVNULL,
        env=environment(),
        # A key at the terminal is for the device, which ends this process.
        process_group=0,
    )


def _started_before(named: Mapping[str, int]) -> Forked | None:
    """The APU that `prepare` has forked, with these descriptors; None if there is none left."""
    global _prepared
    if _prepared is None:
        return None
    process, connection = _prepared
    _prepared = None
    with connection, in_memory(environment()) as variables:
        every = iter([*named.items(), ("environment", variables.fileno())])
        while batch := dict(itertools.islice(every, DESCRIPTORS_AT_ONCE)):
            socket.send_fds(connection, [" ".join(batch).encode()], [*batch.values()])
    return process

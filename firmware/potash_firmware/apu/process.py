"""The first steps of the APU's processes: forks, signals, priority, names in process lists, and
confinement.

A worker keeps its channel, the memory of its accelerator, its connection to the compile service,
the counters, and the trace where there is one; a job brings read-only descriptors of the namespaces
that it names. A worker can read the code that it may still load, and cached compiled code; it
writes no file.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from potash_firmware import confinement
from potash_firmware.confinement.kernel import prctl

if TYPE_CHECKING:  # a starting APU imports this module, and must not wait for others
    from potash_firmware.apu.config import Limits

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that this process gets when its parent ends."""
PR_SET_NAME = 15
"""prctl(2): the name of this process for `ps -o comm`, `top` and `pstree`, of at most 15 bytes."""

NICENESS = 10
"""The `nice` value of workers and compilers, which costs them nothing while the processor is free.

The device goes first, as on a board it has a processor to itself: with four endless programs on two
processors, one completion in a thousand came after 5 ms instead of 9."""


def set_name(name: str) -> None:
    """Set the name under which process lists show this process."""
    buffer = ctypes.create_string_buffer(name.encode())  # kept: its address alone does not keep it
    prctl(PR_SET_NAME, ctypes.addressof(buffer))


def ignore_signals_to_group() -> None:
    """Leave signals to the whole process group to the device, here and in every child.

    Such a signal is an interrupt, a hang-up or a service manager's request to end: the device
    stops, closes the mailbox, and thereby ends us. Until then a host may still want an answer.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def die_with_parent(parent: int) -> None:
    """Have this process killed when the process `parent` ends, also if it has ended already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def yield_to_others() -> None:
    """Lower the priority of this process and of those that it forks."""
    os.nice(NICENESS)


def fork(run: Callable[[], None]) -> int:
    """Fork a process that calls `run` and exits, and that is killed when this one ends; its ID.
    Raises OSError."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent(parent)
        run()
        code = 0
    except Exception:
        log.exception("an error of the firmware ends a process")
    finally:
        sys.stderr.flush()
        os._exit(code)


class Forked(NamedTuple):
    """A forked child of this process, with the methods of `subprocess.Popen` that are used."""

    pid: int

    def poll(self) -> int | None:
        """Reap it if it has exited; its exit code then."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


CACHES = ("bpf", "models", "schedules", "vta")
"""Folders of what was compiled, which confined processes read."""

CPU_FACTOR = 2
"""A worker may take so many times the seconds of a job, with each thread that executes the tensor
accelerator's streams: one that a job has left behind ends."""

OPEN_FILES = 192
"""Descriptors: a job's namespaces are at most 64."""

STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR = 0, 1, 2


def confine_worker(limits: Limits, threads: int, keep: Collection[int]) -> None:
    """Confine this process, a worker, which needs the descriptors `keep` and has so many `threads`
    for the tensor accelerator. Raises OSError."""
    close_others(keep)
    confinement.confine(
        confinement.Bounds(
            memory=limits.memory,
            seconds=CPU_FACTOR * threads * max(1, int(limits.seconds)),
            open_files=OPEN_FILES,
            readable=confinement.libraries(),
            unlisted=_caches(),
        )
    )


def confine_compiler(limits: Limits, keep: Collection[int]) -> None:
    """Confine this process, which compiles or checks what one client sent. Raises OSError."""
    close_others(keep)
    seconds = max(1, int(limits.compile_seconds))
    confinement.confine(
        confinement.Bounds(
            memory=limits.compile_memory,
            seconds=seconds,
            readable=confinement.libraries(),
            unlisted=_caches(),
        )
    )


def close_others(keep: Collection[int]) -> None:
    """Close every descriptor but these and standard error, which takes what goes to standard
    output."""
    with suppress(OSError):
        os.dup2(STANDARD_ERROR, STANDARD_OUTPUT)
    keep_open(keep)


def keep_open(keep: Collection[int]) -> None:
    """Close every descriptor but these and the standard ones."""
    kept = {STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR, *keep}
    for number in os.listdir("/proc/self/fd"):
        if int(number) not in kept:
            with suppress(OSError):  # the descriptor by which the list was read
                os.close(int(number))


def _caches() -> tuple[Path, ...]:
    """Directories that also have other clients' code: only a worker that has a program can name its
    code."""
    from potash_device import cache  # the fork server imports it, and the APU does without

    with suppress(RuntimeError):
        return tuple(cache.folder(name) for name in CACHES)
    return ()

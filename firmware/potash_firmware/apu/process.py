"""The first steps of the APU's processes: forks, signals, priority, and names in process lists."""

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable

from potash_firmware.confinement.kernel import prctl

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

    Raises OSError.
    """
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

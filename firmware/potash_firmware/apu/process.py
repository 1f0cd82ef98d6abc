"""What processes of the APU set up first: signals, priority, and the name in process lists."""

import ctypes
import os
import signal

from potash_firmware.confinement.kernel import prctl

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that this process gets when its parent ends."""
PR_SET_NAME = 15
"""prctl(2): what `ps -o comm`, `top` and `pstree` call this process, in at most 15 bytes."""

NICENESS = 10
"""Of workers and compilers, which takes nothing from them as long as nobody else wants the
processor. The device does, as on a board it has one of its own: with four endless programs on two
processors, one completion in a thousand came after 5 ms instead of 9."""


def set_name(name: str) -> None:
    """Set the name under which process lists show this process."""
    buffer = ctypes.create_string_buffer(name.encode())  # kept: its address alone does not keep it
    prctl(PR_SET_NAME, ctypes.addressof(buffer))


def ignore_signals_to_group() -> None:
    """Leave to the device what is sent to its whole process group, here and in every child.

    That is an interrupt, a hang-up or a service manager's request to end: the device stops, closes
    the mailbox, and thereby ends us. Until then a host may still want an answer.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def die_with_parent(parent: int) -> None:
    """Be killed when the process `parent` ends, also when that has happened already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def yield_to_others() -> None:
    """Take the processor when nobody else wants it; so do the processes that this one makes."""
    os.nice(NICENESS)

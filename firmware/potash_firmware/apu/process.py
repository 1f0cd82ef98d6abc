"""What every process below the APU does first: make sure that it does not outlive its parent."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that this process gets when its parent ends."""


def die_with_parent(parent: int) -> None:
    """Be killed when the process `parent` ends, also when that has happened already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    if os.getppid() != parent:
        os._exit(1)

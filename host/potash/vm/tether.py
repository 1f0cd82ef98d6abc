"""Ties a child process to its parent: when the parent dies, however it dies, so does the child.

Run as a file, this arranges for the signal (prctl(2), PR_SET_PDEATHSIG, which survives execve) and
becomes the program that it is told to run. Nothing runs between fork and exec in the parent's own
image, so parents with threads may use it. The tie is to the thread that starts the child.
"""

import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def tethered(argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` (its first word is a path) tied to this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *argv]


def main(parent: int, argv: list[str]) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent has ended already")
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

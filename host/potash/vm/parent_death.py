"""Parent-death signal: a child process that is killed when its parent ends for any reason.

Run as a file, this sets the signal (prctl(2), PR_SET_PDEATHSIG, which survives execve) and executes
the given program. No code of the parent runs between fork and exec, so parents with threads may use
it. The signal is sent when the thread that started the child ends.
"""

import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def dies_with_parent(argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` (its first word is a path) and ends with this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *argv]


def main(parent: int, argv: list[str]) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent has ended already")
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

"""Permission to use AMX, whose registers Linux saves only for processes that request it.

It applies to all threads of the process, for its lifetime, and to the processes that it forks.

Source: Linux, Documentation/arch/x86/xstate.rst; arch/x86/include/uapi/asm/prctl.h.
"""

import ctypes
import functools
import os

SWITCH = "POTASH_AMX"
"""An environment variable: with `1`, AMX is used where there is one. The path has not run on a
processor that has it."""

ARCH_PRCTL = 158
ARCH_REQ_XCOMP_PERM = 0x1023
XFEATURE_XTILEDATA = 18


def amx_granted() -> bool:
    """Request AMX from the kernel, on an x86-64 processor that has it, where the user asks for it.
    True where it is granted."""
    return os.environ.get(SWITCH) == "1" and _ask()


@functools.cache
def _ask() -> bool:
    library = ctypes.CDLL(None)
    library.syscall.argtypes = [ctypes.c_long] * 3
    library.syscall.restype = ctypes.c_long
    return bool(library.syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0)

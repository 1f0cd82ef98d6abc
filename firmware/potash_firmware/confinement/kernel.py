"""System calls for confinement that Python does not provide."""

import ctypes
import os
from typing import Any

_libc: Any = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, *arguments: int) -> int:
    """prctl(2). Raises OSError."""
    padded = [ctypes.c_ulong(one) for one in (*arguments, 0, 0, 0, 0)[:4]]
    return _checked(_libc.prctl(option, *padded))


def system_call(number: int, *arguments: Any) -> int:
    """syscall(2), with arguments as C has them. Raises OSError."""
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments))


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result

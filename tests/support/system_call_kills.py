"""Processes that are killed before one of their system calls, which the test chooses by number.

A test calls these functions in a new process (`support.new_process`), since they fork.
"""

from __future__ import annotations

import ctypes
import os
import signal
import traceback
from collections.abc import Callable
from typing import NoReturn

_TRACEME, _SYSCALL, _SETOPTIONS = 0, 24, 0x4200
_SYSGOOD, _EXITKILL = 1, 1 << 20
_AT_SYSTEM_CALL = signal.SIGTRAP | 0x80

Body = Callable[[Callable[[], None]], None]
"""What a process does; it calls its argument where its system calls begin to count."""


def killed_before(number: int, body: Body) -> bool:
    """Run `body` in a fork, and kill that when it is about to make system call `number`, from 1 on.
    False if it ended without making so many. Raises OSError where processes cannot be traced."""
    child = os.fork()
    if not child:
        _run(body)
    if not os.WIFSTOPPED(os.waitpid(child, 0)[1]):
        raise OSError("the process ended before its system calls began to count")
    _ptrace(_SETOPTIONS, child, _SYSGOOD | _EXITKILL)
    for _ in range(2 * number - 1):  # it stops before and after each
        _ptrace(_SYSCALL, child, 0)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSTOPPED(status):
            if status:
                raise OSError(f"the process failed with status {status:#x}")
            return False
        if os.WSTOPSIG(status) != _AT_SYSTEM_CALL:
            raise OSError(f"the process got signal {os.WSTOPSIG(status)}")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _run(body: Body) -> NoReturn:
    status = 1
    try:
        body(_wait_for_tracer)
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)


def _wait_for_tracer() -> None:
    _ptrace(_TRACEME, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)


def _ptrace(request: int, pid: int, data: int) -> None:
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if call(request, pid, None, data) < 0:
        raise OSError(ctypes.get_errno(), "a process cannot be traced")

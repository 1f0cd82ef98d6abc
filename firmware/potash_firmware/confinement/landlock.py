"""Restriction of file access by Landlock: landlock(7).

All access rights that the kernel supports are restricted: files, TCP, abstract sockets and signals
to other processes. Only reading below the given directories is allowed.
"""

import ctypes
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from potash_firmware.confinement.kernel import system_call

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System calls, the same on all machines."""
VERSION = 1
"""A flag of the first: say what there is."""
PATH_BENEATH = 1

READ_FILE, READ_DIR = 1 << 2, 1 << 3

_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""Number of rights for files from a version on (linux/landlock.h)."""
_NET_FROM, _NET_RIGHTS = 4, 0b11
_SCOPES_FROM, _SCOPES = 6, 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = [
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scopes", ctypes.c_uint64),
    ]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """Landlock's version; 0 where the kernel has none, or has it turned off."""
    try:
        return system_call(
            CREATE_RULESET, ctypes.c_void_p(0), ctypes.c_size_t(0), ctypes.c_uint32(VERSION)
        )
    except OSError:
        return 0


def restrict(readable: Iterable[Path], unlisted: Iterable[Path], version: int) -> None:
    """Let this process open nothing but what is below these, to read it, for ever.

    Folders that are `unlisted`, and those below, it cannot list. It must have no new privileges. A
    path that is not there is left out. Raises OSError.
    """
    rights = max(count for since, count in _FILE_RIGHTS.items() if since <= version)
    rules = _Ruleset(
        (1 << rights) - 1,
        _NET_RIGHTS if version >= _NET_FROM else 0,
        _SCOPES if version >= _SCOPES_FROM else 0,
    )
    # An older kernel refuses a longer structure unless what it does not know is zero.
    ruleset = system_call(
        CREATE_RULESET,
        ctypes.byref(rules),
        ctypes.c_size_t(ctypes.sizeof(rules)),
        ctypes.c_uint32(0),
    )
    try:
        for path in readable:
            _allow(ruleset, path, READ_FILE | READ_DIR)
        for path in unlisted:
            _allow(ruleset, path, READ_FILE)
        system_call(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        folder = stat.S_ISDIR(os.fstat(parent).st_mode)
        rule = _Beneath(rights if folder else READ_FILE, parent)
        system_call(
            ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(PATH_BENEATH),
            ctypes.byref(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(parent)

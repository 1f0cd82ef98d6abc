"""Giving a part of a file back to its file system: what lay there is gone and reads zeroes.

Python has no call for it, so this one is the C library's: fallocate(2) with FALLOC_FL_PUNCH_HOLE.
"""

import ctypes
import errno
import os

_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02

_NOT_HERE = (errno.EOPNOTSUPP, errno.ENOSYS)

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate64
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def punch(fd: int, offset: int, length: int) -> bool:
    """Give `length` bytes from `offset` back; False where the file system cannot. Raises OSError."""
    while _fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, length):
        code = ctypes.get_errno()
        if code in _NOT_HERE:
            return False
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
    return True

"""Adjacent DMA windows as one view: their pages mapped again, side by side.

A queue is so used in the same way, and in the same time, wherever the pages are that a guest's
IOMMU has put one behind the other.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence

from pyvfio_user.windows import Window

_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2  # Linux, include/uapi/linux/mman.h
_PROT_NONE, _MAP_FIXED_NOREPLACE = 0, 0x10_0000  # asm-generic/mman-common.h

_libc = ctypes.CDLL(None, use_errno=True)
_mremap = _libc.mremap
_mremap.restype = pointer = ctypes.c_void_p
_mremap.argtypes = (pointer, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, pointer)
_mmap = _libc.mmap
_mmap.restype = pointer
_mmap.argtypes = (
    pointer, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
)  # fmt: skip

_never_unmapped: list[mmap.mmap] = []
"""Mappings whose addresses may be another thread's by now."""


def mapped_side_by_side(spans: Sequence[tuple[Window, int, int]]) -> memoryview:
    """The bytes of several mapped windows in one view, which may be written.

    Each window comes with the address and the number of its bytes. They are unmapped with the last
    view of them. Raises OSError where the windows do not meet between two pages, where a file is
    in huge pages or mapped for reading only, and where the system has no room.
    """
    pages: list[tuple[memoryview, int, int]] = []
    for window, address, count in spans:
        assert window.content is not None
        offset = window.offset + address - window.start
        if pages and pages[-1][2] % mmap.PAGESIZE or offset % mmap.PAGESIZE:
            raise OSError(errno.EINVAL, "windows that are used together do not meet between pages")
        if window.content.huge:  # of which mremap(2) would map whole ones over what is behind
            raise OSError(errno.EINVAL, "windows that are used together are in huge pages")
        if window.content.view.readonly:
            raise OSError(errno.EACCES, "windows that are used together can only be read")
        pages.append((window.content.view, offset, count))
    size = sum(count for _, _, count in pages)
    # The addresses of this mapping, which owns them, are taken by the windows' pages.
    joined = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
    target = _address(joined)
    for content, offset, count in pages:
        # An old size of 0 has shared pages mapped once more: mremap(2).
        flags = _MREMAP_MAYMOVE | _MREMAP_FIXED
        if _mremap(_address(content, offset), 0, count, flags, target) != target:
            error = ctypes.get_errno()
            _fill_hole(joined, target, count)
            raise OSError(error, os.strerror(error))
        target += count
    return memoryview(joined)


def _fill_hole(joined: mmap.mmap, address: int, size: int) -> None:
    """Map the addresses in `joined` again that a failed mremap(2) may have unmapped: another thread
    could map something there, which the end of `joined` would unmap."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED_NOREPLACE
    if _mmap(address, size, _PROT_NONE, flags, -1, 0) != address:
        _never_unmapped.append(joined)  # another thread may have been quicker


def _address(memory: mmap.mmap | memoryview, offset: int = 0) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory, offset))

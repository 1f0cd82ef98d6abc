"""Memory for arenas, each in a reserved range of addresses.

Compiled code forms a host address as a base plus a 32-bit offset, whatever it computes, so it can
reach 4 GiB and the bytes of one access after them. Such a range is reserved for each arena;
everything in it except the arena's own memory is inaccessible, and an access raises SIGSEGV.

    inaccessible | arena, from the offset `BASE` on | inaccessible
"""

import ctypes
import functools
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import NamedTuple

from potash_firmware.bpf.arena import BASE, REACH, page_aligned

GUARD = 1 << 20
"""Inaccessible bytes in front of a range and behind it: far more than the widest access."""

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
_PROT_NONE = 0
_PROT_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_ends: dict[int, int] = {}
"""The accessible bytes of all arenas' memory, in whole pages, by its address in this process."""


def allocate(size: int) -> memoryview:
    """`size` zero bytes for an arena, in a separate range for as long as a view of them exists.
    Raises ValueError where so many are beyond a 32-bit offset, OSError where there is no memory."""
    return _mapped(size, _PRIVATE, -1)


def share(descriptor: int, size: int) -> memoryview:
    """Map the first `size` bytes of a file or memfd, otherwise as `allocate`."""
    return _mapped(size, mmap.MAP_SHARED, descriptor)


class Extent(NamedTuple):
    """`length` bytes of the memfd `descriptor` from its byte `offset` on, in whole pages."""

    descriptor: int
    offset: int
    length: int


class Space:
    """A range for a program's own memory, and extents of memfds one after another behind that.

    It exists for as long as this object. Offsets and sizes are in whole pages.
    """

    def __init__(self) -> None:
        first = _reserved()
        self.address = first + GUARD + BASE
        """Address of the first byte in this process."""
        self.memory = memoryview(b"")
        """The bytes that are mapped."""
        self.places: tuple[tuple[int, int], ...] = ()
        """The offset of each extent in the space, and its length."""
        self._own = 0
        weakref.finalize(self, _unmap, first, GUARD + REACH + GUARD, self.address)

    def begin(self, own: int) -> None:
        """Have `own` fresh bytes, which are zero, and nothing else: for another program."""
        self.hide()
        self._map_nothing(0, self._own)
        self._map(0, own, _PROT_READ_WRITE, _PRIVATE, -1, 0)
        self._own = own
        self._resize(own)

    def show(self, extents: Sequence[Extent]) -> None:
        """Map `extents`, and nothing behind them. Raises ValueError where there are more bytes than
        addresses, OSError."""
        self.hide()
        places, end = [], self._own
        try:
            for descriptor, offset, length in extents:
                self._map(end, length, _PROT_READ_WRITE, mmap.MAP_SHARED, descriptor, offset)
                places.append((end, length))
                end += length
        finally:
            self._resize(end)
        self.places = tuple(places)

    def hide(self) -> None:
        """Unmap all extents."""
        self.places = ()
        self._map_nothing(self._own, len(self.memory) - self._own)
        self._resize(self._own)

    @property
    def views(self) -> list[memoryview]:
        """The bytes of each extent."""
        return [self.memory[at : at + length] for at, length in self.places]

    def make_read_only(self, offset: int, size: int) -> None:
        begin = self.address + offset
        _protect(begin, begin + size, mmap.PROT_READ)

    def clear(self, offset: int, size: int) -> None:
        """Make bytes of the program's own memory zero again."""
        if size and _libc.madvise(self.address + offset, size, mmap.MADV_DONTNEED):
            raise _error()

    def _resize(self, size: int) -> None:
        """Have `memory` be the first `size` bytes, all of which are mapped."""
        _ends[self.address] = page_aligned(size)
        array = (ctypes.c_char * size).from_address(self.address)
        self.memory = memoryview(array).cast("B")

    def _map_nothing(self, offset: int, size: int) -> None:
        """Make what is mapped there inaccessible, and release it."""
        self._map(offset, size, _PROT_NONE, _PRIVATE, -1, 0)

    def _map(
        self, offset: int, size: int, protection: int, flags: int, descriptor: int, start: int
    ) -> None:
        if offset + size > REACH - BASE:
            raise ValueError(f"an arena of {offset + size} bytes does not fit")
        where = self.address + offset
        if size and _libc.mmap(where, size, protection, flags | _MAP_FIXED, descriptor, start) == (
            _FAILED
        ):
            raise _error()


def holds(memory: memoryview) -> bool:
    """True if memory was allocated here, and begins at the first byte of the allocation."""
    return address_of(memory) in _ends


class Fence:
    """A context manager, while which only the first `used` bytes of memory are accessible.

    The pages behind them are inaccessible until it ends, or after `set`, until another fence of the
    same memory is set. Memory that was not allocated here has no fence.
    """

    def __init__(self, memory: memoryview, used: int) -> None:
        self._address = address = address_of(memory)
        self.origin = address - BASE
        """The host address of a program's address 0."""
        self._end = self._before = page_aligned(used)

    def set(self) -> None:
        _show(self._address, self._end)

    def __enter__(self) -> None:
        self._before = _show(self._address, self._end)

    def __exit__(self, *_: object) -> None:
        _show(self._address, self._before)


def _show(address: int, end: int) -> int:
    """Have the first `end` bytes be accessible, and none behind them; returns how many were."""
    before = _ends.get(address, end)
    if before != end:  # one of the calls has nothing to do
        _protect(address + end, address + before, _PROT_NONE)
        _protect(address + before, address + end, _PROT_READ_WRITE)
        _ends[address] = end
    return before


def address_of(memory: memoryview) -> int:
    """Address of its first byte in this process; 0 for no bytes."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)) if memory else 0


def _protect(begin: int, end: int, protection: int) -> None:
    if begin < end and _libc.mprotect(begin, end - begin, protection):
        raise _error()


def _mapped(size: int, flags: int, descriptor: int) -> memoryview:
    if not 0 < size <= REACH - BASE:
        raise ValueError(f"an arena of {size} bytes does not fit into {REACH - BASE}")
    whole = GUARD + REACH + GUARD
    first = _reserved()
    address = first + GUARD + BASE
    found = _libc.mmap(address, size, _PROT_READ_WRITE, flags | _MAP_FIXED, descriptor, 0)
    if found == _FAILED:
        error = _error()
        _libc.munmap(first, whole)
        raise error
    memory = _array(size).from_address(address)
    _ends[address] = page_aligned(size)
    weakref.finalize(memory, _unmap, first, whole, address).atexit = False
    return memoryview(memory).cast("B")


def _reserved() -> int:
    """The first address of a new range, all of it inaccessible."""
    first: int | None = _libc.mmap(None, GUARD + REACH + GUARD, _PROT_NONE, _PRIVATE, -1, 0)
    if first is None or first == _FAILED:
        raise _error()
    return first


@functools.lru_cache
def _array(size: int) -> type[ctypes.Array[ctypes.c_char]]:
    """An array of bytes that can be referred to weakly, which ctypes' own cannot."""
    return type("_Memory", (ctypes.c_char * size,), {})


def _unmap(first: int, whole: int, address: int) -> None:
    _ends.pop(address, None)
    _libc.munmap(first, whole)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))

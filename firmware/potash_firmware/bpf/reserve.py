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
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from potash_firmware.bpf.arena import BASE, REACH, page_aligned

GUARD = 1 << 20
"""Inaccessible bytes in front of a range and behind it: far more than the widest access."""

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
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

_sizes: dict[int, int] = {}
"""The arenas' memory that there is: its address in this process, and its bytes."""


def allocate(size: int) -> memoryview:
    """`size` zero bytes for an arena, in a range of their own for as long as a view of them lives.

    Raises ValueError where so many are beyond a 32-bit offset, OSError where there is no memory.
    """
    return _mapped(size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1)


def share(descriptor: int, size: int) -> memoryview:
    """As `allocate`, with the first `size` bytes of a file or memfd."""
    return _mapped(size, mmap.MAP_SHARED, descriptor)


class Space:
    """A range whose memory is put together of pieces, and changes; for as long as this object
    lives.

    Offsets and sizes are in whole pages.
    """

    def __init__(self) -> None:
        self._first = _reserved()
        self.address = self._first + GUARD + BASE
        """Of its first byte, in this process."""
        self.memory = memoryview(b"")
        """The first bytes of it, as many as `resize` was called with."""
        weakref.finalize(self, _unmap, self._first, GUARD + REACH + GUARD, self.address)

    def resize(self, size: int) -> None:
        """Have `memory` be the first `size` bytes, all of which must be mapped. None else may be
        used."""
        if not 0 <= size <= REACH - BASE:
            raise ValueError(f"an arena of {size} bytes does not fit into {REACH - BASE}")
        _sizes[self.address] = size
        array = (ctypes.c_char * size).from_address(self.address)
        self.memory = memoryview(array).cast("B")

    def put_zeroes(self, offset: int, size: int) -> None:
        """Map fresh zero bytes, which are nobody else's."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._map(offset, size, _PROT_READ_WRITE, flags, -1, 0)

    def put_shared(self, offset: int, size: int, descriptor: int, start: int) -> None:
        """Map `size` bytes of a memfd from its byte `start` on."""
        self._map(offset, size, _PROT_READ_WRITE, mmap.MAP_SHARED, descriptor, start)

    def put_nothing(self, offset: int, size: int) -> None:
        """Make what is mapped there inaccessible, and give it back."""
        nothing = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._map(offset, size, _PROT_NONE, nothing, -1, 0)

    def make_read_only(self, offset: int, size: int) -> None:
        begin = self.address + offset
        _protect(begin, begin + size, mmap.PROT_READ)

    def clear(self, offset: int, size: int) -> None:
        """Make what `put_zeroes` has mapped zero again."""
        if size and _libc.madvise(self.address + offset, size, mmap.MADV_DONTNEED):
            raise _error()

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
    """Whether memory was made here, from its first byte on."""
    return address_of(memory) in _sizes


def fenced(memory: memoryview, used: int) -> AbstractContextManager[int]:
    """Gives the host address of a program's address 0, while the first `used` bytes are in use.

    The pages behind them are inaccessible until the context manager ends.
    """
    address = address_of(memory)
    begin, end = address + page_aligned(used), address + page_aligned(_sizes[address])
    return nullcontext(address - BASE) if begin == end else _fenced(address, begin, end)


@contextmanager
def _fenced(address: int, begin: int, end: int) -> Iterator[int]:
    _protect(begin, end, _PROT_NONE)
    try:
        yield address - BASE
    finally:
        _protect(begin, end, _PROT_READ_WRITE)


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
    _sizes[address] = size
    weakref.finalize(memory, _unmap, first, whole, address).atexit = False
    return memoryview(memory).cast("B")


def _reserved() -> int:
    """The first address of a new range, all of it inaccessible."""
    nothing = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    first: int | None = _libc.mmap(None, GUARD + REACH + GUARD, _PROT_NONE, nothing, -1, 0)
    if first is None or first == _FAILED:
        raise _error()
    return first


@functools.lru_cache
def _array(size: int) -> type[ctypes.Array[ctypes.c_char]]:
    """An array of bytes that can be referred to weakly, which ctypes' own cannot."""
    return type("_Memory", (ctypes.c_char * size,), {})


def _unmap(first: int, whole: int, address: int) -> None:
    _sizes.pop(address, None)
    _libc.munmap(first, whole)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))

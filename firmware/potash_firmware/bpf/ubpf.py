"""A third engine for comparison: the interpreter of an installed libubpf.

It sees the same arena at the same addresses, because the arena is copied to where those are in
this process, and back; so one program runs at a time. It differs where libubpf does: stacks are
its own, and pointers into them mean nothing to helpers; constants can be overwritten while the
program runs, and are as before when it has ended; instructions are limited and not counted; a fault
says an address at most; a jump to itself, the address of a function (LDDW with source 4) and CALLX
are refused. Helpers' numbers go up to 63.

Source: libubpf's public header, ubpf.h.
"""

from __future__ import annotations

import ctypes.util
import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import cffi

from potash_firmware.bpf import isa
from potash_firmware.bpf.arena import BASE, Arena, page_aligned
from potash_firmware.bpf.errors import EngineUnavailable, Fault, FaultKind
from potash_firmware.bpf.interpreter import MASK, Execution, Helper
from potash_firmware.bpf.tally import Tally

_HEADER = """
    typedef uint64_t (*helper)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
    typedef bool (*bounds_check)(void *context, uint64_t address, uint64_t size);
    void *ubpf_create(void);
    void ubpf_destroy(void *vm);
    int ubpf_register(void *vm, unsigned int index, const char *name, helper function);
    int ubpf_register_data_bounds_check(void *vm, void *context, bounds_check check);
    int ubpf_set_instruction_limit(void *vm, uint32_t limit, uint32_t *previous);
    int ubpf_load(void *vm, const void *code, uint32_t length, char **message);
    int ubpf_exec(const void *vm, void *memory, size_t length, uint64_t *value);
    void *mmap(void *address, size_t length, int protection, int flags, int fd, long offset);
    int munmap(void *address, size_t length);
    void free(void *memory);
"""
_NEEDED = ("ubpf_register_data_bounds_check", "ubpf_set_instruction_limit")
"""What older versions lack."""

_PROT_READ_WRITE = 3
_MAP_PRIVATE_ANONYMOUS_AT = 0x02 | 0x20 | 0x100000  # MAP_FIXED_NOREPLACE, mmap(2)
_MAP_NORESERVE = 0x4000
_MOST_INSTRUCTIONS = (1 << 31) - 1
_HELPERS = range(64)

_one_at_a_time = threading.Lock()


@functools.cache
def _library() -> tuple[Any, Any]:
    """cffi's view of libubpf and of the C library. Raises EngineUnavailable, again at each call."""
    ffi = cffi.FFI()
    ffi.cdef(_HEADER)
    name = ctypes.util.find_library("ubpf") or "libubpf.so"
    try:
        library = ffi.dlopen(name)
        for symbol in _NEEDED:
            getattr(library, symbol)
    except (OSError, AttributeError) as error:
        raise EngineUnavailable(f"libubpf cannot be used: {error}") from None
    return ffi, library


def unavailable() -> str | None:
    """Why libubpf cannot be used; None where it can."""
    try:
        _library()
    except EngineUnavailable as error:
        return str(error)
    return None


def execute(
    code: bytes,
    entry: int,
    arena: Arena,
    helpers: Mapping[int, Helper],
    arguments: Sequence[int],
    instruction_limit: int,
    tally: Tally | None = None,
) -> Execution:
    """See `potash_firmware.bpf.engine.execute`; the number of instructions is given as 0."""
    if tally is not None:
        raise EngineUnavailable("libubpf does not count instructions")
    ffi, library = _library()
    with _one_at_a_time:
        vm = library.ubpf_create()
        if vm == ffi.NULL:
            raise EngineUnavailable("libubpf has no memory for a machine")
        try:
            return _Run(ffi, library, vm, arena, helpers).run(
                _prologue(entry, arguments) + code, instruction_limit
            )
        finally:
            library.ubpf_destroy(vm)


class _Run:
    """One execution on a machine of its own."""

    def __init__(
        self, ffi: Any, library: Any, vm: Any, arena: Arena, helpers: Mapping[int, Helper]
    ) -> None:
        self._ffi = ffi
        self._library = library
        self._vm = vm
        self._arena = arena
        self._error: BaseException | None = None
        self._outside: int | None = None
        self._callbacks = [self._helper(number, helpers.get(number)) for number in _HELPERS]
        self._check = ffi.callback("bounds_check", self._refuse)

    def run(self, code: bytes, limit: int) -> Execution:
        ffi, library, vm = self._ffi, self._library, self._vm
        for number, callback in zip(_HELPERS, self._callbacks, strict=True):
            library.ubpf_register(vm, number, b"helper", callback)
        library.ubpf_register_data_bounds_check(vm, ffi.NULL, self._check)
        library.ubpf_set_instruction_limit(vm, min(limit, _MOST_INSTRUCTIONS), ffi.NULL)
        message = ffi.new("char **")
        if library.ubpf_load(vm, code, len(code), message):
            text = ffi.string(message[0]).decode(errors="replace") if message[0] else "no reason"
            raise EngineUnavailable(f"libubpf does not take the program: {text.strip()}")
        size = self._arena.layout.size
        libc = ffi.dlopen(None)
        flags = _MAP_PRIVATE_ANONYMOUS_AT | _MAP_NORESERVE
        wanted = ffi.cast("void *", BASE)
        place = libc.mmap(wanted, page_aligned(size), _PROT_READ_WRITE, flags, -1, 0)
        if place != wanted:
            raise EngineUnavailable("the arena's addresses are taken in this process")
        try:
            self._copy = ffi.buffer(place, size)
            value = ffi.new("uint64_t *")
            self._to_machine()
            failed = library.ubpf_exec(vm, place, size, value)
            self._from_machine()
        finally:
            del self._copy
            libc.munmap(place, page_aligned(size))
        if self._error is not None:
            raise self._error
        if self._outside is not None:
            address = self._outside
            reason = f"an access at 0x{address:x} was refused"
            raise Fault(FaultKind.OUT_OF_BOUNDS, None, address, reason)
        if failed:
            raise Fault(
                FaultKind.STOPPED, None, None, "libubpf gives no reason; another engine does"
            )
        return Execution(int(value[0]), 0)

    def _to_machine(self) -> None:
        self._copy[:] = self._arena.memory

    def _from_machine(self) -> None:
        """Only what may be written: constants stay what they are."""
        end = self._arena.layout.rodata_offset
        self._arena.memory[:end] = self._copy[:end]

    def _helper(self, number: int, helper: Helper | None) -> Any:
        def call(*arguments: int) -> int:
            if self._error is not None:
                return 0
            try:
                if helper is None:
                    reason = f"there is no helper {number}"
                    raise Fault(FaultKind.UNKNOWN_HELPER, None, None, reason)
                self._from_machine()
                value = helper(*arguments) & MASK
                self._to_machine()
            except BaseException as error:  # noqa: BLE001 - `run` raises it
                self._error = error
                return 0
            return value

        return self._ffi.callback("helper", call)

    def _refuse(self, context: Any, address: int, size: int) -> bool:
        self._outside = address
        return False


def _prologue(entry: int, arguments: Sequence[int]) -> bytes:
    """Loads r1 to r5, which libubpf fills otherwise, and goes to the entry."""
    pack = isa.INSTRUCTION.pack
    out = b""
    for register, value in enumerate(arguments[:5], 1):
        low, high = value & 0xFFFF_FFFF, value >> 32 & 0xFFFF_FFFF
        out += pack(isa.LDDW, register, 0, _signed(low)) + pack(0, 0, 0, _signed(high))
    return out + pack(isa.JA32, 0, 0, entry)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word

"""The interpreter of an installed libubpf, the platform's own eBPF machine, through cffi.

A program finds its arena at the address that it has in this process, and libubpf checks each access
against it. Differences: it counts no instructions, and limits them only up to `MOST_INSTRUCTIONS`;
its verifier refuses more (function pointers, a jump to itself, 65536 instructions); a fault has no
instruction, and an address only if it is an access outside the arena; writes to constants are not
refused, nor unaligned atomic operations, nor accesses below a function's stack frame.

Source: libubpf's public header, ubpf.h.
"""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import cffi

from potash_firmware.bpf import isa
from potash_firmware.bpf.arena import Arena
from potash_firmware.bpf.counters import InstructionCounters
from potash_firmware.bpf.errors import EngineUnavailable, Fault, FaultKind
from potash_firmware.bpf.interpreter import MASK, Execution, Helper, signed

VARIABLE: Final = "POTASH_LIBUBPF"
"""The environment variable that has the library's path."""

MOST_INSTRUCTIONS: Final = (1 << 31) - 1
"""The largest limit, a C int. A larger one is none: the limit of time ends the worker then."""

_HEADER = """
    typedef uint64_t (*helper)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
    typedef int (*frame_size)(const void *vm, uint16_t pc, void *context);
    typedef bool (*bounds_check)(void *context, uint64_t address, uint64_t size);
    void *ubpf_create(void);
    void ubpf_destroy(void *vm);
    int ubpf_register(void *vm, unsigned int index, const char *name, helper function);
    int ubpf_register_stack_usage_calculator(void *vm, frame_size calculator, void *context);
    int ubpf_register_data_bounds_check(void *vm, void *context, bounds_check check);
    int ubpf_set_instruction_limit(void *vm, uint32_t limit, uint32_t *previous);
    int ubpf_load(void *vm, const void *code, uint32_t length, char **message);
    int ubpf_exec_ex(const void *vm, void *memory, size_t length, uint64_t *value,
                     uint8_t *stack, size_t stack_length);
    void free(void *memory);
"""
_NEWEST = ("ubpf_exec_ex", "ubpf_register_stack_usage_calculator", "ubpf_set_instruction_limit")
"""Functions that older versions lack."""

_ffi: Any = cffi.FFI()
_ffi.cdef(_HEADER)


@functools.cache
def _library(name: str) -> Any:
    """Raises EngineUnavailable."""
    try:
        library = _ffi.dlopen(name)
        for symbol in _NEWEST:
            getattr(library, symbol)
    except (OSError, AttributeError) as error:
        why = str(error).partition(".  ")[0]  # cffi adds where else it has looked
        raise EngineUnavailable(
            f"libubpf cannot be used: {why} (--libubpf and {VARIABLE} take its path)"
        ) from None
    return library


def load() -> Any:
    """The library that the environment names, or that the loader finds. Raises
    EngineUnavailable."""
    return _library(os.environ.get(VARIABLE) or "libubpf.so")


def unavailable() -> str | None:
    """The reason why libubpf cannot be used, in one sentence; None if it can."""
    try:
        load()
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
    counters: InstructionCounters | None = None,
) -> Execution:
    """Execute a program as `engine.prepare` says. The arena's base is its memory's address; the
    count is given as 0."""
    if counters is not None:
        raise EngineUnavailable("libubpf does not count instructions")
    library = load()
    vm = library.ubpf_create()
    if vm == _ffi.NULL:
        raise EngineUnavailable("libubpf has no memory for a machine")
    try:
        return _run(
            library, vm, _calling(code, entry, arguments), arena, helpers, instruction_limit
        )
    finally:
        library.ubpf_destroy(vm)


def _run(
    library: Any, vm: Any, code: bytes, arena: Arena, helpers: Mapping[int, Helper], limit: int
) -> Execution:
    error: BaseException | None = None

    def give_up(reason: BaseException) -> int:
        """Keep an exception, which must not unwind through C, and stop at the next instruction."""
        nonlocal error
        error = error or reason
        library.ubpf_set_instruction_limit(vm, 1, _ffi.NULL)
        return 0

    def callback(helper: Helper) -> Any:
        def call(*registers: int) -> int:
            try:
                return helper(*registers) & MASK if error is None else 0
            except BaseException as raised:  # noqa: BLE001 - raised below
                return give_up(raised)

        return _ffi.callback("helper", call)

    def refuse(_: Any, address: int, size: int) -> bool:
        reason = f"an access of {size} bytes at 0x{address:x} was refused"
        give_up(Fault(FaultKind.OUT_OF_BOUNDS, None, address, reason))
        return False

    # C has only the addresses of these: they must live as long as the machine.
    functions = {number: callback(helper) for number, helper in helpers.items()}
    frame = arena.layout.frame_size
    frames = _ffi.callback("frame_size", lambda _vm, pc, _: frame if pc else 0)
    check = _ffi.callback("bounds_check", refuse)
    for number, function in functions.items():
        library.ubpf_register(vm, number, b"helper", function)
    library.ubpf_register_stack_usage_calculator(vm, frames, _ffi.NULL)
    library.ubpf_register_data_bounds_check(vm, _ffi.NULL, check)
    unlimited = limit > MOST_INSTRUCTIONS
    library.ubpf_set_instruction_limit(vm, 0 if unlimited else limit, _ffi.NULL)
    message = _ffi.new("char **")
    if library.ubpf_load(vm, code, len(code), message):
        text = _ffi.string(message[0]).decode(errors="replace") if message[0] else "no reason given"
        library.free(message[0])
        raise EngineUnavailable(f"libubpf does not take the program: {text.strip()}")
    value = _ffi.new("uint64_t *")
    with _ffi.from_buffer("uint8_t[]", arena.memory) as memory:
        stack = arena.layout.stack_size
        failed = library.ubpf_exec_ex(vm, memory, len(memory), value, memory, stack)
    if error is not None:
        raise error
    if failed:
        reason = "its own line on standard error may say why; the other engines do"
        raise Fault(FaultKind.STOPPED, None, None, reason)
    return Execution(int(value[0]), 0)


def _calling(code: bytes, entry: int, arguments: Sequence[int]) -> bytes:
    """`code` behind a function that calls the one at `entry`: libubpf begins at the first
    instruction, and sets r1 and r2 itself."""
    pack = isa.INSTRUCTION.pack
    before = b""
    for register, value in enumerate(arguments[:5], 1):
        for opcode, field, word in ((isa.LDDW, register, value), (0, 0, value >> 32)):
            before += pack(opcode, field, 0, signed(word & 0xFFFF_FFFF, 32))
    call = pack(isa.CALL, isa.CallKind.LOCAL << 4, 0, entry + 1)
    return before + call + pack(isa.EXIT, 0, 0, 0) + code

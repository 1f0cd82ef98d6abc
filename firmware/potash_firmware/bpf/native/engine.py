"""Compiled programs, run: what surrounds them and what becomes of those that leave.

While compiled code runs, other threads of the process do too (ctypes lets the interpreter's lock
go). A helper's exception is kept until compiled code has returned, and raised then.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from potash_device.trace import COMPUTE
from potash_firmware import cache
from potash_firmware.bpf import isa
from potash_firmware.bpf.arena import BASE, FRAME_SIZE, MAX_CALL_DEPTH, STACK_SIZE, Arena
from potash_firmware.bpf.errors import EngineUnavailable, Fault, FaultKind
from potash_firmware.bpf.interpreter import MASK, Execution, Helper, Interpreter
from potash_firmware.bpf.native import compiler
from potash_firmware.bpf.native.context import SIZE, Leave, Word
from potash_firmware.bpf.native.generator import symbol

log = logging.getLogger(__name__)

MOST_FUEL = 1 << 62

KEPT = 16
"""Programs that a process keeps loaded."""

_CallHelper = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_int64, *[ctypes.c_uint64] * 5)
_Compile = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)
_Compiled = ctypes.CFUNCTYPE(
    ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_uint64] * 6
)


class Loaded(NamedTuple):
    """Machine code in this process, for as long as `owner` lives."""

    address: int
    owner: Any


def unavailable() -> str | None:
    """Why programs cannot be compiled here; None where they can."""
    try:
        compiler.llvm()
    except EngineUnavailable as error:
        return str(error)
    return None


compile_elsewhere: Callable[[bytes, int], bytes] | None = None
"""What compiles programs in this process's place, and keeps them; raises EngineUnavailable."""


def name_of(code: bytes, entry: int) -> str:
    """What a program's object file is called in the cache."""
    return cache.key(compiler.identity(), code, entry.to_bytes(8, "little", signed=True))


def machine_code(code: bytes, entry: int) -> bytes:
    """The object file of a program, from the cache where it is there. Raises EngineUnavailable."""
    name = name_of(code, entry)
    root = cache.folder("bpf")
    contents = cache.load(root, name)
    if contents is None:
        begun = time.perf_counter()
        with COMPUTE.span("bpf.compile", bytes=len(code)):
            contents = (compile_elsewhere or compiler.compile_program)(code, entry)
        log.debug("compiled a program in %.1f ms", (time.perf_counter() - begun) * 1e3)
        if compile_elsewhere is None:
            cache.store(root, name, contents)
    return contents


@functools.lru_cache(maxsize=KEPT)
def load(code: bytes, entry: int) -> Loaded:
    """The function at `entry`, ready to be called. Raises EngineUnavailable."""
    return place(machine_code(code, entry), entry)


def place(contents: bytes, entry: int) -> Loaded:
    """Put an object file into this process. Raises EngineUnavailable."""
    binding = compiler.llvm()
    owner = binding.create_mcjit_compiler(binding.parse_assembly(""), compiler.target())
    owner.add_object_file(binding.ObjectFileRef.from_data(contents))
    owner.finalize_object()
    address = owner.get_function_address(symbol(entry))
    if not address:
        raise EngineUnavailable("the compiled program lacks its entry")
    return Loaded(address, owner)


def execute(
    code: bytes,
    entry: int,
    arena: Arena,
    helpers: Mapping[int, Helper],
    arguments: Sequence[int],
    instruction_limit: int,
) -> Execution:
    """See `potash_firmware.bpf.engine.execute`."""
    if arena.layout.stack_size < STACK_SIZE:
        raise EngineUnavailable(f"compiled programs need a stack of {STACK_SIZE} bytes")
    loaded = load(code, entry)
    return _Run(code, arena, helpers, instruction_limit).run(loaded, arguments)


class _Run:
    """One execution: its context, and what compiled code calls back."""

    def __init__(
        self, code: bytes, arena: Arena, helpers: Mapping[int, Helper], instruction_limit: int
    ) -> None:
        self._code = code
        self._arena = arena
        self._helpers = helpers
        self._limit = instruction_limit
        self._context = (ctypes.c_uint64 * SIZE)()
        self._error: BaseException | None = None
        self._loaded: list[Loaded] = []

    def run(self, loaded: Loaded, arguments: Sequence[int]) -> Execution:
        arena, context = self._arena, self._context
        count = len(self._code) // isa.INSTRUCTION_SIZE
        self._functions = (ctypes.c_uint64 * count)()
        # The context holds their addresses only, so they must live as long as this call.
        call_helper, compile_function = _CallHelper(self._call_helper), _Compile(self._compile)
        fuel = min(self._limit, MOST_FUEL)
        context[Word.FUEL] = fuel
        context[Word.READABLE] = arena.layout.size
        context[Word.WRITABLE] = arena.layout.rodata_offset
        context[Word.BOTTOM] = arena.stack_top - (MAX_CALL_DEPTH - 2) * FRAME_SIZE
        context[Word.FUNCTIONS] = ctypes.addressof(self._functions)
        context[Word.CALL_HELPER] = _address(call_helper)
        context[Word.COMPILE] = _address(compile_function)
        context[Word.COUNT] = count
        values = [value & MASK for value in arguments][:5]
        values += [0] * (5 - len(values))
        memory = (ctypes.c_char * arena.layout.size).from_buffer(arena.memory)
        origin = (ctypes.addressof(memory) - BASE) & MASK
        function = _Compiled(loaded.address)
        value = function(ctypes.addressof(context), origin, arena.stack_top, *values)
        left = ctypes.c_int64(context[Word.FUEL]).value
        self._raise_fault(left, fuel - left)
        return Execution(value, fuel - left)

    def _raise_fault(self, left: int, executed: int) -> None:
        """Raise what ended the program, if anything but its exit did."""
        context = self._context
        pc = ctypes.c_int64(context[Word.PC]).value
        why = context[Word.LEAVE]
        if self._error is not None:
            if isinstance(self._error, Fault) and self._error.pc is None:
                self._error.pc = pc
            raise self._error
        if why == Leave.REPLAY and left >= 0:
            self._replay(pc, executed)
        if left < 0 or why == Leave.LIMIT:
            reason = f"the program may execute {self._limit} instructions"
            raise Fault(FaultKind.INSTRUCTION_LIMIT, pc, None, reason)

    def _replay(self, pc: int, executed: int) -> None:
        """Have the interpreter meet the fault that compiled code has seen ahead."""
        registers = list(self._context[Word.REGISTERS :])
        depth = (self._arena.stack_top - registers[isa.FRAME_POINTER]) // FRAME_SIZE + 1
        interpreter = Interpreter(self._code, self._arena, self._helpers, self._limit)
        interpreter.resume(pc, registers, depth, executed)
        while len(interpreter.frames) >= depth:
            interpreter.step()
        raise AssertionError(f"the interpreter finds nothing wrong behind instruction {pc}")

    def _call_helper(self, number: int, *arguments: int) -> int:
        try:
            helper = self._helpers.get(number)
            if helper is None:
                raise Fault(FaultKind.UNKNOWN_HELPER, None, None, f"there is no helper {number}")
            return helper(*arguments) & MASK
        except BaseException as error:  # noqa: BLE001 - `_raise_fault` raises it
            return self._give_up(error)

    def _compile(self, index: int) -> int:
        try:
            try:
                loaded = load(self._code, index)
            except EngineUnavailable as error:
                # Too late for another engine: the program has done something already.
                reason = f"the function at instruction {index} cannot be compiled: {error}"
                raise Fault(FaultKind.INVALID_INSTRUCTION, None, None, reason) from None
            self._loaded.append(loaded)
            self._functions[index] = loaded.address
            return loaded.address
        except BaseException as error:  # noqa: BLE001 - `_raise_fault` raises it
            return self._give_up(error)

    def _give_up(self, error: BaseException) -> int:
        """Keep an exception, which must not unwind through compiled code, and make it leave."""
        self._error = error
        self._context[Word.LEAVE] = Leave.RAISED
        return 0


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address

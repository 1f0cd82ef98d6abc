"""Running compiled programs, and continuing those that leave compiled code by a side exit.

While compiled code runs, other threads of the process do too, as ctypes releases the interpreter's
lock. A helper's exception is kept until compiled code has returned, and raised then.
"""

import ctypes
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from potash_device import object_code
from potash_device.trace import COMPUTE
from potash_firmware.bpf import isa, reserve
from potash_firmware.bpf.arena import BASE, LEAST_FRAME, MAX_CALL_DEPTH, REACH, Arena
from potash_firmware.bpf.counters import InstructionCounters, Kind
from potash_firmware.bpf.errors import EngineUnavailable, Fault, FaultKind
from potash_firmware.bpf.interpreter import MASK, Execution, Helper, Interpreter, interpreter_of
from potash_firmware.bpf.native import compiler, runtime
from potash_firmware.bpf.native.context import REFUEL, SIZE, SideExit, Word

log = logging.getLogger(__name__)

MOST_FUEL = 1 << 62

PROGRESS_INTERVAL = 1 << 24
"""Instructions after which a program that is counted by kind reports progress: some 10 ms."""

KEPT = 16
"""Programs that a process keeps loaded."""

_CallHelper = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_int64, *[ctypes.c_uint64] * 5)
_Resume = ctypes.CFUNCTYPE(ctypes.c_uint64)
_Enter = ctypes.CFUNCTYPE(ctypes.c_uint64, *[ctypes.c_void_p] * 3, *[ctypes.c_uint64] * 6)


MOST_POINTERS = 64
"""Maximum number of compiled functions that only a program's data points at; others are
interpreted."""


# Plain numbers, as looking a member up in an enumeration takes as long as all other work of a run
# with the context.
_FUEL, _RESERVE, _SIDE_EXIT = map(int, (Word.FUEL, Word.RESERVE, Word.SIDE_EXIT))

_HIGH_HALF = (isa.CODE_BASE >> 32).to_bytes(4, "little")


class Module(NamedTuple):
    """Machine code in this process, for as long as `owner` lives.

    `functions` has the addresses of those that can be called through a pointer, by their indices.
    """

    address: int
    functions: Mapping[int, int]
    owner: Any


def unavailable() -> str | None:
    """The reason for which programs cannot be compiled here; None where they can."""
    try:
        runtime.load()
    except EngineUnavailable as error:
        return str(error)
    return None


compile_elsewhere: Callable[[bytes, int, bool], bytes] | None = None
"""Compiles and caches programs in another process, where set. Raises EngineUnavailable."""


def name_of(code: bytes, entry: int, by_kind: bool = False) -> str:
    """The name of a program's object file in the cache."""
    parts = [code, entry.to_bytes(8, "little", signed=True)]
    return compiler.OBJECTS.name(*parts, *([b"by kind"] if by_kind else []))


def machine_code(code: bytes, entry: int, by_kind: bool = False) -> bytes:
    """The object file of a program, from the cache where it is there. Raises EngineUnavailable."""
    name = name_of(code, entry, by_kind)
    contents = compiler.OBJECTS.load(name)
    if contents is None:
        begun = time.perf_counter()
        with COMPUTE.span("bpf.compile", bytes=len(code)):
            contents = (compile_elsewhere or compiler.compile_program)(code, entry, by_kind)
        log.debug("compiled a program in %.1f ms", (time.perf_counter() - begun) * 1e3)
        if compile_elsewhere is None:
            compiler.OBJECTS.keep(name, contents)
    return contents


@functools.lru_cache(maxsize=KEPT)
def load(code: bytes, entry: int, by_kind: bool = False) -> Module:
    """The function at `entry`, ready to be called. Raises EngineUnavailable."""
    return place(machine_code(code, entry, by_kind), entry)


def place(contents: bytes, entry: int) -> Module:
    """Put an object file into this process. Raises EngineUnavailable."""
    runtime.load()  # it has what a program may call, which LLVM would else take to be at 0
    owner = object_code.load(contents)
    functions = {
        int(name[1:]): owner.get_function_address(name)
        for name in compiler.symbols(contents)[0]
        if name[1:].isdecimal()
    }
    if entry not in functions:
        raise EngineUnavailable("the compiled program lacks its entry")
    return Module(functions[entry], functions, owner)


def _pointed_at(arena: Arena, count: int) -> list[int]:
    """The functions of a program of `count` instructions that its data has pointers to."""
    layout = arena.layout
    data = bytes(arena.memory[layout.data_offset : layout.rodata_end])
    found = set()
    at = data.find(_HIGH_HALF)
    while at >= 0:
        if at % 8 == 4:
            index, rest = divmod(int.from_bytes(data[at - 4 : at], "little"), isa.INSTRUCTION_SIZE)
            if not rest and index < count:
                found.add(index)
        at = data.find(_HIGH_HALF, at + 1)
    return sorted(found)


class Machine:
    """A program that is ready to run in one arena, any number of times.

    Its data must be in the arena already: functions that it points at are compiled, too. Raises
    EngineUnavailable.
    """

    def __init__(
        self,
        code: bytes,
        entry: int,
        arena: Arena,
        helpers: Mapping[int, Helper],
        instruction_limit: int,
        counters: InstructionCounters | None = None,
    ) -> None:
        layout = arena.layout
        if layout.frame_size < LEAST_FRAME:
            raise EngineUnavailable(f"compiled programs need stack frames of {LEAST_FRAME} bytes")
        self._code = code
        self._arena = arena
        self._helpers = helpers
        self._limit = instruction_limit
        self._fuel = min(instruction_limit, MOST_FUEL)
        self._counters = counters
        self._counts = [0] * len(Kind)
        """Instructions of this run, by kind, that the counters include already."""
        self._error: BaseException | None = None
        self._interpreter: Interpreter | None = None
        self._memory = arena.memory
        self._is_copy = not reserve.holds(self._memory)
        if self._is_copy:
            self._memory = reserve.allocate(layout.size)
        by_kind = counters is not None
        module = load(code, entry, by_kind)
        functions = dict(module.functions)
        self._modules = [module]
        count = len(code) // isa.INSTRUCTION_SIZE
        for index in _pointed_at(arena, count):
            if index not in functions and len(self._modules) <= MOST_POINTERS:
                self._modules.append(load(code, index, by_kind))
                functions |= self._modules[-1].functions
        table = (ctypes.c_uint64 * count)()
        for index, function in functions.items():
            table[index] = function
        trampolines = runtime.load()
        # The context holds only addresses: the objects at them must live as long as this one.
        self._callbacks = table, _CallHelper(self._call_helper), _Resume(self._resume)
        self._context = context = (ctypes.c_uint64 * SIZE)()
        context[Word.READABLE] = layout.size
        context[Word.WRITABLE] = layout.writable_size
        context[Word.BOTTOM] = arena.stack_top - (MAX_CALL_DEPTH - 2) * layout.frame_size
        context[Word.FRAME] = layout.frame_size
        context[Word.FUNCTIONS] = ctypes.addressof(table)
        context[Word.COUNT] = count
        context[Word.CALL_HELPER] = trampolines.call_helper
        context[Word.RESUME] = trampolines.resume
        context[Word.HELPER_CALLBACK] = _address(self._callbacks[1])
        context[Word.RESUME_CALLBACK] = _address(self._callbacks[2])
        self._enter = _Enter(trampolines.enter)
        self._fence = fence = reserve.Fence(self._memory, layout.size)
        context[Word.LOW] = fence.origin - reserve.GUARD
        context[Word.HIGH] = fence.origin + REACH + reserve.GUARD
        self._before = module.address, ctypes.addressof(context), fence.origin, arena.stack_top

    def run(self, arguments: Sequence[int]) -> Execution:
        """Run it from its entry to its exit, with at most five arguments. Raises Fault."""
        context, counters = self._context, self._counters
        values = (*arguments, 0, 0, 0, 0, 0)[:5]
        self._error = self._interpreter = None
        self._copy_in()
        with runtime.lock, self._fence:
            self._refill(self._fuel)
            if counters is not None:
                self._put_counts([0] * len(Kind))
            context[_SIDE_EXIT] = 0
            value = self._enter(*self._before, *values)
        self._copy_out()
        left = self._left()
        if counters is not None:
            self._count(counters)
        if self._error is not None or left < 0 or context[_SIDE_EXIT]:
            self._raise_fault(left)
        return Execution(value, self._fuel - left)

    def _left(self) -> int:
        """Instructions that may still be executed; negative once the limit was exceeded."""
        return ctypes.c_int64(self._context[_FUEL]).value + self._context[_RESERVE]

    def _refill(self, left: int) -> None:
        """Set the number of instructions that may still be executed, in parts if compiled code
        pauses to report progress."""
        fuel = left if self._counters is None else min(left, PROGRESS_INTERVAL)
        self._context[_FUEL], self._context[_RESERVE] = fuel & MASK, left - fuel

    def _count(self, counters: InstructionCounters) -> None:
        """Add the instructions that the context has counted to the counters."""
        counts = list(self._context[Word.COUNTS : SIZE])
        counts[Kind.ALU] = 0
        counts[Kind.ALU] = self._fuel - self._left() - sum(counts)
        counters.add([now - before for now, before in zip(counts, self._counts, strict=True)])
        self._counts = counts

    def _raise_fault(self, left: int) -> None:
        """Raise the fault or exception that ended the program, if it did not exit."""
        context = self._context
        if self._error is not None:
            if isinstance(self._error, Fault) and self._error.pc is None:
                self._error.pc = ctypes.c_int64(context[Word.PC]).value
            raise self._error
        match context[Word.SIDE_EXIT]:
            case SideExit.FAULT:
                at = (context[Word.FAULT] - self._fence.origin) & MASK
                layout = self._arena.layout
                if layout.rodata_offset <= at - BASE < layout.rodata_end:
                    reason = f"a write at 0x{at:x} was refused: it reaches into the read-only data"
                    raise Fault(FaultKind.READ_ONLY, None, at, reason)
                reason = f"compiled code reached for 0x{at:x} unchecked, where nothing is"
                raise Fault(FaultKind.OUT_OF_BOUNDS, None, at, reason)
            case SideExit.LIMIT:
                raise self._limit_fault()
        if left < 0:
            raise self._limit_fault()

    def _limit_fault(self) -> Fault:
        reason = f"the program may execute {self._limit} instructions"
        pc = ctypes.c_int64(self._context[Word.PC]).value
        return Fault(FaultKind.INSTRUCTION_LIMIT, pc, None, reason)

    # What compiled code calls

    def _resume(self) -> int:
        """Interpret the rest of a function. If it faults, the interpreter raises the exact
        fault."""
        try:
            context = self._context
            left = self._left()
            if left < 0:
                raise self._limit_fault()
            interpreter = self._interpreter = self._interpreter or interpreter_of(
                self._code, self._arena, self._helpers, self._limit, self._counters
            )
            if self._counters is not None:
                self._count(self._counters)
            pc = ctypes.c_int64(context[Word.PC]).value
            registers = list(context[Word.REGISTERS : Word.REGISTERS + 11])
            above = self._arena.stack_top - registers[isa.FRAME_POINTER]
            depth = above // self._arena.layout.frame_size + 1
            interpreter.resume(pc, registers, depth, self._fuel - left)
            before = list(self._counters.counts) if self._counters is not None else []
            try:
                with self._show_memory():
                    while len(interpreter.frames) >= depth:
                        interpreter.step()
            finally:
                self._note_interpreter(interpreter.executed, before)
            return interpreter.registers[0]
        except BaseException as error:  # noqa: BLE001 - `_raise_fault` raises it
            return self._give_up(error)

    def _note_interpreter(self, executed: int, before: Sequence[int]) -> None:
        """Update the context's counts after the interpreter, which has updated the counters."""
        self._refill(self._fuel - executed)
        if self._counters is not None:
            now = self._counters.counts
            self._put_counts(
                [
                    total + new - old
                    for total, new, old in zip(self._counts, now, before, strict=True)
                ]
            )

    def _put_counts(self, counts: list[int]) -> None:
        """Set the context's counts of this run, which the counters include already."""
        for word, count in enumerate(counts, Word.COUNTS):
            self._context[word] = count
        self._counts = counts

    def _call_helper(self, number: int, *arguments: int) -> int:
        try:
            if self._counters is not None:
                self._count(self._counters)
                if number == REFUEL:
                    self._counters.progress()
                    self._refill(self._left())
                    return 0
            helper = self._helpers.get(number)
            if helper is None:
                raise Fault(FaultKind.UNKNOWN_HELPER, None, None, f"there is no helper {number}")
            if not self._is_copy:  # a context manager takes as long as all else here
                return helper(*arguments) & MASK
            with self._show_memory():
                return helper(*arguments) & MASK
        except BaseException as error:  # noqa: BLE001 - `_raise_fault` raises it
            return self._give_up(error)

    def _give_up(self, error: BaseException) -> int:
        """Keep an exception, which must not unwind through compiled code, and have that code
        return."""
        self._error = error
        self._context[Word.SIDE_EXIT] = SideExit.RAISED
        return 0

    @contextmanager
    def _show_memory(self) -> Iterator[None]:
        """Copy memory that is in no reserved range back to the arena while other code uses it."""
        self._copy_out()
        try:
            yield
        finally:
            self._copy_in()

    def _copy_in(self) -> None:
        if self._is_copy:
            self._memory[:] = self._arena.memory

    def _copy_out(self) -> None:
        if self._is_copy:
            end = self._arena.layout.rodata_offset
            self._arena.memory[:end] = self._memory[:end]


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address

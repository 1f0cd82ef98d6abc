"""The engines that run programs, and their common interface.

The interpreter is always available and is the specification. Compiled programs give the same value,
the same memory and the same fault (kind, instruction, address); only the instruction at which a
program exceeds its limit may differ. `ubpf` lists the differences of an installed libubpf.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from potash_firmware.bpf import interpreter
from potash_firmware.bpf.arena import BASE, Arena
from potash_firmware.bpf.counters import InstructionCounters
from potash_firmware.bpf.interpreter import Execution, Helper

log = logging.getLogger(__name__)


class Engine(Enum):
    """The engines, as a configuration names them."""

    INTERPRETER = "interpreter"
    NATIVE = "native"
    UBPF = "ubpf"


Execute = Callable[[bytes, int, Arena, Mapping[int, Helper], Sequence[int], int], Execution]
"""The arguments and result of `execute`, without the engine and the counters."""


def execute(
    engine: Engine,
    code: bytes,
    entry: int,
    arena: Arena,
    helpers: Mapping[int, Helper],
    arguments: Sequence[int],
    instruction_limit: int,
    counters: InstructionCounters | None = None,
) -> Execution:
    """Run linked `code` from the instruction at index `entry` to its exit, on `engine`.

    `arguments` are the entry function's, r1 first. What is executed is counted in `counters`, if
    there is one, also when the program faults. Raises Fault, and EngineUnavailable before anything
    has happened when the engine is not there or cannot take the program.
    """
    return prepare(engine, code, entry, arena, helpers, instruction_limit, counters)(arguments)


RunProgram = Callable[[Sequence[int]], Execution]
"""A program that is ready to run, with the arguments of its entry function."""


def prepare(
    engine: Engine,
    code: bytes,
    entry: int,
    arena: Arena,
    helpers: Mapping[int, Helper],
    instruction_limit: int,
    counters: InstructionCounters | None = None,
) -> RunProgram:
    """The same as `execute`, for a program whose data is in its arena, and that runs repeatedly."""
    if engine is Engine.NATIVE:
        # LLVM takes its time to load, and may not be there.
        from potash_firmware.bpf.native.engine import Machine

        return Machine(code, entry, arena, helpers, instruction_limit, counters).run
    run = interpreter.execute
    if engine is Engine.UBPF:
        from potash_firmware.bpf import ubpf  # cffi is loaded only where it is used

        run = ubpf.execute
    return lambda arguments: run(
        code, entry, arena, helpers, arguments, instruction_limit, counters
    )


def base_of(engine: object, address: int) -> int:
    """Where programs on `engine` find an arena that begins at `address` in this process."""
    return address if engine is Engine.UBPF else BASE


def unavailable(engine: Engine) -> str | None:
    """Why an engine cannot be used here, in one sentence; None where it can."""
    if engine is Engine.INTERPRETER:
        return None
    if engine is Engine.UBPF:
        from potash_firmware.bpf import ubpf

        return ubpf.unavailable()
    from potash_firmware.bpf.native import engine as native

    return native.unavailable()


def usable(engine: Engine) -> Engine:
    """`engine`, or else the interpreter; the log then says why."""
    reason = unavailable(engine)
    if reason is None:
        return engine
    log.warning("programs run in the interpreter: %s", reason)
    return Engine.INTERPRETER

"""The engines that run programs, and their common interface.

The interpreter is always available and is the specification. Compiled programs give the same value,
the same memory and the same fault (kind, instruction, address); only the instruction at which a
program exceeds its limit may differ. `ubpf` lists the differences of an installed libubpf.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from potash_firmware.bpf import interpreter
from potash_firmware.bpf.arena import BASE, Arena
from potash_firmware.bpf.counters import InstructionCounters
from potash_firmware.bpf.engine_names import Engine
from potash_firmware.bpf.interpreter import Execution, Helper

__all__ = ["Engine", "Execute", "RunProgram", "base_of", "prepare", "usable"]

log = logging.getLogger(__name__)


Execute = Callable[[bytes, int, Arena, Mapping[int, Helper], Sequence[int], int], Execution]
"""Executes linked code, from the instruction at an index on, with an arena, helpers and arguments,
up to a limit of instructions."""

RunProgram = Callable[[Sequence[int]], Execution]
"""Runs a program with the arguments of its entry function, r1 first. Raises Fault."""


def prepare(
    engine: Engine,
    code: bytes,
    entry: int,
    arena: Arena,
    helpers: Mapping[int, Helper],
    instruction_limit: int,
    counters: InstructionCounters | None = None,
) -> RunProgram:
    """Prepare linked `code`, whose data is in its arena, to run on `engine` from the instruction at
    index `entry` to its exit, any number of times.

    Executed instructions are counted in `counters`, if there is one, also when the program faults.
    Raises EngineUnavailable, or the run does, if the engine is not there or cannot take the
    program.
    """
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
    """Guest address, on `engine`, of an arena that begins at `address` in this process."""
    return address if engine is Engine.UBPF else BASE


def unavailable(engine: Engine) -> str | None:
    """The reason why an engine cannot be used here, in one sentence; None if it can."""
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

"""Loading a program, and running it once: the interface for the APU's worker.

The caller provides the input in memory; the program gets its context in r5, and writes its result
to the output buffer. The verifier checks the encoding: every field legal, every jump to the
beginning of an instruction inside the program, every helper known. Properties that depend on values
(addresses, loops, call depth) are checked while the program runs.
"""

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from csd_spec.program import Context
from potash_firmware.bpf import added, elf, isa, reserve
from potash_firmware.bpf.arena import FRAME_SIZE, MAX_CALL_DEPTH, PAGE, Arena, Layout
from potash_firmware.bpf.elf import MAX_DATA, Program
from potash_firmware.bpf.engine import Engine, Execute, base_of, execute
from potash_firmware.bpf.errors import Fault, ProgramError, VerificationError
from potash_firmware.bpf.helpers import HELPER_NUMBERS, Helpers, Services
from potash_firmware.bpf.tally import Tally


def verify(code: bytes, entry: int, helpers: Container[int], frame_size: int = FRAME_SIZE) -> None:
    """Check all of `code`, also what the function at index `entry` never reaches.

    A constant offset from the frame pointer has to be within `frame_size`; other accesses below a
    function's frame fault when they are executed.

    Raises VerificationError for the first instruction that is wrong.
    """
    if not code or len(code) % isa.INSTRUCTION_SIZE:
        raise VerificationError(0, f"{len(code)} bytes are not a program")
    instructions = isa.decode(code)
    starts = _starts(instructions)
    if entry not in starts:
        raise VerificationError(entry, "the program cannot be entered here")
    for index in sorted(starts):
        instruction = instructions[index]
        target = isa.target(index, instruction)
        if target is not None and target not in starts:
            where = "the middle of an LDDW" if 0 <= target < len(instructions) else "no instruction"
            raise VerificationError(index, f"its target {target} is {where}")
        if (
            instruction.opcode == isa.CALL
            and instruction.src == isa.CallKind.HELPER
            and instruction.imm not in helpers
        ):
            raise VerificationError(index, f"there is no helper {instruction.imm}")
        if -_lowest_in_frame(instructions, index) > frame_size:
            raise VerificationError(
                index,
                f"a function's stack frame has {frame_size} bytes at most (frame_size in [limits] "
                "of the configuration)",
            )
    last = max(starts)
    if instructions[last].opcode not in (isa.EXIT, isa.JA, isa.JA32):
        raise VerificationError(last, "the program runs past its last instruction")


def _lowest_in_frame(instructions: list[isa.Instruction], index: int) -> int:
    """What an instruction adds to the frame pointer to access memory or to point at a variable."""
    instruction = instructions[index]
    opcode, dst, src, offset, imm = instruction
    match instruction.kind:
        case isa.Class.LDX:
            return offset if src == isa.FRAME_POINTER else 0
        case isa.Class.ST | isa.Class.STX:
            return offset if dst == isa.FRAME_POINTER else 0
    # As compilers do it: a copy of the frame pointer, and the distance added to that.
    copied = index and instructions[index - 1][:3] == (_COPY, dst, isa.FRAME_POINTER)
    return imm if copied and opcode == _ADD else 0


def _starts(instructions: list[isa.Instruction]) -> set[int]:
    """Where instructions begin, each of them legal in itself."""
    starts = set()
    index = 0
    while index < len(instructions):
        reason = isa.problem(instructions, index)
        if reason is not None:
            raise VerificationError(index, reason)
        starts.add(index)
        index += 2 if instructions[index].opcode == isa.LDDW else 1
    return starts


_COPY = isa.operation_opcode(isa.Class.ALU64, isa.Alu.MOV, isa.Source.X)
_ADD = isa.operation_opcode(isa.Class.ALU64, isa.Alu.ADD)

INSTRUCTION_LIMIT = 1_000_000_000_000

MAX_CONTEXT = (1 << 20) + PAGE
"""Most bytes of a program's context: an argument list of 1 MiB, and what is around it."""

_NO_ARGUMENTS = Context()
_CONTEXT_ALIGNMENT = 8


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    `return_value` is r0, unsigned; `output_length` what the program set, None where it did not;
    `instructions` how many were executed.
    """

    return_value: int
    output_length: int | None
    instructions: int


def load_program(data: bytes, *, entry: str | None = None, frame_size: int = FRAME_SIZE) -> Program:
    """Link and verify a program's object file. Raises ProgramError, one sentence.

    `entry` names the function to begin with: else `prog`, else the first global function.
    `frame_size` is how many bytes of stack a function may have.
    """
    program = elf.load(data, entry=entry, helpers=helper_names())
    with placing(program):
        verify(
            program.code, program.entry, HELPER_NUMBERS | added.found().helpers.keys(), frame_size
        )
    return program


def helper_names() -> Mapping[str, int]:
    """The helpers that an object may leave undefined, those of other packages too."""
    return {**elf.HELPER_NAMES, **added.found().names}


@contextmanager
def placing(program: Program) -> Iterator[None]:
    """Tell what is wrong with an instruction where that came from."""
    try:
        yield
    except (Fault, VerificationError) as error:
        if error.pc is not None:
            error.place = program.debug.place(error.pc)
        raise


def buffer_layout(input_size: int, output_size: int, frame_size: int = FRAME_SIZE) -> Layout:
    """Where in an accelerator's memory its buffers lie, and how much memory any program needs."""
    return Layout(
        input_size,
        output_size,
        frame_size * MAX_CALL_DEPTH,
        data_size=MAX_DATA + MAX_CONTEXT,
        rodata_size=MAX_DATA,
    )


def run_program(
    program: Program,
    memory: memoryview,
    *,
    input_size: int,
    output_size: int,
    input_length: int,
    services: Services,
    output_length: int | None = None,
    context: Context = _NO_ARGUMENTS,
    instruction_limit: int = INSTRUCTION_LIMIT,
    frame_size: int = FRAME_SIZE,
    engine: Engine | Execute = Engine.INTERPRETER,
    tally: Tally | None = None,
) -> Outcome:
    """Run `program` from its entry to its exit, on `engine` or on what does its work.

    `memory` is writable and has the bytes that `buffer_layout` with these sizes says, best from
    `reserve.allocate`: compiled programs need that, so other memory is copied. Input and
    output in it are the caller's: the first `input_length` bytes from that layout's `input_offset`
    are the input, the result is left from its `output_offset` on. Stack and data are made anew.
    The program is told `input_length` and `output_length` (else `output_size`). What it executes is
    counted in `tally`, unless `engine` is not one of the engines.

    Raises Fault when the program is stopped, ProgramError when its context is too long,
    EngineUnavailable, and DescriptorError when its argument list is malformed.
    """
    if output_length is None:
        output_length = output_size
    if not 0 <= input_length <= input_size or not 0 <= output_length <= output_size:
        raise ValueError("the lengths of input and output exceed their buffers")
    # Where the ranges are says the layout, which depends on the context's length alone.
    length = len(context._replace(ranges=((0, 0), (0, 0))).encode())
    if length > MAX_CONTEXT:
        raise ProgramError(f"a context of {length} bytes exceeds {MAX_CONTEXT}")
    context_offset = len(program.data) + -len(program.data) % _CONTEXT_ALIGNMENT
    layout = Layout(
        input_size,
        output_size,
        frame_size * MAX_CALL_DEPTH,
        data_size=context_offset + length,
        rodata_size=len(program.rodata),
    )
    base = base_of(engine, reserve.address_of(memory))
    arena = Arena(memory, layout, base)
    image = elf.link(program, layout, base)
    ranges = (arena.input, input_length), (arena.output, output_length)
    encoded = context._replace(ranges=ranges).encode()
    _fill(memory, layout, image, context_offset, encoded)
    helpers = Helpers(arena, services, output_length, context.arguments)
    arguments = arena.input, arena.output, input_length, output_length, arena.data + context_offset
    run = partial(execute, engine, tally=tally) if isinstance(engine, Engine) else engine
    try:
        with placing(program):
            value, executed = run(
                image.code, program.entry, arena, helpers.table(), arguments, instruction_limit
            )
    finally:
        helpers.close()
    return Outcome(value, helpers.output_length, executed)


def _fill(
    memory: memoryview, layout: Layout, image: elf.Image, context_offset: int, context: bytes
) -> None:
    """Make the arena as a program finds it, but for its input and output."""
    for start, end in ((0, layout.input_offset), (layout.data_offset, layout.size)):
        memory[start:end] = bytes(end - start)
    for offset, contents in (
        (layout.data_offset, image.data),
        (layout.data_offset + context_offset, context),
        (layout.rodata_offset, image.rodata),
    ):
        memory[offset : offset + len(contents)] = contents

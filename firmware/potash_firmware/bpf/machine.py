"""Loading a program, and running it any number of times.

A program of a job runs in an accelerator's memory (`Prepared`): the caller provides the input in
it, and the program writes its result to the output buffer. A program of a compute namespace runs on
memory ranges (`Placed`). Both get their context in r5.

The verifier checks the encoding: every field legal, every jump to the
beginning of an instruction inside the program, every helper known. Properties that depend on values
(addresses, loops, call depth) are checked while the program runs.
"""

import ctypes
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from csd_spec.descriptors import DescriptorError, decode_arguments, encode_arguments
from csd_spec.program import CONTEXT_VERSION, Context, encode_context
from potash_firmware.bpf import added, elf, isa, reserve
from potash_firmware.bpf.arena import (
    BASE,
    FRAME_SIZE,
    MAX_CALL_DEPTH,
    PAGE,
    Arena,
    Layout,
    RangesLayout,
)
from potash_firmware.bpf.counters import InstructionCounters
from potash_firmware.bpf.elf import MAX_DATA, Program
from potash_firmware.bpf.engine import Engine, Execute, base_of, prepare
from potash_firmware.bpf.errors import Fault, ProgramError, VerificationError
from potash_firmware.bpf.helpers import HELPER_NUMBERS, Helpers, Services


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
    """The offset from the frame pointer at which an instruction accesses memory, or points at a
    variable."""
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
    """Indices at which instructions begin. Raises VerificationError for an invalid one."""
    starts = set()
    index = 0
    while index < len(instructions):
        reason = isa.problem(instructions, index)
        if reason is not None:
            raise VerificationError(index, reason)
        starts.add(index)
        index += 2 if instructions[index].opcode == isa.LDDW else 1
    return starts


_COPY = isa.operation_opcode(isa.Class.ALU64, isa.Alu.MOV, isa.OperandSource.X)
_ADD = isa.operation_opcode(isa.Class.ALU64, isa.Alu.ADD)

INSTRUCTION_LIMIT = 1_000_000_000_000

MAX_CONTEXT = (1 << 20) + PAGE
"""Maximum bytes of a program's context: an argument list of 1 MiB, and the structure around it."""

NO_ARGUMENTS = Context()
_CONTEXT_ALIGNMENT = 8


class Outcome(NamedTuple):
    """The outcome of a run.

    `return_value` is r0, unsigned; `output_length` is the length that the program has set, None
    where it has not; `instructions` is the number of executed instructions.
    """

    return_value: int
    output_length: int | None
    instructions: int


def load_program(data: bytes, *, entry: str | None = None, frame_size: int = FRAME_SIZE) -> Program:
    """Link and verify a program's object file. Raises ProgramError, one sentence.

    `entry` names the function to begin with: else `prog`, else the first global function.
    `frame_size` is the maximum stack frame of a function in bytes.
    """
    program = elf.load(data, entry=entry, helpers=helper_names())
    helpers = HELPER_NUMBERS | added.found().helpers.keys()
    try:
        verify(program.code, program.entry, helpers, frame_size)
    except VerificationError as error:
        error.place = program.debug.place(error.pc)
        raise
    return program


def helper_names() -> Mapping[str, int]:
    """The helpers that an object may leave undefined, those of other packages too."""
    return {**elf.HELPER_NAMES, **added.found().names}


def buffer_layout(input_size: int, output_size: int, frame_size: int = FRAME_SIZE) -> Layout:
    """The layout of an accelerator's memory: its buffers, and as much memory as any program
    needs."""
    return Layout(
        input_size,
        output_size,
        frame_size * MAX_CALL_DEPTH,
        data_size=MAX_DATA + MAX_CONTEXT,
        rodata_size=MAX_DATA,
    )


class _Bound:
    """A linked program with its memory and its helpers, ready to run any number of times.

    What `give` gives it is the same in each run until the next call. Raises EngineUnavailable.
    """

    def __init__(
        self,
        program: Program,
        code: bytes,
        arena: Arena,
        context_offset: int,
        services: Services,
        instruction_limit: int,
        engine: Engine | Execute,
        counters: InstructionCounters | None,
    ) -> None:
        self._program = program
        self._memory = arena.memory
        self._context_offset = context_offset
        self._context_address = arena.base + context_offset
        self._helpers = Helpers(arena, services)
        rest = code, program.entry, arena, self._helpers.table()
        if isinstance(engine, Engine):
            self._execute = prepare(engine, *rest, instruction_limit, counters)
        else:
            self._execute = lambda arguments: engine(*rest, arguments, instruction_limit)

    def give(
        self, ranges: Sequence[tuple[int, int]], arguments: Sequence[bytes], context: bytes
    ) -> None:
        """Set what the program is given. The first two `ranges`, addresses and lengths, are its
        input and its output."""
        at = self._context_offset
        self._context, self._place = context, self._memory[at : at + len(context)]
        (source, source_length), (target, target_length) = (*ranges, (0, 0), (0, 0))[:2]
        self._registers = source, target, source_length, target_length, self._context_address
        self._helpers.arguments, self._helpers.output_limit = arguments, target_length

    def run(self) -> Outcome:
        """Run the program from its entry to its exit. Raises Fault."""
        helpers = self._helpers
        self._place[:] = self._context
        helpers.output_length = None
        try:
            value, executed = self._execute(self._registers)
        except Fault as fault:
            if fault.pc is not None:
                fault.place = self._program.debug.place(fault.pc)
            raise
        finally:
            helpers.close()
        return Outcome(value, helpers.output_length, executed)


class Prepared:
    """A program in an accelerator's memory, ready to run any number of times.

    `memory` is writable and has the bytes that `buffer_layout` with these sizes says, best from
    `reserve.allocate`: compiled programs need that, so other memory is copied. It must stay the
    same. What lies in it behind the program's own data is inaccessible from then on, until another
    program is prepared or run in it. The program is linked for contexts as long as `context`. What
    it executes is counted in `counters`, unless `engine` is not one of the engines.

    Raises ProgramError when the context is too long, EngineUnavailable.
    """

    def __init__(
        self,
        program: Program,
        memory: memoryview,
        *,
        input_size: int,
        output_size: int,
        services: Services,
        context: Context = NO_ARGUMENTS,
        instruction_limit: int = INSTRUCTION_LIMIT,
        frame_size: int = FRAME_SIZE,
        engine: Engine | Execute = Engine.INTERPRETER,
        counters: InstructionCounters | None = None,
    ) -> None:
        self._list_length = len(context.argument_list)
        length = len(context._replace(ranges=((0, 0), (0, 0))).encode())
        if length > MAX_CONTEXT:
            raise ProgramError(f"a context of {length} bytes exceeds {MAX_CONTEXT}")
        offset = len(program.data) + -len(program.data) % _CONTEXT_ALIGNMENT
        self._layout = layout = Layout(
            input_size,
            output_size,
            frame_size * MAX_CALL_DEPTH,
            data_size=offset + length,
            rodata_size=len(program.rodata),
        )
        self._address = reserve.address_of(memory)
        base = base_of(engine, self._address)
        arena = Arena(memory, layout, base)
        self._input, self._output = arena.input, arena.output
        image = elf.link(program, layout, base)
        self._own = arena.memory[layout.data_offset :]
        """The pages behind the output, and what they have before a run."""
        before = image.data.ljust(layout.rodata_offset - layout.data_offset, b"\0") + image.rodata
        self._before = before.ljust(len(self._own), b"\0")
        self._fence = reserve.Fence(memory, layout.size)
        self._given: tuple[int, int, bytes] | None = None
        """The lengths and the arguments of the last run, which are kept for the next one."""
        self._fill()
        offset += layout.data_offset
        self._bound = _Bound(
            program, image.code, arena, offset, services, instruction_limit, engine, counters
        )

    def suits(self, context: Context) -> bool:
        """True if the program is linked for contexts as long as this."""
        return len(context.argument_list) == self._list_length

    def run(self, input_length: int, output_length: int, context: Context) -> Outcome:
        """Run the program from its entry to its exit.

        The first `input_length` bytes of the input buffer are the input, and the program is told
        that its output may have `output_length` bytes. Stack and data are made anew.

        Raises Fault when the program is stopped, and DescriptorError when its argument list is
        malformed.
        """
        layout = self._layout
        if not (
            0 <= input_length <= layout.input_size and 0 <= output_length <= layout.output_size
        ):
            raise ValueError("the lengths of input and output exceed their buffers")
        given = input_length, output_length, context.argument_list
        if given != self._given:
            arguments = context.arguments
            ranges = (self._input, input_length), (self._output, output_length)
            encoded = _encode_context(arguments, context.argument_list, (0, 0), ranges)
            self._bound.give(ranges, arguments, encoded)
            self._given = given
        self._fill()
        return self._bound.run()

    def _fill(self) -> None:
        """Make the arena as the program finds it, except its input, output and context."""
        self._fence.set()
        ctypes.memset(self._address, 0, self._layout.input_offset)
        self._own[:] = self._before


class Placed:
    """A program in a space of addresses, ready to run on the memory ranges that the space shows.

    It is placed once, and runs each time on ranges that are mapped and not copied. `base` is the
    address at which it finds the first byte of the space.
    """

    def __init__(
        self,
        program: Program,
        space: reserve.Space,
        frame_size: int = FRAME_SIZE,
        base: int = BASE,
    ) -> None:
        self._program = program
        self._space = space
        self._base = base
        self._given: tuple[tuple[int, int], bytes] | None = None
        """The parameters and the data of the last run, which are kept for the next one."""
        self._own = own = RangesLayout(
            0,
            0,
            frame_size * MAX_CALL_DEPTH,
            data_size=len(program.data),
            rodata_size=len(program.rodata),
            context_size=MAX_CONTEXT,
        )
        self._image = image = elf.link(program, own, base)
        space.begin(own.size)
        space.memory[own.rodata_offset : own.rodata_offset + len(image.rodata)] = image.rodata
        space.make_read_only(own.rodata_offset, own.rodata_end - own.rodata_offset)

    def prepare(
        self,
        services: Services,
        instruction_limit: int,
        engine: Engine,
        counters: InstructionCounters | None = None,
    ) -> None:
        """Get ready to run on the ranges that the space shows, and to count in `counters`. Raises
        EngineUnavailable."""
        own, space, data = self._own, self._space, self._image.data
        self._ranges = [(self._base + at, length) for at, length in space.places]
        lengths = [length for _, length in space.places]
        layout = replace(own, input_size=sum(lengths[:1]), output_size=sum(lengths[1:]))
        self._data = space.memory[own.data_offset : own.data_offset + len(data)]
        self._data[:] = data  # compiled code is looked up by its pointers, too
        self._given = None
        self._bound = _Bound(
            self._program,
            self._image.code,
            Arena(space.memory, layout, self._base),
            own.context_offset,
            services,
            instruction_limit,
            engine,
            counters,
        )

    def run(self, parameters: tuple[int, int], data: bytes) -> Outcome:
        """Run the program from its entry to its exit. Raises Fault.

        It finds the first range as its input and the second as its output; in its context, `data`
        as the list of arguments, or else the two parameters as four numbers. `clear` has to follow.
        """
        if self._given != (parameters, data):
            arguments: tuple[bytes, ...]
            argument_list = data
            if data:
                try:
                    arguments = decode_arguments(data)
                except DescriptorError:
                    arguments = ()  # it is no list, and the program finds it in its context
            else:
                first, second = (parameter.to_bytes(8, "little") for parameter in parameters)
                arguments = first[:4], first[4:], second[:4], second[4:]
                argument_list = encode_arguments(arguments)
            context = _encode_context(arguments, argument_list, parameters, self._ranges)
            self._bound.give(self._ranges, arguments, context)
            self._given = parameters, data
        if self._image.data:
            self._data[:] = self._image.data
        return self._bound.run()

    def clear(self) -> None:
        """Release the pages of the program's own memory, so that the next run finds zeroes."""
        self._space.clear(0, self._own.rodata_offset)


def _encode_context(
    arguments: Sequence[bytes],
    argument_list: bytes,
    parameters: tuple[int, int],
    ranges: Sequence[tuple[int, int]],
) -> bytes:
    return encode_context(len(arguments), argument_list, CONTEXT_VERSION, parameters, ranges)

"""Programs on memory ranges, for workers of compute namespaces; `machine` runs jobs.

A program is loaded once and can run any number of times, each time on ranges that are mapped into
its arena and not copied. The pages of stack, data and context are released between two runs.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from csd_spec.descriptors import DescriptorError, decode_arguments, encode_arguments
from csd_spec.program import CONTEXT_VERSION, encode_context
from potash_firmware.bpf import elf
from potash_firmware.bpf.arena import BASE, FRAME_SIZE, MAX_CALL_DEPTH, Arena, RangesLayout
from potash_firmware.bpf.counters import InstructionCounters
from potash_firmware.bpf.elf import Program
from potash_firmware.bpf.engine import Engine, prepare
from potash_firmware.bpf.errors import Fault
from potash_firmware.bpf.helpers import Helpers, Services
from potash_firmware.bpf.machine import MAX_CONTEXT, Outcome
from potash_firmware.bpf.reserve import Space


class Extent(NamedTuple):
    """`length` bytes of the memfd `descriptor` from its byte `offset` on, in whole pages."""

    descriptor: int
    offset: int
    length: int


class Window:
    """A space of addresses: a program's own memory, and ranges behind it, one behind the other."""

    def __init__(self, space: Space, base: int = BASE) -> None:
        self.space = space
        self.base = base
        """Guest-virtual address of its first byte."""
        self.places: tuple[tuple[int, int], ...] = ()
        """Where in the space each range begins, and its length."""
        self._own = self._end = 0

    def begin(self, own: int) -> None:
        """Have `own` fresh bytes, and nothing else: for another program."""
        self.hide()
        self.space.put_nothing(0, self._own)
        self.space.put_zeroes(0, own)
        self._own = self._end = own
        self.space.resize(own)

    def show(self, extents: Sequence[Extent]) -> None:
        """Map `extents`, and nothing behind them.

        Raises ValueError where there are more bytes than addresses, OSError.
        """
        self.hide()
        places = []
        for extent in extents:
            self.space.put_shared(self._end, extent.length, extent.descriptor, extent.offset)
            places.append((self._end, extent.length))
            self._end += extent.length
        self.space.resize(self._end)
        self.places = tuple(places)

    def hide(self) -> None:
        self.places = ()
        self.space.put_nothing(self._own, self._end - self._own)
        self._end = self._own
        self.space.resize(self._own)

    @property
    def views(self) -> list[memoryview]:
        """The bytes of each range, while they are shown."""
        return [self.space.memory[at : at + length] for at, length in self.places]


class Placed:
    """A program in a window's space, ready to run on the ranges that the window shows."""

    def __init__(self, program: Program, window: Window, frame_size: int = FRAME_SIZE) -> None:
        self._program = program
        self._window = window
        self._own = own = RangesLayout(
            0,
            0,
            frame_size * MAX_CALL_DEPTH,
            data_size=len(program.data),
            rodata_size=len(program.rodata),
            context_size=MAX_CONTEXT,
        )
        self._image = image = elf.link(program, own, window.base)
        window.begin(own.size)
        space = window.space
        space.memory[own.rodata_offset : own.rodata_offset + len(image.rodata)] = image.rodata
        space.make_read_only(own.rodata_offset, own.rodata_end - own.rodata_offset)

    def prepare(
        self,
        services: Services,
        instruction_limit: int,
        engine: Engine,
        counters: InstructionCounters | None = None,
    ) -> None:
        """Get ready to run on the ranges that the window shows, and to count in `counters`.

        Raises EngineUnavailable.
        """
        own, image, base = self._own, self._image, self._window.base
        places = [(base + at, length) for at, length in self._window.places]
        (source, source_length), (target, target_length) = (*places, (0, 0), (0, 0))[:2]
        layout = replace(
            own, input_size=source_length, output_size=sum(length for _, length in places[1:])
        )
        self._places = places
        self._memory = memory = self._window.space.memory
        self._registers = (source, target, source_length, target_length, base + own.context_offset)
        arena = Arena(memory, layout, base)
        self._helpers = Helpers(arena, services, target_length)
        memory[own.data_offset : own.data_offset + len(image.data)] = image.data
        self._execute = prepare(
            engine,
            image.code,
            self._program.entry,
            arena,
            self._helpers.table(),
            instruction_limit,
            counters,
        )

    def run(self, parameters: tuple[int, int], data: bytes) -> Outcome:
        """Run the program from its entry to its exit. Raises Fault.

        It finds the first range as its input and the second as its output; in its context, `data`
        as the list of arguments, or else the two parameters as four numbers. `clear` has to follow.
        """
        own, image, memory, helpers = self._own, self._image, self._memory, self._helpers
        if data:
            sent, arguments = data, _arguments(data)
        else:
            one, two = (parameter.to_bytes(8, "little") for parameter in parameters)
            arguments = (one[:4], one[4:], two[:4], two[4:])
            sent = encode_arguments(arguments)
        context = encode_context(len(arguments), sent, CONTEXT_VERSION, parameters, self._places)
        if image.data:
            memory[own.data_offset : own.data_offset + len(image.data)] = image.data
        memory[own.context_offset : own.context_offset + len(context)] = context
        helpers.begin(arguments)
        try:
            value, executed = self._execute(self._registers)
        except Fault as fault:
            if fault.pc is not None:
                fault.place = self._program.debug.place(fault.pc)
            raise
        finally:
            helpers.close()
        return Outcome(value, helpers.output_length, executed)

    def clear(self) -> None:
        """Give back what a run has left in the program's own memory."""
        self._window.space.clear(0, self._own.rodata_offset)


def _arguments(data: bytes) -> tuple[bytes, ...]:
    """What `argument` finds; nothing in data that is no list of arguments."""
    try:
        return decode_arguments(data)
    except DescriptorError:
        return ()

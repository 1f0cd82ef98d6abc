"""A program on memory ranges: what a compute namespace's worker runs, as `machine` runs jobs.

A program is placed once and runs as often as it is wanted, each time on ranges that are mapped where
they are to be: nothing is copied. What one run leaves in stack, data and context is given back
before the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from csd_spec.descriptors import DescriptorError, decode_arguments
from csd_spec.program import CONTEXT_VERSION, encode_context
from potash_firmware.bpf import elf
from potash_firmware.bpf.arena import BASE, Arena, RangesLayout, page_aligned
from potash_firmware.bpf.elf import Program
from potash_firmware.bpf.engine import Engine, execute
from potash_firmware.bpf.helpers import Helpers, Services
from potash_firmware.bpf.machine import INSTRUCTION_LIMIT, MAX_CONTEXT, Outcome, placing
from potash_firmware.bpf.reserve import Space


class Extent(NamedTuple):
    """`length` bytes of the memfd `descriptor` from its byte `offset` on, in whole pages."""

    descriptor: int
    offset: int
    length: int


class Window:
    """A space of addresses: a program's own memory, and ranges behind it, one behind the other."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.places: tuple[tuple[int, int], ...] = ()
        """Where in the space each range begins, and its length."""
        self._own = self._end = 0
        self._shown: object = None

    def begin(self, own: int) -> None:
        """Have `own` fresh bytes, and nothing else: for another program."""
        self.hide()
        self.space.put_nothing(0, self._own)
        self.space.put_zeroes(0, own)
        self._own = self._end = own
        self.space.resize(own)

    def show(self, key: object, extents: Sequence[Extent]) -> None:
        """Map `extents`, and nothing behind them.

        What `key` names is mapped already if it was the last one. Raises ValueError where there are
        more bytes than addresses, OSError.
        """
        if self._shown == key:
            return
        self.hide()
        places = []
        for extent in extents:
            self.space.put_shared(self._end, extent.length, extent.descriptor, extent.offset)
            places.append((self._end, extent.length))
            self._end += extent.length
        self.space.resize(self._end)
        self.places = tuple(places)
        self._shown = key

    def hide(self) -> None:
        """Map no ranges."""
        self._shown, self.places = None, ()
        self.space.put_nothing(self._own, self._end - self._own)
        self._end = self._own
        self.space.resize(self._own)

    @property
    def views(self) -> list[memoryview]:
        """The bytes of each range, while they are shown."""
        return [self.space.memory[at : at + length] for at, length in self.places]


class Placed:
    """A program in a window's space, ready to run on the ranges that the window shows."""

    def __init__(self, program: Program, window: Window) -> None:
        self._program = program
        self._window = window
        self._own = own = RangesLayout(
            0,
            0,
            data_size=len(program.data),
            rodata_size=len(program.rodata),
            context_size=MAX_CONTEXT,
        )
        self._image = image = elf.link(program, own)
        window.begin(own.size)
        space = window.space
        space.memory[own.rodata_offset : own.rodata_offset + len(image.rodata)] = image.rodata
        space.make_read_only(own.rodata_offset, own.rodata_end - own.rodata_offset)

    def run(
        self,
        parameters: tuple[int, int],
        data: bytes,
        services: Services,
        instruction_limit: int = INSTRUCTION_LIMIT,
        engine: Engine = Engine.NATIVE,
    ) -> Outcome:
        """Run the program from its entry to its exit. Raises Fault and EngineUnavailable.

        It finds the first range as its input and the second as its output; in its context, `data`
        as the list of arguments, or else the two parameters as four numbers.
        """
        window, own, image = self._window, self._own, self._image
        space = window.space
        places = [(BASE + at, length) for at, length in window.places]
        (source, source_length), (target, target_length) = (*places, (0, 0), (0, 0))[:2]
        layout = RangesLayout(
            source_length,
            sum(length for _, length in places[1:]),
            data_size=own.data_size,
            rodata_size=own.rodata_size,
            context_size=own.context_size,
        )
        arguments = _arguments(parameters, data)
        sent = data or _as_list(parameters)
        context = encode_context(len(arguments), sent, CONTEXT_VERSION, parameters, places)
        self._clear()
        memory = space.memory
        memory[own.data_offset : own.data_offset + len(image.data)] = image.data
        memory[own.context_offset : own.context_offset + len(context)] = context
        arena = Arena(memory, layout)
        helpers = Helpers(arena, services, target_length, arguments)
        registers = source, target, source_length, target_length, BASE + own.context_offset
        try:
            with placing(self._program):
                value, executed = execute(
                    engine,
                    image.code,
                    self._program.entry,
                    arena,
                    helpers.table(),
                    registers,
                    instruction_limit,
                )
        finally:
            helpers.close()
        return Outcome(value, helpers.output_length, executed)

    def _clear(self) -> None:
        """Have nothing left of an earlier run."""
        own, space = self._own, self._window.space
        space.clear(0, own.rodata_offset)
        space.clear(own.context_offset, page_aligned(own.context_size))


def _as_list(parameters: tuple[int, int]) -> bytes:
    """Both parameters as an argument list of four numbers of 32 bits."""
    numbers = [(value >> shift) & 0xFFFF_FFFF for value in parameters for shift in (0, 32)]
    return b"".join(b"\x08\0\0\0" + number.to_bytes(4, "little") for number in numbers)


def _arguments(parameters: tuple[int, int], data: bytes) -> tuple[bytes, ...]:
    """What `argument` finds; nothing in data that is no list of arguments."""
    try:
        return decode_arguments(data or _as_list(parameters))
    except DescriptorError:
        return ()

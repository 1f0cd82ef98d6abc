"""Where a program on memory ranges finds them, and what of its addresses is mapped at all."""

from collections.abc import Iterator

import pytest

from potash_firmware.bpf import Engine, Fault, FaultKind, Services, load_program
from potash_firmware.bpf.machine import Placed
from potash_firmware.bpf.reserve import GUARD, Extent, Space
from potash_firmware.mailbox.shared import SharedMemory
from support.bpf import DW, LDX, MEM, STX, exit_, insn, lddw, mov
from support.bpf_elf import ALLOC, OBJECT, WRITE, Name, Part, elf, text

PAGE = 4096
BASE, REACH = 0x1000_0000, 1 << 32
CONTEXT = (1 << 20) + PAGE
STACK = 8 * PAGE
SERVICES = Services(lambda _: None, lambda *_: 0, lambda *_: 0)
LIMIT = 1000


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    made = SharedMemory(8 * PAGE, "memory")
    for page in range(8):
        made.view[page * PAGE] = page + 1
    yield made
    made.close()


def program(*code: bytes, rodata: bytes = b"", data: bytes = b"") -> bytes:
    parts = [text(*code), Part(".data", data, ALLOC | WRITE), Part(".rodata", rodata)]
    names = [Name("prog"), Name("d", ".data", type=OBJECT), Name("r", ".rodata", type=OBJECT)]
    return elf(parts, names)


SEVEN = program(mov(0, 7), exit_)


def mapped(space: Space) -> list[tuple[int, int, str]]:
    """What is accessible in a space and around it: offset from its first byte, size, rights."""
    first = space.address - BASE - GUARD
    found: list[tuple[int, int, str]] = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            places, rights, *_ = line.split()
            begin, end = (int(place, 16) for place in places.split("-"))
            if first <= begin < first + GUARD + REACH + GUARD and rights[:3] != "---":
                found.append((begin - space.address, end - begin, rights[:2]))
    return found


def accessible(space: Space) -> list[tuple[int, int, str]]:
    """The same, neighbours of the same rights put together."""
    joined: list[tuple[int, int, str]] = []
    for begin, size, rights in mapped(space):
        if joined and joined[-1][0] + joined[-1][1] == begin and joined[-1][2] == rights:
            joined[-1] = (joined[-1][0], joined[-1][1] + size, rights)
        else:
            joined.append((begin, size, rights))
    return joined


def test_nothing_is_mapped_but_the_program_s_own_and_its_ranges(memory: SharedMemory) -> None:
    space = Space()
    assert accessible(space) == []
    Placed(load_program(program(exit_, rodata=b"constant", data=b"data")), space)
    own = STACK + PAGE + CONTEXT  # stack, data, context; the constants are behind them
    assert accessible(space) == [(0, own, "rw"), (own, PAGE, "r-")]

    space.show([Extent(memory.fd, 2 * PAGE, PAGE), Extent(memory.fd, 5 * PAGE, 3 * PAGE)])
    ranges = own + PAGE
    assert accessible(space) == [(0, own, "rw"), (own, PAGE, "r-"), (ranges, 4 * PAGE, "rw")]
    assert [view[0] for view in space.views] == [3, 6]
    space.show([Extent(memory.fd, 0, PAGE)])
    assert accessible(space)[2:] == [(ranges, PAGE, "rw")]
    assert [view[0] for view in space.views] == [1]

    Placed(load_program(SEVEN), space)
    assert accessible(space) == [(0, STACK + CONTEXT, "rw")]
    space.begin(0)
    assert accessible(space) == []


@pytest.mark.parametrize("engine", [Engine.INTERPRETER, Engine.NATIVE])
def test_a_program_finds_its_own_memory_as_new_after_each_run(
    memory: SharedMemory, engine: Engine
) -> None:
    """It adds 1 to its data, and gives what was there; the same on its stack."""
    space = Space()
    counts = [
        piece
        for register, offset in ((1, 0), (10, -8))
        for piece in (
            insn(LDX | MEM | DW, 2, register, offset),
            insn(0x0F, 0, 2),
            insn(0x07, 2, imm=1),
            insn(STX | MEM | DW, register, 2, offset),
        )
    ]
    image = program(mov(0, 0), lddw(1, BASE + STACK), *counts, exit_, data=b"\x05" + bytes(7))
    placed = Placed(load_program(image), space)
    for extent in (Extent(memory.fd, 0, PAGE), Extent(memory.fd, PAGE, 2 * PAGE)):
        space.show([extent])
        placed.prepare(SERVICES, LIMIT, engine)
        for _ in range(3):
            assert placed.run((0, 0), b"").return_value == 5
            placed.clear()


def test_a_fault_ends_a_run_and_not_the_next(memory: SharedMemory) -> None:
    space = Space()
    placed = Placed(load_program(program(insn(LDX | MEM | DW, 0, 3, 0), exit_)), space)
    space.show([Extent(memory.fd, 0, PAGE)])
    placed.prepare(SERVICES, LIMIT, Engine.NATIVE)
    for _ in range(2):
        with pytest.raises(Fault) as caught:
            placed.run((0, 0), b"")
        assert (caught.value.kind, caught.value.address) == (FaultKind.OUT_OF_BOUNDS, PAGE)
    other = Placed(load_program(SEVEN), space)
    other.prepare(SERVICES, LIMIT, Engine.NATIVE)
    assert other.run((0, 0), b"").return_value == 7


def test_more_than_the_addresses_is_refused() -> None:
    space = Space()
    Placed(load_program(SEVEN), space)
    with pytest.raises(ValueError, match="does not fit"):
        space.show([Extent(-1, 0, REACH - BASE)])
    assert space.places == ()

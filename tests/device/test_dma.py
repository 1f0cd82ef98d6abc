"""PRP entries and lists become views of guest memory, and only of that."""

import random
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvme_spec.status import NvmeError
from potash_device.controller.cmb import NO_USE
from potash_device.controller.dma import DmaEngine, gather_into, scatter
from pyvfio_user.memory import AccessFault, AddressSpace
from pyvfio_user.sealed_memory import SealedMemory

PAGE = 4096
SIZE = 2 << 20


class Memory:
    """Sealed memory at address 0, with an engine that uses it."""

    def __init__(self) -> None:
        self.memory = SealedMemory(SIZE)
        self.space = AddressSpace()
        self.space.map(0, SIZE, fd=self.memory.fd, offset=0, readable=True, writable=True)
        self.engine = DmaEngine()
        self.engine.connect(self.space)
        self.engine.master(True)
        self.engine.start()


@pytest.fixture(scope="module")
def memory() -> Iterator[Memory]:
    memory = Memory()
    yield memory
    memory.space.unmap_all()
    memory.memory.close()


def prps(memory: Memory, first: int, pages: list[int], list_at: int) -> tuple[int, int]:
    """PRP1 and PRP2 for a transfer over `pages` behind `first`, as section 4.1.1 says it."""
    if len(pages) <= 1:
        return first, pages[0] if pages else 0
    at, rest = list_at, list(pages)
    while rest:
        room = (PAGE - at % PAGE) // 8
        chained = len(rest) > room
        here = rest[: room - 1] if chained else rest
        rest = rest[len(here) :]
        entries = list(here)
        if chained:
            following = (at // PAGE + 1) * PAGE
            entries.append(following)
        memory.memory.view[at : at + 8 * len(entries)] = struct.pack(f"<{len(entries)}Q", *entries)
        at = (at // PAGE + 1) * PAGE
    return first, list_at


@given(
    offset=st.integers(0, PAGE // 4 - 1).map(lambda n: 4 * n),
    length=st.integers(1, 128).map(lambda n: n * 512),
    list_offset=st.integers(0, PAGE // 8 - 1).map(lambda n: 8 * n),
    swaps=st.sampled_from([0, 1, 2, 190]),
    seed=st.integers(0, 1000),
)
def test_every_alignment_and_chain_moves_the_bytes_in_order(
    memory: Memory, offset: int, length: int, list_offset: int, swaps: int, seed: int
) -> None:
    """The pages are side by side, but for those that were swapped."""
    order = random.Random(seed)
    numbers = list(range(64, 254))
    for _ in range(swaps):
        one, other = order.choices(range(len(numbers)), k=2)
        numbers[one], numbers[other] = numbers[other], numbers[one]
    count = -(-max(0, length - (PAGE - offset)) // PAGE)
    pages = [number * PAGE for number in numbers[1 : 1 + count]]
    first = numbers[0] * PAGE + offset
    prp1, prp2 = prps(memory, first, pages, 512 * PAGE - 64 * PAGE + list_offset)
    content = order.randbytes(length)
    scatter(memory.engine.views(prp1, prp2, length, write=True), content)
    view, at = memory.memory.view, 0
    for start in (first, *pages):
        size = min(length - at, PAGE - start % PAGE)
        assert bytes(view[start : start + size]) == content[at : at + size]
        at += size
    assert at == length
    back = memoryview(bytearray(length))
    gather_into(back, memory.engine.views(prp1, prp2, length, write=False))
    assert bytes(back) == content


@pytest.mark.parametrize(
    ("prp1", "prp2", "length", "status"),
    [
        (2, 0, 512, 0x013),
        (PAGE + 1, 0, 512, 0x013),
        (0, 4, 2 * PAGE, 0x013),
        (0, 12, 3 * PAGE, 0x013),
        (SIZE, 0, 512, 0x004),
        (SIZE - PAGE, SIZE, 2 * PAGE, 0x004),
        (0, SIZE, 3 * PAGE, 0x004),
        ((1 << 64) - 4, 0, 4096, 0x004),
    ],
)
def test_entries_that_cannot_be_get_their_status(
    memory: Memory, prp1: int, prp2: int, length: int, status: int
) -> None:
    with pytest.raises(NvmeError) as caught:
        memory.engine.views(prp1, prp2, length, write=True)
    assert caught.value.status == status


def test_a_list_that_leads_nowhere_ends(memory: Memory) -> None:
    """A chain that points at itself is followed as long as the transfer is, and no longer."""
    at = 4 * PAGE
    entries = [5 * PAGE] * 511 + [at]
    memory.memory.view[at : at + PAGE] = struct.pack("<512Q", *entries)
    assert len(memory.engine.views(0, at, 1200 * PAGE, write=False)) == 1200


def test_pages_side_by_side_up_to_the_last_address_are_refused_like_others(memory: Memory) -> None:
    last = (1 << 64) - PAGE
    struct.pack_into("<2Q", memory.memory.view, PAGE, last, 0)
    with pytest.raises(NvmeError, match="nothing is mapped"):
        memory.engine.views(last - PAGE, PAGE, 3 * PAGE, write=True)


def test_a_stopped_engine_gives_nothing_out(memory: Memory) -> None:
    memory.engine.stop()
    try:
        with pytest.raises(AccessFault):
            memory.engine.mapped(0, 16, write=False, use=NO_USE)
        with pytest.raises(NvmeError):
            memory.engine.views(0, 0, 512, write=False)
    finally:
        memory.engine.start()


def test_buffers_that_are_used_again_are_where_the_host_says_they_are_now() -> None:
    memory = Memory()
    first, list_at = PAGE, 2 * PAGE
    content = memory.memory.view
    prps(memory, first, [10 * PAGE, 20 * PAGE], list_at)
    scatter(memory.engine.views(first, list_at, 3 * PAGE, write=True), b"a" * 3 * PAGE)
    prps(memory, first, [10 * PAGE, 30 * PAGE], list_at)
    scatter(memory.engine.views(first, list_at, 3 * PAGE, write=True), b"b" * 3 * PAGE)
    assert content[10 * PAGE] == content[30 * PAGE] == ord("b")
    assert content[20 * PAGE] == ord("a")
    memory.space.unmap(0, SIZE)
    memory.engine.forget()
    for length in (PAGE, 3 * PAGE):
        with pytest.raises(NvmeError) as caught:
            memory.engine.views(first, list_at, length, write=True)
        assert caught.value.status == 0x004
    memory.memory.close()


def test_what_may_be_read_is_not_written_because_it_was_used_before() -> None:
    memory = Memory()
    memory.space.map(SIZE, SIZE, fd=memory.memory.fd, offset=0, readable=True, writable=False)
    assert memory.engine.views(SIZE, 0, PAGE, write=False)
    with pytest.raises(NvmeError):
        memory.engine.views(SIZE, 0, PAGE, write=True)
    memory.space.unmap_all()
    memory.memory.close()


def test_any_number_of_buffers_can_be_used() -> None:
    memory = Memory()
    for address in range(0, SIZE, 32):
        (view,) = memory.engine.views(address, 0, 4, write=False)
        assert len(view) == 4
        del view
    memory.space.unmap_all()
    memory.memory.close()

"""Scatter gather lists become views of guest memory, whatever they say."""

import random
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvme_spec.status import NvmeError
from potash_device.controller import sgl
from potash_device.controller.dma import DmaEngine, gather_into, scatter
from pyvfio_user.memory import AddressSpace
from pyvfio_user.sealed_memory import SealedMemory

SIZE = 1 << 20
LISTS = 0x8_0000
"""Data lies below, segments lie from here on."""

# Type and sub type, NVM Express Base Specification 2.0, figures 88 and 89.
DATA, BUCKET, SEGMENT, LAST = 0x00, 0x10, 0x20, 0x30
KEYED, TRANSPORT, VENDOR = 0x40, 0x5A, 0xF0

Entry = tuple[int, int, int]
"""Address, length, identifier."""


class Memory:
    """Sealed memory in two windows that meet at half its size, with an engine that uses it."""

    def __init__(self) -> None:
        self.memory = SealedMemory(SIZE)
        self.space = AddressSpace()
        for start in (0, SIZE // 4):
            end = SIZE // 4 if not start else SIZE
            self.space.map(
                start, end - start, fd=self.memory.fd, offset=start, readable=True, writable=True
            )
        self.engine = DmaEngine()
        self.engine.connect(self.space)
        self.engine.master(True)
        self.engine.start()

    def put(self, address: int, *entries: Entry) -> None:
        """Store a segment."""
        content = b"".join(struct.pack("<QI3xB", *entry) for entry in entries)
        self.memory.view[address : address + len(content)] = content

    def views(self, entry: Entry, length: int, *, write: bool = True) -> list[memoryview]:
        """The transfer whose command holds `entry`."""
        low, high = struct.unpack("<QQ", struct.pack("<QI3xB", *entry))
        return sgl.views(self.engine, low, high, length, write=write)

    def refusal(self, entry: Entry, length: int, *, write: bool = True) -> NvmeError:
        with pytest.raises(NvmeError) as caught:
            self.views(entry, length, write=write)
        return caught.value


@pytest.fixture(scope="module")
def memory() -> Iterator[Memory]:
    memory = Memory()
    yield memory
    memory.space.unmap_all()
    memory.memory.close()


@given(seed=st.integers(0, 10_000), segments=st.integers(1, 4), buckets=st.booleans())
def test_pieces_of_any_alignment_and_length_move_the_bytes_in_order(
    memory: Memory, seed: int, segments: int, buckets: bool
) -> None:
    """Also over the place where two windows meet, and over several segments."""
    order = random.Random(seed)
    at = order.randrange(4096)
    pieces: list[Entry] = []
    while len(pieces) < 4 * segments:
        size = order.choice((0, 1, 3, 512, 4096, 20_000))
        pieces.append((at, size, BUCKET if buckets and order.random() < 0.3 else DATA))
        at += size + order.randrange(100)
    order.shuffle(pieces)
    here: Entry = (0, 0, 0)
    for number in reversed(range(segments)):
        address = LISTS + 8 * order.randrange(1000) + number * 0x1_0000
        part = pieces[4 * number : 4 * number + 4]
        final = number == segments - 1
        memory.put(address, *(part if final else [*part, here]))
        here = (address, 16 * (len(part) + (not final)), LAST if final else SEGMENT)
    length = sum(size for _, size, _ in pieces)
    content = order.randbytes(length)
    scatter(memory.views(here, length), content)
    taken = 0
    for address, size, kind in pieces:
        if kind == DATA:
            found = memory.memory.view[address : address + size]
            assert bytes(found) == content[taken : taken + size]
        taken += size
    real = [(address, size) for address, size, kind in pieces if kind == DATA]
    back = memoryview(bytearray(sum(size for _, size in real)))
    if back:
        gather_into(back, memory.views(here, len(back), write=False))
    stored = [bytes(memory.memory.view[address : address + size]) for address, size in real]
    assert bytes(back) == b"".join(stored)


def test_a_command_s_own_descriptor_may_be_the_whole_transfer(memory: Memory) -> None:
    (view,) = memory.views((5, 4096, DATA), 4096)
    view[:] = b"\x5a" * 4096
    assert memory.memory.view[4] != 0x5A and memory.memory.view[5] == 0x5A
    (nothing,) = memory.views((0, 512, BUCKET), 512)
    assert len(nothing) == 512


def test_a_list_may_describe_more_than_is_moved(memory: Memory) -> None:
    assert [len(view) for view in memory.views((0, 4096, DATA), 512)] == [512]
    memory.put(LISTS, (0, 100, DATA), (200, 500, DATA), (1 << 50, 1, VENDOR))
    assert [len(view) for view in memory.views((LISTS, 48, LAST), 512)] == [100, 412]


def test_a_transfer_of_nothing_looks_at_nothing(memory: Memory) -> None:
    assert memory.views((1 << 60, 7, VENDOR), 0) == []


@pytest.mark.parametrize(
    ("entry", "status"),
    [
        ((0, 511, DATA), 0x00F),
        ((0, 0, DATA), 0x00F),
        ((0, 511, BUCKET), 0x00F),
        ((0, 512, KEYED), 0x011),
        ((0, 512, TRANSPORT), 0x011),
        ((0, 512, VENDOR), 0x011),
        ((0, 512, 0x60), 0x011),
        ((0, 512, DATA | 1), 0x011),  # an offset into a capsule, which only Fabrics have
        ((LISTS, 16, LAST | 1), 0x011),
        ((LISTS, 0, SEGMENT), 0x00D),
        ((LISTS, 0, LAST), 0x00D),
        ((LISTS, 15, LAST), 0x00D),
        ((LISTS, 17, LAST), 0x00D),
        ((LISTS + 4, 16, LAST), 0x00D),
        ((LISTS + 1, 16, SEGMENT), 0x00D),
        ((LISTS, 16 * 1024, LAST), 0x00E),
        ((LISTS, 0xFFFF_FFF0, LAST), 0x00E),
        ((SIZE - 16, 32, LAST), 0x004),
        ((1 << 63, 16, LAST), 0x004),
        ((SIZE, 512, DATA), 0x004),
        ((SIZE - 511, 512, DATA), 0x004),
        (((1 << 64) - 1, 512, DATA), 0x004),
    ],
)
def test_a_bad_descriptor_in_the_command_gets_its_status(
    memory: Memory, entry: Entry, status: int
) -> None:
    memory.put(LISTS, (0, 512, DATA), (0, 512, DATA))
    assert memory.refusal(entry, 512).status == status


@pytest.mark.parametrize(
    ("segment", "leading", "status"),
    [
        ([(0, 256, DATA), (0, 255, DATA)], LAST, 0x00F),
        ([(0, 256, DATA), (0, 256, KEYED)], LAST, 0x011),
        ([(0, 256, DATA), (0, 256, DATA)], SEGMENT, 0x00D),
        ([(0, 256, DATA), (LISTS, 16, SEGMENT)], LAST, 0x00D),
        ([(0, 256, DATA), (LISTS, 16, LAST)], LAST, 0x00D),
        ([(LISTS, 16, SEGMENT), (0, 512, DATA)], SEGMENT, 0x00E),
        ([(LISTS, 16, LAST), (0, 512, DATA)], LAST, 0x00E),
        ([(0, 256, DATA), (LISTS + 12, 16, LAST)], SEGMENT, 0x00D),
        ([(0, 256, DATA), (SIZE, 512, DATA)], LAST, 0x004),
    ],
)
def test_a_bad_descriptor_in_a_segment_gets_its_status(
    memory: Memory, segment: list[Entry], leading: int, status: int
) -> None:
    memory.put(LISTS, *segment)
    error = memory.refusal((LISTS, 16 * len(segment), leading), 512)
    assert (error.status, error.dnr) == (status, status != 0x004)


def test_segments_that_lead_back_to_themselves_end(memory: Memory) -> None:
    memory.put(LISTS, (0, 0, DATA), (LISTS, 32, SEGMENT))
    assert memory.refusal((LISTS, 32, SEGMENT), 512).status == 0x00E
    memory.put(LISTS, (LISTS, 16, SEGMENT))
    assert memory.refusal((LISTS, 16, SEGMENT), 512).status == 0x00E


def test_the_longest_list_is_served_and_one_longer_is_not(memory: Memory) -> None:
    memory.put(LISTS, *[(0, 1, DATA)] * 1024)
    assert len(memory.views((LISTS, 16 * 1023, LAST), 1023)) == 1023
    assert memory.refusal((LISTS, 16 * 1024, LAST), 1024).status == 0x00E


def test_where_data_is_read_a_bit_bucket_stands_for_nothing(memory: Memory) -> None:
    """A transfer from guest memory has no bytes to throw away (section 4.1.2)."""
    memory.put(LISTS, (0, 256, DATA), (0, 4096, BUCKET), (4096, 256, DATA))
    views = memory.views((LISTS, 48, LAST), 512, write=False)
    assert [len(view) for view in views] == [256, 256]
    assert memory.refusal((0, 512, BUCKET), 512, write=False).status == 0x00F


def test_memory_in_a_thousand_windows_is_refused_before_it_costs_much() -> None:
    space, engine = AddressSpace(), DmaEngine()
    with SealedMemory(4096) as memory:
        for address in range(4096):
            space.map(address, 1, fd=memory.fd, offset=address, readable=True, writable=True)
        engine.connect(space)
        engine.master(True)
        engine.start()
        with pytest.raises(NvmeError) as caught:
            sgl.views(engine, 0, 1025, 1025, write=True)
        assert caught.value.status == 0x004
        assert len(sgl.views(engine, 0, 1024, 1024, write=True)) == 1024
        space.unmap_all()

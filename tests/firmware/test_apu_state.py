"""The state area gives back the newest whole record, whenever its writer was killed."""

import struct
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_firmware.apu.model import StateArea
from potash_firmware.mailbox import MailboxError

SIZE = 512
HALF = SIZE // 2


def area(memory: bytearray) -> StateArea:
    return StateArea(memoryview(memory))


def test_an_empty_area_holds_nothing() -> None:
    assert area(bytearray(SIZE)).load() is None


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5))
def test_the_latest_record_comes_back_and_writing_goes_on_behind_it(records: list[bytes]) -> None:
    memory = bytearray(SIZE)
    for record in records:
        writer = area(memory)
        writer.load()
        writer.store(record)
    assert area(memory).load() == records[-1]


@given(st.data())
def test_a_torn_write_leaves_the_record_before_it(data: st.DataObject) -> None:
    memory = bytearray(SIZE)
    writer = area(memory)
    writer.store(b"older")
    before = bytes(memory)
    writer.store(b"newest and longer")
    changed = [at for at in range(SIZE) if memory[at] != before[at]]
    lost = data.draw(st.lists(st.sampled_from(changed), min_size=1, unique=True))
    for at in lost:
        memory[at] = before[at]
    assert area(memory).load() == b"older"


@given(st.binary(min_size=SIZE, max_size=SIZE))
def test_rubbish_is_no_record(rubbish: bytes) -> None:
    assert area(bytearray(rubbish)).load() is None


def test_the_two_records_lie_in_different_halves() -> None:
    memory = bytearray(SIZE)
    writer = area(memory)
    writer.store(b"one")
    writer.store(b"two")
    assert b"one" in memory[HALF:] and b"two" in memory[:HALF]


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    memory = bytearray(SIZE)
    writer = area(memory)
    writer.store(b"kept")
    before = bytes(memory)
    with pytest.raises(MailboxError):
        writer.store(bytes(writer.capacity + 1))
    assert bytes(memory) == before
    writer.store(bytes(writer.capacity))


def forged(number: int) -> bytearray:
    """An area with a record of that number, which is odd."""
    memory, data = bytearray(SIZE), b"last"
    crc = zlib.crc32(data, zlib.crc32(struct.pack("<QQ", number, len(data))))
    memory[HALF : HALF + 28] = struct.pack("<4sIQQ", b"PAPU", crc, number, len(data)) + data
    return memory


def test_a_record_whose_number_cannot_grow_is_none() -> None:
    assert area(forged((1 << 64) - 1)).load() is None


def test_records_behind_the_largest_number_are_still_found() -> None:
    memory = forged((1 << 63) - 3)
    for before, after in pairwise([b"last", b"1", b"2", b"3", b"4"]):
        writer = area(memory)
        assert writer.load() == before
        writer.store(after)
    assert area(memory).load() == b"4"

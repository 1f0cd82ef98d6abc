"""The blocks that a job reads by itself, and those that it gathers to be written."""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_firmware.apu.blocks import Blocks, Granted, MediaReadError, NotAllowed
from potash_firmware.apu.config import NamespaceConfig
from potash_firmware.apu.model import ByteRange, Grant

SMALL, LARGE = 512, 4096
"""Sizes of the blocks of namespaces 1 and 2."""

SPACES = {1: NamespaceConfig(1, 64 * SMALL, SMALL), 2: NamespaceConfig(2, 16 * LARGE, LARGE)}
GRANTED = (Grant(1, 8, 16, True), Grant(1, 24, 8, False), Grant(2, 0, 4, True))
ROOM = 8 * LARGE


@pytest.fixture(scope="module")
def media() -> Iterator[dict[int, int]]:
    made = {}
    for nsid, space in SPACES.items():
        made[nsid] = os.memfd_create(f"media{nsid}")
        block = space.block_size
        for at in range(space.size // block):
            os.pwrite(made[nsid], bytes([nsid * 100 + at]) * block, at * block)
    yield made
    for fd in made.values():
        os.close(fd)


@dataclass
class Job:
    """Blocks, the memory behind them, and buffers to call them with."""

    media: dict[int, int]
    granted: tuple[Grant, ...] = GRANTED
    output: tuple[ByteRange, ...] = ()
    memory: bytearray = field(default_factory=lambda: bytearray(ROOM))

    def __post_init__(self) -> None:
        self.blocks = Blocks(self.granted, SPACES, self.media, memoryview(self.memory), self.output)

    def read(self, nsid: int, lba: int, count: int, room: int = 1 << 16) -> bytes:
        into = bytearray(b"\xee" * room)
        length = self.blocks.read(nsid, lba, count, memoryview(into))
        assert into[length:] == b"\xee" * (room - length)
        return bytes(into[:length])

    def write(self, nsid: int, lba: int, count: int, data: bytes) -> int:
        return self.blocks.write(nsid, lba, count, memoryview(data))

    def carried_out(self) -> dict[int, bytearray]:
        """The namespaces as they are when what was gathered has been written."""
        found = {nsid: bytearray(os.pread(fd, 1 << 20, 0)) for nsid, fd in self.media.items()}
        at = 0
        for nsid, first, length in self.blocks.written():
            found[nsid][first : first + length] = self.memory[at : at + length]
            at += length
        return found


@pytest.fixture
def job(media: dict[int, int]) -> Job:
    return Job(media)


def test_blocks_are_read_in_their_namespaces_size(job: Job) -> None:
    assert job.read(1, 8, 2) == b"\x6c" * SMALL + b"\x6d" * SMALL
    assert job.read(2, 3, 1) == b"\xcb" * LARGE
    assert job.read(1, 31, 1, room=SMALL) == b"\x83" * SMALL
    assert job.read(1, 0, 0) == b""


def test_what_was_written_is_read_back_and_nothing_reaches_the_media(job: Job) -> None:
    assert job.write(1, 10, 1, b"A" * SMALL) == SMALL
    assert job.read(1, 9, 3) == b"\x6d" * SMALL + b"A" * SMALL + b"\x6f" * SMALL
    assert job.write(1, 9, 2, b"B" * 2 * SMALL) == 2 * SMALL
    assert job.read(1, 9, 3) == b"B" * 2 * SMALL + b"\x6f" * SMALL
    assert os.pread(job.media[1], SMALL, 10 * SMALL) == b"\x6e" * SMALL


def test_what_follows_on_is_one_range(job: Job) -> None:
    for lba in (8, 9, 10):
        job.write(1, lba, 1, bytes(SMALL))
    job.write(1, 9, 2, b"x" * 2 * SMALL)
    job.write(2, 1, 2, b"y" * 2 * LARGE)
    job.write(1, 11, 1, bytes(SMALL))
    assert job.blocks.written() == (
        ByteRange(1, 8 * SMALL, 3 * SMALL),
        ByteRange(2, LARGE, 2 * LARGE),
        ByteRange(1, 11 * SMALL, SMALL),
    )


def test_a_read_across_grants_that_meet_is_allowed_and_a_write_is_not(job: Job) -> None:
    assert len(job.read(1, 8, 24)) == 24 * SMALL
    with pytest.raises(NotAllowed, match="2 blocks from 23 of namespace 1 are not granted for wri"):
        job.write(1, 23, 2, bytes(2 * SMALL))


BIG = 2**64 - 1

REFUSED_READS = [
    (1, 7, 1, "not granted for reading"),
    (1, 7, 2, "not granted for reading"),
    (1, 31, 2, "not granted for reading"),
    (1, 32, 1, "not granted for reading"),
    (2, 8, 1, "not granted for reading"),
    (1, BIG, 1, "not granted for reading"),
    (1, 8, BIG, "not granted for reading"),
    (1, BIG, BIG, "not granted for reading"),
    (0, 8, 1, "no namespace 0"),
    (3, 8, 1, "no namespace 3"),
    (0xFFFF_FFFF, 8, 1, "no namespace"),
    (1 | 1 << 32, 8, 1, "no namespace"),
]


@pytest.mark.parametrize(("nsid", "lba", "count", "why"), REFUSED_READS)
def test_blocks_that_were_not_granted(job: Job, nsid: int, lba: int, count: int, why: str) -> None:
    into = bytearray(1 << 16)
    with pytest.raises(NotAllowed, match=why):
        job.blocks.read(nsid, lba, count, memoryview(into))
    assert into == bytes(1 << 16)
    with pytest.raises(NotAllowed):
        job.write(nsid, lba, count, b"w" * min(count, 64) * SMALL)
    assert job.blocks.written() == () and job.memory == bytes(ROOM)


@pytest.mark.parametrize("length", [0, 1, SMALL - 1, SMALL + 1, 2 * SMALL - 1, 2 * SMALL + 1, 8192])
def test_a_write_has_exactly_the_bytes_of_its_blocks(job: Job, length: int) -> None:
    with pytest.raises(NotAllowed, match=f"2 blocks have 1024 bytes, not {length}"):
        job.write(1, 8, 2, bytes(length))
    assert job.blocks.written() == ()


@pytest.mark.parametrize("room", [0, 1, 2 * SMALL - 1])
def test_a_read_has_room_for_its_blocks(job: Job, room: int) -> None:
    with pytest.raises(NotAllowed, match=f"there is room for {room}"):
        job.read(1, 8, 2, room)


def test_a_grant_past_the_end_of_its_namespace_ends_there(media: dict[int, int]) -> None:
    job = Job(media, (Grant(1, 60, 10, True),))
    assert len(job.read(1, 60, 4)) == 4 * SMALL
    for call in (lambda: job.read(1, 63, 2), lambda: job.write(1, 63, 2, bytes(2 * SMALL))):
        with pytest.raises(NotAllowed, match="ends before"):
            call()


def test_media_that_end_early_are_an_error(media: dict[int, int]) -> None:
    short = os.memfd_create("short")
    try:
        job = Job({1: short})
        with pytest.raises(MediaReadError, match="ends at 4096"):
            job.read(1, 8, 1)
        with pytest.raises(NotAllowed, match="no namespace 2"):
            job.read(2, 0, 1)
    finally:
        os.close(short)


def test_more_than_there_is_room_for_is_refused_whole(media: dict[int, int]) -> None:
    job = Job(media, (Grant(2, 0, 16, True),))
    job.write(2, 0, 7, b"a" * 7 * LARGE)
    with pytest.raises(NotAllowed, match=f"a job can write {ROOM} bytes"):
        job.write(2, 6, 3, b"b" * 3 * LARGE)
    assert job.read(2, 6, 1) == b"a" * LARGE
    assert job.write(2, 6, 2, b"c" * 2 * LARGE) == 2 * LARGE
    assert job.write(2, 0, 8, b"d" * 8 * LARGE) == 8 * LARGE
    assert job.blocks.written() == (ByteRange(2, 0, 8 * LARGE),)


def test_blocks_of_the_output_are_not_written_another_way(media: dict[int, int]) -> None:
    job = Job(media, output=(ByteRange(1, 10 * SMALL, 2 * SMALL), ByteRange(2, 0, LARGE)))
    for lba, count in ((9, 2), (10, 1), (11, 2), (8, 8)):
        with pytest.raises(NotAllowed, match="output"):
            job.write(1, lba, count, bytes(count * SMALL))
    assert job.write(1, 8, 2, bytes(2 * SMALL)) == 2 * SMALL
    assert job.write(1, 12, 1, bytes(SMALL)) == SMALL
    assert len(job.read(1, 8, 8)) == 8 * SMALL


def test_blocks_that_are_lost_are_not_read_until_they_are_written(media: dict[int, int]) -> None:
    job = Job(media)
    job.blocks.unreadable = (ByteRange(1, 9 * SMALL, SMALL), ByteRange(1, 12 * SMALL, 2 * SMALL))
    for lba, count, lost in ((9, 1, 9), (8, 2, 9), (8, 8, 9), (10, 4, 12), (13, 9, 13)):
        with pytest.raises(MediaReadError, match=f"block {lost} of namespace 1 is lost"):
            job.read(1, lba, count)
    assert len(job.read(1, 10, 2)) == 2 * SMALL and len(job.read(2, 0, 2)) == 2 * LARGE
    assert job.read(1, 9, 0) == b""
    job.write(1, 12, 1, b"n" * SMALL)
    assert job.read(1, 11, 2) == b"\x6f" * SMALL + b"n" * SMALL
    with pytest.raises(MediaReadError, match="block 13"):
        job.read(1, 12, 2)


steps = st.tuples(
    st.booleans(), st.sampled_from([1, 2]), st.integers(0, 34), st.integers(0, 6), st.integers(1, 9)
)


@given(st.lists(steps, max_size=30))
def test_a_job_sees_what_the_media_will_hold(
    media: dict[int, int], done: list[tuple[bool, int, int, int, int]]
) -> None:
    """Against two arrays of bytes, and a plain list of the blocks that may be read and written."""
    job = Job(media)
    model = {nsid: bytearray(os.pread(fd, 1 << 20, 0)) for nsid, fd in media.items()}
    allowed = {
        writing: {
            (item.nsid, lba)
            for item in GRANTED
            if item.writable or not writing
            for lba in range(item.first_lba, item.first_lba + item.blocks)
        }
        for writing in (False, True)
    }
    gathered: set[tuple[int, int]] = set()
    for writing, nsid, lba, count, value in done:
        size = SPACES[nsid].block_size
        span = slice(lba * size, (lba + count) * size)
        blocks = {(nsid, at) for at in range(lba, lba + count)}
        held = sum(SPACES[one].block_size for one, _ in gathered | blocks)
        if not blocks <= allowed[writing] or (writing and held > ROOM):
            with pytest.raises(NotAllowed):
                if writing:
                    job.write(nsid, lba, count, bytes(count * size))
                else:
                    job.read(nsid, lba, count)
        elif writing:
            model[nsid][span] = bytes([value]) * (count * size)
            job.write(nsid, lba, count, bytes([value]) * (count * size))
            gathered |= blocks
        else:
            assert job.read(nsid, lba, count) == model[nsid][span]
    assert job.carried_out() == model


@pytest.mark.parametrize("writing", [False, True])
def test_grants_allow_what_each_block_is_granted_for(writing: bool) -> None:
    chosen = random.Random(40)
    for _ in range(200):
        granted = [
            Grant(
                chosen.randrange(1, 3), chosen.randrange(30), chosen.randrange(1, 9), place % 3 > 0
            )
            for place in range(chosen.randrange(7))
        ]
        allowed = {
            (grant.nsid, grant.first_lba + place)
            for grant in granted
            for place in range(grant.blocks)
            if grant.writable or not writing
        }
        found = Granted(granted, writing=writing)
        for nsid in (1, 2, 3):
            for lba in range(0, 40, 3):
                count = chosen.randrange(6)
                asked = {(nsid, lba + place) for place in range(count)}
                assert found.has(nsid, lba, count) is (asked <= allowed)

"""Holes in media: punched, zeroed, told apart from data, and verified; on files and in memory."""

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from potash_device.media import store
from potash_device.media.errors import MediaError
from potash_device.media.file import FileMedia
from potash_device.media.store import Media, MemoryMedia
from pyvfio_user.sealed_memory import sealed_memfd

UNIT = 4096
SIZE = 64 * UNIT


@pytest.fixture(params=["memory", "file"])
def media(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Media]:
    made = (
        MemoryMedia.create(SIZE)
        if request.param == "memory"
        else FileMedia.open(tmp_path / "media", SIZE)
    )
    if not made.reports_holes(UNIT):
        pytest.skip("this file system's holes are larger than a block")
    yield made
    made.close()


def blocks_taken(media: Media) -> int:
    """Units of 4096 bytes that the file occupies."""
    return os.fstat(media.fd).st_blocks * 512 // UNIT


def test_what_is_punched_reads_zeroes_and_takes_no_room(media: Media) -> None:
    media.write_from([memoryview(b"x" * (8 * UNIT))], 0)
    media.flush()
    before = blocks_taken(media)
    media.punch(2 * UNIT, 3 * UNIT)
    expected = b"x" * (2 * UNIT) + bytes(3 * UNIT) + b"x" * (3 * UNIT)
    assert os.pread(media.fd, 8 * UNIT, 0) == expected
    assert media.data_ranges(0, SIZE) == [(0, 2 * UNIT), (5 * UNIT, 3 * UNIT)]
    assert before - blocks_taken(media) == 3
    assert os.fstat(media.fd).st_size == SIZE


def test_a_part_of_a_unit_that_is_punched_is_zeroed(media: Media) -> None:
    media.write_from([memoryview(b"x" * (2 * UNIT))], 0)
    media.punch(512, 1024)
    assert os.pread(media.fd, 2048, 0) == b"x" * 512 + bytes(1024) + b"x" * 512
    assert media.data_ranges(0, SIZE) == [(0, 2 * UNIT)]


def test_zeroes_that_are_written_are_no_hole(media: Media) -> None:
    media.write_zeroes(UNIT, 2 * UNIT)
    assert media.data_ranges(0, SIZE) == [(UNIT, 2 * UNIT)]
    media.write_from([memoryview(b"x" * UNIT)], UNIT)
    media.write_zeroes(UNIT, UNIT)
    assert os.pread(media.fd, SIZE, 0) == bytes(SIZE)


def test_zeroes_and_verifying_go_beyond_one_piece() -> None:
    media = MemoryMedia.create(4 << 20)
    os.pwrite(media.fd, b"x" * (4 << 20), 0)
    media.write_zeroes(512, (3 << 20) + 512)
    media.verify(0, 4 << 20)
    content = os.pread(media.fd, 4 << 20, 0)
    assert content == b"x" * 512 + bytes((3 << 20) + 512) + b"x" * ((1 << 20) - 1024)
    media.close()


def test_data_ranges_are_cut_to_what_was_asked(media: Media) -> None:
    assert media.data_ranges(0, SIZE) == []
    media.write_from([memoryview(b"x" * (4 * UNIT))], 4 * UNIT)
    assert media.data_ranges(5 * UNIT, UNIT) == [(5 * UNIT, UNIT)]
    assert media.data_ranges(0, 4 * UNIT) == []
    assert media.data_ranges(7 * UNIT, 8 * UNIT) == [(7 * UNIT, UNIT)]


def test_a_file_system_without_holes_gets_zeroes(
    media: Media, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no holes here")

    monkeypatch.setattr(store, "_punch_hole", refuse)
    media.write_from([memoryview(b"x" * (4 * UNIT))], 0)
    media.punch(UNIT, UNIT)
    assert os.pread(media.fd, 4 * UNIT, 0) == b"x" * UNIT + bytes(UNIT) + b"x" * (2 * UNIT)


def test_read_only_media_are_neither_punched_nor_zeroed(tmp_path: Path) -> None:
    path = tmp_path / "media"
    path.write_bytes(b"x" * SIZE)
    media = FileMedia.open(path, read_only=True)
    for change in (media.punch, media.write_zeroes):
        with pytest.raises(MediaError) as caught:
            change(0, UNIT)
        assert caught.value.errno == errno.EROFS
    media.close()
    assert path.read_bytes() == b"x" * SIZE


def test_an_error_of_the_system_says_where(tmp_path: Path) -> None:
    media = FileMedia.open(tmp_path / "media", SIZE)
    os.close(media.fd)
    media.fd = os.open(tmp_path / "media", os.O_RDONLY)
    with pytest.raises(MediaError) as caught:
        media.punch(UNIT, UNIT)
    assert (caught.value.errno, caught.value.at) == (errno.EBADF, UNIT)
    media.close()


def test_verifying_finds_the_end_of_a_file_that_was_cut(tmp_path: Path) -> None:
    media = FileMedia.open(tmp_path / "media", SIZE)
    media.verify(0, SIZE)
    os.ftruncate(media.fd, 10 * UNIT)
    media.verify(0, 10 * UNIT)
    with pytest.raises(MediaError) as caught:
        media.verify(8 * UNIT, 8 * UNIT)
    assert caught.value.at == 10 * UNIT
    media.close()


def _views(*sizes: int, fill: bytes = b"\xee") -> list[memoryview]:
    return [memoryview(bytearray(fill * size)) for size in sizes]


class TestMapped:
    """Memory that is there is copied through a mapping, and what is not is left alone."""

    @pytest.fixture
    def memory(self) -> Iterator[MemoryMedia]:
        made = MemoryMedia.create(SIZE)
        yield made
        made.close()

    @pytest.fixture
    def without_calls(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No system call moves data."""

        def refuse(*_: object) -> int:
            raise OSError(errno.ENOSPC, "no memory")

        monkeypatch.setattr(store, "preadv", refuse)
        monkeypatch.setattr(store, "pwritev", refuse)

    def test_what_was_written_is_read_and_written_without_calls(
        self, memory: MemoryMedia, request: pytest.FixtureRequest
    ) -> None:
        assert memory.write_at_once(_views(UNIT, 512, UNIT), UNIT)
        request.getfixturevalue("without_calls")
        found = _views(100, 2 * UNIT, fill=b"\0")
        assert memory.read_at_once(found, UNIT)
        assert b"".join(found) == b"\xee" * (100 + 2 * UNIT)
        assert memory.write_at_once(_views(3, 5, fill=b"a"), UNIT + 1)
        assert os.pread(memory.fd, 10, UNIT) == b"\xee" + b"a" * 8 + b"\xee"

    def test_a_hole_that_is_read_stays_one(self, memory: MemoryMedia) -> None:
        assert memory.write_at_once(_views(UNIT), 0)
        found = _views(3 * UNIT)
        assert memory.read_at_once(found, 0)
        assert bytes(found[0]) == b"\xee" * UNIT + bytes(2 * UNIT)
        assert blocks_taken(memory) == 1
        memory.punch(0, SIZE)
        assert memory.read_at_once(found, 0)
        assert bytes(found[0]) == bytes(3 * UNIT)
        assert blocks_taken(memory) == 0

    @pytest.mark.usefixtures("without_calls")
    def test_no_memory_for_a_page_is_an_error_of_the_media(self, memory: MemoryMedia) -> None:
        """Through the mapping, it would end the process."""
        for _ in range(2):
            with pytest.raises(MediaError):
                memory.write_at_once(_views(UNIT), 0)

    def test_faults_are_injected_nevertheless(self, memory: MemoryMedia) -> None:
        class Refusing:
            def before(self, offset: int, length: int, *, writes: bool) -> None:
                raise MediaError(errno.EIO, f"{offset} {length} {writes}")

        assert memory.write_at_once(_views(UNIT), 0)
        memory.impair(Refusing())
        assert not memory.read_at_once(_views(UNIT), 0)
        assert not memory.write_at_once(_views(UNIT), 0)
        with pytest.raises(MediaError, match="0 4096 False"):
            memory.read_into(_views(UNIT), 0)

    def test_nothing_is_there_once_it_is_closed(self, memory: MemoryMedia) -> None:
        assert memory.write_at_once(_views(UNIT), 0)
        memory.close()
        for access in (memory.read_at_once, memory.write_at_once):
            with pytest.raises(MediaError):
                access(_views(UNIT), 0)

    def test_the_end_is_not_passed(self, memory: MemoryMedia) -> None:
        assert memory.write_at_once(_views(UNIT), SIZE - UNIT)
        assert not memory.read_at_once(_views(2 * UNIT), SIZE - UNIT)

    def test_memory_that_can_shrink_is_refused(self) -> None:
        descriptor = os.memfd_create("other")
        with pytest.raises(ValueError, match="can shrink"):
            MemoryMedia(descriptor, UNIT)
        os.close(descriptor)

    @pytest.mark.parametrize("seed", range(20))
    def test_it_is_as_media_that_are_not_mapped(self, memory: MemoryMedia, seed: int) -> None:
        rng = random.Random(seed)
        other = Media(sealed_memfd(SIZE, "other"), SIZE)
        for number in range(200):
            step = rng.choice((512, UNIT))
            first = rng.randrange(0, SIZE, step)
            length = min(SIZE - first, step * rng.randint(1, 6))
            sizes = [length - length // 3, length // 3][: rng.randint(1, 2)]
            fill, kind = bytes([number % 255 + 1]), rng.randrange(5)
            for one in (memory, other):
                if kind == 0:
                    one.punch(first, length)
                elif kind == 1:
                    one.write_from(_views(*sizes, fill=fill), first)
                else:
                    assert one.write_at_once(_views(*sizes, fill=fill), first)
            read = [_views(*sizes) for _ in range(2)]
            first = rng.randrange(SIZE - length + 1)
            assert memory.read_at_once(read[0], first)
            assert other.read_at_once(read[1], first)
            assert read[0] == read[1]
            assert memory.data_ranges(0, SIZE) == other.data_ranges(0, SIZE)
        other.close()

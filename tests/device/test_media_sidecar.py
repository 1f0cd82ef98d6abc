"""The sidecar: what is put there is there after a power cycle, or what was there before it."""

import errno
import json
import logging
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from potash_device.media.errors import MediaError
from potash_device.media.file import FileMedia
from potash_device.media.sidecar import SIDECAR_SIZE, Sidecar
from potash_device.media.store import Media, MemoryMedia
from potash_device.saved import Section
from support.recording import RecordingMedia, Step

HALF = SIDECAR_SIZE // 2

NUMBER: Section[int] = Section("number", int)
ONE: Section[int] = Section("one", int)
TWO: Section[tuple[bool, str]] = Section("two", tuple[bool, str])
TABLE: Section[dict[str, int]] = Section("table", dict[str, int])


@pytest.fixture
def media() -> Iterator[MemoryMedia]:
    media = MemoryMedia.create(SIDECAR_SIZE)
    yield media
    media.close()


def loaded(media: Media) -> Sidecar:
    sidecar = Sidecar(media)
    sidecar.load()
    return sidecar


def save(media: Media, **sections: Any) -> Sidecar:
    sidecar = loaded(media)
    for name, section in sections.items():
        sidecar.put(name, section)
    sidecar.save()
    return sidecar


def content(media: Media) -> bytes:
    return os.pread(media.fd, SIDECAR_SIZE, 0)


def test_sections_come_back_and_what_was_not_saved_does_not(media: MemoryMedia) -> None:
    sidecar = save(media, table={"a": 1}, two=[True, "x"])
    sidecar.put("one", 1)
    again = loaded(media)
    assert (again.get(TABLE), again.get(TWO), again.get(ONE)) == ({"a": 1}, (True, "x"), None)


def test_a_new_sidecar_is_empty_without_a_word(
    media: MemoryMedia, caplog: pytest.LogCaptureFixture
) -> None:
    assert loaded(media).get(ONE) is None
    assert not caplog.records


@pytest.mark.parametrize("saves", [1, 2])
def test_a_write_that_is_cut_at_any_byte_leaves_the_record_before(
    media: MemoryMedia, saves: int
) -> None:
    """Both turns of the two pages; the cut page may hold anything of what was there before."""
    for number in range(saves):
        save(media, number=number)
    before = content(media)
    save(media, number=saves)
    after = content(media)
    changed = [at for at in range(SIDECAR_SIZE) if before[at] != after[at]]
    assert max(changed) - min(changed) < 512
    for cut in range(min(changed), max(changed) + 1):
        os.pwrite(media.fd, after[:cut] + before[cut:], 0)
        assert loaded(media).get(NUMBER) == saves - 1
    os.pwrite(media.fd, after, 0)
    assert loaded(media).get(NUMBER) == saves


def test_the_pages_take_turns_and_each_is_flushed() -> None:
    media = RecordingMedia.with_blocks(SIDECAR_SIZE, 1)
    for number in range(3):
        save(media, number=number)
    places = [line.what[0] for line in media.log if line.step is Step.WRITE_BEGUN]  # type: ignore[index]  # a place and a length
    assert places == [HALF, 0, HALF]
    steps = [line.step for line in media.log]
    assert steps == 3 * [Step.WRITE_BEGUN, Step.WRITE_ENDED, Step.FLUSH_BEGUN, Step.FLUSH_ENDED]
    media.close()


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff" * SIDECAR_SIZE,
        b"PTSHSIDE" + b"\xff" * (HALF - 8),
        b"PTSHSIDE\x01\0\0\0\xff\xff\0\0" + bytes(HALF),
    ],
)
def test_a_damaged_sidecar_is_an_empty_one_and_says_so(
    media: MemoryMedia, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    os.pwrite(media.fd, damage, 0)
    sidecar = loaded(media)
    assert sidecar.get(ONE) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "damaged" in caplog.text
    sidecar.put("one", 1)
    sidecar.save()
    assert loaded(media).get(ONE) == 1


def test_a_record_of_another_version_is_not_understood(
    media: MemoryMedia, caplog: pytest.LogCaptureFixture
) -> None:
    save(media, one=1)
    page = bytearray(content(media))
    page[HALF + 8] = 2
    os.pwrite(media.fd, page, 0)
    assert loaded(media).get(ONE) is None
    assert "damaged" in caplog.text


def test_a_sidecar_that_was_cut_short_is_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "sidecar"
    media = FileMedia.open(path, SIDECAR_SIZE)
    save(media, one=1)
    os.truncate(path, 100)
    sidecar = loaded(media)
    assert sidecar.get(ONE) is None
    sidecar.put("one", 2)
    sidecar.save()
    assert loaded(media).get(ONE) == 2
    media.close()


def test_a_record_that_does_not_fit_is_refused_and_the_one_before_kept(media: MemoryMedia) -> None:
    sidecar = save(media, one=1)
    sidecar.put("large", "x" * HALF)
    with pytest.raises(MediaError) as caught:
        sidecar.save()
    assert caught.value.errno == errno.EFBIG
    assert loaded(media).get(ONE) == 1


def test_a_sidecar_that_cannot_be_written_says_so_once(
    media: MemoryMedia, caplog: pytest.LogCaptureFixture
) -> None:
    sidecar = save(media, one=1)
    media.read_only = True
    for _ in range(3):
        with pytest.raises(MediaError):
            sidecar.save()
    assert len(caplog.records) == 1
    media.read_only = False
    sidecar.put("one", 2)
    sidecar.save()
    assert loaded(media).get(ONE) == 2


def test_several_threads_may_save(media: MemoryMedia) -> None:
    sidecar = loaded(media)

    def put(name: str) -> None:
        for number in range(50):
            sidecar.put(name, number)
            sidecar.save()

    threads = [threading.Thread(target=put, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    again = loaded(media)
    assert [again.get(Section(name, int)) for name in "abcd"] == [49] * 4


def test_a_record_is_text_that_anybody_can_read(media: MemoryMedia) -> None:
    save(media, one={"a": 1})
    page = content(media)[HALF:]
    assert json.loads(page[24 : page.index(b"}}") + 2]) == {"one": {"a": 1}}


@pytest.mark.parametrize(
    ("number", "record"),
    [
        (1, b'{"one":' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
        (1, b"[]"),
        ((1 << 64) - 1, b'{"one":2}'),
        (1 << 63, b'{"one":2}'),
    ],
)
def test_a_record_that_nobody_can_have_written_is_not_believed(
    media: MemoryMedia, caplog: pytest.LogCaptureFixture, number: int, record: bytes
) -> None:
    forge(media, number, record)
    sidecar = loaded(media)
    assert sidecar.get(ONE) is None
    assert "damaged" in caplog.text
    sidecar.put(ONE, 3)
    sidecar.save()
    assert loaded(media).get(ONE) == 3


def forge(media: Media, number: int, record: bytes) -> None:
    protected = struct.pack("<8sIIQ", b"PTSHSIDE", 1, len(record), number) + record
    page = protected + struct.pack("<I", zlib.crc32(protected))
    os.pwrite(media.fd, page, number % 2 * HALF)


def test_records_behind_the_largest_number_are_still_found(media: MemoryMedia) -> None:
    forge(media, (1 << 63) - 2, b'{"one":1}')
    for one in range(2, 6):
        sidecar = loaded(media)
        assert sidecar.get(ONE) == one - 1
        sidecar.put(ONE, one)
        sidecar.save()
    assert loaded(media).get(ONE) == 5

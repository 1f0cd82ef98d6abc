"""Blocks in files and in memory, and the executor that waits for them."""

import errno
import os
import select
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from potash_device.media.errors import MediaError
from potash_device.media.executor import MediaExecutor
from potash_device.media.file import FileMedia
from potash_device.media.store import MemoryMedia


def test_a_new_file_is_sparse_and_keeps_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "media"
    media = FileMedia.open(path, 1 << 36)
    assert path.stat().st_blocks == 0
    media.write_from([memoryview(b"one"), memoryview(b"two")], 1 << 35)
    media.flush()
    media.close()
    again = FileMedia.open(path)
    buffer = memoryview(bytearray(8))
    again.read_into([buffer[:2], buffer[2:]], (1 << 35) - 1)
    assert bytes(buffer) == b"\0onetwo\0"
    assert again.size == 1 << 36
    again.close()


def test_a_file_that_another_device_has_is_refused(tmp_path: Path) -> None:
    media = FileMedia.open(tmp_path / "media", 4096)
    with pytest.raises(MediaError, match="another device"):
        FileMedia.open(tmp_path / "media", 4096)
    media.close()
    FileMedia.open(tmp_path / "media").close()


def test_a_file_that_is_not_there_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="missing") as caught:
        FileMedia.open(tmp_path / "missing")
    assert caught.value.errno == errno.ENOENT


def test_a_file_that_its_file_system_cannot_have_is_refused_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend, limit = os.ftruncate, (16 << 40) - 4096

    def limited(fd: int, size: int) -> None:
        if size > limit:
            raise OSError(errno.EFBIG, "File too large")
        extend(fd, size if size < 1 << 20 else 0)

    monkeypatch.setattr(os, "ftruncate", limited)
    path = tmp_path / "media"
    for present in (False, True):
        with pytest.raises(MediaError, match="below 16 TiB .*; choose a smaller size"):
            FileMedia.open(path, 100 << 40)
        assert path.exists() is present
        path.touch()
    assert path.stat().st_size == 0


def test_reading_past_a_file_that_was_cut_short_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "media"
    media = FileMedia.open(path, 8192)
    os.truncate(path, 4096)
    with pytest.raises(MediaError):
        media.read_into([memoryview(bytearray(8192))], 0)
    assert not media.read_at_once([memoryview(bytearray(8192))], 0)
    media.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda media: media.write_from([memoryview(bytes(4096))], 4096),
        lambda media: media.punch(4096, 4096),
        lambda media: media.flush(),
    ],
)
def test_a_file_that_was_truncated_is_never_extended_again(
    tmp_path: Path, change: Callable[[FileMedia], None]
) -> None:
    path = tmp_path / "media"
    media = FileMedia.open(path, 8192)
    os.truncate(path, 512)
    for _ in range(2):
        with pytest.raises(MediaError, match="truncated to 512 of 8192 bytes"):
            change(media)
    assert path.stat().st_size == 512 and not media.writable
    os.truncate(path, 8192)
    with pytest.raises(MediaError):  # who restores the length has not restored the blocks
        change(media)
    media.close()


def test_a_read_finds_out_that_a_file_was_truncated(tmp_path: Path) -> None:
    path = tmp_path / "media"
    media = FileMedia.open(path, 8192)
    os.truncate(path, 4096)
    assert media.read_at_once([memoryview(bytearray(4096))], 0)
    with pytest.raises(MediaError):
        media.read_into([memoryview(bytearray(4096))], 4096)
    assert not media.writable
    media.close()


def test_more_views_than_a_system_call_takes_are_moved() -> None:
    media = MemoryMedia.create(1 << 16)
    content = os.urandom(3000 * 4)
    media.write_from([memoryview(content)[n : n + 4] for n in range(0, len(content), 4)], 5)
    back = memoryview(bytearray(len(content)))
    media.read_into([back[n : n + 4] for n in range(0, len(content), 4)], 5)
    assert bytes(back) == content
    media.close()


def test_a_full_disk_is_an_error_and_no_crash() -> None:
    with open("/dev/full", "r+b", buffering=0) as full:
        from potash_device.media.store import Media

        media = Media(os.dup(full.fileno()), 0)
        with pytest.raises(MediaError) as caught:
            media.write_from([memoryview(b"data")], 0)
        assert caught.value.errno in (errno.ENOSPC, errno.ESPIPE)
        media.close()


def test_reading_at_once_gives_the_same_as_waiting(tmp_path: Path) -> None:
    for media in (MemoryMedia.create(8192), FileMedia.open(tmp_path / "media", 8192)):
        media.write_from([memoryview(b"x" * 8192)], 0)
        buffer = memoryview(bytearray(4096))
        if not media.read_at_once([buffer], 4096):
            media.read_into([buffer], 4096)
        assert bytes(buffer) == b"x" * 4096
        if not media.write_at_once([memoryview(b"y" * 4096)], 0):
            media.write_from([memoryview(b"y" * 4096)], 0)
        media.read_into([buffer], 0)
        assert bytes(buffer) == b"y" * 4096
        media.close()


def test_the_executor_wakes_its_owner_and_gives_results_and_errors() -> None:
    with MediaExecutor() as executor:
        gate = threading.Event()

        def wait() -> str:
            assert gate.wait(10)
            return "done"

        def fail() -> None:
            raise MediaError(errno.EIO, "broken")

        waiting = executor.submit(wait)
        assert not select.select([executor.fileno()], (), (), 0)[0]
        failing = executor.submit(fail)
        assert select.select([executor.fileno()], (), (), 10)[0]
        assert list(executor.finished()) == [failing]
        assert isinstance(failing.exception(), MediaError)
        gate.set()
        assert select.select([executor.fileno()], (), (), 10)[0]
        assert list(executor.finished()) == [waiting]
        assert waiting.result() == "done"


def test_flushes_that_hang_hold_no_other_work_up() -> None:
    with MediaExecutor() as executor:
        gate = threading.Event()
        hanging = [executor.submit(lambda: gate.wait(10), flushes=True) for _ in range(20)]
        try:
            written = [executor.submit(lambda: "written") for _ in range(20)]
            assert all(one.result(timeout=5) == "written" for one in written)
            assert not any(one.done() for one in hanging)
        finally:
            gate.set()
    assert all(one.result() for one in hanging)


def test_closing_the_executor_waits_for_its_work_and_leaves_nothing() -> None:
    before = set(os.listdir("/proc/self/fd"))
    done: list[int] = []
    with MediaExecutor() as executor:
        for number in range(20):
            executor.submit(partial(done.append, number))
    assert sorted(done) == list(range(20))
    assert set(os.listdir("/proc/self/fd")) == before
    with pytest.raises(RuntimeError):
        executor.submit(lambda: None)


def test_a_flush_that_comes_after_the_end_has_nothing_to_do() -> None:
    media = MemoryMedia.create(1 << 20)
    media.close()
    media.flush()

"""Metadata beside blocks: what is left of a pair when the device is killed in the middle of it."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from potash_device.media.drive import Drive
from potash_device.media.errors import MediaError
from potash_device.media.metadata import AREA, Pairs
from potash_device.media.shapes import DriveError, Metadata, NamespaceShape

MIB = 1 << 20
SHAPE = NamespaceShape(MIB, 4096, metadata=Metadata(8, protection=1))
OLD, NEW = (b"o" * 4096, b"old meta"), (b"n" * 4096, b"new meta")


def pairs(drive: Drive) -> Pairs:
    found = drive.namespaces[1].beside
    assert isinstance(found, Pairs)
    return found


def write(drive: Drive, lba: int, blocks: bytes, metadata: bytes) -> None:
    pairs(drive).write(lba, memoryview(blocks), memoryview(bytearray(metadata)))


def read(drive: Drive, lba: int, count: int = 1) -> list[tuple[bytes, bytes]]:
    blocks, metadata = memoryview(bytearray(4096 * count)), memoryview(bytearray(8 * count))
    pairs(drive).read(lba, blocks, metadata)
    return [
        (bytes(blocks[4096 * at : 4096 * (at + 1)]), bytes(metadata[8 * at : 8 * (at + 1)]))
        for at in range(count)
    ]


class Killed(BaseException):
    """The process is gone."""


class Dying:
    """os.pwritev of a process that is killed after it has written so many pages in all."""

    def __init__(self, pages: int) -> None:
        self.left = pages
        self.real = os.pwritev
        self.died = False

    def __call__(self, fd: int, views: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        content = b"".join(views)
        while content:
            if not self.left:
                self.died = True
                raise Killed
            self.left -= 1
            size = min(4096 - offset % 4096, len(content))
            self.real(fd, [content[:size]], offset)
            content, offset = content[size:], offset + size
        return sum(map(len, views))


@pytest.mark.parametrize("folder", [False, True])
def test_a_pair_is_old_or_new_wherever_the_device_is_killed(
    folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "drive"
    if folder:
        path.mkdir()
    seen = set()
    for pages in range(100):
        with Drive.open(path, [SHAPE]) as drive:
            write(drive, 7, OLD[0] * 3, OLD[1] * 3)
        dying = Dying(pages)
        with monkeypatch.context() as patch, Drive.open(path) as drive:
            patch.setattr(os, "pwritev", dying)
            try:
                write(drive, 7, NEW[0] * 3, NEW[1] * 3)
            except Killed:
                pass
        with Drive.open(path) as drive:
            found = read(drive, 7, 3)
            assert set(found) <= {OLD, NEW}, pages
            seen.add(tuple(one == NEW for one in found))
            # What was recovered once is not written again.
            write(drive, 7, OLD[0] * 3, OLD[1] * 3)
        with Drive.open(path) as drive:
            assert read(drive, 7, 3) == [OLD] * 3
        if not dying.died:
            break
    assert pages > 6
    assert seen == {(False,) * 3, (True,) * 3}


def test_a_write_that_fails_is_not_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "drive"
    with Drive.open(path, [SHAPE]) as drive:
        write(drive, 1, *OLD)
        blocks, real = drive.namespaces[1].fd, os.pwritev

        def failing(fd: int, views: Sequence[memoryview], offset: int, flags: int = 0) -> int:
            if fd == blocks:
                raise OSError(28, "no space")
            return real(fd, views, offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", failing)
            with pytest.raises(MediaError) as caught:
                write(drive, 1, *NEW)
        assert caught.value.at == 4096
    with Drive.open(path) as drive:
        assert read(drive, 1) == [OLD]


def test_media_that_cannot_be_written_do_not_hide_half_a_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "drive"
    with Drive.open(path, [SHAPE]) as drive:
        write(drive, 1, *OLD)
    with monkeypatch.context() as patch, Drive.open(path) as drive:
        patch.setattr(os, "pwritev", Dying(3))
        with pytest.raises(Killed):
            write(drive, 1, *NEW)
    with pytest.raises((MediaError, DriveError), match="read-only"):
        Drive.open(path, read_only=True)
    with Drive.open(path) as drive:
        assert read(drive, 1) == [NEW]
    with Drive.open(path, read_only=True) as drive:
        assert read(drive, 1) == [NEW]


@pytest.mark.parametrize("at", [0, 8, 12, 16, 24, 100])
def test_a_record_that_makes_no_sense_is_ignored(at: int, tmp_path: Path) -> None:
    path = tmp_path / "drive"
    with Drive.open(path, [SHAPE]) as drive:
        write(drive, 1, *OLD)
    aside = tmp_path / "drive.metadata"
    with aside.open("r+b") as file:
        file.write(b"PTSHPAIR" + bytes(20) + b"x" * 5000)
        file.seek(at)
        file.write(b"\xff" * 8)
    with Drive.open(path) as drive:
        assert read(drive, 1) == [OLD]
        assert read(drive, 0) == [(bytes(4096), b"\xff" * 8)]


def test_unwritten_metadata_takes_no_room_and_comes_back_with_deallocation(tmp_path: Path) -> None:
    path = tmp_path / "drive"
    with Drive.open(path, [NamespaceShape(64 * MIB, 4096, metadata=SHAPE.metadata)]) as drive:
        aside = tmp_path / "drive.metadata"
        assert aside.stat().st_size == AREA + 64 * MIB // 4096 * 8
        assert aside.stat().st_blocks == 0
        write(drive, 5, OLD[0] * 2, OLD[1] * 2)
        drive.namespaces[1].punch(5 * 4096, 4096)
        assert read(drive, 5, 2) == [(bytes(4096), b"\xff" * 8), OLD]


@pytest.mark.parametrize(
    "metadata",
    [
        "{size = 9}",
        "{size = 8, protection = 4}",
        "{protection = 1}",
        "{size = 8, guard = 64}",
        "{size = 8, extended = 1}",
        "{size = 8, tag = 1}",
        "8",
    ],
)
def test_a_list_of_metadata_that_there_is_not_is_refused(metadata: str, tmp_path: Path) -> None:
    path = tmp_path / "drive"
    path.write_bytes(bytes(MIB))
    listed = f"[namespace.1]\nsize = {MIB}\nblock_size = 4096\nmetadata = {metadata}\n"
    (tmp_path / "drive.toml").write_text(listed)
    with pytest.raises(DriveError, match="does not describe"):
        Drive.open(path)


def test_a_drive_whose_metadata_is_gone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "drive"
    with Drive.open(path, [SHAPE]):
        pass
    (tmp_path / "drive.metadata").unlink()
    with pytest.raises(MediaError, match=r"drive\.metadata"):
        Drive.open(path)


def test_a_format_that_was_not_finished_is_made_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "drive"
    with Drive.open(path, [NamespaceShape(MIB)]) as drive:
        drive.namespaces[1].write_from([memoryview(OLD[0])], 0)
        drive.reshape(1, SHAPE._replace(erase=True))
    with Drive.open(path) as drive:
        assert drive.shapes[1] == SHAPE
        assert read(drive, 0) == [(bytes(4096), b"\xff" * 8)]


def test_a_flush_survives_files_that_are_closed_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread deletes or lays out the namespace while the system flushes."""
    with Drive.open(tmp_path / "drive", (SHAPE, SHAPE)) as drive:
        first, second = drive.namespaces[1], drive.namespaces[2]

        def lay_out(fd: int) -> None:
            drive.lay_out(1)
            first.beside = None

        monkeypatch.setattr(os, "fdatasync", lay_out)
        first.flush()

        def close(fd: int) -> None:
            second.close()
            raise OSError(9, "Bad file descriptor")

        monkeypatch.setattr(os, "fdatasync", close)
        second.flush()
        assert first.lost is None and second.lost is None
        monkeypatch.undo()

"""Where files lie: extents as Linux describes them, file systems on partitions, what is refused."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from potash.sdk import InvalidRequest
from potash.sdk.extents import (
    Extent,
    Volume,
    extents_of,
    mounts_of,
    ranges_of,
    require_usable,
    volume_of,
)

PAGE = 4096
FIEMAP, GETFLAGS = 0xC020660B, 0x80086601
LAST = 1


class PlayedFileSystem:
    """Answers FIEMAP with a file's extents, some at a time, and GETFLAGS with its flags."""

    def __init__(self, extents: list[tuple[int, int, int, int]], *, flags: int = 0) -> None:
        self.extents = extents
        self.flags = flags
        self.starts: list[int] = []

    def __call__(self, fd: int, request: int, argument: bytearray) -> int:
        if request == GETFLAGS:
            struct.pack_into("<Q", argument, 0, self.flags)
            return 0
        assert (fd, request) == (7, FIEMAP)
        start, length, flags, _, count, _ = struct.unpack_from("<QQIIII", argument)
        assert flags == 1, "what was written is not on the drive first"
        assert start + length == (1 << 64) - 1
        self.starts.append(start)
        told = [extent for extent in self.extents if extent[0] >= start][:count]
        struct.pack_into("<I", argument, 20, len(told))
        for index, (logical, physical, size, kind) in enumerate(told):
            at = 32 + 56 * index
            struct.pack_into(
                "<QQQQQIIII", argument, at, logical, physical, size, 0, 0, kind, 0, 0, 0
            )
        return 0


def test_extents_are_asked_for_until_the_last_one() -> None:
    extents = [(n * PAGE, n * 3 * PAGE, PAGE, LAST if n == 299 else 0) for n in range(300)]
    played = PlayedFileSystem(extents)
    assert extents_of(7, played) == [Extent(*extent) for extent in extents]
    assert played.starts == [0, 128 * PAGE, 256 * PAGE]


def test_a_file_without_extents_has_none() -> None:
    assert extents_of(7, PlayedFileSystem([])) == []


def test_ranges_follow_the_file_and_begin_where_its_partition_does() -> None:
    extents = [Extent(0, 9 * PAGE, 2 * PAGE), Extent(2 * PAGE, 4 * PAGE, PAGE, LAST)]
    assert ranges_of("f", extents, 3 * PAGE, 0) == [(9, 2), (4, 1)]
    assert ranges_of("f", extents, 2 * PAGE + 1, 256 * PAGE) == [(265, 2), (260, 1)]


def test_neighbours_are_one_range_and_what_is_behind_the_end_is_none() -> None:
    extents = [
        Extent(0, 5 * PAGE, PAGE),
        Extent(PAGE, 6 * PAGE, 7 * PAGE),
        Extent(8 * PAGE, 50 * PAGE, PAGE, 0x801),
    ]
    assert ranges_of("f", extents, 3 * PAGE - 1, 0) == [(5, 3)]


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        (0x2, "is not on the drive yet"),
        (0x4, "is not on the drive yet"),
        (0x8, "is compressed or encrypted"),
        (0x80, "is encrypted"),
        (0x100, "does not fill whole blocks"),
        (0x200, "is kept inside the file system's own records"),
        (0x400, "shares a block"),
        (0x800, "has blocks on the drive that were never written"),
        (0x2000, "shares its blocks with another file"),
    ],
)
def test_an_extent_that_is_not_what_a_program_would_read_is_refused(flag: int, reason: str) -> None:
    extents = [Extent(0, PAGE, PAGE), Extent(PAGE, 7 * PAGE, PAGE, LAST | flag)]
    with pytest.raises(InvalidRequest, match=f"notes.txt {reason}.* at byte 4096; .* copy it"):
        ranges_of("notes.txt", extents, 2 * PAGE, 0)
    assert ranges_of("notes.txt", extents, PAGE, 0) == [(1, 1)]


@pytest.mark.parametrize(
    ("extents", "at"),
    [
        ([], 0),
        ([Extent(PAGE, PAGE, PAGE, LAST)], 0),
        ([Extent(0, PAGE, PAGE, LAST)], PAGE),
        ([Extent(0, PAGE, PAGE), Extent(2 * PAGE, 9 * PAGE, PAGE, LAST)], PAGE),
    ],
)
def test_a_hole_is_refused(extents: list[Extent], at: int) -> None:
    with pytest.raises(InvalidRequest, match=f"a hole at byte {at}, .*--sparse=never"):
        ranges_of("f", extents, 3 * PAGE, 0)


@pytest.mark.parametrize(
    ("extent", "start"),
    [(Extent(0, 1024, PAGE), 0), (Extent(0, PAGE, 1024), 0), (Extent(0, PAGE, PAGE), 63 * 512)],
)
def test_what_lies_across_pages_is_refused(extent: Extent, start: int) -> None:
    with pytest.raises(InvalidRequest, match="whole pages of 4096 bytes"):
        ranges_of("f", [extent], 2 * PAGE, start)


def system(folder: Path, number: int, *, mounted: str = "ext4 /dev/x rw") -> dict[str, Path]:
    """sysfs and proc with a drive (259:0), its partition `number`, and what is mounted from it."""
    disk = folder / "sys" / "devices" / "nvme0n1"
    partition = disk / "nvme0n1p2"
    links = folder / "sys" / "dev" / "block"
    partition.mkdir(parents=True)
    links.mkdir(parents=True)
    (disk / "dev").write_text("259:0\n")
    (partition / "start").write_text("2048\n")
    name = f"{os.major(number)}:{os.minor(number)}"
    (links / name).symlink_to(partition)
    (links / "259:0").symlink_to(disk)
    proc = folder / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "mountinfo").write_text(
        "22 1 0:21 / /proc rw - proc proc rw\n"
        f"36 35 {name} / /mnt/data rw,noatime shared:1 - {mounted}\n"
    )
    return {"sysfs": folder / "sys", "proc": proc}


def test_a_file_on_a_partition_of_the_drive_is_found(tmp_path: Path) -> None:
    number = os.stat(tmp_path).st_dev
    fake = system(tmp_path, number, mounted="ext4 /dev/x rw,data=ordered")
    drive = os.makedev(259, 0)
    assert volume_of(tmp_path, drive, **fake) == Volume(2048 * 512, "ext4", "rw,data=ordered")
    assert volume_of(tmp_path, number, **fake) == Volume(0, "ext4", "rw,data=ordered")
    assert list(mounts_of(drive, **fake)) == ["/mnt/data"]


def test_a_file_elsewhere_is_not(tmp_path: Path) -> None:
    fake = system(tmp_path, os.stat(tmp_path).st_dev)
    assert volume_of(tmp_path, os.makedev(259, 7), **fake) is None
    assert volume_of(tmp_path, None, **fake) is None
    assert volume_of(Path("/proc"), os.makedev(259, 0), **fake) is None
    assert list(mounts_of(os.makedev(259, 7), **fake)) == []
    with pytest.raises(FileNotFoundError):
        volume_of(tmp_path / "nothing", os.makedev(259, 0), **fake)


@pytest.mark.parametrize(
    ("volume", "flags", "reason"),
    [
        (Volume(0, "btrfs", "rw"), 0, r"\(btrfs\) whose files cannot be used in place"),
        (Volume(0, "", ""), 0, r"\(unknown\)"),
        (Volume(0, "ext4", "rw,data=journal"), 0, "in the file system's journal"),
        (Volume(0, "ext4", "rw"), 0x4000 | 0x80000, "in the file system's journal"),
    ],
)
def test_a_file_whose_blocks_are_not_its_contents_is_refused(
    volume: Volume, flags: int, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        require_usable("f", 7, volume, PlayedFileSystem([], flags=flags))
    require_usable("f", 7, Volume(0, "ext4", "rw"), PlayedFileSystem([], flags=0x80000))

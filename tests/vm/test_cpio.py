"""The newc writer against bytes made by hand from the kernel's description of the format."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import pytest

from potash.vm.rootfs import Archive


def written(archive: Archive) -> bytes:
    stream = io.BytesIO()
    archive.write(stream)
    return stream.getvalue()


def entry(
    inode: int, mode: int, links: int, name: bytes, data: bytes, rdev: str = "0" * 16
) -> bytes:
    """One entry spelled out: the thirteen fields in the order of the format's table."""
    fields = f"{inode:08X}{mode:08X}" + "0" * 16 + f"{links:08X}" + "0" * 8 + f"{len(data):08X}"
    fields += "0" * 16 + rdev + f"{len(name) + 1:08X}" + "0" * 8
    head = b"070701" + fields.encode() + name + b"\0"
    head += b"\0" * (-len(head) % 4)
    return head + data + b"\0" * (-len(data) % 4)


TRAILER = entry(0, 0, 1, b"TRAILER!!!", b"")


def test_a_file_is_its_header_its_name_and_its_bytes_each_padded_to_four() -> None:
    archive = Archive()
    archive.file("hello", b"12345", 0o640)
    assert written(archive) == entry(1, 0o100640, 1, b"hello", b"12345") + TRAILER


def test_the_folders_above_a_file_come_before_it() -> None:
    archive = Archive()
    archive.file("usr/bin/sh", b"", 0o755)
    expected = entry(1, 0o040755, 2, b"usr", b"")
    expected += entry(2, 0o040755, 2, b"usr/bin", b"")
    expected += entry(3, 0o100755, 1, b"usr/bin/sh", b"")
    assert written(archive) == expected + TRAILER


def test_a_folder_sorts_before_its_content_and_not_after_a_longer_name() -> None:
    archive = Archive()
    archive.file("a/b", b"")
    archive.file("a-b", b"")
    names = [name for name in (b"a-b\0", b"a/b\0") if name in written(archive)]
    assert names == [b"a-b\0", b"a/b\0"]
    assert written(archive).index(b"a\0") < written(archive).index(b"a/b\0")


def test_a_symbolic_link_s_data_is_its_target() -> None:
    archive = Archive()
    archive.symlink("bin", "usr/bin")
    assert written(archive) == entry(1, 0o120777, 1, b"bin", b"usr/bin") + TRAILER


def test_a_device_carries_its_numbers() -> None:
    archive = Archive()
    archive.device("console", 5, 1, 0o600)
    expected = entry(1, 0o020600, 1, b"console", b"", "00000005" + "00000001")
    assert written(archive) == expected + TRAILER


def test_a_file_may_be_read_when_the_archive_is_written(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    source.chmod(0o700)
    archive = Archive()
    archive.copy(source, "copy")
    assert written(archive) == entry(1, 0o100700, 1, b"copy", b"abc") + TRAILER


def test_no_name_leaves_the_archive() -> None:
    with pytest.raises(ValueError, match="cannot leave"):
        Archive().file("usr/../../etc/passwd", b"")


@pytest.mark.skipif(shutil.which("cpio") is None, reason="there is no cpio to compare with")
def test_cpio_lists_what_was_put_in() -> None:
    archive = Archive()
    archive.file("etc/profile", b"x" * 5)
    archive.symlink("bin", "usr/bin")
    listing = subprocess.run(
        ["cpio", "-t"], input=written(archive), capture_output=True, check=True
    )
    assert listing.stdout.decode().split() == ["bin", "etc", "etc/profile"]

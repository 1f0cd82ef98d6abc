"""A drive in a folder, in a file, in memory: what is remembered, kept out, and refused."""

import os
import resource
from pathlib import Path
from uuid import UUID

import pytest

from nvme_spec.identify.capabilities import CommandSet
from potash_device.media import shapes as listing
from potash_device.media.drive import Drive
from potash_device.media.errors import MediaError
from potash_device.media.flash import FLASH_SIZE
from potash_device.media.shapes import DriveError, NamespaceShape
from potash_device.media.sidecar import SIDECAR_SIZE
from potash_device.media.store import Media
from support.saved import changes

KIB = 1024
TWO = (NamespaceShape(64 * KIB, 512), NamespaceShape(128 * KIB, 4096))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def shapes(drive: Drive) -> list[tuple[int, int, int]]:
    return [(nsid, one.size, drive.block_sizes[nsid]) for nsid, one in drive.namespaces.items()]


def read(media: Media, at: int, size: int) -> bytes:
    buffer = memoryview(bytearray(size))
    media.read_into([buffer], at)
    return bytes(buffer)


def test_a_folder_remembers_its_namespaces(tmp_path: Path) -> None:
    folder = tmp_path / "drive"
    with Drive.open(folder, TWO) as drive:
        assert shapes(drive) == [(1, 64 * KIB, 512), (2, 128 * KIB, 4096)]
        drive.namespaces[2].write_from([memoryview(b"kept")], 4096)
    assert names(folder) == {"namespace-1", "namespace-2", "namespaces.toml", "sidecar", "flash"}
    for again in ((), TWO):
        with Drive.open(folder, again) as drive:
            assert shapes(drive) == [(1, 64 * KIB, 512), (2, 128 * KIB, 4096)]
            assert read(drive.namespaces[2], 4096, 4) == b"kept"
    with pytest.raises(DriveError, match="remembers other namespaces"):
        Drive.open(folder, (NamespaceShape(64 * KIB, 4096),))


def test_an_empty_folder_becomes_a_drive_of_one_namespace(tmp_path: Path) -> None:
    with Drive.open(tmp_path) as drive:
        assert shapes(drive) == [(1, 1 << 30, 4096)]


def test_images_that_are_laid_into_a_folder_are_its_namespaces(tmp_path: Path) -> None:
    for nsid, size in ((1, 8192), (2, 12288), (4, 4096)):
        (tmp_path / f"namespace-{nsid}").write_bytes(bytes(size))
    with Drive.open(tmp_path) as drive:
        assert shapes(drive) == [(1, 8192, 4096), (2, 12288, 4096)]


def test_a_file_is_a_drive_with_the_rest_beside_it(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(12288))
    with Drive.open(image) as drive:
        assert shapes(drive) == [(1, 12288, 4096)]
        assert (drive.sidecar.size, drive.flash.size) == (SIDECAR_SIZE, FLASH_SIZE)
    assert names(tmp_path) == {"image", "image.sidecar", "image.flash"}


def test_a_file_s_block_size_is_remembered_where_it_is_not_the_usual_one(tmp_path: Path) -> None:
    image = tmp_path / "image"
    with Drive.open(image, (NamespaceShape(12288, 512),)):
        pass
    assert names(tmp_path) == {"image", "image.toml", "image.sidecar", "image.flash"}
    with Drive.open(image) as drive:
        assert shapes(drive) == [(1, 12288, 512)]


def test_a_large_drive_takes_no_room_and_no_memory(tmp_path: Path) -> None:
    size = 64 << 30
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Drive.open(tmp_path, (NamespaceShape(size), NamespaceShape(size, 512))) as drive:
        assert sum(one.size for one in drive.namespaces.values()) == 2 * size
        drive.namespaces[1].write_from([memoryview(b"end")], size - 3)
        assert read(drive.namespaces[1], size - 4096, 4096) == bytes(4093) + b"end"
    used = sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir())
    assert used < 1 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * KIB  # of KiB


@pytest.mark.parametrize("part", ["namespace-1", "namespace-2", "sidecar", "flash"])
def test_every_part_is_kept_to_one_device(tmp_path: Path, part: str) -> None:
    with Drive.open(tmp_path, TWO):
        other = tmp_path / "other"
        other.mkdir()
        with Drive.open(other, TWO):
            pass
        (other / part).unlink()
        (other / part).symlink_to(tmp_path / part)
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(MediaError, match="another device has it open"):
            Drive.open(other)
        assert set(os.listdir("/proc/self/fd")) == before


def test_a_capacity_is_remembered_and_not_less_than_what_there_is(tmp_path: Path) -> None:
    with Drive.open(tmp_path, TWO, capacity=256 * KIB) as drive:
        assert (drive.capacity, drive.allocated) == (256 * KIB, 192 * KIB)
    with Drive.open(tmp_path) as drive:
        assert drive.capacity == 256 * KIB
    with pytest.raises(DriveError, match="more than a capacity of 196607"):
        Drive.open(tmp_path, capacity=192 * KIB - 1)
    with Drive.open(tmp_path, capacity=192 * KIB) as drive:
        assert drive.capacity == 192 * KIB


def test_namespaces_are_made_changed_and_taken_away(tmp_path: Path) -> None:
    with Drive.open(tmp_path, TWO, capacity=256 * KIB) as drive:
        made = NamespaceShape(64 * KIB, 512, attached=False, shared=True, uuid=str(UUID(int=7)))
        drive.create(3, made).write_from([memoryview(b"kept")], 0)
        drive.delete([1])
        drive.reshape(2, drive.shapes[2]._replace(block_size=512))
    assert names(tmp_path) == {"namespace-2", "namespace-3", "namespaces.toml", "sidecar", "flash"}
    with Drive.open(tmp_path) as drive:
        assert shapes(drive) == [(2, 128 * KIB, 512), (3, 64 * KIB, 512)]
        assert drive.shapes[3] == made
        assert read(drive.namespaces[3], 0, 4) == b"kept"


def test_what_was_decided_is_done_when_the_drive_is_opened(tmp_path: Path) -> None:
    with Drive.open(tmp_path, TWO) as drive:
        for media in drive.namespaces.values():
            media.write_from([memoryview(b"old")], 0)
    listed = (tmp_path / "namespaces.toml").read_text()
    changed = listed.replace("block_size = 512", "block_size = 4096\nerase = true")
    (tmp_path / "namespaces.toml").write_text("remove = [5]\n" + changed)
    (tmp_path / "namespace-5").write_bytes(b"deleted")
    with pytest.raises(DriveError, match="yet to be erased"):
        Drive.open(tmp_path, read_only=True)
    with Drive.open(tmp_path) as drive:
        assert shapes(drive) == [(1, 64 * KIB, 4096), (2, 128 * KIB, 4096)]
        assert (read(drive.namespaces[1], 0, 3), read(drive.namespaces[2], 0, 3)) == (
            bytes(3),
            b"old",
        )
    assert not (tmp_path / "namespace-5").exists()
    assert "erase" not in (tmp_path / "namespaces.toml").read_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "capacity = -1",
        "capacity = true",
        "capacity = 1\nremove = [0]",
        "capacity = 1\nremove = [65]",
        "capacity = 1\nother = 1",
        "[namespace.1]\nsize = 4096\nblock_size = 512\nattached = 1",
        "[namespace.1]\nsize = 4096\nblock_size = 512\nuuid = 'x'",
        "[namespace.1]\nsize = 4096\nblock_size = 512\nother = 1",
        "[namespace.1]\nsize = 4096.5\nblock_size = 512",
        "[namespace.1]\nblock_size = 512",
        "[namespace.01]\nsize = 4096\nblock_size = 512",
        '[namespace." 1"]\nsize = 4096\nblock_size = 512',
        "[namespace.65]\nsize = 4096\nblock_size = 512",
    ],
)
def test_a_list_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "namespaces.toml").write_text(text)
    with pytest.raises(DriveError):
        Drive.open(tmp_path)


def test_a_reader_keeps_no_lock_and_cannot_write(tmp_path: Path) -> None:
    """The accelerators' processes may outlive the device by a moment."""
    with Drive.open(tmp_path, TWO) as drive:
        reader = drive.namespaces[1].reader()
    with pytest.raises(OSError):
        os.pwrite(reader, b"x", 0)
    with Drive.open(tmp_path):
        assert os.pread(reader, 4, 0) == bytes(4)
    os.close(reader)


def test_a_namespace_without_write_permission_is_read_only(tmp_path: Path) -> None:
    """Also to root, who is asked for nothing."""
    with Drive.open(tmp_path, TWO):
        pass
    (tmp_path / "namespace-2").chmod(0o444)
    with Drive.open(tmp_path) as drive:
        assert [one.read_only for one in drive.namespaces.values()] == [False, True]
        assert not drive.sidecar.read_only
        for attempt in (drive.namespaces[2].write_from, drive.namespaces[2].write_at_once):
            with pytest.raises(MediaError, match="read-only"):
                attempt([memoryview(b"x")], 0)
        drive.namespaces[2].flush()


def test_a_drive_that_is_opened_for_reading_alone_changes_nothing(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(8192))
    with Drive.open(image, read_only=True) as drive:
        assert drive.namespaces[1].read_only
        assert (drive.sidecar.size, drive.flash.size) == (SIDECAR_SIZE, FLASH_SIZE)
    assert names(tmp_path) == {"image"}
    with pytest.raises(MediaError, match="cannot open"):
        Drive.open(tmp_path / "missing", read_only=True)


def test_a_namespace_that_was_cut_keeps_its_size_and_lacks_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Drive.open(tmp_path, TWO):
        pass
    os.truncate(tmp_path / "namespace-1", 4096)
    with Drive.open(tmp_path) as drive:
        media = drive.namespaces[1]
        assert media.size == 64 * KIB
        assert read(media, 0, 4096) == bytes(4096)
        with pytest.raises(MediaError) as caught:
            read(media, 3584, 1024)
        assert caught.value.at == 4096
        with pytest.raises(MediaError, match="truncated to 4096 of 65536 bytes"):
            media.write_from([memoryview(b"y" * 512)], 8192)
    assert (tmp_path / "namespace-1").stat().st_size == 4096
    assert "4096 bytes of 65536" in caplog.text


def test_a_namespace_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    with Drive.open(tmp_path, TWO):
        pass
    (tmp_path / "namespace-2").unlink()
    with pytest.raises(MediaError, match="namespace-2"):
        Drive.open(tmp_path)
    assert not (tmp_path / "namespace-2").exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "nonsense",
        "[namespace]",
        "[namespace.1]\nsize = 4096",
        "[namespace.1]\nsize = 4096\nblock_size = 1024",
        "[namespace.1]\nsize = 511\nblock_size = 512",
        "[namespace.0]\nsize = 4096\nblock_size = 512",
        "[namespace.one]\nsize = 4096\nblock_size = 512",
        "[namespace.1]\nsize = 4096\nblock_size = 512\ncolour = 1",
        "[namespace.1]\nsize = 'large'\nblock_size = 512",
        "namespace = 1",
        '[namespace]\n1 = [4096, 512, true, false, "", false, 0, 0, {size = 0}]',
        "x = " + "[" * 100_000,
        "x = " + "[" * 5000 + "]" * 5000,
        "capacity = 4096\n" + "#" * (1 << 20),
        "\udcff",
    ],
)
def test_a_list_that_makes_no_sense_is_no_drive(tmp_path: Path, content: str) -> None:
    """Better refused than taken for blocks of another size."""
    (tmp_path / "namespaces.toml").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(DriveError, match=r"namespaces\.toml"):
        Drive.open(tmp_path)


NAME = "12345678-1234-5678-1234-567812345678"
ZONED = NamespaceShape.zoned(1 << 20, 64 << 10)


@pytest.mark.parametrize(
    "shape",
    [ZONED._asdict(), {"size": 0, "block_size": 4096, "csi": CommandSet.COMPUTE, "uuid": NAME}],
    ids=["zoned", "compute"],
)
def test_a_value_of_the_list_is_refused_or_can_be_written_again(
    tmp_path: Path, shape: dict[str, object]
) -> None:
    path = tmp_path / "list"
    for changed in changes(NamespaceShape, {**shape, "metadata": {"size": 8}, "handles": [0]}):
        try:
            listed = listing._listed({"namespace": {"1": changed}, "capacity": 1 << 30})
        except ValueError:
            continue
        listing.write_list(path, listed)
        assert listing.read_list(path) == listed


def test_what_cannot_be_a_drive_is_one_sentence(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(bytes(511))
    for wanted in ((), (NamespaceShape(512, 512),)):
        with pytest.raises(DriveError, match="fewer than a block"):
            Drive.open(small, wanted)
    with pytest.raises(DriveError, match="need a folder"):
        Drive.open(small, TWO)
    with pytest.raises(DriveError, match="cannot make the folder"):
        Drive.open(tmp_path / "no" / "where", TWO)
    with pytest.raises(DriveError, match="at most 64"):
        Drive.open(None, 65 * TWO[:1])
    image = tmp_path / "image"
    image.write_bytes(bytes(8192))
    with pytest.raises(DriveError, match="8192 bytes already"):
        Drive.open(image, (NamespaceShape(4096),))


def test_memory_has_namespaces_too_and_leaves_nothing() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with Drive.open(None, TWO) as drive:
        assert shapes(drive) == [(1, 64 * KIB, 512), (2, 128 * KIB, 4096)]
    assert set(os.listdir("/proc/self/fd")) == before


# Namespaces without blocks.

MEMORY, COMPUTE = NamespaceShape.memory(64 * KIB), NamespaceShape.compute()


def test_a_drive_remembers_namespaces_that_have_no_blocks(tmp_path: Path) -> None:
    with Drive.open(tmp_path, (*TWO, MEMORY, COMPUTE), memory_capacity=256 * KIB) as drive:
        assert drive.shapes == {1: TWO[0], 2: TWO[1], 3: MEMORY, 4: COMPUTE}
        assert list(drive.namespaces) == [1, 2]
        assert drive.capacity == drive.allocated == 192 * KIB
        assert (drive.memory_allocated, drive.memory_capacity) == (64 * KIB, 256 * KIB)
    for again in ((), TWO, (MEMORY, COMPUTE), (*TWO, COMPUTE, MEMORY)):
        with Drive.open(tmp_path, again) as drive:
            assert drive.shapes == {1: TWO[0], 2: TWO[1], 3: MEMORY, 4: COMPUTE}
            assert drive.memory_capacity == 256 * KIB
    with pytest.raises(DriveError, match="remembers other memory and compute namespaces"):
        Drive.open(tmp_path, (MEMORY,))


@pytest.mark.parametrize("name", ["folder", "drive.img"])
def test_an_old_drive_gets_namespaces_that_have_no_blocks(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    shape = NamespaceShape(64 * KIB)
    with Drive.open(path, (shape,)) as drive:
        assert list(drive.shapes) == [1]
    with Drive.open(path, (MEMORY, COMPUTE)) as drive:
        assert drive.shapes == {1: shape, 2: MEMORY, 3: COMPUTE}
        drive.delete([2])
    with Drive.open(path) as drive:
        assert drive.shapes == {1: shape, 3: COMPUTE}
        assert drive.memory_capacity == 64 * KIB
        drive.remember(2, MEMORY)
    with Drive.open(path, read_only=True) as drive:
        assert drive.shapes == {1: shape, 2: MEMORY, 3: COMPUTE}


def test_a_drive_for_reading_alone_remembers_nothing_new(tmp_path: Path) -> None:
    with Drive.open(tmp_path, TWO):
        pass
    with Drive.open(tmp_path, (MEMORY,), read_only=True) as drive:
        assert drive.shapes[3] == MEMORY
    with Drive.open(tmp_path) as drive:
        assert list(drive.shapes) == [1, 2]


@pytest.mark.parametrize(
    "shape",
    [
        "size = 4096\nblock_size = 4096\ncsi = 1",
        "size = 6144\nblock_size = 4096\ncsi = 3",
        "size = 0\nblock_size = 4096\ncsi = 3",
        "size = 4096\nblock_size = 4096\ncsi = 4",
        'size = 4096\nblock_size = 4096\ncsi = "3"',
    ],
)
def test_a_list_of_namespaces_that_cannot_be(tmp_path: Path, shape: str) -> None:
    (tmp_path / "namespaces.toml").write_text(f"[namespace.1]\n{shape}\n")
    with pytest.raises(DriveError, match="does not describe"):
        Drive.open(tmp_path)

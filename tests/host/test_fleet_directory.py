"""The directory of a fleet's drive: what it keeps, and what damage or strangers do to it."""

import json
import zlib
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash.fleet.directory import COPY_PAGES, FIRST_PAGE, HEADER, MAGIC, Directory, File
from potash.sdk.errors import PotashError
from potash.sdk.namespace import Namespace
from potash.sdk.targets import Range

PAGE = 4096
PAGES = FIRST_PAGE + 16


class Blocks:
    """A namespace in memory, which may stop in the middle of a write."""

    def __init__(self, block_size: int = PAGE, pages: int = PAGES) -> None:
        self.block_size = block_size
        self.data = bytearray(pages * PAGE)
        self.left = 1 << 40

    @property
    def capacity(self) -> int:
        return len(self.data)

    def read(self, lba: int, count: int) -> bytes:
        at = lba * self.block_size
        return bytes(self.data[at : at + count * self.block_size])

    def write(self, lba: int, data: bytes) -> None:
        at, size = lba * self.block_size, min(len(data), self.left)
        self.data[at : at + size] = data[:size]
        self.left -= size
        if size < len(data):
            raise PotashError("power is gone")

    def flush(self) -> None: ...


def directory(blocks: Blocks) -> Directory:
    return Directory(cast(Namespace, blocks))


def store(found: Directory, name: str, data: bytes) -> File:
    pages = found.reserve(len(data))
    found.write(pages, data)
    file = File(name, pages.page, len(data), 0, 1)
    found.add(file)
    return file


@pytest.mark.parametrize("block_size", [512, 4096])
def test_files_are_kept_replaced_and_removed(block_size: int) -> None:
    blocks = Blocks(block_size)
    found = directory(blocks)
    assert (found.files, found.room) == ({}, 16 * PAGE)
    first = store(found, "a/x", b"1" * 5000)
    second = store(found, "b/y", b"2" * PAGE)
    assert (first.range, second.range) == (Range(FIRST_PAGE, 2), Range(FIRST_PAGE + 2, 1))
    again = directory(blocks)
    assert again.files == {"a/x": first, "b/y": second}
    assert again.read(first) == b"1" * 5000
    held = sum(file.size for file in again.files.values())
    assert (held, again.room) == (5000 + PAGE, 13 * PAGE)
    # The old contents stay until the new ones are complete.
    newer = store(again, "a/x", b"3" * PAGE)
    assert newer.range == Range(FIRST_PAGE + 3, 1)
    assert again.reserve(2 * PAGE) == Range(FIRST_PAGE, 2)
    assert again.remove("b") == 1 and again.remove("b") == 0
    assert directory(blocks).files == {"a/x": newer}
    with pytest.raises(PotashError, match="no room for 65536 bytes in one piece"):
        again.reserve(16 * PAGE)


def test_a_write_that_is_interrupted_anywhere_leaves_the_old_or_the_new_directory() -> None:
    blocks = Blocks()
    old = store(directory(blocks), "a/x", b"1")
    kept = bytes(blocks.data)
    text = len(json.dumps([list(old), ["b/y", FIRST_PAGE + 1, 1, 0, 1]])) + HEADER.size
    for left in range(0, text + PAGE, 7):
        blocks.data[:] = kept
        found = directory(blocks)
        blocks.left = left
        try:
            store(found, "b/y", b"2")
        except PotashError:
            pass
        blocks.left = 1 << 40
        assert set(directory(blocks).files) in ({"a/x"}, {"a/x", "b/y"})
        assert directory(blocks).files["a/x"] == old


def written(text: bytes, generation: int = 1) -> Blocks:
    """A drive whose only copy has this text, with the right checksum."""
    blocks = Blocks()
    check = zlib.crc32(text, zlib.crc32(generation.to_bytes(8, "little")))
    copy = HEADER.encode((MAGIC, generation, len(text), check)) + text
    blocks.data[: len(copy)] = copy
    return blocks


GOOD = ["a/x", FIRST_PAGE, 1, 0, 1]


def changed(at: int, value: object) -> list[object]:
    return [*GOOD[:at], value, *GOOD[at + 1 :]]


@pytest.mark.parametrize(
    "files",
    [
        None, 1, {}, [1], [[]], [GOOD[:4]], [[*GOOD, 1]], [GOOD, GOOD],
        [changed(0, "x")], [changed(0, "../x")], [changed(0, "a/..")], [changed(0, "a/b/c")],
        [changed(0, "a/\x1b[2J")], [changed(0, "a/" + "x" * 101)], [changed(0, None)],
        [changed(1, 0)], [changed(1, FIRST_PAGE - 1)], [changed(1, PAGES)], [changed(1, True)],
        [changed(1, 1.5)], [changed(1, 1 << 63)], [changed(1, -1)],
        [changed(2, 17 * PAGE)], [changed(2, 1 << 62)],
        [changed(0, "a/\ud800")], [changed(3, 1)], [changed(4, (1 << 20) + 1)],
        [GOOD, ["a/y", FIRST_PAGE, 1, 0, 1]],
        [changed(2, PAGE + 1), ["a/y", FIRST_PAGE + 1, 1, 0, 1]],
    ],
)  # fmt: skip
def test_what_is_no_directory_is_refused(files: object) -> None:
    if files == {}:  # no files, in another notation
        files = {"a/x": 1}
    with pytest.raises(PotashError, match="something else in its first blocks"):
        directory(written(json.dumps(files).encode()))


def test_good_ones_are_not_refused() -> None:
    assert directory(written(json.dumps([GOOD]).encode())).files == {"a/x": File(*GOOD)}  # type: ignore[arg-type]
    assert directory(written(b"[]")).files == {}
    empty = ["a/y", FIRST_PAGE, 0, 0, 1]
    assert len(directory(written(json.dumps([GOOD, empty]).encode())).files) == 2
    with pytest.raises(PotashError, match="more than 1 MiB"):
        directory(Blocks(pages=FIRST_PAGE))


@given(
    st.lists(
        st.tuples(st.integers(0, 2 * COPY_PAGES * PAGE - 1), st.integers(0, 255)), max_size=20
    ),
    st.binary(max_size=200),
)
def test_damage_is_an_error_or_the_other_copy(damage: list[tuple[int, int]], text: bytes) -> None:
    blocks = written(text)
    for at, value in damage:
        blocks.data[at % 300] = value
    try:
        files = directory(blocks).files
    except PotashError:
        return
    assert all(isinstance(one, File) for one in files.values())

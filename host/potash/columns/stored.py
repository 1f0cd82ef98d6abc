"""A table on a drive: in a file system, or in blocks of a namespace. The host does not read it."""

from __future__ import annotations

from pathlib import Path

from csd_spec.opcodes import PAGE_SIZE
from potash.sdk.device import Device
from potash.sdk.errors import InvalidRequest
from potash.sdk.extents import drive_of
from potash.sdk.files import FileInPlace
from potash.sdk.namespace import Namespace
from potash.sdk.targets import Range, pages_of

StoredFile = FileInPlace
"""A file of a file system on the drive."""


class StoredBlocks:
    """A file of `size` bytes in blocks of a namespace, from `lba` on, which begins a page."""

    def __init__(self, namespace: Namespace, lba: int, size: int) -> None:
        block = namespace.block_size
        page, rest = divmod(lba * block, PAGE_SIZE)
        if rest or lba < 0:
            raise InvalidRequest(
                f"block {lba} does not start on a page of {PAGE_SIZE} bytes; choose a multiple of"
                f" {max(1, PAGE_SIZE // block)}"
            )
        if size < 0 or (page + pages_of(size)) * PAGE_SIZE > namespace.capacity:
            raise InvalidRequest(f"{size} bytes from block {lba} on are not all on the drive")
        self.size = size
        self.ranges = [Range(page, pages_of(size))]

    def confirm(self) -> None: ...
    def close(self) -> None: ...


BLOCKS = "lba:"
"""Begins the name of a table that is in blocks of a drive."""


def blocks_named(name: str) -> tuple[int, int]:
    """The first block and the size in bytes that "lba:BLOCK:SIZE" names. Raises InvalidRequest."""
    try:
        first, size = (int(part, 0) for part in name.removeprefix(BLOCKS).split(":"))
    except ValueError:
        raise InvalidRequest(f"{name!r} is not lba:BLOCK:SIZE, two numbers") from None
    return first, size


def stored_at(device: Device, name: str) -> StoredBlocks | StoredFile:
    """The file of this path, or in the blocks that "lba:BLOCK:SIZE" names. Raises PotashError."""
    if name.startswith(BLOCKS):
        return StoredBlocks(device.namespace(), *blocks_named(name))
    return StoredFile(name, device)


def drive_with(file: str, option: str, advice: str = "") -> str:
    """The drive on whose file system a file is. Raises InvalidRequest, which proposes an option."""
    if file.startswith(BLOCKS):
        raise InvalidRequest(f"{file} is on a drive; name the drive by {option}")
    found = drive_of(Path(file))
    if found is None:
        raise InvalidRequest(
            f"{file} is not on a file system of an NVMe drive; name the drive by {option}{advice}"
        )
    return found

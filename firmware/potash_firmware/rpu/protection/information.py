"""Protection information: what a command wants of it, how it is made and how it is checked.

    guard | application tag (16 bits) | storage tag | reference tag      all of them big-endian

The last two share 32, 80 or 48 bits, with a guard of 16, 32 or 64 bits.

Source: NVM Command Set Specification 1.0, section 5.2.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nvme_spec.commands import (
    CHECK_APPLICATION_TAG,
    CHECK_GUARD,
    CHECK_REFERENCE_TAG,
    PRACT,
)
from nvme_spec.queues import SubmissionEntry
from nvme_spec.status import NvmeError, Status
from potash_device.media.shapes import Metadata
from potash_firmware.rpu.protection.guards import Bytes, guards

CHECKS = CHECK_GUARD | CHECK_APPLICATION_TAG | CHECK_REFERENCE_TAG
"""The checks in PRINFO."""

SPACE_BITS = {16: 32, 32: 80, 64: 48}
"""Storage and reference tag together, by the bits of the guard."""


@dataclass(frozen=True)
class Wanted:
    """What a command wants of the protection information of its blocks.

    `tags` is the storage tag, and below it the reference tag of the first block.
    """

    metadata: Metadata
    prinfo: int = 0
    checks_storage_tag: bool = False
    tags: int = 0
    application_tag: int = 0
    application_mask: int = 0

    @classmethod
    def of(
        cls, metadata: Metadata, prinfo: int, checks_storage_tag: bool, fields: "Tags"
    ) -> "Wanted":
        """As the fields of a command or of a source range say; what is not used is ignored."""
        if not metadata.protection:
            return cls(metadata)
        mask = (1 << SPACE_BITS[metadata.guard]) - 1
        return cls(
            metadata,
            prinfo,
            checks_storage_tag and metadata.storage_tag > 0,
            fields.block_tags & mask,
            fields.application_tag,
            fields.application_mask,
        )

    @property
    def action(self) -> bool:
        """PRACT: the controller makes protection information, or takes it away."""
        return bool(self.prinfo & PRACT)

    @property
    def stripped(self) -> bool:
        """The host has no metadata: all of it is made, or taken away."""
        return self.action and self.metadata.protection_size == self.metadata.size

    @property
    def reference_bits(self) -> int:
        """Bits of the reference tag."""
        return SPACE_BITS[self.metadata.guard] - self.metadata.storage_tag

    def require_valid(self, slba: int) -> None:
        """Raise NvmeError for a reference tag that blocks of type 1 cannot have."""
        mask = (1 << self.reference_bits) - 1
        if (
            self.metadata.protection == 1
            and self.prinfo & CHECK_REFERENCE_TAG
            and (self.tags ^ slba) & mask
        ):
            raise NvmeError(
                Status.INVALID_PROTECTION_INFORMATION,
                f"the reference tag {self.tags & mask:#x} is not that of block {slba}",
            )

    def spaces(self, first: int, count: int) -> Bytes:
        """Storage and reference tags of `count` blocks, the first of which is the command's block
        of that number, counted from 0: one row for each."""
        bits = self.reference_bits
        size, mask = SPACE_BITS[self.metadata.guard] // 8, (1 << bits) - 1
        above = self.tags & ~mask
        rows = b"".join(
            (above | (self.tags + at & mask)).to_bytes(size, "big")
            for at in range(first, first + count)
        )
        return np.frombuffer(rows, np.uint8).reshape(count, size)


@dataclass(frozen=True)
class Tags:
    """The tags of a command, or of a source range of Copy."""

    block_tags: int
    """Logical block tags, 80 bits of which protection information uses as many as it has."""
    application_tag: int
    application_mask: int

    @classmethod
    def of(cls, entry: SubmissionEntry) -> "Tags":
        """Command dwords 2, 3, 14 and 15 (figure 142)."""
        block_tags = (entry.cdw2 & 0xFFFF) << 64 | entry.cdw3 << 32 | entry.cdw14
        return cls(block_tags, entry.cdw15 & 0xFFFF, entry.cdw15 >> 16)


def insert(
    wanted: Wanted, blocks: memoryview, metadata: memoryview, count: int, first: int = 0
) -> None:
    """Put protection information into metadata, of `count` blocks of the command from `first`."""
    kept = wanted.metadata
    data, rows = _rows(blocks, count), _rows(metadata, count)
    found = guards(kept.guard, data, _covered(kept, rows))
    fields = _fields(kept, rows)
    size = kept.guard // 8
    fields[:, :size] = found.astype(found.dtype.newbyteorder(">")).view(np.uint8).reshape(-1, size)
    fields[:, size] = wanted.application_tag >> 8
    fields[:, size + 1] = wanted.application_tag & 0xFF
    fields[:, size + 2 :] = wanted.spaces(first, count)


def check(
    wanted: Wanted, blocks: memoryview, metadata: memoryview, slba: int, count: int, first: int = 0
) -> None:
    """Check what is to be checked of `count` blocks from `slba`, where block `first` of the
    command is. Raises NvmeError for the first of them that is wrong.
    """
    kept = wanted.metadata
    asked = wanted.prinfo & CHECKS
    if not kept.protection or not (asked or wanted.checks_storage_tag):
        return
    data, rows = _rows(blocks, count), _rows(metadata, count)
    fields = _fields(kept, rows)
    size = kept.guard // 8
    tag = fields[:, size].astype(np.uint16) << 8 | fields[:, size + 1]
    reference_mask = (1 << wanted.reference_bits) - 1
    checked = tag != 0xFFFF
    if kept.protection == 3:
        masked = fields[:, size + 2 :] | _mask(wanted, ~reference_mask)
        checked |= (masked != 0xFF).any(axis=1)
    different = fields[:, size + 2 :] ^ wanted.spaces(first, count)
    wrong: list[tuple[Status, npt.NDArray[np.bool_]]] = []

    def expect(status: Status, differing: Any) -> None:
        wrong.append((status, (differing != 0) & checked))

    if asked & CHECK_GUARD:
        guard = fields[:, :size].copy().view(f">u{size}")[:, 0]
        computed = guards(kept.guard, data, _covered(kept, rows))
        expect(Status.GUARD_CHECK_ERROR, computed ^ guard)
    if wanted.checks_storage_tag:
        mask = _mask(wanted, ~reference_mask)
        expect(Status.STORAGE_TAG_CHECK_ERROR, (different & mask).any(axis=1))
    if asked & CHECK_APPLICATION_TAG:
        differing = (tag ^ wanted.application_tag) & wanted.application_mask
        expect(Status.APPLICATION_TAG_CHECK_ERROR, differing)
    if asked & CHECK_REFERENCE_TAG and kept.protection != 3:
        mask = _mask(wanted, reference_mask)
        expect(Status.REFERENCE_TAG_CHECK_ERROR, (different & mask).any(axis=1))
    bad = [(int(one.argmax()), status) for status, one in wrong if one.any()]
    if bad:
        at, status = min(bad, key=lambda one: one[0])
        name = status.name.removesuffix("_CHECK_ERROR").replace("_", " ").lower()
        raise NvmeError(status, f"the {name} of block {slba + at} is wrong", lba=slba + at)


def _rows(data: memoryview, count: int) -> Bytes:
    return np.frombuffer(data, np.uint8).reshape(count, -1)


def _covered(kept: Metadata, rows: Bytes) -> Bytes:
    """The metadata that the guard covers: what is before the protection information."""
    return rows[:, : kept.protection_at]


def _fields(kept: Metadata, rows: Bytes) -> Bytes:
    return rows[:, kept.protection_at : kept.protection_at + kept.protection_size]


def _mask(wanted: Wanted, bits: int) -> Bytes:
    """Those bits of storage and reference tag, as bytes."""
    size = SPACE_BITS[wanted.metadata.guard]
    return np.frombuffer((bits & (1 << size) - 1).to_bytes(size // 8, "big"), np.uint8)

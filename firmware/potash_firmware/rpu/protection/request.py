"""Requests of commands concerning protection information.

Source: NVM Command Set Specification 1.0, section 5.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvme_spec.commands import CHECK_APPLICATION_TAG, CHECK_GUARD, CHECK_REFERENCE_TAG, PRACT
from nvme_spec.queues import SubmissionEntry
from nvme_spec.status import NvmeError, Status
from potash_device.media.shapes import Metadata

CHECKS = CHECK_GUARD | CHECK_APPLICATION_TAG | CHECK_REFERENCE_TAG
"""The checks in PRINFO."""

SPACE_BITS = {16: 32, 32: 80, 64: 48}
"""Storage and reference tag together, by the bits of the guard."""


@dataclass(frozen=True)
class ProtectionRequest:
    """The request of a command concerning the protection information of its blocks.

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
        cls, metadata: Metadata, prinfo: int, checks_storage_tag: bool, fields: Tags
    ) -> ProtectionRequest:
        """The request in the fields of a command or of a source range; unused fields are
        ignored."""
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

    def spaces(self, first: int, count: int) -> bytes:
        """Storage and reference tags of `count` blocks, the first of which is the command's block
        of that number, counted from 0, one behind the other."""
        bits = self.reference_bits
        size, mask = SPACE_BITS[self.metadata.guard] // 8, (1 << bits) - 1
        above = self.tags & ~mask
        return b"".join(
            (above | (self.tags + at & mask)).to_bytes(size, "big")
            for at in range(first, first + count)
        )


@dataclass(frozen=True)
class Tags:
    """The tags of a command, or of a source range of Copy."""

    block_tags: int
    """Logical block tags, 80 bits of which protection information uses as many as it has."""
    application_tag: int
    application_mask: int

    @classmethod
    def of(cls, entry: SubmissionEntry) -> Tags:
        """Command dwords 2, 3, 14 and 15 (figure 142)."""
        block_tags = (entry.cdw2 & 0xFFFF) << 64 | entry.cdw3 << 32 | entry.cdw14
        return cls(block_tags, entry.cdw15 & 0xFFFF, entry.cdw15 >> 16)

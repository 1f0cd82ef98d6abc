"""Protection information: how it is made and how it is checked.

    guard | application tag (16 bits) | storage tag | reference tag      all of them big-endian

The last two share 32, 80 or 48 bits, with a guard of 16, 32 or 64 bits.

Source: NVM Command Set Specification 1.0, section 5.2.
"""

from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from nvme_spec.commands import CHECK_APPLICATION_TAG, CHECK_GUARD, CHECK_REFERENCE_TAG
from nvme_spec.status import NvmeError, Status
from potash_device.media.shapes import Metadata
from potash_firmware.rpu.protection.guards import Bytes, guards
from potash_firmware.rpu.protection.request import CHECKS, SPACE_BITS, ProtectionRequest


def insert(
    protection: ProtectionRequest,
    blocks: memoryview,
    metadata: memoryview,
    count: int,
    first: int = 0,
) -> None:
    """Put protection information into metadata, of `count` blocks of the command from `first`."""
    kept = protection.metadata
    data, rows = _rows(blocks, count), _rows(metadata, count)
    found = guards(kept.guard, data, _covered(kept, rows))
    fields = _fields(kept, rows)
    size = kept.guard // 8
    fields[:, :size] = found.astype(found.dtype.newbyteorder(">")).view(np.uint8).reshape(-1, size)
    fields[:, size] = protection.application_tag >> 8
    fields[:, size + 1] = protection.application_tag & 0xFF
    fields[:, size + 2 :] = _spaces(protection, first, count)


def check(
    protection: ProtectionRequest,
    blocks: memoryview,
    metadata: memoryview,
    slba: int,
    count: int,
    first: int = 0,
) -> None:
    """Check what is to be checked of `count` blocks from `slba`, where block `first` of the
    command is. Raises NvmeError for the first of them that is wrong.
    """
    kept = protection.metadata
    asked = protection.prinfo & CHECKS
    if not kept.protection or not (asked or protection.checks_storage_tag):
        return
    data, rows = _rows(blocks, count), _rows(metadata, count)
    fields = _fields(kept, rows)
    size = kept.guard // 8
    tag = fields[:, size].astype(np.uint16) << 8 | fields[:, size + 1]
    reference_mask = (1 << protection.reference_bits) - 1
    checked = tag != 0xFFFF
    if kept.protection == 3:
        masked = fields[:, size + 2 :] | _mask(protection, ~reference_mask)
        checked |= (masked != 0xFF).any(axis=1)
    different = fields[:, size + 2 :] ^ _spaces(protection, first, count)
    wrong: list[tuple[Status, npt.NDArray[np.bool_]]] = []

    def expect(status: Status, differing: Any) -> None:
        wrong.append((status, (differing != 0) & checked))

    if asked & CHECK_GUARD:
        guard = fields[:, :size].copy().view(f">u{size}")[:, 0]
        computed = guards(kept.guard, data, _covered(kept, rows))
        expect(Status.GUARD_CHECK_ERROR, computed ^ guard)
    if protection.checks_storage_tag:
        mask = _mask(protection, ~reference_mask)
        expect(Status.STORAGE_TAG_CHECK_ERROR, (different & mask).any(axis=1))
    if asked & CHECK_APPLICATION_TAG:
        differing = (tag ^ protection.application_tag) & protection.application_mask
        expect(Status.APPLICATION_TAG_CHECK_ERROR, differing)
    if asked & CHECK_REFERENCE_TAG and kept.protection != 3:
        mask = _mask(protection, reference_mask)
        expect(Status.REFERENCE_TAG_CHECK_ERROR, (different & mask).any(axis=1))
    bad = [(int(blocks.argmax()), status) for status, blocks in wrong if blocks.any()]
    if bad:
        at, status = min(bad, key=itemgetter(0))
        name = status.name.removesuffix("_CHECK_ERROR").replace("_", " ").lower()
        raise NvmeError(status, f"the {name} of block {slba + at} is wrong", lba=slba + at)


def _spaces(protection: ProtectionRequest, first: int, count: int) -> Bytes:
    return np.frombuffer(protection.spaces(first, count), np.uint8).reshape(count, -1)


def _rows(data: memoryview, count: int) -> Bytes:
    return np.frombuffer(data, np.uint8).reshape(count, -1)


def _covered(kept: Metadata, rows: Bytes) -> Bytes:
    """The metadata that the guard covers: what is before the protection information."""
    return rows[:, : kept.protection_at]


def _fields(kept: Metadata, rows: Bytes) -> Bytes:
    return rows[:, kept.protection_at : kept.protection_at + kept.protection_size]


def _mask(protection: ProtectionRequest, bits: int) -> Bytes:
    """The bits of storage and reference tag, as bytes."""
    size = SPACE_BITS[protection.metadata.guard]
    return np.frombuffer((bits & (1 << size) - 1).to_bytes(size // 8, "big"), np.uint8)

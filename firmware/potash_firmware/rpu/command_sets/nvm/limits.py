"""Limits and properties of the I/O commands that Identify reports.

VSL, WZSL, WUSL, DMRL, DMRSL and DMSL are 0 (no limit), as those commands are done in steps; Copy is
done in one, so that it reads all of its sources before it writes.

Source: NVM Command Set Specification 1.0, section 4.1.5 (Identify data structures)."""

from typing import Any, NamedTuple

from nvme_spec.identify.capabilities import Dlfeat, Fuses, Nsfeat
from nvme_spec.ranges import COPY_FORMAT_0, COPY_FORMAT_1
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.transfer import MAX_TRANSFER

MOST_SOURCE_RANGES = 128
COPY_SIZE = 2 * MAX_TRANSFER
"""Bytes that one Copy moves at most; one of its ranges holds half as much."""

COMPARE_AND_WRITE_BLOCKS = 1
"""ACWU: as much as is written atomically in any case."""

GRANULARITY = 4096
"""Bytes that most file systems allocate and deallocate at a time."""

DEALLOCATION = Dlfeat.READS_ZEROES | Dlfeat.WRITE_ZEROES_DEALLOCATES
"""DLFEAT."""


class CopyLimits(NamedTuple):
    """The limits of a Copy, in blocks and ranges."""

    mssrl: int
    mcl: int
    msrc_z: int


def copy_limits(block_size: int) -> CopyLimits:
    """The limits of a namespace with such blocks."""
    return CopyLimits(MAX_TRANSFER // block_size, COPY_SIZE // block_size, MOST_SOURCE_RANGES - 1)


CONTROLLER_FIELDS: dict[str, Any] = {
    "fuses": Fuses.COMPARE_AND_WRITE,
    "acwu_z": COMPARE_AND_WRITE_BLOCKS - 1,
    "copy_formats": 1 << COPY_FORMAT_0 | 1 << COPY_FORMAT_1,
}
"""The limits in Identify Controller."""


def namespace_fields(namespace: Namespace) -> dict[str, Any]:
    """The limits in Identify Namespace."""
    preferred_z = max(GRANULARITY // namespace.block_size, 1) - 1
    features = Nsfeat.OPTIMAL_PERFORMANCE
    if namespace.knows_deallocated:
        features |= Nsfeat.DEALLOCATED_BLOCK_ERROR
    return {
        **copy_limits(namespace.block_size)._asdict(),
        "nsfeat": features,
        "dlfeat": DEALLOCATION,
        "npwg_z": preferred_z,
        "npwa_z": preferred_z,
        "npdg_z": preferred_z,
        "npda_z": preferred_z,
        "nows_z": preferred_z,
    }

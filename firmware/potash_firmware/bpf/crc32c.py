"""CRC-32C, the checksum of iSCSI, ext4, Btrfs and NVMe's own transports, many bytes at a time.

Reflected polynomial 82F63B78h (RFC 3720, section 12.1). Numpy has no loop that carries a CRC, so
the data is cut into lanes of equal length that are computed side by side, two bytes of each at a
time. A CRC is linear: that of two adjacent pieces is that of the first, advanced by as many zeroes
as the second has bytes, plus that of the second. So lanes are joined in pairs, and the pairs again.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

POLYNOMIAL = 0x82F6_3B78

_MASK = 0xFFFF_FFFF
_FEW = 1 << 11
"""Bytes up to which lanes are not worth it."""
_PIECE = 1 << 22
"""Bytes that are cut into lanes at a time: what the processor's cache holds."""
_STEP = 2
"""Bytes of a lane that one look into a table stands for."""

Words = npt.NDArray[np.uint32]


def _byte_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _byte_table()
_BYTES = np.array(_TABLE, np.uint32)


def _over_zero(states: Words) -> Words:
    after: Words = (states >> np.uint32(8)) ^ _BYTES[states & np.uint32(0xFF)]
    return after


_PAIRS = _over_zero(_over_zero(np.arange(1 << 16, dtype=np.uint32)))
"""The state that follows from the low half of a state after two bytes of zero."""


def crc32c(data: memoryview | bytes, crc: int = 0) -> int:
    """The CRC-32C of `data`; of what gave `crc`, followed by `data`, when that is given."""
    state, at = crc ^ _MASK, 0
    while len(data) - at > _FEW:
        left = len(data) - at
        lanes = 1 << 14 if left >= 1 << 20 else 1 << 10
        length = min(left, _PIECE) // (lanes * _STEP) * _STEP
        state = _in_lanes(np.frombuffer(data, "<u2", lanes * length // _STEP, at), lanes, state)
        at += lanes * length
    for byte in bytes(data[at:]):
        state = state >> 8 ^ _TABLE[(state ^ byte) & 0xFF]
    return state ^ _MASK


def _in_lanes(data: npt.NDArray[np.uint16], lanes: int, state: int) -> int:
    """The state after `data`, cut into `lanes` (a power of two) lanes."""
    length = len(data) // lanes
    states = np.zeros(lanes, np.uint32)
    states[0] = state
    for column in np.ascontiguousarray(data.reshape(lanes, length).T):
        states = (states >> np.uint32(16)) ^ _PAIRS[states.astype(np.uint16) ^ column]
    length *= _STEP
    while len(states) > 1:
        states = _over_zeroes(states[0::2], length) ^ states[1::2]
        length *= 2
    return int(states[0])


def _over_zeroes(states: Words, count: int) -> Words:
    tables = _zeroes(count)
    after: Words = tables[0][states & np.uint32(0xFF)]
    for at in range(1, 4):
        after = after ^ tables[at][states >> np.uint32(8 * at) & np.uint32(0xFF)]
    return after


@lru_cache(maxsize=256)
def _zeroes(count: int) -> Words:
    """For each byte of a state, what its values become after `count` bytes of zero: 4 by 256."""
    values = np.arange(256, dtype=np.uint32)
    tables: Words = np.stack([values << np.uint32(8 * at) for at in range(4)])
    if count == 0:
        return tables
    half = _over_zeroes(_over_zeroes(tables, count // 2), count // 2)
    return _over_zero(half) if count % 2 else half

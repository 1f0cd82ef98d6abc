"""The guards of protection information: CRCs of many blocks at once.

A CRC is linear: that of a block is the exclusive or of what each byte contributes at its place, and
of the CRC of as many zeroes. So numpy looks all bytes up in a table of their places and adds the
results. Tables of long blocks would not stay in the processor's cache: the lookups give a state for
each piece of 512 bytes, and a second table adds the bytes of these states.

Source: NVM Command Set Specification 1.0, section 5.2.1; the CRC-16 is that of SBC-4 (T10 DIF).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
"""An array of bytes of shape (blocks, bytes)."""
Words = npt.NDArray[Any]
"""Unsigned integers as wide as a guard."""

_PIECE = 512
"""Bytes whose contributions one table has."""
_BLOCKS = 16
"""Blocks that are computed together: their bytes' places are kept in the cache."""


@dataclass(frozen=True, eq=False)
class Crc:
    """The parameters of a CRC, with the polynomial as reflected as the CRC is."""

    type: Any
    """NumPy's unsigned integer of a state."""
    polynomial: int
    reflected: bool = True
    initial: int = 0
    inverted: int = 0

    @property
    def bits(self) -> int:
        """Bytes of a state."""
        return int(8 * np.dtype(self.type).itemsize)


CRCS = {
    16: Crc(np.uint16, 0x8BB7, reflected=False),
    32: Crc(np.uint32, 0x82F6_3B78, initial=0xFFFF_FFFF, inverted=0xFFFF_FFFF),
    64: Crc(np.uint64, 0x9A6C_9329_AC4B_C9B5, initial=(1 << 64) - 1, inverted=(1 << 64) - 1),
}
"""The CRCs by the bits of the guard: T10 DIF, Castagnoli, and NVM Express's own."""


def guards(bits: int, blocks: Bytes, metadata: Bytes) -> Words:
    """The guard of each block, followed by those bytes of its metadata that the guard covers."""
    crc, covered = CRCS[bits], metadata.shape[1]
    found = np.empty(len(blocks), crc.type)
    for at in range(0, len(blocks), _BLOCKS):
        part = slice(at, at + _BLOCKS)
        found[part] = _sum(crc, blocks[part], covered)
        if covered:
            found[part] ^= _sum(crc, metadata[part], 0)
    found ^= crc.type(_zeroes(crc, blocks.shape[1] + covered))
    return found


def _sum(crc: Crc, data: Bytes, behind: int) -> Words:
    """The contribution of `data` with `behind` more bytes after it."""
    length = data.shape[1]
    if length % _PIECE or length == _PIECE:
        return _looked_up(data, _places(crc, length, 1, behind))
    states = _looked_up(data.reshape(-1, _PIECE), _places(crc, _PIECE, 1, 0))
    state_bytes = states.view(np.uint8).reshape(len(data), -1)  # little-endian, as all this runs on
    table = _places(crc, length // _PIECE, states.itemsize, behind)
    return _looked_up(state_bytes, table)


def _looked_up(data: Bytes, table: Words) -> Words:
    found: Words = np.bitwise_xor.reduce(table.take(data + _rows(data.shape[1])), axis=1)
    return found


@lru_cache(maxsize=64)
def _rows(count: int) -> npt.NDArray[np.int64]:
    """The index in a table at which the row of each byte begins."""
    return np.arange(count) * 256


@lru_cache(maxsize=64)
def _places(crc: Crc, count: int, state: int, behind: int) -> Words:
    """A table of `count * state` rows of 256 values, one behind the other.

    With `state` 1, a row is for a byte of data at its place; else for a byte of the state after a
    piece, of `count` pieces. Either has `behind` more bytes behind it.
    """
    values = np.arange(256, dtype=crc.type)
    if state == 1:
        last, step = _over_zero(crc, values << crc.type(0 if crc.reflected else crc.bits - 8)), 1
        last = last[np.newaxis]
    else:
        last, step = np.stack([values << crc.type(8 * at) for at in range(state)]), _PIECE
    for _ in range(behind):
        last = _over_zero(crc, last)
    rows = [last]
    for _ in range(count - 1):
        for _ in range(step):
            last = _over_zero(crc, last)
        rows.append(last)
    table: Words = np.concatenate(rows[::-1]).ravel()
    return table


def _over_zero(crc: Crc, states: Words) -> Words:
    table = _byte_table(crc)
    after: Words
    if crc.reflected:
        after = (states >> crc.type(8)) ^ table[states & crc.type(0xFF)]
    else:
        after = (states << crc.type(8)) ^ table[states >> crc.type(crc.bits - 8)]
    return after


@lru_cache
def _byte_table(crc: Crc) -> Words:
    table = []
    top = 1 << crc.bits - 1
    for value in range(256):
        state = value if crc.reflected else value << crc.bits - 8
        for _ in range(8):
            if crc.reflected:
                state = state >> 1 ^ (crc.polynomial if state & 1 else 0)
            else:
                state = (state << 1 & top * 2 - 1) ^ (crc.polynomial if state & top else 0)
        table.append(state)
    return np.array(table, crc.type)


@lru_cache(maxsize=64)
def _zeroes(crc: Crc, length: int) -> int:
    table, state, mask = _byte_table(crc).tolist(), crc.initial, (1 << crc.bits) - 1
    for _ in range(length):
        if crc.reflected:
            state = state >> 8 ^ table[state & 0xFF]
        else:
            state = (state << 8 & mask) ^ table[state >> crc.bits - 8]
    return int(state) ^ crc.inverted

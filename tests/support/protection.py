"""Protection information as the standard draws it, apart from the code under test.

NVM Command Set Specification 1.0, section 5.2: CRCs one bit at a time, fields by `struct`.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass


def crc16(data: bytes) -> int:
    """T10 DIF: polynomial 8BB7h, the first bit of a byte first."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x8BB7 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc


def _reflected(polynomial: int, bits: int) -> Callable[[bytes], int]:
    turned = int(f"{polynomial:0{bits}b}"[::-1], 2)
    ones = (1 << bits) - 1

    def crc(data: bytes) -> int:
        state = ones
        for byte in data:
            state ^= byte
            for _ in range(8):
                state = state >> 1 ^ turned if state & 1 else state >> 1
        return state ^ ones

    return crc


crc32c = _reflected(0x1EDC_6F41, 32)
crc64 = _reflected(0xAD93_D235_94C9_3659, 64)

CRCS: dict[int, Callable[[bytes], int]] = {16: crc16, 32: crc32c, 64: crc64}


@dataclass(frozen=True)
class Format:
    """An LBA format that is protected: its index, sizes, and what is in its metadata."""

    index: int
    block: int
    metadata: int
    guard: int = 16
    tag_bits: int = 0
    first: bool = False

    @property
    def size(self) -> int:
        return 8 if self.guard == 16 else 16

    def information(self, guard: int, application: int, space: int) -> bytes:
        """The 8 or 16 bytes; `space` is storage tag and reference tag."""
        rest = self.size - self.guard // 8 - 2
        return (
            guard.to_bytes(self.guard // 8, "big")
            + struct.pack(">H", application)
            + space.to_bytes(rest, "big")
        )

    def protected(self, data: bytes, other: bytes, application: int, space: int) -> bytes:
        """The metadata of a block, `other` being what of it is no protection information."""
        crc = CRCS[self.guard]
        if self.first:
            return self.information(crc(data), application, space) + other
        return other + self.information(crc(data + other), application, space)

    def dwords(self, space: int) -> tuple[int, int, int]:
        """CDW2, CDW3 and CDW14."""
        return space >> 64 & 0xFFFF, space >> 32 & 0xFFFF_FFFF, space & 0xFFFF_FFFF

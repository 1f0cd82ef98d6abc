"""Checksums, bit by bit."""


def crc32c_bitwise(data: bytes, seed: int = 0) -> int:
    """One bit at a time, by the polynomial 1EDC6F41h with its bits in the other order."""
    register = seed ^ 0xFFFF_FFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F6_3B78 if register & 1 else 0)
    return register ^ 0xFFFF_FFFF

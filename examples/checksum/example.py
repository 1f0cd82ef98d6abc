"""The data that `program.c` checksums, and the checksums in plain Python.

    python examples/checksum/example.py

writes `input.bin` and `expected.bin` beside this file.
"""

import random
import struct
from pathlib import Path

SIZE = 1_000_000
"""Bytes: the last page is not whole."""
PAGE = 4096

POLYNOMIAL = 0x82F6_3B78
"""CRC-32C, its bits reversed (RFC 3720, section 12.1)."""


def input_data() -> bytes:
    """Noise, the same each time."""
    return random.Random(3720).randbytes(SIZE)


def arguments(data: bytes) -> list[bytes]:
    """What the program is started with."""
    return [struct.pack("<I", len(data))]


def expected(data: bytes) -> bytes:
    """The CRC-32C of all of it, and then that of each page."""
    pages = [data[at : at + PAGE] for at in range(0, len(data), PAGE)]
    return struct.pack(f"<{len(pages) + 1}I", *(crc32c(part) for part in (data, *pages)))


def crc32c(data: bytes) -> int:
    """A byte at a time, with a table of what each does to the rest."""
    state = 0xFFFF_FFFF
    for byte in data:
        state = state >> 8 ^ TABLE[state & 0xFF ^ byte]
    return state ^ 0xFFFF_FFFF


def table() -> list[int]:
    """What eight bits that leave the register do to the others."""
    made = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ POLYNOMIAL * (value & 1)
        made.append(value)
    return made


TABLE = table()


def describe(data: bytes, output: bytes) -> list[str]:
    """What to show of it."""
    whole, first = struct.unpack_from("<II", output)
    return [
        (
            f"{len(data)} bytes have the CRC-32C {whole:08x},"
            f" and the first of their {len(output) // 4 - 1} pages has {first:08x}"
        )
    ]


if __name__ == "__main__":
    made = input_data()
    for name, content in (("input.bin", made), ("expected.bin", expected(made))):
        (Path(__file__).parent / name).write_bytes(content)

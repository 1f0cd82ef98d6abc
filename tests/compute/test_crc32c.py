"""CRC-32C against the examples of RFC 3720, and against one bit at a time."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_firmware.bpf.crc32c import crc32c

# RFC 3720, appendix B.4, whose bytes are in the order of the wire.
EXAMPLES = [
    (bytes(32), "aa36918a"),
    (b"\xff" * 32, "43aba862"),
    (bytes(range(32)), "4e79dd46"),
    (bytes(range(31, -1, -1)), "5cdb3f11"),
    (
        bytes.fromhex(
            "01c00000000000000000000000000000140000000000040000000014000000182800000000000000"
            "0200000000000000"
        ),
        "563a96d9",
    ),
]


@pytest.mark.parametrize(("data", "wire"), EXAMPLES)
def test_the_examples_of_the_standard(data: bytes, wire: str) -> None:
    assert crc32c(data).to_bytes(4, "little").hex() == wire


def bit_by_bit(data: bytes) -> int:
    """Polynomial division as it is defined: 11EDC6F41h, each byte's lowest bit first."""
    register = 0xFFFF_FFFF
    for byte in data:
        for bit in range(8):
            out = register >> 31 ^ byte >> bit & 1
            register = register << 1 & 0xFFFF_FFFF ^ (0x1EDC_6F41 if out else 0)
    return int(f"{register ^ 0xFFFF_FFFF:032b}"[::-1], 2)


NOISE = random.Random(1).randbytes(40_000)


@pytest.mark.parametrize("length", [0, 1, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 36_865])
def test_lengths_around_those_at_which_the_way_of_counting_changes(length: int) -> None:
    assert crc32c(NOISE[:length]) == bit_by_bit(NOISE[:length])
    assert crc32c(memoryview(NOISE)[3 : 3 + length]) == bit_by_bit(NOISE[3 : 3 + length])


@given(st.integers(0, 40_000), st.integers(0, 40_000))
def test_two_pieces_are_as_good_as_one(first: int, second: int) -> None:
    begin, end = sorted((first, second))
    assert crc32c(NOISE[begin:end], crc32c(NOISE[:begin])) == crc32c(NOISE[:end])


def test_much_at_once_is_as_good_as_little_by_little() -> None:
    data = random.Random(2).randbytes((5 << 20) + 12_345)
    crc = 0
    for at in range(0, len(data), 2000):
        crc = crc32c(data[at : at + 2000], crc)
    assert crc32c(data) == crc

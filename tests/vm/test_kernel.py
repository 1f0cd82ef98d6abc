"""The kernel out of a bzImage built by hand from the boot protocol's table of fields."""

from __future__ import annotations

import gzip
import lzma
import struct

import pytest

from potash.sdk.errors import PotashError
from potash.vm.images import vmlinux

ELF = b"\x7fELF" + bytes(range(256)) * 8


def no_zstd(data: bytes) -> bytes:
    raise AssertionError("this kernel is not compressed with Zstandard")


def image(
    payload: bytes, *, sectors: int = 3, offset: int = 0x40, length: int | None = None
) -> bytes:
    """setup_sects at 1F1h, "HdrS" at 202h, payload_offset and _length at 248h and 24Ch."""
    head = bytearray(((sectors or 4) + 1) * 512)
    head[0x1F1] = sectors
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", head, 0x248, offset, len(payload) if length is None else length)
    return bytes(head) + bytes(offset) + payload + b"after the payload"


@pytest.mark.parametrize("sectors", [0, 1, 39])
def test_the_payload_is_found_behind_any_number_of_setup_sectors(sectors: int) -> None:
    assert vmlinux(image(gzip.compress(ELF), sectors=sectors), no_zstd) == ELF


def test_xz_and_the_size_that_linux_appends_to_it() -> None:
    assert vmlinux(image(lzma.compress(ELF) + struct.pack("<I", len(ELF))), no_zstd) == ELF


def test_zstandard_is_left_to_who_can() -> None:
    packed = b"\x28\xb5\x2f\xfd" + b"frame"
    asked: list[bytes] = []

    def zstd(data: bytes) -> bytes:
        asked.append(data)
        return ELF

    assert vmlinux(image(packed), zstd) == ELF
    assert asked == [packed]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a Linux"),
        (b"MZ" + bytes(2000), "not a Linux"),
        (image(gzip.compress(ELF), length=1 << 30), "cut short"),
        (image(b"", length=0), "cut short"),
        (image(b"LZIP" + ELF), "unknown way"),
        (image(gzip.compress(b"no ELF")), "ELF"),
    ],
)
def test_anything_else_is_one_sentence(data: bytes, reason: str) -> None:
    with pytest.raises(PotashError, match=reason):
        vmlinux(data, no_zstd)

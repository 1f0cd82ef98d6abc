"""Copy and Get LBA Status: fields and lists, byte by byte as the NVM Command Set has them."""

import struct

import pytest

from nvme_spec.ranges import Copy, GetLbaStatus, LbaStatusCompletion, SourceRange, encode_lba_status


def test_the_fields_of_copy() -> None:
    dw12 = 0x7F | 1 << 8 | 2 << 12 | 3 << 20 | 5 << 26 | 1 << 30
    assert Copy.decode((0x44332211, 0x88776655, dw12, 0, 0, 0)) == Copy(
        sdlba=0x8877665544332211,
        nr_z=127,
        desfmt=1,
        prinfor=2,
        dtype=3,
        prinfow=5,
        fua=True,
        lr=False,
    )
    assert Copy.decode((0, 0, 1 << 31, 0, 0, 0)).lr
    assert Copy(0, 127).length == 4096


def test_source_ranges_of_format_0() -> None:
    first = bytes(8) + struct.pack("<Q", 1 << 40) + struct.pack("<H", 7) + bytes(14)
    second = bytes([0xFF]) * 8 + bytes(8) + b"\xff\xff" + bytes([0xFF]) * 14
    assert list(SourceRange.decode_list(first + second)) == [
        SourceRange(1 << 40, 7),
        SourceRange(0, 65535, 0xFFFF_FFFF, 0xFFFF, 0xFFFF),
    ]
    assert SourceRange(0, 65535).blocks == 65536
    with pytest.raises(struct.error):
        list(SourceRange.decode_list(first[:-1]))


def test_the_fields_of_get_lba_status() -> None:
    fields = GetLbaStatus.decode((1, 2, 9, 0x10 << 24 | 0xFFFF, 0, 0))
    assert fields == GetLbaStatus(2 << 32 | 1, 9, 0xFFFF, 0x10)
    assert fields.length == 40


def test_an_lba_status_list() -> None:
    page = encode_lba_status([(5, 2), (1 << 40, 1)], LbaStatusCompletion.COMPLETE)
    assert page.hex() == (
        "02000000" "02000000"
        "0500000000000000" "02000000" "00000000"
        "0000000000010000" "01000000" "00000000"
    )  # fmt: skip

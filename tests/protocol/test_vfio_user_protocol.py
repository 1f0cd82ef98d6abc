"""The codec against bytes written out from vfio-user.rst, offset by offset."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvfio_user import protocol
from pyvfio_user.payloads import (
    DeviceInfo,
    DmaMap,
    DmaUnmap,
    IrqInfo,
    RegionAccess,
    RegionCapabilities,
    RegionData,
    RegionInfo,
    RegionIoFds,
    RegionWriteMulti,
    RegionWriteMultiReply,
    SetIrqs,
    SubRegion,
    Version,
)
from pyvfio_user.protocol import Command, Header, IrqSetFlags, ProtocolError

# Each payload beside the bytes that the tables of vfio-user.rst make of it.
PAYLOADS: list[tuple[Any, str]] = [
    (Header(0x1234, 10, 0x24, 0x10, 0), "3412 0a00 24000000 10000000 00000000"),
    (Header(0xFFFF, 2, 16, 0x21, 17), "ffff 0200 10000000 21000000 11000000"),
    (
        DmaMap(32, 3, 0x1000, 0x1_0000_0000, 0x20_0000),
        "20000000 03000000 0010000000000000 0000000001000000 0000200000000000",
    ),
    (DmaUnmap(24, 2, 0, 0), "18000000 02000000 0000000000000000 0000000000000000"),
    (DeviceInfo(16, 3, 9, 5), "10000000 03000000 09000000 05000000"),
    (
        RegionInfo(32, 3, 7, 0, 0x1000, 0),
        "20000000 03000000 07000000 00000000 0010000000000000 0000000000000000",
    ),
    (IrqInfo(16, 9, 2, 16), "10000000 09000000 02000000 10000000"),
    (SetIrqs(24, 0x24, 2, 1, 3), "18000000 24000000 02000000 01000000 03000000"),
    (SetIrqs(23, 0x22, 2, 0, 3, b"\1\0\1"), "17000000 22000000 02000000 00000000 03000000 010001"),
    (RegionIoFds(96, 0, 4, 2), "60000000 00000000 04000000 02000000"),
    (
        SubRegion(0x1000, 4, 1, 1, 2, 0, 0x55),
        "0010000000000000 0400000000000000 01000000 01000000 02000000 00000000 5500000000000000",
    ),
    (RegionAccess(0x1008, 0, 4), "0810000000000000 00000000 04000000"),
    (RegionData(0x1008, 2, b"\xaa\xbb"), "0810000000000000 02000000 02000000 aabb"),
    (RegionWriteMulti(()), "0000000000000000"),
    (
        RegionWriteMulti((RegionData(0x1000, 0, b"\1\2\3\4"), RegionData(8, 7, b"12345678"))),
        (
            "0200000000000000"
            "0010000000000000 00000000 04000000 0102030400000000"
            "0800000000000000 07000000 08000000 3132333435363738"
        ),
    ),
    (RegionWriteMultiReply(2), "0200000000000000"),
    (Version(0, 1, {}), "0000 0100"),
    (Version(0, 0, {"a": 1}), "00000000" + b'{"capabilities":{"a":1}}\0'.hex()),
]


@pytest.mark.parametrize(("value", "wire"), PAYLOADS, ids=lambda p: type(p).__name__)
def test_a_payload_has_the_form_of_the_specification(value: Any, wire: str) -> None:
    expected = bytes.fromhex(wire)
    assert value.encode() == expected
    assert type(value).decode(expected) == value
    assert type(value).decode(memoryview(expected)) == value


@pytest.mark.parametrize(("value", "wire"), PAYLOADS[:-2], ids=lambda p: type(p).__name__)
def test_a_payload_of_another_size_is_refused(value: Any, wire: str) -> None:
    data = bytes.fromhex(wire)
    longer = [] if value == SetIrqs(24, 0x24, 2, 1, 3) else [data + b"\0"]
    for wrong in (data[:-1], b"", *longer):
        with pytest.raises(ProtocolError):
            type(value).decode(wrong)


def test_commands_have_the_numbers_of_the_specification() -> None:
    assert {command.name: command.value for command in Command} == {
        "VERSION": 1,
        "DMA_MAP": 2,
        "DMA_UNMAP": 3,
        "DEVICE_GET_INFO": 4,
        "DEVICE_GET_REGION_INFO": 5,
        "DEVICE_GET_REGION_IO_FDS": 6,
        "DEVICE_GET_IRQ_INFO": 7,
        "DEVICE_SET_IRQS": 8,
        "REGION_READ": 9,
        "REGION_WRITE": 10,
        "DMA_READ": 11,
        "DMA_WRITE": 12,
        "DEVICE_RESET": 13,
        "REGION_WRITE_MULTI": 15,
        "DEVICE_FEATURE": 16,
        "MIG_DATA_READ": 17,
        "MIG_DATA_WRITE": 18,
    }


def test_whole_messages() -> None:
    assert protocol.encode_command(5, 13) == struct.pack("<HHIII", 5, 13, 16, 0, 0)
    assert protocol.encode_command(5, 10, b"abcd", no_reply=True) == (
        struct.pack("<HHIII", 5, 10, 20, 0x10, 0) + b"abcd"
    )
    assert protocol.encode_reply(5, 9, b"ab") == struct.pack("<HHIII", 5, 9, 18, 1, 0) + b"ab"
    assert protocol.encode_error(5, 9, 22) == struct.pack("<HHIII", 5, 9, 16, 0x21, 22)


def test_a_header_tells_replies_and_errors() -> None:
    reply = Header.decode(struct.pack("<HHIII", 1, 2, 16, 0x21, 17))
    assert (reply.is_reply, reply.is_error, reply.error) == (True, True, 17)
    posted = Header.decode(struct.pack("<HHIII", 1, 10, 40, 0x10, 0))
    assert (posted.is_reply, posted.is_error) == (False, False)


@pytest.mark.parametrize(
    ("size", "flags"), [(15, 0), (0, 0), (16, 2), (16, 0xF)], ids=["short", "no size", "2", "15"]
)
def test_a_header_that_cannot_be_is_refused(size: int, flags: int) -> None:
    with pytest.raises(ProtocolError):
        Header.decode(struct.pack("<HHIII", 1, 2, size, flags, 0))


def _version(data: bytes) -> bytes:
    return struct.pack("<HH", 0, 0) + data


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"\0",
        b"{\0",
        b"[]\0",
        b'"capabilities"\0',
        b'{"capabilities": 3}\0',
        b'{"capabilities": null}\0',
        b"\xff\xfe\0",
        b"{}\0\0",
        b'{"capabilities":{"max_msg_fds":"8"}}\0',
        b'{"capabilities":{"max_msg_fds":-1}}\0',
        b'{"capabilities":{"max_msg_fds":true}}\0',
        b'{"capabilities":{"max_data_xfer_size":1.5}}\0',
        b'{"capabilities":{"max_dma_maps":null}}\0',
        b'{"capabilities":{"pgsizes":[4096]}}\0',
        b'{"capabilities":{"twin_socket":true}}\0',
        b'{"capabilities":{"write_multiple":1}}\0',
        b"[" * 4000 + b"\0",
        b"1" * 4095 + b"\0",
        b" " * 5000 + b"{}\0",
    ],
    ids=lambda data: repr(data[-32:]),
)
def test_version_data_without_capabilities_of_the_right_types_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Version.decode(_version(data))


def test_version_data_may_be_missing_or_say_nothing() -> None:
    assert Version.decode(_version(b"")).capabilities == {}
    assert Version.decode(_version(b"{}\0")).capabilities == {}
    assert Version.decode(_version(b'{"other": 1}\0')).capabilities == {}


def test_a_capability_that_is_missing_has_its_default_and_an_unknown_one_is_left_alone() -> None:
    data = b'{"capabilities":{"max_msg_fds":4,"other":"x","write_multiple":true}}\0'
    version = Version.decode(_version(data))
    assert version.limit("max_msg_fds", 1) == 4
    assert version.limit("max_data_xfer_size", 1 << 20) == 1 << 20
    assert version.flag("write_multiple")
    assert not Version.decode(_version(b"{}\0")).flag("write_multiple")


@pytest.mark.parametrize(
    "flags", [0x00, 0x04, 0x20, 0x2C, 0x26, 0x38, 0x64], ids=lambda flags: f"{flags:#x}"
)
def test_an_irq_set_has_one_kind_of_data_and_one_action(flags: int) -> None:
    with pytest.raises(ProtocolError):
        SetIrqs.decode(struct.pack("<IIIII", 20, flags, 2, 0, 0))


def test_an_irq_set_has_a_boolean_for_each_interrupt_and_else_no_data() -> None:
    form, flags = "<IIIII", IrqSetFlags.DATA_BOOL | IrqSetFlags.ACTION_TRIGGER
    for data in (b"\1\1", b"\1\1\1\1"):
        with pytest.raises(ProtocolError):
            SetIrqs.decode(struct.pack(form, 24, flags, 2, 0, 3) + data)
    with pytest.raises(ProtocolError, match="argsz"):
        SetIrqs.decode(struct.pack(form, 22, flags, 2, 0, 3) + b"\1\1\1")
    with pytest.raises(ProtocolError, match="argsz"):
        SetIrqs.decode(struct.pack(form, 19, 0x21, 2, 0, 3))
    # Eventfds travel beside the message; VFIO has room for their numbers in it.
    assert SetIrqs.decode(struct.pack(form, 32, 0x24, 2, 0, 3) + bytes(12)).data == b""


def test_coalesced_writes_are_bounded_and_short() -> None:
    one = struct.pack("<QII8s", 0, 0, 4, b"abcd")
    assert len(RegionWriteMulti.decode(struct.pack("<Q", 200) + one * 200).writes) == 200
    for data in (
        struct.pack("<Q", 201) + one * 201,
        struct.pack("<Q", 2) + one,
        struct.pack("<Q", 1 << 63),
        struct.pack("<Q", 1) + struct.pack("<QII8s", 0, 0, 9, b""),
    ):
        with pytest.raises(ProtocolError):
            RegionWriteMulti.decode(data)


def test_a_field_out_of_its_range_is_not_encoded() -> None:
    for encode in (
        DmaMap(32, 3, 0, -1, 1).encode,
        RegionAccess(1 << 64, 0, 1).encode,
        RegionData(-1, 0, b"a").encode,
        SetIrqs(20, 0x24, 2, 1 << 32, 1).encode,
    ):
        with pytest.raises(ProtocolError, match="out of its range"):
            encode()


DECODERS: list[Callable[[bytes], object]] = [
    Header.decode,
    Version.decode,
    DmaMap.decode,
    DmaUnmap.decode,
    DeviceInfo.decode,
    RegionInfo.decode,
    RegionCapabilities.decode,
    RegionIoFds.decode,
    SubRegion.decode_all,
    IrqInfo.decode,
    SetIrqs.decode,
    RegionAccess.decode,
    RegionData.decode,
    RegionWriteMulti.decode,
    RegionWriteMultiReply.decode,
]


@given(data=st.binary(max_size=80))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for decode in DECODERS:
        try:
            decode(data)
        except ProtocolError as error:
            assert str(error)

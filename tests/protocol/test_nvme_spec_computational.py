"""The Computational Programs command set, byte by byte from tables of what implementers agree
on."""

import struct
from typing import Any

import pytest

from nvme_spec.computational import (
    ComputeNamespace,
    Execute,
    LoadProgram,
    MemoryRange,
    ProgramActivation,
    ProgramDescriptor,
    ProgramTypeDescriptor,
    RangeSetManagement,
    encode_program_list,
    encode_program_types,
    encode_range_sets,
)
from nvme_spec.queues import SubmissionEntry
from nvme_spec.status import Status

COMMANDS: list[tuple[Any, tuple[int, ...]]] = [
    (
        LoadProgram(0x1234, 0xC0, 0, 1, 0x2000, pid=0x8877_6655_4433_2211, numb=0x1000, loff=0x800),
        (0x02C0_1234, 0x2000, 0x4433_2211, 0x8877_6655, 0x1000, 0x800),
    ),
    (LoadProgram(3, sel=1), (0x0100_0003, 0, 0, 0, 0, 0)),
    (LoadProgram(0xFFFF, 0xFF, 1, 7), (0x0FFF_FFFF, 0, 0, 0, 0, 0)),
    (ProgramActivation(0x0102, 1), (0x0001_0102, 0, 0, 0, 0, 0)),
    (ProgramActivation(7, 15), (0x000F_0007, 0, 0, 0, 0, 0)),
    (RangeSetManagement(0, numr=255), (0, 255, 0, 0, 0, 0)),
    (RangeSetManagement(1, rsid=0xABCD), (0xABCD_0001, 0, 0, 0, 0, 0)),
]


@pytest.mark.parametrize(("command", "dwords"), COMMANDS)
def test_dwords_of_admin_commands(command: Any, dwords: tuple[int, ...]) -> None:
    assert command.encode() == dwords
    assert type(command).decode(dwords) == command


@pytest.mark.parametrize(
    "command",
    [
        LoadProgram(1 << 16),
        LoadProgram(0, psize=1 << 32),
        LoadProgram(0, pid=1 << 64),
        ProgramActivation(0, 16),
        RangeSetManagement(0, numr=256),
    ],
)
def test_a_value_that_does_not_fit_is_refused(command: Any) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        command.encode()


def test_reserved_bits_are_ignored() -> None:
    assert LoadProgram.decode((0xF000_0000, 0, 0, 0, 0, 0)) == LoadProgram(0)
    assert ProgramActivation.decode((0xFFF0_0000, 1, 1, 1, 1, 1)) == ProgramActivation(0, 0)
    given = (0x0000_FFF1, 0xFFFF_FF02, 1, 1, 1, 1)
    assert RangeSetManagement.decode(given) == RangeSetManagement(1, 0, 2)


def test_an_execute_command() -> None:
    raw = bytearray(64)
    raw[0] = 0x01
    struct.pack_into("<I", raw, 4, 3)  # NSID
    struct.pack_into("<HHII", raw, 8, 0x0102, 0x0304, 2, 70)  # PIND, RSID, NUMR, DLEN
    struct.pack_into("<QQ", raw, 40, 0x1122_3344_5566_7788, 0x99AA_BBCC_DDEE_FF00)
    execute = Execute.decode(SubmissionEntry.decode(raw))
    assert execute == (0x0102, 0x0304, 2, 70, 0x1122_3344_5566_7788, 0x99AA_BBCC_DDEE_FF00)
    assert SubmissionEntry(1, nsid=3, **execute.fields()).encode() == raw
    struct.pack_into("<I", raw, 20, 0xFFFF_FFFF)  # CDW5 is reserved
    assert Execute.decode(SubmissionEntry.decode(raw)) == execute


def test_memory_range_descriptors() -> None:
    raw = struct.pack("<IIQ", 2, 0x1000, 1 << 40) + bytes(16)
    assert MemoryRange(2, 0x1000, 1 << 40).encode() == raw
    assert list(MemoryRange.decode_list(raw * 2)) == [(2, 0x1000, 1 << 40)] * 2
    assert list(MemoryRange.decode_list(raw[:16] + b"\xff" * 16)) == [(2, 0x1000, 1 << 40)]
    with pytest.raises(struct.error):
        list(MemoryRange.decode_list(raw[:-1]))


def test_identify_of_a_compute_namespace() -> None:
    raw = bytes(
        ComputeNamespace(
            maxact=0x0102, maxmemrs=0x0304, mrsg=12, maxmemr=8, maxpb=0x1122_3344_5566_7788, lpg=3
        )
    )
    assert raw[:17].hex() == "0201" "0403" "0c00" "08" "00" "8877665544332211" "03"  # fmt: skip
    assert raw[17:] == bytes(4079)


def test_the_program_list() -> None:
    page = encode_program_list(
        [
            ProgramDescriptor(peocc=2, act=1),
            ProgramDescriptor(),
            ProgramDescriptor(peocc=1, act=1, pit=1, ptype=0xC0, pid=0x0102_0304_0506_0708),
        ]
    )
    assert page[:64] == struct.pack("<I", 3) + bytes(60)
    assert page[64:128] == b"\x06" + bytes(63)
    assert page[128:192] == bytes(64)
    assert page[192:] == bytes.fromhex("0dc0 000000000000 0807060504030201") + bytes(48)


def test_the_downloadable_program_types() -> None:
    page = encode_program_types([ProgramTypeDescriptor(ptype=0xC0, version=1)])
    assert page == struct.pack("<I", 1) + bytes(28) + b"\xc0\x01" + bytes(30)


def test_the_memory_range_sets() -> None:
    ranges = [MemoryRange(2, 0x1000, 0), MemoryRange(2, 0x2000, 0x4000)]
    assert encode_range_sets({7: ranges}) == (
        struct.pack("<I", 1) + bytes(28)
        + b"\x07\x00\x02" + bytes(29)
        + struct.pack("<IIQ", 2, 0x1000, 0) + bytes(16)
        + struct.pack("<IIQ", 2, 0x2000, 0x4000) + bytes(16)
    )  # fmt: skip
    assert encode_range_sets({}) == bytes(32)


def test_statuses() -> None:
    """Base 2.2, figure 104: 85h to 9Bh of the command specific ones, without a gap."""
    names = [Status(0x100 | code).name for code in range(0x85, 0x9C)]
    assert names[0] == "INCOMPATIBLE_NAMESPACE"
    assert names[0x8A - 0x85] == "INSUFFICIENT_PROGRAM_RESOURCES"
    assert names[0x90 - 0x85] == "INVALID_PROGRAM_TYPE"
    assert names[0x95 - 0x85] == "MEMORY_RANGE_SET_IN_USE"
    assert names[-1] == "PROGRAM_TOO_BIG"

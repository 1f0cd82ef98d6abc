"""The structures that ask for faults, against bytes written by hand."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_spec.descriptors import DescriptorError
from csd_spec.faults import (
    ANY,
    FAULT_SIZE,
    Fault,
    FaultFlags,
    FaultKind,
    FaultOperation,
    FaultReceive,
    FaultSend,
    decode_faults,
    encode_faults,
)

FAULT = Fault(
    FaultKind.STATUS,
    FaultFlags.DNR,
    opcode=2,
    queue=3,
    nsid=4,
    status=0x281,
    lba=100,
    blocks=50,
    times=7,
    after=8,
    identifier=9,
    triggered=10,
)
BYTES = (
    struct.pack("<HBBHHIHH", 9, 1, 1 << 1, 2, 3, 4, 0x281, 0)
    + struct.pack("<QQ", 100, 50)
    + struct.pack("<IIII", 0, 7, 8, 10)
    + bytes(16)
)


def test_a_fault_has_64_bytes() -> None:
    assert FAULT_SIZE == len(BYTES) == 64
    assert FAULT.encode() == BYTES
    assert Fault.decode(BYTES) == FAULT
    assert Fault(FaultKind.LOST).encode()[4:8] == b"\xff\xff\xff\xff"


def test_the_list_says_how_long_it_is() -> None:
    page = struct.pack("<II8x", 16 + 128, 2) + BYTES * 2
    assert encode_faults([FAULT, FAULT]) == page
    assert decode_faults(page + b"padding") == [FAULT, FAULT]
    assert decode_faults(struct.pack("<II8x", 16, 0)) == []


@pytest.mark.parametrize(
    "page", [b"", bytes(15), bytes(16), struct.pack("<II8x", 80, 2), struct.pack("<II8x", 80, 1)]
)
def test_a_list_that_contradicts_itself_is_refused(page: bytes) -> None:
    with pytest.raises(DescriptorError):
        decode_faults(page)


def test_the_commands_dwords() -> None:
    assert FaultSend(FaultOperation.ADD).encode() == (16, 0, 0, 0, 0, 0)
    assert FaultSend(FaultOperation.CLEAR, 5).encode() == (0, 0, 1, 5, 0, 0)
    assert FaultSend.decode((0, 0, 1, 5, 0, 0)) == FaultSend(1, 5)
    assert FaultReceive(1024).encode() == (1024, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(FaultKind.STATUS),
        Fault(FaultKind.STATUS, status=0x800),
        Fault(FaultKind.DELAY),
        Fault(FaultKind.MEDIA_ERROR),
        Fault(FaultKind.MEDIA_DELAY, FaultFlags.READS),
        Fault(FaultKind.LOST, lba=1),
        Fault(FaultKind.LOST, lba=(1 << 64) - 1, blocks=2),
        Fault(FaultKind.LOST, FaultFlags.ADMIN, blocks=1),
        Fault(FaultKind.APU_DEATH, FaultFlags.AT_ONCE, times=2),
        Fault(FaultKind.UNREACHABLE, times=1),
        Fault(FaultKind.UNREACHABLE, after=1),
        Fault(FaultKind.RESET_RECOMMENDED, times=1),
        Fault(FaultKind.APU_DEATH, FaultFlags.AT_ONCE, times=1, after=1),
        Fault(FaultKind.APU_DEATH, FaultFlags.AT_ONCE | FaultFlags.AT_START, times=1),
    ],
)
def test_what_no_device_could_do_is_refused(fault: Fault) -> None:
    with pytest.raises(DescriptorError):
        Fault.decode(fault.encode())


@given(st.binary(min_size=0, max_size=80))
def test_any_bytes_are_a_fault_or_refused(data: bytes) -> None:
    try:
        fault = Fault.decode(data)
    except DescriptorError:
        return
    assert Fault.decode(fault.encode()) == fault


def test_a_number_that_does_not_fit_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        FAULT._replace(times=1 << 32).encode()
    assert Fault(FaultKind.LOST).opcode == ANY

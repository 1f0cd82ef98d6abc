"""The accelerator structures, against bytes written by hand from the documentation's tables."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_spec import descriptors
from csd_spec.descriptors import (
    Accelerator,
    AcceleratorStatus,
    Capability,
    CapabilityId,
    DescriptorError,
    IdentifyData,
    LogEntry,
    LogEntryType,
    LogPage,
    StatusDescriptor,
    decode_arguments,
    encode_arguments,
    identify_length,
    leading_length,
)
from csd_spec.program import Context, Helper

MIB = 1 << 20

IDENTIFY_BYTES = (
    bytes.fromhex("57444330")  # "WDC0"
    + struct.pack("<I8x", 16 + 56 + 8)
    + struct.pack("<IHxx", 56, 0)
    + struct.pack("<I12x", 0)
    + struct.pack("<I4xQ", 1, 64 * MIB)
    + struct.pack("<I4xQ", 2, 32 * MIB)
    + struct.pack("<IHxx", 8, 7)
)
IDENTIFY = IdentifyData(
    (
        Accelerator(0, (Capability(0), Capability(1, 64 * MIB), Capability(2, 32 * MIB))),
        Accelerator(7),
    )
)
STATUS_BYTES = (
    struct.pack("<II24x", 96, 2)
    + struct.pack("<IIQ16x", 0, 5, 0xFFFF_FFFF_FFFF_FFFF)
    + struct.pack("<I4xQ16x", 2, 4096)
)
STATUS = AcceleratorStatus(2, (StatusDescriptor(0, 5, (1 << 64) - 1), StatusDescriptor(2, 0, 4096)))
LOG_BYTES = (
    struct.pack("<I12x", 16 + 16 + 20)
    + struct.pack("<IQI", 16, 1_700_000_000_123, 0x101)
    + struct.pack("<IQI", 20, 1_700_000_000_456, 0x100)
    + b"hi!\0"
)
LOG = LogPage(
    (
        LogEntry(1_700_000_000_123, LogEntryType.JOB_STARTED),
        LogEntry(1_700_000_000_456, LogEntryType.PROGRAM_OUTPUT, "hi!"),
    )
)
ARGUMENT_BYTES = struct.pack("<I4sI1sI", 8, b"abcd", 5, b"x", 4) + b"\0\0\0"
ARGUMENTS = (b"abcd", b"x", b"")


def test_identify_data_has_the_documented_bytes() -> None:
    assert IDENTIFY.encode() == IDENTIFY_BYTES
    assert IdentifyData.decode(IDENTIFY_BYTES) == IDENTIFY
    assert IdentifyData.decode(IDENTIFY_BYTES + bytes(40)) == IDENTIFY


def test_the_header_of_identify_data_tells_its_length() -> None:
    assert identify_length(IDENTIFY_BYTES[:8]) == len(IDENTIFY_BYTES) == 80
    with pytest.raises(DescriptorError, match="WDC0"):
        identify_length(b"WDC1\x10\0\0\0")


def test_a_capability_is_found_by_its_id() -> None:
    first, second = IDENTIFY.accelerators
    assert first.size_of(CapabilityId.INPUT_BUFFER) == 64 * MIB
    assert first.size_of(CapabilityId.OUTPUT_BUFFER) == 32 * MIB
    assert second.size_of(CapabilityId.INPUT_BUFFER) is None


def test_a_status_has_the_documented_bytes() -> None:
    assert STATUS.encode() == STATUS_BYTES
    assert AcceleratorStatus.decode(STATUS_BYTES) == STATUS
    assert AcceleratorStatus.decode(memoryview(STATUS_BYTES + bytes(12))) == STATUS
    assert leading_length(STATUS_BYTES[:4]) == 96


def test_a_status_tells_what_a_job_did() -> None:
    assert STATUS.return_value == -1
    assert STATUS.produced == 4096
    assert STATUS.consumed == 0
    assert AcceleratorStatus(0).return_value == 0


def test_a_log_page_has_the_documented_bytes() -> None:
    assert LOG.encode() == LOG_BYTES
    assert LogPage.decode(LOG_BYTES) == LOG
    assert LogPage(lost=3).encode() == struct.pack("<II8x", 16, 3)
    assert LogPage.decode(struct.pack("<II8x", 16, 3)).lost == 3


def test_text_that_is_not_utf8_is_shown_escaped() -> None:
    entry = struct.pack("<IQI", 19, 1, 0x100) + b"a\xff\n"
    assert LogEntry.decode(entry).text == "a\\xff\n"
    assert LogEntry(1, 0x100, "a\udcff").encode()[16:] == b"a\\udcff\0"


def test_an_argument_list_has_the_documented_bytes() -> None:
    assert encode_arguments(ARGUMENTS) == ARGUMENT_BYTES
    assert decode_arguments(ARGUMENT_BYTES) == ARGUMENTS
    assert encode_arguments(()) == b""
    assert decode_arguments(b"") == ()


def test_a_context_has_the_documented_bytes() -> None:
    encoded = struct.pack("<IIQ", 2, 3, 20) + ARGUMENT_BYTES
    encoded += struct.pack("<4xQQQ QQ", 1, 1 << 63, 1, 0x1000_1000, 4096)
    assert len(ARGUMENT_BYTES) == 20
    context = Context(ARGUMENT_BYTES, 2, (1, 1 << 63), ((0x1000_1000, 4096),))
    assert context.encode() == encoded
    assert Context.decode(encoded + b"what follows") == context
    assert context.arguments == ARGUMENTS
    assert Context().encode() == struct.pack("<IIQ QQQ", 2, 0, 0, 0, 0, 0)


def test_helpers_have_the_documented_numbers() -> None:
    assert (Helper.PRINT, Helper.TFLITE_APU, Helper.TFLITE_VTA) == (1, 2, 3)


MALFORMED: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "no identify header": (IdentifyData.decode, b"WDC0"),
    "no magic": (IdentifyData.decode, bytes(16)),
    "identify shorter than its header": (IdentifyData.decode, struct.pack("<4sI8x", b"WDC0", 15)),
    "identify longer than the buffer": (IdentifyData.decode, IDENTIFY_BYTES[:-1]),
    "accelerator of length 0": (IdentifyData.decode, struct.pack("<4sI8xQ", b"WDC0", 24, 0)),
    "accelerator past the end": (
        IdentifyData.decode,
        struct.pack("<4sI8xIHxx", b"WDC0", 24, 0xFFFF_FFFF, 0),
    ),
    "half an accelerator header": (IdentifyData.decode, struct.pack("<4sI8xI", b"WDC0", 20, 4)),
    "half a capability": (IdentifyData.decode, struct.pack("<4sI8xIHxxQ", b"WDC0", 32, 16, 0, 0)),
    "no status": (AcceleratorStatus.decode, b"\x20\0\0"),
    "status shorter than its header": (AcceleratorStatus.decode, struct.pack("<I28x", 31)),
    "status longer than the buffer": (AcceleratorStatus.decode, STATUS_BYTES[:32]),
    "half a status descriptor": (AcceleratorStatus.decode, struct.pack("<I44x", 48)),
    "no log": (LogPage.decode, b""),
    "log shorter than its header": (LogPage.decode, struct.pack("<I12x", 4)),
    "log entry of length 0": (LogPage.decode, struct.pack("<I12x16x", 32)),
    "log entry past the end": (LogPage.decode, struct.pack("<I12xI12x", 32, 17)),
    "a log entry without a header": (LogEntry.decode, bytes(15)),
    "argument of length 0": (decode_arguments, bytes(4)),
    "argument of length 3": (decode_arguments, b"\3\0\0\0"),
    "argument past the end": (decode_arguments, b"\x09\0\0\0abcd"),
    "padding that is not zero": (decode_arguments, b"\x05\0\0\0a\0\1\0"),
    "context without its header": (Context.decode, bytes(15)),
    "context that ends early": (Context.decode, struct.pack("<IIQ", 1, 1, 8)),
    "context that counts wrong": (Context.decode, struct.pack("<IIQI", 1, 2, 4, 4)),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_structure_is_refused(name: str) -> None:
    decode, data = MALFORMED[name]
    with pytest.raises(DescriptorError):
        decode(data)


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    decoders: tuple[Callable[[bytes], Any], ...] = (
        AcceleratorStatus.decode,
        LogPage.decode,
        decode_arguments,
        Context.decode,
        IdentifyData.decode,
        lambda tail: IdentifyData.decode(b"WDC0" + tail),
    )
    for decode in decoders:
        try:
            decode(data)
        except DescriptorError:
            pass


@given(st.lists(st.binary(max_size=9), max_size=6))
def test_arguments_of_any_length_come_back(values: list[bytes]) -> None:
    encoded = encode_arguments(values)
    assert len(encoded) % 4 == 0
    assert decode_arguments(encoded) == tuple(values)


def test_lengths_round_up_to_dwords() -> None:
    assert [descriptors.dwords(size) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert descriptors.pad_to_dword(b"abcde") == b"abcde\0\0\0"
    assert descriptors.pad_to_dword(b"") == b""

"""Messages survive the message, and nothing else passes for one."""

import json
import struct
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_spec.run_times import KINDS
from potash_device.cores import QUERY_KINDS, Work
from potash_firmware import mailbox
from potash_firmware.mailbox import MailboxError, datagrams, messages
from potash_firmware.mailbox.messages import (
    MAX_MEMORY_RANGES,
    MAX_READS,
    NO_SLOT,
    VERDICTS,
    Alive,
    Cancel,
    CheckProgram,
    CloseEngine,
    Execute,
    Executed,
    Forget,
    JobBegan,
    JobCounted,
    JobDue,
    JobEnded,
    JobLeft,
    MemoryRange,
    Message,
    OpenEngine,
    Outcome,
    Ping,
    ProgramChecked,
    Read,
    ReadCheck,
    ReadChecked,
    Reply,
    Request,
    Reset,
    ResetDone,
    ShareMemory,
    ShareProgram,
    WriteBack,
    WriteBackDone,
)
from potash_firmware.mailbox.shared import ENGINE_ROWS, SLOT_SIZE, SLOTS
from potash_firmware.mailbox.values import (
    MAX_OWN,
    JobValueRead,
    ReadJobValue,
    ReadValue,
    ValueRead,
)

U16 = st.integers(0, 0xFFFF)
U32 = st.integers(0, 0xFFFF_FFFF)
U64 = st.integers(0, (1 << 64) - 1)
LENGTH = st.integers(0, SLOT_SIZE)

REQUESTS = st.builds(
    Request,
    U32,
    st.booleans(),
    st.integers(0, 255),
    U32,
    st.tuples(U32, U32, U32, U32, U32, U32),
    st.integers(0, SLOTS - 1),
    LENGTH,
)
RANGES = st.lists(st.tuples(U32, U64, st.integers(1, 1 << 40)), min_size=1, max_size=64).map(tuple)
EXTENTS = RANGES.map(lambda ranges: tuple(item[1:] for item in ranges))
COUNT = st.integers(0, (1 << 63) - 1)
QUERIES = st.tuples(*[COUNT] * len(QUERY_KINDS))
WORKS = st.builds(Work, st.tuples(*[COUNT] * len(KINDS)), *[COUNT] * 4, QUERIES, COUNT)
READS = st.lists(
    st.builds(Read, COUNT, U32, U64, st.integers(1, 1 << 40), COUNT), max_size=MAX_READS // 16
).map(lambda reads: tuple(sorted(reads)))
EXECUTIONS = st.builds(
    Execute,
    U32,
    U32,
    U64,
    st.tuples(U64, U64),
    st.lists(
        st.builds(MemoryRange, U64, U64, st.integers(1, 1 << 40)), max_size=MAX_MEMORY_RANGES
    ).map(tuple),
    U32,
    row=st.integers(0, ENGINE_ROWS),
)
REQUEST = U32, U32, LENGTH, st.binary(max_size=17), st.booleans(), COUNT, COUNT, U64
RESULT = st.integers(-(1 << 63), (1 << 63) - 1)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    REQUESTS,
    st.builds(Reset, U32),
    st.builds(WriteBackDone, U32, U32),
    st.builds(Reply, U32, st.integers(0, 0x7FF), st.booleans(), U32, LENGTH),
    st.builds(WriteBack, U32, U16, U64, RANGES, st.booleans()),
    st.builds(ReadCheck, U32, U32, EXTENTS),
    st.builds(ReadChecked, U32, U32, U64),
    st.builds(ResetDone, U32),
    st.builds(Ping, U32),
    st.builds(Alive, U32),
    st.builds(JobEnded, U16, st.integers(0, 255)),
    st.builds(ShareMemory, st.integers(256, 1 << 63), st.integers(1, 1 << 40)),
    st.builds(ShareProgram, st.integers(256, 1 << 63), st.integers(1, 1 << 40)),
    st.builds(Forget, U64),
    st.builds(CheckProgram, U32, U32, U64),
    st.builds(ProgramChecked, U32, st.sampled_from(sorted(VERDICTS))),
    st.builds(OpenEngine, U32),
    st.builds(CloseEngine, U32),
    st.builds(Cancel, U32),
    st.builds(Executed, U32, st.just(Outcome.RETURNED), U64),
    st.builds(Executed, U32, st.sampled_from(Outcome)),
    st.builds(Executed, U32, st.just(Outcome.RETURNED), U64, WORKS),
    st.builds(JobBegan, U16, U32),
    st.builds(JobLeft, U16, U32),
    st.builds(JobDue, U16, U32),
    st.builds(JobCounted, U16, U32, WORKS, READS, st.booleans()),
    st.builds(ReadValue, *REQUEST, st.integers(0, 255)),
    st.builds(ReadJobValue, *REQUEST, U16),
    st.builds(ValueRead, U32, RESULT, st.binary(max_size=MAX_OWN)),
    st.builds(JobValueRead, U32, RESULT, st.just(b""), U16),
    EXECUTIONS,
)

A_REQUEST = Request(7, True, 0xC6, 1, (8, 0, 0x8000_0002, 0, 0, 9), 3, 32)


@given(MESSAGES)
def test_every_message_survives_the_datagram(message: Message) -> None:
    assert datagrams.decode(datagrams.encode(message)) == message


@given(MESSAGES)
def test_every_message_can_be_traced(message: Message) -> None:
    assert json.loads(json.dumps(mailbox.describe(message)))["message"] == type(message).__name__


@given(EXECUTIONS, EXECUTIONS, U32)
def test_encoded_executions_are_alike_if_only_their_tags_differ(
    first: Execute, other: Execute, tag: int
) -> None:
    data = datagrams.encode(first)
    again = mailbox.tagged(data, tag)
    assert datagrams.decode(again) == replace(first, tag=tag)
    assert (mailbox.tag_number(again), mailbox.nsid_of(again)) == (tag, first.nsid)
    assert mailbox.untagged(again) == mailbox.untagged(data)
    alike = mailbox.untagged(datagrams.encode(other)) == mailbox.untagged(data)
    assert alike is (replace(other, tag=0) == replace(first, tag=0))


@given(MESSAGES)
def test_the_answer_of_a_program_that_has_returned_is_told_from_all_others(
    message: Message,
) -> None:
    data = datagrams.encode(message)
    is_plain = (
        isinstance(message, Executed)
        and message.outcome is Outcome.RETURNED
        and message.work is None
    )
    assert mailbox.is_returned(data) is is_plain
    if is_plain:
        value = mailbox.value_of(data)
        assert mailbox.returned(mailbox.tag_of(data), value) == data
        assert message == Executed(mailbox.tag_number(data), Outcome.RETURNED, value)


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = datagrams.decode(data)
    except MailboxError:
        return
    assert len(datagrams.encode(message)) == len(data)


def test_a_request_is_laid_out_in_little_endian_dwords() -> None:
    expected = struct.pack("<4B10I", 1, 1, 0xC6, 0, 7, 1, 8, 0, 0x8000_0002, 0, 0, 9, 3, 32)
    assert datagrams.encode(A_REQUEST) == expected


@pytest.mark.parametrize("cut", [0, 1, 4, 43])
def test_a_truncated_datagram_is_refused(cut: int) -> None:
    with pytest.raises(MailboxError):
        datagrams.decode(datagrams.encode(A_REQUEST)[:cut])


def test_a_datagram_with_bytes_to_spare_is_refused() -> None:
    with pytest.raises(MailboxError, match="Request"):
        datagrams.decode(datagrams.encode(A_REQUEST) + b"\0")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(MailboxError, match="no kind of message"):
        datagrams.decode(b"\x63" + bytes(7))


@pytest.mark.parametrize(
    ("slot", "length"), [(SLOTS, 0), (-2, 0), (0, SLOT_SIZE + 1), (NO_SLOT, 4)]
)
def test_a_request_outside_the_transfer_area_is_refused_on_both_sides(
    slot: int, length: int
) -> None:
    cdws = (0, 0, 0, 0, 0, 0)
    with pytest.raises(MailboxError):
        datagrams.encode(Request(1, True, 0xC2, 0, cdws, slot, length))
    raw = struct.pack("<4B8IiI", 1, 1, 0xC2, 0, 1, 0, *cdws, slot, length)
    with pytest.raises(MailboxError):
        datagrams.decode(raw)


@pytest.mark.parametrize(
    "message",
    [
        Reply(1, 0x800),
        Reply(1, 0, length=SLOT_SIZE + 1),
        Reply(1 << 32, 0),
        WriteBack(1, 0, 0, ()),
        WriteBack(1, 0, 0, ((1, 0, 0),)),
        WriteBack(1, 0, 0, ((1, 0, 1),) * 513),
        ReadCheck(1, 1, ()),
        ReadCheck(1, 1, ((0, 1),) * 513),
        JobEnded(1 << 16, 0xC0),
        ShareMemory(256, 0),
        Execute(1, 3, 0, (1 << 64, 0)),
        Execute(1, 3, 0, (0, 0), (MemoryRange(256, 0, 0),)),
        Execute(1, 3, 0, (0, 0), (MemoryRange(256, 0, 4096),) * (MAX_MEMORY_RANGES + 1)),
        Executed(1, Outcome.RETURNED, 1 << 64),
    ],
)
def test_a_field_out_of_range_cannot_be_sent(message: Message) -> None:
    with pytest.raises(MailboxError):
        datagrams.encode(message)


def test_a_check_names_its_ranges_behind_its_namespace() -> None:
    expected = struct.pack("<BxHIIQQ", 8, 1, 7, 2, 4096, 512)
    assert datagrams.encode(ReadCheck(7, 2, ((4096, 512),))) == expected
    assert datagrams.encode(ReadChecked(7, 5, 4096)) == struct.pack("<BxxxIIxxxxQ", 9, 7, 5, 4096)


def test_ranges_must_be_as_many_as_announced() -> None:
    raw = struct.pack("<BBHIHxxQIQQ", 5, 0, 0, 1, 2, 0, 1, 4096, 4096)
    with pytest.raises(MailboxError, match="2 ranges"):
        datagrams.decode(raw)


def test_an_execution_names_program_parameters_and_ranges() -> None:
    message = Execute(7, 3, 300, (1, 2), (MemoryRange(256, 4096, 8192),), 32)
    expected = struct.pack("<BBHIIIQQQ QQQ", 39, 1, 0, 7, 3, 32, 300, 1, 2, 256, 4096, 8192)
    assert datagrams.encode(message) == expected
    answer = struct.pack("<BBxxIQ", 40, 0, 7, 1 << 63)
    assert datagrams.encode(Executed(7, Outcome.RETURNED, 1 << 63)) == answer


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack("<B7xQQ", 32, 255, 4096),  # no handle
        struct.pack("<BBHIIIQQQ", 39, 1, 0, 7, 3, 0, 300, 1, 2),  # a range is missing
        struct.pack("<BBHIIIQQQ", 39, 0, 65, 7, 3, 0, 300, 1, 2),  # a row that is not there
        struct.pack("<BBxxIQ11Q", 40, 0, 7, 1, *[0] * 11),  # a count is missing
        struct.pack("<BBxxIQ12Q", 40, 0, 7, 1, 1 << 63, *[0] * 11),  # more than any counts
        struct.pack("<BBHII12QQQQI", 49, 0, 0, 7, 2, *[0] * 13, 0, 9, 1),  # a read is missing
        struct.pack("<BBHII12QQQQI", 49, 0, 0, 7, 1, *[0] * 13, 0, 0, 1),  # of no bytes
        struct.pack("<BBHII12Q", 49, 2, 0, 7, 0, *[0] * 12),  # neither more nor the last
        struct.pack("<BBxxIQ", 40, 6, 7, 0),  # an unknown outcome
        struct.pack("<BBxxIQ", 40, 1, 7, 1),  # a value of what has not returned
        struct.pack("<BBxxI", 36, 1, 7),  # no verdict of a check
    ],
)
def test_a_malformed_message_of_an_execution_is_refused(raw: bytes) -> None:
    with pytest.raises(MailboxError):
        datagrams.decode(raw)


def test_the_longest_message_has_a_length() -> None:
    """A constant, as to compile all messages takes 4 ms."""
    records = [datagrams.RECORDS[kind] for kind in get_args(messages.Message)]
    assert max(record.largest for record in records) == messages.MAX_DATAGRAM

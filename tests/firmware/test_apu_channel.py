"""What a worker says is taken only in the form that was agreed on, and its counters as they are."""

import struct
from array import array
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_spec.descriptors import LogEntryType
from potash_device.cores import Work
from potash_firmware import status
from potash_firmware.apu import channel
from potash_firmware.apu.channel import (
    BlocksRead,
    ChannelError,
    ExecuteJob,
    FromWorker,
    Gathered,
    JobExecuted,
    Line,
    Ready,
)
from potash_firmware.apu.engine_worker import EngineWorker
from potash_firmware.apu.lifecycle import Event
from potash_firmware.apu.model import ByteRange, Grant, Subsystem, count_event, count_restart
from potash_firmware.mailbox import datagrams
from potash_firmware.mailbox.messages import (
    MAX_MEMORY_RANGES,
    Execute,
    Executed,
    MemoryRange,
    Outcome,
    Ping,
    Read,
)
from potash_firmware.mailbox.shared import ROW_WORDS, Counters, Word
from potash_firmware.mailbox.values import ReadJobValue, ReadValue
from support.apu import CONFIG


@pytest.mark.parametrize(
    "message",
    [
        Ready(),
        Line(LogEntryType.PROGRAM_OUTPUT, 'λ "quoted"\n'),
        Gathered((ByteRange(1, 0, 512), ByteRange(2**32 - 1, 2**64 - 1, 2**64 - 1))),
        BlocksRead((Read(1, 2, 3, 4), Read(1, 2, 3, 4))),
        JobExecuted(5, Outcome.RETURNED, (1 << 64) - 1, Work(), 7, 10),
        Executed(5, Outcome.FAULTED),
        ReadValue(5, 2, 512 << 10, b"k" * 17, True, 6, 7, 8, 63),
        ReadJobValue(5, 2, 0, b"", False, 6, 7, (1 << 64) - 1, 9),
    ],
)
def test_messages_survive_the_channel(message: FromWorker) -> None:
    assert channel.decode_from_worker(channel.encode(message)) == message


JOB = ExecuteJob(1, 2, 3, data_length=4, input_length=5, output_length=6)


def test_a_job_survives_the_channel() -> None:
    ranges = (ByteRange(1, 0, 4096), ByteRange(2, 1 << 40, 512))
    job = replace(JOB, input_ranges=ranges, granted=(Grant(1, 2, 3, True),), unreadable=ranges)
    assert channel.decode_execution(channel.encode(job)) == job


def test_as_many_ranges_as_a_message_may_have_fit_in_one() -> None:
    largest = ByteRange(2**32 - 1, 2**64 - 1, 2**64 - 1)
    message = Gathered((largest,) * channel.RANGES_AT_ONCE)
    assert len(channel.encode(message)) <= channel.MAX_MESSAGE
    assert channel.decode_from_worker(channel.encode(message)) == message


READ = struct.pack("<QQQIxxxxQ", 1, 0, 512, 1, 0)
VALUE = struct.pack("<BBBBIIIQQQ", 42, 0, 0xFF, 0, 1, 2, 512 << 10, 0, 0, 0)
RETURNED = struct.pack("<BBxxIQQQ", 65, 0, 5, 0, 0, 0)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x63",
        channel.encode(JOB),
        datagrams.encode(Ping(1)),
        channel.encode(Ready()) + b"\0",
        struct.pack("<BHH4s", 67, 0x100, 5, b"text"),  # a text that ends early
        struct.pack("<BHH4s", 67, 0x100, 3, b"text"),
        struct.pack("<BHH1s", 67, 0x100, 1, b"\xff"),  # is no UTF-8
        struct.pack("<BHH", 67, 0x99, 0),  # an unknown type of log entry
        struct.pack("<BHH4097s", 67, 0x100, 4097, b"x" * 4097),
        RETURNED[:-8],  # a number is missing
        struct.pack("<BBxxIQQQ", 65, 6, 5, 0, 0, 0),  # an unknown outcome
        struct.pack("<BBxxIQQQ", 65, 1, 5, 7, 0, 0),  # a fault with a value
        RETURNED + struct.pack("<11QQ", *[0] * 11, 1 << 63),  # more than any counts
        struct.pack("<BHIQQ", 68, 2, 1, 0, 512),  # a range is missing
        struct.pack("<BHIQQ", 68, 1, 1, 0, 0),  # of no bytes
        struct.pack("<BH", 68, 513) + struct.pack("<IQQ", 1, 0, 512) * 513,
        struct.pack("<BH", 69, 513) + READ * 513,
        VALUE[:3] + b"\x12" + VALUE[4:] + bytes(18),  # a key of 18 bytes
        VALUE[:3] + b"\x02" + VALUE[4:] + b"k",  # half a key
        VALUE[:12] + b"\x01\x00\x08\x00" + VALUE[16:],  # more room than a value has
        struct.pack("<BH", 69, 2) + READ + bytes(8) + READ[8:],  # out of order
    ],
)
def test_anything_else_is_refused(said: bytes) -> None:
    with pytest.raises(ChannelError):
        channel.decode_from_worker(said)


@pytest.mark.parametrize("kind", sorted(datagrams.KINDS.keys() - {40, 42, 53, *range(65, 70)}))
def test_no_field_is_decoded_of_a_message_that_a_worker_may_not_send(kind: int) -> None:
    with pytest.raises(ChannelError, match="no kind of message"):
        channel.decode_from_worker(bytes([kind]) + bytes(63))


def test_what_is_refused_is_so_for_its_fault_alone() -> None:
    decoded = channel.decode_from_worker(RETURNED + bytes(8 * 22))
    assert decoded == JobExecuted(5, Outcome.RETURNED, work=Work())
    assert isinstance(channel.decode_from_worker(struct.pack("<BH", 69, 1) + READ), BlocksRead)
    assert channel.decode_from_worker(VALUE) == ReadValue(1, 2, 512 << 10, b"")


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = channel.decode_from_worker(data)
    except ChannelError:
        return
    assert len(channel.encode(message)) == len(data)


def test_counters_that_a_worker_has_spoilt_disturb_nobody() -> None:
    accelerator = Subsystem.create(CONFIG, lambda: 0.0).accelerators[0]
    spoilt = memoryview(array("Q", [(1 << 64) - 1] * ROW_WORDS))
    readers: list[Callable[[], object]] = [
        lambda: count_event(accelerator, Event.START),
        lambda: count_event(accelerator, Event.RETURNED),
        lambda: count_restart(accelerator),
        lambda: status._accelerator(0, counters.row(0)),
    ]
    with Counters.create(1) as counters:
        accelerator.row = counters.row(0)
        for read in readers:
            accelerator.row[:] = spoilt
            read()
        accelerator.row[:] = spoilt
        count_event(accelerator, Event.START)
        assert accelerator.row[Word.STARTED] == 0


def test_the_longest_execution_fits() -> None:
    ranges = tuple(MemoryRange(256 + number, 0, 4096) for number in range(MAX_MEMORY_RANGES))
    execution = Execute(1, 2, 1 << 40, (1, 2), ranges, 7)
    assert len(execution.named) + 1 <= channel.MOST_DESCRIPTORS
    data = channel.encode(execution)
    assert len(data) <= EngineWorker.largest
    assert channel.decode_execution(data) == execution

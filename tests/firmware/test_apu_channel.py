"""What a worker says is taken only in the form that was agreed on, and its counters as they are."""

import struct
from array import array
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_spec.descriptors import LogEntryType
from potash_firmware import status
from potash_firmware.apu import channel
from potash_firmware.apu.channel import (
    ChannelError,
    Faulted,
    FromWorker,
    Gathered,
    Line,
    Perform,
    Ready,
    Refused,
    Returned,
    Sound,
)
from potash_firmware.apu.job_counts import count_event, count_restart
from potash_firmware.apu.lifecycle import Event
from potash_firmware.apu.model import ByteRange, Grant, Subsystem
from potash_firmware.mailbox import datagrams
from potash_firmware.mailbox.counters import ROW_WORDS, Counters, Word
from potash_firmware.mailbox.execution import MAX_RANGES, Execute, MemoryRange
from potash_firmware.mailbox.messages import Ping
from support.apu import CONFIG


@pytest.mark.parametrize(
    "message",
    [
        Ready(),
        Line(LogEntryType.PROGRAM_OUTPUT, 'λ "quoted"\n'),
        Gathered((ByteRange(1, 0, 512), ByteRange(2**32 - 1, 2**64 - 1, 2**64 - 1))),
        Returned((1 << 64) - 1, 0, 10),
        Faulted(),
        Sound(),
        Refused("no"),
    ],
)
def test_messages_survive_the_channel(message: FromWorker) -> None:
    assert channel.decode(channel.encode(message)) == message


def test_a_job_survives_the_channel() -> None:
    ranges = (ByteRange(1, 0, 4096), ByteRange(2, 1 << 40, 512))
    job = channel.Run(1, 2, 3, 4, 5, ranges, ranges[:1], (Grant(1, 2, 3, True),), ranges)
    assert channel.decode_run(channel.encode(job)) == job


def test_as_many_ranges_as_a_message_may_have_fit_in_one() -> None:
    largest = ByteRange(2**32 - 1, 2**64 - 1, 2**64 - 1)
    message = Gathered((largest,) * channel.RANGES_AT_ONCE)
    assert len(channel.encode(message)) <= channel.MAX_MESSAGE
    assert channel.decode(channel.encode(message)) == message


WORK = struct.pack("<12Q", *[0] * 12)
READ = struct.pack("<QQQI", 1, 0, 512, 1)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x63",
        channel.encode(channel.Run(1, 2, 3, 4, 5)),
        datagrams.encode(Ping(1)),
        channel.encode(Ready()) + b"\0",
        struct.pack("<BHH4s", 69, 0x100, 5, b"text"),  # a text that ends early
        struct.pack("<BHH4s", 69, 0x100, 3, b"text"),
        struct.pack("<BHH1s", 69, 0x100, 1, b"\xff"),  # is no UTF-8
        struct.pack("<BHH", 69, 0x99, 0),  # an unknown type of log entry
        struct.pack("<BH4097s", 67, 4097, b"x" * 4097),
        struct.pack("<BQQ", 72, 0, 0),  # a number is missing
        struct.pack("<BHIQQ", 70, 2, 1, 0, 512),  # a range is missing
        struct.pack("<BHIQQ", 70, 1, 1, 0, 0),  # of no bytes
        struct.pack("<BH", 70, 513) + struct.pack("<IQQ", 1, 0, 512) * 513,
        struct.pack("<B", 71) + WORK + struct.pack("<H", 513) + READ * 513,
        struct.pack("<B", 71) + WORK + struct.pack("<H", 2) + READ + bytes(8) + READ[8:],
        struct.pack("<B11QQH", 71, *[0] * 11, 1 << 63, 0),  # more than any counts
    ],
)
def test_anything_else_is_refused(said: bytes) -> None:
    with pytest.raises(ChannelError):
        channel.decode(said)


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = channel.decode(data)
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
        lambda: status._accelerators(counters, {0: 0}),
    ]
    with Counters.create(1) as counters:
        accelerator.row = counters.row(0)
        for read in readers:
            accelerator.row[:] = spoilt
            read()
        accelerator.row[:] = spoilt
        count_event(accelerator, Event.START)
        assert accelerator.row[Word.STARTED] == 0


def test_the_longest_order_fits() -> None:
    ranges = tuple(MemoryRange(256 + number, 0, 4096) for number in range(MAX_RANGES))
    order = Perform(Execute(1, 2, 1 << 40, (1, 2), ranges, 7), tuple(range(MAX_RANGES + 1)))
    data = channel.encode(order)
    assert len(data) <= channel.MAX_PERFORM
    assert channel.decode_perform(data) == order

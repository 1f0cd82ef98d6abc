"""What a worker says is taken only in the form that was agreed on."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_spec.descriptors import LogEntryType
from potash_firmware.apu import channel
from potash_firmware.apu.channel import ChannelError, Faulted, FromWorker, Line, Ready, Returned
from potash_firmware.apu.model import ByteRange


@pytest.mark.parametrize(
    "message",
    [
        Ready(),
        Line(LogEntryType.PROGRAM_OUTPUT, 'λ "quoted"\n'),
        Returned((1 << 64) - 1, 0, 10),
        Faulted(LogEntryType.MEMORY_FAULT, ""),
    ],
)
def test_messages_survive_the_channel(message: FromWorker) -> None:
    assert channel.decode(channel.encode(message)) == message


def test_a_job_survives_the_channel() -> None:
    job = channel.Run(1, 2, 3, 4, 5, (ByteRange(1, 0, 4096), ByteRange(2, 1 << 40, 512)))
    assert channel.decode_run(channel.encode(job)) == job


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        ["Ready"],
        ["Run", {}],
        ["Ready", {"more": 1}],
        ["Line", {"kind": 0x100}],
        ["Line", {"kind": 0x100, "text": 5}],
        ["Line", {"kind": 0x99, "text": ""}],
        ["Line", {"kind": [], "text": ""}],
        ["Returned", {"value": -1, "length": 0, "instructions": 0}],
        ["Returned", {"value": 1 << 64, "length": 0, "instructions": 0}],
        ["Returned", {"value": 0, "length": -1, "instructions": 0}],
        ["Returned", {"value": "0", "length": 0, "instructions": 0}],
        ["Returned", {"value": 0, "length": 0.5, "instructions": 0}],
        [["Ready"], {}],
        [{}, {}],
    ],
)
def test_anything_else_is_refused(said: object) -> None:
    with pytest.raises(ChannelError):
        channel.decode(json.dumps(said).encode())


@given(st.binary(max_size=40))
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(ChannelError):
        channel.decode(data)

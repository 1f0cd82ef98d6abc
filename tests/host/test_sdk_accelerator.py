"""What `Accelerator` sends, against dwords written from the accelerator command set."""

import struct

import pytest

from csd_spec.descriptors import Accelerator as Description
from csd_spec.descriptors import Capability
from potash.sdk import (
    Accelerator,
    CommandFailed,
    Completion,
    Device,
    DeviceMisbehaved,
    InvalidRequest,
    JobFailed,
    JobTimeout,
)
from potash.sdk.transport import Request
from support.sdk import RecordingTransport, data

ADMIN, IO = True, False
MDTS_8_KIB = data(bytes(77) + b"\x01" + bytes(4018))


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def accelerator(
    *answers: object, clock: Clock | None = None, events: list[int | None] | None = None
) -> tuple[Accelerator, list[Request]]:
    """Accelerator 2 with buffers of 64 KiB, behind a device whose MDTS is 8 KiB."""
    scripted = [MDTS_8_KIB, *answers]
    transport = RecordingTransport(scripted, events=events)  # type: ignore[arg-type]  # shorthand
    device = Device(transport)
    assert device.max_transfer == 8192
    transport.requests.clear()
    description = Description(2, (Capability(0), Capability(1, 65536), Capability(2, 65536)))
    clock = clock or Clock()
    made = Accelerator(device, description, clock=clock, sleep=clock.sleep)
    return made, transport.requests


def status(state: int, *descriptors: bytes) -> bytes:
    body = b"".join(descriptors)
    return struct.pack("<II24x", 32 + len(body), state) + body


def states(*wanted: int) -> list[object]:
    """Answers to as many polls: each asks for the length and then for the whole."""
    return [data(status(state)) for state in wanted for _ in range(2)]


def test_the_subsystem_is_enabled_and_disabled() -> None:
    made, requests = accelerator()
    made.enable()
    made.disable()
    assert requests == [
        Request(ADMIN, 0xC0, 0, (0, 0, 0, 0, 0, 0)),
        Request(ADMIN, 0xC0, 0, (0, 0, 1, 0, 0, 0)),
    ]


def test_input_goes_out_in_pieces_with_their_offset_in_dwords() -> None:
    made, requests = accelerator()
    content = bytes(range(256)) * 33
    made.write_input(content[:-3])
    assert requests == [
        Request(IO, 0x81, 1, (2048, 0, 2, 0, 0, 0), content[:8192]),
        Request(IO, 0x81, 1, (64, 0, 2, 0, 2048, 0), content[8192:-3] + b"\0\0\0"),
    ]


def test_input_may_start_anywhere_on_a_dword() -> None:
    made, requests = accelerator()
    made.write_input(b"abcd", offset=400)
    assert requests == [Request(IO, 0x81, 1, (1, 0, 2, 0, 100, 0), b"abcd")]


def test_input_may_fill_the_buffer() -> None:
    made, requests = accelerator()
    made.write_input(bytes(65536))
    assert len(requests) == 8
    made.write_input(bytes(4), offset=65532)
    assert requests[-1] == Request(IO, 0x81, 1, (1, 0, 2, 0, 65532 // 4, 0), bytes(4))


def test_input_that_does_not_fit_is_refused_before_it_is_sent() -> None:
    made, requests = accelerator()
    with pytest.raises(ValueError, match="do not fit"):
        made.write_input(bytes(65537))
    with pytest.raises(ValueError, match="do not fit"):
        made.write_input(bytes(8), offset=65532)
    with pytest.raises(ValueError, match="multiple of 4"):
        made.write_input(b"abcd", offset=2)
    assert requests == []


def test_what_no_command_can_carry_is_refused_before_it_is_sent() -> None:
    made, requests = accelerator()
    with pytest.raises(InvalidRequest, match="firmware: -1 does not fit"):
        made.send_firmware(b"abcd", -1)
    with pytest.raises(InvalidRequest, match="pages: 65536 does not fit"):
        made.use_local_input(0, 65536)
    with pytest.raises(InvalidRequest, match="no data"):
        made.write_input(b"")
    assert requests == []


def test_output_comes_in_pieces_and_ends_where_it_was_asked_to() -> None:
    content = bytes(range(256)) * 33
    made, requests = accelerator(data(content[:8192]), data(content[8192:]))
    assert made.read_output(8195) == content[:8195]
    assert requests == [
        Request(IO, 0x82, 1, (2048, 0, 2, 0, 0, 0), None, 8192),
        Request(IO, 0x82, 1, (1, 0, 2, 0, 2048, 0), None, 4),
    ]


def test_without_a_length_as_much_output_is_read_as_was_made() -> None:
    produced = struct.pack("<I4xQ16x", 2, 6)
    state = data(status(2, produced))
    made, requests = accelerator(state, state, data(b"abcdefgh"))
    assert made.read_output() == b"abcdef"
    assert requests[-1] == Request(IO, 0x82, 1, (2, 0, 2, 0, 0, 0), None, 8)


def test_firmware_is_sent_whole_and_read_back() -> None:
    made, requests = accelerator(Completion(0), Completion(0), data(b"\x7fELF\0"))
    program = b"\x7fELF" + bytes(8190)
    made.send_firmware(program, firmware_id=7)
    assert made.read_firmware(5, 7) == b"\x7fELF\0"
    assert requests == [
        Request(IO, 0x85, 1, (2048, 0, 2, 7, 0, 0), program[:8192]),
        Request(IO, 0x85, 1, (1, 0, 2, 7, 2048, 0), b"\0\0\0\0"),
        Request(IO, 0x86, 1, (2, 0, 2, 7, 0, 0), None, 8),
    ]


def test_local_storage_names_its_pages_and_its_namespace() -> None:
    made, requests = accelerator()
    made.use_local_input(0x1_0000_0002, 3)
    made.use_local_output(5, 4096, nsid=6)
    assert requests == [
        Request(IO, 0x88, 1, (0, 0, 2, 1, 3, 2)),
        Request(IO, 0x8C, 6, (0, 0, 5, 0, 4096, 2)),
    ]


def test_further_ranges_and_grants_have_commands_of_their_own() -> None:
    made, requests = accelerator()
    made.use_local_input(0x1_0000_0002, 3, append=True)
    made.use_local_output(5, 1, nsid=6, append=True)
    made.grant(7, 2)
    made.grant(8, 1, nsid=6, writable=True, replace=True)
    assert requests == [
        Request(IO, 0x94, 1, (0, 0, 2, 1, 3, 2)),
        Request(IO, 0x98, 6, (0, 0, 5, 0, 1, 2)),
        Request(IO, 0x9C, 1, (0, 0, 7, 0, 2, 0x0000_0002)),
        Request(IO, 0x9C, 6, (0, 0, 8, 0, 1, 0x0003_0002)),
    ]


def test_firmware_of_unknown_length_is_asked_how_long_it_is() -> None:
    made, requests = accelerator(Completion(6, b"\x7fELF"), data(b"\x7fELF\2\1"))
    assert made.read_firmware(firmware_id=7) == b"\x7fELF\2\1"
    assert requests == [
        Request(IO, 0x86, 1, (1, 0, 2, 7, 0, 0), None, 4),
        Request(IO, 0x86, 1, (2, 0, 2, 7, 0, 0), None, 8),
    ]


def test_control_operations() -> None:
    made, requests = accelerator()
    made.select(7)
    made.start()
    made.start(7, [b"abcd", b"x"])
    made.stop()
    made.reset()
    arguments = struct.pack("<I4sI1s3x", 8, b"abcd", 5, b"x")
    assert requests == [
        Request(IO, 0x91, 1, (0, 0, 2, 3, 7, 0)),
        Request(IO, 0x91, 1, (0, 0, 2, 1, 0xFFFF_FFFF, 0)),
        Request(IO, 0x91, 1, (4, 0, 2, 1, 7, 0), arguments),
        Request(IO, 0x91, 1, (0, 0, 2, 2, 0, 0)),
        Request(IO, 0x91, 1, (0, 0, 2, 0, 0, 0)),
    ]


def test_a_chain_has_its_steps_in_its_data() -> None:
    made, requests = accelerator()
    made.start_chain([(7, [b"abcd", 1]), (0xFFFF_FFFF, [])])
    steps = struct.pack("<HHI", 1, 2, 0) + struct.pack("<II I4sII", 7, 16, 8, b"abcd", 8, 1)
    steps += struct.pack("<II", 0xFFFF_FFFF, 0)
    assert requests == [Request(IO, 0x91, 1, (10, 0, 2, 4, 0, 0), steps)]
    for number in (0, 17):
        with pytest.raises(InvalidRequest, match="out of its range"):
            made.start_chain([(7, ())] * number)
    assert len(requests) == 1


def test_a_status_is_retained_measured_and_taken() -> None:
    whole = status(2, struct.pack("<IIQ16x", 0, 7, (1 << 64) - 1))
    made, requests = accelerator(data(whole), data(whole))
    found = made.status()
    assert (found.status, found.return_value) == (2, -1)
    assert requests == [
        Request(ADMIN, 0xC6, 0, (1, 0, 0x8000_0002, 0, 0, 0), None, 4),
        Request(ADMIN, 0xC6, 0, (16, 0, 0x0000_0002, 0, 0, 0), None, 64),
    ]


def test_a_snapshot_that_another_host_took_is_asked_for_again() -> None:
    longer = status(1, bytes(32))
    made, requests = accelerator(data(status(1)), data(longer), *states(2))
    assert made.status().status == 2
    assert len(requests) == 4


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_no_snapshot_behind(kind: type[BaseException]) -> None:
    def interrupt(request: Request) -> Completion:
        raise kind

    made, requests = accelerator(data(status(1)), interrupt)  # the second of two reads
    with pytest.raises(kind):
        made.status()
    assert requests[2:] == [Request(ADMIN, 0xC6, 0, (1, 0, 0x0000_0002, 0, 0, 0), None, 4)]


@pytest.mark.parametrize("answer", [b"", b"\xff\xff\xff\xff", struct.pack("<I28x", 31)])
def test_a_status_that_makes_no_sense_is_the_devices_mistake(answer: bytes) -> None:
    made, _ = accelerator(*[data(answer)] * 6)
    with pytest.raises(DeviceMisbehaved, match="status of accelerator 2"):
        made.status()


def test_the_log_is_retained_measured_and_taken() -> None:
    whole = struct.pack("<II8x", 34, 5) + struct.pack("<IQI", 18, 9, 0x100) + b"hi"
    made, requests = accelerator(data(whole), data(whole))
    log = made.log()
    assert [tuple(entry) for entry in log.entries] == [(9, 0x100, "hi")]
    assert log.lost == 5
    assert requests == [
        Request(ADMIN, 0x02, 0, (0x0000_80C0, 0x0002_0000, 0, 0, 0, 0), None, 4),
        Request(ADMIN, 0x02, 0, (0x0008_00C0, 0x0002_0000, 0, 0, 0, 0), None, 36),
    ]


def test_waiting_polls_with_growing_pauses_until_the_job_is_done() -> None:
    clock = Clock()
    made, _ = accelerator(*states(1, 1, 1, 1, 2), clock=clock)
    assert made.wait(timeout=10, poll=(0.002, 0.01)).status == 2
    assert clock.pauses == [0.002, 0.004, 0.008, 0.01]


ACKNOWLEDGED = Request(ADMIN, 0x02, 0, (0x0000_00C0, 0x0002_0000, 0, 0, 0, 0), None, 4)
"""The log's first dword, read without retaining the event that names it."""


def test_waiting_by_event_polls_seldom_and_acknowledges_what_it_is_told() -> None:
    clock = Clock()
    ended = 0x00C0_0007
    answers = [data(b""), *states(1, 1), data(b""), *states(2)]
    made, requests = accelerator(*answers, clock=clock, events=[None, None, ended])
    assert made.wait(timeout=10, poll=(0.5, 0.5)).status == 2
    transport = made.device.transport
    assert isinstance(transport, RecordingTransport)
    assert transport.awaited == [0, 0.5, 1.0]
    assert clock.pauses == []
    assert [requests.index(one) for one in requests if one == ACKNOWLEDGED] == [0, 0]
    assert len(requests) == 8


def test_an_event_that_is_not_told_costs_no_more_than_its_timeout() -> None:
    made, _ = accelerator(data(b""), *states(*[1] * 5), events=[])
    made._clock = iter([0.0, 0.1, 0.2, 2.0]).__next__
    with pytest.raises(JobTimeout):
        made.wait(timeout=1.0)


def test_progress_is_told_while_a_job_runs_and_data_moves() -> None:
    told: list[tuple[str, float | None]] = []
    made, _ = accelerator(Completion(0), Completion(0), *states(1, 2))
    made.write_input(bytes(12288), progress=lambda *step: told.append(step))
    made.wait(progress=lambda *step: told.append(step))
    assert told == [
        ("sending the input", 8192 / 12288),
        ("sending the input", 1.0),
        ("running", None),
    ]


def test_waiting_ends_with_its_timeout() -> None:
    made, _ = accelerator(*states(*[1] * 50))
    with pytest.raises(JobTimeout, match="still runs after 0.5 s"):
        made.wait(timeout=0.5)


def test_waiting_goes_on_after_polls_that_may_be_retried() -> None:
    lost = CommandFailed(ADMIN, 0xC6, 0x006, dnr=False)
    made, _ = accelerator(*states(1), lost, data(status(1)), lost, *states(2))
    assert made.wait(timeout=10).status == 2


def test_waiting_ends_when_polls_fail_for_good() -> None:
    lost = CommandFailed(ADMIN, 0xC6, 0x006, dnr=False)
    made, requests = accelerator(*[lost] * 200)
    with pytest.raises(CommandFailed):
        made.wait()
    assert len(requests) == 101
    refused, requests = accelerator(CommandFailed(ADMIN, 0xC6, 0x7C1, dnr=True))
    with pytest.raises(CommandFailed):
        refused.wait()
    assert len(requests) == 1


LOG = struct.pack("<II8x", 37, 0) + struct.pack("<IQI", 21, 9, 0x103) + b"fault"


def refusal(status: int) -> CommandFailed:
    return CommandFailed(IO, 0x91, status, dnr=True)


def test_a_refusal_says_what_the_log_says_of_it() -> None:
    whole = struct.pack("<II8x", 42, 0) + struct.pack("<IQI", 26, 9, 0) + b"no firmw 3"
    made, _ = accelerator(refusal(0x7C2), data(whole), data(whole))
    with pytest.raises(CommandFailed) as caught:
        made.start(3)
    assert (caught.value.log, caught.value.status) == ("no firmw 3", 0x7C2)
    assert str(caught.value) == "Control failed: no firmw 3 (SCT 7h, SC C2h)"


@pytest.mark.parametrize(
    ("status", "answers", "said"),
    [
        (0x7C2, [data(LOG), data(LOG)], "there is no such firmware"),  # the entry is of a fault
        (0x7C2, [refusal(0x7C1)], "there is no such firmware"),
        (0x00C, [], "Command Sequence Error"),
    ],
)
def test_a_refusal_of_which_the_log_says_nothing_says_what_its_status_means(
    status: int, answers: list[object], said: str
) -> None:
    made, requests = accelerator(refusal(status), *answers)
    with pytest.raises(CommandFailed) as caught:
        made.start(3)
    assert caught.value.log == "" and said in str(caught.value)
    assert len(requests) == 1 + len(answers)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (3, "the job on accelerator 2 failed: fault"),
        (4, "the job on accelerator 2 was stopped"),
        (0, "accelerator 2 has no job; start one"),
        (99, "the job on accelerator 2 failed: fault"),
    ],
)
def test_a_job_that_did_not_finish_says_why(state: int, reason: str) -> None:
    made, _ = accelerator(*states(1, state), data(LOG), data(LOG))
    with pytest.raises(JobFailed) as caught:
        made.wait()
    assert str(caught.value) == reason
    assert caught.value.status.status == state
    assert caught.value.log.entries[0].type == 0x103

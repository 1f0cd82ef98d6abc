"""Faults as a line of text, and as the commands that ask for them."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_spec.faults import ANY, Fault, FaultFlags, FaultKind, encode_faults
from potash.sdk import InvalidRequest, faults
from potash.sdk.device import Device
from potash.sdk.errors import DeviceMisbehaved
from potash.sdk.transport import Completion, Request
from support.sdk import RecordingTransport

READS, WRITES, ADMIN, DNR = (FaultFlags.READS, FaultFlags.WRITES, FaultFlags.ADMIN, FaultFlags.DNR)

LINES = {
    "io read status=UNRECOVERED_READ_ERROR count=3": Fault(
        FaultKind.STATUS, opcode=2, status=0x281, times=3
    ),
    "io write-zeroes status=0x6 dnr": Fault(FaultKind.STATUS, DNR, opcode=8, status=6),
    "io any status=INTERNAL_PATH_ERROR queue=2 nsid=1": Fault(
        FaultKind.STATUS, queue=2, nsid=1, status=0x300
    ),
    "io CONTROL status=invalid_firmware": Fault(FaultKind.STATUS, opcode=0x91, status=0x7C2),
    "io 0x7f lost": Fault(FaultKind.LOST, opcode=0x7F),
    "io read delay=1.5ms after=10": Fault(FaultKind.DELAY, opcode=2, delay=1500, after=10),
    "io write delay=2s lba=100..199": Fault(
        FaultKind.DELAY, opcode=1, delay=2_000_000, lba=100, blocks=100
    ),
    "admin identify lost count=1": Fault(FaultKind.LOST, ADMIN, opcode=6, times=1),
    "admin any delay=70us": Fault(FaultKind.DELAY, ADMIN, delay=70),
    "media read lba=100+8": Fault(FaultKind.MEDIA_ERROR, READS, lba=100, blocks=8),
    "media write lba=0x10 nsid=2 count=1": Fault(
        FaultKind.MEDIA_ERROR, WRITES, nsid=2, lba=16, blocks=1, times=1
    ),
    "media any delay=20ms": Fault(FaultKind.MEDIA_DELAY, READS | WRITES, delay=20_000),
    "interrupt vector=1 count=2": Fault(FaultKind.INTERRUPT, queue=1, times=2),
    "interrupt": Fault(FaultKind.INTERRUPT),
    "apu": Fault(FaultKind.APU_DEATH, times=1),
    "reachability": Fault(FaultKind.UNREACHABLE),
    "zone reset lba=16..31 nsid=2": Fault(FaultKind.RESET_RECOMMENDED, nsid=2, lba=16, blocks=16),
    "flash program": Fault(FaultKind.PROGRAM_FAILURE, times=1),
    "flash program count=5": Fault(FaultKind.PROGRAM_FAILURE, times=5),
    "interrupt controller=0": Fault(FaultKind.INTERRUPT, controller=1),
    "ana inaccessible": Fault(FaultKind.ACCESS_STATE, times=1, group=1, state=3),
    "ana persistent-loss group=7 at=2s transition=500ms": Fault(
        FaultKind.ACCESS_STATE, times=1, group=7, state=4, delay=2_000_000, transition=500_000
    ),
    "ana non-optimized for=50ms after=1000 count=3": Fault(
        FaultKind.ACCESS_STATE, times=3, after=1000, group=1, state=2, lasting=50_000
    ),
    "zone finish": Fault(FaultKind.FINISH_RECOMMENDED),
    "apu at=now": Fault(FaultKind.APU_DEATH, FaultFlags.AT_ONCE, times=1),
    "apu at=start count=2": Fault(FaultKind.APU_DEATH, FaultFlags.AT_START, times=2),
}


@pytest.mark.parametrize("text", LINES)
def test_a_line_says_a_fault(text: str) -> None:
    assert faults.parse(text) == LINES[text]
    assert faults.parse(faults.describe(LINES[text])) == LINES[text]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it begins with"),
        ("io", "it begins with"),
        ("io read write lost", "it begins with"),
        ("disk read", "it begins with"),
        ("flash erase", "erase is not an operation that fails: program"),
        ("flash program after=1", "none is skipped"),
        ("flash program count=0", "so many of the next programs fail"),
        ("io reed lost", "there is no opcode reed"),
        ("io read", "one of status=, delay= and lost"),
        ("io read lost delay=1s", "one of status=, delay= and lost"),
        ("io read status=OOPS", "there is no status OOPS"),
        ("io read status=SUCCESS", "cannot fail with the status 0x0"),
        ("io read status=0x800", "cannot fail with the status 0x800"),
        ("io read delay=5", "delay=5 is not a time"),
        ("io read delay=2h", "delay=2h is not a time"),
        ("io read delay=5000s", "delay=5000s is not a time"),
        ("io read lost count=x", "count=x is not a number"),
        ("io read lost count=-1", "does not fit"),
        ("io read lost count=1 count=2", "says count twice"),
        ("io read lost colour=red", "io read has no colour"),
        ("io read lost=1", "lost has no value"),
        ("io read status= count=1", "there is no status"),
        ("io read lost lba=", "lba= is not FIRST..LAST"),
        ("io read lost dnr", "io read has no dnr"),
        ("io 70000 lost", "does not fit"),
        ("admin identify lost lba=1", "Admin commands have no blocks"),
        ("media", "it begins with"),
        ("media erase", "erase is not an access: read, write, any"),
        ("media read lba=9..3", "has no block in it"),
        ("media read lba=a..b", "is not FIRST..LAST"),
        ("media read status=1", "media read has no status"),
        ("interrupt vector=x", "is not a number"),
        ("apu at=noon", "noon is not a moment"),
        ("apu at=now count=2", "the APU dies now once"),
    ],
)
def test_a_line_that_says_none_is_told_why(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        faults.parse(text)
    assert why in str(caught.value)


numbers = st.integers(0, 0xFFFF_FFFF)
commands = st.builds(
    lambda kind, value, **rest: Fault(
        kind,
        status=value % 0x7FF + 1 if kind is FaultKind.STATUS else 0,
        delay=value % 10**9 + 1 if kind is FaultKind.DELAY else 0,
        **rest,
    ),
    st.sampled_from([FaultKind.STATUS, FaultKind.DELAY, FaultKind.LOST]),
    numbers,
    opcode=st.integers(0, 255) | st.just(ANY),
    queue=st.integers(0, 64) | st.just(ANY),
    nsid=numbers,
    lba=numbers,
    blocks=st.integers(1, 1000),
    times=numbers,
    after=numbers,
)


@given(commands)
def test_what_is_described_is_what_is_read(fault: Fault) -> None:
    assert faults.parse(faults.describe(fault)) == fault


TABLE = """
[[fault]]
on = "io read"
status = "UNRECOVERED_READ_ERROR"
count = 3
dnr = true

[[fault]]
on = "admin identify"
lost = true
dnr = false
"""


def test_a_file_has_a_table_for_each() -> None:
    assert faults.read_table(tomllib.loads(TABLE)) == [
        Fault(FaultKind.STATUS, DNR, opcode=2, status=0x281, times=3),
        Fault(FaultKind.LOST, ADMIN, opcode=6),
    ]
    assert faults.read_table({}) == []


@pytest.mark.parametrize(
    "text",
    ["faults = 1", "fault = 1", "fault = [1]", "[[fault]]\nlost=true",
     '[[fault]]\non="io read"\nlost=[1]', '[[fault]]\non="io read"\nlost=true\nx=1'],
)  # fmt: skip
def test_a_file_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        faults.read_table(tomllib.loads(text))


def test_a_fault_is_sent_listed_and_cleared() -> None:
    fault = LINES["io read status=UNRECOVERED_READ_ERROR count=3"]
    kept = fault._replace(identifier=7, triggered=2)
    page = encode_faults([kept]).ljust(16 + 256 * 64, b"\0")
    identify = bytearray(4096)
    transport = RecordingTransport(
        [Completion(7), Completion(0, bytes(identify)), Completion(0, page), Completion(0)]
    )
    device = Device(transport)
    assert faults.add(device, "io read status=UNRECOVERED_READ_ERROR count=3") == 7
    assert faults.listed(device) == [kept]
    faults.clear(device, 7)
    added, _, asked, cleared = transport.requests
    assert added == Request(True, 0xF1, 0, (16, 0, 0, 0, 0, 0), fault.encode())
    assert asked == Request(True, 0xF2, 0, ((16 + 256 * 64) // 4, 0, 0, 0, 0, 0), None, 16400)
    assert cleared == Request(True, 0xF1, 0, (0, 0, 1, 7, 0, 0))


def test_a_list_that_makes_no_sense_is_the_devices_mistake() -> None:
    transport = RecordingTransport([Completion(0, bytes(4096)), Completion(0, bytes(16400))])
    with pytest.raises(DeviceMisbehaved, match="faults are unreadable"):
        faults.listed(Device(transport))


def test_a_fault_that_does_not_fit_is_not_sent() -> None:
    transport = RecordingTransport()
    with pytest.raises(InvalidRequest):
        faults.add(Device(transport), Fault(FaultKind.LOST, nsid=1 << 32))
    assert transport.requests == []

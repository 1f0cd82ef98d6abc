"""What `Device` sends and makes of the answers; dwords from the standard's figures."""

import struct
from collections.abc import Callable

import pytest

from potash.sdk import (
    CommandFailed,
    Completion,
    Device,
    DeviceMisbehaved,
    DeviceNotFound,
    InvalidRequest,
)
from potash.sdk.compute_namespace import ComputeNamespace
from potash.sdk.memory_namespace import MemoryNamespace
from potash.sdk.transport import Request
from support.sdk import RecordingTransport, data

ADMIN, IO = True, False


def controller(mdts: int) -> bytes:
    return bytes(77) + bytes([mdts]) + bytes(4096 - 78)


def namespace(blocks: int, lbads: int) -> bytes:
    return struct.pack("<QQQ", blocks, blocks, blocks) + bytes(104 + 2) + bytes([lbads, 0])


def identified(mdts: int = 1, lbads: int = 12) -> list[object]:
    """Answers to what a first read or write asks: namespace, then controller."""
    return [data(namespace(100, lbads)), data(controller(mdts))]


def device(*answers: object, **options: int | None) -> tuple[Device, RecordingTransport]:
    transport = RecordingTransport(answers, **options)  # type: ignore[arg-type]  # test's shorthand
    return Device(transport, timeout=7.0), transport


def test_identify_asks_for_its_structure() -> None:
    opened, transport = device(data(controller(5)), data(namespace(9, 12)))
    assert opened.identify().mdts == 5
    assert opened.namespace(3).identify().nsze == 9
    assert transport.requests == [
        Request(ADMIN, 0x06, 0, (1, 0, 0, 0, 0, 0), None, 4096),
        Request(ADMIN, 0x06, 3, (0, 0, 0, 0, 0, 0), None, 4096),
    ]
    assert transport.timeouts == [7.0, 7.0]


def test_devices_and_what_is_in_them_show_what_they_are() -> None:
    """Without a command."""
    opened, transport = device()
    assert repr(opened) == "<Device without a name>"
    opened.target = "/dev/nvme0"
    found = (opened, opened.namespace(3), MemoryNamespace(opened, 4), ComputeNamespace(opened, 5))
    assert list(map(repr, found)) == [
        "<Device /dev/nvme0>",
        "<Namespace 3 of <Device /dev/nvme0>>",
        "<MemoryNamespace 4 of <Device /dev/nvme0>>",
        "<ComputeNamespace 5 of <Device /dev/nvme0>>",
    ]
    assert transport.requests == []


@pytest.mark.parametrize(
    "call",
    [
        lambda opened: opened.read(0, -1),
        lambda opened: opened.log_page(2, -4),
        lambda opened: opened.admin(0x06, data_in_length=-4),
        lambda opened: opened.submit(0x02, data_in_length=-4),
    ],
    ids=["read", "log page", "admin", "submit"],
)
def test_nothing_is_sent_for_a_negative_length(call: Callable[[Device], object]) -> None:
    opened, transport = device(*identified())
    with pytest.raises(InvalidRequest):
        call(opened)
    sent = [one for one in transport.requests if one.opcode != 0x06 or one.data_in_length != 4096]
    assert sent == []


def test_the_smart_log_is_that_of_the_whole_controller() -> None:
    page = b"\x01" + struct.pack("<H", 350) + bytes(509)
    opened, transport = device(data(controller(5)), data(page))
    found = opened.smart_log()
    assert (found.critical_warning, found.composite_temperature) == (1, 350)
    wanted = Request(ADMIN, 0x02, 0xFFFF_FFFF, (0x007F_0002, 0, 0, 0, 0, 0), None, 512)
    assert transport.requests[1] == wanted


def test_each_namespace_has_blocks_of_its_own() -> None:
    answers = [data(struct.pack("<II", 1, 3)), data(namespace(9, 9)), data(controller(5))]
    again = data(namespace(9, 9))
    opened, transport = device(*answers, again, Completion(0), again)
    first, third = opened.namespaces()
    assert (first.nsid, third.nsid) == (1, 3)
    third.write(2, bytes(512))
    assert third.capacity == 9 * 512
    wanted = Request(IO, 0x01, 3, (2, 0, 0, 0, 0, 0), bytes(512))
    assert [one for one in transport.requests if not one.admin] == [wanted]


def test_the_namespace_list_is_read_on_where_it_was_full() -> None:
    first = struct.pack("<1024I", *range(1, 1025))
    opened, transport = device(data(first), data(struct.pack("<I", 2000)))
    assert opened.active_namespaces() == [*range(1, 1025), 2000]
    assert [(item.nsid, item.cdws[0]) for item in transport.requests] == [(0, 2), (1024, 2)]


def test_a_namespace_list_that_goes_round_in_circles_is_the_devices_mistake() -> None:
    endless = struct.pack("<1024I", *range(1, 1025))
    opened, transport = device(*[data(endless)] * 5)
    with pytest.raises(DeviceMisbehaved, match="out of order"):
        opened.active_namespaces()
    assert len(transport.requests) == 2


def test_a_controller_without_a_namespace_of_its_own_uses_its_first() -> None:
    opened, _ = device(data(struct.pack("<II", 4, 7)), nsid=None)
    assert opened.nsid == 4
    empty, _ = device(data(b""), nsid=None)
    with pytest.raises(DeviceNotFound, match="no namespace"):
        _ = empty.nsid


def test_the_block_size_is_asked_for_once_and_the_capacity_each_time() -> None:
    opened, transport = device(*identified(lbads=9), data(namespace(100, 9)))
    assert (opened.block_size, opened.block_size) == (512, 512)
    assert len(transport.requests) == 2
    assert opened.capacity == 51200
    assert len(transport.requests) == 3


@pytest.mark.parametrize("lbads", [0, 8, 40])
def test_a_block_size_that_cannot_be_is_refused(lbads: int) -> None:
    opened, _ = device(*identified(lbads=lbads))
    with pytest.raises(DeviceMisbehaved, match="blocks of"):
        _ = opened.block_size


@pytest.mark.parametrize(
    ("mdts", "transport_limit", "limit"),
    [(1, 1 << 20, 8192), (0, 1 << 20, 1 << 20), (10, 65536, 65536), (255, 65536, 65536)],
)
def test_a_transfer_is_as_long_as_both_controller_and_transport_allow(
    mdts: int, transport_limit: int, limit: int
) -> None:
    opened, _ = device(data(controller(mdts)), max_transfer=transport_limit)
    assert opened.max_transfer == limit


def test_a_read_goes_out_in_pieces_of_max_transfer() -> None:
    content = bytes(range(256)) * 48
    pieces = data(content[:8192]), data(content[8192:])
    opened, transport = device(*identified(), identified()[0], *pieces)
    assert opened.read(0x1_0000_0005, 3) == content
    assert transport.requests[3:] == [
        Request(IO, 0x02, 1, (5, 1, 1, 0, 0, 0), None, 8192),
        Request(IO, 0x02, 1, (7, 1, 0, 0, 0, 0), None, 4096),
    ]


def test_a_write_goes_out_in_pieces_of_max_transfer() -> None:
    content = bytes(range(256)) * 48
    opened, transport = device(*identified(), identified()[0])
    opened.write(5, memoryview(content))
    assert transport.requests[3:] == [
        Request(IO, 0x01, 1, (5, 0, 1, 0, 0, 0), content[:8192], 0),
        Request(IO, 0x01, 1, (7, 0, 0, 0, 0, 0), content[8192:], 0),
    ]


def test_pieces_of_a_transfer_are_in_flight_together_and_none_is_left_after_an_error() -> None:
    class Pending:
        def __init__(self, number: int) -> None:
            self.number = number
            in_flight.append(number)

        def done(self) -> bool:
            return self.number not in in_flight

        def result(self) -> Completion:
            together.append(len(in_flight))
            in_flight.remove(self.number)
            if self.number == 3:
                raise CommandFailed(IO, 0x02, 0x281)
            return Completion(self.number)

    in_flight: list[int] = []
    together: list[int] = []
    opened, transport = device()
    transport.queue_depth = 3
    with pytest.raises(CommandFailed):
        list(opened.completions(map(Pending, range(20))))
    assert (together, in_flight) == ([3, 3, 3, 3, 2, 1], [])


def test_a_write_takes_a_hint_and_attributes() -> None:
    opened, transport = device(*identified(), identified()[0])
    namespace = opened.namespace(1)
    namespace.write(5, bytes(4096), hint=0xABCD_1234, attributes=4)
    (sent,) = [one for one in transport.requests if not one.admin]
    assert (sent.cdw3, sent.cdws[2:4]) == (0xABCD_0000, (15 << 20, 0x1234 << 16 | 4))
    for hint, attributes in ((1 << 32, 0), (-1, 0), (0, 256)):
        with pytest.raises(InvalidRequest):
            namespace.write(5, bytes(4096), hint=hint, attributes=attributes)


def test_a_write_of_half_a_block_is_refused_before_it_is_sent() -> None:
    opened, transport = device(*identified())
    with pytest.raises(ValueError, match="4096-byte blocks"):
        opened.write(0, bytes(5000))
    assert [item.opcode for item in transport.requests if not item.admin] == []


def test_nothing_is_sent_for_no_blocks() -> None:
    opened, transport = device(*identified())
    assert opened.read(0, 0) == b""
    opened.write(0, b"")
    assert all(item.admin for item in transport.requests)


def test_flush_goes_to_the_namespace() -> None:
    opened, transport = device(nsid=3)
    opened.flush()
    assert transport.requests == [Request(IO, 0x00, 3)]


def test_a_log_page_is_read_in_pieces_that_retain_its_event() -> None:
    content = bytes(range(251)) * 40
    opened, transport = device(data(controller(1)), data(content[:8192]), data(content[8192:]))
    assert opened.log_page(0xC0, 10001, lsi=2) == content[:10001]
    numd = (10004 - 8192) // 4 - 1
    assert [item.cdws for item in transport.requests[1:]] == [
        (0x07FF_80C0, 0x0002_0000, 0, 0, 0, 0),
        (numd << 16 | 0xC0, 0x0002_0000, 8192, 0, 0, 0),
    ]


def test_a_command_of_the_users_own_is_passed_on() -> None:
    opened, transport = device(Completion(5))
    completion = opened.admin(
        0xC1, nsid=9, cdw10=1, cdw11=2, cdw12=3, cdw13=4, cdw14=5, cdw15=6,
        data_out=b"abcd", timeout=1.5,
    )  # fmt: skip
    assert completion.result == 5
    assert transport.requests == [Request(ADMIN, 0xC1, 9, (1, 2, 3, 4, 5, 6), b"abcd", 0)]
    assert transport.timeouts == [1.5]


def test_data_against_an_opcodes_direction_is_refused() -> None:
    opened, transport = device(max_transfer=4096)
    with pytest.raises(ValueError, match="does not send"):
        opened.admin(0x06, data_out=b"abcd")
    with pytest.raises(ValueError, match="does not receive"):
        opened.io(0x01, data_in_length=4)
    with pytest.raises(ValueError, match="too many"):
        opened.io(0x02, data_in_length=4097)
    assert transport.requests == []


def test_an_error_status_reaches_the_caller() -> None:
    failure = CommandFailed(IO, 0x02, 0x080, dnr=True)
    opened, _ = device(*identified(), failure)
    with pytest.raises(CommandFailed) as caught:
        opened.read(200, 1)
    assert (caught.value.status, caught.value.dnr) == (0x080, True)
    assert str(caught.value) == "Read failed: LBA Out Of Range (SCT 0h, SC 80h)"


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (
            CommandFailed(IO, 0x85, 0x7C0),
            "Send firmware failed: the accelerator subsystem is disabled (SCT 7h, SC C0h)",
        ),
        (CommandFailed(ADMIN, 0xC2, 0x001), "Identify failed: Invalid Opcode (SCT 0h, SC 01h)"),
        (
            CommandFailed(ADMIN, 0xFE, 0x002),
            "Admin command FEh failed: Invalid Field (SCT 0h, SC 02h)",
        ),
    ],
)
def test_a_failed_command_says_what_is_wrong(failure: CommandFailed, text: str) -> None:
    assert str(failure) == text


def test_accelerators_are_identified_in_two_steps() -> None:
    description = (
        b"WDC0"
        + struct.pack("<I8x", 16 + 40)
        + struct.pack("<IHxx", 40, 3)
        + struct.pack("<I4xQ", 1, 4096)
        + struct.pack("<I4xQ", 2, 8192)
    )
    opened, transport = device(data(description), data(controller(1)), data(description))
    (accelerator,) = opened.accelerators()
    assert (accelerator.id, accelerator.input_size, accelerator.output_size) == (3, 4096, 8192)
    assert not accelerator.takes_firmware
    asked = [item for item in transport.requests if item.opcode == 0xC2]
    assert asked == [
        Request(ADMIN, 0xC2, 0, (4, 0, 0, 0, 0, 0), None, 16),
        Request(ADMIN, 0xC2, 0, (14, 0, 0, 0, 0, 0), None, 56),
    ]


@pytest.mark.parametrize(
    "answer", [b"", b"WDC1" + bytes(12), struct.pack("<4sI8x", b"WDC0", 4), b"WDC0" + b"\xff" * 12]
)
def test_accelerators_that_make_no_sense_are_the_devices_mistake(answer: bytes) -> None:
    opened, _ = device(data(answer), data(controller(1)), data(answer))
    with pytest.raises(DeviceMisbehaved, match="unreadable"):
        opened.accelerators()


def test_a_reset_forgets_what_was_learnt() -> None:
    opened, transport = device(*identified(lbads=9), *identified(lbads=12))
    assert opened.block_size == 512
    opened.reset()
    assert opened.block_size == 4096
    assert transport.resets == 1


def test_leaving_a_device_closes_its_transport() -> None:
    opened, transport = device()
    with opened:
        assert not transport.closed
    assert transport.closed

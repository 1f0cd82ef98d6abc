"""Messages on the wire, one kind after the other: VERSION, accesses to regions,
questions, and interrupts."""

from __future__ import annotations

import errno
import json
import os
import struct
from pathlib import Path

import pytest

from pyvfio_user.device import Region
from pyvfio_user.irqs import Irq
from pyvfio_user.sealed_memory import SealedMemory
from pyvfio_user.server import Server
from support.vfio_user import (
    DEVICE_RESET,
    DMA_UNMAP,
    GET_INFO,
    GET_IRQ_INFO,
    GET_REGION_INFO,
    NO_REPLY,
    QEMU_VERSION,
    REGION_READ,
    REGION_WRITE_MULTI,
    VERSION,
    RawClient,
    Recorder,
    command,
    eventfd_value,
    negotiated,
    region_read,
    region_write,
    set_irqs,
    socket_path,
)

PAGE = 4096


def test_the_version_is_the_lesser_of_both(server: Server) -> None:
    for proposed, agreed in [((0, 0), (0, 0)), ((0, 1), (0, 1)), ((0, 9), (0, 1))]:
        with RawClient(server) as client:
            reply = client.ask(command(VERSION, struct.pack("<HH", *proposed)))
            assert struct.unpack("<HH", reply.payload) == agreed
        client.pump()


def test_a_version_reply_fits_where_the_request_did_and_names_only_what_was_proposed(
    server: Server,
) -> None:
    for data, expected in [
        (b'{"capabilities":{"max_msg_fds":1}}\0', {"max_msg_fds": 8}),
        (b'{"capabilities":{"max_data_xfer_size":1}}\0', None),
        (b'{"capabilities":{"max_data_xfer_size":4096,"max_msg_fds":1}}\0', {"max_msg_fds": 8}),
        (b'{"capabilities":{"write_multiple":false}}\0', {"write_multiple": False}),
        (b'{"capabilities":{"write_multiple":true}}\0', {"write_multiple": True}),
        (b'{"capabilities":{"migration":{"pgsize":4096}}}\0', None),
        (b"{}\0", None),
    ]:
        with RawClient(server) as client:
            reply = client.ask(command(VERSION, bytes(4) + data))
            assert len(reply.payload) <= 4 + len(data)
            if expected is None:
                assert reply.payload == bytes(4)
            else:
                assert json.loads(reply.payload[4:-1]) == {"capabilities": expected}
        client.pump()


@pytest.mark.parametrize(
    "first",
    [
        command(GET_INFO, struct.pack("<IIII", 16, 0, 0, 0)),
        command(VERSION, struct.pack("<HH", 1, 0)),
        command(VERSION, b"\0"),
        command(VERSION, bytes(4) + b"nonsense\0"),
        command(VERSION, QEMU_VERSION, flags=NO_REPLY),
        command(99),
    ],
    ids=["other", "major", "short", "no JSON", "no reply", "unknown"],
)
def test_a_client_that_does_not_begin_with_a_version_is_not_attached(
    server: Server, device: Recorder, ended: list[str], first: bytes
) -> None:
    with RawClient(server) as client:
        client.send(first)
        client.pump()
        # What asks for a version learns that it is wrong.
        asks = struct.unpack_from("<2xHIII", first)[::2] == (VERSION, 0)
        assert [one.error for one in client.replies()] == [errno.EINVAL] * asks
        assert client.disconnected
    assert device.calls == []
    assert len(ended) == 1
    with negotiated(server):
        assert device.calls == [("attached",)]


def test_the_version_is_negotiated_once(server: Server, device: Recorder) -> None:
    with negotiated(server) as client:
        assert client.negotiate().error == errno.ENOTSUP
        assert device.calls == [("attached",)]


def test_a_device_may_refuse_a_client(server: Server, device: Recorder) -> None:
    device.fail = OSError(errno.EBUSY, "not now")
    with RawClient(server) as client:
        assert client.negotiate().error == errno.EBUSY
        assert client.negotiate().flags == 1
    client.pump()
    assert device.calls == [("attached",), ("attached",), ("detached",)]


BIG = 1 << 20


@pytest.mark.parametrize(
    ("offset", "count", "region"),
    [
        (0x4001, 0, 0),
        (0x4000, 1, 0),
        (0x3FFF, 2, 0),
        (0, 0x4001, 0),
        ((1 << 64) - 1, 1, 0),
        ((1 << 64) - 4, 8, 0),
        (0, 4, 1),
        (0, 4, 9),
        (0, 4, 0xFFFF_FFFF),
    ],
)
def test_an_access_outside_of_a_region_never_reaches_the_device(
    server: Server, device: Recorder, offset: int, count: int, region: int
) -> None:
    with negotiated(server) as client:
        assert client.ask(region_read(offset, count, region)).error == errno.EINVAL
        write = region_write(offset, bytes(count), region=region)
        assert client.ask(write).error == errno.EINVAL
        assert device.calls == [("attached",)]


def test_an_access_of_no_bytes_is_done_without_the_device(server: Server, device: Recorder) -> None:
    with negotiated(server) as client:
        for message in (region_read(0x4000, 0), region_write(0x4000, b"")):
            assert client.ask(message).payload == struct.pack("<QII", 0x4000, 0, 0)
        multi = struct.pack("<QQII8s", 1, 0, 0, 0, b"")
        assert client.ask(command(REGION_WRITE_MULTI, multi)).payload == struct.pack("<Q", 1)
        assert client.ask(region_write(0, b"", region=2)).error == errno.EINVAL
        assert device.calls == [("attached",)]


def test_an_access_larger_than_the_largest_transfer_never_reaches_the_device(
    tmp_path: Path,
) -> None:
    device = Recorder(regions={0: Region(4 * BIG)}, irqs={0: Irq(1)})
    device.pci = False
    with Server(socket_path(tmp_path), device) as server, negotiated(server) as client:
        assert client.ask(region_read(0, BIG + 1)).error == errno.EINVAL
        client.send(region_read(BIG, BIG))
        parts = bytearray()
        while len(parts) < 16 + 16 + BIG:
            client.pump()
            parts += client.socket.recv(BIG)
        assert struct.unpack_from("<HHIII", parts) == (7, REGION_READ, 32 + BIG, 1, 0)
        assert device.calls == [("attached",), ("read", 0, BIG, BIG)]


def test_rights_of_a_region_are_kept(server: Server, device: Recorder) -> None:
    with negotiated(server) as client:
        assert client.ask(region_write(0, b"abcd", region=2)).error == errno.EINVAL
        assert not client.ask(region_read(0, 4, region=2)).failed
        assert device.calls == [("attached",), ("read", 2, 0, 4)]


def test_a_write_whose_data_is_not_as_long_as_it_says_is_refused(
    server: Server, device: Recorder
) -> None:
    with negotiated(server) as client:
        for payload in (
            b"",
            struct.pack("<QI", 0, 0),
            struct.pack("<QII", 0, 0, 4) + b"abc",
            struct.pack("<QII", 0, 0, 4) + b"abcde",
        ):
            assert client.ask(command(10, payload)).error == errno.EINVAL
        assert device.calls == [("attached",)]


def test_coalesced_writes_happen_in_order_or_not_at_all(server: Server, device: Recorder) -> None:
    def multi(*writes: tuple[int, int, int, bytes]) -> bytes:
        return command(
            REGION_WRITE_MULTI,
            struct.pack("<Q", len(writes)) + b"".join(struct.pack("<QII8s", *w) for w in writes),
        )

    with negotiated(server) as client:
        reply = client.ask(multi((0x1000, 0, 4, b"abcd"), (8, 7, 2, b"ef"), (0, 0, 8, b"12345678")))
        assert struct.unpack("<Q", reply.payload) == (3,)
        assert device.calls[1:] == [
            ("write", 0, 0x1000, b"abcd"),
            ("write", 7, 8, b"ef"),
            ("write", 0, 0, b"12345678"),
        ]
        del device.calls[:]
        for bad in ((0x3FFE, 0, 4, b""), (0, 2, 4, b""), (0x4001, 0, 0, b""), (0, 0, 9, b"")):
            assert client.ask(multi((0, 0, 4, b"good"), bad)).error == errno.EINVAL
        assert device.calls == []


def test_a_device_s_error_is_the_reply_s(server: Server, device: Recorder) -> None:
    with negotiated(server) as client:
        for message in (
            region_read(0, 4),
            region_write(0, b"abcd"),
            command(DEVICE_RESET),
            set_irqs(0x21, 2, 0, 0),
        ):
            device.fail = OSError(errno.ENODEV, "broken")
            assert client.ask(message).error == errno.ENODEV
            device.fail = OSError("without a number")
            assert client.ask(message).error == errno.EIO
            assert not client.ask(message).failed


def test_a_device_that_answers_another_number_of_bytes_is_an_error(
    server: Server, device: Recorder
) -> None:
    with negotiated(server) as client:
        del device.bytes[0][0x2000:]
        assert client.ask(region_read(0x1FFE, 4)).error == errno.EIO


def test_posted_messages_have_no_reply_even_when_they_fail(
    server: Server, device: Recorder
) -> None:
    with negotiated(server) as client:
        client.send(region_write(0x3FFF, b"abcd", flags=NO_REPLY))
        client.send(command(99, flags=NO_REPLY))
        client.send(command(DEVICE_RESET, flags=NO_REPLY))
        client.pump()
        assert client.replies() == []
        assert device.calls == [("attached",), ("reset",)]


def test_unknown_commands_are_not_supported(server: Server) -> None:
    with negotiated(server) as client:
        for number in (0, 11, 12, 14, 17, 18, 19, 0xFFFF):
            assert client.ask(command(number, bytes(32))).error == errno.ENOTSUP


def test_a_request_may_be_longer_than_its_structure(server: Server, device: Recorder) -> None:
    """Some clients send as many bytes as they have room for in the reply."""
    with SealedMemory(PAGE) as memory, negotiated(server) as client:
        for number, payload, size in (
            (GET_INFO, struct.pack("<IIII", 64, 0, 0, 0), 16),
            (GET_REGION_INFO, struct.pack("<IIIIQQ", 64, 0, 0, 0, 0, 0), 32),
            (GET_IRQ_INFO, struct.pack("<IIII", 64, 0, 2, 0), 16),
            (REGION_READ, struct.pack("<QII", 0, 0, 4), 20),
        ):
            reply = client.ask(command(number, payload + bytes(48)))
            assert (reply.failed, len(reply.payload)) == (False, size)
            assert number == REGION_READ or struct.unpack_from("<I", reply.payload) == (size,)
        window = struct.pack("<IIQQQ", 40, 3, 0, 0, PAGE) + bytes(8)
        assert not client.ask(command(2, window), [memory.fd]).failed
        gone = client.ask(command(DMA_UNMAP, struct.pack("<IIQQ", 32, 0, 0, PAGE) + bytes(8)))
        assert not gone.failed


def test_a_question_without_room_for_the_answer_is_refused(server: Server) -> None:
    with negotiated(server) as client:
        assert client.ask(command(GET_INFO, struct.pack("<IIII", 15, 0, 0, 0))).failed
        region = struct.pack("<IIIIQQ", 31, 0, 0, 0, 0, 0)
        assert client.ask(command(GET_REGION_INFO, region)).failed
        assert client.ask(command(GET_IRQ_INFO, struct.pack("<IIII", 0, 0, 2, 0))).failed
        larger = struct.pack("<IIIIQQ", 4096, 0, 0, 0, 0, 0)
        assert len(client.ask(command(GET_REGION_INFO, larger)).payload) == 32


def test_an_index_that_the_device_does_not_have_is_refused(server: Server) -> None:
    with negotiated(server) as client:
        for index in (9, 0xFFFF_FFFF):
            region = struct.pack("<IIIIQQ", 32, 0, index, 0, 0, 0)
            assert client.ask(command(GET_REGION_INFO, region)).error == errno.EINVAL
        irq = struct.pack("<IIII", 16, 0, 5, 0)
        assert client.ask(command(GET_IRQ_INFO, irq)).error == errno.EINVAL
        # Within PCI's indexes, what the device does not have is there and empty.
        irq = struct.pack("<IIII", 16, 0, 1, 0)
        reply = client.ask(command(GET_IRQ_INFO, irq))
        assert struct.unpack("<IIII", reply.payload) == (16, 0, 1, 0)


def test_an_interrupt_is_set_up_triggered_masked_and_disabled(
    server: Server, device: Recorder
) -> None:
    """Flags: DATA_NONE 1, BOOL 2, EVENTFD 4; MASK 8, UNMASK 10h, TRIGGER 20h."""
    fired, masked, unmasked = (os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3))

    def heard() -> tuple[int, int, int]:
        return eventfd_value(fired), eventfd_value(masked), eventfd_value(unmasked)

    with negotiated(server) as client:

        def ask(message: bytes, *fds: int) -> int:
            reply = client.ask(message, fds)
            assert reply.payload == b""
            return reply.error

        assert ask(set_irqs(0x24, 0, 0, 1), fired) == 0
        assert ask(set_irqs(0x0C, 0, 0, 1), masked) == 0
        assert ask(set_irqs(0x14, 0, 0, 1), unmasked) == 0
        assert ask(set_irqs(0x21, 0, 0, 1)) == 0
        assert heard() == (1, 1, 0)  # AUTOMASKED: it masks itself
        assert ask(set_irqs(0x22, 0, 0, 1, b"\1")) == 0
        assert heard() == (0, 0, 0)
        assert ask(set_irqs(0x12, 0, 0, 1, b"\0")) == 0
        assert heard() == (0, 0, 0)
        assert ask(set_irqs(0x11, 0, 0, 1)) == 0
        assert heard() == (0, 0, 1)
        for flags in (0x09, 0x11, 0x0A, 0x22, 0x24, 0x0C):
            assert ask(set_irqs(flags, 0, 0, 0)) == errno.EINVAL
        assert ask(set_irqs(0x21, 0, 1, 0)) == errno.EINVAL
        assert ask(set_irqs(0x09, 2, 0, 1)) == errno.EINVAL  # MSI-X is not MASKABLE here
        assert ask(set_irqs(0x21, 0, 0, 0)) == 0
        assert ask(set_irqs(0x21, 0, 0, 1)) == 0
        assert heard() == (0, 0, 0)
        # NORESIZE: the set has two, and the third comes only after all were disabled.
        assert ask(set_irqs(0x24, 2, 0, 2), fired, fired) == 0
        assert ask(set_irqs(0x24, 2, 3, 1), fired) == errno.EINVAL
        assert ask(set_irqs(0x21, 2, 0, 0)) == 0
        assert ask(set_irqs(0x24, 2, 3, 1), fired) == 0
        assert device.calls.count(("irqs_changed", 0)) == 9
    for fd in (fired, masked, unmasked):
        os.close(fd)

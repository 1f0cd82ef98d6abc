"""The server, stepped by hand: what QEMU sends in its order, errors, and clients that come and
go."""

from __future__ import annotations

import errno
import json
import os
import select
import struct
from pathlib import Path

import pytest

from pyvfio_user.connection import Message
from pyvfio_user.device import Region
from pyvfio_user.irqs import Irq
from pyvfio_user.memory import AccessFault
from pyvfio_user.sealed_memory import SealedMemory
from pyvfio_user.server import Server
from support.vfio_user import (
    DEVICE_FEATURE,
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
    dma_map,
    eventfd_value,
    leaked,
    negotiated,
    open_descriptors,
    region_read,
    region_write,
    set_irqs,
    socket_path,
)

PAGE = 4096


def _dma_unmap(address: int, size: int, flags: int = 0) -> bytes:
    return command(DMA_UNMAP, struct.pack("<IIQQ", 24, flags, address, size))


def test_qemu_s_start_up_in_its_order(server: Server, device: Recorder) -> None:
    """Every message as QEMU 11.1 sends it, and the reply that its client accepts."""
    device.bytes[7][0:4] = b"\x36\x1b\x10\x00"
    eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    with SealedMemory(64 * PAGE) as memory, RawClient(server) as client:
        version = client.ask(command(VERSION, QEMU_VERSION, message_id=1))
        assert (version.message_id, version.command, version.flags) == (1, 1, 1)
        assert struct.unpack_from("<HH", version.payload) == (0, 0)
        assert version.payload[-1:] == b"\0"
        assert json.loads(version.payload[4:-1]) == {
            "capabilities": {
                "max_msg_fds": 8,
                "max_data_xfer_size": 1048576,
                "max_dma_maps": 65535,
                "write_multiple": True,
            }
        }
        assert len(version.payload) <= len(QEMU_VERSION)
        assert device.calls == [("attached",)]

        assert client.ask(dma_map(0, 32 * PAGE), [memory.fd]).payload == b""
        assert client.ask(dma_map(0xFFFC_0000, 0x4_0000, flags=1)).flags == 1

        info = client.ask(command(GET_INFO, struct.pack("<IIII", 16, 0, 0, 0)))
        assert struct.unpack("<IIII", info.payload) == (16, 3, 9, 5)
        sizes = {}
        for index in (0, 1, 2, 3, 4, 5, 7):
            reply = client.ask(
                command(GET_REGION_INFO, struct.pack("<IIIIQQ", 32, 0, index, 0, 0, 0))
            )
            argsz, flags, echoed, caps, size, offset = struct.unpack("<IIIIQQ", reply.payload)
            assert (argsz, echoed, caps, offset) == (32, index, 0, 0)
            sizes[index] = (flags, size)
        assert sizes == {
            0: (3, 0x4000),
            1: (0, 0),
            2: (1, 0x1000),
            3: (0, 0),
            4: (0, 0),
            5: (0, 0),
            7: (3, 0x1000),
        }
        irqs = {}
        for index in (3, 2):
            reply = client.ask(command(GET_IRQ_INFO, struct.pack("<IIII", 16, 0, index, 0)))
            irqs[index] = struct.unpack("<IIII", reply.payload)
        assert irqs == {3: (16, 1, 3, 1), 2: (16, 9, 2, 16)}

        config = client.ask(region_read(0, 4096, region=7))
        assert struct.unpack_from("<QII", config.payload) == (0, 7, 4096)
        assert config.payload[16:20] == b"\x36\x1b\x10\x00"
        assert len(config.payload) == 16 + 4096

        assert client.ask(set_irqs(0x24, 0, 0, 1), [eventfd]).flags == 1
        assert client.ask(set_irqs(0x24, 3, 0, 1), [eventfd]).flags == 1
        assert client.ask(command(DEVICE_RESET)) == (7, DEVICE_RESET, 1, 0, b"")
        feature = client.ask(command(DEVICE_FEATURE, struct.pack("<II", 8, 0x5_0001)))
        assert (feature.failed, feature.error, feature.payload) == (True, errno.EINVAL, b"")
        for bar in range(6):
            reply = client.ask(region_write(0x10 + 4 * bar, b"\xff\xff\xff\xff", region=7))
            assert struct.unpack("<QII", reply.payload) == (0x10 + 4 * bar, 7, 4)

        # Vectors: one enabled with nothing to signal, all disabled, then eventfds.
        assert client.ask(set_irqs(0x24, 2, 0, 1)).flags == 1
        assert client.ask(set_irqs(0x21, 2, 0, 0)).flags == 1
        assert client.ask(set_irqs(0x24, 2, 0, 2), [eventfd, eventfd]).flags == 1
        assert device.lines is not None and device.lines.trigger(2, 1)
        assert eventfd_value(eventfd) == 1

        # Firmware runs: all memory goes, and comes again in pieces.
        gone = client.ask(_dma_unmap(0, 32 * PAGE))
        assert struct.unpack("<IIQQ", gone.payload) == (24, 0, 0, 32 * PAGE)
        for piece in range(4):
            reply = client.ask(
                dma_map(piece * 8 * PAGE, 8 * PAGE, offset=piece * 8 * PAGE), [memory.fd]
            )
            assert not reply.failed
        client.send(region_write(0x1000, b"\1\0\0\0", flags=NO_REPLY))
        client.pump()
        assert client.replies() == []
        assert device.calls[-1] == ("write", 0, 0x1000, b"\1\0\0\0")
    os.close(eventfd)


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


def test_memory_errors_have_their_numbers(server: Server, device: Recorder) -> None:
    with SealedMemory(4 * PAGE) as memory, negotiated(server) as client:
        assert client.ask(dma_map(0, PAGE), [memory.fd, memory.fd]).error == errno.EINVAL
        assert client.ask(dma_map(0, PAGE, flags=4), [memory.fd]).error == errno.EINVAL
        assert client.ask(_dma_unmap(0, PAGE)).error == errno.ENOENT
        assert device.calls == [("attached",)]
        assert not client.ask(dma_map(0, PAGE), [memory.fd]).failed
        assert client.ask(dma_map(0, 2 * PAGE), [memory.fd]).error == errno.EEXIST
        assert client.ask(_dma_unmap(0, PAGE, flags=1)).error == errno.EINVAL
        assert client.ask(_dma_unmap(0, PAGE, flags=2)).error == errno.EINVAL
        assert client.ask(_dma_unmap(0, 0, flags=3)).error == errno.EINVAL
        assert device.calls == [("attached",), ("memory_changed",)]


def test_a_window_that_the_device_refuses_does_not_stay(server: Server, device: Recorder) -> None:
    with SealedMemory(2 * PAGE) as memory, negotiated(server) as client:
        assert not client.ask(dma_map(PAGE, PAGE), [memory.fd]).failed
        device.fail = OSError(errno.ENOMEM, "no room for another window")
        assert client.ask(dma_map(0, PAGE), [memory.fd]).error == errno.ENOMEM
        assert device.memory is not None
        with pytest.raises(AccessFault):
            device.memory.view(0, 1)
        device.memory.view(PAGE, 1)
        assert not client.ask(dma_map(0, PAGE), [memory.fd]).failed
        # What is unmapped is gone, whatever the device says.
        device.fail = OSError(errno.EBUSY, "busy")
        assert client.ask(_dma_unmap(0, PAGE)).error == errno.EBUSY
        assert client.ask(_dma_unmap(0, PAGE)).error == errno.ENOENT


def test_memory_that_is_in_use_stays_while_a_transfer_waits(server: Server) -> None:
    """However many bytes follow the structure of the request to unmap it."""
    with SealedMemory(PAGE) as memory, negotiated(server) as client:
        client.ask(dma_map(0, PAGE), [memory.fd])
        client.ask(dma_map(PAGE, PAGE))
        assert server._session is not None
        for extra in (b"", bytes(8)):
            for address, harmless in ((0, False), (PAGE, True)):
                payload = struct.pack("<IIQQ", 24, 0, address, PAGE) + extra
                message = Message(0, DMA_UNMAP, 0, memoryview(payload), [])
                assert server._session.may_interleave(message) is harmless


def test_argsz_covers_the_structures_of_memory_and_interrupts(
    server: Server, device: Recorder
) -> None:
    with negotiated(server) as client:
        for number, payload in (
            (2, struct.pack("<IIQQQ", 31, 3, 0, 0, PAGE)),
            (DMA_UNMAP, struct.pack("<IIQQ", 23, 2, 0, 0)),
            (8, struct.pack("<IIIII", 19, 0x21, 2, 0, 0)),
            (8, struct.pack("<IIIII", 20, 0x22, 2, 0, 1) + b"\1"),
        ):
            assert client.ask(command(number, payload)).error == errno.EINVAL
        assert device.calls == [("attached",)]


def test_a_server_may_allow_fewer_windows(tmp_path: Path, device: Recorder) -> None:
    with (
        Server(socket_path(tmp_path), device, max_dma_maps=2) as server,
        RawClient(server) as client,
    ):
        answer = client.negotiate()
        assert json.loads(answer.payload[4:-1])["capabilities"]["max_dma_maps"] == 2
        assert not client.ask(dma_map(0, PAGE)).failed
        assert not client.ask(dma_map(PAGE, PAGE)).failed
        assert client.ask(dma_map(2 * PAGE, PAGE)).error == errno.ENOSPC
        assert not client.ask(_dma_unmap(0, PAGE)).failed
        assert not client.ask(dma_map(2 * PAGE, PAGE)).failed


def test_unmap_all_takes_everything(server: Server, device: Recorder) -> None:
    with SealedMemory(4 * PAGE) as memory, negotiated(server) as client:
        for page in range(4):
            client.ask(dma_map(page * PAGE, PAGE, offset=page * PAGE), [memory.fd])
        reply = client.ask(_dma_unmap(0, 0, flags=2))
        assert struct.unpack("<IIQQ", reply.payload) == (24, 2, 0, 0)
        assert device.memory is not None
        for page in range(4):
            with pytest.raises(AccessFault):
                device.memory.view(page * PAGE, 1, write=False)
        assert device.calls.count(("memory_changed",)) == 5


def test_the_device_hears_of_a_change_after_it_and_before_the_reply(
    server: Server, device: Recorder
) -> None:
    with SealedMemory(PAGE) as memory, negotiated(server) as client:
        seen = []

        def look() -> None:
            assert device.memory is not None
            try:
                device.memory.view(0, 1, write=False)
                mapped = True
            except AccessFault:
                mapped = False
            seen.append((mapped, client.replies()))

        device.on_memory_changed = look
        client.ask(dma_map(0, PAGE), [memory.fd])
        client.ask(_dma_unmap(0, PAGE))
        assert seen == [(True, []), (False, [])]


def test_a_client_s_death_takes_its_memory_and_eventfds(
    server: Server, device: Recorder, ended: list[str]
) -> None:
    before = open_descriptors()
    eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    for _ in range(3):
        with SealedMemory(PAGE) as memory:
            with negotiated(server) as client:
                assert server.connected
                client.ask(dma_map(0, PAGE), [memory.fd])
                client.ask(set_irqs(0x24, 2, 0, 2), [eventfd, eventfd])
            assert device.memory is not None and device.lines is not None
            view = device.memory.view(0, 4, write=True)
            client.pump()
            assert not server.connected
            assert device.calls[-1] == ("detached",)
            with pytest.raises(AccessFault):
                device.memory.view(0, 4, write=False)
            assert not device.lines.trigger(2, 0)
            view[:] = b"late"
            assert bytes(memory.view[:4]) == b"late"
            del view
    device.memory = device.lines = None
    os.close(eventfd)
    assert not leaked(before)
    assert ended == ["the client closed the connection"] * 3
    assert device.calls.count(("attached",)) == device.calls.count(("detached",)) == 3


def test_what_a_client_sent_before_it_died_is_done(server: Server, device: Recorder) -> None:
    with negotiated(server) as client:
        for value in range(5):
            client.send(region_write(4 * value, bytes([value] * 4), flags=NO_REPLY))
    client.pump()
    assert [call[0] for call in device.calls] == ["attached", *["write"] * 5, "detached"]


def test_a_second_client_waits_for_the_first_to_leave(server: Server, device: Recorder) -> None:
    with negotiated(server) as first, RawClient(server) as second:
        second.send(command(VERSION, QEMU_VERSION))
        second.pump()
        assert second.replies() == []
        assert not first.ask(region_read(0, 4)).failed
        first.socket.close()
        second.pump()
        (reply,) = second.replies()
        assert reply.flags == 1
        calls = [call[0] for call in device.calls]
        assert calls == ["attached", "read", "detached", "attached"]


def test_one_step_is_one_message(server: Server, device: Recorder) -> None:
    with RawClient(server) as client:
        assert server.step()  # accepts
        assert not server.step()
        client.negotiate()
        for value in range(3):
            client.send(region_write(4 * value, b"abcd", flags=NO_REPLY))
        for done in (1, 2, 3):
            assert server.has_message is (done > 1)
            assert server.step()
            assert len(device.calls) == 1 + done
        assert not server.has_message
        assert not server.step()
        for _ in range(3):
            client.send(region_write(0, b"abcd", flags=NO_REPLY))
        assert server.drain(2) == 2
        assert server.drain(9) == 1


def test_the_descriptor_to_wait_for_is_the_listener_s_and_then_the_client_s(
    server: Server,
) -> None:
    def readable() -> bool:
        return bool(select.select([server], [], [], 0)[0])

    assert not readable()
    with RawClient(server) as client:
        assert readable()
        assert server.step()
        assert not readable()
        client.send(command(VERSION, QEMU_VERSION))
        assert readable()
        client.pump()
        assert not readable()
    assert readable()
    client.pump()
    assert not readable()

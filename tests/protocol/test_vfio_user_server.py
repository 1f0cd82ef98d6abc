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


def test_memory_errors_have_their_numbers(server: Server, device: Recorder) -> None:
    with SealedMemory(4 * PAGE) as memory, negotiated(server) as client:
        assert client.ask(dma_map(0, PAGE), [memory.fd, memory.fd]).error == errno.EINVAL
        assert client.ask(dma_map(0, PAGE, flags=16), [memory.fd]).error == errno.EINVAL
        assert not client.ask(_dma_unmap(0, PAGE)).failed  # where nothing is
        assert client.ask(_dma_unmap(0, 0)).error == errno.EINVAL
        assert device.calls == [("attached",)]
        assert not client.ask(dma_map(0, 2 * PAGE), [memory.fd]).failed
        assert client.ask(_dma_unmap(0, PAGE)).error == errno.EINVAL
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
        assert client.ask(_dma_unmap(0, 2 * PAGE)).error == errno.EBUSY
        assert not device.memory.is_mapped(0, 2 * PAGE)


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


def test_the_descriptor_to_wait_for_is_the_listener_s_and_then_the_client_s(server: Server) -> None:
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


def test_the_process_of_a_client_is_known_while_it_is_connected(server: Server) -> None:
    assert server.peer is None
    with negotiated(server):
        assert server.peer == os.getpid()
    server.drain(8)
    assert server.peer is None

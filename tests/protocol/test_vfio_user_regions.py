"""Regions that a client maps, and file descriptors that stand for accesses to them.

The bytes are those of vfio-user.rst, sections "VFIO_USER_DEVICE_GET_REGION_INFO" and
"VFIO_USER_DEVICE_GET_REGION_IO_FDS", and of `<linux/vfio.h>` and `<linux/kvm.h>`.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyvfio_user.client import Client, VfioUserError
from pyvfio_user.device import IoEventFd, Region
from pyvfio_user.payloads import Area, RegionCapabilities, RegionInfo, RegionType, SubRegion
from pyvfio_user.protocol import ProtocolError
from pyvfio_user.sealed_memory import SealedMemory
from pyvfio_user.server import Server
from support.vfio_user import (
    GET_INFO,
    GET_REGION_INFO,
    GET_REGION_IO_FDS,
    NO_REPLY,
    QEMU_VERSION,
    VERSION,
    RawClient,
    Recorder,
    command,
    eventfd_value,
    leaked,
    negotiated,
    open_descriptors,
    region_read,
    serving,
    socket_path,
)

PAGE = 4096
WHOLE, SPARSE, PLAIN, MISSING = 0, 2, 4, 5
"""Indexes of regions: mapped whole, in part, not at all, and one that there is not."""
AREAS = (Area(PAGE, PAGE), Area(3 * PAGE, 2 * PAGE))
SPARSE_BYTES = struct.pack("<HHIII", 1, 1, 0, 2, 0) + struct.pack(
    "<QQQQ", PAGE, PAGE, 3 * PAGE, 2 * PAGE
)


@pytest.fixture
def memory() -> Iterator[SealedMemory]:
    with SealedMemory(16 * PAGE) as memory:
        yield memory


@pytest.fixture
def eventfds() -> Iterator[list[int]]:
    found = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(9)]
    yield found
    for fd in found:
        os.close(fd)


@pytest.fixture
def device(memory: SealedMemory, eventfds: list[int]) -> Recorder:
    first, second, *_ = eventfds
    return Recorder(
        {
            WHOLE: Region(4 * PAGE, fd=memory.fd),
            SPARSE: Region(8 * PAGE, fd=memory.fd, fd_offset=8 * PAGE, areas=AREAS),
            PLAIN: Region(
                PAGE,
                ioeventfds=(
                    IoEventFd(first, 0x10, 4),
                    IoEventFd(second, 0x20, 0, pio=True),
                    IoEventFd(first, 0x30, 8, datamatch=0x1122334455667788),
                ),
            ),
            7: Region(PAGE),
        }
    )


def region_info(index: int, argsz: int, *, extra: bytes = b"", flags: int = 0) -> bytes:
    payload = struct.pack("<IIIIQQ", argsz, 0, index, 0, 0, 0) + extra
    return command(GET_REGION_INFO, payload, flags=flags)


def io_fds(index: int, argsz: int, *, flags: int = 0, count: int = 0) -> bytes:
    return command(GET_REGION_IO_FDS, struct.pack("<IIII", argsz, flags, index, count))


def same_file(one: int, other: int) -> bool:
    first, second = os.fstat(one), os.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def test_a_region_that_can_be_mapped_whole_comes_with_its_descriptor_and_no_capability(
    server: Server, memory: SealedMemory
) -> None:
    with negotiated(server) as client:
        reply, fds = client.ask_fds(region_info(WHOLE, 4096))
        # READ, WRITE and MMAP.
        assert struct.unpack("<IIIIQQ", reply.payload) == (32, 7, WHOLE, 0, 4 * PAGE, 0)
        assert len(fds) == 1 and same_file(fds[0], memory.fd)
        close(fds)
        _, fds = client.ask_fds(region_info(PLAIN, 32))
        assert not fds


@pytest.mark.parametrize("argsz", [32, 79])
def test_a_reply_says_how_much_room_the_areas_need_where_there_is_less(
    server: Server, argsz: int
) -> None:
    with negotiated(server) as client:
        reply, fds = client.ask_fds(region_info(SPARSE, argsz))
        # Without CAPS: QEMU refuses that flag with a cap_offset of 0.
        assert struct.unpack("<IIIIQQ", reply.payload) == (80, 7, SPARSE, 0, 8 * PAGE, 8 * PAGE)
        assert len(fds) == 1
        close(fds)


@pytest.mark.parametrize(("argsz", "extra"), [(80, b""), (80, bytes(48)), (4096, b"")])
def test_the_areas_follow_where_there_is_room(server: Server, argsz: int, extra: bytes) -> None:
    with negotiated(server) as client:
        reply, fds = client.ask_fds(region_info(SPARSE, argsz, extra=extra))
        assert struct.unpack_from("<IIIIQQ", reply.payload) == (
            *(80, 0xF, SPARSE, 32),
            *(8 * PAGE, 8 * PAGE),
        )
        assert reply.payload[32:] == SPARSE_BYTES
        assert len(fds) == 1
        close(fds)


def test_a_client_that_takes_no_descriptors_is_offered_none(server: Server) -> None:
    with RawClient(server) as client:
        assert not client.ask(
            command(VERSION, bytes(4) + b'{"capabilities":{"max_msg_fds":0}}\0')
        ).failed
        reply, fds = client.ask_fds(region_info(SPARSE, 4096))
        assert struct.unpack("<IIIIQQ", reply.payload) == (32, 3, SPARSE, 0, 8 * PAGE, 8 * PAGE)
        assert fds == []
        assert client.ask(io_fds(PLAIN, 4096)).error == errno.ENOSPC


def test_descriptors_go_with_their_own_reply_only(server: Server) -> None:
    with negotiated(server) as client:
        client.send(region_info(WHOLE, 32, flags=NO_REPLY))
        client.pump()
        for message in (region_read(0, 4), region_info(WHOLE, 31), region_info(99, 32)):
            _, fds = client.ask_fds(message)
            assert fds == []


def test_descriptors_wait_with_a_reply_that_has_no_room(
    server: Server, memory: SealedMemory
) -> None:
    before = open_descriptors()
    with negotiated(server) as client:
        for _ in range(40):
            client.send(region_read(0, 4 * PAGE))
        client.send(region_info(WHOLE, 32))
        client.pump()
        assert server.wants_write()
        received, fds = bytearray(), []
        while len(received) < 40 * (32 + 4 * PAGE) + 48:
            server.step()
            data, more, _, _ = socket.recv_fds(client.socket, 1 << 16, 8, socket.MSG_CMSG_CLOEXEC)
            received += data
            fds += more
        assert struct.unpack_from("<IIIIQQ", received, len(received) - 32)[:3] == (32, 7, WHOLE)
        assert len(fds) == 1 and same_file(fds[0], memory.fd)
        close(fds)
        # And are given up with a client that leaves without reading them.
        for _ in range(40):
            client.send(region_read(0, 4 * PAGE))
        client.send(region_info(WHOLE, 32))
        client.pump()
        assert server.wants_write()
    client.pump()
    assert not server.connected
    assert not leaked(before)


def test_a_client_cannot_have_descriptors_pile_up(
    server: Server, ended: list[str], memory: SealedMemory
) -> None:
    before = open_descriptors()
    with negotiated(server) as client:
        most = 0
        while server.connected:
            client.send(region_info(WHOLE, 32))
            server.step()
            most = max(most, len(open_descriptors()))
        assert most - len(before) < 80
    assert "file descriptors unread" in ended[0]
    assert not leaked(before)


def test_sub_regions_with_their_eventfds(server: Server, eventfds: list[int]) -> None:
    """Each is offset, size, fd_index, type 0 (ioeventfd), flags (1 DATAMATCH, 2 PIO), padding,
    datamatch; parts with the same descriptor share it."""
    with negotiated(server) as client:
        for argsz in (16 + 3 * 40, 4096):
            reply, fds = client.ask_fds(io_fds(PLAIN, argsz))
            assert reply.payload == struct.pack("<IIII", 136, 0, PLAIN, 3) + b"".join(
                struct.pack("<QQIIIIQ", *fields)
                for fields in (
                    (0x10, 4, 0, 0, 0, 0, 0),
                    (0x20, 0, 1, 0, 2, 0, 0),
                    (0x30, 8, 0, 0, 1, 0, 0x1122334455667788),
                )
            )
            assert len(fds) == 2
            os.eventfd_write(fds[0], 3)
            os.eventfd_write(fds[1], 4)
            assert (eventfd_value(eventfds[0]), eventfd_value(eventfds[1])) == (3, 4)
            close(fds)
        for argsz in (16, 135):
            reply, fds = client.ask_fds(io_fds(PLAIN, argsz))
            assert (reply.payload, fds) == (struct.pack("<IIII", 136, 0, PLAIN, 3), [])
        reply, fds = client.ask_fds(io_fds(WHOLE, 512))
        assert (reply.payload, fds) == (struct.pack("<IIII", 16, 0, WHOLE, 0), [])


@pytest.mark.parametrize(
    "message",
    [
        io_fds(PLAIN, 15),
        io_fds(PLAIN, 4096, flags=1),
        io_fds(PLAIN, 4096, count=1),
        io_fds(MISSING, 4096),
        io_fds(512, 4096),
        command(GET_REGION_IO_FDS, bytes(15)),
    ],
    ids=["argsz", "flags", "count", "no region", "no index", "short"],
)
def test_questions_for_sub_regions_that_are_refused(server: Server, message: bytes) -> None:
    with negotiated(server) as client:
        assert client.ask(message).error == errno.EINVAL


def test_more_descriptors_than_the_client_takes_are_not_sent(
    tmp_path: Path, eventfds: list[int]
) -> None:
    nine = Region(PAGE, ioeventfds=tuple(IoEventFd(fd, 8 * i, 8) for i, fd in enumerate(eventfds)))
    with Server(socket_path(tmp_path), Recorder({0: nine})) as server, RawClient(server) as client:
        client.ask(command(VERSION, QEMU_VERSION.replace(b"16", b" 8")))
        assert client.ask(io_fds(0, 4096)).error == errno.ENOSPC


def test_the_client_maps_what_the_device_shares(server: Server, memory: SealedMemory) -> None:
    before = open_descriptors()
    with serving(server), Client(server.path) as client:
        client.negotiate()
        with client.map_region(WHOLE) as whole, client.map_region(SPARSE) as sparse:
            assert (whole.areas, sparse.areas) == ((Area(0, 4 * PAGE),), AREAS)
            whole.view(100, 4)[:] = b"abcd"
            sparse.view(3 * PAGE, 4)[:] = b"efgh"
            assert bytes(memory.view[100:104]) == b"abcd"
            assert bytes(memory.view[11 * PAGE : 11 * PAGE + 4]) == b"efgh"
            for offset, size in ((0, 1), (2 * PAGE - 1, 2), (5 * PAGE, 1), (PAGE, 0)):
                with pytest.raises(ValueError, match="not in an area"):
                    sparse.view(offset, size)
        with pytest.raises(VfioUserError) as failure:
            client.map_region(PLAIN)
        assert failure.value.errno == errno.ENODEV
        assert client.region_info(SPARSE).argsz == 80
    server.step()
    assert not leaked(before)


def test_the_client_gets_the_eventfds_of_a_region(server: Server, eventfds: list[int]) -> None:
    with serving(server), Client(server.path) as client:
        client.negotiate()
        sub_regions, fds = client.region_io_fds(PLAIN)
        assert [(one.offset, one.size, one.flags, one.data) for one in sub_regions] == [
            (0x10, 4, 0, 0),
            (0x20, 0, 2, 0),
            (0x30, 8, 1, 0x1122334455667788),
        ]
        os.eventfd_write(fds[sub_regions[1].fd_index], 1)
        assert eventfd_value(eventfds[1]) == 1
        close(fds)
        assert client.region_io_fds(WHOLE) == ([], [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"areas": (Area(0, PAGE),), "fd": None},
        {"areas": (Area(0, 100),)},
        {"areas": (Area(100, PAGE),)},
        {"areas": (Area(3 * PAGE, 2 * PAGE),)},
        {"fd_offset": 100},
        {"ioeventfds": (IoEventFd(0, 4 * PAGE - 4, 8),)},
        {"ioeventfds": (IoEventFd(0, -4, 4),)},
    ],
    ids=str,
)
def test_a_region_that_cannot_be_is_refused_when_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="region"):
        Region(4 * PAGE, **{"fd": 0, **wrong})
    Region(4 * PAGE, fd=0, areas=AREAS[:1], ioeventfds=(IoEventFd(0, 4 * PAGE - 8, 8),))


@pytest.mark.parametrize("closed", [-1, 1 << 20])
def test_a_region_s_descriptors_are_open(closed: int) -> None:
    with pytest.raises(ValueError, match="descriptor"):
        Region(PAGE, fd=closed)
    with pytest.raises(ValueError, match="descriptor"):
        Region(PAGE, ioeventfds=(IoEventFd(closed, 0, 4),))


def test_a_descriptor_that_is_closed_later_costs_no_connection(tmp_path: Path) -> None:
    fd = os.eventfd(0)
    device = Recorder({0: Region(PAGE, fd=fd, ioeventfds=(IoEventFd(fd, 0, 4),))})
    with Server(socket_path(tmp_path), device) as server, negotiated(server) as client:
        os.close(fd)
        for request in (region_info(0, 32), io_fds(0, 4096)):
            assert client.ask(request).error == errno.EBADF
        assert not client.ask(command(9, struct.pack("<QII", 0, 0, 4))).failed


def test_a_region_s_file_can_be_read_only(tmp_path: Path, memory: SealedMemory) -> None:
    fd = os.open(f"/proc/self/fd/{memory.fd}", os.O_RDONLY)
    device = Recorder({0: Region(PAGE, fd=fd, writable=False)})
    with (
        Server(socket_path(tmp_path), device) as server,
        serving(server),
        Client(server.path) as client,
    ):
        client.negotiate()
        with client.map_region(0) as region, pytest.raises(TypeError):
            region.view(0, 1)[0] = 1
    os.close(fd)


def test_a_device_may_share_other_memory_with_each_client(
    server: Server, device: Recorder, memory: SealedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SealedMemory(PAGE) as other:
        monkeypatch.setattr(
            device,
            "attached",
            lambda *_: setattr(device, "regions", {0: Region(PAGE, fd=other.fd)}),
        )
        for expected in (other.fd, other.fd):
            with negotiated(server) as client:
                _, fds = client.ask_fds(region_info(0, 32))
                assert same_file(fds[0], expected) and not same_file(fds[0], memory.fd)
                close(fds)
            client.pump()


def reply(capabilities: bytes, cap_offset: int = 32) -> bytes:
    info = RegionInfo(32 + len(capabilities), 0xF, 0, cap_offset, PAGE, 0)
    return info.encode() + capabilities


def test_capabilities_are_found_in_their_order_among_others() -> None:
    kind = struct.pack("<HHIII", 2, 1, 48, 3, 4)
    found = RegionCapabilities(AREAS, RegionType(3, 4))
    assert RegionCapabilities.decode(reply(kind + SPARSE_BYTES)) == found
    assert found.encode() == kind + SPARSE_BYTES
    unknown = struct.pack("<HHI", 9, 1, 40)
    assert RegionCapabilities.decode(reply(unknown + SPARSE_BYTES)) == RegionCapabilities(AREAS)
    newer = struct.pack("<HHIII", 2, 2, 0, 3, 4)
    assert RegionCapabilities.decode(reply(newer)) == RegionCapabilities()
    assert RegionCapabilities.decode(reply(b"", cap_offset=0)) == RegionCapabilities()
    assert RegionCapabilities(AREAS).encode() == SPARSE_BYTES
    assert RegionCapabilities().encode() == b""


def test_a_region_that_is_not_pci_s_says_what_it_is_for(
    tmp_path: Path, memory: SealedMemory
) -> None:
    """VFIO_REGION_INFO_CAP_TYPE, id 2, before the areas; "num_regions" counts the region."""
    region = Region(8 * PAGE, fd=memory.fd, areas=AREAS, type=RegionType(0x8000_1AF4, 7))
    with Server(socket_path(tmp_path), Recorder({9: region})) as server:
        with negotiated(server) as client:
            reply, fds = client.ask_fds(region_info(9, 96))
            assert struct.unpack_from("<IIIIQQ", reply.payload) == (96, 0xF, 9, 32, 8 * PAGE, 0)
            assert reply.payload[32:] == (
                struct.pack("<HHIII", 2, 1, 48, 0x8000_1AF4, 7) + SPARSE_BYTES
            )
            close(fds)
            reply, fds = client.ask_fds(region_info(9, 95))
            assert struct.unpack_from("<IIIIQQ", reply.payload)[:4] == (96, 7, 9, 0)
            close(fds)
            info = client.ask(command(GET_INFO, struct.pack("<IIII", 16, 0, 0, 0)))
            assert struct.unpack("<IIII", info.payload)[2] == 10
        server.drain(10)
        with serving(server), Client(server.path) as other:
            other.negotiate()
            assert other.region_capabilities(9) == RegionCapabilities(AREAS, region.type)
            assert other.region_capabilities(0) == RegionCapabilities()


@pytest.mark.parametrize(
    "payload",
    [
        reply(SPARSE_BYTES[:-1]),
        reply(SPARSE_BYTES[:15]),
        reply(SPARSE_BYTES[:7]),
        reply(SPARSE_BYTES, cap_offset=31),
        reply(SPARSE_BYTES, cap_offset=81),
        reply(struct.pack("<HHI", 9, 1, 32)),
        reply(struct.pack("<HHI", 2, 1, 0)),
        reply(bytes(8) + struct.pack("<HHI", 9, 1, 32), cap_offset=40),
        bytes(31),
    ],
)
def test_capabilities_without_the_right_form_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        RegionCapabilities.decode(payload)


def test_sub_regions_may_have_grown_but_not_shrunk() -> None:
    entry = struct.pack("<QQIIIIQ", 1, 2, 3, 1, 0, 0, 4)
    grown = struct.pack("<IIII", 16 + 2 * 48, 0, 0, 2) + 2 * (entry + bytes(8))
    assert SubRegion.decode_all(grown) == [SubRegion(1, 2, 3, 1, 0, 0, 4)] * 2
    with pytest.raises(ProtocolError):
        SubRegion.decode_all(struct.pack("<IIII", 16 + 79, 0, 0, 2) + (2 * entry)[:-1])

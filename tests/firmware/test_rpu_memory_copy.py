"""Memory Copy, and Copy of the NVM command set from memory: descriptors and statuses in bytes."""

import os
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from potash_device.pcie.peers import Peers, Shared
from potash_firmware.mailbox.messages import Reply, Request
from potash_firmware.rpu.settings import RpuSettings
from support.memory import (
    BLOCKS,
    COMPUTE,
    COPY,
    INVALID_FIELD,
    INVALID_NAMESPACE,
    MEMORY,
    MIB,
    SET_FEATURES,
    identify,
    powered,
    read,
    words,
    write,
)
from support.nvme_host import CONFIG, DATA, Cqe, Host

SIZE = 2 * MIB
NVM_COPY, SEND_PEER_DATA = 0x19, 0x84
OTHER = 4
"""Another memory namespace."""

LBA_OUT_OF_RANGE, SIZE_LIMIT, UNCORRECTABLE = 0x80, 0x183, 0x281
INCOMPATIBLE, FAST_COPY, OVERLAPPING, UNREACHABLE = 0x185, 0x186, 0x187, 0x188


@pytest.fixture
def host() -> Iterator[Host]:
    shapes = (
        NamespaceShape(MIB), NamespaceShape.memory(SIZE), NamespaceShape.compute(),
        NamespaceShape.memory(SIZE),
    )  # fmt: skip
    with powered(None, *shapes) as found:
        yield found


def blocks(slba: int, count: int, nsid: int = BLOCKS, options: int = 0) -> bytes:
    """A range of format 2h: 3:0 SNSID, 15:8 SLBA, 17:16 NLB (0's based), 23:22 SOPT."""
    return struct.pack("<I4xQH4xH8x", nsid, slba, count - 1, options)


def blocks_64(slba: int, count: int, nsid: int = BLOCKS) -> bytes:
    """As much of format 3h, which has 40 bytes."""
    return blocks(slba, count, nsid) + bytes(8)


def memory(start: int, length: int, nsid: int = MEMORY, options: int = 0) -> bytes:
    """A range of format 4h: 3:0 SNSID, 15:8 SADDR, 19:16 NBYTE, 23:22 SOPT."""
    return struct.pack("<I4xQI2xH8x", nsid, start, length, options)


def copy(host: Host, form: int, start: int, length: int, *ranges: bytes, nsid: int = MEMORY) -> Cqe:
    host.put(b"".join(ranges))
    number = len(ranges) - 1 & 0xFF
    return host.command(
        host.io[1], COPY, nsid=nsid, first=words(length),
        cdws=(*words(start), form << 8 | number), prp2=DATA + 4096,
    )  # fmt: skip


def write_blocks(host: Host, lba: int, content: bytes, nsid: int = BLOCKS) -> None:
    host.put(content)
    done = host.command(
        host.io[1], 1, nsid=nsid, cdws=(lba, 0, len(content) // 4096 - 1), prp2=DATA + 4096
    )
    assert done.status == 0


def read_block(host: Host, lba: int) -> bytes:
    assert host.command(host.io[1], 2, nsid=BLOCKS, cdws=(lba, 0, 0)).status == 0
    return host.data(4096)


@pytest.mark.parametrize(("form", "range_"), [(2, blocks), (3, blocks_64)])
def test_blocks_to_memory(host: Host, form: int, range_: Callable[[int, int], bytes]) -> None:
    write_blocks(host, 3, b"A" * 4096 + b"B" * 4096)
    done = copy(host, form, 8, 3 * 4096, range_(4, 1), range_(3, 2))
    assert (done.status, done.dw0) == (0, 0)
    assert read(host, 8192, 0) == bytes(8) + b"B" * 4096 + b"A" * 4088
    assert read(host, 4100, 3 * 4096 - 4096 + 8) == b"B" * 4096 + bytes(4)


def test_memory_to_memory_of_both_namespaces(host: Host) -> None:
    write(host, b"AAAABBBB")
    write(host, b"CCCCDDDD", 100, OTHER)
    assert copy(host, 4, 4096, 12, memory(4, 4), memory(100, 8, OTHER)).status == 0
    assert read(host, 16, 4096) == b"BBBBCCCCDDDD" + bytes(4)
    assert copy(host, 4, 0, 8, memory(0, 8), nsid=OTHER).status == 0
    assert read(host, 8, 0, OTHER) == b"AAAABBBB"


def test_a_large_copy_is_done_in_steps(host: Host) -> None:
    write(host, b"A" * 4096, SIZE - 4096)
    assert copy(host, 4, 0, SIZE, memory(0, SIZE), nsid=OTHER).status == 0
    assert read(host, 8, SIZE - 4100, OTHER) == bytes(4) + b"A" * 4
    assert read(host, 4, SIZE - 4, OTHER) == b"A" * 4


@pytest.mark.parametrize(
    ("form", "start", "length", "ranges", "status"),
    [
        (0, 0, 4096, [blocks(0, 1)], INVALID_FIELD),
        (1, 0, 4096, [blocks(0, 1)], INVALID_FIELD),
        (5, 0, 4096, [blocks(0, 1)], INVALID_FIELD),
        (2, 2, 4096, [blocks(0, 1)], INVALID_FIELD),
        (2, 0, 4092, [blocks(0, 1)], INVALID_FIELD),
        (2, 0, 8192, [blocks(0, 1)], INVALID_FIELD),
        (2, 0, 4096 + (1 << 32), [blocks(0, 1)], INVALID_FIELD),
        (2, SIZE - 4092, 4096, [blocks(0, 1)], INVALID_FIELD),
        (2, (1 << 64) - 4096, 8192, [blocks(0, 2)], INVALID_FIELD),
        (2, 0, 4096, [blocks(256, 1)], LBA_OUT_OF_RANGE),
        (2, 0, 4096, [blocks((1 << 64) - 1, 1)], LBA_OUT_OF_RANGE),
        (2, 0, 4096, [blocks(0, 1, MEMORY)], INCOMPATIBLE),
        (2, 0, 4096, [blocks(0, 1, OTHER)], INVALID_NAMESPACE),
        (2, 0, 4096, [blocks(0, 1, COMPUTE)], INVALID_NAMESPACE),
        (2, 0, 4096, [blocks(0, 1, 0)], INVALID_NAMESPACE),
        (2, 0, 4096, [blocks(0, 1, 9)], INVALID_NAMESPACE),
        (2, 0, 4096, [blocks(0, 1, 0xFFFF_FFFF)], INVALID_NAMESPACE),
        (2, 0, 4096, [blocks(0, 1, options=1 << 15)], FAST_COPY),
        (4, 0, 4, [memory(4096, 4, BLOCKS)], INVALID_NAMESPACE),
        (4, 0, 4, [memory(4096, 4, 0)], INVALID_NAMESPACE),
        (4, 0, 4, [memory(4096, 4, options=1 << 15)], FAST_COPY),
        (4, 0, 4, [memory(4097, 4)], INVALID_FIELD),
        (4, 0, 2, [memory(4096, 2)], INVALID_FIELD),
        (4, 0, 8, [memory(SIZE - 4, 8)], INVALID_FIELD),
        (4, 0, 8, [memory((1 << 64) - 4, 8)], INVALID_FIELD),
        (4, 0, 8, [memory(4, 8)], OVERLAPPING),
        (4, 4, 8, [memory(0, 8)], OVERLAPPING),
        (4, 0, 16, [memory(64, 8), memory(12, 8)], OVERLAPPING),
        (4, 0, 4 * 129, [memory(4096, 4)] * 129, SIZE_LIMIT),
    ],
)
def test_what_is_refused_and_changes_nothing(
    host: Host, form: int, start: int, length: int, ranges: list[bytes], status: int
) -> None:
    write(host, b"A" * 4096)
    done = copy(host, form, start, length, *ranges)
    assert (done.status, done.dnr) == (status, True)
    assert read(host, 4096) == b"A" * 4096


def test_ranges_side_by_side_do_not_overlap(host: Host) -> None:
    write(host, b"AAAABBBB")
    assert copy(host, 4, 8, 8, memory(0, 8)).status == 0
    assert copy(host, 4, 0, 0, memory(0, 0)).status == 0
    assert read(host, 16) == b"AAAABBBB" * 2


def test_an_uncorrectable_block_is_not_copied(host: Host) -> None:
    write_blocks(host, 0, b"A" * 4096)
    assert host.command(host.io[1], 4, nsid=BLOCKS, cdws=(0, 0, 0)).status == 0
    assert copy(host, 2, 0, 4096, blocks(0, 1)).status == UNCORRECTABLE
    assert read(host, 4096) == bytes(4096)


def test_namespaces_without_an_association_do_not_reach_each_other(host: Host) -> None:
    host.rpu.controller.reachability.associated = False
    assert copy(host, 2, 0, 4096, blocks(0, 1)).status == UNREACHABLE
    assert copy(host, 4, 0, 4, memory(0, 4, OTHER)).status == UNREACHABLE
    assert copy(host, 4, 64, 4, memory(0, 4)).status == 0


def test_a_copy_from_a_namespace_that_goes_meanwhile_ends(host: Host) -> None:
    write(host, b"A" * 4096)
    host.put(memory(0, SIZE))
    host.place(host.io[1], COPY, 7, nsid=OTHER, first=(SIZE,), cdws=(0, 0, 0x400))
    host.ring(host.io[1])
    host.service()
    assert host.executor.waiting
    assert host.command(host.admin, 0x0D, nsid=MEMORY, cdws=(1,)).status == 0
    (done,) = host.reap(host.io[1])
    assert done.cid == 7


# Copy of the NVM command set, format 4h.


def to_blocks(host: Host, lba: int, *ranges: bytes, form: int = 4) -> Cqe:
    host.put(b"".join(ranges))
    return host.command(
        host.io[1], NVM_COPY, nsid=BLOCKS, cdws=(lba, 0, form << 8 | len(ranges) - 1)
    )


def test_memory_to_blocks(host: Host) -> None:
    write(host, b"A" * 4096, 4)
    write(host, b"B" * 4096, 0, OTHER)
    assert to_blocks(host, 2, memory(4, 2048), memory(0, 2048, OTHER)).status == 0
    assert read_block(host, 2) == b"A" * 2048 + b"B" * 2048
    assert identify(host, 1)[534] == 1 << 0 | 1 << 1 | 1 << 4


@pytest.mark.parametrize(
    ("ranges", "status"),
    [
        ([memory(0, 4095)], INVALID_FIELD),
        ([memory(0, 0)], INVALID_FIELD),
        ([memory(SIZE - 2048, 4096)], INVALID_FIELD),
        ([memory(0, 4096, 9)], INVALID_FIELD),
        ([memory(0, 4096, 0)], INVALID_NAMESPACE),
        ([memory(0, 4096, 0xFFFF_FFFF)], INVALID_NAMESPACE),
        ([memory(0, 4096, BLOCKS)], INVALID_NAMESPACE),
        ([memory(0, 4096, COMPUTE)], INVALID_NAMESPACE),
        ([memory(0, 4096, options=1 << 15)], FAST_COPY),
        ([memory(0, MIB // 2 + 4096)], SIZE_LIMIT),
        ([memory(0, MIB // 2)] * 3, SIZE_LIMIT),
    ],
)
def test_memory_that_is_not_copied_to_blocks(host: Host, ranges: list[bytes], status: int) -> None:
    write_blocks(host, 0, b"A" * 4096)
    done = to_blocks(host, 0, *ranges)
    assert (done.status, done.dnr) == (status, True)
    assert read_block(host, 0) == b"A" * 4096


def test_formats_that_a_host_has_to_enable_before() -> None:
    settings = RpuSettings(copy_formats_enabled=False)
    shapes = (NamespaceShape(MIB), NamespaceShape.memory(SIZE))
    with Drive.open(None, shapes) as drive, Host(drive=drive, settings=settings) as host:
        host.css = 6
        host.enable()
        host.create_io_queue()
        assert to_blocks(host, 0, memory(0, 4096)).status == INVALID_FIELD
        host.put(bytes(4) + struct.pack("<H", 1 << 4) + bytes(506))
        assert host.command(host.admin, SET_FEATURES, cdws=(0x16,)).status == 0
        assert to_blocks(host, 0, memory(0, 4096)).status == 0
        assert to_blocks(host, 0, blocks(0, 1), form=2).status == INVALID_FIELD


def test_a_plain_drive_has_one_format() -> None:
    with Host() as host:
        host.css = 6
        host.enable()
        host.create_io_queue()
        assert identify(host, 1)[534] == 1 << 0 | 1 << 1
        assert to_blocks(host, 0, memory(0, 4096)).status == INVALID_FIELD


PEER_FORMAT = 0xF
BAR_ADDRESS = 0xE5_8000_0000
DATA_TRANSFER_ERROR = 4


class Pair(NamedTuple):
    """Two drives of one guest, of which the second shares the memory in its BAR, at `BAR_ADDRESS`."""

    shared: Shared
    first: Host
    second: Host

    def place(self, address: int, command: int = 2) -> None:
        """Place BAR 4, with Memory Space Enable (bit 1 of the command register) or without."""
        self.second.board.region_write(CONFIG, 0x20, struct.pack("<Q", address))
        self.second.board.region_write(CONFIG, 4, struct.pack("<H", 4 | command))


@pytest.fixture
def pair() -> Iterator[Pair]:
    shared = Shared([False, True])
    one, two = (Peers(shared.table, shared.memories, number) for number in range(2))
    with powered(peers=one) as first, powered(peers=two, memory_bar=MEMORY) as second:
        made = Pair(shared, first, second)
        made.place(BAR_ADDRESS)
        write(second, b"A" * 4096 + b"B" * 4096)
        yield made
    for fd in shared.descriptors:
        os.close(fd)


def at(offset: int, length: int, nsid: int = 0) -> bytes:
    """A range of the peers' format: that of format 4h, with an address for SADDR."""
    return memory(BAR_ADDRESS + offset, length, nsid)


def test_memory_of_another_drive_is_copied_by_its_address(pair: Pair) -> None:
    first = pair.first
    assert identify(first, 1)[535] & 0x80  # CDFS, bit 15
    assert copy(first, PEER_FORMAT, 64, 12, at(4092, 8), at(0, 4)).status == 0
    assert read(first, 20, 60) == bytes(4) + b"AAAABBBBAAAA" + bytes(4)
    assert copy(first, PEER_FORMAT, 0, SIZE, at(0, SIZE)).status == 0
    assert read(first, 8192) == b"A" * 4096 + b"B" * 4096
    assert read(first, 4096, 8192) == bytes(4096)


@pytest.mark.parametrize(
    ("range_", "status"),
    [
        (at(SIZE - 4, 8), DATA_TRANSFER_ERROR),
        (at(-4, 8), DATA_TRANSFER_ERROR),
        (at(SIZE, 8), DATA_TRANSFER_ERROR),
        (memory(0, 8, 0), DATA_TRANSFER_ERROR),
        (memory(DATA, 8, 0), DATA_TRANSFER_ERROR),  # the host's own memory
        (memory((1 << 64) - 8, 8, 0), DATA_TRANSFER_ERROR),
        (at(2, 8), INVALID_FIELD),
        (at(0, 8, MEMORY), INVALID_NAMESPACE),
    ],
)
def test_addresses_that_are_not_copied(pair: Pair, range_: bytes, status: int) -> None:
    write(pair.first, b"C" * 64)
    assert copy(pair.first, PEER_FORMAT, 0, 8, range_).status == status
    assert read(pair.first, 64) == b"C" * 64
    # The second drive's own memory is no peer's.
    assert copy(pair.second, PEER_FORMAT, 4096, 8, at(0, 8)).status == DATA_TRANSFER_ERROR


def test_memory_is_where_the_host_has_placed_it(pair: Pair) -> None:
    first = pair.first
    pair.place(BAR_ADDRESS + SIZE)
    assert copy(first, PEER_FORMAT, 0, 4, at(0, 4)).status == DATA_TRANSFER_ERROR
    assert copy(first, PEER_FORMAT, 0, 4, at(SIZE, 4)).status == 0
    pair.place(BAR_ADDRESS, command=0)
    assert copy(first, PEER_FORMAT, 0, 4, at(0, 4)).status == DATA_TRANSFER_ERROR
    pair.place(BAR_ADDRESS)
    assert copy(first, PEER_FORMAT, 0, 4, at(0, 4)).status == 0
    pair.second.board.reset()
    assert copy(first, PEER_FORMAT, 0, 4, at(0, 4)).status == DATA_TRANSFER_ERROR


def test_the_next_host_s_memory_is_not_shared(pair: Pair) -> None:
    pair.second.board.detached()
    pair.place(BAR_ADDRESS)
    assert copy(pair.first, PEER_FORMAT, 0, 4, at(0, 4)).status == DATA_TRANSFER_ERROR


def test_a_drive_that_ends_during_a_copy_from_it_fails_the_copy(pair: Pair) -> None:
    first = pair.first
    found = Peers.find

    def ends(peers: Peers, address: int, length: int) -> memoryview | None:
        if address > BAR_ADDRESS:  # a later range
            pair.shared.withdraw(1)
        return found(peers, address, length)

    with pytest.MonkeyPatch.context() as patch:
        half = SIZE // 2
        ranges = at(0, half), at(half, half)
        calls = iter([found, found])
        patch.setattr(Peers, "find", lambda *found_: next(calls, ends)(*found_))
        assert copy(first, PEER_FORMAT, 0, SIZE, *ranges).status == DATA_TRANSFER_ERROR
    assert read(first, 8192) == b"A" * 4096 + b"B" * 4096


def send(host: Host, address: int, dwords: int, offset: int = 0) -> None:
    """Send Peer Data for accelerator 5."""
    cdws = (dwords, offset, 5, 0, address & 0xFFFF_FFFF, address >> 32)
    host.place(host.io[1], SEND_PEER_DATA, 1, nsid=BLOCKS, cdws=cdws)
    host.ring(host.io[1])
    host.service()


def test_an_accelerator_s_input_is_memory_of_another_drive(pair: Pair) -> None:
    first = pair.first
    apu = first.connect_apu()
    send(first, BAR_ADDRESS + 4092, 2, offset=3)
    request = apu.receive()
    assert isinstance(request, Request)
    # The APU is asked for Send Data.
    assert (request.opcode, request.cdws) == (0x81, (2, 0, 5, 0, 3, 0))
    assert bytes(first.buffers.slot(request.slot)[:8]) == b"AAAABBBB"
    apu.send(Reply(request.tag, 0))
    first.service()
    assert [done.status for done in first.reap(first.io[1])] == [0]
    for address in (BAR_ADDRESS + SIZE - 4, DATA, 0, (1 << 64) - 8):
        send(first, address, 2)
        assert [done.status for done in first.reap(first.io[1])] == [DATA_TRANSFER_ERROR]
    send(first, BAR_ADDRESS, 1 << 31)
    assert [done.status for done in first.reap(first.io[1])] == [INVALID_FIELD]
    assert apu.receive() is None


def test_a_drive_by_itself_takes_no_input_of_peers(host: Host) -> None:
    send(host, BAR_ADDRESS, 2)
    assert [done.status for done in host.reap(host.io[1])] == [INVALID_FIELD]


def test_a_drive_by_itself_has_no_peers(host: Host) -> None:
    assert not identify(host, 1)[535] & 0x80
    assert copy(host, PEER_FORMAT, 0, 4, at(0, 4)).status == INVALID_FIELD

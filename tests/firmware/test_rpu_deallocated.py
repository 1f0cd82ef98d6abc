"""Error Recovery's DULBE: whether reading a block that is deallocated or unwritten is an error."""

import os
import struct
from collections.abc import Iterator

import pytest

from potash_device.media.shapes import NamespaceShape
from potash_device.media.store import MemoryMedia
from support.nvme_host import DATA, PAGE, Host, Queue

WRITE, READ, COMPARE, WRITE_ZEROES, DSM, VERIFY, COPY = 1, 2, 5, 8, 9, 0xC, 0x19
DEAC = 1 << 25


@pytest.fixture
def host() -> Iterator[Host]:
    media = {nsid: MemoryMedia.create(1 << 20) for nsid in (1, 2)}
    with Host(media, shapes={2: NamespaceShape(1 << 20, 512)}) as host:
        host.enable()
        host.create_io_queue()
        yield host


def set_dulbe(host: Host, nsid: int, on: bool) -> int:
    return host.command(host.admin, 0x09, nsid=nsid, cdws=(5, int(on) << 16)).status


def statuses(host: Host, queue: Queue, lba: int) -> set[int]:
    """Of each way to read one block."""
    found = set()
    for opcode in (READ, VERIFY, COMPARE):
        host.put(bytes(PAGE))
        found.add(host.command(queue, opcode, nsid=1, cdws=(lba, 0, 0)).status)
    host.put(struct.pack("<8xQH14x", lba, 0))
    found.add(host.command(queue, COPY, nsid=1, cdws=(200, 0, 0)).status)
    return found


def test_every_way_of_reading_fails_while_it_is_set(host: Host, queue: Queue) -> None:
    assert statuses(host, queue, 5) == {0}
    assert set_dulbe(host, 1, True) == 0
    assert statuses(host, queue, 5) == {0x287}
    host.put(b"\1" * PAGE)
    assert host.command(queue, WRITE, nsid=1, cdws=(5, 0, 0)).status == 0
    assert host.command(queue, READ, nsid=1, cdws=(5, 0, 0)).status == 0
    assert host.command(queue, READ, nsid=1, prp2=DATA + PAGE, cdws=(5, 0, 1)).status == 0x287
    assert host.command(queue, READ, nsid=1, prp2=DATA + PAGE, cdws=(4, 0, 1)).status == 0x287
    assert set_dulbe(host, 1, False) == 0
    assert statuses(host, queue, 6) == {0}


def test_zeroes_that_are_written_are_allocated_and_deallocated_ones_are_not(
    host: Host, queue: Queue
) -> None:
    assert set_dulbe(host, 1, True) == 0
    assert host.command(queue, WRITE_ZEROES, nsid=1, cdws=(5, 0, 1)).status == 0
    assert statuses(host, queue, 5) == {0}
    assert host.command(queue, WRITE_ZEROES, nsid=1, cdws=(5, 0, DEAC)).status == 0
    assert statuses(host, queue, 5) == {0x287}
    host.put(struct.pack("<IIQ", 0, 1, 6))
    assert host.command(queue, DSM, nsid=1, cdws=(0, 4)).status == 0
    assert statuses(host, queue, 6) == {0x287}


def test_it_is_one_namespace_s_and_ends_with_the_session(host: Host, queue: Queue) -> None:
    assert set_dulbe(host, 1, True) == 0
    assert host.command(queue, READ, nsid=2).status == 0
    host.disable()
    host.enable()
    assert host.command(host.create_io_queue(), READ, nsid=1).status == 0


def test_the_first_such_block_is_in_the_error_log(host: Host, queue: Queue) -> None:
    assert set_dulbe(host, 1, True) == 0
    os.pwrite(host.media[1].fd, b"x" * PAGE, 0)
    assert host.command(queue, VERIFY, nsid=1, cdws=(0, 0, 9)).status == 0x287
    assert host.command(host.admin, 0x02, cdws=(15 << 16 | 1,)).status == 0
    assert struct.unpack_from("<Q", host.data(24), 16) == (1,)


def test_a_fused_comparison_heeds_it(host: Host, queue: Queue) -> None:
    assert set_dulbe(host, 1, True) == 0
    host.place(queue, COMPARE, 1, nsid=1, flags=1)
    host.place(queue, WRITE, 2, nsid=1, flags=2)
    host.ring(queue)
    host.service()
    host.executor.run_all()
    host.service()
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(1, 0x287), (2, 0x009)]

"""Commands whose data an SGL describes: which may have one, and what moves then."""

import os
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from potash_device.controller.queues import SubmissionQueue
from potash_firmware.mailbox.messages import Reply, Request
from support.nvme_host import DATA, PAGE, Host, Queue

FLUSH, WRITE, READ = 0, 1, 2
SEND_DATA, READ_DATA = 0x81, 0x82
IDENTIFY, GET_LOG_PAGE = 0x06, 0x02
BLOCK, BUCKET, SEGMENT, LAST = 0x00, 0x10, 0x20, 0x30

SGL = 1 << 6
SGL_WITH_MPTR_SEGMENT = 2 << 6
LIST = DATA + 0x10_0000


def pointer(address: int, length: int, kind: int) -> dict[str, Any]:
    """The command's data pointer, as one descriptor."""
    low, high = struct.unpack("<QQ", struct.pack("<QI3xB", address, length, kind))
    return {"prp1": low, "prp2": high, "flags": SGL}


def listed(host: Host, *entries: tuple[int, int, int]) -> dict[str, Any]:
    """The command's data pointer, to a last segment of these descriptors."""
    host.put(b"".join(struct.pack("<QI3xB", *entry) for entry in entries), LIST)
    return pointer(LIST, 16 * len(entries), LAST)


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        host.enable()
        host.create_io_queue()
        yield host


def test_identify_says_what_is_supported(host: Host) -> None:
    """Bits 1:0 without alignment (01b), bit buckets (16), longer than the data (18),
    metadata in segments (19)."""
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0
    assert struct.unpack_from("<I", host.data(PAGE), 536) == (1 << 19 | 1 << 18 | 1 << 16 | 1,)


@pytest.mark.parametrize("psdt", [SGL, SGL_WITH_MPTR_SEGMENT])
def test_what_is_written_is_read_back(host: Host, queue: Queue, psdt: int) -> None:
    content = os.urandom(2 * PAGE)
    host.put(content[:5000], DATA + 3)
    host.put(content[5000:], DATA + 0x8001)
    where = listed(host, (DATA + 3, 5000, BLOCK), (DATA + 0x8001, 2 * PAGE - 5000, BLOCK))
    where["flags"] = psdt
    assert host.command(queue, WRITE, nsid=1, cdws=(5, 0, 1), **where).status == 0
    assert os.pread(host.media[1].fd, 2 * PAGE, 5 * PAGE) == content
    back = pointer(DATA + 0x2_0001, 2 * PAGE, BLOCK)
    assert host.command(queue, READ, nsid=1, cdws=(5, 0, 1), **back).status == 0
    assert host.data(2 * PAGE, DATA + 0x2_0001) == content


def test_one_data_block_takes_the_fast_path(host: Host, queue: Queue) -> None:
    """Of the command's length, whatever pages it crosses; and its memory is found anew where the
    host has changed it."""
    taken: list[int] = []
    run = host.rpu.arbiter.fast_path.run

    def counted(queue: SubmissionQueue, limit: int) -> int:
        taken.append(run(queue, limit))
        return taken[-1]

    host.rpu.arbiter.fast_path.run = counted  # type: ignore[method-assign]  # counts
    content = os.urandom(3 * PAGE)
    host.put(content, DATA + 5)
    for opcode, at in ((WRITE, DATA + 5), (READ, DATA + 0x2_0003), (READ, DATA + 0x2_0003)):
        where = pointer(at, 3 * PAGE, BLOCK)
        assert host.command(queue, opcode, nsid=1, cdws=(0, 0, 2), **where).status == 0
        assert taken == [1]
        taken.clear()
    assert host.data(3 * PAGE, DATA + 0x2_0003) == content
    host.space.unmap_all()
    host.space.map(0, DATA, fd=host.memory.fd, offset=0, readable=True, writable=True)
    host.board.memory_changed()
    where = pointer(DATA + 0x2_0003, 3 * PAGE, BLOCK)
    assert host.command(queue, READ, nsid=1, cdws=(0, 0, 2), **where).status == 0x004
    assert taken == [0]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_bit_bucket_takes_what_nobody_wants(
    host: Host, queue: Queue, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not at_once:
        monkeypatch.setattr(host.media[1], "read_at_once", lambda views, offset: False)
    content = os.urandom(PAGE)
    os.pwrite(host.media[1].fd, content, 0)
    host.put(b"\xa5" * PAGE)
    where = listed(
        host, (0, 512, BUCKET), (DATA, 100, BLOCK), (0, 412, BUCKET), (DATA + 200, 3072, BLOCK)
    )
    assert host.command(queue, READ, nsid=1, **where).status == 0
    expected = bytearray(b"\xa5" * PAGE)
    expected[:100], expected[200:3272] = content[512:612], content[1024:]
    assert host.data(PAGE) == expected


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (pointer(DATA, PAGE - 1, BLOCK), 0x00F),
        (pointer(DATA, PAGE, BLOCK | 1), 0x011),
        (pointer(LIST, 16, SEGMENT), 0x00D),
        (pointer(LIST, 24, LAST), 0x00D),
        (pointer(LIST, 0x10_0000, LAST), 0x00E),
        (pointer(1 << 40, PAGE, BLOCK), 0x004),
        (pointer(DATA, PAGE, BLOCK) | {"flags": 3 << 6}, 0x002),
        (pointer(DATA, PAGE, BLOCK) | {"flags": SGL | 3}, 0x002),
    ],
)
def test_a_list_that_is_wrong_gets_its_status_and_moves_nothing(
    host: Host, queue: Queue, fields: dict[str, Any], status: int
) -> None:
    host.put(b"\xa5" * PAGE)
    for opcode in (READ, WRITE):
        assert host.command(queue, opcode, nsid=1, **fields).status == status
    assert host.data(PAGE) == b"\xa5" * PAGE
    assert os.pread(host.media[1].fd, PAGE, 0) == bytes(PAGE)


@pytest.mark.parametrize("psdt", [SGL, SGL_WITH_MPTR_SEGMENT, 3 << 6])
@pytest.mark.parametrize(
    ("opcode", "cdws"), [(IDENTIFY, (1,)), (GET_LOG_PAGE, (0x7F0002,)), (0x0A, (7,)), (0xC6, (8,))]
)
def test_an_admin_command_takes_prps_only(
    host: Host, psdt: int, opcode: int, cdws: tuple[int, ...]
) -> None:
    host.put(b"\xa5" * PAGE)
    where = pointer(DATA, PAGE, BLOCK) | {"flags": psdt}
    completion = host.command(host.admin, opcode, nsid=0xFFFFFFFF, cdws=cdws, **where)
    assert (completion.status, completion.dnr) == (0x002, True)
    assert host.data(PAGE) == b"\xa5" * PAGE


def test_a_command_without_data_looks_at_no_list(host: Host, queue: Queue) -> None:
    where = pointer(1 << 60, 3, 0xF0)
    assert host.command(queue, FLUSH, nsid=1, **where).status == 0


def test_an_accelerator_command_s_data_may_come_from_a_list(host: Host, queue: Queue) -> None:
    apu = host.connect_apu()
    content = os.urandom(256)
    host.put(content[:7], DATA + 1)
    host.put(content[7:], DATA + 0x1000)
    where = listed(host, (DATA + 1, 7, BLOCK), (DATA + 0x1000, 249, BLOCK))
    host.place(queue, SEND_DATA, 1, cdws=(64,), **where)
    host.ring(queue)
    host.service()
    request = apu.receive()
    assert isinstance(request, Request)
    assert bytes(host.buffers.slot(request.slot)[:256]) == content
    apu.send(Reply(request.tag, 0))
    host.service()
    assert [completion.status for completion in host.reap(queue)] == [0]


def test_an_answer_shorter_than_the_list_fills_its_beginning(host: Host, queue: Queue) -> None:
    apu = host.connect_apu()
    host.put(b"\xa5" * 600)
    where = listed(host, (DATA + 1, 7, BLOCK), (0, 13, BUCKET), (DATA + 100, 236, BLOCK))
    host.place(queue, READ_DATA, 1, cdws=(64,), **where)
    host.ring(queue)
    host.service()
    request = apu.receive()
    assert isinstance(request, Request)
    answer = os.urandom(40)
    host.buffers.slot(request.slot)[:40] = answer
    apu.send(Reply(request.tag, 0, result=9, length=40))
    host.service()
    assert [(one.status, one.dw0) for one in host.reap(queue)] == [(0, 9)]
    expected = bytearray(b"\xa5" * 600)
    expected[1:8], expected[100:120] = answer[:7], answer[20:]
    assert host.data(600) == expected


def test_a_list_that_changed_while_the_media_worked_is_judged_again(
    host: Host, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host.media[1], "read_at_once", lambda views, offset: False)
    where = listed(host, (DATA, PAGE, BLOCK))
    host.place(queue, READ, 1, nsid=1, **where)
    host.ring(queue)
    host.service()
    listed(host, (DATA, 16, BLOCK))
    host.executor.run_all()
    host.service()
    assert [completion.status for completion in host.reap(queue)] == [0x00F]

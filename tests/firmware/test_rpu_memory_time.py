"""Commands on memory namespaces whose time is modelled, against sums worked out by hand.

PROFILE: 500 ns to the firmware, 1000 ns of it, 700 ns to the host; a link of 4 bytes a nanosecond.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from csd_spec.opcodes import IoOpcode
from potash_device.cores import CoreProfile
from potash_device.flash.profile import Rate
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.requests import Op
from potash_firmware.mailbox.messages import Reply, Request
from potash_firmware.rpu.timing.modelled import TimeSettings
from support.compute import (
    BLOCKS,
    COMPUTE,
    EBPF,
    LOAD,
    MEMORY,
    OTHER_MEMORY,
    SMALL,
    ComputeHost,
    compute_host,
)
from support.memory import COPY, FILL, FLUSH, READ, WRITE
from support.modelled_time import PROFILE, completions, model, timing_of
from support.nvme_host import DATA, PAGE, Queue

SECOND = 10**9
CORE = CoreProfile(dram=Rate(2, 1))
BEFORE, AFTER = 1500, 700
DRAM = PAGE // 2
"""Nanoseconds of a page."""
LINK = PAGE // 4


@pytest.fixture
def host() -> Iterator[ComputeHost]:
    with compute_host(time=TimeSettings(Drive(PROFILE), processor=CORE)) as found:
        found.now = 1.0
        yield found


@pytest.fixture
def queue(host: ComputeHost) -> Queue:
    return host.create_io_queue()


def send(host: ComputeHost, queue: Queue, opcode: int, cid: int, *, length: int = PAGE) -> None:
    host.place(
        queue, opcode, cid, nsid=MEMORY, prp1=DATA, prp2=DATA + PAGE, cdws=(0, 0, length)
    )  # fmt: skip
    host.ring(queue)
    host.service()


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        (READ, BEFORE + DRAM + LINK + AFTER),
        (WRITE, BEFORE + DRAM + LINK + AFTER),
        (FILL, BEFORE + DRAM + AFTER),
    ],
)
def test_a_page_takes_its_time(host: ComputeHost, queue: Queue, opcode: int, expected: int) -> None:
    send(host, queue, opcode, 1)
    assert completions(host, queue) == {1: SECOND + expected}


def test_the_memory_does_one_thing_at_a_time(host: ComputeHost, queue: Queue) -> None:
    for cid in (1, 2, 3):
        send(host, queue, FILL, cid)
    assert completions(host, queue) == {
        cid: SECOND + BEFORE + cid * DRAM + AFTER for cid in (1, 2, 3)
    }


def test_flush_takes_no_time(host: ComputeHost, queue: Queue) -> None:
    send(host, queue, FLUSH, 1, length=0)
    assert [one.cid for one in host.reap(queue)] == [1]


def test_a_refused_command_is_refused_at_once(host: ComputeHost, queue: Queue) -> None:
    send(host, queue, FILL, 1, length=1)
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(1, 2)]


def copy(host: ComputeHost, queue: Queue, form: int, length: int, *ranges: bytes) -> None:
    host.put(b"".join(ranges))
    place = (0, 0, form << 8 | len(ranges) - 1)
    host.place(
        queue, COPY, 1, nsid=MEMORY, first=(length, 0), cdws=place, prp1=DATA, prp2=DATA + PAGE
    )
    host.ring(queue)
    host.service()


def test_copies_of_memory_read_and_write_it(host: ComputeHost, queue: Queue) -> None:
    source = struct.pack("<I4xQI2xH8x", OTHER_MEMORY, 0, PAGE, 0)
    copy(host, queue, 4, PAGE, source)
    assert completions(host, queue) == {1: SECOND + BEFORE + 2 * DRAM + AFTER}


def test_copies_of_blocks_wait_for_the_flash(host: ComputeHost, queue: Queue) -> None:
    other = model()
    for drive in (other, timing_of(host).drive):
        drive.submit(0, Op.WRITE, 0, 8, fua=True)
    ranges = [struct.pack("<I4xQH4xH8x", BLOCKS, lba, 0, 0) for lba in (0, 2)]
    copy(host, queue, 2, 2 * PAGE, *ranges)
    read = max(other.submit(SECOND, Op.READ, lba, 1) for lba in (0, 2))
    assert completions(host, queue) == {1: read + 2 * DRAM + AFTER}


def traffic(host: ComputeHost) -> bytes:
    """The log page on traffic: a header of 64 bytes, then 40 bytes for each completion."""
    answer = host.command(host.admin, 2, cdws=(1023 << 16 | 0xC2,))
    assert answer.status == 0
    return host.data(PAGE)


def test_the_traffic_log_has_bytes_and_the_time_of_each_completion(
    host: ComputeHost, queue: Queue
) -> None:
    before = struct.unpack_from("<7Q", traffic(host))
    assert before[3:] == (before[3], 0, 0, 0)
    copy(host, queue, 4, PAGE, struct.pack("<I4xQI2xH8x", OTHER_MEMORY, 0, PAGE, 0))
    completions(host, queue)
    done = SECOND + BEFORE + 2 * DRAM + AFTER
    host.now = 2.0
    send(host, queue, READ, 2)
    completions(host, queue)
    host.now = 3.0
    send(host, queue, FLUSH, 3, length=0)  # takes no modelled time
    after = traffic(host)
    version, *counts = struct.unpack_from("<7Q", after)
    # I/O commands, Admin commands, bytes to the host and from it, copied inside, completions.
    added = [one - other for one, other in zip(counts, before[1:], strict=True)]
    assert (version, added) == (1, [3, 0, PAGE, 32, PAGE, 2])
    rows = [struct.unpack_from("<BBHHHIB3xQQQ", after, 64 + 40 * row) for row in range(3)]
    read = 2 * SECOND + BEFORE + DRAM + LINK + AFTER
    assert rows == [
        (0, COPY, 0, 1, 1, MEMORY, 3, SECOND, SECOND, done),
        (0, READ, 0, 1, 2, MEMORY, 3, 2 * SECOND, 2 * SECOND, read),
        (0,) * 10,
    ]


def test_no_counter_of_a_worker_breaks_the_traffic_log(host: ComputeHost) -> None:
    host.rpu.controller.statistics.read_by_jobs = lambda: (1 << 64) + 5
    assert struct.unpack_from("<Q", traffic(host), 40) == (5,)


def test_loading_a_program_takes_its_time(host: ComputeHost, queue: Queue) -> None:
    index = SMALL.programs - 1
    words = (index | EBPF << 16, PAGE, 0, 0, PAGE, 0)
    host.place(host.admin, LOAD, 5, nsid=COMPUTE, cdws=words, prp1=DATA, prp2=DATA + PAGE)
    host.ring(host.admin)
    host.service()
    assert completions(host, host.admin) == {5: SECOND + BEFORE + DRAM + LINK + AFTER}


@pytest.mark.parametrize("opcode", [IoOpcode.SEND_DATA, IoOpcode.READ_DATA])
def test_data_of_accelerators_take_their_time(
    host: ComputeHost, queue: Queue, opcode: IoOpcode
) -> None:
    apu = host.connect_apu()
    host.place(queue, opcode, 1, nsid=BLOCKS, cdws=(PAGE // 4,), prp1=DATA, prp2=DATA + PAGE)
    host.ring(queue)
    host.service()
    request = apu.receive()
    assert isinstance(request, Request)
    apu.send(Reply(request.tag, 0, length=0 if opcode is IoOpcode.SEND_DATA else PAGE))
    host.service()
    assert completions(host, queue) == {1: SECOND + BEFORE + DRAM + LINK + AFTER}

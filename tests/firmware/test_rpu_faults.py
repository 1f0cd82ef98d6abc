"""Fault injection: each kind triggers what it is about, as often as it says, and nothing else."""

import errno
import struct

import pytest

from csd_spec.faults import Fault, FaultFlags, FaultKind
from potash_device.media.shapes import NamespaceShape
from potash_device.media.store import MemoryMedia
from potash_firmware.mailbox.messages import (
    ReadCheck,
    ReadChecked,
    Reply,
    Request,
    WriteBack,
    WriteBackDone,
)
from potash_firmware.rpu.settings import RpuSettings
from support.namespaces import attach, create, log_page, powered
from support.nvme_host import DATA, PAGE, Host, Queue
from support.rpu_faults import (
    ABORT,
    COMPARE,
    CONTROL,
    FLUSH,
    IDENTIFY,
    READ,
    READ_ERROR,
    SIZE,
    VERIFY,
    WRITE,
    WRITE_FAULT,
    ZEROES,
    arm,
    host,
    on,
    queue,
    reads,
)

__all__ = ["host", "queue"]


# Status.


def test_the_next_commands_of_an_opcode_end_with_the_status(host: Host, queue: Queue) -> None:
    arm(host, FaultKind.STATUS, opcode=READ, status=READ_ERROR, times=3)
    assert on(host, queue, WRITE) == 0
    assert reads(host, queue, 5) == [READ_ERROR] * 3 + [0, 0]


def test_do_not_retry_is_as_the_fault_says(host: Host, queue: Queue) -> None:
    arm(host, FaultKind.STATUS, opcode=READ, status=0x006, times=1)
    arm(host, FaultKind.STATUS, FaultFlags.DNR, opcode=READ, status=0x006, after=0, times=2)
    completions = [host.command(queue, READ, nsid=1) for _ in range(3)]
    # The first command was triggered by both; the older one says what it ends with.
    assert [one.dnr for one in completions] == [False, True, False]
    assert [one.status for one in completions] == [0x006, 0x006, 0]


def test_it_lets_as_many_pass_as_it_says(host: Host, queue: Queue) -> None:
    arm(host, FaultKind.STATUS, opcode=READ, status=0x006, after=2, times=1)
    assert reads(host, queue, 4) == [0, 0, 0x006, 0]


def test_it_is_about_the_queue_and_the_namespace_that_it_names(host: Host, queue: Queue) -> None:
    arm(host, FaultKind.STATUS, queue=2, status=0x006)
    assert on(host, queue, READ) == 0
    assert on(host, host.io[2], READ) == 0x006
    host.rpu.controller.faults.clear()
    arm(host, FaultKind.STATUS, nsid=2, status=0x006)
    assert on(host, queue, READ) == 0


@pytest.mark.parametrize("opcode", [READ, WRITE, COMPARE, VERIFY, ZEROES])
def test_it_is_about_the_blocks_that_it_names(host: Host, queue: Queue, opcode: int) -> None:
    arm(host, FaultKind.STATUS, status=READ_ERROR, lba=10, blocks=5)
    assert on(host, queue, opcode, 8, 2) == 0
    assert on(host, queue, opcode, 15, 2) == 0
    assert on(host, queue, opcode, 8, 3) == READ_ERROR
    assert on(host, queue, opcode, 14, 1) == READ_ERROR
    assert host.command(queue, FLUSH, nsid=1).status == 0


def test_a_failed_command_has_changed_nothing(host: Host, queue: Queue) -> None:
    host.put(b"a" * PAGE)
    assert on(host, queue, WRITE, 5) == 0
    arm(host, FaultKind.STATUS, opcode=WRITE, status=WRITE_FAULT, times=1)
    host.put(b"b" * PAGE)
    assert on(host, queue, WRITE, 5) == WRITE_FAULT
    assert on(host, queue, READ, 5) == 0
    assert host.data(PAGE) == b"a" * PAGE


def test_the_error_log_has_the_command_and_its_block(host: Host, queue: Queue) -> None:
    arm(host, FaultKind.STATUS, opcode=READ, status=READ_ERROR, times=1)
    assert on(host, queue, READ, 77) == READ_ERROR
    entry = log_page(host, 1, 64)
    # SQID, CID, status field (with the phase bit below it), ..., LBA, NSID: Base 2.0, figure 205.
    assert struct.unpack_from("<H", entry, 8)[0] == 1
    assert struct.unpack_from("<H", entry, 12)[0] >> 1 & 0x7FF == READ_ERROR
    assert struct.unpack_from("<QI", entry, 16) == (77, 1)


def test_admin_commands_are_apart_from_commands_of_queues(host: Host, queue: Queue) -> None:
    arm(host, FaultKind.STATUS, FaultFlags.ADMIN, opcode=IDENTIFY, status=0x006, times=1)
    assert on(host, queue, 6) == 0x001, "there is no I/O command of that opcode"
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0x006
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0


def test_an_opcode_that_there_is_not_can_be_given_a_status(host: Host, queue: Queue) -> None:
    arm(host, FaultKind.STATUS, opcode=0x7F, status=0x300)
    assert on(host, queue, 0x7F) == 0x300


# Delay.


def test_a_delayed_command_is_carried_out_when_its_time_has_come(host: Host, queue: Queue) -> None:
    arm(host, FaultKind.DELAY, opcode=READ, delay=50_000, times=1)
    host.place(queue, READ, 1, nsid=1)
    host.place(queue, READ, 2, nsid=1)
    host.ring(queue)
    host.service()
    assert [one.cid for one in host.reap(queue)] == [2], "the other one is not held up"
    timeout = host.rpu.timeout
    assert timeout is not None and timeout == pytest.approx(0.0497)  # the last 300 µs are polled
    host.now += 0.049
    host.service()
    assert host.reap(queue) == []
    host.now += 0.002
    host.service()
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(1, 0)]


def test_delay_and_status_come_together(host: Host, queue: Queue) -> None:
    arm(host, FaultKind.DELAY, delay=1000)
    arm(host, FaultKind.STATUS, status=0x006)
    host.place(queue, READ, 1, nsid=1)
    host.ring(queue)
    host.service()
    assert host.reap(queue) == []
    host.now += 0.01
    host.service()
    assert [one.status for one in host.reap(queue)] == [0x006]


def test_a_delayed_command_that_is_reset_is_never_answered(host: Host, queue: Queue) -> None:
    arm(host, FaultKind.DELAY, delay=1000)
    host.place(queue, READ, 1, nsid=1)
    host.ring(queue)
    host.service()
    host.disable()
    host.enable()
    queue = host.create_io_queue()
    host.now += 1
    host.service()
    assert host.reap(queue) == []
    host.rpu.controller.faults.clear()
    assert on(host, queue, READ) == 0


def test_a_delayed_command_can_be_aborted(host: Host, queue: Queue) -> None:
    arm(host, FaultKind.DELAY, delay=1000)
    host.place(queue, READ, 7, nsid=1)
    host.ring(queue)
    host.service()
    assert host.command(host.admin, ABORT, 2, cdws=(7 << 16 | 1,)).dw0 == 0
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(7, 0x007)]


# Lost.


def test_a_lost_command_is_never_answered_not_even_by_an_abort(host: Host, queue: Queue) -> None:
    arm(host, FaultKind.LOST, opcode=READ, times=1)
    host.place(queue, READ, 9, nsid=1)
    host.ring(queue)
    host.service()
    host.now += 1e6
    host.service()
    assert host.reap(queue) == []
    assert host.command(host.admin, ABORT, 2, cdws=(9 << 16 | 1,)).dw0 == 1
    assert on(host, queue, READ) == 0, "the next one is answered"
    host.disable()
    host.enable()
    assert on(host, host.create_io_queue(), READ) == 0


def test_a_queue_with_a_lost_command_can_be_deleted(host: Host, queue: Queue) -> None:
    arm(host, FaultKind.LOST, opcode=READ, times=1)
    host.place(queue, READ, 9, nsid=1)
    host.ring(queue)
    host.service()
    assert host.command(host.admin, 0, cdws=(1,)).status == 0
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(9, 0x008)]


# Media.


@pytest.mark.parametrize("opcode", [READ, COMPARE, VERIFY])
def test_blocks_that_cannot_be_read(host: Host, queue: Queue, opcode: int) -> None:
    arm(host, FaultKind.MEDIA_ERROR, FaultFlags.READS, lba=10, blocks=5)
    assert on(host, queue, opcode, 8, 2) == 0
    completion = host.command(queue, opcode, nsid=1, cdws=(8, 0, 3))
    assert (completion.status, completion.dnr) == (READ_ERROR, True)
    assert on(host, queue, opcode, 14) == READ_ERROR
    assert on(host, queue, WRITE, 12) == 0, "they can be written"
    assert on(host, queue, opcode, 12) == READ_ERROR, "and are no better for it"
    host.rpu.controller.faults.clear()
    assert on(host, queue, opcode, 12) == 0


@pytest.mark.parametrize("opcode", [WRITE, ZEROES])
def test_blocks_that_cannot_be_written(host: Host, queue: Queue, opcode: int) -> None:
    arm(host, FaultKind.MEDIA_ERROR, FaultFlags.WRITES, lba=10, blocks=5)
    assert on(host, queue, opcode, 9) == 0
    assert on(host, queue, opcode, 9, 2) == WRITE_FAULT
    assert on(host, queue, READ, 10) == 0
    host.rpu.controller.faults.clear()
    assert on(host, queue, opcode, 10) == 0


def test_what_the_media_do_wrong_is_in_the_logs_as_if_it_were_so(host: Host, queue: Queue) -> None:
    before = host.rpu.controller.health.media_errors
    arm(host, FaultKind.MEDIA_ERROR, FaultFlags.READS, lba=12, blocks=1, times=1)
    assert on(host, queue, READ, 10, 4) == READ_ERROR
    assert struct.unpack_from("<QI", log_page(host, 1, 64), 16) == (12, 1)
    assert host.rpu.controller.health.media_errors == before + 1
    assert on(host, queue, READ, 10, 4) == 0, "it was to trigger once"


def test_get_lba_status_finds_them_when_it_reads(host: Host) -> None:
    arm(host, FaultKind.MEDIA_ERROR, FaultFlags.READS, lba=10, blocks=2)
    scan = (0, 0, 1023, 0x10 << 24)
    assert host.command(host.admin, 0x86, nsid=1, cdws=scan).status == 0
    assert struct.unpack_from("<I", host.data(64))[0] == 1
    assert struct.unpack_from("<QI", host.data(64), 8) == (10, 2)


def test_a_fused_write_fails_with_its_blocks(host: Host, queue: Queue) -> None:
    arm(host, FaultKind.MEDIA_ERROR, FaultFlags.WRITES, lba=3, blocks=1)
    host.clear(DATA, PAGE)
    for opcode, fuse in ((COMPARE, 1), (WRITE, 2)):
        host.place(queue, opcode, opcode, nsid=1, flags=fuse, cdws=(3, 0, 0))
    host.ring(queue)
    host.service()
    host.executor.run_all()
    host.service()
    assert {one.cid: one.status for one in host.reap(queue)} == {COMPARE: 0, WRITE: WRITE_FAULT}


def test_they_are_of_the_namespace_and_count_in_its_blocks() -> None:
    media = {nsid: MemoryMedia.create(SIZE) for nsid in (1, 2)}
    settings = RpuSettings(
        faults=(Fault(FaultKind.MEDIA_ERROR, FaultFlags.READS, nsid=2, lba=8, blocks=1),)
    )
    with Host(media, settings, shapes={2: NamespaceShape(SIZE, 512)}) as host:
        host.enable()
        queue = host.create_io_queue()
        read = [host.command(queue, READ, nsid=nsid, cdws=(8, 0, 0)).status for nsid in (1, 2)]
        assert read == [0, READ_ERROR]


def test_a_namespace_that_is_made_later_has_them_too() -> None:
    with powered() as host:
        arm(host, FaultKind.MEDIA_ERROR, FaultFlags.READS, nsid=3, lba=0, blocks=1)
        queue = host.create_io_queue()
        assert host.command(queue, READ, nsid=1).status == 0
        assert create(host, 8).dw0 == 3
        assert attach(host, 3).status == 0
        assert host.command(queue, READ, nsid=3).status == READ_ERROR
        assert host.command(queue, READ, nsid=3, cdws=(1,)).status == 0


def test_slow_media_wait_on_the_media_executor(host: Host, queue: Queue) -> None:
    waits: list[float] = []
    identifier = arm(host, FaultKind.MEDIA_DELAY, FaultFlags.READS, delay=2500, times=1)
    (armed,) = host.rpu.controller.faults._kept.values()
    armed.over.wait = waits.append  # type: ignore[method-assign, assignment]  # takes no time
    host.place(queue, READ, 1, nsid=1)
    host.ring(queue)
    host.service()
    assert waits == []
    assert len(host.executor.waiting) == 1
    host.executor.run_all()
    host.service()
    assert waits == [0.0025]
    assert [one.status for one in host.reap(queue)] == [0]
    assert on(host, queue, READ) == 0
    assert waits == [0.0025]
    (fault,) = host.rpu.controller.faults.listed()
    assert (fault.identifier, fault.triggered, fault.spent) == (identifier, 1, True)


def test_clearing_a_fault_lets_go_of_whoever_waits_because_of_it(host: Host) -> None:
    identifier = arm(host, FaultKind.MEDIA_DELAY, FaultFlags.READS, delay=0xFFFF_FFFF)
    (armed,) = host.rpu.controller.faults._kept.values()
    host.rpu.controller.faults.clear(identifier)
    assert armed.over.wait(0)


def test_a_job_is_told_of_blocks_that_cannot_be_read_or_written(host: Host) -> None:
    apu = host.connect_apu()
    arm(host, FaultKind.MEDIA_ERROR, FaultFlags.READS | FaultFlags.WRITES, lba=5, blocks=2)
    apu.send(ReadCheck(7, 1, ((0, 5 * PAGE), (6 * PAGE + 10, PAGE))))
    host.service()
    assert apu.receive() == ReadChecked(7, errno.EIO, 6 * PAGE + 10)
    apu.send(ReadCheck(8, 1, ((0, 5 * PAGE), (7 * PAGE, PAGE))))
    host.service()
    assert apu.receive() == ReadChecked(8, 0, 0)
    apu.send(WriteBack(9, 0, 0, ((1, 5 * PAGE, PAGE),)))
    host.service()
    host.executor.run_all()
    host.service()
    assert apu.receive() == WriteBackDone(9, errno.EIO)


# Interrupts.


def test_the_next_interrupts_of_a_vector_are_dropped(host: Host, queue: Queue) -> None:
    other = host.io[2]
    arm(host, FaultKind.INTERRUPT, queue=1, times=2)
    host.lines.fired.clear()
    for _ in range(3):
        assert on(host, queue, READ) == 0
    assert host.lines.fired == [1], "two of three are lost, their completions are there"
    assert on(host, other, READ) == 0
    assert host.lines.fired == [1, 2]


def test_interrupts_of_every_vector_can_be_dropped(host: Host, queue: Queue) -> None:
    arm(host, FaultKind.INTERRUPT)
    host.lines.fired.clear()
    assert on(host, queue, READ) == on(host, host.io[2], READ) == 0
    assert host.lines.fired == []
    host.rpu.controller.faults.clear()
    assert on(host, queue, READ) == 0
    assert host.lines.fired == [1]


# The APU's death.


def start(host: Host, queue: Queue) -> None:
    host.place(queue, CONTROL, 1, cdws=(0, 0, 0, 1))
    host.ring(queue)
    host.service()


def test_the_apu_dies_at_once(host: Host) -> None:
    host.connect_apu()
    arm(host, FaultKind.APU_DEATH, FaultFlags.AT_ONCE, times=1)
    assert host.link.lost
    (fault,) = host.rpu.controller.faults.listed()
    assert fault.spent


def test_the_apu_dies_of_a_start_which_fails(host: Host, queue: Queue) -> None:
    host.connect_apu()
    arm(host, FaultKind.APU_DEATH, FaultFlags.AT_START, times=1)
    host.place(queue, CONTROL, 5, cdws=(0, 0, 0, 2))  # a Stop
    host.ring(queue)
    host.service()
    assert not host.link.lost
    start(host, queue)
    assert host.link.lost
    host.link.disconnect()
    host.service()
    assert {one.cid: (one.status, one.dnr) for one in host.reap(queue)} == {
        1: (0x006, False),
        5: (0x006, False),
    }


def test_the_apu_dies_when_a_job_has_been_started(host: Host, queue: Queue) -> None:
    apu = host.connect_apu()
    arm(host, FaultKind.APU_DEATH, times=1)
    start(host, queue)
    request = apu.receive()
    assert isinstance(request, Request)
    apu.send(Reply(request.tag, 0x7C5, dnr=True))
    host.service()
    assert not host.link.lost, "that Start has failed"
    assert [one.status for one in host.reap(queue)] == [0x7C5]
    start(host, queue)
    request = apu.receive()
    assert isinstance(request, Request)
    assert not host.link.lost
    apu.send(Reply(request.tag, 0, dnr=False))
    host.service()
    assert host.link.lost
    assert [one.status for one in host.reap(queue)] == [0]

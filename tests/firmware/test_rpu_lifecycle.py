"""The controller's life: enable, fail, shut down, and what memory does meanwhile."""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest

from potash_firmware.mailbox.messages import (
    Reply,
    Request,
    Reset,
    ResetDone,
    WriteBack,
    WriteBackDone,
)
from support.nvme_host import ACQ, AQA, ASQ, CC, CSTS, DATA, MEMORY, MSIX, NSSR, Host

ENABLE = 4 << 20 | 6 << 16 | 1


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        yield host


def test_capabilities_are_the_standards_bits(host: Host) -> None:
    """MQES 4095, CQR, TO 60, NSSRS, command set NVM; version 2.0."""
    cap = host.read32(0) | host.read32(4) << 32
    assert cap == 0xFFF | 1 << 16 | 60 << 24 | 1 << 36 | 0x41 << 37
    assert host.read32(8) == 0x00020000


@pytest.mark.parametrize(
    ("register", "value"),
    [
        (AQA, 0),
        (AQA, 15 << 16),
        (CC, ENABLE | 1 << 4),
        (CC, ENABLE | 1 << 7),
        (CC, ENABLE | 1 << 11),
        (CC, 5 << 20 | 6 << 16 | 1),
        (ASQ, 1 << 40),
        (ACQ, MEMORY - 0),
    ],
)
def test_a_configuration_that_cannot_be_is_fatal_until_a_reset(
    host: Host, register: int, value: int
) -> None:
    host.master()
    host.write32(AQA, 15 << 16 | 15)
    host.write64(ASQ, 0x10_0000)
    host.write64(ACQ, 0x10_4000)
    if register == CC:
        host.write32(CC, value)
    else:
        (host.write32 if register == AQA else host.write64)(register, value)
        host.write32(CC, ENABLE)
    host.service()
    assert host.read32(CSTS) & 3 == 2
    host.disable()
    assert host.read32(CSTS) & 3 == 0
    host.enable()


def test_a_shutdown_completes_when_the_media_is_flushed(host: Host) -> None:
    host.enable()
    host.write32(CC, ENABLE | 1 << 14)
    host.service()
    assert host.read32(CSTS) >> 2 & 3 == 1
    host.executor.run_all()
    host.service()
    assert host.read32(CSTS) >> 2 & 3 == 2
    host.place(host.admin, 6, 1, cdws=(1,))
    host.ring(host.admin)
    host.service()
    assert host.reap(host.admin) == []
    host.disable()
    assert host.read32(CSTS) == 0
    host.enable()


@pytest.mark.parametrize("kind", [1, 2], ids=["normal", "abrupt"])
def test_a_shutdown_flushes_behind_the_writes_that_were_under_way(host: Host, kind: int) -> None:
    """Complete means that the power may go: a write that is acknowledged after it would be lost."""
    host.enable()
    queue = host.create_io_queue()
    for cid in range(3):
        host.place(queue, 0x01, cid, nsid=1, cdws=(cid, 0, 1 << 30))
    host.ring(queue)
    host.service()
    host.place(queue, 0x01, 9, nsid=1)
    host.ring(queue)
    host.write32(CC, ENABLE | kind << 14)
    host.service()
    assert len(host.executor.waiting) == 3
    for done in range(3):
        assert host.read32(CSTS) >> 2 & 3 == 1
        assert len(host.reap(queue)) == min(done, 1)
        host.executor.run_next(2 - done)
        host.service()
    assert [one.cid for one in host.reap(queue)] == [0]
    assert len(host.executor.waiting) == 1
    assert host.read32(CSTS) >> 2 & 3 == 1
    host.executor.run_next()
    host.service()
    assert host.read32(CSTS) >> 2 & 3 == 2
    assert host.reap(queue) == []


def test_a_reset_calls_off_the_flush_that_waits(host: Host) -> None:
    host.enable()
    queue = host.create_io_queue()
    host.place(queue, 0x01, 1, nsid=1, cdws=(0, 0, 1 << 30))
    host.ring(queue)
    host.service()
    host.write32(CC, ENABLE | 1 << 14)
    host.service()
    host.disable()
    assert host.read32(CSTS) == 0
    host.executor.run_all()
    host.service()
    assert not host.executor.waiting
    host.enable()
    assert host.read32(CSTS) == 1


def test_ready_waits_for_the_writes_of_the_time_before(host: Host) -> None:
    host.enable()
    queue = host.create_io_queue()
    host.place(queue, 0x01, 1, nsid=1, cdws=(0, 0, 1 << 30))
    host.ring(queue)
    host.service()
    assert host.executor.waiting
    host.disable()
    assert not host.ready
    host.begin_enable()
    host.service()
    assert not host.ready
    host.executor.run_all()
    host.service()
    assert host.ready
    assert host.reap(host.admin) == []


def test_a_subsystem_reset_shows_in_its_status_bit(host: Host) -> None:
    host.enable()
    host.write32(NSSR, 0x12345678)
    host.service()
    assert host.ready
    host.write32(NSSR, 0x4E564D65)
    host.service()
    assert host.read32(CSTS) == 1 << 4
    host.write32(CSTS, 1 << 4)
    assert host.read32(CSTS) == 0
    host.enable()


def test_queue_memory_that_is_gone_is_fatal_and_touches_nothing(host: Host) -> None:
    host.enable()
    host.place(host.admin, 6, 1, cdws=(1,))
    host.space.unmap(0, MEMORY)
    host.board.memory_changed()
    before = bytes(host.memory.view)
    host.ring(host.admin)
    host.service()
    assert host.read32(CSTS) & 3 == 3
    assert bytes(host.memory.view) == before


def test_memory_that_comes_back_elsewhere_is_found_again(host: Host) -> None:
    host.enable()
    host.space.unmap(0, MEMORY)
    host.board.memory_changed()
    half = MEMORY // 2
    for start in (0, half):
        host.space.map(start, half, fd=host.memory.fd, offset=start, readable=True, writable=True)
    host.board.memory_changed()
    assert host.command(host.admin, 6, cdws=(1,)).status == 0


def test_an_interrupt_waits_for_somebody_who_listens(host: Host) -> None:
    host.enable()
    host.lines.listening = False
    host.place(host.admin, 6, 1, cdws=(1,))
    host.ring(host.admin)
    host.service()
    assert host.board.region_read(0, 0x3000, 8) == b"\x01" + bytes(7)
    host.lines.listening = True
    host.board.irqs_changed(MSIX)
    assert host.lines.fired == [0]
    assert host.board.region_read(0, 0x3000, 8) == bytes(8)


def test_a_host_that_leaves_takes_its_session_with_it(host: Host) -> None:
    host.enable()
    host.place(host.admin, 0x0C, 1)
    host.ring(host.admin)
    host.service()
    host.board.detached()
    assert not host.ready
    host.board.attached(host.space, host.lines)  # type: ignore[arg-type]  # records the signals
    host.enable()
    assert host.command(host.admin, 6, 1, cdws=(1,)).status == 0


def test_what_a_job_of_the_time_before_wants_written_is_refused(host: Host) -> None:
    """Between a reset and the APU's word that its jobs are gone, no block changes."""
    apu = host.connect_apu()
    host.enable()
    host.buffers.arena(0)[:4096] = b"\xee" * 4096
    host.disable()
    reset = apu.receive()
    assert isinstance(reset, Reset)
    host.enable()
    apu.send(WriteBack(5, 0, 0, ((1, 0, 4096),)))
    host.service()
    assert not host.executor.waiting
    assert apu.receive() == WriteBackDone(5, errno.ECANCELED)
    apu.send(ResetDone(reset.tag))
    apu.send(WriteBack(6, 0, 0, ((1, 0, 4096),)))
    host.service()
    host.executor.run_all()
    host.service()
    assert apu.receive() == WriteBackDone(6, 0)
    assert os.pread(host.media[1].fd, 4096, 0) == b"\xee" * 4096


@pytest.mark.parametrize(
    "message",
    [
        WriteBack(1, 0, 0, ((9, 0, 512),)),
        WriteBack(1, 7, 0, ((1, 0, 512),)),
        WriteBack(1, 0, 1 << 30, ((1, 0, 512),)),
        WriteBack(1, 0, 0, ((1, 1 << 20, 1),)),
        WriteBack(1, 0, 0, ((1, 0, 512), (1, (1 << 64) - 512, 512))),
    ],
)
def test_a_write_back_that_cannot_be_is_refused(host: Host, message: WriteBack) -> None:
    apu = host.connect_apu()
    apu.send(message)
    host.service()
    assert not host.executor.waiting
    assert apu.receive() == WriteBackDone(1, errno.EINVAL)


ONE_PART = WriteBack(1, 0, 0, ((1, 0, 4096),), more=True)
LAST_PART = WriteBack(1, 0, 4096, ((1, 8192, 4096),))


def test_nothing_is_written_before_the_last_part_of_a_write_back_has_come(host: Host) -> None:
    apu = host.connect_apu()
    host.buffers.arena(0)[:8192] = b"\xaa" * 4096 + b"\xbb" * 4096
    apu.send(ONE_PART)
    host.service()
    assert not host.executor.waiting
    apu.send(LAST_PART)
    host.service()
    host.executor.run_all()
    host.service()
    assert apu.receive() == WriteBackDone(1, 0)
    assert apu.receive() is None
    assert os.pread(host.media[1].fd, 4096, 0) == b"\xaa" * 4096
    assert os.pread(host.media[1].fd, 4096, 8192) == b"\xbb" * 4096


def test_a_part_that_cannot_be_leaves_the_others_unwritten(host: Host) -> None:
    apu = host.connect_apu()
    apu.send(ONE_PART)
    apu.send(replace(LAST_PART, ranges=((1, 1 << 40, 4096),)))
    host.service()
    assert not host.executor.waiting
    assert apu.receive() == WriteBackDone(1, errno.EINVAL)


def test_the_part_that_an_apu_sent_before_it_was_lost_is_never_written(host: Host) -> None:
    lost = host.connect_apu()
    lost.send(ONE_PART)
    host.service()
    lost.close()
    host.link.disconnect()
    apu = host.connect_apu()
    apu.send(LAST_PART)
    host.service()
    host.executor.run_all()
    host.service()
    assert apu.receive() == WriteBackDone(1, 0)
    assert os.pread(host.media[1].fd, 4096, 0) == bytes(4096)


def test_commands_of_an_apu_that_died_fail_and_may_be_repeated(host: Host) -> None:
    apu = host.connect_apu()
    host.enable()
    for cid in range(1, 15):
        host.place(host.admin, 0xC6, cid, cdws=(8,))
    host.ring(host.admin)
    host.service()
    assert host.reap(host.admin) == []
    apu.close()
    host.link.disconnect()
    host.service()
    answers = host.reap(host.admin)
    assert [(one.cid, one.status, one.dnr) for one in answers] == [
        (cid, 0x006, False) for cid in range(1, 15)
    ]
    again = host.connect_apu()
    host.place(host.admin, 0xC6, 1, cdws=(8,))
    host.ring(host.admin)
    host.service()
    request = again.receive()
    assert isinstance(request, Request) and request.length == 32


def test_more_commands_than_transfer_slots_take_turns(host: Host) -> None:
    apu = host.connect_apu()
    host.enable()
    queue = host.create_io_queue(1, size=32)
    for cid in range(20):
        host.place(queue, 0x81, cid, prp1=DATA + cid * 4096, cdws=(1,))
        host.put(bytes([cid]) * 4, DATA + cid * 4096)
    host.ring(queue)
    host.service()
    seen: list[int] = []
    for _ in range(20):
        message = apu.receive()
        assert isinstance(message, Request)
        seen.append(host.buffers.slot(message.slot)[0])
        apu.send(Reply(message.tag, 0))
        host.service()
    assert seen == list(range(20))
    assert sorted(one.cid for one in host.reap(queue)) == list(range(20))


def test_a_reset_while_the_apu_is_away_reaches_the_next_one(host: Host) -> None:
    """The next APU finds what the last one had configured, which the reset has made void."""
    first = host.connect_apu()
    host.enable()
    first.close()
    host.link.disconnect()
    host.disable()
    second = host.connect_apu()
    unanswered = second.receive()
    assert isinstance(unanswered, Reset)
    second.close()
    host.link.disconnect()
    third = host.connect_apu()
    repeated = third.receive()
    assert isinstance(repeated, Reset)
    third.send(ResetDone(repeated.tag))
    host.service()
    assert host.link.resetting is None
    third.close()
    host.link.disconnect()
    assert host.connect_apu().receive() is None


def test_a_command_that_was_aborted_is_not_answered_in_the_next_session(host: Host) -> None:
    """Deleting its queue had to wait for the media when the reset came."""
    host.connect_apu()
    host.enable()
    queue = host.create_io_queue()
    host.place(queue, 0x81, 1, cdws=(64,))
    host.place(queue, 0x01, 2, nsid=1, cdws=(0, 0, 1 << 30))
    host.ring(queue)
    host.service()
    host.place(host.admin, 0x00, 3, cdws=(1,))
    host.ring(host.admin)
    host.service()
    host.disable()
    host.executor.run_all()
    host.service()
    host.clear(queue.cq, 16 * 16)
    host.enable()
    assert host.command(host.admin, 0x06, cdws=(1,)).status == 0
    assert host.data(16 * 16, queue.cq) == bytes(16 * 16)


def test_a_queue_that_somebody_still_has_holds_no_memory_of_an_old_session(host: Host) -> None:
    host.enable()
    held = host.create_io_queue()
    queues = host.board.queues
    submissions, completions = queues.submissions[held.qid], queues.completions[held.qid]
    host.disable()
    assert submissions._bytes is None and completions._bytes is None


def test_queues_do_not_outlive_their_session(host: Host) -> None:
    host.enable()
    host.create_io_queue(1)
    host.disable()
    host.enable()
    host.write32(0x1008, 1)
    host.service()
    assert not host.fatal
    host.create_io_queue(1)


def test_a_transfer_slot_that_nobody_wants_any_more_is_free_again(host: Host) -> None:
    """Commands wait for a slot when a reset forgets them."""
    apu = host.connect_apu()
    host.enable()
    queue = host.create_io_queue(1, size=32)
    for cid in range(20):
        host.place(queue, 0x81, cid, prp1=DATA + cid * 4096, cdws=(1,))
    host.ring(queue)
    host.service()
    host.disable()
    while (message := apu.receive()) is not None:
        assert isinstance(message, Request | Reset)
        apu.send(ResetDone(message.tag) if isinstance(message, Reset) else Reply(message.tag, 0))
    host.enable()
    queue = host.create_io_queue(1, size=32)
    for cid in range(16):
        host.place(queue, 0x81, cid, prp1=DATA + cid * 4096, cdws=(1,))
    host.ring(queue)
    host.service()
    slots = set()
    while (message := apu.receive()) is not None:
        assert isinstance(message, Request)
        slots.add(message.slot)
    assert slots == set(range(16))


def test_a_mistake_in_the_firmware_s_own_loop_ends_the_session_and_not_the_device(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """CSTS.CFS is what a host learns of it (Base 2.0, section 3.1.3.6); a reset leads out."""
    host.enable()
    queue = host.create_io_queue()
    with patch.object(host.rpu.arbiter, "serve", side_effect=ZeroDivisionError("oh")):
        host.place(queue, 0x00, 7, nsid=1)  # Flush, which the media executor does
        host.ring(queue)
        host.service()
    assert host.fatal
    (record,) = (one for one in caplog.records if one.levelname == "ERROR")
    assert record.getMessage().endswith("a mistake of the firmware: ZeroDivisionError('oh')")
    host.executor.run_all()
    host.disable()
    assert not host.fatal
    host.enable()
    assert host.command(host.create_io_queue(), 0x00, nsid=1).status == 0


def test_a_mistake_that_stays_neither_spins_nor_fills_the_log(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.enable()
    with patch.object(
        host.rpu.controller.persistence, "sample", side_effect=ZeroDivisionError("oh")
    ):
        for _ in range(20):
            host.service()
        host.disable()
        for _ in range(20):
            host.service()
    assert len([one for one in caplog.records if one.levelname == "ERROR"]) == 2
    host.enable()

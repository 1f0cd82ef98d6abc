"""A host that sends more than is sensible: what it costs stays bounded, and nobody else pays."""

import logging

import pytest

from csd_spec.faults import Fault, FaultFlags, FaultKind
from potash_firmware.mailbox.messages import Reply, Request, Reset
from support.nvme_host import AQA, CC, CSTS, DOORBELLS, Host

SHUTDOWN = 1 << 14
ENABLE = 4 << 20 | 6 << 16 | 1

FUA = 1 << 30


def test_writes_that_the_media_cannot_keep_up_with_wait_in_their_queues(host: Host) -> None:
    """Each holds a buffer: 65536 identifiers in 64 queues would be more than any machine has."""
    queues = [host.create_io_queue(qid, size=256) for qid in (1, 2)]
    for queue in queues:
        for cid in range(250):
            host.place(queue, 0x01, cid, nsid=1, cdws=(0, 0, FUA))
        host.ring(queue)
    host.service()
    assert len(host.executor.waiting) <= 64
    assert host.command(host.admin, 0x06, cdws=(1,)).status == 0
    answered: dict[int, set[int]] = {1: set(), 2: set()}
    for _ in range(100):
        host.executor.run_all()
        host.service()
        for queue in queues:
            answered[queue.qid] |= {one.cid for one in host.reap(queue)}
        assert abs(len(answered[1]) - len(answered[2])) <= 64
        if len(answered[1]) + len(answered[2]) == 500:
            return
    raise AssertionError("not every write was answered")


def test_commands_without_data_do_not_fill_the_mailbox(host: Host) -> None:
    apu = host.connect_apu()
    queue = host.create_io_queue(size=2048)
    for cid in range(2000):
        host.place(queue, 0x91, cid)
    host.ring(queue)
    host.service()
    answered = 0
    while host.link.port is not None and not host.link.lost and answered < 2000:
        host.link.port.flush()
        requests = []
        while isinstance(message := apu.receive(), Request):
            requests.append(message)
        assert 0 < len(requests) <= 16
        for request in requests:
            apu.send(Reply(request.tag, 0))
        host.service()
        answered += len(host.reap(queue))
    assert answered == 2000


def test_resets_that_the_apu_has_not_heard_do_not_fill_the_mailbox(host: Host) -> None:
    apu = host.connect_apu()
    for _ in range(2000):
        host.write32(CC, 0)
        host.write32(CC, ENABLE)
    host.service()
    assert not host.link.lost
    assert isinstance(apu.receive(), Reset)
    assert apu.receive() is None


def test_what_was_asked_between_two_resets_is_reset_too(host: Host) -> None:
    apu = host.connect_apu()
    host.disable()
    host.enable()
    queue = host.create_io_queue()
    host.place(queue, 0x91, 7)
    host.ring(queue)
    host.service()
    host.disable()
    kinds = [type(apu.receive()) for _ in range(4)]
    assert kinds == [Reset, Request, Reset, type(None)]


def test_an_answer_that_is_longer_than_was_asked_does_not_reach_the_host(host: Host) -> None:
    apu = host.connect_apu()
    queue = host.create_io_queue()
    host.put(bytes(64))
    host.place(queue, 0x82, 7, cdws=(8,))
    host.ring(queue)
    host.service()
    request = apu.receive()
    assert isinstance(request, Request)
    host.buffers.slot(request.slot)[:64] = b"x" * 64
    apu.send(Reply(request.tag, 0, length=64))
    host.service()
    (completion,) = host.reap(queue)
    assert (completion.status, completion.dnr) == (0x006, False)
    assert host.data(64) == bytes(64)


def test_doorbells_that_do_not_exist_are_logged_once(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2000):
            host.write32(DOORBELLS + 8 * 3, 1)
        host.service()
    assert len(caplog.records) == 1


def test_shutdowns_do_not_pile_up_before_slow_media(host: Host) -> None:
    for _ in range(500):
        host.write32(CC, 0)
        host.write32(CC, ENABLE | SHUTDOWN)
    host.service()
    assert len(host.executor.waiting) == 1
    host.executor.run_all()
    host.service()
    assert host.read32(CSTS) >> 2 & 3 == 1  # the last one has its own flush still before it
    host.executor.run_all()
    host.service()
    assert host.read32(CSTS) >> 2 & 3 == 2
    host.write32(CC, 0)
    host.enable()


def test_formats_and_resets_in_turn_pile_nothing_up(host: Host) -> None:
    for _ in range(20):
        for cid in range(15):
            host.place(host.admin, 0x80, cid, nsid=1)
        host.ring(host.admin)
        host.service()
        host.disable()
        host.enable()
    assert len(host.executor.waiting) == 1, "the one that had begun"
    assert host.command(host.admin, 0x80, 99, nsid=1).status == 0
    assert host.rpu.controller.namespaces.blocks[1].shape.formats == 2


def test_no_more_is_begun_than_slow_media_take(host: Host) -> None:
    """A self-test that is ended is remembered on the media, whatever becomes of the command."""
    for _ in range(20):
        for cid in range(15):
            host.place(host.admin, 0x14, cid, cdws=(0xF,))
        host.ring(host.admin)
        host.service()
        host.disable()
        host.begin_enable()
        host.service()
    assert len(host.executor.waiting) <= 64
    host.executor.run_all()
    host.service()
    assert host.ready


def test_delays_of_commands_that_a_reset_forgot_are_forgotten(host: Host) -> None:
    host.rpu.controller.faults.add(
        Fault(FaultKind.DELAY, FaultFlags(0), opcode=0x02, delay=3_000_000_000)
    )
    queue = host.create_io_queue(size=256)
    for cid in range(200):
        host.place(queue, 0x02, cid, nsid=1)
    host.ring(queue)
    host.service()
    assert host.deadline == 3000 * 10**9
    host.place(host.admin, 0x06, 1, cdws=(1,))
    host.ring(host.admin)
    host.service()
    assert len(host.reap(host.admin)) == 1, "an Admin command does not wait for them"
    host.disable()
    assert host.deadline is None


def test_an_apu_that_dies_twice_before_anybody_looks_fails_a_command_once(host: Host) -> None:
    host.connect_apu()
    queue = host.create_io_queue()
    host.place(queue, 0x91, 7)
    host.ring(queue)
    host.service()
    for _ in range(2):
        host.link.disconnect()
        host.connect_apu()
    host.service()
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(7, 0x006)]


def test_a_host_that_enables_with_bad_settings_is_logged_once_a_minute(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(size_shift: int) -> list[str]:
        caplog.clear()
        for _ in range(50):
            host.write32(CC, 0)
            host.write32(CC, 4 << 20 | size_shift << 16 | 1)
            host.service()
            assert host.fatal
        return [record.message for record in caplog.records if record.levelno >= logging.ERROR]

    assert len(fail(size_shift=5)) == 1
    assert fail(size_shift=5) == []
    host.write32(AQA, 0)
    assert len(fail(size_shift=6)) == 1, "another reason is another line"
    host.now += 60
    assert len(fail(size_shift=5)) == 1

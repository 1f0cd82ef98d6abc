"""Bus Master Enable: while it is clear nothing is fetched, moved, answered or announced.

What was asked before goes on when it is set again (NVM Express over PCIe Transport 1.0, section
3.1.1.3, Command register: clear, it "stops the controller from initiating any data transfers").
"""

import os
from collections.abc import Iterator

import pytest

from potash_firmware.mailbox.messages import Reply, Request
from support.nvme_host import CC, DATA, DOORBELLS, PAGE, Host, Queue, SlowMedia

FLUSH, WRITE, READ, DOORBELL_BUFFER = 0x00, 0x01, 0x02, 0x7C
SHADOW, EVENTS = DATA + 0x10_0000, DATA + 0x10_1000


@pytest.fixture
def host() -> Iterator[Host]:
    with Host({1: SlowMedia.create(1 << 20)}) as host:
        host.enable()
        host.create_io_queue()
        yield host


def pause(host: Host) -> bytes:
    """Clear Bus Master Enable; memory as it is then."""
    host.master(False)
    host.lines.fired.clear()
    return bytes(host.memory.view)


def at_rest(host: Host) -> None:
    """The device does all that it can, and has nothing more to do by itself."""
    host.service()
    host.executor.run_all()
    host.service()
    assert host.sleeps


def test_entries_are_fetched_when_it_is_set(host: Host, queue: Queue) -> None:
    host.place(queue, FLUSH, 1, nsid=1)
    host.place(host.admin, 0x06, 2, cdws=(1,))
    memory = pause(host)
    host.ring(queue)
    host.ring(host.admin)
    at_rest(host)
    assert bytes(host.memory.view) == memory
    host.master()
    at_rest(host)
    assert [one.cid for one in (*host.reap(queue), *host.reap(host.admin))] == [1, 2]
    assert set(host.lines.fired) == {0, 1}


def test_what_the_media_have_done_reaches_the_host_when_it_is_set(host: Host, queue: Queue) -> None:
    os.pwrite(host.media[1].fd, b"r" * PAGE, 0)
    host.place(queue, READ, 1, nsid=1)
    host.place(queue, FLUSH, 2, nsid=1)
    host.ring(queue)
    host.service()
    memory = pause(host)
    at_rest(host)
    assert bytes(host.memory.view) == memory
    assert host.lines.fired == []
    host.master()
    at_rest(host)
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(1, 0), (2, 0)]
    assert host.data(PAGE) == b"r" * PAGE
    assert sorted(host.lines.fired) == [0, 1]  # 0 was sent before the pause


def test_what_the_apu_has_answered_reaches_the_host_when_it_is_set(
    host: Host, queue: Queue
) -> None:
    """Also to commands that had waited for a transfer slot meanwhile."""
    apu = host.connect_apu()
    other = host.create_io_queue(2)
    for one, count in ((queue, 15), (other, 3)):
        for cid in range(count):
            host.place(one, 0x91, cid)
        host.ring(one)
    host.service()
    memory = pause(host)

    def answer() -> None:
        while isinstance(request := apu.receive(), Request):
            apu.send(Reply(request.tag, 0))
        host.service()

    answer()
    assert bytes(host.memory.view) == memory
    host.master()
    host.service()
    answer()
    assert (len(host.reap(queue)), len(host.reap(other))) == (15, 3)
    assert len(host.link._free) == 16


def test_a_reset_forgets_what_waits_for_it(host: Host, queue: Queue) -> None:
    apu = host.connect_apu()
    for cid in range(3):
        host.place(queue, 0x91, cid)
    host.place(queue, READ, 9, nsid=1)
    host.ring(queue)
    host.service()
    pause(host)
    while isinstance(request := apu.receive(), Request):
        apu.send(Reply(request.tag, 0))
    at_rest(host)
    host.write32(CC, 0)
    host.service()
    assert len(host.link._free) == 16
    memory = bytes(host.memory.view)
    host.master()
    at_rest(host)
    assert bytes(host.memory.view) == memory


def test_the_controller_is_ready_once_it_is_set(host: Host) -> None:
    host.disable()
    host.begin_enable()
    host.master(False)
    at_rest(host)
    assert not host.ready
    assert not host.fatal
    host.master()
    host.service()
    assert host.ready


def test_room_that_is_made_meanwhile_is_used_when_it_is_set(host: Host, queue: Queue) -> None:
    """Five answers and a completion queue with room for three."""
    host.disable()
    host.enable()
    queue = host.create_io_queue(size=4)
    for cid in (1, 2, 3):
        host.place(queue, FLUSH, cid, nsid=1)
    host.ring(queue)
    host.service()
    for cid in (4, 5):
        host.place(queue, FLUSH, cid, nsid=1)
    host.ring(queue)
    at_rest(host)
    assert host.board.queues.blocked
    pause(host)
    assert [one.cid for one in host.reap(queue)] == [1, 2, 3]  # which rings the head's doorbell
    at_rest(host)
    assert not host.fatal
    host.master()
    at_rest(host)
    assert [one.cid for one in host.reap(queue)] == [4, 5]


def test_shadow_doorbells_are_read_when_it_is_set(host: Host, queue: Queue) -> None:
    done = host.command(host.admin, DOORBELL_BUFFER, prp1=SHADOW, prp2=EVENTS)
    assert done.status == 0
    pause(host)
    host.place(queue, FLUSH, 1, nsid=1)
    host.put(queue.tail.to_bytes(4, "little"), SHADOW + 8)
    host.write32(DOORBELLS + 8, queue.tail)
    memory = bytes(host.memory.view)
    at_rest(host)
    assert bytes(host.memory.view) == memory
    host.master()
    host.service()
    host.executor.run_all()
    host.service()
    assert [one.cid for one in host.reap(queue)] == [1]


def test_clear_and_set_at_once_loses_nothing(host: Host, queue: Queue) -> None:
    host.place(queue, READ, 1, nsid=1)
    host.ring(queue)
    host.service()
    host.master(False)
    host.master()
    at_rest(host)
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(1, 0)]


def test_an_answer_that_waits_for_it_is_not_left_to_the_next_host(host: Host, queue: Queue) -> None:
    apu = host.connect_apu()
    host.place(queue, 0x82, 1, cdws=(1024,))
    host.ring(queue)
    host.service()
    request = apu.receive()
    assert isinstance(request, Request)
    slot = host.buffers.slot(request.slot)
    slot[:PAGE] = b"s" * PAGE
    pause(host)
    apu.send(Reply(request.tag, 0, length=PAGE))
    at_rest(host)
    host.board.reset()
    host.service()
    assert bytes(slot[:PAGE]) == bytes(PAGE)
    assert len(host.link._free) == 16

"""Executions on their way from the RPU to an APU, which the test plays."""

import os
import struct
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import count
from typing import Any

import pytest

from potash_firmware.mailbox import ApuPort, SharedBuffers, pair
from potash_firmware.mailbox.messages import (
    FIRST_HANDLE,
    Cancel,
    CheckProgram,
    CloseEngine,
    Execute,
    Executed,
    Forget,
    MemoryRange,
    OpenEngine,
    Outcome,
    ProgramChecked,
    ShareMemory,
    ShareProgram,
    ToApu,
)
from potash_firmware.mailbox.shared import seal
from potash_firmware.rpu.accelerators.apu_link import ApuLink
from potash_firmware.rpu.arbitration import PASS_TIME
from potash_firmware.rpu.compute.engine import Execution, Shared, SharedRange
from potash_firmware.rpu.compute.runs import RUN_LIMIT
from potash_firmware.rpu.deadlines import Deadlines, GuestClock
from support.compute import EXECUTE
from support.memory import COMPUTE, powered
from support.nvme_host import PAGE, Host, Queue

LENGTH = 8192
SHADOW = 0x2E_0000


@pytest.fixture
def link() -> Iterator[ApuLink]:
    with SharedBuffers.create({}) as buffers:
        link = ApuLink(buffers, Deadlines(GuestClock()))
        yield link
        link.disconnect()


@pytest.fixture
def apu(link: ApuLink) -> Iterator[ApuPort]:
    rpu, apu = pair()
    with apu:
        link.connect(rpu)
        yield apu


@pytest.fixture
def shared() -> Iterator[list[Shared]]:
    """A program and two memories."""
    made = [
        Shared(handle, seal("shared", bytes(LENGTH)), LENGTH)
        for handle, _ in zip(count(FIRST_HANDLE), range(3), strict=False)
    ]
    yield made
    for one in made:
        os.close(one.fd)


def heard(apu: ApuPort) -> list[ToApu]:
    """What the APU has been sent; its descriptors are closed."""
    found: list[ToApu] = []
    while (message := apu.receive()) is not None:
        if isinstance(message, ShareMemory | ShareProgram | Execute) and message.descriptor >= 0:
            os.close(message.descriptor)
        found.append(message)
    return found


def ended(link: ApuLink) -> list[Future[Any]]:
    assert list(link.messages()) == []
    found = list(link.engine.ended)
    link.engine.ended.clear()
    return found


def test_what_an_execution_names_is_shared_once(
    link: ApuLink, apu: ApuPort, shared: list[Shared]
) -> None:
    program, memory, _ = shared
    engines = link.engine
    first = engines.execute(3, program, [SharedRange(memory, 4096, 4096)], (1, 2))
    second = engines.execute(3, program, [SharedRange(memory, 0, 4096)])
    *given, one, two = heard(apu)
    assert given == [ShareProgram(program.handle, LENGTH), ShareMemory(memory.handle, LENGTH)]
    assert isinstance(one, Execute)
    assert isinstance(two, Execute)
    expected = (MemoryRange(memory.handle, 4096, 4096),)
    assert one == Execute(one.tag, 3, program.handle, (1, 2), expected)
    expected = (MemoryRange(memory.handle, 0, 4096),)
    assert two == Execute(two.tag, 3, program.handle, (0, 0), expected)
    apu.send(Executed(two.tag, Outcome.RETURNED, 22))
    apu.send(Executed(one.tag, Outcome.FAULTED))
    assert ended(link) == [second, first]
    assert second.result() == Execution(Outcome.RETURNED, 22)
    assert first.result() == Execution(Outcome.FAULTED, 0)
    assert not engines.asked


def test_data_goes_by_a_descriptor(link: ApuLink, apu: ApuPort) -> None:
    link.engine.execute(3, 2, data=b"pattern")
    message = apu.receive()
    assert isinstance(message, Execute)
    assert (message.program, message.data_length) == (2, 7)
    assert os.pread(message.descriptor, 100, 0) == b"pattern"
    with pytest.raises(PermissionError):
        os.write(message.descriptor, b"changed")
    os.close(message.descriptor)


@pytest.mark.parametrize("verdict", [Outcome.RETURNED, Outcome.REFUSED, Outcome.LOST])
def test_a_program_is_checked(
    link: ApuLink, apu: ApuPort, shared: list[Shared], verdict: Outcome
) -> None:
    program = shared[0]
    check = link.engine.check(3, program)
    given, asked = heard(apu)
    assert given == ShareProgram(program.handle, LENGTH)
    assert isinstance(asked, CheckProgram)
    assert (asked.nsid, asked.handle) == (3, program.handle)
    apu.send(ProgramChecked(asked.tag, verdict, 3 if verdict is Outcome.RETURNED else 0))
    assert ended(link) == [check]
    assert check.result() == Execution(verdict, 3 if verdict is Outcome.RETURNED else 0)


def test_what_is_forgotten_is_told_where_it_was_known(
    link: ApuLink, apu: ApuPort, shared: list[Shared]
) -> None:
    _, known, other = shared
    link.engine.execute(3, 0, [SharedRange(known, 0, LENGTH)])
    heard(apu)
    for one in (known, other, known):
        link.engine.forget(one.handle)
    assert heard(apu) == [Forget(known.handle)]


def test_the_loss_of_the_apu_ends_executions_and_the_next_one_learns_all(
    link: ApuLink, apu: ApuPort, shared: list[Shared]
) -> None:
    program, memory, _ = shared
    engines = link.engine
    engines.open(3)
    execution = engines.execute(3, 0, [SharedRange(memory, 0, LENGTH)])
    check = engines.check(3, program)
    apu.close()
    list(link.messages())
    assert link.lost
    link.disconnect()
    assert link.engine.ended
    assert ended(link) == [check, execution]
    assert (check.result(), execution.result()) == (Execution(Outcome.LOST),) * 2
    without = engines.execute(3, 0)
    assert ended(link) == [without]
    assert without.result().outcome is Outcome.LOST
    lost = engines.check(3, program)
    assert ended(link) == [lost]

    rpu, second = pair()
    with second:
        link.connect(rpu)
        engines.execute(3, 0, [SharedRange(memory, 0, LENGTH)])
        opened, given, asked = heard(second)
        assert (opened, given) == (OpenEngine(3), ShareMemory(memory.handle, LENGTH))
        assert isinstance(asked, Execute)


def test_an_execution_is_cancelled_and_ends_when_the_apu_says_so(
    link: ApuLink, apu: ApuPort
) -> None:
    link.engine.execute(3, 0)
    second = link.engine.execute(3, 0)
    _, asked = heard(apu)
    assert isinstance(asked, Execute)
    link.engine.cancel(second)
    assert heard(apu) == [Cancel(asked.tag)]
    assert ended(link) == []
    apu.send(Executed(asked.tag, Outcome.CANCELLED))
    assert ended(link) == [second]
    link.engine.cancel(second)
    assert heard(apu) == []


def test_engines_come_and_go(link: ApuLink, apu: ApuPort) -> None:
    link.engine.open(3)
    link.engine.open(4)
    link.engine.close(3)
    assert heard(apu) == [OpenEngine(3), OpenEngine(4), CloseEngine(3)]
    rpu, second = pair()
    with second:
        link.disconnect()
        link.connect(rpu)
        assert heard(second) == [OpenEngine(4)]


def test_an_answer_that_nobody_asked_for_is_dropped(link: ApuLink, apu: ApuPort) -> None:
    apu.send(Executed(77, Outcome.RETURNED, 1))
    apu.send(ProgramChecked(77, Outcome.RETURNED))
    assert ended(link) == []


def test_an_apu_that_owes_an_execution_is_asked_whether_it_is_there(
    link: ApuLink, apu: ApuPort
) -> None:
    assert link.timers.timeout() is None
    link.engine.execute(3, 0)
    assert link.timers.timeout() is not None


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A drive whose doorbells are in memory, and a test in the place of its APU. Time passes while
    the drive offers the processor to others."""
    with powered() as host:

        def pass_time() -> None:
            host.now += PASS_TIME / 16

        monkeypatch.setattr("os.sched_yield", pass_time)
        host.connect_apu()
        assert host.command(host.admin, 0x7C, prp1=SHADOW, prp2=SHADOW + PAGE).status == 0
        yield host


def store_tail(host: Host, queue: Queue) -> None:
    struct.pack_into("<I", host.memory.view, SHADOW + 8 * queue.qid, queue.tail)


def test_executions_are_answered_while_the_doorbells_are_polled(host: Host) -> None:
    """Each answer is there when the polling begins, and the next command comes with it."""
    apu, queue = host.apu, host.io[1]
    assert apu is not None
    for cid in range(1, 4):
        host.place(queue, EXECUTE, cid, nsid=COMPUTE)
        store_tail(host, queue)
        host.service() if cid == 1 else host.rpu.spin()
        (execution,) = [message for message in heard(apu) if isinstance(message, Execute)]
        apu.send(Executed(execution.tag, Outcome.RETURNED, cid))
    host.rpu.spin()
    found = [(done.cid, done.dw0, done.status) for done in host.reap(queue, ring=False)]
    assert found == [(1, 1, 0), (2, 2, 0), (3, 3, 0)]


def test_the_polling_for_an_execution_ends_with_the_pass(host: Host) -> None:
    host.place(host.io[1], EXECUTE, 1, nsid=COMPUTE)
    store_tail(host, host.io[1])
    host.service()
    began = host.now
    host.rpu.spin()
    assert PASS_TIME <= host.now - began <= 2 * PASS_TIME


def test_a_thousand_executions_are_in_flight(host: Host) -> None:
    """All are accepted, a few at a time are given to the APU, some are aborted, all end once."""
    apu, size, number = host.apu, 600, 1000
    assert apu is not None
    queues = [host.create_io_queue(qid, size, base=0x30_0000 + qid * 0x1_0000) for qid in (2, 3)]
    for cid in range(number // 2):
        for queue in queues:
            host.place(queue, EXECUTE, cid, nsid=COMPUTE)
    for queue in queues:
        store_tail(host, queue)
    while host.rpu.service():
        pass
    assert host.rpu.controller.outstanding.any_io
    assert len(host.rpu.controller.outstanding) == number
    aborted = {(queue.qid, cid) for queue in queues for cid in range(0, number // 2, 7)}
    for turn, (qid, cid) in enumerate(sorted(aborted)):
        host.place(host.admin, 0x08, turn, cdws=(cid << 16 | qid,))
        host.ring(host.admin)
        host.service()
        assert {done.dw0 & 1 for done in host.reap(host.admin)} <= {0}
    answers: dict[tuple[int, int], int] = {}
    running: list[int] = []
    while len(answers) < number:
        for message in heard(apu):
            if isinstance(message, Execute):
                running.append(message.tag)
            elif isinstance(message, Cancel):
                running.remove(message.tag)
                apu.send(Executed(message.tag, Outcome.CANCELLED))
        assert len(running) <= RUN_LIMIT
        if running:
            apu.send(Executed(running.pop(), Outcome.RETURNED))
        host.service()
        for queue in queues:
            for done in host.reap(queue, ring=False):
                assert (queue.qid, done.cid) not in answers
                answers[queue.qid, done.cid] = done.status
            struct.pack_into("<I", host.memory.view, SHADOW + 8 * queue.qid + 4, queue.head)
    assert {key for key, status in answers.items() if status == 0x007} == aborted
    assert set(answers.values()) == {0, 0x007}

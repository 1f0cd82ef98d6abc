"""When executions of compute namespaces end whose time is modelled, with the test in the
engine's place.

Expected times are sums of what the core takes for the counted work.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from potash_device.cores import Work
from potash_firmware.mailbox.messages import Outcome
from potash_firmware.mailbox.shared import Word, unshared_row
from potash_firmware.rpu.compute.runs import RUN_LIMIT
from potash_firmware.rpu.timing.schedulers import SchedulerError, named
from support.compute import COMPUTE, OTHER_COMPUTE, SMALL, ComputeHost, compute_host
from support.modelled_time import LONG, PRICE, SECOND, WORK, job_time, timing_of, with_core
from support.nvme_host import Queue


@pytest.fixture
def computer() -> Iterator[ComputeHost]:
    with compute_host(time=with_core()) as host:
        host.now = 1.0
        yield host


@pytest.fixture
def queue(computer: ComputeHost) -> Queue:
    return computer.create_io_queue()


def answered(host: ComputeHost, queue: Queue, ns: int) -> list[int]:
    """Commands that have been answered by a time."""
    host.now = ns / SECOND
    host.service()
    return [one.cid for one in host.reap(queue)]


def test_an_execution_ends_when_its_core_would_have_done_its_work(
    computer: ComputeHost, queue: Queue
) -> None:
    computer.begin(queue, 1)
    computer.engine.end(value=5, work=WORK)
    due = SECOND + PRICE(WORK)
    assert not answered(computer, queue, due - 1)
    computer.now = due / SECOND
    computer.service()
    ((cid, status, value),) = [(one.cid, one.status, one.dw0) for one in computer.reap(queue)]
    assert (cid, status, value) == (1, 0, 5)


def test_the_traffic_log_says_when_the_core_began_with_each_execution(
    computer: ComputeHost, queue: Queue
) -> None:
    for cid in (1, 2):
        computer.begin(queue, 1, cid)
    for _ in range(2):
        computer.engine.end(work=WORK)
    first = SECOND + PRICE(WORK)
    answered(computer, queue, first + PRICE(WORK))
    log = timing_of(computer).completions
    assert [(one.cid, one.arrived, one.began, one.completed) for one in log] == [
        (1, SECOND, SECOND, first),
        (2, SECOND, first, first + PRICE(WORK)),
    ]


def test_executions_of_a_namespace_take_one_core_in_their_order(
    computer: ComputeHost, queue: Queue
) -> None:
    """Whichever ends first here: the second and the third wait for the first."""
    for cid in (1, 2, 3):
        computer.begin(queue, 1, cid)
    computer.begin(queue, 1, 4, nsid=OTHER_COMPUTE)
    works = [WORK, Work((100,) + (0,) * 7), Work((200,) + (0,) * 7), Work()]
    asked = list(computer.engine.asked)
    for index in (2, 1, 3, 0):
        computer.engine.end(asked[index], work=works[index])
        computer.service()
    ends = {4: SECOND + PRICE(works[3])}
    ends[1] = SECOND + PRICE(works[0])
    ends[2] = ends[1] + PRICE(works[1])
    ends[3] = ends[2] + PRICE(works[2])
    for cid, end in sorted(ends.items(), key=lambda one: one[1]):
        assert not answered(computer, queue, end - 1)
        assert answered(computer, queue, end) == [cid]


def test_executions_share_units_in_turn(computer: ComputeHost) -> None:
    """Three executions of 3, 1 and 2 slices on two units, which become known in another order."""
    settings = replace(SMALL, units=2, scheduler="rr:10us")
    with compute_host(settings, with_core()) as host:
        host.now = 1.0
        queue = host.create_io_queue()
        for cid in (1, 2, 3):
            host.begin(queue, 1, cid)
        slices = [Work((10_000 * count - 1000,) + (0,) * 7) for count in (3, 1, 2)]
        assert [PRICE(work) for work in slices] == [30_000, 10_000, 20_000]
        asked = list(host.engine.asked)
        for index in (2, 0, 1):
            host.engine.end(asked[index], work=slices[index])
            host.service()
        # The third gets a unit when the second ends; then nobody waits, and the first goes on.
        assert not answered(host, queue, SECOND + 9_999)
        assert answered(host, queue, SECOND + 10_000) == [2]
        assert answered(host, queue, SECOND + 30_000) == [1, 3]


def test_an_execution_ends_when_another_one_has_come_as_far_however_late() -> None:
    """The first one is emulated more slowly than time passes."""
    with compute_host(replace(SMALL, units=2), with_core()) as host:
        host.now = 1.0
        queue, row = host.create_io_queue(), unshared_row()
        job_time(host).engine_row = lambda _: row
        for cid in (1, 2):
            host.begin(queue, 1, cid)
        host.engine.end(list(host.engine.asked)[1], work=WORK)
        for later in range(3000):
            assert not answered(host, queue, SECOND + later * 1_000_000)
        row[Word.MODELLED] = PRICE(WORK) + 1
        assert answered(host, queue, 4 * SECOND) == [2]


def test_namespaces_share_units_of_which_some_are_reserved() -> None:
    """Of three units, one is for the other namespace, and one for program 1."""
    settings = replace(SMALL, units=3, scheduler="group:namespace5=1;1=1")
    with compute_host(settings, with_core()) as host:
        host.now = 1.0
        queue = host.create_io_queue()
        for cid, nsid, program in ((1, COMPUTE, 0), (2, COMPUTE, 0), (3, OTHER_COMPUTE, 0),
                                   (4, OTHER_COMPUTE, 1), (5, COMPUTE, 1)):  # fmt: skip
            host.begin(queue, program, cid, nsid=nsid)
        for asked in list(host.engine.asked):
            host.engine.end(asked, work=WORK)
            host.service()
        took = PRICE(WORK)
        assert sorted(answered(host, queue, SECOND + took)) == [1, 3, 5]
        assert sorted(answered(host, queue, SECOND + 2 * took)) == [2, 4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("group:namespace2=1;namespace2=1", "namespace2 is in two groups"),
        ("group:host=1;3,host=1", "host is in two groups"),
        ("group:namespace0=1", "does not say who has how many units"),
        ("group:host=3", "leaves no unit for others"),
    ],
)
def test_groups_that_cannot_be_are_refused(text: str, said: str) -> None:
    with pytest.raises(SchedulerError, match=said):
        named(text, 3, {})


def test_an_execution_that_fails_takes_its_time_too(computer: ComputeHost, queue: Queue) -> None:
    computer.begin(queue, 1)
    computer.engine.end(outcome=Outcome.FAULTED, work=WORK)
    assert not answered(computer, queue, SECOND + PRICE(WORK) - 1)
    assert answered(computer, queue, SECOND + PRICE(WORK)) == [1]


def test_one_that_is_lost_ends_at_once_and_frees_its_core(
    computer: ComputeHost, queue: Queue
) -> None:
    computer.begin(queue, 1, 1)
    computer.begin(queue, 1, 2)
    first, second = computer.engine.asked
    computer.engine.end(second, work=WORK)
    assert not answered(computer, queue, SECOND + 5000)
    computer.engine.end(first, outcome=Outcome.LOST)
    assert answered(computer, queue, SECOND + 6000) == [1]
    assert not answered(computer, queue, SECOND + 6000 + PRICE(WORK) - 1)
    assert answered(computer, queue, SECOND + 6000 + PRICE(WORK)) == [2]


def test_an_execution_that_waits_for_its_time_can_be_aborted(
    computer: ComputeHost, queue: Queue
) -> None:
    computer.begin(queue, 1, 9)
    computer.engine.end(work=WORK)
    computer.service()
    assert computer.command(computer.admin, 0x08, cdws=(9 << 16 | queue.qid,)).dw0 == 0
    ((cid, status),) = [(one.cid, one.status) for one in computer.reap(queue)]
    assert (cid, status) == (9, 0x007)
    assert not answered(computer, queue, 2 * SECOND)


def ask(host: ComputeHost, opcode: int, *cdws: int) -> None:
    """An admin command that ends at once: no time passes, unlike in `command`."""
    host.place(host.admin, opcode, 99, cdws=cdws)
    host.ring(host.admin)
    host.service()
    assert [(one.cid, one.status) for one in host.reap(host.admin)] == [(99, 0)]


@pytest.mark.parametrize("how", ["abort", "deletion", "reset"])
def test_one_that_ends_before_it_is_due_leaves_its_core(
    computer: ComputeHost, queue: Queue, how: str
) -> None:
    again = computer.create_io_queue(2)
    computer.begin(queue, 1, 9)
    computer.engine.end(work=LONG)
    computer.now = 2.0
    computer.service()
    if how == "abort":
        ask(computer, 0x08, 9 << 16 | queue.qid)
    elif how == "deletion":
        ask(computer, 0x00, queue.qid)
    else:
        computer.disable()
        computer.enable()
        again = computer.create_io_queue()
    computer.begin(again, 1)
    computer.engine.end(work=WORK)
    assert not answered(computer, again, 2 * SECOND + PRICE(WORK) - 1)
    assert answered(computer, again, 2 * SECOND + PRICE(WORK)) == [1]


def test_one_that_waits_for_its_core_begins_when_that_is_left(
    computer: ComputeHost, queue: Queue
) -> None:
    """Whether it was executed already or is still to be."""
    for cid in (1, 2, 3):
        computer.begin(queue, 1, cid)
    first, second, third = list(computer.engine.asked)
    computer.engine.end(first, work=LONG)
    computer.engine.end(second, work=WORK)
    computer.service()
    computer.now = 2.0
    ask(computer, 0x08, 1 << 16 | queue.qid)
    assert answered(computer, queue, 2 * SECOND) == [1]
    assert not answered(computer, queue, 2 * SECOND + PRICE(WORK) - 1)
    assert answered(computer, queue, 2 * SECOND + PRICE(WORK)) == [2]
    computer.engine.end(third, work=WORK)
    assert not answered(computer, queue, 2 * SECOND + 2 * PRICE(WORK) - 1)
    assert answered(computer, queue, 2 * SECOND + 2 * PRICE(WORK)) == [3]


def test_executions_that_wait_when_the_controller_is_reset_leave_their_core(
    computer: ComputeHost, queue: Queue
) -> None:
    for cid in range(1, RUN_LIMIT + 3):
        computer.begin(queue, 1, cid)
    asked = list(computer.engine.asked)
    assert len(asked) == RUN_LIMIT
    computer.disable()
    for one in asked:
        computer.engine.end(one, outcome=Outcome.CANCELLED)
    computer.service()
    computer.enable()
    again = computer.create_io_queue()
    computer.begin(again, 1)
    computer.engine.end(work=WORK)
    assert not answered(computer, again, SECOND + PRICE(WORK) - 1)
    assert answered(computer, again, SECOND + PRICE(WORK)) == [1]


def test_executions_that_wait_have_no_row(computer: ComputeHost, queue: Queue) -> None:
    for cid in range(1, 3 * RUN_LIMIT):
        computer.begin(queue, 1, cid)
    assert [one.row for one in computer.engine.asked] == list(range(1, RUN_LIMIT + 1))
    computer.engine.end(work=WORK)
    computer.service()
    assert computer.engine.asked[-1].row == 1


def test_the_number_of_executions_is_not_limited_by_the_rows(
    computer: ComputeHost, queue: Queue
) -> None:
    rows = []
    for number in range(200):
        computer.begin(queue, 1)
        (asked,) = computer.engine.asked
        rows.append(asked.row)
        computer.engine.end(work=Work())
        assert answered(computer, queue, SECOND * (2 + number)) == [1]
    assert set(rows) == {1}


def test_executions_that_run_for_too_long_are_cancelled(
    computer: ComputeHost, queue: Queue
) -> None:
    computer.begin(queue, 1, nsid=COMPUTE)
    found = job_time(computer)
    ((_, start, modelled),) = found.running()
    assert (start, modelled) == (SECOND, 0)
    found.fail()
    computer.engine.end_cancelled()
    computer.service()
    ((status, dnr),) = [(one.status, one.dnr) for one in computer.reap(queue)]
    assert (status, dnr) == (0x006, True)
    assert not list(found.running())


def test_one_that_the_engine_ends_after_a_reset_is_forgotten(
    computer: ComputeHost, queue: Queue
) -> None:
    computer.begin(queue, 1)
    (execution,) = computer.engine.asked
    computer.disable()
    computer.engine.end(execution, outcome=Outcome.CANCELLED, work=WORK)
    computer.enable()
    computer.now = 3.0
    computer.service()
    assert computer.ready
    assert not computer.fatal

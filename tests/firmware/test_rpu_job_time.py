"""When jobs end whose time is modelled, with the test in the APU's place.

Expected times are sums of what the core takes for the counted work, and what a second drive of the
same profile answers, which is asked directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from potash_device.cores import LARGEST_COUNT, Work
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.requests import Op
from potash_firmware.mailbox import ApuPort
from potash_firmware.mailbox.messages import (
    JobBegan,
    JobCounted,
    JobDue,
    JobLeft,
    JobOverdue,
    Read,
    Reset,
    ToApu,
    ToRpu,
    WriteBack,
    WriteBackDone,
)
from potash_firmware.mailbox.shared import Word, unshared_row
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.timing.jobs import READS_AT_ONCE
from support.modelled_time import LONG, PRICE, PROFILE, SECOND, WORK, drive_of, job_time, with_core
from support.nvme_host import PAGE, Host


@pytest.fixture
def host() -> Iterator[Host]:
    with Host(settings=RpuSettings(time=with_core())) as host:
        host.enable()
        yield host


@pytest.fixture
def apu(host: Host) -> ApuPort:
    return host.connect_apu()


def say(host: Host, *messages: ToRpu) -> None:
    assert host.apu is not None
    for message in messages:
        host.apu.send(message)
    host.service()


def at(host: Host, ns: int) -> list[ToApu]:
    """What the APU hears at a time."""
    assert host.apu is not None
    host.now = ns / SECOND
    host.service()
    heard: list[ToApu] = []
    while (message := host.apu.receive()) is not None:
        heard.append(message)
    return heard


def only_at(host: Host, ns: int) -> list[ToApu]:
    """The same, after a nanosecond in which nothing is heard."""
    assert not at(host, ns - 1)
    return at(host, ns)


# Accelerators


def test_a_job_is_due_when_its_core_would_have_done_its_work(host: Host, apu: ApuPort) -> None:
    at(host, SECOND)
    say(host, JobBegan(0, 7))
    at(host, SECOND + 300)  # its emulation takes no time, or some
    say(host, JobCounted(0, 7, WORK))
    took = 1000 + 5000 + 2 * 4 + 300
    assert PRICE(WORK) == took
    assert only_at(host, SECOND + took) == [JobDue(0, 7, took)]


def test_a_job_that_is_behind_is_due_at_once_and_has_taken_what_it_takes(
    host: Host, apu: ApuPort
) -> None:
    at(host, SECOND)
    say(host, JobBegan(0, 7))
    at(host, 2 * SECOND)
    say(host, JobCounted(0, 7, WORK))
    assert at(host, 2 * SECOND) == [JobDue(0, 7, PRICE(WORK))]


def test_reads_of_a_job_pass_through_the_drive_one_behind_the_other(
    host: Host, apu: ApuPort
) -> None:
    model = Drive(PROFILE)
    for drive in (model, drive_of(host)):
        drive.submit(0, Op.WRITE, 0, 8)
    at(host, SECOND)
    reads = (Read(1000, 1, 0, 2 * PAGE), Read(1500, 1, 2 * PAGE, PAGE), Read(1500, 1, 0, 1))
    say(host, JobBegan(0, 7), JobCounted(0, 7, Work(), reads[:1], more=True))
    say(host, JobCounted(0, 7, WORK, reads[1:]))
    first = model.submit(SECOND + 1000, Op.READ, 0, 2)
    second = model.submit(first + 500, Op.READ, 2, 1)
    third = model.submit(second, Op.READ, 0, 1)
    due = third + PRICE(WORK) - 1500
    for time in (first + 500, second):
        assert host.deadline is not None
        assert not at(host, time)
    assert only_at(host, due) == [JobDue(0, 7, due - SECOND)]


def test_a_read_of_a_namespace_that_has_gone_takes_no_time(host: Host, apu: ApuPort) -> None:
    at(host, SECOND)
    say(host, JobBegan(0, 7), JobCounted(0, 7, WORK, (Read(1000, 9, 5 * PAGE, PAGE),)))
    assert only_at(host, SECOND + PRICE(WORK)) == [JobDue(0, 7, PRICE(WORK))]


def test_a_job_with_many_reads_does_not_keep_others_waiting(host: Host, apu: ApuPort) -> None:
    drive_of(host).submit(0, Op.WRITE, 0, 1)
    count = 5 * READS_AT_ONCE + 3
    reads = tuple(Read(1000, 1, 0, PAGE) for _ in range(count))
    at(host, SECOND)
    say(host, JobBegan(0, 7))
    at(host, 2 * SECOND)  # the time of all has come
    say(host, JobCounted(0, 7, WORK, reads))
    passes = 0
    while not (heard := at(host, 2 * SECOND + passes)):
        passes += 1
    assert passes == 5
    one = Drive(PROFILE)
    one.submit(0, Op.WRITE, 0, 1)
    took = one.submit(SECOND, Op.READ, 0, 1) - SECOND
    assert heard == [JobDue(0, 7, PRICE(WORK) + count * took)]


def test_what_a_job_writes_is_written_when_the_drive_has_it(host: Host, apu: ApuPort) -> None:
    at(host, SECOND)
    say(host, JobBegan(0, 7), JobCounted(0, 7, WORK))
    due = SECOND + PRICE(WORK)
    (message,) = at(host, due + 5000)
    assert message == JobDue(0, 7, PRICE(WORK))
    # The APU takes its time, which is none that is modelled.
    at(host, due + 9000)
    say(host, WriteBack(3, 0, 0, ((1, 0, PAGE), (1, 4 * PAGE, 2 * PAGE))))
    host.executor.run_all()
    model = Drive(PROFILE)
    model.submit(due, Op.WRITE, 0, 1)
    written = model.submit(due, Op.WRITE, 4, 2)
    assert written > due + 9000
    assert only_at(host, written) == [WriteBackDone(3, 0, written - SECOND)]


def test_a_reset_does_not_wait_for_the_modelled_drive_to_write(host: Host, apu: ApuPort) -> None:
    at(host, SECOND)
    say(host, JobBegan(0, 7), JobCounted(0, 7, WORK))
    at(host, SECOND + PRICE(WORK))
    say(host, WriteBack(3, 0, 0, ((1, 0, PAGE),)))
    host.executor.run_all()
    assert not at(host, SECOND + PRICE(WORK))
    host.disable()
    heard = at(host, SECOND + PRICE(WORK))
    assert [type(one) for one in heard] == [WriteBackDone, Reset]


def test_a_write_back_of_an_apu_that_is_gone_is_not_answered_to_the_next(
    host: Host, apu: ApuPort
) -> None:
    at(host, SECOND)
    say(host, JobBegan(0, 7), JobCounted(0, 7, WORK))
    at(host, SECOND + PRICE(WORK))
    say(host, WriteBack(3, 0, 0, ((1, 0, PAGE),)))
    host.executor.run_all()
    host.service()
    apu.close()
    host.link.disconnect()
    host.connect_apu()
    assert not any(isinstance(one, WriteBackDone) for one in at(host, 2 * SECOND))


def test_a_worker_that_claims_any_count_keeps_its_own_accelerator_busy(
    host: Host, apu: ApuPort
) -> None:
    most = LARGEST_COUNT
    at(host, SECOND)
    claimed = Work((most,) * 8, most, most, most, most)
    reads = (Read(most, 1, 0, PAGE),)
    say(host, JobBegan(0, 7), JobBegan(1, 8), JobCounted(0, 7, claimed, reads))
    assert host.rpu.timeout is not None
    say(host, JobCounted(1, 8, WORK))
    assert at(host, 1000 * SECOND) == [JobDue(1, 8, PRICE(WORK))]
    say(host, JobLeft(0, 7), JobBegan(0, 9), JobCounted(0, 9, WORK))
    assert at(host, 2000 * SECOND) == [JobDue(0, 9, PRICE(WORK))]


def test_a_trace_shows_jobs_in_modelled_time(host: Host, apu: ApuPort) -> None:
    seen: list[tuple[str, Mapping[str, object]]] = []
    host.board.trace.sink = lambda point, known: seen.append((point, known))
    at(host, SECOND)
    say(host, JobBegan(0, 7), JobCounted(0, 7, WORK))
    at(host, SECOND + PRICE(WORK))
    (shown,) = [known for point, known in seen if point == "rpu.modelled"]
    ends = (SECOND + PRICE(WORK)) / SECOND
    assert shown == {"op": "JOB", "began": 1.0, "ends": pytest.approx(ends)}


def test_a_factor_multiplies_what_jobs_take() -> None:
    with Host(settings=RpuSettings(time=with_core(factor=10))) as host:
        host.enable()
        host.connect_apu()
        at(host, SECOND)
        say(host, JobBegan(0, 7), JobCounted(0, 7, WORK))
        assert only_at(host, SECOND + 10 * PRICE(WORK)) == [JobDue(0, 7, 10 * PRICE(WORK))]


@pytest.mark.parametrize("how", ["left", "reset", "lost"])
def test_a_job_that_is_gone_is_never_due(host: Host, apu: ApuPort, how: str) -> None:
    at(host, SECOND)
    say(host, JobBegan(0, 7), JobCounted(0, 7, WORK))
    if how == "left":
        say(host, JobLeft(0, 7))
    elif how == "reset":
        host.disable()
    else:
        apu.close()
        host.link.disconnect()
        host.connect_apu()
    heard = at(host, 2 * SECOND)
    assert not any(isinstance(one, JobDue) for one in heard)
    say(host, JobBegan(0, 8), JobCounted(0, 7, WORK), JobCounted(0, 8, WORK))
    assert at(host, 3 * SECOND)[-1] == JobDue(0, 8, PRICE(WORK))


@pytest.mark.parametrize("how", ["left", "reset", "lost"])
def test_a_job_that_is_stopped_before_it_is_due_leaves_its_core(
    host: Host, apu: ApuPort, how: str
) -> None:
    at(host, SECOND)
    say(host, JobBegan(0, 7), JobCounted(0, 7, LONG))
    at(host, 2 * SECOND)
    if how == "left":
        say(host, JobLeft(0, 7))
    elif how == "reset":
        host.disable()
    else:
        apu.close()
        host.link.disconnect()
        host.connect_apu()
    at(host, 2 * SECOND)
    say(host, JobBegan(0, 8), JobCounted(0, 8, WORK))
    assert only_at(host, 2 * SECOND + PRICE(WORK)) == [JobDue(0, 8, PRICE(WORK))]


def test_without_a_model_nothing_is_answered() -> None:
    with Host() as host:
        host.enable()
        host.connect_apu()
        say(host, JobBegan(0, 7), JobCounted(0, 7, WORK), JobLeft(0, 7))
        assert not at(host, SECOND)
        assert host.rpu.controller.job_time is None


def test_what_runs_is_told_with_what_it_has_modelled(host: Host, apu: ApuPort) -> None:
    found = job_time(host)
    row = unshared_row()
    row[Word.MODELLED] = 99
    found.accelerator_row = {0: row}.__getitem__
    at(host, SECOND)
    assert not list(found.running())
    say(host, JobBegan(0, 7))
    ((key, start, modelled),) = found.running()
    assert (start, modelled) == (SECOND, 0)
    row[Word.MODELLED] = 1234
    assert list(found.running()) == [(key, SECOND, 1234)]
    say(host, JobCounted(0, 7, Work(), (), more=True))
    assert list(found.running())
    say(host, JobCounted(0, 7, WORK))
    assert not list(found.running())


def test_what_runs_for_too_long_is_ended(host: Host, apu: ApuPort) -> None:
    at(host, SECOND)
    say(host, JobBegan(0, 7))
    job_time(host).fail()
    assert at(host, SECOND) == [JobOverdue(0, 7)]

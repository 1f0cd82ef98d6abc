"""When jobs end whose time is modelled, with the test in the APU's place.

Expected times are sums of what the core takes for the counted work, and what a second drive of the
same profile answers, which is asked directly.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from potash_device.cores import LARGEST_COUNT, Work
from potash_device.timeline import PATIENCE_NS
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
from potash_firmware.rpu.timing.jobs import POLL_NS, READS_AT_ONCE
from potash_firmware.rpu.timing.shares import Shares, parsed
from support.modelled_time import (
    CORE,
    LONG,
    PRICE,
    PROFILE,
    SECOND,
    WORK,
    drive_of,
    job_time,
    with_core,
)
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


def overlapping(seed: int | None) -> dict[int, int]:
    """How long two jobs take that read blocks, where it becomes known at random times what they
    do; or immediately."""
    source = random.Random(seed)
    done = {}
    with Host(settings=RpuSettings(time=with_core())) as host:
        host.enable()
        apu = host.connect_apu()
        drive_of(host).submit(0, Op.WRITE, 0, 64)
        counted = []
        for job, start in ((0, 0), (1, 20_000)):
            reads = [Read(1000 * count, 1, (7 * count + job) % 60 * PAGE, (1 + count % 3) * PAGE)
                     for count in range(90)]  # fmt: skip
            at(host, SECOND + start)
            say(host, JobBegan(job, 7))
            counted += [JobCounted(job, 7, Work(), tuple(reads[:50]), more=True)]
            counted += [JobCounted(job, 7, Work((100_000,) + (0,) * 7), tuple(reads[50:]))]
        if seed is not None and source.randrange(2):
            counted = counted[2:] + counted[:2]
        now = SECOND + 20_000
        for message in counted:
            now += 0 if seed is None else source.randrange(30_000_000)
            for heard in at(host, now):
                assert isinstance(heard, JobDue)
                done[heard.accelerator] = heard.modelled
            say(host, message)
        while len(done) < 2:
            for heard in at(host, max(host.deadline or 0, now + 1)):
                assert isinstance(heard, JobDue)
                done[heard.accelerator] = heard.modelled
        apu.close()
    return done


def test_jobs_that_overlap_take_as_long_however_slowly_they_are_emulated() -> None:
    expected = overlapping(None)
    assert expected[0] != expected[1]
    assert all(overlapping(seed) == expected for seed in range(20))


def test_a_job_waits_a_second_for_what_another_one_does(host: Host, apu: ApuPort) -> None:
    """Then it ends, and the other one uses the drive later."""
    at(host, SECOND)
    say(host, JobBegan(0, 7), JobBegan(1, 8), JobCounted(1, 8, WORK))
    assert not at(host, SECOND + PATIENCE_NS)
    later = SECOND + PATIENCE_NS + POLL_NS
    assert at(host, later) == [JobDue(1, 8, PRICE(WORK))]
    say(host, JobCounted(0, 7, WORK))
    assert at(host, later) == [JobDue(0, 7, PRICE(WORK))]


def sharing(shares: str, *moved: int) -> list[int]:
    """How long jobs take that begin together and move so many bytes each."""
    settings = replace(with_core(), shares=parsed(shares))
    with Host(settings=RpuSettings(time=settings)) as host:
        host.enable()
        host.connect_apu()
        at(host, SECOND)
        for accelerator in range(len(moved)):
            say(host, JobBegan(accelerator, 7))
        at(host, 2 * SECOND)
        for accelerator, length in reversed(list(enumerate(moved))):
            say(host, JobCounted(accelerator, 7, Work(bytes=length)))
        heard = at(host, 2 * SECOND)
        assert all(isinstance(message, JobDue) for message in heard)
        done = {message.accelerator: message.modelled for message in heard}  # type: ignore[union-attr]
        return [done[accelerator] - CORE.dispatch_ns for accelerator in range(len(moved))]


def test_jobs_share_dram_by_their_weights() -> None:
    length = 48 << 20
    alone = length // 4
    assert sharing("jobs=5", length) == [alone]
    assert sharing("host=1", length, length) == [2 * alone, 2 * alone]
    assert sharing("accelerator0=3,jobs=1", 3 * length, length) == [4 * alone, 4 * alone]
    assert sharing("accelerator1=3", length, length) == [2 * alone, 4 * alone // 3]
    assert sharing("jobs=1", length, 2 * length) == [2 * alone, 3 * alone]


def test_a_job_uses_its_core_before_dram_up_to_each_read() -> None:
    """Reads come at the same times as without shares where a job is alone."""
    reads = (Read(3000, 1, 0, PAGE, 4000), Read(5000, 1, PAGE, PAGE, 8000))
    work = Work((9000,) + (0,) * 7, bytes=12_000)
    found = []
    for shares in (None, Shares()):
        with Host(settings=RpuSettings(time=replace(with_core(), shares=shares))) as host:
            host.enable()
            host.connect_apu()
            drive_of(host).submit(0, Op.WRITE, 0, 2)
            at(host, SECOND)
            say(host, JobBegan(0, 7), JobCounted(0, 7, work, reads))
            found.append(at(host, 2 * SECOND))
    assert found[0] == found[1] != []


@pytest.mark.parametrize("how", ["left", "reset"])
def test_a_job_that_is_stopped_leaves_its_share_of_dram(how: str) -> None:
    with Host(settings=RpuSettings(time=replace(with_core(), shares=Shares()))) as host:
        host.enable()
        host.connect_apu()
        moved = Work(bytes=4000)
        at(host, SECOND)
        say(host, JobBegan(0, 7), JobBegan(1, 7))
        say(host, JobCounted(0, 7, moved), JobCounted(1, 7, moved))
        assert not at(host, SECOND + CORE.dispatch_ns + 1000)
        if how == "left":
            say(host, JobLeft(0, 7))
            assert only_at(host, SECOND + CORE.dispatch_ns + 1500) == [JobDue(1, 7, 2500)]
        else:
            host.disable()
            at(host, SECOND + CORE.dispatch_ns + 1000)
            say(host, JobBegan(0, 8), JobCounted(0, 8, moved))
            assert only_at(host, SECOND + 4000) == [JobDue(0, 8, 2000)]


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

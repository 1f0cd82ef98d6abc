"""Shares of DRAM and link between the host and jobs, in modelled time.

Expected times are closed forms, and those of a drive without shares for what is alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest

from potash_device.cores import Work
from potash_device.flash.profile import Rate
from potash_firmware.extension_registry import RegisteredClass
from potash_firmware.ftl.custom import CustomFtl
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.plain import PageMapped
from potash_firmware.ftl.requests import Op
from potash_firmware.mailbox.messages import JobBegan, JobCounted, JobDue, Read
from potash_firmware.rpu.timing.modelled import TimeSettings
from potash_firmware.rpu.timing.shares import Shares, SharesError, parsed
from potash_firmware.rpu.timing.transfers import Sharing
from support import memory
from support.compute import BLOCKS, MEMORY, ComputeHost, compute_host
from support.modelled_time import CORE, PROFILE, SECOND, drive_of, timing_of
from support.nvme_host import DATA, PAGE, Queue

WRITE, READ, COMPARE = ((BLOCKS, opcode) for opcode in (1, 2, 5))
MEMORY_READ, MEMORY_WRITE, FILL = (
    (MEMORY, opcode) for opcode in (memory.READ, memory.WRITE, memory.FILL)
)
"""Namespaces and opcodes."""
ABORT = 8
SLOW = replace(PROFILE, link=Rate(40, 1000))
"""A link that is slower than the flash."""
LINK = PAGE * 1000 // 40


@contextmanager
def sharing(shares: str | None, profile: object = SLOW) -> Iterator[ComputeHost]:
    settings = TimeSettings(Drive(profile), processor=CORE)  # type: ignore[arg-type]
    with compute_host(
        time=replace(settings, shares=None if shares is None else parsed(shares))
    ) as host:
        host.connect_apu()
        drive_of(host).submit(0, Op.WRITE, 0, 128, fua=True)
        host.now = 1.0
        yield host


def begin(host: ComputeHost, queue: Queue, kind: tuple[int, int], cid: int, pages: int = 1) -> None:
    nsid, opcode = kind
    cdws = (0, 0, pages * PAGE if nsid == MEMORY else pages - 1)
    host.place(queue, opcode, cid, nsid=nsid, prp1=DATA, prp2=DATA + PAGE, cdws=cdws)
    host.ring(queue)
    host.service()


def sharing_of(host: ComputeHost) -> Sharing:
    shared = timing_of(host).transfers.sharing
    assert shared is not None
    return shared


class Ends:
    """When commands and jobs have ended."""

    def __init__(self, host: ComputeHost, queue: Queue) -> None:
        self.host, self.queue = host, queue
        self.commands: dict[int, int] = {}
        self.jobs: dict[int, int] = {}

    def go_on(self) -> bool:
        """Let time pass until the next deadline. False if there is none."""
        host = self.host
        while host.executor.waiting:
            host.executor.run_all()
            host.service()
        due = host.deadline
        if due is None:
            return False
        host.now = due / 1e9
        host.service()
        for completion in host.reap(self.queue):
            self.commands[completion.cid] = due
        assert host.apu is not None
        while (message := host.apu.receive()) is not None:
            if isinstance(message, JobDue):
                self.jobs[message.accelerator] = due
        return True


def all_ends(host: ComputeHost, queue: Queue) -> Ends:
    ends = Ends(host, queue)
    while ends.go_on():
        pass
    return ends


def job(host: ComputeHost, accelerator: int, work: Work, *reads: Read) -> None:
    assert host.apu is not None
    host.apu.send(JobBegan(accelerator, 7))
    host.apu.send(JobCounted(accelerator, 7, work, reads))
    host.service()


@pytest.mark.parametrize("kind", [WRITE, READ, COMPARE, MEMORY_READ, MEMORY_WRITE, FILL])
def test_a_command_alone_takes_as_long_as_without_shares(kind: tuple[int, int]) -> None:
    found = []
    for shares in (None, "host=3"):
        with sharing(shares) as host:
            queue = host.create_io_queue()
            begin(host, queue, kind, 1)
            found.append(all_ends(host, queue).commands)
    assert found[0] == found[1] != {}


class FailingLink(PageMapped):
    """A translation layer that does not let the link be free."""

    def free_link(self) -> None:
        raise RuntimeError("a bug")


@pytest.mark.parametrize("made", [PageMapped, FailingLink])
def test_a_translation_layer_in_python_gives_the_link_free(made: type[PageMapped]) -> None:
    """One that fails to do so serves its requests nevertheless."""
    found = []
    for shares in (None, "host=1"):
        drive = CustomFtl(RegisteredClass(made, "Mine", (__file__, 1)), SLOW)
        settings = TimeSettings(drive, shares=None if shares is None else parsed(shares))
        with compute_host(time=settings) as host:
            host.connect_apu()
            host.now = 1.0
            queue = host.create_io_queue()
            for cid in range(2):
                begin(host, queue, READ, cid)
            found.append(all_ends(host, queue).commands)
    assert found[0] == found[1] != {}


def test_a_job_alone_takes_as_long_as_without_shares() -> None:
    found = []
    for shares in (None, "jobs=3"):
        with sharing(shares) as host:
            queue = host.create_io_queue()
            job(host, 0, Work(bytes=8000), Read(500, BLOCKS, 0, PAGE), Read(1000, BLOCKS, PAGE, 1))
            found.append(all_ends(host, queue).jobs)
    assert found[0] == found[1] != {}


def test_commands_of_the_host_cross_the_link_in_their_order() -> None:
    with sharing("host=1") as host:
        queue = host.create_io_queue()
        for cid in range(8):
            begin(host, queue, READ, cid, 2)
        ends = all_ends(host, queue).commands
    assert list(ends) == list(range(8))
    times = list(ends.values())
    assert [later - time for time, later in pairwise(times)] == [2 * LINK] * 7


def test_a_job_may_read_between_commands_that_were_fetched_together() -> None:
    with sharing("host=1") as host:
        queue, drive, shared = host.create_io_queue(), drive_of(host), sharing_of(host)
        go_on = shared.go_on

        def read() -> None:
            drive.submit(drive.now + 1000, Op.READ, 0, 1)
            go_on()

        shared.go_on = read
        for cid in range(3):
            host.place(queue, READ[1], cid, nsid=BLOCKS, cdws=(0, 0, 0))
        host.ring(queue)
        host.service()
        shared.go_on = go_on
        assert all_ends(host, queue).commands.keys() == {0, 1, 2}


@pytest.mark.parametrize(("host_share", "job_share"), [(1, 1), (3, 1), (1, 4)])
def test_the_host_and_a_job_have_their_shares_of_the_link(host_share: int, job_share: int) -> None:
    """While both always have something to transfer."""
    with sharing(f"host={host_share},jobs={job_share}") as host:
        queue = host.create_io_queue()
        pages = 100
        job(host, 0, Work(), *[Read(0, BLOCKS, 0, pages * PAGE)] * 3)
        ends, sent, begun = Ends(host, queue), 0, deque(range(8))
        while not ends.jobs:
            while begun:
                begin(host, queue, READ, begun.popleft())
            ends.commands.clear()
            assert ends.go_on()
            sent += len(ends.commands)
            begun.extend(ends.commands)
        took = ends.jobs[0] - SECOND
    share = Fraction(job_share, host_share + job_share)
    assert took == pytest.approx(float(3 * pages * LINK / share), rel=0.02)
    assert sent * LINK / took == pytest.approx(float(1 - share), rel=0.02)


def test_the_host_and_a_job_have_their_shares_of_dram() -> None:
    with sharing("host=1,jobs=1", PROFILE) as host:
        queue = host.create_io_queue()
        before, dram, link = 1500, PAGE // 4, PAGE // 4
        # The job needs DRAM from 1000 ns on, and half of it from 1500 ns on.
        job(host, 0, Work(bytes=8 * PAGE))
        begin(host, queue, MEMORY_READ, 1)
        ends = all_ends(host, queue)
    assert ends.commands == {1: SECOND + before + 2 * dram + link + 700}
    assert ends.jobs == {0: SECOND + CORE.dispatch_ns + 8 * dram + dram}


def test_the_host_does_not_wait_for_the_emulation_of_a_job() -> None:
    with sharing("host=1,jobs=1") as host:
        queue = host.create_io_queue()
        assert host.apu is not None
        begin(host, queue, READ, 1)
        (alone,) = all_ends(host, queue).commands.values()
        host.apu.send(JobBegan(0, 7))
        host.service()
        began = round(host.now * 1e9)
        begin(host, queue, READ, 2)
        ends = Ends(host, queue)
        while not ends.commands:
            assert ends.go_on()
        assert ends.commands == {2: began + alone - SECOND}
        host.apu.send(JobCounted(0, 7, Work(), (Read(0, BLOCKS, 0, PAGE),)))
        host.service()
        assert all_ends(host, queue).jobs.keys() == {0}


@pytest.mark.parametrize("how", ["abort", "reset"])
def test_a_command_that_is_given_up_leaves_its_share(how: str) -> None:
    with sharing("host=1,jobs=1") as host:
        queue = host.create_io_queue()
        pages = 32
        for cid in range(2):
            begin(host, queue, MEMORY_READ, cid, 2)
        job(host, 0, Work(), Read(0, BLOCKS, 0, pages * PAGE))
        host.executor.run_all()
        host.service()
        if how == "abort":
            for cid in range(2):
                host.place(host.admin, ABORT, cid, cdws=(cid << 16 | queue.qid,))
            host.ring(host.admin)
            host.service()
            assert [completion.dw0 & 1 for completion in host.reap(host.admin)] == [0, 0]
            took = all_ends(host, queue).jobs[0] - SECOND
            assert pages * LINK < took < (pages + 1) * LINK
        else:
            host.disable()
            host.enable()
            queue = host.create_io_queue()
            began = round(host.now * 1e9)
            begin(host, queue, MEMORY_READ, 1)
            (end,) = all_ends(host, queue).commands.values()
            assert end == began + 1500 + PAGE // 4 + LINK + 700


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host=3,jobs=2", Shares(3, 2)),
        ("accelerator1=5,namespace3=1000", Shares(1, 1, {("accelerator", 1): 5, ("namespace", 3): 1000})),
    ],
)  # fmt: skip
def test_shares_are_read(text: str, expected: Shares) -> None:
    assert parsed(text) == expected
    assert expected.of("accelerator", 0) == expected.jobs


@pytest.mark.parametrize(
    "text", ["", "host", "host=0", "host=1001", "host=1,host=2", "all=1", "namespace=1", "host=-1",
             "accelerator1=1,accelerator1=2", "host=1,", "jobs=1.5"],
)  # fmt: skip
def test_what_are_no_shares_is_refused(text: str) -> None:
    with pytest.raises(SharesError, match="share"):
        parsed(text)

"""What the APU does about workers that lie, take too long or die, with the test in their place."""

import gc
import os
import socket
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest

from csd_spec.descriptors import LogEntryType
from potash_device.cores import Work
from potash_firmware.apu import channel
from potash_firmware.apu.channel import JobExecuted
from potash_firmware.apu.job import Step
from potash_firmware.apu.jobs import Jobs
from potash_firmware.apu.lifecycle import JobState
from potash_firmware.apu.model import Buffers, ByteRange, Grant, Subsystem
from potash_firmware.apu.worker import JobWorker, Setup
from potash_firmware.bpf import Engine
from potash_firmware.mailbox import SharedBuffers
from potash_firmware.mailbox.messages import Executed, Outcome, ReadCheck, ReadChecked, ToRpu
from support.apu import CONFIG
from support.workers import PlayedSupervisor

NOT_GRANTED = channel.Gathered((ByteRange(1, 0, 4096),))
BUFFER = CONFIG.accelerators[0].output_size
RETURNED, FAULTED = Outcome.RETURNED, Outcome.FAULTED


@pytest.mark.parametrize(
    "lie",
    [
        NOT_GRANTED,
        JobExecuted(1, RETURNED, output_length=BUFFER + 1),
        JobExecuted(2, RETURNED),  # of another job
        JobExecuted(1, FAULTED),  # with an output
        Executed(1, RETURNED),  # without one
        Executed(1, Outcome.LOST),  # what the service alone knows
        JobExecuted(1, RETURNED, work=Work()),  # which nobody has asked for
    ],
    ids=str,
)
def test_a_worker_that_lies_is_ended_and_nothing_is_written(lie: channel.FromWorker) -> None:
    accelerator = Subsystem.create(CONFIG, lambda: 0.0).accelerators[0]
    sent: list[ToRpu] = []
    with PlayedSupervisor(CONFIG) as supervisor:
        jobs = Jobs(CONFIG, {0: accelerator}, supervisor, sent.append)
        jobs.runners[0].start(Step(0, b"", b""))
        supervisor.say(lie)
        assert supervisor.killed == [1] and not sent


def test_a_worker_does_not_end_a_job_that_it_has_not_been_given() -> None:
    """It may guess the next job's tag, while the RPU still checks that job's blocks."""
    accelerator = Subsystem.create(CONFIG, lambda: 0.0).accelerators[0]
    sent: list[ToRpu] = []
    with PlayedSupervisor(CONFIG) as supervisor:
        jobs = Jobs(CONFIG, {0: accelerator}, supervisor, sent.append)
        jobs.prepare()
        accelerator.buffers = Buffers(input_ranges=(ByteRange(1, 0, 4096),))
        jobs.runners[0].start(Step(0, b"image", b""))
        supervisor.say(JobExecuted(1, RETURNED))
        assert supervisor.killed == [1]
        assert [type(message) for message in sent] == [ReadCheck]


def test_a_worker_is_replaced_before_the_kernel_ends_it() -> None:
    """It may have the processor for twice the longest job; `seconds` is one longest job."""
    accelerator = Subsystem.create(CONFIG, lambda: 0.0).accelerators[0]
    clock = [0.0]
    with PlayedSupervisor(CONFIG, lambda: clock[0]) as supervisor:
        jobs = Jobs(CONFIG, {0: accelerator}, supervisor, lambda _: None)
        for tag, took, replaced in ((1, 0.6, False), (2, 0.6, True)):
            jobs.runners[0].start(Step(0, b"", b""))
            clock[0] += took * CONFIG.limits.seconds
            supervisor.say(JobExecuted(tag, RETURNED))
            assert bool(supervisor.killed) is replaced


def test_a_worker_s_death_is_its_end_though_another_holds_its_channel() -> None:
    """As one that a worker had forked would, where no filter forbids that."""
    accelerator = Subsystem.create(CONFIG, lambda: 0.0).accelerators[0]
    with PlayedSupervisor(CONFIG) as supervisor:
        Jobs(CONFIG, {0: accelerator}, supervisor, lambda _: None).prepare()
        supervisor.ends[1].send(
            channel.encode(channel.Line(LogEntryType.PROGRAM_OUTPUT, "last words"))
        )
        supervisor.exit(code=1)
        assert [entry.text for entry in accelerator.log.page().entries] == ["last words"]
        assert not supervisor.workers


def test_no_worker_outlives_a_fork_server_that_has_exited() -> None:
    """A worker is lost when its channel is closed, and no sooner."""
    accelerator = Subsystem.create(CONFIG, lambda: 0.0).accelerators[0]
    sent: list[ToRpu] = []
    with PlayedSupervisor(CONFIG) as supervisor:
        jobs = Jobs(CONFIG, {0: accelerator}, supervisor, sent.append)
        jobs.runners[0].start(Step(0, b"", b""))
        supervisor.end_fork_server()
        assert supervisor.workers and not sent
        supervisor.ends.pop(1).close()
        supervisor.listen(supervisor.workers[0])
        assert not supervisor.workers and len(sent) == 1


@pytest.mark.parametrize("reset", [False, True])
def test_a_job_does_not_exceed_its_time_when_its_program_has_returned(reset: bool) -> None:
    """Its output is written for as long as that takes, and a reset may come meanwhile."""
    accelerator = Subsystem.create(CONFIG, lambda: 0.0).accelerators[0]
    clock = [0.0]
    with PlayedSupervisor(CONFIG, lambda: clock[0]) as supervisor:
        jobs = Jobs(CONFIG, {0: accelerator}, supervisor, lambda _: None)
        accelerator.buffers = Buffers(output_ranges=(ByteRange(1, 0, 4096),))
        jobs.runners[0].start(Step(0, b"image", b""))
        supervisor.say(channel.Ready(), JobExecuted(1, RETURNED, output_length=1))
        assert accelerator.state is JobState.WRITING
        if reset:
            jobs.runners[0].reset()
        clock[0] = 2 * CONFIG.limits.seconds
        supervisor.expire()
        assert accelerator.state is (JobState.IDLE if reset else JobState.WRITING)
        assert not supervisor.killed


def test_an_execution_that_cannot_be_sent_ends_with_its_worker() -> None:
    """A worker that takes nothing out of its channel fills it."""
    accelerator = Subsystem.create(CONFIG, lambda: 0.0).accelerators[0]
    with PlayedSupervisor(CONFIG) as supervisor:
        jobs = Jobs(CONFIG, {0: accelerator}, supervisor, lambda _: None)
        for tag in range(1, 10_000):
            jobs.runners[0].start(Step(0, b"image", bytes(1)))
            if supervisor.killed:
                break
            supervisor.say(JobExecuted(tag, RETURNED))
        assert supervisor.killed == [1]
        supervisor.exit()
        assert accelerator.state is JobState.FAILED


def test_writes_are_counted_in_the_same_time_for_each_message() -> None:
    """A worker may send tens of thousands of ranges, and the service must not slow down."""
    accelerator = Subsystem.create(CONFIG, lambda: 0.0).accelerators[0]
    calls: Counter[int] = Counter()
    sent: list[ToRpu] = []
    with PlayedSupervisor(CONFIG) as supervisor, open(os.devnull) as media:
        jobs = Jobs(CONFIG, {0: accelerator}, supervisor, sent.append, {1: media.fileno()})
        accelerator.buffers = Buffers(granted=(Grant(1, 0, 1, True),))
        jobs.runners[0].start(Step(0, b"image", b""))
        (check,) = sent
        assert isinstance(check, ReadCheck)
        jobs.handle(ReadChecked(check.tag))
        for number in range(3):

            def count(frame: FrameType, event: str, _: object, number: int = number) -> None:
                calls[number] += event == "call"

            gc.disable()  # what it finalizes would be counted, too
            sys.setprofile(count)
            try:
                supervisor.say(channel.Gathered((ByteRange(1, 0, 4096),) * 100))
            finally:
                sys.setprofile(None)
                gc.enable()
        assert not supervisor.killed
        supervisor.say(*[channel.Gathered((ByteRange(1, 0, 4096),) * 500)] * 8)
        assert calls[1] == calls[2]
        assert supervisor.killed == [1], "more than there is room for"


def test_a_program_that_cannot_be_read_leaves_no_stale_descriptor() -> None:
    """Memory may be exhausted then; the number is another file's soon."""
    compiler: Any = None
    plan = CONFIG.accelerators[0].plan
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with SharedBuffers.create({0: plan}) as buffers, here, there:
        arena = os.dup(buffers.arenas[0].fd)
        worker = JobWorker(Setup(there, CONFIG, Engine.INTERPRETER, compiler), 0, arena)
        huge = os.memfd_create("huge")
        os.ftruncate(huge, 1 << 62)
        job = channel.ExecuteJob(1, 0, 256)
        worker._perform(job, [huge])
        other = os.memfd_create("other")
        worker._perform(job, [])
        os.fstat(other)
        for _ in range(2):
            line = channel.decode_from_worker(here.recv(channel.MAX_MESSAGE))
            assert isinstance(line, channel.Line) and "takes more memory" in line.text
            assert channel.decode_from_worker(here.recv(channel.MAX_MESSAGE)) == Executed(
                1, FAULTED
            )
        worker._perform(channel.ExecuteJob(2, 0, 257), [other])
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(huge)

"""Chains of an accelerator in any order of events: the test plays host, RPU, workers and clock."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from random import Random

import pytest

from csd_spec.descriptors import LogEntryType
from potash_device.cores import CoreProfile, Work
from potash_firmware.apu import channel
from potash_firmware.apu.channel import ExecuteJob, JobExecuted
from potash_firmware.apu.config import Config
from potash_firmware.apu.job import Step
from potash_firmware.apu.jobs import Jobs
from potash_firmware.apu.lifecycle import ENDING, JobState, OutOfSequence
from potash_firmware.apu.model import Buffers, ByteRange, Grant, Subsystem
from potash_firmware.mailbox.messages import (
    Executed,
    JobBegan,
    JobCounted,
    JobDue,
    JobEnded,
    JobLeft,
    JobOverdue,
    Outcome,
    ReadCheck,
    ReadChecked,
    ToRpu,
    WriteBack,
    WriteBackDone,
)
from support.apu import CONFIG
from support.workers import PlayedSupervisor

PAGE = 4096
PLAIN = replace(CONFIG, limits=replace(CONFIG.limits, log_entries=10_000))
MODELLED = replace(PLAIN, processor=CoreProfile())
MOST_STEPS, EVENTS = 5, 100
INPUT = Buffers(input_length=64)
RANGES = Buffers(
    input_ranges=(ByteRange(1, 0, PAGE),),
    output_ranges=(ByteRange(1, PAGE, PAGE),),
    granted=(Grant(1, 4, 2, True),),
)
WRITTEN = ByteRange(1, 4 * PAGE, PAGE)
AT_REST = (JobState.IDLE, JobState.DONE, JobState.FAILED, JobState.STOPPED)


@dataclass
class Chain:
    """A chain, and what the test has seen of it."""

    number: int
    steps: int
    handed_over: int = 0
    """Steps that a worker was given."""
    returned: int = 0
    """Steps whose end a worker has reported and the APU has accepted."""
    events: int = 0
    is_stopped: bool = False
    """The host has stopped it."""
    is_over: bool = False
    """No step may begin any more."""


class Played:
    """An accelerator whose surroundings the test plays."""

    def __init__(self, random: Random, config: Config, supervisor: PlayedSupervisor) -> None:
        self.random, self.supervisor = random, supervisor
        self.accelerator = Subsystem.create(config, lambda: 0.0).accelerators[0]
        self.is_modelled = config.processor is not None
        self.jobs = Jobs(config, {0: self.accelerator}, supervisor, self.sent, {1: 0})
        self.runner = self.jobs.runners[0]
        self.now = 0.0
        self.chain = Chain(0, 0, is_over=True)
        self.asked: list[ReadCheck | WriteBack | JobCounted] = []
        """Messages that the RPU has to answer."""
        self.execution: tuple[int, ExecuteJob] | None = None
        """The last step that a worker has been given and has not ended, and the worker."""
        self.buffers = INPUT
        self.programs: dict[int, int] = {}
        """The program that each worker has, by its number."""
        self.unit: int | None = None
        """The job that has the modelled core, as the RPU has it."""

    # The RPU.

    def sent(self, message: ToRpu) -> None:
        match message:
            case JobEnded():
                self.chain.events += 1
                assert self.accelerator.state in (JobState.DONE, JobState.FAILED)
            case JobBegan():
                self.unit = message.job
            case JobLeft():
                assert self.unit == message.job, "a job has left twice"
                self.unit = None
            case WriteBack() | JobCounted() if message.more:
                pass
            case ReadCheck() | WriteBack() | JobCounted():
                self.asked.append(message)

    def answer(self) -> None:
        """Answer something that the APU has asked, or end a job that takes too long."""
        if not self.asked:
            return
        message = self.asked.pop(self.random.randrange(len(self.asked)))
        error = self.random.choice((*[0] * 9, errno.EIO))
        if isinstance(message, ReadCheck):
            self.jobs.handle(ReadChecked(message.tag, error, message.ranges[0][0]))
        elif isinstance(message, WriteBack):
            self.jobs.handle(WriteBackDone(message.tag, error))
        else:
            self.jobs.handle(JobDue(0, message.job, 1000))

    def overdue(self) -> None:
        if self.unit is not None:
            self.jobs.handle(JobOverdue(0, self.unit))

    # The host.

    def start(self) -> None:
        steps = self.random.randint(1, MOST_STEPS)
        number = self.chain.number + 1
        given = [Step(at, bytes([at]), struct.pack("<HH", number, at)) for at in range(steps)]
        if self.accelerator.busy:
            with pytest.raises(OutOfSequence):
                self.runner.start(*given)
            return
        self.accelerator.buffers = self.buffers = self.random.choice((INPUT, RANGES))
        self.chain = Chain(number, steps)
        self.runner.start(*given)

    def stop(self) -> None:
        was_writing = self.accelerator.state is JobState.WRITING
        self.runner.stop()
        self.chain.is_stopped |= self.accelerator.busy or self.accelerator.state is JobState.STOPPED
        # The last step's write-back, which cannot be stopped, is the chain's end.
        self.chain.is_over = not was_writing or self.chain.returned < self.chain.steps

    def reset(self) -> None:
        self.runner.reset()
        self.chain.is_over = True

    # Workers.

    def receive(self) -> None:
        """Take what workers have been given."""
        for number, end in self.supervisor.ends.items():
            end.setblocking(False)
            with suppress(BlockingIOError):
                data, descriptors, _, _ = socket.recv_fds(end, channel.MAX_MESSAGE, 16)
                if data:
                    self.given(number, channel.decode_execution(data), descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)

    def given(self, number: int, message: object, descriptors: list[int]) -> None:
        assert isinstance(message, ExecuteJob)
        is_new = self.programs.get(number) != message.program
        self.programs[number] = message.program
        chain, step = struct.unpack("<HH", os.pread(descriptors[is_new], 4, 0))
        assert (chain, step) == (self.chain.number, self.chain.handed_over), "out of order"
        assert not self.chain.is_over and self.chain.returned == step
        assert not any(isinstance(item, WriteBack) for item in self.asked), "the RPU reads it"
        assert message.is_chained == (step > 0)
        is_last = step == self.chain.steps - 1
        assert bool(message.output_ranges) == (is_last and self.buffers is RANGES)
        self.chain.handed_over += 1
        self.execution = number, message

    def work(self) -> None:
        """Have the worker end its step, tell something else, or lie."""
        if self.execution is None:
            return
        number, message = self.execution
        work = Work() if self.is_modelled else None
        returned = JobExecuted(message.tag, Outcome.RETURNED, 7, work, output_length=8)
        says: list[channel.FromWorker] = [returned]
        kind = self.random.choice((*["returns", "writes"] * 4, "faults", "lies", "prints"))
        if kind == "writes" and message.granted:
            says.insert(0, channel.Gathered((WRITTEN,)))
        elif kind == "faults":
            says = [Executed(message.tag, Outcome.FAULTED, work=work)]
        elif kind == "lies":
            says = [replace(returned, tag=message.tag + 1)]
        elif kind == "prints":
            says = [channel.Line(LogEntryType.PROGRAM_OUTPUT, "text")]
        is_heard = self.accelerator.state is JobState.RUNNING and number not in self.killed
        if kind != "prints":
            self.execution = None
        if is_heard and kind in ("returns", "writes"):
            self.chain.returned += 1
        self.chain.is_over |= kind in ("faults", "lies") and is_heard
        if number in {worker.number for worker in self.supervisor.workers}:
            self.supervisor.say(*says, number=number)

    @property
    def killed(self) -> set[int]:
        return set(self.supervisor.killed)

    def reap(self) -> None:
        """Have the fork server report that a worker has been killed."""
        workers = self.supervisor.workers
        self._exit([worker.number for worker in workers if worker.number in self.killed])

    def exit(self) -> None:
        """Have it report that a worker has exited."""
        self._exit([worker.number for worker in self.supervisor.workers])

    def _exit(self, numbers: list[int]) -> None:
        if not numbers:
            return
        number = self.random.choice(numbers)
        if self.execution is not None and self.execution[0] == number:
            self.execution = None
            self.chain.is_over = True
        self.supervisor.exit(number, -9)

    def expire(self) -> None:
        """Let more time pass than a step may take."""
        self.now += 2 * CONFIG.limits.seconds
        self.supervisor.expire()

    # What holds after each event.

    def check(self) -> None:
        self.receive()
        state, chain, outcome = self.accelerator.state, self.chain, self.accelerator.outcome
        if state in (JobState.DONE, JobState.FAILED):
            assert chain.events == 1, "an end without its event"
        else:
            assert chain.events <= (state is JobState.IDLE), "an event without an end"
        if chain.steps > 1 and state is not JobState.IDLE:
            assert outcome.steps == chain.steps
            assert outcome.ended <= chain.returned <= chain.handed_over
            assert (state is JobState.DONE) == (outcome.ended == chain.steps)
        chain.is_over |= state in ENDING or state in AT_REST
        assert chain.is_stopped or state not in (JobState.STOPPING, JobState.STOPPED)
        if state in AT_REST:
            assert self.unit is None, "the core is leaked"

    def settle(self) -> None:
        """Let everything end that has been begun."""
        while self.accelerator.busy or not self.runner.idle:
            self.reap()
            self.answer()
            self.work()
            self.check()


@contextmanager
def played(seed: int, config: Config) -> Iterator[Played]:
    box: list[Played] = []
    with PlayedSupervisor(config, lambda: box[0].now if box else 0.0) as supervisor:
        box.append(Played(Random(seed), config, supervisor))
        yield box[0]


@pytest.mark.parametrize("config", [PLAIN, MODELLED], ids=["plain", "modelled"])
@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_begun_or_reported_twice_whatever_happens(seed: int, config: Config) -> None:
    with played(seed, config) as made:
        events: list[tuple[Callable[[], None], int]] = [
            (made.start, 6), (made.work, 8), (made.answer, 6), (made.reap, 8), (made.stop, 2),
            (made.reset, 1), (made.exit, 1), (made.expire, 1), (made.overdue, 1),
        ]  # fmt: skip
        actions, weights = zip(*events, strict=True)
        for action in made.random.choices(actions, weights, k=EVENTS):
            action()
            made.check()
        made.settle()
        while True:  # and then it goes on as if nothing had been
            made.start()
            made.settle()
            if made.accelerator.state is JobState.DONE:
                break

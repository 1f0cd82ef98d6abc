"""The jobs of accelerators, from Start to the status that a host sees.

This module alone changes the states of jobs. A job begins when the RPU has reported that the blocks
of its input may be read. Its output is written to its blocks before its status becomes done, and
the next job does not get a buffer that the RPU still writes from. A chain is a job of several
steps: each has its own message to the worker, its own checks and its own write-back, and begins
when those of the step before have ended.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count, groupby
from types import MappingProxyType

from csd_spec.descriptors import LogEntryType
from csd_spec.opcodes import LOG_PAGE
from potash_device.trace import COMPUTE
from potash_firmware.apu import blocks
from potash_firmware.apu.channel import (
    ANSWERS,
    BlocksRead,
    ChannelError,
    ExecuteJob,
    FromWorker,
    Gathered,
    JobExecuted,
    Line,
    Ready,
)
from potash_firmware.apu.config import Config
from potash_firmware.apu.job import Job, Step
from potash_firmware.apu.lifecycle import ENDING, Event, JobState, after
from potash_firmware.apu.model import Accelerator, ByteRange, Outcome, count_event
from potash_firmware.apu.supervisor import Supervisor, Worker
from potash_firmware.mailbox.device_programs import DeviceProgram
from potash_firmware.mailbox.messages import (
    FIRST_HANDLE,
    MAX_RANGES,
    Executed,
    JobBegan,
    JobCounted,
    JobDue,
    JobEnded,
    JobLeft,
    JobMessage,
    JobOverdue,
    ReadCheck,
    ReadChecked,
    ToRpu,
    WriteBack,
    WriteBackDone,
)
from potash_firmware.mailbox.shared import Word, add, seal
from potash_firmware.mailbox.values import JobValueRead, ReadJobValue

log = logging.getLogger(__name__)

TAG_LIMIT = 1 << 32

ENDED_BY_HOST = {JobState.STOPPING: "stopped by the host", JobState.RESETTING: "ended by a reset"}
"""The text of the log entry of a job whose worker has been killed for the host."""


class Jobs:
    """Runs the jobs of all accelerators with workers of `supervisor`; `send` goes to the RPU.

    `media` are descriptors that namespaces can be read from; a worker gets those that its job
    names.
    """

    def __init__(
        self,
        config: Config,
        accelerators: Mapping[int, Accelerator],
        supervisor: Supervisor,
        send: Callable[[ToRpu], None],
        media: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.config = config
        self.namespaces = {item.nsid: item for item in config.namespaces}
        self.supervisor = supervisor
        self.send = send
        self.media = media
        self.runners = {key: JobRunner(item, self) for key, item in accelerators.items()}
        """The runner of each accelerator's jobs, by the accelerator's identifier."""
        self._tags = count(1)
        self._asked: dict[int, JobRunner] = {}
        """The askers of what the RPU has not answered, by tag."""

    def prepare(self) -> None:
        """Have a worker for each accelerator."""
        for runner in self.runners.values():
            runner.prepare()

    def next_tag(self, asker: "JobRunner | None" = None) -> int:
        """A new tag; the `asker` gets the RPU's answer to a message with it."""
        tag = next(self._tags) % TAG_LIMIT
        if asker is not None:
            self._asked[tag] = asker
        return tag

    def handle(self, message: JobMessage) -> None:
        """Follow a message of the RPU."""
        match message:
            case JobDue(key) | JobOverdue(key) | JobValueRead(accelerator=key):
                asker = self.runners.get(key)
            case ReadChecked(tag) | WriteBackDone(tag):
                asker = self._asked.pop(tag, None)
        if asker is None:
            log.warning("an answer to something that was never requested: %s", message)
        else:
            asker.handle(message)


class JobRunner:
    """Runs the jobs of one accelerator, one after another, with a worker."""

    messages_at_once = 64

    def __init__(self, accelerator: Accelerator, jobs: Jobs) -> None:
        self._accelerator = accelerator
        self._key = accelerator.config.id
        self._jobs = jobs
        self._job: Job | None = None
        """The job in progress, or a chain's step."""
        self._following: Sequence[Step] = ()
        """The steps that a chain has yet to begin."""
        self._stopped = False
        """The host has stopped a chain, which waits for the write-back of one of its steps."""
        self._worker: Worker | None = None
        self._handles = count(FIRST_HANDLE)
        self._program = 0, b""
        """The program that the worker has: its handle and its image."""
        self._writing = False
        """The RPU has not answered a write-back, for which it reads the arena."""
        self._reading = False
        """The RPU has not answered a request for a value, which it copies to the arena."""

    @property
    def idle(self) -> bool:
        """True if no job uses the accelerator, and neither a worker nor the RPU its arena."""
        ending = self._worker is not None and self._worker.ending
        return not (self._accelerator.busy or ending or self._writing or self._reading)

    def prepare(self) -> Worker:
        """Have a worker, which is returned."""
        if self._worker is None:
            self._worker = self._jobs.supervisor.spawn(self._key, self)
        return self._worker

    def replace_worker(self) -> None:
        """Have a new process for the next job, if programs have run in this one."""
        if self._worker is not None and self._worker.used:
            self._jobs.supervisor.kill(self._worker)

    # What a host commands

    def start(self, *steps: Step) -> None:
        """Begin a job with the accelerator's buffers, or a chain of several steps. Raises
        OutOfSequence while the accelerator is busy."""
        self._fire(Event.START)
        accelerator, is_chain = self._accelerator, len(steps) > 1
        accelerator.outcome = Outcome(steps=len(steps) if is_chain else 0)
        self._following, self._stopped = steps, False
        job = self._next_job()
        is_query = isinstance(job.program, DeviceProgram)
        text = f"chain of {len(steps)} steps, " if is_chain else ""
        text += "query" if is_query else f"firmware {accelerator.active}"
        text += f", {job.message.input_length} bytes of input, "
        text += f"{job.message.output_length} bytes of room for output"
        accelerator.log.add(LogEntryType.JOB_STARTED, text)
        if is_chain:  # its steps use the buffer of the host's input for theirs
            accelerator.buffers = replace(accelerator.buffers, input_length=None)
        self._begin(job)

    def _next_job(self) -> Job:
        """The job of the step that follows."""
        (firmware, program, arguments), *self._following = self._following
        accelerator, config = self._accelerator, self._accelerator.config
        accelerator.active = firmware
        buffers, room = accelerator.buffers, accelerator.output_capacity
        if self._following:  # the output becomes the input of the next step
            buffers = replace(buffers, output_ranges=())
            room = min(config.input_size, config.output_size)
        is_chained = accelerator.outcome.ended > 0
        if is_chained:
            produced = accelerator.outcome.produced
            buffers = replace(buffers, input_length=produced, input_ranges=())
        if isinstance(program, DeviceProgram) and buffers.granted:
            readable = tuple(grant._replace(writable=False) for grant in buffers.granted)
            buffers = replace(buffers, input_length=0, input_ranges=(), granted=readable)
        message = ExecuteJob(
            self._jobs.next_tag(),
            self._key,
            0,
            data_length=len(arguments),
            input_length=buffers.input_size,
            output_length=room,
            input_ranges=buffers.input_ranges,
            output_ranges=buffers.output_ranges,
            granted=buffers.granted,
            is_chained=is_chained,
        )
        return Job(message, program, arguments)

    def _begin(self, job: Job) -> None:
        jobs, message = self._jobs, job.message
        self._job = job
        if jobs.config.processor is not None:
            job.number = message.tag
            jobs.send(JobBegan(self._key, job.number))
        for _, items in groupby(message.input_ranges, key=lambda item: item.nsid):
            self._check(job, tuple(items), granted=False)
        granted = (blocks.range_of(grant, jobs.namespaces) for grant in message.granted)
        for _, items in groupby(granted, key=lambda item: item.nsid):
            self._check(job, tuple(items), granted=True)
        self._hand_over()

    def _begin_step(self) -> None:
        """Begin the next step of a chain, whose input is the output of the one before."""
        self._fire(Event.NEXT_STEP)
        if self._stopped:
            self.stop()
        else:
            self._begin(self._next_job())

    @property
    def _place(self) -> str:
        """The step of a chain that is in progress, for texts; nothing for another job."""
        outcome = self._accelerator.outcome
        return f"step {outcome.ended + 1} of {outcome.steps}: " if outcome.steps else ""

    def not_loaded(self) -> None:
        """There is no program to start. Raises OutOfSequence while the accelerator is busy."""
        self._fire(Event.NOT_LOADED)

    def stop(self) -> None:
        """Stop the job, if there is one; it has stopped when the accelerator is not busy."""
        self._interrupt(Event.STOP)

    def reset(self) -> None:
        """Stop the job likewise; the accelerator is idle then."""
        self._interrupt(Event.RESET)

    def _interrupt(self, event: Event) -> None:
        before = self._accelerator.state
        self._stopped = before is JobState.WRITING
        if self._fire(event) in ENDING and before not in ENDING:
            if self._worker is None:
                self._lost("")
            else:
                self._jobs.supervisor.kill(self._worker)

    def _fire(self, event: Event) -> JobState:
        """Put the accelerator into the state that follows. Raises OutOfSequence."""
        accelerator = self._accelerator
        before, accelerator.state = accelerator.state, after(accelerator.state, event)
        if COMPUTE.sink is not None:
            fired = {"accelerator": self._key, "event": event.name}
            states = {"before": before.name, "after": accelerator.state.name}
            COMPUTE.sink("apu.job", fired | states | {"busy": accelerator.busy})
        count_event(accelerator, event)
        if not accelerator.busy:
            job, self._job, self._following = self._job, None, ()
            if job is not None and job.number:
                self._jobs.send(JobLeft(self._key, job.number))
        return accelerator.state

    # Blocks that a job reads

    def _check(self, job: Job, items: Sequence[ByteRange], *, granted: bool) -> None:
        """Ask the RPU whether blocks of one namespace may be read: input, or `granted` blocks."""
        for first in range(0, len(items), MAX_RANGES):
            tag, portion = self._jobs.next_tag(self), items[first : first + MAX_RANGES]
            job.checks[tag] = portion if granted else ()
            ranges = tuple((item.first, item.length) for item in portion)
            self._jobs.send(ReadCheck(tag, portion[0].nsid, ranges, self._key))

    def _handle_check(self, checked: ReadChecked) -> None:
        job = self._job
        if job is None or checked.tag not in job.checks:
            return  # it has been stopped meanwhile
        granted = job.checks.pop(checked.tag)
        if granted:
            if checked.error:
                size = self._jobs.namespaces[granted[0].nsid].block_size
                self._check(job, job.exclude(granted, checked, size), granted=True)
        elif checked.error and self._accelerator.state is JobState.RUNNING:
            self._accelerator.log.add(
                LogEntryType.INVALID_INPUT_BUFFER,
                f"the input cannot be read at byte {checked.at} of its namespace: "
                f"{os.strerror(checked.error)}",
            )
            self._finish(Event.FAULTED)
            return
        self._hand_over()

    # The worker

    def _hand_over(self) -> None:
        """Give the job to the worker, if nothing else uses its buffers any more."""
        job, jobs = self._job, self._jobs
        if self._accelerator.state is not JobState.RUNNING or job is None or job.handed_over:
            return
        if job.checks or self._writing or self._reading:
            return
        worker = self.prepare()
        if not jobs.supervisor.suits(worker, job.program) or worker.ending:
            return
        job.handed_over = True
        if COMPUTE.sink is not None:
            COMPUTE.sink("apu.hand_over", {"accelerator": self._key})
        made = {}
        if isinstance(job.program, DeviceProgram):
            self._program = job.program, b""
        elif self._program[1] != job.program:
            self._program = next(self._handles), job.program
            made[self._program[0]] = seal("potash-program", job.program)
        message = replace(job.message, program=self._program[0], unreadable=tuple(job.unreadable))
        data = [seal("potash-data", job.arguments)] if job.arguments else []
        media = [jobs.media[nsid] for nsid in message.namespaces]
        try:
            seconds = jobs.config.limits.seconds
            jobs.supervisor.execute(worker, message, made, [*data, *media], seconds)
        finally:
            for descriptor in (*made.values(), *data):
                os.close(descriptor)

    def received(self, worker: Worker, message: FromWorker) -> None:
        job = self._job
        if self._accelerator.state is not JobState.RUNNING or (job and not job.handed_over):
            job = None
        match message:
            case Ready():
                pass
            case Line(kind, text):
                if kind is not LogEntryType.PROGRAM_OUTPUT and job is not None:
                    text = self._place + text
                self._accelerator.log.add(kind, text)
            case Gathered(gathered) if job is not None:
                room = self._accelerator.config.plan.writes_size
                job.gather(gathered, self._jobs.namespaces, room)
            case BlocksRead() if job is not None:
                job.keep_reads(message, self._jobs.namespaces)
            case ReadJobValue() if job is not None and not self._reading:
                job.require_readable(message, self._accelerator.config)
                self._reading = True
                self._jobs.send(message)
            case Executed() if job is not None:
                self._handle_end(worker, job, message)
            case _:
                raise ChannelError(f"a worker that runs no job sent {message}")

    def _handle_end(self, worker: Worker, job: Job, ending: Executed) -> None:
        """A program has ended, or will have when its modelled time has passed."""
        if (
            job.ending is not None
            or ending.tag != job.message.tag
            or (ending.work is not None) != bool(job.number)
            or ending.outcome not in ANSWERS
            or type(ending) is not (Executed if ending.outcome else JobExecuted)
            or (
                isinstance(ending, JobExecuted) and ending.output_length > job.message.output_length
            )
        ):
            raise ChannelError(f"a worker has ended its job with {ending}")
        self._jobs.supervisor.finish(worker)
        if ending.work is None:
            self._end_program(job, ending)
            return
        job.ending = ending
        parts = [item.reads for item in job.reads] or [()]
        for left, reads in zip(reversed(range(len(parts))), parts, strict=True):
            self._jobs.send(JobCounted(self._key, job.number, ending.work, reads, more=left > 0))

    def expired(self, worker: Worker) -> None:
        if self._accelerator.state is JobState.RUNNING:
            seconds = self._jobs.config.limits.seconds
            self._expire(f"{self._place}the job took more than {seconds:g} s")

    def _expire(self, reason: str) -> None:
        self._accelerator.log.add(LogEntryType.LIMIT_EXCEEDED, reason)
        self._interrupt(Event.EXPIRED)

    def exited(self, worker: Worker, why: str) -> None:
        self._worker, self._program = None, (0, b"")
        job = self._job
        interrupted = job is not None and job.handed_over and job.ending is None
        if self._accelerator.state is not JobState.RUNNING or interrupted:
            self._lost(why)
        if worker.ready:
            self.prepare()
        self._hand_over()

    def _lost(self, why: str) -> None:
        accelerator, before = self._accelerator, self._accelerator.state
        if before is JobState.RUNNING:
            text = f"{self._place}the job's process was lost: {why}"
            accelerator.log.add(LogEntryType.PROCESS_LOST, text)
        if before in ENDED_BY_HOST:
            accelerator.log.add(LogEntryType.JOB_FINISHED, self._place + ENDED_BY_HOST[before])
        if self._fire(Event.WORKER_LOST) is JobState.FAILED and before is not JobState.FAILED:
            self._report_end()

    # The RPU

    def handle(self, message: JobMessage) -> None:
        """Follow a message of the RPU about this accelerator."""
        job, accelerator = self._job, self._accelerator
        if isinstance(message, ReadChecked):
            self._handle_check(message)
        elif isinstance(message, JobValueRead):
            self._reading = False
            if self._worker is not None and job is not None and job.message.tag == message.tag:
                self._jobs.supervisor.answer(self._worker, message)
            self._hand_over()
        elif isinstance(message, WriteBackDone):
            self._writing = False
            if accelerator.state is JobState.WRITING and job is not None:
                job.modelled = message.modelled
                self._finish_write_back(job, message.error)
            self._hand_over()
        elif job is None or job.number != message.job or accelerator.state is not JobState.RUNNING:
            pass  # it has been stopped meanwhile
        elif isinstance(message, JobDue) and job.ending is not None:
            job.modelled = message.modelled
            self._end_program(job, job.ending)
        elif isinstance(message, JobOverdue) and job.ending is None:
            self._expire("the guest has stood still for the job for too long")

    # The end of a job

    def _end_program(self, job: Job, ending: Executed) -> None:
        if isinstance(ending, JobExecuted):
            self._write_back(job, ending)
        else:
            self._finish(Event.FAULTED)

    def _write_back(self, job: Job, ended: JobExecuted) -> None:
        """The program has returned: have the RPU write what is to be written."""
        accelerator, length = self._accelerator, ended.output_length
        outcome = accelerator.outcome
        if not outcome.ended:
            outcome.consumed = job.message.input_length
        outcome.produced, outcome.return_value = length, ended.value
        add(accelerator.row, Word.INPUT, job.message.input_length)
        add(accelerator.row, Word.OUTPUT, length)
        value = ended.value - (1 << 64) if ended.value >> 63 else ended.value
        text = f"returned {value} after {ended.instructions} instructions, {length} bytes of output"
        if isinstance(job.program, DeviceProgram):
            text = f"returned {length} bytes of output"
        if job.gathered:
            text += f", {job.gathered_bytes} bytes written to granted blocks"
        kind = LogEntryType.STEP_FINISHED if self._following else LogEntryType.JOB_FINISHED
        accelerator.log.add(kind, self._place + text)
        self._fire(Event.RETURNED)
        ranges, plan = job.message.output_ranges, accelerator.config.plan
        portions: list[tuple[int, tuple[ByteRange, ...]]] = []
        if ranges or job.gathered:
            output = blocks.first_bytes(ranges, length, self._jobs.namespaces)
            portions += blocks.portions(plan.output_offset, output)
            portions += blocks.portions(plan.writes_offset, job.gathered)
        if not portions:
            self._finish_write_back(job, 0)
            return
        tag, self._writing = self._jobs.next_tag(self), True
        for left, (source, pieces) in zip(reversed(range(len(portions))), portions, strict=True):
            self._jobs.send(WriteBack(tag, self._key, source, pieces, more=left > 0))

    def _finish_write_back(self, job: Job, error: int) -> None:
        outcome = self._accelerator.outcome
        outcome.modelled += job.modelled
        if error:
            text = f"{self._place}the output could not be written to its blocks: "
            text += os.strerror(error)
            self._accelerator.log.add(LogEntryType.INVALID_OUTPUT_BUFFER, text)
            self._finish(Event.WRITE_FAILED)
            return
        outcome.ended += 1 if outcome.steps else 0
        if self._following:
            self._begin_step()
        else:
            self._finish(Event.WRITTEN)

    def _finish(self, event: Event) -> None:
        self._fire(event)
        self._report_end()

    def _report_end(self) -> None:
        self._jobs.send(JobEnded(self._key, LOG_PAGE))

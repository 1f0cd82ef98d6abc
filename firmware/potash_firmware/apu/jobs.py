"""The jobs of accelerators, from Start to the status that a host sees.

This module alone changes the states of jobs. A job begins when the RPU has reported that the blocks
of its input may be read. Its output is written to its blocks before its status becomes done, and
the next job does not get a buffer that the RPU still writes from.
"""

import errno
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from types import MappingProxyType

from csd_spec.descriptors import LogEntryType
from csd_spec.opcodes import LOG_PAGE
from potash_device.trace import COMPUTE
from potash_firmware.apu import blocks
from potash_firmware.apu.channel import (
    ANSWERS,
    RANGES_AT_ONCE,
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
from potash_firmware.apu.lifecycle import ENDING, Event, JobState, after
from potash_firmware.apu.model import Accelerator, ByteRange, Outcome, count_event
from potash_firmware.apu.supervisor import Supervisor, Worker
from potash_firmware.apu.work_counter import MOST_READS
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

log = logging.getLogger(__name__)

LOST_AT_MOST = 64
"""Unreadable blocks of a job's grants that are found one by one."""

TAG_LIMIT = 1 << 32

MOST_OF_READS = MOST_READS // RANGES_AT_ONCE
"""Messages about the blocks that a job has read: all that an honest worker sends."""

ENDED_BY_HOST = {JobState.STOPPING: "stopped by the host", JobState.RESETTING: "ended by a reset"}
"""The text of the log entry of a job whose worker has been killed for the host."""


@dataclass(slots=True)
class _Job:
    """A job in progress."""

    message: ExecuteJob
    program: bytes | DeviceProgram
    arguments: bytes
    handed_over: bool = False
    """The worker has it."""
    checks: dict[int, Sequence[ByteRange]] = field(default_factory=dict)
    """Checks of blocks that the RPU has not answered, by tag: the granted blocks that are checked,
    none for the input."""
    unreadable: list[ByteRange] = field(default_factory=list)
    """Granted blocks that cannot be read."""
    gathered: list[ByteRange] = field(default_factory=list)
    """Blocks that are written when the program returns, besides its output."""
    gathered_bytes: int = 0
    """Their bytes together."""
    writable: blocks.Granted | None = None
    """The blocks that the program may write, once it wants some written."""
    number: int = 0
    """Its number in messages about modelled time; 0 where time is not modelled."""
    reads: list[BlocksRead] = field(default_factory=list)
    """The blocks that it has read, where time is modelled."""
    ending: Executed | None = None
    """The end of its program, until the RPU reports that its modelled time has passed."""


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
            case JobDue(key) | JobOverdue(key):
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
        self._job: _Job | None = None
        self._worker: Worker | None = None
        self._handles = count(FIRST_HANDLE)
        self._program = 0, b""
        """The program that the worker has: its handle and its image."""
        self._writing = False
        """The RPU has not answered a write-back, for which it reads the arena."""

    @property
    def idle(self) -> bool:
        """True if no job uses the accelerator, and neither a worker nor the RPU its arena."""
        ending = self._worker is not None and self._worker.ending
        return not (self._accelerator.busy or ending or self._writing)

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

    def start(self, program: bytes | DeviceProgram, arguments: bytes) -> None:
        """Begin a job with the accelerator's buffers. Raises OutOfSequence while it is busy."""
        self._fire(Event.START)
        accelerator, jobs, buffers = self._accelerator, self._jobs, self._accelerator.buffers
        if isinstance(program, DeviceProgram) and buffers.granted:
            readable = tuple(grant._replace(writable=False) for grant in buffers.granted)
            buffers = replace(buffers, input_length=0, input_ranges=(), granted=readable)
        message = ExecuteJob(
            jobs.next_tag(),
            self._key,
            0,
            data_length=len(arguments),
            input_length=buffers.input_size,
            output_length=accelerator.output_capacity,
            input_ranges=buffers.input_ranges,
            output_ranges=buffers.output_ranges,
            granted=buffers.granted,
        )
        accelerator.outcome = Outcome()
        text = "query" if isinstance(program, DeviceProgram) else f"firmware {accelerator.active}"
        text += f", {message.input_length} bytes of input, "
        text += f"{message.output_length} bytes of room for output"
        accelerator.log.add(LogEntryType.JOB_STARTED, text)
        job = self._job = _Job(message, program, arguments)
        if jobs.config.processor is not None:
            job.number = message.tag
            jobs.send(JobBegan(self._key, job.number))
        for _, items in groupby(message.input_ranges, key=lambda item: item.nsid):
            self._check(job, tuple(items), granted=False)
        granted = (blocks.range_of(grant, jobs.namespaces) for grant in message.granted)
        for _, items in groupby(granted, key=lambda item: item.nsid):
            self._check(job, tuple(items), granted=True)
        self._hand_over()

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
            job, self._job = self._job, None
            if job is not None and job.number:
                self._jobs.send(JobLeft(self._key, job.number))
        return accelerator.state

    # Blocks that a job reads

    def _check(self, job: _Job, items: Sequence[ByteRange], *, granted: bool) -> None:
        """Ask the RPU whether blocks of one namespace may be read: input, or `granted` blocks."""
        for first in range(0, len(items), MAX_RANGES):
            tag, portion = self._jobs.next_tag(self), items[first : first + MAX_RANGES]
            job.checks[tag] = portion if granted else ()
            ranges = tuple((item.first, item.length) for item in portion)
            self._jobs.send(ReadCheck(tag, portion[0].nsid, ranges))

    def _handle_check(self, checked: ReadChecked) -> None:
        job = self._job
        if job is None or checked.tag not in job.checks:
            return  # it has been stopped meanwhile
        granted = job.checks.pop(checked.tag)
        if granted:
            if checked.error:
                self._exclude(job, granted, checked)
        elif checked.error and self._accelerator.state is JobState.RUNNING:
            self._accelerator.log.add(
                LogEntryType.INVALID_INPUT_BUFFER,
                f"the input cannot be read at byte {checked.at} of its namespace: "
                f"{os.strerror(checked.error)}",
            )
            self._finish(Event.FAULTED)
            return
        self._hand_over()

    def _exclude(self, job: _Job, granted: Sequence[ByteRange], checked: ReadChecked) -> None:
        """Exclude a block that cannot be read, and check the blocks after it.

        A whole range is excluded if there are too many such blocks, and all are if the reason is
        not one block.
        """
        at, nsid = checked.at, granted[0].nsid
        has_it = [0 <= at - item.first < item.length for item in granted]
        if checked.error != errno.EIO or not any(has_it):
            job.unreadable += granted
            return
        item, *rest = granted[has_it.index(True) :]
        if len(job.unreadable) >= LOST_AT_MOST:
            job.unreadable.append(item)
        else:
            size = self._jobs.namespaces[nsid].block_size
            job.unreadable.append(ByteRange(nsid, at, size))
            if left := item.first + item.length - at - size:
                rest = [ByteRange(nsid, at + size, left), *rest]
        self._check(job, rest, granted=True)

    # The worker

    def _hand_over(self) -> None:
        """Give the job to the worker, if nothing else uses its buffers any more."""
        job, jobs = self._job, self._jobs
        if self._accelerator.state is not JobState.RUNNING or job is None or job.handed_over:
            return
        if job.checks or self._writing:
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
                self._accelerator.log.add(kind, text)
            case Gathered(gathered) if job is not None:
                self._gather(job, gathered)
            case BlocksRead() if job is not None:
                self._keep_reads(job, message)
            case Executed() if job is not None:
                self._handle_end(worker, job, message)
            case _:
                raise ChannelError(f"a worker that runs no job sent {message}")

    def _gather(self, job: _Job, gathered: Sequence[ByteRange]) -> None:
        """Keep ranges that are to be written, all of which the host has granted for writing."""
        job.writable = job.writable or blocks.Granted(job.message.granted, writing=True)
        for item in gathered:
            if not self._may_write(job.writable, item):
                raise ChannelError(f"a worker wants to write {item}, which was not granted")
            job.gathered_bytes += item.length
        job.gathered += gathered
        if job.gathered_bytes > self._accelerator.config.plan.writes_size:
            raise ChannelError("a worker wants to write more than there is room for")

    def _may_write(self, writable: blocks.Granted, item: ByteRange) -> bool:
        namespace = self._jobs.namespaces.get(item.nsid)
        if namespace is None or (item.first | item.length) % namespace.block_size:
            return False
        lba, number = (place // namespace.block_size for place in (item.first, item.length))
        return writable.has(item.nsid, lba, number)

    def _keep_reads(self, job: _Job, message: BlocksRead) -> None:
        """Keep the blocks that a job has read, which are those that it may read."""
        sizes = {nsid: self._jobs.namespaces[nsid].size for nsid in job.message.namespaces}
        if job.ending is not None or not job.number or len(job.reads) >= MOST_OF_READS:
            raise ChannelError("a worker has sent reads that were not requested")
        if any(item.first + item.length > sizes.get(item.nsid, 0) for item in message.reads):
            raise ChannelError("a worker has sent reads of blocks that its job may not read")
        job.reads.append(message)

    def _handle_end(self, worker: Worker, job: _Job, ending: Executed) -> None:
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
            self._expire(f"the job took more than {self._jobs.config.limits.seconds:g} s")

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
            accelerator.log.add(LogEntryType.PROCESS_LOST, f"the job's process was lost: {why}")
        if before in ENDED_BY_HOST:
            accelerator.log.add(LogEntryType.JOB_FINISHED, ENDED_BY_HOST[before])
        if self._fire(Event.WORKER_LOST) is JobState.FAILED and before is not JobState.FAILED:
            self._report_end()

    # The RPU

    def handle(self, message: JobMessage) -> None:
        """Follow a message of the RPU about this accelerator."""
        job, accelerator = self._job, self._accelerator
        if isinstance(message, ReadChecked):
            self._handle_check(message)
        elif isinstance(message, WriteBackDone):
            self._writing = False
            if accelerator.state is JobState.WRITING:
                accelerator.outcome.modelled = message.modelled
                self._finish_write_back(message.error)
            self._hand_over()
        elif job is None or job.number != message.job or accelerator.state is not JobState.RUNNING:
            pass  # it has been stopped meanwhile
        elif isinstance(message, JobDue) and job.ending is not None:
            accelerator.outcome.modelled = message.modelled
            self._end_program(job, job.ending)
        elif isinstance(message, JobOverdue) and job.ending is None:
            self._expire("the guest has stood still for the job for too long")

    # The end of a job

    def _end_program(self, job: _Job, ending: Executed) -> None:
        if isinstance(ending, JobExecuted):
            self._write_back(job, ending)
        else:
            self._finish(Event.FAULTED)

    def _write_back(self, job: _Job, ended: JobExecuted) -> None:
        """The program has returned: have the RPU write what is to be written."""
        accelerator, length = self._accelerator, ended.output_length
        accelerator.outcome = Outcome(
            job.message.input_length, length, ended.value, accelerator.outcome.modelled
        )
        add(accelerator.row, Word.INPUT, job.message.input_length)
        add(accelerator.row, Word.OUTPUT, length)
        value = ended.value - (1 << 64) if ended.value >> 63 else ended.value
        text = f"returned {value} after {ended.instructions} instructions, {length} bytes of output"
        if isinstance(job.program, DeviceProgram):
            text = f"returned {length} bytes of output"
        if job.gathered:
            text += f", {job.gathered_bytes} bytes written to granted blocks"
        accelerator.log.add(LogEntryType.JOB_FINISHED, text)
        self._fire(Event.RETURNED)
        ranges, plan = job.message.output_ranges, accelerator.config.plan
        portions: list[tuple[int, tuple[ByteRange, ...]]] = []
        if ranges or job.gathered:
            output = blocks.first_bytes(ranges, length, self._jobs.namespaces)
            portions += blocks.portions(plan.output_offset, output)
            portions += blocks.portions(plan.writes_offset, job.gathered)
        if not portions:
            self._finish_write_back(0)
            return
        tag, self._writing = self._jobs.next_tag(self), True
        for left, (source, pieces) in zip(reversed(range(len(portions))), portions, strict=True):
            self._jobs.send(WriteBack(tag, self._key, source, pieces, more=left > 0))

    def _finish_write_back(self, error: int) -> None:
        if error:
            self._accelerator.log.add(
                LogEntryType.INVALID_OUTPUT_BUFFER,
                f"the output could not be written to its blocks: {os.strerror(error)}",
            )
        self._finish(Event.WRITE_FAILED if error else Event.WRITTEN)

    def _finish(self, event: Event) -> None:
        self._fire(event)
        self._report_end()

    def _report_end(self) -> None:
        self._jobs.send(JobEnded(self._key, LOG_PAGE))

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
from potash_firmware.mailbox.messages import (
    FIRST_SERIAL,
    Executed,
    JobBegan,
    JobCounted,
    JobDue,
    JobEnded,
    JobLeft,
    JobOverdue,
    ReadCheck,
    ReadChecked,
    ToRpu,
    WriteBack,
    WriteBackDone,
)
from potash_firmware.mailbox.shared import Word, add, sealed

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
    """A job that is under way."""

    message: ExecuteJob
    image: bytes
    arguments: bytes
    handed_over: bool = False
    checks: set[int] = field(default_factory=set)
    """The tags of checks of blocks that the RPU has not answered."""
    asked: dict[int, ByteRange] = field(default_factory=dict)
    """The granted blocks of these checks, by tag."""
    unreadable: list[ByteRange] = field(default_factory=list)
    """Granted blocks that cannot be read."""
    gathered: list[ByteRange] = field(default_factory=list)
    """Blocks that are written when the program returns, besides its output."""
    gathered_bytes: int = 0
    """Their bytes together."""
    write_back: int | None = None
    """The tag of its write-back, while the RPU writes."""
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

    messages_at_once = 64

    def __init__(
        self,
        config: Config,
        accelerators: Mapping[int, Accelerator],
        supervisor: Supervisor,
        send: Callable[[ToRpu], None],
        media: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._config = config
        self._accelerators = accelerators
        self._namespaces = {item.nsid: item for item in config.namespaces}
        self._supervisor = supervisor
        self._send = send
        self._media = media
        self._jobs: dict[int, _Job] = {}
        self._workers: dict[int, Worker] = {}
        self._tags = count(1)
        self._serials = count(FIRST_SERIAL)
        self._images: dict[Worker, tuple[int, bytes]] = {}
        """The program that each worker has, with its serial number."""
        self._writing: dict[int, int] = {}
        """Write-backs that the RPU has not answered, to the accelerator whose arena they read."""

    def prepare(self) -> None:
        for accelerator in self._accelerators:
            if accelerator not in self._workers:
                self._workers[accelerator] = self._supervisor.spawn(accelerator, self)

    def start(self, accelerator: Accelerator, image: bytes, arguments: bytes) -> None:
        """Begin a job with the accelerator's buffers. Raises OutOfSequence while it is busy."""
        self._fire(accelerator, Event.START)
        buffers, key = accelerator.buffers, accelerator.config.id
        message = ExecuteJob(
            self._next_tag(),
            key,
            0,
            data_length=len(arguments),
            input_length=accelerator.input_length,
            output_length=accelerator.output_capacity,
            input_ranges=buffers.input_ranges,
            output_ranges=buffers.output_ranges,
            granted=buffers.granted,
        )
        accelerator.outcome = Outcome()
        accelerator.log.add(
            LogEntryType.JOB_STARTED,
            f"firmware {accelerator.active}, {message.input_length} bytes of input, "
            f"{message.output_length} bytes of room for output",
        )
        job = self._jobs[key] = _Job(message, image, arguments)
        if self._config.processor is not None:
            job.number = message.tag
            self._send(JobBegan(key, job.number))
        for nsid, items in groupby(message.input_ranges, key=lambda item: item.nsid):
            tag = self._next_tag()
            job.checks.add(tag)
            self._send(ReadCheck(tag, nsid, tuple((one.first, one.length) for one in items)))
        for grant in message.granted:
            block = self._namespaces[grant.nsid].block_size
            self._ask_about(
                job, ByteRange(grant.nsid, grant.first_lba * block, grant.blocks * block)
            )
        self._hand_over(accelerator)

    def not_loaded(self, accelerator: Accelerator) -> None:
        """There is no program to start. Raises OutOfSequence while the accelerator is busy."""
        self._fire(accelerator, Event.NOT_LOADED)

    def _next_tag(self) -> int:
        return next(self._tags) % TAG_LIMIT

    def stop(self, accelerator: Accelerator) -> None:
        """Stop the job, if there is one; it has stopped when the accelerator is not busy."""
        self._interrupt(accelerator, Event.STOP)

    def reset(self, accelerator: Accelerator) -> None:
        """Stop the job likewise; the accelerator is idle then."""
        self._interrupt(accelerator, Event.RESET)

    def replace_worker(self, accelerator: Accelerator) -> None:
        """Have a new process for the next job, if programs have run in this one."""
        worker = self._workers.get(accelerator.config.id)
        if worker is not None and worker.used:
            self._supervisor.kill(worker)

    def is_idle(self, accelerator: Accelerator) -> bool:
        """True if no job uses the accelerator, and neither a worker nor the RPU its arena."""
        key = accelerator.config.id
        worker = self._workers.get(key)
        ending = worker is not None and worker.ending
        return not (accelerator.busy or ending or key in self._writing.values())

    def expired(self, worker: Worker) -> None:
        accelerator = self._accelerators[worker.kind]
        if accelerator.state is not JobState.RUNNING:
            return
        accelerator.log.add(
            LogEntryType.LIMIT_EXCEEDED, f"the job took more than {self._config.limits.seconds:g} s"
        )
        self._interrupt(accelerator, Event.EXPIRED)

    def checked(self, checked: ReadChecked) -> None:
        """Handle the RPU's answer about blocks of a job's input."""
        asked = [key for key, job in self._jobs.items() if checked.tag in job.checks]
        if not asked:
            return  # The job has been stopped meanwhile.
        accelerator, job = self._accelerators[asked[0]], self._jobs[asked[0]]
        job.checks.remove(checked.tag)
        granted = job.asked.pop(checked.tag, None)
        if granted is not None:
            if checked.error:
                self._leave_out(job, granted, checked)
        elif checked.error and accelerator.state is JobState.RUNNING:
            accelerator.log.add(
                LogEntryType.INVALID_INPUT_BUFFER,
                f"the input cannot be read at byte {checked.at} of its namespace: "
                f"{os.strerror(checked.error)}",
            )
            self._fire(accelerator, Event.FAULTED)
            self._ended(accelerator)
            return
        self._hand_over(accelerator)

    def _ask_about(self, job: _Job, granted: ByteRange) -> None:
        tag = self._next_tag()
        job.checks.add(tag)
        job.asked[tag] = granted
        self._send(ReadCheck(tag, granted.nsid, ((granted.first, granted.length),)))

    def _leave_out(self, job: _Job, granted: ByteRange, checked: ReadChecked) -> None:
        """Exclude a block that cannot be read, and check the blocks after it.

        The whole grant is excluded if the reason is not one block, or if there are too many.
        """
        end = granted.first + granted.length
        behind = checked.at + self._namespaces[granted.nsid].block_size
        if (
            checked.error != errno.EIO
            or not granted.first <= checked.at < end
            or len(job.unreadable) >= LOST_AT_MOST
        ):
            job.unreadable.append(granted)
            return
        job.unreadable.append(ByteRange(granted.nsid, checked.at, behind - checked.at))
        if behind < end:
            self._ask_about(job, ByteRange(granted.nsid, behind, end - behind))

    def written(self, done: WriteBackDone) -> None:
        """Handle the end of a write-back."""
        key = self._writing.pop(done.tag, None)
        if key is None:
            log.warning("an answer to a write-back that was never requested: %s", done)
            return
        accelerator = self._accelerators[key]
        job = self._jobs.get(key)
        if job is not None and job.write_back == done.tag and accelerator.state is JobState.WRITING:
            accelerator.outcome.modelled = done.modelled
            self._write_ended(accelerator, done.error)
        self._hand_over(accelerator)

    def _fire(self, accelerator: Accelerator, event: Event) -> JobState:
        """Put the accelerator into the state that follows. Raises OutOfSequence."""
        before, accelerator.state = accelerator.state, after(accelerator.state, event)
        if COMPUTE.sink is not None:
            known = {"accelerator": accelerator.config.id, "event": event.name}
            states = {"before": before.name, "after": accelerator.state.name}
            COMPUTE.sink("apu.job", known | states | {"busy": accelerator.busy})
        count_event(accelerator, event)
        if not accelerator.busy:
            job = self._jobs.pop(accelerator.config.id, None)
            if job is not None and job.number:
                self._send(JobLeft(accelerator.config.id, job.number))
        return accelerator.state

    def _hand_over(self, accelerator: Accelerator) -> None:
        """Give the job to its worker, if nothing else uses its buffers any more."""
        key = accelerator.config.id
        job = self._jobs.get(key)
        if accelerator.state is not JobState.RUNNING or job is None or job.handed_over:
            return
        if job.checks or key in self._writing.values():
            return
        worker = self._workers.get(key)
        if worker is not None and worker.ending:
            return
        if worker is None:
            worker = self._workers[key] = self._supervisor.spawn(key, self)
        job.handed_over = True
        if COMPUTE.sink is not None:
            COMPUTE.sink("apu.hand_over", {"accelerator": key})
        serial, image = self._images.get(worker, (0, b""))
        made = {}
        if image != job.image:
            serial = next(self._serials)
            self._images[worker] = serial, job.image
            made[serial] = sealed("potash-program", job.image)
        message = replace(job.message, program=serial, unreadable=tuple(job.unreadable))
        data = [sealed("potash-data", job.arguments)] if job.arguments else []
        media = [self._media[nsid] for nsid in message.namespaces]
        seconds = self._config.limits.seconds
        try:
            self._supervisor.execute(worker, message, made, [*data, *media], seconds)
        finally:
            for descriptor in (*made.values(), *data):
                os.close(descriptor)

    def _interrupt(self, accelerator: Accelerator, event: Event) -> None:
        before = accelerator.state
        if self._fire(accelerator, event) in ENDING and before not in ENDING:
            worker = self._workers.get(accelerator.config.id)
            if worker is None:
                self._lost(accelerator, "")
            else:
                self._supervisor.kill(worker)

    def received(self, worker: Worker, message: FromWorker) -> None:
        accelerator, job = self._accelerators[worker.kind], self._jobs.get(worker.kind)
        if accelerator.state is not JobState.RUNNING or (job is not None and not job.handed_over):
            job = None
        match message:
            case Ready():
                pass
            case Line(kind, text):
                accelerator.log.add(kind, text)
            case Gathered(gathered) if job is not None:
                self._gathered(accelerator, job, gathered)
            case BlocksRead() if job is not None:
                self._blocks_read(job, message)
            case Executed() if job is not None:
                self._program_ended(accelerator, job, message)
            case _:
                raise ChannelError(f"a worker that runs no job sent {message}")

    def _blocks_read(self, job: _Job, message: BlocksRead) -> None:
        """Keep the blocks that a job has read, which are those that it may read."""
        sizes = {nsid: self._namespaces[nsid].size for nsid in job.message.namespaces}
        if job.ending is not None or not job.number or len(job.reads) >= MOST_OF_READS:
            raise ChannelError("a worker has sent reads that were not requested")
        if any(one.first + one.length > sizes.get(one.nsid, 0) for one in message.reads):
            raise ChannelError("a worker has sent reads of blocks that its job may not read")
        job.reads.append(message)

    def _program_ended(self, accelerator: Accelerator, job: _Job, ending: Executed) -> None:
        """A program has ended, or will have when its modelled time has passed."""
        key, most = accelerator.config.id, job.message.output_length
        if (
            job.ending is not None
            or ending.tag != job.message.tag
            or (ending.work is not None) != bool(job.number)
            or ending.outcome not in ANSWERS
            or type(ending) is not (Executed if ending.outcome else JobExecuted)
            or (isinstance(ending, JobExecuted) and ending.output_length > most)
        ):
            raise ChannelError(f"a worker has ended its job with {ending}")
        worker = self._workers.get(key)
        if worker is not None:
            self._supervisor.finish(worker)
        if ending.work is None:
            self._end_program(accelerator, ending)
            return
        job.ending = ending
        parts = [one.reads for one in job.reads] or [()]
        for left, reads in zip(reversed(range(len(parts))), parts, strict=True):
            self._send(JobCounted(key, job.number, ending.work, reads, more=left > 0))

    def due(self, due: JobDue) -> None:
        """Handle the RPU's report that a job's modelled time has passed."""
        job, accelerator = self._running(due.accelerator, due.job)
        if accelerator is not None and job is not None and job.ending is not None:
            accelerator.outcome.modelled = due.modelled
            self._end_program(accelerator, job.ending)

    def overdue(self, overdue: JobOverdue) -> None:
        job, accelerator = self._running(overdue.accelerator, overdue.job)
        if accelerator is not None and job is not None and job.ending is None:
            accelerator.log.add(
                LogEntryType.LIMIT_EXCEEDED, "the guest has stood still for the job for too long"
            )
            self._interrupt(accelerator, Event.EXPIRED)

    def _running(self, key: int, number: int) -> tuple[_Job | None, Accelerator | None]:
        """The job with a number, and its accelerator; None if it was stopped meanwhile."""
        job, accelerator = self._jobs.get(key), self._accelerators.get(key)
        if job is None or accelerator is None or accelerator.state is not JobState.RUNNING:
            return None, None
        return (job, accelerator) if job.number == number else (None, None)

    def _end_program(self, accelerator: Accelerator, ending: Executed) -> None:
        if isinstance(ending, JobExecuted):
            self._returned(accelerator, ending)
        else:
            self._fire(accelerator, Event.FAULTED)
            self._ended(accelerator)

    def _gathered(self, accelerator: Accelerator, job: _Job, gathered: Sequence[ByteRange]) -> None:
        """Keep ranges that are to be written, all of which the host has granted for writing."""
        for item in gathered:
            if not self._may_write(job.message, item):
                raise ChannelError(f"a worker wants to write {item}, which was not granted")
            job.gathered_bytes += item.length
        job.gathered += gathered
        if job.gathered_bytes > accelerator.config.plan.writes_size:
            raise ChannelError("a worker wants to write more than there is room for")

    def _may_write(self, message: ExecuteJob, item: ByteRange) -> bool:
        namespace = self._namespaces.get(item.nsid)
        if namespace is None or (item.first | item.length) % namespace.block_size:
            return False
        first, count = (number // namespace.block_size for number in (item.first, item.length))
        return blocks.is_granted(message.granted, item.nsid, first, count, writing=True)

    def _returned(self, accelerator: Accelerator, ended: JobExecuted) -> None:
        key = accelerator.config.id
        job = self._jobs[key]
        accelerator.outcome = Outcome(
            job.message.input_length, ended.output_length, ended.value, accelerator.outcome.modelled
        )
        add(accelerator.row, Word.INPUT, job.message.input_length)
        add(accelerator.row, Word.OUTPUT, ended.output_length)
        written = job.gathered_bytes
        besides = f", {written} bytes written to granted blocks" if written else ""
        accelerator.log.add(
            LogEntryType.JOB_FINISHED,
            f"returned {_signed(ended.value)} after {ended.instructions} instructions, "
            f"{ended.output_length} bytes of output{besides}",
        )
        self._fire(accelerator, Event.RETURNED)
        output = blocks.first_bytes(
            accelerator.buffers.output_ranges, ended.output_length, self._namespaces
        )
        plan = accelerator.config.plan
        portions = [
            *blocks.portions(plan.output_offset, output),
            *blocks.portions(plan.writes_offset, job.gathered),
        ]
        if not portions:
            self._write_ended(accelerator, 0)
            return
        job.write_back = tag = self._next_tag()
        self._writing[tag] = key
        for left, (source, pieces) in zip(reversed(range(len(portions))), portions, strict=True):
            self._send(WriteBack(tag, key, source, pieces, more=left > 0))

    def _write_ended(self, accelerator: Accelerator, error: int) -> None:
        if error:
            accelerator.log.add(
                LogEntryType.INVALID_OUTPUT_BUFFER,
                f"the output could not be written to its blocks: {os.strerror(error)}",
            )
        self._fire(accelerator, Event.WRITE_FAILED if error else Event.WRITTEN)
        self._ended(accelerator)

    def _ended(self, accelerator: Accelerator) -> None:
        self._send(JobEnded(accelerator.config.id, LOG_PAGE))

    def exited(self, worker: Worker, why: str) -> None:
        key = worker.kind
        del self._workers[key]
        self._images.pop(worker, None)
        accelerator = self._accelerators[key]
        job = self._jobs.get(key)
        interrupted = job is not None and job.handed_over and job.ending is None
        if accelerator.state is not JobState.RUNNING or interrupted:
            self._lost(accelerator, why)
        if worker.ready:
            self._workers[key] = self._supervisor.spawn(key, self)
        self._hand_over(accelerator)

    def _lost(self, accelerator: Accelerator, why: str) -> None:
        before = accelerator.state
        now = self._fire(accelerator, Event.WORKER_LOST)
        if before is JobState.RUNNING:
            accelerator.log.add(LogEntryType.PROCESS_LOST, f"the job's process was lost: {why}")
        if before in ENDED_BY_HOST:
            accelerator.log.add(LogEntryType.JOB_FINISHED, ENDED_BY_HOST[before])
        if now is JobState.FAILED and before is not JobState.FAILED:
            self._ended(accelerator)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
